//! Automatic mixed precision: matrix products and convolutions compute in 16-bit floats, ops that
//! need range compute in 32-bit floats. Parameters stay 32-bit masters, and the loss is scaled so
//! that small gradients do not underflow.
//!
//! * forward: every op gets a precision by its class (see [`fleet_ops::AmpClass`]) and the user's
//!   lists. Inputs in the other precision are cast, once each (`v.cast_fp16`, `v.cast_fp32`). The
//!   loss is multiplied by `loss_scaling_0`.
//! * encode, decode: if a parameter's gradient is only a cast to 32 bits, its 16-bit source is sent
//!   instead, and the cast follows the communication.
//! * unscale: gradients are divided by the scale and checked. With a dynamic scale, all become zero
//!   if any is not finite, and the scale may shrink. In such a step, Adam, AdamW and LAMB change
//!   nothing, and the other rules apply zeros. With a constant scale, no rule changes anything.
//!   `skipped_steps_0` counts these steps.
//!
//! bfloat16 (`use_pure_bf16`) has the range of 32-bit floats, so the loss is not scaled. Regions
//! (`fp16_guard`) have an effect in the pure modes only, as documented.

use super::{Applies, Facts, Named, Strategy, WithServers};
use crate::effective::Effective;
use crate::job::{Encoded, Job};
use fleet_base::text::did_you_mean;
use fleet_base::{Error, Result};
use fleet_config::AmpConfig;
use fleet_config::Problem;
use fleet_ir::{Op, OpId, OpRole, Program, Var, VarId, VarKind};
use fleet_nn::optimizer::SkipUpdate;
use fleet_ops::{AmpClass, Emit, Meta, Registry};
use fleet_ops::{
    comm::reduce,
    math::{cast, elementwise},
    optimizer::{check_finite_and_unscale, update_loss_scaling},
};
use fleet_tensor::{DType, Shape};
use std::collections::{BTreeSet, HashMap};

pub struct Amp;

impl Strategy for Amp {
    fn check(&self, strategy: &Effective<'_>, problems: &mut Vec<Problem>) {
        let configs = strategy.amp_configs();
        check_lists(configs, problems);
        if configs.use_pure_fp16() && configs.use_pure_bf16() {
            let (one, other) = ("amp_configs.use_pure_fp16", "amp_configs.use_pure_bf16");
            let problem = Problem::error(other, format!("conflicts with {one}"))
                .why("parameters have a single type")
                .help(format!("choose {one} or {other}"));
            problems.push(problem);
        }
        if !configs.use_dynamic_loss_scaling() {
            check_constant_scale(configs, problems);
        }
    }

    fn unmatched(&self, strategy: &Effective<'_>, program: &Program, problems: &mut Vec<Problem>) {
        unmatched(strategy.amp_configs(), program, problems);
    }

    fn with_servers(&self) -> WithServers {
        WithServers::Applies
    }

    fn applies(&self, strategy: &Effective<'_>, facts: &Facts<'_>) -> Applies {
        let configs = strategy.amp_configs();
        let branches = |op: &fleet_ir::Op| op.role.is_forward() && op.sub_block().is_some();
        if facts.program.root_ops().any(|(_, op)| branches(op)) {
            return Applies::Refused(
                self.switch().into(),
                "amp does not support the branches of a cond".into(),
            );
        }
        // The default is true, so only an explicit true counts as a request.
        let wants_regions = is_pure(configs) && configs.use_fp16_guard == Some(true);
        if wants_regions && !has_regions(facts.program) {
            return Applies::Refused(
                "amp_configs.use_fp16_guard".into(),
                "use_fp16_guard is set, but no op is under fp16_guard(): nothing would compute in \
                 16 bits; without use_fp16_guard, all supported ops do"
                    .into(),
            );
        }
        let scaling = match (configs.use_pure_bf16(), configs.use_dynamic_loss_scaling()) {
            (true, _) => "bfloat16, the loss is not scaled".to_string(),
            (_, true) => {
                format!("float16, loss scaled dynamically from {}", configs.init_loss_scaling())
            }
            (_, false) => format!("float16, loss scaled by {}", configs.init_loss_scaling()),
        };
        Applies::Yes(scaling)
    }

