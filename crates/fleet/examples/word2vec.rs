//! Word vectors: `cargo run --release --example word2vec [STEPS]`.

use fleet::nn::models::{Word2VecConfig, word2vec};
use fleet::prelude::*;
use fleet_synth::{Text, TextConfig};

const BATCH: i64 = 1024;

/// Trains for this many steps.
pub fn train(steps: u64) -> Result<()> {
    let text = Text::new(TextConfig::small())?;
    let words = text.config().word_count as i64;
    let net = Net::new();
    let model = word2vec(&net, &Word2VecConfig { width: 48, ..Word2VecConfig::new(words) });
    net.minimize(model.loss, Adagrad::new(0.2))?;
    let loss = model.loss.name();
    let mut session = Session::new(net.build()?, ExecOptions::default())?;

    let ids = |width| Tensor::zeros(DType::I64, [BATCH, width]);
    let (mut center, mut context, mut negatives) = (ids(1)?, ids(1)?, ids(5)?);
    let best = text.best_skip_gram_loss();
    let (mut sum, mut count) = (0.0, 0);
    for step in 1..=steps {
        let noise = negatives.as_mut_slice()?;
        let first = step * BATCH as u64;
        text.fill_pairs(center.as_mut_slice()?, context.as_mut_slice()?, noise, first)?;
        let feed = [("center", &center), ("context", &context), ("negatives", &negatives)];
        let out = session.run(&feed, &[&loss])?;
        (sum, count) = (sum + out[0].item::<f32>()?, count + 1);
        if step % steps.div_ceil(10) == 0 {
            println!("step {step}: loss {:.4} (at best {best:.4})", sum / count as f32);
            (sum, count) = (0.0, 0);
        }
    }
    let table = session.scope.tensor("emb")?;
    let found = nearest(table.as_slice()?, 48, 7);
    let classes: Vec<usize> = found.iter().map(|word| word % text.config().class_count).collect();
    println!("nearest to word 7 of class 7: {found:?}, of classes {classes:?}");
    Ok(())
}

/// Returns the words whose vectors are closest in direction to that of `word`.
fn nearest(table: &[f32], width: usize, word: usize) -> Vec<usize> {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let own = &table[word * width..][..width];
    let cosine = |other: &[f32]| dot(own, other) / (dot(own, own) * dot(other, other)).sqrt();
    // Rare words have hardly moved from their initial vectors.
    let mut order: Vec<usize> = (0..500).filter(|other| *other != word).collect();
    order.sort_by(|a, b| {
        let score = |word: &usize| cosine(&table[word * width..][..width]);
        score(b).total_cmp(&score(a))
    });
    order.truncate(8);
    order
}

fn main() -> Result<()> {
    train(std::env::args().nth(1).map_or(Ok(2000), |steps| steps.parse())?)
}
