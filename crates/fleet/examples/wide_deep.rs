//! Wide & deep on click logs: `cargo run --release --example wide_deep [STEPS]`.

use fleet::prelude::*;
use fleet::trainer::{Feeds, from_fn};
use fleet_synth::{Ctr, CtrConfig};

const BATCH: i64 = 512;

/// Trains for this many steps.
pub fn train(steps: u64) -> Result<()> {
    let clicks = Ctr::new(CtrConfig::small())?;

    // The network: a linear model of 13 numbers beside a deep one of numbers and table rows.
    let net = Net::new();
    let dense = net.data("dense", [-1, 13], DType::F32);
    let ids = net.data("ids", [-1, 26], DType::I64);
    let click = net.data("click", [-1, 1], DType::F32);
    let rows = Embedding::new(clicks.row_count() as i64, 16).sparse();
    let rows =
        ids.embedding(rows.weight(ParamAttr::from("table").init(Init::uniform(-0.01, 0.01))));
    let mut deep = net.concat(&[rows.flatten(1), dense], 1);
    for width in [400, 400, 400] {
        deep = deep.fc(Fc::new(width).act(Act::Relu));
    }
    let logit = dense.fc(1) + deep.fc(1);
    let loss = logit.sigmoid_cross_entropy_with_logits(click).mean();
    let area = logit.sigmoid().auc(click.cast(DType::I64), Auc::new().slide_steps(50)).batch_auc;

    // Training: one rule for the table, another for everything else.
    let (table, rest) = net.backward(loss)?.partition(|name| name == "table");
    net.apply_gradients(Sgd::new(2.0), table)?;
    net.apply_gradients(Adam::new(1e-3), rest)?;
    let (loss, area) = (loss.name(), area.name());
    let mut session = Session::new(net.build()?, ExecOptions::default())?;

    println!("the best possible AUC is {:.2}", clicks.config().best_auc);
    let batch = move |_epoch, step, feeds: &mut Feeds| {
        if feeds.is_empty() {
            feeds.set("dense", Tensor::zeros(DType::F32, [BATCH, 13])?);
            feeds.set("ids", Tensor::zeros(DType::I64, [BATCH, 26])?);
            feeds.set("click", Tensor::zeros(DType::F32, [BATCH, 1])?);
        }
        let [dense, ids, click] = feeds.tensors(["dense", "ids", "click"])?;
        let (x, y) = (dense.as_mut_slice()?, click.as_mut_slice()?);
        clicks.fill_batch(x, ids.as_mut_slice()?, y, step * BATCH as u64)?;
        Ok(true)
    };
    // A thread of its own makes the batches.
    let data = from_fn(batch).batches(steps).ahead(4);
    let fleet = Fleet::collective()?;
    Trainer::new(&fleet).watch("loss", &loss).watch("AUC", &area).run(&mut session, data)?;
    Ok(())
}

fn main() -> Result<()> {
    train(std::env::args().nth(1).map_or(Ok(1000), |steps| steps.parse())?)
}
