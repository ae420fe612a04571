//! Errors in networks are kept, with their source line, until the network is used.

use fleet_nn::prelude::*;
use fleet_nn::{Error, Programs};

/// Checks the error of a network that is wrong in the line after `line!()`.
fn check(found: Result<Programs, Error>, line: u32, parts: &[&str]) {
    let text = found.expect_err("the network is wrong").to_string();
    let place = format!("tests/errors.rs:{}", line + 1);
    for part in parts.iter().copied().chain([place.as_str()]) {
        assert!(text.contains(part), "'{part}' is not in: {text}");
    }
}

#[test]
fn wrong_widths_name_the_line() {
    let net = Net::new();
    let x = net.data("x", [-1, 13], DType::F32);
    let line = line!();
    let y = x + net.data("y", [-1, 12], DType::F32);
    // Later calls have no effect.
    let [a, b] = y.split(1);
    let z = (a.fc(4) * b).relu().softmax().mean();
    assert_eq!((z.name(), z.shape()), (String::new(), Shape::SCALAR));
    let error = net.minimize(z, Sgd::new(0.1)).err().unwrap();
    assert_eq!(error, net.error().unwrap());
    check(net.build(), line, &["elementwise_add", "13", "12"]);
}

#[test]
fn options_out_of_range_name_the_line() {
    let net = Net::new();
    let line = line!();
    net.data("x", [-1, 13], DType::F32).fc(0);
    check(net.finish(), line, &["wrong size of fc", "expected 1 or more", "got 0"]);

    let net = Net::new();
    let line = line!();
    net.data("x", [-1, 13], DType::F32).fc(Fc::new(1).num_flatten_dims(2));
    check(net.finish(), line, &["num_flatten_dims", "1 to 1", "got 2"]);

    let net = Net::new();
    let line = line!();
    net.data("x", [-1, -1], DType::F32).fc(1);
    check(net.finish(), line, &["must be known", "[-1, -1]"]);

    let net = Net::new();
    let line = line!();
    net.data("x", [-1, 3, 8, 8], DType::F32).conv2d(Conv2d::new(4, 3).groups(2));
    check(net.finish(), line, &["groups", "a divisor of 3 and of 4", "got 2"]);

    let net = Net::new();
    let line = line!();
    net.data("x", [-1, 4], DType::F32).dropout(1.5);
    check(net.finish(), line, &["dropout", "0 to 1", "got 1.5"]);

    let net = Net::new();
    let line = line!();
    net.data("ids", [-1, 1], DType::I64).embedding(Embedding::new(10, 4).padding_idx(10));
    check(net.finish(), line, &["padding_idx", "-10 to 9", "got 10"]);

    let net = Net::new();
    let line = line!();
    net.data("x", [-1, 5, 10], DType::F32).multi_head_attention(MultiHeadAttention::new(4));
    check(net.finish(), line, &["multi-head attention", "4 heads", "[-1, 5, 10]"]);
}

#[test]
fn names_are_checked() {
    let net = Net::new();
    let x = net.data("x", [-1, 4], DType::F32);
    let line = line!();
    net.data("x", [-1, 4], DType::F32);
    assert_eq!(x.shape(), Shape::from([-1, 4]));
    check(net.build(), line, &["duplicate variable name 'x'"]);

    let net = Net::new();
    net.data("x", [-1, 4], DType::F32).fc(Fc::new(2).weight("w"));
    let line = line!();
    net.var("x").fc(Fc::new(3).weight("w"));
    check(net.build(), line, &["existing variable 'w'", "f32[4, 3]", "f32[4, 2]"]);

    let net = Net::new();
    net.data("features", [-1, 4], DType::F32);
    let line = line!();
    net.var("feature");
    check(net.build(), line, &["did you mean 'features'?"]);

    let net = Net::new();
    let line = line!();
    let _guard = net.device_guard("tpu:0");
    check(net.build(), line, &["device", "gpu:all", "'tpu:0'"]);
}

#[test]
fn networks_do_not_mix() {
    let (here, there) = (Net::new(), Net::new());
    let x = here.data("x", [-1, 4], DType::F32);
    let line = line!();
    let _ = x + there.data("z", [-1, 4], DType::F32);
    check(here.build(), line, &["'z' belongs to another network"]);
    assert!(there.build().is_ok());
}

