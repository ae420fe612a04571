//! The list of ops.

use crate::{OpDef, Registry};
use crate::{comm, control, loss, math, metric, nn, optimizer, ps, tensor};
use fleet_base::{Error, Result};
use std::sync::OnceLock;

static STANDARD: OnceLock<Registry> = OnceLock::new();

impl Registry {
    /// Returns the registry of all built-in ops and of the installed ones
    /// ([`Registry::install`]). Networks, executors, loaders of models and commands use it.
    pub fn standard() -> &'static Registry {
        STANDARD.get_or_init(|| Registry::with(&[]))
    }

    /// Adds ops to those of [`Registry::standard`], for the whole process. Call it once, first in
    /// `main`: it fails after the first use of the registry, and if an op has the name of another
    /// one. A repeated call with the same ops has no effect.
    ///
    /// The ops of a process cannot change later, because programs and plans refer to them.
    pub fn install(more: &[&'static OpDef]) -> Result<&'static Registry> {
        check_names(more)?;
        let registry = STANDARD.get_or_init(|| Registry::with(more));
        let missing = more.iter().filter(|def| !registry.has(def)).map(|def| def.spec.name);
        match missing.collect::<Vec<_>>()[..] {
            [] => Ok(registry),
            ref late => {
                Err(Error::invalid("ops are installed after the first use of the registry")
                    .expected("Registry::install before all other calls of Fleet")
                    .got(late.join(", "))
                    .help("call Registry::install once, first in main, with all ops"))
            }
        }
    }

    /// Returns a registry of the standard ops and some more, for tests that compare registries.
    pub fn with(more: &[&'static OpDef]) -> Registry {
        Registry::new(OPS.iter().copied().flatten().chain(more).copied())
    }
}

/// Checks that no two ops have the same name, the built-in ones and gradient ops included.
fn check_names(more: &[&'static OpDef]) -> Result<()> {
    let built_in = Registry::with(&[]);
    let mut seen: Vec<&'static OpDef> = Vec::new();
    for def in more.iter().flat_map(|def| [Some(*def), def.grad.op()]).flatten() {
        let name = def.spec.name;
        let is_other = |known: &&OpDef| known.spec.name == name && !std::ptr::eq(*known, def);
        if built_in.find(name).is_some_and(|known| is_other(&known)) || seen.iter().any(is_other) {
            return Err(Error::invalid(format!("duplicate op '{name}'"))
                .expected("a name that no other op has")
                .help("put a prefix of your own before the name"));
        }
        seen.push(def);
    }
    Ok(())
}

/// All ops but the gradient ops that the others name in [`OpDef::grad`], grouped by family. The
/// unary functions have a list of their own.
static OPS: [&[&OpDef]; 3] = [BEFORE_UNARY, math::unary::DEFS, AFTER_UNARY];

const BEFORE_UNARY: &[&OpDef] = &[
    // comm
    &comm::alltoall::DEF,
    &comm::axis_parts::GATHER,
    &comm::axis_parts::SCATTER_SUM,
    &comm::axis_parts::TAKE,
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
    &comm::identity::DEF,
    &comm::reduce::ALL_AVG,
    &comm::reduce::ALL_MAX,
    &comm::reduce::ALL_MIN,
    &comm::reduce::ALL_PROD,
    &comm::reduce::ALL_SUM,
    &comm::reduce::REDUCE_SUM,
    &comm::same_batch::DEF,
    &comm::send_recv::RECV,
    &comm::send_recv::SEND,
    &comm::sum_parts::DEF,
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
    &math::cumsum::DEF,
    &math::elementwise::ADD,
    &math::elementwise::SUB,
    &math::elementwise::MUL,
    &math::elementwise::DIV,
    &math::elementwise::MAX,
    &math::elementwise::MIN,
    &math::elementwise::POW,
    &math::elementwise::MOD,
    &math::elementwise::FLOORDIV,
    &math::fused_elemwise_activation::DEF,
    &math::fused_gemm_epilogue::DEF,
    &math::increment::DEF,
    &math::matmul::MUL,
    &math::matmul::MATMUL,
    &math::norm::SQUARED_L2_NORM,
    &math::norm::CLIP_BY_NORM,
    &math::norm::GLOBAL_NORM_SCALE,
    &math::reduce::SUM,
    &math::reduce::MEAN,
    &math::reduce::MAX,
    &math::reduce::MIN,
    &math::reduce::PROD,
    &math::reduce::MEAN_ALL,
    &math::scale::DEF,
    &math::sum::DEF,
    &math::top_k::DEF,
];

const AFTER_UNARY: &[&OpDef] = &[
    &math::clip::CLIP,
    // tensor
    &tensor::assign::DEF,
    &tensor::concat::CONCAT,
    &tensor::concat::SPLIT,
    &tensor::concat::STACK,
    &tensor::concat::UNSTACK,
    &tensor::expand::EXPAND,
    &tensor::expand::TILE,
    &tensor::fill::EMPTY,
    &tensor::fill::FILL_CONSTANT,
    &tensor::fill::FILL_CONSTANT_BATCH_SIZE_LIKE,
    &tensor::fill::FILL_ANY_LIKE,
    &tensor::fill::ASSIGN_VALUE,
    &tensor::fill::EYE,
    &tensor::fill::RANGE,
    &tensor::flip::FLIP,
    &tensor::flip::ROLL,
    &tensor::gather::GATHER,
    &tensor::gather::INDEX_SELECT,
    &tensor::gather::GATHER_ND,
    &tensor::micro_batch_slice::DEF,
    &tensor::nonzero_rows::DEF,
    &tensor::one_hot::ONE_HOT,
    &tensor::one_hot::SHAPE,
    &tensor::pad::DEF,
    &tensor::random::UNIFORM,
    &tensor::random::GAUSSIAN,
    &tensor::random::TRUNCATED,
    &tensor::random::RANDINT,
    &tensor::random::RANDPERM,
    &tensor::reshape::RESHAPE,
    &tensor::reshape::SQUEEZE,
    &tensor::reshape::UNSQUEEZE,
    &tensor::reshape::FLATTEN,
    &tensor::reshape::FLATTEN_RANGE,
    &tensor::scatter::SCATTER,
    &tensor::scatter::SCATTER_ND_ADD,
    &tensor::slice::SLICE,
    &tensor::slice::STRIDED_SLICE,
    &tensor::transpose::DEF,
    &tensor::tril_triu::DEF,
    // nn
    &nn::batch_norm::DEF,
    &nn::c_embedding::DEF,
    &nn::conv2d::DEF,
    &nn::conv2d::DEPTHWISE,
    &nn::dropout::DEF,
    &nn::flash_attn::DEF,
    &nn::flash_attn_qkvpacked::DEF,
    &nn::fused_batch_norm_act::DEF,
    &nn::fused_bn_add_activation::DEF,
    &nn::fused_embedding_concat::DEF,
    &nn::layer_norm::DEF,
    &nn::log_softmax::DEF,
    &nn::lookup_table_v2::DEF,
    &nn::lookup_table_v2::V1,
    &nn::pool2d::DEF,
    &nn::softmax::DEF,
    &nn::sync_batch_norm::DEF,
    // loss
    &loss::c_softmax_with_cross_entropy::DEF,
    &loss::class_cross_entropy::DEF,
    &loss::class_cross_entropy::OF_RANKS,
    &loss::cross_entropy::DEF,
    &loss::huber_loss::DEF,
    &loss::kldiv_loss::DEF,
    &loss::label_smooth::DEF,
    &loss::log_loss::DEF,
    &loss::nll_loss::DEF,
    &loss::sigmoid_cross_entropy_with_logits::DEF,
    &loss::smooth_l1_loss::DEF,
    &loss::softmax_with_cross_entropy::DEF,
    &loss::square_error_cost::DEF,
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
    &optimizer::lamb::PARTS,
    &optimizer::lars_momentum::DEF,
    &optimizer::lars_momentum::PARTS,
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
