//! The memory of variables, as kernels get it.
//!
//! An executor describes each variable of an op by an [`Arg`] of an [`ArgList`], binds it to an
//! address, and lends the list to a kernel as [`Args`]. [`ArgList::lend`] is the one unsafe step
//! ([`ArgList::lend_values`] is a safe form for tensors that the caller owns). After it, no safe
//! call can alias a mutable slice:
//!
//! * An output is handed out once in each call of a kernel, as an [`Out`].
//! * An input is read through a [`View`], any number of times, unless it overlaps an output.
//! * [`Args::slice_unless`] reads an input that may share the memory of an output.
//! * Scratch memory is handed out once.
//!
//! Each of these panics where it would alias. Sharing follows from the plan, not from values, so
//! that the first step of a program shows such a fault.

use crate::{
    ALIGN, Bits, Buffer, DType, Element, Layout, Plain, Shape, Tensor, view_as, view_as_mut,
};
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed};

/// The type and the memory of a variable at run time.
///
/// The address is private: a kernel gets slices, from a [`View`] or an [`Out`].
pub struct Arg {
    address: *mut u8,
    /// Type of the elements.
    pub dtype: DType,
    /// Shape; for sparse rows that of the whole matrix.
    pub shape: Shape,
    /// Physical layout.
    pub layout: Layout,
    /// Present for sparse rows.
    pub rows: Option<RowsArg>,
    /// For an input: whether its values overlap an output of the same op.
    is_overwritten: bool,
    /// For an input: whether the op uses only its shape. Other values may then be in its memory.
    is_hidden: bool,
    /// For an output: whether the running kernel has it already.
    is_taken: AtomicBool,
}

/// Additional memory of sparse rows. `shape` of the [`Arg`] is then the shape of the whole matrix,
/// and its values are `capacity` rows.
#[derive(Clone, Copy, Debug)]
pub struct RowsArg {
    numbers: *mut i64,
    count: *mut u64,
    capacity: usize,
    /// As in [`Arg`], for the row numbers.
    is_overwritten: bool,
}

impl RowsArg {
    /// Number of rows that fit.
    pub fn capacity(&self) -> usize {
        self.capacity
    }
}

// SAFETY: an `Arg` only holds addresses. `ArgList::lend` and `Arg::view`, which lead to accesses,
// are unsafe, and their callers guarantee that no other thread interferes.
unsafe impl Send for Arg {}
// SAFETY: as above.
unsafe impl Sync for Arg {}

impl fmt::Debug for Arg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{} {} at {:p}", self.dtype, self.shape, self.layout, self.address)
    }
}

impl Arg {
    /// Returns an argument without memory. `capacity` is the number of rows that fit, for sparse
    /// rows.
    pub fn unbound(dtype: DType, shape: Shape, layout: Layout, capacity: Option<usize>) -> Arg {
        let rows = capacity.map(|capacity| RowsArg {
            numbers: std::ptr::null_mut(),
            count: std::ptr::null_mut(),
            capacity,
            is_overwritten: false,
        });
        let (address, is_taken) = (std::ptr::null_mut(), AtomicBool::new(false));
        Arg {
            address,
            dtype,
            shape,
            layout,
            rows,
            is_overwritten: false,
            is_hidden: false,
            is_taken,
        }
    }

    /// Returns whether the op uses only the shape of this input.
    pub fn is_hidden(&self) -> bool {
        self.is_hidden
    }

    /// Sets the addresses of the values, and of the count and the row numbers of sparse rows.
    pub fn bind(&mut self, values: *mut u8, rows: Option<(*mut u64, *mut i64)>) {
        self.address = values;
        if let (Some(own), Some((count, numbers))) = (&mut self.rows, rows) {
            (own.count, own.numbers) = (count, numbers);
        }
    }

    /// Sets the address of the values to that of another argument.
    ///
    /// # Panics
    /// Panics if the values do not fit there.
    pub fn bind_over(&mut self, other: &Arg) {
        let (bytes, room) = (self.bytes_len(), other.bytes_len());
        assert!(bytes <= room, "cannot alias {bytes} bytes to {room}");
        self.address = other.address;
    }

