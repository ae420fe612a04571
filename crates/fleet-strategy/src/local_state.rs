//! Finds the persistent variables of a program that differ between the ranks of a job.
//!
//! Ranks run the same program with different data. Values computed from fed data differ; the result
//! of a collective is the same on all ranks. So these variables can be found in the program: values
//! flow from fed variables through ops, and stop at sums, broadcasts and gathers. In data parallel
//! training, only batch statistics remain. Gradient merge adds its accumulators, LocalSGD the
//! parameters between two averagings, and DGC the unsent parts of gradients.

use fleet_ir::{BlockId, Op, Program, VarId};
use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

/// A variable with a different value on every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalVar {
    pub name: String,
    pub spread: Spread,
}

/// How m new ranks get their values from those of n previous ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Each rank gets the mean: parameters, momenta, statistics, and values that will be averaged.
    Mean,
    /// Each rank gets its share of the sum: counts and sums over ranks.
    Share,
    /// Each rank gets rank 0's value: counters and scales that control the rank itself.
    First,
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Spread::Mean => "mean",
            Spread::Share => "share",
            Spread::First => "first",
        })
    }
}

impl FromStr for Spread {
    type Err = ();

    fn from_str(text: &str) -> Result<Spread, ()> {
        match text {
            "mean" => Ok(Spread::Mean),
            "share" => Ok(Spread::Share),
            "first" => Ok(Spread::First),
            _ => Err(()),
        }
    }
}

/// Returns the variables of a rank's main program that persist between steps and differ between
/// ranks.
///
/// ```
/// use fleet_nn::prelude::*;
/// use fleet_strategy::{DistributedStrategy, Ranks, Spread, local_state, minimize};
/// let net = Net::new();
/// let (x, y) = (net.data("x", [-1, 2], DType::F32), net.data("y", [-1, 1], DType::F32));
/// let loss = x.fc(1).batch_norm(BatchNorm::new()).mse_loss(y, Reduction::Mean).id();
/// let strategy = DistributedStrategy::new();
/// net.rewrite_with(|programs, registry| {
///     minimize(programs, registry, loss, &Sgd::new(0.1).into(), &strategy, Ranks::new(0, 4))
/// })?;
/// let local = local_state(&net.build()?.main);
/// let names: Vec<&str> = local.iter().map(|var| &*var.name).collect();
/// assert_eq!(names, ["batch_norm_0.w_1", "batch_norm_0.w_2"]); // mean and variance
/// assert_eq!(local[0].spread, Spread::Mean);
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn local_state(main: &Program) -> Vec<LocalVar> {
    let fed: HashSet<VarId> =
        main.vars().filter(|(_, var)| var.is_data).map(|(id, _)| id).collect();
    let mut kept: HashSet<VarId> = HashSet::new();
    loop {
        let mut local: HashSet<VarId> = fed.union(&kept).copied().collect();
        flow(main, Program::ROOT, &mut local);
        let before = kept.len();
        kept.extend(local.into_iter().filter(|var| main.var(*var).persistable));
        if kept.len() == before {
            break;
        }
    }
    let mut found: Vec<LocalVar> = kept
        .into_iter()
        .map(|var| LocalVar { name: main.var_name(var).to_string(), spread: spread(main, var) })
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// Follows local values through the ops of a block.
fn flow(main: &Program, block: BlockId, local: &mut HashSet<VarId>) {
    for (id, op) in main.block_ops(block) {
        if let Some(inner) = op.sub_block() {
            let mut taken = local.clone();
            flow(main, inner, &mut taken);
            if op.all_inputs().any(|var| local.contains(&var)) {
                // Ranks may differ in whether the block runs, so everything it writes differs.
                main.writes_of(id, &mut taken);
            }
            // The block may run or not, so the variables of both cases are local.
            local.extend(taken);
            continue;
        }
        let differs = op.all_inputs().any(|var| local.contains(&var));
        for (slot, vars) in op.spec.outputs.iter().zip(&op.outputs) {
            let is_local = differs && !is_common(op, slot.name);
            for var in vars {
                match is_local {
                    true => local.insert(*var),
                    false => local.remove(var),
                };
            }
        }
    }
}

/// Returns whether all ranks get the same value from this output of a collective.
fn is_common(op: &Op, slot: &str) -> bool {
    match op.name() {
        name if name.starts_with("c_allreduce") => true,
        "c_broadcast" | "c_allgather" | "c_concat" | "c_allgather_rows" => true,
        "dgc" => slot == "GradOut",
        "sync_batch_norm" => slot != "Y",
        _ => false,
    }
}

fn spread(main: &Program, var: VarId) -> Spread {
    let mut spread = match main.var(var).dtype.is_float() {
        true => Spread::Mean,
        false => Spread::First,
    };
    for block in main.block_ids() {
        for (_, op) in main.block_ops(block) {
            if !op.all_outputs().any(|out| out == var) {
                continue;
            }
            let adds = matches!(op.name(), "elementwise_add" | "sum")
                && op.all_inputs().any(|input| input == var);
            if adds || op.name() == "auc" {
                return Spread::Share;
            }
            if op.name() == "update_loss_scaling" {
                spread = Spread::First;
            }
        }
    }
    spread
}
