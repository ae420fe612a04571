//! Roles given in code, and jobs that need no secret.

use fleet_topology::{Endpoint, Env, Job, Role, Secret, Topology, UserDefinedRoleMaker};

const TOKEN: &str = "0123456789abcdef";

fn endpoints(list: &str) -> Vec<Endpoint> {
    Endpoint::list("endpoints", list).unwrap()
}

fn worker(rank: usize, workers: &str) -> UserDefinedRoleMaker {
    UserDefinedRoleMaker {
        is_collective: true,
        current_id: rank,
        worker_endpoints: endpoints(workers),
        ..UserDefinedRoleMaker::default()
    }
}

#[test]
fn code_gives_what_the_environment_gives() {
    let token = Secret::new(TOKEN).unwrap();
    let roles = worker(2, "a:1,b:1,a:2").token(token.clone()).store(Endpoint::new("a", 9));
    let coded = roles.topology().unwrap();
    let env = Env::from([
        ("PADDLE_TRAINER_ID", "2"),
        ("PADDLE_TRAINERS_NUM", "3"),
        ("PADDLE_TRAINER_ENDPOINTS", "a:1,b:1,a:2"),
        ("FLEET_TOKEN", TOKEN),
        ("FLEET_STORE", "a:9"),
    ]);
    assert_eq!(coded, Topology::collective(&env).unwrap());
    assert_eq!((coded.local().rank, coded.job().token.as_ref()), (1, Some(&token)));

    let server = UserDefinedRoleMaker {
        current_id: 1,
        role: Role::Server,
        worker_endpoints: endpoints("a:1,b:1"),
        server_endpoints: endpoints("a:3,b:3"),
        ..UserDefinedRoleMaker::default()
    };
    let env = Env::from([
        ("PADDLE_PSERVERS_IP_PORT_LIST", "a:3,b:3"),
        ("PADDLE_TRAINER_ENDPOINTS", "a:1,b:1"),
        ("PADDLE_TRAINERS_NUM", "2"),
        ("TRAINING_ROLE", "PSERVER"),
        ("POD_IP", "b"),
        ("PADDLE_PORT", "3"),
        ("FLEET_TOKEN", TOKEN),
    ]);
    let coded = server.token(token).topology().unwrap();
    assert_eq!(coded, Topology::parameter_server(&env).unwrap());
}

