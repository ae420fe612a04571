//! The role maker that reads the environment ("PaddleCloudRoleMaker" in the documents).
//!
//! It accepts and rejects the same environments as the original role maker. Errors name the same
//! variable or endpoint, in Fleet's own words.

use crate::env::{check_rank, not_found};
use crate::{Endpoint, Env, Gloo, HeterStage, Job, Local, Mode, Role, Secret, Topology, names};
use fleet_base::{Error, Result};
use std::time::Duration;

impl Topology {
    /// The topology of a process in a collective job, `fleet.init(is_collective=True)`. Without
    /// `PADDLE_TRAINER_ENDPOINTS` the process is worker 0 of 1.
    pub fn collective(env: &Env) -> Result<Topology> {
        reject_server(env)?;
        let endpoints = list(env, names::PADDLE_TRAINER_ENDPOINTS)?;
        let distributed = !endpoints.is_empty();
        if !distributed && mpi_ranks(env)?.is_none_or(|ranks| ranks <= 1) {
            reject_foreign_launcher(env)?;
        }
        let workers = match distributed {
            true => endpoints,
            false => vec![Endpoint::new(DEFAULT_HOST, DEFAULT_PORT)],
        };
        let worker_num = env.number(names::PADDLE_TRAINERS_NUM)?.unwrap_or(workers.len());
        check_counts(worker_num, &workers)?;
        let rank = match env.number(names::PADDLE_TRAINER_ID)? {
            Some(rank) => rank,
            None if worker_num > 1 => return Err(not_found(names::PADDLE_TRAINER_ID)),
            None => 0,
        };
        check_rank(rank, worker_num)?;
        let own = own_endpoint(env, &workers, rank)?;
        let made = Topology {
            mode: Mode::Collective,
            role: Role::Worker,
            rank,
            distributed,
            endpoint: Some(own),
            worker_num,
            local: local(env, &workers, rank)?,
            workers,
            servers: Vec::new(),
            coordinators: Vec::new(),
            heter: None,
            gloo: Gloo::from_env(env)?,
            job: job(env)?,
            worker_hosts: Vec::new(),
        };
        made.opened()
    }

    /// The topology of a process in a parameter-server job, `fleet.init()`. Without
    /// `PADDLE_PSERVERS_IP_PORT_LIST` the process is worker 0 of 1. It is an error if another
    /// variable implies several processes.
    pub fn parameter_server(env: &Env) -> Result<Topology> {
        let servers = list(env, names::PADDLE_PSERVERS_IP_PORT_LIST)?;
        if servers.is_empty() {
            reject_missing_servers(env)?;
            let alone = Topology::single_worker(Mode::ParameterServer);
            return Topology { job: job(env)?, ..alone }.opened();
        }
        no_duplicates(&servers, names::PADDLE_PSERVERS_IP_PORT_LIST)?;
        let workers = list(env, names::PADDLE_TRAINER_ENDPOINTS)?;
        let worker_num = env
            .number(names::PADDLE_TRAINERS_NUM)?
            .ok_or_else(|| not_found(names::PADDLE_TRAINERS_NUM))?;
        let role = role(env)?;
        if worker_num == 0 {
            return Err(Error::invalid("PADDLE_TRAINERS_NUM is 0").expected("at least 1 worker"));
        }
        check_counts(worker_num, &workers)?;
        let heter = heter(env, role)?;
        let (rank, endpoint) =
            ps_rank_and_endpoint(env, role, worker_num, &servers, heter.as_ref())?;
        let made = Topology {
            mode: Mode::ParameterServer,
            role,
            rank,
            distributed: true,
            endpoint,
            worker_num,
            local: match role {
                Role::Worker => local(env, &workers, rank)?,
                _ => Local::default(),
            },
            workers,
            servers,
            coordinators: list(env, names::PADDLE_COORDINATOR_ENDPOINTS)?,
            heter,
            gloo: Gloo::from_env(env)?,
            job: job(env)?,
            worker_hosts: Vec::new(),
        };
        made.opened()
    }

    /// Worker 0 of 1.
    pub(crate) fn single_worker(mode: Mode) -> Topology {
        Topology {
            mode,
            role: Role::Worker,
            rank: 0,
            distributed: false,
            endpoint: None,
            worker_num: 1,
            workers: Vec::new(),
            servers: Vec::new(),
            coordinators: Vec::new(),
            local: Local::default(),
            heter: None,
            gloo: Gloo::default(),
            job: Job::default(),
            worker_hosts: Vec::new(),
        }
    }
}

