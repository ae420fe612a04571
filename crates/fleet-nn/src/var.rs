//! Handles to variables of a network. Their methods are spread over the files of layers, math,
//! tensor ops, losses and metrics.

use crate::Net;
use fleet_base::{EntityRef, Error, Result};
use fleet_ir::VarId;
use fleet_tensor::{DType, Shape};
use std::fmt;

/// A variable of a [`Net`]: a small copyable handle with layers as methods.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let x = net.data("x", [-1, 13], DType::F32);
/// let y = x.fc(400).relu() * 2.0 + 1.0;
/// assert_eq!(y.shape(), Shape::from([-1, 400]));
/// ```
#[derive(Clone, Copy)]
pub struct Var<'n> {
    pub(crate) net: &'n Net,
    pub(crate) id: VarId,
}

impl Net {
    pub(crate) fn handle(&self, id: VarId) -> Var<'_> {
        Var { net: self, id }
    }

    /// Returns the variable with this id of the main program. Fails for a variable that was
    /// removed.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let id = net.data("x", [-1, 13], DType::F32).id();
    /// let net = Net::from_programs(net.finish()?);
    /// assert_eq!(net.var_with_id(id)?.name(), "x");
    /// assert!(Net::new().var_with_id(id).is_err());
    /// # Ok::<(), fleet_nn::Error>(())
    /// ```
    pub fn var_with_id(&self, id: VarId) -> Result<Var<'_>> {
        match self.has(id) {
            true => Ok(self.handle(id)),
            false => Err(Error::invalid("the program does not have this variable").got(id)),
        }
    }

    /// Returns the result of a layer after an error: a handle without a variable, accepted by all
    /// calls.
    pub(crate) fn invalid_var(&self) -> Var<'_> {
        self.handle(VarId::from_index(u32::MAX as usize - 1))
    }
}

impl<'n> Var<'n> {
    /// Returns the variable's id in the main program. After an error in the network, the id is
    /// invalid.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let x = net.data("x", [-1, 13], DType::F32);
    /// assert_eq!(net.build()?.main.var_name(x.id()), "x");
    /// # Ok::<(), fleet_nn::Error>(())
    /// ```
    pub fn id(&self) -> VarId {
        self.id
    }

    /// Returns the network that the variable belongs to.
    pub fn net(&self) -> &'n Net {
        self.net
    }

    /// Returns the documented name, such as `fc_0.w_0`.
    pub fn name(&self) -> String {
        self.net.read(self.id, |var| var.name.clone()).unwrap_or_default()
    }

    /// Returns the shape. Unknown dimensions, such as the batch, are -1.
    pub fn shape(&self) -> Shape {
        self.net.read(self.id, |var| var.shape).unwrap_or(Shape::SCALAR)
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.net.read(self.id, |var| var.dtype).unwrap_or(DType::F32)
    }

    /// Returns the variable's id. Fails if it belongs to another network.
    pub(crate) fn of(&self, net: &Net) -> Result<VarId> {
        if std::ptr::eq(self.net, net) {
            return Ok(self.id);
        }
        let name = self.net.read(self.id, |var| var.name.clone()).unwrap_or_default();
        Err(Error::invalid(format!("'{name}' belongs to another network")))
    }
}

impl fmt::Debug for Var<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}: {}{}", self.name(), self.dtype(), self.shape())
    }
}

impl<'n> From<&Var<'n>> for Var<'n> {
    fn from(var: &Var<'n>) -> Var<'n> {
        *var
    }
}
