//! Gradient clipping, which runs after the backward pass and before regularization.

use fleet_base::{Error, Result};
use fleet_ir::{Program, VarId};
use fleet_ops::Emit;
use fleet_tensor::DType;

/// Gradient clipping method. Parameters with `need_clip` off are excluded.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let loss = net.data("x", [-1, 13], DType::F32).fc(1).mean();
/// net.minimize(loss, Sgd::new(0.1).grad_clip(GradClip::GlobalNorm(1.0)))?;
/// # Ok::<(), fleet_nn::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GradClip {
    /// Limits each element to a range (`ClipGradByValue`).
    Value {
        /// Smallest value of an element.
        min: f64,
        /// Largest value of an element.
        max: f64,
    },
    /// Scales each gradient down to at most this norm (`ClipGradByNorm`).
    Norm(f64),
    /// Scales all gradients by one factor, so that their global norm is at most this value
    /// (`ClipGradByGlobalNorm`).
    GlobalNorm(f64),
}

/// The parameters of a job in which each rank updates only some of them.
#[derive(Clone, Debug)]
pub struct SharedUpdate {
    /// Ring of the ranks that together update all parameters.
    pub ring: i64,
    /// Number of ranks of that ring.
    pub nranks: usize,
    /// The parameters that any rank of the ring updates.
    pub params: Vec<VarId>,
    /// Parameters that this rank and others update. The others add the squares of their gradients
    /// to a global norm.
    pub elsewhere: Vec<VarId>,
    /// Embedding tables among the parameters whose lookups only other ranks have.
    pub tables: Vec<VarId>,
}

/// The ranks that share layers, and have parts of their parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DividedUpdate {
    /// Ring of these ranks.
    pub ring: i64,
    /// Number of ranks of that ring.
    pub nranks: usize,
}

/// The ranks over which norms of gradients are summed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NormRanks<'a> {
    pub shared: Option<&'a SharedUpdate>,
    pub divided: Option<DividedUpdate>,
}

impl NormRanks<'_> {
    /// Emits the sums over ranks of the squares of divided gradients. `squares` are those of the
    /// gradients of `params`, in the same order on all ranks.
    fn sum_parts(&self, emit: &mut Emit<'_>, params: &[VarId], squares: &[VarId]) -> Result<()> {
        let Some(DividedUpdate { ring, nranks }) = self.divided else { return Ok(()) };
        let pairs = params.iter().zip(squares);
        let of_parts = pairs.filter(|(param, _)| is_part(emit.program, **param));
        let of_parts: Vec<VarId> = of_parts.map(|(_, square)| *square).collect();
        if of_parts.is_empty() {
            return Ok(());
        }
        let call = emit.named_op("c_allreduce_sum")?.inputs("X", &of_parts);
        let call = call.outputs("Out", &of_parts).attr("ring_id", ring).attr("nranks", nranks);
        // The compute lane makes all calls of this ring.
        call.attr("use_calc_stream", true).attr("label", "squared norms of parts").done()?;
        Ok(())
    }

    /// Returns the name of the variable that holds a square, if ranks must agree on it.
    fn square_name(&self, program: &Program, param: VarId) -> Option<String> {
        let is_sent = self.shared.is_some() || self.divided.is_some();
        is_sent.then(|| format!("{}@SQUARE", program.var_name(param)))
    }
}

/// Returns whether a rank has only a part of a parameter.
fn is_part(program: &Program, param: VarId) -> bool {
    program.var(param).division.is_some_and(|division| division.is_part())
}

/// A parameter, its gradient, and the factor to multiply the gradient by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clipped {
    pub param: VarId,
    pub grad: VarId,
    pub scale: Option<VarId>,
}

impl GradClip {
    /// Limits each element to `-limit ..= limit`.
    ///
    /// ```
    /// use fleet_nn::GradClip;
    /// assert_eq!(GradClip::value(1.0), GradClip::Value { min: -1.0, max: 1.0 });
    /// ```
    pub fn value(limit: f64) -> GradClip {
        GradClip::Value { min: -limit, max: limit }
    }

