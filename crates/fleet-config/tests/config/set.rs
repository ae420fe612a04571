//! The key/value form: its rules, and every message that users know.

use fleet_config::{BuildStrategy, DistributedStrategy, ExecutionStrategy, Problem, Value};

const RECORDED_TABLES: &str = include_str!("../vectors/fleet-desc-configs-2.6.2.txt");

fn set(key: &str, value: impl Into<Value>) -> (DistributedStrategy, Vec<Problem>) {
    let mut strategy = DistributedStrategy::new();
    let notices = strategy.set(key, value).unwrap_or_else(|error| panic!("{error}"));
    (strategy, notices.into_vec())
}

/// Returns the error's message; the strategy must stay unchanged.
fn refused(key: &str, value: impl Into<Value>) -> String {
    let mut strategy = DistributedStrategy::new().with_nccl_comm_num(2);
    let before = strategy.clone();
    let error = strategy.set(key, value).expect_err("an error");
    assert_eq!(strategy, before);
    error.message().to_string()
}

fn map<const N: usize>(entries: [(&str, Value); N]) -> Value {
    Value::map(entries)
}

#[test]
fn messages_are_the_known_ones() {
    assert_eq!(refused("ampp", true), "ampp is not an attribute of DistributedStrategy");
    let one = |key: &str| map([(key, 1.into())]);
    assert_eq!(refused("amp_configs", one("k")), "amp_configs has no field 'k'");
    assert_eq!(refused("recompute_configs", one("k")), "recompute_configs has no field 'k'");
    assert_eq!(
        refused("gradient_merge_configs", one("k")),
        "gradient_merge_configs has no field 'k'"
    );
    assert_eq!(
        refused("hybrid_configs", map([("mp_configs", one("k"))])),
        "mp_configs has no field 'k'"
    );
    assert_eq!(refused("lars_configs", ["lars_coeff"]), "lars_configs has no field 'lars_coeff'");
    let invalid = |name: &str| format!("invalid value of {name}");
    assert_eq!(refused("a_sync", 1), invalid("a_sync"));
    assert_eq!(refused("a_sync", Value::None), invalid("a_sync"));
    assert_eq!(refused("adam_d2sum", "yes"), invalid("adam_d2sum"));
    assert_eq!(refused("fp16_allreduce", 1), invalid("fp16_allreduce"));
    for value in [Value::from(0), (-1.5).into(), "1".into(), f64::NAN.into()] {
        let name = "last_comm_group_size_MB";
        assert_eq!(refused(name, value), invalid(name));
    }
    assert_eq!(
        refused("fleet_desc_configs", map([("t", map([("sparse_shard", 1.into())]))])),
        "unknown key 'sparse_shard' in fleet_desc_configs"
    );
}

/// Keys are checked before anything else, so the wrong key is the error and not the wrong value.
#[test]
fn keys_come_first() {
    let configs = map([("incr_ratio", "two".into()), ("k", 1.into())]);
    assert_eq!(refused("amp_configs", configs), "amp_configs has no field 'k'");
}

#[test]
fn wrong_values_of_switches_and_numbers_are_ignored_with_a_warning() {
    let check = |key: &str, value: Value, message: &str| {
        let (strategy, notices) = set(key, value);
        assert!(strategy.is_empty());
        assert_eq!(notices.len(), 1);
        assert_eq!((notices[0].path.as_str(), notices[0].message.as_str()), (key, message));
    };
    check("amp", 1.into(), "expected true or false, got 1 (int)");
    check("dgc", "true".into(), "expected true or false, got \"true\" (str)");
    check("nccl_comm_num", 1.5.into(), "expected a 32-bit integer, got 1.5 (float)");
    check("nccl_comm_num", true.into(), "expected a 32-bit integer, got true (bool)");
    let too_large = Value::from(1i64 << 40);
    let message = "expected a 32-bit integer, got 1099511627776 (int)";
    check("fuse_grad_size_in_MB", too_large, message);
    let message = "expected a 32-bit float, got \"50\" (str)";
    check("fuse_grad_size_in_TFLOPS", "50".into(), message);
}

