//! Problems that the check finds in strategies, and positions of problems in files.

use fleet_strategy::*;

/// Checks a text and compares the problems, each `SEVERITY PATH: MESSAGE`.
fn check(text: &str, expected: &[&str]) {
    let strategy = DistributedStrategy::parse(text).unwrap_or_else(|error| panic!("{error}"));
    let problems = fleet_strategy::check(&strategy);
    let found: Vec<String> =
        problems.iter().map(|p| format!("{:?} {}: {}", p.severity, p.path, p.message)).collect();
    assert_eq!(found, expected, "{text}");
    for problem in problems {
        assert!(!problem.why.is_empty() || problem.message.contains("finite"), "{problem}");
    }
}

#[test]
fn values_out_of_range() {
    let amp = |field: &str, message: &str| {
        let text = format!("amp: true amp_configs {{ {field} }}");
        let name = field.split(':').next().unwrap();
        check(&text, &[&format!("Error amp_configs.{name}: {message}")]);
    };
    amp("decr_ratio: 0", "expected more than 0 and less than 1, got 0.0");
    amp("decr_ratio: 1", "expected more than 0 and less than 1, got 1.0");
    amp("decr_ratio: nan", "expected more than 0 and less than 1, got nan");
    amp("incr_ratio: 1", "expected more than 1, got 1.0");
    amp("incr_ratio: inf", "expected more than 1, got inf");
    amp("incr_every_n_steps: 0", "expected at least 1, got 0");
    let text = "dgc: true dgc_configs { sparsity: [0.5, 1.0, -0.1] rampup_step: 3 }";
    check(
        text,
        &[
            "Error dgc_configs.sparsity[1]: expected at least 0 and less than 1, got 1.0",
            "Error dgc_configs.sparsity[2]: expected at least 0 and less than 1, got -0.1",
            "Error dgc_configs.sparsity[2]: expected at least 1 as before it, got -0.1",
        ],
    );
    check(
        "pipeline: true pipeline_configs { schedule_mode: \"F-then-C\" accumulate_steps: 0 }",
        &[
            "Error pipeline_configs.accumulate_steps: expected at least 1, got 0",
            "Error pipeline_configs.schedule_mode: expected one of 1F1B, F-then-B, ZBH1, got \
             \"F-then-C\"",
        ],
    );
    check(
        "sharding: true sharding_configs { stage: 4 }",
        &["Error sharding_configs.stage: expected 1 to 3, got 4"],
    );
    check(
        "downpour_table_param { accessor { ctr_accessor_param { show_click_decay_rate: 1.5 } } }",
        &["Error downpour_table_param[0].accessor.ctr_accessor_param.show_click_decay_rate: \
           expected more than 0 and at most 1, got 1.5"],
    );
    check(
        "downpour_table_param { accessor { ctr_accessor_param { load_filter_slots: nan } } }",
        &[
            "Error downpour_table_param[0].accessor.ctr_accessor_param.load_filter_slots[0]: \
           expected a finite number, got nan",
            "Warning downpour_table_param[0].accessor.ctr_accessor_param.load_filter_slots: is \
             stored, but has no effect",
        ],
    );
}

#[test]
fn lists_that_contradict() {
    check(
        "amp: true amp_configs { custom_white_list: [\"mul\", \"mean\"] custom_black_list: \
         \"mean\" }",
        &["Error amp_configs.custom_black_list[0]: 'mean' is in both custom_white_list and \
             custom_black_list"],
    );
    check(
        "recompute: true recompute_configs { checkpoints: [\"x\", \"x\", \"\"] }",
        &[
            "Error recompute_configs.checkpoints[2]: empty name",
            "Warning recompute_configs.checkpoints[1]: duplicate name 'x'",
        ],
    );
    check(
        "downpour_table_param { table_name: \"t\" table_id: 1 } \
         downpour_table_param { table_name: \"t\" table_id: 1 } downpour_table_param {}",
        &[
            "Error downpour_table_param[1].table_name: duplicate table name 't'",
            "Error downpour_table_param[1].table_id: duplicate table number 1",
            "Error downpour_table_param[2]: the table has no settings",
        ],
    );
}

