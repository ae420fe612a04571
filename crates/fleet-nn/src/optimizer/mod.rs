//! Optimizers. Each has an update rule for one parameter, in a file of its own. They share the
//! settings: learning rate, weight decay, clipping, and the parameters to train.
//!
//! An optimizer is plain data ([`OptimizerDesc`]). A strategy may inspect it or replace its rule.
//! It may also insert ops between the two halves of [`OptimizerDesc::minimize`], which are
//! [`OptimizerDesc::backward`] and [`OptimizerDesc::apply_gradients`].

mod adadelta;
mod adagrad;
mod adam;
mod adamax;
mod adamw;
mod custom;
mod lamb;
mod lars_momentum;
mod momentum;
mod of_update;
mod rmsprop;
mod sgd;

pub use crate::clip::{DividedUpdate, SharedUpdate};
pub use adadelta::{Adadelta, AdadeltaRule};
pub use adagrad::{Adagrad, AdagradRule};
pub use adam::{Adam, AdamRule};
pub use adamax::{Adamax, AdamaxRule};
pub use adamw::{AdamW, AdamWRule};
pub use custom::CustomRule;
pub use fleet_ir::Attr;
pub use lamb::{Lamb, LambRule};
pub use lars_momentum::{LarsMomentum, LarsMomentumRule};
pub use momentum::{Momentum, MomentumRule};
pub use rmsprop::{RmsProp, RmsPropRule};
pub use sgd::{Sgd, SgdRule};

use crate::clip::{Clipped, NormRanks};
use crate::init::global_var;
use crate::{GradClip, HostRate, LearningRate, Programs};
use fleet_base::{Error, Result};
use fleet_ir::{BlockId, Division, OpRole, OpSpec, Program, Regularizer, VarId};
use fleet_ops::{Emit, Registry};
use fleet_passes::{BackwardOptions, append_backward};
use fleet_tensor::{DType, Shape};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

/// Settings that all optimizers share.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerSettings {
    /// The rate of each step, a number or a schedule.
    pub learning_rate: LearningRate,
    /// Weight decay of parameters without their own regularizer.
    pub weight_decay: Option<Regularizer>,
    /// Clipping of the gradients before decay and update; none by default.
    pub grad_clip: Option<GradClip>,
    /// Names of the parameters to train; all by default.
    pub parameters: Option<Vec<String>>,
    /// Names of variables at which gradients stop.
    pub no_grad: Vec<String>,
}

/// A rule with its settings: the type of [`Sgd`], [`Adam`] and the others.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let optimizer = Momentum::new(0.1, 0.9)
///     .weight_decay(Regularizer::L2(1e-4))
///     .grad_clip(GradClip::GlobalNorm(1.0));
/// assert_eq!(optimizer.rule.mu, 0.9);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Optimizer<R> {
    /// The update of one parameter, with its numbers.
    pub rule: R,
    /// Learning rate, decay, clipping and the parameters to train.
    pub settings: OptimizerSettings,
}

impl<R> Optimizer<R> {
    fn with(rule: R, learning_rate: impl Into<LearningRate>) -> Optimizer<R> {
        let settings = OptimizerSettings {
            learning_rate: learning_rate.into(),
            weight_decay: None,
            grad_clip: None,
            parameters: None,
            no_grad: Vec::new(),
        };
        Optimizer { rule, settings }
    }

    /// Sets the decay of parameters without their own regularizer. It is added to their gradients
    /// after clipping.
    pub fn weight_decay(mut self, regularizer: Regularizer) -> Self {
        self.settings.weight_decay = Some(regularizer);
        self
    }

    /// Clips gradients before the update; without this call, they are not clipped.
    pub fn grad_clip(mut self, clip: GradClip) -> Self {
        self.settings.grad_clip = Some(clip);
        self
    }

