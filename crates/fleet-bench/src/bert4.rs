//! A BERT encoder of four layers (hidden 768, 12 heads, FFN 3072), 8 sequences of 128 tokens, a
//! class for each token, AdamW.

use crate::measure::{Options, measure};
use fleet::nn::models::{BertConfig, bert_tokens};
use fleet::prelude::*;
use fleet::{DistributedStrategy, Fleet};

const BATCH: i64 = 8;
const LENGTH: i64 = 128;
const WORDS: u64 = 1024;
const CLASSES: u64 = 128;

/// Trains the network; with `half`, products are computed in bf16 (AMP).
pub fn run(options: &Options, half: bool) -> Result<()> {
    let net = Net::new();
    let config = BertConfig {
        vocabulary: WORDS as i64,
        layers: 4,
        length: LENGTH,
        positions: LENGTH,
        sentence_types: 0,
        padded: false,
        dropout: 0.0,
        ..BertConfig::base()
    };
    let model = bert_tokens(&net, &config, CLASSES as i64);
    let optimizer = AdamW::new(1e-4).coeff(0.01);
    let mut session = if half {
        let mut strategy = DistributedStrategy::new().with_amp(true);
        strategy.amp_configs_mut().set_use_pure_bf16(true);
        let fleet = Fleet::collective()?;
        let job = fleet.distributed_optimizer(optimizer, &strategy).minimize(&net, model.loss)?;
        fleet.session(net.build()?, &job, options.exec())?
    } else {
        net.minimize(model.loss, optimizer)?;
        Session::new(net.build()?, options.exec())?
    };
    let mut rng = fleet::rng::Sequence::new(1, 1);
    let mut batches = Vec::new();
    for _ in 0..8 {
        let mut draw = |bound: u64| -> Vec<i64> {
            (0..BATCH * LENGTH).map(|_| rng.below(bound) as i64).collect()
        };
        let (tokens, labels) = (draw(WORDS), draw(CLASSES));
        batches.push(vec![
            ("src_ids", Tensor::from_slice(&tokens, [BATCH, LENGTH])?),
            ("labels", Tensor::from_slice(&labels, [BATCH, LENGTH])?),
        ]);
    }
    measure(options, &mut session, &batches, BATCH as usize, 8, 3)
}