/// Unsupported server settings are reported.
#[test]
fn switches_of_servers_without_effect() {
    check(
        "a_sync_configs { k_steps: 0 launch_barrier: false runtime_split_send_recv: true \
         heter_worker_device_guard: \"gpu\" use_ps_gpu: 1 }",
        &[
            "Warning a_sync_configs.runtime_split_send_recv: is stored, but has no effect",
            "Warning a_sync_configs.heter_worker_device_guard: is stored, but has no effect",
            "Warning a_sync_configs.use_ps_gpu: is stored, but has no effect",
        ],
    );
}

/// A table may be in only one list, and every setting without effect gets a warning.
#[test]
fn settings_that_hang_on_others() {
    check(
        "trainer_desc_configs { local_sparse: \"t\" remote_sparse: [\"s\", \"t\"] }",
        &[
            "Error trainer_desc_configs.remote_sparse[1]: 't' is in both local_sparse and \
             remote_sparse",
            "Warning trainer_desc_configs: is stored, but has no effect",
        ],
    );
    for setting in
        ["fuse_grad_size_in_MB: 8", "fuse_grad_size_in_TFLOPS: 4", "last_comm_group_size_MB: 2"]
    {
        let name = setting.split(':').next().unwrap();
        check(
            &format!("fuse_all_reduce_ops: false {setting}"),
            &[&format!("Warning {name}: has no effect without fuse_all_reduce_ops")],
        );
    }
    check(
        "sync_nccl_allreduce: true nccl_comm_num: 2",
        &["Warning nccl_comm_num: does not overlap communication if sync_nccl_allreduce is true"],
    );
    for setting in
        ["incr_every_n_steps: 7", "decr_every_n_nan_or_inf: 7", "incr_ratio: 3", "decr_ratio: 0.1"]
    {
        let name = setting.split(':').next().unwrap();
        check(
            &format!("amp: true amp_configs {{ use_dynamic_loss_scaling: false {setting} }}"),
            &[&format!(
                "Warning amp_configs.{name}: has no effect without use_dynamic_loss_scaling"
            )],
        );
    }
}

#[test]
fn axes_and_bounds() {
    check(
        "hybrid_configs { order: [\"dp\", \"dp\", \"tp\"] }",
        &[
            "Error hybrid_configs.order[2]: expected one of dp, pp, sharding, sep, mp, got \"tp\"",
            "Error hybrid_configs.order[1]: duplicate axis dp",
            "Error hybrid_configs.order: expected five axes, got 3",
            "Warning hybrid_configs.order: is stored, but has no effect",
        ],
    );
    let table =
        "downpour_table_param { accessor { embed_sgd_param { adam { weight_bounds: [1, -1] } } } }";
    check(
        table,
        &["Error downpour_table_param[0].accessor.embed_sgd_param.adam.weight_bounds: \
           expected a minimum and a maximum, got [1.0, -1.0]"],
    );
    check(
        "dgc: true dgc_configs { sparsity: [0.5, 0.9] rampup_step: 1 }",
        &["Warning dgc_configs.rampup_step: 2 sparsities share 1 step"],
    );
}

#[test]
fn settings_that_do_not_go_together() {
    check("lars: true lamb: true", &["Error lamb: conflicts with lars"]);
    check(
        "localsgd: true adaptive_localsgd: true",
        &["Error adaptive_localsgd: conflicts with localsgd"],
    );
    check(
        "amp: true amp_configs { use_pure_fp16: true use_pure_bf16: true }",
        &["Error amp_configs.use_pure_bf16: conflicts with amp_configs.use_pure_fp16"],
    );
    check(
        "a_sync: false a_sync_configs { k_steps: 10 }",
        &["Error a_sync_configs.k_steps: expected 0 without a_sync, got 10"],
    );
    check(
        "gradient_merge: true gradient_merge_configs { k_steps: 4 } localsgd: true",
        &["Error localsgd: conflicts with gradient_merge"],
    );
    check(
        "gradient_merge: true gradient_merge_configs { k_steps: 1 } localsgd: true",
        &["Warning gradient_merge_configs.k_steps: gradient_merge has no effect"],
    );
    check(
        "amp: true amp_configs { use_optimizer_fp16: true }",
        &["Warning amp_configs.use_optimizer_fp16: is stored, but has no effect"],
    );
    // Without Momentum or with one rank, dgc is omitted.
    check("dgc: true amp: true", &["Warning dgc: conflicts with amp where dgc applies"]);
    check(
        "dgc: true adaptive_localsgd: true",
        &["Warning adaptive_localsgd: conflicts with dgc where dgc applies"],
    );
    check(
        "fuse_grad_size_in_MB: 1 last_comm_group_size_MB: 2",
        &["Warning last_comm_group_size_MB: expected at most fuse_grad_size_in_MB, which is 1, \
             got 2"],
    );
}