#[test]
fn values_of_messages_keep_their_types() {
    let check = |key: &str, field: &str, value: Value, expected: &str, got: &str| {
        let mut strategy = DistributedStrategy::new();
        let error = strategy.set(key, map([(field, value)])).expect_err("an error").to_string();
        let message = format!("invalid value of {key}.{field}: expected {expected}, got {got}");
        assert_eq!(error, message);
    };
    let int = "a 32-bit integer";
    check("localsgd_configs", "k_steps", 1.5.into(), int, "1.5 (float)");
    check("localsgd_configs", "k_steps", (1i64 << 31).into(), int, "2147483648 (int)");
    let float = "a 32-bit float";
    check("amp_configs", "incr_ratio", "2".into(), float, "\"2\" (str)");
    check("amp_configs", "incr_ratio", 1e40.into(), float, "1e+40 (float)");
    check("amp_configs", "incr_ratio", Value::None, float, "null (NoneType)");
    check("gradient_merge_configs", "avg", 2.into(), "true or false", "2 (int)");
    check("pipeline_configs", "schedule_mode", 1.into(), "a string", "1 (int)");
    let list = "a list, each item a string";
    check("recompute_configs", "checkpoints", "x".into(), list, "\"x\" (str)");
    check("recompute_configs", "checkpoints", [1].into(), list, "1 (int)");
    let message = "a message of type MpConfig";
    check("hybrid_configs", "mp_configs", 1.into(), message, "1 (int)");

    let (strategy, _) = set("amp_configs", map([("init_loss_scaling", 1024.into())]));
    assert_eq!(strategy.amp_configs().init_loss_scaling, Some(1024.0));
    let (strategy, _) = set("a_sync_configs", map([("use_ps_gpu", true.into())]));
    assert_eq!(strategy.a_sync_configs().use_ps_gpu, Some(1));
}

#[test]
fn lists_grow_and_scalars_are_replaced() {
    let mut strategy = DistributedStrategy::new();
    for (sparsity, begin) in [([0.9], 1), ([0.99], 2)] {
        let configs = map([("sparsity", sparsity.into()), ("rampup_begin_step", begin.into())]);
        strategy.set("dgc_configs", configs).unwrap();
    }
    assert_eq!(strategy.dgc_configs().sparsity, [0.9, 0.99]);
    assert_eq!(strategy.dgc_configs().rampup_begin_step, Some(2));
    strategy.set("dgc_configs", map([("sparsity", Value::None)])).unwrap();
    assert_eq!(strategy.dgc_configs().sparsity, [0.9, 0.99]);
}

#[test]
fn a_sync_chooses_the_mode() {
    let (mut strategy, _) = set("a_sync", false);
    assert_eq!(strategy.to_prototxt(), "a_sync: false\na_sync_configs {\n  k_steps: 0\n}\n");
    strategy.set("a_sync", true).unwrap();
    strategy.set("a_sync_configs", map([("k_steps", 100.into())])).unwrap();
    assert_eq!(strategy, DistributedStrategy::new().use_geo(100));
}

#[test]
fn the_order_of_axes_is_replaced() {
    let (mut strategy, _) = set("hybrid_configs", map([("mp_degree", 2.into())]));
    assert_eq!(strategy.hybrid_configs().axes(), ["dp", "pp", "sharding", "sep", "mp"]);
    assert_eq!(
        strategy.hybrid_configs().mp_configs().synced_names(),
        ["embedding", "layer_norm", ".b_"]
    );
    for order in [["mp", "dp", "pp", "sharding", "sep"], ["sep", "mp", "dp", "pp", "sharding"]] {
        strategy.set("hybrid_configs", map([("order", order.into())])).unwrap();
        assert_eq!(strategy.hybrid_configs().axes(), order);
    }
}

#[test]
fn documents_spell_some_fields_otherwise() {
    let (strategy, notices) = set("pipeline_configs", map([("micro_batch", 12.into())]));
    assert_eq!(strategy.pipeline_configs().accumulate_steps, Some(12));
    assert!(notices.is_empty());
    let sharding = map([
        ("fuse_broadcast_MB", 16.into()),
        ("sharding_group_size", 4.into()),
        ("hybrid_dp", true.into()),
    ]);
    let (strategy, _) = set("sharding_configs", sharding);
    assert_eq!(strategy.sharding_configs().segment_broadcast_MB, Some(16.0));
    assert_eq!(strategy.sharding_configs().sharding_degree, Some(4));
    for value in [Value::from(50), 50.0.into()] {
        let (strategy, notices) = set("_fuse_grad_size_in_TFLOPS", value);
        assert_eq!(strategy.fuse_grad_size_in_TFLOPS, Some(50.0));
        assert!(notices.is_empty());
    }
    let text = "pipeline_configs { micro_batch: 12 }\n_fuse_grad_size_in_TFLOPS: 20\n";
    let strategy = DistributedStrategy::parse(text).unwrap();
    assert_eq!(strategy.pipeline_configs().accumulate_steps, Some(12));
    assert_eq!(strategy.fuse_grad_size_in_TFLOPS, Some(20.0));
}

