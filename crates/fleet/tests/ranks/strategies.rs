//! Every strategy at a small size, for real ranks.

use fleet::prelude::*;
use fleet::strategy::{
    AdaptiveLocalSgdConfig, AmpConfig, DgcConfig, DistributedStrategy, HybridConfig, LambConfig,
    LarsConfig, LocalSgdConfig, PipelineConfig, ShardingConfig,
};

/// Names of the strategies.
pub const NAMES: [&str; 21] = [
    "plain",
    "amp",
    "recompute",
    "gradient_merge",
    "lars",
    "lamb",
    "localsgd",
    "adaptive_localsgd",
    "dgc",
    "fp16_allreduce",
    "sync_batch_norm",
    "hierarchical",
    "sharding",
    "sharding_in_groups",
    "sharding_with_merge",
    "sharded_parameters",
    "pipeline",
    "pipelines",
    "virtual_stages",
    "sharded_stages",
    "sharded_parameters_of_stages",
];

pub fn strategy(name: &str, ranks: usize) -> (DistributedStrategy, OptimizerDesc) {
    let plain = DistributedStrategy::new();
    let momentum: OptimizerDesc = Momentum::new(0.01, 0.9).into();
    let amp = AmpConfig::default().with_init_loss_scaling(256.0).with_incr_every_n_steps(2);
    // Pipelines of two stages, if that divides the ranks.
    let two_stages =
        HybridConfig::default().with_pp_degree(if ranks.is_multiple_of(2) { 2 } else { 1 });
    let strategy = match name {
        "plain" => plain,
        "amp" => plain.use_amp(amp),
        "recompute" => plain.use_recompute(["fc_0.tmp_2"]),
        "gradient_merge" => plain.use_gradient_merge(3),
        "lars" => plain.use_lars(LarsConfig::default()),
        "lamb" => return (plain.use_lamb(LambConfig::default()), Adam::new(0.01).into()),
        "localsgd" => plain.use_localsgd(LocalSgdConfig::default().with_k_steps(3)),
        "adaptive_localsgd" => {
            plain.use_adaptive_localsgd(AdaptiveLocalSgdConfig::default().with_init_k_steps(3))
        }
        "dgc" => {
            let sparsity = [0.75f32, 0.999];
            let configs = DgcConfig::default().with_rampup_begin_step(2).with_rampup_step(2);
            plain.use_dgc(configs.with_sparsity(sparsity))
        }
        "fp16_allreduce" => plain.with_fp16_allreduce(true),
        "sync_batch_norm" => plain.with_sync_batch_norm(true),
        "hierarchical" => {
            plain.with_use_hierarchical_allreduce(true).with_hierarchical_allreduce_inter_nranks(2)
        }
        "sharding" => {
            let sharding = plain.use_sharding(ShardingConfig::default().with_stage(1));
            return (sharding.use_amp(amp), Adam::new(0.01).into());
        }
        "sharding_in_groups" => {
            let configs = ShardingConfig::default().with_stage(1).with_sharding_degree(2);
            plain.use_sharding(configs.with_hybrid_dp(true))
        }
        "sharding_with_merge" => {
            let configs = ShardingConfig::default().with_stage(2);
            plain.use_sharding(configs).use_gradient_merge(3)
        }
        "sharded_parameters" => {
            let configs = ShardingConfig::default()
                .with_sharding_segment_strategy("segment_anchors")
                .with_segment_anchors(["batch_norm_0.tmp_2"]);
            return (plain.use_sharding(configs).use_amp(amp), Adam::new(0.01).into());
        }
        "pipeline" => {
            let pipeline = plain.use_pipeline(PipelineConfig::default().with_accumulate_steps(4));
            return (pipeline, Adam::new(0.01).grad_clip(GradClip::GlobalNorm(0.1)).into());
        }
        "pipelines" => {
            let micro = PipelineConfig::default().with_accumulate_steps(2);
            let pipeline = plain.use_pipeline(micro.with_schedule_mode("F-then-B")).use_amp(amp);
            return (pipeline.with_hybrid_configs(two_stages), Adam::new(0.01).into());
        }
        "virtual_stages" => {
            let micro = PipelineConfig::default().with_accumulate_steps(2).with_virtual_stages(2);
            plain.use_pipeline(micro).with_hybrid_configs(two_stages)
        }
        "sharded_stages" => {
            let micro = PipelineConfig::default().with_accumulate_steps(2);
            let sharding = ShardingConfig::default().with_stage(2);
            plain.use_pipeline(micro).use_sharding(sharding).with_hybrid_configs(two_stages)
        }
        "merged_gradients_of_stages" => {
            let micro = PipelineConfig::default().with_accumulate_steps(2);
            let sharding = ShardingConfig::default().with_gradient_merge_acc_step(3);
            plain.use_pipeline(micro).use_sharding(sharding).with_hybrid_configs(two_stages)
        }
        "sharded_parameters_of_stages" => {
            let micro = PipelineConfig::default().with_accumulate_steps(2);
            let sharding = ShardingConfig::default().with_segment_broadcast_MB(1e-3);
            let strategy = plain.use_pipeline(micro).use_sharding(sharding).use_amp(amp);
            return (strategy.with_hybrid_configs(two_stages), Adam::new(0.01).into());
        }
        other => panic!("no strategy {other}"),
    };
    (strategy, momentum)
}