    fn forward(&self, job: &mut Job<'_>) -> Result<()> {
        let configs = job.strategy.amp_configs();
        let half = half_type(configs);
        let casts = rewrite_forward(&mut job.programs.main, job.registry, configs, half)?;
        job.notes.push(format!("mixed precision: {casts} casts to {half} and back"));
        let main = &mut job.programs.main;
        if main.var(job.loss).dtype != DType::F32 {
            let mut emit = Emit::new(main, job.registry, OpRole::FORWARD);
            let call = emit.op(&cast::DEF).input("X", job.loss);
            job.loss = call.attr("out_dtype", DType::F32).one("Out")?;
            emit.append();
        }
        if half == DType::F16 {
            let start = f64::from(configs.init_loss_scaling());
            let scale = job.state(LOSS_SCALE, DType::F32, Shape::from([1]), start)?;
            let loss = job.loss;
            let mut emit = job.emit_into(Program::ROOT, OpRole::FORWARD.with_loss());
            let call = emit.op(&elementwise::MUL).input("X", loss).input("Y", scale);
            let scaled = call.named("scaled_loss").one("Out")?;
            emit.append();
            job.loss = scaled;
        }
        Ok(())
    }

    fn encode(&self, job: &mut Job<'_>) -> Result<()> {
        if job.copies() == 1 || job.at.block != Program::ROOT {
            return Ok(());
        }
        let mut removed = Vec::new();
        for index in 0..job.grads.len() {
            let (param, original) = job.grads[index];
            if job.class_weights.contains(&param) {
                continue;
            }
            let Some((op, half)) = single_cast_of(&job.programs.main, original) else { continue };
            removed.push(op);
            job.grads[index].1 = half;
            job.encoded.push(Encoded { index, original });
        }
        job.programs.main.retain_ops(Program::ROOT, |id, _| !removed.contains(&id));
        Ok(())
    }

    fn decode(&self, job: &mut Job<'_>) -> Result<()> {
        for Encoded { index, original } in std::mem::take(&mut job.encoded) {
            let half = job.grads[index].1;
            let mut emit = job.emit(OpRole::OPTIMIZE);
            let call = emit.op(&cast::DEF).input("X", half).output("Out", original);
            let op = call.attr("out_dtype", DType::F32).done()?;
            job.append(op);
            job.grads[index].1 = original;
        }
        Ok(())
    }

    fn unscale(&self, job: &mut Job<'_>) -> Result<()> {
        let grads: Vec<VarId> = job.grads.iter().map(|(_, grad)| *grad).collect();
        let all_rules = !job.strategy.amp_configs().use_dynamic_loss_scaling();
        let found = unscale(job, &grads)?;
        job.at.skip_update = found.map(|condition| SkipUpdate { condition, all_rules });
        Ok(())
    }
}

/// Divides gradients by the loss scale and checks them; updates the scale and the count of skipped
/// steps. Returns the variable that is true if any gradient is not finite, so that the step must be
/// skipped; none if the loss is not scaled.
pub(crate) fn unscale(job: &mut Job<'_>, grads: &[VarId]) -> Result<Option<VarId>> {
    let configs = job.strategy.amp_configs();
    if !job.strategy.amp() || half_type(configs) != DType::F16 {
        return Ok(None);
    }
    let scale = job.programs.main.var_named(LOSS_SCALE)?;
    let mut counter = |name: &str| job.state(name, DType::I32, Shape::from([1]), 0.0);
    let counters = match configs.use_dynamic_loss_scaling() {
        true => Some((counter(GOOD_STEPS)?, counter(BAD_STEPS)?)),
        false => None,
    };
    let skipped = counter(SKIPPED_STEPS)?;
    let owners = job.at.shared.as_ref().map(|shared| (shared.ring, shared.nranks, false));
    let layers = job.layers.map(|layers| (layers.ring, layers.parts, true));
    let mut emit = job.emit(OpRole::OPTIMIZE);
    let mut found = emit
        .op(&check_finite_and_unscale::DEF)
        .inputs("X", grads)
        .input("Scale", scale)
        .outputs("Out", grads)
        .named("find_infinite_scale.tmp")
        .one("FoundInfinite")?;
    let rings: Vec<(i64, usize, bool)> = owners.into_iter().chain(layers).collect();
    if !rings.is_empty() {
        found = any_rank(&mut emit, &rings, found)?;
    }
    if let Some((good, bad)) = counters {
        emit.op(&update_loss_scaling::DEF)
            .inputs("X", grads)
            .input("FoundInfinite", found)
            .input("PrevLossScaling", scale)
            .input("InGoodSteps", good)
            .input("InBadSteps", bad)
            .outputs("Out", grads)
            .output("LossScaling", scale)
            .output("OutGoodSteps", good)
            .output("OutBadSteps", bad)
            .attr("incr_every_n_steps", configs.incr_every_n_steps())
            .attr("decr_every_n_nan_or_inf", configs.decr_every_n_nan_or_inf())
            .attr("incr_ratio", configs.incr_ratio())
            .attr("decr_ratio", configs.decr_ratio())
            .done()?;
    }
    let call = emit.op(&cast::DEF).input("X", found).attr("out_dtype", DType::I32);
    let is_skipped = call.named("is_skipped.tmp").one("Out")?;
    let call = emit.op(&elementwise::ADD).input("X", skipped).input("Y", is_skipped);
    call.output("Out", skipped).done()?;
    emit.append();
    Ok(Some(found))
}

