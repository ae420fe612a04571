//! `tril_triu`: the lower (or upper) triangle of the last two dimensions, zeros elsewhere. Any
//! element type; the gradient is the same triangle.

use crate::prelude::*;
use crate::rules::{by_width, check_row_major};
use crate::tensor::assign::copy;

/// Elements per task.
const GRAIN: usize = 16 * 1024;

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "tril_triu",
        inputs: &[one("X")],
        outputs: &[one("Out")],
        attrs: &[attr("diagonal", Int(0)), attr("lower", Bool(true))],
    },
    infer: |i| {
        let x = i.input("X")?;
        if x.shape.rank() < 2 {
            return Err(i
                .error("X", "has the wrong number of dimensions")
                .expected("2 or more")
                .got(x.shape.rank()));
        }
        i.set("Out", x.dtype, x.shape);
        Ok(())
    },
    grad: Grad::Rule(|g| {
        let dy = g.dy("Out")?;
        let (diagonal, lower) = (g.op.attr_int("diagonal"), g.op.attr_bool("lower"));
        if let Some(dx) = g.dx("X")? {
            g.op(&DEF)
                .input("X", dy)
                .attr("diagonal", diagonal)
                .attr("lower", lower)
                .output("Out", dx)
                .done()?;
        }
        Ok(())
    }),
    cpu,
    traits: OpTraits { inplace: &[("Out", "X")], ..OpTraits::plain() },
};

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    check_row_major(p)?;
    let x = p.input("X");
    let rank = x.shape.rank();
    let (height, width) = (x.shape.at(rank - 2), x.shape.at(rank - 1));
    let (diagonal, lower) = (p.op.attr_int("diagonal"), p.op.attr_bool("lower"));
    by_width!(x.dtype, T => {
        Ok(Kernel::infallible(move |k| {
            let out = copy(k, 0, 0);
            let row_len = width.max(1);
            let grain = (GRAIN / row_len).max(1) * row_len;
            k.pool.run_parts(out.into_bits::<T>(), grain, |start, part| {
                for (index, to) in part.chunks_exact_mut(row_len).enumerate() {
                    let row = start / row_len + index;
                    // Columns up to here belong to the lower triangle; from here on, to the upper.
                    let diagonal = diagonal.saturating_add(i64::from(lower));
                    let edge = ((row % height) as i64).saturating_add(diagonal);
                    let edge = edge.clamp(0, width as i64) as usize;
                    to[if lower { edge..width } else { 0..edge }].fill(0);
                }
            });
        }))
    })
}
