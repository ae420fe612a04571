//! Tests that run networks: distributions of initializers, values of schedules, and descent of
//! optimizers.

use fleet_exec::{ExecOptions, Executor, Interpreter, Scope};
use fleet_nn::models::{
    BertConfig, DeepFmConfig, GptConfig, ResNetConfig, WideDeepConfig, Word2VecConfig,
};
use fleet_nn::{models, prelude::*};
use fleet_tensor::Tensor;

/// Runs the startup program and returns its scope.
fn started(net: &Net) -> Scope {
    let mut scope = Scope::new();
    let startup = net.build().unwrap().startup;
    Interpreter::new().run(&startup, &mut scope, &[], &[]).unwrap();
    scope
}

fn values(scope: &Scope, name: &str) -> Vec<f32> {
    scope.tensor(name).unwrap().to_vec().unwrap()
}

fn moments(values: &[f32]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / count;
    let square = values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / count;
    (mean, (square - mean * mean).sqrt())
}

fn initial(init: Init) -> Vec<f32> {
    let net = Net::new();
    net.set_seed(3);
    net.create_parameter([300, 200], DType::F32, ParamAttr::from("w").init(init));
    values(&started(&net), "w")
}

#[test]
fn initialisers_draw_within_their_bounds() {
    let uniform = |init: Init, bound: f64| {
        let drawn = initial(init);
        let most = drawn.iter().fold(0.0f32, |most, v| most.max(v.abs()));
        assert!(f64::from(most) <= bound && f64::from(most) > 0.99 * bound, "{most} of {bound}");
        let (mean, std) = moments(&drawn);
        assert!(mean.abs() < 0.02 * bound, "mean {mean}");
        assert!((std / (bound / 3f64.sqrt()) - 1.0).abs() < 0.02, "deviation {std}");
    };
    let normal = |init: Init, expected: f64| {
        let (mean, std) = moments(&initial(init));
        assert!(mean.abs() < 0.02 * expected, "mean {mean}");
        assert!((std / expected - 1.0).abs() < 0.02, "deviation {std} of {expected}");
    };
    uniform(Init::uniform(-0.5, 0.5), 0.5);
    uniform(Init::xavier_uniform(), (6.0f64 / 500.0).sqrt());
    uniform(Init::kaiming_uniform(), (6.0f64 / 300.0).sqrt());
    normal(Init::normal(0.0, 0.1), 0.1);
    normal(Init::xavier_normal(), (2.0f64 / 500.0).sqrt());
    normal(Init::kaiming_normal(), (2.0f64 / 300.0).sqrt());
    // Truncated at two standard deviations, the normal distribution has 0.8796 times its deviation.
    normal(Init::truncated_normal(0.0, 0.1), 0.08796);
    let most = initial(Init::truncated_normal(0.0, 0.1)).iter().fold(0.0f32, |m, v| m.max(v.abs()));
    assert!(most <= 0.2, "{most}");
    assert!(initial(Init::Constant(0.25)).iter().all(|v| *v == 0.25));
}

#[test]
fn parameters_differ_and_repeat() {
    let drawn = |seed| {
        let net = Net::new();
        net.set_seed(seed);
        let x = net.data("x", [-1, 16], DType::F32);
        x.fc(16).fc(16);
        let scope = started(&net);
        (values(&scope, "fc_0.w_0"), values(&scope, "fc_1.w_0"))
    };
    let (first, second) = drawn(1);
    assert_ne!(first, second, "two parameters have the same numbers");
    assert_eq!(drawn(1), (first.clone(), second));
    assert_ne!(drawn(2).0, first, "the seed changes nothing");
}

#[test]
fn assigned_values_arrive() {
    let net = Net::new();
    let attr = ParamAttr::from("w").init(Init::Assign(vec![1.0, 2.0, 3.0, 4.0]));
    net.create_parameter([2, 2], DType::F32, attr);
    assert_eq!(values(&started(&net), "w"), [1.0, 2.0, 3.0, 4.0]);

    let net = Net::new();
    net.create_parameter([3], DType::F32, Init::Assign(vec![1.0]));
    let error = net.build().err().unwrap().to_string();
    assert!(error.contains("one per element of shape [3], got 1"), "{error}");
}

