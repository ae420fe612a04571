//! Checks of each model.

use crate::zoo::{Batch, Model, STEPS, feed};
use fleet::Interpreter;
use fleet::prelude::*;
use std::collections::BTreeSet;

/// Tolerance for sums in another order: the largest difference of a tensor over its largest value.
/// Adam divides small gradients by small numbers, so this is more than the 1e-6 of one sum.
const TOLERANCE: f64 = 5e-6;

/// Deep networks of relus amplify rounding. The test perturbs the last bits of the input and
/// measures the effect on the interpreter's results. This many times that effect still counts as
/// rounding, since a run reorders many sums, and the perturbation is in one place.
const PERTURBATION_FACTOR: f64 = 16.0;

/// Losses, and all variables of the scope after training.
pub struct Trace {
    pub losses: Vec<Tensor>,
    pub scope: Scope,
}

/// Returns a scope after the startup program.
fn start(model: &Model) -> Scope {
    let mut scope = Scope::new();
    let mut executor = Executor::new(ExecOptions::threads(2));
    executor.run(&model.programs.startup, &mut scope, &[], &[]).unwrap();
    let shifts: Vec<String> =
        scope.names().filter(|name| name.ends_with("_offset")).map(str::to_string).collect();
    for name in shifts {
        let mut shift = scope.tensor(&name).unwrap();
        shift.as_mut_slice::<f32>().unwrap().fill(model.shift);
        scope.set(&name, shift);
    }
    scope
}

/// Returns the batches with images perturbed in their last bits; `None` for models of ids.
fn perturbed(model: &Model) -> Option<Vec<Batch>> {
    model.batches[0].iter().find(|(name, _)| *name == "x")?;
    let perturb = |(name, tensor): &(&'static str, Tensor)| {
        let mut tensor = tensor.try_clone().unwrap();
        if *name == "x" {
            tensor.as_mut_slice::<f32>().unwrap().iter_mut().for_each(|x| *x *= 1.0 + 3e-7);
        }
        (*name, tensor)
    };
    Some(model.batches.iter().map(|batch| batch.iter().map(perturb).collect()).collect())
}

fn copy(scope: &Scope) -> Scope {
    let mut copy = Scope::new();
    for name in scope.names() {
        copy.set(name, scope.tensor(name).unwrap());
    }
    copy.set_step(scope.step());
    copy
}

fn train_plainly(model: &Model, start: &Scope, batches: &[Batch]) -> Trace {
    let (interpreter, mut scope) = (Interpreter::new(), copy(start));
    let (main, fetch) = (&model.programs.main, [model.loss.as_str()]);
    let step = |batch| interpreter.run(main, &mut scope, &feed(batch), &fetch).unwrap();
    let losses = batches.iter().flat_map(step).collect();
    Trace { losses, scope }
}

fn train(model: &Model, start: &Scope, options: ExecOptions) -> Trace {
    let (mut executor, mut scope) = (Executor::new(options), copy(start));
    let (main, fetch) = (&model.programs.main, [model.loss.as_str()]);
    let step = |batch| executor.run(main, &mut scope, &feed(batch), &fetch).unwrap();
    let losses = model.batches.iter().flat_map(step).collect();
    Trace { losses, scope }
}

/// Returns build options with one switch on, by name.
fn switches() -> Vec<(&'static str, BuildOptions)> {
    let one = |name, set: fn(&mut BuildOptions)| {
        let mut options = BuildOptions::none();
        set(&mut options);
        (name, options)
    };
    vec![
        one("none", |_| ()),
        one("fuse_elewise_add_act_ops", |o| o.fuse_elewise_add_act_ops = true),
        one("fuse_bn_act_ops", |o| o.fuse_bn_act_ops = true),
        one("fuse_bn_add_act_ops", |o| o.fuse_bn_add_act_ops = true),
        one("fuse_relu_depthwise_conv", |o| o.fuse_relu_depthwise_conv = true),
        one("enable_auto_fusion", |o| o.enable_auto_fusion = true),
        one("fuse_all_optimizer_ops", |o| o.fuse_all_optimizer_ops = true),
        one("enable_inplace", |o| o.enable_inplace = true),
        one("enable_addto", |o| o.enable_addto = true),
        one("lanes", |o| o.enable_sequential_execution = false),
        one("choose_layout", |o| o.choose_layout = true),
        ("all", BuildOptions::default()),
    ]
}

/// Switches that reorder no sum: their results equal the interpreter's bit for bit.
const BITWISE: [&str; 4] = ["none", "enable_inplace", "lanes", "fuse_all_optimizer_ops"];

