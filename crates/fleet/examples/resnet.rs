//! ResNet-18 on drawn digits in colour: `cargo run --release --example resnet [STEPS]`.

use fleet::nn::models::{ResNetConfig, resnet};
use fleet::prelude::*;
use fleet_synth::{Digits, IMAGE_PIXELS, IMAGE_SIDE};

const BATCH: usize = 32;
const SIZE: usize = 32;

pub fn train(steps: u64) -> Result<()> {
    let net = Net::new();
    let model =
        resnet(&net, &ResNetConfig { classes: 10, size: SIZE as i64, ..ResNetConfig::new(18) });
    net.minimize(model.loss, Momentum::new(0.02, 0.9).weight_decay(Regularizer::L2(1e-4)))?;
    let (loss, accuracy) = (model.loss.name(), model.acc1.name());
    let mut session = Session::new(net.build()?, ExecOptions::default())?;
    for step in 1..=steps {
        let (x, y) = batch(BATCH, step * BATCH as u64)?;
        let out = session.run(&[("x", &x), ("y", &y)], &[&loss, &accuracy])?;
        if step % steps.div_ceil(10) == 0 {
            let (loss, accuracy) = (out[0].item::<f32>()?, 100.0 * out[1].item::<f32>()?);
            println!("step {step}: loss {loss:.4}, accuracy {accuracy:.0} %");
        }
    }
    let (x, y) = batch(250, 1 << 40)?;
    let out = session.evaluate(&[("x", &x), ("y", &y)], &[&accuracy])?;
    println!("accuracy on 250 unseen digits: {:.1} %", 100.0 * out[0].item::<f32>()?);
    Ok(())
}

/// Grey digits of 28x28 in the middle of images of 32x32, brightest in one of the three colours.
fn batch(count: usize, first: u64) -> Result<(Tensor, Tensor)> {
    let (mut grey, mut labels) = (vec![0.0; count * IMAGE_PIXELS], vec![0; count]);
    Digits::new(1).fill_batch_f32(&mut grey, &mut labels, first)?;
    let mut images = vec![-1.0f32; count * 3 * SIZE * SIZE];
    let edge = (SIZE - IMAGE_SIDE) / 2;
    for (at, digit) in grey.chunks(IMAGE_PIXELS).enumerate() {
        for colour in 0..3 {
            let shade = if at % 3 == colour { 1.0 } else { 0.5 };
            let plane = &mut images[(3 * at + colour) * SIZE * SIZE..][..SIZE * SIZE];
            for (row, pixels) in digit.chunks(IMAGE_SIDE).enumerate() {
                let line = &mut plane[(row + edge) * SIZE + edge..][..IMAGE_SIDE];
                line.iter_mut().zip(pixels).for_each(|(to, grey)| *to = shade * grey);
            }
        }
    }
    let (count, size) = (count as i64, SIZE as i64);
    let images = Tensor::from_slice(&images, [count, 3, size, size])?;
    Ok((images, Tensor::from_slice(&labels, [count, 1])?))
}

fn main() -> Result<()> {
    train(std::env::args().nth(1).map_or(Ok(100), |steps| steps.parse())?)
}
