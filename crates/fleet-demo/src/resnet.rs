//! ResNet-18 on generated digits, in images of 32x32 with three channels.

use super::{Demo, DigitImages, Size, TESTED_AT_ONCE, accuracy_test, test_sample_count};
use fleet::nn::models::{ResNetConfig, resnet};
use fleet::prelude::*;
use fleet_synth::Digits;
use std::sync::Arc;

pub const BATCH: usize = 32;
pub const SAMPLES: u64 = 6_400;
/// Maximum number of unseen digits for the evaluation.
const TESTED: usize = 2_000;
const SIDE: usize = 32;

pub fn demo(size: &Size) -> Result<Demo> {
    let (batch, steps) = size.of(BATCH, SAMPLES);
    let net = Net::new();
    net.set_seed(1);
    let config = ResNetConfig { classes: 10, size: SIDE as i64, ..ResNetConfig::new(18) };
    let model = resnet(&net, &config);
    let optimizer = Momentum::new(LrSchedule::cosine(0.02, steps), 0.9);
    let source = Arc::new(DigitImages { digits: Digits::new(1), channels: 3, side: SIDE });
    let count = test_sample_count(steps, batch, TESTED_AT_ONCE..=TESTED);
    let test = accuracy_test(Arc::clone(&source), model.acc1.name(), count);
    Ok(Demo {
        title: "ResNet-18 classifies digits: images of 32x32, three channels".to_string(),
        loss: model.loss.name(),
        score: Some(("acc", model.acc1.name())),
        targets: vec![model.logits.name()],
        optimizer: optimizer.weight_decay(Regularizer::L2(1e-4)).into(),
        net,
        source,
        batch,
        steps,
        test,
    })
}
