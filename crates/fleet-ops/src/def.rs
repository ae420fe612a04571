//! Definition of an op in the registry, and the contexts passed to its rules.

use crate::{Grad, Meta, OpTraits, Services, gradient_check};
use fleet_base::{Error, Result};
use fleet_ir::{Op, OpSpec, VarId, VarKind};
use fleet_kernels::input::Input;
use fleet_kernels::pool::Pool;
use fleet_tensor::{Args, DType, Element, Layout, Shape};
use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// An op: its signature ([`OpSpec`]), shape rule, gradient rule, kernel and traits. Each op is a
/// `static` in a file of its own.
pub struct OpDef {
    pub spec: OpSpec,
    /// Shape rule: computes types and shapes of the outputs from those of the inputs. Dimensions
    /// may be -1 while a program is built; all are known when the program is planned.
    pub infer: fn(&mut InferCtx<'_>) -> Result<()>,
    pub grad: Grad,
    /// Makes the kernel for known shapes. Called once per plan.
    pub cpu: fn(&PrepareCtx<'_>) -> Result<Kernel>,
    pub traits: OpTraits,
}

impl OpDef {
    /// Returns the input slots of which the kernel uses only the shapes.
    pub fn shape_only_slots(&self) -> impl Iterator<Item = usize> {
        self.traits.shape_only.iter().filter_map(|slot| self.spec.input_index(slot))
    }

    /// Returns whether `op` is an op of this kind.
    pub fn is(&self, op: &Op) -> bool {
        op.name() == self.spec.name
    }

    /// Returns the types and shapes of the outputs of `op`, by slot, computed from those of its
    /// inputs.
    pub fn shapes(&self, op: &Op, meta: impl Fn(VarId) -> Meta) -> Result<Vec<Vec<Meta>>> {
        let mut ctx = InferCtx::new(op, meta);
        self.check_dense(&ctx)?;
        self.check_overlap(op)?;
        gradient_check::check(&ctx)?;
        (self.infer)(&mut ctx)?;
        Ok(ctx.into_outputs())
    }
}

impl OpDef {
    /// Rejects outputs that alias inputs, except where the op may write over the input.
    fn check_overlap(&self, op: &Op) -> Result<()> {
        // A map by variable, because a program may pass any number of variables to an op.
        let mut read: HashMap<VarId, Vec<(&str, usize)>> = HashMap::new();
        for (slot, vars) in op.spec.inputs.iter().zip(&op.inputs) {
            for (index, var) in vars.iter().enumerate() {
                read.entry(*var).or_default().push((slot.name, index));
            }
        }
        let mut written = HashSet::new();
        for (out, vars) in op.spec.outputs.iter().zip(&op.outputs) {
            for (index, var) in vars.iter().enumerate() {
                let places = read.get(var).map_or(&[][..], Vec::as_slice);
                // A single output may share memory with any variable of the slot. With several
                // outputs, the kernel writes one output while it still reads the inputs of the
                // others. Each output may then alias only the input of the same index.
                let elsewhere = |slot: &str, at: usize| {
                    vars.len() > 1 && at != index && !self.traits.shape_only.contains(&slot)
                };
                let may_not = |(slot, at): &&(&str, usize)| {
                    !self.may_write_over(out.name, slot) || elsewhere(slot, *at)
                };
                if let Some((slot, _)) = places.iter().find(may_not) {
                    return Err(Error::invalid(format!(
                        "output '{}' of {} is the same variable as input '{slot}'",
                        out.name,
                        op.name()
                    ))
                    .expected("a separate variable"));
                }
                if !written.insert(*var) {
                    return Err(Error::invalid(format!(
                        "two outputs of {} are the same variable",
                        op.name()
                    ))
                    .got(format!("'{}' twice", out.name)));
                }
            }
        }
        Ok(())
    }

    fn may_write_over(&self, output: &str, input: &str) -> bool {
        let traits = &self.traits;
        traits.elementwise
            || traits.inplace.contains(&(output, input))
            || traits.view == Some((output, input))
            || traits.state.contains(&(output, input))
            || traits.shape_only.contains(&input)
    }

    /// Rejects sparse rows in input slots whose kernel supports dense tensors only.
    fn check_dense(&self, i: &InferCtx<'_>) -> Result<()> {
        let dense = self.spec.inputs.iter().filter(|slot| !self.traits.sparse.contains(&slot.name));
        for slot in dense {
            if i.inputs(slot.name).iter().any(|meta| meta.kind == VarKind::SparseRows) {
                return Err(i
                    .error(slot.name, "holds sparse rows")
                    .expected("a dense tensor")
                    .help("make the gradient of the embedding dense (is_sparse: false)"));
            }
        }
        Ok(())
    }
}

/// Context of a shape rule.
pub struct InferCtx<'a> {
    pub op: &'a Op,
    inputs: Vec<Vec<Meta>>,
    outputs: Vec<Vec<Meta>>,
}

impl<'a> InferCtx<'a> {
    pub fn new(op: &'a Op, meta: impl Fn(VarId) -> Meta) -> Self {
        let inputs =
            op.inputs.iter().map(|slot| slot.iter().map(|var| meta(*var)).collect()).collect();
        InferCtx { op, inputs, outputs: vec![Vec::new(); op.spec.outputs.len()] }
    }

