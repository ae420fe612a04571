//! Optimizer updates, each in one pass over memory.
//!
//! A [`Segments`] list holds pointers to the tensors of one optimizer step (parameter, gradient,
//! state). An update processes all of them in one pass of equal tasks, whatever their number and
//! size. The gradient is first multiplied by `grad_scale` (for clipping by the global norm, see
//! [`Segments::grad_squared_norm`]). Then the regularizer of its segment is added. LARS and LAMB
//! make two passes, because they need the norms of each tensor first. Each [`Rule`] documents its
//! formulas: `g` is the gradient after scale and regularizer, and `lr` is the learning rate times
//! the segment's factor. The `*_rows` functions update the rows of a table for which a sparse
//! gradient has values. These rows must be unique, since duplicates are not merged here.
//!
//! Sketch for Adam over 10 M parameters: 160 MB read, 120 MB written.
//!
//! ```
//! use fleet_kernels::{optim::{Rule, Segment, Segments, Step}, pool::Pool};
//! let (mut w, g) = ([1.0, 2.0], [0.5, -1.0]);
//! let segments = Segments::new(vec![Segment::of(&mut w, &g, [None, None, None])]);
//! // SAFETY: `w` and `g` outlive the call, and nothing else accesses them.
//! unsafe { segments.update(&Pool::new(1), Rule::Sgd, Step { lr: 0.1, ..Step::default() }, &mut []) };
//! assert_eq!(w, [0.95, 2.1]);
//! ```

mod rows;
mod rules;
#[cfg(test)]
mod tests;

pub use rows::{Table, update_rows};
pub use rules::{MomentumOp, RowAdagradOp, RowAdamOp, SgdOp, StdAdagradOp, UpdateOp};

use self::rules::*;
use crate::pool::Pool;
use crate::simd::SharedPtr;
use crate::{for_registers, kernel};

/// A penalty on the parameters, added to the gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Regularizer {
    #[default]
    None,
    /// g += coefficient * sign(w).
    L1(f32),
    /// g += coefficient * w.
    L2(f32),
}

/// One tensor of an optimizer step.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub param: *mut f32,
    pub grad: *const f32,
    /// State tensors in the order given at the rule, [`Rule::state_count`] of them. The others are
    /// null.
    pub state: [*mut f32; 3],
    pub len: usize,
    /// Factor on the step's learning rate.
    pub lr_scale: f32,
    pub regularizer: Regularizer,
    /// Decay that AdamW, LARS and LAMB apply separately from the gradient; 0 excludes the tensor.
    pub weight_decay: f32,
    /// b1^t and b2^t of this tensor. `None` uses those of the step.
    pub powers: Option<[f32; 2]>,
}

impl Segment {
    /// Returns a segment over slices, without regularizer or decay. Panics if lengths differ.
    pub fn of(param: &mut [f32], grad: &[f32], state: [Option<&mut [f32]>; 3]) -> Self {
        let len = param.len();
        assert_eq!(grad.len(), len, "parameter and gradient differ in length");
        let state = state.map(|slice| {
            slice.map_or(std::ptr::null_mut(), |slice| {
                assert_eq!(slice.len(), len, "parameter and state differ in length");
                slice.as_mut_ptr()
            })
        });
        Segment {
            param: param.as_mut_ptr(),
            grad: grad.as_ptr(),
            state,
            len,
            lr_scale: 1.0,
            regularizer: Regularizer::None,
            weight_decay: 0.0,
            powers: None,
        }
    }

    /// Returns the step with this tensor's powers.
    fn step(&self, step: Step) -> Step {
        match self.powers {
            Some([beta1_pow, beta2_pow]) => Step { beta1_pow, beta2_pow, ..step },
            None => step,
        }
    }
}