#[test]
fn training_mistakes_are_returned() {
    let net = Net::new();
    let x = net.data("x", [-1, 4], DType::F32);
    let loss = x.fc(1);
    let line = line!();
    let found = net.minimize(loss, Sgd::new(0.1)).map(|_| Programs::new());
    check(found, line, &["invalid loss", "take its mean or sum"]);
    assert!(net.build().is_err(), "an incomplete program must not be returned");

    let net = Net::new();
    let loss = net.data("x", [-1, 4], DType::F32).mean();
    let found = net.minimize(loss, Sgd::new(0.1)).err().unwrap().to_string();
    assert!(found.contains("no trainable parameter"), "{found}");

    let net = Net::new();
    let loss = net.data("x", [-1, 4], DType::F32).fc(1).mean();
    let wrong = LrSchedule::piecewise([10, 20], [0.1, 0.01]);
    let found = net.minimize(loss, Sgd::new(wrong)).err().unwrap().to_string();
    assert!(found.contains("boundaries"), "{found}");

    let net = Net::new();
    let loss = net.data("x", [-1, 4], DType::F32).fc(1).mean();
    let found = net.minimize(loss, Sgd::new(0.1).parameters(["fc_0.w_1"])).err().unwrap();
    assert!(found.to_string().contains("did you mean 'fc_0.w_0'?"), "{found}");
}

#[test]
fn optimizers_with_wrong_numbers_are_refused() {
    let check = |optimizer: OptimizerDesc, parts: &[&str]| {
        let net = Net::new();
        let loss = net.data("x", [-1, 4], DType::F32).fc(1).mean();
        let error = net.minimize(loss, optimizer).err().unwrap().to_string();
        let place = "tests/errors.rs:";
        assert!(parts.iter().chain([&place]).all(|part| error.contains(part)), "{error}");
    };
    let parts = ["'beta1' of adam is wrong", "0 or more and below 1, got 1"];
    check(Adam::new(1e-3).beta1(1.0).into(), &parts);
    check(Adamax::new(1e-3).beta2(-0.1).into(), &["'beta2' of adamax", "got -0.1"]);
    check(RmsProp::new(1e-3).rho(1.5).into(), &["'decay' of rmsprop", "got 1.5"]);
    check(Adagrad::new(1e-3).epsilon(-1.0).into(), &["'epsilon' of adagrad", "0 or more, got -1"]);
    check(Momentum::new(0.1, f64::NAN).into(), &["'mu' of momentum", "a finite number, got NaN"]);
    let parts = ["invalid learning rate", "a finite number, at least 0, got inf"];
    check(Sgd::new(f64::INFINITY).into(), &parts);
    check(Adam::new(-1.0).into(), &["invalid learning rate", "at least 0, got -1"]);
    check(Adam::new(0.1).rows(Sgd::new(-0.5)), &["invalid learning rate", "got -0.5"]);
    let schedules = [
        (LrSchedule::piecewise([3], [0.1, -0.1]), "invalid rate", "got -0.1"),
        (LrSchedule::exponential(0.1, -0.5), "invalid gamma", "got -0.5"),
        (LrSchedule::cosine(-0.1, 10), "invalid rate", "got -0.1"),
        (LrSchedule::linear_warmup(-0.2, 3, 0.0, 0.1), "invalid learning rate", "got -0.2"),
        (LrSchedule::lambda(0.1, |_| -1.0), "learning rate of the first step", "got -0.1"),
        (LrSchedule::multi_step(0.1, [6, 3]), "wrong milestones", "got 6, 3"),
        (LrSchedule::piecewise([6], [0.1]), "wrong boundaries", "got 6 and 1 values"),
        (LrSchedule::noam(0.0, 4.0), "wrong d_model or warmup_steps", "got 0 and 4"),
    ];
    for (schedule, what, got) in schedules {
        check(Sgd::new(schedule).into(), &[what, got]);
    }
    let clip = |clip| Sgd::new(0.1).grad_clip(clip).into();
    check(clip(GradClip::GlobalNorm(0.0)), &["gradient clipping", "a norm above 0, got 0"]);
    check(clip(GradClip::value(-1.0)), &["gradient clipping", "min <= max, got min 1 and max -1"]);
    let slow = ParamAttr::new().learning_rate(-0.1);
    let net = Net::new();
    net.data("x", [-1, 4], DType::F32).fc(Fc::new(1).weight(slow));
    let error = net.build().unwrap_err().to_string();
    assert!(error.contains("invalid learning rate of parameter 'fc_0.w_0'"), "{error}");
}

