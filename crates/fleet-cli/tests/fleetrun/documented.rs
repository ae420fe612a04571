//! The command lines and exports of the documents that Fleet rebuilds (000 to 004): each has a row
//! with its effect in Fleet, and a check of the effect.

use crate::{Place, Said};
use fleet::prelude::*;
use fleet::servers::communicator_options;
use fleet::topology::Env;
use fleet_launch::cluster::Cluster;
use fleet_launch::flags::Given;
use fleet_launch::machine::Machine;
use fleet_launch::options::Options;
use fleet_launch::ports::Ports;
use fleet_topology::{Reader, Variable, names};
use std::process::Command;

struct Row {
    document: &'static str,
    /// The line as the document has it. Placeholders are replaced by values.
    line: &'static str,
    effect: &'static str,
    check: Check,
}

enum Check {
    /// Starts this many servers, workers and heterogeneous workers.
    Starts(usize, usize, usize),
    /// Starts this many workers on several machines, each of which runs the line.
    Machines(usize),
    /// Every process gets the variable unchanged.
    Passed,
    /// A worker reports that the variable has no effect.
    Unused,
    /// Fleet reads the variable, accepts the value, and holds this.
    Read(fn(&Env) -> bool),
    /// A server prints the configuration of its tables.
    Tables,
    /// The launcher writes this file.
    Written(&'static str),
    /// Not a line for Fleet, or for a later version: the effect says so.
    None,
}

const fn row(
    document: &'static str,
    line: &'static str,
    effect: &'static str,
    check: Check,
) -> Row {
    Row { document, line, effect, check }
}

const TWO_GPUS: &str = "two workers: a GPU each, or on the CPU with one warning";
const EIGHT_GPUS: &str = "eight workers: a GPU each, or on the CPU with one warning";
const BUCKETS: &str = "size of the buckets of gradients, where the strategy assigns none";
const NCCL: &str = "read by NCCL, which FLEET_NCCL=1 or --backend nccl selects";
const OPERATOR: &str = "not supported: there is no operator for Kubernetes yet";
const INSTALL: &str = "does not apply: Fleet is a Rust crate";

const ROWS: &[Row] = &[
    row("000", "export FLAGS_fuse_parameter_memory_size=16", BUCKETS, Check::Read(any)),
    row("000", "export FLAGS_fuse_parameter_groups_size=50", BUCKETS, Check::Read(any)),
    row(
        "000",
        "export FLAGS_enable_parallel_graph=1",
        "a worker uses its whole share of the cores, as it does without CPU_NUM in any case",
        Check::Read(uses_all_cores),
    ),
    row(
        "000",
        "export FLAGS_sync_nccl_allreduce=1",
        "gradients are summed in the computing thread",
        Check::Read(|env| flagged(env).sync_nccl_allreduce == Some(true)),
    ),
    row(
        "000",
        "export FLAGS_fraction_of_gpu_memory_to_use=0.7",
        "none, which is reported",
        Check::Unused,
    ),
    row("000", "export NCCL_SOCKET_IFNAME=eth2", NCCL, Check::Passed),
    row("000", "export NCCL_P2P_DISABLE=1", NCCL, Check::Passed),
    row("000", "export NCCL_IB_DISABLE=1", NCCL, Check::Passed),
    row("000", "export NCCL_IB_CUDA_SUPPORT=1", NCCL, Check::Passed),
    row("000", "export NCCL_DEBUG=INFO", NCCL, Check::Passed),
    row("001", "export FLAGS_fuse_parameter_memory_size=16", BUCKETS, Check::Read(any)),
    row("001", "export FLAGS_fuse_parameter_groups_size=50", BUCKETS, Check::Read(any)),
    row("002", "kubectl create -f deploy/v1/crd.yaml", OPERATOR, Check::None),
    row("002", "kubectl get crd", OPERATOR, Check::None),
    row("002", "kubectl create -f deploy/v1/operator.yaml", OPERATOR, Check::None),
    row("002", "kubectl -n paddle-system get pods", OPERATOR, Check::None),
    row(
        "002",
        "kubectl -n paddle-system logs paddle-controller-manager-NAME",
        OPERATOR,
        Check::None,
    ),
    row("002", "kubectl -n paddle-system create -f pdj.yaml", OPERATOR, Check::None),
    row("002", "kubectl -n paddle-system apply -f pv-pvc.yaml", OPERATOR, Check::None),
    row("002", "pip install paddlepaddle", INSTALL, Check::None),
    row("002", "pip install paddlepaddle-gpu", INSTALL, Check::None),
    row("002", "fleetrun --gpus=0,1 train_fleet_static.py", TWO_GPUS, Check::Starts(0, 2, 0)),
    row(
        "002",
        "fleetrun --gpus 0,1,2,3,4,5,6,7 train_fleet_static.py",
        EIGHT_GPUS,
        Check::Starts(0, 8, 0),
    ),
    row(
        "002",
        "fleetrun --ips=\"xx.xx.xx.xx,yy.yy.yy.yy\" --gpus 0,1,2,3,4,5,6,7 train_fleet_static.py",
        "sixteen workers, eight on each of two machines, which share a secret",
        Check::Machines(16),
    ),
    row(
        "002",
        "fleetrun --gpus=0,1 train_fleet_static_op_fusion.py",
        TWO_GPUS,
        Check::Starts(0, 2, 0),
    ),
    row(
        "002",
        "fleetrun --gpus=0,1 train_fleet_static_overlap.py",
        TWO_GPUS,
        Check::Starts(0, 2, 0),
    ),
    row(
        "002",
        "fleetrun --gpus=0,1,2,3,4,5,6,7 train_fleet_static_communication_topology.py",
        EIGHT_GPUS,
        Check::Starts(0, 8, 0),
    ),
    row(
        "002",
        "fleetrun --gpus=0,1,2,3,4,5,6,7 train_fleet_static_amp.py",
        EIGHT_GPUS,
        Check::Starts(0, 8, 0),
    ),
    row("002", "fleetrun --gpus=0,1 train_fleet_recompute.py", TWO_GPUS, Check::Starts(0, 2, 0)),
    row("002", "fleetrun --gpus=0,1 train_fleet_lars.py", TWO_GPUS, Check::Starts(0, 2, 0)),
    row("002", "fleetrun --gpus=0,1 train_fleet_lamb.py", TWO_GPUS, Check::Starts(0, 2, 0)),
    row(
        "002",
        "python -m paddle.distributed.launch --selected_gpus=0,1,2,3,4,5,6,7 train.py",
        "the same as fleetrun with these flags; sharded classification is not supported yet",
        Check::Starts(0, 8, 0),
    ),
    row(
        "002",
        "python -m paddle.distributed.launch --gpus=\"0,1,2,3,4\" train_fleet_pipeline.py",
        "five workers; pipelines over them are not supported yet",
        Check::Starts(0, 5, 0),
    ),
    row(
        "002",
        "fleetrun --server_num=1 --worker_num=2 train.py",
        "one server and two workers",
        Check::Starts(1, 2, 0),
    ),
    row(
        "002",
        "export PSERVER_DEBUG=1",
        "servers print the configuration of their tables",
        Check::Tables,
    ),
    row(
        "002",
        "fleetrun --worker_num=1 --server_num=1 server_demo.py",
        "one server and one worker",
        Check::Starts(1, 1, 0),
    ),
    row("002", "cat log/serverlog.0", "the log of server 0", Check::Written("log/serverlog.0")),
    row(
        "002",
        "fleetrun --worker_num=1 --server_num=1 worker_demo.py",
        "one server and one worker",
        Check::Starts(1, 1, 0),
    ),
    row("002", "cat log/workerlog.0", "the log of worker 0", Check::Written("log/workerlog.0")),
    row(
        "002",
        "fleetrun --worker_num=1 --server_num=1 --heter_worker_num=1 heter_demo.py",
        "starts all three with the documented variables; training on them is not supported yet",
        Check::Starts(1, 1, 1),
    ),
    row(
        "002",
        "cat log/heterlog.0",
        "the log of heterogeneous worker 0",
        Check::Written("log/heterlog.0"),
    ),
    row(
        "002",
        "cat data/part-0 | python reader.py",
        "the user's generator alone; as pipe_command it feeds a dataset",
        Check::None,
    ),
    row(
        "002",
        "fleetrun --server_num=2 --worker_num=2 train.py",
        "two servers and two workers",
        Check::Starts(2, 2, 0),
    ),
    row(
        "002",
        "export FLAGS_communicator_max_merge_var_num=3",
        "gradients merged into one push",
        Check::Read(|env| options(env).merge_count_max == 3),
    ),
    row(
        "002",
        "export FLAGS_communicator_send_wait_times=3",
        "polls of an empty queue before a smaller batch of gradients is sent",
        Check::Read(|env| options(env).wait_count_max == 3),
    ),
    row(
        "002",
        "export CPU_NUM=3",
        "threads of a worker; gradients merged into one push; length of queues",
        Check::Read(|env| (options(env).merge_count_max, options(env).queue_len_max) == (3, 3)),
    ),
    row(
        "004",
        "export FLAGS_rpc_send_thread_num=3",
        "sending threads of a worker",
        Check::Read(|env| options(env).thread_count == 3),
    ),
    row(
        "004",
        "export FLAGS_rpc_get_thread_num=3",
        "dense tables that a worker receives at a time",
        Check::Read(|env| options(env).receive_thread_count == 3),
    ),
    row(
        "004",
        "export FLAGS_rpc_prefetch_thread_num=3",
        "tables whose rows a worker looks up ahead at a time",
        Check::Read(|env| options(env).look_ahead_thread_count == 3),
    ),
    row(
        "004",
        "export FLAGS_rpc_deadline=180000",
        "milliseconds for which a request is retried; this is the default",
        Check::Read(|_| variable("FLAGS_rpc_deadline").default == "180000"),
    ),
];

fn any(_: &Env) -> bool {
    true
}

/// Returns whether a worker whose program leaves the threads open has one for each core of its
/// share, although `CPU_NUM` is larger.
fn uses_all_cores(env: &Env) -> bool {
    let mut env = env.clone();
    env.set("CPU_NUM", "1000");
    let fleet = Fleet::join(&env).unwrap();
    let net = Net::new();
    let loss = net.data("x", [-1, 2], DType::F32).fc(1).mean();
    let strategy = DistributedStrategy::new();
    let job = fleet.distributed_optimizer(Sgd::new(0.1), &strategy).minimize(&net, loss).unwrap();
    let session = fleet.session(net.build().unwrap(), &job, ExecOptions::default()).unwrap();
    session.executor.threads() == fleet.cores_share()
}

/// Returns the strategy of a job without fields, in this environment.
fn flagged(env: &Env) -> DistributedStrategy {
    let flag = |name: &str| env.text(name).map(str::to_string);
    DistributedStrategy::new().with_flags(flag).unwrap().0
}

fn options(env: &Env) -> fleet::ps::CommunicatorOptions {
    communicator_options(&DistributedStrategy::new(), env).unwrap()
}

fn variable(name: &str) -> &'static Variable {
    names::find(name).unwrap_or_else(|| panic!("{name} is not in the list of variables"))
}

