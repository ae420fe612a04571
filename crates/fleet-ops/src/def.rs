//! What the registry knows of an op, and what an op's rules get to see.

use crate::{Services, gradient_check};
use fleet_base::{Error, Result};
use fleet_ir::{Op, OpSpec, VarId, VarKind};
use fleet_kernels::pool::Pool;
use fleet_tensor::{DType, Element, Layout, Shape};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// An op: how it looks ([`OpSpec`]), how shapes follow, how gradients are made, how it runs.
/// Each lives in one file as a `static`.
pub struct OpDef {
    pub spec: OpSpec,
    /// Types and shapes of the outputs from those of the inputs; shapes may hold -1 while a program
    /// is built and are all known when it is planned.
    pub infer: fn(&mut InferCtx<'_>) -> Result<()>,
    pub grad: Grad,
    /// Makes the kernel for known shapes, once a plan.
    pub cpu: fn(&PrepareCtx<'_>) -> Result<Kernel>,
    pub traits: OpTraits,
}

impl OpDef {
    /// Types and shapes of the outputs of an op of this kind, by slot, from those of its inputs.
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
    /// Kernels see their operands apart, but for those that they may write over.
    fn check_overlap(&self, op: &Op) -> Result<()> {
        // By variable, since a program may give an op any number of them.
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
                // One output may lie where any of its inputs does. Of several, each is written
                // while the inputs of the others are still to be read.
                let elsewhere = |slot: &str, at: usize| {
                    vars.len() > 1 && at != index && !self.traits.shape_only.contains(&slot)
                };
                let may_not = |(slot, at): &&(&str, usize)| {
                    !self.may_write_over(out.name, slot) || elsewhere(slot, *at)
                };
                if let Some((slot, _)) = places.iter().find(may_not) {
                    return Err(Error::invalid(format!(
                        "output '{}' of {} is also its input '{slot}'",
                        out.name,
                        op.name()
                    ))
                    .expected("a variable of its own"));
                }
                if !written.insert(*var) {
                    return Err(Error::invalid(format!(
                        "two outputs of {} are one variable",
                        op.name()
                    ))
                    .got(format!("'{}' again", out.name)));
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
            || traits.shape_only.contains(&input)
            // State that goes on under another name: Velocity, VelocityOut.
            || output.strip_suffix("Out") == Some(input)
    }

    /// Kernels that do not know of sparse rows see none.
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

/// How the gradient of an op is made.
#[derive(Clone, Copy)]
pub enum Grad {
    /// The op is constant with respect to its inputs, or the end of the line: gradients stop here.
    None,
    /// Emits the ops that compute the gradients that are wanted.
    Rule(fn(&mut crate::GradCtx<'_, '_>) -> Result<()>),
}

/// Facts that passes and planners use.
pub struct OpTraits {
    pub amp: AmpClass,
    /// (output slot, input slot): the output may take over the input's memory when the input is not
    /// needed afterwards; the kernel then sees the same pointer twice.
    pub inplace: &'static [(&'static str, &'static str)],
    /// As `inplace`, where the output holds sparse rows: their values may lie over a dense input.
    pub inplace_rows: &'static [(&'static str, &'static str)],
    /// (output slot, input slot): the output is the input's bytes under another shape. The planner
    /// lets the two share memory always, and the kernel copies only when they could not.
    pub view: Option<(&'static str, &'static str)>,
    /// Input slots of which only type and shape matter: their bytes need not be kept for this op.
    pub shape_only: &'static [&'static str],
    /// Input slots that may hold sparse rows; the others hold dense tensors only.
    pub sparse: &'static [&'static str],
    /// Draws random numbers: two equal ops are not the same value.
    pub random: bool,
    /// Does something besides writing its outputs: never removed as dead.
    pub effect: bool,
    /// Computes each element from the elements at the same place, so the physical layout of its
    /// operands does not matter as long as it is the same (and padding zeros stay zero).
    pub elementwise: bool,
    pub lane: Lane,
    pub cost: fn(&CostCtx<'_>) -> Cost,
}

/// Mixed-precision class (which list the op is on by default).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AmpClass {
    /// Runs in half precision.
    White,
    /// Runs in single precision.
    Black,
    /// Follows its inputs.
    Gray,
    /// Not on a list: single precision.
    Unlisted,
}

/// Where an op runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    Compute,
    /// A thread of its own, beside compute: copies, disk.
    Side(u8),
    /// The thread of the ring that the op's attribute `ring_id` names.
    Ring,
}

/// Estimated work of an op.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    pub flops: f64,
    /// Bytes read and written.
    pub bytes: f64,
}

