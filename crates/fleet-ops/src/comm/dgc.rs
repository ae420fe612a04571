//! `dgc`: deep gradient compression. Ranks exchange only the largest elements of each gradient, as
//! (index, value) pairs. The other elements accumulate locally.
//!
//! `CurrentStep` is the step s, from 0. Before `rampup_begin_step`, the op sums the gradient over
//! ranks and clips it to the norm `local_clip_norm * sqrt(number of ranks)`. `GradOut` is the
//! result.
//!
//! From `rampup_begin_step` on, the sparsity is entry `(s - begin) * len / rampup_step` of the
//! list, or its last entry. The number of elements to send is `k = floor(n * (1 - sparsity))`, at
//! least 1. This rank's own gradient g is `Grad` times the number of ranks, clipped to
//! `local_clip_norm` if that is above 0, and regularized. It updates `u = m u + g; v = v + u`, or
//! with Nesterov `u = m (u + g); v = v + u + g`. The rank sends the k elements of v with the
//! largest magnitude and resets u and v to 0 there. `GradOut` is the sum of all ranks' elements,
//! divided by the number of ranks.
//!
//! `dgc_momentum` updates the parameter with this gradient: by momentum before `rampup_begin_step`,
//! and by plain SGD afterwards, because u already contains the momentum.

use super::{LABEL, NRANKS, RING_ID, TRAITS, USE_CALC_STREAM, label, nranks};
use crate::prelude::*;
use crate::{ReduceOp, Ring};
use fleet_ir::Op;
use std::sync::Arc;

/// The op `dgc`.
pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "dgc",
        inputs: &[one("U"), one("V"), one("Grad"), one("Param"), one("CurrentStep")],
        outputs: &[one("UOut"), one("VOut"), one("GradOut")],
        attrs: &[
            RING_ID,
            NRANKS,
            USE_CALC_STREAM,
            LABEL,
            attr("m", Float(0.9)),
            attr("use_nesterov", Bool(false)),
            attr("sparsity", Floats(&[0.999])),
            attr("rampup_begin_step", Float(0.0)),
            attr("rampup_step", Float(1.0)),
            attr("regular_type", Int(0)),
            attr("regular_coeff", Float(0.0)),
            attr("local_clip_norm", Float(0.0)),
        ],
    },
    infer: |i| {
        nranks(i)?;
        for slot in ["U", "V", "Grad", "Param", "CurrentStep"] {
            i.check_dtype(slot, &[DType::F32])?;
        }
        let grad = i.input("Grad")?;
        for slot in ["U", "V", "Param"] {
            i.check_shape(slot, grad.shape)?;
        }
        i.check_shape("CurrentStep", [1])?;
        let list = i.op.attr_floats("sparsity");
        if list.is_empty() || list.iter().any(|share| !(0.0..1.0).contains(share)) {
            return Err(Error::invalid("attribute 'sparsity' of dgc is out of range")
                .expected("numbers of at least 0 and below 1")
                .got(format!("{list:?}")));
        }
        for slot in ["UOut", "VOut", "GradOut"] {
            i.set(slot, DType::F32, grad.shape);
        }
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| {
        let plan = Plan::new(p)?;
        let words = plan.scratch_words();
        Ok(Kernel::new(move |k| plan.run(k)).scratch::<u32>(words))
    },
    traits: OpTraits {
        state: &[("UOut", "U"), ("VOut", "V"), ("GradOut", "Grad")],
        traffic: |c| Some(Traffic::copies(compressed_bytes(c), c.ranks())),
        common: &["GradOut"],
        spread: Spread::Mean,
        ..TRAITS
    },
};

/// Returns the bytes of compressed gradients: pairs of index and value, at the final sparsity.
fn compressed_bytes(c: &CostCtx<'_>) -> f64 {
    const PAIR: f64 = 8.0;
    let elements = c.input_bytes("Grad") / 4.0;
    let sparsity = c.op.attr_floats("sparsity").last().copied().unwrap_or(0.999);
    (elements * (1.0 - sparsity)).max(1.0).floor() * PAIR
}

struct Plan {
    ring: Arc<dyn Ring>,
    label: String,
    len: usize,
    momentum: f32,
    nesterov: bool,
    sparsity: Vec<f64>,
    begin: f64,
    rampup: f64,
    /// Kind of regularization (0 none, 1 L1, 2 L2) and its coefficient.
    regularization: (i64, f32),
    clip: f64,
}

