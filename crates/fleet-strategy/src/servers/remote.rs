//! Sync, half-async and async modes: workers look up rows on servers, push gradients, and receive
//! parameters.
//!
//! All lookups of a table become one `distributed_lookup_table` at the position of the first one. A
//! lookup whose ids are computed later gets its own op. The gradient ops of the lookups are
//! removed, and their inputs are pushed instead. The parameter remains as a name without a value:
//! its rows can be read from the servers, but it cannot be fetched.
//!
//! With mixed precision, a worker divides its gradients by its own loss scale before it clips,
//! decays and sends them. If any is not finite, it sends nothing in this step, to no table.

use super::click::{check_plain, descriptions, make_click_table};
use super::lookups::{LookupSettings, is_lookup, lookup_settings, slot_note};
use super::tables::{SparseTable, TableRule, Tables, initializer};
use super::{Grouping, Place, dense_tables, emit_recv, send_names, set_limits};
use crate::job::Job;
use crate::meta::amp;
use fleet_base::{Error, Result};
use fleet_config::TableParameter;
use fleet_ir::{OpId, OpRole, Program, VarId};
use fleet_nn::optimizer::{OptimizerDesc, ParamGrad};
use fleet_nn::{GradClip, Programs};
use fleet_ops::{
    Emit, OpDef, Registry,
    math::{cast, sum},
    ps::{
        distributed_lookup_table, distributed_push_sparse, fake_init, fetch_barrier, send,
        send_barrier,
    },
};
use fleet_table::{Entry, PushMode, SparseConfig};
use fleet_tensor::DType;
use std::collections::{HashMap, HashSet};

/// A lookup in a worker's program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupSpec {
    /// Number of the table.
    pub table_id: u32,
    /// Numbers per row.
    pub width: usize,
    /// Id whose row is zero.
    pub padding: Option<i64>,
    /// Names of the variables that hold the ids.
    pub ids: Vec<String>,
    /// Whether all ids are fed and the lookup is for training, so that rows can be prefetched.
    pub is_fed: bool,
}

pub(super) fn rewrite(
    job: &mut Job<'_>,
    sparse_optimizer: &OptimizerDesc,
    exchange: PushMode,
    (place, grouping): (Place, Grouping),
) -> Result<(Tables, Vec<LookupSpec>)> {
    let remote = remote_tables(job)?;
    let is_remote: HashSet<VarId> = remote.iter().map(|table| table.param).collect();
    let (_, dense): (Vec<ParamGrad>, Vec<ParamGrad>) =
        job.grads.iter().partition(|(param, _)| is_remote.contains(param));
    check_supported(job, &remote, sparse_optimizer, &dense)?;

    let names: Vec<&str> =
        remote.iter().map(|table| job.programs.main.var_name(table.param)).collect();
    let described = descriptions(job.strategy, &names)?;
    let mut sparse = Vec::new();
    for (at, (table, described)) in remote.iter().zip(described).enumerate() {
        sparse.push(describe(job, table, at as u32, sparse_optimizer, described)?);
    }
    let skip = unscale(job, &remote, &dense)?;
    let optimizer = job.optimizer.clone();
    let dense = match grouping {
        Grouping::ByRate => optimizer.finished_gradients(job.programs, job.registry, &dense)?,
        Grouping::ByParameter => finish_each(job, &optimizer, &dense)?,
    };
    let first = sparse.len() as u32;
    let rule = |rate| TableRule::of(&optimizer, rate);
    let dense = dense_tables(job, &dense, first, grouping, rule)?;

    let mut lookups = Vec::new();
    for (table, remote) in sparse.iter().zip(&remote) {
        look_up(job.programs, job.registry, table, remote, &mut lookups)?;
    }
    for (table, remote) in sparse.iter().zip(&remote) {
        push(job, table, remote, skip)?;
        remove_local_value(job.programs, job.registry, table, remote)?;
    }
    send_dense(job, &dense, skip, grouping)?;
    receive_dense(job, &dense, exchange, place)?;

    let dense: Vec<_> = dense.into_iter().map(|(table, _)| table).collect();
    let has_schedule = sparse.iter().any(|table| table.schedule.is_some())
        || dense.iter().any(|table| table.rule.schedule.is_some());
    let steps = has_schedule.then_some(first + dense.len() as u32);
    Ok((Tables { sparse, dense, steps }, lookups))
}

