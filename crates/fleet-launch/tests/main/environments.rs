//! The environment of every role, compared with recorded runs of the original's two launchers.

use crate::{cluster, cluster_on, machine, options, processes, run, words};
use fleet_launch::cluster::device_warnings;
use fleet_launch::flags::Given;
use fleet_launch::machine::Machine;
use fleet_topology::{Env, Role, Topology, names};
use serde_json::Value;
use std::collections::BTreeMap;

/// Variables that a launch sets and the recorded ones do not: those of the other one of the
/// original's two launchers, and Fleet's own.
const BESIDES: &[&str] = &[
    "PADDLE_NNODES",
    "PADDLE_LOG_DIR",
    "POD_NAME",
    "PADDLE_MASTER",
    "PADDLE_GLOBAL_SIZE",
    "PADDLE_LOCAL_SIZE",
    "PADDLE_GLOBAL_RANK",
    "PADDLE_LOCAL_RANK",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "PADDLE_ROLE",
    "PADDLE_LOCAL_DEVICE_IDS",
    "PADDLE_WORLD_DEVICE_IDS",
    "PADDLE_WITH_GLOO",
    "PADDLE_GLOO_RENDEZVOUS",
    "PADDLE_GLOO_FS_PATH",
    "PADDLE_COORDINATOR_ENDPOINTS",
    "FLAGS_selected_gpus",
    "FLAGS_selected_xpus",
    "CUDA_VISIBLE_DEVICES",
    "XPU_VISIBLE_DEVICES",
    "FLEET_EXPENDABLE",
    "FLEET_JOB_ID",
    "FLEET_LAUNCH",
    "FLEET_RESTART_COUNT",
    "FLEET_REPORT",
    "FLEET_SILENCE_TIMEOUT",
    "FLEET_STORE",
    "FLEET_TOKEN",
];
/// Variable of the later launcher that this one never sets: a file with the whole environment.
const NEVER: &[&str] = &["PADDLE_BACKUP_ENV_PATH"];

fn check(name: &str, line: &str, start: Option<&str>, free: u16) {
    let vectors: Value = serde_json::from_str(include_str!("vectors/launch_env.json")).unwrap();
    let case = &vectors[name];
    let base: Env = start.iter().map(|port| ("FLAGS_START_PORT", *port)).collect();
    let mut this_run = run();
    let master = case["workerlog.0"][0]["env"].get("PADDLE_MASTER").and_then(Value::as_str);
    this_run.store = master.map(|master| master.parse().unwrap());
    let made = cluster(line, &base, free).unwrap().processes(&this_run, &base);
    let logs = case["files"].as_array().unwrap().iter().map(|file| file.as_str().unwrap());
    let mut logs: Vec<&str> = logs.filter(|file| *file != "endpoints.log").collect();
    logs.sort_unstable();
    let mut mine: Vec<&str> = made.iter().map(|process| process.log.as_str()).collect();
    mine.sort_unstable();
    assert_eq!(mine, logs, "{name}");
    for process in &made {
        let mut env: BTreeMap<String, String> =
            base.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        for (key, value) in &process.env {
            match value {
                Some(value) => env.insert((*key).to_string(), value.clone()),
                None => env.remove(*key),
            };
        }
        let want = case[&process.log][0]["env"].as_object().unwrap();
        for (key, value) in want.iter().filter(|(key, _)| !NEVER.contains(&key.as_str())) {
            let mut mine =
                env.remove(key).unwrap_or_else(|| panic!("{name} {}: no {key}", process.log));
            if key == "POD_NAME" {
                mine = value.as_str().unwrap().to_string();
            }
            assert_eq!(mine, value.as_str().unwrap(), "{name} {}: {key}", process.log);
        }
        for key in env.keys() {
            assert!(BESIDES.contains(&key.as_str()), "{name} {}: {key} is new", process.log);
        }
    }
}