    /// Trains only these parameters.
    pub fn parameters<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.settings.parameters = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Stops gradients at these variables.
    pub fn no_grad<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.settings.no_grad = names.into_iter().map(Into::into).collect();
        self
    }

    /// Sets another optimizer for embedding tables: see [`OptimizerDesc::rows`].
    pub fn rows(self, tables: impl Into<OptimizerDesc>) -> OptimizerDesc
    where
        R: Into<Rule>,
    {
        let mut desc = OptimizerDesc::from(self);
        desc.rows = Some(Box::new(tables.into()));
        desc
    }
}

/// Any optimizer, as data.
///
/// ```
/// # use fleet_nn::prelude::*;
/// use fleet_nn::optimizer::Rule;
/// let desc: OptimizerDesc = Momentum::new(0.1, 0.9).into();
/// let Rule::Momentum(rule) = &desc.rule else { unreachable!() };
/// assert_eq!(rule.mu, 0.9);
/// assert_eq!(desc.settings.learning_rate.value_at(0), 0.1);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerDesc {
    /// The update of one parameter, with its numbers.
    pub rule: Rule,
    /// Learning rate, decay, clipping and the parameters to train.
    pub settings: OptimizerSettings,
    /// Optimizer of embedding tables, if it differs: with its own rule, rate, decay and clipping. A
    /// table is a parameter that lookups read, with sparse or dense gradients. Strategies that
    /// replace a rule (LARS, LAMB, DGC) keep this one.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let ids = net.data("ids", [-1, 26], DType::I64);
    /// let rows = ids.embedding(Embedding::new(1000, 16).sparse().weight("table"));
    /// let loss = rows.flatten(1).fc(1).mean();
    /// net.minimize(loss, Adam::new(1e-3).rows(Sgd::new(6.0)))?;
    /// let programs = net.finish()?;
    /// let ops = || programs.main.root_ops();
    /// let updates = |name: &str| ops().filter(|(_, op)| op.name() == name).count();
    /// assert_eq!((updates("sgd"), updates("adam")), (1, 2));
    /// # Ok::<(), fleet_nn::Error>(())
    /// ```
    pub rows: Option<Box<OptimizerDesc>>,
}

impl<R: Into<Rule>> From<Optimizer<R>> for OptimizerDesc {
    fn from(optimizer: Optimizer<R>) -> Self {
        let Optimizer { rule, settings } = optimizer;
        OptimizerDesc { rule: rule.into(), settings, rows: None }
    }
}

/// Defines [`Rule`] from the list of optimizers with their rules.
macro_rules! rules {
    ($($name:ident($rule:ident),)*) => {
        /// Update rule of an optimizer.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Rule {
            $(
                #[doc = concat!("See [`", stringify!($rule), "`].")]
                $name($rule),
            )*
        }

        impl Rule {
            fn update(&self) -> &dyn UpdateRule {
                match self {
                    $(Rule::$name(rule) => rule,)*
                }
            }
        }

        $(impl From<$rule> for Rule {
            fn from(rule: $rule) -> Rule {
                Rule::$name(rule)
            }
        })*
    };
}

rules! {
    Sgd(SgdRule),
    Momentum(MomentumRule),
    Adam(AdamRule),
    AdamW(AdamWRule),
    Adamax(AdamaxRule),
    Adagrad(AdagradRule),
    Adadelta(AdadeltaRule),
    RmsProp(RmsPropRule),
    LarsMomentum(LarsMomentumRule),
    Lamb(LambRule),
    Custom(CustomRule),
}

impl Rule {
    /// Returns the name of the op that updates a parameter.
    pub fn op(&self) -> &'static str {
        self.update().op()
    }

    /// Returns the name of the op for a parameter of which each rank has a part, if the rule needs
    /// norms of whole parameters ([`UpdateRule::op_of_parts`]).
    pub fn op_of_parts(&self) -> Option<&'static str> {
        self.update().op_of_parts()
    }
}

