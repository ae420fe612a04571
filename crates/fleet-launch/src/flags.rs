//! The command line: the parser, the help and the printed table of arguments all follow from one
//! table of flags.
//!
//! Names are those of the documentation and of the original's later launcher. Every name is also
//! accepted with dashes, and torchrun's names are aliases where the meaning is the same. Flags end
//! at the script; everything after it belongs to the script.

use clap::{Arg, ArgAction, ArgMatches, Command, parser::ValueSource};
use fleet_base::{Error, Result, text};
use std::fmt::Display;

/// One flag.
pub struct Flag {
    /// Documented name, without dashes in front.
    pub name: &'static str,
    aliases: &'static [&'static str],
    /// Placeholder of its value; empty for a switch.
    value: &'static str,
    /// Default, which is also printed. `None` is printed as such.
    default: Option<&'static str>,
    group: &'static str,
    help: &'static str,
}

const JOB: &str = "Job";
const MACHINES: &str = "Several machines";
const DEVICES: &str = "Collective";
const SERVERS: &str = "Parameter server";
const FAILURES: &str = "Failures and elasticity";
const OUTPUT: &str = "Output";

/// Every flag, in the order of the help.
pub const FLAGS: &[Flag] = &[
    flag(DEVICES, "nproc_per_node", "N").help(
        "Workers on this machine, or gpu, cpu (one per core), auto; by default one per GPU, or 1",
    ),
    flag(DEVICES, "gpus", "LIST")
        .aliases(&["selected_gpus", "devices"])
        .help("GPUs to use, one worker each: 0,1. Counted within CUDA_VISIBLE_DEVICES"),
    flag(DEVICES, "backend", "NAME")
        .default("auto")
        .help("Transport of collectives: auto, gloo (CPU), nccl (GPU)"),
    flag(SERVERS, "server_num", "N").help("Servers on this machine"),
    flag(SERVERS, "worker_num", "N").aliases(&["trainer_num"]).help("Workers on this machine"),
    flag(SERVERS, "servers", "LIST").default("").help("Servers by address: HOST[:PORT],.."),
    flag(SERVERS, "workers", "LIST")
        .aliases(&["trainers"])
        .default("")
        .help("Workers by address: HOST[:PORT],.."),
    flag(SERVERS, "heter_worker_num", "N[;N]")
        .help("Heterogeneous workers of each stage on this machine"),
    flag(SERVERS, "heter_workers", "LIST[;LIST]")
        .default("")
        .help("Heterogeneous workers of each stage by address"),
    flag(SERVERS, "heter_devices", "KIND[;KIND]")
        .default("")
        .help("The kind of device of each stage: cpu, gpu"),
    flag(SERVERS, "coordinator_num", "N").help("Coordinators on this machine"),
    flag(SERVERS, "coordinators", "LIST").default("").help("Coordinators by address"),
    flag(SERVERS, "http_port", "PORT")
        .aliases(&["gloo_port"])
        .help("Port of the job's store, where processes meet; by default a free one"),
    flag(SERVERS, "with_gloo", "0|1|2")
        .help("Groups of fleet.util: 0 or 1 workers, 2 also with servers"),
    flag(SERVERS, "save_root", "FOLDER").help(
        "Servers save to and load from folders in it alone (or FLEET_SAVE_ROOT); by default any",
    ),
    flag(MACHINES, "ips", "LIST")
        .default("127.0.0.1")
        .help("The hosts of the job, the same list on every host"),
    flag(MACHINES, "master", "HOST:PORT")
        .aliases(&["rdzv_endpoint"])
        .help("Where machines meet, hosted by the first; with --ips its first host, port 29400"),
    flag(MACHINES, "elastic_server", "[https://]HOST:PORT")
        .help("An etcd as the meeting point, so that the job survives the loss of any machine"),
    flag(MACHINES, "etcd_ca", "FILE")
        .help("Certificate of the authority of that etcd, for https:// (or FLEET_ETCD_CA)"),
    flag(MACHINES, "etcd_cert", "FILE")
        .help("Certificate of this launcher, if etcd demands one (or FLEET_ETCD_CERT)"),
    flag(MACHINES, "etcd_key", "FILE").help("Its private key (or FLEET_ETCD_KEY)"),
    flag(MACHINES, "etcd_user", "NAME").help("User of etcd (or FLEET_ETCD_USER)"),
    flag(MACHINES, "etcd_password_file", "FILE")
        .help("File with that user's password (or FLEET_ETCD_PASSWORD_FILE)"),
    flag(MACHINES, "nnodes", "N|MIN:MAX")
        .aliases(&["np"])
        .help("How many machines; a range makes the job elastic"),
    flag(MACHINES, "rank", "N")
        .aliases(&["node_rank"])
        .help("The number of this machine; by default in order of arrival"),
    flag(MACHINES, "host", "HOST")
        .aliases(&["local_addr"])
        .help("Address of this machine for the others"),
    switch(MACHINES, "sort_ip").help("Number the machines by address, not by arrival"),
    switch(MACHINES, "standalone")
        .help("This machine alone, the default without --ips and --nnodes"),
    flag(MACHINES, "rdzv_backend", "NAME")
        .help("c10d or static: the built-in store; etcd: as --elastic_server"),
    flag(MACHINES, "token_file", "FILE")
        .help("File with the job's secret (or FLEET_TOKEN); needed with several machines"),
    flag(MACHINES, "join_timeout", "SECONDS")
        .aliases(&["rdzv_timeout"])
        .default("300")
        .help("How long to wait for the other machines"),
    flag(MACHINES, "start_port", "PORT")
        .help("First of fixed ports (or FLAGS_START_PORT); by default free ones"),
    flag(FAILURES, "max_restart", "N")
        .aliases(&["max_restarts"])
        .help("Limit on restarts after a failure; by default 0, for servers 3"),
    flag(FAILURES, "elastic_level", "LEVEL")
        .help("On a lost machine: 0 stop, 1 wait for another, 2 continue within MIN:MAX"),
    flag(FAILURES, "elastic_timeout", "SECONDS")
        .default("30")
        .help("How long an elastic job waits for more machines"),
    flag(FAILURES, "start_timeout", "SECONDS")
        .default("0")
        .help("Stop when a process has written nothing by then, or not joined; 0: never"),
    flag(FAILURES, "stop_timeout", "SECONDS")
        .aliases(&["shutdown_timeout"])
        .default("10")
        .help("Between SIGTERM and SIGKILL; time to save"),
    flag(FAILURES, "silence_timeout", "SECONDS")
        .default("30")
        .help("A process that is stopped or sends no heartbeat for this long is lost"),
    flag(FAILURES, "leave_timeout", "SECONDS")
        .default("30")
        .help("Grace period for processes that still run when the job is done"),
    flag(JOB, "job_id", "NAME").aliases(&["rdzv_id"]).default("default").help("The job's name"),
    flag(JOB, "memory", "SIZE")
        .help("Limit on a worker's variables, such as 2GiB; a program that needs more is an error"),
    flag(JOB, "run_mode", "MODE")
        .help("collective, ps or ps-heter; by default from the other flags"),
    flag(JOB, "python", "FILE")
        .help("Interpreter for Python scripts (or PYTHON); by default python3 or python"),
    switch(JOB, "module").help("SCRIPT is a Python module, as with python -m"),
    flag(JOB, "compat", "NAME")
        .help("paddle: in the script, import paddle is the Python package fleet"),
    flag(OUTPUT, "log_dir", "FOLDER")
        .aliases(&["log-directory"])
        .default("log")
        .help("Where each process has its log"),
    switch(OUTPUT, "log_overwrite")
        .help("Empty old logs of workers first, instead of adding to them"),
    flag(OUTPUT, "log_level", "LEVEL")
        .default("info")
        .help("Messages of fleetrun: debug (as -v), info, warning, error"),
    flag(OUTPUT, "follow", "WHO").default("0").help("Logs to show: 0 (worker 0), all, none"),
    switch(OUTPUT, "verbose")
        .help("Print all arguments and the whole environment of the first process"),
];

