//! The network: a function of two numbers.

use crate::bent::bent;
use fleet::prelude::*;

pub struct Model<'n> {
    pub prediction: Var<'n>,
    pub loss: Var<'n>,
}

pub fn network(net: &Net) -> Model<'_> {
    let x = net.data("x", [-1, 2], DType::F32); // -1: the batch
    let y = net.data("y", [-1, 1], DType::F32);
    let hidden = bent(net, x.fc(16));
    let prediction = bent(net, hidden.fc(16)).fc(1);
    Model { prediction, loss: prediction.mse_loss(y, Reduction::Mean) }
}
