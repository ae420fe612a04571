//! Dropout, with a mask that is a function of (seed, stream, position) and need not be stored.
//!
//! An element is kept if its random number is at least the drop probability. Dropout is linear, so
//! the backward pass applies the same function to the gradient.
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
    /// Whether training or inference corrects the scale.
    pub mode: Mode,
    /// The random numbers of the mask.
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
    unsafe fn drop_range<S>(
        s: S, drop: Dropout, range: Range<usize>, x: SharedPtr<f32>, y: SharedPtr<f32>,
    ) {
        let below = s.splat_i(limit_of(drop.probability) as i32 - 1);
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
        unsafe { drop_range(drop, range, x, y) };
    });
}

/// Applies dropout's inference scale.
pub fn dropout_infer<'a>(pool: &Pool, drop: Dropout, x: impl Into<Input<'a, f32>>, y: &mut [f32]) {
    unary(pool, Unary::Scale { scale: drop.infer_scale(), bias: 0.0 }, x, y);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::for_every_isa;
    use fleet_base::rng::Philox;

    fn drop(probability: f32, mode: Mode, offset: u64) -> Dropout {
        Dropout { probability, mode, draw: Draw { seed: 5, stream: 6, offset } }
    }

    #[test]
    fn masks_are_those_of_the_generator() {
        for_every_isa(|_| {
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
                    let mut inplace = x.clone();
                    dropout(&pool, drop, Input::Output, &mut inplace);
                    assert_eq!(y, inplace);
                    dropout_infer(&pool, drop, &x, &mut y);
                    assert_eq!(y[0], x[0] * drop.infer_scale());
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
