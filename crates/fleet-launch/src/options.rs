//! Typed options from flags, and from environment variables that count as flags.

use crate::display;
use crate::etcd::{EtcdAccess, open_to_all};
use crate::flags::{Given, invalid};
use fleet_base::{Error, Result, units};
use fleet_net::Token;
use fleet_topology::{Endpoint, Env, names};
use std::path::PathBuf;
use std::time::Duration;

/// How the job's processes work together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Workers exchange gradients among themselves.
    Collective,
    /// Servers hold the parameters.
    Ps,
    /// Servers hold the parameters, and workers have several kinds of devices.
    PsHeter,
}

/// Number of machines: a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// Minimum.
    pub min: usize,
    /// Maximum.
    pub max: usize,
}

/// The reaction to the loss of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ElasticLevel {
    /// The job ends.
    Off,
    /// The job waits for as many machines as before.
    Same,
    /// The job continues with the machines that are left, within its range.
    Range,
}

/// Workers whose log is shown on the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// Worker 0.
    First,
    /// All workers.
    All,
    /// No worker.
    None,
}

/// The least important messages that are printed (`--log_level`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// Errors only.
    Errors,
    /// Errors and warnings.
    Warnings,
    /// Also the launcher's messages about the job.
    Normal,
    /// Also all arguments, and the whole environment of the first process.
    Debug,
}

/// Processes of a parameter-server job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PsOptions {
    /// Servers.
    pub servers: Who,
    /// Workers.
    pub workers: Who,
    /// By stage, from stage 2 on.
    pub heter: Vec<Who>,
    /// Kind of device of each stage.
    pub heter_devices: Vec<String>,
    /// Coordinators.
    pub coordinators: Who,
}

/// Processes of one role: their number on this machine, or their addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// This number of processes here.
    Count(usize),
    /// Hosts, each with its port if one was given.
    Listed(Vec<(String, Option<u16>)>),
}

impl Default for Who {
    fn default() -> Self {
        Who::Count(0)
    }
}

impl Who {
    /// Returns the number of processes.
    pub fn len(&self) -> usize {
        match self {
            Who::Count(count) => *count,
            Who::Listed(list) => list.len(),
        }
    }

    /// Returns whether there are no processes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Number of workers on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerNode {
    /// This number.
    Count(usize),
    /// One for each GPU.
    Gpu,
    /// One for each core.
    Cpu,
    /// One for each GPU; without GPUs one for each core.
    Auto,
}

/// The flags named `--*_timeout`.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Time to wait for other machines.
    pub join: Duration,
    /// Time for which an elastic job waits for more machines than it needs.
    pub elastic: Duration,
    /// Time for a process to write something and to join.
    pub start: Option<Duration>,
    /// Time between SIGTERM and SIGKILL.
    pub stop: Duration,
    /// Time without a heartbeat after which a process is lost.
    pub silence: Duration,
    /// Time for which a process may be left over when its job is done.
    pub leave: Duration,
}

/// All options of a launch.
pub struct Options {
    /// How the processes cooperate.
    pub mode: Mode,
    /// Neither a flag nor the environment named a mode.
    pub is_mode_default: bool,
    /// `--job_id`.
    pub job_id: String,
    /// The script and its arguments.
    pub command: Vec<String>,
    /// `--python`, the interpreter of scripts.
    pub python: Option<String>,
    /// `--module`: the script is a Python module.
    pub is_module: bool,
    /// `--compat paddle`: the script imports `paddle`, which is the Python package `fleet`.
    pub is_compat: bool,

    /// `--nproc_per_node`.
    pub nproc: Option<PerNode>,
    /// `--gpus`.
    pub gpus: Option<Vec<String>>,
    /// `--backend`; `None` for `auto`.
    pub backend: Option<String>,
    /// Processes of a parameter-server job.
    pub ps: PsOptions,
    /// `--http_port`.
    pub http_port: Option<u16>,
    /// `--with_gloo`: 0, 1 or 2.
    pub with_gloo: String,

