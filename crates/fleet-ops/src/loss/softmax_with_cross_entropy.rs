//! Softmax, and its cross entropy with Label, in one pass and without overflow. Softmax has the
//! shape of Logits, and Loss has size 1 along `axis`.
//!
//! Labels are class numbers (i64 or i32, with or without the axis of size 1), or a distribution
//! with `soft_label`. Rows with label `ignore_index` have loss 0 and no gradient. The gradient is
//! the softmax minus the label. It overwrites the softmax if that is not needed afterwards.

use super::labels::check_label;
use crate::nn::axis::Split;
use crate::nn::softmax as softmax_op;
use crate::prelude::*;
use crate::widen::{FLOATS, any_float};
use fleet_ir::AttrSpec;
use fleet_kernels::softmax;

const LOGITS: usize = 0;
const LABEL: usize = 1;
const SOFTMAX: usize = 0;
const LOSS: usize = 1;
const DLOSS: usize = 2;

const ATTRS: &[AttrSpec] =
    &[attr("soft_label", Bool(false)), attr("ignore_index", Int(-100)), attr("axis", Int(-1))];

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "softmax_with_cross_entropy",
        inputs: &[one("Logits"), one("Label")],
        outputs: &[one("Softmax"), one("Loss")],
        attrs: ATTRS,
    },
    infer: |i| infer(i, check(i, "Logits")?),
    grad: Grad::OpRule(&GRAD, rule),
    cpu: |p| any_float(p, cpu),
    traits: OpTraits {
        inplace: &[("Softmax", "Logits")],
        cost,
        divide,
        ..OpTraits::amp(AmpClass::Black)
    },
};

pub static GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "softmax_with_cross_entropy_grad",
        inputs: &[one("Softmax"), one("Label"), one("Loss@GRAD")],
        outputs: &[one("Logits@GRAD")],
        attrs: ATTRS,
    },
    infer: |i| infer_grad(i, check(i, "Softmax")?),
    grad: Grad::None,
    cpu: |p| any_float(p, cpu_grad),
    traits: GRAD_TRAITS,
};

/// Ranks that divide the classes exchange sums of rows only.
fn divide(d: &mut Divide<'_>) -> Result<()> {
    let logits = d.shape("Logits")?;
    let (axis, last) = (logits.axis(d.op.attr_int("axis"))?, logits.rank() - 1);
    let along = d.along("Logits").filter(|along| along.axis == axis && along.groups == 1);
    let is_hard = d.along("Label").is_none() && !d.op.attr_bool("soft_label");
    let Some(along) = along.filter(|_| is_hard && axis == last) else {
        return Err(
            d.unsupported("divides only classes along the last dimension, for whole labels")
        );
    };
    d.become_op("c_softmax_with_cross_entropy");
    if along.padding > 0 {
        d.set_attr("classes", logits[axis]);
        d.keep_padding();
    }
    d.set_part("Softmax", along)?;
    d.set("Loss", Placement::Whole)
}

/// Sets the results of the op, with or without divided classes. `loss` is the shape of the loss.
pub(super) fn infer(i: &mut InferCtx<'_>, loss: Shape) -> Result<()> {
    i.check_dtype("Logits", FLOATS)?;
    let Meta { dtype, shape, .. } = i.input("Logits")?;
    i.set("Softmax", dtype, shape);
    i.set("Loss", dtype, loss);
    Ok(())
}

/// Like [`infer`], for the gradient.
pub(super) fn infer_grad(i: &mut InferCtx<'_>, loss: Shape) -> Result<()> {
    let softmax = i.input("Softmax")?;
    i.check_dtype("Softmax", FLOATS)?;
    i.check_dtype("Loss@GRAD", &[softmax.dtype])?;
    i.check_shape("Loss@GRAD", loss)?;
    i.set("Logits@GRAD", softmax.dtype, softmax.shape);
    Ok(())
}

/// The traits of the gradient, with or without divided classes.
pub(super) const GRAD_TRAITS: OpTraits = OpTraits {
    inplace: &[("Logits@GRAD", "Softmax")],
    cost: |c| Cost {
        flops: 2.0 * c.input("Softmax").map_or(0, Meta::numel) as f64,
        bytes: c.bytes(),
    },
    ..OpTraits::amp(AmpClass::Black)
};

fn check(i: &InferCtx<'_>, predictions: &str) -> Result<Shape> {
    let axis = i.input(predictions)?.shape.axis(i.op.attr_int("axis"))?;
    check_label(i, predictions, "Label", axis, i.op.attr_bool("soft_label"))
}

fn rule(g: &mut GradCtx<'_, '_>, def: &'static OpDef) -> Result<()> {
    let (logits, label, softmax) = (g.x("Logits")?, g.x("Label")?, g.y("Softmax")?);
    let (soft, ignore) = (g.op.attr_bool("soft_label"), g.op.attr_int("ignore_index"));
    let axis = g.op.attr_int("axis");
    if !g.wants("Logits") {
        return Ok(());
    }
    // The probabilities may have consumers with gradients too.
    if let Some(dy) = g.maybe_dy("Softmax") {
        let dx = g.dx_of(logits, VarKind::Dense)?;
        g.op(&softmax_op::GRAD)
            .input("Out", softmax)
            .input("Out@GRAD", dy)
            .attr("axis", axis)
            .output("X@GRAD", dx)
            .done()?;
    }
    if let Some(dloss) = g.maybe_dy("Loss") {
        let dx = g.dx_of(logits, VarKind::Dense)?;
        g.op(def)
            .input("Softmax", softmax)
            .input("Label", label)
            .input("Loss@GRAD", dloss)
            .attr("soft_label", soft)
            .attr("ignore_index", ignore)
            .attr("axis", axis)
            .output("Logits@GRAD", dx)
            .done()?;
    }
    Ok(())
}

