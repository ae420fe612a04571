//! `pad`: adds `paddings` elements before and after each dimension. Any element type. The gradient
//! is the part in the middle.

use crate::prelude::*;
use crate::rules::{by_width, check_like, check_row_major, element_bytes, sizes};
use fleet_kernels::strided::{Strided, row_major};

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "pad",
        inputs: &[one("X")],
        outputs: &[one("Out")],
        attrs: &[required("paddings", AttrKind::Ints), attr("pad_value", Float(0.0))],
    },
    infer: |i| {
        let out = padded(i)?;
        i.set("Out", out.dtype, out.shape);
        Ok(())
    },
    grad: Grad::Op(&GRAD),
    cpu,
    traits: OpTraits::plain(),
};

pub static GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "pad_grad",
        inputs: &[one("X"), one("Out@GRAD")],
        outputs: &[one("X@GRAD")],
        attrs: &[required("paddings", AttrKind::Ints)],
    },
    infer: |i| {
        check_like(i, "Out@GRAD", padded(i)?)?;
        let x = i.input("X")?;
        i.set("X@GRAD", x.dtype, x.shape);
        Ok(())
    },
    grad: Grad::None,
    cpu: grad_cpu,
    traits: OpTraits { shape_only: &["X"], ..OpTraits::plain() },
};

/// Returns type and shape of the padded X.
fn padded(i: &InferCtx<'_>) -> Result<Meta> {
    let x = i.input("X")?;
    let paddings = i.op.attr_ints("paddings");
    if paddings.len() != 2 * x.shape.rank() || paddings.iter().any(|it| *it < 0) {
        return Err(Error::invalid("attribute 'paddings' of pad does not fit X")
            .expected(format!("{} numbers of 0 or more for X {}", 2 * x.shape.rank(), x.shape))
            .got(format!("{paddings:?}")));
    }
    let mut shape = x.shape;
    for (dim, pair) in shape.dims_mut().iter_mut().zip(paddings.chunks(2)) {
        *dim = if *dim < 0 { -1 } else { dim.saturating_add(pair[0]).saturating_add(pair[1]) };
    }
    Ok(Meta::dense(x.dtype, shape))
}

/// Returns the offset and strides of X inside the padded tensor.
fn middle(p: &PrepareCtx<'_>, padded: &Shape) -> (usize, Vec<isize>) {
    let strides = row_major(&sizes(padded));
    let before = p.op.attr_ints("paddings").iter().step_by(2);
    let at = before.zip(&strides).map(|(count, stride)| *count as usize * *stride as usize).sum();
    (at, strides)
}

/// Elements per task.
const GRAIN: usize = 16 * 1024;

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    check_row_major(p)?;
    let (x, out) = (p.input("X"), p.output("Out"));
    let (at, strides) = middle(p, &out.shape);
    let lens = sizes(&x.shape);
    let copy = Strided::new(&lens, (0, &row_major(&lens)), (at, &strides));
    let bytes = element_bytes(x.dtype, p.op.attr_float("pad_value"));
    by_width!(x.dtype, T => {
        let mut own = [0; size_of::<T>()];
        own.copy_from_slice(&bytes[..size_of::<T>()]);
        let value = T::from_ne_bytes(own);
        Ok(Kernel::infallible(move |k| {
            let out = k.out(0).into_bits::<T>();
            k.pool.run_parts(out, GRAIN, |_, part| part.fill(value));
            copy.run(k.pool, k.arg(0).bits(), out);
        }))
    })
}

fn grad_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    check_row_major(p)?;
    let (x, dout) = (p.input("X"), p.input("Out@GRAD"));
    let (at, strides) = middle(p, &dout.shape);
    let lens = sizes(&x.shape);
    let copy = Strided::new(&lens, (at, &strides), (0, &row_major(&lens)));
    by_width!(x.dtype, T => {
        Ok(Kernel::infallible(move |k| {
            copy.run::<T>(k.pool, k.arg(1).bits(), k.out(0).into_bits());
        }))
    })
}
