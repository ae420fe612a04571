//! `docs/features.md`: the documented features are complete and in order, and each proof exists and
//! runs.

use std::path::{Path, PathBuf};

/// The documented features, in the order of the specification.
const TITLES: [&str; 90] = [
    "DistributedStrategy object, all scalar fields and defaults",
    "Typed nested `*_configs` with key validation and append rule",
    "save_to_prototxt / load_from_prototxt round trip",
    "Strategy overview table",
    "`auto` strategy",
    "BuildStrategy fields",
    "ExecutionStrategy fields",
    "Compatibility with 1.x strategy attributes (thread_num, exec_strategy, use_local_sgd …)",
    "fleet.init collective / role makers",
    "distributed_optimizer + minimize, meta-optimiser chain",
    "Data-parallel training, same results as one process",
    "Loss-gradient 1/N scaling, all-reduce, parameter broadcast at start",
    "Equal-batch-count requirement / guard",
    "OP fusion: elementwise_add+act",
    "OP fusion: batch_norm+act, relu+depthwise conv, broadcast (warning in all-reduce mode)",
    "Optimiser-op fusion (SGD, Adam, Momentum)",
    "Gradient all-reduce fusion by MB",
    r#"Gradient all-reduce fusion by layer count ("TFLOPS")"#,
    "FLAGS_fuse_parameter_memory_size / groups_size",
    "Hierarchical all-reduce",
    "nccl_comm_num multi-communicator overlap, sync_nccl_allreduce",
    "CPU thread count setting",
    "scope drop and fetch frequency",
    "FLAGS_enable_parallel_graph single-host parallel mode",
    "GPU memory / NCCL environment knobs",
    "AMP O1: white/black/gray lists and casts",
    "AMP custom lists, overlap error",
    "Dynamic loss scaling state machine",
    "Static loss scaling",
    "Recompute with checkpoints",
    "Recompute offload",
    "amp + recompute combination",
    "Gradient merge, avg and sum",
    "Batch merge (variable communication frequency)",
    "LARS (+ exclude list)",
    "LAMB (+ exclude list)",
    "LocalSGD (post-LocalSGD) k_steps/begin_step",
    "Adaptive LocalSGD",
    "DGC rampup and sparsity schedule",
    "DGC momentum correction / masking / local clip / decay correction",
    "fp16_allreduce",
    "Sharding (ZeRO-like)",
    "Sharding hybrid-dp",
    "fuse_broadcast_MB segments and prefetch",
    "Pipeline parallel with device_guard and micro-batches",
    "F-then-B and 1F1B schedules",
    "Pipeline × data parallel",
    "sync_batch_norm",
    "Gradient clip (value, norm, global norm) incl. in sharding",
    "PLSC large-scale classification: dist softmax, Entry API",
    "ArcFace / dist_arcface",
    "DataLoader.from_generator, sample/list generators, double buffer; DALI switch as stub; \
     infinite reader",
    "InMemoryDataset load, local/global shuffle, release",
    "QueueDataset streaming; preload_into_memory / wait_preload_done",
    "pipe_command protocol + MultiSlot text format",
    "MultiSlotDataGenerator / String variant",
    "train_from_dataset, fetch printing",
    "get_file_shard, fleetx Downloader shards",
    "PS roles, startup order, barriers",
    "Environment variables and role-maker errors",
    "PS synchronous mode",
    "PS asynchronous mode",
    "GEO-SGD mode k_steps",
    "Communicator merge/wait configuration",
    "Dense merge + even partition",
    "Sparse tables, id placement, on-demand init",
    "Server-side SGD/Adagrad/Adam and storage of optimiser state",
    "Table descriptors printing (PSERVER_DEBUG)",
    "Worker program rewrite (send/lookup/push, optimiser removed)",
    "sparse_embedding + entries (count, probability, show-click)",
    "Feature decay/eviction (shrink), unseen days",
    "save_persistables full/base/delta modes",
    "Incremental training (reload dense on worker 0, sparse on servers, partial var lists)",
    "Streaming (online) training loop",
    "Heterogeneous PS with device_guard",
    "DistributedInfer",
    "Distributed metrics acc/auc/mae/mse/rmse/sum/max/min",
    "fleet.util all_reduce / barrier / all_gather / gloo rendezvous",
    "fleetrun collective single and multi node",
    "fleetrun PS by numbers and by endpoint lists",
    "Launcher logs, endpoints.log, env table, failure abort",
    "paddle.distributed.launch alias with selected_gpus",
    "Elastic launch options",
    "Kubernetes PaddleJob manifests",
    "DistributeTranspiler pserver mode (slice, dispatch, sync/async)",
    "DistributeTranspiler NCCL2 mode",
    "DC-ASGD",
    "RPC thread/deadline flags, min_block_size, RoundRobin / HashName",
    "wide & deep examples end to end (train + evaluate + metrics)",
    "ResNet examples (quick start, amp, gm, recompute, lars, lamb, fusion, overlap, topology, \
     sharding, localsgd, dgc, pipeline)",
];