    fn bind_value(&mut self, value: ValueMut<'_>) {
        let ValueMut { values, rows } = value;
        assert!(values.dtype() == self.dtype && values.physical_len() == self.len(), "wrong value");
        assert!(rows.is_some() == self.rows.is_some(), "sparse rows are not a tensor");
        let rows = rows.map(|(numbers, count)| {
            let room = self.rows.map_or(0, |own| own.capacity);
            let fits = numbers.dtype() == DType::I64 && numbers.physical_len() == room;
            assert!(fits, "expected one number per row");
            (std::ptr::from_mut(count), numbers.as_ptr().cast())
        });
        self.bind(values.as_ptr(), rows);
    }

    fn value_range(&self) -> Range<usize> {
        let start = self.address as usize;
        start..start + self.bytes_len()
    }

    /// Returns the addresses of the row numbers.
    fn row_range(&self) -> Range<usize> {
        self.rows.map_or(0..0, |rows| {
            let start = rows.numbers as usize;
            start..start + rows.capacity * size_of::<i64>()
        })
    }

    /// Returns whether both arguments have the same memory. Empty ones have none, whatever their
    /// address.
    pub fn shares_memory_with(&self, other: &Arg) -> bool {
        self.address == other.address && !self.is_empty() && !other.is_empty()
    }

    /// Returns the number of elements in memory, including the layout's padding; for sparse rows,
    /// the elements of all rows within the capacity.
    pub fn len(&self) -> usize {
        match &self.rows {
            None => self.layout.physical_len(&self.shape),
            Some(rows) => rows.capacity * self.row_len(),
        }
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the size of all elements in memory.
    pub fn bytes_len(&self) -> usize {
        self.len() * self.dtype.size()
    }

    /// Returns the number of elements of one row.
    pub fn row_len(&self) -> usize {
        self.shape.product(1..self.shape.rank())
    }

    /// Returns the content, for reading.
    ///
    /// # Safety
    /// The argument is bound to initialized memory of [`Arg::len`] elements, aligned to its type,
    /// and of the capacity for row numbers. Nothing writes to it during `'a`.
    pub unsafe fn view<'a>(&'a self) -> View<'a> {
        View { arg: self }
    }

    /// Hands out this output. Private: only [`Args`] know that the memory is valid.
    fn take(&self) -> Out<'_> {
        assert!(!self.is_taken.swap(true, Relaxed), "kernel takes an output twice");
        Out { arg: self }
    }

    fn check_type<T: Element>(&self) {
        assert!(T::reads(self.dtype), "kernel takes {} as {}", self.dtype, T::DTYPE);
    }

    fn check_width<T: Bits>(&self) {
        let width = size_of::<T>();
        assert!(width == self.dtype.size(), "kernel takes {} as {width} bytes", self.dtype);
    }

    /// # Safety
    /// As for [`Arg::view`].
    unsafe fn bytes<'a>(&self) -> &'a [u8] {
        match self.bytes_len() {
            0 => &[],
            // SAFETY: guaranteed by the caller.
            len => unsafe { std::slice::from_raw_parts(self.address, len) },
        }
    }

    /// # Safety
    /// As for [`Arg::view`], and nothing else accesses the memory during `'a`.
    unsafe fn bytes_mut<'a>(&self) -> &'a mut [u8] {
        match self.bytes_len() {
            0 => &mut [],
            // SAFETY: guaranteed by the caller.
            len => unsafe { std::slice::from_raw_parts_mut(self.address, len) },
        }
    }

    /// # Safety
    /// As for [`Arg::view`].
    unsafe fn row_count(&self) -> usize {
        match &self.rows {
            // SAFETY: guaranteed by the caller.
            Some(rows) => (unsafe { *rows.count } as usize).min(rows.capacity),
            None => 0,
        }
    }
}

/// The memory of an argument that a kernel may access while this is borrowed.
#[derive(Debug)]
pub struct ValueMut<'a> {
    /// Values of the rows.
    pub values: &'a mut Tensor,
    /// Row numbers and the number of rows in use, for sparse rows.
    pub rows: Option<(&'a mut Tensor, &'a mut u64)>,
}