#[test]
fn settings_without_effect() {
    check("recompute: true", &["Warning recompute_configs.checkpoints: no checkpoints"]);
    check(
        "gradient_merge: true",
        &["Warning gradient_merge_configs.k_steps: gradient_merge has no effect"],
    );
    // The groups are then the ranks of one machine.
    check("use_hierarchical_allreduce: true", &[]);
    check(
        "recompute: true recompute_configs { checkpoints: \"x\" checkpoint_shape: 2 }",
        &["Warning recompute_configs.checkpoint_shape: is stored, but has no effect"],
    );
    check(
        "fuse_all_reduce_ops: false fuse_grad_size_in_MB: 8",
        &["Warning fuse_grad_size_in_MB: has no effect without fuse_all_reduce_ops"],
    );
    check(
        "amp: true amp_configs { use_dynamic_loss_scaling: false incr_ratio: 3 }",
        &["Warning amp_configs.incr_ratio: has no effect without use_dynamic_loss_scaling"],
    );
    check("amp_configs {}", &["Warning amp_configs: has no effect: amp is off"]);
    check("auto: true amp: true", &["Warning auto: has no effect beside amp"]);
    check("auto: true", &[]);
    check(
        "find_unused_parameters: true",
        &["Warning find_unused_parameters: is stored, but has no effect"],
    );
    check("find_unused_parameters: false without_graph_optimization: true", &[]);
    check("qat_configs {}", &["Warning qat_configs: is stored, but has no effect"]);
}

/// The check reports unsupported settings; a degree of one requests nothing.
#[test]
fn what_is_not_there_yet() {
    check(
        "hybrid_configs { dp_degree: 2 mp_degree: 1 sep_degree: 4 }",
        &["Error hybrid_configs.sep_degree: 4 is not supported"],
    );
    check("sharding: true pipeline: false", &[]);
    check(
        "sharding: true sharding_configs { mp_degree: 2 pp_degree: 2 optimize_offload: true }",
        &["Warning sharding_configs.optimize_offload: is stored, but has no effect"],
    );
}

#[test]
fn nothing_is_wrong_with_what_the_documents_show() {
    let text = "amp: true amp_configs { init_loss_scaling: 32768 custom_white_list: \"conv2d\" }\n\
                lars: true lars_configs { lars_coeff: 0.001 lars_weight_decay: 0.0005 epsilon: 0 \
                exclude_from_weight_decay: [\"batch_norm\", \".b\"] }\n\
                pipeline: true pipeline_configs { micro_batch: 12 }\n\
                localsgd: true localsgd_configs { k_steps: 1 begin_step: 30 }";
    check(text, &["Error pipeline: conflicts with localsgd"]);
    let sharding = "fuse_broadcast_MB: 32 hybrid_dp: true sharding_group_size: 4";
    check(&format!("sharding: true sharding_configs {{ {sharding} }}"), &[]);
    assert!(fleet_strategy::check(&DistributedStrategy::new()).is_empty());
    assert!(fleet_strategy::check(&DistributedStrategy::new().use_geo(400)).is_empty());
}

#[test]
fn all_errors_come_at_once() {
    let strategy = DistributedStrategy::new().with_nccl_comm_num(0).with_lars(true).with_lamb(true);
    let error = validate(&strategy).unwrap_err().to_string();
    assert_eq!(
        error,
        "the strategy has 2 errors\n\
         error: nccl_comm_num: expected at least 1, got 0\n  why: gradients need a communicator\n  \
         help: use 1 on one machine, 2 on several\n\
         error: lamb: conflicts with lars\n  why: LARS replaces a Momentum optimizer and \
         LAMB an Adam optimizer; there is one optimizer\n  help: choose lars or lamb"
    );
    let one = validate(&DistributedStrategy::new().with_nccl_comm_num(0)).unwrap_err();
    assert!(one.to_string().starts_with("nccl_comm_num: expected at least 1, got 0\n"));
}

