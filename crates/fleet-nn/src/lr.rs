//! Learning rates: constants and schedules.
//!
//! A schedule becomes ops of the main program: a counter that persists across steps, and one
//! `lr_schedule` op, or two if warm-up wraps another schedule. [`LrSchedule::value_at`] evaluates
//! the formula of the op. A schedule given as a Rust function is stored beside the programs
//! ([`HostRate`]). The caller that runs the programs evaluates it before each step and sets the
//! rate.

use crate::init::global_var;
use fleet_base::{Error, Result};
use fleet_ir::{OpRole, VarId};
use fleet_ops::Emit;
use fleet_ops::optimizer::lr_schedule::Schedule;
use fleet_tensor::{DType, Shape};
use std::fmt;
use std::sync::Arc;

/// Name of the step counter, which schedules share. It is 0 in the first step.
pub(crate) const COUNTER: &str = "@LR_DECAY_COUNTER@";

/// A learning rate: a constant or a schedule.
///
/// ```
/// use fleet_nn::{LearningRate, LrSchedule};
/// assert_eq!(LearningRate::from(0.1).value_at(7), 0.1);
/// assert_eq!(LearningRate::from(LrSchedule::exponential(0.1, 0.5)).value_at(1), 0.05);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum LearningRate {
    /// The same rate in every step.
    Constant(f64),
    /// A rate that depends on the step.
    Schedule(LrSchedule),
}

impl From<f64> for LearningRate {
    fn from(rate: f64) -> Self {
        LearningRate::Constant(rate)
    }
}

impl From<LrSchedule> for LearningRate {
    fn from(schedule: LrSchedule) -> Self {
        LearningRate::Schedule(schedule)
    }
}

impl LearningRate {
    /// Returns the rate of a step, counted from 0.
    pub fn value_at(&self, step: u64) -> f64 {
        match self {
            LearningRate::Constant(rate) => *rate,
            LearningRate::Schedule(schedule) => schedule.value_at(step),
        }
    }

    /// Rejects rates that are negative or not finite. The values of functions are not known yet; a
    /// session checks them in each step.
    pub fn check(&self) -> Result<()> {
        match self {
            LearningRate::Constant(rate) => check_rate("learning rate", *rate),
            LearningRate::Schedule(schedule) => schedule.check(),
        }
    }
}

/// A function of the step, computed by the host.
///
/// ```
/// let halves = fleet_nn::HostFn::new(|step| 0.5f64.powi(step as i32));
/// assert_eq!(halves.call(2), 0.25);
/// ```
#[derive(Clone)]
pub struct HostFn(Arc<dyn Fn(u64) -> f64 + Send + Sync>);

impl HostFn {
    /// Wraps a function of the step, which is counted from 0.
    pub fn new(function: impl Fn(u64) -> f64 + Send + Sync + 'static) -> HostFn {
        HostFn(Arc::new(function))
    }

    /// Returns the value at a step.
    pub fn call(&self, step: u64) -> f64 {
        (self.0)(step)
    }
}

impl PartialEq for HostFn {
    fn eq(&self, other: &HostFn) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for HostFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostFn")
    }
}

