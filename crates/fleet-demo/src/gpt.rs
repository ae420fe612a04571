//! A small GPT that predicts the next word: the demo of models that are divided among workers.

use super::{Demo, FIRST_TESTED, Feeds, Size, Source, number, test_sample_count};
use fleet::Session;
use fleet::nn::models::{GptConfig, gpt};
use fleet::prelude::*;
use fleet_synth::{Text, TextConfig};
use std::sync::Arc;

pub const BATCH: usize = 16;
const LENGTH: usize = 32;
pub const SAMPLES: u64 = 8_000;
/// Number of unseen sentences for the evaluation.
const TESTED_MIN: usize = 250;
const TESTED_MAX: usize = 1_000;
/// It divides both.
const TESTED_BATCH: usize = 10;

/// Sentences with the next word of each word.
struct Sentences(Text);

pub fn demo(size: &Size) -> Result<Demo> {
    let (batch, steps) = size.of(BATCH, SAMPLES);
    let sentences = Arc::new(Sentences(Text::new(TextConfig::tiny())?));
    let words = sentences.0.config().word_count as i64;
    let net = Net::new();
    net.set_seed(1);
    let config = GptConfig {
        // A multiple that 2, 4 or 8 workers can divide.
        vocabulary: (words as u64).next_multiple_of(8) as i64,
        hidden: 256,
        layers: 4,
        heads: 8,
        ffn: 1024,
        length: LENGTH as i64,
        dropout: 0.0,
        initializer_range: 0.05, // suits the small width
    };
    let model = gpt(&net, &config);
    let rate = 1e-3;
    let schedule = LrSchedule::polynomial(rate, steps).warmup(steps / 10, 0.0, rate);
    let loss = model.loss.name();
    let source = Arc::clone(&sentences);
    let count = test_sample_count(steps, batch, TESTED_MIN..=TESTED_MAX);
    Ok(Demo {
        title: format!(
            "GPT predicts the next word: sentences of {LENGTH} words, {words} different words"
        ),
        loss: loss.clone(),
        score: None,
        targets: vec![model.logits.name()],
        optimizer: AdamW::new(schedule).coeff(0.01).into(),
        net,
        source,
        batch,
        steps,
        test: Box::new(move |session| {
            let reached = mean_loss(session, &sentences, &loss, count)?;
            let text = &sentences.0;
            let best = text.best_next_loss(FIRST_TESTED, count, LENGTH + 1)?;
            let blind = text.word_entropy();
            let found = format!(
                "{reached:.3} on {count} unseen sentences; the best possible is {best:.3}, and \
                 {blind:.3} without context"
            );
            Ok(("loss", found))
        }),
    })
}

/// Measures in small batches, which fit wherever the training does.
fn mean_loss(
    session: &mut Session,
    sentences: &Sentences,
    loss: &str,
    count: usize,
) -> Result<f64> {
    let mut batch = sentences.blank(TESTED_BATCH)?;
    let batches = count / TESTED_BATCH;
    let mut sum = 0.0;
    for at in 0..batches {
        sentences.fill(&mut batch, FIRST_TESTED + (at * TESTED_BATCH) as u64)?;
        sum += number(&session.evaluate(&batch.list(), &[loss])?[0])?;
    }
    Ok(sum / batches as f64)
}

impl Source for Sentences {
    fn blank(&self, rows: usize) -> Result<Feeds> {
        let ids = || Tensor::zeros(DType::I64, [rows as i64, LENGTH as i64]);
        Ok(Feeds::from([("tokens", ids()?), ("labels", ids()?)]))
    }

    fn fill(&self, batch: &mut Feeds, first: u64) -> Result<()> {
        let [tokens, labels] = batch.tensors(["tokens", "labels"])?;
        let (tokens, labels) = (tokens.as_mut_slice::<i64>()?, labels.as_mut_slice::<i64>()?);
        let mut sentences = vec![0; tokens.len() / LENGTH * (LENGTH + 1)];
        self.0.fill_tokens(&mut sentences, LENGTH + 1, first)?;
        let rows = tokens.chunks_exact_mut(LENGTH).zip(labels.chunks_exact_mut(LENGTH));
        for ((tokens, labels), sentence) in rows.zip(sentences.chunks_exact(LENGTH + 1)) {
            tokens.copy_from_slice(&sentence[..LENGTH]);
            labels.copy_from_slice(&sentence[1..]);
        }
        Ok(())
    }
}
