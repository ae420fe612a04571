//! `cast`: converts the elements to another type. Floats are truncated towards zero for integers.
//! Any nonzero number becomes a true bool. The gradient is cast back.

use crate::divide;
use crate::prelude::*;
use fleet_kernels::cast::cast;
use fleet_tensor::{Convert, Element, bf16, f16};

/// Elements per task.
const GRAIN: usize = 16 * 1024;

/// The op `cast`.
pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "cast",
        inputs: &[one("X")],
        outputs: &[one("Out")],
        attrs: &[fleet_ir::required("out_dtype", AttrKind::DType)],
    },
    infer: |i| {
        let x = i.input("X")?;
        i.set("Out", i.op.attr_dtype("out_dtype"), x.shape);
        Ok(())
    },
    grad: Grad::Rule(|g| {
        let (x, dy) = (g.x("X")?, g.dy("Out")?);
        let dtype = g.meta(x).dtype;
        if let Some(dx) = g.dx("X")? {
            g.op(&DEF).input("X", dy).attr("out_dtype", dtype).output("Out", dx).done()?;
        }
        Ok(())
    }),
    cpu,
    traits: OpTraits {
        elementwise: true,
        spread: Spread::Mean,
        divide: divide::padded_elementwise,
        ..OpTraits::amp(AmpClass::Gray)
    },
};

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let (from, to) = (p.input("X").dtype, p.output("Out").dtype);
    match (from, to) {
        (from, to) if from == to => Ok(Kernel::infallible(|k| k.out(0).copy_from(k.arg(0)))),
        (DType::F16, DType::F32) => {
            Ok(Kernel::infallible(|k| cast(k.pool, k.input::<f16>(0), k.output::<f32>(0))))
        }
        (DType::BF16, DType::F32) => {
            Ok(Kernel::infallible(|k| cast(k.pool, k.input::<bf16>(0), k.output::<f32>(0))))
        }
        (DType::F32, DType::F16) => {
            Ok(Kernel::infallible(|k| cast(k.pool, k.input::<f32>(0), k.output::<f16>(0))))
        }
        (DType::F32, DType::BF16) => {
            Ok(Kernel::infallible(|k| cast(k.pool, k.input::<f32>(0), k.output::<bf16>(0))))
        }
        _ => Ok(from_type(from, to)),
    }
}

fn from_type(from: DType, to: DType) -> Kernel {
    match from {
        DType::Bool | DType::U8 => to_type::<u8>(to),
        DType::I8 => to_type::<i8>(to),
        DType::I16 => to_type::<i16>(to),
        DType::I32 => to_type::<i32>(to),
        DType::I64 => to_type::<i64>(to),
        DType::F16 => to_type::<f16>(to),
        DType::BF16 => to_type::<bf16>(to),
        DType::F32 => to_type::<f32>(to),
        DType::F64 => to_type::<f64>(to),
    }
}

fn to_type<A: Convert>(to: DType) -> Kernel {
    match to {
        DType::Bool => convert::<A, u8>(|x| x.widest().truth()),
        DType::U8 => convert::<A, u8>(|x| u8::of(x.widest())),
        DType::I8 => convert::<A, i8>(|x| i8::of(x.widest())),
        DType::I16 => convert::<A, i16>(|x| i16::of(x.widest())),
        DType::I32 => convert::<A, i32>(|x| i32::of(x.widest())),
        DType::I64 => convert::<A, i64>(|x| i64::of(x.widest())),
        DType::F16 => convert::<A, f16>(|x| f16::of(x.widest())),
        DType::BF16 => convert::<A, bf16>(|x| bf16::of(x.widest())),
        DType::F32 => convert::<A, f32>(|x| f32::of(x.widest())),
        DType::F64 => convert::<A, f64>(|x| f64::of(x.widest())),
    }
}

fn convert<A: Element, B: Element>(map: impl Fn(A) -> B + Send + Sync + 'static) -> Kernel {
    Kernel::infallible(move |k| {
        let x = k.input::<A>(0);
        k.pool.run_parts(k.output::<B>(0), GRAIN, |start, y| {
            y.iter_mut().zip(&x[start..]).for_each(|(y, x)| *y = map(*x));
        });
    })
}