    /// Returns the context for the shape rule of another op. Its inputs are those of this op,
    /// matched by slot name.
    pub(crate) fn of_other<'b>(&self, op: &'b Op) -> InferCtx<'b> {
        let inputs = op.spec.inputs.iter().map(|slot| self.inputs(slot.name).to_vec()).collect();
        InferCtx { op, inputs, outputs: vec![Vec::new(); op.spec.outputs.len()] }
    }

    /// Returns the first variable of a required input slot.
    pub fn input(&self, slot: &str) -> Result<Meta> {
        self.optional(slot).ok_or_else(|| {
            Error::invalid(format!("missing input '{slot}' of op '{}'", self.op.name()))
        })
    }

    pub fn optional(&self, slot: &str) -> Option<Meta> {
        self.inputs(slot).first().copied()
    }

    pub fn inputs(&self, slot: &str) -> &[Meta] {
        self.op.spec.input_index(slot).map_or(&[], |index| &self.inputs[index])
    }

    /// Sets the only variable of an output slot.
    pub fn set(&mut self, slot: &str, dtype: DType, shape: impl Into<Shape>) {
        self.push(slot, Meta::dense(dtype, shape));
    }

    /// Adds a variable to an output slot.
    ///
    /// # Panics
    /// Panics if the op has no such slot.
    pub fn push(&mut self, slot: &str, meta: Meta) {
        let index = self.op.spec.output_index(slot).expect("slot belongs to the op's spec");
        self.outputs[index].push(meta);
    }

    /// Returns the outputs by slot, in the order of the spec.
    pub fn into_outputs(self) -> Vec<Vec<Meta>> {
        self.outputs
    }

    /// Rejects an input whose element type is not in `allowed`.
    pub fn check_dtype(&self, slot: &str, allowed: &[DType]) -> Result<()> {
        for meta in self.inputs(slot) {
            if !allowed.contains(&meta.dtype) {
                let names: Vec<&str> = allowed.iter().map(|dtype| dtype.name()).collect();
                return Err(self
                    .error(slot, "has the wrong element type")
                    .expected(names.join(" or "))
                    .got(meta.dtype));
            }
        }
        Ok(())
    }

    /// Rejects an input whose rank is not `rank`.
    pub fn check_rank(&self, slot: &str, rank: usize) -> Result<Shape> {
        let shape = self.input(slot)?.shape;
        if shape.rank() == rank {
            return Ok(shape);
        }
        Err(self
            .error(slot, "has the wrong number of dimensions")
            .expected(format!("{rank}"))
            .got(format!("{} (shape {shape})", shape.rank())))
    }

    /// Rejects an input whose shape does not agree with `shape`.
    pub fn check_shape(&self, slot: &str, shape: impl Into<Shape>) -> Result<()> {
        let shape = shape.into();
        let found = self.input(slot)?.shape;
        if found.agrees(&shape) {
            return Ok(());
        }
        Err(self.error(slot, "has the wrong shape").expected(shape).got(found))
    }

    /// Returns the error `input 'X' of mul <what>`, to be completed with `expected` and `got`.
    pub fn error(&self, slot: &str, what: &str) -> Error {
        Error::invalid(format!("input '{slot}' of {} {what}", self.op.name()))
    }
}

/// Context for making a kernel: attributes and known shapes.
pub struct PrepareCtx<'a> {
    pub op: &'a Op,
    pub inputs: &'a [Vec<Meta>],
    pub outputs: &'a [Vec<Meta>],
    /// Physical layouts, by slot as in `inputs` and `outputs`.
    pub input_layouts: &'a [Vec<Layout>],
    pub output_layouts: &'a [Vec<Layout>],
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

    pub fn optional(&self, slot: &str) -> Option<Meta> {
        self.op.spec.input_index(slot).and_then(|index| self.inputs[index].first().copied())
    }

    pub fn output(&self, slot: &str) -> Meta {
        self.optional_output(slot)
            .unwrap_or_else(|| panic!("{} has no output {slot}", self.op.name()))
    }

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
    pub run: KernelFn,
    /// Size of the scratch memory that the kernel needs, in bytes. Scratch is aligned to 64 bytes.
    pub scratch_bytes: usize,
}

impl Kernel {
    pub fn new(run: impl Fn(&KernelCtx<'_>) -> Result<()> + Send + Sync + 'static) -> Kernel {
        Kernel { run: Box::new(run), scratch_bytes: 0 }
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
    pub args: Args<'a>,
    pub pool: &'a Pool,
    /// Number of runs of the program so far. Random ops use it to draw new numbers in each run.
    pub step: u64,
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
