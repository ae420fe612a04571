//! VGG-11 on drawn digits in colour: `cargo run --release --example vgg [STEPS]`.

mod pictures;

use fleet::nn::models::{VggConfig, vgg};
use fleet::prelude::*;

const SIZE: usize = 32;

/// Trains for this many steps.
pub fn train(steps: u64) -> Result<()> {
    let net = Net::new();
    let model =
        vgg(&net, &VggConfig { classes: 10, size: SIZE as i64, hidden: 128, ..VggConfig::new(11) });
    let plain = DistributedStrategy::new();
    pictures::train(&net, &model, Adam::new(3e-4), &plain, (SIZE, steps)).map(drop)
}

fn main() -> Result<()> {
    train(std::env::args().nth(1).map_or(Ok(100), |steps| steps.parse())?)
}
