//! The examples of strategies, on several workers.

use crate::launch::{assert_success, run_in};

macro_rules! examples {
    ($($name:ident: $path:literal),* $(,)?) => {
        $(
            #[path = $path]
            #[allow(dead_code, clippy::duplicate_mod)] // main and code shared by examples
            mod $name;
        )*

        const NAMES: &[&str] = &[$(stringify!($name)),*];

        /// Runs in a rank process.
        pub fn run_example(name: &str) -> fleet::Result<()> {
            match name {
                $(stringify!($name) => $name::train(12),)*
                other => panic!("no example {other}"),
            }
        }
    };
}

examples! {
    adaptive_local_sgd: "../../examples/adaptive_local_sgd.rs",
    amp: "../../examples/amp.rs",
    classification: "../../examples/classification.rs",
    dgc: "../../examples/dgc.rs",
    fp16_allreduce: "../../examples/fp16_allreduce.rs",
    gradient_merge: "../../examples/gradient_merge.rs",
    hierarchical: "../../examples/hierarchical.rs",
    lamb: "../../examples/lamb.rs",
    lars: "../../examples/lars.rs",
    local_sgd: "../../examples/local_sgd.rs",
    pipeline: "../../examples/pipeline.rs",
    recompute: "../../examples/recompute.rs",
    sharding: "../../examples/sharding.rs",
    sync_batch_norm: "../../examples/sync_batch_norm.rs",
    tensor_parallel: "../../examples/tensor_parallel.rs",
}

/// Worker 0 prints the bytes sent and the loss.
#[test]
fn every_example_trains_on_several_workers() {
    for name in NAMES {
        let ranks = if *name == "hierarchical" { 4 } else { 2 };
        let outputs = run_in("example", ranks, name);
        assert_success(&outputs);
        let text = String::from_utf8_lossy(&outputs[0].stdout);
        assert!(text.contains("sent by this rank") && text.contains("step 12: loss"), "{text}");
    }
}

#[path = "../../examples/resnet.rs"]
#[allow(dead_code, clippy::duplicate_mod)] // main and code shared by examples
mod resnet;

/// Runs in a rank process.
pub fn run_resnet(strategy: &str) -> fleet::Result<()> {
    resnet::train_by(strategy, 2, 18, 32).map(drop)
}

/// Worker 0 prints the documented line of progress.
#[test]
fn resnet_trains_by_every_documented_strategy() {
    for name in resnet::STRATEGIES {
        let ranks = if name == "topology" { 4 } else { 2 };
        let outputs = run_in("resnet", ranks, name);
        assert_success(&outputs);
        let text = String::from_utf8_lossy(&outputs[0].stdout);
        let line = text.lines().find_map(|line| line.split_once("[Epoch 0, batch 0] loss: "));
        let (_, values) = line.unwrap_or_else(|| panic!("{name}: no line of progress in {text}"));
        let numbers: Vec<f64> = values
            .split(", ")
            .map(|part| part.rsplit(' ').next().unwrap().parse().unwrap())
            .collect();
        assert!(values.contains(", acc1: ") && values.contains(", acc5: "), "{values}");
        let [loss, acc1, acc5] = numbers[..] else { panic!("{values}") };
        assert!(loss > 1.0 && loss < 10.0 && acc1 <= acc5 && acc5 <= 1.0, "{name}: {values}");
        assert!(text.contains("accuracy on 256 unseen digits"), "{text}");
    }
}