/// Flags of other launchers that are not supported, with the reason.
const REFUSED: &[(&str, &str)] = &[
    (
        "scale",
        "start fleetrun on one more machine, or stop one: --nnodes MIN:MAX lets the job follow",
    ),
    ("force", "no membership outlives the job: its store ends with it"),
    ("elastic_pre_hook", "run it before fleetrun"),
    ("cluster_topo_path", "workers are numbered in the order of --ips"),
    ("rank_mapping_path", "workers are numbered in the order of --ips"),
    ("enable_auto_mapping", "workers are numbered in the order of --ips"),
    ("enable_gpu_log", "use the GPU vendor's tools"),
    ("tee", "--follow all shows all logs while they grow; each process has its own in --log_dir"),
    ("redirects", "each process has its log in --log_dir already"),
    ("local_ranks_filter", "--follow selects the logs to show: 0, all or none"),
    ("monitor_interval", "an ended process is noticed at once"),
    ("no_python", "an executable is started as it is: fleetrun ./program"),
    ("run_path", "the script is started as a script in any case: fleetrun train.py"),
    ("role", "the processes of a collective job are workers; --job_id names the job"),
    ("start_method", "processes are started as commands, nothing is forked"),
    ("rdzv_conf", "--join_timeout sets the time to wait; there are no other settings"),
    ("log_line_prefix_template", "--follow all puts [worker N] in front of each line"),
    ("duplicate_stdout_filters", "each process has its log in --log_dir: grep it there"),
    ("duplicate_stderr_filters", "each process has its log in --log_dir: grep it there"),
    ("event_log_handler", "fleetrun writes its messages to standard error"),
    ("logs_specs", "--log_dir sets the log folder, and --follow the logs to show"),
    ("numa_binding", "bind in the script, or start a script that calls numactl"),
    ("signals_to_handle", "Ctrl-C, SIGTERM, SIGHUP and SIGQUIT stop the job in order"),
    ("virtual_local_rank", "LOCAL_RANK counts the workers of a machine"),
    ("master_addr", "--master HOST:PORT sets both"),
    ("master_port", "--master HOST:PORT sets both"),
    ("legacy", "there is one launcher, which takes the flags of both"),
    ("xpus", "there is no support for XPUs"),
    ("npus", "there is no support for NPUs"),
];

