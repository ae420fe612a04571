//! Click tables of a program, as `downpour_table_param` describes them for its embeddings.
//!
//! A description belongs to the embedding with its name (`table_name`) or, without one, with its
//! number (`table_id`). With an `accessor`, the embedding's rows become click rows; otherwise, and
//! with `CommMergeAccessor`, they stay ordinary rows. A click row has counters of shows and clicks,
//! a weight, and an embedding in the remaining columns, which is created when the row's score is
//! high enough. Settings missing in a description follow from the program: rules from the
//! optimizer, initial values from the parameter's initialiser.
//!
//! | accessor | columns that a program sees |
//! | --- | --- |
//! | `SparseAccessor` (the default) | weight, embedding |
//! | `CtrCommonAccessor` | show, click, weight, embedding |

use super::tables::{SparseTable, TableRule};
use crate::DistributedStrategy;
use fleet_base::{Error, Result};
use fleet_config::{SgdParameter, TableAccessorParameter, TableParameter, TableType};
use fleet_table::{Accessor, CtrAccessor, DAYS_MAX, Initializer, Rule, rule};

/// One part of a click row: the weight, or the embedding.
struct RowPart {
    rule: TableRule,
    init: Initializer,
    bounds: [f32; 2],
}

/// Default range to which weights of click rows are clamped.
const BOUNDS: [f32; 2] = [-10.0, 10.0];

