//! Several elementwise steps in one pass over memory: a small interpreter that runs the steps tile
//! by tile in L1, forward and backward.
//!
//! A [`Chain`] passes one value through its steps. A step applies a function to the value, or
//! combines it with an operand. The operand has the same length or is repeated along the value (a
//! bias row, a channel, a scalar). [`bias_activation_grad`] is the backward pass of the most common
//! chain, with the sum over the bias in the same pass. Expression trees are not supported: a chain
//! has one live value.
//!
//! ```
//! use fleet_kernels::chain::{Chain, Layout, Step};
//! use fleet_kernels::{binary::Binary, elementwise::Unary, pool::Pool};
//! let chain = Chain::new(vec![
//!     Step::Join { op: Binary::Add, operand: 0, layout: Layout::row(2), value_right: false },
//!     Step::Map(Unary::Relu),
//! ]).unwrap();
//! let mut out = [0.0; 4];
//! chain.forward(&Pool::new(1), &[1.0, -3.0, -2.0, 5.0], &[&[1.0, 2.0]], &mut out);
//! assert_eq!(out, [2.0, 0.0, 0.0, 7.0]);
//! ```

#[cfg(test)]
mod tests;

use std::ops::Range;

use fleet_base::{Error, Result};

use crate::binary::{Binary, binary_grad_tile, binary_tile};
use crate::elementwise::{GRAIN, Saved, Unary, backward_tile, forward_tile};
use crate::pool::Pool;
use crate::reduce::{add_columns, add_partials};
use crate::simd::SharedPtr;

/// The layout of an operand relative to the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// The same length as the value.
    Full,
    /// Element `i / inner % channels` of the operand is combined with element `i` of the value.
    Repeated { inner: usize, channels: usize },
}

impl Layout {
    /// A row of `columns`, repeated for every row of the value.
    pub fn row(columns: usize) -> Self {
        Layout::Repeated { inner: 1, channels: columns }
    }

    /// One number for each of `rows` rows of `columns`.
    pub fn column(rows: usize, columns: usize) -> Self {
        Layout::Repeated { inner: columns, channels: rows }
    }

    /// One number for all elements.
    pub fn scalar() -> Self {
        Layout::Repeated { inner: 1, channels: 1 }
    }

    /// Returns the length of an operand for a value of `len` elements.
    pub fn operand_len(self, len: usize) -> usize {
        match self {
            Layout::Full => len,
            Layout::Repeated { channels, .. } => channels,
        }
    }
}

/// One step of a chain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    Map(Unary),
    /// `value op operand`, or `operand op value` if `value_right`.
    Join {
        op: Binary,
        operand: usize,
        layout: Layout,
        value_right: bool,
    },
}

/// Limit on the steps of a chain. The backward pass keeps a tile per step on the stack.
pub const STEPS_MAX: usize = 8;
/// Number of floats in a tile. All tiles of a backward pass fit into L2, and those of a forward
/// pass into L1.
const TILE: usize = 1024;

type Tile = [f32; TILE];

/// A validated list of steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Chain {
    steps: Vec<Step>,
}

/// The saved value that [`Chain::backward`] reads, besides the operands and the gradient of the
/// output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainSaved {
    /// The input of the chain; intermediate values are recomputed.
    Input,
    /// The output of the chain.
    Output,
    Nothing,
}

impl Chain {
    /// Returns an error for an empty chain, for more than [`STEPS_MAX`] steps, and for repeated
    /// operands without elements.
    pub fn new(steps: Vec<Step>) -> Result<Self> {
        if steps.is_empty() || steps.len() > STEPS_MAX {
            return Err(Error::invalid("wrong number of steps in a chain")
                .expected(format!("1 to {STEPS_MAX}"))
                .got(steps.len()));
        }
        let void = |step: &Step| match step {
            Step::Join { layout: Layout::Repeated { inner, channels }, .. } => {
                *inner == 0 || *channels == 0
            }
            _ => false,
        };
        if steps.iter().any(void) {
            return Err(Error::invalid("an operand of a chain has no elements"));
        }
        Ok(Chain { steps })
    }

    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns the value that the backward pass needs.
    pub fn saved(&self) -> ChainSaved {
        let last = self.steps.len() - 1;
        let mut saved = ChainSaved::Nothing;
        for (k, step) in self.steps.iter().enumerate() {
            let need = match step {
                Step::Join { op: Binary::Add | Binary::Sub, .. } => Saved::Nothing,
                Step::Join { .. } => Saved::Input,
                Step::Map(op) => op.saved(),
            };
            match need {
                Saved::Nothing => {}
                Saved::Output if k == last => saved = ChainSaved::Output,
                // If any intermediate value is needed, all are recomputed, including the output.
                _ => return ChainSaved::Input,
            }
        }
        saved
    }