#[test]
fn the_environment_fills_in_what_code_leaves_open() {
    let env = Env::from([
        ("FLEET_TOKEN", "a-secret-of-the-environment"),
        ("FLEET_STORE", "b:9"),
        ("FLEET_SILENCE_TIMEOUT", "7"),
        ("FLAGS_selected_gpus", "3"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
    ]);
    let roles = worker(0, "a:1,b:1").token(Secret::new(TOKEN).unwrap());
    let made = roles.topology_in(&env).unwrap();
    let job = made.job();
    assert_eq!(job.token, Some(Secret::new(TOKEN).unwrap()));
    assert_eq!((job.store.as_ref().unwrap().port, job.silence.unwrap().as_secs()), (9, 7));
    assert_eq!((made.local().devices[0].as_str(), job.mpi_ranks), ("3", None));
}

/// The documented variable selects NCCL, unless `fleetrun` has set it to the kind of device.
#[test]
fn the_documented_backend() {
    let uses_nccl = |pairs: &[(&str, &str)]| {
        let env: Env = pairs.iter().copied().collect();
        Topology::collective(&env).map(|made| made.job().nccl)
    };
    let nccl = ("PADDLE_DISTRI_BACKEND", "nccl");
    assert!(uses_nccl(&[nccl]).unwrap());
    assert!(!uses_nccl(&[("PADDLE_DISTRI_BACKEND", "gloo")]).unwrap());
    assert!(!uses_nccl(&[nccl, ("FLEET_NCCL", "0")]).unwrap());
    assert!(!uses_nccl(&[nccl, ("FLEET_LAUNCH", "mark")]).unwrap());
    assert!(uses_nccl(&[nccl, ("FLEET_LAUNCH", "mark"), ("FLEET_NCCL", "1")]).unwrap());
    let error = uses_nccl(&[("PADDLE_DISTRI_BACKEND", "bkcl")]).unwrap_err().to_string();
    assert!(error.contains("expected gloo or nccl, got bkcl"), "{error}");
}

/// Only a job that asks for it is open, and only on addresses that no other machine reaches.
#[test]
fn open_jobs() {
    let open = |workers: &str| worker(0, workers).open().topology();
    for loopback in ["127.0.0.1:1,127.0.0.2:1", "localhost:1,localhost:2", "[::1]:1,[::1]:2"] {
        let made = open(loopback).unwrap();
        assert!(made.job().open && made.job().token.is_some(), "{loopback}");
        let error = worker(0, loopback).open().store(Endpoint::new("10.0.0.1", 9)).topology();
        let error = error.unwrap_err().to_string();
        assert!(error.contains("got 10.0.0.1:9") && error.contains("FLEET_TOKEN"), "{error}");
    }
    let error = open("127.0.0.1:1,10.0.0.2:1").unwrap_err().to_string();
    assert!(error.contains("got 10.0.0.2:1") && error.contains("openssl"), "{error}");
    // A secret is stronger: the job is not open, and its addresses are free.
    let secret = worker(0, "10.0.0.1:1,10.0.0.2:1").token(Secret::new(TOKEN).unwrap());
    let made = secret.open().topology().unwrap();
    assert_eq!((made.job().open, made.job().token.clone()), (false, Secret::new(TOKEN).ok()));
    // All processes of a machine know the same text, whatever the job.
    let public = |made: Topology| made.job().token.clone().unwrap();
    assert_eq!(public(open("127.0.0.1:1").unwrap()), public(open("[::1]:7").unwrap()));
    let text = "open-to-every-process-of-this-machine";
    assert_eq!(public(open("127.0.0.1:1").unwrap()).reveal(), text, "as docs/security.md has it");
    assert!(worker(0, "127.0.0.1:1,127.0.0.1:2").topology().unwrap().job().token.is_none());
}

#[test]
fn open_environments() {
    let pair = |workers: &str, open: &str| {
        Topology::collective(&Env::from([
            ("PADDLE_TRAINER_ID", "1"),
            ("PADDLE_TRAINERS_NUM", "2"),
            ("PADDLE_TRAINER_ENDPOINTS", workers),
            ("FLEET_OPEN", open),
        ]))
    };
    let made = pair("127.0.0.1:1,127.0.0.1:2", "loopback").unwrap();
    assert!(made.job().open);
    let closed = pair("127.0.0.1:1,127.0.0.1:2", "").unwrap();
    assert_eq!(*closed.job(), Job::default());
    let check = |made: fleet_base::Result<Topology>, words: &str| {
        let error = made.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    check(pair("127.0.0.1:1,127.0.0.1:2", "1"), "invalid FLEET_OPEN: expected loopback, got 1");
    check(pair("10.0.0.1:1,10.0.0.2:1", "loopback"), "at FLEET_OPEN");
    let mut env = Env::from([
        ("PADDLE_PSERVERS_IP_PORT_LIST", "127.0.0.1:3,192.168.0.7:3"),
        ("PADDLE_TRAINERS_NUM", "1"),
        ("TRAINING_ROLE", "TRAINER"),
        ("PADDLE_TRAINER_ID", "0"),
        ("PADDLE_PORT", "4"),
        ("FLEET_OPEN", "loopback"),
    ]);
    check(Topology::parameter_server(&env), "got 192.168.0.7:3");
    env.set("PADDLE_PSERVERS_IP_PORT_LIST", "127.0.0.1:3");
    assert!(Topology::parameter_server(&env).unwrap().job().open);
    env.set("POD_IP", "192.168.0.7");
    check(Topology::parameter_server(&env), "got 192.168.0.7:4");
}
