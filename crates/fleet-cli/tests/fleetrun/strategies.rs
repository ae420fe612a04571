//! Built-in jobs under every strategy: they train, resume from a checkpoint without any difference,
//! and report how much of their communication is hidden.

use crate::Place;
use std::path::Path;

/// Every strategy and its text in the chain; `rule` stands for the built-in job's own rule.
const STRATEGIES: [(&str, &str); 14] = [
    ("amp: true", "AMP -> {rule}"),
    ("amp: true amp_configs { use_pure_bf16: true }", "AMP -> {rule}"),
    ("recompute: true", "Recompute -> {rule}"),
    ("recompute: true recompute_configs { enable_offload: true }", "Recompute -> {rule}"),
    ("gradient_merge: true gradient_merge_configs { k_steps: 2 }", "GradientMerge -> {rule}"),
    ("lars: true", "Lars -> lars_momentum"),
    ("lamb: true", "Lamb -> lamb"),
    ("localsgd: true localsgd_configs { k_steps: 2 }", "LocalSGD -> momentum"),
    ("adaptive_localsgd: true", "AdaptiveLocalSGD -> momentum"),
    ("dgc: true", "DGC -> momentum"),
    ("fp16_allreduce: true", "FP16AllReduce -> {rule}"),
    ("fp16_allreduce: true fp16_allreduce_dtype: \"bfloat16\"", "FP16AllReduce -> {rule}"),
    ("nccl_comm_num: 2 fuse_all_reduce_ops: false", "RawProgram -> {rule}"),
    (
        "use_hierarchical_allreduce: true hierarchical_allreduce_inter_nranks: 2",
        "RawProgram -> {rule}",
    ),
];

fn write(place: &Place, strategy: &str) {
    std::fs::write(place.path("job.prototxt"), strategy).unwrap();
}

/// Trains `demo` under every strategy. `samples` suffices to train every layer.
fn trains_by_every_strategy(demo: &str, samples: u32, rule: &str) {
    let place = Place::new(&format!("demo_strategies/{demo}"), "");
    let sync = ("sync_batch_norm: true", "SyncBatchNorm -> momentum");
    let more = (demo == "resnet").then_some(sync);
    for (strategy, chain) in STRATEGIES.into_iter().chain(more) {
        write(&place, strategy);
        let workers = if strategy.contains("hierarchical") { 4 } else { 2 };
        let said = place.run(&format!(
            "--nproc_per_node {workers} --log_overwrite demo:{demo} --samples {samples} \
             --threads 1 --strategy job.prototxt --output saved"
        ));
        said.check(0, &[]);
        let log = place.read("log/workerlog.0");
        let chain = chain.replace("{rule}", rule);
        for part in [&*chain, "100 %", "trained", "saved"] {
            assert!(log.contains(part), "{demo}, {strategy}: no '{part}' in\n{log}");
        }
        for part in ["is not applied", "has no effect"] {
            assert!(!log.contains(part), "{demo}, {strategy}:\n{log}");
        }
    }
}

#[test]
fn lenet_trains_by_every_strategy() {
    trains_by_every_strategy("lenet", 64, "adam");
}

#[test]
fn resnet_trains_by_every_strategy() {
    trains_by_every_strategy("resnet", 16, "momentum");
}

#[test]
fn bert_trains_by_every_strategy() {
    trains_by_every_strategy("bert", 32, "adamw");
}

#[test]
fn wide_and_deep_trains_by_every_strategy() {
    trains_by_every_strategy("wide_deep", 1024, "adam");
}

/// Returns the files of a folder with their bytes.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    let mut files: Vec<(String, Vec<u8>)> = entries
        .map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, std::fs::read(entry.path()).unwrap())
        })
        .collect();
    files.sort();
    files
}

/// The jobs stop while ranks have state of their own: gradients summed so far, parameters between
/// two averagings, gradients not sent yet.
#[test]
fn demos_go_on_as_if_they_had_not_stopped() {
    for strategy in [
        "amp: true amp_configs { incr_every_n_steps: 3 }",
        "gradient_merge: true gradient_merge_configs { k_steps: 2 }",
        "localsgd: true localsgd_configs { k_steps: 4 }",
        "adaptive_localsgd: true adaptive_localsgd_configs { init_k_steps: 3 }",
        "dgc: true dgc_configs { rampup_begin_step: 1 sparsity: 0.9 }",
    ] {
        let place = Place::new("demo_goes_on", "");
        write(&place, strategy);
        let train = |samples: u32, more: &str| {
            let said = place.run(&format!(
                "--nproc_per_node 2 --log_overwrite demo:lenet --samples {samples} --threads 1 \
                 --strategy job.prototxt {more}"
            ));
            said.check(0, &[]);
            said.out
        };
        train(5 * 32, "--checkpoint saves --checkpoint_every 5");
        let resumed = train(9 * 32, "--checkpoint saves --output resumed");
        assert!(resumed.contains("resumed after step 5 of 9"), "{strategy}: {resumed}");
        train(9 * 32, "--output whole");
        let (one, other) = (files(&place.path("resumed")), files(&place.path("whole")));
        assert!(one == other, "{strategy}: the models differ");
    }
}

#[test]
fn a_trace_says_what_is_not_hidden() {
    let place = Place::new("demo_traced", "");
    let said = place.run("--nproc_per_node 2 demo:lenet --samples 320 --threads 1 --trace traces");
    said.check(0, &[]);
    assert!(said.out.contains("trace     rank 0, mean of the last 10 steps: "), "{}", said.out);
    assert!(said.out.contains("exposed "), "{}", said.out);
    assert!(place.read("log/workerlog.1").contains("trace     rank 1, "));
    let fleet = |line: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_fleet"));
        let output = command.args(line.split_whitespace()).current_dir(&place.folder).output();
        crate::Said::new(output.unwrap())
    };
    let shown = fleet("trace traces --join all.json --top 2");
    shown.check(0, &[]);
    let lines: Vec<&str> = shown.out.lines().collect();
    assert_eq!(lines.len(), 6, "{}", shown.out);
    for (rank, at) in [(0, 0), (1, 3)] {
        let line = lines[at];
        assert!(line.starts_with(&format!("rank {rank}: ")), "{line}");
        let share = |what: &str| -> f64 {
            let rest = line.split_once(what).expect(what).1.trim_start();
            rest.split(' ').next().unwrap().parse().unwrap()
        };
        let (compute, talked, exposed) =
            (share("compute"), share("communication"), share("exposed"));
        assert!(compute > 0.0 && compute <= 100.0 && talked > 0.0, "{line}");
        assert!(exposed <= talked && compute + exposed <= 100.1, "{line}");
    }
    let joined = fleet("trace all.json --top 2");
    joined.check(0, &[]);
    let ranks = |text: &str| text.matches("rank ").count();
    assert_eq!(ranks(&joined.out), 2, "{}", joined.out);

    fleet("trace traces all.json").check(1, &["duplicate trace of rank 0"]);
    fleet("trace job.py").check(1, &["not a trace of a run", "job.py"]);
    fleet("trace nothing.json").check(1, &["nothing.json"]);
    fleet("trace log").check(1, &["no trace in the folder"]);
    place
        .run("--server_num=1 --worker_num=1 demo:wide_deep --samples 1024 --trace traces")
        .check(1, &["--trace is supported only for collective jobs"]);
}
