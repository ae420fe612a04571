//! Op definitions, grouped by family. Each op has one file with its shape rule, gradient rule and
//! CPU kernel.
//!
//! [`OPS`] lists every op. To add an op, write its file (see `docs/add-an-op.md`), add its
//! definitions to the list, and write test cases for it.

#![forbid(unsafe_code)]

mod def;
mod emit;
mod grad;
mod gradient_check;
mod meta;
mod ranks;
mod registry;
mod rules;
mod service;
mod tables;
mod traits;
mod widen;

pub mod verify;

pub mod comm;
pub mod control;
pub mod loss;
pub mod math;
pub mod metric;
pub mod nn;
pub mod optimizer;
pub mod ps;
pub mod tensor;

pub use def::{InferCtx, Kernel, KernelCtx, KernelFn, OpDef, PrepareCtx};
pub use emit::{Emit, OpEmitter, meta};
pub use fleet_base::ReduceOp;
pub use grad::{Grad, GradCtx};
pub use meta::Meta;
pub use ranks::{Spread, Traffic};
pub use registry::Registry;
pub use service::{Ring, Services, Spill};
pub use tables::{LookUp, Lookup, PushRows, Tables};
pub use traits::{AmpClass, Cost, CostCtx, Images, Lane, OpTraits, elementwise_cost};

/// Imports for the file of an op.
mod prelude {
    #![allow(unused_imports)]
    pub use crate::{
        AmpClass, Cost, CostCtx, Grad, GradCtx, Images, InferCtx, Kernel, KernelCtx, Meta, OpDef,
        OpTraits, PrepareCtx, Spread, Traffic,
    };
    pub use fleet_base::{Error, Result};
    pub use fleet_ir::AttrConst::{Bool, DType as DTypeOf, Float, Floats, Int, Ints, Str, Strs};
    pub use fleet_ir::{AttrKind, OpSpec, VarId, VarKind, attr, many, one, optional, required};
    pub use fleet_kernels::input::Input;
    pub use fleet_kernels::pool::Pool;
    pub use fleet_tensor::{DType, Layout, Out, Shape, View, view_as, view_as_mut};
}

/// All ops, grouped by family.
pub static OPS: &[&OpDef] = &joined::<{ count(&LISTS) }>(&LISTS);

/// The lists of this file, and that of the unary functions, which are the rows of one table.
const LISTS: [&[&OpDef]; 3] = [BEFORE_UNARY, math::unary::DEFS, AFTER_UNARY];

const BEFORE_UNARY: &[&OpDef] = &[
    // comm
    &comm::alltoall::DEF,
    &comm::broadcast::DEF,
    &comm::control::BARRIER,
    &comm::control::COMM_INIT,
    &comm::control::SYNC_CALC,
    &comm::control::SYNC_COMM,
    &comm::dgc::DEF,
    &comm::dgc::MOMENTUM,
    &comm::gather::ALL_GATHER,
    &comm::gather::ALL_GATHER_ROWS,
    &comm::gather::CONCAT,
    &comm::gather::REDUCE_SCATTER,
    &comm::gather::SPLIT,
    &comm::reduce::ALL_AVG,
    &comm::reduce::ALL_MAX,
    &comm::reduce::ALL_MIN,
    &comm::reduce::ALL_PROD,
    &comm::reduce::ALL_SUM,
    &comm::reduce::REDUCE_SUM,
    &comm::send_recv::RECV,
    &comm::send_recv::SEND,
    // control
    &control::conditional_block::DEF,
    &control::offload::FETCH,
    &control::offload::STORE,
    // math
    &math::arg_extreme::ARG_MAX,
    &math::arg_extreme::ARG_MIN,
    &math::cast::DEF,
    &math::compare::EQUAL,
    &math::compare::NOT_EQUAL,
    &math::compare::LESS_THAN,
    &math::compare::LESS_EQUAL,
    &math::compare::GREATER_THAN,
    &math::compare::GREATER_EQUAL,
    &math::compare::LOGICAL_AND,
    &math::compare::LOGICAL_OR,
    &math::compare::LOGICAL_XOR,
    &math::compare::LOGICAL_NOT,
    &math::compare::ISFINITE,
    &math::compare::WHERE,
    &math::compare::WHERE_GRAD,
    &math::cumsum::DEF,
    &math::elementwise::ADD,
    &math::elementwise::ADD_GRAD,
    &math::elementwise::SUB,
    &math::elementwise::SUB_GRAD,
    &math::elementwise::MUL,
    &math::elementwise::MUL_GRAD,
    &math::elementwise::DIV,
    &math::elementwise::DIV_GRAD,
    &math::elementwise::MAX,
    &math::elementwise::MAX_GRAD,
    &math::elementwise::MIN,
    &math::elementwise::MIN_GRAD,
    &math::elementwise::POW,
    &math::elementwise::POW_GRAD,
    &math::elementwise::MOD,
    &math::elementwise::MOD_GRAD,
    &math::elementwise::FLOORDIV,
    &math::fused_elemwise_activation::DEF,
    &math::fused_elemwise_activation::GRAD,
    &math::fused_gemm_epilogue::DEF,
    &math::fused_gemm_epilogue::GRAD,
    &math::increment::DEF,
    &math::matmul::MUL,
    &math::matmul::MUL_GRAD,
    &math::matmul::MATMUL,
    &math::matmul::MATMUL_GRAD,
    &math::norm::SQUARED_L2_NORM,
    &math::norm::SQUARED_L2_NORM_GRAD,
    &math::norm::CLIP_BY_NORM,
    &math::norm::GLOBAL_NORM_SCALE,
    &math::reduce::SUM,
    &math::reduce::SUM_GRAD,
    &math::reduce::MEAN,
    &math::reduce::MEAN_GRAD,
    &math::reduce::MAX,
    &math::reduce::MAX_GRAD,
    &math::reduce::MIN,
    &math::reduce::MIN_GRAD,
    &math::reduce::PROD,
    &math::reduce::PROD_GRAD,
    &math::reduce::MEAN_ALL,
    &math::reduce::MEAN_ALL_GRAD,
    &math::scale::DEF,
    &math::sum::DEF,
    &math::top_k::DEF,
    &math::top_k::GRAD,
];

