//! Every pair of strategies and the documented longer chains: each gives correct results, or is
//! refused with a reason. Pairs are tried with Momentum and with Adam.
//!
//! Three properties are checked for each combination that works:
//! * ranks that are all fed the same batch compute the same as one rank does on it;
//! * ranks that share a batch compute the same as one rank does on the whole batch, if the
//!   mathematics is linear in the gradients;
//! * lanes that run in parallel with compute change no bit.

use crate::world::{BATCH, Trained, assert_close, batch, parameters, rewritten, services};
use fleet_base::Result;
use fleet_exec::{ExecOptions, Executor, Scope};
use fleet_nn::prelude::*;
use fleet_strategy::{
    AdaptiveLocalSgdConfig, AmpConfig, DgcConfig, DistributedStrategy, LambConfig, LarsConfig,
    LocalSgdConfig, Ranks,
};
use fleet_tensor::Tensor;
use fleet_testkit::local;

const STEPS: usize = 6;

static SWITCHES: [&str; 13] = [
    "amp",
    "bf16",
    "pure",
    "recompute",
    "gm",
    "lars",
    "lamb",
    "localsgd",
    "adaptive",
    "dgc",
    "fp16",
    "syncbn",
    "levels",
];

/// The documented chains of three or more, and some that the documented implementation drops.
const LONGER: [&str; 16] = [
    "amp+gm+offload",
    "amp+recompute+lars",
    "amp+gm+recompute",
    "recompute+gm+lars",
    "lamb+recompute+amp",
    "amp+gm+lamb",
    "amp+gm+recompute+lars",
    "amp+gm+recompute+lamb",
    "fp16+recompute+lars",
    "fp16+amp+gm",
    "fp16+gm+levels",
    "bf16_sums+gm+levels",
    "amp+recompute+syncbn",
    "amp+recompute+localsgd",
    "dgc+recompute+syncbn",
    "amp+gm+recompute+syncbn+levels",
];

/// Refused pairs and the reasons.
const REFUSED: [(&str, &str, &str); 13] = [
    ("localsgd", "adaptive", "both set when workers average"),
    ("gm", "localsgd", "both set the steps in which ranks communicate"),
    ("gm", "adaptive", "both set the steps in which ranks communicate"),
    ("dgc", "amp", "amp scales gradients"),
    ("dgc", "bf16", "amp scales gradients"),
    ("dgc", "pure", "amp scales gradients"),
    ("dgc", "fp16", "both change how gradients are sent"),
    ("dgc", "lars", "both replace Momentum"),
    ("dgc", "gm", "both keep gradients for later steps"),
    ("dgc", "localsgd", "ranks that train alone send no gradients"),
    ("dgc", "adaptive", "ranks that train alone send no gradients"),
    ("pure", "bf16", "conflicts with"),
    ("lamb", "lars", "there is one optimizer"),
];

/// Pairs that need different optimizers; one of the two is omitted with a warning.
const LEFT_OUT: [(&str, &str); 3] = [("lamb", "localsgd"), ("lamb", "adaptive"), ("lamb", "dgc")];

/// Switches that need Momentum or sgd; with Adam, they are omitted with a warning.
const WITHOUT_ADAM: [&str; 4] = ["lars", "localsgd", "adaptive", "dgc"];

struct Combination {
    text: String,
    strategy: DistributedStrategy,
    optimizer: OptimizerDesc,
    /// Whether Adam trains a network that is smaller, since nothing is compressed.
    is_adam: bool,
}

impl Combination {
    /// Returns a combination with Adam. Its epsilon keeps rounding errors of small gradients small.
    fn with_adam(text: &str) -> Combination {
        let optimizer = Adam::new(0.05).epsilon(1e-3).into();
        Combination { optimizer, is_adam: true, ..Combination::of(text) }
    }