#[test]
fn recorded_launches() {
    let own = "train.py";
    check("launch/both", &format!("--server_num=1 --worker_num=1 {own}"), Some("17870"), 0);
    check("launch/coll_fail", "--nproc_per_node=2 train.py --fail --sleep", Some("17670"), 0);
    check("launch/coll_nproc", "--nproc_per_node 2 train.py a b", Some("17570"), 0);
    let heter = "--server_num 1 --worker_num 1 --heter_worker_num 1 --heter_devices cpu train.py";
    check("launch/ps_heter", heter, Some("17770"), 0);
    let lists =
        "--servers=127.0.0.1:17371,127.0.0.1:17372 --workers=127.0.0.1:17373,127.0.0.1:17374 t.py";
    check("launch/ps_list", lists, Some("17270"), 0);
    check("launch/ps_num", "--server_num 2 --worker_num 2 train.py --foo bar", Some("17170"), 0);
    let no_port = "--servers=127.0.0.1:17471 --workers=127.0.0.1,127.0.0.1 train.py";
    check("launch/ps_workers_noport", no_port, Some("17470"), 0);
    check("launch_new/coll", "--nproc_per_node 2 train.py a b", None, 52225);
    check("launch_new/fail", "--nproc_per_node 2 --master 127.0.0.1:38625 t.py", None, 38626);
    check("launch_new/ps", "--server_num 2 --trainer_num 2 --with_gloo 1 train.py", None, 50470);
}

#[test]
fn fixed_endpoints_of_several_hosts_are_the_documents() {
    let env = Env::from([("FLAGS_START_PORT", "6070")]);
    let made = cluster("--ips=10.0.0.1,10.0.0.2 --nproc_per_node=2 t.py", &env, 0).unwrap();
    assert_eq!((made.node, made.node_count), (1, 2));
    assert!(made.has_fixed_ports);
    let sorted = cluster("--ips=10.0.0.10,10.0.0.9 --sort_ip --rank 1 t.py", &env, 0).unwrap();
    assert_eq!(sorted.workers[1].endpoint.to_string(), "10.0.0.10:6070");
    assert_eq!(sorted.node, 1);
    let made = made.processes(&run(), &env);
    let all = "10.0.0.1:6070,10.0.0.1:6071,10.0.0.2:6070,10.0.0.2:6071";
    assert_eq!(made.len(), 2);
    assert_eq!(made[0].variable("PADDLE_TRAINER_ENDPOINTS"), Some(all));
    assert_eq!(made[0].variable("PADDLE_TRAINER_ID"), Some("2"));
    assert_eq!(made[1].variable("PADDLE_RANK_IN_NODE"), Some("1"));
    assert_eq!(made[1].variable("PADDLE_CURRENT_ENDPOINT"), Some("10.0.0.2:6071"));
}

#[test]
fn of_several_hosts_each_has_ports_of_its_system() {
    let endpoints = |line: &str, env: &Env| -> Vec<String> {
        let made = cluster(line, env, 50000).unwrap_or_else(|error| panic!("{line}: {error}"));
        made.places().map(|place| place.endpoint.to_string()).collect()
    };
    let none = Env::new();
    let hosts = "--ips=10.0.0.1,10.0.0.2 --nproc_per_node=2 t.py";
    let own = ["10.0.0.1:0", "10.0.0.1:0", "10.0.0.2:50000", "10.0.0.2:50001"];
    assert_eq!(endpoints(hosts, &none), own);
    let cloud = Env::from([
        ("PADDLE_TRAINERS", "10.0.0.1,10.0.0.2"),
        ("POD_IP", "10.0.0.2"),
        ("PADDLE_TRAINER_ID", "1"),
    ]);
    assert_eq!(endpoints("--nproc_per_node=2 t.py", &cloud), own);
    let lists = "--servers 10.0.0.1:7000,10.0.0.2 --workers 10.0.0.2,10.0.0.1 t.py";
    let own = ["10.0.0.1:7000", "10.0.0.2:50000", "10.0.0.2:50001", "10.0.0.1:0"];
    assert_eq!(endpoints(lists, &none), own);
    // The documented default ports, if fixed ones are requested.
    let start = Env::from([("FLAGS_START_PORT", "7000")]);
    let fixed = ["10.0.0.1:7000", "10.0.0.2:6171", "10.0.0.2:6172", "10.0.0.1:6173"];
    assert_eq!(endpoints(lists, &start), fixed);
    // The barrier service is on the first machine, and only that machine knows its port.
    let gloo = |line: &str| cluster(line, &none, 50000).unwrap().gloo_http.unwrap().to_string();
    assert_eq!(gloo("--ips=10.0.0.1,10.0.0.2 --with_gloo 1 t.py"), "10.0.0.1:0");
    assert_eq!(gloo("--ips=10.0.0.2,10.0.0.1 --with_gloo 1 t.py"), "10.0.0.2:50001");
}