/// An input of a kernel. It dereferences to the description of the input.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    arg: &'a Arg,
}

impl Deref for View<'_> {
    type Target = Arg;

    fn deref(&self) -> &Arg {
        self.arg
    }
}

impl<'a> View<'a> {
    /// Returns all elements.
    ///
    /// # Panics
    /// Panics if the type is another one, or if the input overlaps an output.
    pub fn slice<T: Element>(self) -> &'a [T] {
        self.arg.check_type::<T>();
        view_as(self.bytes())
    }

    /// Returns all elements as unsigned integers of the same width.
    pub fn bits<T: Bits>(self) -> &'a [T] {
        self.arg.check_width::<T>();
        view_as(self.bytes())
    }

    /// Returns the bytes, for any element type.
    pub fn bytes(self) -> &'a [u8] {
        assert!(!self.arg.is_hidden, "kernel reads an input of which it should use the shape only");
        assert!(
            !self.arg.is_overwritten,
            "kernel reads an input that shares memory with an output"
        );
        // SAFETY: the memory is valid (see `ArgList::lend`, `Arg::view`) and overlaps no output.
        unsafe { self.arg.bytes() }
    }

    /// Returns whether the op uses only the shape of this input.
    pub fn is_hidden(self) -> bool {
        self.arg.is_hidden
    }

    /// Returns the row numbers in use; empty for dense tensors.
    pub fn row_ids(self) -> &'a [i64] {
        match &self.arg.rows {
            // SAFETY: as above, for the row numbers.
            Some(rows) => unsafe { std::slice::from_raw_parts(rows.numbers, self.row_count()) },
            None => &[],
        }
    }

    fn check_rows(self) {
        let is_overwritten = self.arg.rows.is_some_and(|rows| rows.is_overwritten);
        assert!(!is_overwritten, "kernel reads row numbers that share memory with an output");
    }

    /// Returns the number of rows in use.
    pub fn row_count(self) -> usize {
        self.check_rows();
        // SAFETY: as above, for the counter.
        unsafe { self.arg.row_count() }
    }
}

/// An output of a kernel, of which there is one per call. It dereferences to the description of the
/// output.
#[derive(Debug)]
pub struct Out<'a> {
    arg: &'a Arg,
}

impl Deref for Out<'_> {
    type Target = Arg;

    fn deref(&self) -> &Arg {
        self.arg
    }
}