/// Returns name and value of an export.
fn exported(line: &'static str) -> (&'static str, &'static str) {
    let pair = line.strip_prefix("export ").and_then(|rest| rest.split_once('='));
    pair.unwrap_or_else(|| panic!("'{line}' is not an export"))
}

/// Returns the arguments of `fleetrun` in a documented line, and the script.
fn arguments(line: &str) -> (String, String) {
    let line = line.replace('"', "").replace("xx.xx.xx.xx", "10.0.0.1");
    let line = line.replace("yy.yy.yy.yy", "10.0.0.2");
    let starts = ["fleetrun ", "python -m paddle.distributed.launch "];
    let found = starts.iter().find_map(|start| line.strip_prefix(start));
    let arguments = found.unwrap_or_else(|| panic!("'{line}' starts nothing")).to_string();
    let script = arguments.rsplit(' ').next().unwrap_or_default().to_string();
    (arguments, script)
}

/// Prints the process's place and the variables of NCCL. Servers and heterogeneous workers run
/// until the workers have ended, and workers wait until all of these have started.
const SCRIPT: &str = r#"echo "${PADDLE_TRAINER_ID-none} of $PADDLE_TRAINERS_NUM"
echo "GPU ${FLAGS_selected_gpus-none}"
env | grep '^NCCL_'
if [ "${TRAINING_ROLE-TRAINER}" = TRAINER ]; then
    others="${PADDLE_PSERVERS_IP_PORT_LIST-},${PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST-}"
    count=$(echo "$others" | tr , '\n' | grep -c :)
    until [ "$(ls up.* 2>/dev/null | wc -l)" -ge "$count" ]; do sleep 0.05; done
    exit 0
