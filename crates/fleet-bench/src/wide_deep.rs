//! Wide & deep on click logs of Criteo's shape: one table of a million rows of 16 with its own
//! sparse rule, Adam on everything else, batches of 2048.

use crate::measure::{Options, measure};
use fleet::nn::models::{WideDeepConfig, wide_deep};
use fleet::prelude::*;
use fleet_synth::{Ctr, CtrConfig};

pub const BATCH: usize = 2048;
const BATCHES: u64 = 16;

/// The rule of the table.
pub enum TableRule {
    Sgd,
    Adagrad,
}

/// Returns the network and its optimizers, ready to train.
pub fn session(options: &Options, rule: &TableRule) -> Result<Session> {
    let net = Net::new();
    let config = WideDeepConfig { auc: false, ..WideDeepConfig::criteo() };
    let model = wide_deep(&net, &config);
    let (table, rest) = net.backward(model.loss)?.partition(|name| name == "table");
    match rule {
        TableRule::Sgd => net.apply_gradients(Sgd::new(0.01), table)?,
        TableRule::Adagrad => net.apply_gradients(Adagrad::new(0.01), table)?,
    };
    net.apply_gradients(Adam::new(1e-3), rest)?;
    Session::new(net.build()?, options.exec())
}

pub fn run(options: &Options, rule: TableRule) -> Result<()> {
    let mut session = session(options, &rule)?;
    let batches = batches()?;
    measure(options, &mut session, &batches, BATCH, 100, 20)
}

/// Returns prepared batches of click logs.
pub fn batches() -> Result<Vec<Vec<(&'static str, Tensor)>>> {
    let clicks = Ctr::new(CtrConfig::criteo_like())?;
    let mut batches = Vec::new();
    for index in 0..BATCHES {
        let mut dense = vec![0.0f32; BATCH * 13];
        let mut ids = vec![0i64; BATCH * 26];
        let mut labels = vec![0.0f32; BATCH];
        clicks.fill_batch(&mut dense, &mut ids, &mut labels, index * BATCH as u64)?;
        let rows = BATCH as i64;
        batches.push(vec![
            ("dense_input", Tensor::from_slice(&dense, [rows, 13])?),
            ("sparse_input", Tensor::from_slice(&ids, [rows, 26])?),
            ("label", Tensor::from_slice(&labels, [rows, 1])?),
        ]);
    }
    Ok(batches)
}
