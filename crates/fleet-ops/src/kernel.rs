//! Kernels, and the contexts in which they are made and run.

use crate::{Meta, Services};
use fleet_base::{Error, Result};
use fleet_ir::Op;
use fleet_kernels::input::Input;
use fleet_kernels::pool::Pool;
use fleet_tensor::{Args, DType, Element, Layout};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Context for making a kernel: attributes and known shapes.
pub struct PrepareCtx<'a> {
    /// The op, with its attributes.
    pub op: &'a Op,
    /// Types and shapes of the inputs, by slot in the spec's order.
    pub inputs: &'a [Vec<Meta>],
    /// Types and shapes of the outputs, by slot in the spec's order.
    pub outputs: &'a [Vec<Meta>],
    /// Physical layouts, by slot as in `inputs` and `outputs`.
    pub input_layouts: &'a [Vec<Layout>],
    /// Physical layouts of the outputs, by slot.
    pub output_layouts: &'a [Vec<Layout>],
    /// Number of threads of the pool that runs the kernel.
    pub threads: usize,
    /// Seed of the program.
    pub seed: u64,
    /// Connections to other processes.
    pub services: &'a Services,
}

impl PrepareCtx<'_> {
    /// Returns the first variable of an input slot.
    ///
    /// # Panics
    /// Panics if the slot is empty. The verifier has checked that it is not.
    pub fn input(&self, slot: &str) -> Meta {
        self.optional(slot).unwrap_or_else(|| panic!("{} has no input {slot}", self.op.name()))
    }

    /// Returns the first variable of an input slot, or `None` if the slot is empty.
    pub fn optional(&self, slot: &str) -> Option<Meta> {
        self.op.spec.input_index(slot).and_then(|index| self.inputs[index].first().copied())
    }

    /// Returns the first variable of an output slot.
    ///
    /// # Panics
    /// Panics if the slot is empty. The verifier has checked that it is not.
    pub fn output(&self, slot: &str) -> Meta {
        self.optional_output(slot)
            .unwrap_or_else(|| panic!("{} has no output {slot}", self.op.name()))
    }

    /// Returns the first variable of an output slot, or `None` if the slot is empty.
    pub fn optional_output(&self, slot: &str) -> Option<Meta> {
        self.op.spec.output_index(slot).and_then(|index| self.outputs[index].first().copied())
    }

    /// Returns the error "no CPU kernel for this element type".
    pub fn no_kernel(&self, dtype: DType) -> Error {
        Error::unsupported(format!("{} has no CPU kernel for element type {dtype}", self.op.name()))
            .help("cast the input to f32")
    }
}

/// Body of a kernel.
pub type KernelFn = Box<dyn Fn(&KernelCtx<'_>) -> Result<()> + Send + Sync>;

/// A kernel, which can run many times.
pub struct Kernel {
    /// The body, which the executor calls in each step.
    pub run: KernelFn,
    /// Size of the scratch memory that the kernel needs, in bytes. Scratch is aligned to 64 bytes.
    pub scratch_bytes: usize,
}

impl Kernel {
    /// Returns a kernel without scratch memory.
    pub fn new(run: impl Fn(&KernelCtx<'_>) -> Result<()> + Send + Sync + 'static) -> Kernel {
        Kernel { run: Box::new(run), scratch_bytes: 0 }
    }

    /// Like [`Kernel::new`], for a body that cannot fail.
    pub fn infallible(run: impl Fn(&KernelCtx<'_>) + Send + Sync + 'static) -> Kernel {
        Kernel::new(move |k| {
            run(k);
            Ok(())
        })
    }

    /// Requests `len` elements of `T` as scratch.
    pub fn scratch<T>(mut self, len: usize) -> Kernel {
        self.scratch_bytes = len * size_of::<T>();
        self
    }
}

/// Context of a running kernel. Slots are indexed in the order of the spec; see [`Args`] for the
/// memory of inputs and outputs.
///
/// An output overlaps an input only as [`OpTraits`] allows. Kernels of such ops read the input with
/// [`KernelCtx::input_or_output`].
pub struct KernelCtx<'a> {
    /// Inputs, outputs and scratch memory.
    pub args: Args<'a>,
    /// The threads that share the work.
    pub pool: &'a Pool,
    /// Number of runs of the program so far. Random ops use it to draw new numbers in each run.
    pub step: u64,
    /// Seed of the program.
    pub seed: u64,
    /// Counter for the time that the op spends on communication, in nanoseconds, if a profile is
    /// recorded. Ops that only communicate are measured as a whole.
    pub talked: Option<&'a AtomicU64>,
}

impl<'a> Deref for KernelCtx<'a> {
    type Target = Args<'a>;

    fn deref(&self) -> &Args<'a> {
        &self.args
    }
}

impl<'a> KernelCtx<'a> {
    /// Runs communication inside a compute op and counts its time.
    pub fn communicate<R>(&self, work: impl FnOnce() -> R) -> R {
        let begin = Instant::now();
        let outcome = work();
        if let Some(talked) = self.talked {
            talked.fetch_add(begin.elapsed().as_nanos() as u64, Relaxed);
        }
        outcome
    }

    /// Runs computation inside a communication op and excludes its time.
    pub fn compute<R>(&self, work: impl FnOnce() -> R) -> R {
        let begin = Instant::now();
        let outcome = work();
        if let Some(talked) = self.talked {
            // The total, added at the end, includes this time.
            talked.fetch_sub(begin.elapsed().as_nanos() as u64, Relaxed);
        }
        outcome
    }

    /// Returns an input that may share the memory of an output.
    pub fn input_or_output<T: Element>(&self, input: usize, output: usize) -> Input<'a, T> {
        self.input_at_or_output(input, 0, output)
    }

    /// Like [`KernelCtx::input_or_output`], for a variable of a slot.
    pub fn input_at_or_output<T: Element>(
        &self,
        input: usize,
        index: usize,
        output: usize,
    ) -> Input<'a, T> {
        let arg = self.arg_at(input, index);
        self.slice_unless(arg, output).map_or(Input::Output, Input::Separate)
    }
}
