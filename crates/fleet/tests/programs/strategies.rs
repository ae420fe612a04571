//! Random programs that end in a loss, rewritten by random strategies, and trained on one and two
//! ranks.

use crate::{RingOf, run_ranks, same, separate};
use fleet::nn::{Programs, optimizer::OptimizerDesc};
use fleet::ops::Registry;
use fleet::prelude::*;
use fleet::rng::Sequence;
use fleet::strategy::{
    AdaptiveLocalSgdConfig, AmpConfig, DgcConfig, LambConfig, LarsConfig, LocalSgdConfig,
};
use fleet::{ErrorKind, Memory};
use fleet_strategy::{Plan, Ranks, minimize};
use fleet_testkit::programs::generate;
use fleet_testkit::programs::harness::is_accepted;

const STEPS: usize = 3;

struct Case {
    draft: generate::Draft,
    loss: fleet::ir::VarId,
    optimizer: OptimizerDesc,
    strategy: DistributedStrategy,
    ranks: usize,
    /// Description for reports.
    text: String,
}

impl Case {
    fn new(seed: u64) -> Option<Case> {
        let (draft, loss) = generate::draft_with_loss(seed)?;
        let mut rng = Sequence::new(seed, 2);
        let ranks = 1 + rng.below(2) as usize;
        let (optimizer, name) = optimizer(&mut rng);
        let mut text = format!("{ranks} ranks, {name}");
        let mut strategy = DistributedStrategy::new();
        for _ in 0..rng.below(3) {
            let switch = rng.below(14);
            text += &format!(" + switch {switch}");
            strategy = switched(strategy, switch, &draft, &mut rng);
        }
        Some(Case { draft, loss, optimizer, strategy, ranks, text })
    }

    /// Returns the programs of a rank, and their plan.
    fn programs(&self, rank: usize) -> Result<(Programs, Plan)> {
        let mut programs = Programs::new();
        programs.main = self.draft.program.clone();
        let (registry, ranks) = (Registry::standard(), Ranks::new(rank, self.ranks));
        let (optimizer, strategy) = (&self.optimizer, &self.strategy);
        let plan = minimize(&mut programs, registry, self.loss, optimizer, strategy, ranks)?;
        Ok((programs, plan))
    }

    fn rings(&self) -> Result<Vec<RingOf>> {
        let mut rings: Vec<RingOf> = Vec::new();
        for rank in 0..self.ranks {
            for ring in self.programs(rank)?.1.rings {
                let ring: RingOf = (ring.id, ring.members().collect());
                if !rings.contains(&ring) {
                    rings.push(ring);
                }
            }
        }
        Ok(rings)
    }

    /// Trains; returns the values that each rank fetched.
    fn train(&self, options: &ExecOptions) -> Result<Vec<Result<Vec<Tensor>>>> {
        let loss = self.draft.program.var_name(self.loss).to_string();
        run_ranks(self.ranks, &self.rings()?, |rank, services| {
            let (programs, _) = self.programs(rank)?;
            let mut executor = Executor::new(options.clone()).services(services);
            let mut scope: Scope = self.draft.scope();
            executor.run(&programs.startup, &mut scope, &[], &[])?;
            let mut fetched = Vec::new();
            for _ in 0..STEPS {
                let feed = self.draft.feed();
                fetched.extend(executor.run(&programs.main, &mut scope, &feed, &[&loss])?);
            }
            Ok(fetched)
        })
    }
}

pub fn describe(seed: u64) -> String {
    let Some(case) = Case::new(seed) else { return "no loss".to_string() };
    let rewritten = match case.programs(0) {
        Ok((programs, _)) => programs.main.to_string(),
        Err(error) => error.to_string(),
    };
    format!("{}\n{}\nrewritten:\n{rewritten}", case.text, case.draft.describe())
}

/// Returns whether the program was trained.
pub fn attempt(seed: u64) -> Result<bool> {
    let Some(case) = Case::new(seed) else { return Ok(false) };
    let outcome = crate::guarded("a strategy", || case.programs(0))?;
    if !is_accepted(&outcome) {
        return Ok(false);
    }
    let options = separate(case.draft.threads);
    let packed = ExecOptions { memory: Memory::Packed, ..options.clone() };
    let (apart, packed) = (case.train(&options)?, case.train(&packed)?);
    for (apart, packed) in apart.iter().zip(&packed) {
        match (apart, packed) {
            (Ok(one), Ok(other)) if same(one, other) => {}
            (Ok(_), Ok(_)) => {
                return Err(Error::internal("packed memory makes another loss"));
            }
            (Err(_), Err(_)) => return Ok(is_accepted(apart)),
            // Which of two ranks fails first depends on timing; whether one fails does not.
            (Err(error), Ok(_)) | (Ok(_), Err(error)) => {
                if error.kind() != ErrorKind::Unavailable {
                    let message = format!("one way of memory alone fails: {error}");
                    return Err(Error::internal(message));
                }
            }
        }
    }
    Ok(true)
}