#[test]
fn gpus_are_shared_out() {
    let mut here = machine();
    here.gpu_count = 4;
    let devices = |line: &str, env: &Env| {
        let made = cluster_on(line, env, 1000, &here)?;
        Ok::<_, fleet_base::Error>(
            made.workers.into_iter().map(|it| it.devices.join("+")).collect::<Vec<_>>(),
        )
    };
    let none = Env::new();
    let hidden = Env::from([("CUDA_VISIBLE_DEVICES", "4,5,6")]);
    assert_eq!(devices("t.py", &none).unwrap(), ["0", "1", "2", "3"]);
    assert_eq!(devices("--gpus 0,2 t.py", &none).unwrap(), ["0", "2"]);
    assert_eq!(devices("--selected_gpus=1 t.py", &none).unwrap(), ["1"]);
    assert_eq!(devices("--nproc_per_node 2 t.py", &none).unwrap(), ["0+1", "2+3"]);
    assert_eq!(devices("--backend gloo --nproc_per_node 3 t.py", &none).unwrap(), ["", "", ""]);
    assert_eq!(devices("--gpus 5,6 t.py", &hidden).unwrap(), ["1", "2"]);
    let wrong = |line: &str, env: &Env| devices(line, env).unwrap_err().to_string();
    assert!(wrong("--gpus 0 t.py", &hidden).contains("hides"));
    assert!(wrong("--gpus 4 t.py", &none).contains("numbers from 0 to 3"));
    assert!(wrong("--nproc_per_node 3 t.py", &none).contains("a multiple of 3"));
    let made = cluster_on("--gpus 0,1 t.py", &none, 1000, &here).unwrap();
    let made = made.processes(&run(), &none);
    assert_eq!(made[1].variable("FLAGS_selected_gpus"), Some("1"));
    assert_eq!(made[1].variable("PADDLE_WORLD_DEVICE_IDS"), Some("0,1"));
    assert_eq!(made[1].variable("PADDLE_DISTRI_BACKEND"), Some("nccl"));
}

/// The documented command lines name GPUs. On a machine without any, the same workers run on the
/// CPU.
#[test]
fn gpus_of_a_machine_without_any() {
    let (here, none) = (machine(), Env::new());
    let check = |line: &str, workers: usize, warning: &str| {
        let made = cluster(line, &none, 1000).unwrap_or_else(|error| panic!("{line}: {error}"));
        assert_eq!(made.workers.len(), workers, "{line}");
        assert!(made.places().all(|place| place.devices.is_empty()), "{line}");
        let told = device_warnings(&options(line, &none).unwrap(), &none, &here);
        assert_eq!(told.join("; "), warning, "{line}");
        made.processes(&run(), &none)
    };
    let two = "this machine has no GPU: the workers of --gpus 0,1 run on the CPU";
    let made = check("--gpus=0,1 t.py", 2, two);
    assert_eq!(made[1].variable("FLAGS_selected_gpus"), None);
    assert_eq!(made[1].variable("PADDLE_DISTRI_BACKEND"), Some("gloo"));
    check("--selected_gpus=0,1 t.py", 2, two);
    check("--gpus 0,1 --nproc_per_node 4 t.py", 4, two);
    check("t.py", 1, "");
    let servers = "--gpus 2 --server_num 1 --worker_num 1 t.py";
    let made = check(servers, 1, "this machine has no GPU: --gpus 2 has no effect");
    assert_eq!(made[1].variable("CUDA_VISIBLE_DEVICES"), Some("0"), "as without --gpus");
    let mut gpus = machine();
    gpus.gpu_count = 2;
    let told = device_warnings(&options("--gpus 0,1 t.py", &none).unwrap(), &none, &gpus);
    assert!(told.is_empty(), "{told:?}");
}

/// Flags and the variables that stand for them have one default.
#[test]
fn flags_have_the_defaults_of_the_list() {
    let given = Given::parse(words("t.py")).unwrap();
    let default = |name: &str| names::find(name).unwrap().default;
    for (flag, name) in [
        ("silence_timeout", names::FLEET_SILENCE_TIMEOUT),
        ("elastic_timeout", names::PADDLE_ELASTIC_TIMEOUT),
    ] {
        assert_eq!(given.text(flag), Some(default(name)), "--{flag}");
    }
    let options = options("t.py", &Env::new()).unwrap();
    assert_eq!(options.with_gloo, default(names::PADDLE_WITH_GLOO));
}