/// A learning rate as a function of the step.
///
/// Schedules count steps, not updates. With gradient merge over k steps, a schedule thus passes k
/// times as fast, measured in updates.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let schedule = LrSchedule::cosine(0.1, 90).warmup(5, 0.0, 0.1);
/// assert_eq!(schedule.value_at(0), 0.0);
/// assert_eq!(schedule.value_at(5), 0.1);
/// assert_eq!(LrSchedule::piecewise([3, 6], [1.0, 0.5, 0.1]).value_at(3), 0.5);
/// assert_eq!(LrSchedule::multi_step(1.0, [3, 6]).value_at(3), 0.1);
/// assert_eq!(LrSchedule::inverse_time(1.0, 0.5).value_at(2), 0.5);
/// assert_eq!(LrSchedule::natural_exp(1.0, 0.5).value_at(0), 1.0);
/// assert_eq!(LrSchedule::linear_warmup(0.5, 20, 0.0, 0.5).value_at(10), 0.25);
/// assert!(LrSchedule::noam(512.0, 4000.0).value_at(4000) < 1e-3);
///
/// let net = Net::new();
/// let loss = net.data("x", [-1, 13], DType::F32).fc(1).mean();
/// net.minimize(loss, Momentum::new(schedule, 0.9))?;
/// # Ok::<(), fleet_nn::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum LrSchedule {
    /// `rate * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)`.
    Noam {
        /// Factor of the formula.
        learning_rate: f64,
        /// Width of the model.
        d_model: f64,
        /// Number of steps in which the rate rises.
        warmup_steps: f64,
    },
    /// `rate * gamma^step`.
    Exponential {
        /// Rate of the first step.
        learning_rate: f64,
        /// Factor per step.
        gamma: f64,
    },
    /// `rate * exp(-gamma * step)`.
    NaturalExp {
        /// Rate of the first step.
        learning_rate: f64,
        /// Speed of the decay.
        gamma: f64,
    },
    /// `rate / (1 + gamma * step)`.
    InverseTime {
        /// Rate of the first step.
        learning_rate: f64,
        /// Speed of the decay.
        gamma: f64,
    },
    /// `values[i]` before step `boundaries[i]`, and the last value after the last boundary.
    Piecewise {
        /// Steps at which the rate changes, ascending.
        boundaries: Vec<u64>,
        /// Rates: one more than boundaries.
        values: Vec<f64>,
    },
    /// Polynomial decay from `learning_rate` to `end` over `decay_steps`. With `cycle`, the decay
    /// length is the next multiple of `decay_steps`, so the rate rises again at each multiple.
    Polynomial {
        /// Rate of the first step.
        learning_rate: f64,
        /// Number of steps of the decay.
        decay_steps: f64,
        /// Rate after the decay.
        end: f64,
        /// Exponent of the remaining share of the decay; 1 is linear.
        power: f64,
        /// Whether the rate rises again.
        cycle: bool,
    },
    /// Half a cosine wave from `learning_rate` to `eta_min` in `t_max` steps.
    Cosine {
        /// Rate of the first step.
        learning_rate: f64,
        /// Number of steps of half a wave.
        t_max: f64,
        /// Smallest rate.
        eta_min: f64,
    },
    /// Linear from `start` to `end`, then `after`, whose steps count from the end of the warm-up.
    LinearWarmup {
        /// The rate after the warm-up.
        after: Box<LearningRate>,
        /// Number of steps of the warm-up.
        warmup_steps: u64,
        /// Rate of the first step.
        start: f64,
        /// Rate that the warm-up approaches.
        end: f64,
    },
    /// `rate * gamma^floor(step / step_size)`.
    Step {
        /// Rate of the first step.
        learning_rate: f64,
        /// Number of steps between two changes, at least 1.
        step_size: u64,
        /// Factor at each change.
        gamma: f64,
    },
    /// `rate * gamma^(number of milestones passed)`.
    MultiStep {
        /// Rate of the first step.
        learning_rate: f64,
        /// Steps at which the rate changes, ascending.
        milestones: Vec<u64>,
        /// Factor at each milestone.
        gamma: f64,
    },
    /// `rate * factor(step)`, computed by the host. A session sets `learning_rate_0` before each
    /// step.
    Lambda {
        /// Factor of the function's values.
        learning_rate: f64,
        /// Function of the step, counted from 0.
        factor: HostFn,
    },
}

impl LrSchedule {
    /// Rises linearly for `warmup_steps`, then decays with the inverse square root of the step: the
    /// schedule of the first transformer, whose width is `d_model`.
    pub fn noam(d_model: f64, warmup_steps: f64) -> LrSchedule {
        LrSchedule::Noam { learning_rate: 1.0, d_model, warmup_steps }
    }

    /// Multiplies the rate by `gamma` in each step.
    pub fn exponential(learning_rate: f64, gamma: f64) -> LrSchedule {
        LrSchedule::Exponential { learning_rate, gamma }
    }

    /// Decays as `exp(-gamma * step)`.
    pub fn natural_exp(learning_rate: f64, gamma: f64) -> LrSchedule {
        LrSchedule::NaturalExp { learning_rate, gamma }
    }

    /// Decays as `1 / (1 + gamma * step)`.
    pub fn inverse_time(learning_rate: f64, gamma: f64) -> LrSchedule {
        LrSchedule::InverseTime { learning_rate, gamma }
    }

    /// Keeps each value up to the next boundary. There is one value more than boundaries.
    pub fn piecewise(boundaries: impl Into<Vec<u64>>, values: impl Into<Vec<f64>>) -> LrSchedule {
        LrSchedule::Piecewise { boundaries: boundaries.into(), values: values.into() }
    }

    /// Decays linearly to 0.0001.
    pub fn polynomial(learning_rate: f64, decay_steps: u64) -> LrSchedule {
        let decay_steps = decay_steps as f64;
        LrSchedule::Polynomial { learning_rate, decay_steps, end: 1e-4, power: 1.0, cycle: false }
    }

    /// Decays to 0 in `t_max` steps, along half a cosine wave.
    pub fn cosine(learning_rate: f64, t_max: u64) -> LrSchedule {
        LrSchedule::Cosine { learning_rate, t_max: t_max as f64, eta_min: 0.0 }
    }