/// The update rules, with state in the order of [`Segment::state`]. The [`Step`] has the powers
/// `b1^t`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// w -= lr g.
    Sgd,
    /// State v. v = mu v + g; w -= lr v, or lr (g + mu v) with Nesterov.
    Momentum { mu: f32, nesterov: bool },
    /// State m, v. m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g²;
    /// w -= lr √(1 - b2^t) / (1 - b1^t) m / (√v + eps √(1 - b2^t)).
    Adam { beta1: f32, beta2: f32, epsilon: f32 },
    /// Adam after w *= 1 - lr decay.
    AdamW { beta1: f32, beta2: f32, epsilon: f32 },
    /// State m, u; m as in Adam. u = max(|g|, b2 u + eps); w -= lr / (1 - b1^t) m / u.
    Adamax { beta1: f32, beta2: f32, epsilon: f32 },
    /// State h. h += g²; w -= lr g / (√h + eps).
    Adagrad { epsilon: f32 },
    /// State E[g²], E[dx²]. dx = -√((E[dx²] + eps) / (E[g²] + eps)) g; w += lr dx.
    Adadelta { rho: f32, epsilon: f32 },
    /// State ms, mom, and mg if centered. ms = rho ms + (1 - rho) g²; mg = rho mg + (1 - rho) g;
    /// mom = mu mom + lr g / √(ms - mg² + eps); w -= mom.
    RmsProp { rho: f32, epsilon: f32, mu: f32, centered: bool },
    /// State v. local = lr coeff ‖w‖ / (‖g‖ + decay ‖w‖ + eps) if decay and both norms are
    /// positive, else lr; v = mu v + local (g + decay w); w -= v.
    Lars { mu: f32, coeff: f32, epsilon: f32 },
    /// State m, v as in Adam. r = m̂ / (√v̂ + eps) + decay w; w -= lr trust r. If both norms are
    /// positive, and decay is positive or `always_adapt` is set, trust = ‖w‖ / ‖r‖, else 1.
    Lamb { beta1: f32, beta2: f32, epsilon: f32, always_adapt: bool },
}

impl Rule {
    /// Returns the number of state tensors that the rule reads and writes.
    pub fn state_count(&self) -> usize {
        match self {
            Rule::Sgd => 0,
            Rule::Momentum { .. } | Rule::Adagrad { .. } | Rule::Lars { .. } => 1,
            Rule::RmsProp { centered: true, .. } => 3,
            _ => 2,
        }
    }

    fn needs_norms(&self) -> bool {
        matches!(self, Rule::Lars { .. } | Rule::Lamb { .. })
    }
}

/// The parameters that change from step to step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    pub lr: f32,
    /// Factor on every gradient, applied before the regularizer.
    pub grad_scale: f32,
    /// b1^t and b2^t for rules with bias correction, where t includes this step.
    pub beta1_pow: f32,
    pub beta2_pow: f32,
}

impl Default for Step {
    fn default() -> Self {
        Step { lr: 1e-3, grad_scale: 1.0, beta1_pow: 0.9, beta2_pow: 0.999 }
    }
}

/// Number of elements in a task, and limit on a piece of a tensor.
const PIECE: usize = 16 * 1024;

/// A part of one segment.
#[derive(Clone, Copy, Debug)]
struct Piece {
    segment: usize,
    start: usize,
    len: usize,
}

/// The tensors of a step, split into tasks once.
#[derive(Debug)]
pub struct Segments {
    segments: Vec<Segment>,
    pieces: Vec<Piece>,
    /// Task t consists of pieces `tasks[t]..tasks[t + 1]`.
    tasks: Vec<usize>,
    /// Segment s consists of pieces `firsts[s]..firsts[s + 1]`.
    firsts: Vec<usize>,
}

// SAFETY: the pointers are only used in `unsafe` functions, whose callers guarantee their validity.
unsafe impl Send for Segments {}
// SAFETY: as above.
unsafe impl Sync for Segments {}