/// Returns the number of columns before a row's embedding.
fn columns_before(shows_counters: bool) -> usize {
    if shows_counters { 3 } else { 1 }
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

/// Returns whether an accessor is that of plain rows, and checks it against the program: it has the
/// sizes of the table and no settings of click rows.
pub(super) fn check_plain(accessor: &TableAccessorParameter, table: &SparseTable) -> Result<bool> {
    if accessor.accessor_class() != "CommMergeAccessor" {
        return Ok(false);
    }
    for (name, given, expected) in [
        ("fea_dim", accessor.fea_dim, table.rows),
        ("embedx_dim", accessor.embedx_dim, table.width() as u64),
    ] {
        if given.is_some_and(|given| u64::from(given) != expected) {
            return Err(Error::invalid(format!("{name} does not match the embedding"))
                .expected(expected)
                .got(given.unwrap_or_default()));
        }
    }
    let of_click_rows = [
        ("embedx_threshold", accessor.embedx_threshold.is_some()),
        ("ctr_accessor_param", accessor.ctr_accessor_param.is_some()),
        ("embed_sgd_param", accessor.embed_sgd_param.is_some()),
        ("embedx_sgd_param", accessor.embedx_sgd_param.is_some()),
    ];
    match of_click_rows.iter().find(|(_, is_given)| *is_given) {
        None => Ok(true),
        Some((name, _)) => Err(Error::invalid(format!("CommMergeAccessor has no {name}"))
            .help("use CtrCommonAccessor or SparseAccessor for rows with shows and clicks")),
    }
}

/// Turns a table into one of click rows, as the accessor describes them. `own` returns the
/// optimizer's rule.
pub(super) fn make_click_table(
    table: &mut SparseTable,
    accessor: &TableAccessorParameter,
    own: impl Fn() -> Result<TableRule>,
) -> Result<()> {
    let pull_show_click = match accessor.accessor_class() {
        "" | "SparseAccessor" => false,
        "CtrCommonAccessor" => true,
        other => {
            return Err(Error::unsupported("unsupported accessor")
                .expected("SparseAccessor, CtrCommonAccessor or CommMergeAccessor")
                .got(other));
        }
    };
    let (width, init) = (table.width(), table.config.initializer);
    check_widths(accessor, pull_show_click, width)?;
    let scores = accessor.ctr_accessor_param();
    let mut embed = part(accessor.embed_sgd_param.as_ref(), init, &own)?;
    if scores.zero_init() {
        embed.init = Initializer::Constant(0.0);
    }
    let embedx = part(accessor.embedx_sgd_param.as_ref(), init, &own)?;
    if embed.rule.schedule.is_some() != embedx.rule.schedule.is_some() {
        return Err(Error::invalid("a learning rate schedule must apply to the whole table")
            .expected("embed_sgd_param and embedx_sgd_param, or neither")
            .got("one of them, and an optimizer whose rate follows a schedule"));
    }
    let unseen = scores.delete_after_unseen_days();
    let rows = CtrAccessor {
        pull_show_click,
        embed_rule: embed.rule.rule,
        embed_initializer: embed.init,
        embed_bounds: Some(embed.bounds),
        show_scale: scores.show_scale(),
        nonclk_coeff: scores.nonclk_coeff(),
        click_coeff: scores.click_coeff(),
        embedx_threshold: accessor.embedx_threshold() as f32,
        base_threshold: scores.base_threshold(),
        delta_threshold: scores.delta_threshold(),
        delta_keep_days: days("delta_keep_days", scores.delta_keep_days())?,
        show_click_decay_rate: scores.show_click_decay_rate(),
        delete_threshold: scores.delete_threshold(),
        delete_after_unseen_days: days("delete_after_unseen_days", unseen)?,
    };
    table.schedule = embedx.rule.schedule;
    let config = &mut table.config;
    config.dim = width - columns_before(pull_show_click);
    (config.rule, config.initializer) = (embedx.rule.rule, embedx.init);
    (config.accessor, config.weight_bounds) = (Accessor::Ctr(rows), Some(embedx.bounds));
    Ok(())
}

fn days(what: &str, days: f32) -> Result<u8> {
    if (0.0..=f32::from(DAYS_MAX)).contains(&days) && days.fract() == 0.0 {
        return Ok(days as u8);
    }
    Err(Error::invalid(format!("invalid {what}"))
        .expected(format!("a whole number from 0 to {DAYS_MAX}"))
        .got(days))
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
    init: Initializer,
    own: impl Fn() -> Result<TableRule>,
) -> Result<RowPart> {
    let Some(sgd) = described else {
        return Ok(RowPart { rule: own()?, init, bounds: BOUNDS });
    };
    let (naive, adagrad, adam) = (sgd.naive(), sgd.adagrad(), sgd.adam());
    let of_naive = || {
        let rule = Rule::Sgd(rule::Sgd { lr: naive.learning_rate() as f32 });
        (rule, naive.initial_range, &naive.weight_bounds)
    };
    let (lr, initial_g2sum) = (adagrad.learning_rate() as f32, adagrad.initial_g2sum() as f32);
    let of_adagrad = |rule| (rule, adagrad.initial_range, &adagrad.weight_bounds);
    let (rate, epsilon) = (adam.learning_rate() as f32, adam.ada_epsilon() as f32);
    let (beta1, beta2) = (adam.beta1_decay_rate() as f32, adam.beta2_decay_rate() as f32);
    let of_adam = |rule| (rule, adam.initial_range, &adam.weight_bounds);
    let (rule, range, bounds) = match (sgd.name(), assigned(sgd)) {
        ("SparseNaiveSGDRule", _) | ("", ["naive"]) => of_naive(),
        ("SparseAdaGradSGDRule", _) | ("", ["adagrad"]) => {
            of_adagrad(Rule::CtrAdagrad(rule::CtrAdagrad { lr, initial_g2sum }))
        }
        ("StdAdaGradSGDRule", _) => {
            of_adagrad(Rule::StdAdagrad(rule::StdAdagrad { lr, initial_g2sum }))
        }
        ("SparseAdamSGDRule", _) | ("", ["adam"]) => {
            let epsilon_corrected = false;
            of_adam(Rule::Adam(rule::Adam { lr: rate, beta1, beta2, epsilon, epsilon_corrected }))
        }
        ("SparseSharedAdamSGDRule", _) => {
            of_adam(Rule::SharedAdam(rule::SharedAdam { lr: rate, beta1, beta2, epsilon }))
        }
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
    let init =
        range.map_or(init, |range| Initializer::Uniform { low: -range as f32, high: range as f32 });
    Ok(RowPart { rule: rule.into(), init, bounds })
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
