//! The outcome of every field in every kind of job and with every optimizer: `decisions.txt` lists
//! them (`FLEET_BLESS=1` writes it). A field applies, has nothing to do, is warned about, is
//! dropped with a warning, or is refused; nothing is ignored silently.

use crate::effects::{Case, Mark, another, cases, rule, switched_on};
use fleet_ir::VarId;
use fleet_nn::prelude::*;
use fleet_strategy::meta::Facts;
use fleet_strategy::servers::transpiler::{DistributeTranspilerConfig, Source, Transpile};
use fleet_strategy::servers::{self, Place};
use fleet_strategy::{
    DistributedStrategy, HybridConfig, Outcome, PipelineConfig, Ranks, Rates, Report,
    ShardingConfig, Value, Verdict, Written, decide, minimize,
};

const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rewrites/decisions.txt");

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Collective(usize),
    Sync,
    HalfAsync,
    Async,
    Geo,
}

const MODES: [(&str, Mode); 6] = [
    ("1 rank", Mode::Collective(1)),
    ("8 ranks", Mode::Collective(8)),
    ("sync", Mode::Sync),
    ("half-async", Mode::HalfAsync),
    ("async", Mode::Async),
    ("geo", Mode::Geo),
];

impl Mode {
    /// Returns the strategy that selects the mode.
    fn base(self) -> DistributedStrategy {
        let strategy = DistributedStrategy::new();
        match self {
            Mode::Collective(_) => strategy,
            Mode::Sync | Mode::HalfAsync => strategy.with_a_sync(false),
            Mode::Async => strategy.with_a_sync(true),
            Mode::Geo => strategy.use_geo(100),
        }
    }

    fn place(self) -> Place {
        let half_async = self == Mode::HalfAsync;
        Place { worker: 0, worker_count: 2, server_count: 2, half_async }
    }

    fn report<'a>(
        self,
        strategy: &'a DistributedStrategy,
        optimizer: &OptimizerDesc,
        program: &fleet_ir::Program,
    ) -> Report<'a> {
        let written = Written::from(strategy);
        let Mode::Collective(count) = self else {
            return servers::report(written, self.place(), optimizer, None, program);
        };
        let (ranks, rates) = (&Ranks::new(0, count).per_node(4), &Rates::default());
        decide(written, &Facts { optimizer, ranks, rates, program, servers: None, layout: None })
    }

    /// Rewrites the network, as a job does; returns the outcomes of its plan.
    fn minimize(
        self,
        strategy: &DistributedStrategy,
        optimizer: &OptimizerDesc,
    ) -> Result<Vec<Outcome>, String> {
        let net = Net::new();
        let loss = network(&net);
        let made = net.rewrite_with(|programs, registry| match self {
            Mode::Collective(count) => {
                let ranks = Ranks::new(0, count).per_node(4);
                let plan = minimize(programs, registry, loss, optimizer, strategy, ranks)?;
                Ok(plan.outcomes)
            }
            _ => {
                let place = self.place();
                let minimize = servers::minimize;
                let plan = minimize(programs, registry, loss, optimizer, None, strategy, place)?;
                Ok(plan.outcomes)
            }
        });
        // Without the line of this file, which the error names, too.
        made.map_err(|error: fleet_base::Error| error.message().to_string())
    }
}

/// A network with something for every strategy: a large layer, batch norm, and layers and classes
/// that ranks may divide.
fn network(net: &Net) -> VarId {
    let x = net.data("x", [-1, 6], DType::F32);
    let y = net.data("y", [-1, 1], DType::F32);
    let hidden = x.fc(Fc::new(160).act(Act::Tanh)).batch_norm(BatchNorm::new());
    let wide = hidden.fc(Fc::new(160).act(Act::Tanh).split(Split::Columns));
    let label = net.data("label", [-1, 1], DType::I64);
    let classes = hidden.class_loss(label, ClassLoss::softmax(10));
    let number = wide.fc(Fc::new(1).split(Split::Rows)).mse_loss(y, Reduction::Mean);
    (number + classes).id()
}

fn optimizers() -> Vec<(&'static str, OptimizerDesc)> {
    vec![
        ("sgd", Sgd::new(0.1).into()),
        ("momentum", Momentum::new(0.1, 0.9).into()),
        ("adam", Adam::new(0.1).into()),
        ("adamw", AdamW::new(0.1).into()),
        ("adamax", Adamax::new(0.1).into()),
        ("adagrad", Adagrad::new(0.1).into()),
        ("adadelta", Adadelta::new(0.1).into()),
        ("rmsprop", RmsProp::new(0.1).into()),
        ("lars", LarsMomentum::new(0.1, 0.9).into()),
        ("lamb", Lamb::new(0.1).into()),
    ]
}

