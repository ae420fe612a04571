//! The API to build networks: layers, initializers, losses, metrics, optimizers, learning-rate
//! schedules, and a model zoo. This crate writes programs and does not run them.
//!
//! A [`Net`] holds the two programs of a model. The main program trains; the startup program fills
//! parameters. `Net` returns [`Var`] handles, which have layers as methods. Shapes are checked
//! while the network is written. The network keeps the first error, with the source line that
//! caused it. [`Net::minimize`] and [`Net::build`] return it.
//!
//! ```
//! use fleet_nn::prelude::*;
//!
//! let net = Net::new();
//! let image = net.data("image", [-1, 784], DType::F32);
//! let label = net.data("label", [-1, 1], DType::I64);
//! let hidden = image.fc(Fc::new(128).act(Act::Relu)).dropout(0.1);
//! let logits = hidden.fc(10);
//! let loss = logits.cross_entropy(label);
//! let accuracy = logits.accuracy(label, 1);
//! net.minimize(loss, Adam::new(1e-3))?;
//!
//! let programs = net.build()?;
//! assert!(programs.main.find_var("fc_1.w_0").is_some());
//! # let _ = accuracy;
//! # Ok::<(), fleet_nn::Error>(())
//! ```
//!
//! Wide & deep, with a separate optimizer for the table:
//!
//! ```
//! use fleet_nn::prelude::*;
//!
//! let net = Net::new();
//! let dense = net.data("dense_input", [-1, 13], DType::F32);
//! let ids = net.data("sparse_input", [-1, 26], DType::I64);
//! let label = net.data("label", [-1, 1], DType::F32);
//!
//! let table = ParamAttr::from("table").init(Init::uniform(-0.01, 0.01));
//! let rows = ids.embedding(Embedding::new(1_000_000, 16).sparse().weight(table));
//! let mut deep = net.concat(&[rows.flatten(1), dense], 1);
//! for _ in 0..3 {
//!     deep = deep.fc(Fc::new(400).act(Act::Relu));
//! }
//! let logit = dense.fc(1) + deep.fc(1);
//! let loss = logit.sigmoid_cross_entropy_with_logits(label).mean();
//! let auc = logit.sigmoid().auc(label.cast(DType::I64), Auc::new());
//!
//! let (table, rest) = net.backward(loss)?.partition(|name| name == "table");
//! net.apply_gradients(Adagrad::new(0.01), table)?;
//! net.apply_gradients(Adam::new(1e-3).grad_clip(GradClip::GlobalNorm(10.0)), rest)?;
//!
//! let programs = net.build()?;
//! assert!(programs.main.find_var(&auc.auc.name()).is_some());
//! # Ok::<(), fleet_nn::Error>(())
//! ```

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod activation;
mod attr;
mod build;
mod call;
mod clip;
mod cond;
mod init;
mod loss;
mod lr;
mod math;
mod metric;
mod net;
mod operators;
mod programs;
mod setters;
mod tensor;
mod training;
mod var;
mod variables;

pub mod layers;
pub mod models;
pub mod optimizer;

pub use activation::Act;
pub use attr::ParamAttr;
pub use call::{OpCall, Outputs};
pub use clip::GradClip;
pub use cond::OpenCond;
pub use init::Init;
pub use loss::{CrossEntropy, Reduction};
pub use lr::{HostFn, HostRate, LearningRate, LrSchedule};
pub use math::Elementwise;
pub use metric::{Auc, AucVars, Curve};
pub use net::{Guard, Net};
pub use operators::Operand;
pub use programs::Programs;
pub use training::{Gradients, Minimized};
pub use var::Var;

pub use fleet_base::{Error, Result};
pub use fleet_ir::Regularizer;
pub use fleet_tensor::{DType, Shape};

/// Imports for files that define networks.
///
/// ```
/// use fleet_nn::prelude::*;
/// let net = Net::new();
/// let _x = net.data("x", [-1, 13], DType::F32);
/// ```
pub mod prelude {
    pub use crate::layers::*;
    pub use crate::optimizer::{
        Adadelta, Adagrad, Adam, AdamW, Adamax, Lamb, LarsMomentum, Momentum, OptimizerDesc,
        RmsProp, Sgd,
    };
    pub use crate::{
        Act, Auc, CrossEntropy, Curve, DType, Elementwise, GradClip, Init, LearningRate,
        LrSchedule, Net, ParamAttr, Reduction, Regularizer, Shape, Var,
    };
}
