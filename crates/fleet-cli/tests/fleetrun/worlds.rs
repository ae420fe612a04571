//! Groups of workers, of servers, and of both (`comm_world`), in jobs with and without a launcher.

use crate::combinations::{Case, Mode, take_part};
use crate::roles::{Cluster, WORKERS, documented};
use crate::{PLACE, Place, Said};
use fleet::CommWorld;
use fleet::prelude::*;
use fleet::topology::{Env, Role};
use fleet_testhost::hadoop::Hadoop;
use fleet_testhost::process;

/// The test that runs the processes of all jobs.
const TEST: &str = "worlds::servers_and_workers_meet";
const SERVERS: usize = 2;
const CASE: Case = (Mode::Sync, "momentum", SERVERS, WORKERS);

/// Works as a process of a job: communicates in every group, then trains.
fn work() -> Result<()> {
    let fleet = Fleet::from_env()?;
    let (util, rank) = (fleet.util(), fleet.topology().rank());
    let refused = |outcome: Result<()>, words: &str| {
        let error = outcome.expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    };
    let own = if fleet.is_server() { WORKERS + rank } else { rank };
    let everyone = util.all_gather_in(&[own as f64, 0.5], CommWorld::All)?;
    let expected: Vec<Vec<f64>> =
        (0..WORKERS + SERVERS).map(|rank| vec![rank as f64, 0.5]).collect();
    assert_eq!(everyone, expected);
    if fleet.is_server() {
        let sum = util.all_reduce_in(&[1.0 + rank as f64], ReduceOp::Sum, CommWorld::Server)?;
        assert_eq!(sum, [3.0]);
        refused(util.barrier(), "only workers have a group");
    } else {
        assert_eq!(util.all_reduce(&[1.0 + rank as f64], ReduceOp::Max)?, [2.0]);
        refused(util.barrier_in(CommWorld::Server), "only servers belong to the group of servers");
    }
    util.barrier_in(CommWorld::All)?;
    take_part(&fleet, CASE, false)
}

#[test]
fn servers_and_workers_meet() {
    if process::role().is_some() {
        return process::end(work());
    }
    let place = Place::new("worlds", "");
    let line = format!("--server_num {SERVERS} --worker_num {WORKERS} --with_gloo 2");
    let mut command = place.command(&line);
    let output = process::append(&mut command, TEST, "fleetrun").output().unwrap();
    Said::new(output).check(0, &["done in"]);
}

/// Without a launcher processes meet where the variables of gloo say.
#[test]
fn the_documented_rendezvous() {
    let place = Place::new("rendezvous", "");
    let hadoop = Hadoop::new(place.path("hadoop"));
    let path = std::env::var("PATH").unwrap_or_default();
    let folder = place.path("met").display().to_string();
    for rendezvous in ["1", "2", "3"] {
        let cluster = Cluster::new(SERVERS);
        let met = if rendezvous == "1" { "/jobs/met" } else { &*folder };
        cluster.run(&place, (TEST, rendezvous), |role, rank| {
            let mut variables = documented(&cluster, role, rank);
            // Nothing listens at the endpoints of the workers.
            variables.retain(|(name, _)| *name != "PADDLE_TRAINER_ENDPOINTS");
            variables.extend([
                ("PADDLE_WITH_GLOO", "2".to_string()),
                ("PADDLE_GLOO_RENDEZVOUS", rendezvous.to_string()),
                ("PADDLE_GLOO_FS_NAME", "hdfs://host:9000".to_string()),
                ("PADDLE_GLOO_FS_UGI", "me,secret".to_string()),
                ("PADDLE_GLOO_FS_PATH", met.to_string()),
                ("PADDLE_GLOO_HTTP_ENDPOINT", cluster.unused.to_string()),
                ("SYS_JOB_ID", "a job / of mine".to_string()),
                ("PATH", format!("{}:{path}", hadoop.folder().display())),
                ("TMPDIR", hadoop.temporary().display().to_string()),
            ]);
            variables
        });
    }
    let left: Vec<_> = std::fs::read_dir(place.path("met")).unwrap().collect();
    assert!(left.is_empty(), "the file of the store is removed: {left:?}");
    let commands = hadoop.commands();
    let options = " fs.defaultFS=hdfs://host:9000 hadoop.job.ugi=me,secret";
    assert!(commands.iter().all(|line| line.ends_with(options)), "{commands:?}");
    for (action, count) in [("-put", 1), ("-rm", 1), ("-get", SERVERS + WORKERS - 1)] {
        let found = commands.iter().filter(|line| line.starts_with(action)).count();
        assert!(found >= count, "{action}: {commands:?}");
    }
    assert!(hadoop.file("/jobs/met").is_dir() && hadoop.files().is_empty());
    assert!(hadoop.temporary().read_dir().unwrap().next().is_none(), "copies are deleted");
}

