//! Checks that every example compiles and trains a few steps.

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
    quick_start: "../examples/quick_start.rs",
    recompute: "../examples/recompute.rs",
    resnet: "../examples/resnet.rs",
    servers_dataset: "../examples/servers_dataset.rs",
    servers_infer: "../examples/servers_infer.rs",
    servers_scale: "../examples/servers_scale.rs",
    strategy: "../examples/strategy.rs",
    sync_batch_norm: "../examples/sync_batch_norm.rs",
    training: "../examples/training.rs",
    transpiler: "../examples/transpiler.rs",
    vgg: "../examples/vgg.rs",
    wide_deep: "../examples/wide_deep.rs",
    word2vec: "../examples/word2vec.rs",
}
