//! The backward pass and updates of a network.

use crate::optimizer::{MinimizedIds, OptimizerDesc, ParamGrad, Sgd};
use crate::{Net, Var};
use fleet_base::Result;

impl Net {
    /// Appends the training ops: the backward pass of `loss`, the learning-rate schedule, gradient
    /// clipping, and an update of each parameter.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let (x, y) = (net.data("x", [-1, 13], DType::F32), net.data("y", [-1, 1], DType::F32));
    /// let loss = x.fc(1).mse_loss(y, Reduction::Mean);
    /// let training = net.minimize(loss, Sgd::new(0.01))?;
    /// assert_eq!(training.learning_rate.name(), "learning_rate_0");
    /// # Ok::<(), fleet_nn::Error>(())
    /// ```
    #[track_caller]
    pub fn minimize(&self, loss: Var<'_>, with: impl Into<OptimizerDesc>) -> Result<Minimized<'_>> {
        let desc = with.into();
        let MinimizedIds { params_grads, learning_rate } = self
            .rewrite_with(|programs, registry| desc.minimize(programs, registry, loss.of(self)?))?;
        let (params_grads, learning_rate) = (self.pairs(&params_grads), self.handle(learning_rate));
        Ok(Minimized { params_grads, learning_rate })
    }

    /// Appends only the backward pass, the first half of [`Net::minimize`]. Different parameters
    /// can then use different optimizers.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let ids = net.data("ids", [-1, 26], DType::I64);
    /// let rows = ids.embedding(Embedding::new(1000, 16).sparse().weight("table"));
    /// let loss = rows.flatten(1).fc(1).mean();
    /// let (table, rest) = net.backward(loss)?.partition(|name| name == "table");
    /// net.apply_gradients(Sgd::new(0.01), table)?;
    /// net.apply_gradients(Adam::new(1e-3), rest)?;
    /// # Ok::<(), fleet_nn::Error>(())
    /// ```
    #[track_caller]
    pub fn backward<'n>(&'n self, loss: Var<'n>) -> Result<Gradients<'n>> {
        let desc: OptimizerDesc = Sgd::new(0.0).into();
        let pairs = self
            .rewrite_with(|programs, registry| desc.backward(programs, registry, loss.of(self)?))?;
        Ok(Gradients { pairs: self.pairs(&pairs) })
    }

    /// Appends clipping and updates for existing gradients, the second half of [`Net::minimize`].
    #[track_caller]
    pub fn apply_gradients<'n>(
        &'n self,
        with: impl Into<OptimizerDesc>,
        gradients: Gradients<'n>,
    ) -> Result<Minimized<'n>> {
        let desc = with.into();
        let rate = self.rewrite_with(|programs, registry| {
            let pairs = gradients.pairs.iter().map(|(p, g)| Ok((p.of(self)?, g.of(self)?)));
            desc.apply_gradients(programs, registry, &pairs.collect::<Result<Vec<_>>>()?)
        })?;
        Ok(Minimized { params_grads: gradients.pairs, learning_rate: self.handle(rate) })
    }

    /// Returns the gradients of `targets` with respect to `inputs`; `None` for inputs without
    /// influence.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let x = net.create_parameter([3], DType::F32, Init::Constant(2.0));
    /// let dx = net.gradients(&[x.square()], &[x])?;
    /// assert_eq!(dx[0].unwrap().shape(), Shape::from([3]));
    /// # Ok::<(), fleet_nn::Error>(())
    /// ```
    #[track_caller]
    pub fn gradients(
        &self,
        targets: &[Var<'_>],
        inputs: &[Var<'_>],
    ) -> Result<Vec<Option<Var<'_>>>> {
        let found = self.rewrite_with(|programs, registry| {
            let ids =
                |vars: &[Var<'_>]| vars.iter().map(|v| v.of(self)).collect::<Result<Vec<_>>>();
            let (targets, inputs) = (ids(targets)?, ids(inputs)?);
            fleet_passes::gradients(&mut programs.main, registry, &targets, &inputs, &[])
        })?;
        Ok(found.into_iter().map(|id| id.map(|id| self.handle(id))).collect())
    }

    fn pairs(&self, ids: &[ParamGrad]) -> Vec<(Var<'_>, Var<'_>)> {
        ids.iter().map(|(p, g)| (self.handle(*p), self.handle(*g))).collect()
    }
}

/// Results of [`Net::minimize`].
pub struct Minimized<'n> {
    /// Each parameter with its gradient before clipping.
    pub params_grads: Vec<(Var<'n>, Var<'n>)>,
    /// Learning rate of the step, `learning_rate_0`: one number, which can be fetched or set.
    pub learning_rate: Var<'n>,
}

/// Parameters with their gradients, to be passed to an optimizer.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let loss = net.data("x", [-1, 13], DType::F32).fc(1).mean();
/// let gradients = net.backward(loss)?;
/// assert_eq!(gradients.pairs.len(), 2);
/// let (weights, biases) = gradients.partition(|name| name.contains(".w_"));
/// assert_eq!((weights.pairs.len(), biases.pairs.len()), (1, 1));
/// # Ok::<(), fleet_nn::Error>(())
/// ```
pub struct Gradients<'n> {
    /// Each parameter with its gradient.
    pub pairs: Vec<(Var<'n>, Var<'n>)>,
}

impl<'n> Gradients<'n> {
    /// Splits by parameter name: those for which `first` holds, and the rest.
    pub fn partition(self, first: impl Fn(&str) -> bool) -> (Gradients<'n>, Gradients<'n>) {
        let (a, b) = self.pairs.into_iter().partition(|(param, _)| first(&param.name()));
        (Gradients { pairs: a }, Gradients { pairs: b })
    }
}
