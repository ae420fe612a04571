//! Click tables of a program, as `downpour_table_param` describes them for its embeddings.
//!
//! A description belongs to the embedding with its name (`table_name`) or, without one, with its
//! number (`table_id`). With an `accessor`, the embedding's rows become click rows; otherwise they
//! stay ordinary rows. A click row has counters of shows and clicks, a weight, and an embedding in
//! the remaining columns, which is created when the row's score is high enough. Settings missing in
//! a description follow from the program: rules from the optimizer, initial values from the
//! parameter's initialiser.
//!
//! | accessor | columns that a program sees |
//! | --- | --- |
//! | `SparseAccessor` (the default) | weight, embedding |
//! | `CtrCommonAccessor` | show, click, weight, embedding |

use super::tables::{RowInit, RowRule, UpdateRule};
use crate::DistributedStrategy;
use crate::schema::{
    CtrAccessorParameter, SgdParameter, TableAccessorParameter, TableParameter, TableType,
};
use fleet_base::{Error, Result};

/// Settings of click rows. The table has the update rule and the initial values of the embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct ClickRows {
    /// Whether a pulled row begins with its shows and clicks.
    pub shows_counters: bool,
    /// Score from which a row has its embedding.
    pub embedx_threshold: u32,
    pub scores: CtrAccessorParameter,
    /// Update rule and initial values of the weight.
    pub embed: RowPart,
    /// Range to which the embedding is clamped.
    pub embedx_bounds: [f32; 2],
}

/// One part of a click row.
#[derive(Clone, Debug, PartialEq)]
pub struct RowPart {
    pub rule: UpdateRule,
    pub init: RowInit,
    pub bounds: [f32; 2],
}

/// Default range to which weights of click rows are clamped.
const BOUNDS: [f32; 2] = [-10.0, 10.0];

/// Returns the number of columns before a row's embedding.
fn columns_before(shows_counters: bool) -> usize {
    if shows_counters { 3 } else { 1 }
}

impl ClickRows {
    /// Returns the number of pulled columns that are counters and not trained.
    pub fn counter_columns(&self) -> usize {
        if self.shows_counters { 2 } else { 0 }
    }

    /// Returns the number of embedding columns in rows of `width` columns.
    pub fn embedx_width(&self, width: usize) -> usize {
        width.saturating_sub(columns_before(self.shows_counters))
    }
}

/// Returns the description of each table, matched by name or number. An unmatched description is an
/// error.
pub(super) fn descriptions<'s>(
    strategy: &'s DistributedStrategy,
    tables: &[&str],
) -> Result<Vec<Option<&'s TableParameter>>> {
    let mut found = vec![None; tables.len()];
    for (index, table) in strategy.downpour_table_param.iter().enumerate() {
        let place = |error: Error| error.at(format!("downpour_table_param[{index}]"));
        if table.r#type.is_some() && table.r#type() == TableType::PsDenseTable {
            return Err(place(
                Error::unsupported(
                    "dense tables cannot be described: they follow the program and its optimizer",
                )
                .help("describe sparse tables only"),
            ));
        }
        let at = match (&table.table_name, table.table_id) {
            (Some(name), _) => tables.iter().position(|table| table == name),
            (None, Some(id)) => usize::try_from(id).ok().filter(|id| *id < tables.len()),
            (None, None) => None,
        };
        let at = at.ok_or_else(|| {
            place(
                Error::invalid("the description matches no table of the program")
                    .expected(format!("a table_name of {tables:?}, or its index as table_id"))
                    .got(match (&table.table_name, table.table_id) {
                        (Some(name), _) => format!("'{name}'"),
                        (None, Some(id)) => format!("number {id}"),
                        (None, None) => "neither name nor number".into(),
                    }),
            )
        })?;
        found[at] = Some(table);
    }
    Ok(found)
}

/// Returns a note for the class `SSDSparseTable`, whose rows are in memory here, not on disk.
pub(super) fn class_note(name: &str, class: &str) -> Option<String> {
    (class == "SSDSparseTable").then(|| {
        format!("'{name}': rows of {class} are kept in memory: tables on disk are not supported")
    })
}

/// Returns the click rows of a table with `width` columns, and the rule and initial values of its
/// embedding. `own` returns the optimizer's rule.
pub(super) fn click_rows(
    accessor: &TableAccessorParameter,
    width: usize,
    init: RowInit,
    own: impl Fn() -> Result<UpdateRule>,
) -> Result<(ClickRows, UpdateRule, RowInit)> {
    let shows_counters = match accessor.accessor_class() {
        "" | "SparseAccessor" => false,
        "CtrCommonAccessor" => true,
        other => {
            return Err(Error::unsupported("unsupported accessor")
                .expected("SparseAccessor or CtrCommonAccessor")
                .got(other));
        }
    };
    check_widths(accessor, shows_counters, width)?;
    let scores = accessor.ctr_accessor_param().clone();
    let first = if scores.zero_init() { RowInit::Constant(0.0) } else { init };
    let mut embed = part(accessor.embed_sgd_param.as_ref(), first, &own)?;
    if scores.zero_init() {
        embed.init = RowInit::Constant(0.0);
    }
    let embedx = part(accessor.embedx_sgd_param.as_ref(), init, &own)?;
    if follows_schedule(&embed.rule) != follows_schedule(&embedx.rule) {
        return Err(Error::invalid("a learning rate schedule must apply to the whole table")
            .expected("embed_sgd_param and embedx_sgd_param, or neither")
            .got("one of them, and an optimizer whose rate follows a schedule"));
    }
    let rows = ClickRows {
        shows_counters,
        embedx_threshold: accessor.embedx_threshold(),
        scores,
        embed,
        embedx_bounds: embedx.bounds,
    };
    Ok((rows, embedx.rule, embedx.init))
}