impl<'a> Out<'a> {
    /// Returns all elements. Their content is unspecified, unless the output shares the memory of
    /// an input.
    ///
    /// # Panics
    /// Panics if the type is another one.
    pub fn into_slice<T: Element>(self) -> &'a mut [T] {
        self.arg.check_type::<T>();
        view_as_mut(self.into_bytes())
    }

    /// Like [`Out::into_slice`], for a while.
    pub fn slice_mut<T: Element>(&mut self) -> &mut [T] {
        self.reborrow().into_slice()
    }

    /// Returns all elements, to be read.
    pub fn slice<T: Element>(&self) -> &[T] {
        self.arg.check_type::<T>();
        // SAFETY: this is the only access to the output, and it is borrowed.
        view_as(unsafe { self.arg.bytes() })
    }

    /// Returns all elements as unsigned integers of the same width.
    pub fn into_bits<T: Bits>(self) -> &'a mut [T] {
        self.arg.check_width::<T>();
        view_as_mut(self.into_bytes())
    }

    /// Returns the bytes, for any element type.
    pub fn into_bytes(self) -> &'a mut [u8] {
        // SAFETY: the memory is valid (see `ArgList::lend`), and this is the only access to it.
        unsafe { self.arg.bytes_mut() }
    }

    /// Like [`Out::into_bytes`], for a while.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.reborrow().into_bytes()
    }

    fn reborrow(&mut self) -> Out<'_> {
        Out { arg: self.arg }
    }

    /// Returns the row numbers in use; empty for dense tensors.
    pub fn row_ids(&self) -> &[i64] {
        let count = self.row_count();
        match &self.arg.rows {
            // SAFETY: as in `slice`, for the row numbers.
            Some(rows) => unsafe { std::slice::from_raw_parts(rows.numbers, count) },
            None => &[],
        }
    }

    /// Returns the number of rows in use.
    pub fn row_count(&self) -> usize {
        // SAFETY: as in `slice`.
        unsafe { self.arg.row_count() }
    }

    /// Returns the whole memory for row numbers.
    pub fn row_ids_mut(&mut self) -> &mut [i64] {
        match &self.arg.rows {
            // SAFETY: as in `into_bytes`, for the row numbers.
            Some(rows) => unsafe { std::slice::from_raw_parts_mut(rows.numbers, rows.capacity) },
            None => &mut [],
        }
    }

    /// Sets the number of rows in use.
    ///
    /// # Panics
    /// Panics if there is no room for so many.
    pub fn set_row_count(&mut self, count: usize) {
        if let Some(rows) = &self.arg.rows {
            assert!(count <= rows.capacity, "row count exceeds the capacity");
            // SAFETY: as in `into_bytes`, for the counter.
            unsafe { *rows.count = count as u64 };
        }
    }

    /// Returns the elements and the row numbers of an input, which may be this output.
    pub fn elements_of<'b, T: Element>(&'b self, input: View<'b>) -> (&'b [T], &'b [i64]) {
        match self.arg.shares_memory_with(input.arg) {
            true => (self.slice(), self.row_ids()),
            false => (input.slice(), input.row_ids()),
        }
    }

    /// Copies an input of the same type and shape, or the rows of it that are in use. Does nothing
    /// where both share memory.
    pub fn copy_from(&mut self, from: View<'_>) {
        self.copy_row_ids(from);
        if !self.arg.shares_memory_with(from.arg) {
            let bytes = self.bytes_in_use();
            self.bytes_mut()[..bytes].copy_from_slice(&from.bytes()[..bytes]);
        }
    }

    /// Returns the size of all elements, or of those rows that are in use.
    pub fn bytes_in_use(&self) -> usize {
        match self.arg.rows {
            None => self.arg.bytes_len(),
            Some(_) => self.row_count() * self.arg.row_len() * self.arg.dtype.size(),
        }
    }

    /// Copies the row numbers of an input, unless both share them. Does nothing for dense tensors.
    pub fn copy_row_ids(&mut self, from: View<'_>) {
        let (Some(own), Some(theirs)) = (&self.arg.rows, &from.arg.rows) else { return };
        if own.numbers != theirs.numbers {
            self.row_ids_mut()[..from.row_count()].copy_from_slice(from.row_ids());
            self.set_row_count(from.row_count());
        }
    }
}

/// The arguments of a kernel, by slot in the order of the op's spec.
#[derive(Debug)]
pub struct ArgList {
    /// Inputs first.
    args: Vec<Arg>,
    /// Positions in `args`, by slot.
    inputs: Vec<Range<usize>>,
    outputs: Vec<Range<usize>>,
}

impl ArgList {
    /// Creates the arguments of an op from those of its slots.
    pub fn new(inputs: Vec<Vec<Arg>>, outputs: Vec<Vec<Arg>>) -> ArgList {
        let mut args = Vec::new();
        let mut append = |slots: Vec<Vec<Arg>>| -> Vec<Range<usize>> {
            let ranges = slots.into_iter().map(|slot| {
                let start = args.len();
                args.extend(slot);
                start..args.len()
            });
            ranges.collect()
        };
        let (inputs, outputs) = (append(inputs), append(outputs));
        ArgList { args, inputs, outputs }
    }

    /// Returns all arguments, inputs first.
    pub fn args(&self) -> &[Arg] {
        &self.args
    }

    /// Like [`ArgList::args`], for binding. Call [`ArgList::mark_overlaps`] afterwards.
    pub fn args_mut(&mut self) -> &mut [Arg] {
        &mut self.args
    }

