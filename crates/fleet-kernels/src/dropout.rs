//! Dropout, with a mask that is a function of (seed, stream, position) and need not be stored.
//!
//! An element is kept if its random number is at least the drop probability. Dropout is linear, so
//! the backward pass applies the same function to the gradient. If a program needs the mask as a
//! tensor, [`dropout_with_mask`] writes it and [`dropout_mask_grad`] reads it.
//!
//! ```
//! use fleet_kernels::{dropout::{Dropout, Mode, dropout}, fill::Draw, pool::Pool};
//! let drop = Dropout { probability: 0.5, mode: Mode::UpscaleInTrain, draw: Draw::default() };
//! let (mut y, mut dx) = ([0.0; 8], [0.0; 8]);
//! dropout(&Pool::new(1), drop, &[1.0; 8], &mut y);
//! dropout(&Pool::new(1), drop, &[1.0; 8], &mut dx); // the gradient of ones
//! assert_eq!(y, dx);
//! assert!(y.iter().all(|y| *y == 0.0 || *y == 2.0));
//! ```

use std::ops::Range;

use crate::elementwise::{GRAIN, Unary, unary};
use crate::fill::{Draw, limit_of};
use crate::input::Input;
use crate::philox::{WORDS, words};
use crate::pool::Pool;
use crate::simd::SharedPtr;
use crate::{for_registers, kernel};

/// The pass that corrects the scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Training divides kept elements by the keep probability; inference changes nothing.
    UpscaleInTrain,
    /// Training leaves kept elements unchanged; inference multiplies by the keep probability.
    DowngradeInInfer,
}

/// The parameters of one dropout in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Drop probability, from 0 to 1.
    pub probability: f32,
    pub mode: Mode,
    pub draw: Draw,
}

impl Dropout {
    /// Returns the factor of kept elements in training.
    pub fn scale(&self) -> f32 {
        match self.mode {
            Mode::UpscaleInTrain if self.probability < 1.0 => 1.0 / (1.0 - self.probability),
            _ => 1.0,
        }
    }

    /// Returns the factor of all elements in inference.
    pub fn infer_scale(&self) -> f32 {
        match self.mode {
            Mode::UpscaleInTrain => 1.0,
            Mode::DowngradeInInfer => 1.0 - self.probability,
        }
    }
}

kernel! {
    /// Writes the mask to `mask`, if given.
    unsafe fn drop_range<S>(
        s: S, drop: Dropout, range: Range<usize>, x: SharedPtr<f32>, y: SharedPtr<f32>,
        mask: Option<SharedPtr<u8>>,
    ) {
        let limit = limit_of(drop.probability);
        let below = s.splat_i(limit as i32 - 1);
        let scale = s.splat(drop.scale());
        let mut i = range.start;
        while i < range.end {
            let position = drop.draw.offset.wrapping_add(i as u64);
            let skip = (position % WORDS as u64) as usize;
            let counter = (position / WORDS as u64).wrapping_mul(WORDS as u64 / 4);
            let group = words(s, drop.draw.seed, drop.draw.stream, counter);
            let count = (WORDS - skip).min(range.end - i);
            for_registers!(S, count, |k, n| {
                let word = s.bits_of(s.load_n(group.as_ptr().add(skip + k).cast(), n));
                let kept = s.gt_i(s.shr_u::<8>(word), below);
                let value = s.mul(s.load_n(x.at(i + k), n), scale);
                s.store_n(y.at(i + k), s.select(kept, value, s.zero()), n);
            });
            if let Some(mask) = mask {
                for k in 0..count {
                    *mask.at(i + k) = u8::from((group[skip + k] >> 8) >= limit);
                }
            }
            i += count;
        }
    }
}

kernel! {
    unsafe fn mask_range<S>(
        s: S, scale: f32, range: Range<usize>, mask: SharedPtr<u8>, dy: SharedPtr<f32>,
        dx: SharedPtr<f32>,
    ) {
        // Expand a tile of factors first, so that a simple loop converts bytes to floats.
        let mut factors = [0f32; 256];
        let mut i = range.start;
        while i < range.end {
            let count = factors.len().min(range.end - i);
            let bytes = std::slice::from_raw_parts(mask.at(i).cast_const(), count);
            for (factor, byte) in factors.iter_mut().zip(bytes) {
                *factor = if *byte != 0 { scale } else { 0.0 };
            }
            for_registers!(S, count, |k, n| {
                let factor = s.load_n(factors.as_ptr().add(k), n);
                s.store_n(dx.at(i + k), s.mul(s.load_n(dy.at(i + k), n), factor), n);
            });
            i += count;
        }
    }
}