impl Plan {
    fn new(p: &PrepareCtx<'_>) -> Result<Plan> {
        let number = |name: &str| p.op.attr_float(name);
        Ok(Plan {
            ring: p.services.ring_of(p.op)?,
            label: label(p.op),
            len: p.input_layouts[2][0].physical_len(&p.input("Grad").shape),
            momentum: number("m") as f32,
            nesterov: p.op.attr_bool("use_nesterov"),
            sparsity: p.op.attr_floats("sparsity").to_vec(),
            begin: number("rampup_begin_step"),
            rampup: number("rampup_step").max(1.0),
            regularization: (p.op.attr_int("regular_type"), number("regular_coeff") as f32),
            clip: number("local_clip_norm"),
        })
    }

    fn pairs(&self, sparsity: f64) -> usize {
        // Sparsities such as 0.999 are not exact in floating point: 1 - 0.999 is slightly less than
        // 0.001.
        ((self.len as f64 * (1.0 - sparsity) + 1e-6).floor() as usize).clamp(1, self.len.max(1))
    }

    fn pairs_at(&self, step: f64) -> usize {
        let last = self.sparsity.len() - 1;
        let index = ((step - self.begin) * self.sparsity.len() as f64 / self.rampup) as usize;
        self.pairs(self.sparsity[index.min(last)])
    }

    /// Number of scratch words: indices of all elements, the pairs of this rank, the pairs of all
    /// ranks.
    fn scratch_words(&self) -> usize {
        let most = self.sparsity.iter().map(|share| self.pairs(*share)).max().unwrap_or(1);
        self.len + 2 * most * (self.ring.size() + 1)
    }

    fn ranks(&self) -> f64 {
        self.ring.size() as f64
    }

    fn run(&self, k: &KernelCtx<'_>) -> Result<()> {
        let (u, v) = (k.updated::<f32>(0, 0), k.updated::<f32>(1, 1));
        let step = f64::from(k.input::<f32>(4)[0]);
        let grad = k.updated::<f32>(2, 2);
        if step < self.begin || self.len == 0 {
            let parts = &mut [view_as_mut(grad)];
            self.ring.all_reduce(&self.label, DType::F32, parts, ReduceOp::Sum)?;
            let factor = clip_factor(grad, self.clip * self.ranks().sqrt());
            if factor < 1.0 {
                grad.iter_mut().for_each(|g| *g *= factor);
            }
            return Ok(());
        }
        self.accumulate(grad, k.input(3), u, v);
        let count = self.pairs_at(step);
        let (order, rest) = k.scratch::<i32>().split_at_mut(self.len);
        let (mine, all) = rest.split_at_mut(2 * count);
        let all = &mut all[..2 * count * self.ring.size()];
        select(v, order, count);
        for (pair, index) in mine.chunks_exact_mut(2).zip(&order[..count]) {
            let at = *index as usize;
            pair.copy_from_slice(&[*index, v[at].to_bits() as i32]);
            (u[at], v[at]) = (0.0, 0.0);
        }
        self.ring.all_gather(&self.label, view_as(mine), view_as_mut(all))?;
        self.scatter(all, grad)
    }

    fn accumulate(&self, grad: &[f32], param: &[f32], u: &mut [f32], v: &mut [f32]) {
        // `Grad` is this rank's gradient divided by the number of ranks.
        let ranks = self.ranks() as f32;
        let clip = clip_factor(grad, self.clip / self.ranks());
        let (kind, coeff) = self.regularization;
        for at in 0..self.len {
            let decay = match kind {
                1 if param[at] != 0.0 => coeff * param[at].signum(),
                2 => coeff * param[at],
                _ => 0.0,
            };
            let g = grad[at] * ranks * clip + decay;
            if self.nesterov {
                u[at] = self.momentum * (u[at] + g);
                v[at] += u[at] + g;
            } else {
                u[at] = self.momentum * u[at] + g;
                v[at] += u[at];
            }
        }
    }

