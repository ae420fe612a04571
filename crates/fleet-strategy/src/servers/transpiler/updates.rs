//! The updates of a program that trains in one process: what they are, and how they leave a
//! trainer's program.

use crate::compiler::Start;
use crate::job::OwnUpdates;
use crate::servers::lookups::is_lookup;
use fleet_base::{Error, Result};
use fleet_ir::{Attr, Op, OpId, OpRole, Program, Regularizer, VarId};
use fleet_nn::optimizer::{OptimizerDesc, ParamGrad};
use fleet_nn::{LearningRate, LrSchedule, Programs};
use fleet_ops::optimizer::lr_schedule;
use fleet_ops::{Emit, Registry, math::elementwise, tensor::fill, verify::verify};
use std::collections::HashSet;

/// The updates of a program.
#[derive(Clone, Debug)]
pub(super) struct Updates {
    all: Vec<Update>,
    loss: VarId,
}

/// The update of one parameter.
#[derive(Clone, Debug)]
struct Update {
    op: OpId,
    param: VarId,
    /// The gradient that the backward pass computes.
    grad: VarId,
    /// The clipped gradient, which the op reads.
    clipped: VarId,
    /// The factor that clipping by the global norm gives.
    scale: Option<VarId>,
    rate: VarId,
    /// Rule and learning rate.
    optimizer: OptimizerDesc,
}

impl Updates {
    /// Finds the updates of a program that trains in one process. The program may be a user's file,
    /// so it is verified first.
    pub fn find(programs: &Programs, registry: &Registry) -> Result<Updates> {
        let main = &programs.main;
        verify(main, registry)?;
        verify(&programs.startup, registry)?;
        let is_distributed =
            |op: &Op| op.attr("ring_id").is_some() || op.attr("table_id").is_some();
        if let Some((id, _)) = main.root_ops().find(|(_, op)| is_distributed(op)) {
            return Err(Error::invalid("the program is distributed already")
                .expected("a program that trains in one process")
                .got(main.describe_op(id)));
        }
        let inner = main.block_ids().filter(|block| *block != Program::ROOT);
        let mut inner = inner.flat_map(|block| main.block_ops(block));
        if let Some((id, _)) = inner.find(|(_, op)| is_update(op)) {
            return Err(Error::unsupported("updates in a conditional block")
                .got(main.describe_op(id))
                .help("transpile the program without gradient merge"));
        }
        let ops = main.root_ops().filter(|(_, op)| is_update(op));
        let mut all = ops
            .map(|(id, _)| Update::of(programs, id).map_err(|error| error.at(main.describe_op(id))))
            .collect::<Result<Vec<_>>>()?;
        // The order in which the backward pass completes gradients, roughly.
        all.sort_by_key(|update| std::cmp::Reverse(update.param));
        if all.is_empty() {
            return Err(Error::invalid("the program has no updates")
                .expected("a program that trains in one process")
                .help("call minimize first, or pass the network with its loss and optimizer"));
        }
        let is_loss = |op: &Op| op.role.is_loss() && op.role.is_forward();
        let loss = main.root_ops().rfind(|(_, op)| is_loss(op));
        let loss = loss.and_then(|(_, op)| op.all_outputs().next());
        let loss = loss.ok_or_else(|| {
            Error::invalid("the program does not mark its loss")
                .help("call minimize, which marks it")
        })?;
        Ok(Updates { all, loss })
    }

    fn grads(&self) -> Vec<ParamGrad> {
        self.all.iter().map(|update| (update.param, update.grad)).collect()
    }

    /// Returns the optimizer of the first update, and in its `rows` another rule if there is one.
    pub fn first_optimizer(&self) -> OptimizerDesc {
        let mut optimizer = self.all[0].optimizer.clone();
        let other = self.all.iter().find(|update| update.optimizer != optimizer);
        optimizer.rows = other.map(|update| Box::new(update.optimizer.clone()));
        optimizer
    }