    /// `--ips`, the hosts of the job.
    pub ips: Vec<String>,
    /// `--master`, where machines meet.
    pub master: Option<Endpoint>,
    /// The etcd in which machines meet.
    pub etcd: Option<EtcdAccess>,
    /// `--nnodes`.
    pub nodes: Option<Nodes>,
    /// `--rank` of this machine.
    pub node_rank: Option<usize>,
    /// `--host`, the address of this machine for others.
    pub host: Option<String>,
    /// `--sort_ip`: machines are numbered by address.
    pub sort_ip: bool,
    /// `--save_root`, the folder that servers save in.
    pub save_root: Option<PathBuf>,
    /// `--memory`, the limit on the variables of a worker.
    pub memory: Option<String>,
    /// Warnings to print before the job starts.
    pub warnings: Vec<String>,
    /// The job's secret, from `--token_file` or the environment.
    pub token: Option<Token>,
    /// `--start_port`, the first of fixed ports.
    pub start_port: Option<u16>,

    /// `--max_restart`.
    pub max_restart: Option<u32>,
    /// `--elastic_level`.
    pub elastic_level: ElasticLevel,
    /// The flags named `--*_timeout`.
    pub timeouts: Timeouts,

    /// `--log_dir`.
    pub log_dir: PathBuf,
    /// `--log_overwrite`: old logs of workers are emptied.
    pub log_overwrite: bool,
    /// `--follow`.
    pub follow: Follow,
    /// `--log_level`, or debug with `--verbose`.
    pub verbosity: Verbosity,
}

impl Options {
    /// Returns the options of a command line. Variables of `env` count where a flag is absent.
    pub fn new(given: &Given, env: &Env) -> Result<Options> {
        given.refuse_unsupported()?;
        let (mode, is_mode_default) = mode(given)?;
        let outer = OuterEnv { env, nested: env.get(names::FLEET_LAUNCH).is_some() };
        let nodes = given.text("nnodes").or_else(|| outer.text(NNODES_VARIABLES));
        let nodes = nodes.map(parse_nodes).transpose()?;
        // A given list of hosts takes precedence over a master inherited from the environment.
        let from_env = || outer.text(&[names::PADDLE_MASTER]).filter(|_| !given.is_given("ips"));
        let master = given.text("master").or_else(from_env);
        let command = command(given)?;
        let (token, mut warnings) = token(given, env)?;
        let (master, etcd) = meeting(given, &outer, master, &mut warnings)?;
        let mut ips = hosts(given.text("ips"), "ips")?;
        if given.is_on("sort_ip") {
            ips.sort_by_key(|host| display::address_key(host));
        }
        let node_rank = given.number("rank")?;
        let meets = master.is_some() || etcd.is_some();
        machines_agree(nodes, &ips, given.is_given("ips"), meets, node_rank)?;
        check_meeting(given, master.as_ref(), &ips, node_rank)?;
        let several = nodes.is_some_and(|nodes| nodes.max > 1);
        if given.is_on("standalone") && (several || ips.len() > 1) {
            return Err(Error::invalid("--standalone is one machine, and several were given")
                .help("leave out --standalone, or --nnodes and --ips"));
        }
        if several && !meets && !given.is_given("ips") {
            let count = given.text("nnodes").unwrap_or("of the environment");
            return Err(Error::invalid("several machines need a place to meet")
                .expected("--master HOST:PORT, or --ips HOST,HOST")
                .got(format!("--nnodes {count}")));
        }
        Ok(Options {
            mode,
            is_mode_default,
            job_id: job_id(given, &outer)?,
            command,
            python: given.text("python").or(env.text(names::PYTHON)).map(str::to_string),
            is_module: given.is_on("module"),
            is_compat: compat(given)?,
            nproc: per_node(given)?,
            gpus: given.text("gpus").map(split),
            backend: backend(given)?,
            ps: ps(given)?,
            http_port: given.number("http_port")?.filter(|port| *port != 0),
            with_gloo: with_gloo(given, env)?,
            ips,
            master,
            etcd,
            nodes,
            node_rank,
            host: given.text("host").map(str::to_string),
            sort_ip: given.is_on("sort_ip"),
            save_root: given.text("save_root").map(PathBuf::from),
            memory: memory(given)?,
            token,
            warnings,
            start_port: start_port(given, env)?,
            max_restart: given.number("max_restart")?,
            elastic_level: elastic_level(given, &outer, nodes)?,
            timeouts: timeouts(given, &outer)?,
            log_dir: PathBuf::from(given.text("log_dir").unwrap_or("log")),
            log_overwrite: given.is_on("log_overwrite"),
            follow: follow(given)?,
            verbosity: verbosity(given)?,
        })
    }

