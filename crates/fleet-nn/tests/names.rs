//! Names, order and roles in programs as users see them. The two programs of each network are
//! stored as text under `tests/filetests/nn`; `cargo xtask bless` rewrites them.

use fleet_ir::VarId;
use fleet_nn::models::{
    BertConfig, DeepFmConfig, GptConfig, ResNetConfig, WideDeepConfig, Word2VecConfig,
};
use fleet_nn::{Programs, models, prelude::*};
use std::path::Path;

/// Returns the text without source labels, which change with every edit.
fn text(programs: &Programs) -> String {
    let both = format!("# startup\n{}\n# main\n{}", programs.startup, programs.main);
    let plain = |line: &str| line.split(" at=").next().unwrap_or_default().to_string();
    both.lines().map(|line| plain(line) + "\n").collect()
}

fn check(name: &str, build: impl Fn(&Net)) {
    let net = Net::new();
    build(&net);
    let programs = net.build().unwrap_or_else(|error| panic!("{name}: {error}"));
    let found = text(&programs);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/filetests/nn").join(name);
    if std::env::var_os("FLEET_BLESS").is_some() {
        std::fs::write(&path, &found).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    for (number, (found, expected)) in found.lines().zip(expected.lines()).enumerate() {
        assert_eq!(found, expected, "{name}, line {}", number + 1);
    }
    assert_eq!(found.lines().count(), expected.lines().count(), "{name} has another length");
}

#[test]
fn filetests_mlp_with_momentum() {
    check("mlp.fleet", |net| {
        let x = net.data("x", [-1, 13], DType::F32);
        let y = net.data("y", [-1, 1], DType::I64);
        let hidden = x.fc(Fc::new(8).act(Act::Relu)).dropout(0.1);
        let loss = hidden.fc(3).cross_entropy(y);
        let optimizer = Momentum::new(0.1, 0.9)
            .weight_decay(Regularizer::L2(1e-4))
            .grad_clip(GradClip::GlobalNorm(1.0));
        net.minimize(loss, optimizer).unwrap();
    });
}

#[test]
fn filetests_convolutions_with_adam_and_schedule() {
    check("conv.fleet", |net| {
        let image = net.data("x", [-1, 3, 8, 8], DType::F32);
        let y = image
            .conv2d(Conv2d::new(4, 3).padding(1).act(Act::Relu))
            .conv2d(Conv2d::new(4, 3).groups(4).no_bias())
            .batch_norm(BatchNorm::new().act(Act::Relu))
            .pool2d(Pool2d::global_avg())
            .layer_norm(LayerNorm::new());
        let loss = y.mean();
        let schedule = LrSchedule::cosine(1e-3, 90).warmup(5, 0.0, 1e-3);
        net.minimize(loss, Adam::new(schedule)).unwrap();
    });
}

#[test]
fn filetests_wide_and_deep_with_two_optimizers() {
    check("wide_deep.fleet", |net| {
        let config =
            WideDeepConfig { vocabulary: 100, width: 4, slots: 3, ..WideDeepConfig::criteo() };
        let model = models::wide_deep(net, &WideDeepConfig { hidden: vec![8, 8], ..config });
        let (table, rest) = net.backward(model.loss).unwrap().partition(|name| name == "table");
        net.apply_gradients(Adagrad::new(0.01), table).unwrap();
        net.apply_gradients(Adam::new(1e-3), rest).unwrap();
    });
}

/// Also written in Python (`python/tests/test_cond.py`).
#[test]
fn filetests_branches_with_several_results() {
    check("cond.fleet", |net| {
        let x = net.data("x", [-1, 3], DType::F32);
        let stem = x.fc(Fc::new(3).act(Act::Tanh));
        let results = net.cond_many(
            stem.mean().greater_than(0.0),
            || vec![stem.fc(Fc::new(4).act(Act::Relu)).fc(2), stem.mean()],
            || {
                let twice = stem * stem + stem;
                let far = stem.sum().less_than(-1.0);
                let inner = net.cond(far, || twice.fc(2), || (twice * 3.0).fc(Fc::new(2)).tanh());
                vec![inner, stem.sum()]
            },
        );
        let loss = (results[0] + stem.mean()).square().mean() + results[1] * 0.1;
        net.minimize(loss, Sgd::new(0.1)).unwrap();
    });
}

/// The steps write the program of the closures.
#[test]
fn steps_of_a_cond_write_the_same_program() {
    let network = |by_steps: bool| -> fleet_nn::Result<Programs> {
        let net = Net::new();
        let x = net.data("x", [-1, 3], DType::F32);
        let condition = x.mean().greater_than(0.0);
        let (then, otherwise) = (|| vec![x.fc(2), x.mean()], || vec![x.fc(2).relu(), x.sum()]);
        if !by_steps {
            net.cond_many(condition, then, otherwise);
            return net.finish();
        }
        let mut open = net.begin_cond(condition)?;
        let branch = net.branch_guard(&open);
        let results: Vec<VarId> = then().iter().map(Var::id).collect();
        drop(branch);
        // The programs may move to another network between the steps.
        let net = Net::from_programs(net.finish()?);
        let handles = |ids: &[VarId]| -> Vec<Var<'_>> {
            ids.iter().map(|id| net.var_with_id(*id).unwrap()).collect()
        };
        net.begin_else(&mut open, &handles(&results))?;
        let x = net.var("x");
        let branch = net.branch_guard(&open);
        let results = [x.fc(2).relu(), x.sum()];
        drop(branch);
        net.end_cond(open, &results)?;
        net.finish()
    };
    assert_eq!(text(&network(true).unwrap()), text(&network(false).unwrap()));
}

