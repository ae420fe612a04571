//! Norms and clipping by norm: `squared_l2_norm`, `clip_by_norm`, `global_norm_scale`.
//!
//! Sums of squares are accumulated in f64. For sparse rows, `squared_l2_norm` and `clip_by_norm`
//! use the matrix that they represent: rows with equal ids are summed first, in scratch. f32,
//! halves through f32.

use crate::prelude::*;
use crate::widen::any_float;
use fleet_kernels::elementwise::{Unary, unary};
use fleet_kernels::reduce::squared_norm;
use fleet_tensor::{ALIGN, Arg};

pub static SQUARED_L2_NORM: OpDef = OpDef {
    spec: OpSpec {
        name: "squared_l2_norm",
        inputs: &[one("X")],
        outputs: &[one("Out")],
        attrs: &[],
    },
    infer: |i| {
        let x = i.input("X")?;
        i.check_dtype("X", &[DType::F32, DType::F16, DType::BF16])?;
        // A sum of squares easily overflows half precision.
        i.set("Out", DType::F32, [1]);
        let _ = x;
        Ok(())
    },
    grad: Grad::Op(&SQUARED_L2_NORM_GRAD),
    cpu: |p| any_float(p, squared_cpu),
    traits: OpTraits { sparse: &["X"], order_independent: true, cost, ..OpTraits::plain() },
};

fn cost(ctx: &CostCtx<'_>) -> Cost {
    let flops = ctx.inputs.iter().flatten().map(|meta| 2.0 * meta.numel() as f64).sum();
    Cost { flops, bytes: ctx.bytes() }
}

fn squared_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let scratch = Merge::scratch_bytes(&p.input("X"));
    Ok(Kernel::infallible(move |k| {
        let arg = k.arg(0);
        k.output::<f32>(0)[0] = squared(k, &arg, arg.slice(), arg.row_ids()) as f32;
    })
    .scratch::<u8>(scratch))
}

/// Returns the squared norm of a tensor or of sparse rows.
fn squared(k: &KernelCtx<'_>, like: &Arg, values: &[f32], ids: &[i64]) -> f64 {
    match like.rows {
        None => squared_norm(k.pool, values),
        Some(_) => Merge::new(k, ids, like.row_len()).squared(values, like.row_len()),
    }
}

/// Finds equal ids among sparse rows, by an order sorted by id, in scratch.
struct Merge<'a> {
    ids: &'a [i64],
    order: &'a mut [i32],
    sums: &'a mut [f32],
}

impl<'a> Merge<'a> {
    fn scratch_bytes(x: &Meta) -> usize {
        if x.kind != VarKind::SparseRows {
            return 0;
        }
        let width = x.shape.product(1..x.shape.rank());
        (x.rows * size_of::<i32>()).next_multiple_of(ALIGN) + width * size_of::<f32>()
    }

    fn new(k: &KernelCtx<'a>, ids: &'a [i64], width: usize) -> Merge<'a> {
        let words = k.scratch::<i32>();
        let (order, rest) = words.split_at_mut(words.len() - width);
        let order = &mut order[..ids.len()];
        order.iter_mut().enumerate().for_each(|(index, it)| *it = index as i32);
        // Equal ids are sorted by position, so that sums have a fixed order.
        order.sort_unstable_by_key(|index| (ids[*index as usize], *index));
        Merge { ids, order, sums: view_as_mut(rest) }
    }

    fn squared(&mut self, values: &[f32], width: usize) -> f64 {
        let mut total = 0.0;
        let mut start = 0;
        while start < self.order.len() {
            let id = self.ids[self.order[start] as usize];
            self.sums.fill(0.0);
            while start < self.order.len() && self.ids[self.order[start] as usize] == id {
                let row = self.order[start] as usize * width;
                let row = &values[row..row + width];
                self.sums.iter_mut().zip(row).for_each(|(to, from)| *to += *from);
                start += 1;
            }
            total += self.sums.iter().map(|it| f64::from(*it) * f64::from(*it)).sum::<f64>();
        }
        total
    }
}