    /// Returns the number of restarts of the whole job. Processes of parameter-server jobs are
    /// restarted individually.
    pub fn job_restarts(&self) -> u32 {
        self.max_restart.filter(|_| self.mode == Mode::Collective).unwrap_or(0)
    }

    /// Whether members may change while the job runs.
    pub fn is_elastic(&self) -> bool {
        self.elastic_level > ElasticLevel::Off
    }
}

/// Returns the script and its arguments.
fn command(given: &Given) -> Result<Vec<String>> {
    let command = given.command();
    if command.is_empty() {
        return Err(Error::invalid("there is nothing to start")
            .expected("a script: fleetrun [FLAGS] SCRIPT [ARGS]")
            .help("fleetrun demo:wide_deep is a first look; fleetrun --help shows the flags"));
    }
    Ok(command)
}

/// Lower limit on a heartbeat timeout. Heartbeats are sent every second or more often, and several
/// must fit.
const SILENCE_MIN: Duration = Duration::from_millis(500);

const NNODES_VARIABLES: &[&str] = &[names::PADDLE_NNODES, names::PADDLE_ELASTIC_NP];

/// The environment of the launcher. Inside another job it has the variables of that job, which do
/// not apply here.
struct OuterEnv<'a> {
    env: &'a Env,
    nested: bool,
}

impl<'a> OuterEnv<'a> {
    fn text(&self, names: &[&str]) -> Option<&'a str> {
        if self.nested {
            return None;
        }
        names.iter().find_map(|name| self.env.text(name))
    }
}

fn timeouts(given: &Given, outer: &OuterEnv<'_>) -> Result<Timeouts> {
    Ok(Timeouts {
        join: seconds(given, "join_timeout")?,
        elastic: match outer.text(&[names::PADDLE_ELASTIC_TIMEOUT]) {
            Some(_) if !given.is_given("elastic_timeout") => Duration::from_secs(
                outer.env.number(names::PADDLE_ELASTIC_TIMEOUT)?.unwrap_or_default(),
            ),
            _ => seconds(given, "elastic_timeout")?,
        },
        start: Some(seconds(given, "start_timeout")?).filter(|time| !time.is_zero()),
        stop: seconds(given, "stop_timeout")?,
        silence: seconds(given, "silence_timeout")?.max(SILENCE_MIN),
        leave: seconds(given, "leave_timeout")?,
    })
}

/// Checks that the given master is the first machine and that the others can reach it.
fn check_meeting(
    given: &Given,
    master: Option<&Endpoint>,
    ips: &[String],
    rank: Option<usize>,
) -> Result<()> {
    if let Some(master) = master.filter(|it| given.is_given("ips") && it.host != ips[0]) {
        return Err(Error::invalid("--master is not at the first of --ips")
            .expected(format!("{}:PORT: the first machine answers there", ips[0]))
            .got(master));
    }
    match rank {
        Some(1..) => check_port(master),
        _ => Ok(()),
    }
}

/// Checks that all flags agree on the number of machines.
fn machines_agree(
    nodes: Option<Nodes>,
    ips: &[String],
    has_ips: bool,
    has_master: bool,
    rank: Option<usize>,
) -> Result<()> {
    if let Some(nodes) = nodes.filter(|_| has_ips)
        && (nodes.min, nodes.max) != (ips.len(), ips.len())
    {
        return Err(Error::invalid("--nnodes and --ips do not agree")
            .expected(format!("{}, the number of --ips", ips.len()))
            .got(format!("{}:{}", nodes.min, nodes.max)));
    }
    let count = match (has_ips, has_master) {
        (true, _) => ips.len(),
        (false, true) => nodes.map_or(1, |nodes| nodes.max),
        (false, false) => 1,
    };
    match rank {
        Some(rank) if rank >= count => Err(Error::invalid("--rank is too high")
            .expected(format!("below {count}, the number of machines"))
            .got(rank)
            .help("--nnodes says how many machines there are")),
        _ => Ok(()),
    }
}