    /// Divides the rate by 10 every `step_size` steps.
    pub fn step(learning_rate: f64, step_size: u64) -> LrSchedule {
        LrSchedule::Step { learning_rate, step_size, gamma: 0.1 }
    }

    /// Divides the rate by 10 at each milestone.
    pub fn multi_step(learning_rate: f64, milestones: impl Into<Vec<u64>>) -> LrSchedule {
        LrSchedule::MultiStep { learning_rate, milestones: milestones.into(), gamma: 0.1 }
    }

    /// Multiplies `learning_rate` by a function of the step, counted from 0. A session calls the
    /// function before each step.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let schedule = LrSchedule::lambda(0.1, |step| if step < 100 { 1.0 } else { 0.1 });
    /// assert_eq!(schedule.value_at(99), 0.1);
    /// ```
    pub fn lambda(
        learning_rate: f64,
        factor: impl Fn(u64) -> f64 + Send + Sync + 'static,
    ) -> LrSchedule {
        LrSchedule::Lambda { learning_rate, factor: HostFn::new(factor) }
    }

    /// Multiplies `learning_rate` by a function of the epoch, which has `steps_per_epoch` steps.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let schedule = LrSchedule::lambda_by_epoch(0.1, 500, |epoch| 0.5f64.powi(epoch as i32));
    /// assert_eq!((schedule.value_at(499), schedule.value_at(500)), (0.1, 0.05));
    /// ```
    pub fn lambda_by_epoch(
        learning_rate: f64,
        steps_per_epoch: u64,
        factor: impl Fn(u64) -> f64 + Send + Sync + 'static,
    ) -> LrSchedule {
        let steps = steps_per_epoch.max(1);
        LrSchedule::lambda(learning_rate, move |step| factor(step / steps))
    }

    /// Rises linearly from `start` to `end`, then follows `after`.
    pub fn linear_warmup(
        after: impl Into<LearningRate>,
        warmup_steps: u64,
        start: f64,
        end: f64,
    ) -> LrSchedule {
        LrSchedule::LinearWarmup { after: Box::new(after.into()), warmup_steps, start, end }
    }

    /// Returns this schedule with a warm-up before it.
    pub fn warmup(self, warmup_steps: u64, start: f64, end: f64) -> LrSchedule {
        LrSchedule::linear_warmup(self, warmup_steps, start, end)
    }

    /// Returns the rate of a step, counted from 0.
    pub fn value_at(&self, step: u64) -> f64 {
        match self {
            LrSchedule::LinearWarmup { after, warmup_steps, .. } if step >= *warmup_steps => {
                after.value_at(step - warmup_steps)
            }
            LrSchedule::Lambda { learning_rate, factor } => learning_rate * factor.call(step),
            _ => self.terms().value_at(step as f64),
        }
    }

    /// Returns whether the host must set the rate before each step.
    pub fn is_host_side(&self) -> bool {
        match self {
            LrSchedule::Lambda { .. } => true,
            LrSchedule::LinearWarmup { after, .. } => match after.as_ref() {
                LearningRate::Schedule(inner) => inner.is_host_side(),
                LearningRate::Constant(_) => false,
            },
            _ => false,
        }
    }

    fn check(&self) -> Result<()> {
        self.check_steps()?;
        let (rates, gamma): (&[f64], f64) = match self {
            LrSchedule::Exponential { learning_rate, gamma }
            | LrSchedule::InverseTime { learning_rate, gamma }
            | LrSchedule::Step { learning_rate, gamma, .. }
            | LrSchedule::MultiStep { learning_rate, gamma, .. } => (&[*learning_rate], *gamma),
            LrSchedule::Noam { learning_rate, .. }
            | LrSchedule::NaturalExp { learning_rate, .. }
            | LrSchedule::Lambda { learning_rate, .. } => (&[*learning_rate], 0.0),
            LrSchedule::Piecewise { values, .. } => (values, 0.0),
            LrSchedule::Polynomial { learning_rate, end, .. } => (&[*learning_rate, *end], 0.0),
            LrSchedule::Cosine { learning_rate, eta_min, .. } => (&[*learning_rate, *eta_min], 0.0),
            LrSchedule::LinearWarmup { after, start, end, .. } => {
                after.check()?;
                (&[*start, *end], 0.0)
            }
        };
        check_rate("gamma of a learning-rate schedule", gamma)?;
        rates.iter().try_for_each(|rate| check_rate("rate of a learning-rate schedule", *rate))
    }