fn follows_schedule(rule: &UpdateRule) -> bool {
    matches!(rule, UpdateRule::Optimizer { rate: fleet_nn::LearningRate::Schedule(_), .. })
}

/// Checks that the given widths match the program.
fn check_widths(
    accessor: &TableAccessorParameter,
    shows_counters: bool,
    width: usize,
) -> Result<()> {
    let before = columns_before(shows_counters);
    if width <= before {
        return Err(Error::invalid("click row is too narrow")
            .expected(format!("an embedding of more than {before} columns"))
            .got(width));
    }
    // Servers count shows and clicks even if they are not pulled, so `fea_dim` includes them.
    let (all, how) = if shows_counters { (width, "") } else { (width + 2, " + 2") };
    if accessor.fea_dim.is_some_and(|dim| dim as usize != all) {
        return Err(Error::invalid("fea_dim does not match the embedding")
            .expected(format!("{all} (sparse_embedding_dim{how})"))
            .got(accessor.fea_dim()));
    }
    let embedx = width - before;
    if accessor.embedx_dim.is_some_and(|dim| dim as usize != embedx) {
        return Err(Error::invalid("embedx_dim does not match the embedding")
            .expected(format!("{embedx} (sparse_embedding_dim - {before})"))
            .got(accessor.embedx_dim()));
    }
    Ok(())
}

/// Returns the settings of one part of a row: as described, or else the program's.
fn part(
    described: Option<&SgdParameter>,
    init: RowInit,
    own: impl Fn() -> Result<UpdateRule>,
) -> Result<RowPart> {
    let Some(sgd) = described else {
        return Ok(RowPart { rule: own()?, init, bounds: BOUNDS });
    };
    let (naive, adagrad, adam) = (sgd.naive(), sgd.adagrad(), sgd.adam());
    let (rate, g2sum) = (adagrad.learning_rate(), adagrad.initial_g2sum());
    let naive_part =
        (RowRule::Naive { rate: naive.learning_rate() }, naive.initial_range, &naive.weight_bounds);
    let of_adagrad = |rule| (rule, adagrad.initial_range, &adagrad.weight_bounds);
    let of_adam = |is_shared| {
        let rule = RowRule::Adam {
            rate: adam.learning_rate(),
            beta1: adam.beta1_decay_rate(),
            beta2: adam.beta2_decay_rate(),
            epsilon: adam.ada_epsilon(),
            is_shared,
        };
        (rule, adam.initial_range, &adam.weight_bounds)
    };
    let (rule, range, bounds) = match (sgd.name(), assigned(sgd)) {
        ("SparseNaiveSGDRule", _) | ("", ["naive"]) => naive_part,
        ("SparseAdaGradSGDRule", _) | ("", ["adagrad"]) => {
            of_adagrad(RowRule::Adagrad { rate, initial_g2sum: g2sum, is_shared: true })
        }
        ("StdAdaGradSGDRule", _) => {
            of_adagrad(RowRule::Adagrad { rate, initial_g2sum: g2sum, is_shared: false })
        }
        ("SparseAdamSGDRule", _) | ("", ["adam"]) => of_adam(false),
        ("SparseSharedAdamSGDRule", _) => of_adam(true),
        ("", _) => {
            return Err(Error::invalid("ambiguous update rule")
                .expected("a name, or one of naive, adagrad and adam"));
        }
        (other, _) => {
            return Err(Error::unsupported("unsupported update rule")
                .expected(
                    "SparseNaiveSGDRule, SparseAdaGradSGDRule, StdAdaGradSGDRule, \
                     SparseAdamSGDRule or SparseSharedAdamSGDRule",
                )
                .got(other));
        }
    };
    let bounds = match bounds[..] {
        [] => BOUNDS,
        [low, high] => [low, high],
        _ => {
            return Err(Error::invalid("wrong number of weight_bounds")
                .expected("a minimum and a maximum")
                .got(bounds.len()));
        }
    };
    let init = range.map_or(init, |range| RowInit::Uniform { low: -range, high: range });
    Ok(RowPart { rule: UpdateRule::Row(rule), init, bounds })
}

/// Returns the rules with assigned parameters; empty unless exactly one is assigned.
fn assigned(sgd: &SgdParameter) -> &'static [&'static str] {
    match (sgd.naive.is_some(), sgd.adagrad.is_some(), sgd.adam.is_some()) {
        (true, false, false) => &["naive"],
        (false, true, false) => &["adagrad"],
        (false, false, true) => &["adam"],
        _ => &[],
    }
}