/// Updates are in the order of names, whatever the order of layers.
#[test]
fn updates_are_sorted_by_name() {
    let net = Net::new();
    let mut x = net.data("x", [-1, 4], DType::F32);
    for _ in 0..12 {
        x = x.fc(4);
    }
    net.minimize(x.mean(), Sgd::new(0.1)).unwrap();
    let main = net.build().unwrap().main;
    let updated: Vec<&str> = main
        .root_ops()
        .filter(|(_, op)| op.name() == "sgd")
        .map(|(_, op)| main.var_name(op.input("Param")[0]))
        .collect();
    assert_eq!(updated.len(), 24);
    assert!(updated.is_sorted(), "{updated:?}");
    assert_eq!(updated[..3], ["fc_0.b_0", "fc_0.w_0", "fc_1.b_0"]);
}

/// An update runs where its gradient is computed. Ops that all parameters share have no device.
#[test]
fn updates_follow_the_device_of_their_layer() {
    let net = Net::new();
    let x = net.data("x", [-1, 4], DType::F32);
    let first = net.device_guard("gpu:0");
    let y = x.fc(4);
    drop(first);
    let _second = net.device_guard("gpu:1");
    let loss = y.fc(4).mean();
    net.minimize(loss, Sgd::new(0.1)).unwrap();
    let main = net.build().unwrap().main;
    let updates = main.root_ops().filter(|(_, op)| op.name() == "sgd");
    let devices: Vec<_> = updates.map(|(_, op)| op.device.as_deref().unwrap_or("none")).collect();
    assert_eq!(devices, ["gpu:0", "gpu:0", "gpu:1", "gpu:1"]);
}

