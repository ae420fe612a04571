//! `update_loss_scaling`: the state machine of dynamic loss scaling.
//!
//! If the gradients of a step were not finite, the op sets all gradients `X` to 0. It also resets
//! the count of good steps and increments the count of bad ones. After `decr_every_n_nan_or_inf`
//! bad steps, it multiplies the scale by `decr_ratio`, to at least 1. After a good step, it resets
//! the count of bad steps. After `incr_every_n_steps` good steps, it multiplies the scale by
//! `incr_ratio`, unless the result is infinite. `stop_update` leaves counts and scale unchanged.

use crate::elementwise_cost;
use crate::prelude::*;

/// The op `update_loss_scaling`.
pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "update_loss_scaling",
        inputs: &[
            many("X"),
            one("FoundInfinite"),
            one("PrevLossScaling"),
            one("InGoodSteps"),
            one("InBadSteps"),
        ],
        outputs: &[many("Out"), one("LossScaling"), one("OutGoodSteps"), one("OutBadSteps")],
        attrs: &[
            attr("incr_every_n_steps", Int(1000)),
            attr("decr_every_n_nan_or_inf", Int(2)),
            attr("incr_ratio", Float(2.0)),
            attr("decr_ratio", Float(0.8)),
            attr("stop_update", Bool(false)),
        ],
    },
    infer: |i| {
        i.check_dtype("FoundInfinite", &[DType::Bool])?;
        i.check_dtype("PrevLossScaling", &[DType::F32])?;
        for slot in ["InGoodSteps", "InBadSteps"] {
            i.check_dtype(slot, &[DType::I32])?;
        }
        for slot in ["FoundInfinite", "PrevLossScaling", "InGoodSteps", "InBadSteps"] {
            i.check_shape(slot, [1])?;
        }
        for name in ["incr_every_n_steps", "decr_every_n_nan_or_inf"] {
            let steps = i.op.attr_int(name);
            if !(1..=i64::from(i32::MAX)).contains(&steps) {
                return Err(Error::invalid(format!(
                    "attribute '{name}' of update_loss_scaling is out of range"
                ))
                .expected("1 or more")
                .got(steps));
            }
        }
        for meta in i.inputs("X").to_vec() {
            i.push("Out", meta);
        }
        i.set("LossScaling", DType::F32, [1]);
        i.set("OutGoodSteps", DType::I32, [1]);
        i.set("OutBadSteps", DType::I32, [1]);
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| {
        let rule = Rule {
            incr_every: p.op.attr_int("incr_every_n_steps") as i32,
            decr_every: p.op.attr_int("decr_every_n_nan_or_inf") as i32,
            incr_ratio: p.op.attr_float("incr_ratio") as f32,
            decr_ratio: p.op.attr_float("decr_ratio") as f32,
        };
        let stop = p.op.attr_bool("stop_update");
        Ok(Kernel::infallible(move |k| {
            let found = k.input::<u8>(1)[0] != 0;
            let scale = k.updated::<f32>(1, 2);
            let (good, bad) = (k.updated::<i32>(2, 3), k.updated::<i32>(3, 4));
            for (from, to) in k.inputs(0).zip(k.outs(0)) {
                copy_or_zero(from, to, found);
            }
            if !stop {
                let state = State { scale: scale[0], good: good[0], bad: bad[0] };
                let next = rule.next(state, found);
                (scale[0], good[0], bad[0]) = (next.scale, next.good, next.bad);
            }
        }))
    },
    traits: OpTraits {
        sparse: &["X"],
        elementwise: true,
        cost: elementwise_cost,
        independent: &[("LossScaling", "X"), ("OutGoodSteps", "X"), ("OutBadSteps", "X")],
        ..OpTraits::plain()
    },
};

/// Copies a gradient unchanged, or zeros it if `drop` is set.
fn copy_or_zero(from: View<'_>, mut to: Out<'_>, drop: bool) {
    match drop {
        true => {
            to.copy_row_ids(from);
            to.bytes_mut().fill(0);
        }
        false => to.copy_from(from),
    }
}

#[derive(Clone, Copy)]
struct State {
    scale: f32,
    good: i32,
    bad: i32,
}

#[derive(Clone, Copy)]
struct Rule {
    incr_every: i32,
    decr_every: i32,
    incr_ratio: f32,
    decr_ratio: f32,
}

impl Rule {
    fn next(&self, state: State, found: bool) -> State {
        let State { scale, good, bad } = state;
        if found {
            let bad = bad.saturating_add(1);
            if bad < self.decr_every {
                return State { scale, good: 0, bad };
            }
            return State { scale: (scale * self.decr_ratio).max(1.0), good: 0, bad: 0 };
        }
        let good = good.saturating_add(1);
        if good < self.incr_every {
            return State { scale, good, bad: 0 };
        }
        let grown = scale * self.incr_ratio;
        State { scale: if grown.is_finite() { grown } else { scale }, good: 0, bad: 0 }
    }
}
