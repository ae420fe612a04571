//! Jobs that no launcher starts: their processes get roles in code, or the documented environment
//! alone with `FLEET_OPEN`. In every mode the result is that of one process.

use crate::combinations::{
    BATCH, Case, LIMIT, Mode, STEPS, alone, batch, build, difference, fed, layers, optimizer,
    print, take_part,
};
use crate::{PLACE, Place};
use fleet::prelude::*;
use fleet::topology::{Endpoint, Env, Role, Secret, UserDefinedRoleMaker};
use fleet_launch::ports::{Ports, SystemPorts};
use fleet_testhost::process;
use std::process::{Output, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// The test that runs the processes of all jobs.
const TEST: &str = "roles::roles_in_code_train_as_one_process";
/// Secret of the jobs with roles in code.
const TOKEN: &str = "0123456789abcdef0123456789abcdef";
pub const WORKERS: usize = 2;
/// Role of the processes of collective jobs; the other roles are indices into [`CASES`].
const COLLECTIVE: &str = "collective";
const CASES: [Case; 4] = [
    (Mode::Sync, "momentum", 1, WORKERS),
    (Mode::HalfAsync, "adam", 1, WORKERS),
    (Mode::Async, "sgd", 1, WORKERS),
    (Mode::Geo(2), "sgd", 1, WORKERS),
];
/// The case whose network and batches collective jobs have.
const OF_COLLECTIVE: Case = CASES[0];
/// Variables of these tests that describe a process whose roles are given in code.
const ROLE: &str = "TEST_ROLE";
const RANK: &str = "TEST_RANK";
const WORKER_LIST: &str = "TEST_WORKERS";
const SERVER_LIST: &str = "TEST_SERVERS";
/// Jobs take a few seconds. One that takes longer than this hangs.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A job's processes and their ports, which are reserved for the job's lifetime.
pub struct Cluster {
    workers: Vec<Endpoint>,
    servers: Vec<Endpoint>,
    /// An endpoint of no process.
    pub unused: Endpoint,
    _ports: SystemPorts,
}

impl Cluster {
    pub fn new(server_count: usize) -> Cluster {
        let mut ports = SystemPorts::new(None);
        let mut list = |count: usize| -> Vec<Endpoint> {
            let endpoint = |_| Endpoint::new("127.0.0.1", ports.next("127.0.0.1").unwrap());
            (0..count).map(endpoint).collect()
        };
        let (workers, servers, unused) = (list(WORKERS), list(server_count), list(1).remove(0));
        Cluster { workers, servers, unused, _ports: ports }
    }

    fn processes(&self) -> impl Iterator<Item = (Role, usize)> {
        let servers = (0..self.servers.len()).map(|rank| (Role::Server, rank));
        servers.chain((0..WORKERS).map(|rank| (Role::Worker, rank)))
    }

    /// Starts the processes of a job as a test, each with its own variables, and waits for all.
    /// Returns the outputs of the workers.
    pub fn run(
        &self,
        place: &Place,
        (test, job): (&str, &str),
        variables: impl Fn(Role, usize) -> Vec<(&'static str, String)>,
    ) -> Vec<Output> {
        let (tell, told) = channel();
        for (role, rank) in self.processes() {
            let mut command = process::command(test, job);
            for (name, _) in std::env::vars_os() {
                let name = name.to_string_lossy();
                if ["PADDLE_", "FLAGS_", "FLEET_"].iter().any(|prefix| name.starts_with(prefix)) {
                    command.env_remove(&*name);
                }
            }
            command.env(PLACE, place.mark()).envs(variables(role, rank));
            let streams = command.stdin(Stdio::null()).stdout(Stdio::piped());
            let child = streams.stderr(Stdio::piped()).spawn().unwrap();
            let tell = tell.clone();
            std::thread::spawn(move || tell.send((role, rank, child.wait_with_output())));
        }
        let mut workers = Vec::new();
        for _ in self.processes() {
            let (role, rank, output) = told.recv_timeout(TIMEOUT).expect("the job hangs");
            let output = output.unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{job}: {role} {rank}:\n{said}");
            if role == Role::Worker {
                workers.push(output);
            }
        }
        workers
    }
}

/// Describes the process to `UserDefinedRoleMaker`.
fn coded(cluster: &Cluster, role: Role, rank: usize) -> Vec<(&'static str, String)> {
    vec![
        (ROLE, role.env_name().to_string()),
        (RANK, rank.to_string()),
        (WORKER_LIST, Endpoint::join(&cluster.workers)),
        (SERVER_LIST, Endpoint::join(&cluster.servers)),
    ]
}

/// Describes the process by the documented variables, and `FLEET_OPEN`.
pub fn documented(cluster: &Cluster, role: Role, rank: usize) -> Vec<(&'static str, String)> {
    let mut set = vec![
        ("PADDLE_TRAINERS_NUM", WORKERS.to_string()),
        ("PADDLE_TRAINER_ENDPOINTS", Endpoint::join(&cluster.workers)),
        ("FLEET_OPEN", "loopback".to_string()),
    ];
    let own = match role {
        Role::Server => &cluster.servers[rank],
        _ => &cluster.workers[rank],
    };
    if role == Role::Worker {
        set.push(("PADDLE_TRAINER_ID", rank.to_string()));
    }
    if cluster.servers.is_empty() {
        set.push(("PADDLE_CURRENT_ENDPOINT", own.to_string()));
        return set;
    }
    set.extend([
        ("PADDLE_PSERVERS_IP_PORT_LIST", Endpoint::join(&cluster.servers)),
        ("TRAINING_ROLE", role.env_name().to_string()),
        ("POD_IP", own.host.clone()),
        ("PADDLE_PORT", own.port.to_string()),
    ]);
    set
}

/// Joins the job in a process of it.
fn join() -> Result<Fleet> {
    let env = Env::process();
    let Some(role) = env.get(ROLE) else { return Fleet::from_env() };
    let endpoints = |name: &str| Endpoint::list(name, env.get(name).unwrap_or_default());
    let servers = endpoints(SERVER_LIST)?;
    let roles = UserDefinedRoleMaker {
        is_collective: servers.is_empty(),
        current_id: env.number(RANK)?.unwrap_or_default(),
        role: Role::from_env_name(role).unwrap(),
        worker_endpoints: endpoints(WORKER_LIST)?,
        server_endpoints: servers,
        ..UserDefinedRoleMaker::default()
    };
    Fleet::with_roles(roles.token(Secret::new(TOKEN)?), &Env::new())
}

/// Works as a process of a job.
fn work(job: &str) -> Result<()> {
    let fleet = join()?;
    match job.parse::<usize>() {
        Ok(index) => take_part(&fleet, CASES[index], false)?,
        Err(_) => train_collectively(&fleet)?,
    }
    if fleet.is_server() {
        return Ok(());
    }
    // Workers meet without a launcher's store.
    assert_eq!(fleet.util().all_reduce(&[1.0], ReduceOp::Sum)?, [WORKERS as f64]);
    fleet.finish()
}

fn train_collectively(fleet: &Fleet) -> Result<()> {
    let (mode, rule, ..) = OF_COLLECTIVE;
    let net = Net::new();
    let loss = build(&net, mode);
    let strategy = DistributedStrategy::new();
    let job = fleet.distributed_optimizer(optimizer(rule), &strategy).minimize(&net, loss)?;
    let mut session = fleet.session(net.build()?, &job, ExecOptions::threads(1))?;
    for step in 0..STEPS {
        let own = batch(mode, step, fleet.worker_index() * BATCH, BATCH);
        session.run(&fed(&own), &[])?;
    }
    let mut all = session.scope.tensor("table")?.to_vec::<f32>()?;
    all.extend(layers(&session));
    print(&all);
    Ok(())
}

/// Runs a job, and compares what each worker printed with the result of one process.
fn check(
    place: &Place,
    (job, case): (&str, Case),
    variables: fn(&Cluster, Role, usize) -> Vec<(&'static str, String)>,
) -> Vec<Output> {
    let servers = if job == COLLECTIVE { 0 } else { case.2 };
    let cluster = Cluster::new(servers);
    let outputs = cluster.run(place, (TEST, job), |role, rank| variables(&cluster, role, rank));
    let want = alone(case);
    for output in &outputs {
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text.lines().find_map(|line| line.strip_prefix("parameters "));
        let bits = line.unwrap_or_else(|| panic!("no parameters:\n{text}")).split(' ');
        let got: Vec<f32> = bits.map(|bits| f32::from_bits(bits.parse().unwrap())).collect();
        let off = difference(&got, &want);
        assert!(off <= LIMIT, "{job}, {case:?}: off by {off}");
    }
    outputs
}

fn each_job() -> impl Iterator<Item = (String, Case)> {
    let servers = CASES.into_iter().enumerate().map(|(index, case)| (index.to_string(), case));
    servers.chain([(COLLECTIVE.to_string(), OF_COLLECTIVE)])
}

#[test]
fn roles_in_code_train_as_one_process() {
    if let Some(job) = process::role() {
        return process::end(work(&job));
    }
    let place = Place::new("roles_in_code", "");
    for (job, case) in each_job() {
        for output in check(&place, (&job, case), coded) {
            assert!(!String::from_utf8_lossy(&output.stderr).contains("open mode"));
        }
    }
}

#[test]
fn the_documented_environment_alone_trains_as_one_process() {
    let place = Place::new("roles_open", "");
    for (job, case) in each_job() {
        for output in check(&place, (&job, case), documented) {
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(said.matches("open mode: any user of this machine").count(), 1, "{said}");
        }
    }
}

/// Without a secret and without `FLEET_OPEN`, the error names both.
#[test]
fn a_job_without_a_secret_is_refused() {
    let cluster = Cluster::new(0);
    let mut env: Env = documented(&cluster, Role::Worker, 0).into_iter().collect();
    env.remove("FLEET_OPEN");
    let error = Fleet::join(&env).err().expect("a refusal").to_string();
    for part in ["no shared secret", "FLEET_TOKEN", "openssl rand -hex 32", "FLEET_OPEN=loopback"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    env.set("FLEET_OPEN", "loopback");
    env.set("PADDLE_TRAINER_ENDPOINTS", "10.0.0.1:6170,10.0.0.2:6170");
    env.remove("PADDLE_CURRENT_ENDPOINT");
    let error = Fleet::join(&env).err().expect("a refusal").to_string();
    assert!(error.contains("loopback addresses only") && error.contains("10.0.0.1"), "{error}");
}

/// Workers that know neither each other nor a store train, and cannot meet.
#[test]
fn workers_without_addresses_cannot_meet() {
    let roles = UserDefinedRoleMaker {
        worker_num: Some(2),
        server_endpoints: vec![Endpoint::new("127.0.0.1", 1)],
        ..UserDefinedRoleMaker::default()
    };
    let fleet = Fleet::with_roles(roles.open(), &Env::new()).unwrap();
    let error = fleet.util().barrier().unwrap_err().to_string();
    assert!(error.contains("no rendezvous endpoint") && error.contains("worker_endpoints"));
}