#[test]
fn state_names_are_documented() {
    let names = |desc: OptimizerDesc| -> Vec<String> {
        let net = Net::new();
        let loss = net.data("x", [-1, 4], DType::F32).fc(Fc::new(1).no_bias()).mean();
        net.minimize(loss, desc).unwrap();
        let startup = net.build().unwrap().startup;
        let state = startup.vars().filter(|(_, var)| !var.is_parameter());
        state.map(|(_, var)| var.name.clone()).collect()
    };
    let with_rate = |state: &[&str]| -> Vec<String> {
        let rate = std::iter::once("learning_rate_0".to_string());
        rate.chain(state.iter().map(|name| format!("fc_0.w_0_{name}_0"))).collect()
    };
    let adam = ["moment1", "moment2", "beta1_pow_acc", "beta2_pow_acc"];
    let cases: [(OptimizerDesc, &[&str]); 10] = [
        (Sgd::new(0.1).into(), &[]),
        (Momentum::new(0.1, 0.9).into(), &["velocity"]),
        (Adam::new(0.1).into(), &adam),
        (AdamW::new(0.1).into(), &adam),
        (Adamax::new(0.1).into(), &["moment", "inf_norm", "beta1_pow_acc"]),
        (Adagrad::new(0.1).into(), &["moment"]),
        (Adadelta::new(0.1).into(), &["_avg_squared_grad", "_avg_squared_update"]),
        (RmsProp::new(0.1).centered(true).into(), &["momentum", "mean_square", "mean_grad"]),
        (LarsMomentum::new(0.1, 0.9).into(), &["velocity"]),
        (Lamb::new(0.1).into(), &adam),
    ];
    for (desc, state) in cases {
        let op = desc.rule.op();
        assert_eq!(names(desc), with_rate(state), "{op}");
    }
}

#[test]
fn explicit_names_and_scopes() {
    let net = Net::new();
    let x = net.data("x", [-1, 4], DType::F32);
    assert_eq!(x.fc(Fc::new(4).name("head").act(Act::Relu)).name(), "head.tmp_2");
    assert_eq!(net.var("head.w_0").shape(), Shape::from([4, 4]));
    x.fc(Fc::new(4).name("head"));
    assert_eq!(net.var("head.w_1").shape(), Shape::from([4, 4]));
    {
        let _outer = net.name_scope("a");
        {
            let _inner = net.name_scope("b");
            assert_eq!(x.fc(1).name(), "a/b/fc_0.tmp_1");
        }
        assert_eq!((x + 1.0).name(), "a/tmp_0");
    }
    assert_eq!(x.fc(1).name(), "fc_0.tmp_1");
    assert_eq!(x.relu().name(), "relu_0.tmp_0");
    assert_eq!((x + x).name(), "tmp_0");
    assert!(net.error().is_none(), "{:?}", net.error());
}

#[test]
fn a_guard_names_layers() {
    let net = Net::new();
    let x = net.data("x", [-1, 4], DType::F32);
    let y = net.data("y", [-1, 1], DType::I64);
    let names: Vec<String> = {
        let _name = net.name_guard("n");
        let own = x.fc(Fc::new(1).name("own"));
        [x + x, x.dropout(0.5), x.maximum(1.0), y.one_hot(4), own].iter().map(Var::name).collect()
    };
    // The number is a variable too.
    assert_eq!(names, ["n.tmp_0", "n.tmp_1", "n.tmp_3", "n.tmp_4", "own.tmp_1"]);
    assert_eq!(x.relu().name(), "relu_0.tmp_0");
    assert!(net.error().is_none(), "{:?}", net.error());
}

#[test]
fn networks_share_variables_of_one_startup_program() {
    let build = |startup: fleet_ir::Program, size: i64| {
        let net = Net::from_programs(Programs { startup, ..Programs::new() });
        net.data("x", [-1, 4], DType::F32).fc(size);
        net.create_global_var("seen", [1], 0.0, DType::F32);
        net.finish()
    };
    let train = build(fleet_ir::Program::new(), 2).unwrap();
    let test = build(train.startup.clone(), 2).unwrap();
    assert_eq!(test.main.to_string(), train.main.to_string());
    assert_eq!(test.startup.to_string(), train.startup.to_string());
    let error = build(train.startup, 3).unwrap_err().to_string();
    assert!(error.contains("cannot share 'fc_0.w_0' of the startup program"), "{error}");
    assert!(error.contains("f32[4, 3]") && error.contains("f32[4, 2]"), "{error}");
}