/// Description of a rule: the op that updates a parameter, with its state and attributes. All rules
/// share the code that emits them.
///
/// If the op lacks the input `GradScale` or the attributes `regularization_method`,
/// `regularization_coeff` and `lr_scale`, other ops do their work before the update: clipping by
/// the global norm, weight decay, and the parameter's own factor of the learning rate. These ops
/// need dense gradients. If it lacks the input `SkipUpdate` (`bool[1]`), updates that mixed
/// precision may skip are in a conditional block.
pub trait UpdateRule: fmt::Debug + Send + Sync {
    /// Returns the name of the op.
    fn op(&self) -> &'static str;

    /// Returns the name of the op for a parameter of which each rank of a ring has a part. `None`
    /// if the update needs nothing of other parts, or cannot get it.
    fn op_of_parts(&self) -> Option<&'static str> {
        None
    }

    /// Returns the state variables per parameter.
    fn state(&self) -> Vec<State> {
        Vec::new()
    }

    /// Returns whether the update is skipped in a step whose gradients were zeroed because they had
    /// overflowed.
    fn skips_zeroed_steps(&self) -> bool {
        false
    }

    /// Returns the attributes of the op for the parameter of this name.
    fn attrs(&self, parameter: &str) -> Vec<(&'static str, Attr)>;
}

/// A state variable of a parameter: `<parameter>_<name>_0`. The update reads it from `slot` and
/// writes it to `<slot>Out`.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// Part of the variable's name: `velocity` of `fc_0.w_0_velocity_0`.
    pub name: &'static str,
    /// The input slot of the op that reads the state.
    pub slot: &'static str,
    /// Initial value of each element.
    pub start: f64,
    /// Whether the state is one number instead of one per element.
    pub single: bool,
}

impl State {
    /// Returns a state with the shape of the parameter, which starts at zero.
    pub fn each(name: &'static str, slot: &'static str) -> State {
        State { name, slot, start: 0.0, single: false }
    }

    /// Returns a state of one number.
    pub fn single(name: &'static str, slot: &'static str, start: f64) -> State {
        State { name, slot, start, single: true }
    }
}

/// A parameter with its gradient.
pub type ParamGrad = (VarId, VarId);

/// Options of [`OptimizerDesc::apply_gradients_at`].
#[derive(Clone, Debug, Default)]
pub struct ApplyAt {
    /// Block of clipping and updates; the root by default.
    pub block: BlockId,
    /// The steps whose updates are skipped, if any are.
    pub skip_update: Option<SkipUpdate>,
    /// Learning rate, if it has been emitted already.
    pub rate: Option<VarId>,
    /// Learning rate of [`OptimizerDesc::rows`], if it has been emitted already.
    pub rows_rate: Option<VarId>,
    /// Set if other ranks update parameters that this rank does not: a global norm is then that of
    /// the gradients of all ranks.
    pub shared: Option<SharedUpdate>,
    /// Set if ranks share layers: norms of gradients of which this rank has a part are those of the
    /// whole gradients.
    pub divided: Option<DividedUpdate>,
}

impl ApplyAt {
    /// Returns the options for the parameters for which `keep` returns true.
    fn part(&self, rate: Option<VarId>, keep: impl Fn(&VarId) -> bool) -> ApplyAt {
        let mut part = ApplyAt { rate, ..self.clone() };
        if let Some(shared) = &mut part.shared {
            shared.params.retain(keep);
        }
        part
    }

    /// Returns whether another rank updates parameters.
    fn has_others(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| !shared.params.is_empty())
    }
}

/// A condition under which updates leave parameters and state unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SkipUpdate {
    /// Boolean variable, true in a step that is skipped.
    pub condition: VarId,
    /// Whether the updates of all rules are skipped. Otherwise only those of Adam, AdamW and LAMB
    /// are, and the other rules apply the gradients of the step, which must then be zero.
    pub all_rules: bool,
}

/// Results of [`OptimizerDesc::minimize`].
#[derive(Clone, Debug)]
pub struct MinimizedIds {
    /// The trained parameters with their gradients, before clipping.
    pub params_grads: Vec<ParamGrad>,
    /// The variable that holds the rate of the step.
    pub learning_rate: VarId,
}