/// Returns a flag with a value.
const fn flag(group: &'static str, name: &'static str, value: &'static str) -> Flag {
    Flag { name, aliases: &[], value, default: None, group, help: "" }
}

/// Returns a flag without a value.
const fn switch(group: &'static str, name: &'static str) -> Flag {
    Flag { default: Some("False"), ..flag(group, name, "") }
}

impl Flag {
    const fn aliases(self, aliases: &'static [&'static str]) -> Flag {
        Flag { aliases, ..self }
    }

    const fn default(self, default: &'static str) -> Flag {
        Flag { default: Some(default), ..self }
    }

    const fn help(self, help: &'static str) -> Flag {
        Flag { help, ..self }
    }
}

/// The parsed command line, by names of [`FLAGS`].
pub struct Given {
    matches: ArgMatches,
}

impl Given {
    /// Parses arguments (without the program's name). The error is clap's and also carries
    /// `--help`. [`unknown_flag`] gives a better message for an unknown flag.
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Given, clap::Error> {
        let args = std::iter::once("fleetrun".to_string()).chain(args);
        Ok(Given { matches: command().try_get_matches_from(args)? })
    }

    /// Returns the value, given or default; `None` if there is neither or if it is empty.
    pub fn text(&self, name: &str) -> Option<&str> {
        let value = self.matches.get_one::<String>(name).map(|value| value.trim());
        value.filter(|value| !value.is_empty())
    }