/// The rank and endpoint of this process in a parameter-server job.
fn ps_rank_and_endpoint(
    env: &Env,
    role: Role,
    worker_num: usize,
    servers: &[Endpoint],
    heter: Option<&HeterStage>,
) -> Result<(usize, Option<Endpoint>)> {
    match role {
        Role::Worker => {
            let rank = env
                .number(names::PADDLE_TRAINER_ID)?
                .ok_or_else(|| not_found(names::PADDLE_TRAINER_ID))?;
            check_rank(rank, worker_num)?;
            let host = env.text(names::POD_IP).unwrap_or(DEFAULT_HOST);
            Ok((rank, Some(Endpoint::new(host, port(env)?))))
        }
        Role::Server => {
            let port = port(env)?;
            let host = env.text(names::POD_IP).ok_or_else(|| not_found(names::POD_IP))?;
            let own = Endpoint::new(host, port);
            let rank = position(&own, servers, names::PADDLE_PSERVERS_IP_PORT_LIST)?;
            Ok((rank, Some(own)))
        }
        Role::HeterWorker => {
            let port = port(env)?;
            let host = env.text(names::POD_IP).ok_or_else(|| not_found(names::POD_IP))?;
            let own = Endpoint::new(host, port);
            let all = heter.map(|stage| stage.all.as_slice()).unwrap_or_default();
            let at = position(&own, all, names::PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST)?;
            Ok((worker_num + at, Some(own)))
        }
        Role::Coordinator => Ok((0, None)),
    }
}

/// The stage of this process. `None` if the job has no heterogeneous workers, and for a server,
/// which has no stage.
fn heter(env: &Env, role: Role) -> Result<Option<HeterStage>> {
    let all = list(env, names::PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST)?;
    let staged = matches!(role, Role::Worker | Role::HeterWorker);
    if !staged || (all.is_empty() && role == Role::Worker) {
        return Ok(None);
    }
    if all.is_empty() {
        return Err(not_found(names::PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST));
    }
    let need = |name| env.text(name).ok_or_else(|| not_found(name));
    let count = |name| env.number::<usize>(name)?.ok_or_else(|| not_found(name));
    let stage = HeterStage {
        id: count(names::STAGE_ID)?,
        count: count(names::STAGE_NUM)?,
        trainers: bracketed(need(names::PADDLE_STAGE_TRAINERS_NUM)?)?,
        device: need(names::HETER_DEVICE_TYPE)?.to_string(),
        all,
        next: list(env, names::PADDLE_NEXT_HETER_TRAINER_IP_PORT_LIST)?,
        previous: list(env, names::PADDLE_PREVIOUS_HETER_TRAINER_IP_PORT_LIST)?,
    };
    if stage.id == 0 || stage.id > stage.count || stage.trainers.len() != stage.count {
        return Err(Error::invalid("the stage of this process does not exist")
            .expected(format!("1 to {}", stage.trainers.len()))
            .got(format!("stage {} of {}", stage.id, stage.count))
            .at("STAGE_ID, STAGE_NUM, PADDLE_STAGE_TRAINERS_NUM"));
    }
    Ok(Some(stage))
}

/// Parses a list in brackets, such as `[1, 2]`.
fn bracketed(text: &str) -> Result<Vec<usize>> {
    let wrong = || {
        Error::invalid("invalid PADDLE_STAGE_TRAINERS_NUM")
            .expected("a list of numbers like [1, 2]")
            .got(format!("'{}'", text.chars().take(80).collect::<String>()))
    };
    let inner = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).ok_or_else(wrong)?;
    inner.split(',').map(|item| item.trim().parse().map_err(|_| wrong())).collect()
}

fn role(env: &Env) -> Result<Role> {
    let name = env.get(names::TRAINING_ROLE).ok_or_else(|| not_found(names::TRAINING_ROLE))?;
    Role::from_env_name(name).ok_or_else(|| {
        Error::invalid("invalid TRAINING_ROLE")
            .expected("PSERVER, TRAINER, HETER_TRAINER or COORDINATOR")
            .got(format!("'{name}'"))
    })
}

fn port(env: &Env) -> Result<u16> {
    env.number(names::PADDLE_PORT)?.ok_or_else(|| not_found(names::PADDLE_PORT))
}

/// Rejects a script that initialises a collective job in a process started as a server. Such a
/// process would train alone.
fn reject_server(env: &Env) -> Result<()> {
    match env.text(names::TRAINING_ROLE) {
        Some(role) if role != Role::Worker.env_name() => {
            Err(Error::invalid("this process was not started as a worker of a collective job")
                .expected("TRAINING_ROLE absent or TRAINER")
                .got(role)
                .help("initialise without is_collective, or start the job without servers"))
        }
        _ => Ok(()),
    }
}