impl OptimizerDesc {
    /// Appends the backward pass and the updates.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let loss = net.data("x", [-1, 13], DType::F32).fc(1).mean();
    /// let (id, registry) = (loss.id(), net.registry());
    /// let mut programs = net.finish()?;
    /// let desc: OptimizerDesc = Sgd::new(0.1).into();
    /// let minimized = desc.minimize(&mut programs, registry, id)?;
    /// assert_eq!(minimized.params_grads.len(), 2);
    /// # Ok::<(), fleet_nn::Error>(())
    /// ```
    pub fn minimize(
        &self,
        programs: &mut Programs,
        registry: &Registry,
        loss: VarId,
    ) -> Result<MinimizedIds> {
        let params_grads = self.backward(programs, registry, loss)?;
        let learning_rate = self.apply_gradients(programs, registry, &params_grads)?;
        Ok(MinimizedIds { params_grads, learning_rate })
    }

    /// Appends the backward pass.
    pub fn backward(
        &self,
        programs: &mut Programs,
        registry: &Registry,
        loss: VarId,
    ) -> Result<Vec<ParamGrad>> {
        self.check()?;
        let main = &mut programs.main;
        let named = |names: &[String]| -> Result<Vec<VarId>> {
            names.iter().map(|name| main.var_named(name)).collect()
        };
        let options = BackwardOptions {
            parameters: self.settings.parameters.as_deref().map(named).transpose()?,
            no_grad: named(&self.settings.no_grad)?,
        };
        let pairs = append_backward(main, registry, loss, &options)?;
        mark_loss(main, loss);
        Ok(pairs)
    }

    /// Appends learning rate, clipping and updates, in the order of parameter names. Returns the
    /// variable of the learning rate.
    pub fn apply_gradients(
        &self,
        programs: &mut Programs,
        registry: &Registry,
        params_grads: &[ParamGrad],
    ) -> Result<VarId> {
        self.apply_gradients_at(programs, registry, params_grads, &ApplyAt::default())
    }

    /// Appends the learning rate to the root block and returns its variable.
    pub fn emit_rate(&self, programs: &mut Programs, registry: &Registry) -> Result<VarId> {
        let mut main = Emit::new(&mut programs.main, registry, OpRole::OPTIMIZE);
        let mut startup = Emit::new(&mut programs.startup, registry, OpRole::FORWARD);
        let rate = self.settings.learning_rate.emit(&mut main, &mut startup)?;
        main.append();
        startup.append();
        if let LearningRate::Schedule(schedule) = &self.settings.learning_rate
            && schedule.is_host_side()
        {
            let variable = programs.main.var_name(rate).to_string();
            programs.host_rates.push(HostRate { variable, schedule: schedule.clone() });
        }
        Ok(rate)
    }

    /// Returns the parameters that [`OptimizerDesc::rows`] updates: those that lookups read
    /// directly or after a cast.
    pub fn tables(&self, main: &Program) -> HashSet<VarId> {
        if self.rows.is_none() {
            return HashSet::new();
        }
        let ops = || main.block_ids().flat_map(|block| main.block_ops(block)).map(|(_, op)| op);
        let casts = ops().filter(|op| op.name() == "cast");
        let casts: HashMap<VarId, VarId> = casts
            .filter_map(|op| Some((*op.output("Out").first()?, *op.input("X").first()?)))
            .collect();
        let lookups = ops()
            .filter(|op| matches!(op.name(), "lookup_table" | "lookup_table_v2" | "c_embedding"));
        let read = lookups.filter_map(|op| op.input("W").first().copied());
        read.map(|table| casts.get(&table).copied().unwrap_or(table)).collect()
    }