/// Reports op kinds that both lists name.
fn check_lists(configs: &AmpConfig, problems: &mut Vec<Problem>) {
    for (index, name) in configs.custom_black_list.iter().enumerate() {
        if configs.custom_white_list.contains(name) {
            let path = format!("amp_configs.custom_black_list[{index}]");
            let message = format!("'{name}' is in both custom_white_list and custom_black_list");
            let problem = Problem::error(path, message)
                .why("an op kind computes either in 16 or in 32 bits")
                .help("remove it from one of the lists");
            problems.push(problem);
        }
    }
}

/// Reports settings of a dynamic loss scaling factor where the factor is constant.
fn check_constant_scale(configs: &AmpConfig, problems: &mut Vec<Problem>) {
    let settings = [
        ("incr_every_n_steps", configs.incr_every_n_steps.is_some()),
        ("decr_every_n_nan_or_inf", configs.decr_every_n_nan_or_inf.is_some()),
        ("incr_ratio", configs.incr_ratio.is_some()),
        ("decr_ratio", configs.decr_ratio.is_some()),
    ];
    for (name, _) in settings.into_iter().filter(|(_, assigned)| *assigned) {
        let path = format!("amp_configs.{name}");
        let problem = Problem::warning(path, "has no effect without use_dynamic_loss_scaling")
            .why("the loss scaling factor is constant")
            .help("set use_dynamic_loss_scaling to true, or remove this field");
        problems.push(problem);
    }
}

/// Reports op kinds and variables that the program does not have.
fn unmatched(configs: &AmpConfig, program: &Program, problems: &mut Vec<Problem>) {
    let forward = program.root_ops().filter(|(_, op)| op.role.is_forward());
    let kinds: BTreeSet<&str> = forward.map(|(_, op)| op.name()).collect();
    let lists = [
        ("custom_white_list", &configs.custom_white_list),
        ("custom_black_list", &configs.custom_black_list),
    ];
    for (list, names) in lists {
        for (at, name) in names.iter().enumerate().filter(|(_, name)| !kinds.contains(&***name)) {
            let hint = did_you_mean(name, kinds.iter().copied());
            let message = format!("the program has no op of kind '{name}'{hint}");
            let known = kinds.iter().copied().collect::<Vec<_>>().join(", ");
            let problem = Problem::warning(format!("amp_configs.{list}[{at}]"), message);
            problems.push(problem.help(format!("use an op kind of this program: {known}")));
        }
    }
    for (at, name) in configs.custom_black_varnames.iter().enumerate() {
        if program.find_var(name).is_none() {
            let hint = did_you_mean(name, program.vars().map(|(_, var)| var.name.as_str()));
            let path = format!("amp_configs.custom_black_varnames[{at}]");
            let message = format!("the program has no variable '{name}'{hint}");
            problems.push(Problem::warning(path, message));
        }
    }
}

/// Emits whether a condition is true on any rank of these rings: (ring, ranks, whether the compute
/// lane uses it).
fn any_rank(emit: &mut Emit<'_>, rings: &[(i64, usize, bool)], condition: VarId) -> Result<VarId> {
    let cast = |emit: &mut Emit<'_>, from: VarId, to: DType| {
        // Named, because the variables of collectives must have the same names on all ranks.
        let call = emit.op(&cast::DEF).input("X", from).attr("out_dtype", to);
        call.named("found_infinite.tmp").one("Out")
    };
    let number = cast(emit, condition, DType::I32)?;
    for (ring, ranks, in_compute) in rings {
        let call = emit.op(&reduce::ALL_MAX).input("X", number).output("Out", number);
        let call = call.attr("ring_id", *ring).attr("nranks", *ranks);
        let call = call.attr("use_calc_stream", *in_compute);
        call.attr("label", "gradients are finite").done()?;
    }
    cast(emit, number, DType::Bool)
}

