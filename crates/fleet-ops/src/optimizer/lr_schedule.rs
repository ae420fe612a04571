//! Learning rate of a step. `Out` [1] is computed from `Step` [1] (an integer, 0 in the first
//! step). After a warm-up it is `Inner`, the rate of another schedule.
//!
//! `params` by `kind`, where `t` is the step (negative steps count as 0):
//! * constant: rate
//! * noam: rate, d_model, warmup_steps: `rate * d_model^-0.5 * min(t^-0.5, t * warmup_steps^-1.5)`
//! * exponential: rate, gamma: `rate * gamma^t`; natural_exp: `rate * exp(-gamma * t)`;
//!   inverse_time: `rate / (1 + gamma * t)`
//! * piecewise: `values[i]` before `boundaries[i]`, and the last value after the last boundary
//! * polynomial: rate, decay_steps, end, power, cycle (0 or 1)
//! * cosine: rate, t_max, eta_min
//! * linear_warmup: warmup_steps, start, end: linear, then Inner (`end` without it)
//! * step: rate, step_size, gamma; multi_step: rate, gamma, milestones in `boundaries`

use crate::prelude::*;
use fleet_ir::Op;
use std::f64::consts::PI;

/// The op `lr_schedule`.
pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "lr_schedule",
        inputs: &[one("Step"), optional("Inner")],
        outputs: &[one("Out")],
        attrs: &[
            required("kind", AttrKind::Str),
            attr("params", Floats(&[])),
            attr("boundaries", Floats(&[])),
            attr("values", Floats(&[])),
        ],
    },
    infer: |i| {
        i.check_dtype("Step", &[DType::I64, DType::I32])?;
        i.check_shape("Step", [1])?;
        i.check_dtype("Inner", &[DType::F32])?;
        if i.optional("Inner").is_some() {
            i.check_shape("Inner", [1])?;
        }
        Schedule::of(i.op)?;
        i.set("Out", DType::F32, [1]);
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| {
        let schedule = Schedule::of(p.op)?;
        let is_wide = p.input("Step").dtype == DType::I64;
        Ok(Kernel::infallible(move |k| {
            let step = if is_wide { k.input::<i64>(0)[0] } else { k.input::<i32>(0)[0].into() };
            let inner = k.optional::<f32>(1).map(|inner| f64::from(inner[0]));
            k.output::<f32>(0)[0] = schedule.at(step.max(0) as f64, inner) as f32;
        }))
    },
    traits: OpTraits::plain(),
};

/// A schedule: a kind with its numbers.
#[derive(Clone, Debug)]
pub struct Schedule {
    formula: Formula,
    params: Vec<f64>,
    boundaries: Vec<f64>,
    values: Vec<f64>,
}

/// Computes the rate of step `t`. The last argument is the rate of the inner schedule.
type Formula = fn(&Schedule, f64, Option<f64>) -> f64;

/// The kinds, with their numbers of `params`; `None` if they have none.
const KINDS: &[(&str, Option<usize>, Formula)] = &[
    ("constant", Some(1), |s, _, _| s.params[0]),
    ("noam", Some(3), |s, t, _| {
        let [rate, d_model, warmup_steps] = s.params();
        let falling = if t == 0.0 { 1.0 } else { t.powf(-0.5) };
        rate * d_model.powf(-0.5) * falling.min(t * warmup_steps.powf(-1.5))
    }),
    ("exponential", Some(2), |s, t, _| {
        let [rate, gamma] = s.params();
        rate * gamma.powf(t)
    }),
    ("natural_exp", Some(2), |s, t, _| {
        let [rate, gamma] = s.params();
        rate * (-gamma * t).exp()
    }),
    ("inverse_time", Some(2), |s, t, _| {
        let [rate, gamma] = s.params();
        rate / (1.0 + gamma * t)
    }),
    ("piecewise", None, |s, t, _| {
        let passed = s.boundaries.partition_point(|boundary| *boundary <= t);
        s.values.get(passed).or(s.values.last()).copied().unwrap_or(0.0)
    }),
    ("polynomial", Some(5), |s, t, _| {
        let [rate, decay_steps, end, power, cycle] = s.params();
        let (t, steps) = match cycle != 0.0 {
            true => (t, decay_steps * (t / decay_steps).ceil().max(1.0)),
            false => (t.min(decay_steps), decay_steps),
        };
        (rate - end) * (1.0 - t / steps).powf(power) + end
    }),
    ("cosine", Some(3), |s, t, _| {
        let [rate, t_max, eta_min] = s.params();
        eta_min + (rate - eta_min) * (1.0 + (PI * t / t_max).cos()) / 2.0
    }),
    ("linear_warmup", Some(3), |s, t, inner| {
        let [warmup_steps, start, end] = s.params();
        match t < warmup_steps {
            true => start + (end - start) * t / warmup_steps,
            false => inner.unwrap_or(end),
        }
    }),
    ("step", Some(3), |s, t, _| {
        let [rate, step_size, gamma] = s.params();
        rate * gamma.powf((t / step_size).floor())
    }),
    ("multi_step", Some(2), |s, t, _| {
        let [rate, gamma] = s.params();
        rate * gamma.powf(s.boundaries.partition_point(|milestone| *milestone <= t) as f64)
    }),
];

impl Schedule {
    /// Returns a schedule of a kind, which may have no other number of `params`.
    pub fn new(kind: &str, params: &[f64], boundaries: &[f64], values: &[f64]) -> Result<Schedule> {
        let Some((_, count, formula)) = KINDS.iter().find(|(known, ..)| *known == kind) else {
            return Err(Error::invalid("unknown kind of lr_schedule")
                .expected(
                    "constant, noam, exponential, natural_exp, inverse_time, piecewise, \
                     polynomial, cosine, linear_warmup, step or multi_step",
                )
                .got(kind));
        };
        if let Some(count) = count.filter(|count| *count != params.len()) {
            return Err(Error::invalid(format!("wrong params of {kind} lr_schedule"))
                .expected(format!("{count} numbers"))
                .got(format!("{params:?}")));
        }
        let [params, boundaries, values] = [params, boundaries, values].map(<[f64]>::to_vec);
        Ok(Schedule { formula: *formula, params, boundaries, values })
    }

    fn of(op: &Op) -> Result<Schedule> {
        let (kind, values) = (op.attr_str("kind"), op.attr_floats("values"));
        let boundaries = op.attr_floats("boundaries");
        if kind == "piecewise" && values.len() != boundaries.len() + 1 {
            return Err(Error::invalid("wrong number of values of a piecewise lr_schedule")
                .expected(format!("{} values", boundaries.len() + 1))
                .got(values.len()));
        }
        Schedule::new(kind, op.attr_floats("params"), boundaries, values)
    }

    /// Returns the rate of step `t`. After a warm-up it is `inner`.
    pub fn at(&self, t: f64, inner: Option<f64>) -> f64 {
        (self.formula)(self, t, inner)
    }

    fn params<const N: usize>(&self) -> [f64; N] {
        std::array::from_fn(|index| self.params[index])
    }
}