    /// Hides the values of an input slot from the kernel, which uses only their shape.
    pub fn hide(&mut self, slot: usize) {
        let range = self.inputs[slot].clone();
        self.args[range].iter_mut().for_each(|arg| arg.is_hidden = true);
    }

    /// Returns the positions of the arguments of each input slot.
    pub fn inputs(&self) -> &[Range<usize>] {
        &self.inputs
    }

    /// Returns the positions of the arguments of each output slot.
    pub fn outputs(&self) -> &[Range<usize>] {
        &self.outputs
    }

    /// Returns the number of variables of an input slot.
    pub fn input_count(&self) -> usize {
        self.inputs.last().map_or(0, |slot| slot.end)
    }

    /// Notes which inputs overlap outputs.
    ///
    /// # Panics
    /// Panics if two outputs overlap.
    pub fn mark_overlaps(&mut self) {
        let (inputs, outputs) = self.args.split_at_mut(self.inputs.last().map_or(0, |it| it.end));
        let outputs = outputs.iter().flat_map(|out| [out.value_range(), out.row_range()]);
        let mut written: Vec<_> = outputs.filter(|range| !range.is_empty()).collect();
        written.sort_unstable_by_key(|range| range.start);
        let are_apart = written.is_sorted_by(|one, next| one.end <= next.start);
        assert!(are_apart, "two outputs overlap");
        let is_written = |range: Range<usize>| {
            // Outputs are disjoint, so the last one that starts before the end decides.
            let before = written.partition_point(|out| out.start < range.end);
            !range.is_empty() && before > 0 && written[before - 1].end > range.start
        };
        for input in inputs {
            input.is_overwritten = is_written(input.value_range());
            let has_written_rows = is_written(input.row_range());
            if let Some(rows) = &mut input.rows {
                rows.is_overwritten = has_written_rows;
            }
        }
    }

    /// Lends the arguments to a kernel.
    ///
    /// # Safety
    /// While the result is in use:
    /// * Every argument is bound to initialized memory of [`Arg::len`] elements, aligned to its
    ///   type, and of the capacity for row numbers. So is `scratch`, aligned to
    ///   [`ALIGN`](crate::ALIGN).
    /// * Nothing else writes to this memory, and nothing else reads the outputs or the scratch.
    ///   Outputs are disjoint from one another and from the scratch.
    /// * Inputs that overlap outputs were marked by [`ArgList::mark_overlaps`].
    pub unsafe fn lend(&self, scratch: *mut u8, scratch_bytes: usize) -> Args<'_> {
        let outputs = &self.args[self.input_count()..];
        outputs.iter().for_each(|arg| arg.is_taken.store(false, Relaxed));
        Args { list: self, scratch: AtomicPtr::new(scratch), scratch_bytes }
    }

    /// Binds each argument to a value and lends all of them to a kernel. `same` lists positions of
    /// outputs and inputs that share the values of the input.
    ///
    /// # Panics
    /// Panics if a value differs from its argument in type or size, or if two outputs share memory.
    pub fn lend_values<'s>(
        &'s mut self,
        values: impl IntoIterator<Item = ValueMut<'s>>,
        same: &[(usize, usize)],
        scratch: &'s mut Buffer,
    ) -> Args<'s> {
        let mut values = values.into_iter();
        for arg in &mut self.args {
            arg.bind_value(values.next().expect("expected a value for each argument"));
        }
        for (output, input) in same {
            let (inputs, outputs) = self.args.split_at_mut(*output);
            outputs[0].bind_over(&inputs[*input]);
        }
        self.mark_overlaps();
        // SAFETY: the values are as long as their arguments, and they and the scratch are borrowed
        // exclusively. Outputs do not overlap, and overlaps with inputs are marked.
        unsafe { self.lend(scratch.as_ptr(), scratch.bytes()) }
    }

    /// Lends the arguments to a kernel that runs inside another one. An argument with an offset in
    /// `copies` is in `memory`, at this offset; the others are those of the outer kernel. The first
    /// `scratch_bytes` of `memory` are the scratch.
    ///
    /// # Panics
    /// Panics if the lists differ in their arguments, or if copies overlap or exceed `memory`.
    pub fn lend_inside<'s>(
        &'s mut self,
        outer: &'s Args<'_>,
        memory: &'s mut [u8],
        scratch_bytes: usize,
        copies: &[Option<usize>],
    ) -> Args<'s> {
        assert_eq!(self.outputs, outer.list.outputs, "kernels have different arguments");
        let (mut used, first_output) = (scratch_bytes, self.input_count());
        for (index, (own, copy)) in self.args.iter_mut().zip(copies).enumerate() {
            let other = &outer.list.args[index];
            match copy {
                Some(at) => {
                    assert!(used <= *at && at.is_multiple_of(ALIGN), "copies overlap");
                    used = at + own.bytes_len();
                    assert!(used <= memory.len() && own.rows.is_none(), "copies need more memory");
                    own.address = memory.as_mut_ptr().wrapping_add(*at);
                }
                None => {
                    let (len, dtype) = (own.bytes_len(), own.dtype);
                    assert!(len == other.bytes_len() && dtype == other.dtype, "wrong argument");
                    (own.address, own.rows) = (other.address, other.rows);
                    own.is_overwritten = other.is_overwritten;
                    own.is_hidden = other.is_hidden;
                    if index >= first_output {
                        other.take();
                    }
                }
            }
        }
        assert!(copies.len() == self.args.len() && scratch_bytes <= memory.len(), "wrong length");
        // SAFETY: the outer kernel lends what it was lent, and `memory` is exclusive. Copies were
        // checked to lie in it and to be disjoint.
        unsafe { self.lend(memory.as_mut_ptr(), scratch_bytes) }
    }
}

