//! The configuration of a sparse table.

use crate::{Entry, Initializer, NonFinite, Rule, rule};
use fleet_base::{Error, Result};

/// Configuration of a sparse table: rows by id, made on demand. The defaults are the documented
/// ones.
///
/// ```
/// use fleet_table::{Initializer, Rule, SparseConfig, rule::Adagrad};
/// let config = SparseConfig {
///     rule: Rule::Adagrad(Adagrad { lr: 0.01, ..Adagrad::default() }),
///     initializer: Initializer::Uniform { low: -0.01, high: 0.01 },
///     ..SparseConfig::plain(0, 16)
/// };
/// assert_eq!((config.pull_width(), config.push_width()), (16, 16));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SparseConfig {
    /// The table's number, part of the seed of its rows.
    pub table_id: u32,
    /// The parameter that became this table. Saves are loaded by name; a table without one is
    /// loaded by number.
    pub name: String,
    /// Weights of a row (of its embedding part in a click table).
    pub dim: usize,
    /// The optimizer of the weights.
    pub rule: Rule,
    /// The weights of a new row.
    pub initializer: Initializer,
    /// Further contents of a row besides its weights, and the rows that saves take.
    pub accessor: Accessor,
    /// Which ids get a row.
    pub entry: Entry,
    /// Number of shards, each with a lock and its share of the ids.
    pub shard_count: usize,
    /// Seed of the initial weights and of the entry policy.
    pub seed: u64,
    /// Range to which weights are clamped.
    pub weight_bounds: Option<[f32; 2]>,
    /// Treatment of gradients that are NaN or infinite.
    pub non_finite: NonFinite,
    /// Limit on the rows of the table. Further ids read as zeros, with an error.
    pub row_count_max: u64,
    /// Files of saves of all rows (modes 0 and 3) are compressed with gzip and named `.gz`.
    pub compress_in_save: bool,
}

/// Contents of a row besides weights and optimizer state, and how they are read and written.
#[derive(Clone, Debug, PartialEq)]
pub enum Accessor {
    /// Nothing else: a pull reads `dim` weights, and a push carries as many gradients.
    Plain,
    /// Counters of shows and clicks, a separate weight for the id, and an embedding that is made
    /// when the id has been seen often enough.
    Ctr(CtrAccessor),
}

/// The click accessor. A push carries `1 + dim` gradients, of the weight and of the embedding, and
/// shows and clicks. It adds to the counters, updates the weight, and makes the embedding if the
/// score has reached `embedx_threshold`. Then it updates the embedding, even if it has just made
/// it.
#[derive(Clone, Debug, PartialEq)]
pub struct CtrAccessor {
    /// Whether a pull starts with show and click (3 + dim columns instead of 1 + dim).
    pub pull_show_click: bool,
    /// The optimizer of the weight of an id (its first column).
    pub embed_rule: Rule,
    /// The initial weight of an id.
    pub embed_initializer: Initializer,
    /// Range to which the weight is clamped, if it is not the table's `weight_bounds`.
    pub embed_bounds: Option<[f32; 2]>,
    /// Rules divide gradients by the shows of their push.
    pub show_scale: bool,
    /// Score = (show - click) nonclk_coeff + click click_coeff.
    pub nonclk_coeff: f32,
    /// See `nonclk_coeff`.
    pub click_coeff: f32,
    /// Score from which an id gets an embedding.
    pub embedx_threshold: f32,
    /// Score from which a row is part of a base or delta save.
    pub base_threshold: f32,
    /// Score gained since the last such save from which a row is part of a delta.
    pub delta_threshold: f32,
    /// Rows unseen for more days are part of no base and no delta.
    pub delta_keep_days: u8,
    /// Factor on shows and clicks when the table is shrunk.
    pub show_click_decay_rate: f32,
    /// Rows below this score are deleted when the table is shrunk.
    pub delete_threshold: f32,
    /// Rows unseen for more days are deleted when the table is shrunk.
    pub delete_after_unseen_days: u8,
}

impl Default for CtrAccessor {
    fn default() -> Self {
        CtrAccessor {
            pull_show_click: false,
            embed_rule: Rule::CtrAdagrad(rule::CtrAdagrad::default()),
            embed_initializer: Initializer::Constant(0.0),
            embed_bounds: None,
            show_scale: true,
            nonclk_coeff: 0.1,
            click_coeff: 1.0,
            embedx_threshold: 10.0,
            base_threshold: 1.5,
            delta_threshold: 0.25,
            delta_keep_days: 16,
            show_click_decay_rate: 0.98,
            delete_threshold: 0.8,
            delete_after_unseen_days: 30,
        }
    }
}