    fn check_operands(&self, operands: &[&[f32]], len: usize) {
        for step in &self.steps {
            if let Step::Join { operand, layout, .. } = step {
                assert_eq!(
                    operands[*operand].len(),
                    layout.operand_len(len),
                    "operand has the wrong length"
                );
            }
        }
    }

    /// Applies the chain to `x`. Panics if an operand is missing or has the wrong length.
    pub fn forward(&self, pool: &Pool, x: &[f32], operands: &[&[f32]], out: &mut [f32]) {
        assert_eq!(x.len(), out.len(), "input and output differ in length");
        self.check_operands(operands, x.len());
        let operand = |k: usize| operands[k].as_ptr();
        // SAFETY: the lengths were checked; `out` is exclusive.
        unsafe { self.forward_raw(pool, x.as_ptr(), &operand, out.as_mut_ptr(), out.len()) }
    }

    /// Like [`Chain::forward`], over pointers.
    ///
    /// # Safety
    /// `x` and `out` hold `len` floats, and every operand has the length that its layout requires.
    /// `out` is disjoint from each of them, or equal to one of length `len`.
    pub unsafe fn forward_raw(
        &self,
        pool: &Pool,
        x: *const f32,
        operand: &(dyn Fn(usize) -> *const f32 + Sync),
        out: *mut f32,
        len: usize,
    ) {
        let (x, out) = (SharedPtr::new(x), SharedPtr::new_mut(out));
        pool.run_ranges(len, GRAIN, |range| {
            let mut joined: Tile = [0.0; TILE];
            let mut value: Tile = [0.0; TILE];
            for_tiles(range, |start, n| {
                let last = self.steps.len() - 1;
                // SAFETY: tiles are disjoint. Only the last step writes the output, after
                // everything at the same positions has been read.
                unsafe {
                    let mut from = x.at(start).cast_const();
                    for (k, step) in self.steps.iter().enumerate() {
                        let to = if k == last { out.at(start) } else { value.as_mut_ptr() };
                        run_step(step, operand, start, n, from, to, &mut joined);
                        from = value.as_ptr();
                    }
                }
            });
        });
    }

    /// Computes the gradient `dx` of the input, and the gradients of those operands for which
    /// `operand_grads` holds a slice (one slot per operand). The gradient of a repeated operand is
    /// written for every element of the value; the caller sums it (see [`crate::reduce`]). `saved`
    /// is the value that [`Chain::saved`] names, or any slice of the value's length if it names
    /// none.
    pub fn backward(
        &self,
        pool: &Pool,
        saved: &[f32],
        operands: &[&[f32]],
        dy: &[f32],
        dx: &mut [f32],
        operand_grads: &mut [Option<&mut [f32]>],
    ) {
        let len = dx.len();
        assert_eq!(saved.len(), len, "saved values and gradient differ in length");
        assert_eq!(dy.len(), len, "the gradients differ in length");
        self.check_operands(operands, len);
        let mut grads = [const { None }; STEPS_MAX];
        for (k, step) in self.steps.iter().enumerate() {
            if let Step::Join { operand, .. } = step
                && let Some(Some(slice)) = operand_grads.get_mut(*operand)
            {
                assert_eq!(slice.len(), len, "operand and its gradient differ in length");
                grads[k] = Some(SharedPtr::new_mut(slice.as_mut_ptr()));
            }
        }
        let operand = |k: usize| operands[k].as_ptr();
        let (saved, dy, dx) = (
            SharedPtr::new(saved.as_ptr()),
            SharedPtr::new(dy.as_ptr()),
            SharedPtr::new_mut(dx.as_mut_ptr()),
        );
        pool.run_ranges(len, GRAIN, |range| {
            // SAFETY: ranges are disjoint, and all lengths were checked.
            unsafe { self.backward_range(range, saved, &operand, dy, dx, &grads) };
        });
    }