/// Divides the gradients of all tables by the loss scale of mixed precision. Returns the variable
/// that is true if this worker must skip the step, if there is one.
fn unscale(
    job: &mut Job<'_>,
    remote: &[RemoteTable],
    dense: &[ParamGrad],
) -> Result<Option<VarId>> {
    let trained = remote.iter().filter(|table| table.grad.is_some());
    let rows = trained.flat_map(|table| &table.pushed).map(|pushed| pushed.grad);
    let grads: Vec<VarId> = dense.iter().map(|(_, grad)| *grad).chain(rows).collect();
    amp::unscale(job, &grads)
}

/// Makes the lookups of a network that was built for inference read the tables of a job. Only
/// lookups of tables change.
pub(super) fn read_tables(
    programs: &mut Programs,
    registry: &'static Registry,
    tables: &[SparseTable],
) -> Result<()> {
    for table in tables {
        let main = &mut programs.main;
        let Some(param) = main.find_var(&table.name) else { continue };
        let ops = main.root_ops().filter(|(_, op)| is_lookup(op.name()));
        let lookups: Vec<OpId> =
            ops.filter(|(_, op)| op.input("W") == [param]).map(|(id, _)| id).collect();
        let width = main.var(param).shape.dims().last().copied();
        if width != Some(table.width() as i64) {
            return Err(Error::invalid(format!("'{}' has another width here", table.name))
                .expected(format!("{} columns, as in the trained table", table.width()))
                .got(main.var(param).shape));
        }
        for id in &lookups {
            main.op_mut(*id).set_attr("is_test", true)?;
        }
        let (grad, backward, pushed) = (None, Vec::new(), Vec::new());
        let remote = RemoteTable { param, grad, lookups, backward, pushed };
        check_other_uses(&programs.main, &remote)?;
        look_up(programs, registry, table, &remote, &mut Vec::new())?;
        remove_local_value(programs, registry, table, &remote)?;
    }
    Ok(())
}

/// A parameter that becomes a table of rows.
struct RemoteTable {
    param: VarId,
    grad: Option<VarId>,
    lookups: Vec<OpId>,
    /// The gradient ops of the lookups, and the sums of their outputs.
    backward: Vec<OpId>,
    /// The lookups' ids and gradients, in the order of the gradient ops.
    pushed: Vec<Pushed>,
}

/// The gradient of looked-up rows.
struct Pushed {
    ids: VarId,
    grad: VarId,
    padding: i64,
    slot: i64,
}

/// Returns parameters with sparse or distributed lookups, in the order of first use.
fn remote_tables(job: &Job<'_>) -> Result<Vec<RemoteTable>> {
    let main = &job.programs.main;
    let grads: HashMap<VarId, VarId> = job.grads.iter().copied().collect();
    let mut found: Vec<RemoteTable> = Vec::new();
    for (id, op) in main.root_ops().filter(|(_, op)| is_lookup(op.name())) {
        let param = op.input("W")[0];
        let wanted = op.attr_bool("is_sparse") || op.attr_bool("is_distributed");
        // A frozen table stays with the worker unless it is distributed.
        let is_trained = grads.contains_key(&param) || op.attr_bool("is_distributed");
        if !wanted || !is_trained {
            continue;
        }
        match found.iter_mut().find(|table| table.param == param) {
            Some(table) => table.lookups.push(id),
            None => found.push(RemoteTable {
                param,
                grad: grads.get(&param).copied(),
                lookups: vec![id],
                backward: Vec::new(),
                pushed: Vec::new(),
            }),
        }
    }
    for table in &mut found {
        trace_backward(main, job.registry, table);
        check_other_uses(main, table)?;
    }
    Ok(found)
}

