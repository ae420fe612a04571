//! DeepFM on click logs: `cargo run --release --example deepfm [STEPS]`.

use fleet::nn::models::{DeepFmConfig, deepfm};
use fleet::prelude::*;
use fleet_synth::{Ctr, CtrConfig};

const BATCH: i64 = 512;

/// Trains for this many steps.
pub fn train(steps: u64) -> Result<()> {
    let clicks = Ctr::new(CtrConfig::small())?;
    let net = Net::new();
    let vocabulary = clicks.row_count() as i64;
    let model = deepfm(&net, &DeepFmConfig { vocabulary, ..DeepFmConfig::criteo() });
    net.minimize(model.loss, Adam::new(2e-3).lazy_mode(true))?;
    let area = model.auc.map_or_else(String::new, |auc| auc.batch_auc.name());
    let loss = model.loss.name();
    let mut session = Session::new(net.build()?, ExecOptions::default())?;

    let mut dense = Tensor::zeros(DType::F32, [BATCH, 13])?;
    let mut ids = Tensor::zeros(DType::I64, [BATCH, 26])?;
    let mut click = Tensor::zeros(DType::F32, [BATCH, 1])?;
    let best = clicks.config().best_auc;
    for step in 1..=steps {
        let (x, y) = (dense.as_mut_slice()?, click.as_mut_slice()?);
        clicks.fill_batch(x, ids.as_mut_slice()?, y, step * BATCH as u64)?;
        let feed = [("dense_input", &dense), ("sparse_input", &ids), ("label", &click)];
        if step % steps.div_ceil(10) == 0 {
            let out = session.run(&feed, &[&loss, &area])?;
            let (loss, area) = (out[0].item::<f32>()?, out[1].item::<f64>()?);
            println!("step {step}: loss {loss:.4}, AUC {area:.4} (at best {best:.2})");
        } else {
            session.run(&feed, &[])?;
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    train(std::env::args().nth(1).map_or(Ok(1000), |steps| steps.parse())?)
}
