//! The optimizer `SignMomentum`: each parameter moves by the learning rate, in the direction of a
//! moving average of its gradient.
//!
//! `Velocity = mu * Velocity + (1 - mu) * Grad`, `Param = Param - LearningRate * sign(Velocity)`.

use fleet::nn::optimizer::{Attr, Optimizer, State, UpdateRule};
use fleet::ops::{AttrKind, Grad, Kernel, OpDef, OpSpec, OpTraits, one, required};
use fleet::prelude::*;

/// Creates the optimizer.
pub fn sign_momentum(learning_rate: impl Into<LearningRate>, mu: f64) -> OptimizerDesc {
    Optimizer::custom(SignMomentum { mu }, learning_rate).into()
}

#[derive(Debug)]
struct SignMomentum {
    mu: f64,
}

impl UpdateRule for SignMomentum {
    fn op(&self) -> &'static str {
        "sign_momentum"
    }

    fn state(&self) -> Vec<State> {
        vec![State::each("velocity", "Velocity")]
    }

    fn attrs(&self, _parameter: &str) -> Vec<(&'static str, Attr)> {
        vec![("mu", self.mu.into())]
    }
}

/// The op that updates one parameter.
pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "sign_momentum",
        inputs: &[one("Param"), one("Grad"), one("LearningRate"), one("Velocity")],
        outputs: &[one("ParamOut"), one("VelocityOut")],
        attrs: &[required("mu", AttrKind::Float)],
    },
    infer: |i| {
        let param = i.input("Param")?;
        for slot in ["Param", "Grad", "Velocity"] {
            i.check_dtype(slot, &[DType::F32])?;
            i.check_shape(slot, param.shape)?;
        }
        i.push("ParamOut", param);
        i.push("VelocityOut", param);
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| {
        let mu = p.op.attr_float("mu") as f32;
        Ok(Kernel::infallible(move |k| {
            let (grad, rate) = (k.input::<f32>(1), k.input::<f32>(2)[0]);
            let (param, velocity) = (k.updated::<f32>(0, 0), k.updated::<f32>(1, 3));
            for ((param, velocity), grad) in param.iter_mut().zip(velocity).zip(grad) {
                *velocity = mu * *velocity + (1.0 - mu) * grad;
                // Not `signum`, which is 1 for 0.
                let sign = f32::from(*velocity > 0.0) - f32::from(*velocity < 0.0);
                *param -= rate * sign;
            }
        }))
    },
    traits: OpTraits {
        state: &[("ParamOut", "Param"), ("VelocityOut", "Velocity")],
        ..OpTraits::plain()
    },
};

#[cfg(test)]
mod tests {
    use super::*;
    use fleet::ops::Registry;

    #[test]
    fn a_parameter_moves_by_the_rate() -> Result<()> {
        Registry::install(&crate::OPS)?;
        let net = Net::new();
        let x = net.create_parameter([3], DType::F32, Init::Assign(vec![1.0, -2.0, 0.0]));
        net.minimize(x.square().mean(), sign_momentum(0.5, 0.9))?;
        let x = x.name();
        let mut session = Session::new(net.build()?, ExecOptions::threads(1))?;
        session.run(&[], &[])?;
        assert_eq!(session.scope.tensor(&x)?.to_vec::<f32>()?, [0.5, -1.5, 0.0]);
        Ok(())
    }
}
