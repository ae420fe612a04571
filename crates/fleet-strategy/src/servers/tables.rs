//! The tables of a job, as its programs describe them.

use super::click::ClickRows;
use fleet_base::{Error, Result};
use fleet_ir::{Op, Program};
use fleet_nn::LearningRate;
use fleet_nn::optimizer::{OptimizerDesc, Rule};

/// Every table of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Tables {
    pub sparse: Vec<SparseTable>,
    pub dense: Vec<DenseTable>,
    /// The table that counts steps, where a rate follows a schedule.
    pub steps: Option<u32>,
}

/// Parameters one after another.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseTable {
    pub table_id: u32,
    /// Names and sizes, in the table's order.
    pub params: Vec<(String, usize)>,
    pub len: usize,
    pub rule: UpdateRule,
    /// Which server has what, block by block in the table's order; without them each has as much.
    pub blocks: Option<Vec<ParamBlock>>,
}

/// A part of a parameter, or a whole one, that is on one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamBlock {
    /// The parameter's name, with `.block0` and so on behind it where it has several.
    pub name: String,
    pub len: usize,
    pub server: usize,
}

/// Rows by id.
#[derive(Clone, Debug, PartialEq)]
pub struct SparseTable {
    pub table_id: u32,
    /// The parameter that the rows were.
    pub name: String,
    /// Rows that the program states; servers make rows for any id.
    pub rows: u64,
    pub width: usize,
    /// What a gradient does; in a click table, to the embedding.
    pub rule: UpdateRule,
    /// What a row starts as; in a click table, its embedding.
    pub init: RowInit,
    pub seed: u64,
    /// Which ids get rows; empty for all.
    pub entry: String,
    /// The documented class, where the program names one.
    pub class: String,
    /// Locks, where the strategy says how many.
    pub shard_count: Option<u64>,
    /// Rows on each server at most, where the strategy says so.
    pub row_count_max: Option<u64>,
    /// Saves of all rows are compressed.
    pub compress_in_save: bool,
    /// Rows are click rows.
    pub click: Option<ClickRows>,
}

/// What a server does to a gradient.
#[derive(Clone, Debug, PartialEq)]
pub enum UpdateRule {
    /// An optimizer's rule, at its rate times the parameters' own.
    Optimizer { rule: Rule, rate: LearningRate, rate_scale: f64 },
    /// A rule of click tables, where the strategy describes one.
    Row(RowRule),
    /// Adds what workers changed (GEO).
    Add,
}

/// Rules of click tables, with rates of their own. `is_shared`: what is remembered of gradients is
/// one number a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RowRule {
    Naive { rate: f64 },
    Adagrad { rate: f64, initial_g2sum: f64, is_shared: bool },
    Adam { rate: f64, beta1: f64, beta2: f64, epsilon: f64, is_shared: bool },
}

impl UpdateRule {
    /// Refuses rules that servers do not have.
    pub(super) fn of(desc: &OptimizerDesc, rate_scale: f64) -> Result<UpdateRule> {
        match desc.rule {
            Rule::Sgd(_) | Rule::Momentum(_) | Rule::Adagrad(_) | Rule::Adam(_) => {}
            _ => {
                return Err(Error::unsupported(format!(
                    "parameter servers have no rule '{}'",
                    desc.rule.op()
                ))
                .expected("sgd, momentum, adagrad or adam"));
            }
        }
        let rate = desc.settings.learning_rate.clone();
        Ok(UpdateRule::Optimizer { rule: desc.rule.clone(), rate, rate_scale })
    }
}

/// What a row starts as.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RowInit {
    Constant(f64),
    Uniform { low: f64, high: f64 },
    Gaussian { mean: f64, std: f64 },
    TruncatedGaussian { mean: f64, std: f64 },
}

impl RowInit {
    /// What the startup program fills a parameter with, and its seed.
    pub(super) fn of(startup: &Program, name: &str) -> Result<(RowInit, u64)> {
        let var = startup.find_var(name);
        let ops: Vec<&Op> = startup
            .root_ops()
            .map(|(_, op)| op)
            .filter(|op| op.all_outputs().any(|out| Some(out) == var))
            .collect();
        let [op] = ops[..] else {
            return Err(Error::unsupported(format!("'{name}' is not initialised by one op"))
                .got(format!("{} ops of the startup program", ops.len()))
                .help("servers make rows when ids come: give the table a plain initialiser"));
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
                    "servers cannot initialise rows of '{name}' as {other} does"
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
