//! `assign`: a copy, of any type, dense or sparse rows.

use crate::prelude::*;

/// The op `assign`.
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
    cpu: |_| Ok(copied(0)),
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

/// Returns the kernel that copies an input to the output.
pub(crate) fn copied(input: usize) -> Kernel {
    Kernel::infallible(move |k| {
        copy(k, input, 0);
    })
}

/// Copies an input to an output of the same size, unless they share memory. Returns the output.
pub(crate) fn copy<'a>(k: &KernelCtx<'a>, input: usize, output: usize) -> Out<'a> {
    let (from, mut out) = (k.arg(input), k.out(output));
    out.copy_row_ids(from);
    if !out.shares_memory_with(&from) {
        let (used, from) = (out.bytes_in_use(), from.bytes());
        k.pool.run_parts(&mut out.bytes_mut()[..used], GRAIN, |start, part| {
            part.copy_from_slice(&from[start..][..part.len()]);
        });
    }
    out
}