/// The arguments of a running kernel, and its scratch memory.
pub struct Args<'a> {
    list: &'a ArgList,
    /// Null once it is handed out.
    scratch: AtomicPtr<u8>,
    scratch_bytes: usize,
}

impl<'a> Args<'a> {
    fn inputs_of(&self, slot: usize) -> &'a [Arg] {
        &self.list.args[self.list.inputs[slot].clone()]
    }

    fn outputs_of(&self, slot: usize) -> &'a [Arg] {
        &self.list.args[self.list.outputs[slot].clone()]
    }

    /// Returns whether an optional input slot has a variable.
    pub fn has_input(&self, slot: usize) -> bool {
        !self.inputs_of(slot).is_empty()
    }

    /// Returns whether an optional output slot has a variable.
    pub fn has_output(&self, slot: usize) -> bool {
        !self.outputs_of(slot).is_empty()
    }

    /// Returns the first variable of an input slot.
    pub fn arg(&self, slot: usize) -> View<'a> {
        View { arg: &self.inputs_of(slot)[0] }
    }

    /// Like [`Args::arg`]; `None` if the slot has no variable.
    pub fn optional_arg(&self, slot: usize) -> Option<View<'a>> {
        self.inputs_of(slot).first().map(|arg| View { arg })
    }

    /// Like [`Args::arg`], for a variable of a slot.
    pub fn arg_at(&self, slot: usize, index: usize) -> View<'a> {
        View { arg: &self.inputs_of(slot)[index] }
    }

    /// Returns all variables of an input slot.
    pub fn inputs(&self, slot: usize) -> impl ExactSizeIterator<Item = View<'a>> + Clone + use<'a> {
        self.inputs_of(slot).iter().map(|arg| View { arg })
    }

    /// Returns the variables of all input slots.
    pub fn all_inputs(&self) -> impl ExactSizeIterator<Item = View<'a>> + use<'a> {
        self.list.args[..self.list.input_count()].iter().map(|arg| View { arg })
    }

    /// Returns the elements of an input slot's only variable.
    pub fn input<T: Element>(&self, slot: usize) -> &'a [T] {
        self.arg(slot).slice()
    }

    /// Like [`Args::input`]; `None` if the slot has no variable.
    pub fn optional<T: Element>(&self, slot: usize) -> Option<&'a [T]> {
        self.optional_arg(slot).map(View::slice)
    }

    /// Returns the number of variables of an output slot.
    pub fn output_count(&self, slot: usize) -> usize {
        self.outputs_of(slot).len()
    }

    /// Hands out the first variable of an output slot.
    ///
    /// # Panics
    /// Panics if the kernel has it already.
    pub fn out(&self, slot: usize) -> Out<'a> {
        self.outputs_of(slot)[0].take()
    }

    /// Like [`Args::out`], for a variable of a slot.
    pub fn out_at(&self, slot: usize, index: usize) -> Out<'a> {
        self.outputs_of(slot)[index].take()
    }

    /// Hands out all variables of an output slot, one by one.
    pub fn outs(&self, slot: usize) -> impl ExactSizeIterator<Item = Out<'a>> + use<'a> {
        self.outputs_of(slot).iter().map(Arg::take)
    }

    /// Hands out a variable, counted over all output slots.
    pub fn out_of_all(&self, index: usize) -> Out<'a> {
        self.list.args[self.list.input_count() + index].take()
    }

    /// Like [`Args::out`]; `None` if the slot has no variable.
    pub fn optional_out(&self, slot: usize) -> Option<Out<'a>> {
        self.outputs_of(slot).first().map(Arg::take)
    }

    /// Hands out all elements of an output, for writing.
    pub fn output<T: Element>(&self, slot: usize) -> &'a mut [T] {
        self.out(slot).into_slice()
    }

    /// Like [`Args::output`]; `None` if the slot has no variable.
    pub fn optional_output<T: Element>(&self, slot: usize) -> Option<&'a mut [T]> {
        self.optional_out(slot).map(Out::into_slice)
    }

    /// Hands out an output that updates an input. It holds the elements of the input, which are
    /// copied unless both share memory.
    pub fn updated<T: Element>(&self, output: usize, input: usize) -> &'a mut [T] {
        self.updated_at(output, input, 0)
    }

    /// Like [`Args::updated`], for a variable of each slot.
    pub fn updated_at<T: Element>(&self, output: usize, input: usize, index: usize) -> &'a mut [T] {
        let mut out = self.out_at(output, index);
        out.copy_from(self.arg_at(input, index));
        out.into_slice()
    }

    /// Returns whether an output shares the memory of an input.
    pub fn shares_memory(&self, output: usize, input: usize) -> bool {
        match (self.outputs_of(output).first(), self.inputs_of(input).first()) {
            (Some(out), Some(arg)) => out.shares_memory_with(arg),
            _ => false,
        }
    }

    /// Returns the elements of an input, or `None` if it shares the memory of the first variable of
    /// an output slot, which then holds the elements.
    pub fn slice_unless<T: Element>(&self, input: View<'a>, output: usize) -> Option<&'a [T]> {
        let shares = |out: &Arg| out.shares_memory_with(input.arg) && out.dtype == input.dtype;
        (!self.outputs_of(output).first().is_some_and(shares)).then(|| input.slice())
    }

    /// Reads an input while no output is handed out. In contrast to [`View::slice`], this works for
    /// an input that overlaps outputs.
    ///
    /// # Panics
    /// Panics if the kernel has an output already, or takes one in `read`.
    pub fn read_first<T: Element, R>(&self, input: View<'_>, read: impl FnOnce(&[T]) -> R) -> R {
        input.check_type::<T>();
        let outputs = &self.list.args[self.list.input_count()..];
        for out in outputs {
            out.take();
        }
        // SAFETY: the memory is valid (see `ArgList::lend`), and outputs cannot be taken meanwhile.
        let result = read(view_as(unsafe { input.arg.bytes() }));
        outputs.iter().for_each(|out| out.is_taken.store(false, Relaxed));
        result
    }

    /// Hands out the scratch memory that the kernel requested. Its content is unspecified.
    ///
    /// # Panics
    /// Panics if the kernel has it already.
    pub fn scratch<T: Plain>(&self) -> &'a mut [T] {
        let bytes = self.scratch_bytes / size_of::<T>() * size_of::<T>();
        if bytes == 0 {
            return &mut [];
        }
        let start = self.scratch.swap(std::ptr::null_mut(), Relaxed);
        assert!(!start.is_null(), "kernel takes its scratch memory twice");
        // SAFETY: the memory is valid (see `ArgList::lend`), and this is the only access to it.
        view_as_mut(unsafe { std::slice::from_raw_parts_mut(start, bytes) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Buffer;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn arg(memory: &Buffer, at: usize, len: i64) -> Arg {
        let mut arg = Arg::unbound(DType::F32, Shape::from([len]), Layout::RowMajor, None);
        arg.bind(memory.as_ptr().wrapping_add(at), None);
        arg
    }

    fn panics<R>(work: impl FnOnce() -> R) -> bool {
        catch_unwind(AssertUnwindSafe(work)).is_err()
    }

    #[test]
    fn memory_is_handed_out_once() {
        let (memory, scratch) = (Buffer::zeroed(256).unwrap(), Buffer::zeroed(64).unwrap());
        // Inputs: apart, equal to the first output, and inside the second one.
        let inputs = vec![arg(&memory, 128, 16), arg(&memory, 0, 16), arg(&memory, 96, 4)];
        let outputs = vec![arg(&memory, 0, 16), arg(&memory, 64, 16)];
        let mut list = ArgList::new(vec![inputs], vec![outputs]);
        list.mark_overlaps();
        for _ in 0..2 {
            // SAFETY: all arguments are inside the buffers, which nothing else uses meanwhile.
            let args = unsafe { list.lend(scratch.as_ptr(), 64) };
            let overlap = [0, 1, 2].map(|index| panics(|| args.arg_at(0, index).slice::<f32>()));
            assert_eq!(overlap, [false, true, true]);
            assert!(args.slice_unless::<f32>(args.arg_at(0, 1), 0).is_none());
            args.read_first(args.arg_at(0, 1), |x: &[f32]| assert_eq!(x.len(), 16));
            let mut out = args.out(0);
            out.copy_from(args.arg_at(0, 1));
            assert!(out.slice_mut::<f32>().len() == 16 && panics(|| out.slice::<i64>().len()));
            assert!(panics(|| args.out(0)) && !panics(|| args.out_at(0, 1)));
            assert!(panics(|| args.read_first(args.arg_at(0, 1), |_: &[f32]| ())));
            assert!(args.scratch::<u64>().len() == 8 && panics(|| args.scratch::<u64>()));
        }
    }

    #[test]
    fn outputs_do_not_overlap() {
        let memory = Buffer::zeroed(128).unwrap();
        let outputs = |second: usize| vec![vec![arg(&memory, 0, 16), arg(&memory, second, 8)]];
        assert!(!panics(|| ArgList::new(Vec::new(), outputs(64)).mark_overlaps()));
        assert!(panics(|| ArgList::new(Vec::new(), outputs(32)).mark_overlaps()));
    }

    #[test]
    fn an_inner_kernel_works_on_copies() {
        let (memory, mut copies) = (Buffer::zeroed(128).unwrap(), Buffer::zeroed(128).unwrap());
        let lists = || (vec![vec![arg(&memory, 0, 16)]], vec![vec![arg(&memory, 64, 16)]]);
        let [mut outer, mut inner] = [lists(), lists()].map(|(i, o)| ArgList::new(i, o));
        outer.mark_overlaps();
        // SAFETY: all arguments are inside the buffer, which nothing else uses meanwhile.
        let args = unsafe { outer.lend(std::ptr::null_mut(), 0) };
        {
            let inside = inner.lend_inside(&args, copies.as_mut_slice(), 0, &[None, Some(64)]);
            assert_eq!(inside.input::<f32>(0), [0.0; 16]);
            inside.output::<f32>(0).fill(1.0);
        }
        assert_eq!(args.output::<f32>(0), [0.0; 16]);
        let mut misplaced = |at| {
            panics(|| _ = inner.lend_inside(&args, copies.as_mut_slice(), 8, &[None, Some(at)]))
        };
        assert!(misplaced(0) && misplaced(72) && misplaced(128));
    }
}