impl OpTraits {
    /// Nothing special; start here and override.
    pub const fn plain() -> OpTraits {
        OpTraits {
            amp: AmpClass::Unlisted,
            inplace: &[],
            inplace_rows: &[],
            view: None,
            shape_only: &[],
            sparse: &[],
            random: false,
            effect: false,
            elementwise: false,
            lane: Lane::Compute,
            cost: elementwise_cost,
        }
    }

    pub const fn amp(amp: AmpClass) -> OpTraits {
        let mut traits = OpTraits::plain();
        traits.amp = amp;
        traits
    }
}

/// One flop an output element, every operand moved once.
pub fn elementwise_cost(ctx: &CostCtx<'_>) -> Cost {
    Cost {
        flops: ctx.outputs.iter().flatten().map(|meta| meta.numel() as f64).sum(),
        bytes: ctx.bytes(),
    }
}

/// Type and shape of a variable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Meta {
    pub dtype: DType,
    pub shape: Shape,
    pub kind: VarKind,
    /// Sparse rows: room for so many (0 while the batch is unknown). `shape` is that of the whole
    /// matrix.
    pub rows: usize,
}

impl Meta {
    pub fn dense(dtype: DType, shape: impl Into<Shape>) -> Meta {
        Meta { dtype, shape: shape.into(), kind: VarKind::Dense, rows: 0 }
    }

    /// Room for `rows` rows of a matrix of `shape`.
    pub fn sparse(dtype: DType, shape: impl Into<Shape>, rows: usize) -> Meta {
        Meta { dtype, shape: shape.into(), kind: VarKind::SparseRows, rows }
    }

    /// Elements held, an unknown dimension counted as 1; at most `usize::MAX`, since a program may
    /// state sizes that no machine has.
    pub fn numel(&self) -> usize {
        let count = |first: usize, dims: &[i64]| {
            dims.iter().fold(first, |count, dim| count.saturating_mul(dim.unsigned_abs() as usize))
        };
        match self.kind {
            VarKind::SparseRows => count(self.rows, self.shape.dims().get(1..).unwrap_or(&[])),
            _ => count(1, self.shape.dims()),
        }
    }

    /// Elements in memory, the layout's padding included; of sparse rows, those that there is room
    /// for.
    pub fn physical_len(&self, layout: Layout) -> usize {
        match self.kind {
            VarKind::SparseRows => self.numel(),
            _ => layout.physical_len(&self.shape),
        }
    }

    pub fn bytes(&self) -> usize {
        self.numel().saturating_mul(self.dtype.size())
    }

    /// For messages: `f32[2, 3]`, or `f32[100, 3] (sparse rows, room for 7)`.
    pub fn describe(&self) -> String {
        let Meta { dtype, shape, rows, .. } = self;
        match self.kind {
            VarKind::Dense => format!("{dtype}{shape}"),
            VarKind::SparseRows if *rows == 0 => format!("{dtype}{shape} (sparse rows)"),
            VarKind::SparseRows => format!("{dtype}{shape} (sparse rows, room for {rows})"),
            VarKind::TensorArray => format!("{dtype}{shape} (tensor array)"),
        }
    }
}

