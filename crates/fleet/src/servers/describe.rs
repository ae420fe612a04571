//! Converts the tables of a program's plan into the servers' table configurations.

use fleet_base::{Error, Result};
use fleet_nn::LearningRate;
use fleet_nn::optimizer::Rule as Optimizer;
use fleet_ps::{
    Accessor, CtrAccessor, DenseBlock, DenseCut, DenseOptions, Entry, Initializer, JobTables,
    NonFinite, RateOf, Rates, Rule, SparseConfig, TableConfig, rule,
};
use fleet_strategy::DistributedStrategy;
use fleet_strategy::servers::{
    ClickRows, Exchange, ParamBlock, Place, RowInit, RowRule, ServerPlan, SparseTable, UpdateRule,
};
use std::sync::Arc;

pub(super) fn job_tables(
    plan: &ServerPlan,
    strategy: &DistributedStrategy,
    place: Place,
) -> Result<JobTables> {
    let non_finite = non_finite(strategy)?;
    let mut tables = Vec::new();
    for table in &plan.tables.sparse {
        let config = SparseConfig { non_finite, ..sparse(table)? };
        tables.push(match plan.exchange.is_geo() {
            true => TableConfig::Geo(config),
            false => TableConfig::Sparse(config),
        });
    }
    for table in &plan.tables.dense {
        tables.push(TableConfig::Dense {
            table_id: table.table_id,
            len: table.len,
            rule: rule_of(&table.rule),
            non_finite,
            options: DenseOptions {
                cut: table.blocks.as_ref().map_or(DenseCut::Even, |blocks| {
                    let block = |it: &ParamBlock| DenseBlock { len: it.len, server: it.server };
                    DenseCut::Blocks(blocks.iter().map(block).collect())
                }),
                corrects_delay: plan.corrects_delay,
            },
        });
    }
    tables.extend(plan.tables.steps.map(|table_id| TableConfig::GlobalStep { table_id }));
    Ok(JobTables {
        server_count: place.server_count,
        worker_count: place.worker_count,
        sync: plan.exchange == Exchange::Sync,
        tables,
    })
}

/// Returns the treatment of gradients that are not finite.
fn non_finite(strategy: &DistributedStrategy) -> Result<NonFinite> {
    let config = strategy.a_sync_configs();
    match config.non_finite() {
        "refuse" => Ok(NonFinite::Refuse),
        "count" => Ok(NonFinite::Count),
        "clip" => Ok(NonFinite::Clip(config.non_finite_limit())),
        other => Err(Error::invalid("invalid a_sync_configs.non_finite")
            .expected("refuse, count or clip")
            .got(format!("'{other}'"))),
    }
}

fn sparse(table: &SparseTable) -> Result<SparseConfig> {
    let entry = match table.entry.as_str() {
        "" => Entry::None,
        entry => Entry::parse(entry)?,
    };
    let plain = SparseConfig::plain(table.table_id, table.width);
    let config = SparseConfig {
        rule: rule_of(&table.rule),
        initializer: initializer(table.init),
        entry,
        seed: table.seed,
        shard_count: table.shard_count.map_or(plain.shard_count, |count| count as usize),
        row_count_max: table.row_count_max.unwrap_or(plain.row_count_max),
        compress_in_save: table.compress_in_save,
        ..plain
    };
    let Some(click) = &table.click else { return Ok(config) };
    let accessor = accessor(click).map_err(|error| error.at(format!("table '{}'", table.name)))?;
    Ok(SparseConfig {
        dim: click.embedx_width(table.width),
        accessor: Accessor::Ctr(accessor),
        weight_bounds: Some(click.embedx_bounds),
        ..config
    })
}

fn initializer(init: RowInit) -> Initializer {
    match init {
        RowInit::Constant(value) => Initializer::Constant(value as f32),
        RowInit::Uniform { low, high } => {
            Initializer::Uniform { low: low as f32, high: high as f32 }
        }
        RowInit::Gaussian { mean, std } => {
            Initializer::Gaussian { mean: mean as f32, std: std as f32 }
        }
        RowInit::TruncatedGaussian { mean, std } => {
            Initializer::TruncatedGaussian { mean: mean as f32, std: std as f32 }
        }
    }
}