fi
trap 'exit 0' TERM
: > up.$PADDLE_PORT
while :; do sleep 0.05; done
"#;

/// Runs a documented line in a place of its own, with the variables of NCCL.
fn run(name: &str, line: &str, env: &[(&str, &str)]) -> (Place, Said) {
    let (arguments, script) = arguments(line);
    let place = Place::new(&format!("documented/{name}"), "");
    std::fs::write(place.path(&script), SCRIPT).unwrap();
    let mut command = place.command(&arguments);
    command.env_remove("CUDA_VISIBLE_DEVICES").envs(env.iter().copied());
    let said = Said::new(command.output().unwrap());
    assert_eq!(said.code, Some(0), "{line}: {}", said.err);
    (place, said)
}

fn check_processes(place: &Place, line: &str, (servers, workers, heter): (usize, usize, usize)) {
    for worker in 0..workers {
        let log = place.read(&format!("log/workerlog.{worker}"));
        assert!(log.starts_with(&format!("{worker} of {workers}\n")), "{line}: {log}");
    }
    for (kind, count) in [("server", servers), ("worker", workers), ("heter", heter)] {
        let log = |number: usize| place.path(&format!("log/{kind}log.{number}"));
        assert!((0..count).all(|number| log(number).exists()), "{line}: logs of {kind}s");
        assert!(!log(count).exists(), "{line}: more than {count} {kind}s");
    }
}