    /// Returns the optimizer of dense parameters, and that of tables of rows if it differs. Servers
    /// have one of each.
    pub fn optimizers(&self, main: &Program) -> Result<(OptimizerDesc, Option<OptimizerDesc>)> {
        let (rows, dense): (Vec<&Update>, Vec<&Update>) =
            self.all.iter().partition(|update| is_table(main, update.param));
        let one = |updates: &[&Update], what: &str| -> Result<Option<OptimizerDesc>> {
            let Some(first) = updates.first() else { return Ok(None) };
            match updates.iter().find(|update| update.optimizer != first.optimizer) {
                None => Ok(Some(first.optimizer.clone())),
                Some(other) => {
                    let show = |update: &Update| update.shown(main);
                    Err(Error::unsupported(format!("{what} have several rules or learning rates"))
                        .expected("one for dense parameters, and one for tables of rows")
                        .got(format!("{}, {}", show(first), show(other))))
                }
            }
        };
        let (dense, rows) = (one(&dense, "dense parameters")?, one(&rows, "tables of rows")?);
        match (dense, rows) {
            (Some(dense), rows) => {
                let other = rows.filter(|rows| *rows != dense);
                Ok((dense, other))
            }
            (None, rows) => Ok((rows.unwrap_or_else(|| self.all[0].optimizer.clone()), None)),
        }
    }

    fn start(&self, grads: Vec<ParamGrad>, ops: Vec<OpId>) -> Start {
        let rate = self.all[0].rate;
        Start::Updates { loss: self.loss, rate, updates: OwnUpdates { ops, grads } }
    }

    /// Keeps the updates in the program.
    pub fn kept(&self) -> Start {
        self.start(self.grads(), Vec::new())
    }

    /// Takes schedules, clipping and updates off the program until its gradients are processed.
    pub fn set_aside(&self, main: &mut Program) -> Result<Start> {
        let fills = |op: &Op| op.role.is_loss() && op.role.is_backward();
        if !main.root_ops().any(|(_, op)| fills(op)) {
            return Err(Error::invalid("the program does not mark the gradient of its loss")
                .help("call minimize, which marks it"));
        }
        let roles = [OpRole::OPTIMIZE, OpRole::LR_SCHED];
        let is_after = |op: &Op| roles.contains(&op.role.base());
        let ops = main.root_ops().filter(|(_, op)| is_after(op)).map(|(id, _)| id).collect();
        main.retain_ops(Program::ROOT, |_, op| !is_after(op));
        Ok(self.start(self.grads(), ops))
    }

    /// Removes updates, their state and learning rates from both programs. Clipping stays with the
    /// trainer; what else the updates did to gradients follows from the parameters' attributes.
    pub fn take(&self, programs: &mut Programs, registry: &Registry) -> Result<Start> {
        let main = &mut programs.main;
        for update in &self.all {
            let is_clipped = update.scale.is_some() || update.clipped != update.grad;
            if is_clipped && is_table(main, update.param) {
                return Err(Error::unsupported(format!(
                    "gradient clipping is not supported for '{}': its rows come from several \
                     workers",
                    main.var_name(update.param)
                ))
                .help("set need_clip(false) for the table, or use a dense embedding"));
            }
            let op = main.op(update.op);
            let coeff = op.attr_float("regularization_coeff");
            let regularizer = match op.attr_str("regularization_method") {
                "l1_decay" => Some(Regularizer::L1(coeff)),
                "l2_decay" => Some(Regularizer::L2(coeff)),
                _ => None,
            };
            let learning_rate = op.attr_float("lr_scale");
            if let Some(param) = &mut main.var_mut(update.param).param {
                (param.regularizer, param.learning_rate) = (regularizer, learning_rate);
            }
        }
        self.remove(programs)?;
        let mut emit = Emit::new(&mut programs.main, registry, OpRole::BACKWARD);
        let mut grads = Vec::new();
        for update in &self.all {
            let grad = match update.scale {
                None => update.clipped,
                Some(scale) => {
                    let call = emit.op(&elementwise::MUL).input("X", update.clipped);
                    call.input("Y", scale).one("Out")?
                }
            };
            grads.push((update.param, grad));
        }
        emit.append();
        Ok(self.start(grads, Vec::new()))
    }

