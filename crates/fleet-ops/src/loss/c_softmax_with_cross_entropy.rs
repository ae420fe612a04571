//! `c_softmax_with_cross_entropy`: `softmax_with_cross_entropy` of logits whose classes are divided
//! among the ranks of a ring. Logits and Softmax have this rank's classes, the last dimension.
//! Label is whole and counts all classes. Loss is whole, and the same on all ranks.
//!
//! `classes` is the number of all classes, or 0 if the ranks have exactly all of them. The columns
//! of the last ranks beyond it are padding: their softmax and their gradient are zero.
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
use fleet_kernels::softmax::parts::{self, Columns, IGNORED, OTHER};
use std::sync::Arc;

const LOGITS: usize = 0;
const LABEL: usize = 1;
const SOFTMAX: usize = 0;
const LOSS: usize = 1;
const DLOSS: usize = 2;

const CLASSES: AttrSpec = attr("classes", Int(0));
const ATTRS: &[AttrSpec] = &[RING_ID, NRANKS, CALL_LABEL, attr("ignore_index", Int(-100)), CLASSES];

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
    let ranks = comm::nranks(i)?;
    let shape = i.input(predictions)?.shape;
    let (axis, classes) = (shape.axis(-1)?, i.op.attr_int(CLASSES.name));
    let own = (classes.max(0) as u64).div_ceil(ranks.max(1) as u64) as i64;
    if classes < 0 || classes > 0 && shape[axis] >= 0 && shape[axis] != own {
        return Err(i
            .error(predictions, "has the wrong number of classes")
            .expected(format!("{own}, the part of {classes} classes of each of {ranks} ranks"))
            .got(shape));
    }
    check_label(i, predictions, "Label", axis, false)
}

/// The classes of this rank, and how labels are read.
#[derive(Clone, Copy)]
struct Classes {
    /// Number of columns.
    len: usize,
    /// Number of columns that are classes.
    own: usize,
    /// The first class.
    first: usize,
    /// Number of classes of all ranks.
    all: usize,
    ignore: i64,
}

impl Classes {
    fn of(p: &PrepareCtx<'_>, predictions: &str, ring: &Arc<dyn Ring>) -> Classes {
        let shape = p.input(predictions).shape;
        let len = shape.at(shape.rank() - 1);
        let all = match p.op.attr_usize(CLASSES.name) {
            0 => len.saturating_mul(ring.size()),
            classes => classes,
        };
        let first = ring.rank().saturating_mul(len);
        let own = all.saturating_sub(first).min(len);
        Classes { len, own, first, all, ignore: p.op.attr_int("ignore_index") }
    }

    /// Writes the place of each label among this rank's classes; [`OTHER`] for labels of other
    /// ranks, and [`IGNORED`] for those that are ignored.
    fn own_labels<'a>(&self, k: &KernelCtx<'_>, own: &'a mut [i64]) -> Result<&'a [i64]> {
        let labels = labels(k, LABEL, self.all, self.ignore)?;
        for (row, own) in own.iter_mut().enumerate() {
            let label = labels.at(row);
            *own = match label - self.first as i64 {
                _ if label == self.ignore => IGNORED,
                place if (0..self.own as i64).contains(&place) => place,
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
        let columns = Columns { len: classes.len, own: classes.own };
        let (own, numbers) = k.scratch::<f32>().split_at_mut(2 * rows);
        let own = classes.own_labels(k, view_as_mut(own))?;
        let (max, sums) = numbers.split_at_mut(rows);
        let (logits, softmax) = (k.input_or_output(LOGITS, SOFTMAX), k.output(SOFTMAX));
        let reduce = |numbers: &mut [f32], op: ReduceOp| {
            let bytes = &mut [view_as_mut(numbers)];
            k.communicate(|| ring.all_reduce(&label, DType::F32, bytes, op))
        };
        parts::maxima(k.pool, logits.or(softmax), columns, max);
        reduce(max, ReduceOp::Max)?;
        parts::exponentials(k.pool, logits, columns, own, max, softmax, sums);
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
