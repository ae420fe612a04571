//! GEO: every worker trains a complete model. Every few steps it sends its changes to the servers
//! and receives the changes of the other workers.
//!
//! The program is that of a single process, including updates. After them, it has a `send` of the
//! touched rows and a `recv` for each sparse table, and a `recv` for each dense table. A `recv`
//! lets the exchange write to the worker's copy. With mixed precision, a step that overflows
//! changes nothing in the worker's copies, and names no rows.

use super::click::{check_plain, descriptions};
use super::lookups::{LookupSettings, lookup_settings, slot_note};
use super::tables::{SparseTable, TableRule, Tables};
use super::{Grouping, dense_tables, emit_recv, set_limits};
use crate::compiler;
use crate::job::Job;
use crate::meta::amp;
use fleet_base::{Error, Result};
use fleet_ir::{OpRole, VarId};
use fleet_nn::optimizer::{OptimizerDesc, ParamGrad, Rule, SkipUpdate};
use fleet_ops::ps::send;
use fleet_table::{Initializer, SparseConfig};

pub(super) fn rewrite(
    job: &mut Job<'_>,
    sparse_optimizer: &OptimizerDesc,
    grouping: Grouping,
) -> Result<Tables> {
    for rule in [&job.optimizer.rule, &sparse_optimizer.rule] {
        if !matches!(rule, Rule::Sgd(_)) {
            return Err(Error::unsupported(
                "GEO supports only sgd, because it sums the changes of workers",
            )
            .expected("sgd")
            .got(rule.op())
            .help("set k_steps to 0: other modes support other optimizers"));
        }
    }
    if *sparse_optimizer != job.optimizer {
        return Err(Error::unsupported(
            "GEO supports a single optimizer for tables and dense parameters",
        )
        .help("remove the tables' own optimizer"));
    }
    let (rows, dense): (Vec<ParamGrad>, Vec<ParamGrad>) =
        job.grads.iter().partition(|(_, grad)| job.is_sparse(*grad));
    let sparse = tables(job, &rows)?;
    let first = sparse.len() as u32;
    let dense = dense_tables(job, &dense, first, grouping, |_| Ok(TableRule::add()))?;
    let grads: Vec<VarId> = job.grads.iter().map(|(_, grad)| *grad).collect();
    let skip = amp::unscale(job, &grads)?;
    // A step that overflows must not decay parameters: the worker would send that as its change.
    job.at.skip_update = skip.map(|condition| SkipUpdate { condition, all_rules: true });
    compiler::update(job)?;

    let mut emit = job.emit(OpRole::RPC);
    for (table, (param, grad)) in sparse.iter().zip(&rows) {
        emit.op(&send::DEF)
            .input("X", *grad)
            .maybe("SkipUpdate", skip)
            .attr("table_id", i64::from(table.table_id()))
            .attr("is_sparse", 1)
            .attr("send_varnames", vec![format!("{}@GRAD", table.name)])
            .done()?;
        emit_recv(&mut emit, table.table_id(), &[*param], true, true)?;
    }
    for (table, pairs) in &dense {
        let params: Vec<VarId> = pairs.iter().map(|(param, _)| *param).collect();
        emit_recv(&mut emit, table.table_id, &params, false, true)?;
    }
    emit.append();
    let dense = dense.into_iter().map(|(table, _)| table).collect();
    Ok(Tables { sparse, dense, steps: None })
}

/// Returns the tables of the parameters with sparse gradients.
fn tables(job: &mut Job<'_>, rows: &[ParamGrad]) -> Result<Vec<SparseTable>> {
    let names: Vec<&str> =
        rows.iter().map(|(param, _)| job.programs.main.var_name(*param)).collect();
    let described = descriptions(job.strategy, &names)?;
    let mut sparse = Vec::new();
    for (at, ((param, _), described)) in rows.iter().zip(described).enumerate() {
        let mut table = describe(job, *param, at as u32)?;
        let settings = lookup_settings(&job.programs.main, *param, described, true)?;
        let LookupSettings { class, note, has_slot, .. } = settings;
        table.class = class;
        job.notes.extend(note);
        job.notes.extend(has_slot.then(|| slot_note(&table.name)));
        if let Some(described) = described {
            let accessor = described.accessor.as_ref();
            if let Some(accessor) = accessor
                && !check_plain(accessor, &table)?
            {
                return Err(Error::unsupported(format!(
                    "GEO does not support click tables, such as '{}'",
                    table.name
                ))
                .help("remove the accessor, or set k_steps to 0 for another mode"));
            }
            set_limits(&mut table.config, described);
        }
        sparse.push(table);
    }
    Ok(sparse)
}

fn describe(job: &Job<'_>, param: VarId, table_id: u32) -> Result<SparseTable> {
    let var = job.programs.main.var(param);
    let (rows, width) = match var.shape.dims() {
        [rows, width] if *rows >= 0 && *width > 0 => (*rows as u64, *width as usize),
        _ => {
            return Err(Error::invalid(format!("'{}' is not a table of rows", var.name))
                .expected("[rows, width]")
                .got(var.shape));
        }
    };
    let config = SparseConfig {
        name: var.name.clone(),
        rule: TableRule::add().rule,
        // Worker 0 uploads the initial rows.
        initializer: Initializer::Constant(0.0),
        ..SparseConfig::plain(table_id, width)
    };
    let (name, class, schedule) = (var.name.clone(), String::new(), None);
    // Workers hold the table, so there are no other ids.
    Ok(SparseTable { name, rows, any_id: false, class, schedule, config })
}
