//! The processes of a job with their endpoints and devices, and the environment of each.
//!
//! This module has no side effects of its own: ports come from a [`Ports`], facts about the machine
//! from a [`Machine`]. Tests can therefore compare its environments with recorded ones of the
//! original launchers.

use crate::display;
use crate::machine::Machine;
use crate::options::{Mode, Options, PerNode, PsOptions, Who, split};
use crate::ports::Ports;
use fleet_base::{Error, Result};
use fleet_net::Token;
use fleet_topology::{Endpoint, Env, Role, names};
use std::path::PathBuf;
use std::time::Duration;

/// One process: its endpoint, the number of its machine, and its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Host and port of the process.
    pub endpoint: Endpoint,
    /// Number of the machine, from 0.
    pub node: usize,
    /// Devices of the process; empty on a CPU.
    pub devices: Vec<String>,
}

/// All processes of a job, and their common settings.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// How the processes cooperate.
    pub mode: Mode,
    /// Workers by rank.
    pub workers: Vec<Place>,
    /// Servers by rank.
    pub servers: Vec<Place>,
    /// Coordinators by rank.
    pub coordinators: Vec<Place>,
    /// Heterogeneous workers by stage, from stage 2 on.
    pub heter: Vec<Vec<Place>>,
    /// Kind of device of each stage of heterogeneous workers.
    pub heter_devices: Vec<String>,
    /// The number of this machine, and the number of machines.
    pub node: usize,
    /// Number of machines.
    pub node_count: usize,
    /// Endpoint of gloo's HTTP store, on the first machine.
    pub gloo_http: Option<Endpoint>,
    /// All ports were given. Otherwise a machine knows only its own ports until all machines have
    /// met.
    pub has_fixed_ports: bool,
    /// `PADDLE_WITH_GLOO` of the processes: 0, 1 or 2.
    pub with_gloo: String,
    /// Transport of collectives, if one was named: `gloo` or `nccl`.
    pub backend: Option<String>,
}

/// Values that only the launcher of this run knows.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Name of the job.
    pub job_id: String,
    /// A name for this machine within the job.
    pub pod: String,
    /// Mark in the environment of all processes of this launcher.
    pub mark: String,
    /// Folder of the logs.
    pub log_dir: String,
    /// Folder for files of this run, such as the reports of processes.
    pub scratch: String,
    /// The folder that servers save in.
    pub save_root: Option<String>,
    /// Endpoint at which machines meet. If it is `None`, processes get `store` instead.
    pub master: Option<Endpoint>,
    /// Endpoint of the job's store.
    pub store: Option<Endpoint>,
    /// The job's secret.
    pub token: Option<Token>,
    /// Number of restarts so far.
    pub restarts: u32,
    /// Path prefix of the files in which workers may report their progress.
    pub progress: Option<PathBuf>,
    /// Time without a heartbeat after which a process is lost.
    pub silence_timeout: Duration,
    /// Limit on the variables of a worker, such as `2GiB`.
    pub memory: Option<String>,
}

/// A process to start here.
#[derive(Clone, Debug)]
pub struct Process {
    /// Role of the process.
    pub role: Role,
    /// Rank within its role.
    pub rank: usize,
    /// Address of its machine.
    pub host: String,
    /// The name of its log in the log folder.
    pub log: String,
    /// Variables to set, or to remove.
    pub env: Vec<(&'static str, Option<String>)>,
}

impl Process {
    /// Returns the name for messages: `worker 3`.
    pub fn name(&self) -> String {
        format!("{} {}", self.role, self.rank)
    }

    /// Returns the value of a variable that the process gets; `None` if it is not set or is
    /// removed.
    pub fn variable(&self, name: &str) -> Option<&str> {
        let found = self.env.iter().rev().find(|(known, _)| *known == name)?;
        found.1.as_deref()
    }
}

impl Cluster {
    /// Returns the cluster of a machine, without processes.
    pub(crate) fn empty(options: &Options, node: usize, node_count: usize) -> Cluster {
        Cluster {
            mode: options.mode,
            workers: Vec::new(),
            servers: Vec::new(),
            coordinators: Vec::new(),
            heter: Vec::new(),
            heter_devices: Vec::new(),
            node,
            node_count,
            gloo_http: None,
            has_fixed_ports: false,
            with_gloo: options.with_gloo.clone(),
            backend: options.backend.clone(),
        }
    }

