//! The memory of a call as users pass it: one buffer or several, of a type known at compile time or
//! at run time.
//!
//! ```
//! use fleet_comm::{Bytes, Fused, InPlace, ReduceOp, World};
//! use fleet_tensor::DType;
//! # let world = World::threads(1).remove(0);
//! # let group = world.group("all", &[0], &Default::default())?;
//! let (mut a, mut b) = ([1.0f32; 8], vec![2.0f32; 4]);
//! group.all_reduce("one", &mut a, ReduceOp::Sum)?;
//! group.all_reduce("several", Fused(&mut [&mut a, &mut b]), ReduceOp::Sum)?;
//! group.all_gather("blocks", InPlace, &mut b)?;
//! let mut bytes = [0u8; 16];
//! group.all_reduce("bytes", Bytes(DType::U8, &mut [bytes.as_mut_slice()][..]), ReduceOp::Max)?;
//! # Ok::<(), fleet_base::Error>(())
//! ```

use crate::call::{Piece, Pieces};
use fleet_tensor::{DType, Element};

/// Memory that a call reads and writes: `&mut` of a slice, an array or a vector, [`Fused`], or
/// [`Bytes`] of several buffers.
pub trait Buffers {
    /// Calls `work` with the type of the elements and the memory.
    #[doc(hidden)]
    fn with<R>(self, work: impl FnOnce(DType, Pieces<'_>) -> R) -> R;
}

/// Several buffers in one operation, without joining them.
pub struct Fused<'a, 'b, T>(pub &'a mut [&'b mut [T]]);

/// Memory whose type of elements is known at run time. Buffers must hold whole aligned elements.
pub struct Bytes<M>(pub DType, pub M);

impl<T: Element> Buffers for &mut [T] {
    fn with<R>(self, work: impl FnOnce(DType, Pieces<'_>) -> R) -> R {
        work(T::DTYPE, Pieces::new(&[Piece::of(self)]))
    }
}

impl<T: Element, const N: usize> Buffers for &mut [T; N] {
    fn with<R>(self, work: impl FnOnce(DType, Pieces<'_>) -> R) -> R {
        self.as_mut_slice().with(work)
    }
}

impl<T: Element> Buffers for &mut Vec<T> {
    fn with<R>(self, work: impl FnOnce(DType, Pieces<'_>) -> R) -> R {
        self.as_mut_slice().with(work)
    }
}

impl<T: Element> Buffers for Fused<'_, '_, T> {
    fn with<R>(self, work: impl FnOnce(DType, Pieces<'_>) -> R) -> R {
        with_pieces(self.0, |pieces| work(T::DTYPE, pieces))
    }
}

impl Buffers for Bytes<&mut [&mut [u8]]> {
    fn with<R>(self, work: impl FnOnce(DType, Pieces<'_>) -> R) -> R {
        with_pieces(self.1, |pieces| work(self.0, pieces))
    }
}

/// The input of a call with separate output: `&` of a slice, an array or a vector, [`InPlace`], or
/// [`Bytes`] of one buffer.
pub trait Input<T: Element> {
    #[doc(hidden)]
    fn dtype(&self) -> DType {
        T::DTYPE
    }

    /// The memory; `None` if it is the output.
    #[doc(hidden)]
    fn piece(self) -> Option<Piece>;
}

/// The input is already in its place in the output.
pub struct InPlace;

impl<T: Element> Input<T> for InPlace {
    fn piece(self) -> Option<Piece> {
        None
    }
}

impl<T: Element> Input<T> for &[T] {
    fn piece(self) -> Option<Piece> {
        Some(Piece::of_const(self))
    }
}

impl<T: Element, const N: usize> Input<T> for &[T; N] {
    fn piece(self) -> Option<Piece> {
        Some(Piece::of_const(self))
    }
}

impl<T: Element> Input<T> for &Vec<T> {
    fn piece(self) -> Option<Piece> {
        Some(Piece::of_const(self))
    }
}

impl Input<u8> for Bytes<&[u8]> {
    fn dtype(&self) -> DType {
        self.0
    }

    fn piece(self) -> Option<Piece> {
        Some(Piece::of_const(self.1))
    }
}

/// Up to this number, pieces and counts are kept on the stack.
const STACK_ITEMS_MAX: usize = 64;

fn with_pieces<T, R>(data: &mut [&mut [T]], work: impl FnOnce(Pieces<'_>) -> R) -> R {
    let none = Piece { start: std::ptr::null_mut(), bytes: 0 };
    if data.len() <= STACK_ITEMS_MAX {
        let mut on_stack = [none; STACK_ITEMS_MAX];
        for (piece, part) in on_stack.iter_mut().zip(data.iter_mut()) {
            *piece = Piece::of(part);
        }
        return work(Pieces::new(&on_stack[..data.len()]));
    }
    let on_heap: Vec<Piece> = data.iter_mut().map(|part| Piece::of(part)).collect();
    work(Pieces::new(&on_heap))
}

/// Sizes by rank, in bytes.
pub(crate) struct Counts {
    len: usize,
    on_stack: [usize; STACK_ITEMS_MAX],
    on_heap: Vec<usize>,
}

impl Counts {
    pub fn new(len: usize, value: impl Fn(usize) -> usize) -> Counts {
        let mut counts = Counts { len, on_stack: [0; STACK_ITEMS_MAX], on_heap: Vec::new() };
        match counts.on_stack.get_mut(..len) {
            Some(list) => list.iter_mut().enumerate().for_each(|(i, count)| *count = value(i)),
            None => counts.on_heap.extend((0..len).map(value)),
        }
        counts
    }
}

impl std::ops::Deref for Counts {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        self.on_stack.get(..self.len).unwrap_or(&self.on_heap)
    }
}