#[test]
fn names_of_the_1_x_interface_say_what_they_became() {
    let check = |key: &str, value: Value, path: &str, expected: Value| {
        let (strategy, notices) = set(key, value);
        assert_eq!(strategy.get(path).unwrap(), expected, "{key}");
        let notice = &notices[0];
        assert_eq!(notice.path, key);
        let parent = path.split('.').next().unwrap();
        assert!(
            [format!("interpreted as {path}"), format!("interpreted as {parent}")]
                .contains(&notice.message),
            "{notice}"
        );
    };
    check("thread_num", 3.into(), "execution_strategy.num_threads", 3.into());
    check("use_local_sgd", true.into(), "localsgd", true.into());
    check("local_sgd_is_warm_steps", 30.into(), "localsgd_configs.begin_step", 30.into());
    check("local_sgd_steps", 4.into(), "localsgd_configs.k_steps", 4.into());
    let fuse = "fuse_all_optimizer_ops";
    check(fuse, true.into(), "build_strategy.fuse_all_optimizer_ops", true.into());
    let drop = map([("num_iteration_per_drop_scope", 30.into())]);
    let path = "execution_strategy.num_iteration_per_drop_scope";
    check("exec_strategy", drop.clone(), path, 30.into());
    // The documents list this key in the wrong map.
    let (strategy, _) = set("BuildStrategy", drop);
    assert_eq!(strategy.get(path).unwrap(), 30.into());
    assert_eq!(strategy.build_strategy, None);
    let (strategy, _) = set("BuildStrategy", map([("fuse_bn_act_ops", true.into())]));
    assert_eq!(strategy.build_strategy().fuse_bn_act_ops, Some(true));
    assert_eq!(strategy.build_strategy().enable_inplace, None);
}

#[test]
fn objects_assign_the_fields_that_are_set_on_them() {
    let (strategy, _) = set("build_strategy", map([("fuse_ewise_add_act_ops", true.into())]));
    let text = "build_strategy {\n  fuse_elewise_add_act_ops: true\n}\n";
    assert_eq!(strategy.to_prototxt(), text);
    let object = BuildStrategy::new().with_fuse_elewise_add_act_ops(true);
    assert_eq!(DistributedStrategy::new().with_build_strategy(object), strategy);
    let threads = map([("num_threads", 10.into()), ("num_iteration_per_run", 10.into())]);
    let (strategy, _) = set("execution_strategy", threads);
    let text = "execution_strategy {\n  num_threads: 10\n  num_iteration_per_run: 10\n}\n";
    assert_eq!(strategy.to_prototxt(), text);
    let object = ExecutionStrategy::new().with_num_threads(10).with_num_iteration_per_run(10);
    assert_eq!(DistributedStrategy::new().with_execution_strategy(object), strategy);
}

#[test]
fn paths_reach_single_fields() {
    let mut strategy = DistributedStrategy::new();
    strategy.set("amp_configs.decr_ratio", 0.5).unwrap();
    strategy.set("hybrid_configs.mp_configs.sync_mode", "average").unwrap();
    strategy.set("build_strategy.enable_addto", true).unwrap();
    let text = "amp_configs {\n  decr_ratio: 0.5\n}\nhybrid_configs {\n  mp_configs {\n    \
                sync_mode: \"average\"\n  }\n}\nbuild_strategy {\n  enable_addto: true\n}\n";
    assert_eq!(strategy.to_prototxt(), text);
    assert_eq!(strategy.get("amp_configs.decr_ratio").unwrap(), 0.5.into());
    assert_eq!(strategy.get("amp_configs.incr_ratio").unwrap(), 2.0.into());
    assert_eq!(strategy.get("lamb_configs.lamb_weight_decay").unwrap(), 0.01f32.into());
    let Value::Map(all) = strategy.get("localsgd_configs").unwrap() else { panic!("a map") };
    assert_eq!(all, [("k_steps".to_string(), 1.into()), ("begin_step".to_string(), 1.into())]);
    assert_eq!(refused("amp.x", 1), "amp has no fields");
    let mut strategy = DistributedStrategy::new();
    let error = strategy.set("gradient_merge_configs.k_step", 4).expect_err("no such field");
    let text = "gradient_merge_configs has no field 'k_step'\n  help: did you mean 'k_steps'?";
    assert_eq!(error.to_string(), text);
    for path in ["amp.x", "x", "amp_configs.x", "localsgd_configs.k_steps.x"] {
        assert!(strategy.get(path).is_err(), "{path}");
    }
}