/// Switches under which the largest model is trained; smaller models are trained under all.
const LARGE: [&str; 5] = ["none", "fuse_bn_act_ops", "fuse_bn_add_act_ops", "choose_layout", "all"];

pub fn training(model: &Model) {
    let start = start(model);
    let expected = train_plainly(model, &start, &model.batches);
    assert!(changed(&start, &expected.scope) > 0, "{} learned nothing", model.name);
    let rounding = perturbed(model).map_or(0.0, |batches| {
        let perturbed = train_plainly(model, &start, &batches);
        largest_distance(&expected, &perturbed).0 * PERTURBATION_FACTOR
    });
    for (name, build) in switches() {
        if model.name == "resnet50" && !LARGE.contains(&name) {
            continue;
        }
        let options = ExecOptions { build, ..ExecOptions::threads(2) };
        let found = train(model, &start, options);
        let limit = if BITWISE.contains(&name) { 0.0 } else { rounding.max(TOLERANCE) };
        compare(&format!("{} with {name}", model.name), &expected, &found, limit);
    }
}

fn changed(before: &Scope, after: &Scope) -> usize {
    let bytes = |scope: &Scope, name: &str| scope.tensor(name).unwrap().as_bytes().to_vec();
    before.names().filter(|name| bytes(before, name) != bytes(after, name)).count()
}

fn compare(what: &str, expected: &Trace, found: &Trace, limit: f64) {
    let (apart, name) = largest_distance(expected, found);
    println!("{what}: {apart:.1e} at {name}");
    assert!(apart <= limit, "{what}: '{name}' is {apart:.1e} apart");
}

/// Returns the largest distance between two runs, and the name of its tensor.
fn largest_distance(expected: &Trace, found: &Trace) -> (f64, String) {
    let mut largest = (0.0, String::new());
    let mut see = |name: &str, a: &Tensor, b: &Tensor| {
        let apart = distance(a, b);
        if apart > largest.0 {
            largest = (apart, name.to_string());
        }
    };
    for (step, (a, b)) in expected.losses.iter().zip(&found.losses).enumerate() {
        see(&format!("the loss of step {step}"), a, b);
    }
    let names: Vec<&str> = expected.scope.names().collect();
    assert_eq!(names, found.scope.names().collect::<Vec<_>>(), "other variables");
    for name in names {
        see(name, &expected.scope.tensor(name).unwrap(), &found.scope.tensor(name).unwrap());
    }
    assert_eq!(expected.scope.step(), found.scope.step());
    largest
}

/// Returns the largest difference over the largest value, and 0 for equal bits. NaN differs from
/// everything else.
fn distance(expected: &Tensor, found: &Tensor) -> f64 {
    assert_eq!((expected.dtype(), expected.shape()), (found.dtype(), found.shape()));
    if expected.as_bytes() == found.as_bytes() {
        return 0.0;
    }
    let (a, b) = match expected.dtype() {
        DType::F32 => (wide(expected), wide(found)),
        DType::F64 => (expected.to_vec::<f64>().unwrap(), found.to_vec::<f64>().unwrap()),
        _ => return f64::INFINITY,
    };
    let most = a.iter().fold(1e-6, |most: f64, value| most.max(value.abs()));
    a.iter()
        .zip(&b)
        .map(|(a, b)| (a - b).abs() / most)
        .fold(0.0, |largest, apart| if apart.is_nan() { f64::INFINITY } else { apart.max(largest) })
}

fn wide(tensor: &Tensor) -> Vec<f64> {
    tensor.as_slice::<f32>().unwrap().iter().map(|value| f64::from(*value)).collect()
}

pub fn threads(model: &Model) {
    let start = start(model);
    let one = train(model, &start, ExecOptions::threads(1));
    for threads in [2, 3] {
        let more = train(model, &start, ExecOptions::threads(threads));
        compare(&format!("{} on {threads} threads", model.name), &one, &more, 0.0);
    }
}

