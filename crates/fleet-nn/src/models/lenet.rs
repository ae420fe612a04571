//! LeNet-5 for 28x28 images with one channel.

use super::{ImageClassifier, classify};
use crate::prelude::*;

/// Builds two convolutions and three fully connected layers; 61,706 parameters for 10 classes.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let model = fleet_nn::models::lenet(&net, 10);
/// net.minimize(model.loss, Adam::new(1e-3))?;
/// # Ok::<(), fleet_nn::Error>(())
/// ```
pub fn lenet(net: &Net, classes: i64) -> ImageClassifier<'_> {
    let image = net.data("x", [-1, 1, 28, 28], DType::F32);
    let logits = image
        .conv2d(Conv2d::new(6, 5).padding(2).act(Act::Relu))
        .pool2d(Pool2d::max(2).stride(2))
        .conv2d(Conv2d::new(16, 5).act(Act::Relu))
        .pool2d(Pool2d::max(2).stride(2))
        .fc(Fc::new(120).act(Act::Relu))
        .fc(Fc::new(84).act(Act::Relu))
        .fc(classes);
    classify(image, logits)
}
