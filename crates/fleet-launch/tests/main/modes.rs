//! The mode of a job, and command lines that are refused.

use crate::{cluster, options, words};
use fleet_launch::Builtins;
use fleet_launch::flags::{Given, unknown_flag};
use fleet_launch::options::{ElasticLevel, Mode, Options};
use fleet_launch::script::Program;
use fleet_topology::Env;
use std::path::Path;

#[test]
fn flags_decide_the_mode() {
    let mode = |line: &str| {
        let options = options(line, &Env::new()).unwrap();
        (options.mode, options.is_mode_default)
    };
    assert_eq!(mode("t.py"), (Mode::Collective, true));
    assert_eq!(mode("--ips=127.0.0.1 t.py"), (Mode::Collective, false));
    assert_eq!(mode("--gpus=0 --server_num=1 --worker_num=1 t.py"), (Mode::Ps, false));
    assert_eq!(mode("--servers=a:1 --workers=a:2 t.py"), (Mode::Ps, false));
    assert_eq!(mode("--server_num=1 --worker_num=1 --heter_worker_num=1 t.py").0, Mode::PsHeter);
    assert_eq!(mode("--run_mode=ps --server_num=1 --worker_num=1 t.py").0, Mode::Ps);
    // Flags after the script belong to the script.
    assert_eq!(mode("t.py --server_num=1 --ips=x"), (Mode::Collective, true));
}

#[test]
fn names_and_spellings() {
    let given = |line: &str| Given::parse(words(line)).unwrap();
    for line in ["--gpus 0,1 t", "--gpus=0,1 t", "--selected_gpus 0,1 t", "--devices=0,1 t"] {
        assert_eq!(given(line).text("gpus"), Some("0,1"), "{line}");
    }
    for line in
        ["--nproc_per_node 4 t", "--nproc-per-node=4 t", "--nproc_per_node 2 --nproc_per_node 4 t"]
    {
        assert_eq!(given(line).text("nproc_per_node"), Some("4"), "{line}");
    }
    for (line, name) in [
        ("--rdzv-endpoint a:1 t", "master"),
        ("--node-rank 1 t", "rank"),
        ("--max-restarts 1 t", "max_restart"),
        ("--shutdown-timeout 3 t", "stop_timeout"),
        ("--log-dir x t", "log_dir"),
        ("--np 2 t", "nnodes"),
        ("--trainers a:1 t", "workers"),
        ("--gloo_port 6767 t", "http_port"),
    ] {
        assert!(given(line).is_given(name), "{line}");
    }
    assert_eq!(given("--gpus 0 t.py --gpus 1 -v -- x").command(), words("t.py --gpus 1 -v -- x"));
    assert!(!given("t.py").is_given("ips") && !given("--servers= t.py").is_given("servers"));
}

/// With `--compat`, a script is started by the Python module that makes `import paddle` work.
#[test]
fn compat_starts_scripts_through_the_package() {
    let script = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compat.py");
    std::fs::write(&script, "").unwrap();
    let script = script.display();
    let builtins = Builtins {
        argument: "__demo",
        prefix: "demo:",
        names: &["lenet"],
        not_on_servers: &[],
        files: None,
    };
    let argv = |line: &str| {
        let options = options(line, &Env::new())?;
        let own = Path::new("fleetrun");
        Program::resolve(&options, &Env::new(), &builtins, own).map(|program| program.argv)
    };
    let compat = "--python /bin/sh --compat=paddle";
    assert_eq!(
        argv(&format!("{compat} {script} --lr 1")).unwrap(),
        words(&format!("/bin/sh -u -m fleet.compat {script} --lr 1"))
    );
    assert_eq!(
        argv(&format!("{compat} --module train")).unwrap(),
        words("/bin/sh -u -m fleet.compat -m train")
    );
    for not_python in ["/bin/sh", "demo:lenet"] {
        let error = argv(&format!("{compat} {not_python}")).unwrap_err().to_string();
        assert!(error.contains("--compat needs a Python script"), "{error}");
        assert!(error.contains(not_python), "{error}");
    }
}