/// What a shape rule sees.
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

    /// What the rule of another op sees, whose inputs are all among these, slot by slot.
    pub(crate) fn of_other<'b>(&self, op: &'b Op) -> InferCtx<'b> {
        let inputs = op.spec.inputs.iter().map(|slot| self.inputs(slot.name).to_vec()).collect();
        InferCtx { op, inputs, outputs: vec![Vec::new(); op.spec.outputs.len()] }
    }

    /// The variable of an input slot that must have one.
    pub fn input(&self, slot: &str) -> Result<Meta> {
        self.optional(slot)
            .ok_or_else(|| Error::invalid(format!("op '{}' misses input '{slot}'", self.op.name())))
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
    /// If the op has no such slot.
    pub fn push(&mut self, slot: &str, meta: Meta) {
        let index = self.op.spec.output_index(slot).expect("a slot of the op's own spec");
        self.outputs[index].push(meta);
    }

    /// By slot, in the spec's order.
    pub fn into_outputs(self) -> Vec<Vec<Meta>> {
        self.outputs
    }

    /// Refuses an input whose element type is not one of `allowed`.
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

    /// Refuses an input whose rank is not `rank`.
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

    /// Refuses an input whose shape cannot be `shape`.
    pub fn check_shape(&self, slot: &str, shape: impl Into<Shape>) -> Result<()> {
        let shape = shape.into();
        let found = self.input(slot)?.shape;
        if found.agrees(&shape) {
            return Ok(());
        }
        Err(self.error(slot, "has the wrong shape").expected(shape).got(found))
    }

    /// `input 'X' of mul <what>`, to be completed with expected and got.
    pub fn error(&self, slot: &str, what: &str) -> Error {
        Error::invalid(format!("input '{slot}' of {} {what}", self.op.name()))
    }
}

/// What a cost rule sees.
pub struct CostCtx<'a> {
    pub op: &'a Op,
    pub inputs: &'a [Vec<Meta>],
    pub outputs: &'a [Vec<Meta>],
}

impl CostCtx<'_> {
    pub fn bytes(&self) -> f64 {
        self.inputs.iter().chain(self.outputs).flatten().map(|meta| meta.bytes() as f64).sum()
    }

    pub fn input(&self, slot: &str) -> Option<&Meta> {
        self.op.spec.input_index(slot).and_then(|index| self.inputs[index].first())
    }

    pub fn output(&self, slot: &str) -> Option<&Meta> {
        self.op.spec.output_index(slot).and_then(|index| self.outputs[index].first())
    }
}

/// What an op sees when its kernel is made: attributes and known shapes.
pub struct PrepareCtx<'a> {
    pub op: &'a Op,
    pub inputs: &'a [Vec<Meta>],
    pub outputs: &'a [Vec<Meta>],
    /// Physical layouts, by slot like the metas.
    pub input_layouts: &'a [Vec<Layout>],
    pub output_layouts: &'a [Vec<Layout>],
    pub threads: usize,
    /// The program's seed.
    pub seed: u64,
    /// The way to other processes.
    pub services: &'a Services,
}

impl PrepareCtx<'_> {
    /// The first variable of an input slot.
    ///
    /// # Panics
    /// If there is none: the verifier has seen the op.
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

    /// "no kernel for this element type".
    pub fn no_kernel(&self, dtype: DType) -> Error {
        Error::unsupported(format!("{} has no CPU kernel for element type {dtype}", self.op.name()))
            .help("cast the input to f32")
    }
}