    /// Writes the mean of all ranks' elements to `out`.
    fn scatter(&self, all: &[i32], out: &mut [f32]) -> Result<()> {
        out.fill(0.0);
        let share = 1.0 / self.ring.size() as f32;
        for pair in all.chunks_exact(2) {
            let Some(to) = out.get_mut(pair[0] as usize) else {
                return Err(Error::invalid("received element index out of range")
                    .expected(format!("below {}", self.len))
                    .got(pair[0]));
            };
            *to += f32::from_bits(pair[1] as u32) * share;
        }
        Ok(())
    }
}

/// Returns the factor that scales a gradient down to a norm; 1 if the gradient is short enough or
/// there is no limit.
fn clip_factor(grad: &[f32], norm_max: f64) -> f32 {
    if norm_max <= 0.0 {
        return 1.0;
    }
    let squares: f64 = grad.iter().map(|g| f64::from(*g).powi(2)).sum();
    (norm_max / squares.sqrt().max(norm_max)) as f32
}

/// Moves the indices of the `count` elements of largest magnitude to the front, in ascending order.
fn select(v: &[f32], order: &mut [i32], count: usize) {
    order.iter_mut().enumerate().for_each(|(at, it)| *it = at as i32);
    // Of equal magnitudes the earlier element is chosen, so that the result is deterministic.
    let key = |index: &i32| (std::cmp::Reverse(v[*index as usize].abs().to_bits()), *index);
    if count < order.len() {
        order.select_nth_unstable_by_key(count, key);
    }
    order[..count].sort_unstable();
}

/// The op `dgc_momentum`.
pub static MOMENTUM: OpDef = OpDef {
    spec: OpSpec {
        name: "dgc_momentum",
        inputs: &[
            one("Param"),
            one("Grad"),
            one("Velocity"),
            one("LearningRate"),
            one("CurrentStep"),
        ],
        outputs: &[one("ParamOut"), one("VelocityOut")],
        attrs: &[
            attr("mu", Float(0.9)),
            attr("use_nesterov", Bool(false)),
            attr("rampup_begin_step", Float(0.0)),
            attr("regular_type", Int(0)),
            attr("regular_coeff", Float(0.0)),
            attr("lr_scale", Float(1.0)),
        ],
    },
    infer: |i| {
        let param = i.input("Param")?;
        for slot in ["Param", "Grad", "Velocity", "LearningRate", "CurrentStep"] {
            i.check_dtype(slot, &[DType::F32])?;
        }
        for slot in ["Grad", "Velocity"] {
            i.check_shape(slot, param.shape)?;
        }
        for slot in ["LearningRate", "CurrentStep"] {
            i.check_shape(slot, [1])?;
        }
        i.push("ParamOut", param);
        i.push("VelocityOut", param);
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| {
        let momentum = Momentum::of(p.op);
        Ok(Kernel::infallible(move |k| momentum.update(k)))
    },
    traits: OpTraits {
        state: &[("ParamOut", "Param"), ("VelocityOut", "Velocity")],
        spread: Spread::Mean,
        ..OpTraits::plain()
    },
};

struct Momentum {
    mu: f32,
    nesterov: bool,
    begin: f32,
    regularization: (i64, f32),
    lr_scale: f32,
}

impl Momentum {
    fn of(op: &Op) -> Momentum {
        Momentum {
            mu: op.attr_float("mu") as f32,
            nesterov: op.attr_bool("use_nesterov"),
            begin: op.attr_float("rampup_begin_step") as f32,
            regularization: (op.attr_int("regular_type"), op.attr_float("regular_coeff") as f32),
            lr_scale: op.attr_float("lr_scale") as f32,
        }
    }

    fn update(&self, k: &KernelCtx<'_>) {
        let (param, velocity) = (k.updated::<f32>(0, 0), k.updated::<f32>(1, 2));
        let grad = k.input::<f32>(1);
        let rate = k.input::<f32>(3)[0] * self.lr_scale;
        if k.input::<f32>(4)[0] >= self.begin {
            param.iter_mut().zip(grad).for_each(|(w, g)| *w -= rate * g);
            return;
        }
        for ((w, v), g) in param.iter_mut().zip(velocity).zip(grad) {
            let decay = match self.regularization {
                (1, coeff) if *w != 0.0 => coeff * w.signum(),
                (2, coeff) => coeff * *w,
                _ => 0.0,
            };
            let g = g + decay;
            *v = self.mu * *v + g;
            *w -= rate * if self.nesterov { g + self.mu * *v } else { *v };
        }
    }
}