    /// Returns the cluster that flags and environment describe completely: one machine, `--ips`,
    /// lists of addresses, or the variables of PaddleCloud. Jobs that meet at `--master` are in
    /// `several.rs`.
    pub fn described(
        options: &Options,
        env: &Env,
        machine: &Machine,
        ports: &mut dyn Ports,
    ) -> Result<Cluster> {
        match options.mode {
            Mode::Collective => collective(options, env, machine, ports),
            Mode::Ps | Mode::PsHeter => parameter_server(options, env, machine, ports),
        }
    }

    /// Returns the processes of this machine in the order in which they start.
    pub fn processes(&self, run: &Run, env: &Env) -> Vec<Process> {
        let mut made = Vec::new();
        let mut add = |role: Role, places: &[Place], first: usize, local: &mut usize| {
            for (index, place) in places.iter().enumerate() {
                if place.node == self.node {
                    let mut process = self.process(role, first + index, *local, place);
                    // In a collective job all workers make the same progress, so the first one
                    // reports it.
                    let shows = process.log == FIRST_LOG || self.mode != Mode::Collective;
                    if let Some(path) =
                        run.progress.as_ref().filter(|_| role == Role::Worker && shows)
                    {
                        let path = format!("{}.{}", path.display(), process.log);
                        process.env.push((names::FLEET_PROGRESS, Some(path)));
                    }
                    if matches!(role, Role::Worker | Role::Server) {
                        let path = format!("{}/report.{}", run.scratch, process.log);
                        process.env.push((names::FLEET_REPORT, Some(path)));
                    }
                    if role == Role::Worker && self.mode != Mode::Collective {
                        let path = format!("{}/expendable.{}", run.scratch, process.rank);
                        process.env.push((names::FLEET_EXPENDABLE, Some(path)));
                    }
                    if let Some(root) = run.save_root.as_ref().filter(|_| role == Role::Server) {
                        process.env.push((names::FLEET_SAVE_ROOT, Some(root.clone())));
                    }
                    made.push(process);
                    *local += 1;
                }
            }
        };
        add(Role::Server, &self.servers, 0, &mut 0);
        add(Role::Worker, &self.workers, 0, &mut 0);
        let (mut first, mut local) = (0, 0);
        for stage in &self.heter {
            add(Role::HeterWorker, stage, first, &mut local);
            first += stage.len();
        }
        add(Role::Coordinator, &self.coordinators, 0, &mut 0);
        let count = made.len();
        for process in &mut made {
            let mut common = self.common(run);
            if count > 1 && env.get("OMP_NUM_THREADS").is_none() {
                // Several processes with one thread per core each would compete for the cores.
                common.push(("OMP_NUM_THREADS", Some("1".into())));
            }
            common.append(&mut process.env);
            // Place variables inherited from an outer job do not apply here.
            let stale = PLACE_VARIABLES.iter().chain(PROXIES);
            let stale = stale.filter(|name| !common.iter().any(|(set, _)| set == *name));
            process.env = stale.map(|name| (*name, None)).collect();
            process.env.append(&mut common);
        }
        made
    }

    /// Whether this launcher starts all processes itself.
    pub fn is_alone(&self) -> bool {
        self.node_count == 1
    }

    /// Returns the hosts in the order of machine numbers.
    pub fn hosts(&self) -> Vec<String> {
        let of = |node: usize| self.places().find(|place| place.node == node);
        (0..self.node_count).filter_map(of).map(|place| place.endpoint.host.clone()).collect()
    }

    /// Returns every process, in the same order on all machines.
    pub fn places(&self) -> impl Iterator<Item = &Place> {
        let lists = [&self.servers, &self.workers].into_iter().chain(&self.heter);
        lists.chain([&self.coordinators]).flatten()
    }

    /// Like [`Cluster::places`], for changes.
    pub fn places_mut(&mut self) -> impl Iterator<Item = &mut Place> {
        let lists = [&mut self.servers, &mut self.workers].into_iter().chain(&mut self.heter);
        lists.chain([&mut self.coordinators]).flatten()
    }