/// Opens a session with batch statistics, random numbers, and a parameter that is large enough to
/// be compressed.
pub fn session(fleet: &Fleet, name: &str) -> Result<Session> {
    let (strategy, optimizer) = strategy(name, fleet.worker_num());
    session_of(fleet, &strategy, optimizer, network)
}

fn network(net: &Net) -> Var<'_> {
    let (x, y) = (net.data("x", [-1, 6], DType::F32), net.data("y", [-1, 1], DType::F32));
    let hidden = x.fc(Fc::new(32).act(Act::Tanh)).dropout(0.2).batch_norm(BatchNorm::new());
    hidden.fc(Fc::new(512).act(Act::Tanh)).fc(1).mse_loss(y, Reduction::Mean)
}

pub fn session_of(
    fleet: &Fleet,
    strategy: &DistributedStrategy,
    optimizer: OptimizerDesc,
    network: for<'n> fn(&'n Net) -> Var<'n>,
) -> Result<Session> {
    let net = Net::new();
    net.set_seed(5);
    let loss = network(&net);
    let job = fleet.distributed_optimizer(optimizer, strategy).minimize(&net, loss)?;
    fleet.session(net.build()?, &job, ExecOptions::threads(1))
}

/// Runs one step on this rank's rows.
pub fn step(session: &mut Session, fleet: &Fleet, number: u64) -> Result<()> {
    let (x, y) = feed(session, fleet, number)?;
    session.run(&[("x", &x), ("y", &y)], &[]).map(|_| ())
}

/// Returns this rank's rows of a step, as (x, y). All stages of a pipeline get the same.
pub fn feed(session: &Session, fleet: &Fleet, number: u64) -> Result<(Tensor, Tensor)> {
    const ROWS: usize = 4;
    let own = (fleet.worker_index(), fleet.worker_num());
    let (part, parts) = session.stage().map_or(own, |stage| (stage.copy, stage.copies));
    let from = (number as usize * parts + part) * ROWS;
    let value = |at: usize| ((at * 37 + 11) % 97) as f32 / 97.0 - 0.5;
    let x: Vec<f32> = (from * 6..(from + ROWS) * 6).map(value).collect();
    let y: Vec<f32> = (from..from + ROWS).map(|row| value(row * 7 + 3)).collect();
    let x = Tensor::from_slice(&x, [ROWS as i64, 6])?;
    Ok((x, Tensor::from_slice(&y, [ROWS as i64, 1])?))
}

/// Returns everything in the scope, bit for bit.
pub fn state(session: &Session) -> Vec<(String, Vec<u8>)> {
    let scope = &session.scope;
    let tensor = |name: &str| scope.tensor(name).unwrap().as_bytes().to_vec();
    scope.names().map(|name| (name.to_string(), tensor(name))).collect()
}
