//! ResNet on drawn digits in colour, with any strategy of the documents:
//! `fleetrun --nproc_per_node=2 target/release/examples/resnet [STRATEGY] [STEPS] [LAYERS] [SIZE]`.
//! `resnet none 100 50 224` is ResNet-50 on images as large as ImageNet's.

mod pictures;

use fleet::nn::models::{ResNetConfig, resnet};
use fleet::prelude::*;
use fleet::strategy::{
    AdaptiveLocalSgdConfig, AmpConfig, BuildStrategy, DgcConfig, LambConfig, LarsConfig,
    LocalSgdConfig,
};

/// Strategies by the names that the documents' programs have.
pub const STRATEGIES: [&str; 13] = [
    "none",
    "fusion",
    "overlap",
    "topology",
    "amp",
    "recompute",
    "gm",
    "lars",
    "lamb",
    "localsgd",
    "adaptive_localsgd",
    "dgc",
    "fp16_allreduce",
];

/// Parts of the names of parameters without weight decay: batch norms and biases.
const UNDECAYED: [&str; 2] = ["bn", ".b_0"];

/// Returns a strategy with the documented settings.
fn strategy(name: &str) -> Result<DistributedStrategy> {
    let plain = DistributedStrategy::new();
    Ok(match name {
        "none" => plain,
        // Fused ops, and gradients in buckets of 16 MB, at most 50 layers each.
        "fusion" => plain
            .with_build_strategy(
                BuildStrategy::default()
                    .with_fuse_elewise_add_act_ops(true)
                    .with_fuse_bn_act_ops(true)
                    .with_fuse_relu_depthwise_conv(true)
                    .with_fuse_all_optimizer_ops(true),
            )
            .with_fuse_all_reduce_ops(true)
            .with_fuse_grad_size_in_MB(16)
            .with_fuse_grad_size_in_TFLOPS(50.0),
        // Two rings, which send at the same time.
        "overlap" => plain.with_nccl_comm_num(2).with_sync_nccl_allreduce(false),
        // Sums inside groups of two workers first, then between the groups.
        "topology" => {
            plain.with_use_hierarchical_allreduce(true).with_hierarchical_allreduce_inter_nranks(2)
        }
        "amp" => plain.use_amp(amp()),
        "recompute" => {
            let blocks = ["2a", "3a", "4a", "5a"];
            let outputs = blocks.map(|block| format!("res{block}.add.output.5.tmp_0"));
            plain.use_amp(amp()).use_recompute(outputs)
        }
        "gm" => plain.use_gradient_merge(4),
        "lars" => plain.use_lars(
            LarsConfig::default()
                .with_lars_coeff(0.001)
                .with_lars_weight_decay(0.0005)
                .with_exclude_from_weight_decay(UNDECAYED),
        ),
        "lamb" => plain.use_lamb(
            LambConfig::default()
                .with_lamb_weight_decay(0.01)
                .with_exclude_from_weight_decay(UNDECAYED),
        ),
        "localsgd" => {
            plain.use_localsgd(LocalSgdConfig::default().with_k_steps(2).with_begin_step(1))
        }
        "adaptive_localsgd" => plain.use_adaptive_localsgd(
            AdaptiveLocalSgdConfig::default().with_init_k_steps(1).with_begin_step(1),
        ),
        // The documented rampup takes the first epochs of ImageNet.
        "dgc" => plain.use_dgc(
            DgcConfig::default().with_rampup_begin_step(2).with_rampup_step(3).with_sparsity([
                0.984375f32,
                0.996,
                0.999,
            ]),
        ),
        "fp16_allreduce" => plain.with_fp16_allreduce(true),
        other => {
            let error = Error::invalid(format!("unknown strategy '{other}'"));
            return Err(error.expected(STRATEGIES.join(", ")));
        }
    })
}

fn amp() -> AmpConfig {
    AmpConfig::default()
        .with_init_loss_scaling(32768.0)
        .with_decr_every_n_nan_or_inf(2)
        .with_incr_every_n_steps(1000)
        .with_incr_ratio(2.0)
        .with_use_dynamic_loss_scaling(true)
        .with_decr_ratio(0.5)
}

/// Returns the rule that a strategy is made for.
fn optimizer(name: &str) -> OptimizerDesc {
    match name {
        "lamb" => Adam::new(1e-3).into(),
        "localsgd" | "adaptive_localsgd" => Sgd::new(0.05).into(),
        // LARS and DGC bring their own momentum and decay.
        "lars" | "dgc" => Momentum::new(0.02, 0.9).into(),
        _ => Momentum::new(0.02, 0.9).weight_decay(Regularizer::L2(1e-4)).into(),
    }
}

/// Trains a network of `layers` layers on images of this size, and returns the accuracy on unseen
/// ones.
pub fn train_by(name: &str, steps: u64, layers: u32, size: usize) -> Result<f64> {
    let net = Net::new();
    let config = ResNetConfig { classes: 10, size: size as i64, ..ResNetConfig::new(layers) };
    let model = resnet(&net, &config);
    pictures::train(&net, &model, optimizer(name), &strategy(name)?, (size, steps))
}

/// Trains ResNet-18 for this many steps, without a strategy.
pub fn train(steps: u64) -> Result<()> {
    train_by("none", steps, 18, 32).map(drop)
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, usual: usize| args.get(at).map_or(Ok(usual), |text| text.parse());
    let name = args.first().map_or("none", String::as_str);
    let (steps, layers, size) = (number(1, 100)?, number(2, 18)?, number(3, 32)?);
    train_by(name, steps as u64, layers as u32, size).map(drop)
}