/// A client that fails ends the process at once, with the client's error.
#[test]
fn a_rendezvous_without_hdfs() {
    let place = Place::new("rendezvous_failing", "");
    let hadoop = Hadoop::new(place.path("hadoop"));
    hadoop.fail(1..1000);
    for rank in 0..WORKERS {
        let cluster = Cluster::new(0);
        let mut command = process::command(TEST, "1");
        command.env(PLACE, place.mark()).envs(documented(&cluster, Role::Worker, rank));
        command.envs([
            ("PADDLE_WITH_GLOO", "1"),
            ("PADDLE_GLOO_RENDEZVOUS", "1"),
            ("PADDLE_GLOO_FS_NAME", "hdfs://host:9000"),
            ("PADDLE_GLOO_FS_UGI", "me,secret"),
            ("PADDLE_GLOO_FS_PATH", "/jobs/met"),
        ]);
        command.env("PATH", hadoop.folder()).env("TMPDIR", hadoop.temporary());
        let said = Said::new(command.output().unwrap());
        let action = if rank == 0 { "-mkdir -p /jobs/met" } else { "-test -e /jobs/met/" };
        said.check(1, &[action, "failed (exit status: 1)", "Connection refused", "/jobs/met/"]);
        assert!(!said.err.contains("secret"), "{}", said.err);
    }
}

#[test]
fn servers_are_in_no_group_without_the_documented_variable() {
    let cluster = Cluster::new(1);
    let env: Env = documented(&cluster, Role::Worker, 0).into_iter().collect();
    let fleet = Fleet::join(&env).unwrap();
    for world in [CommWorld::All, CommWorld::Server] {
        let error = fleet.util().barrier_in(world).unwrap_err().to_string();
        assert!(error.contains("PADDLE_WITH_GLOO=2") && error.contains("--with_gloo 2"), "{error}");
    }
}

/// The store of the job is at the port of `--http_port`.
#[test]
fn the_port_of_the_store() {
    let place = Place::new(
        "http_port",
        "echo $FLEET_STORE $PADDLE_GLOO_HTTP_ENDPOINT\n\
        [ $TRAINING_ROLE = TRAINER ] || { trap 'exit 0' TERM; while :; do sleep 0.05; done; }",
    );
    let cluster = Cluster::new(0);
    let port = cluster.unused.port;
    let said = place.run(&format!("--http_port {port} --server_num 1 --worker_num 1 job.py"));
    said.check(0, &[]);
    assert_eq!(said.out, format!("127.0.0.1:{port} 127.0.0.1:{port}\n"));
}

/// `fleet.util` reads HDFS where the rendezvous is there.
#[test]
fn the_file_system_of_the_job() {
    let fs = |env: &[(&str, &str)]| {
        let env: Env = env.iter().copied().collect();
        format!("{:?}", Fleet::join(&env).unwrap().util().get_fs())
    };
    assert_eq!(fs(&[]), "LocalFs");
    let hdfs = fs(&[
        ("PADDLE_GLOO_RENDEZVOUS", "1"),
        ("PADDLE_GLOO_FS_NAME", "hdfs://host:9000"),
        ("PADDLE_GLOO_FS_UGI", "me,secret"),
        ("PADDLE_GLOO_FS_PATH", "/jobs"),
    ]);
    assert!(hdfs.starts_with("CommandFs") && !hdfs.contains("secret"), "{hdfs}");
}
