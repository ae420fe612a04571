//! Optimizer updates, each in one pass over memory.
//!
//! A [`Segments`] list names the tensors of one optimizer step (parameter, gradient, state) by
//! pointer; an update walks them all in one sweep of equal tasks, however many and small they are.
//! The gradient is first multiplied by `grad_scale` (the global-norm clip, found by
//! [`Segments::grad_squared_norm`]), then the regulariser of its segment is added. LARS and LAMB make
//! two sweeps, because they need the norms of each tensor first. The formulas stand at each
//! [`Rule`]; `g` is the gradient after scale and regulariser, `lr` the rate times the segment's own.
//! The `*_rows` functions update the rows of a table for which a sparse gradient has values: rows are
//! unique, and merging duplicates is not done here.
//!
//! Sketch for Adam over 10 M parameters: 160 MB read, 120 MB written.
//!
//! ```
//! use fleet_kernels::{optim::{Rule, Segment, Segments, Step}, pool::Pool};
//! let (mut w, g) = ([1.0, 2.0], [0.5, -1.0]);
//! let segments = Segments::new(vec![Segment::of(&mut w, &g, [None, None, None])]);
//! // SAFETY: `w` and `g` outlive the call, and nobody else touches them.
//! unsafe { segments.update(&Pool::new(1), Rule::Sgd, Step { lr: 0.1, ..Step::default() }, &mut []) };
//! assert_eq!(w, [0.95, 2.1]);
//! ```

use std::ops::Range;

use crate::pool::Pool;
use crate::simd::{Raw, Simd};
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
    /// As many as [`Rule::state_count`] says, in the order given at the rule; others null.
    pub state: [*mut f32; 3],
    pub len: usize,
    /// Multiplies the step's learning rate.
    pub lr_scale: f32,
    pub regularizer: Regularizer,
    /// The decay that AdamW, LARS and LAMB treat apart from the gradient; 0 excludes the tensor.
    pub weight_decay: f32,
    /// b1^t and b2^t of this tensor; the step's if not given.
    pub powers: Option<[f32; 2]>,
}

impl Segment {
    /// A segment over slices, with no regulariser and no decay. Panics if lengths differ.
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

    /// The step as this tensor takes it.
    fn step(&self, step: Step) -> Step {
        match self.powers {
            Some([beta1_pow, beta2_pow]) => Step { beta1_pow, beta2_pow, ..step },
            None => step,
        }
    }
}

/// The rules; state in the order of [`Segment::state`]. Powers `b1^t` come with the [`Step`].
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
    /// State m, u. u = max(|g|, b2 u + eps); w -= lr / (1 - b1^t) m / u.
    Adamax { beta1: f32, beta2: f32, epsilon: f32 },
    /// State h. h += g²; w -= lr g / (√h + eps).
    Adagrad { epsilon: f32 },
    /// State E[g²], E[dx²]. dx = -√((E[dx²] + eps) / (E[g²] + eps)) g; w += lr dx.
    Adadelta { rho: f32, epsilon: f32 },
    /// State ms, mom, and mg if centred. ms = rho ms + (1 - rho) g²; mg = rho mg + (1 - rho) g;
    /// mom = mu mom + lr g / √(ms - mg² + eps); w -= mom.
    RmsProp { rho: f32, epsilon: f32, mu: f32, centered: bool },
    /// State v. local = lr coeff ‖w‖ / (‖g‖ + decay ‖w‖ + eps) if decay and both norms are positive,
    /// else lr; v = mu v + local (g + decay w); w -= v.
    Lars { mu: f32, coeff: f32, epsilon: f32 },
    /// State m, v as Adam. r = m̂ / (√v̂ + eps) + decay w; w -= lr trust r, where trust = ‖w‖ / ‖r‖ if
    /// both norms are positive and (decay is, or `always_adapt`), else 1.
    Lamb { beta1: f32, beta2: f32, epsilon: f32, always_adapt: bool },
}

impl Rule {
    /// State tensors that the rule reads and writes.
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

/// What changes from step to step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    pub lr: f32,
    /// Multiplies every gradient, before the regulariser.
    pub grad_scale: f32,
    /// b1^t and b2^t of the rules that correct their bias, t counting this step.
    pub beta1_pow: f32,
    pub beta2_pow: f32,
}

impl Default for Step {
    fn default() -> Self {
        Step { lr: 1e-3, grad_scale: 1.0, beta1_pow: 0.9, beta2_pow: 0.999 }
    }
}

/// Elements of a task, and of the largest piece of a tensor in it.
const PIECE: usize = 16 * 1024;

/// A part of one segment.
#[derive(Clone, Copy, Debug)]
struct Piece {
    segment: usize,
    start: usize,
    len: usize,
}

