//! A small BERT that fills in masked words: `cargo run --release --example bert [STEPS]`.

use fleet::nn::models::{BertConfig, bert_tokens};
use fleet::prelude::*;
use fleet_synth::{Text, TextConfig};

const BATCH: i64 = 32;
const LENGTH: i64 = 32;

/// Trains for this many steps.
pub fn train(steps: u64) -> Result<()> {
    let text = Text::new(TextConfig::tiny())?;
    let words = text.config().word_count as i64;
    let net = Net::new();
    let config = BertConfig {
        vocabulary: words + 1, // one more for the mask
        hidden: 64,
        layers: 2,
        heads: 4,
        ffn: 128,
        length: LENGTH,
        positions: LENGTH,
        sentence_types: 0,
        padded: false,
        dropout: 0.0,
        initializer_range: 0.1, // suits so few dimensions
        ..BertConfig::base()
    };
    // Classifies each token; words that were not masked have a label that is ignored.
    let model = bert_tokens(&net, &config, words);
    let schedule = LrSchedule::polynomial(3e-3, steps).warmup(steps / 10, 0.0, 3e-3);
    net.minimize(model.loss, AdamW::new(schedule).coeff(0.01))?;
    let loss = model.loss.name();
    let mut session = Session::new(net.build()?, ExecOptions::default())?;

    let mut tokens = Tensor::zeros(DType::I64, [BATCH, LENGTH])?;
    let mut labels = Tensor::zeros(DType::I64, [BATCH, LENGTH])?;
    let (blind, best) = (text.word_entropy(), text.best_masked_loss()?);
    let (mut sum, mut count) = (0.0, 0);
    for step in 1..=steps {
        let (x, y) = (tokens.as_mut_slice()?, labels.as_mut_slice()?);
        text.fill_masked(x, y, LENGTH as usize, step * BATCH as u64)?;
        let out = session.run(&[("src_ids", &tokens), ("labels", &labels)], &[&loss])?;
        (sum, count) = (sum + out[0].item::<f32>()?, count + 1);
        if step % steps.div_ceil(10) == 0 {
            let mean = sum / count as f32;
            println!("step {step}: loss {mean:.3} ({blind:.3} without context, at best {best:.3})");
            (sum, count) = (0.0, 0);
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    train(std::env::args().nth(1).map_or(Ok(1500), |steps| steps.parse())?)
}
