//! Tests the role maker of the environment against recorded runs of the original.

use fleet_topology::{Endpoint, Env, GlooMembers, Mode, Rendezvous, Role, Topology};
use serde_json::Value;

fn strings(value: &Value) -> Vec<String> {
    // The original prints "no servers" as an empty text.
    let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().map(|item| item.as_str().unwrap().to_string()).collect()
}

fn shown(endpoints: &[Endpoint]) -> Vec<String> {
    endpoints.iter().map(Endpoint::to_string).collect()
}

#[test]
fn recorded_runs() {
    let vectors: Value = serde_json::from_str(include_str!("vectors/role_maker.json")).unwrap();
    let cases = vectors.as_object().unwrap();
    assert!(cases.len() >= 11);
    for (name, case) in cases {
        let pairs = case["env"].as_object().unwrap().iter();
        let env: Env = pairs.map(|(k, v)| (k.clone(), v.as_str().unwrap())).collect();
        let made = match name.starts_with("coll") {
            true => Topology::collective(&env),
            false => Topology::parameter_server(&env),
        };
        let want = &case["result"];
        if let Some(error) = want.get("error") {
            // The original names a variable or an endpoint in a sentence of its own.
            let mut words = error[1].as_str().unwrap().split(' ');
            let named = words.find(|word| word.contains(['_', ':'])).unwrap();
            let message = made.unwrap_err().to_string();
            assert!(message.contains(named.trim_matches([',', '\''])), "{name}: {message}");
            continue;
        }
        let made = made.unwrap_or_else(|error| panic!("{name}: {error}"));
        let flag = |key: &str| want[key].as_bool().unwrap();
        let number = |key: &str| want[key].as_u64().unwrap() as usize;
        assert_eq!(made.is_worker(), flag("_is_worker"), "{name}");
        assert_eq!(made.is_server(), flag("_is_server"), "{name}");
        assert_eq!(made.is_first_worker(), flag("_is_first_worker"), "{name}");
        assert_eq!(made.is_non_distributed(), flag("_is_non_distributed"), "{name}");
        assert_eq!(made.worker_index(), number("_worker_index"), "{name}");
        assert_eq!(made.server_index(), number("_server_index"), "{name}");
        assert_eq!(made.rank(), number("_role_id"), "{name}");
        assert_eq!(made.worker_num(), number("_worker_num"), "{name}");
        assert_eq!(made.server_num(), number("_server_num"), "{name}");
        assert_eq!(made.node_num(), number("_node_num"), "{name}");
        assert_eq!(
            shown(made.worker_endpoints()),
            strings(&want["_get_trainer_endpoints"]),
            "{name}"
        );
        assert_eq!(
            shown(made.server_endpoints()),
            strings(&want["_get_pserver_endpoints"]),
            "{name}"
        );
    }
}

const HETER: [(&str, &str); 14] = [
    ("PADDLE_PSERVERS_IP_PORT_LIST", "127.0.0.1:17770"),
    ("PADDLE_TRAINER_ENDPOINTS", "127.0.0.1:17771"),
    ("PADDLE_TRAINERS_NUM", "1"),
    ("PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST", "127.0.0.1:17772"),
    ("PADDLE_NEXT_HETER_TRAINER_IP_PORT_LIST", ""),
    ("PADDLE_PREVIOUS_HETER_TRAINER_IP_PORT_LIST", "127.0.0.1:17771"),
    ("PADDLE_STAGE_TRAINERS_NUM", "[1, 1]"),
    ("STAGE_ID", "2"),
    ("STAGE_NUM", "2"),
    ("HETER_DEVICE_TYPE", "cpu"),
    ("TRAINING_ROLE", "HETER_TRAINER"),
    ("POD_IP", "127.0.0.1"),
    ("PADDLE_PORT", "17772"),
    ("PADDLE_GLOO_RENDEZVOUS", "3"),
];

#[test]
fn a_heterogeneous_worker_counts_on_from_the_workers() {
    let made = Topology::parameter_server(&Env::from(HETER)).unwrap();
    assert_eq!(
        (made.mode(), made.role(), made.rank()),
        (Mode::ParameterServer, Role::HeterWorker, 1)
    );
    let stage = made.heter().unwrap();
    assert_eq!((stage.id, stage.count, stage.trainers.as_slice()), (2, 2, &[1, 1][..]));
    assert_eq!(shown(&stage.previous), ["127.0.0.1:17771"]);
    assert!(stage.next.is_empty());
}

