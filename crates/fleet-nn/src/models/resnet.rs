//! ResNet with 18, 34, 50, 101 or 152 layers. The stride of a bottleneck is in its 3x3 convolution.
//! Names are the documented ones (`res2a_branch2a_weights`, `bn2a_branch2a_scale`,
//! `res2a.add.output.5`), so that documented recompute checkpoints work.

use super::{ImageClassifier, classify};
use crate::prelude::*;

/// Depth and sizes of a ResNet.
///
/// ```
/// use fleet_nn::models::ResNetConfig;
/// assert_eq!(ResNetConfig::new(50).classes, 1000);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ResNetConfig {
    /// 18, 34, 50, 101 or 152. Any other number means 50.
    pub layers: u32,
    /// Number of classes; 1000 by default.
    pub classes: i64,
    /// Height and width of the images.
    pub size: i64,
}

impl ResNetConfig {
    /// Returns the sizes for ImageNet: 1000 classes, images of 224 x 224.
    pub fn new(layers: u32) -> ResNetConfig {
        ResNetConfig { layers, classes: 1000, size: 224 }
    }

    /// Returns the number of blocks in each of the four stages, and whether they are bottlenecks.
    fn stages(&self) -> ([usize; 4], bool) {
        match self.layers {
            18 => ([2, 2, 2, 2], false),
            34 => ([3, 4, 6, 3], false),
            101 => ([3, 4, 23, 3], true),
            152 => ([3, 8, 36, 3], true),
            _ => ([3, 4, 6, 3], true),
        }
    }

    /// Returns the name of a block, such as `res2a`. Long stages are numbered from the second
    /// block: `res4b1`.
    fn block_name(&self, stage: usize, block: usize) -> String {
        let letter = (b'a' + block as u8) as char;
        match (self.layers > 50 && stage == 2, block) {
            (true, 0) => format!("res{}a", stage + 2),
            (true, block) => format!("res{}b{block}", stage + 2),
            (false, _) => format!("res{}{letter}", stage + 2),
        }
    }
}

/// Builds a residual network for images. ResNet-50 has 25,557,032 trained parameters.
///
/// ```
/// # use fleet_nn::prelude::*;
/// use fleet_nn::models::{ResNetConfig, resnet};
/// let net = Net::new();
/// let model = resnet(&net, &ResNetConfig::new(18));
/// assert_eq!(model.logits.shape(), Shape::from([-1, 1000]));
/// ```
pub fn resnet<'n>(net: &'n Net, config: &ResNetConfig) -> ImageClassifier<'n> {
    let image = net.data("x", [-1, 3, config.size, config.size], DType::F32);
    let (stages, bottleneck) = config.stages();
    let mut x = conv_bn(image, 64, 7, 2, Some(Act::Relu), "conv1");
    x = x.pool2d(Pool2d::max(3).stride(2).padding(1));
    for (stage, blocks) in stages.into_iter().enumerate() {
        for block in 0..blocks {
            let stride = if block == 0 && stage > 0 { 2 } else { 1 };
            let name = config.block_name(stage, block);
            x = residual(x, 64 << stage, stride, bottleneck, &name);
        }
    }
    let pooled = x.pool2d(Pool2d::global_avg());
    let width = pooled.shape().get(1).map_or(1.0, |width| *width as f64);
    let bound = width.sqrt().recip();
    let weight = ParamAttr::from("fc_0.w_0").init(Init::uniform(-bound, bound));
    let logits = pooled.fc(Fc::new(config.classes).weight(weight).bias("fc_0.b_0"));
    classify(image, logits)
}

/// Adds a block: two or three convolutions and a shortcut.
fn residual<'n>(x: Var<'n>, width: i64, stride: i64, bottleneck: bool, name: &str) -> Var<'n> {
    let branch = |part: &str| format!("{name}_branch{part}");
    let relu = Some(Act::Relu);
    let (out, y) = if bottleneck {
        let y = conv_bn(x, width, 1, 1, relu, &branch("2a"));
        let y = conv_bn(y, width, 3, stride, relu, &branch("2b"));
        (4 * width, conv_bn(y, 4 * width, 1, 1, None, &branch("2c")))
    } else {
        let y = conv_bn(x, width, 3, stride, relu, &branch("2a"));
        (width, conv_bn(y, width, 3, 1, None, &branch("2b")))
    };
    let same = stride == 1 && x.shape().get(1) == Some(&out);
    let short = if same { x } else { conv_bn(x, out, 1, stride, None, &branch("1")) };
    short.elementwise_add(y, Elementwise::new().act(Act::Relu).name(format!("{name}.add.output.5")))
}

/// Adds a convolution without bias and a batch normalization.
fn conv_bn<'n>(
    x: Var<'n>,
    filters: i64,
    size: i64,
    stride: i64,
    act: Option<Act>,
    name: &str,
) -> Var<'n> {
    let conv = Conv2d::new(filters, size).stride(stride).padding((size - 1) / 2).no_bias();
    let weight = format!("{name}_weights");
    let y = x.conv2d(conv.weight(weight).name(format!("{name}.conv2d.output.1")));
    let bn = match name.strip_prefix("res") {
        Some(rest) => format!("bn{rest}"),
        None => format!("bn_{name}"),
    };
    let norm = BatchNorm { act, ..BatchNorm::new() }
        .scale(format!("{bn}_scale"))
        .shift(format!("{bn}_offset"))
        .moving(format!("{bn}_mean"), format!("{bn}_variance"));
    y.batch_norm(norm.name(format!("{bn}.output.1")))
}