    fn of(text: &str) -> Combination {
        let mut combination = Combination {
            text: text.to_string(),
            strategy: DistributedStrategy::new(),
            optimizer: Momentum::new(0.05, 0.9).into(),
            is_adam: false,
        };
        let mut amp = AmpConfig::default().with_init_loss_scaling(256.0);
        let mut half = false;
        for switch in text.split('+') {
            let strategy = combination.strategy;
            combination.strategy = match switch {
                "amp" | "bf16" | "pure" => {
                    half = true;
                    amp = match switch {
                        "bf16" => amp.with_use_pure_bf16(true),
                        "pure" => amp.with_use_pure_fp16(true),
                        _ => amp,
                    };
                    strategy
                }
                "recompute" => strategy.use_recompute(["fc_0.tmp_2", "fc_1.tmp_2"]),
                "offload" => {
                    let mut strategy = strategy.use_recompute(["fc_0.tmp_2", "fc_1.tmp_2"]);
                    let configs = strategy.recompute_configs().clone().with_enable_offload(true);
                    strategy.recompute_configs = Some(configs);
                    strategy
                }
                "gm" => strategy.use_gradient_merge(2),
                "lars" => strategy.use_lars(LarsConfig::default().with_lars_coeff(0.1)),
                "lamb" => {
                    combination.optimizer = Adam::new(0.01).into();
                    strategy.use_lamb(LambConfig::default())
                }
                // Ranks average in every step.
                "localsgd" => strategy.use_localsgd(LocalSgdConfig::default().with_begin_step(100)),
                "adaptive" => strategy
                    .use_adaptive_localsgd(AdaptiveLocalSgdConfig::default().with_begin_step(100)),
                // Dense to the end; other tests compare the compressed form with its closed form.
                "dgc" => strategy.use_dgc(DgcConfig::default().with_rampup_begin_step(100)),
                "fp16" => strategy.with_fp16_allreduce(true),
                "bf16_sums" => {
                    strategy.with_fp16_allreduce(true).with_fp16_allreduce_dtype("bfloat16")
                }
                "syncbn" => strategy.with_sync_batch_norm(true),
                "levels" => strategy
                    .with_use_hierarchical_allreduce(true)
                    .with_hierarchical_allreduce_inter_nranks(2),
                // No switch at all.
                "" => strategy,
                other => panic!("no switch {other}"),
            };
        }
        if half {
            combination.strategy = combination.strategy.use_amp(amp);
        }
        combination
    }

    fn has(&self, switch: &str) -> bool {
        self.text.split('+').any(|it| it == switch)
    }

    /// A network with one layer that is large enough for compression.
    fn network(&self) -> fn(&Net) -> fleet_ir::VarId {
        fn inputs(net: &Net) -> (Var<'_>, Var<'_>) {
            (net.data("x", [-1, 6], DType::F32), net.data("y", [-1, 1], DType::F32))
        }
        fn plain<const WIDTH: i64>(net: &Net) -> fleet_ir::VarId {
            let (x, y) = inputs(net);
            let hidden = x.fc(Fc::new(WIDTH).act(Act::Tanh)).fc(Fc::new(WIDTH).act(Act::Tanh));
            hidden.fc(1).mse_loss(y, Reduction::Mean).id()
        }
        fn normed<const WIDTH: i64>(net: &Net) -> fleet_ir::VarId {
            let (x, y) = inputs(net);
            let hidden = x.fc(Fc::new(WIDTH).act(Act::Tanh)).batch_norm(BatchNorm::new());
            let hidden = hidden.fc(Fc::new(WIDTH).act(Act::Tanh));
            hidden.fc(1).mse_loss(y, Reduction::Mean).id()
        }
        match (self.has("syncbn"), self.is_adam) {
            (false, false) => plain::<128>,
            (true, false) => normed::<128>,
            (false, true) => plain::<16>,
            (true, true) => normed::<16>,
        }
    }

    /// Tolerance for rounding differences.
    fn tolerance(&self) -> f32 {
        match () {
            _ if self.has("bf16") || self.has("bf16_sums") => 5e-2,
            _ if self.has("amp") || self.has("pure") => 1e-2,
            _ if self.has("fp16") => 5e-3,
            _ if self.has("lamb") => 1e-3,
            _ if self.is_adam => 1e-4,
            _ => 2e-5,
        }
    }

    fn train(&self, count: usize, sequential: bool, feed: Feed) -> Result<Vec<Trained>> {
        let network = self.network();
        let outcomes = local::run(count, |rank, world| {
            let ranks = Ranks::new(rank, count);
            let (programs, plan) = rewritten(network, &self.optimizer, &self.strategy, ranks)?;
            let mut options = ExecOptions::threads(1);
            options.build.enable_sequential_execution = sequential;
            let mut executor = Executor::new(options).services(services(world, &plan, rank));
            let mut scope = Scope::new();
            executor.run(&programs.startup, &mut scope, &[], &[])?;
            for step in 0..STEPS {
                let (x, y) = feed(step, rank, count)?;
                executor.run(&programs.main, &mut scope, &[("x", &x), ("y", &y)], &[])?;
            }
            Trained::of(&scope, Vec::new())
        });
        outcomes.into_iter().collect()
    }
}

