//! Reading a small tensor under a larger shape, by repeating dimensions of size 1 and missing
//! leading ones. Expanding, tiling and the gradients of reductions use it.

use fleet_base::{Error, Result};
use fleet_kernels::pool::Pool;
use fleet_tensor::Shape;
use std::ops::Range;

/// Elements per task.
const GRAIN: usize = 16 * 1024;

/// A small tensor that is read under a larger shape. Axes are merged where both are contiguous.
#[derive(Clone, Debug)]
pub(crate) struct BroadcastView {
    /// Pairs (length, stride in the small tensor), outermost first; never empty.
    axes: Vec<(usize, usize)>,
    len: usize,
    repeated: Vec<usize>,
}

impl BroadcastView {
    /// Broadcasts a tensor of shape `from`, aligned at the last dimension, to shape `to`.
    pub(crate) fn new(from: &Shape, to: &Shape) -> Result<BroadcastView> {
        let extra = to.rank().checked_sub(from.rank());
        let Some(extra) = extra.filter(|_| from.is_known() && to.is_known()) else {
            return Err(Error::internal(format!("cannot broadcast shape {from} to {to}")));
        };
        let mut lens = Vec::new();
        for (axis, len) in to.iter().enumerate() {
            let own = if axis < extra { 1 } else { from[axis - extra] };
            if own != *len && own != 1 {
                return Err(Error::invalid(format!("cannot broadcast shape {from} to {to}")));
            }
            lens.push((*len as usize, own as usize));
        }
        Ok(BroadcastView::of(&lens))
    }

    /// Makes a view from pairs (length, length in the small tensor).
    fn of(lens: &[(usize, usize)]) -> BroadcastView {
        let repeated = (0..lens.len()).filter(|axis| lens[*axis].0 != lens[*axis].1).collect();
        let mut axes: Vec<(usize, usize)> = Vec::new();
        let mut stride = 1;
        for (len, own) in lens.iter().rev().filter(|(len, _)| *len != 1) {
            let step = if *own == 1 { 0 } else { stride };
            stride *= own;
            match axes.last_mut() {
                // This axis continues where the inner one ends, or both have stride 0.
                Some((inner, inner_step)) if *inner_step * *inner == step => *inner *= len,
                _ => axes.push((*len, step)),
            }
        }
        if axes.is_empty() {
            axes.push((1, 1));
        }
        axes.reverse();
        let len = axes.iter().map(|(len, _)| len).product();
        BroadcastView { axes, len, repeated }
    }

    /// Repeats each dimension of a tensor of shape `from` as a whole, `times` times.
    pub(crate) fn tiled(from: &Shape, times: &[usize]) -> BroadcastView {
        let extra = times.len() - from.rank();
        let mut lens = Vec::new();
        for (axis, count) in times.iter().enumerate() {
            let own = if axis < extra { 1 } else { from.at(axis - extra) };
            lens.push((*count, 1));
            lens.push((own, own));
        }
        BroadcastView::of(&lens)
    }

    /// Returns the axes of the larger shape along which the tensor is repeated.
    pub(crate) fn repeated_axes(&self) -> Vec<usize> {
        self.repeated.clone()
    }

    /// Returns the positions in the small tensor of elements `start..` of the larger shape.
    #[inline]
    pub(crate) fn indices(&self, start: usize) -> Indices<'_> {
        let (inner, step) = self.axes[self.axes.len() - 1];
        let mut it = Indices { view: self, next: start, at: 0, left: 0, step };
        if inner > 0 && start < self.len {
            it.seek();
        }
        it
    }

    /// Calls `segment(start in the larger shape, start in the small tensor, stride there, length)`
    /// for each contiguous piece of a range.
    #[inline]
    pub(crate) fn walk(
        &self,
        range: Range<usize>,
        mut segment: impl FnMut(usize, usize, usize, usize),
    ) {
        let (inner, step) = self.axes[self.axes.len() - 1];
        let mut i = range.start;
        while i < range.end {
            let at = self.offset(i);
            let n = (inner - i % inner).min(range.end - i);
            segment(i, at, step, n);
            i += n;
        }
    }

    fn offset(&self, index: usize) -> usize {
        let mut rest = index;
        let mut at = 0;
        for (len, stride) in self.axes.iter().rev() {
            at += rest % len * stride;
            rest /= len;
        }
        at
    }

    /// Writes `map` of the small tensor's elements to `out`, in the larger shape.
    ///
    /// # Panics
    /// Panics if the length of `out` differs from the larger shape's.
    pub(crate) fn copy<T: Copy + Send + Sync>(
        &self,
        pool: &Pool,
        from: &[T],
        out: &mut [T],
        map: impl Fn(T) -> T + Sync,
    ) {
        assert_eq!(out.len(), self.len, "length of the output differs from the plan");
        pool.run_parts(out, GRAIN, |start, part| {
            self.walk(start..start + part.len(), |i, at, step, n| {
                let out = &mut part[i - start..][..n];
                if step == 0 {
                    out.fill(map(from[at]));
                } else {
                    let from = &from[at..at + n];
                    out.iter_mut().zip(from).for_each(|(to, from)| *to = map(*from));
                }
            });
        });
    }
}

/// Unbounded iteration over positions in the small tensor.
pub(crate) struct Indices<'a> {
    view: &'a BroadcastView,
    next: usize,
    at: usize,
    left: usize,
    step: usize,
}

impl Indices<'_> {
    fn seek(&mut self) {
        let (inner, _) = self.view.axes[self.view.axes.len() - 1];
        self.at = self.view.offset(self.next);
        self.left = inner - self.next % inner;
    }

    #[inline]
    pub(crate) fn next(&mut self) -> usize {
        if self.left == 0 {
            self.seek();
        }
        let at = self.at;
        self.at += self.step;
        self.left -= 1;
        self.next += 1;
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_repeat_what_is_missing() {
        let check = |from: &[i64], to: &[i64], expected: &[usize]| {
            let view = BroadcastView::new(&Shape::of(from), &Shape::of(to)).unwrap();
            let mut at = view.indices(0);
            assert_eq!((0..view.len).map(|_| at.next()).collect::<Vec<_>>(), expected);
            let mut late = view.indices(1);
            assert_eq!(late.next(), expected[1]);
        };
        check(&[3], &[2, 3], &[0, 1, 2, 0, 1, 2]);
        check(&[2, 1], &[2, 3], &[0, 0, 0, 1, 1, 1]);
        check(&[2, 1, 2], &[2, 2, 2], &[0, 1, 0, 1, 2, 3, 2, 3]);
        check(&[2, 3], &[2, 3], &[0, 1, 2, 3, 4, 5]);
        check(&[], &[2, 2], &[0, 0, 0, 0]);
        assert!(BroadcastView::new(&Shape::of(&[2]), &Shape::of(&[3])).is_err());
    }

    #[test]
    fn tiles_repeat_whole_dimensions() {
        let view = BroadcastView::tiled(&Shape::of(&[2]), &[2, 2]);
        let mut at = view.indices(0);
        assert_eq!((0..8).map(|_| at.next()).collect::<Vec<_>>(), [0, 1, 0, 1, 0, 1, 0, 1]);
    }
}