#[test]
fn what_cannot_be_is_refused() {
    let check = |base: &[(&str, &str)], changed: (&str, &str), words: &str| {
        let mut env: Env = base.iter().copied().collect();
        env.set(changed.0, changed.1);
        let made = match env.get("PADDLE_PSERVERS_IP_PORT_LIST") {
            Some(_) => Topology::parameter_server(&env),
            None => Topology::collective(&env),
        };
        let error = made.expect_err(words).to_string();
        assert!(error.contains(words), "{changed:?}: {error}");
    };
    let pair = [
        ("PADDLE_TRAINER_ID", "0"),
        ("PADDLE_TRAINERS_NUM", "2"),
        ("PADDLE_TRAINER_ENDPOINTS", "a:1,b:2"),
    ];
    check(&pair, ("PADDLE_TRAINER_ID", "2"), "expected 0 to 1, got 2");
    check(&pair, ("PADDLE_TRAINER_ID", "-1"), "expected a number in range, got '-1'");
    check(&pair, ("PADDLE_TRAINER_ID", ""), "missing environment variable PADDLE_TRAINER_ID");
    check(&pair, ("PADDLE_TRAINERS_NUM", "3"), "expected 3 endpoints, got 2");
    check(&pair, ("PADDLE_TRAINER_ENDPOINTS", "a:1,a:1"), "duplicate endpoint a:1");
    check(&pair, ("PADDLE_TRAINER_ENDPOINTS", ""), "expected 2 endpoints, got 1");
    check(&pair, ("PADDLE_CURRENT_ENDPOINT", "b:2"), "expected a:1 (entry 0");
    check(&pair, ("TRAINING_ROLE", "PSERVER"), "not started as a worker");
    check(&pair, ("PADDLE_WITH_GLOO", "7"), "PADDLE_WITH_GLOO");
    check(&pair, ("PADDLE_WITH_GLOO", "1"), "missing environment variable PADDLE_GLOO_RENDEZVOUS");
    check(&pair, ("FLEET_STORE", "nowhere"), "at FLEET_STORE");
    check(&pair, ("FLEET_TOKEN", "short"), "job token");
    check(&HETER, ("STAGE_ID", "3"), "stage 3 of 2");
    check(&HETER, ("STAGE_NUM", "3"), "expected 1 to 2, got stage 2 of 3");
    check(&HETER, ("PADDLE_STAGE_TRAINERS_NUM", "1, 1"), "a list of numbers like [1, 2]");
    check(&HETER, ("PADDLE_PORT", "1"), "endpoint 127.0.0.1:1 is not in the list");
    check(&HETER, ("HETER_DEVICE_TYPE", ""), "missing environment variable HETER_DEVICE_TYPE");
    check(&HETER, ("PADDLE_TRAINERS_NUM", "0"), "at least 1 worker");
}

#[test]
fn groups_per_host_local_ranks_and_the_job() {
    let env = Env::from([
        ("PADDLE_TRAINER_ID", "3"),
        ("PADDLE_TRAINERS_NUM", "4"),
        ("PADDLE_TRAINER_ENDPOINTS", "a:1,b:1,a:2,b:2"),
        ("PADDLE_WORLD_DEVICE_IDS", "0,0,1,1"),
        ("FLAGS_selected_gpus", "1"),
        ("PADDLE_WITH_GLOO", "2"),
        ("PADDLE_GLOO_RENDEZVOUS", "2"),
        ("PADDLE_GLOO_FS_PATH", "/shared"),
        ("FLEET_STORE", "a:9"),
        ("FLEET_TOKEN", "0123456789abcdef"),
        ("FLEET_RESTART_COUNT", "2"),
    ]);
    let made = Topology::collective(&env).unwrap();
    let hosts = made.hosts();
    assert_eq!((hosts[0].name.as_str(), hosts[0].ranks.as_slice()), ("a", &[0, 2][..]));
    assert_eq!((hosts[1].name.as_str(), hosts[1].ranks.as_slice()), ("b", &[1, 3][..]));
    assert_eq!((made.local().rank, made.local().devices[0].as_str()), (1, "1"));
    assert_eq!(made.gloo().members, GlooMembers::All);
    assert_eq!(made.gloo().rendezvous, Some(Rendezvous::File { path: "/shared".into() }));
    assert_eq!((made.job().restarts, made.job().store.as_ref().unwrap().port), (2, 9));
    assert!(!format!("{made:?}").contains("0123456789abcdef"));
}

/// A process of a larger job that does not know its peers would train alone, like each peer.
#[test]
fn no_process_trains_alone_beside_others() {
    type Make = fn(&Env) -> fleet_base::Result<Topology>;
    let (servers, collective): (Make, Make) = (Topology::parameter_server, Topology::collective);
    let check = |make: Make, pairs: &[(&str, &str)], expected: Option<&str>| {
        let env: Env = pairs.iter().copied().collect();
        match (make(&env), expected) {
            (Ok(topology), None) => assert!(topology.is_non_distributed(), "{pairs:?}"),
            (Err(error), Some(text)) => {
                assert!(error.message().contains(text), "{pairs:?}: {error}");
            }
            (made, _) => panic!("{pairs:?}: {:?}", made.map(|it| it.worker_num())),
        }
    };
    let endpoints = ("PADDLE_TRAINER_ENDPOINTS", "10.0.0.1:6170,10.0.0.2:6170");
    check(servers, &[endpoints], Some("a job of 2 workers has no parameter servers"));
    check(servers, &[("PADDLE_TRAINERS_NUM", "2")], Some("a job of 2 workers"));
    check(servers, &[("TRAINING_ROLE", "PSERVER")], Some("PADDLE_PSERVERS_IP_PORT_LIST"));
    check(servers, &[("OMPI_COMM_WORLD_SIZE", "4")], Some("mpirun started"));
    for make in [servers, collective] {
        check(make, &[("RANK", "1"), ("WORLD_SIZE", "2")], Some("torchrun started"));
        check(make, &[("SLURM_NTASKS", "2")], Some("Slurm started this process as one of 2"));
        check(make, &[("SLURM_NTASKS", "1"), ("WORLD_SIZE", "1")], None);
        // Fleet's launcher or the user has set the number of processes.
        check(make, &[("SLURM_NTASKS", "2"), ("PADDLE_TRAINERS_NUM", "1")], None);
        check(make, &[("WORLD_SIZE", "2"), ("FLEET_LAUNCH", "mark")], None);
        check(make, &[], None);
    }
}