/// Ports of machines that are not there.
struct NoPorts(u16);

impl Ports for NoPorts {
    fn next(&mut self, _: &str) -> fleet::Result<u16> {
        self.0 += 1;
        Ok(self.0)
    }

    fn given(&mut self, _: &str, _: u16) -> fleet::Result<()> {
        Ok(())
    }

    fn start(&self) -> Option<u16> {
        None
    }
}

#[test]
fn every_line_that_starts_a_job_starts_its_processes() {
    let has_no_gpu = !std::path::Path::new("/dev/nvidia0").exists();
    for (number, row) in ROWS.iter().enumerate() {
        let Check::Starts(servers, workers, heter) = row.check else { continue };
        let line = row.line;
        let counts = (servers, workers, heter);
        // On the documents' machines, with eight GPUs.
        let gpus = [("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")];
        let (place, said) = run(&number.to_string(), line, &gpus);
        check_processes(&place, line, counts);
        assert!(!said.err.contains("no GPU"), "{line}: {}", said.err);
        if line.contains("gpus") {
            let last = place.read(&format!("log/workerlog.{}", workers - 1));
            assert!(last.contains(&format!("GPU {}\n", workers - 1)), "{line}: {last}");
        }
        if has_no_gpu && line.contains("gpus") {
            let (place, said) = run(&format!("{number}-cpu"), line, &[]);
            check_processes(&place, line, counts);
            assert_eq!(said.err.matches("warning: this machine has no GPU").count(), 1, "{line}");
            assert!(place.read("log/workerlog.0").contains("GPU none"), "{line}");
        }
    }
}

#[test]
fn every_machine_of_a_line_has_its_workers() {
    for row in ROWS {
        let Check::Machines(workers) = row.check else { continue };
        let words = arguments(row.line).0;
        let given = Given::parse(words.split(' ').map(str::to_string)).unwrap();
        let options = Options::new(&given, &Env::new()).unwrap();
        for (rank, address) in ["10.0.0.1", "10.0.0.2"].into_iter().enumerate() {
            let addresses = vec![address.parse().unwrap()];
            let here = Machine { addresses, gpu_count: 8, ..Machine::default() };
            let made = Cluster::described(&options, &Env::new(), &here, &mut NoPorts(7000));
            let made = made.unwrap();
            assert_eq!((made.node, made.node_count, made.workers.len()), (rank, 2, workers));
            let own = made.workers.iter().filter(|worker| worker.endpoint.host == address);
            assert_eq!(own.count(), workers / 2);
        }
    }
}

