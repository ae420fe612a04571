//! `fake_init`: replaces the initialization of a table that is stored on servers. `shape` is the
//! shape of the table. `Out` has none of its rows.

use crate::prelude::*;

/// The op `fake_init`.
pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "fake_init",
        inputs: &[],
        outputs: &[one("Out")],
        attrs: &[required("shape", AttrKind::Ints), attr("table_id", Int(0))],
    },
    infer: |i| {
        let mut shape = Shape::new(i.op.attr_ints("shape"))?;
        if shape.rank() > 0 {
            shape.dims_mut()[0] = 0;
        }
        i.set("Out", DType::F32, shape);
        Ok(())
    },
    grad: Grad::None,
    cpu: |_| Ok(Kernel::infallible(|_| {})),
    traits: OpTraits { effect: true, ..OpTraits::plain() },
};
