//! A small BERT that fills in masked words.

use super::{Demo, Feeds, Size, Source, loss_on, test_sample_count};
use fleet::nn::models::{BertConfig, bert_tokens};
use fleet::prelude::*;
use fleet_synth::{Text, TextConfig};
use std::sync::Arc;

pub const BATCH: usize = 32;
const LENGTH: usize = 32;
pub const SAMPLES: u64 = 64_000;
/// Number of unseen sentences for the evaluation.
const TESTED_MIN: usize = 250;
const TESTED_MAX: usize = 2_000;

/// Sentences with masked words.
struct Masked(Text);

pub fn demo(size: &Size) -> Result<Demo> {
    let (batch, steps) = size.of(BATCH, SAMPLES);
    let sentences = Arc::new(Masked(Text::new(TextConfig::tiny())?));
    let words = sentences.0.config().word_count as i64;
    let net = Net::new();
    net.set_seed(1);
    let config = BertConfig {
        // One more for the mask, in a multiple that 2, 4 or 8 workers can divide.
        vocabulary: (words as u64 + 1).next_multiple_of(8) as i64,
        hidden: 64,
        layers: 2,
        heads: 4,
        ffn: 128,
        length: LENGTH as i64,
        positions: LENGTH as i64,
        sentence_types: 0,
        padded: false,
        dropout: 0.0,
        initializer_range: 0.1, // suits the small hidden size
        ..BertConfig::base()
    };
    let model = bert_tokens(&net, &config, words);
    let schedule = LrSchedule::polynomial(3e-3, steps).warmup(steps / 10, 0.0, 3e-3);
    let loss = model.loss.name();
    let source = Arc::clone(&sentences);
    let count = test_sample_count(steps, batch, TESTED_MIN..=TESTED_MAX);
    Ok(Demo {
        title: format!(
            "BERT predicts masked words: sentences of {LENGTH} words, {words} different words"
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
            let reached = loss_on(session, &*sentences, &loss, count)?;
            let (best, blind) = (sentences.0.best_masked_loss()?, sentences.0.word_entropy());
            let found = format!(
                "{reached:.3} on {count} unseen sentences; the best possible is {best:.3}, and \
                 {blind:.3} without context"
            );
            Ok(("loss", found))
        }),
    })
}

impl Source for Masked {
    fn blank(&self, rows: usize) -> Result<Feeds> {
        let ids = || Tensor::zeros(DType::I64, [rows as i64, LENGTH as i64]);
        Ok(Feeds::from([("src_ids", ids()?), ("labels", ids()?)]))
    }

    fn fill(&self, batch: &mut Feeds, first: u64) -> Result<()> {
        let [tokens, labels] = batch.tensors(["src_ids", "labels"])?;
        self.0.fill_masked(tokens.as_mut_slice()?, labels.as_mut_slice()?, LENGTH, first)
    }
}
