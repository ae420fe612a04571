//! Half-precision kernels made from single-precision ones. Operands are widened into scratch and
//! results are rounded back. The arithmetic is in f32, as mixed precision requires.

use crate::{Kernel, KernelCtx, Meta, PrepareCtx};
use fleet_base::Result;
use fleet_base::sync::lock;
use fleet_kernels::cast::cast;
use fleet_kernels::pool::Pool;
use fleet_tensor::{
    ALIGN, Arg, ArgList, DType, Layout, Out, View, bf16, f16, view_as, view_as_mut,
};
use std::sync::Mutex;

/// Element types of images and activations.
pub(crate) const FLOATS: &[DType] = &[DType::F32, DType::F16, DType::BF16];

/// Returns the kernel that `cpu` makes. If an operand has half precision, it runs on f32 copies.
pub(crate) fn any_float(
    p: &PrepareCtx<'_>,
    cpu: fn(&PrepareCtx<'_>) -> Result<Kernel>,
) -> Result<Kernel> {
    if has_half(p) { through_f32(p, cpu) } else { cpu(p) }
}

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
    let widened = Widened::new(p, inner);
    let bytes = widened.bytes;
    Ok(Kernel::new(move |k| widened.run(k)).scratch::<u8>(bytes))
}

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// A kernel for f32, and the copies of its operands in scratch, after its own scratch.
struct Widened {
    inner: Kernel,
    args: Mutex<ArgList>,
    /// Offset of the copy of each variable, inputs first. `None` for variables that need no copy.
    copies: Vec<Option<usize>>,
    bytes: usize,
}

impl Widened {
    fn new(p: &PrepareCtx<'_>, inner: Kernel) -> Widened {
        let mut bytes = inner.scratch_bytes.next_multiple_of(ALIGN);
        let mut copies = Vec::new();
        let mut args = |slots: &[Vec<Meta>], layouts: &[Vec<Layout>]| -> Vec<Vec<Arg>> {
            let mut arg = |(meta, layout): (&Meta, &Layout)| {
                let is_half = is_half(meta.dtype);
                copies.push(is_half.then_some(bytes));
                let dtype = if is_half { DType::F32 } else { meta.dtype };
                let arg = Meta { dtype, ..*meta }.arg(*layout);
                if is_half {
                    bytes += arg.bytes_len().next_multiple_of(ALIGN);
                }
                arg
            };
            let slots = slots.iter().zip(layouts);
            slots
                .map(|(metas, layouts)| metas.iter().zip(layouts).map(&mut arg).collect())
                .collect()
        };
        let inputs = args(p.inputs, p.input_layouts);
        let args = ArgList::new(inputs, args(p.outputs, p.output_layouts));
        Widened { inner, args: Mutex::new(args), copies, bytes }
    }

    fn run(&self, k: &KernelCtx<'_>) -> Result<()> {
        let memory = &mut k.scratch::<u8>()[..self.bytes];
        let mut copies = self.copies.iter();
        for (arg, copy) in k.all_inputs().zip(&mut copies) {
            if let Some(at) = copy.filter(|_| !arg.is_hidden()) {
                let to = &mut memory[at..][..arg.len() * size_of::<f32>()];
                widen(k, arg, view_as_mut(to));
            }
        }
        let mut args = lock(&self.args);
        (self.inner.run)(&KernelCtx {
            args: args.lend_inside(k, memory, self.inner.scratch_bytes, &self.copies),
            pool: k.pool,
            step: k.step,
            seed: k.seed,
            talked: k.talked,
        })?;
        for (index, copy) in copies.enumerate() {
            if let Some(at) = copy {
                let to = k.out_of_all(index);
                let from = &memory[*at..][..to.len() * size_of::<f32>()];
                narrow(k.pool, view_as(from), to);
            }
        }
        Ok(())
    }
}

fn widen(k: &KernelCtx<'_>, from: View<'_>, to: &mut [f32]) {
    match from.dtype {
        DType::F16 => k.read_first(from, |from: &[f16]| cast(k.pool, from, to)),
        _ => k.read_first(from, |from: &[bf16]| cast(k.pool, from, to)),
    }
}

fn narrow(pool: &Pool, from: &[f32], to: Out<'_>) {
    match to.dtype {
        DType::F16 => cast(pool, from, to.into_slice::<f16>()),
        _ => cast(pool, from, to.into_slice::<bf16>()),
    }
}
