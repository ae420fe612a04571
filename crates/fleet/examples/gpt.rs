//! A small GPT on text that often repeats itself: `cargo run --release --example gpt [STEPS]`.

use fleet::nn::models::{GptConfig, gpt};
use fleet::prelude::*;
use fleet_synth::{Text, TextConfig};

const BATCH: usize = 16;
const LENGTH: usize = 32;

/// Trains for this many steps.
pub fn train(steps: u64) -> Result<()> {
    // Half of the tokens repeat the one eight places before, which only attention can find.
    let text = Text::new(TextConfig { copy_rate: 0.5, ..TextConfig::tiny() })?;
    let net = Net::new();
    let config = GptConfig {
        vocabulary: text.config().word_count as i64,
        hidden: 64,
        layers: 2,
        heads: 4,
        ffn: 256,
        length: LENGTH as i64,
        dropout: 0.0,
        ..GptConfig::small()
    };
    let model = gpt(&net, &config);
    let schedule = LrSchedule::polynomial(3e-3, steps).warmup(steps / 10, 0.0, 3e-3);
    net.minimize(model.loss, AdamW::new(schedule).grad_clip(GradClip::GlobalNorm(1.0)))?;
    let loss = model.loss.name();
    let mut session = Session::new(net.build()?, ExecOptions::default())?;

    let mut sequences = vec![0; BATCH * (LENGTH + 1)];
    let best = text.best_next_loss(0, 200, LENGTH + 1)?;
    let (mut sum, mut count) = (0.0, 0);
    for step in 1..=steps {
        text.fill_tokens(&mut sequences, LENGTH + 1, step * BATCH as u64)?;
        let rows = || sequences.chunks(LENGTH + 1);
        let tokens: Vec<i64> = rows().flat_map(|row| &row[..LENGTH]).copied().collect();
        let labels: Vec<i64> = rows().flat_map(|row| &row[1..]).copied().collect();
        let shape = [BATCH as i64, LENGTH as i64];
        let tokens = Tensor::from_slice(&tokens, shape)?;
        let labels = Tensor::from_slice(&labels, shape)?;
        let out = session.run(&[("tokens", &tokens), ("labels", &labels)], &[&loss])?;
        (sum, count) = (sum + out[0].item::<f32>()?, count + 1);
        if step % steps.div_ceil(10) == 0 {
            println!("step {step}: loss {:.3} (at best {best:.3})", sum / count as f32);
            (sum, count) = (0.0, 0);
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    train(std::env::args().nth(1).map_or(Ok(1000), |steps| steps.parse())?)
}