fn mpi_ranks(env: &Env) -> Result<Option<usize>> {
    match env.number(names::OMPI_COMM_WORLD_SIZE)? {
        Some(ranks) => Ok(Some(ranks)),
        None => env.number(names::PMI_SIZE),
    }
}

/// Without a list of servers, a process trains alone with a server of its own. Rejects this in a
/// process of a larger job: all its processes would train alone and write the same files.
fn reject_missing_servers(env: &Env) -> Result<()> {
    let servers = names::PADDLE_PSERVERS_IP_PORT_LIST;
    if let Some(role) = env.text(names::TRAINING_ROLE).filter(|role| *role != "TRAINER") {
        return Err(not_found(servers)
            .expected("the endpoints of all parameter servers")
            .got(format!("none, with TRAINING_ROLE={role}")));
    }
    let listed = list(env, names::PADDLE_TRAINER_ENDPOINTS)?.len();
    let workers = env.number(names::PADDLE_TRAINERS_NUM)?.unwrap_or(listed).max(listed);
    if workers > 1 {
        return Err(Error::invalid(format!("a job of {workers} workers has no parameter servers"))
            .expected(format!("{servers}, or a collective job"))
            .help("start it with fleetrun --server_num N --worker_num M"));
    }
    if let Some(ranks) = mpi_ranks(env)?.filter(|ranks| *ranks > 1 && !is_job_described(env)) {
        return Err(Error::invalid(format!(
            "mpirun started this process as one of {ranks}, but the job has no parameter servers"
        ))
        .help("start the job with fleetrun --server_num N --worker_num M"));
    }
    reject_foreign_launcher(env)
}

/// Rejects a process that another launcher started as one of several: it would train alone.
fn reject_foreign_launcher(env: &Env) -> Result<()> {
    if is_job_described(env) {
        return Ok(());
    }
    for (name, launcher) in [(names::WORLD_SIZE, "torchrun"), (names::SLURM_NTASKS, "Slurm")] {
        let Some(count) = env.number::<usize>(name)?.filter(|count| *count > 1) else { continue };
        return Err(Error::invalid(format!(
            "{launcher} started this process as one of {count} ({name}={count}), but no variable \
             lists their endpoints"
        ))
        .expected(names::PADDLE_TRAINER_ENDPOINTS)
        .help(
            "start the job with fleetrun on each machine; to train alone, set \
             PADDLE_TRAINERS_NUM=1",
        ));
    }
    Ok(())
}

/// Whether `fleetrun`, a compatible launcher or the user has described the job. Variables of other
/// launchers do not count then: `fleetrun` itself sets `RANK` and `WORLD_SIZE`.
fn is_job_described(env: &Env) -> bool {
    let names = [
        names::PADDLE_TRAINERS_NUM,
        names::PADDLE_TRAINER_ENDPOINTS,
        names::FLEET_LAUNCH,
        names::FLEET_STORE,
    ];
    names.iter().any(|name| env.text(name).is_some())
}

/// The endpoint of this collective worker. `PADDLE_CURRENT_ENDPOINT`, if set, must match the list.
fn own_endpoint(env: &Env, workers: &[Endpoint], rank: usize) -> Result<Endpoint> {
    let listed = workers[rank].clone();
    let Some(text) = env.text(names::PADDLE_CURRENT_ENDPOINT) else { return Ok(listed) };
    let own: Endpoint = text.parse().map_err(|e: Error| e.at(names::PADDLE_CURRENT_ENDPOINT))?;
    if own != listed {
        return Err(Error::invalid("PADDLE_CURRENT_ENDPOINT is not the endpoint of this rank")
            .expected(format!("{listed} (entry {rank} of PADDLE_TRAINER_ENDPOINTS)"))
            .got(own));
    }
    Ok(own)
}

pub(crate) fn local(env: &Env, workers: &[Endpoint], rank: usize) -> Result<Local> {
    let before = rank_on_host(workers, rank);
    let devices = |name| match env.text(name) {
        Some(text) => text.split(',').map(|id| id.trim().to_string()).collect(),
        None => Vec::new(),
    };
    let mut own: Vec<String> = devices(names::PADDLE_LOCAL_DEVICE_IDS);
    if own.is_empty() {
        own = devices(names::FLAGS_SELECTED_GPUS);
    }
    Ok(Local {
        rank: env.number(names::PADDLE_RANK_IN_NODE)?.unwrap_or(before),
        devices: own,
        world_devices: devices(names::PADDLE_WORLD_DEVICE_IDS),
    })
}

