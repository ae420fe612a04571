//! VGG-16.

use super::{ImageClassifier, classify};
use crate::prelude::*;

/// Thirteen convolutions and three full layers over 224x224 images; 138,357,544 parameters for 1000
/// classes.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let model = fleet_nn::models::vgg16(&net, 1000);
/// assert_eq!(model.logits.shape(), Shape::from([-1, 1000]));
/// ```
pub fn vgg16(net: &Net, classes: i64) -> ImageClassifier<'_> {
    let image = net.data("x", [-1, 3, 224, 224], DType::F32);
    let mut x = image;
    for (filters, convolutions) in [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)] {
        for _ in 0..convolutions {
            x = x.conv2d(Conv2d::new(filters, 3).padding(1).act(Act::Relu));
        }
        x = x.pool2d(Pool2d::max(2).stride(2));
    }
    let logits = x
        .fc(Fc::new(4096).act(Act::Relu))
        .dropout(0.5)
        .fc(Fc::new(4096).act(Act::Relu))
        .dropout(0.5)
        .fc(classes);
    classify(image, logits)
}
