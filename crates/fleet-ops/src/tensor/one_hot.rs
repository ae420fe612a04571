//! `one_hot_v2`: a row of zeros per number, with a one at that index. `shape`: the dimensions of a
//! tensor as i32. No gradients.

use crate::prelude::*;
use crate::tensor::gather::Indices;

pub static ONE_HOT: OpDef = OpDef {
    spec: OpSpec {
        name: "one_hot_v2",
        inputs: &[one("X")],
        outputs: &[one("Out")],
        attrs: &[
            required("depth", AttrKind::Int),
            attr("dtype", DTypeOf(DType::F32)),
            attr("allow_out_of_range", Bool(false)),
        ],
    },
    infer: |i| {
        let (x, depth) = (i.input("X")?, i.op.attr_int("depth"));
        i.check_dtype("X", &[DType::I32, DType::I64])?;
        if depth < 1 {
            return Err(Error::invalid("attribute 'depth' of one_hot_v2 is out of range")
                .expected("1 or more")
                .got(depth));
        }
        let mut shape = x.shape;
        shape.push(depth)?;
        i.set("Out", i.op.attr_dtype("dtype"), shape);
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| {
        let (dtype, depth) = (p.output("Out").dtype, p.op.attr_usize("depth"));
        let lenient = p.op.attr_bool("allow_out_of_range");
        let (one, size) = (crate::rules::element_bytes(dtype, 1.0), dtype.size());
        Ok(Kernel::new(move |k| {
            let index = Indices::of(k, 0);
            if !lenient {
                index.check(depth, "one_hot_v2")?;
            }
            let out = k.out(0).into_bytes();
            crate::tensor::slice::zero(k.pool, out);
            for i in 0..index.len() {
                let at = index.at(i);
                if (0..depth as i64).contains(&at) {
                    let start = (i * depth + at as usize) * size;
                    out[start..start + size].copy_from_slice(&one[..size]);
                }
            }
            Ok(())
        }))
    },
    traits: OpTraits::plain(),
};

pub static SHAPE: OpDef = OpDef {
    spec: OpSpec { name: "shape", inputs: &[one("Input")], outputs: &[one("Out")], attrs: &[] },
    infer: |i| {
        let rank = i.input("Input")?.shape.rank() as i64;
        i.set("Out", DType::I32, [rank]);
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| {
        let dims: Vec<i32> = p.input("Input").shape.iter().map(|dim| *dim as i32).collect();
        Ok(Kernel::infallible(move |k| k.output::<i32>(0).copy_from_slice(&dims)))
    },
    traits: OpTraits { shape_only: &["Input"], ..OpTraits::plain() },
};
