//! Models that ranks of one thread each divide on this machine: the MLP of `ddp/mlp`.
//!
//! `mp/tensor` is the speed of two ranks that share the layers and have one batch, relative to that
//! of one rank, and `mp/pipeline` that of two ranks that run a stage each, relative to one rank
//! with the same micro-batches. `mp/sharding_stage{1,2,3}` is the speed of two ranks that divide
//! the state of the optimizer (stage 1), also gradients (2), and also parameters (3), relative to
//! plain data parallelism: steps of both alternate in the same processes. `.._vs_torch` are samples
//! per second; that of the pipeline has the schedule ZBH1, and `mp/pipeline` has 1F1B.

use crate::ddp::{self, Batches, MLP_BATCH, RANKS};
use crate::measure::{Options, measure};
use fleet::prelude::*;
use fleet::strategy::{HybridConfig, PipelineConfig, ShardingConfig};
use fleet::{DistributedStrategy, Fleet, Session};

/// How ranks divide the model.
#[derive(Clone, Copy)]
pub enum Division {
    /// They share each layer.
    Layers,
    /// They run a stage each, in the order of this `schedule_mode`.
    Stages(&'static str),
    /// They divide optimizer state, gradients, parameters: the stage of ZeRO.
    State(i32),
}

impl Division {
    fn strategy(self, ranks: usize) -> DistributedStrategy {
        let strategy = DistributedStrategy::new();
        match self {
            Division::Layers => {
                let hybrid = HybridConfig::default().with_mp_degree(ranks as i32);
                strategy.with_hybrid_configs(hybrid)
            }
            Division::Stages(schedule) => {
                let pipeline = PipelineConfig::default().with_accumulate_steps(MICRO_BATCHES);
                strategy.use_pipeline(pipeline.with_schedule_mode(schedule))
            }
            Division::State(stage) => {
                strategy.use_sharding(ShardingConfig::default().with_stage(stage))
            }
        }
    }

    /// Samples that a rank is fed in a step.
    fn batch(self) -> i64 {
        match self {
            Division::Stages(_) => i64::from(MICRO_BATCHES) * MLP_BATCH,
            Division::Layers | Division::State(_) => MLP_BATCH,
        }
    }
}

/// Micro-batches of a step of a pipeline. Each has as many samples as a batch without pipeline.
const MICRO_BATCHES: i32 = 8;

/// The speed of ranks that divide the model, relative to one rank. Stages without other costs reach
/// S M / (M + S - 1) = 1.78.
pub fn scaling(options: &Options, division: Division) -> Result<()> {
    if ddp::is_rank() {
        return rank(options, division);
    }
    let job = |ranks| ddp::job(options, "mlp", ranks);
    ddp::compare_with_one(options, || job(1), || job(RANKS))
}

/// The samples per second of ranks that divide the model.
pub fn step(options: &Options, division: Division) -> Result<()> {
    match ddp::is_rank() {
        true => rank(options, division)?,
        false => print!("{}", ddp::job(options, "mlp", RANKS)?),
    }
    Ok(())
}

/// The speed of ranks that divide state, relative to data parallelism with copies of all of it.
pub fn sharding(options: &Options, stage: i32) -> Result<()> {
    if !ddp::is_rank() {
        print!("{}", ddp::job(options, "mlp", RANKS)?);
        return Ok(());
    }
    let fleet = Fleet::collective()?;
    let strategies =
        [Division::State(stage).strategy(fleet.worker_num()), DistributedStrategy::new()];
    let mut prepared = Vec::new();
    for strategy in &strategies {
        prepared.push(prepare(options, &fleet, strategy, MLP_BATCH)?);
    }
    ddp::compare_steps(options, &fleet, prepared, "of data parallel's speed")?;
    fleet.finish()
}

fn rank(options: &Options, division: Division) -> Result<()> {
    let fleet = Fleet::collective()?;
    let strategy = division.strategy(fleet.worker_num());
    let (mut session, batches) = prepare(options, &fleet, &strategy, division.batch())?;
    let options = Options { threads: 1, profile: false, ..options.clone() };
    measure(&options, &mut session, &batches, division.batch() as usize, 10, 3)?;
    if session.executor.options().profile {
        ddp::show_last_step(&fleet, &session);
    }
    fleet.finish()
}

fn prepare(
    options: &Options,
    fleet: &Fleet,
    strategy: &DistributedStrategy,
    batch: i64,
) -> Result<(Session, Batches)> {
    let net = Net::new();
    let (loss, batches) = ddp::mlp(&net, batch)?;
    let rule = Momentum::new(0.01, 0.9);
    let job = fleet.distributed_optimizer(rule, strategy).minimize(&net, loss)?;
    let exec = ExecOptions { num_threads: 1, profile: options.profile, ..options.exec() };
    Ok((fleet.session(net.build()?, &job, exec)?, batches))
}
