//! The tables of a job, as described by its programs.

use fleet_base::{Error, Result};
use fleet_ir::{Op, Program};
use fleet_nn::optimizer::{OptimizerDesc, Rule as Optimizer};
use fleet_nn::{LearningRate, LrSchedule};
use fleet_ops::tensor::{fill, random};
use fleet_table::{
    DenseBlock, DenseCut, DenseOptions, Initializer, NonFinite, Rule, SparseConfig, TableConfig,
    rule,
};

/// All tables of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Tables {
    /// The tables of rows by id.
    pub sparse: Vec<SparseTable>,
    /// The tables of other parameters.
    pub dense: Vec<DenseTable>,
    /// The table that counts steps, if a learning rate follows a schedule.
    pub steps: Option<u32>,
}

/// A table of concatenated parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseTable {
    /// Number of the table.
    pub table_id: u32,
    /// Names and sizes, in the table's order.
    pub params: Vec<(String, usize)>,
    /// Number of elements of all parameters.
    pub len: usize,
    /// How servers apply gradients.
    pub rule: TableRule,
    /// The parameters' own factor on the learning rate.
    pub rate_scale: f64,
    /// Blocks and their servers, in the table's order; `None` divides the table evenly.
    pub blocks: Option<Vec<ParamBlock>>,
}

/// A part of a parameter, or a whole one, on one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamBlock {
    /// The parameter's name, followed by `.block0` and so on if it has several blocks.
    pub name: String,
    /// The block's length and server.
    pub block: DenseBlock,
}

/// A table of rows by id.
#[derive(Clone, Debug, PartialEq)]
pub struct SparseTable {
    /// The parameter that became this table.
    pub name: String,
    /// Number of rows in the program; servers create rows for any id.
    pub rows: u64,
    /// Whether ids may also be negative.
    pub any_id: bool,
    /// The documented table class, if the program names one.
    pub class: String,
    /// The schedule of its learning rates.
    pub schedule: Option<LrSchedule>,
    /// The table's rules and sizes on the servers.
    pub config: SparseConfig,
}

impl SparseTable {
    /// Returns the number of the table.
    pub fn table_id(&self) -> u32 {
        self.config.table_id
    }

    /// Returns the number of columns that a program sees.
    pub fn width(&self) -> usize {
        self.config.pull_width()
    }
}

impl DenseTable {
    /// Returns the division of the table among servers.
    pub(super) fn cut(&self) -> DenseCut {
        self.blocks.as_ref().map_or(DenseCut::Even, |blocks| {
            DenseCut::Blocks(blocks.iter().map(|it| it.block).collect())
        })
    }

    /// Returns the servers' config of this table.
    pub(super) fn config(&self, non_finite: NonFinite, corrects_delay: bool) -> TableConfig {
        let cut = self.cut();
        TableConfig::Dense {
            table_id: self.table_id,
            params: self.params.clone(),
            rule: self.rule.rule,
            non_finite,
            options: DenseOptions { cut, corrects_delay },
        }
    }
}

/// How a server applies gradients.
#[derive(Clone, Debug, PartialEq)]
pub struct TableRule {
    /// With a schedule, its rate is the parameters' own factor, and the servers receive the
    /// schedule's value as another one.
    pub rule: Rule,
    /// The schedule of the learning rate, if it follows one.
    pub schedule: Option<LrSchedule>,
}

impl From<Rule> for TableRule {
    fn from(rule: Rule) -> TableRule {
        TableRule { rule, schedule: None }
    }
}

impl TableRule {
    /// Returns the rule that adds the changes of workers (GEO): `w -= 1 * (-difference)`.
    pub(super) fn add() -> TableRule {
        Rule::Sgd(rule::Sgd { lr: 1.0 }).into()
    }

    /// Returns the rule of an optimizer for parameters whose rate has a factor of their own;
    /// rejects rules that servers do not support.
    pub(super) fn of(desc: &OptimizerDesc, rate_scale: f64) -> Result<TableRule> {
        desc.settings.learning_rate.check()?;
        let (lr, schedule) = match &desc.settings.learning_rate {
            LearningRate::Constant(rate) => ((rate * rate_scale) as f32, None),
            LearningRate::Schedule(schedule) => (rate_scale as f32, Some(schedule.clone())),
        };
        let rule = match &desc.rule {
            Optimizer::Sgd(_) => Rule::Sgd(rule::Sgd { lr }),
            Optimizer::Momentum(own) => {
                Rule::Momentum(rule::Momentum { lr, mu: own.mu as f32, nesterov: own.use_nesterov })
            }
            Optimizer::Adagrad(own) => Rule::Adagrad(rule::Adagrad {
                lr,
                epsilon: own.epsilon as f32,
                initial_accumulator: own.initial_accumulator_value as f32,
            }),
            Optimizer::Adam(own) => Rule::Adam(rule::Adam {
                lr,
                beta1: own.beta1 as f32,
                beta2: own.beta2 as f32,
                epsilon: own.epsilon as f32,
                epsilon_corrected: true,
            }),
            _ => {
                return Err(Error::unsupported(format!(
                    "parameter servers do not support the rule '{}'",
                    desc.rule.op()
                ))
                .expected("sgd, momentum, adagrad or adam"));
            }
        };
        Ok(TableRule { rule, schedule })
    }
}

/// Returns a parameter's initialiser in the startup program, and its seed.
pub(super) fn initializer(startup: &Program, name: &str) -> Result<(Initializer, u64)> {
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
    let number = |name: &str| op.attr_float(name) as f32;
    let (mean, std) = (|| number("mean"), || number("std"));
    let init = if fill::FILL_CONSTANT.is(op) {
        Initializer::Constant(number("value"))
    } else if random::UNIFORM.is(op) {
        Initializer::Uniform { low: number("min"), high: number("max") }
    } else if random::GAUSSIAN.is(op) {
        Initializer::Gaussian { mean: mean(), std: std() }
    } else if random::TRUNCATED.is(op) {
        Initializer::TruncatedGaussian { mean: mean(), std: std() }
    } else {
        return Err(Error::unsupported(format!(
            "servers do not support the initialiser {} of '{name}'",
            op.name()
        ))
        .expected("a constant, uniform, normal or truncated normal numbers"));
    };
    let own = match init {
        Initializer::Constant(_) => 0,
        _ => op.attr_int("seed") as u64,
    };
    Ok((init, if own == 0 { startup.seed() } else { own }))
}