#[test]
fn flat_descriptions_of_tables() {
    let path = |rest: &str| format!("table_parameters.emb.{rest}");
    let entries = [
        (path("shard_num"), Value::from(4)),
        (path("accessor.embed_sgd_param.adam.learning_rate"), 0.5.into()),
        (path("accessor.embed_sgd_param.adam.weight_bounds"), [-1.0, 1.0].into()),
        (path("accessor.table_accessor_save_param.num"), 2.into()),
        (path("accessor.table_accessor_save_param.param"), [1, 2].into()),
        (path("accessor.table_accessor_save_param.converter"), "zip".into()),
        (path("accessor.typo"), 1.into()),
    ];
    let tables = Value::map([("emb", Value::map(entries))]);
    let (strategy, notices) = set("sparse_table_configs", tables);
    let text = "downpour_table_param {\n  table_name: \"emb\"\n  shard_num: 4\n  accessor {\n    \
                table_accessor_save_param {\n      param: 1\n      converter: \"zip\"\n    }\n    \
                table_accessor_save_param {\n      param: 2\n      converter: \"zip\"\n    }\n    \
                embed_sgd_param {\n      adam {\n        learning_rate: 0.5\n        \
                weight_bounds: -1.0\n        weight_bounds: 1.0\n      }\n    }\n  }\n}\n";
    assert_eq!(strategy.to_prototxt(), text);
    let message = "'table_parameters.emb.accessor.typo' is not the path of a field";
    assert_eq!(notices[0].message, message);
    let count = map([("table_parameters.t.accessor.table_accessor_save_param.num", (-1).into())]);
    let error = refused("sparse_table_configs", map([("t", count)]));
    assert!(error.ends_with("table_accessor_save_param.num"), "{error}");
    assert_eq!(refused("sparse_table_configs", 1), "invalid value of sparse_table_configs");
}

#[test]
fn friendly_descriptions_as_paddle_translates_them() {
    let mut count = 0;
    for case in RECORDED_TABLES.split("$ ").skip(1) {
        let (configs, expected) = case.split_once('\n').expect("a line of configs");
        let (strategy, _) = set("fleet_desc_configs", map([("emb", Value::read(configs))]));
        assert_eq!(strategy.to_prototxt(), expected, "{configs}");
        count += 1;
    }
    assert_eq!(count, 11);
}

#[test]
fn friendly_descriptions_of_tables() {
    let configs = map([
        ("sparse_table_class", "DownpourSparseSSDTable".into()),
        ("sparse_embedx_dim", 16.into()),
        ("embedx_sparse_optimizer", "adam".into()),
        ("sparse_learning_rate", 0.25.into()),
        ("embed_sparse_weight_bounds", [-1, 1].into()),
    ]);
    let (strategy, _) =
        set("fleet_desc_configs", map([("emb", configs), ("dense_table", map([]))]));
    let [table] = &strategy.downpour_table_param[..] else { panic!("one table") };
    assert_eq!(table.table_name(), "emb");
    assert_eq!(table.table_class(), "SSDSparseTable");
    assert_eq!((table.shard_num, table.sparse_table_cache_rate), (Some(1000), Some(0.00055)));
    let accessor = table.accessor();
    assert_eq!(accessor.accessor_class(), "CtrCommonAccessor");
    assert_eq!((accessor.embedx_dim, accessor.fea_dim), (Some(16), Some(19)));
    let modes: Vec<u32> = accessor.table_accessor_save_param.iter().map(|s| s.param()).collect();
    assert_eq!(modes, [1, 2]);
    assert_eq!(accessor.ctr_accessor_param().show_click_decay_rate, Some(0.98));
    assert_eq!(accessor.ctr_accessor_param().show_scale, Some(true));
    let embed = accessor.embed_sgd_param();
    assert_eq!(embed.name(), "SparseAdaGradSGDRule");
    assert_eq!(embed.adagrad().initial_range, Some(1e-4));
    assert_eq!(embed.adagrad().initial_g2sum, Some(3.0));
    assert_eq!(embed.adagrad().learning_rate, Some(0.25));
    assert_eq!(embed.adagrad().weight_bounds, [-1.0, 1.0]);
    let embedx = accessor.embedx_sgd_param();
    assert_eq!((embedx.name(), embedx.adam().ada_epsilon), ("SparseAdamSGDRule", Some(1e-8)));
    assert_eq!(embedx.adam().weight_bounds, [-10.0, 10.0]);
    assert!(fleet_config::all_in_one(strategy.check_fields()).is_ok());

    let wrong =
        |key: &str, value: Value| refused("fleet_desc_configs", map([("t", map([(key, value)]))]));
    assert_eq!(wrong("sparse_table_class", "X".into()), "unknown sparse_table_class");
    assert_eq!(wrong("sparse_accessor_class", "X".into()), "unknown sparse_accessor_class");
    assert_eq!(wrong("sparse_optimizer", "X".into()), "unknown sparse_optimizer");
    assert_eq!(wrong("sparse_shard_num", "X".into()), "invalid value of sparse_shard_num");
}