/// Returns the learning rates that the ops of a schedule compute in the first steps.
fn rates(schedule: LrSchedule, steps: u64) -> Vec<f32> {
    let net = Net::new();
    let loss = net.data("x", [-1, 2], DType::F32).fc(1).mean();
    net.minimize(loss, Sgd::new(schedule)).unwrap();
    let mut scope = started(&net);
    let main = net.build().unwrap().main;
    let x = Tensor::from_slice(&[0.0f32, 0.0], [1, 2]).unwrap();
    let interpreter = Interpreter::new();
    let run = |scope: &mut Scope| {
        let out = interpreter.run(&main, scope, &[("x", &x)], &["learning_rate_0"]).unwrap();
        out[0].item::<f32>().unwrap()
    };
    (0..steps).map(|_| run(&mut scope)).collect()
}

#[test]
fn schedules_compute_what_they_say() {
    let cases = [
        LrSchedule::noam(64.0, 4.0),
        LrSchedule::exponential(0.1, 0.9),
        LrSchedule::natural_exp(0.1, 0.3),
        LrSchedule::inverse_time(0.1, 0.5),
        LrSchedule::piecewise([3, 6], [1.0, 0.5, 0.1]),
        LrSchedule::polynomial(0.1, 5),
        LrSchedule::Polynomial {
            learning_rate: 0.1,
            decay_steps: 4.0,
            end: 0.01,
            power: 2.0,
            cycle: true,
        },
        LrSchedule::cosine(0.1, 6),
        LrSchedule::Cosine { learning_rate: 0.1, t_max: 5.0, eta_min: 0.02 },
        LrSchedule::step(0.1, 3),
        LrSchedule::multi_step(0.1, [2, 5]),
        LrSchedule::linear_warmup(0.5, 4, 0.0, 0.4),
        LrSchedule::cosine(0.1, 8).warmup(3, 0.0, 0.1),
        LrSchedule::step(0.1, 2).warmup(2, 0.2, 0.3).warmup(3, 0.0, 0.1),
    ];
    for schedule in cases {
        let found = rates(schedule.clone(), 10);
        for (step, found) in found.iter().enumerate() {
            let expected = schedule.value_at(step as u64);
            let close = (f64::from(*found) - expected).abs() <= 1e-6 * expected.abs().max(1e-3);
            assert!(close, "{schedule:?} at step {step}: {found}, not {expected}");
        }
    }
}

#[test]
fn schedules_have_documented_values() {
    let near = |schedule: LrSchedule, step, expected: f64| {
        let found = schedule.value_at(step);
        assert!((found - expected).abs() < 1e-9, "{schedule:?} at {step}: {found}");
    };
    near(LrSchedule::noam(100.0, 10.0), 0, 0.0);
    near(LrSchedule::noam(100.0, 10.0), 10, 0.1 * 10f64.powf(-0.5));
    near(LrSchedule::piecewise([3, 6], [1.0, 0.5, 0.1]), 2, 1.0);
    near(LrSchedule::piecewise([3, 6], [1.0, 0.5, 0.1]), 3, 0.5);
    near(LrSchedule::piecewise([3, 6], [1.0, 0.5, 0.1]), 6, 0.1);
    near(LrSchedule::polynomial(0.5, 20), 20, 1e-4);
    near(LrSchedule::polynomial(0.5, 20), 99, 1e-4);
    near(LrSchedule::cosine(0.5, 10), 5, 0.25);
    near(LrSchedule::linear_warmup(0.5, 20, 0.0, 0.5), 10, 0.25);
    near(LrSchedule::linear_warmup(0.5, 20, 0.0, 0.5), 20, 0.5);
    near(LrSchedule::step(0.5, 5), 10, 0.005);
    near(LrSchedule::multi_step(0.5, [2, 5, 7]), 5, 0.005);
    near(LrSchedule::lambda(0.5, |step| 0.95f64.powi(step as i32)), 2, 0.45125);
}