    /// Checks the learning rates, and that the optimizer of tables does not select parameters. Only
    /// the main optimizer does.
    fn check(&self) -> Result<()> {
        self.settings.learning_rate.check()?;
        let Some(rows) = &self.rows else { return Ok(()) };
        rows.settings.learning_rate.check()?;
        let OptimizerSettings { parameters, no_grad, .. } = &rows.settings;
        if parameters.is_none() && no_grad.is_empty() && rows.rows.is_none() {
            return Ok(());
        }
        Err(Error::invalid("the optimizer of embedding tables cannot select parameters")
            .expected("only rule, rate, decay and clipping")
            .got("parameters, no_grad or rows")
            .help("set these on the main optimizer"))
    }

    /// Like [`OptimizerDesc::apply_gradients`], in a block that may not run in every step. The
    /// learning rate is always computed in the root block, so its schedule advances in every step.
    pub fn apply_gradients_at(
        &self,
        programs: &mut Programs,
        registry: &Registry,
        params_grads: &[ParamGrad],
        at: &ApplyAt,
    ) -> Result<VarId> {
        let mut is_table = self.tables(&programs.main);
        is_table.extend(at.shared.iter().flat_map(|shared| &shared.tables));
        let (tables, rest): (Vec<ParamGrad>, Vec<ParamGrad>) =
            params_grads.iter().partition(|(param, _)| is_table.contains(param));
        if let Some(rows) = &self.rows {
            let at = at.part(at.rows_rate, |param| is_table.contains(param));
            if !tables.is_empty() || at.has_others() {
                rows.apply_one_rule(programs, registry, &tables, &at)?;
            }
        }
        let at = at.part(at.rate, |param| !is_table.contains(param));
        self.apply_one_rule(programs, registry, &rest, &at)
    }

    fn apply_one_rule(
        &self,
        programs: &mut Programs,
        registry: &Registry,
        params_grads: &[ParamGrad],
        at: &ApplyAt,
    ) -> Result<VarId> {
        let rate = match at.rate {
            Some(rate) => rate,
            None => self.emit_rate(programs, registry)?,
        };
        let devices = grad_devices(&programs.main, params_grads);
        let mut pairs = params_grads.to_vec();
        pairs.sort_by(|a, b| programs.main.var_name(a.0).cmp(programs.main.var_name(b.0)));
        let mut main = Emit::new(&mut programs.main, registry, OpRole::OPTIMIZE);
        let mut startup = Emit::new(&mut programs.startup, registry, OpRole::FORWARD);
        main.block = at.block;
        let ranks = NormRanks { shared: at.shared.as_ref(), divided: at.divided };
        let grads = self.clipped(&mut main, &pairs, ranks)?;
        let skip = self.skip_input(&mut main, at.skip_update.filter(|_| !grads.is_empty()))?;
        for clipped in &grads {
            main.device = devices.get(&clipped.param).cloned();
            self.emit_update(&mut main, &mut startup, clipped, (rate, skip), at.divided)?;
        }
        main.append();
        startup.append();
        Ok(rate)
    }

    /// Returns the input `SkipUpdate` of the updates, if they have one. If they need it and the op
    /// lacks it, the updates go into a new block, which does not run in steps that are skipped.
    fn skip_input(&self, main: &mut Emit<'_>, skip: Option<SkipUpdate>) -> Result<Option<VarId>> {
        let update = self.rule.update();
        let skip = skip.filter(|it| it.all_rules || update.skips_zeroed_steps());
        let Some(SkipUpdate { condition, .. }) = skip else { return Ok(None) };
        if main.registry.get(update.op())?.spec.input_index("SkipUpdate").is_some() {
            return Ok(Some(condition));
        }
        let runs = main.named_op("logical_not")?.input("X", condition).one("Out")?;
        let block = main.program.add_block(main.block);
        let call = main.named_op("conditional_block")?.input("Cond", runs);
        call.attr("sub_block", block).done()?;
        main.append();
        main.block = block;
        Ok(None)
    }