#[test]
fn flags_come_in_and_go_out() {
    let flags = DistributedStrategy::new()
        .with_sync_nccl_allreduce(false)
        .with_fuse_grad_size_in_TFLOPS(20.7)
        .flags();
    let flags: Vec<(&str, &str)> = flags.iter().map(|(name, value)| (*name, &**value)).collect();
    assert_eq!(
        flags,
        [
            ("FLAGS_cudnn_batchnorm_spatial_persistent", "0"),
            ("FLAGS_conv_workspace_size_limit", "512"),
            ("FLAGS_cudnn_exhaustive_search", "0"),
            ("FLAGS_sync_nccl_allreduce", "0"),
            ("FLAGS_fuse_parameter_memory_size", "32"),
            ("FLAGS_fuse_parameter_groups_size", "20"),
        ]
    );
    assert!(DistributedStrategy::from_flags(|_| None).unwrap().is_empty());
    let fuse = |name: &str| name.contains("fuse_parameter").then(|| "5".to_string());
    let (strategy, read) = DistributedStrategy::new().with_flags(fuse).unwrap();
    let text = "fuse_grad_size_in_MB: 5\nfuse_grad_size_in_TFLOPS: 5.0\n";
    assert_eq!((strategy.to_prototxt().as_str(), read.len()), (text, 2));
    // Assigned fields come first.
    let assigned = DistributedStrategy::new().with_fuse_grad_size_in_MB(8);
    let (strategy, read) = assigned.with_flags(fuse).unwrap();
    assert_eq!((strategy.fuse_grad_size_in_MB(), read.len()), (8, 1));
    let auto = DistributedStrategy::new().with_auto(true);
    assert_eq!(auto.with_flags(fuse).unwrap(), (auto, Vec::new()));
    let fraction = |name: &str| name.contains("memory_size").then(|| "1.5".to_string());
    let error = DistributedStrategy::new().with_flags(fraction).unwrap_err().to_string();
    assert!(error.starts_with("invalid value of FLAGS_fuse_parameter_memory_size"), "{error}");
    let flag = |name: &str| name.ends_with("limit").then(|| "4000".to_string());
    let strategy = DistributedStrategy::from_flags(flag).unwrap();
    assert_eq!(strategy.conv_workspace_size_limit, Some(4000));
    let wrong = DistributedStrategy::from_flags(|_| Some("maybe".into())).unwrap_err();
    let message = "invalid value of FLAGS_cudnn_batchnorm_spatial_persistent: \
                   expected true or false, got maybe";
    assert_eq!(wrong.to_string(), message);
}

/// `set(..)?` drops its result.
#[test]
fn notices_that_nobody_looks_at_are_printed() {
    const INSIDE: &str = "STRATEGY_NOTICES";
    if std::env::var_os(INSIDE).is_some() {
        let mut strategy = DistributedStrategy::new();
        strategy.set("amp", 3).unwrap();
        assert_eq!(strategy.set("dgc", 3).unwrap().len(), 1);
        return;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["set::notices_that_nobody_looks_at_are_printed", "--exact", "--nocapture"]);
    let output = command.env(INSIDE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("fleet: warning: amp: expected true or false, got 3 (int)"), "{text}");
    assert!(!text.contains("dgc"), "a notice that was read is printed: {text}");
}
