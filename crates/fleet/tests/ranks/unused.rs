//! Parameters that some or all ranks do not use in a step: no rank waits for another, and gradients
//! equal those of one rank on the whole batch.
//!
//! A program is the same on every rank and in every step, so the set of parameters with gradients
//! is known when it is written. A parameter that the loss does not need takes part in no sum. A
//! parameter that a rank's batch does not touch (a branch with weight zero, rows of a table) has a
//! gradient of zero there.

use crate::launch::{assert_success, run};
use fleet::prelude::*;
use fleet::strategy::DistributedStrategy;
use fleet::topology::Env;

const ROWS: usize = 4;
const RANKS: usize = 3;
const STEPS: usize = 6;

/// Opens a session with two branches, of which each row takes one, and an unused layer.
fn session(fleet: &Fleet) -> Result<Session> {
    let net = Net::new();
    net.set_seed(3);
    let x = net.data("x", [-1, 6], DType::F32);
    let left = net.data("left", [-1, 1], DType::F32);
    let ids = net.data("ids", [-1, 1], DType::I64);
    let _ = x.fc(Fc::new(5).act(Act::Tanh)); // unused
    let one = x.fc(Fc::new(8).act(Act::Tanh)).fc(1);
    let other = x.fc(Fc::new(8).act(Act::Tanh)).fc(1);
    let row = ids.embedding([8, 3]).reshape([-1, 3]).fc(1);
    let out = one * left + other * (left * -1.0 + 1.0) + row;
    let loss = (out * out).mean();
    let strategy = DistributedStrategy::new();
    let job =
        fleet.distributed_optimizer(Momentum::new(0.1, 0.9), &strategy).minimize(&net, loss)?;
    fleet.session(net.build()?, &job, ExecOptions::threads(1))
}

/// Returns the rows of ranks `ranks` in a step. All rows of a rank take the same branch, which
/// changes in every step, and use table rows that other ranks do not use.
fn batch(step: usize, ranks: std::ops::Range<usize>) -> Result<[Tensor; 3]> {
    let rows = ranks.len() * ROWS;
    let value = |at: usize| ((at * 37 + step * 11) % 97) as f32 / 97.0 - 0.5;
    let x: Vec<f32> = (ranks.start * ROWS * 6..ranks.end * ROWS * 6).map(value).collect();
    let of_rank = |rank: usize| std::iter::repeat_n(rank, ROWS);
    let left: Vec<f32> = ranks.clone().flat_map(of_rank).map(|r| ((r + step) % 2) as f32).collect();
    let ids: Vec<i64> = ranks.flat_map(of_rank).map(|r| ((r * 2 + step) % 8) as i64).collect();
    let rows = rows as i64;
    Ok([
        Tensor::from_slice(&x, [rows, 6])?,
        Tensor::from_slice(&left, [rows, 1])?,
        Tensor::from_slice(&ids, [rows, 1])?,
    ])
}

fn run_steps(session: &mut Session, ranks: std::ops::Range<usize>) -> Result<Vec<f32>> {
    for step in 0..STEPS {
        let [x, left, ids] = batch(step, ranks.clone())?;
        session.run(&[("x", &x), ("left", &left), ("ids", &ids)], &[])?;
    }
    let mut names: Vec<String> = session.scope.names().map(str::to_string).collect();
    names.sort();
    let params = names.iter().filter(|name| name.ends_with("_0") && !name.contains("velocity"));
    Ok(params
        .flat_map(|name| session.scope.tensor(name).unwrap().to_vec::<f32>().unwrap_or_default())
        .collect())
}

/// Runs in a rank process.
pub fn train(fleet: &Fleet) -> Result<()> {
    let rank = fleet.worker_index();
    let mine = run_steps(&mut session(fleet)?, rank..rank + 1)?;
    let alone = Fleet::join(&Env::new())?;
    let whole = run_steps(&mut session(&alone)?, 0..fleet.worker_num())?;
    assert!(mine.len() > 100 && mine.len() == whole.len());
    for (a, b) in mine.iter().zip(&whole) {
        assert!((a - b).abs() <= 1e-5, "rank {rank}: {a} and {b}");
    }
    fleet.finish()
}

#[test]
fn parameters_that_ranks_leave_unused_hang_nobody() {
    assert_success(&run("leave parameters unused", RANKS));
}
