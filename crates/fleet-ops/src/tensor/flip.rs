//! `flip` reverses dimensions; `roll` shifts them cyclically. Any element type. The gradients are
//! the inverse ops.

use crate::prelude::*;
use crate::rules::{axes_of, by_width, check_row_major, sizes};
use fleet_kernels::strided::{Strided, row_major};

pub static FLIP: OpDef = OpDef {
    spec: OpSpec {
        name: "flip",
        inputs: &[one("X")],
        outputs: &[one("Out")],
        attrs: &[required("axis", AttrKind::Ints)],
    },
    infer: |i| {
        let x = i.input("X")?;
        axes_of(i.op.attr_ints("axis"), &x.shape)?;
        i.set("Out", x.dtype, x.shape);
        Ok(())
    },
    grad: Grad::Rule(|g| {
        let (dy, axis) = (g.dy("Out")?, g.op.attr_ints("axis").to_vec());
        if let Some(dx) = g.dx("X")? {
            g.op(&FLIP).input("X", dy).attr("axis", axis).output("Out", dx).done()?;
        }
        Ok(())
    }),
    cpu: flip_cpu,
    traits: OpTraits::plain(),
};

fn flip_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let x = p.input("X").shape;
    let lens = sizes(&x);
    let (own, mut from, mut at) = (row_major(&lens), row_major(&lens), 0);
    if !x.is_empty() {
        for axis in axes_of(p.op.attr_ints("axis"), &x)? {
            at += (lens[axis] - 1) * own[axis] as usize;
            from[axis] = -own[axis];
        }
    }
    copies(p, vec![Strided::new(&lens, (at, &from), (0, &own))])
}

pub static ROLL: OpDef = OpDef {
    spec: OpSpec {
        name: "roll",
        inputs: &[one("X")],
        outputs: &[one("Out")],
        attrs: &[required("shifts", AttrKind::Ints), attr("axis", Ints(&[]))],
    },
    infer: |i| {
        let x = i.input("X")?;
        let (shifts, axes) = (i.op.attr_ints("shifts"), i.op.attr_ints("axis"));
        if shifts.len() != axes.len().max(1) {
            return Err(Error::invalid("attributes of roll differ in length")
                .expected("a shift for each axis, or one shift and no axis")
                .got(format!("{} shifts, {} axes", shifts.len(), axes.len())));
        }
        axes_of(axes, &x.shape)?;
        i.set("Out", x.dtype, x.shape);
        Ok(())
    },
    grad: Grad::Rule(|g| {
        let (dy, axis) = (g.dy("Out")?, g.op.attr_ints("axis").to_vec());
        let back: Vec<i64> = g.op.attr_ints("shifts").iter().map(|it| it.wrapping_neg()).collect();
        if let Some(dx) = g.dx("X")? {
            g.op(&ROLL)
                .input("X", dy)
                .attr("shifts", back)
                .attr("axis", axis)
                .output("Out", dx)
                .done()?;
        }
        Ok(())
    }),
    cpu: roll_cpu,
    traits: OpTraits::plain(),
};

/// Splits each shifted dimension in two and copies every combination of halves.
fn roll_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let x = p.input("X").shape;
    let (shifts, axes) = (p.op.attr_ints("shifts"), p.op.attr_ints("axis"));
    // Without axes, the tensor is treated as one row.
    let lens = if axes.is_empty() { vec![x.len()] } else { sizes(&x) };
    let mut moved = vec![0; lens.len()];
    if !x.is_empty() {
        for (index, shift) in shifts.iter().enumerate() {
            let axis = if axes.is_empty() { 0 } else { x.axis(axes[index])? };
            moved[axis] = (moved[axis] + shift.rem_euclid(lens[axis] as i64) as usize) % lens[axis];
        }
    }
    let strides = row_major(&lens);
    // Lengths, source offset and target offset of the blocks so far.
    let mut blocks = vec![(lens.clone(), 0, 0)];
    for (axis, shift) in moved.iter().enumerate().filter(|(_, shift)| **shift > 0) {
        let stride = strides[axis] as usize;
        blocks = blocks
            .into_iter()
            .flat_map(|(lens, from, to)| {
                let (mut head, mut tail) = (lens.clone(), lens.clone());
                head[axis] = lens[axis] - shift;
                tail[axis] = *shift;
                [
                    (head, from, to + shift * stride),
                    (tail, from + (lens[axis] - shift) * stride, to),
                ]
            })
            .collect();
    }
    let copy = |(lens, from, to): (Vec<usize>, usize, usize)| {
        Strided::new(&lens, (from, &strides), (to, &strides))
    };
    copies(p, blocks.into_iter().map(copy).collect())
}

fn copies(p: &PrepareCtx<'_>, copies: Vec<Strided>) -> Result<Kernel> {
    check_row_major(p)?;
    by_width!(p.input("X").dtype, T => {
        Ok(Kernel::infallible(move |k| {
            let (x, out) = (k.arg(0).bits::<T>(), k.out(0).into_bits());
            copies.iter().for_each(|copy| copy.run(k.pool, x, out));
        }))
    })
}