/// Returns a value that differs from the default and matches the network.
fn value(case: &Case) -> Value {
    match &*case.path {
        "recompute_configs.checkpoints" | "sharding_configs.segment_anchors" => {
            ["fc_0.tmp_1"].into()
        }
        "sharding_configs.sharding_segment_strategy" => "segment_anchors".into(),
        "amp_configs.custom_white_list" => ["mean"].into(),
        "amp_configs.custom_black_list" => ["mul"].into(),
        "amp_configs.custom_black_varnames" => ["fc_0.w_0"].into(),
        "lars_configs.exclude_from_weight_decay" | "lamb_configs.exclude_from_weight_decay" => {
            [".b_0"].into()
        }
        "pipeline_configs.schedule_mode" => "F-then-B".into(),
        "hybrid_configs.pp_degree" | "sharding_configs.pp_degree" => 2.into(),
        "pipeline_configs.virtual_stages" => 2.into(),
        "sharding_configs.stage" | "sharding_configs.dp_degree" => 2.into(),
        "sharding_configs.mp_degree" | "hybrid_configs.mp_degree" => 2.into(),
        "tensor_parallel_configs.tensor_parallel_degree" => 2.into(),
        "sharding_configs.sharding_degree" | "hybrid_configs.sharding_degree" => 4.into(),
        "gradient_scale_configs.scale_strategy" => "sum".into(),
        "fp16_allreduce_dtype" => "bfloat16".into(),
        "a_sync_configs.non_finite" => "count".into(),
        _ => another(case.field),
    }
}

/// Returns the strategy of a mode with one field assigned, and the switch that it needs.
fn assigned(mode: Mode, case: &Case) -> Option<DistributedStrategy> {
    let mut strategy = match (case.mark, &*case.path) {
        (_, "gradient_merge") => mode.base().with_gradient_merge_configs(
            fleet_strategy::GradientMergeConfig::default().with_k_steps(2),
        ),
        (_, path) if path.starts_with("sharding_configs.") => {
            let configs = ShardingConfig::default();
            mode.base().use_sharding(match path {
                "sharding_configs.hybrid_dp" => configs.with_sharding_degree(4),
                "sharding_configs.sharding_degree" => configs.with_hybrid_dp(true),
                "sharding_configs.sharding_segment_strategy" => {
                    configs.with_segment_anchors(["fc_0.tmp_1"])
                }
                "sharding_configs.segment_anchors" => {
                    configs.with_sharding_segment_strategy("segment_anchors")
                }
                _ => configs,
            })
        }
        (_, "hybrid_configs.mp_split_sequence") => mode
            .base()
            .with_hybrid_configs(fleet_strategy::HybridConfig::default().with_mp_degree(2)),
        (_, "hybrid_configs.sharding_degree") => mode.base().with_sharding(true),
        (_, "pipeline_configs.virtual_stages") => {
            let configs = PipelineConfig::default().with_accumulate_steps(2);
            let grid = HybridConfig::default().with_pp_degree(2);
            mode.base().use_pipeline(configs).with_hybrid_configs(grid)
        }
        (_, "tensor_parallel") => mode.base().with_tensor_parallel_configs(
            fleet_strategy::TensorParallelConfig::default().with_tensor_parallel_degree(2),
        ),
        (_, "fp16_allreduce_dtype") => mode.base().with_fp16_allreduce(true),
        (_, "hierarchical_allreduce_inter_nranks") => {
            mode.base().with_use_hierarchical_allreduce(true)
        }
        (Mark::None, path) => switched_on(mode.base(), path),
        _ => mode.base(),
    };
    let before = strategy.clone();
    // Some fields without effect accept few texts, and a check reports the others.
    strategy.set_strictly(&case.path, value(case)).ok()?;
    // `a_sync` has both values among the modes.
    (strategy != before).then_some(strategy)
}

fn all() -> Vec<Case> {
    let mut found = Vec::new();
    cases(DistributedStrategy::describe(), "", Mark::None, &mut found);
    found
}

/// Returns a cell of the table: the verdict, or for each verdict its optimizers.
fn cell(verdicts: &[(&str, Verdict)]) -> String {
    let mut groups: Vec<(Verdict, Vec<&str>)> = Vec::new();
    for (optimizer, verdict) in verdicts {
        match groups.iter_mut().find(|(known, _)| known == verdict) {
            Some((_, optimizers)) => optimizers.push(optimizer),
            None => groups.push((*verdict, vec![optimizer])),
        }
    }
    groups.sort_by_key(|(_, optimizers)| optimizers.len());
    let last = groups.len() - 1;
    let parts = groups.iter().enumerate().map(|(at, (verdict, optimizers))| match at == last {
        true => verdict.name().to_string(),
        false => format!("{}: {}", optimizers.join(", "), verdict.name()),
    });
    parts.collect::<Vec<_>>().join("; else ")
}

