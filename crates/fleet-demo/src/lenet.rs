//! LeNet on generated digits.

use super::{Demo, DigitImages, Size, TESTED_AT_ONCE, accuracy_test, test_sample_count};
use fleet::nn::models::lenet;
use fleet::prelude::*;
use fleet_synth::{Digits, IMAGE_SIDE};
use std::sync::Arc;

pub const BATCH: usize = 32;
pub const SAMPLES: u64 = 64_000;
/// Maximum number of unseen digits for the evaluation.
const TESTED: usize = 10_000;

pub fn demo(size: &Size) -> Result<Demo> {
    let (batch, steps) = size.of(BATCH, SAMPLES);
    let net = Net::new();
    net.set_seed(1);
    let model = lenet(&net, 10);
    let source = Arc::new(DigitImages { digits: Digits::new(1), channels: 1, side: IMAGE_SIDE });
    let count = test_sample_count(steps, batch, TESTED_AT_ONCE..=TESTED);
    let test = accuracy_test(Arc::clone(&source), model.acc1.name(), count);
    Ok(Demo {
        title: "LeNet classifies digits: grey images of 28x28".to_string(),
        loss: model.loss.name(),
        score: Some(("acc", model.acc1.name())),
        targets: vec![model.logits.name()],
        optimizer: match size.is_geo {
            false => Adam::new(1e-3).into(),
            true => Sgd::new(0.05).into(),
        },
        net,
        source,
        batch,
        steps,
        test,
    })
}