#[test]
fn wrong_command_lines_say_what_to_do() {
    let check = |line: &str, parts: &[&str]| {
        let error = match Given::parse(words(line)) {
            Err(error) => match unknown_flag(&error) {
                Some(unknown) => unknown.to_string(),
                None => error.to_string(),
            },
            Ok(given) => match Options::new(&given, &Env::new()) {
                Err(error) => error.to_string(),
                Ok(_) => cluster(line, &Env::new(), 7000).expect_err(line).to_string(),
            },
        };
        for part in parts {
            assert!(error.contains(part), "{line}: '{part}' is not in: {error}");
        }
    };
    check("--gpuss 0 t.py", &["no flag --gpuss; did you mean '--gpus'?", "behind it"]);
    check("--nproc-per-nod 2 t.py", &["no flag --nproc-per-nod; did you mean '--nproc_per_node'?"]);
    check("-x t.py", &["no flag -x", "--help"]);
    check("--tee 3 t.py", &["--tee is not there", "--follow all"]);
    check("-t 3 t.py", &["--tee is not there", "--follow all"]);
    check("--nproc 2 t.py", &["no flag --nproc; did you mean '--nproc_per_node'?"]);
    check("--no-python ./t", &["--no_python is not there", "fleetrun ./program"]);
    check("--standalone --nnodes 2 --master a:1 t.py", &["--standalone is one machine"]);
    check("--master a:0 --nnodes 2 --rank 1 t.py", &["port 0", "--master"]);
    check("--master a --nnodes 2 t.py", &["HOST:PORT", "--master 10.0.0.1:7000"]);
    check("--start_port 99999 t.py", &["a port, 0 to 65535", "'99999'"]);
    check("--nproc_per_node gpu t.py", &["no GPU", "--nproc_per_node cpu"]);
    check(
        "--server_num=1 --worker_num=1 --ips=127.0.0.1 t.py",
        &[
            "Only one mode(Collective or Parameter-Server) can be selected at the same time, but \
             more than one configuration was received.",
            "--server_num --worker_num --ips",
        ],
    );
    check("--run_mode collective --server_num 1 t.py", &["Only one mode"]);
    check("--server_num 1 t.py", &["needs servers and workers", "1 server, 0 workers"]);
    check("--server_num 1 --servers a:1 --worker_num 1 t.py", &["--server_num and --servers"]);
    check("--nproc_per_node 0 t.py", &["1 to 4096"]);
    check("--compat torch t.py", &["--compat is not understood", "expected paddle"]);
    check("--nproc_per_node two t.py", &["--nproc_per_node is not understood", "'two'"]);
    check("--nnodes 2 t.py", &["need a place to meet", "--master HOST:PORT"]);
    check("--nnodes 3 --ips a,b t.py", &["--nnodes and --ips do not agree", "expected 2"]);
    check("--rank 2 --ips a,b t.py", &["--rank is too high", "below 2"]);
    check("--rank 1 t.py", &["--rank is too high", "below 1"]);
    check("--nnodes 4:2 --master a:1 t.py", &["MIN:MAX"]);
    check("--master b:1 --ips a,b t.py", &["not at the first of --ips", "expected a:PORT"]);
    check("--master b:1 --elastic_server a:1 --nnodes 2 t.py", &["--elastic_server and --master"]);
    check("--ips a,b --elastic_server a:1 t.py", &["--elastic_server and --ips"]);
    check("--elastic_server https://a:1 --nnodes 2 t.py", &["--etcd_ca is missing"]);
    check("--elastic_server a --nnodes 2 t.py", &["HOST:PORT", "--elastic_server 10.0.0.1:2379"]);
    check("--etcd_user ann t.py", &["--etcd_user needs an etcd", "--elastic_server"]);
    check("--rdzv_backend etcd --nnodes 2 t.py", &["needs an etcd"]);
    check("--rdzv_backend zookeeper t.py", &["c10d or static", "zookeeper"]);
    check(
        "--ips 10.9.9.9,10.9.9.8 t.py",
        &["this machine is not in the list", "10.0.0.2", "--host"],
    );
    check("--ips 10.0.0.2,10.0.0.2 t.py", &["stands twice"]);
    check("--ips 127.0.0.1,10.0.0.2 t.py", &["several of the listed hosts", "--host"]);
    check("--ips 10.0.0.2 --host 10.0.0.7 t.py", &["--host is not in the list"]);
    check("--servers a: --workers b t.py", &["expected HOST:PORT", "--servers"]);
    check("--server_num 1 --workers a,b t.py", &["--server_num does not say on which machine"]);
    check("--servers 127.0.0.1:1 --workers 127.0.0.1:1 t.py", &["stands twice in the lists"]);
    check(
        "--server_num 1 --worker_num 1 --heter_worker_num 1 --heter_devices a;b t.py",
        &["1 kinds"],
    );
    check("--gpus 0,first t.py", &["--gpus names a GPU", "'first'"]);
    check("--follow some t.py", &["0, all or none"]);
    check("--token_file /no/such/file t.py", &["cannot read /no/such/file"]);
    check("--job_id a/b t.py", &["--job_id is not usable"]);
    check("--stop_timeout -1 t.py", &["--stop_timeout is not understood"]);
    check("", &["nothing to start", "demo:wide_deep"]);
}

