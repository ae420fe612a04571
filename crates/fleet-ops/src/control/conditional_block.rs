//! `conditional_block`: runs its sub-block if `Cond` (one boolean) is true.
//!
//! The planner and the interpreter recognize this op by name and run the block themselves, so there
//! is no kernel. The inputs and outputs of the block follow from its ops. The op has no gradient
//! rule. The backward pass emits a conditional block with the gradients of its ops.

use crate::prelude::*;

/// The op `conditional_block`.
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
                .error("Cond", "is not a condition")
                .expected("bool of one element")
                .got(format!("{}{}", cond.dtype, cond.shape)));
        }
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| Err(Error::internal("conditional_block has no kernel").got(p.op.name())),
    traits: OpTraits { effect: true, ..OpTraits::plain() },
};
