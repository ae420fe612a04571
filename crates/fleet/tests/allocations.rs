//! A training step in the steady state allocates nothing, on any thread.
//!
//! This binary has only one test, since the count covers the whole process. It has no test harness,
//! whose thread allocates to report a slow test.

#[path = "common/counting.rs"]
mod counting;
#[path = "models/zoo.rs"]
#[allow(dead_code)] // only model comparisons use the rest
mod zoo;

use fleet::prelude::*;

/// Runs the test as a harness would: not at all if a filter names other tests.
fn main() {
    const NAME: &str = "steps_allocate_nothing";
    let words: Vec<String> = std::env::args().skip(1).collect();
    // A word after an option may be its value: if in doubt, the test runs.
    let is_option = |at: usize| words[at].starts_with('-');
    let is_filter = |at: &usize| !is_option(*at) && (*at == 0 || !is_option(at - 1));
    let mut filters = (0..words.len()).filter(is_filter).map(|at| words[at].as_str()).peekable();
    let is_meant = filters.peek().is_none() || filters.any(|filter| NAME.contains(filter));
    if words.iter().any(|word| word == "--list") {
        println!("{NAME}: test");
    } else if is_meant {
        steps_allocate_nothing();
        println!("test {NAME} ... ok");
    }
}

fn steps_allocate_nothing() {
    count(&merged(), 1);
    // Every model of the zoo, which includes those of the four training benchmarks.
    let models = [
        zoo::lenet(),
        zoo::resnet18(),
        zoo::resnet50(),
        zoo::vgg(),
        zoo::bert(),
        zoo::bert_masked(),
        zoo::gpt(),
        zoo::wide_deep(),
        zoo::wide_deep_adagrad(),
        zoo::deepfm(),
        zoo::word2vec(),
        zoo::forked(),
    ];
    for model in models {
        for threads in [1, 2] {
            count(&model, threads);
        }
    }
}

/// A model updated in every third step: a program with conditional parts.
fn merged() -> zoo::Model {
    let fleet = fleet::Fleet::join(&fleet::topology::Env::new()).unwrap();
    let net = Net::new();
    let (x, y) = (net.data("x", [-1, 16], DType::F32), net.data("y", [-1, 1], DType::F32));
    let loss = x.fc(Fc::new(32).act(Act::Relu)).fc(1).mse_loss(y, Reduction::Mean);
    let strategy = fleet::DistributedStrategy::new().use_gradient_merge(3);
    fleet.distributed_optimizer(Adam::new(0.1), &strategy).minimize(&net, loss).unwrap();
    let batch = |at: usize| {
        let x = Tensor::from_slice(&[at as f32 * 0.1; 64], [4, 16]).unwrap();
        let y = Tensor::from_slice(&[1.0f32; 4], [4, 1]).unwrap();
        vec![("x", x), ("y", y)]
    };
    let loss = loss.name();
    zoo::Model {
        name: "gradient merge",
        programs: net.build().unwrap(),
        batches: (0..3).map(batch).collect(),
        loss,
        outputs: Vec::new(),
        shift: 0.0,
    }
}

fn count(model: &zoo::Model, threads: usize) {
    let options = ExecOptions::threads(threads);
    let mut session = Session::new(model.programs.clone(), options).unwrap();
    let feeds: Vec<Vec<(&str, &Tensor)>> = model.batches.iter().map(zoo::feed).collect();
    let fetches: [&[&str]; 2] = [&[], &[&model.loss]];
    let mut out = Vec::new();
    for fetch in fetches {
        let Session { programs, scope, executor, .. } = &mut session;
        let mut step = |at: usize| {
            executor.run_into(&programs.main, scope, &feeds[at % 3], fetch, &mut out).unwrap();
        };
        (0..4).for_each(&mut step);
        let before = counting::allocations();
        (4..12).for_each(&mut step);
        let made = counting::allocations() - before;
        assert_eq!(made, 0, "{} on {threads} threads, fetching {fetch:?}", model.name);
    }
}
