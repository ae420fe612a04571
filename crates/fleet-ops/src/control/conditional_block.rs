//! Runs its sub-block when `Cond` (one boolean) is true.
//!
//! The planner and the interpreter know this op by name and run the block themselves; there is no
//! kernel. What the block touches outside of it is read off its ops. It has no gradient rule of its
//! own: the backward pass writes a conditional block of the gradients of its ops.

use crate::prelude::*;

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "conditional_block",
        inputs: &[one("Cond")],
        outputs: &[],
        attrs: &[required("sub_block", AttrKind::Block)],
    },
    infer: |i| {
        let cond = i.input("Cond")?;
        if cond.dtype != DType::Bool || cond.shape.numel() != Some(1) {
            return Err(i
                .error("Cond", "is no condition")
                .expected("bool of one element")
                .got(format!("{}{}", cond.dtype, cond.shape)));
        }
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| {
        Err(Error::internal("a conditional block is run by the executor, not by a kernel")
            .got(p.op.name()))
    },
    traits: OpTraits { effect: true, ..OpTraits::plain() },
};