#[test]
fn every_field_has_one_outcome_in_every_job() {
    let net = Net::new();
    network(&net);
    let (program, optimizers) = (net.build().unwrap().main, optimizers());
    let mut text = String::new();
    for case in all() {
        let Case { path, mark, .. } = &case;
        text += &format!("{path}\n");
        let mut found = Vec::new();
        for (name, mode) in MODES {
            let Some(strategy) = assigned(mode, &case) else { continue };
            let verdicts: Vec<(&str, Verdict)> = optimizers
                .iter()
                .map(|(optimizer, desc)| {
                    let report = mode.report(&strategy, desc, &program);
                    let own: Vec<&Outcome> =
                        report.outcomes.iter().filter(|it| it.path == *path).collect();
                    let [own] = own[..] else { panic!("{path}, {name}: {own:?}") };
                    (*optimizer, own.verdict)
                })
                .collect();
            found.extend(verdicts.iter().map(|(_, verdict)| *verdict));
            text += &format!("    {name:<12}{}\n", cell(&verdicts));
        }
        let is_done = path == "build_strategy.fuse_broadcast_ops";
        let is_told = |verdict: &Verdict| matches!(verdict, Verdict::Warned | Verdict::Refused);
        match mark {
            Mark::Ignored | Mark::Refused => {
                assert!(is_done || found.iter().all(is_told), "{path} is marked: {found:?}");
            }
            // Not supported, as its documentation says; it has no mark because it depends on amp.
            Mark::None if path == "amp_configs.use_optimizer_fp16" => {}
            Mark::None => {
                assert!(found.contains(&Verdict::Applied), "{path} never applies: {found:?}");
            }
        }
    }
    if std::env::var_os("FLEET_BLESS").is_some() {
        std::fs::write(TABLE, &text).unwrap();
    }
    let table = std::fs::read_to_string(TABLE).unwrap_or_default();
    for (expected, found) in table.lines().zip(text.lines()) {
        assert_eq!(found, expected, "FLEET_BLESS=1 writes decisions.txt");
    }
    assert!(table == text, "decisions.txt is not complete: FLEET_BLESS=1");
}

/// A job fails if and only if its report refuses something, and its plan has the same outcomes.
#[test]
fn a_job_does_what_its_report_says() {
    let net = Net::new();
    network(&net);
    let program = net.build().unwrap().main;
    for case in all() {
        for (name, mode) in MODES {
            let Some(strategy) = assigned(mode, &case) else { continue };
            let optimizer = match mode {
                Mode::Geo => Sgd::new(0.1).into(),
                _ => rule(&case.path),
            };
            let report = mode.report(&strategy, &optimizer, &program);
            let made = mode.minimize(&strategy, &optimizer);
            match (report.refuse(), made) {
                (Ok(()), Ok(outcomes)) => assert_eq!(outcomes, report.outcomes, "{}", case.path),
                (Err(expected), Err(error)) => assert_eq!(error, expected.message()),
                (expected, made) => panic!("{} in {name}: {expected:?}, {made:?}", case.path),
            }
        }
    }
}

/// A dropped strategy decides for no other: the others have the outcome that they have alone.
#[test]
fn dropped_strategies_decide_for_no_other() {
    const SWITCHES: [&str; 8] = [
        "amp",
        "recompute",
        "localsgd",
        "adaptive_localsgd",
        "dgc",
        "lars",
        "fp16_allreduce",
        "sync_batch_norm",
    ];
    let net = Net::new();
    network(&net);
    let (program, adam) = (net.build().unwrap().main, Adam::new(0.1).into());
    let outcome = |switches: &[&str], of: &str| {
        let mut strategy = DistributedStrategy::new();
        switches.iter().for_each(|switch| drop(strategy.set(switch, true).unwrap().into_vec()));
        let report = Mode::Collective(8).report(&strategy, &adam, &program);
        let has_errors = report.problems.iter().any(|it| it.is_error());
        let found = report.outcomes.iter().find(|it| it.path == of).unwrap().clone();
        (!has_errors).then_some(found)
    };
    let mut count = 0;
    for dropped in SWITCHES {
        if outcome(&[dropped], dropped).unwrap().verdict != Verdict::Dropped {
            continue;
        }
        for other in SWITCHES.into_iter().filter(|other| *other != dropped) {
            let Some(beside) = outcome(&[dropped, other], other) else { continue };
            let alone = outcome(&[other], other).unwrap();
            let is_warned = beside.verdict == Verdict::Warned;
            assert!(is_warned || beside == alone, "{dropped}+{other}: {beside:?}");
            count += 1;
        }
    }
    assert!(count > 15, "{count}");
}

/// The transpiler makes a strategy of its switches, of which every part applies.
#[test]
fn the_transpiler_makes_strategies_that_apply() {
    let base = DistributeTranspilerConfig::default;
    let apart = || DistributeTranspilerConfig { sync_mode: false, ..base() };
    for config in [
        base(),
        apart(),
        DistributeTranspilerConfig { half_async: true, ..apart() },
        DistributeTranspilerConfig { enable_dc_asgd: true, ..apart() },
        DistributeTranspilerConfig { geo_sgd_mode: true, ..apart() },
    ] {
        let net = Net::new();
        let loss = network(&net);
        let job = Transpile::default();
        let optimizer = Sgd::new(0.1).into();
        let made = net.rewrite_with(|programs, registry| {
            config.transpile(programs, registry, Source::Loss(loss, &optimizer), &job)
        });
        let plan = made.unwrap().plan;
        let applies = plan.outcomes.iter().all(|it| it.verdict == Verdict::Applied);
        assert!(applies && plan.warnings.is_empty(), "{:?} {:?}", plan.outcomes, plan.warnings);
    }
}
