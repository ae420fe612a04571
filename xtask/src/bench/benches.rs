//! The benchmarks: names, units, peers and targets.

/// A benchmark and the scripts of its peers.
pub struct Bench {
    pub name: &'static str,
    pub unit: &'static str,
    pub peers: &'static [PeerScript],
    /// The rate to reach, if the comparison is with a number; the ratio is relative to it.
    pub target: Option<f64>,
}

pub struct PeerScript {
    pub framework: &'static str,
    pub path: &'static str,
    pub args: &'static [&'static str],
}

const fn peer(framework: &'static str, path: &'static str) -> PeerScript {
    PeerScript { framework, path, args: &[] }
}

const ADULT_PEER: &[PeerScript] =
    &[PeerScript { framework: "widedeep", path: "widedeep/tables.py", args: &["--data", "adult"] }];
const MOVIELENS_PEER: &[PeerScript] = &[PeerScript {
    framework: "widedeep",
    path: "widedeep/tables.py",
    args: &["--data", "movielens"],
}];

/// Trainings of a job file to the peer's best AUC.
const fn rec(name: &'static str, peers: &'static [PeerScript]) -> Bench {
    Bench { name, unit: "trainings/min", peers, target: None }
}

/// Searches of the best of many items.
const fn nearest(name: &'static str, peers: &'static [PeerScript]) -> Bench {
    Bench { name, unit: "queries/s", peers, target: None }
}

const NEAREST_PEER_5: &[PeerScript] = &[PeerScript {
    framework: "hnswlib",
    path: "hnswlib/nearest.py",
    args: &["--items", "100000"],
}];
const NEAREST_PEER_6: &[PeerScript] = &[PeerScript {
    framework: "hnswlib",
    path: "hnswlib/nearest.py",
    args: &["--items", "1000000"],
}];

const ADAGRAD: &[&str] = &["--optimizer", "adagrad"];

/// All-reduces; the scripts take size and ranks from the name.
const fn comm(name: &'static str) -> Bench {
    const PEERS: &[PeerScript] = &[peer("gloo", "comm/gloo.py"), peer("mpi", "comm/mpi.py")];
    Bench { name, unit: "GB/s", peers: PEERS, target: None }
}

/// All-reduces over loopback, or (`netns`) over a cable between two network namespaces, which needs
/// root. MPI is not a peer here, because it would use shared memory.
const fn over_tcp(name: &'static str) -> Bench {
    const PEERS: &[PeerScript] = &[peer("gloo", "comm/gloo.py")];
    Bench { name, unit: "GB/s", peers: PEERS, target: None }
}

/// Data-parallel training, two ranks of one thread.
const fn ddp(name: &'static str, peers: &'static [PeerScript]) -> Bench {
    Bench { name, unit: "samples/s", peers, target: None }
}

/// The speed with divided state relative to data parallelism.
const fn sharding(name: &'static str) -> Bench {
    Bench { name, unit: "of data parallel's speed", peers: &[], target: Some(1.0) }
}

/// The speed of a rank among others relative to that of one alone; the ratio is to perfect scaling.
const fn scaling(name: &'static str) -> Bench {
    Bench { name, unit: "of one rank's speed", peers: &[], target: Some(1.0) }
}

/// The same, compared with a peer's.
const fn scaling_vs(name: &'static str, peers: &'static [PeerScript]) -> Bench {
    Bench { name, unit: "of one rank's speed", peers, target: None }
}

/// The exposed communication of a step: less is better.
const fn exposed_comm(name: &'static str) -> Bench {
    Bench { name, unit: "% of a step", peers: &[], target: None }
}

/// Paddle's in-memory dataset, one part of it timed.
const DATASET: &str = "paddle/dataset.py";
const LOAD_PEER: &[PeerScript] =
    &[PeerScript { framework: "paddle", path: DATASET, args: &["--part", "load"] }];
const SHUFFLE_PEER: &[PeerScript] =
    &[PeerScript { framework: "paddle", path: DATASET, args: &["--part", "shuffle"] }];
const BATCHES_PEER: &[PeerScript] =
    &[PeerScript { framework: "paddle", path: DATASET, args: &["--part", "batches"] }];

const DDP: &str = "torch/ddp.py";
const MLP_PEER: &[PeerScript] =
    &[PeerScript { framework: "torch", path: DDP, args: &["--model", "mlp"] }];
const RESNET50_PEER: &[PeerScript] =
    &[PeerScript { framework: "torch", path: DDP, args: &["--model", "resnet50"] }];
const MLP_SCALING: &[PeerScript] =
    &[PeerScript { framework: "torch", path: DDP, args: &["--model", "mlp", "--weak-scaling"] }];
const RESNET50_SCALING: &[PeerScript] = &[PeerScript {
    framework: "torch",
    path: DDP,
    args: &["--model", "resnet50", "--weak-scaling"],
}];