impl Segments {
    pub fn new(segments: Vec<Segment>) -> Self {
        let (mut pieces, mut tasks, mut firsts) = (Vec::new(), vec![0], vec![0]);
        let mut filled = 0;
        for (index, segment) in segments.iter().enumerate() {
            for start in (0..segment.len).step_by(PIECE) {
                let len = PIECE.min(segment.len - start);
                if filled > 0 && filled + len > PIECE {
                    tasks.push(pieces.len());
                    filled = 0;
                }
                filled += len;
                pieces.push(Piece { segment: index, start, len });
            }
            firsts.push(pieces.len());
        }
        if filled > 0 {
            tasks.push(pieces.len());
        }
        Segments { segments, pieces, tasks, firsts }
    }

    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Rebinds the segments to other tensors of the same lengths.
    pub fn rebind(&mut self, mut bind: impl FnMut(usize, &mut Segment)) {
        for (index, segment) in self.segments.iter_mut().enumerate() {
            let len = segment.len;
            bind(index, segment);
            assert_eq!(segment.len, len, "a rebound segment has another length");
        }
    }

    /// Returns the number of elements of all tensors.
    pub fn len(&self) -> usize {
        self.segments.iter().map(|segment| segment.len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Returns the length of the scratch memory for [`Segments::grad_squared_norm`], and for
    /// [`Segments::update`] with LARS and LAMB, in f64 numbers.
    pub fn scratch_len(&self) -> usize {
        2 * self.pieces.len()
    }

    fn each_piece(&self, pool: &Pool, body: impl Fn(usize, &Segment, Piece) + Sync) {
        pool.run(self.tasks.len() - 1, |task| {
            for index in self.tasks[task]..self.tasks[task + 1] {
                let piece = self.pieces[index];
                body(index, &self.segments[piece.segment], piece);
            }
        });
    }

    /// Returns the sum of squares of all gradients, before scaling.
    ///
    /// # Safety
    /// Every gradient is readable, and no other thread writes it.
    pub unsafe fn grad_squared_norm(&self, pool: &Pool, scratch: &mut [f64]) -> f64 {
        assert!(scratch.len() >= self.scratch_len(), "scratch is too short");
        let slots = SharedPtr::new_mut(scratch.as_mut_ptr());
        self.each_piece(pool, |index, segment, piece| {
            // SAFETY: every piece is inside its tensor and has its own slot.
            unsafe { *slots.at(index) = piece_norm(segment.grad.add(piece.start), piece.len) };
        });
        scratch[..self.pieces.len()].iter().sum()
    }

    /// Updates every parameter and its state. `scratch` holds [`Segments::scratch_len`] numbers for
    /// LARS and LAMB; other rules do not use it.
    ///
    /// # Safety
    /// Every pointer that the rule uses is valid for its segment's length. No other thread accesses
    /// the tensors during the call, and no two of them overlap.
    pub unsafe fn update(&self, pool: &Pool, rule: Rule, step: Step, scratch: &mut [f64]) {
        let norms = SharedPtr::new_mut(scratch.as_mut_ptr());
        let count = self.pieces.len();
        if rule.needs_norms() {
            assert!(scratch.len() >= self.scratch_len(), "scratch is too short");
            self.each_piece(pool, |index, segment, piece| {
                // SAFETY: promised by the caller; every piece has its own two slots.
                unsafe {
                    let (first, second) = norm_piece(rule, segment.step(step), segment, piece);
                    *norms.at(index) = first;
                    *norms.at(count + index) = second;
                }
            });
        }
        self.each_piece(pool, |_, segment, piece| {
            let range = self.firsts[piece.segment]..self.firsts[piece.segment + 1];
            // SAFETY: promised by the caller, and pieces are disjoint. The norms were written
            // above.
            unsafe {
                let rate = match rule {
                    Rule::Lars { .. } | Rule::Lamb { .. } => {
                        let total = |offset: usize| {
                            range.clone().map(|i| *norms.at(offset + i)).sum::<f64>().sqrt()
                        };
                        layer_rate(rule, step, segment, total(0), total(count))
                    }
                    _ => step.lr * segment.lr_scale,
                };
                update_piece(rule, segment.step(step), rate, segment, piece);
            }
        });
    }
}

impl Segments {
    /// Updates the elements of one tensor from `start` on, with `grad` instead of the segment's own
    /// gradient. This is for callers that receive gradients piece by piece and still have each
    /// piece in the cache. The results equal those of [`Segments::update`] bit for bit.
    ///
    /// Panics for LARS and LAMB, which need whole tensors first, and if the part exceeds the
    /// tensor.
    ///
    /// # Safety
    /// As for [`Segments::update`], except for the segment's gradient, which is not accessed.
    pub unsafe fn update_part(
        &self,
        rule: Rule,
        step: Step,
        segment: usize,
        start: usize,
        grad: &[f32],
    ) {
        assert!(!rule.needs_norms(), "this rule requires whole tensors");
        let whole = &self.segments[segment];
        assert!(start + grad.len() <= whole.len, "the part exceeds its tensor");
        // States that the rule does not have stay null.
        let state = whole.state.map(|p| if p.is_null() { p } else { p.wrapping_add(start) });
        let param = whole.param.wrapping_add(start);
        let part = Segment { param, grad: grad.as_ptr(), state, len: grad.len(), ..*whole };
        let rate = step.lr * part.lr_scale;
        let all = Piece { segment, start: 0, len: part.len };
        // SAFETY: promised by the caller; the part is inside its tensors.
        unsafe { update_piece(rule, part.step(step), rate, &part, all) };
    }
}

/// Returns the learning rate of a tensor from its norms: of w and g for LARS, of w and r for LAMB.
fn layer_rate(rule: Rule, step: Step, segment: &Segment, param: f64, other: f64) -> f32 {
    let lr = step.lr * segment.lr_scale;
    let decay = segment.weight_decay;
    match rule {
        Rule::Lars { coeff, epsilon, .. } if decay > 0.0 && param > 0.0 && other > 0.0 => {
            let local =
                f64::from(coeff) * param / (other + f64::from(decay) * param + f64::from(epsilon));
            (f64::from(lr) * local) as f32
        }
        Rule::Lamb { always_adapt, .. }
            if (decay > 0.0 || always_adapt) && param > 0.0 && other > 0.0 =>
        {
            (f64::from(lr) * (param / other)) as f32
        }
        _ => lr,
    }
}

kernel! {
    /// Updates `len` elements. State pointers that the rule does not have are not used.
    unsafe fn update_kernel<S, O: UpdateOp>(
        s: S, op: O, gradient: Gradient, w: *mut f32, g: *const f32, state: [*mut f32; 3], len: usize,
    ) {
        for_registers!(S, len, |i, n| {
            let mut values = [s.zero(); 3];
            for k in 0..O::STATES {
                values[k] = s.load_n(state[k].add(i), n);
            }
            let param = s.load_n(w.add(i), n);
            let grad = gradient.at(s, s.load_n(g.add(i), n), param);
            let param = op.update(s, param, grad, &mut values);
            s.store_n(w.add(i), param, n);
            for k in 0..O::STATES {
                s.store_n(state[k].add(i), values[k], n);
            }
        });
    }
}

/// Returns the sum of squares of `len` floats: blocks are summed in lanes, then in f64.
unsafe fn piece_norm(x: *const f32, len: usize) -> f64 {
    // SAFETY: the caller guarantees `len` readable floats.
    unsafe { square_sum(x, len, 1.0, Regularizer::None, x) }
}

kernel! {
    /// Returns the sum of squares of the gradients after scale and regularizer.
    unsafe fn square_sum<S>(
        s: S, g: *const f32, len: usize, scale: f32, regularizer: Regularizer, w: *const f32,
    ) -> f64 {
        let gradient = Gradient { scale, regularizer };
        let mut total = 0.0;
        for start in (0..len).step_by(1024) {
            let mut sum = s.zero();
            for_registers!(S, 1024.min(len - start), |i, n| {
                let w = s.load_n(w.add(start + i), n);
                let g = gradient.at(s, s.load_n(g.add(start + i), n), w);
                sum = s.fma(g, g, sum);
            });
            total += f64::from(s.sum(sum));
        }
        total
    }
}

kernel! {
    /// Runs the first pass of LAMB: updates the moments and returns the sums of squares of w and r.
    unsafe fn lamb_norms<S>(
        s: S, betas: (f32, f32), direction: LambDirection, gradient: Gradient, w: *const f32,
        g: *const f32, m: *mut f32, v: *mut f32, len: usize,
    ) -> (f64, f64) {
        let (mut total_w, mut total_r) = (0.0, 0.0);
        for start in (0..len).step_by(1024) {
            let (mut sum_w, mut sum_r) = (s.zero(), s.zero());
            for_registers!(S, 1024.min(len - start), |k, n| {
                let i = start + k;
                let param = s.load_n(w.add(i), n);
                let grad = gradient.at(s, s.load_n(g.add(i), n), param);
                let mut state = [s.load_n(m.add(i), n), s.load_n(v.add(i), n), s.zero()];
                moments(s, betas.0, betas.1, grad, &mut state);
                s.store_n(m.add(i), state[0], n);
                s.store_n(v.add(i), state[1], n);
                // If epsilon is 0, lanes past the end compute 0 / 0.
                let r = s.keep_first(direction.at(s, param, state[0], state[1]), n);
                sum_w = s.fma(param, param, sum_w);
                sum_r = s.fma(r, r, sum_r);
            });
            total_w += f64::from(s.sum(sum_w));
            total_r += f64::from(s.sum(sum_r));
        }
        (total_w, total_r)
    }
}

/// Runs the first pass over a piece, and returns two sums of squares.
unsafe fn norm_piece(rule: Rule, step: Step, segment: &Segment, piece: Piece) -> (f64, f64) {
    let gradient = Gradient { scale: step.grad_scale, regularizer: segment.regularizer };
    // SAFETY: the caller guarantees that the piece is inside its tensors.
    unsafe {
        let (w, g) = (segment.param.add(piece.start), segment.grad.add(piece.start));
        match rule {
            Rule::Lamb { beta1, beta2, epsilon, .. } => {
                let direction = LambDirection::new(step, epsilon, segment.weight_decay);
                let m = segment.state[0].add(piece.start);
                let v = segment.state[1].add(piece.start);
                lamb_norms((beta1, beta2), direction, gradient, w, g, m, v, piece.len)
            }
            _ => {
                let of_grad = square_sum(g, piece.len, gradient.scale, gradient.regularizer, w);
                (piece_norm(w, piece.len), of_grad)
            }
        }
    }
}

unsafe fn update_piece(rule: Rule, step: Step, rate: f32, segment: &Segment, piece: Piece) {
    let gradient = Gradient { scale: step.grad_scale, regularizer: segment.regularizer };
    // SAFETY: the caller guarantees that the piece is inside its tensors; unused states stay null.
    unsafe {
        let (w, g) = (segment.param.add(piece.start), segment.grad.add(piece.start));
        let state = segment.state.map(|p| if p.is_null() { p } else { p.add(piece.start) });
        with_rule!(rule, step, rate, segment.weight_decay, op => {
            update_kernel(op, gradient, w, g, state, piece.len);
        });
    }
}

/// Updates one tensor; see [`Rule`] for the state. Allocates the scratch memory of LARS and LAMB;
/// to reuse it, call [`Segments::update`].
pub fn update(
    pool: &Pool,
    rule: Rule,
    step: Step,
    param: &mut [f32],
    grad: &[f32],
    state: [Option<&mut [f32]>; 3],
) {
    let given = state.iter().take_while(|slice| slice.is_some()).count();
    assert!(given >= rule.state_count(), "a state tensor is missing");
    let segments = Segments::new(vec![Segment::of(param, grad, state)]);
    let mut scratch = vec![0.0; if rule.needs_norms() { segments.scratch_len() } else { 0 }];
    // SAFETY: the slices outlive the call, and the mutable ones are exclusive.
    unsafe { segments.update(pool, rule, step, &mut scratch) };
}
