//! ResNet-50, 16 images of 224x224, momentum with L2 on every parameter.

use crate::measure::{Options, measure};
use fleet::nn::models::{ResNetConfig, resnet};
use fleet::prelude::*;

const BATCH: i64 = 16;

pub fn run(options: &Options) -> Result<()> {
    let net = Net::new();
    let model = resnet(&net, &ResNetConfig::new(50));
    net.minimize(model.loss, Momentum::new(0.01, 0.9).weight_decay(Regularizer::L2(1e-4)))?;
    let mut session = Session::new(net.build()?, options.exec())?;
    let mut rng = fleet::rng::Sequence::new(1, 1);
    let mut batches = Vec::new();
    for _ in 0..2 {
        let pixels: Vec<f32> = (0..BATCH * 3 * 224 * 224).map(|_| rng.normal() as f32).collect();
        let labels: Vec<i64> = (0..BATCH).map(|_| rng.below(1000) as i64).collect();
        batches.push(vec![
            ("x", Tensor::from_slice(&pixels, [BATCH, 3, 224, 224])?),
            ("y", Tensor::from_slice(&labels, [BATCH, 1])?),
        ]);
    }
    measure(options, &mut session, &batches, BATCH as usize, 5, 2)
}