/// Features of later versions.
const LATER: [usize; 2] = [75, 84];

struct Proof {
    path: String,
    /// Name of a test in the file.
    test: Option<String>,
}

#[test]
fn documented_features_are_complete_and_proved() {
    let text = features();
    let (documented, _) = text.split_once("## Beyond the documents").unwrap();
    let (_, documented) = documented.split_once("## Documented features").unwrap();
    let mut faults = Vec::new();
    let rows = rows(documented);
    assert_eq!(rows.len(), TITLES.len(), "rows of documented features");
    for (at, row) in rows.iter().enumerate() {
        let mut add = |fault: String| faults.push(format!("{}: {fault}", at + 1));
        let [number, title, state, proofs, missing] = &row[..] else {
            panic!("row {}: expected 5 columns, got {row:?}", at + 1);
        };
        if *number != (at + 1).to_string() || *title != TITLES[at] {
            add(format!("expected '{}', got {number} '{title}'", TITLES[at]));
        }
        let is_later = LATER.contains(&(at + 1));
        let proofs = proofs_of(proofs);
        match state.as_str() {
            "works" if proofs.iter().all(|proof| !is_proof(proof)) => add("no proof".to_string()),
            "works" => {}
            "partial" | "no" if missing == "-" => add("nothing is missing".to_string()),
            "partial" | "no" if is_later => add("belongs to a later version".to_string()),
            "partial" | "no" => {}
            "later" if is_later => {}
            other => add(format!("invalid state '{other}'")),
        }
        proofs.iter().filter_map(fault_of).for_each(add);
    }
    assert!(faults.is_empty(), "docs/features.md:\n{}", faults.join("\n"));
}

#[test]
fn other_features_are_proved() {
    let text = features();
    let (_, beyond) = text.split_once("## Beyond the documents").unwrap();
    let mut faults = Vec::new();
    for row in rows(beyond) {
        let [feature, state, proofs] = &row[..] else { panic!("expected 3 columns, got {row:?}") };
        if *state != "no" && !state.starts_with("yes") {
            faults.push(format!("{feature}: invalid state '{state}'"));
        }
        if state.starts_with("yes") && !proofs.contains('`') {
            faults.push(format!("{feature}: no proof"));
        }
        let found = proofs_of(proofs).into_iter().filter_map(|proof| fault_of(&proof));
        faults.extend(found.map(|fault| format!("{feature}: {fault}")));
    }
    assert!(faults.is_empty(), "docs/features.md:\n{}", faults.join("\n"));
}

