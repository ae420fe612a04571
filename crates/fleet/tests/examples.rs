//! Checks that every example compiles and trains a few steps.

use fleet_testhost::process;

macro_rules! examples {
    ($($name:ident: $path:literal),* $(,)?) => {$(
        #[path = $path]
        #[allow(dead_code, clippy::duplicate_mod)] // main and code shared by examples
        mod $name;

        #[test]
        fn $name() -> fleet::Result<()> {
            $name::train(3)
        }
    )*};
}

examples! {
    adaptive_local_sgd: "../examples/adaptive_local_sgd.rs",
    amp: "../examples/amp.rs",
    bert: "../examples/bert.rs",
    click_tables: "../examples/click_tables.rs",
    classification: "../examples/classification.rs",
    data_parallel: "../examples/data_parallel.rs",
    deepfm: "../examples/deepfm.rs",
    dgc: "../examples/dgc.rs",
    fp16_allreduce: "../examples/fp16_allreduce.rs",
    gpt: "../examples/gpt.rs",
    gradient_merge: "../examples/gradient_merge.rs",
    hierarchical: "../examples/hierarchical.rs",
    images: "../examples/images.rs",
    lamb: "../examples/lamb.rs",
    lars: "../examples/lars.rs",
    lenet: "../examples/lenet.rs",
    local_sgd: "../examples/local_sgd.rs",
    pipeline: "../examples/pipeline.rs",
    quick_start: "../examples/quick_start.rs",
    recompute: "../examples/recompute.rs",
    resnet: "../examples/resnet.rs",
    servers_dataset: "../examples/servers_dataset.rs",
    servers_infer: "../examples/servers_infer.rs",
    servers_scale: "../examples/servers_scale.rs",
    streaming: "../examples/streaming.rs",
    strategy: "../examples/strategy.rs",
    sync_batch_norm: "../examples/sync_batch_norm.rs",
    training: "../examples/training.rs",
    transpiler: "../examples/transpiler.rs",
    vgg: "../examples/vgg.rs",
    wide_deep: "../examples/wide_deep.rs",
    word2vec: "../examples/word2vec.rs",
}

#[path = "../examples/criteo.rs"]
#[allow(dead_code)] // main
mod criteo;

/// In each mode, the files go through the data generator, which is this test in another process.
/// Its samples are the lines that begin with their 13 numbers; the others are of the test harness.
#[test]
fn criteo_through_a_data_generator() {
    if process::role().is_some() {
        return criteo::read().unwrap();
    }
    let exe = std::env::current_exe().unwrap();
    let reader = format!(
        "TEST_PROCESS_ROLE=reader '{}' --exact criteo_through_a_data_generator --nocapture \
         --test-threads=2 | grep '^13 '",
        exe.display()
    );
    for mode in ["sync", "async", "geo"] {
        let name = format!("fleet-criteo-{mode}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let area = criteo::train_in(&folder, mode, 3, &reader).unwrap().unwrap();
        assert!(area > 0.6, "{mode}: AUC {area}");
        assert!(folder.join("model/model").is_dir(), "{mode}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
