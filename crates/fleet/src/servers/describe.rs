//! From what programs say of their tables to what servers make.

use fleet_base::Result;
use fleet_nn::LearningRate;
use fleet_nn::optimizer::Rule as Optimizer;
use fleet_ps::{
    Entry, Initializer, JobTables, NonFinite, RateOf, Rates, Rule, SparseConfig, TableConfig, rule,
};
use fleet_strategy::servers::{Exchange, Place, RowInit, ServerPlan, SparseTable, UpdateRule};
use std::sync::Arc;

pub(super) fn job_tables(plan: &ServerPlan, place: Place) -> Result<JobTables> {
    let mut tables = Vec::new();
    for table in &plan.tables.sparse {
        let config = sparse(table)?;
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
            non_finite: NonFinite::Refuse,
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

fn sparse(table: &SparseTable) -> Result<SparseConfig> {
    let initializer = match table.init {
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
    };
    let entry = match table.entry.as_str() {
        "" => Entry::None,
        entry => Entry::parse(entry)?,
    };
    Ok(SparseConfig {
        rule: rule_of(&table.rule),
        initializer,
        entry,
        seed: table.seed,
        ..SparseConfig::plain(table.table_id, table.width)
    })
}

/// The rule at its rate; at a schedule's, the servers are told the schedule's value as a factor.
fn rule_of(update: &UpdateRule) -> Rule {
    let UpdateRule::Optimizer { rule, rate, rate_scale } = update else {
        // w -= 1 * (-difference) is an addition.
        return Rule::Sgd(rule::Sgd { lr: 1.0 });
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
        // The rewrite lets no others through.
        _ => Rule::Sgd(rule::Sgd { lr }),
    }
}

/// The schedules of the tables.
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