/// The body of a kernel.
pub type KernelFn = Box<dyn Fn(&KernelCtx<'_>) -> Result<()> + Send + Sync>;

/// A kernel ready to run many times.
pub struct Kernel {
    pub run: KernelFn,
    /// Bytes of scratch that it wants, 64-byte aligned.
    pub scratch_bytes: usize,
}

impl Kernel {
    pub fn new(run: impl Fn(&KernelCtx<'_>) -> Result<()> + Send + Sync + 'static) -> Kernel {
        Kernel { run: Box::new(run), scratch_bytes: 0 }
    }

    /// Asks for `len` elements of `T` as scratch.
    pub fn scratch<T>(mut self, len: usize) -> Kernel {
        self.scratch_bytes = len * size_of::<T>();
        self
    }
}

/// A variable's memory at run time.
///
/// The address is no public field: a kernel gets it as a slice, or together with a length that was
/// compared with that of the argument ([`Arg::start`], [`Arg::start_of_width`]). One comparison a
/// step and argument keeps a kernel that was made for another length out of its neighbours' memory.
#[derive(Clone, Copy, Debug)]
pub struct Arg {
    ptr: *mut u8,
    pub dtype: DType,
    pub shape: Shape,
    pub layout: Layout,
    pub rows: Option<RowsArg>,
}

/// The extra memory of sparse rows: `shape` of the [`Arg`] is then that of the whole matrix, and
/// `ptr` points to `capacity` rows of values.
#[derive(Clone, Copy, Debug)]
pub struct RowsArg {
    rows: *mut i64,
    count: *mut u64,
    capacity: usize,
}

impl RowsArg {
    /// Rows that there is room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }
}

/// Elements that only move: their width is all that matters.
pub trait Bits: Copy + Send + Sync + sealed::Sealed {}

mod sealed {
    /// Every bit pattern is a value.
    pub trait Sealed {}
}

macro_rules! bits {
    ($($T:ty),*) => {
        $(impl sealed::Sealed for $T {}
        impl Bits for $T {})*
    };
}

bits!(u8, u16, u32, u64);

// SAFETY: an `Arg` is an address that the plan owns; who may touch it when is the plan's promise.
unsafe impl Send for Arg {}
// SAFETY: as above.
unsafe impl Sync for Arg {}

/// What a kernel sees. Slots go by index, in the order of the spec.
///
/// The memory behind the arguments belongs to the plan, which promises that no two lanes touch the
/// same bytes at once and that an output overlaps an input only as [`OpTraits`] allows. A kernel
/// asks for each output once, and uses [`KernelCtx::same`] where it allowed sharing.
pub struct KernelCtx<'a> {
    /// Variables by slot.
    pub inputs: &'a [&'a [Arg]],
    pub outputs: &'a [&'a [Arg]],
    pub scratch: *mut u8,
    pub scratch_bytes: usize,
    pub pool: &'a Pool,
    /// Runs of the program so far: what makes a random op draw new numbers each time.
    pub step: u64,
    pub seed: u64,
    /// Where a profile wants to know how long the op talked to other ranks, in nanoseconds. Ops
    /// that do nothing else are measured as a whole.
    pub talked: Option<&'a AtomicU64>,
}

impl<'a> KernelCtx<'a> {
    /// Talks in the middle of an op that computes.
    pub fn talking<R>(&self, talk: impl FnOnce() -> R) -> R {
        let begin = Instant::now();
        let outcome = talk();
        if let Some(talked) = self.talked {
            talked.fetch_add(begin.elapsed().as_nanos() as u64, Relaxed);
        }
        outcome
    }

    /// Computes in the middle of an op that talks.
    pub fn computing<R>(&self, compute: impl FnOnce() -> R) -> R {
        let begin = Instant::now();
        let outcome = compute();
        if let Some(talked) = self.talked {
            talked.fetch_sub(begin.elapsed().as_nanos() as u64, Relaxed); // The whole is added at the end.
        }
        outcome
    }

    pub fn has_input(&self, slot: usize) -> bool {
        !self.inputs[slot].is_empty()
    }

    pub fn has_output(&self, slot: usize) -> bool {
        !self.outputs[slot].is_empty()
    }