impl CtrAccessor {
    /// Returns the score of a row with these counts.
    pub fn score(&self, show: f32, click: f32) -> f32 {
        (show - click) * self.nonclk_coeff + click * self.click_coeff
    }
}

/// Limit on the days of [`CtrAccessor`]: servers count days in six bits, so "more than 63" would
/// never be reached.
pub const DAYS_MAX: u8 = 62;
/// Limit on the columns of a row: with more, a thousand ids would not fit a frame.
const DIM_MAX: usize = 1 << 16;
/// Limit on the shards: more locks only make a table slower.
const SHARD_COUNT_MAX: usize = 4096;

impl SparseConfig {
    /// Returns the config of whole rows under one rule (`CommonSparseTable`).
    pub fn plain(table_id: u32, dim: usize) -> SparseConfig {
        SparseConfig {
            table_id,
            name: String::new(),
            dim,
            rule: Rule::Sgd(rule::Sgd::default()),
            initializer: Initializer::Uniform { low: -0.01, high: 0.01 },
            accessor: Accessor::Plain,
            entry: Entry::None,
            shard_count: 256,
            seed: 0,
            weight_bounds: None,
            non_finite: NonFinite::Refuse,
            row_count_max: u64::MAX,
            compress_in_save: false,
        }
    }

    /// Returns the config of click rows (`MemorySparseTable` with a CTR accessor); `dim` is the
    /// width of the embedding part.
    pub fn ctr(table_id: u32, dim: usize) -> SparseConfig {
        SparseConfig {
            rule: Rule::CtrAdagrad(rule::CtrAdagrad::default()),
            initializer: Initializer::Uniform { low: -1e-4, high: 1e-4 },
            accessor: Accessor::Ctr(CtrAccessor::default()),
            weight_bounds: Some([-10.0, 10.0]),
            ..SparseConfig::plain(table_id, dim)
        }
    }

    /// Returns how many numbers a pull returns for an id.
    pub fn pull_width(&self) -> usize {
        match &self.accessor {
            Accessor::Plain => self.dim,
            Accessor::Ctr(ctr) => self.dim + if ctr.pull_show_click { 3 } else { 1 },
        }
    }

    /// Returns whether rows count shows and clicks.
    pub fn has_click_rows(&self) -> bool {
        self.accessor != Accessor::Plain
    }

    /// Returns how many of a pull's first numbers are counters, which are not trained.
    pub fn counter_columns(&self) -> usize {
        match &self.accessor {
            Accessor::Ctr(ctr) if ctr.pull_show_click => 2,
            Accessor::Plain | Accessor::Ctr(_) => 0,
        }
    }

    /// Returns how many numbers a push carries for an id.
    pub fn push_width(&self) -> usize {
        match &self.accessor {
            Accessor::Plain => self.dim,
            Accessor::Ctr(_) => self.dim + 1,
        }
    }

    /// Fails if a size, a range or a number of a rule is invalid.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: &str, expected: String, got: String| {
            Err(Error::invalid(format!("invalid {what} of sparse table {}", self.table_id))
                .expected(expected)
                .got(got))
        };
        if !(1..=DIM_MAX).contains(&self.dim) {
            return wrong("dim", format!("1 to {DIM_MAX}"), self.dim.to_string());
        }
        if !(1..=SHARD_COUNT_MAX).contains(&self.shard_count) {
            let expected = format!("1 to {SHARD_COUNT_MAX}");
            return wrong("shard_count", expected, self.shard_count.to_string());
        }
        let embed_bounds = match &self.accessor {
            Accessor::Plain => None,
            Accessor::Ctr(ctr) => ctr.embed_bounds,
        };
        for [low, high] in [self.weight_bounds, embed_bounds].into_iter().flatten() {
            if low.partial_cmp(&high) != Some(std::cmp::Ordering::Less) {
                return wrong("weight_bounds", "low < high".into(), format!("{low}, {high}"));
            }
        }
        self.rule.check()?;
        let Accessor::Ctr(ctr) = &self.accessor else { return Ok(()) };
        ctr.embed_rule.check()?;
        for (what, days) in [
            ("delta_keep_days", ctr.delta_keep_days),
            ("delete_after_unseen_days", ctr.delete_after_unseen_days),
        ] {
            if days > DAYS_MAX {
                return wrong(what, format!("0 to {DAYS_MAX}"), days.to_string());
            }
        }
        if !(0.0..=1.0).contains(&ctr.show_click_decay_rate) {
            let got = ctr.show_click_decay_rate.to_string();
            return wrong("show_click_decay_rate", "a number in [0, 1]".into(), got);
        }
        Ok(())
    }
}