/// Returns the mode by the documented rule: parameter-server flags and collective flags exclude
/// each other.
fn mode(given: &Given) -> Result<(Mode, bool)> {
    const HETER: [&str; 3] = ["heter_worker_num", "heter_workers", "heter_devices"];
    const PS: [&str; 6] =
        ["server_num", "worker_num", "servers", "workers", "coordinator_num", "coordinators"];
    const COLLECTIVE: [&str; 2] = ["ips", "nproc_per_node"];
    let any = |names: &[&str]| names.iter().any(|name| given.is_given(name));
    let asked = match given.text("run_mode").map(str::to_ascii_lowercase).as_deref() {
        None => None,
        Some("collective") => Some(Mode::Collective),
        Some("ps") => Some(Mode::Ps),
        Some("ps-heter" | "ps_heter") => Some(Mode::PsHeter),
        Some(other) => {
            return Err(invalid("run_mode", "collective, ps or ps-heter", other));
        }
    };
    let is_ps = any(&PS) || any(&HETER);
    let is_collective = any(&COLLECTIVE);
    let asked_other = match asked {
        Some(Mode::Collective) => is_ps,
        Some(Mode::Ps | Mode::PsHeter) => is_collective,
        None => false,
    };
    if (is_ps && is_collective) || asked_other {
        let written = PS.iter().chain(&HETER).chain(&COLLECTIVE).chain(&["run_mode"]);
        let written: Vec<String> =
            written.filter(|name| given.is_given(name)).map(|name| format!("--{name}")).collect();
        return Err(Error::invalid(
            "Only one mode(Collective or Parameter-Server) can be selected at the same time, \
             but more than one configuration was received.",
        )
        .help(format!("given were {}; keep those of one mode", written.join(" "))));
    }
    if let Some(mode) = asked {
        return match (mode, any(&HETER)) {
            (Mode::Ps, true) => Ok((Mode::PsHeter, false)),
            _ => Ok((mode, false)),
        };
    }
    Ok(match (any(&HETER), is_ps) {
        (true, _) => (Mode::PsHeter, false),
        (_, true) => (Mode::Ps, false),
        _ => (Mode::Collective, !is_collective),
    })
}

fn parse_nodes(text: &str) -> Result<Nodes> {
    let wrong = || {
        let expected = format!("N or MIN:MAX, from 1 to {NODES_MAX}");
        invalid("nnodes", expected, format!("'{text}'"))
    };
    let number = |text: &str| text.trim().parse::<usize>().map_err(|_| wrong());
    let (min, max) = match text.split_once(':') {
        Some((min, max)) => (number(min)?, number(max)?),
        None => (number(text)?, number(text)?),
    };
    if min == 0 || min > max || max > NODES_MAX {
        return Err(wrong());
    }
    Ok(Nodes { min, max })
}

