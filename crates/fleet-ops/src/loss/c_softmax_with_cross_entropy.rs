//! `c_softmax_with_cross_entropy`: `softmax_with_cross_entropy` of logits whose classes are divided
//! among the ranks of a ring. Logits and Softmax have this rank's classes, the last dimension.
//! Label is whole and counts all classes. Loss is whole, and the same on all ranks.
//!
//! Logits are not gathered: ranks exchange the maximum of each row, then its sum of exponentials
//! and the logit of its label. The gradient needs no communication.

use super::labels::{check_label, labels};
use super::softmax_with_cross_entropy::{GRAD_TRAITS, cost, infer, infer_grad};
use crate::comm::{self, LABEL as CALL_LABEL, NRANKS, RING_ID};
use crate::prelude::*;
use crate::widen::any_float;
use crate::{ReduceOp, Ring};
use fleet_ir::AttrSpec;
use fleet_kernels::softmax::parts::{self, IGNORED, OTHER};
use std::sync::Arc;

const LOGITS: usize = 0;
const LABEL: usize = 1;
const SOFTMAX: usize = 0;
const LOSS: usize = 1;
const DLOSS: usize = 2;

const ATTRS: &[AttrSpec] = &[RING_ID, NRANKS, CALL_LABEL, attr("ignore_index", Int(-100))];

/// The op `c_softmax_with_cross_entropy`.
pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "c_softmax_with_cross_entropy",
        inputs: &[one("Logits"), one("Label")],
        outputs: &[one("Softmax"), one("Loss")],
        attrs: ATTRS,
    },
    infer: |i| infer(i, check(i, "Logits")?),
    grad: Grad::OpRule(&GRAD, |g, grad| {
        if g.maybe_dy("Softmax").is_some() {
            return Err(Error::unsupported("no gradient of the softmax of divided classes")
                .help("use only the loss"));
        }
        g.by_name(grad, &[], VarKind::Dense)
    }),
    cpu: |p| any_float(p, cpu),
    traits: OpTraits {
        inplace: &[("Softmax", "Logits")],
        effect: true,
        cost,
        traffic: |c| {
            let rows = c.output("Loss").map_or(0, Meta::numel) as f64;
            let mut traffic = Traffic::all_reduce(ROW_MAX_BYTES * rows, c.ranks());
            traffic.add(Traffic::all_reduce(ROW_SUM_BYTES * rows, c.ranks()));
            Some(traffic)
        },
        divide: |d| Err(d.unsupported("divides its classes already")),
        ..OpTraits::amp(AmpClass::Black)
    },
};

/// Bytes that ranks exchange for a row: its maximum, then two sums.
const ROW_MAX_BYTES: f64 = 4.0;
const ROW_SUM_BYTES: f64 = 8.0;

/// The op `c_softmax_with_cross_entropy_grad`.
pub static GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "c_softmax_with_cross_entropy_grad",
        inputs: &[one("Softmax"), one("Label"), one("Loss@GRAD")],
        outputs: &[one("Logits@GRAD")],
        attrs: ATTRS,
    },
    infer: |i| infer_grad(i, check(i, "Softmax")?),
    grad: Grad::None,
    cpu: |p| any_float(p, cpu_grad),
    traits: GRAD_TRAITS,
};

fn check(i: &InferCtx<'_>, predictions: &str) -> Result<Shape> {
    comm::nranks(i)?;
    let axis = i.input(predictions)?.shape.axis(-1)?;
    check_label(i, predictions, "Label", axis, false)
}

/// The classes of this rank, and how labels are read.
#[derive(Clone, Copy)]
struct Classes {
    len: usize,
    rank: usize,
    ranks: usize,
    ignore: i64,
}

impl Classes {
    fn of(p: &PrepareCtx<'_>, predictions: &str, ring: &Arc<dyn Ring>) -> Classes {
        let shape = p.input(predictions).shape;
        Classes {
            len: shape.at(shape.rank() - 1),
            rank: ring.rank(),
            ranks: ring.size(),
            ignore: p.op.attr_int("ignore_index"),
        }
    }

    /// Writes the place of each label among this rank's classes; [`OTHER`] for labels of other
    /// ranks, and [`IGNORED`] for those that are ignored.
    fn own_labels<'a>(&self, k: &KernelCtx<'_>, own: &'a mut [i64]) -> Result<&'a [i64]> {
        let labels = labels(k, LABEL, self.len.saturating_mul(self.ranks), self.ignore)?;
        let first = (self.rank * self.len) as i64;
        for (row, own) in own.iter_mut().enumerate() {
            let label = labels.at(row);
            *own = match label - first {
                _ if label == self.ignore => IGNORED,
                place if (0..self.len as i64).contains(&place) => place,
                _ => OTHER,
            };
        }
        Ok(own)
    }
}

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let ring = p.services.ring_of(p.op)?;
    let (label, rows) = (comm::label(p.op), p.output("Loss").numel());
    let classes = Classes::of(p, "Logits", &ring);
    Ok(Kernel::new(move |k| {
        let len = classes.len;
        let (own, numbers) = k.scratch::<f32>().split_at_mut(2 * rows);
        let own = classes.own_labels(k, view_as_mut(own))?;
        let (max, sums) = numbers.split_at_mut(rows);
        let (logits, softmax) = (k.input_or_output(LOGITS, SOFTMAX), k.output(SOFTMAX));
        let reduce = |numbers: &mut [f32], op: ReduceOp| {
            let bytes = &mut [view_as_mut(numbers)];
            k.communicate(|| ring.all_reduce(&label, DType::F32, bytes, op))
        };
        parts::maxima(k.pool, logits.or(softmax), len, max);
        reduce(max, ReduceOp::Max)?;
        parts::exponentials(k.pool, logits, own, max, softmax, sums);
        reduce(sums, ReduceOp::Sum)?;
        parts::losses(k.pool, own, sums, softmax, k.output(LOSS));
        Ok(())
    })
    // Labels in two floats each, maxima, sums and logits of labels.
    .scratch::<f32>(5 * rows))
}

fn cpu_grad(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let ring = p.services.ring_of(p.op)?;
    let rows = p.input("Loss@GRAD").numel();
    let classes = Classes::of(p, "Softmax", &ring);
    Ok(Kernel::new(move |k| {
        let own = classes.own_labels(k, k.scratch())?;
        let softmax = k.input_or_output(SOFTMAX, 0);
        parts::gradient(k.pool, softmax, own, k.input(DLOSS), k.output(0));
        Ok(())
    })
    .scratch::<i64>(rows))
}
