//! The tables of a job, as described by its programs.

use super::click::ClickRows;
use fleet_base::{Error, Result};
use fleet_ir::{Op, Program};
use fleet_nn::LearningRate;
use fleet_nn::optimizer::{OptimizerDesc, Rule};

/// All tables of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Tables {
    pub sparse: Vec<SparseTable>,
    pub dense: Vec<DenseTable>,
    /// The table that counts steps, if a learning rate follows a schedule.
    pub steps: Option<u32>,
}

/// A table of concatenated parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseTable {
    pub table_id: u32,
    /// Names and sizes, in the table's order.
    pub params: Vec<(String, usize)>,
    pub len: usize,
    pub rule: UpdateRule,
    /// Blocks and their servers, in the table's order; `None` divides the table evenly.
    pub blocks: Option<Vec<ParamBlock>>,
}

/// A part of a parameter, or a whole one, on one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamBlock {
    /// The parameter's name, followed by `.block0` and so on if it has several blocks.
    pub name: String,
    pub len: usize,
    pub server: usize,
}

/// A table of rows by id.
#[derive(Clone, Debug, PartialEq)]
pub struct SparseTable {
    pub table_id: u32,
    /// The parameter that became this table.
    pub name: String,
    /// Number of rows in the program; servers create rows for any id.
    pub rows: u64,
    pub width: usize,
    /// How gradients are applied; in a click table, to the embedding.
    pub rule: UpdateRule,
    /// Initial values of a row; in a click table, of its embedding.
    pub init: RowInit,
    pub seed: u64,
    /// Rule for which ids get rows; empty for all ids.
    pub entry: String,
    /// The documented table class, if the program names one.
    pub class: String,
    /// Number of locks, if the strategy sets it.
    pub shard_count: Option<u64>,
    /// Limit of rows on each server, if the strategy sets it.
    pub row_count_max: Option<u64>,
    /// Whether full saves are compressed.
    pub compress_in_save: bool,
    /// Settings of click rows, for click tables.
    pub click: Option<ClickRows>,
}

/// How a server applies a gradient.
#[derive(Clone, Debug, PartialEq)]
pub enum UpdateRule {
    /// An optimizer's rule; the rate is multiplied by `rate_scale`, the parameters' own factor.
    Optimizer { rule: Rule, rate: LearningRate, rate_scale: f64 },
    /// A rule of click tables, if the strategy describes one.
    Row(RowRule),
    /// Adds the changes of workers (GEO).
    Add,
}

/// Rules of click tables, with their own learning rates. With `is_shared`, the columns of a row
/// share one accumulator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RowRule {
    Naive { rate: f64 },
    Adagrad { rate: f64, initial_g2sum: f64, is_shared: bool },
    Adam { rate: f64, beta1: f64, beta2: f64, epsilon: f64, is_shared: bool },
}

impl UpdateRule {
    /// Returns the rule of an optimizer; rejects rules that servers do not support.
    pub(super) fn of(desc: &OptimizerDesc, rate_scale: f64) -> Result<UpdateRule> {
        match desc.rule {
            Rule::Sgd(_) | Rule::Momentum(_) | Rule::Adagrad(_) | Rule::Adam(_) => {}
            _ => {
                return Err(Error::unsupported(format!(
                    "parameter servers do not support the rule '{}'",
                    desc.rule.op()
                ))
                .expected("sgd, momentum, adagrad or adam"));
            }
        }
        let rate = desc.settings.learning_rate.clone();
        Ok(UpdateRule::Optimizer { rule: desc.rule.clone(), rate, rate_scale })
    }
}

/// Initial values of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RowInit {
    Constant(f64),
    Uniform { low: f64, high: f64 },
    Gaussian { mean: f64, std: f64 },
    TruncatedGaussian { mean: f64, std: f64 },
}

impl RowInit {
    /// Returns a parameter's initialiser in the startup program, and its seed.
    pub(super) fn of(startup: &Program, name: &str) -> Result<(RowInit, u64)> {
        let var = startup.find_var(name);
        let ops: Vec<&Op> = startup
            .root_ops()
            .map(|(_, op)| op)
            .filter(|op| op.all_outputs().any(|out| Some(out) == var))
            .collect();
        let [op] = ops[..] else {
            return Err(Error::unsupported(format!("'{name}' is not initialised by a single op"))
                .got(format!("{} ops of the startup program", ops.len()))
                .help("use a plain initialiser for the table: servers create rows on demand"));
        };
        let init = match op.name() {
            "fill_constant" => RowInit::Constant(op.attr_float("value")),
            "uniform_random" => {
                RowInit::Uniform { low: op.attr_float("min"), high: op.attr_float("max") }
            }
            "gaussian_random" => {
                RowInit::Gaussian { mean: op.attr_float("mean"), std: op.attr_float("std") }
            }
            "truncated_gaussian_random" => RowInit::TruncatedGaussian {
                mean: op.attr_float("mean"),
                std: op.attr_float("std"),
            },
            other => {
                return Err(Error::unsupported(format!(
                    "servers do not support the initialiser {other} of '{name}'"
                ))
                .expected("a constant, uniform, normal or truncated normal numbers"));
            }
        };
        let own = match init {
            RowInit::Constant(_) => 0,
            _ => op.attr_int("seed") as u64,
        };
        Ok((init, if own == 0 { startup.seed() } else { own }))
    }
}
