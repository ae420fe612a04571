//! LocalSGD combined with other strategies, including steps without averaging. The reference is
//! ranks that train alone with the same programs, and whose parameters the test averages.

use crate::world::{Trained, assert_close, batch, mlp, parameters, rewritten, train, train_at};
use fleet_exec::{ExecOptions, Executor, Scope};
use fleet_nn::Programs;
use fleet_nn::prelude::*;
use fleet_strategy::{
    AdaptiveLocalSgdConfig, AmpConfig, DistributedStrategy, LarsConfig, LocalSgdConfig, Ranks,
};
use fleet_tensor::Tensor;

const RANKS: usize = 4;
const STEPS: usize = 9;
/// Every step up to step 2, then every third step. The last step is not among them.
const AVERAGING_STEPS: [usize; 4] = [1, 2, 5, 8];

struct Alone {
    programs: Programs,
    executor: Executor,
    scope: Scope,
}

impl Alone {
    fn new(optimizer: &OptimizerDesc, strategy: &DistributedStrategy) -> Alone {
        let (programs, _) = rewritten(mlp, optimizer, strategy, Ranks::new(0, 1)).unwrap();
        let mut executor = Executor::new(ExecOptions::threads(1));
        let mut scope = Scope::new();
        executor.run(&programs.startup, &mut scope, &[], &[]).unwrap();
        Alone { programs, executor, scope }
    }

    fn step(&mut self, step: usize, rank: usize) {
        let (x, y) = batch(step, rank, RANKS).unwrap();
        let feed = [("x", &x), ("y", &y)];
        self.executor.run(&self.programs.main, &mut self.scope, &feed, &[]).unwrap();
    }
}

/// Gives every rank the mean of all ranks.
fn average_by_hand(ranks: &mut [Alone]) {
    let names: Vec<String> =
        ranks[0].programs.main.parameters().map(|(_, var)| var.name.clone()).collect();
    for name in names {
        let held: Vec<Tensor> = ranks.iter().map(|it| it.scope.tensor(&name).unwrap()).collect();
        let held: Vec<Vec<f32>> = held.iter().map(|it| it.to_vec().unwrap()).collect();
        let mean = |at: usize| held.iter().map(|it| it[at]).sum::<f32>() / RANKS as f32;
        let mean: Vec<f32> = (0..held[0].len()).map(mean).collect();
        for rank in ranks.iter_mut() {
            let shape = *rank.scope.tensor(&name).unwrap().shape();
            rank.scope.assign(&name, &Tensor::from_slice(&mean, shape).unwrap()).unwrap();
        }
    }
}

fn by_hand(optimizer: &OptimizerDesc, strategy: &DistributedStrategy) -> Vec<Trained> {
    let mut ranks: Vec<Alone> = (0..RANKS).map(|_| Alone::new(optimizer, strategy)).collect();
    for step in 1..=STEPS {
        for (rank, alone) in ranks.iter_mut().enumerate() {
            alone.step(step - 1, rank);
        }
        if AVERAGING_STEPS.contains(&step) {
            average_by_hand(&mut ranks);
        }
    }
    ranks.iter().map(|it| Trained::of(&it.scope, Vec::new()).unwrap()).collect()
}

/// Strategies that do not communicate by themselves.
fn companions() -> Vec<(&'static str, DistributedStrategy, f32)> {
    let plain = DistributedStrategy::new;
    let amp = || AmpConfig::default().with_init_loss_scaling(64.0).with_incr_every_n_steps(4);
    vec![
        ("alone", plain(), 1e-5),
        ("amp", plain().use_amp(amp()), 1e-3),
        ("pure fp16", plain().use_amp(amp().with_use_pure_fp16(true)), 1e-3),
        ("bf16", plain().use_amp(amp().with_use_pure_bf16(true)), 2e-2),
        ("recompute", plain().use_recompute(["fc_0.tmp_2", "fc_1.tmp_2"]), 1e-5),
        ("lars", plain().use_lars(LarsConfig::default().with_lars_coeff(0.1)), 1e-5),
        ("fp16_allreduce", plain().with_fp16_allreduce(true), 1e-5),
        ("rings", plain().with_nccl_comm_num(3).with_fuse_grad_size_in_num(1), 1e-5),
        ("levels", plain().with_use_hierarchical_allreduce(true), 1e-5),
        (
            "amp and recompute",
            plain().use_amp(amp()).use_recompute(["fc_0.tmp_2", "fc_1.tmp_2"]),
            1e-3,
        ),
    ]
}

#[test]
fn ranks_meet_as_by_hand_beside_every_other_strategy() {
    let momentum: OptimizerDesc = Momentum::new(0.05, 0.9)
        .grad_clip(GradClip::GlobalNorm(0.5))
        .weight_decay(Regularizer::L2(0.01))
        .into();
    let configs = LocalSgdConfig::default().with_k_steps(3).with_begin_step(2);
    for (name, strategy, tolerance) in companions() {
        let expected = by_hand(&momentum, &strategy);
        let local = strategy.clone().use_localsgd(configs.clone());
        let ranks = train_at(mlp, &momentum, &local, RANKS, 2, STEPS, &[]);
        for (rank, (one, other)) in ranks.iter().zip(&expected).enumerate() {
            let (one, other) = (parameters(&one.kept), parameters(&other.kept));
            assert_close(&one, &other, tolerance, &format!("{name}, rank {rank}"));
        }
        let apart = parameters(&ranks[0].kept) != parameters(&ranks[1].kept);
        assert!(apart, "{name}: no meeting in the last step");
    }
}

/// A larger rate means a shorter interval: the documented formula, with a falling and a rising
/// rate.
#[test]
fn the_interval_follows_the_rate() {
    for decay in [0.7, 1.3] {
        let configs = AdaptiveLocalSgdConfig::default().with_init_k_steps(4).with_begin_step(1);
        let strategy = DistributedStrategy::new().use_adaptive_localsgd(configs);
        let sgd: OptimizerDesc = Sgd::new(LrSchedule::exponential(0.02, decay)).into();
        let (_, plan) = rewritten(mlp, &sgd, &strategy, Ranks::new(0, 2)).unwrap();
        let rate = {
            let (programs, _) = rewritten(mlp, &sgd, &strategy, Ranks::new(0, 2)).unwrap();
            programs.main.var_name(plan.learning_rate).to_string()
        };
        let fetch = ["avg_loss_0", "k_steps", "last_step", rate.as_str()];
        let ranks = train(mlp, &sgd, &strategy, 2, 14, &fetch);
        let (loss0, rate0) = (ranks[0].fetched[0][0], ranks[0].fetched[0][3]);
        let (mut k, mut last, mut seen_ks) = (4.0, 0.0, Vec::new());
        for (at, seen) in ranks[0].fetched.iter().enumerate() {
            let step = at as f32 + 1.0;
            if step <= 1.0 || step - last == k {
                last = step;
                if step > 1.0 {
                    k = (rate0 * seen[0] / (seen[3] * loss0) * 4.0).sqrt().ceil().clamp(1.0, 16.0);
                    seen_ks.push(k);
                }
            }
            assert_eq!((seen[1], seen[2]), (k, last), "decay {decay}, step {step}");
        }
        let (first, end) = (seen_ks[0], seen_ks[seen_ks.len() - 1]);
        assert!(if decay < 1.0 { end > first } else { end < first || end == 1.0 }, "{seen_ks:?}");
    }
}