    fn remove(&self, programs: &mut Programs) -> Result<()> {
        let Programs { main, startup, host_rates, .. } = programs;
        let updates: HashSet<OpId> = self.all.iter().map(|update| update.op).collect();
        let is_gone =
            |id: OpId, op: &Op| updates.contains(&id) || op.role.base() == OpRole::LR_SCHED;
        let params: HashSet<VarId> = self.all.iter().map(|update| update.param).collect();
        let mut gone: HashSet<VarId> = self.all.iter().map(|update| update.rate).collect();
        let ops = main.root_ops().filter(|(id, op)| is_gone(*id, op)).map(|(_, op)| op);
        gone.extend(ops.flat_map(Op::all_outputs).filter(|var| !params.contains(var)));
        let all = || main.block_ids().flat_map(|block| main.block_ops(block));
        let reads =
            |id, op: &Op| !is_gone(id, op) && op.all_inputs().any(|var| gone.contains(&var));
        let reader = all().find(|(id, op)| reads(*id, op)).map(|(id, _)| id);
        if let Some(id) = reader {
            return Err(Error::unsupported("an op reads the state or learning rate of updates")
                .got(main.describe_op(id))
                .help("remove the op: servers make the updates"));
        }
        main.retain_ops(Program::ROOT, |id, op| !is_gone(id, op));
        let names: Vec<String> = gone.iter().map(|var| main.var_name(*var).to_string()).collect();
        gone.iter().for_each(|var| main.remove_var(*var));
        host_rates.retain(|rate| !names.contains(&rate.variable));
        let gone: HashSet<VarId> = names.iter().filter_map(|name| startup.find_var(name)).collect();
        startup.retain_ops(Program::ROOT, |_, op| !op.all_outputs().any(|var| gone.contains(&var)));
        gone.iter().for_each(|var| startup.remove_var(*var));
        Ok(())
    }
}

/// Returns whether an op updates a parameter.
fn is_update(op: &Op) -> bool {
    ["Param", "Grad", "LearningRate"].iter().all(|slot| op.spec.input_index(slot).is_some())
}

/// Returns whether servers keep a parameter as a table of rows.
fn is_table(main: &Program, param: VarId) -> bool {
    main.root_ops().any(|(_, op)| {
        let is_remote = || op.attr_bool("is_sparse") || op.attr_bool("is_distributed");
        is_lookup(op.name()) && op.input("W") == [param] && is_remote()
    })
}

impl Update {
    fn of(programs: &Programs, id: OpId) -> Result<Update> {
        let (main, op) = (&programs.main, programs.main.op(id));
        let has = |slot: &str| op.spec.input_index(slot).is_some() && !op.input(slot).is_empty();
        if has("SkipUpdate") {
            return Err(Error::unsupported("updates that mixed precision may skip")
                .help("transpile the program without amp"));
        }
        let ([param], [clipped], [rate]) =
            (op.input("Param"), op.input("Grad"), op.input("LearningRate"))
        else {
            return Err(Error::unsupported("an update of several parameters"));
        };
        let (param, clipped, rate) = (*param, *clipped, *rate);
        let scale = if has("GradScale") { Some(op.input("GradScale")[0]) } else { None };
        let mut optimizer = OptimizerDesc::of_update(op, |var| start_of(programs, var))?;
        optimizer.settings.learning_rate = rate_of(programs, rate)?;
        let grad = unclipped(main, clipped)?;
        Ok(Update { op: id, param, grad, clipped, scale, rate, optimizer })
    }

