//! Gradient clipping, which runs after the backward pass and before regularization.

use fleet_base::{Error, Result};
use fleet_ir::VarId;
use fleet_ops::Emit;

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

    /// Emits the ops that clip the gradients.
    pub(crate) fn emit(&self, emit: &mut Emit<'_>, grads: &mut [Clipped]) -> Result<()> {
        self.check()?;
        let program = &*emit.program;
        let wanted: Vec<usize> = (0..grads.len())
            .filter(|at| program.var(grads[*at].param).param.as_ref().is_none_or(|p| p.need_clip))
            .collect();
        match *self {
            GradClip::Value { min, max } => {
                for at in wanted {
                    let call = emit.named_op("clip")?.input("X", grads[at].grad);
                    grads[at].grad = call.attr("min", min).attr("max", max).one("Out")?;
                }
            }
            GradClip::Norm(limit) => {
                for at in wanted {
                    let call = emit.named_op("clip_by_norm")?.input("X", grads[at].grad);
                    grads[at].grad = call.attr("max_norm", limit).one("Out")?;
                }
            }
            GradClip::GlobalNorm(limit) if !wanted.is_empty() => {
                let scale = global_scale(emit, grads, &wanted, limit)?;
                wanted.iter().for_each(|at| grads[*at].scale = Some(scale));
            }
            GradClip::GlobalNorm(_) => {}
        }
        Ok(())
    }
}

/// Emits `limit / max(limit, norm of all gradients)`. Update ops multiply by this factor, so no
/// gradient is written twice.
fn global_scale(
    emit: &mut Emit<'_>,
    grads: &[Clipped],
    wanted: &[usize],
    limit: f64,
) -> Result<VarId> {
    let mut squares = Vec::with_capacity(wanted.len());
    for at in wanted {
        squares.push(emit.named_op("squared_l2_norm")?.input("X", grads[*at].grad).one("Out")?);
    }
    emit.named_op("global_norm_scale")?.inputs("X", &squares).attr("clip_norm", limit).one("Out")
}