/// Variable of the loss scale.
pub const LOSS_SCALE: &str = "loss_scaling_0";
/// Variable that counts the steps since the last one whose gradients were not finite. A constant
/// scale has none.
pub const GOOD_STEPS: &str = "num_good_steps_0";
/// Variable that counts the steps in a row whose gradients were not finite. A constant scale has
/// none.
pub const BAD_STEPS: &str = "num_bad_steps_0";
/// Variable that counts the steps in which gradients were not finite.
pub const SKIPPED_STEPS: &str = "skipped_steps_0";

fn is_pure(configs: &AmpConfig) -> bool {
    configs.use_pure_fp16() || configs.use_pure_bf16()
}

fn has_regions(program: &Program) -> bool {
    program.root_ops().any(|(_, op)| op.fp16_guard)
}

fn half_type(configs: &AmpConfig) -> DType {
    if configs.use_pure_bf16() { DType::BF16 } else { DType::F16 }
}

/// Returns the op that makes a parameter's gradient, if it only widens a 16-bit value, and that
/// value.
fn single_cast_of(main: &Program, grad: VarId) -> Option<(OpId, VarId)> {
    let mut makers = main.root_ops().filter(|(_, op)| op.all_outputs().any(|var| var == grad));
    let (id, op) = makers.next()?;
    let from = *op.input("X").first()?;
    let narrow = matches!(main.var(from).dtype, DType::F16 | DType::BF16);
    let lone = cast::DEF.is(op) && makers.next().is_none() && narrow;
    let users = main.root_ops().filter(|(_, op)| op.all_inputs().any(|var| var == from)).count();
    (lone && users == 1).then_some((id, from))
}

/// Casts every forward op's inputs to its precision; returns the number of casts inserted.
fn rewrite_forward(
    main: &mut Program,
    registry: &'static Registry,
    configs: &AmpConfig,
    half: DType,
) -> Result<usize> {
    let mut casts: HashMap<(VarId, DType), VarId> = HashMap::new();
    // Whether the forward op that wrote a variable made it 16-bit (true) or not.
    let mut made_half: HashMap<VarId, bool> = HashMap::new();
    let mut ops = Vec::new();
    let only_regions = is_pure(configs) && configs.use_fp16_guard() && has_regions(main);
    for id in main.block(Program::ROOT).ops().to_vec() {
        let op = main.op(id).clone();
        if !op.role.is_forward() || op.sub_block().is_some() {
            ops.push(id);
            continue;
        }
        let wide = registry.get(op.name())?.traits.wide;
        let narrow = (op.fp16_guard || !only_regions)
            && wants_half(main, registry, configs, &op, &made_half)
            && takes_half(main, registry, &op, half);
        for (slot, spec) in op.spec.inputs.iter().enumerate() {
            for (place, var) in op.inputs[slot].iter().enumerate() {
                let wanted = match narrow && !wide.contains(&spec.name) {
                    true => half,
                    false => DType::F32,
                };
                let held = main.var(*var).dtype;
                let floats = matches!(held, DType::F32 | DType::F16 | DType::BF16);
                // Variables that are 16-bit in the user's program are not changed.
                let ours = held == DType::F32 || made_half.get(var) == Some(&true);
                if !floats || held == wanted || !ours || cast::DEF.is(&op) {
                    continue;
                }
                let cast = cast_once(main, registry, &mut casts, &mut ops, &op, *var, wanted)?;
                main.op_mut(id).inputs[slot][place] = cast;
            }
        }
        ops.push(id);
        retype_outputs(main, registry, id)?;
        for var in main.op(id).all_outputs().collect::<Vec<_>>() {
            let is_half = main.var(var).dtype == half;
            let before = made_half.insert(var, is_half);
            let is_cast = [half, DType::F32].iter().any(|to| casts.contains_key(&(var, *to)));
            if is_cast || before.is_some_and(|before| before != is_half) {
                let name = main.var_name(var);
                return Err(Error::unsupported(format!(
                    "amp cannot cast '{name}', which is written more than once"
                ))
                .expected("one op that writes it")
                .help("let each op write its own variable")
                .at(main.describe_op(id)));
            }
        }
    }
    main.set_block_ops(Program::ROOT, ops);
    Ok(casts.len())
}