    fn clipped(
        &self,
        main: &mut Emit<'_>,
        params_grads: &[ParamGrad],
        ranks: NormRanks<'_>,
    ) -> Result<Vec<Clipped>> {
        let unclipped = |&(param, grad): &ParamGrad| Clipped { param, grad, scale: None };
        let mut grads: Vec<Clipped> = params_grads.iter().map(unclipped).collect();
        if let Some(clip) = &self.settings.grad_clip {
            clip.emit(main, &mut grads, ranks)?;
        }
        Ok(grads)
    }

    /// Returns the clipped and regularized gradients, as an update op would use them, as new
    /// variables. A worker sends them if the update happens elsewhere.
    pub fn finished_gradients(
        &self,
        programs: &mut Programs,
        registry: &Registry,
        params_grads: &[ParamGrad],
    ) -> Result<Vec<ParamGrad>> {
        let mut main = Emit::new(&mut programs.main, registry, OpRole::BACKWARD);
        let grads = self.clipped(&mut main, params_grads, NormRanks::default())?;
        let mut finished = Vec::with_capacity(grads.len());
        for Clipped { param, mut grad, scale } in grads {
            if let Some(scale) = scale {
                grad = scaled(&mut main, grad, scale)?;
            }
            let own = main.program.var(param).param.as_ref().and_then(|it| it.regularizer);
            if let Some(regularizer) = own.or(self.settings.weight_decay) {
                grad = decayed(&mut main, grad, regularizer, param)?;
            }
            finished.push((param, grad));
        }
        main.append();
        Ok(finished)
    }

    fn emit_update(
        &self,
        main: &mut Emit<'_>,
        startup: &mut Emit<'_>,
        clipped: &Clipped,
        (rate, skip): (VarId, Option<VarId>),
        divided: Option<DividedUpdate>,
    ) -> Result<()> {
        let var = main.program.var(clipped.param);
        let (name, shape) = (var.name.clone(), var.shape);
        let part = var.division.filter(Division::is_part);
        let param = var
            .param
            .clone()
            .ok_or_else(|| Error::invalid(format!("cannot update '{name}': not a parameter")))?;
        let update = self.rule.update();
        let of_parts = update.op_of_parts().zip(divided).filter(|_| part.is_some());
        let op = of_parts.map_or(update.op(), |(op, _)| op);
        let spec = &main.registry.get(op)?.spec;
        let regularizer = param.regularizer.or(self.settings.weight_decay);
        let all = Inputs { grad: clipped.grad, scale: clipped.scale, regularizer, rate };
        let Inputs { grad, scale, regularizer, rate } =
            all.without_unknown(main, spec, clipped.param, param.learning_rate)?;
        let states = update.state();
        let mut kept = Vec::with_capacity(states.len());
        for state in &states {
            let state_name = main.program.unique_name(&format!("{name}_{}", state.name));
            let shape = if state.single { Shape::from([1]) } else { shape };
            let made = global_var(main, startup, &state_name, shape, DType::F32, state.start)?;
            if let Some(part) = part.filter(|_| !state.single) {
                main.program.var_mut(made).division = Some(part);
                let filled = startup.program.var_named(&state_name)?;
                startup.program.var_mut(filled).division = Some(part);
            }
            kept.push(made);
        }
        let mut call = main
            .named_op(op)?
            .input("Param", clipped.param)
            .input("Grad", grad)
            .input("LearningRate", rate)
            .maybe("GradScale", scale)
            .maybe("SkipUpdate", skip)
            .output("ParamOut", clipped.param);
        if spec.attr_index(LR_SCALE).is_some() {
            call = call.attr(LR_SCALE, param.learning_rate);
        }
        if let Some((_, DividedUpdate { ring, nranks })) = of_parts {
            let call_label = format!("norms of {name}");
            call = call.attr("ring_id", ring).attr("nranks", nranks).attr("label", call_label);
        }
        if let Some((method, coeff)) = regularizer.map(decay_attrs) {
            call = call.attr(DECAY_METHOD, method).attr("regularization_coeff", coeff);
        }
        for (state, var) in states.iter().zip(&kept) {
            call = call.input(state.slot, *var).output(&format!("{}Out", state.slot), *var);
        }
        for (attr, value) in update.attrs(&name) {
            call = call.attr(attr, value);
        }
        call.done().map_err(|error| error.at(format!("the update of '{name}'")))?;
        Ok(())
    }
}

