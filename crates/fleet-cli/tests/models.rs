//! Real programs through the tool's parts: every model of the zoo, with its backward pass and its
//! optimizer, verifies, prints, parses, and converts to protobuf and back.

use fleet_ir::Program;
use fleet_nn::models::*;
use fleet_nn::prelude::*;
use fleet_ops::{Registry, verify};

fn check(name: &str, program: &Program) {
    let errors = verify::errors(program, Registry::standard());
    assert!(errors.is_empty(), "{name}: {} errors, such as\n{}", errors.len(), errors[0]);
    let text = program.to_string();
    let read = Program::parse(&text, Registry::standard())
        .unwrap_or_else(|error| panic!("{name} does not parse: {error}"));
    assert!(read == *program, "{name} changes on its way through text");
    let read = Program::from_bytes(&program.to_bytes(), Registry::standard())
        .unwrap_or_else(|error| panic!("{name} is not read: {error}"));
    assert_eq!(read.to_string(), text, "{name} changes on its way through protobuf");
}

fn check_model(name: &str, build: impl FnOnce(&Net)) {
    let net = Net::new();
    build(&net);
    let programs = net.build().unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(programs.main.root_ops().len() > 10, "{name} is a program of some size");
    check(&format!("{name}, main"), &programs.main);
    check(&format!("{name}, startup"), &programs.startup);
    let test = programs.for_test().unwrap_or_else(|error| panic!("{name}: {error}"));
    check(&format!("{name}, for test"), &test);
}

#[test]
fn images() {
    let train = |net: &Net, model: ImageClassifier<'_>| {
        net.minimize(model.loss, Momentum::new(0.1, 0.9)).expect("it can be trained");
    };
    check_model("LeNet", |net| train(net, lenet(net, 10)));
    check_model("ResNet-50", |net| train(net, resnet(net, &ResNetConfig::new(50))));
    check_model("VGG-16", |net| train(net, vgg16(net, 1000)));
}

#[test]
fn clicks() {
    check_model("wide & deep", |net| {
        let model = wide_deep(net, &WideDeepConfig::criteo());
        net.minimize(model.loss, Adagrad::new(0.1)).expect("it can be trained");
    });
    check_model("DeepFM", |net| {
        let model = deepfm(net, &DeepFmConfig::criteo());
        net.minimize(model.loss, Sgd::new(0.1)).expect("it can be trained");
    });
}

#[test]
fn words() {
    check_model("BERT", |net| {
        let model = bert_mlm(net, &BertConfig::base());
        net.minimize(model.loss, AdamW::new(1e-4)).expect("it can be trained");
    });
    check_model("GPT", |net| {
        let model = gpt(net, &GptConfig::small());
        net.minimize(model.loss, Adam::new(1e-4)).expect("it can be trained");
    });
    check_model("word2vec", |net| {
        let model = word2vec(net, &Word2VecConfig::new(1000));
        net.minimize(model.loss, Sgd::new(0.1)).expect("it can be trained");
    });
}