/// Returns the loss of fitting a line before and after `steps`.
fn fit(optimizer: OptimizerDesc, steps: usize) -> (f32, f32) {
    let net = Net::new();
    net.set_seed(5);
    let x = net.data("x", [-1, 2], DType::F32);
    let y = net.data("y", [-1, 1], DType::F32);
    let loss = x.fc(1).mse_loss(y, Reduction::Mean);
    net.minimize(loss, optimizer).unwrap();
    let programs = net.build().unwrap();
    let mut scope = started(&net);
    let points: Vec<f32> = (0..32).map(|i| ((i * 7919) % 64) as f32 / 32.0 - 1.0).collect();
    let truth = |p: &[f32]| 2.0 * p[0] - 3.0 * p[1] + 0.5;
    let targets: Vec<f32> = points.chunks(2).map(truth).collect();
    let x = Tensor::from_slice(&points, [16, 2]).unwrap();
    let y = Tensor::from_slice(&targets, [16, 1]).unwrap();
    let interpreter = Interpreter::new();
    let loss = loss.name();
    let mut step = || -> f32 {
        let feed = [("x", &x), ("y", &y)];
        let out = interpreter.run(&programs.main, &mut scope, &feed, &[&loss]).unwrap();
        out[0].item().unwrap()
    };
    let first = step();
    let last = (1..steps).map(|_| step()).last().unwrap_or(first);
    (first, last)
}

#[test]
fn every_optimizer_descends() {
    let cases: [OptimizerDesc; 14] = [
        Sgd::new(0.3).into(),
        Sgd::new(LrSchedule::exponential(0.5, 0.999)).into(),
        Momentum::new(0.1, 0.8).into(),
        Momentum::new(0.1, 0.8).use_nesterov(true).into(),
        Adam::new(0.1).into(),
        AdamW::new(0.1).coeff(1e-4).into(),
        Adamax::new(0.2).into(),
        Adagrad::new(0.5).into(),
        Adadelta::new(1.0).epsilon(1e-2).into(),
        RmsProp::new(0.02).into(),
        RmsProp::new(0.01).momentum(0.5).centered(true).into(),
        LarsMomentum::new(1.0, 0.5).lars_coeff(0.02).lars_weight_decay(1e-5).into(),
        Lamb::new(0.05).lamb_weight_decay(1e-4).into(),
        Sgd::new(0.3).grad_clip(GradClip::GlobalNorm(2.0)).into(),
    ];
    for desc in cases {
        let (first, last) = fit(desc.clone(), 300);
        assert!(last < 0.05 * first, "{}: from {first} to {last}", desc.rule.op());
    }
}

/// Runs one SGD step with rate 1 on the sum of `w * x`. The change of w equals its final gradient.
fn one_step(optimizer: Sgd, attr: ParamAttr, x: &[f32; 2]) -> [f32; 2] {
    let net = Net::new();
    let data = net.data("x", [2], DType::F32);
    let attr = attr.name("w").init(Init::Assign(vec![1.0, -2.0]));
    let w = net.create_parameter([2], DType::F32, attr);
    net.minimize((w * data).sum(), optimizer).unwrap();
    let mut scope = started(&net);
    let x = Tensor::from_slice(x, [2]).unwrap();
    let main = net.build().unwrap().main;
    Interpreter::new().run(&main, &mut scope, &[("x", &x)], &[]).unwrap();
    let after = values(&scope, "w");
    [1.0 - after[0], -2.0 - after[1]]
}

