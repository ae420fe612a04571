//! Skip-gram word vectors with negative sampling.

use super::{Demo, Feeds, Size, Source, linear_decay, loss_on};
use fleet::nn::models::{Word2VecConfig, word2vec};
use fleet::prelude::*;
use fleet_base::text;
use fleet_synth::{Text, TextConfig};
use std::sync::Arc;

pub const BATCH: usize = 1024;
pub const SAMPLES: u64 = 4_000_000;
const TESTED: usize = 200_000;

/// Learning rate for GEO, where sgd does not divide gradients by their history.
const GEO_RATE: f64 = 20.0;

/// Pairs of words, each with noise words.
struct Pairs(Text);

pub fn demo(size: &Size) -> Result<Demo> {
    let (batch, steps) = size.of(BATCH, SAMPLES);
    let pairs = Arc::new(Pairs(Text::new(TextConfig::tiny())?));
    let words = pairs.0.config().word_count as i64;
    let net = Net::new();
    net.set_seed(1);
    let model = word2vec(&net, &Word2VecConfig { width: 16, ..Word2VecConfig::new(words) });
    let loss = model.loss.name();
    let source = Arc::clone(&pairs);
    Ok(Demo {
        title: format!("word2vec learns vectors of {words} words"),
        loss: loss.clone(),
        score: None,
        targets: vec![model.logits.name()],
        optimizer: match size.is_geo {
            false => Adagrad::new(linear_decay(0.2, steps)).into(),
            true => Sgd::new(linear_decay(GEO_RATE, steps)).into(),
        },
        net,
        source,
        batch,
        steps,
        test: Box::new(move |session| {
            let reached = loss_on(session, &*pairs, &loss, TESTED)?;
            let (best, count) = (pairs.0.best_skip_gram_loss(), text::count(TESTED as f64));
            let found =
                format!("{reached:.4} on {count} unseen pairs; the best possible is {best:.4}");
            Ok(("loss", found))
        }),
    })
}

impl Source for Pairs {
    fn blank(&self, rows: usize) -> Result<Feeds> {
        let ids = |width: usize| Tensor::zeros(DType::I64, [rows as i64, width as i64]);
        let noise = self.0.config().negative_count;
        let pairs = [("center", ids(1)?), ("context", ids(1)?), ("negatives", ids(noise)?)];
        Ok(Feeds::from(pairs))
    }

    fn fill(&self, batch: &mut Feeds, first: u64) -> Result<()> {
        let [center, context, noise] = batch.tensors(["center", "context", "negatives"])?;
        let (center, context) = (center.as_mut_slice()?, context.as_mut_slice()?);
        self.0.fill_pairs(center, context, noise.as_mut_slice()?, first)
    }
}