    /// The first variable of an input slot.
    pub fn arg(&self, slot: usize) -> &'a Arg {
        &self.inputs[slot][0]
    }

    pub fn out_arg(&self, slot: usize) -> &'a Arg {
        &self.outputs[slot][0]
    }

    pub fn input<T: Element>(&self, slot: usize) -> &'a [T] {
        self.arg(slot).slice()
    }

    pub fn optional<T: Element>(&self, slot: usize) -> Option<&'a [T]> {
        self.inputs[slot].first().map(Arg::slice)
    }

    /// Every element of an output, to be written.
    pub fn output<T: Element>(&self, slot: usize) -> &'a mut [T] {
        self.out_arg(slot).slice_mut()
    }

    pub fn optional_output<T: Element>(&self, slot: usize) -> Option<&'a mut [T]> {
        self.outputs[slot].first().map(Arg::slice_mut)
    }

    /// Whether an output took over an input's memory.
    pub fn same(&self, output: usize, input: usize) -> bool {
        match (self.outputs[output].first(), self.inputs[input].first()) {
            (Some(out), Some(arg)) => out.is_at(arg),
            _ => false,
        }
    }

    /// The scratch that the kernel asked for. Its content is what the last user left.
    pub fn scratch<T: Element>(&self) -> &'a mut [T] {
        let len = self.scratch_bytes / size_of::<T>();
        if len == 0 {
            return &mut [];
        }
        // SAFETY: the plan gives each running kernel its own scratch of this size, 64-byte aligned.
        unsafe { std::slice::from_raw_parts_mut(self.scratch.cast(), len) }
    }

    /// The scratch as 64-bit words, for kernels that sort ids.
    pub fn scratch_words(&self) -> &'a mut [u64] {
        let words = self.scratch::<i64>();
        // SAFETY: the same words, without a sign.
        unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len()) }
    }
}

impl Arg {
    /// An argument that has no memory yet: [`Arg::bind`] comes before any use.
    pub fn unbound(meta: Meta, layout: Layout) -> Arg {
        let rows = (meta.kind == VarKind::SparseRows).then_some(RowsArg {
            rows: std::ptr::null_mut(),
            count: std::ptr::null_mut(),
            capacity: meta.rows,
        });
        let Meta { dtype, shape, .. } = meta;
        Arg { ptr: std::ptr::null_mut(), dtype, shape, layout, rows }
    }

    /// A dense tensor of one dimension over a slice, which must outlive every use.
    pub(crate) fn of_slice<T: Element>(slice: &mut [T]) -> Arg {
        Arg {
            ptr: slice.as_mut_ptr().cast(),
            dtype: T::DTYPE,
            shape: Shape::from([slice.len() as i64]),
            layout: Layout::RowMajor,
            rows: None,
        }
    }

    /// Points the argument to its memory; `rows` is where the count and the numbers of sparse rows
    /// lie.
    ///
    /// # Safety
    /// Until it is bound again, `values` has room for [`Arg::len`] elements, aligned to 64 bytes,
    /// and the numbers of sparse rows for as many as the argument was made for. See [`KernelCtx`]
    /// for who may touch them when.
    pub unsafe fn bind(&mut self, values: *mut u8, rows: Option<(*mut u64, *mut i64)>) {
        self.ptr = values;
        if let (Some(own), Some((count, numbers))) = (&mut self.rows, rows) {
            (own.count, own.rows) = (count, numbers);
        }
    }

    /// Moves the values to the memory of another argument.
    ///
    /// # Panics
    /// If they do not fit there.
    pub fn bind_over(&mut self, other: &Arg) {
        let (bytes, room) = (self.len() * self.dtype.size(), other.len() * other.dtype.size());
        assert!(bytes <= room, "an argument of {bytes} bytes over one of {room}");
        self.ptr = other.ptr;
    }

    /// Whether both have their values at one address.
    pub fn is_at(&self, other: &Arg) -> bool {
        self.ptr == other.ptr
    }