    /// Checks the numbers of steps, on which the formulas depend.
    fn check_steps(&self) -> Result<()> {
        let wrong = |what: &str, expected: &str, got: String| {
            let error = Error::invalid(format!("wrong {what} of a learning-rate schedule"));
            Err(error.expected(expected).got(got))
        };
        match self {
            LrSchedule::Noam { d_model, warmup_steps, .. }
                if *d_model <= 0.0 || *warmup_steps <= 0.0 =>
            {
                let got = format!("{d_model} and {warmup_steps}");
                wrong("d_model or warmup_steps", "numbers above 0", got)
            }
            LrSchedule::Piecewise { boundaries, values }
                if values.len() != boundaries.len() + 1 || !boundaries.is_sorted() =>
            {
                let expected = "ascending boundaries, and one value more than boundaries";
                let got = format!("{} and {} values", listed(boundaries), values.len());
                wrong("boundaries", expected, got)
            }
            LrSchedule::Polynomial { decay_steps, .. } if *decay_steps <= 0.0 => {
                wrong("decay_steps", "a number above 0", decay_steps.to_string())
            }
            LrSchedule::Cosine { t_max, .. } if *t_max <= 0.0 => {
                wrong("t_max", "a number above 0", t_max.to_string())
            }
            LrSchedule::Step { step_size: 0, .. } => wrong("step_size", "1 or more", "0".into()),
            LrSchedule::MultiStep { milestones, .. } if !milestones.is_sorted() => {
                wrong("milestones", "ascending milestones", listed(milestones))
            }
            _ => Ok(()),
        }
    }
}

fn listed(steps: &[u64]) -> String {
    steps.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

fn check_rate(what: &str, rate: f64) -> Result<()> {
    if rate.is_finite() && rate >= 0.0 {
        return Ok(());
    }
    Err(Error::invalid(format!("invalid {what}")).expected("a finite number, at least 0").got(rate))
}

impl LearningRate {
    /// Adds the variable `learning_rate_<n>` and, for a schedule, the ops that set it in each step.
    /// A schedule that the host computes gets only the counter, so that it resumes from a
    /// checkpoint.
    pub(crate) fn emit(&self, main: &mut Emit<'_>, startup: &mut Emit<'_>) -> Result<VarId> {
        self.check()?;
        let start = self.value_at(0);
        check_rate("learning rate of the first step", start)?;
        let name = main.program.unique_name("learning_rate");
        let one = Shape::from([1]);
        let rate = global_var(main, startup, &name, one, DType::F32, start)?;
        if let LearningRate::Schedule(schedule) = self {
            let role = std::mem::replace(&mut main.role, OpRole::LR_SCHED);
            let step = counter(main, startup)?;
            if !schedule.is_host_side() {
                schedule.emit(main, step, 0, Some(rate))?;
            }
            main.role = role;
        }
        Ok(rate)
    }
}

/// A learning rate without ops. The caller that runs the programs sets `variable` before each step.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let loss = net.data("x", [-1, 13], DType::F32).fc(1).mean();
/// net.minimize(loss, Sgd::new(LrSchedule::lambda(0.1, |step| 1.0 / (1 + step) as f64)))?;
/// let programs = net.build()?;
/// let rate = &programs.host_rates[0];
/// assert_eq!(rate.variable, "learning_rate_0");
/// assert_eq!(rate.value_after(Some(0))?, 0.05);
/// # Ok::<(), fleet_nn::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct HostRate {
    /// Name of the variable in the scope, which holds one number.
    pub variable: String,
    /// The schedule that gives the rates.
    pub schedule: LrSchedule,
}

impl HostRate {
    /// Name of the step counter in the scope: a 64-bit integer, -1 before the first step.
    pub const COUNTER: &'static str = COUNTER;

    /// Returns the rate of the next step. `done` is the value of the counter; `None` means that no
    /// step has run. A rate that is not finite or negative is an error.
    pub fn value_after(&self, done: Option<i64>) -> Result<f32> {
        let next = done.map_or(0, |done| done.saturating_add(1).max(0));
        let value = self.schedule.value_at(next.unsigned_abs()) as f32;
        if value.is_finite() && value >= 0.0 {
            return Ok(value);
        }
        Err(Error::invalid(format!("invalid learning rate '{}'", self.variable))
            .expected("a finite number, at least 0")
            .got(value)
            .help("return such a number from the schedule's function"))
    }
}

/// Returns the shared counter. The first call adds it and the op that increments it.
fn counter(main: &mut Emit<'_>, startup: &mut Emit<'_>) -> Result<VarId> {
    if let Some(found) = main.program.find_var(COUNTER) {
        return Ok(found);
    }
    let one = Shape::from([1]);
    let step = global_var(main, startup, COUNTER, one, DType::I64, -1.0)?;
    main.named_op("increment")?.input("X", step).attr("step", 1.0).output("Out", step).done()?;
    Ok(step)
}