fn accessor(click: &ClickRows) -> Result<CtrAccessor> {
    let scores = &click.scores;
    Ok(CtrAccessor {
        pull_show_click: click.shows_counters,
        embed_rule: rule_of(&click.embed.rule),
        embed_initializer: initializer(click.embed.init),
        embed_bounds: Some(click.embed.bounds),
        show_scale: scores.show_scale(),
        nonclk_coeff: scores.nonclk_coeff(),
        click_coeff: scores.click_coeff(),
        embedx_threshold: click.embedx_threshold as f32,
        base_threshold: scores.base_threshold(),
        delta_threshold: scores.delta_threshold(),
        delta_keep_days: days("delta_keep_days", scores.delta_keep_days())?,
        show_click_decay_rate: scores.show_click_decay_rate(),
        delete_threshold: scores.delete_threshold(),
        delete_after_unseen_days: days(
            "delete_after_unseen_days",
            scores.delete_after_unseen_days(),
        )?,
    })
}

/// Largest number of days; servers store whole days in six bits.
const DAYS_MAX: f32 = 62.0;

fn days(what: &str, days: f32) -> Result<u8> {
    if (0.0..=DAYS_MAX).contains(&days) && days.fract() == 0.0 {
        return Ok(days as u8);
    }
    Err(Error::invalid(format!("invalid {what}"))
        .expected(format!("a whole number from 0 to {DAYS_MAX}"))
        .got(days))
}

/// Converts a rule with its learning rate. With a schedule, the rule's rate is `rate_scale`, and
/// the servers receive the schedule's value as a factor.
fn rule_of(update: &UpdateRule) -> Rule {
    let (rule, rate, rate_scale) = match update {
        UpdateRule::Optimizer { rule, rate, rate_scale } => (rule, rate, rate_scale),
        UpdateRule::Row(rule) => return row_rule(*rule),
        // `w -= 1 * (-difference)` is an addition.
        UpdateRule::Add => return Rule::Sgd(rule::Sgd { lr: 1.0 }),
    };
    let lr = match rate {
        LearningRate::Constant(rate) => (rate * rate_scale) as f32,
        LearningRate::Schedule(_) => *rate_scale as f32,
    };
    match rule {
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
        // The rewrite rejects all other rules.
        _ => Rule::Sgd(rule::Sgd { lr }),
    }
}

fn row_rule(rule: RowRule) -> Rule {
    match rule {
        RowRule::Naive { rate } => Rule::Sgd(rule::Sgd { lr: rate as f32 }),
        RowRule::Adagrad { rate, initial_g2sum, is_shared } => {
            let (lr, initial_g2sum) = (rate as f32, initial_g2sum as f32);
            match is_shared {
                true => Rule::CtrAdagrad(rule::CtrAdagrad { lr, initial_g2sum }),
                false => Rule::StdAdagrad(rule::StdAdagrad { lr, initial_g2sum }),
            }
        }
        RowRule::Adam { rate, beta1, beta2, epsilon, is_shared } => {
            let (lr, epsilon) = (rate as f32, epsilon as f32);
            let (beta1, beta2) = (beta1 as f32, beta2 as f32);
            match is_shared {
                true => Rule::SharedAdam(rule::SharedAdam { lr, beta1, beta2, epsilon }),
                false => {
                    Rule::Adam(rule::Adam { lr, beta1, beta2, epsilon, epsilon_corrected: false })
                }
            }
        }
    }
}

/// Returns the learning-rate schedules of the tables.
pub(super) fn rates(plan: &ServerPlan, report_every: u32) -> Rates {
    let schedule = |update: &UpdateRule| -> Option<RateOf> {
        let UpdateRule::Optimizer { rate: LearningRate::Schedule(schedule), .. } = update else {
            return None;
        };
        let schedule = schedule.clone();
        Some(Arc::new(move |step| schedule.value_at(step)))
    };
    let sparse = plan.tables.sparse.iter().map(|table| (table.table_id, &table.rule));
    let dense = plan.tables.dense.iter().map(|table| (table.table_id, &table.rule));
    let tables = sparse.chain(dense);
    Rates {
        steps_table: plan.tables.steps,
        report_every,
        tables: tables.filter_map(|(id, update)| Some((id, schedule(update)?))).collect(),
    }
}
