//! `Out = X[0] + X[1] + ...`, which also accumulates the contributions to a gradient.
//!
//! Dense inputs are added elementwise, in the order of the inputs, in one pass over memory. Sparse
//! rows are concatenated, and duplicates stay. With mixed inputs, the dense ones are summed and the
//! rows are added in order. f32, f64, i32, i64; halves through f32.

use crate::prelude::*;
use crate::rules::by_type;
use crate::widen::any_float;
use fleet_kernels::map::sum;
use fleet_tensor::Element;
use std::ops::AddAssign;

/// The op `sum`.
pub static DEF: OpDef = OpDef {
    spec: OpSpec { name: "sum", inputs: &[many("X")], outputs: &[one("Out")], attrs: &[] },
    infer: |i| {
        let inputs = i.inputs("X");
        let Some(first) = inputs.first().copied() else {
            return Err(Error::invalid("missing input 'X' of op 'sum'"));
        };
        let mut shape = first.shape;
        for meta in inputs {
            if meta.dtype != first.dtype || !meta.shape.agrees(&shape) {
                return Err(i
                    .error("X", "holds variables that cannot be added")
                    .expected(format!("{}{shape}", first.dtype))
                    .got(format!("{}{}", meta.dtype, meta.shape)));
            }
            for (dim, other) in shape.dims_mut().iter_mut().zip(meta.shape.iter()) {
                *dim = (*dim).max(*other);
            }
        }
        let is_sparse = |meta: &Meta| meta.kind == VarKind::SparseRows;
        let made = if inputs.iter().all(is_sparse) {
            Meta::sparse(first.dtype, shape, inputs.iter().map(|meta| meta.rows).sum())
        } else {
            Meta::dense(first.dtype, shape)
        };
        i.push("Out", made);
        Ok(())
    },
    grad: Grad::Rule(|g| {
        let dy = g.dy("Out")?;
        for var in g.op.input("X").to_vec() {
            if !g.wants_var(var) {
                continue;
            }
            if g.emit.program.var(var).is_parameter() {
                let dx = g.dx_of(var, VarKind::Dense)?;
                g.op(&crate::tensor::assign::DEF).input("X", dy).output("Out", dx).done()?;
            } else {
                g.alias_grad(var, dy);
            }
        }
        Ok(())
    }),
    cpu: |p| any_float(p, cpu),
    traits: OpTraits {
        inplace: &[("Out", "X")],
        sparse: &["X"],
        elementwise: true,
        order_independent: true,
        cost,
        spread: Spread::Mean,
        accumulates: true,
        ..OpTraits::plain()
    },
};

fn cost(ctx: &CostCtx<'_>) -> Cost {
    let flops = ctx.inputs.iter().flatten().map(|meta| meta.numel() as f64).sum();
    Cost { flops, bytes: ctx.bytes() }
}

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let out = p.output("Out");
    by_type!(out.dtype, Err(p.no_kernel(out.dtype)),
        [F32 => f32, F64 => f64, I32 => i32, I64 => i64], T => {
        if out.kind == VarKind::SparseRows {
            Ok(Kernel::new(append_rows::<T>))
        } else {
            Ok(dense::<T>(p))
        }
    })
}

fn dense<T: Element + AddAssign>(p: &PrepareCtx<'_>) -> Kernel {
    let sparse: Vec<bool> = p.inputs[0].iter().map(|m| m.kind == VarKind::SparseRows).collect();
    let dense: Vec<usize> = (0..sparse.len()).filter(|index| !sparse[*index]).collect();
    Kernel::new(move |k| {
        let out = k.output::<T>(0);
        // Out may share memory with any of the inputs.
        let inputs = dense.iter().map(|index| k.input_at_or_output(0, *index, 0));
        sum(k.pool, inputs, out);
        for (arg, is_sparse) in k.inputs(0).zip(&sparse) {
            if *is_sparse {
                let width = arg.row_len();
                for (id, row) in arg.row_ids().iter().zip(arg.slice::<T>().chunks(width.max(1))) {
                    let start = *id as usize * width;
                    let Some(to) = out.get_mut(start..start + width).filter(|_| *id >= 0) else {
                        return Err(Error::invalid("sparse row number out of range")
                            .expected(format!("below {}", arg.shape.at(0)))
                            .got(*id));
                    };
                    to.iter_mut().zip(row).for_each(|(to, from)| *to += *from);
                }
            }
        }
        Ok(())
    })
}

fn append_rows<T: Element>(k: &KernelCtx<'_>) -> Result<()> {
    let mut out = k.out(0);
    let width = out.row_len();
    // If Out shares memory with an input, it already contains the rows of this input.
    let shared = k.inputs(0).position(|arg| arg.shares_memory_with(&out));
    let mut count = shared.map_or(0, |_| out.row_count());
    for (index, arg) in k.inputs(0).enumerate() {
        if shared == Some(index) {
            continue;
        }
        let rows = arg.row_count();
        out.row_ids_mut()[count..count + rows].copy_from_slice(arg.row_ids());
        let values = &arg.slice::<T>()[..rows * width];
        out.slice_mut::<T>()[count * width..(count + rows) * width].copy_from_slice(values);
        count += rows;
    }
    out.set_row_count(count);
    Ok(())
}