/// Returns the address of the first machine and the access to an etcd, at most one of which is set:
/// the place where machines meet. Options for etcd have different names in different launchers.
fn meeting(
    given: &Given,
    outer: &OuterEnv<'_>,
    master: Option<&str>,
    warnings: &mut Vec<String>,
) -> Result<(Option<Endpoint>, Option<EtcdAccess>)> {
    let in_etcd = match given.text("rdzv_backend") {
        None | Some("c10d" | "static") => false,
        Some("etcd" | "etcd-v2") => true,
        Some(other) => {
            return Err(Error::unsupported("--rdzv_backend is not understood")
                .expected("c10d or static, which are the built-in store, or etcd")
                .got(other));
        }
    };
    let from_env = || outer.text(&[names::PADDLE_ELASTIC_SERVER]);
    let server = given.text("elastic_server").or_else(from_env);
    let master_etcd = master.and_then(|text| text.strip_prefix("etcd://"));
    let mut access = |address: &str, flag: &str| {
        let access = EtcdAccess::new(address, flag, given, outer.env, warnings)?;
        Ok((None, Some(access)))
    };
    match (server.or(master_etcd), master) {
        (Some(_), Some(master)) if master_etcd.is_none() => {
            Err(Error::invalid("--elastic_server and --master both say where machines meet")
                .got(master)
                .help("give one of them"))
        }
        (Some(_), _) if given.is_given("ips") => {
            Err(Error::invalid("--elastic_server and --ips both say where the machines are")
                .help("give one of them"))
        }
        (Some(server), _) => access(server, "--elastic_server"),
        (None, Some(master)) if in_etcd => access(master, "--rdzv_endpoint"),
        (None, None) if in_etcd => Err(Error::invalid("--rdzv_backend etcd needs an etcd")
            .expected("--elastic_server HOST:PORT")),
        (None, master) => {
            EtcdAccess::refuse_flags(given)?;
            Ok((master.map(master_endpoint).transpose()?, None))
        }
    }
}

/// Checks that the master has a port, as every machine but the first needs.
pub(crate) fn check_port(master: Option<&Endpoint>) -> Result<()> {
    match master {
        Some(Endpoint { port: 0, .. }) => Err(Error::invalid("others cannot connect to port 0")
            .at("--master")
            .help("the first machine says which port the system gave it")),
        _ => Ok(()),
    }
}

fn master_endpoint(text: &str) -> Result<Endpoint> {
    // The original's later launcher also accepts http:// in front.
    let text = text.strip_prefix("http://").unwrap_or(text);
    text.parse::<Endpoint>().map_err(|error| {
        error.at("--master").help("for example --master 10.0.0.1:7000, the same on every machine")
    })
}

fn job_id(given: &Given, outer: &OuterEnv<'_>) -> Result<String> {
    let from_env = outer.text(&[names::PADDLE_ELASTIC_JOB_ID]);
    let id = match from_env {
        Some(id) if !given.is_given("job_id") => id,
        _ => given.text("job_id").unwrap_or("default"),
    };
    let fine = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    if id.len() > JOB_ID_BYTES_MAX || !id.chars().all(fine) {
        return Err(Error::invalid("--job_id is not usable")
            .expected(format!("up to {JOB_ID_BYTES_MAX} letters, digits, '-', '_', '.'"))
            .got(format!("'{}'", id.chars().take(JOB_ID_BYTES_MAX).collect::<String>())));
    }
    Ok(id.to_string())
}

fn positive(given: &Given, name: &str) -> Result<Option<usize>> {
    match given.number::<usize>(name)? {
        Some(count) if count == 0 || count > PROCESSES_MAX => {
            Err(Error::invalid(format!("--{name} is out of range"))
                .expected(format!("1 to {PROCESSES_MAX} on one machine"))
                .got(count))
        }
        other => Ok(other),
    }
}

fn per_node(given: &Given) -> Result<Option<PerNode>> {
    match given.text("nproc_per_node") {
        Some("gpu") => Ok(Some(PerNode::Gpu)),
        Some("cpu") => Ok(Some(PerNode::Cpu)),
        Some("auto") => Ok(Some(PerNode::Auto)),
        Some(text) if text.parse::<usize>().is_err() => {
            let expected = "a whole number, gpu, cpu or auto";
            Err(invalid("nproc_per_node", expected, format!("'{text}'")))
        }
        _ => Ok(positive(given, "nproc_per_node")?.map(PerNode::Count)),
    }
}

fn backend(given: &Given) -> Result<Option<String>> {
    match given.text("backend") {
        None | Some("auto") => Ok(None),
        Some(name @ ("gloo" | "nccl")) => Ok(Some(name.to_string())),
        Some("host") => Ok(Some("gloo".to_string())),
        Some(other) => Err(invalid("backend", "auto, gloo or nccl", other)),
    }
}