fn optimizer(rng: &mut Sequence) -> (OptimizerDesc, &'static str) {
    match rng.below(12) {
        0 => (Sgd::new(0.1).into(), "sgd"),
        1 | 2 => (Momentum::new(0.05, 0.9).into(), "momentum"),
        3 => (Momentum::new(0.05, 0.9).grad_clip(GradClip::GlobalNorm(0.1)).into(), "clipped"),
        4 => (Adam::new(0.01).into(), "adam"),
        5 => (AdamW::new(0.01).into(), "adamw"),
        6 => (Adagrad::new(0.1).into(), "adagrad"),
        7 => (RmsProp::new(0.01).into(), "rmsprop"),
        8 => (Adamax::new(0.01).into(), "adamax"),
        9 => (Adadelta::new(1.0).into(), "adadelta"),
        10 => (Lamb::new(0.01).into(), "lamb"),
        _ => (Adam::new(0.01).grad_clip(GradClip::Norm(0.1)).into(), "adam, clipped"),
    }
}

fn switched(
    strategy: DistributedStrategy,
    switch: u64,
    draft: &generate::Draft,
    rng: &mut Sequence,
) -> DistributedStrategy {
    let amp = AmpConfig::default().with_init_loss_scaling(256.0);
    match switch {
        0 => strategy.use_amp(amp),
        1 => strategy.use_amp(amp.with_use_pure_bf16(true)),
        2 => strategy.use_amp(amp.with_use_pure_fp16(true)),
        3 | 4 => {
            let made = &draft.fetches;
            let count = 1 + rng.below(2) as usize;
            let mut strategy = strategy.use_recompute(made.iter().take(count).cloned());
            if switch == 4 {
                let configs = strategy.recompute_configs().clone().with_enable_offload(true);
                strategy.recompute_configs = Some(configs);
            }
            strategy
        }
        5 => strategy.use_gradient_merge(2),
        6 => strategy.use_lars(LarsConfig::default().with_lars_coeff(0.1)),
        7 => strategy.use_lamb(LambConfig::default()),
        8 => strategy.use_localsgd(LocalSgdConfig::default().with_begin_step(1).with_k_steps(2)),
        9 => strategy.use_adaptive_localsgd(AdaptiveLocalSgdConfig::default()),
        10 => strategy.use_dgc(DgcConfig::default().with_rampup_begin_step(1)),
        11 => strategy.with_fp16_allreduce(true),
        12 => strategy.with_sync_batch_norm(true),
        _ => strategy.with_fuse_all_reduce_ops(false).with_nccl_comm_num(2),
    }
}

/// Returns the error of minimising the loss of a program.
fn minimized(text: &str, strategy: &DistributedStrategy) -> Error {
    let mut programs = Programs::new();
    programs.main = fleet::ir::Program::parse(text, Registry::standard()).expect("well formed");
    let loss = programs.main.var_named("loss").expect("it is there");
    let (registry, optimizer) = (Registry::standard(), Sgd::new(0.1).into());
    let ranks = Ranks::new(0, 1);
    let outcome = minimize(&mut programs, registry, loss, &optimizer, strategy, ranks);
    let error = outcome.expect_err("it is refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    error
}

/// The second write would have another precision than the first, and its readers would read the
/// cast of the first.
#[test]
fn amp_refuses_a_variable_that_is_written_again() {
    let text = "fleet program 1
    block0 {
      %x: f32[-1, 8] data
      %w: f32[8, 8] param
      %v: f32[-1, 8]
      %loss: f32[1]
      (Out: %v) = mul(X: %x, Y: %w)
      (Out: %v) = softmax(X: %v)
      (Out: %loss) = mean(X: %v)
    }";
    let error = minimized(text, &DistributedStrategy::new().use_amp(AmpConfig::default()));
    assert!(
        error.to_string().contains("amp cannot cast 'v', which is written more than once"),
        "{error}"
    );
}

/// The gradients' block is a sibling of the block of the op that wrote the variable.
#[test]
fn gradients_that_need_a_variable_of_a_conditional_block_are_refused() {
    let text = "fleet program 1
    block0 {
      %x: f32[8] data
      %on: bool[1] data
      %w: f32[8] param
      %v: f32[8]
      %loss: f32[1]
      () = conditional_block(Cond: %on) {sub_block: block1}
      (Out: %loss) = mean(X: %v)
    }
    block1 in block0 {
      %inner: f32[8]
      (Out: %inner) = elementwise_add(X: %x, Y: %w)
      (Out: %v) = elementwise_mul(X: %inner, Y: %w)
    }";
    let error = minimized(text, &DistributedStrategy::new());
    assert!(error.to_string().contains("gradients need 'inner'"), "{error}");
}
