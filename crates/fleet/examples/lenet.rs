//! LeNet on drawn digits: `cargo run --release --example lenet [STEPS]`.

use fleet::prelude::*;
use fleet_synth::Digits;

const BATCH: i64 = 32;

/// Trains for this many steps.
pub fn train(steps: u64) -> Result<()> {
    let net = Net::new();
    let image = net.data("image", [-1, 1, 28, 28], DType::F32);
    let digit = net.data("digit", [-1, 1], DType::I64);
    let logits = image
        .conv2d(Conv2d::new(6, 5).padding(2).act(Act::Relu))
        .pool2d(Pool2d::max(2).stride(2))
        .conv2d(Conv2d::new(16, 5).act(Act::Relu))
        .pool2d(Pool2d::max(2).stride(2))
        .fc(Fc::new(120).act(Act::Relu))
        .fc(Fc::new(84).act(Act::Relu))
        .fc(10);
    let loss = logits.cross_entropy(digit);
    let accuracy = logits.accuracy(digit, 1);
    net.minimize(loss, Adam::new(1e-3))?;
    let (loss, accuracy) = (loss.name(), accuracy.name());
    let mut session = Session::new(net.build()?, ExecOptions::default())?;

    let digits = Digits::new(1);
    let batch = |size: i64, first: u64| -> Result<(Tensor, Tensor)> {
        let mut images = Tensor::zeros(DType::F32, [size, 1, 28, 28])?;
        let mut labels = Tensor::zeros(DType::I64, [size, 1])?;
        digits.fill_batch_f32(images.as_mut_slice()?, labels.as_mut_slice()?, first)?;
        Ok((images, labels))
    };
    for step in 1..=steps {
        let (image, digit) = batch(BATCH, step * BATCH as u64)?;
        let out = session.run(&[("image", &image), ("digit", &digit)], &[&loss])?;
        if step % steps.div_ceil(10) == 0 {
            println!("step {step}: loss {:.4}", out[0].item::<f32>()?);
        }
    }
    let (image, digit) = batch(1000, 1 << 40)?;
    let out = session.evaluate(&[("image", &image), ("digit", &digit)], &[&accuracy])?;
    println!("accuracy on 1000 unseen digits: {:.1} %", 100.0 * out[0].item::<f32>()?);
    Ok(())
}

fn main() -> Result<()> {
    train(std::env::args().nth(1).map_or(Ok(500), |steps| steps.parse())?)
}