    /// Returns whether a switch is given.
    pub fn is_on(&self, name: &str) -> bool {
        self.matches.get_flag(name)
    }

    /// Whether the user gave this flag (with a value that is not empty).
    pub fn is_given(&self, name: &str) -> bool {
        let written = self.matches.value_source(name) == Some(ValueSource::CommandLine);
        let switch = FLAGS.iter().any(|flag| flag.name == name && flag.value.is_empty());
        written && (switch || self.text(name).is_some())
    }

    /// Returns the number that a flag gives. Other values than numbers of this type are an error.
    pub fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let expected = if name.ends_with("port") { "a port, 0 to 65535" } else { "a whole number" };
        let number = text.parse();
        Ok(Some(number.map_err(|_| invalid(name, expected, format!("'{text}'")))?))
    }

    /// Returns the script and its arguments.
    pub fn command(&self) -> Vec<String> {
        self.matches.get_many("command").into_iter().flatten().cloned().collect()
    }

    /// Returns an error if a flag of other launchers is given that this one does not support: it is
    /// never ignored.
    pub fn refuse_unsupported(&self) -> Result<()> {
        for (name, why) in REFUSED {
            if self.matches.value_source(name) == Some(ValueSource::CommandLine) {
                return Err(Error::unsupported(format!("--{name} is not there")).help(why));
            }
        }
        Ok(())
    }

    /// Returns names and values in the original's format, sorted by name.
    pub fn table(&self) -> Vec<(String, String)> {
        let mut rows: Vec<(String, String)> = FLAGS
            .iter()
            .map(|flag| {
                let value = match flag.value {
                    "" if self.is_on(flag.name) => "True".to_string(),
                    "" => "False".to_string(),
                    _ => match self.matches.get_one::<String>(flag.name) {
                        Some(value) => value.clone(),
                        None => flag.default.unwrap_or("None").to_string(),
                    },
                };
                (flag.name.to_string(), value)
            })
            .collect();
        let command = self.command();
        rows.push(("training_script".into(), command.first().cloned().unwrap_or_default()));
        let args: Vec<String> = command.iter().skip(1).map(|arg| format!("'{arg}'")).collect();
        rows.push(("training_script_args".into(), format!("[{}]", args.join(", "))));
        rows.sort();
        rows
    }

    /// Returns the rows of [`Given::table`] that the user wrote.
    pub fn written(&self) -> Vec<(String, String)> {
        let mut rows = self.table();
        rows.retain(|(name, value)| match name.as_str() {
            "training_script" => true,
            "training_script_args" => value != "[]",
            flag => self.is_given(flag),
        });
        rows
    }
}

/// Returns the error of a flag whose value cannot be parsed.
pub(crate) fn invalid(flag: &str, expected: impl Display, got: impl Display) -> Error {
    Error::invalid(format!("--{flag} is not understood")).expected(expected).got(got)
}

/// Returns the error of an unknown flag, if that is what clap's error reports.
///
/// ```
/// use fleet_launch::flags::{Given, unknown_flag};
/// let error = Given::parse(["--nproc_per_nod".to_string()]).err().unwrap();
/// let said = unknown_flag(&error).unwrap().to_string();
/// assert!(said.contains("did you mean '--nproc_per_node'?"), "{said}");
/// ```
pub fn unknown_flag(error: &clap::Error) -> Option<Error> {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    let (ErrorKind::UnknownArgument, Some(ContextValue::String(flag))) =
        (error.kind(), error.get(ContextKind::InvalidArg))
    else {
        return None;
    };
    let name = flag.trim_start_matches('-').replace('-', "_");
    let known = FLAGS.iter().flat_map(|known| std::iter::once(&known.name).chain(known.aliases));
    let begun = known.clone().filter(|known| !name.is_empty() && known.starts_with(&name));
    let near = begun.copied().next().or_else(|| text::nearest(&name, known.copied()));
    let near = near.map(|near| format!("; did you mean '--{near}'?")).unwrap_or_default();
    Some(Error::invalid(format!("fleetrun has no flag {flag}{near}")).help(
        "fleetrun --help shows all; flags for the script stand behind it: fleetrun train.py --lr \
         0.1",
    ))
}

