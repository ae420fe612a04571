//! Wide & deep on click logs of 26 slots.

use super::{Demo, FIRST_TESTED, Feeds, Size, Source, floats, linear_decay, test_sample_count};
use fleet::nn::models::{WideDeepConfig, wide_deep};
use fleet::prelude::*;
use fleet_base::text;
use fleet_synth::{Ctr, CtrConfig, auc_exact};
use std::sync::Arc;

pub const BATCH: usize = 1024;
pub const SAMPLES: u64 = 1_500_000;
/// Number of unseen samples for the evaluation.
const TESTED_MIN: usize = 10_000;
const TESTED_MAX: usize = 200_000;
/// Learning rate of rows: a row is in few samples of a batch, so its gradient is small.
const TABLE_RATE: f64 = 6.0;
/// Learning rate of the layers, relative to [`TABLE_RATE`].
const LAYERS_FACTOR: f64 = 0.02;

pub fn demo(size: &Size) -> Result<Demo> {
    let (batch, steps) = size.of(BATCH, SAMPLES);
    let clicks = Arc::new(Ctr::new(CtrConfig::small())?);
    let net = Net::new();
    net.set_seed(1);
    let row_count = clicks.row_count() as i64;
    let config = WideDeepConfig { vocabulary: row_count, ..WideDeepConfig::criteo() };
    let model = wide_deep(&net, &config);
    let table: OptimizerDesc = Sgd::new(linear_decay(TABLE_RATE, steps)).into();
    let (optimizer, rows) = match size.is_geo {
        // One rule for all: the table's, with a lower rate for layers.
        true => {
            slow_down_layers(&net)?;
            (table, None)
        }
        // Asynchronous workers compute with parameters that lack the others' latest updates.
        false => {
            let rate = 2e-3 / size.async_workers as f64;
            (Adam::new(linear_decay(rate, steps)).into(), Some(table))
        }
    };
    let score = model.auc.map(|auc| ("AUC", auc.batch_auc.name()));
    let prediction = model.prediction.name();
    let tested = test_sample_count(steps, batch, TESTED_MIN..=TESTED_MAX);
    let source = Arc::clone(&clicks);
    let target = prediction.clone();
    Ok(Demo {
        title: format!(
            "wide & deep predicts clicks on adverts: 13 numbers, 26 ids of {} rows",
            text::count(row_count as f64)
        ),
        loss: model.loss.name(),
        optimizer,
        rows,
        net,
        source,
        batch,
        steps,
        score,
        targets: vec![target],
        test: Box::new(move |session| test(session, &clicks, &prediction, tested)),
    })
}

fn slow_down_layers(net: &Net) -> Result<()> {
    net.rewrite_with(|programs, _| {
        let layers = programs.main.parameters().filter(|(_, var)| var.name != "table");
        let layers: Vec<_> = layers.map(|(id, _)| id).collect();
        for id in layers {
            if let Some(param) = &mut programs.main.var_mut(id).param {
                param.learning_rate = LAYERS_FACTOR;
            }
        }
        Ok(())
    })
}

impl Source for Ctr {
    fn blank(&self, rows: usize) -> Result<Feeds> {
        let rows = rows as i64;
        Ok(Feeds::from([
            ("dense_input", Tensor::zeros(DType::F32, [rows, self.dense_count() as i64])?),
            ("sparse_input", Tensor::zeros(DType::I64, [rows, self.slot_count() as i64])?),
            ("label", Tensor::zeros(DType::F32, [rows, 1])?),
        ]))
    }

    fn fill(&self, batch: &mut Feeds, first: u64) -> Result<()> {
        let [dense, ids, label] = batch.tensors(["dense_input", "sparse_input", "label"])?;
        let (dense, ids) = (dense.as_mut_slice()?, ids.as_mut_slice()?);
        self.fill_batch(dense, ids, label.as_mut_slice()?, first)
    }
}

fn test(
    session: &mut Session,
    clicks: &Ctr,
    prediction: &str,
    tested: usize,
) -> Result<super::Fact> {
    let mut batch = clicks.blank(TESTED_MIN)?;
    let (mut scores, mut labels) = (Vec::new(), Vec::new());
    for at in (0..tested).step_by(TESTED_MIN) {
        clicks.fill(&mut batch, FIRST_TESTED + at as u64)?;
        scores.extend(floats(&session.evaluate(&batch.list(), &[prediction])?[0])?);
        let [label] = batch.tensors(["label"])?;
        labels.extend(label.to_vec::<f32>()?);
    }
    let mut truth = vec![0.0; tested];
    clicks.fill_probabilities(&mut truth, FIRST_TESTED);
    let (reached, best) = (auc_exact(&scores, &labels)?, auc_exact(&truth, &labels)?);
    let count = text::count(tested as f64);
    Ok(("AUC", format!("{reached:.4} on {count} unseen samples; the best possible is {best:.4}")))
}
