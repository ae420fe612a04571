//! Fuses a relu into the following depthwise convolution. The convolution clips its input while
//! reading, and its gradient masks its output, so the clipped image is not stored.

use super::fusion::{Fusion, Rule, Variant};

pub(crate) const FUSION: Fusion = Fusion {
    variants: &[Variant {
        forward: Rule {
            find: &[
                "relu: (Out: clipped) = relu(X: image)",
                "conv: () = depthwise_conv2d(Input: clipped)",
            ],
            becomes: &["conv: () = depthwise_conv2d(Input: image, ..conv)"],
        },
        backward: &[
            Rule {
                find: &[
                    "dconv: (Input@GRAD: dclipped) = depthwise_conv2d_grad(Input: clipped)",
                    "drelu: (X@GRAD: dimage) = relu_grad(Out: clipped, Out@GRAD: dclipped)",
                ],
                becomes: &["dconv: (Input@GRAD: dimage) = \
                     depthwise_conv2d_grad(Input: image, ..dconv)"],
            },
            // Nothing before the relu is trained.
            Rule {
                find: &["dconv: (Input@GRAD: -) = depthwise_conv2d_grad(Input: clipped)"],
                becomes: &["dconv: () = depthwise_conv2d_grad(Input: image, ..dconv)"],
            },
        ],
    }],
    accept: |found| {
        found.set("fuse_relu_before_depthwise_conv", true);
        Some(())
    },
};