fn ps(given: &Given) -> Result<PsOptions> {
    let who = |count: &str, list: &str| -> Result<Who> {
        match given.text(list) {
            Some(text) => {
                if given.is_given(count) {
                    return Err(Error::invalid(format!("--{count} and --{list} say the same"))
                        .help("give one of them"));
                }
                listed(list, text)
            }
            None => Ok(Who::Count(positive(given, count)?.unwrap_or(0))),
        }
    };
    let heter = match (given.text("heter_workers"), given.text("heter_worker_num")) {
        (Some(stages), None) => {
            stages.split(';').map(|stage| listed("heter_workers", stage)).collect::<Result<_>>()?
        }
        (None, Some(stages)) => stages.split(';').map(heter_count).collect::<Result<Vec<Who>>>()?,
        (None, None) => Vec::new(),
        _ => {
            return Err(Error::invalid("--heter_workers and --heter_worker_num say the same")
                .help("give one of them"));
        }
    };
    let devices = given.text("heter_devices");
    Ok(PsOptions {
        servers: who("server_num", "servers")?,
        workers: who("worker_num", "workers")?,
        heter,
        heter_devices: devices.map_or(Vec::new(), |text| {
            text.split(';').map(|kind| kind.trim().to_string()).collect()
        }),
        coordinators: who("coordinator_num", "coordinators")?,
    })
}

fn heter_count(text: &str) -> Result<Who> {
    match text.trim().parse::<usize>() {
        Ok(count) if (1..=PROCESSES_MAX).contains(&count) => Ok(Who::Count(count)),
        _ => {
            let expected = format!("1 to {PROCESSES_MAX} for each stage, separated by ';'");
            Err(invalid("heter_worker_num", expected, format!("'{text}'")))
        }
    }
}

fn listed(name: &str, text: &str) -> Result<Who> {
    let item = |item: &str| -> Result<(String, Option<u16>)> {
        match item.contains(':') {
            true => {
                let endpoint: Endpoint =
                    item.parse().map_err(|error: Error| error.at(format!("--{name}")))?;
                Ok((endpoint.host, Some(endpoint.port)))
            }
            false => Ok((host(item, name)?, None)),
        }
    };
    let list = split(text).iter().map(|it| item(it)).collect::<Result<Vec<_>>>()?;
    if list.len() > PROCESSES_MAX {
        return Err(Error::exhausted(format!("--{name} is too long"))
            .expected(format!("up to {PROCESSES_MAX}"))
            .got(list.len()));
    }
    Ok(Who::Listed(list))
}

fn hosts(text: Option<&str>, name: &str) -> Result<Vec<String>> {
    let list: Vec<String> = split(text.unwrap_or("127.0.0.1"))
        .iter()
        .map(|it| host(it, name))
        .collect::<Result<_>>()?;
    let mut seen = std::collections::HashSet::new();
    if let Some(twice) = list.iter().find(|host| !seen.insert(host.as_str())) {
        return Err(Error::invalid(format!("{twice} stands twice in --{name}"))
            .help("--nproc_per_node starts several workers on one host"));
    }
    Ok(list)
}

fn host(text: &str, name: &str) -> Result<String> {
    // Hosts have the same syntax as in endpoints.
    let endpoint: Endpoint = format!("{text}:1").parse().map_err(|_| {
        invalid(name, "host names or addresses, separated by commas", format!("'{text}'"))
    })?;
    Ok(endpoint.host)
}

pub(crate) fn split(text: &str) -> Vec<String> {
    text.split(',').map(|item| item.trim().to_string()).collect()
}

fn start_port(given: &Given, env: &Env) -> Result<Option<u16>> {
    let port = match given.number("start_port")? {
        Some(port) => Some(port),
        None => env.number(names::FLAGS_START_PORT)?,
    };
    Ok(port.filter(|port| *port != 0))
}