/// Two workers with all exports of NCCL at once.
#[test]
fn exports_for_nccl_reach_every_worker() {
    let passed = ROWS.iter().filter(|row| matches!(row.check, Check::Passed));
    let exports: Vec<(&str, &str)> = passed.map(|row| exported(row.line)).collect();
    assert!(exports.iter().all(|(name, _)| variable(name).readers == [Reader::Script]));
    let (place, _) = run("nccl", "fleetrun --worker_num=2 --server_num=1 train.py", &exports);
    for log in ["log/workerlog.0", "log/workerlog.1", "log/serverlog.0"] {
        let log = place.read(log);
        for (name, value) in &exports {
            assert!(log.contains(&format!("{name}={value}\n")), "{name}: {log}");
        }
    }
}

/// One job with all exports that have no effect: worker 0 reports each once.
#[test]
fn exports_without_effect_are_reported() {
    let unused = ROWS.iter().filter(|row| matches!(row.check, Check::Unused));
    let exports: Vec<(&str, &str)> = unused.map(|row| exported(row.line)).collect();
    let place = Place::new("documented/unused", "");
    let mut command = place.command("--nproc_per_node 2 demo:lenet --samples 64 --threads 1");
    Said::new(command.envs(exports.iter().copied()).output().unwrap()).check(0, &[]);
    let log = |worker: usize| place.read(&format!("log/workerlog.{worker}"));
    for (name, _) in exports {
        let why = variable(name).no_effect.unwrap_or_else(|| panic!("{name} has an effect"));
        let line = format!("fleet: {name} has no effect: {why}");
        assert_eq!(log(0).matches(&line).count(), 1, "{}", log(0));
        assert!(!log(1).contains(name), "only worker 0 reports: {}", log(1));
    }
}

#[test]
fn exports_that_fleet_reads_have_their_effect() {
    for row in ROWS {
        let Check::Read(holds) = row.check else { continue };
        let (name, value) = exported(row.line);
        let env = Env::from([(name, value)]);
        assert!(holds(&env), "{}: {}", row.line, row.effect);
        assert!(variable(name).no_effect.is_none(), "{name}");
        // `fleet env` knows the variable, and accepts the documented value only.
        let fleet_env = |value: &str| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_fleet"));
            command.args(["env", "--set"]).env_clear().env(name, value);
            Said::new(command.output().unwrap())
        };
        let said = fleet_env(value);
        assert_eq!(said.code, Some(0), "{name}: {}", said.err);
        assert!(said.out.starts_with(&format!("{name} = {value}")), "{}", said.out);
        assert_eq!(fleet_env("much").code, Some(1), "{name}");
    }
}

#[test]
fn the_debug_export_makes_servers_print_their_tables() {
    for row in ROWS.iter().filter(|row| matches!(row.check, Check::Tables)) {
        let (name, value) = exported(row.line);
        let lines = |value: &str| {
            let place = Place::new("documented/debug", "");
            let line = "--worker_num=1 --server_num=1 demo:wide_deep --samples 1024 --threads 1";
            Said::new(place.command(line).env(name, value).output().unwrap()).check(0, &[]);
            place.read("log/serverlog.0").lines().count()
        };
        assert!(lines(value) > lines("0") + 10, "{}", row.effect);
    }
}

/// The files that the documents show after a job of all roles.
#[test]
fn the_documented_logs_are_written() {
    let line = "fleetrun --worker_num=1 --server_num=1 --heter_worker_num=1 heter_demo.py";
    let (place, _) = run("logs", line, &[]);
    for row in ROWS {
        let Check::Written(file) = row.check else { continue };
        assert!(row.line.ends_with(file) && place.read(file).contains(" of 1\n"), "{file}");
    }
}

#[test]
fn every_row_states_an_effect() {
    for (number, row) in ROWS.iter().enumerate() {
        assert!(["000", "001", "002", "003", "004"].contains(&row.document), "{}", row.line);
        assert!(!row.effect.is_empty(), "{}", row.line);
        let is_same = |other: &&Row| (other.document, other.line) == (row.document, row.line);
        assert_eq!(ROWS.iter().take(number).find(is_same).map(|other| other.line), None);
    }
}