/// Returns the number of trained parameters of a model.
fn parameters(build: impl Fn(&Net)) -> i64 {
    let net = Net::new();
    build(&net);
    let programs = net.build().unwrap();
    let trained = programs.main.parameters().filter(|(_, var)| !var.stop_gradient);
    trained.map(|(_, var)| var.shape.len() as i64).sum()
}

#[test]
fn models_have_their_known_sizes() {
    let resnet = |layers| {
        parameters(|net| {
            models::resnet(net, &ResNetConfig::new(layers));
        })
    };
    assert_eq!(resnet(18), 11_689_512);
    assert_eq!(resnet(34), 21_797_672);
    assert_eq!(resnet(50), 25_557_032);
    assert_eq!(resnet(101), 44_549_160);

    let mlp = |width: i64| width * 400 + 400 + 2 * (400 * 400 + 400) + 400 + 1;
    type Build = fn(&Net);
    let cases: [(i64, Build); 7] = [
        (61_706, |net| {
            models::lenet(net, 10);
        }),
        (138_357_544, |net| {
            models::vgg16(net, 1000);
        }),
        (108_891_648, |net| {
            models::bert_encoder(net, &BertConfig::base());
        }),
        (124_439_808, |net| {
            models::gpt(net, &GptConfig::small());
        }),
        (16_000_000 + mlp(429) + 14, |net| {
            models::wide_deep(net, &WideDeepConfig::criteo());
        }),
        (11_000_000 + 130 + mlp(390) + 14, |net| {
            models::deepfm(net, &DeepFmConfig::criteo());
        }),
        (2 * 100 * 128, |net| {
            models::word2vec(net, &Word2VecConfig::new(100));
        }),
    ];
    for (expected, build) in cases {
        assert_eq!(parameters(build), expected);
    }
}

#[test]
fn documented_checkpoints_are_there() {
    let net = Net::new();
    models::resnet(&net, &ResNetConfig::new(50));
    let main = net.build().unwrap().main;
    let blocks = "2a 2b 2c 3a 3b 3c 3d 4a 4b 4c 4d 4e 4f 5a 5b 5c";
    for block in blocks.split(' ') {
        let name = format!("res{block}.add.output.5.tmp_0");
        assert!(main.find_var(&name).is_some(), "{name}");
    }
}

#[test]
fn every_model_differentiates() {
    let check = |build: &dyn Fn(&Net)| {
        let net = Net::new();
        build(&net);
        let programs = net.build().unwrap();
        let registry = net.registry();
        fleet_ops::verify::verify(&programs.main, registry).unwrap();
        fleet_ops::verify::verify(&programs.startup, registry).unwrap();
    };
    check(&|net| {
        let model = models::resnet(net, &ResNetConfig::new(18));
        net.minimize(model.loss, Momentum::new(0.1, 0.9)).unwrap();
    });
    check(&|net| {
        let model = models::vgg16(net, 10);
        net.minimize(model.loss, Sgd::new(0.1)).unwrap();
    });
    check(&|net| {
        let model = models::bert_mlm(net, &BertConfig { layers: 2, ..BertConfig::base() });
        net.minimize(model.loss, Lamb::new(1e-3)).unwrap();
    });
    check(&|net| {
        let model = models::gpt(net, &GptConfig { layers: 2, ..GptConfig::small() });
        net.minimize(model.loss, AdamW::new(1e-4)).unwrap();
    });
    check(&|net| {
        let model = models::deepfm(net, &DeepFmConfig::criteo());
        net.minimize(model.loss, Adagrad::new(0.1)).unwrap();
    });
    check(&|net| {
        let model = models::word2vec(net, &Word2VecConfig::new(100));
        net.minimize(model.loss, Sgd::new(0.1)).unwrap();
    });
}