    /// Returns the rule with its numbers, the learning rate and the parameter, for errors.
    fn shown(&self, main: &Program) -> String {
        let op = main.op(self.op);
        let mut text = op.name().to_string();
        for attr in op.spec.attrs {
            if let Some(Attr::Float(value)) = op.attr(attr.name) {
                text += &format!(" {} {value}", attr.name);
            }
        }
        let rate = match &self.optimizer.settings.learning_rate {
            LearningRate::Constant(rate) => format!("learning rate {rate}"),
            LearningRate::Schedule(_) => "a schedule of learning rates".to_string(),
        };
        format!("{text} with {rate} for '{}'", main.var_name(self.param))
    }
}

/// Returns the last op of the root block that writes a variable.
fn writer(main: &Program, var: VarId) -> Option<&Op> {
    let writes = |op: &Op| op.all_outputs().any(|out| out == var);
    main.root_ops().rfind(|(_, op)| writes(op)).map(|(_, op)| op)
}

/// Returns the gradient from which clipping made `grad`.
fn unclipped(main: &Program, grad: VarId) -> Result<VarId> {
    let mut var = grad;
    while let Some(op) = writer(main, var).filter(|op| op.role.base() == OpRole::OPTIMIZE) {
        match op.input("X") {
            [from] if *from != var => var = *from,
            _ => {
                return Err(Error::unsupported("a gradient that an op of the updates computes")
                    .got(op.name())
                    .expected("a gradient of the backward pass, or a clipped one"));
            }
        }
    }
    Ok(var)
}

/// Returns the initial value of a variable that the startup program fills.
fn start_of(programs: &Programs, var: VarId) -> Result<f64> {
    let (name, startup) = (programs.main.var_name(var), &programs.startup);
    let op = startup.find_var(name).and_then(|var| writer(startup, var));
    match op.filter(|op| fill::FILL_CONSTANT.is(op)) {
        Some(op) => Ok(op.attr_float("value")),
        None => Err(Error::invalid(format!("the startup program does not fill '{name}'"))
            .expected(fill::FILL_CONSTANT.spec.name)
            .got(op.map_or("no op", Op::name))
            .help("pass the startup program that belongs to the main program")),
    }
}

/// Returns the learning rate that a variable holds.
fn rate_of(programs: &Programs, rate: VarId) -> Result<LearningRate> {
    let main = &programs.main;
    let name = main.var_name(rate);
    if let Some(host) = programs.host_rates.iter().find(|host| host.variable == name) {
        return Ok(LearningRate::Schedule(host.schedule.clone()));
    }
    match writer(main, rate) {
        None => start_of(programs, rate).map(LearningRate::Constant),
        Some(op) if lr_schedule::DEF.is(op) => schedule_of(main, op),
        Some(op) => Err(Error::unsupported(format!("'{name}' is not the rate of a schedule"))
            .expected("a constant or lr_schedule")
            .got(op.name())),
    }
}