const LR_SCALE: &str = "lr_scale";
const DECAY_METHOD: &str = "regularization_method";

/// Inputs of an update, and its regularizer.
struct Inputs {
    grad: VarId,
    /// Factor of the gradient.
    scale: Option<VarId>,
    regularizer: Option<Regularizer>,
    rate: VarId,
}

impl Inputs {
    /// Emits what the update op cannot do itself, according to its spec. `factor` is the factor of
    /// the parameter's learning rate.
    fn without_unknown(
        self,
        emit: &mut Emit<'_>,
        spec: &OpSpec,
        param: VarId,
        factor: f64,
    ) -> Result<Inputs> {
        let mut left = self;
        if spec.input_index("GradScale").is_none()
            && let Some(scale) = left.scale.take()
        {
            left.grad = scaled(emit, left.grad, scale)?;
        }
        if spec.attr_index(DECAY_METHOD).is_none()
            && let Some(regularizer) = left.regularizer.take()
        {
            left.grad = decayed(emit, left.grad, regularizer, param)?;
        }
        if spec.attr_index(LR_SCALE).is_none() && factor != 1.0 {
            let call = emit.named_op("scale")?.input("X", left.rate).attr("scale", factor);
            left.rate = call.one("Out")?;
        }
        Ok(left)
    }
}

fn decay_attrs(regularizer: Regularizer) -> (&'static str, f64) {
    match regularizer {
        Regularizer::L1(coeff) => ("l1_decay", coeff),
        Regularizer::L2(coeff) => ("l2_decay", coeff),
    }
}

/// Emits a gradient times a number.
fn scaled(emit: &mut Emit<'_>, grad: VarId, scale: VarId) -> Result<VarId> {
    emit.named_op("elementwise_mul")?.input("X", grad).input("Y", scale).one("Out")
}

/// Emits a gradient with the term of a regularizer.
fn decayed(
    emit: &mut Emit<'_>,
    grad: VarId,
    regularizer: Regularizer,
    param: VarId,
) -> Result<VarId> {
    let decay = decay(emit, regularizer, param)?;
    emit.named_op("sum")?.inputs("X", &[grad, decay]).one("Out")
}

/// Emits the term that a regularizer adds to the gradient.
fn decay(emit: &mut Emit<'_>, regularizer: Regularizer, param: VarId) -> Result<VarId> {
    let (base, coeff) = match regularizer {
        Regularizer::L2(coeff) => (param, coeff),
        Regularizer::L1(coeff) => (emit.named_op("sign")?.input("X", param).one("Out")?, coeff),
    };
    emit.named_op("scale")?.input("X", base).attr("scale", coeff).one("Out")
}

/// Sets the loss bit on the op that writes the loss. Strategies look for this bit.
fn mark_loss(main: &mut Program, loss: VarId) {
    let producer = main
        .root_ops()
        .rfind(|(_, op)| op.role.is_forward() && op.all_outputs().any(|var| var == loss))
        .map(|(id, _)| id);
    if let Some(id) = producer {
        let op = main.op_mut(id);
        op.role = op.role.with_loss();
    }
}

/// Returns the device on which each parameter's gradient is computed. The update runs there too.
fn grad_devices(main: &Program, pairs: &[ParamGrad]) -> HashMap<VarId, Arc<str>> {
    let params: HashMap<VarId, VarId> = pairs.iter().map(|(param, grad)| (*grad, *param)).collect();
    let mut devices = HashMap::new();
    for (_, op) in main.root_ops() {
        let Some(device) = &op.device else { continue };
        for param in op.all_outputs().filter_map(|var| params.get(&var)) {
            devices.insert(*param, device.clone());
        }
    }
    devices
}