pub static SQUARED_L2_NORM_GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "squared_l2_norm_grad",
        inputs: &[one("X"), one("Out@GRAD")],
        outputs: &[one("X@GRAD")],
        attrs: &[],
    },
    infer: |i| {
        let x = i.input("X")?;
        i.set("X@GRAD", x.dtype, x.shape);
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| any_float(p, squared_grad_cpu),
    traits: OpTraits { inplace: &[("X@GRAD", "X")], ..OpTraits::plain() },
};

fn squared_grad_cpu(_: &PrepareCtx<'_>) -> Result<Kernel> {
    Ok(Kernel::infallible(move |k| {
        let scale = Unary::Scale { scale: 2.0 * k.input::<f32>(1)[0], bias: 0.0 };
        unary(k.pool, scale, k.input_or_output(0, 0), k.output(0));
    }))
}

pub static CLIP_BY_NORM: OpDef = OpDef {
    spec: OpSpec {
        name: "clip_by_norm",
        inputs: &[one("X")],
        outputs: &[one("Out")],
        attrs: &[fleet_ir::required("max_norm", AttrKind::Float)],
    },
    infer: |i| {
        let x = i.input("X")?;
        i.check_dtype("X", &[DType::F32, DType::F16, DType::BF16])?;
        let max_norm = i.op.attr_float("max_norm");
        if max_norm.is_nan() || max_norm <= 0.0 {
            return Err(Error::invalid("attribute 'max_norm' of clip_by_norm is out of range")
                .expected("a number above 0")
                .got(max_norm));
        }
        i.push("Out", x);
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| any_float(p, clip_cpu),
    traits: OpTraits {
        inplace: &[("Out", "X")],
        sparse: &["X"],
        order_independent: true,
        cost,
        ..OpTraits::plain()
    },
};

fn clip_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let max_norm = p.op.attr_float("max_norm");
    let scratch = Merge::scratch_bytes(&p.input("X"));
    Ok(Kernel::infallible(move |k| {
        let out = k.out(0);
        let (values, ids) = out.elements_of(k.arg(0));
        let norm = squared(k, &out, values, ids).sqrt();
        let scale = if norm > max_norm { (max_norm / norm) as f32 } else { 1.0 };
        scale_into(k, out, scale);
    })
    .scratch::<u8>(scratch))
}

/// Writes the first input times a number to Out, for dense tensors and sparse rows.
pub(crate) fn scale_into(k: &KernelCtx<'_>, mut out: Out<'_>, scale: f32) {
    out.copy_row_ids(k.arg(0));
    let len = out.bytes_in_use() / size_of::<f32>();
    let (x, op) = (k.input_or_output(0, 0).first(len), Unary::Scale { scale, bias: 0.0 });
    unary(k.pool, op, x, &mut out.slice_mut()[..len]);
}

/// `Out = clip_norm / max(clip_norm, Norm)` with `Norm = sqrt(sum X)`: the factor of all gradients
/// for clipping by their global norm.
pub static GLOBAL_NORM_SCALE: OpDef = OpDef {
    spec: OpSpec {
        name: "global_norm_scale",
        inputs: &[many("X")],
        outputs: &[one("Out"), one("Norm")],
        attrs: &[fleet_ir::required("clip_norm", AttrKind::Float)],
    },
    infer: |i| {
        i.check_dtype("X", &[DType::F32])?;
        for meta in i.inputs("X") {
            if meta.shape.numel() != Some(1) {
                let error = i.error("X", "does not hold squared norms");
                return Err(error.expected("shape [1]").got(meta.shape));
            }
        }
        i.set("Out", DType::F32, [1]);
        i.set("Norm", DType::F32, [1]);
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| {
        let clip_norm = p.op.attr_float("clip_norm");
        Ok(Kernel::infallible(move |k| {
            let squares = k.inputs(0).map(|arg| f64::from(arg.slice::<f32>()[0]));
            let norm = squares.sum::<f64>().sqrt();
            // A NaN norm must not give a valid factor.
            let scale = if norm.is_nan() { norm } else { clip_norm / norm.max(clip_norm) };
            k.output::<f32>(0)[0] = scale as f32;
            k.output::<f32>(1)[0] = norm as f32;
        }))
    },
    traits: OpTraits::plain(),
};