    unsafe fn backward_range(
        &self,
        range: Range<usize>,
        saved: SharedPtr<f32>,
        operand: &(dyn Fn(usize) -> *const f32 + Sync),
        dy: SharedPtr<f32>,
        dx: SharedPtr<f32>,
        grads: &[Option<SharedPtr<f32>>; STEPS_MAX],
    ) {
        let again = self.saved() == ChainSaved::Input;
        let mut values: [Tile; STEPS_MAX] = [[0.0; TILE]; STEPS_MAX];
        let mut joined: Tile = [0.0; TILE];
        let mut grad: Tile = [0.0; TILE];
        for_tiles(range, |start, n| {
            // SAFETY: promised by the caller, and tiles are disjoint.
            unsafe {
                let whole = saved.at(start).cast_const();
                if again {
                    let mut from = whole;
                    for (k, step) in self.steps.iter().enumerate() {
                        let to = values[k].as_mut_ptr();
                        run_step(step, operand, start, n, from, to, &mut joined);
                        from = to;
                    }
                }
                std::ptr::copy_nonoverlapping(dy.at(start).cast_const(), grad.as_mut_ptr(), n);
                for (k, step) in self.steps.iter().enumerate().rev() {
                    let input = if again && k > 0 { values[k - 1].as_ptr() } else { whole };
                    let output = if again { values[k].as_ptr() } else { whole };
                    let to = if k == 0 { dx.at(start) } else { grad.as_mut_ptr() };
                    match step {
                        Step::Map(op) => {
                            let kept = if op.saved() == Saved::Output { output } else { input };
                            backward_tile(*op, kept, grad.as_ptr(), to, n);
                        }
                        Step::Join { op, operand: index, layout, value_right } => {
                            let other = expand(operand(*index), *layout, start, n, &mut joined);
                            let (a, b) = if *value_right { (other, input) } else { (input, other) };
                            if let Some(slot) = grads[k] {
                                let slot = slot.at(start);
                                binary_grad_tile(*op, *value_right, a, b, grad.as_ptr(), slot, n);
                            }
                            binary_grad_tile(*op, !*value_right, a, b, grad.as_ptr(), to, n);
                        }
                    }
                }
            }
        });
    }
}

fn for_tiles(range: Range<usize>, mut body: impl FnMut(usize, usize)) {
    let mut start = range.start;
    while start < range.end {
        let n = TILE.min(range.end - start);
        body(start, n);
        start += n;
    }
}

/// # Safety
/// As for [`Chain::forward_raw`], for the tile of `n` floats at `start`.
unsafe fn run_step(
    step: &Step,
    operand: &(dyn Fn(usize) -> *const f32 + Sync),
    start: usize,
    n: usize,
    from: *const f32,
    to: *mut f32,
    joined: &mut Tile,
) {
    // SAFETY: promised by the caller.
    unsafe {
        match step {
            Step::Map(op) => forward_tile(*op, from, to, n),
            Step::Join { op, operand: index, layout, value_right } => {
                let other = expand(operand(*index), *layout, start, n, joined);
                let (a, b) = if *value_right { (other, from) } else { (from, other) };
                binary_tile(*op, a, b, to, n);
            }
        }
    }
}

/// Returns the operand along the tile: itself, or expanded into `joined`.
unsafe fn expand(
    operand: *const f32,
    layout: Layout,
    start: usize,
    n: usize,
    joined: &mut Tile,
) -> *const f32 {
    // SAFETY: the operand has the length that its layout requires.
    unsafe {
        let Layout::Repeated { inner, channels } = layout else { return operand.add(start) };
        let mut i = 0;
        let mut channel = start / inner % channels;
        let mut inside = start % inner;
        while i < n {
            if inner == 1 {
                let run = (channels - channel).min(n - i);
                if channels == 1 {
                    joined[..n].fill(*operand);
                    break;
                }
                std::ptr::copy_nonoverlapping(
                    operand.add(channel),
                    joined.as_mut_ptr().add(i),
                    run,
                );
                (i, channel) = (i + run, 0);
            } else {
                let run = (inner - inside).min(n - i);
                joined[i..i + run].fill(*operand.add(channel));
                (i, inside) = (i + run, 0);
                channel = (channel + 1) % channels;
            }
        }
    }
    joined.as_ptr()
}

/// Returns the number of rows per task of [`bias_activation_grad`]. It depends on the shape alone.
fn bias_rows(rows: usize, columns: usize) -> usize {
    (GRAIN / columns.max(1)).max(rows.div_ceil(BIAS_BLOCKS_MAX)).max(1)
}

/// Limit on the blocks of partial bias gradients.
const BIAS_BLOCKS_MAX: usize = 128;

/// Returns the length of the scratch memory for [`bias_activation_grad`], in floats.
pub fn bias_activation_grad_scratch_len(rows: usize, columns: usize) -> usize {
    rows.div_ceil(bias_rows(rows, columns)) * columns
}