/// The checks find what they are for.
#[test]
fn wrong_proofs_are_found() {
    let fault = |text: &str| {
        let proofs = proofs_of(text);
        assert_eq!(proofs.len(), 1, "{text}");
        fault_of(&proofs[0])
    };
    assert_eq!(fault("`xtask/tests/features.rs` (`wrong_proofs_are_found`)"), None);
    for (proof, expected) in [
        ("`xtask/tests/none.rs`", "does not exist"),
        ("`xtask/tests/features.rs` (`no_such_test`)", "has no test 'no_such_test'"),
        ("`xtask/tests/features.rs` (`fault_of`)", "has no test 'fault_of'"),
        ("`crates/fleet/examples/pictures/mod.rs`", "is run by no test"),
    ] {
        let found = fault(proof).unwrap_or_default();
        assert!(found.contains(expected), "{proof}: '{found}'");
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(root().join(path)).ok()
}

fn features() -> String {
    read("docs/features.md").expect("docs/features.md")
}

/// Returns the cells of the rows of a table, without its head.
fn rows(text: &str) -> Vec<Vec<String>> {
    let lines = text.lines().filter(|line| line.starts_with("| "));
    let cells = |line: &str| {
        let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
        inner.split(" | ").map(|cell| cell.trim().to_string()).collect::<Vec<String>>()
    };
    lines.skip(1).filter(|line| !line.starts_with("| ---")).map(cells).collect()
}

/// Returns the files in a cell, each with the test that follows it in parentheses.
fn proofs_of(cell: &str) -> Vec<Proof> {
    let parts: Vec<&str> = cell.split('`').collect();
    let mut proofs: Vec<Proof> = Vec::new();
    // Every second part is between quotes.
    for (at, part) in parts.iter().enumerate().skip(1).step_by(2) {
        let folders = ["crates/", "tests/", "xtask/", "python/tests/"];
        let is_file = folders.iter().any(|start| part.starts_with(start));
        if is_file {
            proofs.push(Proof { path: part.to_string(), test: None });
        } else if parts[at - 1] == " ("
            && parts.get(at + 1).is_some_and(|end| end.starts_with(')'))
            && let Some(proof) = proofs.last_mut()
        {
            proof.test = Some(part.to_string());
        }
    }
    proofs
}

/// Returns whether a proof is more than a file that exists.
fn is_proof(proof: &Proof) -> bool {
    let text = read(&proof.path).unwrap_or_default();
    let is_example = proof.path.contains("/examples/");
    proof.test.is_some()
        || is_example
        || proof.path.ends_with(".fleet")
        || proof.path.ends_with(".out")
        || text.contains("#[test]")
        || text.contains("/// ```")
}

/// Returns why a proof is none.
fn fault_of(proof: &Proof) -> Option<String> {
    let Proof { path, test } = proof;
    // A pattern stands for files in a folder.
    if let Some((start, _)) = path.split_once('*') {
        let folder = root().join(start).parent().map(Path::to_path_buf).unwrap_or_default();
        return (!folder.is_dir()).then(|| format!("{path} does not exist"));
    }
    if root().join(path).is_dir() {
        return None;
    }
    let Some(text) = read(path) else { return Some(format!("{path} does not exist")) };
    if let Some(test) = test
        && !has_test(&text, test)
    {
        return Some(format!("{path} has no test '{test}'"));
    }
    let runs = match path.split_once("/examples/") {
        Some((_, name)) => {
            let listed = ["crates/fleet/tests/examples.rs", "crates/fleet/tests/ranks/examples.rs"];
            let quoted = format!("/examples/{name}\"");
            listed.iter().any(|list| read(list).is_some_and(|list| list.contains(&quoted)))
        }
        None => !path.ends_with(".rs") || is_compiled(path),
    };
    (!runs).then(|| format!("{path} is run by no test"))
}

/// Returns whether a file has a test function of this name.
fn has_test(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let start = format!("fn {name}(");
    let found = lines.iter().enumerate().filter(|(_, line)| line.starts_with(&start));
    found.into_iter().any(|(at, _)| {
        let above = lines[..at].iter().rev();
        let mut attributes =
            above.take_while(|line| line.starts_with("#[") || line.starts_with("//"));
        attributes.any(|line| *line == "#[test]")
    }) || lines.iter().any(|line| line.starts_with(&format!("def {name}(")))
}

/// Returns whether a source file belongs to a crate or a test: modules name it, up to the root.
fn is_compiled(path: &str) -> bool {
    let path = Path::new(path);
    let (Some(folder), Some(stem)) = (path.parent(), path.file_stem()) else { return false };
    let (folder_name, stem) = (folder.file_name().unwrap_or_default(), stem.to_string_lossy());
    let is_root = matches!(&*stem, "main" | "lib") || folder_name == "tests";
    if is_root {
        return true;
    }
    // The module of `a/mod.rs` is `a`, in the folder above.
    let (folder, name) = match &*stem {
        "mod" => (folder.parent().unwrap_or(folder), folder_name.to_string_lossy()),
        _ => (folder, stem.clone()),
    };
    let inside = ["mod.rs", "main.rs", "lib.rs"].map(|file| folder.join(file));
    let parents = inside.into_iter().chain([folder.with_extension("rs")]);
    parents.into_iter().any(|parent| {
        let parent = parent.to_string_lossy().into_owned();
        let Some(text) = read(&parent) else { return false };
        let declared = [format!("mod {name};"), format!("\"{name}.rs\"")];
        declared.iter().any(|line| text.contains(line)) && is_compiled(&parent)
    })
}
