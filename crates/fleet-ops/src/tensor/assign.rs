//! `assign`: a copy, of any type, dense or sparse rows.

use crate::prelude::*;

pub static DEF: OpDef = OpDef {
    spec: OpSpec { name: "assign", inputs: &[one("X")], outputs: &[one("Out")], attrs: &[] },
    infer: |i| {
        let x = i.input("X")?;
        i.push("Out", x);
        Ok(())
    },
    grad: Grad::Rule(|g| {
        let (x, dy) = (g.x("X")?, g.dy("Out")?);
        match g.emit.program.var(x).is_parameter() {
            true => {
                if let Some(dx) = g.dx("X")? {
                    g.op(&DEF).input("X", dy).output("Out", dx).done()?;
                }
            }
            false => g.alias_grad(x, dy),
        }
        Ok(())
    }),
    cpu: |_| {
        Ok(Kernel::new(|k| {
            copy(k, 0, 0);
            Ok(())
        }))
    },
    traits: OpTraits {
        inplace: &[("Out", "X")],
        sparse: &["X"],
        elementwise: true,
        spread: Spread::Mean,
        ..OpTraits::plain()
    },
};

/// Bytes per task.
const GRAIN: usize = 64 * 1024;

/// Copies an input to an output of the same size, unless they share memory.
pub(crate) fn copy(k: &KernelCtx<'_>, input: usize, output: usize) {
    let (from, to) = (k.arg(input), k.out_arg(output));
    if from.shares_memory_with(to) {
        return;
    }
    let bytes = from.bytes();
    let out = Shareable::new(to.bytes_mut());
    let used = match from.rows {
        None => bytes.len(),
        Some(_) => from.row_count() * from.row_len() * from.dtype.size(),
    };
    k.pool.run_ranges(used, GRAIN, |range| {
        // SAFETY: ranges are disjoint; both sides have the same size.
        let out = unsafe { out.slice(range.start, range.len()) };
        out.copy_from_slice(&bytes[range]);
    });
    if from.rows.is_some() {
        to.row_ids_mut()[..from.row_count()].copy_from_slice(from.row_ids());
        to.set_row_count(from.row_count());
    }
}