/// Returns the parser. Its help is for users who know torchrun.
pub fn command() -> Command {
    let mut command = Command::new("fleetrun")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Starts and supervises the processes of a training job, and reports failures")
        .override_usage("fleetrun [FLAGS] SCRIPT [ARGS]...")
        .after_help(AFTER_HELP)
        .args_override_self(true)
        .max_term_width(100);
    for flag in FLAGS {
        command = command.arg(argument(flag));
    }
    for (name, _) in REFUSED {
        let arg = Arg::new(*name).long(*name).alias(name.replace('_', "-"));
        let arg = match *name {
            "tee" => arg.short('t'),
            "redirects" => arg.short('r'),
            _ => arg,
        };
        command = command.arg(arg.hide(true).num_args(0..=1).action(ArgAction::Set));
    }
    command.arg(Arg::new("command").value_name("SCRIPT").num_args(0..).trailing_var_arg(true).help(
        "A Python file, an executable, job:FILE for a job file, or a built-in job such as \
         demo:wide_deep; then its arguments",
    ))
}

fn argument(flag: &'static Flag) -> Arg {
    let mut arg = Arg::new(flag.name).long(flag.name).help(flag.help).help_heading(flag.group);
    for name in std::iter::once(&flag.name).chain(flag.aliases) {
        let dashed = name.replace('_', "-");
        if *name != flag.name {
            arg = arg.alias(*name);
        }
        if dashed != *name {
            arg = arg.alias(dashed);
        }
    }
    arg = match flag.name {
        "verbose" => arg.short('v'),
        "module" => arg.short('m'),
        _ => arg,
    };
    if flag.value.is_empty() {
        return arg.action(ArgAction::SetTrue);
    }
    // Later launchers use -1 for "not given".
    let arg = arg.value_name(flag.value).action(ArgAction::Set).allow_negative_numbers(true);
    match flag.default {
        Some(default) if !default.is_empty() => arg.default_value(default),
        _ => arg,
    }
}

const AFTER_HELP: &str = "\
Examples:
  fleetrun train.py                                      one worker per GPU, or one
  fleetrun --nproc_per_node 4 train.py --lr 0.1          four workers
  fleetrun --gpus 0,1 train.py                           two workers, a GPU each
  fleetrun --ips 10.0.0.1,10.0.0.2 train.py              the same on both machines
  fleetrun --master 10.0.0.1:7000 --nnodes 2 train.py    the same on both machines
  fleetrun --master 10.0.0.1:7000 --nnodes 2:4 --max_restart 3 train.py
                                                         machines may come and go
  fleetrun --server_num 1 --worker_num 2 train.py        parameter server
  fleetrun --server_num 1 --worker_num 2 demo:wide_deep  a first look, nothing else needed

Coming from torchrun (flags may have dashes; these names and their meaning are the same here:
--nproc-per-node --nnodes --node-rank --rdzv-endpoint --rdzv-id --max-restarts --local-addr
--shutdown-timeout -m):
  torchrun --standalone --nproc-per-node gpu train.py    fleetrun train.py
  torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint a:7000 train.py
                                              fleetrun --nnodes 2 --master a:7000 train.py
  --master-addr a --master-port 7000                     --master a:7000
  -t 3, --local-ranks-filter 0,1                         --follow all
  -r 3, --log-dir logs                                   --log_dir logs (each process has its log)
  --no-python ./program                                  ./program
  RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, ..          set as well, beside PADDLE_TRAINER_ID, ..
  TORCHELASTIC_RESTART_COUNT                             FLEET_RESTART_COUNT

Exit codes: that of the process that failed (128 + n for signal n), 2 for a wrong command line,
124 for a process that hangs at its start.";