/// `--backend` decides whether collectives use NCCL, which needs GPUs.
#[test]
fn the_backend_that_was_asked_for() {
    let none = Env::new();
    let mut gpus = machine();
    gpus.gpu_count = 2;
    let check = |line: &str, here: &Machine, nccl: Option<&str>, shown: &str, warning: &str| {
        let made = cluster_on(line, &none, 1000, here).unwrap().processes(&run(), &none);
        let worker = made.iter().find(|process| process.role == Role::Worker).unwrap();
        assert_eq!(worker.variable("FLEET_NCCL"), nccl, "{line}");
        assert_eq!(worker.variable("PADDLE_DISTRI_BACKEND").unwrap_or_default(), shown, "{line}");
        let told = device_warnings(&options(line, &none).unwrap(), &none, here);
        assert_eq!(told.is_empty(), warning.is_empty(), "{line}: {told:?}");
        assert!(told.join("; ").contains(warning), "{line}: {told:?}");
    };
    check("--backend nccl t.py", &gpus, Some("1"), "nccl", "");
    check("--backend gloo t.py", &gpus, Some("0"), "gloo", "");
    check("--backend auto t.py", &gpus, None, "nccl", "");
    check("t.py", &machine(), None, "gloo", "");
    let useless = "--backend nccl has no effect";
    check("--backend nccl t.py", &machine(), Some("0"), "gloo", useless);
    check("--backend nccl --nproc_per_node cpu t.py", &gpus, Some("0"), "gloo", useless);
    let servers = "--backend nccl --server_num 1 --worker_num 1 t.py";
    check(servers, &gpus, None, "", "no effect on a job with servers");
}

#[test]
fn a_cluster_that_says_hosts_and_endpoints_is_followed() {
    let env = Env::from([
        ("PADDLE_TRAINERS", "10.1.0.1,10.1.0.2"),
        ("POD_IP", "10.1.0.2"),
        ("PADDLE_TRAINER_ID", "1"),
        ("TRAINER_PORTS_NUM", "2"),
        ("DISTRIBUTED_TRAINER_ENDPOINTS", "10.1.0.1:1,10.1.0.1:2,10.1.0.2:3,10.1.0.2:4"),
    ]);
    let made = processes("--nproc_per_node=2 t.py", &env, 0);
    assert_eq!(made[0].variable("PADDLE_CURRENT_ENDPOINT"), Some("10.1.0.2:3"));
    assert_eq!(made[1].variable("PADDLE_TRAINER_ID"), Some("3"));
    let error = cluster("--nproc_per_node=3 t.py", &env, 0).unwrap_err().to_string();
    assert!(error.contains("too few endpoints"), "{error}");
}

#[test]
fn every_environment_makes_a_topology() {
    let lines = [
        "--nproc_per_node 3 t.py",
        "--nproc_per_node 2 --with_gloo 2 t.py",
        "--server_num 2 --worker_num 3 t.py",
        "--server_num 1 --worker_num 2 --heter_worker_num 2;1 --heter_devices cpu;cpu t.py",
        "--server_num 1 --worker_num 1 --coordinator_num 1 t.py",
    ];
    for line in lines {
        for process in processes(line, &Env::new(), 7000) {
            let set = process.env.iter().filter_map(|(k, v)| Some((*k, v.clone()?)));
            let env: Env = set.collect();
            let made = match env.get(names::TRAINING_ROLE) {
                Some(_) => Topology::parameter_server(&env),
                None => Topology::collective(&env),
            };
            let made = made.unwrap_or_else(|error| panic!("{line}: {}: {error}", process.name()));
            assert_eq!(made.role(), process.role, "{line}");
            let before = if made.is_heter_worker() { made.worker_num() } else { 0 };
            assert_eq!(made.rank(), before + process.rank, "{line}");
            assert_eq!(made.job().store.as_ref().unwrap().port, 52224);
        }
    }
}

#[test]
fn an_outer_environment_does_not_shine_through() {
    let env = Env::from([("TRAINING_ROLE", "PSERVER"), ("http_proxy", "http://proxy")]);
    let made = processes("t.py", &env, 7000);
    for name in ["TRAINING_ROLE", "http_proxy", "https_proxy", "PADDLE_PORT"] {
        let last = made[0].env.iter().rev().find(|(known, _)| *known == name).unwrap();
        assert_eq!(last.1, None, "{name}");
    }
}