/// Finds the ops that make the table's gradient.
fn trace_backward(main: &Program, registry: &Registry, table: &mut RemoteTable) {
    let mut parts: HashSet<VarId> = HashSet::new();
    for (id, op) in main.root_ops() {
        let forward = registry.forward_of(op.name());
        let is_gradient = forward.is_some_and(|def| is_lookup(def.spec.name))
            && op.input("W").first() == Some(&table.param);
        let is_sum = sum::DEF.is(op) && op.all_inputs().all(|var| parts.contains(&var));
        if !is_gradient && !is_sum {
            continue;
        }
        if is_gradient {
            table.pushed.push(Pushed {
                ids: op.input("Ids")[0],
                grad: op.input("Out@GRAD")[0],
                padding: op.attr_int("padding_idx"),
                slot: op.attr_int("slot"),
            });
        }
        parts.extend(op.all_outputs());
        table.backward.push(id);
    }
}

/// Rejects a table that is also used as a matrix, because workers do not have all of it.
fn check_other_uses(main: &Program, table: &RemoteTable) -> Result<()> {
    let own: HashSet<OpId> = table.lookups.iter().chain(&table.backward).copied().collect();
    let parts: HashSet<VarId> =
        table.backward.iter().flat_map(|id| main.op(*id).all_outputs()).collect();
    let other = main.root_ops().find(|(id, op)| {
        let uses = |var: VarId| var == table.param || parts.contains(&var);
        !own.contains(id) && op.all_inputs().any(uses)
    });
    match other {
        None => Ok(()),
        Some((id, _)) => Err(Error::unsupported(format!(
            "embedding '{}' is a table on parameter servers, but another op reads the whole table",
            main.var_name(table.param)
        ))
        .got(main.describe_op(id))
        .help("turn off is_sparse and is_distributed: a dense embedding stays on the worker")),
    }
}

/// Rejects settings that tables on servers do not support, before any change.
fn check_supported(
    job: &Job<'_>,
    remote: &[RemoteTable],
    sparse_optimizer: &OptimizerDesc,
    dense: &[ParamGrad],
) -> Result<()> {
    let main = &job.programs.main;
    let settings = &sparse_optimizer.settings;
    let check_type = |var: VarId| match main.var(var) {
        var if var.dtype == DType::F32 => Ok(()),
        var => Err(Error::unsupported(format!(
            "servers support only f32, but '{}' is {}",
            var.name, var.dtype
        ))),
    };
    for table in remote {
        let (name, param) = (main.var_name(table.param), main.var(table.param).param.as_ref());
        if let Some(kept) = param
            && kept.need_clip
            && settings.grad_clip.is_some()
        {
            return Err(Error::unsupported(format!(
                "gradient clipping is not supported for '{name}': its rows come from several \
                 workers"
            ))
            .help("set need_clip(false) for the table, or use a dense embedding"));
        }
        let decays = param.and_then(|it| it.regularizer).or(settings.weight_decay);
        if decays.is_some() {
            return Err(Error::unsupported(format!(
                "weight decay is not supported for '{name}': servers see only the pushed rows"
            ))
            .help("give tables on parameter servers their own optimizer, without weight decay"));
        }
        check_type(table.param)?;
    }
    for (param, grad) in dense {
        if job.is_sparse(*grad) {
            let name = main.var_name(*param);
            return Err(Error::unsupported(format!(
                "'{name}' has a sparse gradient but is not a table of rows"
            ))
            .help("set is_sparse for all lookups of an embedding, or for none"));
        }
        check_type(*param)?;
    }
    Ok(())
}

