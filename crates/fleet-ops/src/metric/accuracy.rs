//! Number of samples whose label is among the top-k Indices [N, k]: Correct and Total [1] i32,
//! Accuracy [1] f32. Out, the top-k values, is part of the documented signature and is not read.

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
        i.check_dtype("Label", &[DType::I64, DType::I32])?;
        let indices = i.check_rank("Indices", 2)?;
        let label = i.input("Label")?.shape;
        let rows = indices[0];
        if !label.agrees(&Shape::from([rows, 1])) && !label.agrees(&Shape::from([rows])) {
            return Err(i
                .error("Label", "does not fit the predictions")
                .expected(format!("[{rows}, 1] or [{rows}]"))
                .got(label));
        }
        i.set("Accuracy", DType::F32, [1]);
        i.set("Correct", DType::I32, [1]);
        i.set("Total", DType::I32, [1]);
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| {
        let shape = p.input("Indices").shape;
        let (rows, width) = (shape.at(0), shape.at(1));
        let is_wide = p.input("Label").dtype == DType::I64;
        let kernel = Kernel::new(move |k| {
            let labels = match is_wide {
                true => k.input::<i64>(LABEL),
                false => {
                    let labels = &mut k.scratch::<i64>()[..rows];
                    for (to, from) in labels.iter_mut().zip(k.input::<i32>(LABEL)) {
                        *to = i64::from(*from);
                    }
                    labels
                }
            };
            let correct = accuracy_count(k.input(INDICES), width, labels);
            k.output::<f32>(0)[0] = (correct as f64 / rows.max(1) as f64) as f32;
            k.output::<i32>(1)[0] = correct as i32;
            k.output::<i32>(2)[0] = rows as i32;
            Ok(())
        });
        Ok(if is_wide { kernel } else { kernel.scratch::<i64>(rows) })
    },
    traits: OpTraits { shape_only: &["Out"], ..OpTraits::plain() },
};