/// The tensors of a step, cut into tasks once.
#[derive(Debug)]
pub struct Segments {
    segments: Vec<Segment>,
    pieces: Vec<Piece>,
    /// Pieces `tasks[t]..tasks[t + 1]` are one task.
    tasks: Vec<usize>,
    /// Pieces `firsts[s]..firsts[s + 1]` are segment s.
    firsts: Vec<usize>,
}

// SAFETY: the pointers are used inside `unsafe` calls only, whose callers vouch for them.
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

    /// Points the segments to other tensors of the same lengths.
    pub fn rebind(&mut self, mut bind: impl FnMut(usize, &mut Segment)) {
        for (index, segment) in self.segments.iter_mut().enumerate() {
            let len = segment.len;
            bind(index, segment);
            assert_eq!(segment.len, len, "the pieces of a step are cut by length");
        }
    }

    /// Elements of all tensors.
    pub fn len(&self) -> usize {
        self.segments.iter().map(|segment| segment.len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// f64 numbers of scratch that [`Segments::update`] and [`Segments::grad_squared_norm`] need (the
    /// former for LARS and LAMB only).
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

    /// The sum of squares of all gradients, before any scale.
    ///
    /// # Safety
    /// Every gradient is readable and nobody writes it.
    pub unsafe fn grad_squared_norm(&self, pool: &Pool, scratch: &mut [f64]) -> f64 {
        assert!(scratch.len() >= self.scratch_len(), "too little scratch");
        let slots = Raw::new_mut(scratch.as_mut_ptr());
        self.each_piece(pool, |index, segment, piece| {
            // SAFETY: every piece lies in its tensor and has its own slot.
            unsafe { *slots.at(index) = piece_norm(segment.grad.add(piece.start), piece.len) };
        });
        scratch[..self.pieces.len()].iter().sum()
    }

    /// Updates every parameter and its state. `scratch` holds [`Segments::scratch_len`] numbers for
    /// LARS and LAMB, any number for others.
    ///
    /// # Safety
    /// Every pointer that the rule uses is valid for its segment's length, nobody else touches the
    /// tensors meanwhile, and no two of them overlap.
    pub unsafe fn update(&self, pool: &Pool, rule: Rule, step: Step, scratch: &mut [f64]) {
        let norms = Raw::new_mut(scratch.as_mut_ptr());
        let count = self.pieces.len();
        if rule.needs_norms() {
            assert!(scratch.len() >= self.scratch_len(), "too little scratch");
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
            // SAFETY: promised by the caller; pieces are disjoint. The norms were written above.
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
    /// Updates the elements of one tensor from `start` on, with `grad` in the place of the segment's own
    /// gradient: for who gets gradients piece by piece, and has each in the cache just then. Elements
    /// come out as those of [`Segments::update`] do, to the bit.
    ///
    /// Panics for LARS and LAMB, which must see whole tensors first, and beyond the tensor's end.
    ///
    /// # Safety
    /// As for [`Segments::update`], but for the segment's gradient, which is not looked at.
    pub unsafe fn update_part(
        &self,
        rule: Rule,
        step: Step,
        segment: usize,
        start: usize,
        grad: &[f32],
    ) {
        assert!(!rule.needs_norms(), "the rule needs whole tensors");
        let whole = &self.segments[segment];
        assert!(start + grad.len() <= whole.len, "the part is outside of its tensor");
        // Null stays null: states that the rule does not have.
        let state = whole.state.map(|p| if p.is_null() { p } else { p.wrapping_add(start) });
        let param = whole.param.wrapping_add(start);
        let part = Segment { param, grad: grad.as_ptr(), state, len: grad.len(), ..*whole };
        let rate = step.lr * part.lr_scale;
        let all = Piece { segment, start: 0, len: part.len };
        // SAFETY: promised by the caller; the part is inside of its tensors.
        unsafe { update_piece(rule, part.step(step), rate, &part, all) };
    }
}

/// The learning rate of a tensor from its norms: of w and g for LARS, of w and r for LAMB.
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

/// The gradient as the formulas mean it.
#[derive(Clone, Copy)]
struct Gradient {
    scale: f32,
    regularizer: Regularizer,
}

impl Gradient {
    #[inline(always)]
    fn at<S: Simd>(self, s: S, g: S::F, w: S::F) -> S::F {
        let g = s.mul(g, s.splat(self.scale));
        match self.regularizer {
            Regularizer::None => g,
            Regularizer::L2(coefficient) => s.fma(w, s.splat(coefficient), g),
            Regularizer::L1(coefficient) => {
                let push = s.copysign(s.splat(coefficient), w);
                s.select(s.eq(w, s.zero()), g, s.add(g, push))
            }
        }
    }
}

/// A rule over registers: the new parameter, and the state in place.
trait UpdateOp: Copy + Send + Sync {
    const STATES: usize;
    fn update<S: Simd>(self, s: S, w: S::F, g: S::F, state: &mut [S::F; 3]) -> S::F;
}

#[derive(Clone, Copy)]
struct SgdOp {
    lr: f32,
}

impl UpdateOp for SgdOp {
    const STATES: usize = 0;
    #[inline(always)]
    fn update<S: Simd>(self, s: S, w: S::F, g: S::F, _: &mut [S::F; 3]) -> S::F {
        s.neg_fma(s.splat(self.lr), g, w)
    }
}

#[derive(Clone, Copy)]
struct MomentumOp<const NESTEROV: bool> {
    lr: f32,
    mu: f32,
}

impl<const NESTEROV: bool> UpdateOp for MomentumOp<NESTEROV> {
    const STATES: usize = 1;
    #[inline(always)]
    fn update<S: Simd>(self, s: S, w: S::F, g: S::F, state: &mut [S::F; 3]) -> S::F {
        let mu = s.splat(self.mu);
        state[0] = s.fma(mu, state[0], g);
        let d = if NESTEROV { s.fma(mu, state[0], g) } else { state[0] };
        s.neg_fma(s.splat(self.lr), d, w)
    }
}

#[derive(Clone, Copy)]
struct AdamOp {
    beta1: f32,
    beta2: f32,
    /// lr √(1 - b2^t) / (1 - b1^t).
    rate: f32,
    /// eps √(1 - b2^t).
    epsilon: f32,
    /// 1 - lr decay.
    keep: f32,
}

impl AdamOp {
    fn new(beta1: f32, beta2: f32, epsilon: f32, lr: f32, step: Step, decay: f32) -> Self {
        let root = (1.0 - step.beta2_pow).sqrt();
        AdamOp {
            beta1,
            beta2,
            rate: lr * root / (1.0 - step.beta1_pow),
            epsilon: epsilon * root,
            keep: 1.0 - lr * decay,
        }
    }
}

/// m and v of the Adam family.
#[inline(always)]
fn moments<S: Simd>(s: S, beta1: f32, beta2: f32, g: S::F, state: &mut [S::F; 3]) {
    state[0] = s.fma(s.splat(beta1), state[0], s.mul(s.splat(1.0 - beta1), g));
    state[1] = s.fma(s.splat(beta2), state[1], s.mul(s.mul(s.splat(1.0 - beta2), g), g));
}

impl UpdateOp for AdamOp {
    const STATES: usize = 2;
    #[inline(always)]
    fn update<S: Simd>(self, s: S, w: S::F, g: S::F, state: &mut [S::F; 3]) -> S::F {
        moments(s, self.beta1, self.beta2, g, state);
        let root = s.add(s.sqrt_fast(state[1]), s.splat(self.epsilon));
        let w = s.mul(w, s.splat(self.keep));
        s.neg_fma(s.splat(self.rate), s.div(state[0], root), w)
    }
}

#[derive(Clone, Copy)]
struct AdamaxOp {
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    /// lr / (1 - b1^t).
    rate: f32,
}

impl UpdateOp for AdamaxOp {
    const STATES: usize = 2;
    #[inline(always)]
    fn update<S: Simd>(self, s: S, w: S::F, g: S::F, state: &mut [S::F; 3]) -> S::F {
        state[0] = s.fma(s.splat(self.beta1), state[0], s.mul(s.splat(1.0 - self.beta1), g));
        let old = s.fma(s.splat(self.beta2), state[1], s.splat(self.epsilon));
        state[1] = s.max(s.abs(g), old);
        s.neg_fma(s.splat(self.rate), s.div(state[0], state[1]), w)
    }
}

#[derive(Clone, Copy)]
struct AdagradOp {
    lr: f32,
    epsilon: f32,
}

impl UpdateOp for AdagradOp {
    const STATES: usize = 1;
    #[inline(always)]
    fn update<S: Simd>(self, s: S, w: S::F, g: S::F, state: &mut [S::F; 3]) -> S::F {
        state[0] = s.fma(g, g, state[0]);
        let root = s.add(s.sqrt_fast(state[0]), s.splat(self.epsilon));
        s.neg_fma(s.splat(self.lr), s.div(g, root), w)
    }
}

#[derive(Clone, Copy)]
struct AdadeltaOp {
    lr: f32,
    rho: f32,
    epsilon: f32,
}

impl UpdateOp for AdadeltaOp {
    const STATES: usize = 2;
    #[inline(always)]
    fn update<S: Simd>(self, s: S, w: S::F, g: S::F, state: &mut [S::F; 3]) -> S::F {
        let (rho, rest) = (s.splat(self.rho), s.splat(1.0 - self.rho));
        let epsilon = s.splat(self.epsilon);
        state[0] = s.fma(rho, state[0], s.mul(rest, s.mul(g, g)));
        let ratio = s.div(s.add(state[1], epsilon), s.add(state[0], epsilon));
        let d = s.mul(s.sqrt(ratio), g); // minus the documents' dx
        state[1] = s.fma(rho, state[1], s.mul(rest, s.mul(d, d)));
        s.neg_fma(s.splat(self.lr), d, w)
    }
}

#[derive(Clone, Copy)]
struct RmsPropOp<const CENTERED: bool> {
    lr: f32,
    rho: f32,
    epsilon: f32,
    mu: f32,
}

impl<const CENTERED: bool> UpdateOp for RmsPropOp<CENTERED> {
    const STATES: usize = if CENTERED { 3 } else { 2 };
    #[inline(always)]
    fn update<S: Simd>(self, s: S, w: S::F, g: S::F, state: &mut [S::F; 3]) -> S::F {
        let (rho, rest) = (s.splat(self.rho), s.splat(1.0 - self.rho));
        state[0] = s.fma(rho, state[0], s.mul(rest, s.mul(g, g)));
        let mut square = s.add(state[0], s.splat(self.epsilon));
        if CENTERED {
            state[2] = s.fma(rho, state[2], s.mul(rest, g));
            square = s.neg_fma(state[2], state[2], square);
        }
        let move_by = s.div(s.mul(s.splat(self.lr), g), s.sqrt(square));
        state[1] = s.fma(s.splat(self.mu), state[1], move_by);
        s.sub(w, state[1])
    }
}

#[derive(Clone, Copy)]
struct LarsOp {
    local: f32,
    mu: f32,
    decay: f32,
}

impl UpdateOp for LarsOp {
    const STATES: usize = 1;
    #[inline(always)]
    fn update<S: Simd>(self, s: S, w: S::F, g: S::F, state: &mut [S::F; 3]) -> S::F {
        let g = s.fma(s.splat(self.decay), w, g);
        state[0] = s.fma(s.splat(self.mu), state[0], s.mul(s.splat(self.local), g));
        s.sub(w, state[0])
    }
}

/// The second sweep of LAMB: the moments are there, r is computed once more.
#[derive(Clone, Copy)]
struct LambOp {
    rate: f32,
    direction: LambDirection,
}

#[derive(Clone, Copy)]
struct LambDirection {
    /// 1 / (1 - b1^t) and 1 / (1 - b2^t).
    correct1: f32,
    correct2: f32,
    epsilon: f32,
    decay: f32,
}

impl LambDirection {
    fn new(step: Step, epsilon: f32, decay: f32) -> Self {
        LambDirection {
            correct1: 1.0 / (1.0 - step.beta1_pow),
            correct2: 1.0 / (1.0 - step.beta2_pow),
            epsilon,
            decay,
        }
    }

    #[inline(always)]
    fn at<S: Simd>(self, s: S, w: S::F, m: S::F, v: S::F) -> S::F {
        let root = s.sqrt_fast(s.mul(v, s.splat(self.correct2)));
        let r = s.div(s.mul(m, s.splat(self.correct1)), s.add(root, s.splat(self.epsilon)));
        s.fma(s.splat(self.decay), w, r)
    }
}

impl UpdateOp for LambOp {
    const STATES: usize = 2;
    #[inline(always)]
    fn update<S: Simd>(self, s: S, w: S::F, _: S::F, state: &mut [S::F; 3]) -> S::F {
        s.neg_fma(s.splat(self.rate), self.direction.at(s, w, state[0], state[1]), w)
    }
}

kernel! {
    /// Updates `len` elements; state pointers beyond the rule's are not used.
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

/// The sum of squares of `len` floats: blocks in lanes, then f64.
unsafe fn piece_norm(x: *const f32, len: usize) -> f64 {
    // SAFETY: `len` floats are readable, says the caller.
    unsafe { square_sum(x, len, 1.0, Regularizer::None, x) }
}

kernel! {
    /// The sum of squares of gradients as the formulas mean them.
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
    /// The first sweep of LAMB: updates the moments; the sums of squares of w and r.
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
                // With epsilon 0 the lanes beyond a part would be 0 / 0.
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

/// The first sweep over a piece: two sums of squares.
unsafe fn norm_piece(rule: Rule, step: Step, segment: &Segment, piece: Piece) -> (f64, f64) {
    let gradient = Gradient { scale: step.grad_scale, regularizer: segment.regularizer };
    // SAFETY: the piece lies in its tensors, says the caller.
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

/// Binds `$op` to the rule as registers want it; `$lr` is the rate of the tensor.
macro_rules! with_rule {
    ($rule:expr, $step:expr, $lr:expr, $decay:expr, $op:ident => $body:expr) => {{
        let (step, lr, decay): (Step, f32, f32) = ($step, $lr, $decay);
        match $rule {
            Rule::Sgd => {
                let $op = SgdOp { lr };
                $body
            }
            Rule::Momentum { mu, nesterov: false } => {
                let $op = MomentumOp::<false> { lr, mu };
                $body
            }
            Rule::Momentum { mu, nesterov: true } => {
                let $op = MomentumOp::<true> { lr, mu };
                $body
            }
            Rule::Adam { beta1, beta2, epsilon } => {
                let $op = AdamOp::new(beta1, beta2, epsilon, lr, step, 0.0);
                $body
            }
            Rule::AdamW { beta1, beta2, epsilon } => {
                let $op = AdamOp::new(beta1, beta2, epsilon, lr, step, decay);
                $body
            }
            Rule::Adamax { beta1, beta2, epsilon } => {
                let $op = AdamaxOp { beta1, beta2, epsilon, rate: lr / (1.0 - step.beta1_pow) };
                $body
            }
            Rule::Adagrad { epsilon } => {
                let $op = AdagradOp { lr, epsilon };
                $body
            }
            Rule::Adadelta { rho, epsilon } => {
                let $op = AdadeltaOp { lr, rho, epsilon };
                $body
            }
            Rule::RmsProp { rho, epsilon, mu, centered: false } => {
                let $op = RmsPropOp::<false> { lr, rho, epsilon, mu };
                $body
            }
            Rule::RmsProp { rho, epsilon, mu, centered: true } => {
                let $op = RmsPropOp::<true> { lr, rho, epsilon, mu };
                $body
            }
            Rule::Lars { mu, .. } => {
                let $op = LarsOp { local: lr, mu, decay };
                $body
            }
            Rule::Lamb { epsilon, .. } => {
                let $op = LambOp { rate: lr, direction: LambDirection::new(step, epsilon, decay) };
                $body
            }
        }
    }};
}

unsafe fn update_piece(rule: Rule, step: Step, rate: f32, segment: &Segment, piece: Piece) {
    let gradient = Gradient { scale: step.grad_scale, regularizer: segment.regularizer };
    // SAFETY: the piece lies in its tensors, says the caller; unused states stay null.
    unsafe {
        let (w, g) = (segment.param.add(piece.start), segment.grad.add(piece.start));
        let state = segment.state.map(|p| if p.is_null() { p } else { p.add(piece.start) });
        with_rule!(rule, step, rate, segment.weight_decay, op => {
            update_kernel(op, gradient, w, g, state, piece.len);
        });
    }
}

/// Updates one tensor; see [`Rule`] for the state. LARS and LAMB want scratch as
/// [`Segments::scratch_len`] says, which [`Segments`] keeps for reuse; this form allocates it.
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
    // SAFETY: the slices live through the call, and the mutable ones are exclusive.
    unsafe { segments.update(pool, rule, step, &mut scratch) };
}

/// A table whose rows are updated, with its state.
#[derive(Debug)]
pub struct Table<'a> {
    /// `[rows, width]`.
    pub param: &'a mut [f32],
    /// Tables of the same shape, as [`Rule::state_count`] says.
    pub state: [Option<&'a mut [f32]>; 3],
    pub width: usize,
    pub regularizer: Regularizer,
    /// See [`Segment::weight_decay`]; LARS and LAMB do not work on rows.
    pub weight_decay: f32,
}

/// Rows ahead whose cache lines are fetched: about the latency of memory over the time of a row.
const ROWS_AHEAD: usize = 8;

/// Updates the rows `rows[i]` of a table with the gradients `grads[i * width..]`, and leaves the
/// others and their state alone (lazy Adam). Rows must be inside the table, or nothing is done and
/// the first wrong one is returned.
///
/// # Safety
/// No row is named twice.
pub unsafe fn update_rows(
    pool: &Pool,
    rule: Rule,
    step: Step,
    table: Table<'_>,
    rows: &[i64],
    grads: &[f32],
) -> Result<(), i64> {
    let width = table.width;
    assert!(width > 0 && table.param.len().is_multiple_of(width), "not a whole number of rows");
    assert_eq!(grads.len(), rows.len() * width, "one gradient row for each row");
    assert!(!rule.needs_norms(), "LARS and LAMB need whole tensors");
    let count = (table.param.len() / width) as i64;
    let given = table.state.iter().take_while(|slice| slice.is_some()).count();
    assert!(given >= rule.state_count(), "a state table is missing");
    if let Some(wrong) = rows.iter().find(|row| !(0..count).contains(*row)) {
        return Err(*wrong);
    }
    let len = table.param.len();
    let param = Raw::new_mut(table.param.as_mut_ptr());
    let state = table.state.map(|slice| {
        Raw::new_mut(slice.map_or(std::ptr::null_mut(), |slice| {
            assert_eq!(slice.len(), len, "table and state differ in shape");
            slice.as_mut_ptr()
        }))
    });
    let gradient = Gradient { scale: step.grad_scale, regularizer: table.regularizer };
    let (rows_raw, grads) = (Raw::new(rows.as_ptr()), Raw::new(grads.as_ptr()));
    let grain = (PIECE / 4 / width).max(1);
    with_rule!(rule, step, step.lr, table.weight_decay, op => {
        pool.run_ranges(rows.len(), grain, |range| {
            // SAFETY: rows are unique and inside the table, so tasks write different rows.
            unsafe { rows_kernel(op, gradient, param, grads, state, rows_raw, range, width) };
        });
    });
    Ok(())
}

kernel! {
    unsafe fn rows_kernel<S, O: UpdateOp>(
        s: S, op: O, gradient: Gradient, param: Raw<f32>, grads: Raw<f32>, state: [Raw<f32>; 3],
        rows: Raw<i64>, range: Range<usize>, width: usize,
    ) {
        for i in range.clone() {
            let ahead = (i + ROWS_AHEAD).min(range.end - 1);
            let next = *rows.at(ahead) as usize * width;
            prefetch(param.at(next));
            for k in 0..O::STATES {
                prefetch(state[k].at(next));
            }
            let row = *rows.at(i) as usize * width;
            let (w, g) = (param.at(row), grads.at(i * width));
            for_registers!(S, width, |c, n| {
                let mut values = [s.zero(); 3];
                for k in 0..O::STATES {
                    values[k] = s.load_n(state[k].at(row + c), n);
                }
                let old = s.load_n(w.add(c), n);
                let grad = gradient.at(s, s.load_n(g.add(c), n), old);
                let new = op.update(s, old, grad, &mut values);
                s.store_n(w.add(c), new, n);
                for k in 0..O::STATES {
                    s.store_n(state[k].at(row + c), values[k], n);
                }
            });
        }
    }
}

#[inline(always)]
fn prefetch(p: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch touches nothing, wherever it points.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::at_every_level;
    use fleet_base::rng::Sequence;

    const RULES: [Rule; 14] = [
        Rule::Sgd,
        Rule::Momentum { mu: 0.9, nesterov: false },
        Rule::Momentum { mu: 0.9, nesterov: true },
        Rule::Adam { beta1: 0.9, beta2: 0.99, epsilon: 1e-6 },
        Rule::AdamW { beta1: 0.9, beta2: 0.99, epsilon: 1e-6 },
        Rule::Adamax { beta1: 0.9, beta2: 0.99, epsilon: 1e-6 },
        Rule::Adagrad { epsilon: 1e-6 },
        Rule::Adadelta { rho: 0.95, epsilon: 1e-4 },
        Rule::RmsProp { rho: 0.95, epsilon: 1e-3, mu: 0.5, centered: false },
        Rule::RmsProp { rho: 0.95, epsilon: 1e-3, mu: 0.5, centered: true },
        Rule::Lars { mu: 0.9, coeff: 0.01, epsilon: 1e-6 },
        Rule::Lamb { beta1: 0.9, beta2: 0.99, epsilon: 1e-6, always_adapt: false },
        Rule::Lamb { beta1: 0.9, beta2: 0.99, epsilon: 1e-6, always_adapt: true },
        Rule::Sgd,
    ];

    fn numbers(len: usize, salt: u64) -> Vec<f32> {
        let mut random = Sequence::new(4, salt);
        (0..len).map(|_| (random.unit() * 2.0 - 1.0) as f32).collect()
    }

    /// The formulas of the specification, one tensor, f64.
    fn reference(
        rule: Rule,
        lr: f64,
        (pow1, pow2): (f64, f64),
        decay: f64,
        w: &mut [f64],
        g: &[f64],
        state: &mut [Vec<f64>; 3],
    ) {
        let norm = |v: &[f64]| v.iter().map(|v| v * v).sum::<f64>().sqrt();
        let wide = f64::from;
        let (w_norm, g_norm) = (norm(w), norm(g));
        let mut r = vec![0.0; w.len()];
        for i in 0..w.len() {
            let [s0, s1, s2] = state;
            let (s0, s1, s2) = (&mut s0[i], &mut s1[i], &mut s2[i]);
            let g = g[i];
            match rule {
                Rule::Sgd => w[i] -= lr * g,
                Rule::Momentum { mu, nesterov } => {
                    *s0 = wide(mu) * *s0 + g;
                    w[i] -= lr * if nesterov { g + wide(mu) * *s0 } else { *s0 };
                }
                Rule::Adam { beta1, beta2, epsilon } | Rule::AdamW { beta1, beta2, epsilon } => {
                    if matches!(rule, Rule::AdamW { .. }) {
                        w[i] *= 1.0 - lr * decay;
                    }
                    *s0 = wide(beta1) * *s0 + (1.0 - wide(beta1)) * g;
                    *s1 = wide(beta2) * *s1 + (1.0 - wide(beta2)) * g * g;
                    let root = (1.0 - pow2).sqrt();
                    w[i] -= lr * root / (1.0 - pow1) * *s0 / (s1.sqrt() + wide(epsilon) * root);
                }
                Rule::Adamax { beta1, beta2, epsilon } => {
                    *s0 = wide(beta1) * *s0 + (1.0 - wide(beta1)) * g;
                    *s1 = g.abs().max(wide(beta2) * *s1 + wide(epsilon));
                    w[i] -= lr / (1.0 - pow1) * *s0 / *s1;
                }
                Rule::Adagrad { epsilon } => {
                    *s0 += g * g;
                    w[i] -= lr * g / (s0.sqrt() + wide(epsilon));
                }
                Rule::Adadelta { rho, epsilon } => {
                    *s0 = wide(rho) * *s0 + (1.0 - wide(rho)) * g * g;
                    let d = -((*s1 + wide(epsilon)) / (*s0 + wide(epsilon))).sqrt() * g;
                    *s1 = wide(rho) * *s1 + (1.0 - wide(rho)) * d * d;
                    w[i] += lr * d;
                }
                Rule::RmsProp { rho, epsilon, mu, centered } => {
                    *s0 = wide(rho) * *s0 + (1.0 - wide(rho)) * g * g;
                    let mut square = *s0 + wide(epsilon);
                    if centered {
                        *s2 = wide(rho) * *s2 + (1.0 - wide(rho)) * g;
                        square -= *s2 * *s2;
                    }
                    *s1 = wide(mu) * *s1 + lr * g / square.sqrt();
                    w[i] -= *s1;
                }
                Rule::Lars { mu, coeff, epsilon } => {
                    let local = if decay > 0.0 && w_norm > 0.0 && g_norm > 0.0 {
                        lr * wide(coeff) * w_norm / (g_norm + decay * w_norm + wide(epsilon))
                    } else {
                        lr
                    };
                    *s0 = wide(mu) * *s0 + local * (g + decay * w[i]);
                    w[i] -= *s0;
                }
                Rule::Lamb { beta1, beta2, epsilon, .. } => {
                    *s0 = wide(beta1) * *s0 + (1.0 - wide(beta1)) * g;
                    *s1 = wide(beta2) * *s1 + (1.0 - wide(beta2)) * g * g;
                    let (m, v) = (*s0 / (1.0 - pow1), *s1 / (1.0 - pow2));
                    r[i] = m / (v.sqrt() + wide(epsilon)) + decay * w[i];
                }
            }
        }
        if let Rule::Lamb { always_adapt, .. } = rule {
            let r_norm = norm(&r);
            let adapt = (decay > 0.0 || always_adapt) && w_norm > 0.0 && r_norm > 0.0;
            let trust = if adapt { w_norm / r_norm } else { 1.0 };
            for i in 0..w.len() {
                w[i] -= lr * trust * r[i];
            }
        }
    }

    const LENS: [usize; 5] = [1, 17, 400, 40_001, 3];

    struct Model {
        params: Vec<Vec<f32>>,
        states: Vec<[Vec<f32>; 3]>,
    }

    fn settings(index: usize) -> (f32, Regularizer, f32) {
        match index % 4 {
            0 => (1.0, Regularizer::None, 0.01),
            1 => (0.5, Regularizer::L2(0.1), 0.0),
            2 => (2.0, Regularizer::L1(0.05), 0.02),
            _ => (1.0, Regularizer::L2(0.01), 0.01),
        }
    }

    fn model() -> Model {
        let params = LENS.iter().enumerate().map(|(i, len)| numbers(*len, i as u64)).collect();
        let states = LENS.iter().map(|len| [0; 3].map(|_| vec![0.0; *len])).collect();
        Model { params, states }
    }

    fn train(threads: usize, rule: Rule, steps: i32, grad_scale: f32) -> Model {
        let pool = Pool::new(threads);
        let mut model = model();
        for t in 1..=steps {
            let grads: Vec<Vec<f32>> =
                LENS.iter().map(|len| numbers(*len, 90 + t as u64)).collect();
            let segments = Segments::new(
                model
                    .params
                    .iter_mut()
                    .zip(&mut model.states)
                    .zip(&grads)
                    .enumerate()
                    .map(|(i, ((param, state), grad))| {
                        let state = state.each_mut().map(|state| Some(&mut state[..]));
                        let (lr_scale, regularizer, weight_decay) = settings(i);
                        Segment {
                            lr_scale,
                            regularizer,
                            weight_decay,
                            ..Segment::of(param, grad, state)
                        }
                    })
                    .collect(),
            );
            assert_eq!(segments.len(), LENS.iter().sum::<usize>());
            let mut scratch = vec![f64::NAN; segments.scratch_len()];
            let step = Step {
                lr: 0.05,
                grad_scale,
                beta1_pow: 0.9f32.powi(t),
                beta2_pow: 0.99f32.powi(t),
            };
            // SAFETY: all tensors outlive the call and are distinct.
            unsafe {
                segments.update(&pool, rule, step, &mut scratch);
                let norm = segments.grad_squared_norm(&pool, &mut scratch);
                let expected: f64 = grads.iter().flatten().map(|g| f64::from(*g).powi(2)).sum();
                assert!((norm / expected - 1.0).abs() < 1e-6);
            }
        }
        model
    }

    #[test]
    fn every_rule_follows_its_formula() {
        at_every_level(|level| {
            for rule in RULES {
                let got = train(1, rule, 3, 0.5);
                let start = model();
                for (index, len) in LENS.iter().enumerate() {
                    let (lr_scale, regularizer, decay) = settings(index);
                    let mut w: Vec<f64> =
                        start.params[index].iter().map(|w| f64::from(*w)).collect();
                    let mut state = [0; 3].map(|_| vec![0f64; *len]);
                    for t in 1..=3 {
                        let g: Vec<f64> = numbers(*len, 90 + t as u64)
                            .iter()
                            .zip(&w)
                            .map(|(g, w)| {
                                f64::from(*g) * 0.5
                                    + match regularizer {
                                        Regularizer::None => 0.0,
                                        Regularizer::L1(c) => f64::from(c) * w.signum(),
                                        Regularizer::L2(c) => f64::from(c) * w,
                                    }
                            })
                            .collect();
                        let pows = (f64::from(0.9f32).powi(t), f64::from(0.99f32).powi(t));
                        let lr = f64::from(0.05f32) * f64::from(lr_scale);
                        reference(rule, lr, pows, f64::from(decay), &mut w, &g, &mut state);
                    }
                    for i in 0..*len {
                        let (got, expected) = (f64::from(got.params[index][i]), w[i]);
                        assert!(
                            (got - expected).abs() <= 2e-5 * expected.abs().max(0.1),
                            "{rule:?} at {level:?}, tensor {index}: {got} for {expected}"
                        );
                    }
                }
            }
        });
    }

    #[test]
    fn threads_change_nothing() {
        for rule in RULES {
            let (one, three) = (train(1, rule, 2, 1.0), train(3, rule, 2, 1.0));
            assert!(one.params == three.params && one.states == three.states, "{rule:?}");
        }
    }

    #[test]
    fn rows_are_updated_as_tensors_of_their_own() {
        at_every_level(|_| {
            for width in [1, 8, 16, 19] {
                let rules = [RULES[0], RULES[1], RULES[2], RULES[3], RULES[6]];
                for rule in rules {
                    let count = 300;
                    let rows: Vec<i64> =
                        (0..count as i64).filter(|r| r * 7 % 3 == 1).rev().collect();
                    let grads = numbers(rows.len() * width, 8);
                    let pool = Pool::new(1);
                    let mut param = numbers(count * width, 1);
                    let mut states = [2, 3, 4].map(|salt| {
                        numbers(count * width, salt).iter().map(|v| v.abs()).collect::<Vec<_>>()
                    });
                    let (before, states_before) = (param.clone(), states.clone());
                    let table = Table {
                        param: &mut param,
                        state: states.each_mut().map(|state| Some(&mut state[..])),
                        width,
                        regularizer: Regularizer::L2(0.01),
                        weight_decay: 0.0,
                    };
                    let step = Step { grad_scale: 0.5, ..Step::default() };
                    // SAFETY: the rows are distinct.
                    unsafe { update_rows(&pool, rule, step, table, &rows, &grads) }.unwrap();
                    for row in 0..count {
                        let part = row * width..(row + 1) * width;
                        let Some(k) = rows.iter().position(|r| *r == row as i64) else {
                            assert_eq!(param[part.clone()], before[part]);
                            continue;
                        };
                        let mut w = before[part.clone()].to_vec();
                        let mut state = states_before.each_ref().map(|s| s[part.clone()].to_vec());
                        let grad = &grads[k * width..(k + 1) * width];
                        let slots = state.each_mut().map(|state| Some(&mut state[..]));
                        let segment = Segment {
                            regularizer: Regularizer::L2(0.01),
                            ..Segment::of(&mut w, grad, slots)
                        };
                        // SAFETY: the tensors outlive the call and are distinct.
                        unsafe { Segments::new(vec![segment]).update(&pool, rule, step, &mut []) };
                        assert_eq!(param[part.clone()], w);
                        assert_eq!(states[0][part], state[0]);
                    }
                }
            }
        });
        let table = Table {
            param: &mut [0.0; 4],
            state: [None, None, None],
            width: 2,
            regularizer: Regularizer::None,
            weight_decay: 0.0,
        };
        // SAFETY: one row.
        let wrong = unsafe {
            update_rows(&Pool::new(1), Rule::Sgd, Step::default(), table, &[2], &[0.0; 2])
        };
        assert_eq!(wrong, Err(2));
    }

    #[test]
    fn one_tensor() {
        let (mut w, mut v) = ([1.0, 2.0], [0.5, 0.5]);
        let rule = Rule::Momentum { mu: 0.5, nesterov: false };
        let step = Step { lr: 0.5, ..Step::default() };
        update(&Pool::new(1), rule, step, &mut w, &[1.0, -1.0], [Some(&mut v), None, None]);
        assert_eq!((w, v), ([0.375, 2.375], [1.25, -0.75]));
    }
}
