//! Number of samples whose label is among the top-k Indices [N, k]: Correct and Total [1] i32,
//! Accuracy [1] f32. Out, the top-k values, is part of the documented signature and is not read.

use super::{check_labels, labels, labels_scratch_len};
use crate::prelude::*;
use fleet_kernels::metrics::accuracy_count;

const INDICES: usize = 1;
const LABEL: usize = 2;

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "accuracy",
        inputs: &[one("Out"), one("Indices"), one("Label")],
        outputs: &[one("Accuracy"), one("Correct"), one("Total")],
        attrs: &[],
    },
    infer: |i| {
        i.check_dtype("Indices", &[DType::I64])?;
        let indices = i.check_rank("Indices", 2)?;
        check_labels(i, indices[0])?;
        i.set("Accuracy", DType::F32, [1]);
        i.set("Correct", DType::I32, [1]);
        i.set("Total", DType::I32, [1]);
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| {
        let shape = p.input("Indices").shape;
        let (rows, width) = (shape.at(0), shape.at(1));
        let kernel = Kernel::infallible(move |k| {
            let correct = accuracy_count(k.input(INDICES), width, labels(k, LABEL));
            k.output::<f32>(0)[0] = (correct as f64 / rows.max(1) as f64) as f32;
            k.output::<i32>(1)[0] = correct as i32;
            k.output::<i32>(2)[0] = rows as i32;
        });
        Ok(kernel.scratch::<i64>(labels_scratch_len(p)))
    },
    traits: OpTraits { shape_only: &["Out"], ..OpTraits::plain() },
};