#[test]
fn unknown_ops_are_named() {
    let net = Net::new();
    let x = net.data("x", [-1, 4], DType::F32);
    let line = line!();
    net.op("sotfmax").input("X", x).one("Out");
    check(net.build(), line, &["unknown op 'sotfmax'", "did you mean 'softmax'?"]);
}

#[test]
fn rows_that_are_not_there_cannot_be_clipped_away_from_zero() {
    let net = Net::new();
    let rows = net.data("ids", [-1, 1], DType::I64).embedding(Embedding::new(10, 4).sparse());
    let clip = GradClip::Value { min: 0.1, max: 1.0 };
    let line = line!();
    let found = net.minimize(rows.mean(), Sgd::new(0.1).grad_clip(clip));
    check(found.map(|_| Programs::new()), line, &["holds sparse rows", "min at most 0"]);
}

#[test]
fn a_given_source_replaces_the_line_of_the_caller() {
    let net = Net::new();
    let x = net.data("x", [-1, 13], DType::F32);
    let y = {
        let _source = net.source_guard("train.py:7");
        x.fc(1)
    };
    let programs = net.build().unwrap();
    let sources: Vec<_> = programs.main.root_ops().map(|(_, op)| op.source.clone()).collect();
    assert!(sources.iter().all(|source| source.as_deref() == Some("train.py:7")), "{sources:?}");

    let source = net.source_guard("train.py:9");
    let error = net.minimize(y.mean(), Sgd::new(-1.0)).err().unwrap().to_string();
    assert!(error.ends_with("\n  at train.py:9"), "{error}");
    drop(source);

    let (programs, error) = net.into_parts();
    assert!(error.is_some() && programs.main.find_var("fc_0.w_0").is_some());
}

#[test]
fn wrong_steps_of_a_cond_name_the_line() {
    let net = Net::new();
    let x = net.data("x", [-1, 4], DType::F32);
    let mut open = net.begin_cond(x.mean().greater_than(0.0)).unwrap();
    let early = open.clone();
    let other = Net::new();
    let line = line!();
    let _ = other.end_cond(open.clone(), &[]);
    check(other.finish(), line, &["the cond belongs to another network"]);

    let branch = net.branch_guard(&open);
    let copy = Net::from_programs(net.build().unwrap());
    let inner = copy.branch_guard(&open);
    let line = line!();
    let _ = copy.begin_else(&mut open, &[]);
    drop(inner);
    check(copy.finish(), line, &["a branch of cond is still being written", "branch guard"]);
    drop(branch);

    let line = line!();
    let _ = net.end_cond(early, &[]);
    check(net.finish(), line, &["wrong order", "begin_cond, begin_else, end_cond"]);
}

#[test]
fn wrong_weights_and_inputs_name_the_line() {
    let net = Net::new();
    let (x, y) = (net.data("x", [-1, 4], DType::F32), net.data("y", [-1, 1], DType::I64));
    let weight = net.data("w", [3], DType::F32);
    let line = line!();
    x.cross_entropy_with(y, CrossEntropy::new().weight(weight));
    check(net.finish(), line, &["wrong weight of cross entropy", "f32[4]", "got f32[3]"]);

    let net = Net::new();
    let (x, y) = (net.data("x", [-1, 4], DType::F32), net.data("y", [-1, 1], DType::I64));
    let line = line!();
    x.cross_entropy_of_probabilities_with(y, CrossEntropy::new().axis(0));
    check(net.finish(), line, &["wrong axis", "expected the last one, got 0"]);

    let net = Net::new();
    let line = line!();
    net.fc_of(&[], 3);
    check(net.finish(), line, &["fc has no inputs"]);

    let net = Net::new();
    let (x, z) = (net.data("x", [3, 4], DType::F32), net.data("z", [2, 4], DType::F32));
    let line = line!();
    net.fc_of(&[x, z], 3);
    check(net.finish(), line, &["input 1 of fc", "expected a result f32[3, 3]", "got f32[2, 3]"]);
}
