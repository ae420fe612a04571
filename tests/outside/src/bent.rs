//! The op `bent`, an activation: `Out = (sqrt(X² + 1) - 1) / 2 + X`. f32.

use fleet::ops::map::{map, zip};
use fleet::ops::{AmpClass, Grad, Kernel, OpDef, OpSpec, OpTraits, one};
use fleet::prelude::*;

/// Adds the op to a network.
#[track_caller]
pub fn bent<'n>(net: &'n Net, x: Var<'n>) -> Var<'n> {
    net.op("bent").input("X", x).one("Out")
}

pub static DEF: OpDef = OpDef {
    spec: OpSpec { name: "bent", inputs: &[one("X")], outputs: &[one("Out")], attrs: &[] },
    infer: |i| {
        i.check_dtype("X", &[DType::F32])?;
        let x = i.input("X")?;
        i.set("Out", x.dtype, x.shape);
        Ok(())
    },
    grad: Grad::Op(&GRAD),
    cpu: |_| {
        Ok(Kernel::infallible(|k| {
            let (x, out) = (k.input_or_output(0, 0), k.output::<f32>(0));
            map(k.pool, x, out, |x| ((x * x + 1.0).sqrt() - 1.0) / 2.0 + x);
        }))
    },
    traits: OpTraits {
        inplace: &[("Out", "X")],
        elementwise: true,
        ..OpTraits::amp(AmpClass::Gray)
    },
};

/// `X@GRAD = Out@GRAD * (X / (2 sqrt(X² + 1)) + 1)`.
pub static GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "bent_grad",
        inputs: &[one("X"), one("Out@GRAD")],
        outputs: &[one("X@GRAD")],
        attrs: &[],
    },
    infer: |i| {
        let x = i.input("X")?;
        i.set("X@GRAD", x.dtype, x.shape);
        Ok(())
    },
    grad: Grad::None,
    cpu: |_| {
        Ok(Kernel::infallible(|k| {
            let inputs = [k.input_or_output(0, 0), k.input_or_output(1, 0)];
            let slope = |x: f32| x / (2.0 * (x * x + 1.0).sqrt()) + 1.0;
            zip(k.pool, inputs, k.output::<f32>(0), |[x, dy]| dy * slope(x));
        }))
    },
    traits: OpTraits {
        inplace: &[("X@GRAD", "Out@GRAD")],
        elementwise: true,
        ..OpTraits::amp(AmpClass::Gray)
    },
};

#[cfg(test)]
mod tests {
    use super::*;
    use fleet::ops::Registry;

    /// The gradient is the slope between neighbours.
    #[test]
    fn values_and_gradients() -> Result<()> {
        Registry::install(&crate::OPS)?;
        let values = [-3.0f32, -0.5, 0.0, 0.25, 2.0];
        let net = Net::new();
        let start = values.map(f64::from).to_vec();
        let x = net.create_parameter([5], DType::F32, Init::Assign(start));
        let y = bent(&net, x);
        let dx = net.gradients(&[y], &[x])?[0].expect("y depends on x").name();
        let (x, y) = (x.name(), y.name());
        let mut session = Session::new(net.build()?, ExecOptions::threads(1))?;
        let out = session.run(&[], &[&y, &dx])?;
        let (found, dx) = (out[0].to_vec::<f32>()?, out[1].to_vec::<f32>()?);
        assert_eq!((found[2], dx[2]), (0.0, 1.0));

        let mut at = |moved: f32| -> Result<Vec<f32>> {
            let values = values.map(|value| value + moved);
            session.scope.assign(&x, &Tensor::from_slice(&values, [5])?)?;
            session.run(&[], &[&y])?[0].to_vec()
        };
        let near = 0.01;
        let (above, below) = (at(near)?, at(-near)?);
        for index in 0..values.len() {
            let slope = (above[index] - below[index]) / (2.0 * near);
            assert!((slope - dx[index]).abs() < 1e-3, "{slope}, got {}", dx[index]);
        }
        Ok(())
    }
}