/// Writes `x` with dropped elements to `y`. This is also the backward pass, from `dy` to `dx`.
pub fn dropout<'a>(pool: &Pool, drop: Dropout, x: impl Into<Input<'a, f32>>, y: &mut [f32]) {
    let (len, y) = (y.len(), y.as_mut_ptr());
    let (x, y) = (SharedPtr::new(x.into().start(len, y, len)), SharedPtr::new_mut(y));
    pool.run_ranges(len, GRAIN, |range| {
        // SAFETY: ranges are disjoint and inside `len`.
        unsafe { drop_range(drop, range, x, y, None) };
    });
}

/// Like [`dropout`], and sets `mask` to 1 for every kept element.
pub fn dropout_with_mask(pool: &Pool, drop: Dropout, x: &[f32], y: &mut [f32], mask: &mut [u8]) {
    assert!(x.len() == y.len() && x.len() == mask.len(), "tensors differ in length");
    let (x, y) = (SharedPtr::new(x.as_ptr()), SharedPtr::new_mut(y.as_mut_ptr()));
    let target = SharedPtr::new_mut(mask.as_mut_ptr());
    pool.run_ranges(mask.len(), GRAIN, |range| {
        // SAFETY: ranges are disjoint and inside all three slices.
        unsafe { drop_range(drop, range, x, y, Some(target)) };
    });
}

/// Computes the backward pass from a stored mask; `scale` is [`Dropout::scale`].
pub fn dropout_mask_grad(pool: &Pool, scale: f32, mask: &[u8], dy: &[f32], dx: &mut [f32]) {
    assert!(dy.len() == dx.len() && mask.len() == dx.len(), "tensors differ in length");
    let (mask, dy) = (SharedPtr::new(mask.as_ptr()), SharedPtr::new(dy.as_ptr()));
    let target = SharedPtr::new_mut(dx.as_mut_ptr());
    pool.run_ranges(dx.len(), GRAIN, |range| {
        // SAFETY: ranges are disjoint and inside all three slices.
        unsafe { mask_range(scale, range, mask, dy, target) };
    });
}

/// Applies dropout's inference scale.
pub fn dropout_infer<'a>(pool: &Pool, drop: Dropout, x: impl Into<Input<'a, f32>>, y: &mut [f32]) {
    unary(pool, Unary::Scale { scale: drop.infer_scale(), bias: 0.0 }, x, y);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::at_every_level;
    use fleet_base::rng::Philox;

    fn drop(probability: f32, mode: Mode, offset: u64) -> Dropout {
        Dropout { probability, mode, draw: Draw { seed: 5, stream: 6, offset } }
    }

    #[test]
    fn masks_are_those_of_the_generator_in_every_form() {
        at_every_level(|_| {
            let pool = Pool::new(1);
            let rng = Philox::new(5, 6);
            for (probability, offset, len) in
                [(0.3, 0, 1000), (0.1, 61, 130), (0.0, 3, 65), (1.0, 0, 70), (0.5, 9, 1)]
            {
                for mode in [Mode::UpscaleInTrain, Mode::DowngradeInInfer] {
                    let drop = drop(probability, mode, offset);
                    let x: Vec<f32> = (0..len).map(|i| i as f32 - 7.5).collect();
                    let mut y = vec![f32::NAN; len];
                    dropout(&pool, drop, &x, &mut y);
                    for i in 0..len {
                        let kept = rng.unit(offset + i as u64) >= probability;
                        let expected = if kept { x[i] * drop.scale() } else { 0.0 };
                        assert_eq!(y[i], expected);
                    }
                    let (mut y2, mut mask) = (vec![f32::NAN; len], vec![9; len]);
                    dropout_with_mask(&pool, drop, &x, &mut y2, &mut mask);
                    assert_eq!(y, y2);
                    let mut dx = vec![f32::NAN; len];
                    dropout_mask_grad(&pool, drop.scale(), &mask, &x, &mut dx);
                    assert_eq!(y, dx);
                    let mut inplace = x.clone();
                    dropout(&pool, drop, Input::Output, &mut inplace);
                    assert_eq!(y, inplace);
                    dropout_infer(&pool, drop, &x, &mut y2);
                    assert_eq!(y2[0], x[0] * drop.infer_scale());
                }
            }
        });
    }

    #[test]
    fn threads_change_nothing() {
        let x = vec![1.0; 100_001];
        let run = |threads| {
            let mut y = vec![0.0; x.len()];
            dropout(&Pool::new(threads), drop(0.2, Mode::UpscaleInTrain, 17), &x, &mut y);
            y
        };
        let one = run(1);
        assert!(one == run(3));
        let mean = one.iter().map(|y| f64::from(*y)).sum::<f64>() / one.len() as f64;
        assert!((mean - 1.0).abs() < 0.01);
    }
}
