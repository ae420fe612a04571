//! Saves in remote folders by servers and workers that are processes, through a client whose HDFS
//! is a folder of this machine.

use crate::Place;
use crate::combinations::{BATCH, Mode, batch, build, fed, layers, optimizer, print};
use crate::roles::{Cluster, documented};
use fleet::prelude::*;
use fleet::ps::{SaveFormat, SaveMode};
use fleet::servers::{ServerJob, Worker};
use fleet::strategy::FsClientParameter;
use fleet::topology::Env;
use fleet_testhost::hadoop::Hadoop;
use fleet_testhost::process;
use std::path::Path;

/// The test that runs the processes of all jobs.
const TEST: &str = "hdfs::servers_load_what_others_have_saved";
const SERVERS: usize = 2;
const URL: &str = "hdfs://host:9000/save";
/// Variable of these tests with the client's program.
const PROGRAM: &str = "TEST_HADOOP";
const IDS: [i64; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
const STEPS: u64 = 3;

fn work(job: &str) -> Result<()> {
    let (fleet, net) = (Fleet::from_env()?, Net::new());
    let loss = build(&net, Mode::Sync);
    let env = Env::process();
    let program = env.get(PROGRAM).unwrap_or_default();
    let client = FsClientParameter::default().with_hadoop_bin(program).with_uri("hdfs://host:9000");
    let strategy = DistributedStrategy::new().with_a_sync(false).with_fs_client_param(client);
    let optimizer = fleet.distributed_optimizer(optimizer("adagrad"), &strategy);
    let served = optimizer.minimize_on_servers(&net, loss)?;
    if fleet.is_server() {
        return serve(&fleet, &served, job);
    }
    let mut worker = fleet.init_worker(net.build()?, &served, ExecOptions::threads(1))?;
    let own = fleet.worker_index();
    if job == "save" {
        for step in 0..STEPS {
            worker.run(&fed(&batch(Mode::Sync, step, own * BATCH, BATCH)), &[])?;
        }
        worker.flush()?;
        worker.barrier()?;
        if own == 0 {
            worker.save_persistables(URL, SaveMode::All, SaveFormat::Binary)?;
        }
    }
    print(&state(&worker)?);
    worker.barrier()?;
    worker.stop()
}

fn serve(fleet: &Fleet, served: &ServerJob, job: &str) -> Result<()> {
    let server = match job {
        "load" => fleet.init_server_from(served, Path::new(URL), None)?,
        "rows" => fleet.init_server_incremental(served, Path::new(URL))?,
        _ => fleet.init_server(served)?,
    };
    server.run()
}

fn state(worker: &Worker) -> Result<Vec<f32>> {
    let mut all = worker.read_rows("table", &IDS)?;
    all.extend(layers(&worker.session));
    Ok(all)
}

#[test]
fn servers_load_what_others_have_saved() {
    if let Some(job) = process::role() {
        return process::end(work(&job));
    }
    let place = Place::new("hdfs", "");
    let hadoop = Hadoop::new(place.path("hadoop"));
    let run = |job: &str| -> Vec<String> {
        let cluster = Cluster::new(SERVERS);
        let outputs = cluster.run(&place, (TEST, job), |role, rank| {
            let mut variables = documented(&cluster, role, rank);
            variables.push((PROGRAM, hadoop.program()));
            variables.push(("TMPDIR", hadoop.temporary().display().to_string()));
            variables
        });
        let line = |output: &std::process::Output| {
            let text = String::from_utf8_lossy(&output.stdout);
            let line = text.lines().find_map(|line| line.strip_prefix("parameters "));
            line.unwrap_or_else(|| panic!("no parameters:\n{text}")).to_string()
        };
        outputs.iter().map(line).collect()
    };
    let saved = run("save");
    assert!(saved.windows(2).all(|pair| pair[0] == pair[1]));
    assert!(hadoop.file("/save/saved-001.1").exists() && hadoop.file("/save/worker").exists());
    assert_eq!(run("load"), saved);
    let rows = IDS.len() * 3;
    let of_rows = |lines: &[String]| -> Vec<String> {
        lines[0].split(' ').take(rows).map(str::to_string).collect()
    };
    let with_rows = run("rows");
    assert_eq!(of_rows(&with_rows), of_rows(&saved));
    assert_ne!(with_rows, saved, "layers are those of the new job");
    assert!(hadoop.temporary().read_dir().unwrap().next().is_none(), "copies are deleted");
}