    /// Takes the ports of this machine: checks that given ports are free, and reserves free ports
    /// for the rest.
    fn take_ports(mut self, options: &Options, ports: &mut dyn Ports) -> Result<Cluster> {
        let are_fixed = self.places().all(|place| place.endpoint.port != OPEN);
        self.has_fixed_ports = are_fixed;
        let node = self.node;
        for place in self.places_mut().filter(|place| place.node == node) {
            take(&mut place.endpoint, ports)?;
        }
        let Some(first) = self.servers.first().or(self.workers.first()) else { return Ok(self) };
        let needs_gloo =
            self.mode != Mode::Collective || self.with_gloo != "0" || options.http_port.is_some();
        if needs_gloo {
            let port = match (options.http_port, ports.start()) {
                (Some(port), _) => port,
                (None, Some(start)) => above(start, self.places().count())?,
                (None, None) => OPEN,
            };
            let mut endpoint = Endpoint::new(&first.endpoint.host, port);
            if first.node == node {
                take(&mut endpoint, ports)?;
            }
            self.gloo_http = Some(endpoint);
        }
        Ok(self)
    }

    fn process(&self, role: Role, rank: usize, local: usize, place: &Place) -> Process {
        let env = match self.mode {
            Mode::Collective => self.collective_env(rank, local, place),
            Mode::Ps | Mode::PsHeter => self.ps_env(role, rank, place),
        };
        let log = match role {
            Role::Worker => format!("workerlog.{local}"),
            Role::Server => format!("serverlog.{local}"),
            Role::HeterWorker => format!("heterlog.{local}"),
            Role::Coordinator => format!("coordinator.{local}"),
        };
        let env = env.into_iter().map(|(name, value)| (name, Some(value))).collect();
        Process { role, rank, host: place.endpoint.host.clone(), log, env }
    }

    fn common(&self, run: &Run) -> Vec<(&'static str, Option<String>)> {
        let mut env = vec![
            (names::PADDLE_NNODES, self.node_count.to_string()),
            (names::PADDLE_LOG_DIR, run.log_dir.clone()),
            (names::POD_NAME, run.pod.clone()),
            (names::PADDLE_GLOO_FS_PATH, run.scratch.clone()),
            (names::FLEET_JOB_ID, run.job_id.clone()),
            (names::FLEET_LAUNCH, run.mark.clone()),
            (names::FLEET_RESTART_COUNT, run.restarts.to_string()),
            (names::FLEET_SILENCE_TIMEOUT, run.silence_timeout.as_secs_f64().to_string()),
        ];
        if let Some(memory) = &run.memory {
            env.push((names::FLEET_MEMORY, memory.clone()));
        }
        if let Some(master) = run.master.as_ref().or(run.store.as_ref()) {
            env.push((names::PADDLE_MASTER, master.to_string()));
        }
        if let Some(store) = &run.store {
            env.push((names::FLEET_STORE, store.to_string()));
        }
        if let Some(token) = &run.token {
            env.push((names::FLEET_TOKEN, token.to_text()));
        }
        env.into_iter().map(|(name, value)| (name, Some(value))).collect()
    }

    fn collective_env(
        &self,
        rank: usize,
        local: usize,
        place: &Place,
    ) -> Vec<(&'static str, String)> {
        let here = self.workers.iter().filter(|worker| worker.node == self.node).count();
        let world: Vec<String> = self.workers.iter().map(|it| it.devices.join(":")).collect();
        let mut env = vec![
            (names::PADDLE_TRAINER_ID, rank.to_string()),
            (names::PADDLE_CURRENT_ENDPOINT, place.endpoint.to_string()),
            (names::PADDLE_TRAINERS_NUM, self.workers.len().to_string()),
            (names::PADDLE_TRAINER_ENDPOINTS, join(&self.workers)),
            (names::PADDLE_RANK_IN_NODE, local.to_string()),
            (names::PADDLE_LOCAL_DEVICE_IDS, place.devices.join(",")),
            (names::PADDLE_WORLD_DEVICE_IDS, world.join(",")),
            (names::PADDLE_DISTRI_BACKEND, self.backend(place)),
            (names::PADDLE_WITH_GLOO, self.with_gloo.clone()),
            (names::PADDLE_GLOO_RENDEZVOUS, "3".to_string()),
            (names::PADDLE_GLOBAL_SIZE, self.workers.len().to_string()),
            (names::PADDLE_LOCAL_SIZE, here.to_string()),
            (names::PADDLE_GLOBAL_RANK, rank.to_string()),
            (names::PADDLE_LOCAL_RANK, local.to_string()),
        ];
        env.extend(self.torch_env(rank, local, here));
        if !place.devices.is_empty() {
            env.push((names::FLAGS_SELECTED_GPUS, place.devices.join(",")));
        }
        if let Some(endpoint) = &self.gloo_http {
            env.push((names::PADDLE_GLOO_HTTP_ENDPOINT, endpoint.to_string()));
        }
        if self.backend.is_some() {
            let is_nccl = self.backend(place) == "nccl";
            env.push((names::FLEET_NCCL, u8::from(is_nccl).to_string()));
        }
        env
    }

