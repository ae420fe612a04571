//! `nonzero_rows`: the rows of a matrix that have an element other than zero, as sparse rows, in
//! ascending order. f32. No gradient.
//!
//! Gradient merge sums sparse gradients in a dense accumulator. Update rules that skip absent rows
//! need the sum as sparse rows again.

use crate::prelude::*;

/// The op `nonzero_rows`.
pub static DEF: OpDef = OpDef {
    spec: OpSpec { name: "nonzero_rows", inputs: &[one("X")], outputs: &[one("Out")], attrs: &[] },
    infer: |i| {
        i.check_dtype("X", &[DType::F32])?;
        let shape = i.check_rank("X", 2)?;
        i.push("Out", Meta::sparse(DType::F32, shape, shape.dims()[0].max(0) as usize));
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| {
        let width = p.input("X").shape.at(1).max(1);
        Ok(Kernel::infallible(move |k| {
            let (x, mut out) = (k.input::<f32>(0), k.out(0));
            let mut count = 0;
            for (id, row) in x.chunks_exact(width).enumerate() {
                if row.iter().any(|value| *value != 0.0) {
                    out.row_ids_mut()[count] = id as i64;
                    out.slice_mut::<f32>()[count * width..][..width].copy_from_slice(row);
                    count += 1;
                }
            }
            out.set_row_count(count);
        }))
    },
    traits: OpTraits { spread: Spread::Mean, ..OpTraits::plain() },
};
