//! Every example compiles and trains a few steps.

macro_rules! examples {
    ($($name:ident: $path:literal),* $(,)?) => {$(
        #[path = $path]
        #[allow(dead_code)] // main
        mod $name;

        #[test]
        fn $name() -> fleet::Result<()> {
            $name::train(3)
        }
    )*};
}

examples! {
    bert: "../../../examples/bert.rs",
    data_parallel: "../../../examples/data_parallel.rs",
    deepfm: "../../../examples/deepfm.rs",
    gpt: "../../../examples/gpt.rs",
    lenet: "../../../examples/lenet.rs",
    quick_start: "../../../examples/quick_start.rs",
    resnet: "../../../examples/resnet.rs",
    strategy: "../../../examples/strategy.rs",
    vgg: "../../../examples/vgg.rs",
    wide_deep: "../../../examples/wide_deep.rs",
    word2vec: "../../../examples/word2vec.rs",
}