/// Returns the schedule of an op: the inverse of `LrSchedule::emit`.
fn schedule_of(main: &Program, op: &Op) -> Result<LearningRate> {
    let steps = || op.attr_floats("boundaries").iter().map(|step| *step as u64).collect();
    let schedule = match (op.attr_str("kind"), op.attr_floats("params")) {
        ("constant", [rate]) => return Ok(LearningRate::Constant(*rate)),
        ("noam", &[learning_rate, d_model, warmup_steps]) => {
            LrSchedule::Noam { learning_rate, d_model, warmup_steps }
        }
        ("exponential", &[learning_rate, gamma]) => {
            LrSchedule::Exponential { learning_rate, gamma }
        }
        ("natural_exp", &[learning_rate, gamma]) => LrSchedule::NaturalExp { learning_rate, gamma },
        ("inverse_time", &[learning_rate, gamma]) => {
            LrSchedule::InverseTime { learning_rate, gamma }
        }
        ("piecewise", _) => {
            let values = op.attr_floats("values").to_vec();
            LrSchedule::Piecewise { boundaries: steps(), values }
        }
        ("polynomial", &[learning_rate, decay_steps, end, power, cycle]) => {
            let cycle = cycle != 0.0;
            LrSchedule::Polynomial { learning_rate, decay_steps, end, power, cycle }
        }
        ("cosine", &[learning_rate, t_max, eta_min]) => {
            LrSchedule::Cosine { learning_rate, t_max, eta_min }
        }
        ("linear_warmup", &[warmup_steps, start, end]) => {
            let inner = op.input("Inner").first().and_then(|inner| writer(main, *inner));
            let after = match inner {
                Some(inner) => schedule_of(main, inner)?,
                None => LearningRate::Constant(end),
            };
            LrSchedule::linear_warmup(after, warmup_steps as u64, start, end)
        }
        ("step", &[learning_rate, step_size, gamma]) => {
            LrSchedule::Step { learning_rate, step_size: step_size as u64, gamma }
        }
        ("multi_step", &[learning_rate, gamma]) => {
            LrSchedule::MultiStep { learning_rate, milestones: steps(), gamma }
        }
        (kind, _) => {
            return Err(Error::unsupported("an unknown kind of lr_schedule").got(kind));
        }
    };
    Ok(LearningRate::Schedule(schedule))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_nn::prelude::*;

    /// Returns the first optimizer of a program that `optimizer` updates.
    fn found(optimizer: impl Into<OptimizerDesc>) -> OptimizerDesc {
        let net = Net::new();
        let loss = net.data("x", [-1, 4], DType::F32).fc(2).mean();
        net.minimize(loss, optimizer).unwrap();
        Updates::find(&net.build().unwrap(), net.registry()).unwrap().first_optimizer()
    }

    #[test]
    fn rules_are_those_of_the_optimizer() {
        let check = |optimizer: OptimizerDesc| assert_eq!(found(optimizer.clone()), optimizer);
        check(Sgd::new(0.1).into());
        check(Momentum::new(0.1, 0.8).use_nesterov(true).into());
        check(Adagrad::new(0.1).epsilon(1e-3).initial_accumulator_value(0.5).into());
        check(Adam::new(0.1).beta1(0.7).beta2(0.8).epsilon(1e-4).lazy_mode(true).into());
        check(AdamW::new(0.1).beta1(0.7).coeff(0.2).into());
        check(Adamax::new(0.1).beta2(0.8).into());
        check(Adadelta::new(0.1).rho(0.5).into());
        check(RmsProp::new(0.1).rho(0.5).momentum(0.3).centered(true).into());
        check(Lamb::new(0.1).beta1(0.5).into());
        check(LarsMomentum::new(0.1, 0.5).epsilon(1e-3).into());
    }

    #[test]
    fn schedules_are_those_of_the_optimizer() {
        let check = |schedule: LrSchedule| {
            let optimizer: OptimizerDesc = Sgd::new(schedule).into();
            assert_eq!(found(optimizer.clone()), optimizer);
        };
        check(LrSchedule::noam(512.0, 4000.0));
        check(LrSchedule::exponential(0.1, 0.5));
        check(LrSchedule::natural_exp(0.1, 0.5));
        check(LrSchedule::inverse_time(0.1, 0.5));
        check(LrSchedule::piecewise([3, 6], [1.0, 0.5, 0.1]));
        check(LrSchedule::polynomial(0.1, 50));
        check(LrSchedule::cosine(0.1, 90));
        check(LrSchedule::step(0.1, 7));
        check(LrSchedule::multi_step(0.1, [3, 6]));
        check(LrSchedule::lambda(0.1, |step| 1.0 / (step + 1) as f64));
        check(LrSchedule::linear_warmup(0.5, 20, 0.0, 0.5));
        check(LrSchedule::cosine(0.1, 90).warmup(5, 0.0, 0.1).warmup(3, 0.0, 0.0));
    }

    /// The rest is the program of the backward pass, with its clipping.
    #[test]
    fn a_taken_program_has_neither_state_nor_rates() {
        let net = Net::new();
        let loss = net.data("x", [-1, 4], DType::F32).fc(2).mean();
        let schedule = LrSchedule::cosine(0.1, 90).warmup(5, 0.0, 0.1);
        let clip = GradClip::GlobalNorm(1.0);
        let decay = Regularizer::L2(0.01);
        let optimizer = Adam::new(schedule).grad_clip(clip).weight_decay(decay);
        net.minimize(loss, optimizer).unwrap();
        let mut programs = net.build().unwrap();
        let updates = Updates::find(&programs, net.registry()).unwrap();
        updates.take(&mut programs, net.registry()).unwrap();
        let Programs { main, startup, .. } = &programs;
        fleet_ops::verify::verify(main, net.registry()).unwrap();
        fleet_ops::verify::verify(startup, net.registry()).unwrap();
        let held = |program: &Program| {
            let held = program.vars().filter(|(_, var)| var.persistable);
            let mut names: Vec<String> = held.map(|(_, var)| var.name.clone()).collect();
            names.sort();
            names
        };
        assert_eq!(held(main), ["fc_0.b_0", "fc_0.w_0"]);
        assert_eq!(held(startup), ["fc_0.b_0", "fc_0.w_0"]);
        assert_eq!(startup.root_ops().count(), 2);
        let ops: Vec<&str> = main.root_ops().map(|(_, op)| op.name()).collect();
        let tail = ["global_norm_scale", "elementwise_mul", "elementwise_mul"];
        assert!(ops.ends_with(&tail), "{ops:?}");
        let decays = main.parameters().map(|(_, var)| var.param.as_ref().unwrap().regularizer);
        assert!(decays.into_iter().all(|own| own == Some(decay)));
    }

    #[test]
    fn programs_that_do_not_train_alone_are_refused() {
        let refused = |programs: &Programs, words: &str| {
            let error = Updates::find(programs, Registry::standard()).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        let net = Net::new();
        let loss = net.data("x", [-1, 4], DType::F32).fc(2).fc(1).mean();
        refused(&net.build().unwrap(), "has no updates");
        let (first, second) = net.backward(loss).unwrap().partition(|name| name.contains("fc_0"));
        net.apply_gradients(Sgd::new(0.1), first).unwrap();
        net.apply_gradients(Sgd::new(0.2), second).unwrap();
        let mut programs = net.build().unwrap();
        let updates = Updates::find(&programs, net.registry()).unwrap();
        let error = updates.optimizers(&programs.main).unwrap_err().to_string();
        assert!(error.contains("dense parameters have several rules or learning rates"), "{error}");
        assert!(
            error.contains("with learning rate 0.1 for 'fc_0.") && error.contains("'fc_1."),
            "{error}"
        );

        let updates = programs.main.root_ops().filter(|(_, op)| op.name() == "sgd");
        let ids: Vec<OpId> = updates.map(|(id, _)| id).collect();
        let (rate, param) = {
            let op = programs.main.op(ids[0]);
            (op.input("LearningRate")[0], op.input("Param")[0])
        };
        let mut emit = Emit::new(&mut programs.main, net.registry(), OpRole::FORWARD);
        emit.op(&elementwise::MUL).input("X", param).input("Y", rate).one("Out").unwrap();
        emit.append();
        let error =
            Updates::find(&programs, net.registry()).unwrap().take(&mut programs, net.registry());
        let error = error.unwrap_err().to_string();
        assert!(error.contains("an op reads the state or learning rate of updates"), "{error}");

        // A broken program, as a file may hold it.
        let net = Net::new();
        let loss = net.data("x", [-1, 4], DType::F32).fc(2).mean();
        net.minimize(loss, Adagrad::new(0.1)).unwrap();
        let mut programs = net.build().unwrap();
        let update = programs.main.root_ops().find(|(_, op)| op.name() == "adagrad").unwrap().0;
        let op = programs.main.op_mut(update);
        op.inputs[op.spec.input_index("Moment").unwrap()].clear();
        refused(&programs, "Moment");
    }
}
