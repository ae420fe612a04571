//! VGG with 11, 13, 16 or 19 layers.

use super::{ImageClassifier, classify};
use crate::prelude::*;

/// Depth and sizes of a VGG.
///
/// ```
/// use fleet_nn::models::VggConfig;
/// assert_eq!(VggConfig::new(16).hidden, 4096);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct VggConfig {
    /// 11, 13, 16 or 19. Any other number means 16.
    pub layers: u32,
    /// Number of classes; 1000 by default.
    pub classes: i64,
    /// Height and width of the images, at least 32.
    pub size: i64,
    /// Width of the two hidden fully connected layers.
    pub hidden: i64,
}

impl VggConfig {
    /// Returns the sizes for ImageNet: 1000 classes, images of 224 x 224.
    pub fn new(layers: u32) -> VggConfig {
        VggConfig { layers, classes: 1000, size: 224, hidden: 4096 }
    }

    /// Returns the number of convolutions in each of the five stages.
    fn stages(&self) -> [usize; 5] {
        match self.layers {
            11 => [1, 1, 2, 2, 2],
            13 => [2, 2, 2, 2, 2],
            19 => [2, 2, 4, 4, 4],
            _ => [2, 2, 3, 3, 3],
        }
    }
}

/// Builds five stages of 3x3 convolutions and three fully connected layers.
///
/// ```
/// # use fleet_nn::prelude::*;
/// use fleet_nn::models::{VggConfig, vgg};
/// let net = Net::new();
/// let model = vgg(&net, &VggConfig { classes: 10, size: 32, hidden: 512, ..VggConfig::new(11) });
/// assert_eq!(model.logits.shape(), Shape::from([-1, 10]));
/// ```
pub fn vgg<'n>(net: &'n Net, config: &VggConfig) -> ImageClassifier<'n> {
    let image = net.data("x", [-1, 3, config.size, config.size], DType::F32);
    let mut x = image;
    for (filters, convolutions) in [64, 128, 256, 512, 512].into_iter().zip(config.stages()) {
        for _ in 0..convolutions {
            x = x.conv2d(Conv2d::new(filters, 3).padding(1).act(Act::Relu));
        }
        x = x.pool2d(Pool2d::max(2).stride(2));
    }
    let logits = x
        .fc(Fc::new(config.hidden).act(Act::Relu))
        .dropout(0.5)
        .fc(Fc::new(config.hidden).act(Act::Relu))
        .dropout(0.5)
        .fc(config.classes);
    classify(image, logits)
}

/// Builds thirteen convolutions and three fully connected layers for 224x224 images; 138,357,544
/// parameters for 1000 classes.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let model = fleet_nn::models::vgg16(&net, 1000);
/// assert_eq!(model.logits.shape(), Shape::from([-1, 1000]));
/// ```
pub fn vgg16(net: &Net, classes: i64) -> ImageClassifier<'_> {
    vgg(net, &VggConfig { classes, ..VggConfig::new(16) })
}