impl LrSchedule {
    /// Emits the schedule, whose steps count from `since`, into `out` or a new variable.
    fn emit(
        &self,
        main: &mut Emit<'_>,
        step: VarId,
        since: u64,
        out: Option<VarId>,
    ) -> Result<VarId> {
        let inner = match self {
            LrSchedule::LinearWarmup { after, warmup_steps, .. } => {
                let since = since.saturating_add(*warmup_steps);
                Some(match after.as_ref() {
                    LearningRate::Schedule(inner) => inner.emit(main, step, since, None)?,
                    LearningRate::Constant(rate) => ScheduleAttrs::plain("constant", &[*rate])
                        .emit(main, step, 0, None, None)?,
                })
            }
            _ => None,
        };
        self.terms().emit(main, step, since, inner, out)
    }

    fn terms(&self) -> ScheduleAttrs {
        let plain = ScheduleAttrs::plain;
        let steps = |steps: &[u64]| steps.iter().map(|step| *step as f64).collect();
        match self {
            LrSchedule::Noam { learning_rate, d_model, warmup_steps } => {
                plain("noam", &[*learning_rate, *d_model, *warmup_steps])
            }
            LrSchedule::Exponential { learning_rate, gamma } => {
                plain("exponential", &[*learning_rate, *gamma])
            }
            LrSchedule::NaturalExp { learning_rate, gamma } => {
                plain("natural_exp", &[*learning_rate, *gamma])
            }
            LrSchedule::InverseTime { learning_rate, gamma } => {
                plain("inverse_time", &[*learning_rate, *gamma])
            }
            LrSchedule::Piecewise { boundaries, values } => ScheduleAttrs {
                boundaries: steps(boundaries),
                values: values.clone(),
                ..plain("piecewise", &[])
            },
            LrSchedule::Polynomial { learning_rate, decay_steps, end, power, cycle } => {
                let cycle = f64::from(u8::from(*cycle));
                plain("polynomial", &[*learning_rate, *decay_steps, *end, *power, cycle])
            }
            LrSchedule::Cosine { learning_rate, t_max, eta_min } => {
                plain("cosine", &[*learning_rate, *t_max, *eta_min])
            }
            LrSchedule::LinearWarmup { warmup_steps, start, end, .. } => {
                plain("linear_warmup", &[*warmup_steps as f64, *start, *end])
            }
            LrSchedule::Step { learning_rate, step_size, gamma } => {
                plain("step", &[*learning_rate, (*step_size).max(1) as f64, *gamma])
            }
            LrSchedule::MultiStep { learning_rate, milestones, gamma } => ScheduleAttrs {
                boundaries: steps(milestones),
                ..plain("multi_step", &[*learning_rate, *gamma])
            },
            // The host sets the variable, so no op computes it.
            LrSchedule::Lambda { learning_rate, .. } => plain("constant", &[*learning_rate]),
        }
    }
}

/// Attributes of an `lr_schedule` op.
struct ScheduleAttrs {
    kind: &'static str,
    params: Vec<f64>,
    boundaries: Vec<f64>,
    values: Vec<f64>,
}

impl ScheduleAttrs {
    fn plain(kind: &'static str, params: &[f64]) -> ScheduleAttrs {
        let params = params.to_vec();
        ScheduleAttrs { kind, params, boundaries: Vec::new(), values: Vec::new() }
    }

    /// Returns the rate that the op computes for a step, without an inner schedule. It is NaN for
    /// attributes that the op rejects.
    fn value_at(&self, step: f64) -> f64 {
        let schedule = Schedule::new(self.kind, &self.params, &self.boundaries, &self.values);
        schedule.map_or(f64::NAN, |schedule| schedule.at(step, None))
    }

    fn emit(
        self,
        main: &mut Emit<'_>,
        step: VarId,
        since: u64,
        inner: Option<VarId>,
        out: Option<VarId>,
    ) -> Result<VarId> {
        let step = match since {
            0 => step,
            since => {
                let call = main.named_op("scale")?.input("X", step);
                call.attr("bias", -(since as f64)).one("Out")?
            }
        };
        let call = main.named_op("lr_schedule")?.input("Step", step).maybe("Inner", inner);
        let call = call.attr("kind", self.kind).attr("params", self.params);
        let call = call.attr("boundaries", self.boundaries).attr("values", self.values);
        call.maybe_output("Out", out).one("Out")
    }
}