    fn check(&self) -> Result<()> {
        let wrong = Error::invalid("invalid options of gradient clipping");
        match *self {
            GradClip::Value { min, max } if min <= max => Ok(()),
            GradClip::Value { min, max } => {
                Err(wrong.expected("min <= max").got(format!("min {min} and max {max}")))
            }
            GradClip::Norm(limit) | GradClip::GlobalNorm(limit) if limit > 0.0 => Ok(()),
            GradClip::Norm(limit) | GradClip::GlobalNorm(limit) => {
                Err(wrong.expected("a norm above 0").got(limit))
            }
        }
    }

    /// Emits the ops that clip the gradients. `ranks.shared` lists all parameters of the optimizer
    /// if other ranks have gradients of some of them.
    pub(crate) fn emit(
        &self,
        emit: &mut Emit<'_>,
        grads: &mut [Clipped],
        ranks: NormRanks<'_>,
    ) -> Result<()> {
        self.check()?;
        let program = &*emit.program;
        let is_wanted =
            |param: &VarId| program.var(*param).param.as_ref().is_none_or(|p| p.need_clip);
        let wanted: Vec<usize> =
            (0..grads.len()).filter(|at| is_wanted(&grads[*at].param)).collect();
        let mut all: Vec<VarId> = match ranks.shared {
            Some(shared) => shared.params.iter().copied().filter(is_wanted).collect(),
            None => wanted.iter().map(|at| grads[*at].param).collect(),
        };
        all.sort_by(|a, b| program.var_name(*a).cmp(program.var_name(*b)));
        match *self {
            GradClip::Value { min, max } => {
                for at in wanted {
                    let call = emit.named_op("clip")?.input("X", grads[at].grad);
                    grads[at].grad = call.attr("min", min).attr("max", max).one("Out")?;
                }
            }
            GradClip::Norm(limit) => {
                for at in wanted {
                    if is_part(emit.program, grads[at].param) {
                        let own = grads[at];
                        // The owner of the gradient clips it, with the ranks that have its parts.
                        let parts = NormRanks { shared: None, ..ranks };
                        let scale = global_scale(emit, &[own], &[own.param], parts, limit)?;
                        grads[at].scale = Some(scale);
                        continue;
                    }
                    let call = emit.named_op("clip_by_norm")?.input("X", grads[at].grad);
                    grads[at].grad = call.attr("max_norm", limit).one("Out")?;
                }
            }
            GradClip::GlobalNorm(limit) if !all.is_empty() => {
                let scale = global_scale(emit, grads, &all, ranks, limit)?;
                wanted.iter().for_each(|at| grads[*at].scale = Some(scale));
            }
            GradClip::GlobalNorm(_) => {}
        }
        Ok(())
    }
}

/// Emits `limit / max(limit, norm of the gradients of all parameters)`. Update ops multiply by this
/// factor, so no gradient is written twice. Every rank adds all squares in the same order, so the
/// norm is the same bits for any division of the parameters.
fn global_scale(
    emit: &mut Emit<'_>,
    grads: &[Clipped],
    all: &[VarId],
    ranks: NormRanks<'_>,
    limit: f64,
) -> Result<VarId> {
    let mut squares = Vec::with_capacity(all.len());
    for param in all {
        let name = ranks.square_name(emit.program, *param);
        let is_counted =
            |param: &VarId| ranks.shared.is_none_or(|it| !it.elsewhere.contains(param));
        let own = grads.iter().find(|it| it.param == *param);
        let call = match own.filter(|it| is_counted(&it.param)) {
            Some(own) => emit.named_op("squared_l2_norm")?.input("X", own.grad),
            // Another rank has this gradient.
            None => {
                let call = emit.named_op("fill_constant")?.attr("shape", vec![1i64]);
                call.attr("dtype", DType::F32)
            }
        };
        // All ranks give the variables of a collective the same names.
        let call = match &name {
            Some(name) => call.named(name),
            None => call,
        };
        squares.push(call.one("Out")?);
    }
    if let Some(SharedUpdate { ring, nranks, .. }) = ranks.shared {
        let call = emit.named_op("c_allreduce_sum")?.inputs("X", &squares);
        let call = call.outputs("Out", &squares).attr("ring_id", *ring);
        call.attr("nranks", *nranks).attr("label", "squared norms").done()?;
    }
    ranks.sum_parts(emit, all, &squares)?;
    emit.named_op("global_norm_scale")?.inputs("X", &squares).attr("clip_norm", limit).one("Out")
}