fn describe(
    job: &mut Job<'_>,
    table: &RemoteTable,
    table_id: u32,
    optimizer: &OptimizerDesc,
    described: Option<&TableParameter>,
) -> Result<SparseTable> {
    let var = job.programs.main.var(table.param);
    let rate = var.param.as_ref().map_or(1.0, |param| param.learning_rate);
    let (initializer, seed) = initializer(&job.programs.startup, &var.name)?;
    let own = || TableRule::of(optimizer, rate);
    let settings = lookup_settings(&job.programs.main, table.param, described, false)?;
    let LookupSettings { entry, class, note, any_id, .. } = settings;
    let plain = SparseConfig::plain(table_id, var.shape.at(1));
    let mut made = SparseTable {
        name: var.name.clone(),
        rows: var.shape.dims()[0].max(0) as u64,
        any_id,
        class,
        schedule: None,
        config: SparseConfig { name: var.name.clone(), initializer, entry, seed, ..plain },
    };
    if let Some(described) = described {
        set_limits(&mut made.config, described);
    }
    let place = |error: Error| error.at(format!("the accessor of table '{}'", var.name));
    match described.and_then(|it| it.accessor.as_ref()) {
        Some(accessor) if !check_plain(accessor, &made).map_err(place)? => {
            make_click_table(&mut made, accessor, own).map_err(place)?;
        }
        _ => TableRule { rule: made.config.rule, schedule: made.schedule } = own()?,
    }
    job.notes.extend(note);
    Ok(made)
}

/// Replaces several lookups by one.
fn look_up(
    programs: &mut Programs,
    registry: &'static Registry,
    table: &SparseTable,
    remote: &RemoteTable,
    lookups: &mut Vec<LookupSpec>,
) -> Result<()> {
    let main = &mut programs.main;
    let place: HashMap<OpId, usize> =
        main.root_ops().enumerate().map(|(at, (id, _))| (id, at)).collect();
    let mut made_at: HashMap<VarId, usize> = HashMap::new();
    for (at, (_, op)) in main.root_ops().enumerate() {
        op.all_outputs().for_each(|var| _ = made_at.insert(var, at));
    }
    // Lookups can be merged if they have the same op, role and padding, and are all for training or
    // all for testing. Their ids must be available at the first lookup.
    let mut groups: Vec<Vec<OpId>> = Vec::new();
    for id in &remote.lookups {
        let op = main.op(*id);
        let fits = |group: &&mut Vec<OpId>| {
            let first = main.op(group[0]);
            let before = made_at.get(&op.input("Ids")[0]).is_none_or(|at| *at < place[&group[0]]);
            let same_kind = first.name() == op.name() && first.role == op.role;
            let same_reads = first.attr_int("padding_idx") == op.attr_int("padding_idx")
                && first.attr_bool("is_test") == op.attr_bool("is_test");
            before && same_kind && same_reads
        };
        match groups.iter_mut().find(fits) {
            Some(group) => group.push(*id),
            None => groups.push(vec![*id]),
        }
    }
    for group in groups {
        lookups.push(look_up_group(main, registry, table, &group)?);
    }
    Ok(())
}

fn look_up_group(
    main: &mut Program,
    registry: &'static Registry,
    table: &SparseTable,
    group: &[OpId],
) -> Result<LookupSpec> {
    let first = main.op(group[0]).clone();
    let ids: Vec<VarId> = group.iter().map(|id| main.op(*id).input("Ids")[0]).collect();
    let outs: Vec<VarId> = group.iter().map(|id| main.op(*id).output("Out")[0]).collect();
    let (padding, is_test) = (first.attr_int("padding_idx"), first.attr_bool("is_test"));
    let spec = LookupSpec {
        table_id: table.table_id(),
        width: table.width(),
        padding: Some(padding).filter(|id| *id >= 0),
        ids: ids.iter().map(|var| main.var_name(*var).to_string()).collect(),
        // Prefetching creates rows, but lookups for testing must not.
        is_fed: !is_test && ids.iter().all(|var| main.var(*var).is_data),
    };
    let mut emit = Emit::new(main, registry, first.role);
    emit.device = first.device.clone();
    emit.source = first.source.clone();
    let new = emit
        .op(&distributed_lookup_table::DEF)
        .inputs("Ids", &ids)
        .outputs("Outputs", &outs)
        .attr("table_id", i64::from(table.table_id()))
        .attr("width", table.width() as i64)
        .attr("padding_idx", padding)
        .attr("lookup_table_version", first.name())
        .attr("is_test", is_test)
        .done()?;
    let ops = main.block(Program::ROOT).ops().iter().filter_map(|id| match *id {
        id if id == group[0] => Some(new),
        id if group.contains(&id) => None,
        id => Some(id),
    });
    let ops: Vec<OpId> = ops.collect();
    main.set_block_ops(Program::ROOT, ops);
    Ok(spec)
}

