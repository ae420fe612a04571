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
        Ok(Kernel::new(move |k| {
            let step = if is_wide { k.input::<i64>(0)[0] } else { k.input::<i32>(0)[0].into() };
            let inner = k.optional::<f32>(1).map(|inner| f64::from(inner[0]));
            k.output::<f32>(0)[0] = schedule.at(step.max(0) as f64, inner) as f32;
            Ok(())
        }))
    },
    traits: OpTraits::plain(),
};

/// The parsed attributes.
#[derive(Clone, Debug)]
enum Schedule {
    Constant { rate: f64 },
    Noam { rate: f64, d_model: f64, warmup_steps: f64 },
    Exponential { rate: f64, gamma: f64 },
    NaturalExp { rate: f64, gamma: f64 },
    InverseTime { rate: f64, gamma: f64 },
    Piecewise { boundaries: Vec<f64>, values: Vec<f64> },
    Polynomial { rate: f64, decay_steps: f64, end: f64, power: f64, cycle: bool },
    Cosine { rate: f64, t_max: f64, eta_min: f64 },
    LinearWarmup { warmup_steps: f64, start: f64, end: f64 },
    Step { rate: f64, step_size: f64, gamma: f64 },
    MultiStep { rate: f64, gamma: f64, milestones: Vec<f64> },
}

impl Schedule {
    fn of(op: &Op) -> Result<Schedule> {
        let kind = op.attr_str("kind");
        let boundaries = op.attr_floats("boundaries").to_vec();
        Ok(match kind {
            "constant" => {
                let [rate] = params(op)?;
                Schedule::Constant { rate }
            }
            "noam" => {
                let [rate, d_model, warmup_steps] = params(op)?;
                Schedule::Noam { rate, d_model, warmup_steps }
            }
            "exponential" => {
                let [rate, gamma] = params(op)?;
                Schedule::Exponential { rate, gamma }
            }
            "natural_exp" => {
                let [rate, gamma] = params(op)?;
                Schedule::NaturalExp { rate, gamma }
            }
            "inverse_time" => {
                let [rate, gamma] = params(op)?;
                Schedule::InverseTime { rate, gamma }
            }
            "piecewise" => {
                let values = op.attr_floats("values").to_vec();
                if values.len() != boundaries.len() + 1 {
                    return Err(Error::invalid(
                        "wrong number of values of a piecewise lr_schedule",
                    )
                    .expected(format!("{} values", boundaries.len() + 1))
                    .got(values.len()));
                }
                Schedule::Piecewise { boundaries, values }
            }
            "polynomial" => {
                let [rate, decay_steps, end, power, cycle] = params(op)?;
                Schedule::Polynomial { rate, decay_steps, end, power, cycle: cycle != 0.0 }
            }
            "cosine" => {
                let [rate, t_max, eta_min] = params(op)?;
                Schedule::Cosine { rate, t_max, eta_min }
            }
            "linear_warmup" => {
                let [warmup_steps, start, end] = params(op)?;
                Schedule::LinearWarmup { warmup_steps, start, end }
            }
            "step" => {
                let [rate, step_size, gamma] = params(op)?;
                Schedule::Step { rate, step_size, gamma }
            }
            "multi_step" => {
                let [rate, gamma] = params(op)?;
                Schedule::MultiStep { rate, gamma, milestones: boundaries }
            }
            other => {
                return Err(Error::invalid("unknown kind of lr_schedule")
                    .expected(KINDS)
                    .got(other));
            }
        })
    }

    fn at(&self, t: f64, inner: Option<f64>) -> f64 {
        match self {
            Schedule::Constant { rate } => *rate,
            Schedule::Noam { rate, d_model, warmup_steps } => {
                let falling = if t == 0.0 { 1.0 } else { t.powf(-0.5) };
                rate * d_model.powf(-0.5) * falling.min(t * warmup_steps.powf(-1.5))
            }
            Schedule::Exponential { rate, gamma } => rate * gamma.powf(t),
            Schedule::NaturalExp { rate, gamma } => rate * (-gamma * t).exp(),
            Schedule::InverseTime { rate, gamma } => rate / (1.0 + gamma * t),
            Schedule::Piecewise { boundaries, values } => {
                values[boundaries.partition_point(|boundary| *boundary <= t)]
            }
            Schedule::Polynomial { rate, decay_steps, end, power, cycle } => {
                let (t, steps) = match cycle {
                    true => (t, decay_steps * (t / decay_steps).ceil().max(1.0)),
                    false => (t.min(*decay_steps), *decay_steps),
                };
                (rate - end) * (1.0 - t / steps).powf(*power) + end
            }
            Schedule::Cosine { rate, t_max, eta_min } => {
                eta_min + (rate - eta_min) * (1.0 + (PI * t / t_max).cos()) / 2.0
            }
            Schedule::LinearWarmup { warmup_steps, start, end } => match t < *warmup_steps {
                true => start + (end - start) * t / warmup_steps,
                false => inner.unwrap_or(*end),
            },
            Schedule::Step { rate, step_size, gamma } => rate * gamma.powf((t / step_size).floor()),
            Schedule::MultiStep { rate, gamma, milestones } => {
                rate * gamma.powf(milestones.partition_point(|milestone| *milestone <= t) as f64)
            }
        }
    }
}

const KINDS: &str = "constant, noam, exponential, natural_exp, inverse_time, piecewise, \
                     polynomial, cosine, linear_warmup, step or multi_step";

fn params<const N: usize>(op: &Op) -> Result<[f64; N]> {
    let given = op.attr_floats("params");
    given.try_into().map_err(|_| {
        Error::invalid(format!("wrong params of {} lr_schedule", op.attr_str("kind")))
            .expected(format!("{N} numbers"))
            .got(format!("{given:?}"))
    })
}
