//! Writing rows by index: `scatter` and `scatter_nd_add`. f32 (halves through f32), f64, i32, i64;
//! indices i32 or i64.
//!
//! With `overwrite`, the last of several updates of a row takes effect in `scatter`. Without it,
//! the rows in Ids are set to zero and all their updates are added. In both cases, the gradient
//! with respect to X is zero in those rows.

use crate::prelude::*;
use crate::rules::{by_type, check_row_major};
use crate::tensor::assign::copy;
use crate::tensor::gather::{GATHER, GATHER_ND, Indices, Tuples, nd_shape};
use crate::widen::any_float;
use fleet_kernels::scatter::{Axis, scatter};

pub static SCATTER: OpDef = OpDef {
    spec: OpSpec {
        name: "scatter",
        inputs: &[one("X"), one("Ids"), one("Updates")],
        outputs: &[one("Out")],
        attrs: &[attr("overwrite", Bool(true))],
    },
    infer: |i| {
        let (x, ids) = (i.input("X")?, i.input("Ids")?.shape);
        i.check_dtype("Ids", &[DType::I32, DType::I64])?;
        i.check_dtype("Updates", &[x.dtype])?;
        if x.shape.rank() == 0 || ids.rank() == 0 {
            return Err(i
                .error("X", "has the wrong number of dimensions")
                .expected("1 or more")
                .got(0));
        }
        let mut rows = x.shape;
        rows.dims_mut()[0] = crate::rules::dim_product(&ids);
        i.check_shape("Updates", rows)?;
        i.set("Out", x.dtype, x.shape);
        Ok(())
    },
    grad: Grad::OpRule(&SCATTER_GRAD, |g, grad| {
        let (ids, dy) = (g.x("Ids")?, g.dy("Out")?);
        if let Some(dx) = g.dx("X")? {
            g.op(grad).input("Ids", ids).input("Out@GRAD", dy).output("X@GRAD", dx).done()?;
        }
        if let Some(updates) = g.dx("Updates")? {
            g.op(&GATHER).input("X", dy).input("Index", ids).output("Out", updates).done()?;
        }
        Ok(())
    }),
    cpu: |p| any_float(p, scatter_cpu),
    traits: OpTraits { inplace: &[("Out", "X")], ..OpTraits::amp(AmpClass::Black) },
};

fn scatter_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    check_row_major(p)?;
    let (x, overwrite) = (p.input("X"), p.op.attr_bool("overwrite"));
    let (height, width) = (x.shape.at(0), x.shape.product(1..x.shape.rank()));
    by_type!(x.dtype, Err(p.no_kernel(x.dtype)),
        [F32 => f32, F64 => f64, I32 => i32, I64 => i64], T => {
        Ok(Kernel::new(move |k| {
            let (ids, updates) = (Indices::of(k, 1), k.input::<T>(2));
            ids.check(height, "scatter")?;
            let out = copy(k, 0, 0);
            if let Indices::Long(rows) = ids
                && overwrite
            {
                let axis = Axis { outer: 1, len: height, inner: width * size_of::<T>() };
                scatter(k.pool, axis, rows, k.arg(2).bytes(), out.into_bytes())?;
                return Ok(());
            }
            let out = out.into_slice::<T>();
            let place = |i: usize| ids.at(i) as usize * width..(ids.at(i) as usize + 1) * width;
            if !overwrite {
                (0..ids.len()).for_each(|i| out[place(i)].fill(0 as T));
            }
            for i in 0..ids.len() {
                let (to, from) = (&mut out[place(i)], &updates[i * width..(i + 1) * width]);
                match overwrite {
                    true => to.copy_from_slice(from),
                    false => to.iter_mut().zip(from).for_each(|(to, from)| *to += *from),
                }
            }
            Ok(())
        }))
    })
}

pub static SCATTER_GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "scatter_grad",
        inputs: &[one("Ids"), one("Out@GRAD")],
        outputs: &[one("X@GRAD")],
        attrs: &[],
    },
    infer: |i| {
        i.check_dtype("Ids", &[DType::I32, DType::I64])?;
        let dout = i.input("Out@GRAD")?;
        if dout.shape.rank() == 0 {
            return Err(i
                .error("Out@GRAD", "has the wrong number of dimensions")
                .expected("1 or more")
                .got(0));
        }
        i.set("X@GRAD", dout.dtype, dout.shape);
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| {
        let dout = p.input("Out@GRAD");
        let row_bytes = dout.shape.product(1..dout.shape.rank()) * dout.dtype.size();
        let height = dout.shape.at(0);
        Ok(Kernel::new(move |k| {
            let ids = Indices::of(k, 0);
            ids.check(height, "scatter_grad")?;
            let out = copy(k, 1, 0).into_bytes();
            for i in 0..ids.len() {
                let start = ids.at(i) as usize * row_bytes;
                out[start..start + row_bytes].fill(0);
            }
            Ok(())
        }))
    },
    traits: OpTraits { inplace: &[("X@GRAD", "Out@GRAD")], ..OpTraits::amp(AmpClass::Black) },
};

/// `scatter_nd_add`: `Out = X`, with Updates added at the tuples of Index.
pub static SCATTER_ND_ADD: OpDef = OpDef {
    spec: OpSpec {
        name: "scatter_nd_add",
        inputs: &[one("X"), one("Index"), one("Updates")],
        outputs: &[one("Out")],
        attrs: &[],
    },
    infer: |i| {
        let x = i.input("X")?;
        i.check_dtype("Index", &[DType::I32, DType::I64])?;
        i.check_dtype("Updates", &[x.dtype])?;
        i.check_shape("Updates", nd_shape(i, &x.shape)?)?;
        i.set("Out", x.dtype, x.shape);
        Ok(())
    },
    grad: Grad::Rule(|g| {
        let (x, index, dy) = (g.x("X")?, g.x("Index")?, g.dy("Out")?);
        if g.wants("X") {
            if g.emit.program.var(x).is_parameter() {
                let dx = g.dx_of(x, VarKind::Dense)?;
                g.op(&crate::tensor::assign::DEF).input("X", dy).output("Out", dx).done()?;
            } else {
                g.alias_grad(x, dy);
            }
        }
        if let Some(updates) = g.dx("Updates")? {
            g.op(&GATHER_ND).input("X", dy).input("Index", index).output("Out", updates).done()?;
        }
        Ok(())
    }),
    cpu: |p| any_float(p, nd_cpu),
    traits: OpTraits { inplace: &[("Out", "X")], ..OpTraits::plain() },
};

fn nd_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    check_row_major(p)?;
    let x = p.input("X");
    let tuples = Tuples::new(&x.shape, &p.input("Index").shape);
    by_type!(x.dtype, Err(p.no_kernel(x.dtype)),
        [F32 => f32, F64 => f64, I32 => i32, I64 => i64], T => {
        let tuples = tuples.clone();
        Ok(Kernel::new(move |k| {
            let (index, updates) = (Indices::of(k, 1), k.input::<T>(2));
            tuples.check(&index, "scatter_nd_add")?;
            let (out, width) = (copy(k, 0, 0).into_slice::<T>(), tuples.width);
            for i in 0..tuples.count {
                let row = tuples.row(&index, i) * width;
                let from = &updates[i * width..(i + 1) * width];
                out[row..row + width].iter_mut().zip(from).for_each(|(to, from)| *to += *from);
            }
            Ok(())
        }))
    })
}