/// Computes the backward pass of `y = op(x + bias)` over `[rows, columns]` in one pass: `dx`, and
/// its column sums in `dbias`. `saved` is the value that [`Unary::saved`] names for `op`. `None`
/// for `op` passes the gradient through. For a `dx` that equals `dy`, see
/// [`bias_activation_grad_raw`].
pub fn bias_activation_grad(
    pool: &Pool,
    op: Option<Unary>,
    saved: &[f32],
    dy: &[f32],
    dx: &mut [f32],
    dbias: &mut [f32],
    scratch: &mut [f32],
) {
    let columns = dbias.len();
    assert!(columns > 0 && dx.len().is_multiple_of(columns), "not a whole number of rows");
    assert_eq!(dy.len(), dx.len(), "the gradients differ in length");
    assert_eq!(saved.len(), dx.len(), "saved values and gradient differ in length");
    let rows = dx.len() / columns;
    // SAFETY: the slices have these lengths, and the outputs are exclusive.
    unsafe {
        bias_activation_grad_raw(
            pool,
            op,
            saved.as_ptr(),
            dy.as_ptr(),
            dx.as_mut_ptr(),
            rows,
            dbias,
            scratch,
        );
    }
}

/// Like [`bias_activation_grad`], with `dx` in place of `dy`.
pub fn bias_activation_grad_inplace(
    pool: &Pool,
    op: Unary,
    saved: &[f32],
    dy: &mut [f32],
    dbias: &mut [f32],
    scratch: &mut [f32],
) {
    let columns = dbias.len();
    assert!(columns > 0 && dy.len().is_multiple_of(columns), "not a whole number of rows");
    assert_eq!(saved.len(), dy.len(), "saved values and gradient differ in length");
    let (rows, at) = (dy.len() / columns, dy.as_mut_ptr());
    // SAFETY: the slices have this length. `dx` equals `dy`, which is exclusive.
    unsafe {
        bias_activation_grad_raw(pool, Some(op), saved.as_ptr(), at, at, rows, dbias, scratch);
    }
}

/// Computes the column sums of `dy`, `[rows, columns]`: the gradient of a bias.
pub fn bias_grad(pool: &Pool, dy: &[f32], dbias: &mut [f32], scratch: &mut [f32]) {
    let columns = dbias.len();
    assert!(columns > 0 && dy.len().is_multiple_of(columns), "not a whole number of rows");
    let (at, rows) = (dy.as_ptr(), dy.len() / columns);
    // SAFETY: the slice has this length. Without a function, a `dx` that equals `dy` is not
    // written.
    unsafe { bias_activation_grad_raw(pool, None, at, at, at.cast_mut(), rows, dbias, scratch) };
}

/// Like [`bias_activation_grad`], over pointers. Without `op`, a `dx` that equals `dy` is not
/// written.
///
/// # Safety
/// `saved`, `dy` and `dx` hold `rows` times the length of `dbias`. `dx` is equal to or disjoint
/// from each of the others.
pub unsafe fn bias_activation_grad_raw(
    pool: &Pool,
    op: Option<Unary>,
    saved: *const f32,
    dy: *const f32,
    dx: *mut f32,
    rows: usize,
    dbias: &mut [f32],
    scratch: &mut [f32],
) {
    let columns = dbias.len();
    let block = bias_rows(rows, columns);
    assert!(
        scratch.len() >= bias_activation_grad_scratch_len(rows, columns),
        "scratch is too short"
    );
    let (saved, dy, dx) = (SharedPtr::new(saved), SharedPtr::new(dy), SharedPtr::new_mut(dx));
    let partial = SharedPtr::new_mut(scratch.as_mut_ptr());
    let blocks = rows.div_ceil(block);
    pool.run_ranges(rows, block, |range| {
        // SAFETY: every range has its own rows and its own row of partial sums. A few rows at a
        // time stay in L1 between the two passes over them.
        unsafe {
            let sums = partial.at(range.start / block * columns);
            std::slice::from_raw_parts_mut(sums, columns).fill(0.0);
            let step = (TILE * 4 / columns).max(1);
            let mut row = range.start;
            while row < range.end {
                let count = step.min(range.end - row);
                let (i, n) = (row * columns, count * columns);
                match op {
                    Some(op) => backward_tile(op, saved.at(i), dy.at(i), dx.at(i), n),
                    None if std::ptr::eq(dy.at(i), dx.at(i)) => {}
                    None => std::ptr::copy(dy.at(i).cast_const(), dx.at(i), n),
                }
                add_columns(dx.at(i), count, columns, sums);
                row += count;
            }
        }
    });
    add_partials(pool, &scratch[..blocks * columns], dbias);
}
