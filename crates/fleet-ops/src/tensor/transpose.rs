//! `transpose2`: permutes the dimensions, for any element type. The gradient is the inverse
//! permutation.

use crate::prelude::*;
use crate::rules::{by_width, check_row_major, sizes};
use fleet_ir::Op;
use fleet_kernels::transpose::{Permute, permute};

/// The op `transpose2`.
pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "transpose2",
        inputs: &[one("X")],
        outputs: &[one("Out")],
        attrs: &[required("axis", AttrKind::Ints)],
    },
    infer: |i| {
        let x = i.input("X")?;
        let order = order(i.op, &x.shape)?;
        let dims: Vec<i64> = order.iter().map(|axis| x.shape[*axis]).collect();
        i.set("Out", x.dtype, Shape::new(&dims)?);
        Ok(())
    },
    grad: Grad::Rule(|g| {
        let (x, dy) = (g.x("X")?, g.dy("Out")?);
        let order = order(&g.op, &g.meta(x).shape)?;
        let mut back = vec![0; order.len()];
        order.iter().enumerate().for_each(|(to, from)| back[*from] = to as i64);
        if let Some(dx) = g.dx("X")? {
            g.op(&DEF).input("X", dy).attr("axis", back).output("Out", dx).done()?;
        }
        Ok(())
    }),
    cpu,
    traits: OpTraits {
        divide: |d| {
            let order = order(d.op, &d.shape("X")?)?;
            let to = d.along("X").and_then(|along| {
                order.iter().position(|from| *from == along.axis).map(|axis| along.at(axis))
            });
            match to {
                Some(along) => {
                    d.keep_padding();
                    d.set_part("Out", along)
                }
                None => Err(d.unsupported("has no divided input")),
            }
        },
        ..OpTraits::amp(AmpClass::Gray)
    },
};

/// Returns the dimension of X for each dimension of Out.
fn order(op: &Op, x: &Shape) -> Result<Vec<usize>> {
    let requested = op.attr_ints("axis");
    let order: Vec<usize> = requested.iter().map(|axis| x.axis(*axis)).collect::<Result<_>>()?;
    let mut sorted = order.clone();
    sorted.sort_unstable();
    if !sorted.into_iter().eq(0..x.rank()) {
        return Err(Error::invalid("attribute 'axis' of transpose2 is not a permutation")
            .expected(format!("each of the {} dimensions of X {x} once", x.rank()))
            .got(format!("{requested:?}")));
    }
    Ok(order)
}

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    check_row_major(p)?;
    let x = p.input("X");
    let plan = Permute::new(&sizes(&x.shape), &order(p.op, &x.shape)?)?;
    by_width!(x.dtype, T => {
        Ok(Kernel::infallible(move |k| {
            permute(k.pool, &plan, k.arg(0).bits::<T>(), k.out(0).into_bits());
        }))
    })
}
