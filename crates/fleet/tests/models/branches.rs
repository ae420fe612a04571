//! Tests of `Net::cond`: gradients of both branches against finite differences, and rejected uses.
//! (The zoo's `forked` model is compared with the interpreter under every rewrite.)

use fleet::Interpreter;
use fleet::prelude::*;
use fleet::strategy::AmpConfig;

/// Step of a finite difference, and its largest allowed distance from the gradient.
const WIDTH: f32 = 1e-2;
const APART_MAX: f32 = 2e-3;

/// Builds a network with parameters of one branch, of a nested branch, of both branches and of
/// none. Both branches use variables from outside, and one result is used twice.
fn network(net: &Net) -> Var<'_> {
    let x = net.data("x", [-1, 3], DType::F32);
    let side = net.data("side", [1], DType::F32);
    let shared = || Fc::new(2).weight("shared");
    let stem = x.fc(Fc::new(3).act(Act::Tanh));
    let results = net.cond_many(
        side.greater_than(0.0),
        || vec![stem.fc(Fc::new(4).act(Act::Tanh)).fc(shared()), stem.mean()],
        || {
            let twice = stem * stem + stem;
            let far = side.less_than(-1.0);
            let wide = net.cond(far, || twice.fc(4), || (twice * 3.0).fc(Fc::new(4)).tanh());
            vec![wide.fc(shared()), stem.sum()]
        },
    );
    (results[0] + stem.mean()).square().mean() + results[1] * results[1] * 0.1
}

fn feeds(side: f32) -> (Tensor, Tensor) {
    let x: Vec<f32> = (0..12).map(|at| ((at * 7 % 11) as f32 - 5.0) / 5.0).collect();
    (Tensor::from_slice(&x, [4, 3]).unwrap(), Tensor::from_slice(&[side], [1]).unwrap())
}

fn number(tensor: &Tensor) -> f32 {
    tensor.to_vec::<f32>().unwrap()[0]
}

/// Returns the gradient of a parameter by finite differences of the interpreter's loss.
fn differences(net: &Net, scope: &mut Scope, loss: &str, parameter: &str, side: f32) -> Vec<f32> {
    let forward = net.build().unwrap().for_test().unwrap();
    let (x, side) = feeds(side);
    let feed = [("x", &x), ("side", &side)];
    let held = scope.tensor(parameter).unwrap();
    let mut loss_at = |at: usize, by: f32| {
        let mut moved = held.try_clone().unwrap();
        moved.as_mut_slice::<f32>().unwrap()[at] += by;
        scope.assign(parameter, &moved).unwrap();
        number(&Interpreter::new().run(&forward, scope, &feed, &[loss]).unwrap()[0])
    };
    let count = held.shape().numel().unwrap();
    let all = (0..count).map(|at| (loss_at(at, WIDTH) - loss_at(at, -WIDTH)) / (2.0 * WIDTH));
    let all = all.collect();
    scope.assign(parameter, &held).unwrap();
    all
}

#[test]
fn gradients_are_those_of_the_branch_that_runs() {
    let net = Net::new();
    net.set_seed(11);
    let loss = network(&net);
    let pairs: Vec<(String, String)> =
        net.backward(loss).unwrap().pairs.iter().map(|(p, g)| (p.name(), g.name())).collect();
    assert_eq!(pairs.len(), 11, "{pairs:?}");
    let programs = net.build().unwrap();
    let mut scope = Scope::new();
    let mut executor = Executor::new(ExecOptions::threads(2));
    executor.run(&programs.startup, &mut scope, &[], &[]).unwrap();
    let mut zeros = Vec::new();
    for side in [1.0, -0.5, -2.0, 1.0] {
        let (x, given) = feeds(side);
        let feed = [("x", &x), ("side", &given)];
        let names: Vec<&str> = pairs.iter().map(|(_, grad)| grad.as_str()).collect();
        let found = executor.run(&programs.main, &mut scope, &feed, &names).unwrap();
        let plain = Interpreter::new().run(&programs.main, &mut scope, &feed, &names).unwrap();
        let mut idle = 0;
        for (((parameter, _), found), plain) in pairs.iter().zip(&found).zip(&plain) {
            let (found, plain) = (found.to_vec::<f32>().unwrap(), plain.to_vec::<f32>().unwrap());
            let expected = differences(&net, &mut scope, &loss.name(), parameter, side);
            idle += usize::from(found.iter().all(|value| *value == 0.0));
            for ((found, plain), expected) in found.iter().zip(&plain).zip(&expected) {
                let near = |a: &f32, b: &f32, limit: f32| (a - b).abs() <= limit * (1.0 + b.abs());
                assert!(near(found, plain, 1e-6), "{parameter} at {side}: {found}, not {plain}");
                assert!(
                    near(found, expected, APART_MAX),
                    "{parameter} at {side}: {found}, not {expected}"
                );
            }
        }
        zeros.push(idle);
    }
    // Weight and bias of every layer that the step did not run.
    assert_eq!(zeros, [5, 5, 5, 5]);
}

/// A branch's variables have a value in only some steps, and a fetch must not return another
/// variable's memory.
#[test]
fn what_a_branch_makes_is_not_fetched() {
    let net = Net::new();
    let loss = network(&net);
    let inside = net.var("fc_1.tmp_0").name();
    let mut session = Session::new(net.build().unwrap(), ExecOptions::threads(1)).unwrap();
    let (x, side) = feeds(1.0);
    let feed = [("x", &x), ("side", &side)];
    let error = session.run(&feed, &[&inside]).unwrap_err().to_string();
    assert!(error.contains("'fc_1.tmp_0' cannot be fetched"), "{error}");
    assert!(error.contains("got a variable that only a conditional block writes"), "{error}");
    session.run(&feed, &[&loss.name()]).unwrap();
}