#[test]
fn clips_and_regularisers_do_what_they_say() {
    let near = |found: [f32; 2], expected: [f32; 2]| {
        let close = found.iter().zip(&expected).all(|(f, e)| (f - e).abs() < 1e-5);
        assert!(close, "{found:?}, not {expected:?}");
    };
    let plain = ParamAttr::new;
    let sgd = || Sgd::new(1.0);
    let x = [3.0, -4.0];
    near(one_step(sgd(), plain(), &x), [3.0, -4.0]);
    near(one_step(sgd().grad_clip(GradClip::value(3.5)), plain(), &x), [3.0, -3.5]);
    near(one_step(sgd().grad_clip(GradClip::Norm(2.5)), plain(), &x), [1.5, -2.0]);
    near(one_step(sgd().grad_clip(GradClip::GlobalNorm(2.5)), plain(), &x), [1.5, -2.0]);
    near(one_step(sgd().grad_clip(GradClip::GlobalNorm(10.0)), plain(), &x), [3.0, -4.0]);
    let unclipped = plain().need_clip(false);
    near(one_step(sgd().grad_clip(GradClip::GlobalNorm(2.5)), unclipped, &x), [3.0, -4.0]);
    near(one_step(sgd().weight_decay(Regularizer::L2(0.5)), plain(), &x), [3.5, -5.0]);
    near(one_step(sgd().weight_decay(Regularizer::L1(0.5)), plain(), &x), [3.5, -4.5]);
    // The parameter's own regularizer takes precedence, clipping comes first, and the parameter's
    // learning rate is a factor.
    let own = plain().regularizer(Regularizer::L1(1.0));
    near(one_step(sgd().weight_decay(Regularizer::L2(0.5)), own, &x), [4.0, -5.0]);
    let both = sgd().weight_decay(Regularizer::L2(0.5)).grad_clip(GradClip::Norm(2.5));
    near(one_step(both, plain(), &x), [2.0, -3.0]);
    near(one_step(sgd(), plain().learning_rate(0.5), &x), [1.5, -2.0]);
}

#[test]
fn rows_that_come_twice_are_clipped_as_their_sum() {
    let step = |is_sparse: bool, clip: Option<GradClip>| {
        let net = Net::new();
        let table = Embedding { is_sparse, ..Embedding::new(4, 2) };
        let table = table.weight(ParamAttr::from("w").init(Init::Constant(0.0)));
        let rows = net.data("ids", [3], DType::I64).embedding(table);
        let loss = (rows * net.data("factors", [3, 2], DType::F32)).sum();
        let sgd = Sgd::new(1.0);
        net.minimize(loss, clip.map_or(sgd.clone(), |clip| sgd.grad_clip(clip))).unwrap();
        let mut scope = started(&net);
        let ids = Tensor::from_slice(&[2i64, 0, 2], [3]).unwrap();
        let factors = Tensor::from_slice(&[0.75f32, -0.5, 2.0, 0.25, 0.75, -0.25], [3, 2]).unwrap();
        let main = net.build().unwrap().main;
        let feed = [("ids", &ids), ("factors", &factors)];
        Interpreter::new().run(&main, &mut scope, &feed, &[]).unwrap();
        values(&scope, "w")
    };
    let clip = GradClip::value(1.0);
    let clipped = [-1.0, -0.25, 0.0, 0.0, -1.0, 0.75, 0.0, 0.0];
    assert_eq!(step(true, Some(clip)), clipped);
    assert_eq!(step(false, Some(clip)), clipped);
    assert_eq!(step(true, None), [-2.0, -0.25, 0.0, 0.0, -1.5, 0.75, 0.0, 0.0]);
}

#[test]
fn counters_live_from_step_to_step() {
    let net = Net::new();
    let x = net.data("x", [-1, 1], DType::F32);
    let seen = net.create_global_var("seen", [1], 0.0, DType::F32);
    (seen + x.full_batch([-1, 1], 1.0, DType::F32).sum()).assign_to(seen);
    let mut scope = started(&net);
    let main = net.build().unwrap().main;
    let x = Tensor::from_slice(&[0.0f32; 8], [8, 1]).unwrap();
    for _ in 0..3 {
        Interpreter::new().run(&main, &mut scope, &[("x", &x)], &[]).unwrap();
    }
    assert_eq!(values(&scope, "seen"), [24.0]);
}