fn wants_half(
    main: &Program,
    registry: &Registry,
    configs: &AmpConfig,
    op: &Op,
    made_half: &HashMap<VarId, bool>,
) -> bool {
    let name = op.name();
    let on = |list: &[String]| list.iter().any(|other| other == name);
    let mut vars = op.all_inputs().chain(op.all_outputs()).map(|var| main.var_name(var));
    let black_var = vars.any(|var| {
        var.contains("learning_rate") || configs.custom_black_varnames.iter().any(|it| it == var)
    });
    if black_var || on(&configs.custom_black_list) {
        return false;
    }
    if on(&configs.custom_white_list) {
        return true;
    }
    let class = registry.find(name).map_or(AmpClass::Unlisted, |def| def.traits.amp);
    match class {
        AmpClass::White => true,
        AmpClass::Black => false,
        AmpClass::Unlisted => is_pure(configs),
        // Follows the producers of the inputs: 16 bits only if all of them use 16 bits.
        AmpClass::Gray => {
            let mut producers = op.all_inputs().filter_map(|var| made_half.get(&var)).peekable();
            producers.peek().is_some() && producers.all(|half| *half)
        }
    }
}

/// Returns whether the op's shape rule accepts 16-bit inputs; otherwise the op computes in 32 bits.
fn takes_half(main: &Program, registry: &Registry, op: &Op, half: DType) -> bool {
    let Some(def) = registry.find(op.name()) else { return false };
    let wide_slots: Vec<VarId> = op
        .spec
        .inputs
        .iter()
        .zip(&op.inputs)
        .filter(|(slot, _)| def.traits.wide.contains(&slot.name))
        .flat_map(|(_, vars)| vars.clone())
        .collect();
    let narrowed = |var: VarId| {
        let meta = fleet_ops::meta(main, var);
        let narrow = meta.dtype == DType::F32 && !wide_slots.contains(&var);
        Meta { dtype: if narrow { half } else { meta.dtype }, ..meta }
    };
    let sparse = op.all_outputs().any(|var| main.var(var).kind == VarKind::SparseRows);
    if sparse || op.all_inputs().next().is_none() {
        return false;
    }
    let Ok(made) = def.shapes(op, narrowed) else { return false };
    // Persistent variables must keep their types.
    op.outputs.iter().zip(&made).all(|(vars, metas)| {
        vars.iter().zip(metas).all(|(var, meta)| {
            let var = main.var(*var);
            !var.persistable || var.dtype == meta.dtype
        })
    })
}

fn cast_once(
    main: &mut Program,
    registry: &Registry,
    casts: &mut HashMap<(VarId, DType), VarId>,
    ops: &mut Vec<OpId>,
    like: &Op,
    var: VarId,
    to: DType,
) -> Result<VarId> {
    if let Some(made) = casts.get(&(var, to)) {
        return Ok(*made);
    }
    let it = main.var(var);
    let suffix = match to {
        DType::F32 => "cast_fp32",
        DType::BF16 => "cast_bf16",
        _ => "cast_fp16",
    };
    let stop_gradient = it.stop_gradient;
    let made = Var { stop_gradient, ..Var::new(format!("{}.{suffix}", it.name), to, it.shape) };
    let made = main.add_var(Program::ROOT, made)?;
    let mut emit = Emit::new(main, registry, OpRole::FORWARD);
    emit.device.clone_from(&like.device);
    emit.source.clone_from(&like.source);
    emit.op(&cast::DEF).input("X", var).output("Out", made).attr("out_dtype", to).done()?;
    ops.append(&mut emit.ops);
    casts.insert((var, to), made);
    Ok(made)
}

/// Sets the types of the outputs by the shape rule.
fn retype_outputs(main: &mut Program, registry: &Registry, id: OpId) -> Result<()> {
    let op = main.op(id).clone();
    let def = registry.get(op.name())?;
    let made = def.shapes(&op, |var| fleet_ops::meta(main, var));
    let made = made.map_err(|error| error.at(main.describe_op(id)))?;
    for (vars, metas) in op.outputs.iter().zip(made) {
        for (var, meta) in vars.iter().zip(metas) {
            if !main.var(*var).persistable {
                main.var_mut(*var).dtype = meta.dtype;
            }
        }
    }
    Ok(())
}