#[test]
fn mistakes_are_told_where_they_are_made() {
    let check = |write: &dyn Fn(&Net, Var<'_>, Var<'_>), words: &str| {
        let net = Net::new();
        let x = net.data("x", [-1, 3], DType::F32);
        let holds = x.mean().greater_than(0.0);
        write(&net, x, holds);
        let error = net.error().expect(words).to_string();
        assert!(error.contains(words) && error.contains("branches.rs:"), "{error}");
    };
    let both = |net: &Net, holds: Var<'_>, a: Var<'_>, b: Var<'_>| {
        net.cond(holds, || a * 1.0, || b * 1.0);
    };
    check(&|net, x, _| both(net, x, x, x), "invalid condition of cond: expected one boolean");
    check(&|net, x, _| both(net, x.greater_than(0.0), x, x), "got bool[-1, 3]");
    check(&|net, x, holds| both(net, holds, x, x.sum()), "result 0 of cond differs");
    check(
        &|net, x, holds| drop(net.cond_many(holds, || vec![x], || vec![x, x])),
        "different numbers of results: expected 1 from both branches, got 2",
    );
    check(
        &|net, x, holds| {
            net.cond(
                holds,
                || x * 1.0,
                || {
                    let _ = net.minimize(x.fc(1).mean(), Sgd::new(0.1));
                    x * 1.0
                },
            );
        },
        "cannot rewrite the network inside a branch",
    );
    check(
        &|net, x, holds| {
            let ids = net.data("ids", [-1, 1], DType::I64);
            let rows = || ids.embedding(Embedding::new(10, 3).sparse()).flatten(1);
            let _ = net.minimize(net.cond(holds, rows, || x * 1.0).mean(), Sgd::new(0.1));
        },
        "from a conditional block is not supported",
    );
}

/// Precisions are chosen op by op in the root block, not in branches.
#[test]
fn mixed_precision_is_refused() {
    let net = Net::new();
    let loss = network(&net);
    let fleet = Fleet::collective().unwrap();
    let strategy = DistributedStrategy::new().use_amp(AmpConfig::default());
    let optimizer = fleet.distributed_optimizer(Sgd::new(0.1), &strategy);
    let error = optimizer.minimize(&net, loss).err().unwrap().to_string();
    assert!(error.contains("amp does not support the branches of a cond"), "{error}");
}

/// A user-defined learning-rate function continues after a checkpoint is loaded, in sessions and
/// datasets.
#[test]
fn the_session_calls_schedules_of_the_host() {
    let build = || {
        let net = Net::new();
        let loss = net.data("x", [-1, 2], DType::F32).fc(1).mean();
        let by_epoch = LrSchedule::lambda_by_epoch(1.0, 2, |epoch| 1.0 / (1 + epoch) as f64);
        let schedule = by_epoch.warmup(2, 0.0, 0.5);
        let rate = net.minimize(loss, Sgd::new(schedule)).unwrap().learning_rate.name();
        (Session::new(net.build().unwrap(), ExecOptions::threads(1)).unwrap(), rate)
    };
    let (mut session, rate) = build();
    let x = Tensor::from_slice(&[1.0f32; 4], [2, 2]).unwrap();
    let rates = |session: &mut Session, steps: usize| -> Vec<f32> {
        let run = |_| number(&session.run(&[("x", &x)], &[&rate]).unwrap()[0]);
        (0..steps).map(run).collect()
    };
    assert_eq!(rates(&mut session, 5), [0.0, 0.25, 1.0, 1.0, 0.5]);
    session.evaluate(&[("x", &x)], &[]).unwrap();
    let (mut later, _) = build();
    for name in session.scope.names() {
        later.scope.assign(name, &session.scope.tensor(name).unwrap()).unwrap();
    }
    assert_eq!(rates(&mut later, 3), [0.5, 1.0 / 3.0, 1.0 / 3.0]);

    // A rate that is not a number or negative is an error of `minimize` in the first step, and of
    // the step later.
    let minimize = |factor: fn(u64) -> f64| {
        let net = Net::new();
        let loss = net.data("x", [-1, 2], DType::F32).fc(1).mean();
        net.minimize(loss, Sgd::new(LrSchedule::lambda(0.1, factor)))?;
        net.build()
    };
    let error = minimize(|step| 1.0 / step as f64).unwrap_err().to_string();
    assert!(error.contains("invalid learning rate of the first step"), "{error}");
    let later: [fn(u64) -> f64; 2] =
        [|step| 1.0 / (1.0 - step as f64), |step| 1.0 - 2.0 * step as f64];
    for (factor, got) in later.into_iter().zip(["got inf", "got -0.1"]) {
        let programs = minimize(factor).unwrap();
        let mut session = Session::new(programs, ExecOptions::threads(1)).unwrap();
        session.run(&[("x", &x)], &[]).unwrap();
        let error = session.run(&[("x", &x)], &[]).unwrap_err().to_string();
        assert!(error.contains("invalid learning rate 'learning_rate_0'"), "{error}");
        assert!(error.contains(got), "{error}");
    }
}