const AFTER_UNARY: &[&OpDef] = &[
    &math::clip::CLIP,
    &math::clip::CLIP_GRAD,
    // tensor
    &tensor::assign::DEF,
    &tensor::concat::CONCAT,
    &tensor::concat::CONCAT_GRAD,
    &tensor::concat::SPLIT,
    &tensor::concat::STACK,
    &tensor::concat::UNSTACK,
    &tensor::expand::EXPAND,
    &tensor::expand::EXPAND_GRAD,
    &tensor::expand::TILE,
    &tensor::expand::TILE_GRAD,
    &tensor::fill::FILL_CONSTANT,
    &tensor::fill::FILL_CONSTANT_BATCH_SIZE_LIKE,
    &tensor::fill::FILL_ANY_LIKE,
    &tensor::fill::ASSIGN_VALUE,
    &tensor::fill::EYE,
    &tensor::fill::RANGE,
    &tensor::flip::FLIP,
    &tensor::flip::ROLL,
    &tensor::gather::GATHER,
    &tensor::gather::GATHER_GRAD,
    &tensor::gather::INDEX_SELECT,
    &tensor::gather::INDEX_SELECT_GRAD,
    &tensor::gather::GATHER_ND,
    &tensor::gather::GATHER_ND_GRAD,
    &tensor::one_hot::ONE_HOT,
    &tensor::one_hot::SHAPE,
    &tensor::pad::DEF,
    &tensor::pad::GRAD,
    &tensor::random::UNIFORM,
    &tensor::random::GAUSSIAN,
    &tensor::random::TRUNCATED,
    &tensor::random::RANDINT,
    &tensor::random::RANDPERM,
    &tensor::reshape::RESHAPE,
    &tensor::reshape::RESHAPE_GRAD,
    &tensor::reshape::SQUEEZE,
    &tensor::reshape::SQUEEZE_GRAD,
    &tensor::reshape::UNSQUEEZE,
    &tensor::reshape::UNSQUEEZE_GRAD,
    &tensor::reshape::FLATTEN,
    &tensor::reshape::FLATTEN_GRAD,
    &tensor::reshape::FLATTEN_RANGE,
    &tensor::reshape::FLATTEN_RANGE_GRAD,
    &tensor::scatter::SCATTER,
    &tensor::scatter::SCATTER_GRAD,
    &tensor::scatter::SCATTER_ND_ADD,
    &tensor::slice::SLICE,
    &tensor::slice::SLICE_GRAD,
    &tensor::slice::STRIDED_SLICE,
    &tensor::slice::STRIDED_SLICE_GRAD,
    &tensor::transpose::DEF,
    &tensor::tril_triu::DEF,
    // nn
    &nn::batch_norm::DEF,
    &nn::batch_norm::GRAD,
    &nn::conv2d::DEF,
    &nn::conv2d::GRAD,
    &nn::conv2d::DEPTHWISE,
    &nn::conv2d::DEPTHWISE_GRAD,
    &nn::dropout::DEF,
    &nn::dropout::GRAD,
    &nn::flash_attn::DEF,
    &nn::flash_attn::GRAD,
    &nn::flash_attn_qkvpacked::DEF,
    &nn::flash_attn_qkvpacked::GRAD,
    &nn::fused_batch_norm_act::DEF,
    &nn::fused_batch_norm_act::GRAD,
    &nn::fused_bn_add_activation::DEF,
    &nn::fused_bn_add_activation::GRAD,
    &nn::fused_embedding_concat::DEF,
    &nn::fused_embedding_concat::GRAD,
    &nn::layer_norm::DEF,
    &nn::layer_norm::GRAD,
    &nn::log_softmax::DEF,
    &nn::log_softmax::GRAD,
    &nn::lookup_table_v2::DEF,
    &nn::lookup_table_v2::GRAD,
    &nn::lookup_table_v2::V1,
    &nn::lookup_table_v2::V1_GRAD,
    &nn::pool2d::DEF,
    &nn::pool2d::GRAD,
    &nn::softmax::DEF,
    &nn::softmax::GRAD,
    &nn::sync_batch_norm::DEF,
    &nn::sync_batch_norm::GRAD,
    // loss
    &loss::cross_entropy::DEF,
    &loss::cross_entropy::GRAD,
    &loss::huber_loss::DEF,
    &loss::huber_loss::GRAD,
    &loss::kldiv_loss::DEF,
    &loss::kldiv_loss::GRAD,
    &loss::label_smooth::DEF,
    &loss::log_loss::DEF,
    &loss::log_loss::GRAD,
    &loss::nll_loss::DEF,
    &loss::nll_loss::GRAD,
    &loss::sigmoid_cross_entropy_with_logits::DEF,
    &loss::sigmoid_cross_entropy_with_logits::GRAD,
    &loss::smooth_l1_loss::DEF,
    &loss::smooth_l1_loss::GRAD,
    &loss::softmax_with_cross_entropy::DEF,
    &loss::softmax_with_cross_entropy::GRAD,
    &loss::square_error_cost::DEF,
    &loss::square_error_cost::GRAD,
    // metric
    &metric::accuracy::DEF,
    &metric::auc::DEF,
    // optimizer
    &optimizer::adadelta::DEF,
    &optimizer::adagrad::DEF,
    &optimizer::adam::DEF,
    &optimizer::adam::FUSED,
    &optimizer::adam::REDUCED,
    &optimizer::adamax::DEF,
    &optimizer::adamw::DEF,
    &optimizer::adamw::FUSED,
    &optimizer::adamw::REDUCED,
    &optimizer::check_finite_and_unscale::DEF,
    &optimizer::lamb::DEF,
    &optimizer::lars_momentum::DEF,
    &optimizer::lr_schedule::DEF,
    &optimizer::momentum::DEF,
    &optimizer::momentum::FUSED,
    &optimizer::momentum::REDUCED,
    &optimizer::rmsprop::DEF,
    &optimizer::sgd::DEF,
    &optimizer::sgd::FUSED,
    &optimizer::sgd::REDUCED,
    &optimizer::update_loss_scaling::DEF,
    // ps
    &ps::distributed_lookup_table::DEF,
    &ps::distributed_push_sparse::DEF,
    &ps::fake_init::DEF,
    &ps::fetch_barrier::DEF,
    &ps::listen_and_serv::DEF,
    &ps::recv::DEF,
    &ps::send::DEF,
    &ps::send_barrier::DEF,
];

const fn count(lists: &[&[&OpDef]]) -> usize {
    let (mut count, mut list) = (0, 0);
    while list < lists.len() {
        count += lists[list].len();
        list += 1;
    }
    count
}

const fn joined<const N: usize>(lists: &[&[&'static OpDef]]) -> [&'static OpDef; N] {
    let mut all = [lists[0][0]; N];
    let (mut at, mut list, mut index) = (0, 0, 0);
    while at < N {
        if index == lists[list].len() {
            (list, index) = (list + 1, 0);
        }
        all[at] = lists[list][index];
        (at, index) = (at + 1, index + 1);
    }
    all
}