/// Preparation of labels and rows for the kernel, which needs contiguous rows and i64 labels.
#[derive(Clone, Copy)]
struct Plan {
    split: Split,
    soft: bool,
    narrow: bool,
    ignore: i64,
}

impl Plan {
    fn new(p: &PrepareCtx<'_>, predictions: &str) -> Result<Plan> {
        Ok(Plan {
            split: Split::of(p, predictions)?,
            soft: p.op.attr_bool("soft_label"),
            narrow: p.input("Label").dtype == DType::I32,
            ignore: p.op.attr_int("ignore_index"),
        })
    }

    /// Floats of scratch: `rows` tensors of the predictions' size if rows must be gathered, one
    /// more for gathered soft labels, and two floats per label that is widened to i64.
    fn scratch_len(&self, rows: usize) -> usize {
        let tensors = if self.split.is_last() { 0 } else { rows + usize::from(self.soft) };
        let labels = if self.narrow { 2 * self.split.rows() } else { 0 };
        labels + tensors * self.split.len()
    }

    /// Returns the i64 labels, and the rest of the scratch. The labels come first because of their
    /// alignment.
    fn labels<'a>(&self, k: &KernelCtx<'a>) -> (&'a [i64], &'a mut [f32]) {
        if !self.narrow {
            return (if self.soft { &[] } else { k.input(LABEL) }, k.scratch());
        }
        let rows = self.split.rows();
        let (wide, rest) = k.scratch::<f32>().split_at_mut(2 * rows);
        let wide: &mut [i64] = view_as_mut(wide);
        for (wide, label) in wide.iter_mut().zip(k.input::<i32>(LABEL)) {
            *wide = i64::from(*label);
        }
        (wide, rest)
    }
}

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let plan = Plan::new(p, "Logits")?;
    let split = plan.split;
    Ok(Kernel::new(move |k| {
        if split.is_empty() {
            k.output::<f32>(LOSS).fill(0.0);
            return Ok(());
        }
        let (labels, scratch) = plan.labels(k);
        let (logits, probabilities) = (k.input_or_output(LOGITS, SOFTMAX), k.output(SOFTMAX));
        let loss = k.output::<f32>(LOSS);
        if split.is_last() {
            return forward(k, plan, labels, soft_labels(k, plan), logits, probabilities, loss);
        }
        let (x, scratch) = scratch.split_at_mut(split.len());
        let (y, soft) = scratch.split_at_mut(split.len());
        split.gather(k.pool, logits.or(probabilities), x);
        if plan.soft {
            split.gather(k.pool, k.input(LABEL), soft);
        }
        forward(k, plan, labels, soft, Input::Separate(x), y, loss)?;
        split.scatter(k.pool, y, probabilities);
        Ok(())
    })
    .scratch::<f32>(plan.scratch_len(2)))
}

/// Returns the soft labels in their original layout.
fn soft_labels<'a>(k: &KernelCtx<'a>, plan: Plan) -> &'a [f32] {
    if plan.soft { k.input(LABEL) } else { &[] }
}

fn forward(
    k: &KernelCtx<'_>,
    plan: Plan,
    labels: &[i64],
    soft: &[f32],
    logits: Input<'_, f32>,
    probabilities: &mut [f32],
    loss: &mut [f32],
) -> Result<()> {
    if plan.soft {
        softmax::softmax_cross_entropy_soft(k.pool, logits, soft, probabilities, loss);
        return Ok(());
    }
    softmax::softmax_cross_entropy(k.pool, logits, labels, plan.ignore, probabilities, loss)
}

fn cpu_grad(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let plan = Plan::new(p, "Softmax")?;
    let split = plan.split;
    Ok(Kernel::new(move |k| {
        if split.is_empty() {
            return Ok(());
        }
        let (labels, scratch) = plan.labels(k);
        let (y, dloss, dx) = (k.input_or_output(SOFTMAX, 0), k.input(DLOSS), k.output(0));
        if split.is_last() {
            return backward(k, plan, labels, soft_labels(k, plan), y, dloss, dx);
        }
        let (rows, scratch) = scratch.split_at_mut(split.len());
        let (gradient, soft) = scratch.split_at_mut(split.len());
        split.gather(k.pool, y.or(dx), rows);
        if plan.soft {
            split.gather(k.pool, k.input(LABEL), soft);
        }
        backward(k, plan, labels, soft, Input::Separate(rows), dloss, gradient)?;
        split.scatter(k.pool, gradient, dx);
        Ok(())
    })
    .scratch::<f32>(plan.scratch_len(2)))
}

fn backward(
    k: &KernelCtx<'_>,
    plan: Plan,
    labels: &[i64],
    soft: &[f32],
    probabilities: Input<'_, f32>,
    dloss: &[f32],
    dx: &mut [f32],
) -> Result<()> {
    if plan.soft {
        softmax::softmax_cross_entropy_soft_grad(k.pool, probabilities, soft, dloss, dx);
        return Ok(());
    }
    let ignore = plan.ignore;
    softmax::softmax_cross_entropy_grad(k.pool, probabilities, labels, ignore, dloss, dx)
}

pub(super) fn cost(c: &CostCtx<'_>) -> Cost {
    Cost { flops: 24.0 * c.input("Logits").map_or(0, Meta::numel) as f64, bytes: c.bytes() }
}