#[test]
fn precision_over_recall_has_its_area() {
    let net = Net::new();
    let p = net.data("p", [-1, 2], DType::F32);
    let label = net.data("label", [-1, 1], DType::I64);
    let auc = p.auc(label, Auc::new().curve(Curve::Pr));
    let mut scope = started(&net);
    let main = net.build().unwrap().main;
    let mut run = |p: &[f32; 5], label: &[i64; 5]| -> [f64; 2] {
        let pairs: Vec<f32> = p.iter().flat_map(|p| [1.0 - p, *p]).collect();
        let p = Tensor::from_slice(&pairs, [5, 2]).unwrap();
        let label = Tensor::from_slice(label, [5, 1]).unwrap();
        let fetch = [auc.auc.name(), auc.batch_auc.name()];
        let fetch = fetch.each_ref().map(String::as_str);
        let feed = [("p", &p), ("label", &label)];
        let out = Interpreter::new().run(&main, &mut scope, &feed, &fetch).unwrap();
        [out[0].item().unwrap(), out[1].item().unwrap()]
    };
    let check = |found: [f64; 2], expected: [f64; 2]| {
        let close = found.iter().zip(&expected).all(|(f, e)| (f - e).abs() < 1e-12);
        assert!(close, "{found:?}, not {expected:?}");
    };
    let scores = [0.9, 0.8, 0.7, 0.3, 0.1];
    // The precision at each positive, from the highest score down: 1 of 1, 2 of 3, 3 of 5.
    let first = (1.0 + 2.0 / 3.0 + 3.0 / 5.0) / 3.0;
    check(run(&scores, &[1, 0, 1, 0, 1]), [first, first]);
    // The second batch has 1 of 2 and 2 of 3. Both batches together have 1 of 2, 2 of 4, 4 of 6
    // (two positives), 5 of 10.
    let both = (0.5 + 0.5 + 2.0 * 4.0 / 6.0 + 0.5) / 5.0;
    check(run(&scores, &[0, 1, 1, 0, 0]), [both, (0.5 + 2.0 / 3.0) / 2.0]);
}

#[test]
fn the_area_under_the_curve_counts_everything_seen() {
    let net = Net::new();
    let p = net.data("p", [-1, 1], DType::F32);
    let label = net.data("label", [-1, 1], DType::I64);
    let auc = p.auc(label, Auc::new().slide_steps(2));
    let mut scope = started(&net);
    let main = net.build().unwrap().main;
    let mut run = |p: &[f32], label: &[i64]| -> [f64; 2] {
        let count = p.len() as i64;
        let p = Tensor::from_slice(p, [count, 1]).unwrap();
        let label = Tensor::from_slice(label, [count, 1]).unwrap();
        let fetch = [auc.auc.name(), auc.batch_auc.name()];
        let fetch = [fetch[0].as_str(), fetch[1].as_str()];
        let feed = [("p", &p), ("label", &label)];
        let out = Interpreter::new().run(&main, &mut scope, &feed, &fetch).unwrap();
        [out[0].item().unwrap(), out[1].item().unwrap()]
    };
    assert_eq!(run(&[0.9, 0.1], &[1, 0]), [1.0, 1.0]);
    // One of the four pairs of a positive and a negative is ranked wrongly.
    assert_eq!(run(&[0.2, 0.8], &[1, 0]), [0.5 + 0.25, 0.5 + 0.25]);
}

#[test]
fn a_batch_is_never_squeezed_away() {
    let net = Net::new();
    let x = net.data("x", [-1, 1, 3, 1], DType::F32);
    let (rows, all) = (x.squeeze([]), x.squeeze([1, -1]));
    assert_eq!((rows.shape(), all.shape()), (Shape::from([-1, 3]), Shape::from([-1, 3])));
    assert_eq!(rows.squeeze([]).id(), rows.id(), "nothing is left to go");
    net.minimize(rows.fc(1).mean() + all.sum(), Sgd::new(0.1)).unwrap();
    let main = net.build().unwrap().main;
    for batch in [1, 3] {
        let x = Tensor::zeros(DType::F32, [batch, 1, 3, 1]).unwrap();
        let (feed, fetch) = ([("x", &x)], [rows.name(), all.name()]);
        let fetch = fetch.each_ref().map(String::as_str);
        let mut executor = Executor::new(ExecOptions::threads(1));
        let planned = executor.run(&main, &mut started(&net), &feed, &fetch).unwrap();
        let plain = Interpreter::new().run(&main, &mut started(&net), &feed, &fetch).unwrap();
        for tensor in planned.iter().chain(&plain) {
            assert_eq!(*tensor.shape(), Shape::from([batch, 3]));
        }
    }
    x.squeeze([0]);
    let error = net.build().err().unwrap().to_string();
    assert!(error.contains("known before the program runs, got [0]"), "{error}");
}