pub fn evaluation(model: &Model) {
    let mut session = Session::new(model.programs.clone(), ExecOptions::threads(2)).unwrap();
    let batch = feed(&model.batches[0]);
    session.run(&batch, &[]).unwrap();
    let before = copy(&session.scope);
    let outputs: Vec<&str> = model.outputs.iter().map(String::as_str).collect();
    let first = session.evaluate(&batch, &outputs).unwrap();
    let again = session.evaluate(&batch, &outputs).unwrap();
    assert_eq!(session.scope.step(), before.step(), "random numbers of later steps");
    let counters = counters(model);
    for name in before.names().filter(|name| !counters.contains(*name)) {
        let (a, b) = (before.tensor(name).unwrap(), session.scope.tensor(name).unwrap());
        assert_eq!(distance(&a, &b), 0.0, "{}: evaluation changed '{name}'", model.name);
    }
    assert_eq!(session.scope.len(), before.len());
    let mut scope = copy(&before);
    let test = model.programs.for_test().unwrap();
    let expected = Interpreter::new().run(&test, &mut scope, &batch, &outputs).unwrap();
    for ((name, expected), (first, again)) in
        outputs.iter().zip(&expected).zip(first.iter().zip(&again))
    {
        assert_eq!(distance(first, again), 0.0, "{}: '{name}' changes", model.name);
        let apart = distance(expected, first);
        assert!(apart <= TOLERANCE, "{}: '{name}' is {apart:.1e} apart", model.name);
    }
    // Training continues from its earlier state.
    session.run(&feed(&model.batches[1]), &[]).unwrap();
}

/// Returns the counters of the metric `auc`, which evaluation also updates.
fn counters(model: &Model) -> BTreeSet<String> {
    let main = &model.programs.main;
    let auc = main.root_ops().filter(|(_, op)| op.name() == "auc");
    auc.flat_map(|(_, op)| op.all_outputs()).map(|var| main.var_name(var).to_string()).collect()
}

/// Number of variables, spread over the program, that are fetched one at a time.
const FETCHES: usize = 12;

pub fn fetches(model: &Model) {
    let start = start(model);
    let main = &model.programs.main;
    let made: BTreeSet<_> = main.root_ops().flat_map(|(_, op)| op.all_outputs()).collect();
    let names: Vec<&str> = made
        .into_iter()
        .filter(|var| !main.var(*var).persistable && main.var(*var).dtype == DType::F32)
        .map(|var| main.var_name(var))
        .collect();
    let gradients = names.iter().filter(|name| name.ends_with("@GRAD")).count();
    assert!(gradients > 3, "{}: {names:?}", model.name);
    let batch = feed(&model.batches[0]);
    let plainly = |batch: &[(&str, &Tensor)]| {
        Interpreter::new().run(main, &mut copy(&start), batch, &names).unwrap()
    };
    let expected = plainly(&batch);
    let rounding = perturbed(model).map_or(0.0, |batches| {
        let perturbed = plainly(&feed(&batches[0]));
        let apart = expected.iter().zip(&perturbed).map(|(a, b)| distance(a, b));
        apart.fold(0.0, f64::max) * PERTURBATION_FACTOR
    });
    let check = |name: &str, expected: &Tensor, found: &Tensor| {
        let apart = distance(expected, found);
        assert!(apart <= rounding.max(TOLERANCE), "{}: '{name}' is {apart:.1e} apart", model.name);
    };
    let mut executor = Executor::new(ExecOptions::threads(2));
    let all = executor.run(main, &mut copy(&start), &batch, &names).unwrap();
    for ((name, expected), found) in names.iter().zip(&expected).zip(&all) {
        check(name, expected, found);
    }
    // Fetch one at a time, so that the fusions around the variable are still made.
    let stride = names.len().div_ceil(FETCHES);
    for (name, expected) in names.iter().zip(&expected).step_by(stride) {
        let found = executor.run(main, &mut copy(&start), &batch, &[name]).unwrap();
        check(name, expected, &found[0]);
    }
    assert_eq!(model.batches.len(), STEPS);
}

/// Plans batches as large as in real training; planning runs nothing.
pub fn memory(model: &Model) {
    let mut executor = Executor::new(ExecOptions::threads(2));
    let metas: Vec<_> = model.batches[0]
        .iter()
        .map(|(name, tensor)| {
            let mut shape = tensor.shape().to_vec();
            shape[0] *= 16;
            (*name, tensor.dtype(), Shape::new(&shape).unwrap())
        })
        .collect();
    let summary = executor.plan(&model.programs.main, &start(model), &metas, &[]).unwrap();
    let share = summary.arena_bytes as f64 / summary.arena_bytes_unshared as f64;
    println!("{}: {} ops in {:.2} of the bytes", model.name, summary.op_count, share);
    assert!(share < 0.6, "{}: {share}", model.name);
    let over = summary.arena_bytes as f64 / summary.arena_bytes_live as f64;
    assert!((1.0..1.1).contains(&over), "{}: {over} of what is live at once", model.name);
}
