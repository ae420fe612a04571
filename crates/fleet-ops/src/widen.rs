//! Half-precision kernels made from single-precision ones. Operands are widened into scratch and
//! results are rounded back. The arithmetic is in f32, as mixed precision requires.

use crate::{Arg, Kernel, KernelCtx, Meta, PrepareCtx};
use fleet_base::Result;
use fleet_kernels::cast::cast;
use fleet_kernels::pool::Pool;
use fleet_tensor::{ALIGN, DType, bf16, f16};

/// Returns whether any operand is f16 or bf16.
pub(crate) fn has_half(p: &PrepareCtx<'_>) -> bool {
    p.inputs.iter().chain(p.outputs).flatten().any(|meta| is_half(meta.dtype))
}

/// Returns whether all operands are bf16, which some machines multiply natively.
pub(crate) fn is_bf16(p: &PrepareCtx<'_>) -> bool {
    p.inputs.iter().chain(p.outputs).flatten().all(|meta| meta.dtype == DType::BF16)
}

/// Returns the kernel that `cpu` makes for f32, run on copies of the f16 and bf16 operands.
pub(crate) fn through_f32(
    p: &PrepareCtx<'_>,
    cpu: fn(&PrepareCtx<'_>) -> Result<Kernel>,
) -> Result<Kernel> {
    let wide = |slots: &[Vec<Meta>]| -> Vec<Vec<Meta>> {
        let widened = |meta: &Meta| match is_half(meta.dtype) {
            true => Meta { dtype: DType::F32, ..*meta },
            false => *meta,
        };
        slots.iter().map(|slot| slot.iter().map(widened).collect()).collect()
    };
    let inner = cpu(&PrepareCtx {
        op: p.op,
        inputs: &wide(p.inputs),
        outputs: &wide(p.outputs),
        input_layouts: p.input_layouts,
        output_layouts: p.output_layouts,
        threads: p.threads,
        seed: p.seed,
        services: p.services,
    })?;
    let plan = Plan::new(p, inner.scratch_bytes);
    let bytes = plan.bytes;
    Ok(Kernel::new(move |k| plan.run(k, &inner)).scratch::<u8>(bytes))
}

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// Offsets within scratch: the inner kernel's scratch, the copies, the arguments, their slots.
struct Plan {
    inner_bytes: usize,
    /// Offset of the copy of each variable, inputs first. `None` for variables that need no copy.
    copies: Vec<Option<usize>>,
    args_at: usize,
    slots_at: usize,
    bytes: usize,
}

impl Plan {
    fn new(p: &PrepareCtx<'_>, inner_bytes: usize) -> Plan {
        let mut at = inner_bytes.next_multiple_of(ALIGN);
        let mut take = |bytes: usize| {
            let start = at;
            at += bytes.next_multiple_of(ALIGN);
            start
        };
        let metas = p.inputs.iter().chain(p.outputs).flatten();
        let layouts = p.input_layouts.iter().chain(p.output_layouts).flatten();
        let copies: Vec<Option<usize>> = metas
            .zip(layouts)
            .map(|(meta, layout)| {
                let len = meta.physical_len(*layout);
                is_half(meta.dtype).then(|| take(len * size_of::<f32>()))
            })
            .collect();
        let args_at = take(copies.len() * size_of::<Arg>());
        let slots_at = take((p.inputs.len() + p.outputs.len()) * size_of::<&[Arg]>());
        Plan { inner_bytes, copies, args_at, slots_at, bytes: at }
    }

    fn run(&self, k: &KernelCtx<'_>, inner: &Kernel) -> Result<()> {
        assert!(self.bytes <= k.scratch_bytes, "scratch is smaller than the kernel needs");
        // SAFETY: both addresses lie inside the requested scratch, are aligned to 64 bytes and do
        // not overlap. They are written below before they are read.
        let (args, slots) = unsafe {
            let args: *mut Arg = k.scratch.add(self.args_at).cast();
            let slots: *mut &[Arg] = k.scratch.add(self.slots_at).cast();
            (args, slots)
        };
        let mut index = 0;
        for (slot, vars) in k.inputs.iter().chain(k.outputs).enumerate() {
            let first = index;
            for arg in *vars {
                let mut arg = *arg;
                if let Some(at) = self.copies[index] {
                    arg.dtype = DType::F32;
                    // SAFETY: as above. There is room for as many floats as the argument has
                    // elements; `widen` and `narrow` check this.
                    unsafe { arg.bind(k.scratch.add(at), None) };
                    if slot < k.inputs.len() {
                        widen(k.pool, &vars[index - first], &arg);
                    }
                }
                // SAFETY: there is room for every variable.
                unsafe { args.add(index).write(arg) };
                index += 1;
            }
            // SAFETY: these arguments were just written; there is room for every slot.
            unsafe {
                let made = std::slice::from_raw_parts(args.add(first), index - first);
                slots.add(slot).write(made);
            }
        }
        // SAFETY: every slot was written above.
        let all = unsafe {
            std::slice::from_raw_parts(slots.cast_const(), k.inputs.len() + k.outputs.len())
        };
        let (inputs, outputs) = all.split_at(k.inputs.len());
        let inner_k = KernelCtx {
            inputs,
            outputs,
            scratch: k.scratch,
            scratch_bytes: self.inner_bytes,
            pool: k.pool,
            step: k.step,
            seed: k.seed,
            talked: k.talked,
        };
        (inner.run)(&inner_k)?;
        for (to, from) in k.outputs.iter().zip(outputs) {
            for (to, from) in to.iter().zip(from.iter()) {
                if is_half(to.dtype) {
                    narrow(k.pool, from, to);
                }
            }
        }
        Ok(())
    }
}

fn widen(pool: &Pool, from: &Arg, to: &Arg) {
    let out = to.slice_mut::<f32>();
    match from.dtype {
        DType::F16 => cast(pool, from.slice::<f16>(), out),
        _ => cast(pool, from.slice::<bf16>(), out),
    }
}

fn narrow(pool: &Pool, from: &Arg, to: &Arg) {
    let x = from.slice::<f32>();
    match to.dtype {
        DType::F16 => cast(pool, x, to.slice_mut::<f16>()),
        _ => cast(pool, x, to.slice_mut::<bf16>()),
    }
}