/// Compares the problems of a file, each `LINE:COLUMN SEVERITY PATH: MESSAGE`.
fn inspect(bytes: &[u8], form: StrategyForm, expected: &[&str]) {
    let found = fleet_strategy::inspect(bytes, form).unwrap();
    let found: Vec<String> = found
        .problems
        .iter()
        .map(|p| {
            let place = p.place.map(|place| place.to_string()).unwrap_or_default();
            format!("{place} {:?} {}: {}", p.severity, p.path, p.message)
        })
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn problems_of_texts_have_places() {
    let text = "amp: yes\n  dgc_confgs { }\namp_configs {\n  decr_ratio: 1.5\n  typo: 1\n}\n\
                nccl_comm_num 2\ndgc_configs { sparsity: [0.9,\n 1.0] rampup_step: \"1\" }\n\
                amp: true amp: true\nmode: 9 \"stray\"\nlars_configs { epsilon: @ }\n";
    inspect(
        text.as_bytes(),
        StrategyForm::Prototxt,
        &[
            "1:6 Error amp: expected true or false, got yes",
            "2:3 Error dgc_confgs: DistributedStrategy has no field 'dgc_confgs'; did you mean \
             'dgc_configs'?",
            "4:15 Error amp_configs.decr_ratio: expected more than 0 and less than 1, got 1.5",
            "5:3 Error amp_configs.typo: AMPConfig has no field 'typo'",
            "7:15 Error : expected ':' or '{' after nccl_comm_num, got '2'",
            "8:1 Warning dgc_configs: has no effect: dgc is off",
            "9:2 Error dgc_configs.sparsity[1]: expected at least 0 and less than 1, got 1.0",
            "9:7 Warning dgc_configs.rampup_step: 2 sparsities share 1 step",
            "9:20 Error dgc_configs.rampup_step: expected a 32-bit integer, got \"1\"",
            "10:1 Warning amp: assigned more than once",
            "10:11 Warning amp: assigned more than once",
            "11:7 Error mode: expected one of COLLECTIVE, PS, PIPELINE, HETER, got 9",
            "11:9 Error : expected the name of a field, got a string",
            "12:1 Warning lars_configs: has no effect: lars is off",
            "12:25 Error : unexpected character '@'",
        ],
    );
}

/// Byte order marks are accepted, and truncated files give few errors.
#[test]
fn files_of_other_tools() {
    for (text, form) in [
        ("\u{feff}amp: true\r\n# on\r\n", StrategyForm::Prototxt),
        ("\u{feff}{\"amp\": true}", StrategyForm::Json),
        ("\u{feff}amp = true\r\n", StrategyForm::Toml),
    ] {
        let found = fleet_strategy::inspect(text.as_bytes(), form).unwrap();
        assert!(found.problems.is_empty() && found.strategy.amp(), "{:?}", found.problems);
    }
    for text in ["amp_configs {".repeat(1000), "amp_configs: [{".repeat(1000)] {
        let found = fleet_strategy::inspect(text.as_bytes(), StrategyForm::Prototxt).unwrap();
        let deep = found.problems.iter().any(|it| it.message.contains("deeper than 64 levels"));
        assert!(deep && found.problems.len() < 6, "{:?}", found.problems);
    }
    let toml = format!("amp = {}", "[".repeat(1000));
    let found = fleet_strategy::inspect(toml.as_bytes(), StrategyForm::Toml).unwrap();
    assert!(found.problems.len() < 6, "{:?}", found.problems);
    let text = fleet_strategy::inspect(b"amp: true", StrategyForm::Binary).unwrap_err();
    assert!(text.to_string().contains("the file looks like text"), "{text}");
}

#[test]
fn problems_of_json_and_toml_have_places() {
    let json =
        "{\"amp\": 1,\n \"amp_configs\": {\"decr_ratio\": 1.5, \"x\": null},\n \"mode\": \"PS\"}";
    inspect(
        json.as_bytes(),
        StrategyForm::Json,
        &[
            "1:9 Error amp: expected true or false, got 1",
            "2:2 Warning amp_configs: has no effect: amp is off",
            "2:32 Error amp_configs.decr_ratio: expected more than 0 and less than 1, got 1.5",
            "2:37 Error amp_configs.x: AMPConfig has no field 'x'",
            "3:10 Warning mode: is stored, but has no effect",
        ],
    );
    inspect(b"{\"amp\": tru}", StrategyForm::Json, &["1:9 Error : expected a value, got 'tru'"]);
    inspect(b"[1]", StrategyForm::Json, &["1:1 Error : expected an object"]);
    inspect(b"{\"amp\" true}", StrategyForm::Json, &["1:8 Error : expected ':', got 't'"]);
    inspect(b"{\"amp\": \"a", StrategyForm::Json, &["1:9 Error : the string has no closing \""]);
    let toml = "amp = 1\n[amp_configs]\ndecr_ratio = 1.5\nincr_ratio = \"x\"\n";
    inspect(
        toml.as_bytes(),
        StrategyForm::Toml,
        &[
            "1:7 Error amp: expected true or false, got 1",
            "2:2 Warning amp_configs: has no effect: amp is off",
            "3:14 Error amp_configs.decr_ratio: expected more than 0 and less than 1, got 1.5",
            "4:14 Error amp_configs.incr_ratio: expected a 32-bit float, got \"x\"",
        ],
    );
    let broken = fleet_strategy::inspect(b"amp = \n", StrategyForm::Toml).unwrap().problems;
    assert_eq!(broken[0].place.map(|place| place.line), Some(1));
}

#[test]
fn binary_forms_are_refused_with_their_byte() {
    let refused = |bytes: &[u8]| {
        let mut strategy = DistributedStrategy::new();
        let error = strategy.merge_bytes(bytes, StrategyForm::Binary).unwrap_err().to_string();
        assert!(strategy.is_empty());
        error
    };
    assert!(
        refused(&[0xd8, 0x02, 1])
            .starts_with("DistributedStrategy has no field with the number 43")
    );
    assert!(refused(&[0x08, 9]).starts_with("unknown value of mode"));
    assert!(refused(&[0x12, 1, 0]).starts_with("wrong type of amp: expected bool"));
    for cut in [&[0x10][..], &[0xb2, 0x06, 5, 0], &[0xa5, 0x01, 0, 0]] {
        assert!(refused(cut).starts_with("the binary form is truncated"), "{cut:?}");
    }
    assert!(refused(&[0xff; 11]).starts_with("invalid binary form: a number is too long"));
    // Text in a string must be UTF-8.
    assert!(refused(&[0xaa, 0x06, 3, 0x0a, 1, 0xff]).starts_with("invalid binary form"));
}

#[test]
fn files_are_written_whole_and_read_with_their_name() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("strategies");
    std::fs::create_dir_all(&folder).unwrap();
    let strategy = DistributedStrategy::new().use_recompute(["x"]).with_amp(true);
    for name in ["a.prototxt", "a.pb", "a.json", "a.toml"] {
        let path = folder.join(name);
        strategy.save(&path).unwrap();
        let mut loaded = DistributedStrategy::new();
        assert!(loaded.load(&path).unwrap().is_empty());
        assert_eq!(loaded, strategy);
    }
    let path = folder.join("strategy.txt");
    strategy.save_to_prototxt(&path).unwrap();
    let mut loaded = DistributedStrategy::new().with_dgc(true);
    loaded.load_from_prototxt(&path).unwrap();
    loaded.load_from_prototxt(&path).unwrap();
    assert!(loaded.dgc() && loaded.amp());
    assert_eq!(loaded.recompute_configs().checkpoints, ["x", "x"]);
    std::fs::write(&path, "ampp: true\n").unwrap();
    let error = loaded.load_from_prototxt(&path).unwrap_err().to_string();
    let file = path.display();
    let told =
        format!("{file}:1:1: ampp: DistributedStrategy has no field 'ampp'; did you mean 'amp'?");
    assert!(error.starts_with(&told), "{error}");
    std::fs::write(&path, "ampp: true\namp: 3x\n").unwrap();
    let error = loaded.load_from_prototxt(&path).unwrap_err().to_string();
    assert!(error.contains(&format!("\n{file}:2:6: error: amp: ")), "{error}");
    std::fs::write(&path, [0xff]).unwrap();
    assert!(loaded.load(&path).unwrap_err().to_string().starts_with("the file is not text"));
    let missing = loaded.load(folder.join("no-such.json")).unwrap_err();
    #[cfg(unix)]
    {
        let endless = loaded.load("/dev/zero").unwrap_err().to_string();
        assert!(endless.starts_with("the file is too large for a strategy"), "{endless}");
    }
    assert!(missing.to_string().contains("no-such.json"));
}
