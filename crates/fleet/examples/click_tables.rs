//! Click tables: rows that count their shows and clicks, get an embedding after enough of them, and
//! are deleted when they are no longer used. Alone, or as a job with servers:
//! `fleetrun --server_num=1 --worker_num=2 target/release/examples/click_tables [STEPS]`

use fleet::prelude::*;
use fleet::ps::{SaveFormat, SaveMode};
use fleet_synth::{Ctr, CtrConfig};

const BATCH: i64 = 512;
const DAYS: u64 = 3;

/// Rows with a weight for every id, and 16 numbers for those whose score has reached 5.
const TABLES: &str = r#"
a_sync: true
downpour_table_param {
  table_name: "rows"
  accessor {
    accessor_class: "SparseAccessor"
    embedx_threshold: 5
    ctr_accessor_param {
      nonclk_coeff: 0.1
      click_coeff: 1
      base_threshold: 1
      delta_threshold: 0.25
      show_click_decay_rate: 0.98
      delete_threshold: 0.15
    }
    embed_sgd_param { name: "SparseAdaGradSGDRule" adagrad { learning_rate: 0.05 } }
    embedx_sgd_param {
      name: "StdAdaGradSGDRule"
      adagrad { learning_rate: 0.05 initial_range: 0.01 }
    }
  }
}
"#;

/// Returns the strategy that describes the tables.
pub fn strategy() -> Result<DistributedStrategy> {
    DistributedStrategy::parse(TABLES)
}

/// Builds the network and returns its loss.
pub fn network(net: &Net, row_count: u64) -> Var<'_> {
    let dense = net.data("dense", [-1, 13], DType::F32);
    let ids = net.data("ids", [-1, 26], DType::I64);
    let click = net.data("click", [-1, 1], DType::F32);
    net.data("show", [-1, 1], DType::F32);
    let counted = Entry::ShowClick { show: "show".into(), click: "click".into() };
    let table = SparseEmbedding::new(row_count, 1 + 16).weight("rows").entry(counted);
    let rows = ids.sparse_embedding(table).flatten(1);
    let mut deep = net.concat(&[rows, dense], 1);
    for width in [128, 64] {
        deep = deep.fc(Fc::new(width).act(Act::Relu));
    }
    let logit = dense.fc(1) + deep.fc(1);
    logit.sigmoid_cross_entropy_with_logits(click).mean()
}

/// Trains for this many steps.
pub fn train(steps: u64) -> Result<()> {
    let fleet = Fleet::parameter_server()?;
    let (clicks, net) = (Ctr::new(CtrConfig::small())?, Net::new());
    let loss = network(&net, clicks.row_count());
    let optimizer = fleet.distributed_optimizer(Adam::new(1e-3), &strategy()?);
    let job = optimizer.minimize_on_servers(&net, loss)?;
    if fleet.is_server() {
        fleet.init_server(&job)?.run()?;
        return Ok(());
    }
    let loss = loss.name();
    let mut worker = fleet.init_worker(net.build()?, &job, ExecOptions::default())?;
    let (first, own, all) =
        (fleet.is_first_worker(), fleet.worker_index() as u64, fleet.worker_num() as u64);
    let folder = std::env::temp_dir().join(format!("fleet-click-tables-{}", std::process::id()));

    let mut dense = Tensor::zeros(DType::F32, [BATCH, 13])?;
    let mut ids = Tensor::zeros(DType::I64, [BATCH, 26])?;
    let mut click = Tensor::zeros(DType::F32, [BATCH, 1])?;
    let show = Tensor::from_slice(&vec![1.0f32; BATCH as usize], [BATCH, 1])?;
    for step in 1..=steps {
        let (x, y) = (dense.as_mut_slice()?, click.as_mut_slice()?);
        let at = (step * all + own) * BATCH as u64;
        clicks.fill_batch(x, ids.as_mut_slice()?, y, at)?;
        let feed = [("dense", &dense), ("ids", &ids), ("click", &click), ("show", &show)];
        let out = worker.run(&feed, &[&loss])?;
        let day_ends = step % steps.div_ceil(DAYS) == 0 || step == steps;
        if !(day_ends && first) {
            continue;
        }
        // Saves the rows for serving, at the end only those that changed; deletes rows that are not
        // used.
        let mode = if step == steps { SaveMode::Delta } else { SaveMode::Base };
        let saved = worker.save_persistables(&folder, mode, SaveFormat::Text)?;
        let deleted = worker.shrink(None)?;
        println!(
            "step {step}: loss {:.4}; saved ({mode:?}) {} rows and numbers, deleted {deleted} of \
             {} rows",
            out[0].item::<f32>()?,
            saved.row_count,
            worker.table_stats("rows")?.row_count + deleted,
        );
    }
    worker.stop()?;
    if first {
        let _ = std::fs::remove_dir_all(&folder);
    }
    Ok(())
}

fn main() -> Result<()> {
    train(std::env::args().nth(1).map_or(Ok(600), |steps| steps.parse())?)
}