/// Trains on one batch and checks that the loss falls. Inputs are generated from their shapes: ids
/// below `ids`, and floats between 0 and 1.
fn learns(net: &Net, loss: Var<'_>, batch: i64, ids: i64, steps: usize) {
    let programs = net.build().unwrap();
    let mut scope = started(net);
    let mut feed = Vec::new();
    for (_, var) in programs.main.vars().filter(|(_, var)| var.is_data) {
        let mut shape = var.shape;
        shape.dims_mut().iter_mut().filter(|dim| **dim < 0).for_each(|dim| *dim = batch);
        let count = shape.len() as i64;
        let spread = |i: i64| (i * 7919 + 13) % 104_729;
        let tensor = match var.dtype {
            DType::I64 => {
                let numbers: Vec<i64> = (0..count).map(|i| spread(i) % ids).collect();
                Tensor::from_slice(&numbers, shape)
            }
            _ => {
                let numbers: Vec<f32> = (0..count).map(|i| (spread(i) % 2) as f32).collect();
                Tensor::from_slice(&numbers, shape)
            }
        };
        feed.push((var.name.clone(), tensor.unwrap()));
    }
    let feed: Vec<(&str, &Tensor)> = feed.iter().map(|(name, t)| (name.as_str(), t)).collect();
    let loss = loss.name();
    let mut losses = Vec::new();
    for _ in 0..steps {
        let out = Interpreter::new().run(&programs.main, &mut scope, &feed, &[&loss]);
        losses.push(out.unwrap()[0].item::<f32>().unwrap());
    }
    assert!(losses.iter().all(|loss| loss.is_finite()), "{losses:?}");
    assert!(losses[steps - 1] < losses[0], "{losses:?}");
}

#[test]
fn image_models_learn() {
    let net = Net::new();
    let model = models::lenet(&net, 10);
    net.minimize(model.loss, Adam::new(1e-3)).unwrap();
    learns(&net, model.loss, 4, 10, 8);

    let net = Net::new();
    let config = ResNetConfig { classes: 10, size: 32, ..ResNetConfig::new(18) };
    let model = models::resnet(&net, &config);
    net.minimize(model.loss, Momentum::new(0.01, 0.9)).unwrap();
    learns(&net, model.loss, 4, 10, 5);
}

#[test]
fn language_models_learn() {
    let config = BertConfig {
        vocabulary: 50,
        hidden: 16,
        layers: 2,
        heads: 2,
        ffn: 32,
        length: 8,
        positions: 12,
        ..BertConfig::base()
    };
    // All inputs here share one id range, so there are as many sentence types as words.
    let config = BertConfig { sentence_types: 50, dropout: 0.0, ..config };
    let net = Net::new();
    let model = models::bert_mlm(&net, &config);
    net.minimize(model.loss, AdamW::new(1e-2)).unwrap();
    learns(&net, model.loss, 7, 50, 5);

    let net = Net::new();
    let model = models::bert_tokens(&net, &BertConfig { padded: false, ..config }, 50);
    net.minimize(model.loss, Lamb::new(1e-2)).unwrap();
    learns(&net, model.loss, 3, 50, 5);

    let net = Net::new();
    let config =
        GptConfig { vocabulary: 50, hidden: 16, layers: 2, heads: 2, ..GptConfig::small() };
    let model = models::gpt(&net, &GptConfig { ffn: 32, length: 8, dropout: 0.0, ..config });
    let clip = GradClip::GlobalNorm(1.0);
    net.minimize(model.loss, Adam::new(1e-2).grad_clip(clip)).unwrap();
    learns(&net, model.loss, 3, 50, 5);

    let net = Net::new();
    let model = models::word2vec(&net, &Word2VecConfig { width: 8, ..Word2VecConfig::new(50) });
    net.minimize(model.loss, Sgd::new(1.0)).unwrap();
    learns(&net, model.loss, 16, 50, 20);
}

