//! Definition of an op in the registry, and the contexts passed to its rules.

use crate::{Grad, Meta, OpTraits, Services, gradient_check};
use fleet_base::{Error, Result};
use fleet_ir::{Op, OpSpec, VarId, VarKind};
use fleet_kernels::pool::Pool;
use fleet_tensor::{DType, Element, Layout, Shape};
use std::collections::{HashMap, HashSet};
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

/// Memory of a variable at run time.
///
/// The address is private. A kernel gets it as a slice, or with a length that is checked against
/// the length of the argument ([`Arg::as_ptr`], [`Arg::as_bits_ptr`]). This one check per step
/// and argument stops a kernel made for another length from writing outside its memory.
#[derive(Clone, Copy, Debug)]
pub struct Arg {
    ptr: *mut u8,
    pub dtype: DType,
    pub shape: Shape,
    pub layout: Layout,
    pub rows: Option<RowsArg>,
}

/// Additional memory of sparse rows. `shape` of the [`Arg`] is then the shape of the whole matrix,
/// and `ptr` points to `capacity` rows of values.
#[derive(Clone, Copy, Debug)]
pub struct RowsArg {
    rows: *mut i64,
    count: *mut u64,
    capacity: usize,
}

impl RowsArg {
    /// Number of rows that fit.
    pub fn capacity(&self) -> usize {
        self.capacity
    }
}

/// Unsigned integers, by which kernels move elements of the same width without reading their
/// values.
pub trait Bits: Copy + Send + Sync + sealed::Sealed {}

mod sealed {
    /// Marker for types of which every bit pattern is a valid value.
    pub trait Sealed {}
}

macro_rules! bits {
    ($($T:ty),*) => {
        $(impl sealed::Sealed for $T {}
        impl Bits for $T {})*
    };
}

bits!(u8, u16, u32, u64);

// SAFETY: an `Arg` is an address that the plan owns. The plan guarantees that threads do not access
// it concurrently.
unsafe impl Send for Arg {}
// SAFETY: as above.
unsafe impl Sync for Arg {}

/// Context of a running kernel. Slots are indexed in the order of the spec.
///
/// The memory of the arguments belongs to the plan. The plan guarantees that no two lanes access
/// the same bytes at the same time, and that an output overlaps an input only as [`OpTraits`]
/// allows. A kernel requests each output once. If its traits allow sharing, it checks
/// [`KernelCtx::same`].
pub struct KernelCtx<'a> {
    /// Variables by slot.
    pub inputs: &'a [&'a [Arg]],
    pub outputs: &'a [&'a [Arg]],
    pub scratch: *mut u8,
    pub scratch_bytes: usize,
    pub pool: &'a Pool,
    /// Number of runs of the program so far. Random ops use it to draw new numbers in each run.
    pub step: u64,
    pub seed: u64,
    /// Counter for the time that the op spends on communication, in nanoseconds, if a profile is
    /// recorded. Ops that only communicate are measured as a whole.
    pub talked: Option<&'a AtomicU64>,
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

    pub fn has_input(&self, slot: usize) -> bool {
        !self.inputs[slot].is_empty()
    }

    pub fn has_output(&self, slot: usize) -> bool {
        !self.outputs[slot].is_empty()
    }

    /// Returns the first variable of an input slot.
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

    /// Returns all elements of an output, for writing.
    pub fn output<T: Element>(&self, slot: usize) -> &'a mut [T] {
        self.out_arg(slot).slice_mut()
    }

    pub fn optional_output<T: Element>(&self, slot: usize) -> Option<&'a mut [T]> {
        self.outputs[slot].first().map(Arg::slice_mut)
    }

    /// Returns whether an output shares the memory of an input.
    pub fn shares_memory(&self, output: usize, input: usize) -> bool {
        match (self.outputs[output].first(), self.inputs[input].first()) {
            (Some(out), Some(arg)) => out.shares_memory_with(arg),
            _ => false,
        }
    }

    /// Returns the scratch that the kernel requested. Its content is unspecified.
    pub fn scratch<T: Element>(&self) -> &'a mut [T] {
        let len = self.scratch_bytes / size_of::<T>();
        if len == 0 {
            return &mut [];
        }
        // SAFETY: the plan gives each running kernel its own scratch of this size, 64-byte aligned.
        unsafe { std::slice::from_raw_parts_mut(self.scratch.cast(), len) }
    }

    /// Returns the scratch as 64-bit words, for kernels that sort ids.
    pub fn scratch_words(&self) -> &'a mut [u64] {
        let words = self.scratch::<i64>();
        // SAFETY: `u64` has the size and alignment of `i64`, and every bit pattern is valid.
        unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len()) }
    }
}

impl Arg {
    /// Returns an argument without memory. Call [`Arg::bind`] before any other use.
    pub fn unbound(meta: Meta, layout: Layout) -> Arg {
        let rows = (meta.kind == VarKind::SparseRows).then_some(RowsArg {
            rows: std::ptr::null_mut(),
            count: std::ptr::null_mut(),
            capacity: meta.rows,
        });
        let Meta { dtype, shape, .. } = meta;
        Arg { ptr: std::ptr::null_mut(), dtype, shape, layout, rows }
    }

    /// Returns a one-dimensional dense tensor over a slice. The slice must outlive every use.
    pub(crate) fn of_slice<T: Element>(slice: &mut [T]) -> Arg {
        Arg {
            ptr: slice.as_mut_ptr().cast(),
            dtype: T::DTYPE,
            shape: Shape::from([slice.len() as i64]),
            layout: Layout::RowMajor,
            rows: None,
        }
    }

