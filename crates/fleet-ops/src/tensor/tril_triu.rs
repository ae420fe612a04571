//! `tril_triu`: the lower (or upper) triangle of the last two dimensions, zeros elsewhere. Any
//! element type; the gradient is the same triangle.

use crate::prelude::*;
use crate::rules::{by_width, check_row_major};

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
    let rows = x.shape.product(0..rank - 1);
    let (diagonal, lower) = (p.op.attr_int("diagonal"), p.op.attr_bool("lower"));
    by_width!(x.dtype, T => {
        Ok(Kernel::new(move |k| {
            let x = k.arg(0).as_bits_ptr::<T>(rows * width) as usize;
            let out = k.out_arg(0).as_bits_ptr::<T>(rows * width) as usize;
            k.pool.run_ranges(rows, (GRAIN / width.max(1)).max(1), |range| {
                for row in range {
                    // Columns up to here belong to the lower triangle; from here on, to the upper.
                    let shift = if lower { 1 } else { 0 };
                    let edge = ((row % height) as i64).saturating_add(diagonal).saturating_add(shift);
                    let edge = edge.clamp(0, width as i64) as usize;
                    // SAFETY: rows are disjoint and inside both tensors. Their lengths were checked
                    // above, and the tensors are equal or disjoint.
                    unsafe {
                        let from = (x as *const T).add(row * width);
                        let to = (out as *mut T).add(row * width);
                        let (kept, cleared) =
                            if lower { (0..edge, edge..width) } else { (edge..width, 0..edge) };
                        std::ptr::copy(from.add(kept.start), to.add(kept.start), kept.len());
                        std::slice::from_raw_parts_mut(to.add(cleared.start), cleared.len()).fill(0);
                    }
                }
            });
            Ok(())
        }))
    })
}