#[test]
fn click_models_learn() {
    let config = WideDeepConfig { slots: 3, vocabulary: 50, width: 4, ..WideDeepConfig::criteo() };
    for use_parameter_servers in [false, true] {
        let net = Net::new();
        let config = WideDeepConfig { hidden: vec![8, 8], use_parameter_servers, ..config.clone() };
        let model = models::wide_deep(&net, &config);
        let (table, rest) = net.backward(model.loss).unwrap().partition(|name| name == "table");
        net.apply_gradients(Adagrad::new(0.1), table).unwrap();
        net.apply_gradients(Adam::new(1e-2), rest).unwrap();
        learns(&net, model.loss, 16, 50, 10);
    }

    let net = Net::new();
    let config = DeepFmConfig { slots: 3, vocabulary: 50, width: 4, ..DeepFmConfig::criteo() };
    let model = models::deepfm(&net, &DeepFmConfig { hidden: vec![8, 8], ..config });
    net.minimize(model.loss, Adam::new(1e-2).lazy_mode(true)).unwrap();
    learns(&net, model.loss, 16, 50, 10);
}

/// Cross entropy with weights against its formula, with and without ignored rows.
#[test]
fn weighted_cross_entropy_divides_by_the_weights() {
    let logits = [[0.5f32, -1.0, 2.0], [1.0, 0.0, -0.5], [0.0, 3.0, 1.0]];
    let weights = [1.0f32, 0.25, 4.0];
    let loss_of = |row: usize, class: usize| {
        let sum: f32 = logits[row].iter().map(|x| x.exp()).sum();
        sum.ln() - logits[row][class]
    };
    let run = |labels: [i64; 3], with: CrossEntropy<'_>, of_probabilities: bool, flat: bool| {
        let net = Net::new();
        let x = net.data("x", [-1, 3], DType::F32);
        let shape: &[i64] = if flat { &[-1] } else { &[-1, 1] };
        let y = net.data("y", Shape::new(shape).unwrap(), DType::I64);
        let w = net.data("w", [3], DType::F32);
        let with = CrossEntropy {
            soft_label: false,
            ignore_index: with.ignore_index,
            axis: None,
            weight: Some(w),
            reduction: with.reduction,
        };
        let loss = match of_probabilities {
            true => x.softmax().cross_entropy_of_probabilities_with(y, with),
            false => x.cross_entropy_with(y, with),
        };
        let main = net.build().unwrap().main;
        let dims: &[i64] = if flat { &[3] } else { &[3, 1] };
        let feeds = [
            Tensor::from_slice(logits.as_flattened(), [3, 3]).unwrap(),
            Tensor::from_slice(&labels, Shape::new(dims).unwrap()).unwrap(),
            Tensor::from_slice(&weights, [3]).unwrap(),
        ];
        let feed = [("x", &feeds[0]), ("y", &feeds[1]), ("w", &feeds[2])];
        let mut scope = Scope::new();
        let name = loss.name();
        let out = Interpreter::new().run(&main, &mut scope, &feed, &[&name]).unwrap();
        let mut executor = Executor::new(ExecOptions::threads(1));
        let same = executor.run(&main, &mut scope, &feed, &[&name]).unwrap();
        let out: Vec<f32> = out[0].to_vec().unwrap();
        for (a, b) in out.iter().zip(same[0].to_vec::<f32>().unwrap()) {
            assert!((a - b).abs() < 1e-6, "{a} and {b}");
        }
        out
    };
    let near = |found: &[f32], expected: &[f32]| {
        assert_eq!(found.len(), expected.len());
        for (a, b) in found.iter().zip(expected) {
            assert!((a - b).abs() < 1e-5, "{found:?}, not {expected:?}");
        }
    };
    let sum = 4.0 * loss_of(0, 2) + loss_of(1, 0) + 0.25 * loss_of(2, 1);
    for (of_probabilities, flat) in [(false, false), (false, true), (true, false)] {
        let run = |labels, with| run(labels, with, of_probabilities, flat);
        near(&run([2, 0, 1], CrossEntropy::new()), &[sum / 5.25]);
        near(&run([2, 0, 1], CrossEntropy::new().reduction(Reduction::Sum)), &[sum]);
        let each = [4.0 * loss_of(0, 2), loss_of(1, 0), 0.25 * loss_of(2, 1)];
        near(&run([2, 0, 1], CrossEntropy::new().reduction(Reduction::None)), &each);
        // Labels that are ignored may be any number.
        let two = (4.0 * loss_of(0, 2) + 0.25 * loss_of(2, 1)) / 4.25;
        near(&run([2, -100, 1], CrossEntropy::new()), &[two]);
        near(&run([2, 7, 1], CrossEntropy::new().ignore_index(7)), &[two]);
        near(&run([-1, -1, -1], CrossEntropy::new().ignore_index(-1)), &[0.0]);
    }
}