type Feed = fn(usize, usize, usize) -> Result<(Tensor, Tensor)>;

/// Gives every rank the same rows.
fn alike(step: usize, _: usize, _: usize) -> Result<(Tensor, Tensor)> {
    batch(step, 0, 3)
}

fn check(combination: &Combination) {
    let text = &combination.text;
    let refused = REFUSED.iter().find(|(a, b, _)| combination.has(a) && combination.has(b));
    let both = |feed: Feed, count: usize| combination.train(count, false, feed);
    let ranks = both(alike, 2);
    if let Some((.., reason)) = refused {
        let error = ranks.err().unwrap_or_else(|| panic!("{text} works")).to_string();
        assert!(error.contains(reason), "{text}: {error}");
        return;
    }
    let tolerance = combination.tolerance();
    let compare = |ranks: &[Trained], alone: &Trained, what: &str| {
        for rank in ranks {
            assert_close(&parameters(&rank.kept), &parameters(&alone.kept), tolerance, what);
            assert_eq!(parameters(&rank.kept), parameters(&ranks[0].kept), "{what}");
        }
    };
    let ranks = ranks.unwrap_or_else(|error| panic!("{text}: {error}"));
    let alone = both(alike, 1).unwrap();
    compare(&ranks, &alone[0], &format!("{text}, the same batch"));
    // The norms of a rank's own gradients differ from those of the mean.
    let meets = combination.has("localsgd") || combination.has("adaptive");
    if !(meets && combination.has("lars")) {
        let whole = both(batch, 1).unwrap();
        let counts: &[usize] = if combination.is_adam { &[2] } else { &[2, 4] };
        for &count in counts {
            let ranks = both(batch, count).unwrap();
            compare(&ranks, &whole[0], &format!("{text}, {count} parts of a batch"));
        }
    }
    let sequential = combination.train(2, true, alike).unwrap();
    for (beside, one) in ranks.iter().zip(&sequential) {
        assert!(beside.kept == one.kept, "{text}: lanes");
    }
}

#[test]
fn every_strategy_alone() {
    SWITCHES.iter().for_each(|switch| check(&Combination::of(switch)));
}

/// All pairs of switches but those of two forms of `amp`.
fn pairs() -> impl Iterator<Item = [&'static str; 2]> {
    let later = |at: usize| SWITCHES[at + 1..].iter().map(move |second| [SWITCHES[at], *second]);
    let all = (0..SWITCHES.len()).flat_map(later);
    all.filter(|pair| !matches!(pair, ["amp", "bf16" | "pure"]))
}

#[test]
fn every_pair() {
    for pair in pairs() {
        let combination = Combination::of(&pair.join("+"));
        match LEFT_OUT.iter().any(|(a, b)| pair.contains(a) && pair.contains(b)) {
            true => check_left_out(&combination, 1),
            false => check(&combination),
        }
    }
}

/// Adam in place of Momentum. The pairs of LAMB, which needs Adam, are among the others.
#[test]
fn every_pair_with_adam() {
    for pair in pairs().filter(|pair| !pair.contains(&"lamb")) {
        let combination = Combination::with_adam(&pair.join("+"));
        let (left_out, rest): (Vec<&str>, Vec<&str>) =
            pair.into_iter().partition(|switch| WITHOUT_ADAM.contains(switch));
        if left_out.is_empty() {
            check(&combination);
            continue;
        }
        check_left_out(&combination, left_out.len());
        // The other switch has the effect that it has alone.
        let text = |combination: &Combination| {
            let (strategy, ranks) = (&combination.strategy, Ranks::new(0, 2));
            let network = combination.network();
            let (programs, _) =
                rewritten(network, &combination.optimizer, strategy, ranks).unwrap();
            (programs.main.to_string(), programs.startup.to_string())
        };
        let alone = Combination::with_adam(&rest.join("+"));
        assert_eq!(text(&combination), text(&alone), "{pair:?}");
    }
}

#[test]
fn documented_longer_chains() {
    LONGER.iter().for_each(|text| check(&Combination::of(text)));
}