    /// Elements in memory, the layout's padding included; for sparse rows, those of all rows that
    /// fit.
    pub fn len(&self) -> usize {
        match &self.rows {
            None => self.layout.physical_len(&self.shape),
            Some(rows) => rows.capacity * self.row_len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Elements of one row.
    pub fn row_len(&self) -> usize {
        self.shape.product(1..self.shape.rank())
    }

    /// The address of the first element, for kernels that take pointers: a slice of `len` elements
    /// that may be written through two arguments.
    ///
    /// # Panics
    /// If the argument holds another type, or fewer elements than the kernel was made for.
    pub fn start<T: Element>(&self, len: usize) -> *mut T {
        assert!(T::reads(self.dtype), "kernel takes {} as {}", self.dtype, T::DTYPE);
        assert!(len <= self.len(), "kernel takes {len} elements of {}", self.len());
        self.ptr.cast()
    }

    /// As [`Arg::start`], for kernels that look at nothing but the width of elements.
    ///
    /// # Panics
    /// If the argument's elements have another width, or are fewer than the kernel was made for.
    pub fn start_of_width<T: Bits>(&self, len: usize) -> *mut T {
        let width = size_of::<T>();
        assert!(width == self.dtype.size(), "kernel takes {} as {width} bytes", self.dtype);
        assert!(len <= self.len(), "kernel takes {len} elements of {}", self.len());
        self.ptr.cast()
    }

    /// All elements by their width.
    pub fn bits<'a, T: Bits>(&self) -> &'a [T] {
        match self.len() {
            0 => &[],
            // SAFETY: as for `slice`, and every bit pattern is a value.
            len => unsafe { std::slice::from_raw_parts(self.start_of_width(len), len) },
        }
    }

    pub fn bits_mut<'a, T: Bits>(&self) -> &'a mut [T] {
        match self.len() {
            0 => &mut [],
            // SAFETY: as for `slice_mut`.
            len => unsafe { std::slice::from_raw_parts_mut(self.start_of_width(len), len) },
        }
    }

    pub fn slice<'a, T: Element>(&self) -> &'a [T] {
        assert!(T::reads(self.dtype), "kernel reads {} as {}", self.dtype, T::DTYPE);
        let len = self.len();
        if len == 0 {
            return &[];
        }
        // SAFETY: the plan points arguments to live memory of this length and type (see
        // `KernelCtx`).
        unsafe { std::slice::from_raw_parts(self.ptr.cast(), len) }
    }

    pub fn slice_mut<'a, T: Element>(&self) -> &'a mut [T] {
        assert!(T::reads(self.dtype), "kernel writes {} as {}", self.dtype, T::DTYPE);
        let len = self.len();
        if len == 0 {
            return &mut [];
        }
        // SAFETY: as above; the plan lets one kernel at a time write.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.cast(), len) }
    }

    /// The bytes, whatever the type.
    pub fn bytes<'a>(&self) -> &'a [u8] {
        let len = self.len() * self.dtype.size();
        if len == 0 {
            return &[];
        }
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.ptr, len) }
    }

    pub fn bytes_mut<'a>(&self) -> &'a mut [u8] {
        let len = self.len() * self.dtype.size();
        if len == 0 {
            return &mut [];
        }
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.ptr, len) }
    }

    /// The row numbers in use (sparse rows only).
    pub fn row_ids<'a>(&self) -> &'a [i64] {
        match &self.rows {
            // SAFETY: the plan allocated `capacity` ids, and `count` never exceeds it.
            Some(rows) => unsafe { std::slice::from_raw_parts(rows.rows, self.row_count()) },
            None => &[],
        }
    }

    /// Room for row numbers, all of it.
    pub fn row_ids_mut<'a>(&self) -> &'a mut [i64] {
        match &self.rows {
            // SAFETY: as above.
            Some(rows) => unsafe { std::slice::from_raw_parts_mut(rows.rows, rows.capacity) },
            None => &mut [],
        }
    }

    /// Rows in use.
    pub fn row_count(&self) -> usize {
        match &self.rows {
            // SAFETY: the plan owns the counter; the kernel that wrote it is done.
            Some(rows) => (unsafe { *rows.count } as usize).min(rows.capacity),
            None => 0,
        }
    }

    pub fn set_row_count(&self, count: usize) {
        if let Some(rows) = &self.rows {
            assert!(count <= rows.capacity, "more rows than planned");
            // SAFETY: as above; this kernel is the only writer.
            unsafe { *rows.count = count as u64 };
        }
    }
}