fn with_gloo(given: &Given, env: &Env) -> Result<String> {
    match given.text("with_gloo").or(env.text(names::PADDLE_WITH_GLOO)).unwrap_or("0") {
        value @ ("0" | "1" | "2") => Ok(value.to_string()),
        other => Err(invalid("with_gloo", "0, 1 or 2", format!("'{other}'"))),
    }
}

/// Returns the job's secret, and a warning if other users can read it.
fn token(given: &Given, env: &Env) -> Result<(Option<Token>, Vec<String>)> {
    let file = given.text("token_file").or(env.text(names::FLEET_TOKEN_FILE));
    let Some(file) = file else {
        return Ok((env.text(names::FLEET_TOKEN).map(Token::from_text).transpose()?, Vec::new()));
    };
    let token = Token::read(std::path::Path::new(file))?;
    Ok((Some(token), open_to_all(file, "the job's secret").into_iter().collect()))
}

/// Returns the limit on the memory of a worker as it is given, with a unit.
fn memory(given: &Given) -> Result<Option<String>> {
    let Some(text) = given.text("memory") else { return Ok(None) };
    match units::size(text) {
        Ok(_) => Ok(Some(text.to_string())),
        Err(_) => Err(invalid("memory", "a size with a unit, such as 2GiB", format!("'{text}'"))),
    }
}

fn seconds(given: &Given, name: &str) -> Result<Duration> {
    let text = given.text(name).unwrap_or("0");
    let seconds = text.parse::<f64>().ok().filter(|s| (0.0..=SECONDS_MAX).contains(s));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| invalid(name, format!("seconds, 0 to {SECONDS_MAX}"), format!("'{text}'")))
}

/// Returns the elastic level. By default a job with a range continues with the machines that are
/// left, and a job of fixed size waits for the same number. A job on one machine is not elastic.
/// The original's -1 means that no level is given.
fn elastic_level(
    given: &Given,
    outer: &OuterEnv<'_>,
    nodes: Option<Nodes>,
) -> Result<ElasticLevel> {
    let from_env = outer.text(&[names::PADDLE_ELASTIC_FAULT_TOLERANC_LEVEL]);
    let range = nodes.is_some_and(|nodes| nodes.min < nodes.max);
    match given.text("elastic_level").or(from_env) {
        None | Some("-1") if range => Ok(ElasticLevel::Range),
        None | Some("-1" | "0") => Ok(ElasticLevel::Off),
        Some("1") => Ok(ElasticLevel::Same),
        Some("2") => Ok(ElasticLevel::Range),
        Some(other) => {
            let expected = "0 (stop), 1 (wait for another machine) or 2 (continue within MIN:MAX)";
            Err(invalid("elastic_level", expected, format!("'{other}'")))
        }
    }
}

fn compat(given: &Given) -> Result<bool> {
    match given.text("compat") {
        None => Ok(false),
        Some("paddle") => Ok(true),
        Some(other) => Err(invalid("compat", "paddle", other)),
    }
}

fn follow(given: &Given) -> Result<Follow> {
    match given.text("follow").unwrap_or("0") {
        "0" => Ok(Follow::First),
        "all" => Ok(Follow::All),
        "none" => Ok(Follow::None),
        other => Err(invalid("follow", "0, all or none", other)),
    }
}

fn verbosity(given: &Given) -> Result<Verbosity> {
    let level = given.text("log_level").unwrap_or("info").to_ascii_lowercase();
    Ok(match level.as_str() {
        "debug" => Verbosity::Debug,
        _ if given.is_on("verbose") => Verbosity::Debug,
        "info" => Verbosity::Normal,
        "warning" | "warn" => Verbosity::Warnings,
        "error" | "critical" => Verbosity::Errors,
        other => {
            return Err(invalid("log_level", "debug, info, warning or error", other));
        }
    })
}

/// Limit on machines; more than any cluster of this kind has.
const NODES_MAX: usize = 65_536;
/// Limit on processes of a role on one machine; a larger number is a typing error.
const PROCESSES_MAX: usize = 4096;
const JOB_ID_BYTES_MAX: usize = 128;
/// Limit on times: about a month; longer ones are mistakes.
const SECONDS_MAX: f64 = 2_592_000.0;