#[test]
fn an_etcd_has_many_names() {
    let at = |line: &str| options(line, &Env::new()).unwrap().etcd.map(|it| it.to_string());
    for line in [
        "--elastic_server a:1 --np 1:2 t.py",
        "--elastic_server=http://a:1/ --nnodes 1:2 t.py",
        "--master etcd://a:1 --nnodes 1:2 t.py",
        "--rdzv-backend etcd --rdzv-endpoint a:1 --nnodes 1:2 t.py",
    ] {
        assert_eq!(at(line).as_deref(), Some("a:1"), "{line}");
    }
    let env = Env::from([("PADDLE_ELASTIC_SERVER", "a:1"), ("PADDLE_ELASTIC_NP", "2")]);
    assert_eq!(options("t.py", &env).unwrap().etcd.unwrap().to_string(), "a:1");
    assert_eq!(at("--rdzv-backend c10d --rdzv-endpoint a:1 --nnodes 2 t.py"), None);
}

#[test]
fn workers_for_each_core() {
    let count = |line: &str| cluster(line, &Env::new(), 7000).unwrap().workers.len();
    assert_eq!(count("--nproc_per_node cpu t.py"), 6);
    assert_eq!(count("--nproc-per-node auto --standalone t.py"), 6);
    assert_eq!(count("t.py"), 1);
    // Port 0 means free ports, like no port at all.
    let free = options("--start_port 0 --http_port 0 t.py", &Env::new()).unwrap();
    assert_eq!((free.start_port, free.http_port), (None, None));
}

#[test]
fn elasticity_follows_from_the_number_of_machines() {
    let level = |line: &str| options(line, &Env::new()).unwrap().elastic_level;
    assert_eq!(level("t.py"), ElasticLevel::Off);
    assert_eq!(level("--master a:1 --nnodes 2 t.py"), ElasticLevel::Off);
    assert_eq!(level("--master a:1 --nnodes 2:4 t.py"), ElasticLevel::Range);
    assert_eq!(level("--master a:1 --nnodes 2:4 --elastic_level=-1 t.py"), ElasticLevel::Range);
    assert_eq!(level("--master a:1 --nnodes 2 --elastic_level 1 t.py"), ElasticLevel::Same);
}

#[test]
fn variables_count_as_flags_but_not_within_a_job() {
    let mut env = Env::from([("PADDLE_MASTER", "a:1"), ("PADDLE_NNODES", "2")]);
    let outside = options("t.py", &env).unwrap();
    assert_eq!(outside.master.unwrap().port, 1);
    assert_eq!(outside.nodes.unwrap().max, 2);
    env.set("PADDLE_NNODES", "");
    assert!(options("--ips a,b t.py", &env).unwrap().master.is_none());
    env.set("PADDLE_NNODES", "2");
    env.set("FLEET_LAUNCH", "mark");
    let inside = options("t.py", &env).unwrap();
    assert!(inside.master.is_none() && inside.nodes.is_none());
}