/// Some switches are omitted because the optimizer is Adam, and this is reported.
fn check_left_out(combination: &Combination, count: usize) {
    let text = &combination.text;
    let (network, ranks) = (combination.network(), Ranks::new(0, 2));
    let made = rewritten(network, &combination.optimizer, &combination.strategy, ranks);
    let (_, plan) = made.unwrap();
    let dropped = plan.decisions.iter().filter(|it| it.verdict == fleet_strategy::Verdict::Dropped);
    let reasons: Vec<&str> = dropped.map(|it| it.reason.as_str()).collect();
    assert_eq!(reasons.len(), count, "{text}: {reasons:?}");
    assert!(reasons.iter().all(|reason| reason.to_lowercase().contains("adam")), "{reasons:?}");
}

/// An infinity on one rank in one step: every rank skips the step, the scale shrinks, and training
/// continues.
#[test]
fn an_overflow_on_one_rank_is_one_on_all() {
    fn feed(step: usize, rank: usize, count: usize) -> Result<(Tensor, Tensor)> {
        let (x, mut y) = batch(step, rank, count)?;
        if (step, rank) == (1, 1) {
            y.as_mut_slice::<f32>()?[0] = f32::INFINITY;
        }
        Ok((x, y))
    }
    assert_eq!(BATCH % 2, 0);
    for text in ["amp", "amp+gm", "amp+recompute", "amp+lars", "amp+lamb", "amp+fp16", "pure+gm"] {
        let mut combination = Combination::of(text);
        let amp = combination.strategy.amp_configs().clone();
        let amp = amp.with_decr_every_n_nan_or_inf(1).with_decr_ratio(0.5);
        combination.strategy.amp_configs = Some(amp);
        let ranks = combination.train(2, false, feed).unwrap();
        for rank in &ranks {
            assert_eq!(rank.kept["loss_scaling_0"], [128.0], "{text}");
            assert_eq!(parameters(&rank.kept), parameters(&ranks[0].kept), "{text}");
            let finite = |values: &Vec<f32>| values.iter().all(|value| value.is_finite());
            assert!(rank.kept.values().all(finite), "{text}");
        }
        let start = rewritten_start(&combination);
        assert_ne!(parameters(&ranks[0].kept), parameters(&start.kept), "{text}: it goes on");
    }
}

/// With a constant scale, a step with an infinity on one rank leaves no trace on any.
#[test]
fn a_skipped_step_is_a_step_that_was_not_made() {
    const BAD: usize = 2;
    fn feed_of(step: usize, is_bad: bool, rank: usize, count: usize) -> Result<(Tensor, Tensor)> {
        let (x, mut y) = batch(step, rank, count)?;
        if is_bad && rank == 1 {
            y.as_mut_slice::<f32>()?[0] = f32::INFINITY;
        }
        Ok((x, y))
    }
    fn in_between(step: usize, rank: usize, count: usize) -> Result<(Tensor, Tensor)> {
        feed_of(step, step == BAD, rank, count)
    }
    fn at_the_end(step: usize, rank: usize, count: usize) -> Result<(Tensor, Tensor)> {
        let shown = if step < BAD { step } else { step + 1 };
        feed_of(shown, step == STEPS - 1, rank, count)
    }
    for text in ["amp", "pure", "amp+recompute", "amp+lars", "amp+lamb", "amp+fp16"] {
        let mut combination = Combination::of(text);
        let amp = combination.strategy.amp_configs().clone();
        combination.strategy.amp_configs = Some(amp.with_use_dynamic_loss_scaling(false));
        let [between, end] =
            [in_between as Feed, at_the_end].map(|feed| combination.train(2, false, feed).unwrap());
        for (one, other) in between.iter().zip(&end) {
            assert_eq!(one.kept["skipped_steps_0"], [1.0], "{text}");
            assert!(one.kept == other.kept, "{text}");
        }
    }
}

fn rewritten_start(combination: &Combination) -> Trained {
    let ranks = Ranks::new(0, 1);
    let network = combination.network();
    let (programs, _) =
        rewritten(network, &combination.optimizer, &combination.strategy, ranks).unwrap();
    let mut scope = Scope::new();
    let mut executor = Executor::new(ExecOptions::threads(1));
    executor.run(&programs.startup, &mut scope, &[], &[]).unwrap();
    Trained::of(&scope, Vec::new()).unwrap()
}