    /// Sets the memory of the argument. `rows` has the addresses of the count and of the row
    /// numbers of sparse rows.
    ///
    /// # Safety
    /// Until the next call of `bind`, `values` must have room for [`Arg::len`] elements and be
    /// aligned to 64 bytes. The row numbers must have room for the argument's capacity.
    /// [`KernelCtx`] states which accesses are allowed.
    pub unsafe fn bind(&mut self, values: *mut u8, rows: Option<(*mut u64, *mut i64)>) {
        self.ptr = values;
        if let (Some(own), Some((count, numbers))) = (&mut self.rows, rows) {
            (own.count, own.rows) = (count, numbers);
        }
    }

    /// Sets the address of the values to that of another argument.
    ///
    /// # Panics
    /// Panics if the values do not fit there.
    pub fn bind_over(&mut self, other: &Arg) {
        let (bytes, room) = (self.len() * self.dtype.size(), other.len() * other.dtype.size());
        assert!(bytes <= room, "cannot alias {bytes} bytes to {room}");
        self.ptr = other.ptr;
    }

    /// Returns whether both arguments have the same address.
    pub fn shares_memory_with(&self, other: &Arg) -> bool {
        self.ptr == other.ptr
    }

    /// Returns the number of elements in memory, including the layout's padding; for sparse rows,
    /// the elements of all rows within the capacity.
    pub fn len(&self) -> usize {
        match &self.rows {
            None => self.layout.physical_len(&self.shape),
            Some(rows) => rows.capacity * self.row_len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of elements of one row.
    pub fn row_len(&self) -> usize {
        self.shape.product(1..self.shape.rank())
    }

    /// Returns the address of the first element, for kernels that take pointers because two
    /// arguments may refer to the same memory. At least `len` elements are valid.
    ///
    /// # Panics
    /// Panics if the argument has another type, or fewer than `len` elements.
    pub fn as_ptr<T: Element>(&self, len: usize) -> *mut T {
        assert!(T::reads(self.dtype), "kernel takes {} as {}", self.dtype, T::DTYPE);
        assert!(len <= self.len(), "kernel takes {len} elements, argument has {}", self.len());
        self.ptr.cast()
    }

    /// Like [`Arg::as_ptr`], for kernels that depend only on the width of elements.
    ///
    /// # Panics
    /// Panics if the argument's elements have another width, or if there are fewer than `len`.
    pub fn as_bits_ptr<T: Bits>(&self, len: usize) -> *mut T {
        let width = size_of::<T>();
        assert!(width == self.dtype.size(), "kernel takes {} as {width} bytes", self.dtype);
        assert!(len <= self.len(), "kernel takes {len} elements, argument has {}", self.len());
        self.ptr.cast()
    }

    /// Returns all elements as unsigned integers of the same width.
    pub fn bits<'a, T: Bits>(&self) -> &'a [T] {
        match self.len() {
            0 => &[],
            // SAFETY: as for `slice`, and every bit pattern is a value.
            len => unsafe { std::slice::from_raw_parts(self.as_bits_ptr(len), len) },
        }
    }

    pub fn bits_mut<'a, T: Bits>(&self) -> &'a mut [T] {
        match self.len() {
            0 => &mut [],
            // SAFETY: as for `slice_mut`.
            len => unsafe { std::slice::from_raw_parts_mut(self.as_bits_ptr(len), len) },
        }
    }

    pub fn slice<'a, T: Element>(&self) -> &'a [T] {
        assert!(T::reads(self.dtype), "kernel reads {} as {}", self.dtype, T::DTYPE);
        let len = self.len();
        if len == 0 {
            return &[];
        }
        // SAFETY: the plan binds arguments to live memory of this length and type (see
        // `KernelCtx`).
        unsafe { std::slice::from_raw_parts(self.ptr.cast(), len) }
    }

    pub fn slice_mut<'a, T: Element>(&self) -> &'a mut [T] {
        assert!(T::reads(self.dtype), "kernel writes {} as {}", self.dtype, T::DTYPE);
        let len = self.len();
        if len == 0 {
            return &mut [];
        }
        // SAFETY: as above, and the plan lets only one kernel write at a time.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.cast(), len) }
    }

    /// Returns the bytes, for any element type.
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

    /// Returns the row numbers in use; empty for dense tensors.
    pub fn row_ids<'a>(&self) -> &'a [i64] {
        match &self.rows {
            // SAFETY: the plan allocated `capacity` ids, and `count` never exceeds it.
            Some(rows) => unsafe { std::slice::from_raw_parts(rows.rows, self.row_count()) },
            None => &[],
        }
    }

    /// Returns the whole memory for row numbers.
    pub fn row_ids_mut<'a>(&self) -> &'a mut [i64] {
        match &self.rows {
            // SAFETY: as above.
            Some(rows) => unsafe { std::slice::from_raw_parts_mut(rows.rows, rows.capacity) },
            None => &mut [],
        }
    }

    /// Returns the number of rows in use.
    pub fn row_count(&self) -> usize {
        match &self.rows {
            // SAFETY: the plan owns the counter, and the kernel that wrote it has finished.
            Some(rows) => (unsafe { *rows.count } as usize).min(rows.capacity),
            None => 0,
        }
    }

    pub fn set_row_count(&self, count: usize) {
        if let Some(rows) = &self.rows {
            assert!(count <= rows.capacity, "row count exceeds the capacity");
            // SAFETY: as above; this kernel is the only writer.
            unsafe { *rows.count = count as u64 };
        }
    }
}