/// Soft labels and classes along another axis.
#[test]
fn weighted_cross_entropy_of_soft_labels_and_images() {
    let net = Net::new();
    let x = net.data("x", [2, 3, 2], DType::F32);
    let y = net.data("y", [2, 1, 2], DType::I64);
    let soft = net.data("soft", [2, 3, 2], DType::F32);
    let w = net.data("w", [3], DType::F32);
    let with = CrossEntropy::new().axis(1).weight(w);
    let hard = x.cross_entropy_with(y, with);
    let same = x.cross_entropy_with(soft, with.soft_label());
    let numbers: Vec<f32> = (0..12).map(|n| (n * 5 % 7) as f32 / 3.0).collect();
    let labels = [2i64, 0, 1, 2];
    let mut ones = [0.0f32; 12];
    for (at, label) in labels.iter().enumerate() {
        ones[at / 2 * 6 + *label as usize * 2 + at % 2] = 1.0;
    }
    let feeds = [
        Tensor::from_slice(&numbers, [2, 3, 2]).unwrap(),
        Tensor::from_slice(&labels, [2, 1, 2]).unwrap(),
        Tensor::from_slice(&ones, [2, 3, 2]).unwrap(),
        Tensor::from_slice(&[1.0f32, 0.5, 3.0], [3]).unwrap(),
    ];
    let feed = [("x", &feeds[0]), ("y", &feeds[1]), ("soft", &feeds[2]), ("w", &feeds[3])];
    let main = net.build().unwrap().main;
    let fetch = [hard.name(), same.name()];
    let fetch: Vec<&str> = fetch.iter().map(String::as_str).collect();
    let out = Interpreter::new().run(&main, &mut Scope::new(), &feed, &fetch).unwrap();
    let [a, b] = [out[0].to_vec::<f32>().unwrap()[0], out[1].to_vec::<f32>().unwrap()[0]];
    assert!(a > 0.1 && (a - b).abs() < 1e-6, "{a} and {b}");
}

/// The layer on two inputs is the layer on their concatenation, with the weights one above the
/// other.
#[test]
fn fc_of_several_inputs_sums_their_products() {
    let net = Net::new();
    let (x, y) = (net.data("x", [-1, 2], DType::F32), net.data("y", [-1, 3], DType::F32));
    let out = net.fc_of(&[x, y], Fc::new(4).act(Act::Tanh));
    let weights = net.concat(&[net.var("fc_0.w_0"), net.var("fc_0.w_1")], 0);
    let same = (net.concat(&[x, y], 1).matmul(weights) + net.var("fc_0.b_0")).tanh();
    let main = net.build().unwrap().main;
    let mut scope = started(&net);
    let feeds = [
        Tensor::from_slice(&[0.5f32, -1.0, 2.0, 0.25], [2, 2]).unwrap(),
        Tensor::from_slice(&[1.0f32, 0.0, -1.0, 0.5, 0.5, 2.0], [2, 3]).unwrap(),
    ];
    let feed = [("x", &feeds[0]), ("y", &feeds[1])];
    let fetch = [out.name(), same.name()];
    let fetch: Vec<&str> = fetch.iter().map(String::as_str).collect();
    let made = Interpreter::new().run(&main, &mut scope, &feed, &fetch).unwrap();
    let [a, b] = [made[0].to_vec::<f32>().unwrap(), made[1].to_vec::<f32>().unwrap()];
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-6), "{a:?} and {b:?}");
}
