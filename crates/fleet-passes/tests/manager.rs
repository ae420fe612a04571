//! The pass manager, and the order of the executor's passes.

use fleet_base::{Error, Result};
use fleet_ir::{Program, VarId};
use fleet_nn::models::{
    BertConfig, GptConfig, ResNetConfig, WideDeepConfig, bert_tokens, gpt, resnet, wide_deep,
};
use fleet_nn::prelude::*;
use fleet_ops::Registry;
use fleet_passes::{BuildOptions, Observer, PASSES, Pass, PassManager, optimize_observed};
use fleet_strategy::{DistributedStrategy, Ranks, minimize};

/// Returns the training program of one of two ranks.
fn trained(model: impl Fn(&Net) -> VarId) -> Program {
    let (net, strategy) = (Net::new(), DistributedStrategy::new());
    let loss = model(&net);
    let optimizer = Momentum::new(0.1, 0.9).into();
    net.rewrite_with(|programs, registry| {
        minimize(programs, registry, loss, &optimizer, &strategy, Ranks::new(0, 2))
    })
    .unwrap();
    net.build().unwrap().main
}

fn resnet18(net: &Net) -> VarId {
    resnet(net, &ResNetConfig { size: 64, ..ResNetConfig::new(18) }).loss.id()
}

/// A relu that a batch norm or a depthwise convolution can take.
fn depthwise(net: &Net) -> VarId {
    let x = net.data("x", [-1, 3, 8, 8], DType::F32).conv2d(Conv2d::new(8, 1));
    let x = x.batch_norm(BatchNorm::new()).relu();
    x.conv2d(Conv2d::new(8, 3).groups(8).padding(1)).mean().id()
}

/// Every fusion has something to do in one of these programs.
fn programs() -> Vec<Program> {
    let bert = |net: &Net| {
        let config = BertConfig { layers: 2, padded: false, ..BertConfig::base() };
        bert_tokens(net, &config, 9).loss.id()
    };
    let gpt = |net: &Net| gpt(net, &GptConfig { layers: 2, ..GptConfig::small() }).loss.id();
    let clicks = |net: &Net| wide_deep(net, &WideDeepConfig::criteo()).loss.id();
    vec![trained(resnet18), trained(depthwise), trained(bert), trained(gpt), trained(clicks)]
}

fn run_all(passes: &[Pass], program: &Program) -> Result<String> {
    let (registry, options) = (Registry::standard(), BuildOptions::default());
    Ok(PassManager::new(registry).run_all(passes, program, &[], &options)?.to_string())
}

/// Records the passes and the programs before and after them.
#[derive(Default)]
struct Record {
    passes: Vec<String>,
    texts: Vec<String>,
}

impl Record {
    fn add(&mut self, programs: &[(&'static str, &Program)]) {
        self.texts.extend(programs.iter().map(|(_, program)| program.to_string()));
    }
}

impl Observer for Record {
    fn before(&mut self, pass: &str, programs: &[(&'static str, &Program)]) {
        self.passes.push(pass.to_string());
        self.add(programs);
    }

    fn after(&mut self, _: &str, programs: &[(&'static str, &Program)]) {
        self.add(programs);
    }
}

#[test]
fn observers_see_the_program_before_and_after_each_pass() {
    let program = trained(resnet18);
    let mut record = Record::default();
    let (registry, options) = (Registry::standard(), BuildOptions::default());
    let done = optimize_observed(&program, registry, &[], &options, &mut record).unwrap();
    let names: Vec<&str> = PASSES.iter().map(|pass| pass.name).collect();
    assert_eq!(record.passes, names);
    assert_eq!(record.texts.len(), 2 * names.len());
    assert_eq!(record.texts[0], program.to_string());
    assert_eq!(record.texts.last(), Some(&done.to_string()));
    let (_, inner) = record.texts.split_first().unwrap();
    assert!(inner.chunks_exact(2).all(|pair| pair[0] == pair[1]), "a pass starts where one ended");
}

#[test]
fn a_pass_that_makes_an_invalid_program_is_named() {
    let wrong = Pass {
        name: "wrong_shape",
        about: "declares a wrong shape",
        option: None,
        follows: None,
        run: |program, _, _| {
            let (_, op) = program.root_ops().find(|(_, op)| op.name() == "conv2d").unwrap();
            let out = op.output("Output")[0];
            program.var_mut(out).shape = [3, 5].into();
            Ok(true)
        },
    };
    let mut passes = PASSES[..3].to_vec();
    passes.insert(1, wrong);
    let program = trained(depthwise);
    let mut record = Record::default();
    let error = PassManager::observed(Registry::standard(), &mut record)
        .run_all(&passes, &program, &[], &BuildOptions::default())
        .unwrap_err();
    let text = error.to_string();
    assert!(text.contains("pass 'wrong_shape' produced an invalid program"), "{text}");
    assert_eq!(record.passes, ["dead_ops", "wrong_shape"], "no pass runs after it");
}

#[test]
fn a_pass_that_fails_is_named() {
    let failing = Pass { name: "fails", run: |_, _, _| Err(Error::invalid("no")), ..PASSES[0] };
    let error = run_all(&[failing], &trained(depthwise)).unwrap_err();
    assert!(error.to_string().contains("pass 'fails'"), "{error}");
}

/// Planning reports the errors of such a program.
#[test]
fn no_pass_is_named_for_a_program_that_was_invalid_before() {
    let mut program = trained(depthwise);
    let loss = program.root_ops().find(|(_, op)| op.name() == "mean").unwrap().1.output("Out")[0];
    program.var_mut(loss).shape = [3, 5].into();
    run_all(PASSES, &program).unwrap();
}

#[test]
fn disabled_passes_do_not_run() {
    let program = trained(resnet18);
    let mut record = Record::default();
    let (registry, options) = (Registry::standard(), BuildOptions::none());
    optimize_observed(&program, registry, &[], &options, &mut record).unwrap();
    assert_eq!(record.passes, ["dead_ops"]);
}

/// Passes whose order matters, as the comments of the list say.
const ORDERED: [(&str, &str); 6] = [
    ("batch_norm_add_act", "elementwise_act"),
    ("gemm_epilogue", "gemm_relu_grad"),
    ("batch_norm_act", "relu_depthwise"),
    ("batch_norm_act", "batch_norm_grad_sum"),
    ("update_on_arrival", "optimizer"),
    ("layout", "batch_norm_stats"),
];

fn position(passes: &[Pass], name: &str) -> usize {
    passes.iter().position(|pass| pass.name == name).unwrap()
}

#[test]
fn other_neighbours_may_be_swapped() {
    for program in programs() {
        let expected = run_all(PASSES, &program).unwrap();
        for at in 1..PASSES.len() - 1 {
            let names = (PASSES[at].name, PASSES[at + 1].name);
            let mut passes = PASSES.to_vec();
            passes.swap(at, at + 1);
            if !ORDERED.contains(&names) {
                assert!(run_all(&passes, &program).unwrap() == expected, "{names:?}");
            }
        }
    }
}

#[test]
fn the_order_of_the_others_matters() {
    let programs = programs();
    let expected: Vec<String> = programs.iter().map(|it| run_all(PASSES, it).unwrap()).collect();
    for (first, second) in ORDERED {
        let mut passes = PASSES.to_vec();
        let moved = passes.remove(position(&passes, second));
        passes.insert(position(&passes, first), moved);
        let mut results = programs.iter().map(|program| run_all(&passes, program).unwrap());
        assert!(!results.by_ref().eq(expected.iter().cloned()), "{first} before {second}");
    }
}
