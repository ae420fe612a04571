//! The overview, character for character as recorded in `vectors/overview-2.6.2.txt`.

use fleet_config::{DistributedStrategy, FsClientParameter, Value};

const RECORDED: &str = include_str!("../vectors/overview-2.6.2.txt");

fn check(name: &str, strategy: &DistributedStrategy) {
    let header = format!("#### {name}\n");
    let from = RECORDED.find(&header).expect("a recorded table") + header.len();
    let recorded = &RECORDED[from..];
    let recorded = &recorded[..recorded.find("\n\n").map_or(recorded.len(), |end| end + 1)];
    let found = strategy.to_string();
    for (found, recorded) in found.lines().zip(recorded.lines()) {
        assert_eq!(found, recorded);
    }
    assert_eq!(found, recorded);
}

#[test]
fn the_recorded_tables() {
    check("default", &DistributedStrategy::new());

    let mut strategy = DistributedStrategy::new();
    let set = |strategy: &mut DistributedStrategy, key: &str, value: Value| {
        assert!(strategy.set(key, value).unwrap().is_empty());
    };
    set(&mut strategy, "amp", true.into());
    let amp =
        [("decr_ratio", Value::from(0.5)), ("custom_white_list", ["conv2d", "matmul"].into())];
    set(&mut strategy, "amp_configs", Value::map(amp));
    set(&mut strategy, "recompute", true.into());
    set(&mut strategy, "recompute_configs", Value::map([("checkpoints", ["x", "y"].into())]));
    set(&mut strategy, "gradient_merge", true.into());
    set(&mut strategy, "gradient_merge_configs", Value::map([("k_steps", 4.into())]));
    check("amp+recompute+gradient_merge", &strategy);

    check("geo", &DistributedStrategy::new().use_geo(100));

    let mut strategy = DistributedStrategy::new();
    set(&mut strategy, "dgc", true.into());
    set(&mut strategy, "dgc_configs", Value::map([("sparsity", [0.75, 0.999].into())]));
    set(&mut strategy, "nccl_comm_num", 2.into());
    check("dgc", &strategy);
}

#[test]
fn passwords_are_not_shown() {
    let client = FsClientParameter::default().with_uri("hdfs://a").with_passwd("secret");
    let strategy = DistributedStrategy::new().with_fs_client_param(client);
    let changed = format!("{:?}", strategy.changed_fields());
    for text in [strategy.to_string(), changed] {
        assert!(text.contains("hdfs://a") && !text.contains("secret"), "{text}");
    }
}