/// Pushes the inputs of the lookups' gradient ops instead of running these ops.
fn push(
    job: &mut Job<'_>,
    table: &SparseTable,
    remote: &RemoteTable,
    skip: Option<VarId>,
) -> Result<()> {
    let gone: HashSet<OpId> = remote.backward.iter().copied().collect();
    job.programs.main.retain_ops(Program::ROOT, |id, _| !gone.contains(&id));
    if remote.grad.is_none() || remote.pushed.is_empty() {
        return Ok(());
    }
    let entry = job.entry_variables(&table.config.entry)?;
    let counters = table.config.counter_columns();
    let ids: Vec<VarId> = remote.pushed.iter().map(|it| it.ids).collect();
    let grads: Vec<VarId> = remote.pushed.iter().map(|it| it.grad).collect();
    let paddings: Vec<i64> = remote.pushed.iter().map(|it| it.padding).collect();
    let slots = slots_of(job, table, remote);
    let mut emit = job.emit(OpRole::BACKWARD);
    emit.op(&distributed_push_sparse::DEF)
        .inputs("Ids", &ids)
        .inputs("Outputs@GRAD", &grads)
        .maybe("Shows", entry.map(|(show, _)| show))
        .maybe("Clicks", entry.map(|(_, click)| click))
        .maybe("SkipUpdate", skip)
        .attr("table_id", i64::from(table.table_id()))
        .attr("size", table.width() as i64)
        .attr("padding_idx", paddings)
        .attr("slots", slots)
        .attr("use_cvm_op", table.config.has_click_rows())
        .attr("counter_columns", counters as i64)
        .done()?;
    emit.append();
    Ok(())
}

/// Returns the feature slots of lookups, 0 for lookups without one. Returns none if no lookup has a
/// slot, or if rows do not store slots.
fn slots_of(job: &mut Job<'_>, table: &SparseTable, remote: &RemoteTable) -> Vec<i64> {
    if remote.pushed.iter().all(|it| it.slot < 0) {
        return Vec::new();
    }
    if !table.config.has_click_rows() {
        job.notes.push(slot_note(&table.name));
        return Vec::new();
    }
    remote.pushed.iter().map(|it| it.slot.max(0)).collect()
}

/// Removes the parameter's value from both programs of the worker.
fn remove_local_value(
    programs: &mut Programs,
    registry: &'static Registry,
    table: &SparseTable,
    remote: &RemoteTable,
) -> Result<()> {
    let var = programs.main.var_mut(remote.param);
    let shape = var.shape;
    (var.persistable, var.param) = (false, None);
    let startup = &mut programs.startup;
    // A copy for evaluation may come without a startup program.
    let Some(held) = startup.find_var(&table.name) else { return Ok(()) };
    let var = startup.var_mut(held);
    (var.persistable, var.param) = (false, None);
    var.shape.dims_mut()[0] = 0;
    let mut emit = Emit::new(startup, registry, OpRole::FORWARD);
    let fake = emit
        .op(&fake_init::DEF)
        .output("Out", held)
        .attr("shape", shape.to_vec())
        .attr("table_id", i64::from(table.table_id()))
        .done()?;
    let ops: Vec<OpId> = startup
        .root_ops()
        .map(|(id, op)| if op.all_outputs().any(|out| out == held) { fake } else { id })
        .collect();
    startup.set_block_ops(Program::ROOT, ops);
    Ok(())
}