const PIPELINE_PEER: &[PeerScript] = &[peer("torch", "torch/pipeline.py")];
const TENSOR_PEER: &[PeerScript] = &[peer("torch", "torch/tensor.py")];
const FSDP_PEER: &[PeerScript] = &[peer("torch", "torch/fsdp.py")];

const PS: &str = "paddle/ps_wide_deep.py";
/// With one worker and with two, on Paddle 2.6.2, the last release with parameter servers.
const PS_PEER_1: &[PeerScript] =
    &[PeerScript { framework: "paddle", path: PS, args: &["--ranks", "1"] }];
const PS_PEER_2: &[PeerScript] =
    &[PeerScript { framework: "paddle", path: PS, args: &["--ranks", "2"] }];

pub const BENCHES: &[Bench] = &[
    Bench {
        name: "train/wide_deep_sgd",
        unit: "samples/s",
        peers: &[peer("torch", "torch/wide_deep.py"), peer("paddle", "paddle/wide_deep.py")],
        target: None,
    },
    Bench {
        name: "train/wide_deep_adagrad",
        unit: "samples/s",
        peers: &[
            PeerScript { framework: "torch", path: "torch/wide_deep.py", args: ADAGRAD },
            PeerScript { framework: "paddle", path: "paddle/wide_deep.py", args: ADAGRAD },
        ],
        target: None,
    },
    Bench {
        name: "train/bert4",
        unit: "samples/s",
        peers: &[peer("torch", "torch/bert4.py")],
        target: None,
    },
    Bench {
        name: "train/bert4_bf16",
        unit: "samples/s",
        peers: &[PeerScript { framework: "torch", path: "torch/bert4.py", args: &["--bf16"] }],
        target: None,
    },
    Bench {
        name: "train/resnet50",
        unit: "samples/s",
        peers: &[peer("torch", "torch/resnet50.py"), peer("paddle", "paddle/resnet50.py")],
        target: None,
    },
    // Python beside Rust, in turn. The first two are limits: a smaller result is better.
    Bench { name: "py/import", unit: "ms beyond numpy", peers: &[], target: None },
    Bench { name: "py/run_overhead", unit: "us beyond Rust", peers: &[], target: None },
    Bench { name: "py/wide_deep_vs_rust", unit: "of Rust's speed", peers: &[], target: Some(1.0) },
    Bench {
        name: "py/wide_deep_script_vs_rust",
        unit: "of Rust's speed",
        peers: &[],
        target: Some(1.0),
    },
    // One script on Fleet and on Paddle.
    Bench {
        name: "py/wide_deep_script_vs_paddle",
        unit: "samples/s",
        peers: PS_PEER_2,
        target: None,
    },
    Bench {
        name: "data/multislot_parse_vs_500MBps",
        unit: "MB/s",
        peers: &[],
        target: Some(500.0),
    },
    Bench { name: "data/wide_deep_text_vs_memory", unit: "%", peers: &[], target: Some(90.0) },
    // With parameter servers: two workers, one server.
    Bench { name: "data/wide_deep_text_vs_memory_1s2w", unit: "%", peers: &[], target: Some(90.0) },
    Bench { name: "data/load", unit: "MB/s", peers: LOAD_PEER, target: None },
    Bench { name: "data/shuffle", unit: "records/s", peers: SHUFFLE_PEER, target: None },
    Bench { name: "data/batches", unit: "records/s", peers: BATCHES_PEER, target: None },
    Bench {
        name: "data/csv_load",
        unit: "MB/s",
        peers: &[peer("polars", "polars/tables.py")],
        target: None,
    },
    Bench { name: "data/columns_load", unit: "MB/s", peers: &[], target: None },
    Bench { name: "data/images_vs_compute", unit: "%", peers: &[], target: Some(90.0) },
    comm("comm/allreduce_2x4KB"),
    comm("comm/allreduce_2x1MB"),
    comm("comm/allreduce_2x25MB"),
    comm("comm/allreduce_2x100MB"),
    comm("comm/allreduce_4x4KB"),
    comm("comm/allreduce_4x1MB"),
    comm("comm/allreduce_4x25MB"),
    comm("comm/allreduce_4x100MB"),
    over_tcp("comm/tcp_allreduce_2x1MB"),
    over_tcp("comm/tcp_allreduce_2x25MB"),
    over_tcp("comm/netns_allreduce_2x1MB"),
    over_tcp("comm/netns_allreduce_2x25MB"),
    ddp("ddp/mlp_step_vs_torch", MLP_PEER),
    ddp("ddp/resnet50_step_vs_torch", RESNET50_PEER),
    scaling("ddp/mlp_weak_scaling"),
    scaling("ddp/resnet50_weak_scaling"),
    scaling_vs("ddp/mlp_weak_scaling_vs_torch", MLP_SCALING),
    scaling_vs("ddp/resnet50_weak_scaling_vs_torch", RESNET50_SCALING),
    scaling("ddp/mlp_side_by_side"),
    scaling("ddp/resnet50_side_by_side"),
    scaling("ddp/mlp_in_step"),
    scaling("ddp/resnet50_in_step"),
    exposed_comm("ddp/mlp_exposed_comm"),
    exposed_comm("ddp/resnet50_exposed_comm"),
    Bench {
        name: "ddp/mlp_update_on_arrival",
        unit: "of the speed without",
        peers: &[],
        target: Some(1.0),
    },
    // The aim is 9/10 of 1.78, the speed without other costs than the bubble.
    Bench { name: "mp/pipeline", unit: "of one rank's speed", peers: &[], target: Some(1.6) },
    Bench { name: "mp/pipeline_vs_torch", unit: "samples/s", peers: PIPELINE_PEER, target: None },
    Bench { name: "mp/plsc", unit: "ms", peers: &[], target: None },
    // The aim is 1.6 times the speed of one rank.
    Bench { name: "mp/tensor", unit: "of one rank's speed", peers: &[], target: Some(1.6) },
    Bench { name: "mp/tensor_vs_torch", unit: "samples/s", peers: TENSOR_PEER, target: None },
    // The aims are at most 1.05, 1.05 and 1.15 times the step of data parallelism.
    sharding("mp/sharding_stage1"),
    sharding("mp/sharding_stage2"),
    sharding("mp/sharding_stage3"),
    Bench { name: "mp/fsdp_vs_torch", unit: "samples/s", peers: FSDP_PEER, target: None },
    Bench { name: "comm/memory", unit: "GB/s", peers: &[], target: None },
    Bench {
        name: "ps/table_pull_rows_per_core_1e7",
        unit: "rows/s",
        peers: &[],
        target: Some(1e7),
    },
    Bench {
        name: "ps/table_push_rows_per_core_5e6",
        unit: "rows/s",
        peers: &[],
        target: Some(5e6),
    },
    // The targets are Paddle 2.6.2 on two cores of a Xeon (2.0 GHz), by its own count.
    Bench {
        name: "ps/wide_deep_1s1w_vs_paddle",
        unit: "samples/s",
        peers: PS_PEER_1,
        target: Some(21_100.0),
    },
    Bench {
        name: "ps/wide_deep_1s2w_vs_paddle",
        unit: "samples/s",
        peers: PS_PEER_2,
        target: Some(28_500.0),
    },
    Bench { name: "ps/wide_deep_1s2w_sync", unit: "samples/s", peers: &[], target: Some(50_000.0) },
    Bench { name: "ps/rpc_pull_rows_per_pair_3e6", unit: "rows/s", peers: &[], target: Some(3e6) },
    Bench { name: "ps/rpc_push_rows_per_pair_3e6", unit: "rows/s", peers: &[], target: Some(3e6) },
    Bench {
        name: "ps/wide_deep_durability",
        unit: "of the speed without",
        peers: &[],
        target: Some(0.9),
    },
    Bench {
        name: "ps/durability_cost",
        unit: "of the speed without",
        peers: &[],
        target: Some(0.9),
    },
    Bench { name: "ps/table_payload_percent_of_held", unit: "%", peers: &[], target: Some(80.0) },
    // The aim is 10 times the peer's.
    rec("rec/adult_vs_widedeep", ADULT_PEER),
    rec("rec/movielens_vs_widedeep", MOVIELENS_PEER),
    // Limits of the 99th percentile, which are 5 ms: a smaller result is better.
    Bench { name: "rec/serve_json", unit: "ms", peers: &[], target: None },
    Bench { name: "rec/serve_grpc", unit: "ms", peers: &[], target: None },
    Bench { name: "rec/predict", unit: "of the forward speed", peers: &[], target: Some(0.8) },
    Bench {
        name: "rec/csv_training",
        unit: "of the speed in memory",
        peers: &[],
        target: Some(0.85),
    },
    Bench {
        name: "rec/csv_training_streamed",
        unit: "of the speed in memory",
        peers: &[],
        target: Some(0.85),
    },
    nearest("rec/nearest_100000", NEAREST_PEER_5),
    nearest("rec/nearest_1000000", NEAREST_PEER_6),
    Bench {
        name: "rec/criteo_logs",
        unit: "limit of the difference to the best AUC, over it",
        peers: &[],
        target: Some(1.0),
    },
    // 50 ms per start.
    Bench { name: "launch/startup_vs_50ms", unit: "starts/s", peers: &[], target: Some(20.0) },
];

pub const FRAMEWORKS: [&str; 7] =
    ["torch", "paddle", "polars", "widedeep", "hnswlib", "gloo", "mpi"];