    /// Returns the variables that torchrun sets, so that scripts for torchrun run unchanged. The
    /// first rank can listen on the first worker's own port.
    fn torch_env(&self, rank: usize, local: usize, here: usize) -> [(&'static str, String); 7] {
        let first = &self.workers[0].endpoint;
        [
            (names::RANK, rank.to_string()),
            (names::WORLD_SIZE, self.workers.len().to_string()),
            (names::LOCAL_RANK, local.to_string()),
            (names::LOCAL_WORLD_SIZE, here.to_string()),
            (names::GROUP_RANK, self.node.to_string()),
            (names::MASTER_ADDR, first.host.clone()),
            (names::MASTER_PORT, first.port.to_string()),
        ]
    }

    /// Returns the backend that scripts see. Only NCCL by `--backend` is one that Fleet uses
    /// ([`names::FLEET_NCCL`]).
    fn backend(&self, place: &Place) -> String {
        match &self.backend {
            _ if place.devices.is_empty() => "gloo".to_string(),
            Some(backend) => backend.clone(),
            None => "nccl".to_string(),
        }
    }

    fn ps_env(&self, role: Role, rank: usize, place: &Place) -> Vec<(&'static str, String)> {
        let mut env = vec![
            (names::PADDLE_PSERVERS_IP_PORT_LIST, join(&self.servers)),
            (names::PADDLE_TRAINER_ENDPOINTS, join(&self.workers)),
            (names::PADDLE_TRAINERS_NUM, self.workers.len().to_string()),
            (names::TRAINING_ROLE, role.env_name().to_string()),
            (names::PADDLE_ROLE, role.env_name().to_string()),
            (names::POD_IP, place.endpoint.host.clone()),
            (names::PADDLE_PORT, place.endpoint.port.to_string()),
            (names::PADDLE_WITH_GLOO, self.with_gloo.clone()),
            (names::PADDLE_GLOO_RENDEZVOUS, "3".to_string()),
        ];
        if let Some(endpoint) = &self.gloo_http {
            env.push((names::PADDLE_GLOO_HTTP_ENDPOINT, endpoint.to_string()));
        }
        if role != Role::HeterWorker {
            env.push((names::PADDLE_COORDINATOR_ENDPOINTS, join(&self.coordinators)));
        }
        if role == Role::Worker {
            env.push((names::PADDLE_TRAINER_ID, rank.to_string()));
        }
        if matches!(role, Role::Worker | Role::HeterWorker) {
            // The original launcher also sets 0 without a GPU.
            let device = place.devices.first().cloned().unwrap_or_else(|| "0".to_string());
            env.push((names::FLAGS_SELECTED_GPUS, "0".to_string()));
            env.push((names::FLAGS_SELECTED_XPUS, "0".to_string()));
            env.push((names::CUDA_VISIBLE_DEVICES, device.clone()));
            env.push((names::XPU_VISIBLE_DEVICES, device));
        }
        if self.mode == Mode::PsHeter {
            self.add_stages(&mut env, role, rank);
        }
        env
    }

    fn add_stages(&self, env: &mut Vec<(&'static str, String)>, role: Role, rank: usize) {
        let all: Vec<Place> = self.heter.iter().flatten().cloned().collect();
        env.push((names::PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST, join(&all)));
        if !matches!(role, Role::Worker | Role::HeterWorker) {
            return;
        }
        // Stage 0 is that of the workers.
        let mut first = 0;
        let mut stage = 0;
        if role == Role::HeterWorker {
            for places in &self.heter {
                stage += 1;
                first += places.len();
                if rank < first {
                    break;
                }
            }
        }
        let of = |stage: usize| match stage {
            0 => join(&self.workers),
            _ => self.heter.get(stage - 1).map(|places| join(places)).unwrap_or_default(),
        };
        let counts: Vec<String> = std::iter::once(self.workers.len())
            .chain(self.heter.iter().map(Vec::len))
            .map(|count| count.to_string())
            .collect();
        let previous = if stage == 0 { String::new() } else { of(stage - 1) };
        let device = match stage {
            0 => "cpu".to_string(),
            _ => self.heter_devices[stage - 1].clone(),
        };
        env.extend([
            (names::STAGE_ID, (stage + 1).to_string()),
            (names::STAGE_NUM, counts.len().to_string()),
            (names::PADDLE_STAGE_TRAINERS_NUM, format!("[{}]", counts.join(", "))),
            (names::PADDLE_NEXT_HETER_TRAINER_IP_PORT_LIST, of(stage + 1)),
            (names::PADDLE_PREVIOUS_HETER_TRAINER_IP_PORT_LIST, previous),
            (names::HETER_DEVICE_TYPE, device),
        ]);
    }
}

/// Returns the devices of each worker of this machine.
pub fn local_devices(options: &Options, env: &Env, machine: &Machine) -> Result<Vec<Vec<String>>> {
    let visible = env.text(names::CUDA_VISIBLE_DEVICES).map(split);
    let count = visible.as_ref().map_or(machine.gpu_count, Vec::len);
    let gpus: Vec<String> = match (&options.gpus, &visible) {
        (None, _) => (0..count).map(|index| index.to_string()).collect(),
        (Some(asked), Some(visible)) => asked
            .iter()
            .map(|gpu| {
                let at = visible.iter().position(|id| id == gpu);
                at.map(|at| at.to_string()).ok_or_else(|| {
                    Error::invalid("--gpus names a GPU that CUDA_VISIBLE_DEVICES hides")
                        .expected(format!("some of {}", visible.join(",")))
                        .got(gpu)
                })
            })
            .collect::<Result<_>>()?,
        (Some(asked), None) => {
            let last = count.checked_sub(1);
            let fits = |gpu: &&String| {
                gpu.parse::<usize>().is_ok_and(|index| last.is_none_or(|last| index <= last))
            };
            if let Some(wrong) = asked.iter().find(|gpu| !fits(gpu)) {
                let last = last.map(|last| format!("numbers from 0 to {last}"));
                return Err(Error::invalid("--gpus names a GPU that is not there")
                    .expected(last.unwrap_or_else(|| "numbers of GPUs".into()))
                    .got(format!("'{wrong}'")));
            }
            if last.is_none() { Vec::new() } else { asked.clone() }
        }
    };
    let on_cpu = gpus.is_empty()
        || options.backend.as_deref() == Some("gloo")
        || options.nproc == Some(PerNode::Cpu);
    let workers = match options.nproc {
        Some(PerNode::Count(count)) => count,
        Some(PerNode::Gpu) if gpus.is_empty() => {
            return Err(Error::invalid("this machine has no GPU")
                .got("--nproc_per_node gpu")
                .help("--nproc_per_node cpu starts a worker for each core"));
        }
        Some(PerNode::Cpu) => machine.core_count,
        Some(PerNode::Auto) if on_cpu => machine.core_count,
        _ if on_cpu => missing_gpus(options, env, machine).map_or(1, <[String]>::len),
        _ => gpus.len(),
    };
    if on_cpu {
        return Ok(vec![Vec::new(); workers]);
    }
    if !gpus.len().is_multiple_of(workers) {
        return Err(Error::invalid("the GPUs cannot be shared equally")
            .expected(format!("a multiple of {workers} GPUs, for --nproc_per_node {workers}"))
            .got(gpus.len()));
    }
    Ok(gpus.chunks(gpus.len() / workers).map(<[String]>::to_vec).collect())
}

/// Returns the GPUs that the user asked for on a machine without any.
fn missing_gpus<'o>(options: &'o Options, env: &Env, machine: &Machine) -> Option<&'o [String]> {
    options.gpus.as_deref().filter(|_| !has_gpus(env, machine))
}

fn has_gpus(env: &Env, machine: &Machine) -> bool {
    machine.gpu_count > 0 || env.text(names::CUDA_VISIBLE_DEVICES).is_some()
}

/// Returns warnings of flags for devices that have no effect on this machine or in this mode.
pub fn device_warnings(options: &Options, env: &Env, machine: &Machine) -> Vec<String> {
    let mut warnings = Vec::new();
    let is_collective = options.mode == Mode::Collective;
    if let Some(asked) = missing_gpus(options, env, machine) {
        let asked = asked.join(",");
        warnings.push(match is_collective {
            true => {
                format!("this machine has no GPU: the workers of --gpus {asked} run on the CPU")
            }
            false => format!("this machine has no GPU: --gpus {asked} has no effect"),
        });
    }
    let on_cpu = !has_gpus(env, machine) || options.nproc == Some(PerNode::Cpu);
    match options.backend.as_deref() {
        Some(name) if !is_collective => {
            warnings.push(format!("--backend {name} has no effect on a job with servers"));
        }
        Some("nccl") if on_cpu => warnings.push(
            "the workers have no GPU: --backend nccl has no effect, collectives use the host's \
             transports"
                .into(),
        ),
        _ => {}
    }
    warnings
}

fn collective(
    options: &Options,
    env: &Env,
    machine: &Machine,
    ports: &mut dyn Ports,
) -> Result<Cluster> {
    let devices = local_devices(options, env, machine)?;
    let (hosts, node) = hosts(options, env, machine)?;
    let mut workers = Vec::new();
    let given = Endpoint::list(
        names::DISTRIBUTED_TRAINER_ENDPOINTS,
        env.text(names::DISTRIBUTED_TRAINER_ENDPOINTS).unwrap_or_default(),
    )?;
    let is_given = is_cloud(options, env) && !given.is_empty();
    for (at, host) in hosts.iter().enumerate() {
        for (local, devices) in devices.iter().enumerate() {
            let port = match ports.start() {
                _ if is_given => cloud_port(env, &given, at, local, hosts.len())?,
                Some(start) if hosts.len() > 1 => above(start, local)?,
                _ => OPEN,
            };
            let endpoint = Endpoint::new(host, port);
            workers.push(Place { endpoint, node: at, devices: devices.clone() });
        }
    }
    let cluster = Cluster { workers, ..Cluster::empty(options, node, hosts.len()) };
    cluster.take_ports(options, ports)
}

/// Whether the environment gives the hosts, as PaddleCloud does.
fn is_cloud(options: &Options, env: &Env) -> bool {
    let default_ips = options.ips == ["127.0.0.1"];
    let named = [names::PADDLE_TRAINERS, names::POD_IP, names::PADDLE_TRAINER_ID];
    default_ips
        && env.get(names::FLEET_LAUNCH).is_none()
        && named.iter().all(|name| env.text(name).is_some())
}

fn hosts(options: &Options, env: &Env, machine: &Machine) -> Result<(Vec<String>, usize)> {
    if !is_cloud(options, env) {
        let node = match options.node_rank {
            Some(rank) => rank,
            None => machine.position(&options.ips, options.host.as_deref(), env)?,
        };
        return Ok((options.ips.clone(), node));
    }
    let text = env.text(names::PADDLE_TRAINERS).unwrap_or_default();
    let hosts = split(text);
    let node = env.number::<usize>(names::PADDLE_TRAINER_ID)?.unwrap_or(0);
    if node >= hosts.len() {
        return Err(Error::invalid("PADDLE_TRAINER_ID is not the number of a host")
            .expected(format!("below {}, the number of PADDLE_TRAINERS", hosts.len()))
            .got(node));
    }
    Ok((hosts, node))
}

/// Returns the port of a worker from the given endpoints, which are ordered by host, with the same
/// number for each host.
fn cloud_port(
    env: &Env,
    given: &[Endpoint],
    node: usize,
    local: usize,
    nodes: usize,
) -> Result<u16> {
    let each = match env.number::<usize>(names::TRAINER_PORTS_NUM)? {
        Some(count) => count,
        None => given.len() / nodes,
    };
    given.get(node * each + local).filter(|_| local < each).map(|it| it.port).ok_or_else(|| {
        Error::invalid("the cluster gave too few endpoints for the workers")
            .expected(format!("one for worker {local} of host {node}"))
            .got(format!("{} endpoints for {nodes} hosts", given.len()))
            .at(names::DISTRIBUTED_TRAINER_ENDPOINTS)
    })
}

fn above(start: u16, count: usize) -> Result<u16> {
    u16::try_from(usize::from(start) + count)
        .map_err(|_| Error::exhausted("there are no more ports above the first one").got(start))
}

/// Checks that a given port is free, or reserves a free one.
fn take(endpoint: &mut Endpoint, ports: &mut dyn Ports) -> Result<()> {
    match endpoint.port {
        OPEN => endpoint.port = ports.next(&endpoint.host)?,
        port => ports.given(&endpoint.host, port)?,
    }
    Ok(())
}

fn parameter_server(
    options: &Options,
    env: &Env,
    machine: &Machine,
    ports: &mut dyn Ports,
) -> Result<Cluster> {
    let ps = &options.ps;
    if ps.servers.is_empty() || ps.workers.is_empty() {
        return Err(Error::invalid("a parameter-server job needs servers and workers")
            .expected("--server_num N --worker_num N, or --servers LIST --workers LIST")
            .got(format!(
                "{}, {}",
                display::counted(Role::Server, ps.servers.len()),
                display::counted(Role::Worker, ps.workers.len())
            )));
    }
    let own = options.host.clone().unwrap_or_else(|| "127.0.0.1".to_string());
    let mut hosts = Vec::new();
    let start = ports.start();
    let mut wanted = vec![
        endpoints(&ps.servers, &own, start, 0)?,
        endpoints(&ps.workers, &own, start, ps.servers.len())?,
    ];
    for stage in &ps.heter {
        wanted.push(endpoints(stage, &own, start, ps.servers.len() + ps.workers.len())?);
    }
    wanted.push(endpoints(&ps.coordinators, &own, start, 0)?);
    for endpoint in wanted.iter().flatten() {
        if !hosts.contains(&endpoint.host) {
            hosts.push(endpoint.host.clone());
        }
    }
    if hosts.len() > 1 {
        all_are_listed(ps)?;
    }
    let node = machine.position(&hosts, options.host.as_deref(), env)?;
    let gpus = gpu_list(options, env, machine)?;
    let mut placed = wanted.into_iter().map(|list| {
        let place = |(index, endpoint): (usize, Endpoint)| Place {
            node: hosts.iter().position(|host| *host == endpoint.host).unwrap_or(0),
            devices: match gpus.is_empty() {
                true => Vec::new(),
                false => vec![gpus[index % gpus.len()].clone()],
            },
            endpoint,
        };
        list.into_iter().enumerate().map(place).collect::<Vec<Place>>()
    });
    let (servers, workers) = (placed.next().unwrap_or_default(), placed.next().unwrap_or_default());
    let mut heter: Vec<Vec<Place>> = placed.collect();
    let coordinators = heter.pop().unwrap_or_default();
    let cluster = Cluster {
        heter_devices: heter_devices(options, heter.len(), !gpus.is_empty())?,
        workers,
        servers,
        coordinators,
        heter,
        ..Cluster::empty(options, node, hosts.len())
    };
    each_is_one(&cluster)?;
    cluster.take_ports(options, ports)
}

fn each_is_one(cluster: &Cluster) -> Result<()> {
    let mut seen = std::collections::HashSet::new();
    let mut given = cluster.places().filter(|place| place.endpoint.port != OPEN);
    match given.find(|place| !seen.insert(&place.endpoint)) {
        Some(twice) => Err(Error::invalid(format!("{} stands twice in the lists", twice.endpoint))),
        None => Ok(()),
    }
}

/// Rejects counts when lists name several machines: a count does not tell on which machine the
/// processes run.
fn all_are_listed(ps: &PsOptions) -> Result<()> {
    let roles =
        [("server", &ps.servers), ("worker", &ps.workers), ("coordinator", &ps.coordinators)]
            .into_iter()
            .chain(ps.heter.iter().map(|stage| ("heter_worker", stage)));
    for (role, who) in roles {
        if let Who::Count(1..) = who {
            return Err(Error::invalid(format!(
                "--{role}_num does not say on which machine they are"
            ))
            .expected(format!("--{role}s LIST, as the other lists name several machines"))
            .help("or numbers alone, of each machine: --master HOST:PORT --nnodes N"));
        }
    }
    Ok(())
}

/// With fixed ports, an endpoint listed without a port gets the documented default.
fn endpoints(who: &Who, own: &str, start: Option<u16>, before: usize) -> Result<Vec<Endpoint>> {
    match who {
        Who::Count(count) => Ok(vec![Endpoint::new(own, OPEN); *count]),
        Who::Listed(list) => list
            .iter()
            .enumerate()
            .map(|(index, (host, port))| {
                let port = match (port, start) {
                    (Some(port), _) => *port,
                    (None, Some(_)) => above(LISTED_START_PORT, before + index)?,
                    (None, None) => OPEN,
                };
                Ok(Endpoint::new(host, port))
            })
            .collect(),
    }
}

/// Returns the GPUs of this machine that the job may use: those of `--gpus`, else those of
/// `CUDA_VISIBLE_DEVICES`, else all.
pub fn gpu_list(options: &Options, env: &Env, machine: &Machine) -> Result<Vec<String>> {
    match (&options.gpus, env.text(names::CUDA_VISIBLE_DEVICES)) {
        (Some(_), _) if missing_gpus(options, env, machine).is_some() => Ok(Vec::new()),
        (Some(gpus), _) => Ok(gpus.clone()),
        (None, Some(visible)) => Ok(split(visible)),
        (None, None) => Ok((0..machine.gpu_count).map(|index| index.to_string()).collect()),
    }
}

fn heter_devices(options: &Options, stages: usize, has_gpus: bool) -> Result<Vec<String>> {
    let said = &options.ps.heter_devices;
    if options.mode == Mode::PsHeter && stages == 0 {
        return Err(Error::invalid("a heterogeneous job needs heterogeneous workers")
            .expected("--heter_worker_num N, or --heter_workers LIST"));
    }
    if said.is_empty() {
        let kind = if has_gpus { "gpu" } else { "cpu" };
        return Ok(vec![kind.to_string(); stages]);
    }
    if said.len() != stages {
        return Err(Error::invalid("--heter_devices does not fit the stages")
            .expected(format!("{stages} kinds, separated by ';'"))
            .got(said.len()));
    }
    Ok(said.clone())
}

fn join(places: &[Place]) -> String {
    let all: Vec<String> = places.iter().map(|place| place.endpoint.to_string()).collect();
    all.join(",")
}

/// Placeholder for a port that the process's own machine has yet to reserve.
const OPEN: u16 = 0;
/// First of the documented default ports of endpoints that were listed without one.
const LISTED_START_PORT: u16 = 6170;

/// Variables that define the place of a process in its job. Those that the launcher does not set
/// are removed.
const PLACE_VARIABLES: &[&str] = &[
    names::PADDLE_TRAINER_ID,
    names::PADDLE_TRAINERS_NUM,
    names::PADDLE_TRAINER_ENDPOINTS,
    names::PADDLE_CURRENT_ENDPOINT,
    names::PADDLE_RANK_IN_NODE,
    names::PADDLE_LOCAL_DEVICE_IDS,
    names::PADDLE_WORLD_DEVICE_IDS,
    names::PADDLE_DISTRI_BACKEND,
    names::FLAGS_SELECTED_GPUS,
    names::TRAINING_ROLE,
    names::PADDLE_ROLE,
    names::PADDLE_PSERVERS_IP_PORT_LIST,
    names::PADDLE_COORDINATOR_ENDPOINTS,
    names::PADDLE_PORT,
    names::PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST,
    names::PADDLE_NEXT_HETER_TRAINER_IP_PORT_LIST,
    names::PADDLE_PREVIOUS_HETER_TRAINER_IP_PORT_LIST,
    names::PADDLE_STAGE_TRAINERS_NUM,
    names::STAGE_ID,
    names::STAGE_NUM,
    names::HETER_DEVICE_TYPE,
    names::PADDLE_GLOO_HTTP_ENDPOINT,
    names::PADDLE_GLOBAL_SIZE,
    names::PADDLE_LOCAL_SIZE,
    names::PADDLE_GLOBAL_RANK,
    names::PADDLE_LOCAL_RANK,
    names::PADDLE_MASTER,
    names::RANK,
    names::WORLD_SIZE,
    names::LOCAL_RANK,
    names::LOCAL_WORLD_SIZE,
    names::GROUP_RANK,
    names::MASTER_ADDR,
    names::MASTER_PORT,
    names::FLEET_STORE,
    names::FLEET_TOKEN,
    names::FLEET_TOKEN_FILE,
    names::FLEET_PROGRESS,
    names::FLEET_EXPENDABLE,
    names::FLEET_REPORT,
    names::FLEET_SILENCE_TIMEOUT,
];

/// The log of the first worker of a machine.
pub const FIRST_LOG: &str = "workerlog.0";

/// Proxy variables, which are removed: traffic within the job must not go through a proxy.
const PROXIES: &[&str] = &["http_proxy", "https_proxy"];