/// Clips and decays each gradient directly after the op that completes it. A clip by the global
/// norm needs all gradients, so it follows the last one.
fn finish_each(
    job: &mut Job<'_>,
    optimizer: &OptimizerDesc,
    dense: &[ParamGrad],
) -> Result<Vec<ParamGrad>> {
    if matches!(optimizer.settings.grad_clip, Some(GradClip::GlobalNorm(_))) {
        return optimizer.finished_gradients(job.programs, job.registry, dense);
    }
    let (mut finished, mut placed) = (Vec::new(), Vec::new());
    for pair in dense {
        let before = job.programs.main.block(Program::ROOT).ops().to_vec();
        finished.extend(optimizer.finished_gradients(job.programs, job.registry, &[*pair])?);
        let main = &mut job.programs.main;
        let new = main.block(Program::ROOT).ops()[before.len()..].to_vec();
        main.set_block_ops(Program::ROOT, before);
        placed.push((vec![pair.1], new));
    }
    job.place(placed)?;
    Ok(finished)
}

/// Emits a `send` for each dense table: at the end, or directly after its only gradient is complete
/// and known not to be skipped, so that it is on the way while the backward pass continues.
fn send_dense(
    job: &mut Job<'_>,
    dense: &[(super::DenseTable, Vec<ParamGrad>)],
    skip: Option<VarId>,
    grouping: Grouping,
) -> Result<()> {
    let mut emit = job.emit(OpRole::RPC);
    let mut sends = Vec::new();
    for (table, pairs) in dense {
        let grads: Vec<VarId> = pairs.iter().map(|(_, grad)| *grad).collect();
        let send = emit
            .op(&send::DEF)
            .inputs("X", &grads)
            .maybe("SkipUpdate", skip)
            .attr("table_id", i64::from(table.table_id))
            .attr("is_sparse", 0)
            .attr("send_varnames", send_names(table.table_id))
            .done()?;
        sends.push((grads.into_iter().chain(skip).collect(), vec![send]));
    }
    match grouping {
        Grouping::ByRate => emit.append(),
        Grouping::ByParameter => job.place(sends)?,
    }
    Ok(())
}

/// Emits a `recv` for each dense table, and the barriers of the mode.
fn receive_dense(
    job: &mut Job<'_>,
    dense: &[(super::DenseTable, Vec<ParamGrad>)],
    exchange: PushMode,
    place: Place,
) -> Result<()> {
    let barriers = exchange != PushMode::Async;
    let half = exchange == PushMode::HalfAsync;
    let mut emit = job.emit(OpRole::RPC);
    let barrier = |emit: &mut Emit<'_>, def: &'static OpDef| -> Result<()> {
        emit.op(def).attr("half_async", half).attr("trainer_id", place.worker as i64).done()?;
        Ok(())
    };
    if barriers {
        barrier(&mut emit, &send_barrier::DEF)?;
    }
    for (table, pairs) in dense {
        let params: Vec<VarId> = pairs.iter().map(|(param, _)| *param).collect();
        emit_recv(&mut emit, table.table_id, &params, false, false)?;
    }
    if barriers {
        barrier(&mut emit, &fetch_barrier::DEF)?;
    }
    emit.append();
    Ok(())
}

impl Job<'_> {
    /// Returns the variables with shows and clicks if an entry names them, cast to floats if
    /// needed.
    fn entry_variables(&mut self, entry: &Entry) -> Result<Option<(VarId, VarId)>> {
        let Entry::ShowClick { show, click } = entry else { return Ok(None) };
        Ok(Some((self.floats(show)?, self.floats(click)?)))
    }

    fn floats(&mut self, name: &str) -> Result<VarId> {
        let main = &self.programs.main;
        let var = main.var_named(name)?;
        if main.var(var).dtype == DType::F32 {
            return Ok(var);
        }
        let mut emit = self.emit(OpRole::BACKWARD);
        let floats =
            emit.op(&cast::DEF).input("X", var).attr("out_dtype", DType::F32).one("Out")?;
        emit.append();
        Ok(floats)
    }
}