/// The rank on its own host: local ranks follow the order of the workers of one host in the list.
pub(crate) fn rank_on_host(workers: &[Endpoint], rank: usize) -> usize {
    let own_host = workers.get(rank).map(|endpoint| &endpoint.host);
    workers.iter().take(rank).filter(|other| Some(&other.host) == own_host).count()
}

pub(crate) fn job(env: &Env) -> Result<Job> {
    let store = env.text(names::FLEET_STORE).map(str::parse).transpose();
    Ok(Job {
        id: env.text(names::FLEET_JOB_ID).map(str::to_string),
        store: store.map_err(|error: Error| error.at(names::FLEET_STORE))?,
        token: env.text(names::FLEET_TOKEN).map(Secret::new).transpose()?,
        open: is_open(env)?,
        restarts: env.number(names::FLEET_RESTART_COUNT)?.unwrap_or(0),
        shared_memory: env.switch(names::FLEET_SHARED_MEMORY)?,
        mpi_ranks: mpi_ranks(env)?,
        mpi_library: env.text(names::FLEET_MPI_LIBRARY).map(str::to_string),
        nccl: uses_nccl(env)?,
        nccl_library: env.text(names::FLEET_NCCL_LIBRARY).map(str::to_string),
        report: env.text(names::FLEET_REPORT).map(str::to_string),
        silence: silence(env)?,
    })
}

fn uses_nccl(env: &Env) -> Result<bool> {
    let is_nccl = match env.text(names::PADDLE_DISTRI_BACKEND) {
        None | Some("gloo") => false,
        Some("nccl") => true,
        Some(other) => {
            return Err(Error::invalid("invalid PADDLE_DISTRI_BACKEND")
                .expected("gloo or nccl")
                .got(other));
        }
    };
    // `fleetrun` sets the backend to the kind of device, and FLEET_NCCL if the user asked for NCCL.
    let by_backend = is_nccl && env.text(names::FLEET_LAUNCH).is_none();
    Ok(env.switch(names::FLEET_NCCL)?.unwrap_or(by_backend))
}

fn is_open(env: &Env) -> Result<bool> {
    match env.text(names::FLEET_OPEN) {
        None => Ok(false),
        Some("loopback") => Ok(true),
        Some(other) => Err(Error::invalid("invalid FLEET_OPEN").expected("loopback").got(other)),
    }
}

fn silence(env: &Env) -> Result<Option<Duration>> {
    let Some(seconds) = env.number::<f64>(names::FLEET_SILENCE_TIMEOUT)? else { return Ok(None) };
    Duration::try_from_secs_f64(seconds).map(Some).map_err(|_| {
        Error::invalid("invalid FLEET_SILENCE_TIMEOUT").expected("seconds, 0 or more").got(seconds)
    })
}

fn list(env: &Env, name: &str) -> Result<Vec<Endpoint>> {
    Endpoint::list(name, env.get(name).unwrap_or_default())
}

fn check_counts(worker_num: usize, workers: &[Endpoint]) -> Result<()> {
    no_duplicates(workers, names::PADDLE_TRAINER_ENDPOINTS)?;
    if workers.is_empty() || worker_num == workers.len() {
        return Ok(());
    }
    Err(Error::invalid("PADDLE_TRAINERS_NUM conflicts with PADDLE_TRAINER_ENDPOINTS")
        .expected(format!("{worker_num} endpoints"))
        .got(workers.len()))
}

pub(crate) fn no_duplicates(endpoints: &[Endpoint], what: &str) -> Result<()> {
    let mut seen = std::collections::HashSet::new();
    match endpoints.iter().find(|endpoint| !seen.insert(*endpoint)) {
        None => Ok(()),
        Some(twice) => Err(Error::invalid(format!("duplicate endpoint {twice} in {what}"))),
    }
}

fn position(own: &Endpoint, all: &[Endpoint], list: &str) -> Result<usize> {
    all.iter().position(|other| other == own).ok_or_else(|| {
        Error::invalid(format!("endpoint {own} is not in the list"))
            .at(format!("{list}={}", Endpoint::join(&all[..all.len().min(8)])))
            .help("POD_IP:PADDLE_PORT of a server must be one of the listed endpoints")
    })
}

/// Default host and port of a process that no launcher started.
const DEFAULT_HOST: &str = "127.0.0.1";
const DEFAULT_PORT: u16 = 6170;
