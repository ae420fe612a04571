//! Programs of workers of parameter servers, tested without servers.

use fleet_ir::Program;
use fleet_nn::optimizer::OptimizerDesc;
use fleet_nn::prelude::*;
use fleet_nn::{Programs, Regularizer, Result};
use fleet_strategy::servers::{Place, ServerPlan, minimize};
use fleet_strategy::{AmpConfig, DistributedStrategy};
use fleet_table::{Accessor, Initializer, Rule, rule};

const PLACE: Place = Place { worker: 1, worker_count: 2, server_count: 3, half_async: false };

/// Three lookups of one table, one of another, and two layers, of which one has a lower rate.
fn network(net: &Net, entry: Option<Entry>) -> Var<'_> {
    let table = |name: &str| {
        Embedding::new(100, 8).sparse().weight(ParamAttr::from(name).init(Init::uniform(-0.5, 0.5)))
    };
    let column = |name: &str| net.data(name, [-1, 1], DType::I64);
    let [a, b, c] = ["a", "b", "c"].map(|name| column(name).embedding(table("shared")).flatten(1));
    let rows = SparseEmbedding::new(1_000_000, 4);
    let rows = match entry {
        Some(entry) => rows.entry(entry),
        None => rows,
    };
    let other = net.data("d", [-1, 2], DType::I64).sparse_embedding(rows);
    let slow = ParamAttr::new().learning_rate(0.1);
    let all = net.concat(&[a, b, c, other.flatten(1)], 1);
    all.fc(Fc::new(4).weight(slow)).fc(1).mean()
}

fn rewritten(
    optimizer: impl Into<OptimizerDesc>,
    rows: Option<OptimizerDesc>,
    strategy: &DistributedStrategy,
    place: Place,
) -> Result<(Programs, ServerPlan)> {
    let net = Net::new();
    // GEO has no entries.
    let is_geo = strategy.a_sync_configs().k_steps() > 0;
    let loss = network(&net, (!is_geo).then_some(Entry::Count(10))).id();
    let optimizer = optimizer.into();
    let plan = net.rewrite_with(|programs, registry| {
        minimize(programs, registry, loss, &optimizer, rows.as_ref(), strategy, place)
    })?;
    Ok((net.build()?, plan))
}

fn tail(program: &Program, from: &str) -> Vec<&'static str> {
    let names: Vec<&str> = program.root_ops().map(|(_, op)| op.name()).collect();
    let at = names.iter().position(|name| *name == from).expect("the op is there");
    names[at..].to_vec()
}

fn count(program: &Program, name: &str) -> usize {
    program.root_ops().filter(|(_, op)| op.name() == name).count()
}

const PUSHES: [&str; 2] = ["distributed_push_sparse", "distributed_push_sparse"];

#[test]
fn an_asynchronous_worker_does_not_wait() {
    let strategy = DistributedStrategy::new().with_a_sync(true);
    let (programs, plan) = rewritten(Adam::new(0.1), None, &strategy, PLACE).unwrap();
    let main = &programs.main;
    let behind = tail(main, PUSHES[0]);
    assert_eq!(behind, [PUSHES.as_slice(), &["send", "send", "recv", "recv"]].concat());
    // Three lookups of the shared table become one.
    assert_eq!(count(main, "distributed_lookup_table"), 2);
    for gone in ["lookup_table_v2", "lookup_table_v2_grad", "adam", "lr_schedule"] {
        assert_eq!(count(main, gone), 0, "{gone}");
    }
    assert_eq!(count(&programs.startup, "fake_init"), 2);
    assert_eq!(plan.chain_text(), "ParameterServer -> adam");

    let [shared, other] = &plan.tables.sparse[..] else { panic!("{:?}", plan.tables) };
    assert_eq!((shared.name.as_str(), shared.table_id(), shared.width()), ("shared", 0, 8));
    assert_eq!(shared.config.initializer, Initializer::Uniform { low: -0.5, high: 0.5 });
    assert_eq!(
        (&other.config.entry, other.rows),
        (&fleet_table::Entry::CountFilter(10), 1_000_000)
    );
    // Parameters with another rate form a separate table.
    let rates = plan.tables.dense.iter();
    let rates = rates.map(|table| (table.table_id, table.rate_scale, table.len));
    let rates: Vec<_> = rates.collect();
    assert_eq!(rates, [(2, 1.0, 4 + 1 + 4), (3, 0.1, 32 * 4)]);
    assert_eq!(plan.tables.steps, None);

    let fed: Vec<_> =
        plan.lookups.iter().map(|it| (it.table_id, it.ids.len(), it.is_fed)).collect();
    assert_eq!(fed, [(0, 3, true), (1, 1, true)]);
}

#[test]
fn lookups_of_a_test_read_apart_and_slots_want_click_rows() {
    let rewrite = |text: &str| {
        let net = Net::new();
        let table = || SparseEmbedding::new(1000, 4).weight(ParamAttr::from("t"));
        let ids = |name: &str| net.data(name, [-1, 1], DType::I64);
        let learns = ids("a").sparse_embedding(table().slot(7));
        let more = ids("b").sparse_embedding(table());
        let reads = ids("c").sparse_embedding(table().is_test(true));
        let loss = net.concat(&[learns, more, reads], 1).mean().id();
        let strategy = DistributedStrategy::parse(text).unwrap();
        let optimizer = Sgd::new(0.1).into();
        let mut plan = net.rewrite_with(|programs, registry| {
            minimize(programs, registry, loss, &optimizer, None, &strategy, PLACE)
        });
        let plan = plan.as_mut().unwrap();
        let main = net.build().unwrap().main;
        let fed: Vec<_> = plan.lookups.iter().map(|it| (it.ids.len(), it.is_fed)).collect();
        assert_eq!(fed, [(2, true), (1, false)]);
        let tests = main.root_ops().filter(|(_, op)| op.name() == "distributed_lookup_table");
        let tests: Vec<bool> = tests.map(|(_, op)| op.attr_bool("is_test")).collect();
        assert_eq!(tests, [false, true]);
        let (_, push) = main.root_ops().find(|(_, op)| op.name() == PUSHES[0]).unwrap();
        assert_eq!(push.input("Ids").len(), 2, "what only reads is not pushed");
        let named = |note: &&String| note.contains("'t': only click tables store the slot");
        (push.attr_ints("slots").to_vec(), plan.notes.iter().filter(named).count())
    };
    assert_eq!(rewrite("a_sync: true"), (vec![], 1));
    let described = "a_sync: true downpour_table_param { table_name: \"t\" accessor { } }";
    // In the order in which the backward pass makes the gradients.
    assert_eq!(rewrite(described), (vec![0, 7], 0));
}

#[test]
fn synchronous_workers_meet_twice() {
    for half_async in [false, true] {
        let strategy = DistributedStrategy::new().with_a_sync(false);
        let place = Place { half_async, ..PLACE };
        let rate = LrSchedule::exponential(0.1, 0.5);
        let (programs, plan) = rewritten(Sgd::new(rate), None, &strategy, place).unwrap();
        assert_eq!(
            tail(&programs.main, "send"),
            ["send", "send", "send_barrier", "recv", "recv", "fetch_barrier"]
        );
        let (_, barrier) =
            programs.main.root_ops().find(|(_, op)| op.name() == "send_barrier").unwrap();
        assert_eq!(
            (barrier.attr_bool("half_async"), barrier.attr_int("trainer_id")),
            (half_async, 1)
        );
        assert_eq!(plan.tables.steps, Some(4), "a schedule needs a count of steps");
    }
}

#[test]
fn geo_leaves_the_program_as_it_is() {
    let strategy = DistributedStrategy::new().use_geo(5);
    let (programs, plan) = rewritten(Sgd::new(0.1), None, &strategy, PLACE).unwrap();
    let main = &programs.main;
    assert_eq!(count(main, "lookup_table_v2"), 4);
    assert_eq!(tail(main, "send"), ["send", "recv", "send", "recv", "recv", "recv"]);
    assert!(
        plan.tables
            .sparse
            .iter()
            .all(|table| table.config.rule == Rule::Sgd(rule::Sgd { lr: 1.0 }))
    );

    let refused = |optimizer: OptimizerDesc| {
        rewritten(optimizer, None, &strategy, PLACE).unwrap_err().to_string()
    };
    assert!(refused(Adam::new(0.1).into()).contains("expected sgd"));
}

#[test]
fn clips_come_before_decay_and_both_before_sending() {
    let optimizer =
        Sgd::new(0.1).grad_clip(GradClip::GlobalNorm(1.0)).weight_decay(Regularizer::L2(0.1));
    let rows: OptimizerDesc = Sgd::new(0.1).into();
    let strategy = DistributedStrategy::new();
    let (programs, _) = rewritten(optimizer, Some(rows), &strategy, PLACE).unwrap();
    let names = tail(&programs.main, "squared_l2_norm");
    let at = |name: &str| names.iter().position(|it| *it == name).unwrap();
    assert!(at("global_norm_scale") < at("elementwise_mul"));
    assert!(
        at("elementwise_mul") < at("scale") && at("scale") < at("sum") && at("sum") < at("send")
    );
}

#[test]
fn what_servers_cannot_do_is_refused_by_name() {
    let check = |optimizer: OptimizerDesc, strategy: &DistributedStrategy, words: &str| {
        let error = rewritten(optimizer, None, strategy, PLACE).unwrap_err().to_string();
        assert!(error.contains(words), "'{words}' is not in: {error}");
    };
    let plain = DistributedStrategy::new();
    check(Lamb::new(0.1).into(), &plain, "do not support the rule 'lamb'");
    check(
        Sgd::new(0.1).grad_clip(GradClip::Norm(1.0)).into(),
        &plain,
        "gradient clipping is not supported for 'shared'",
    );
    let decay = Sgd::new(0.1).weight_decay(Regularizer::L1(0.1));
    check(decay.into(), &plain, "weight decay is not supported for 'shared'");
    let sum = fleet_strategy::GradientScaleConfig::default().with_scale_strategy("sum");
    let sum = DistributedStrategy::new().with_gradient_scale_configs(sum);
    check(Sgd::new(0.1).into(), &sum, "sum is not supported with parameter servers");
    let lars = DistributedStrategy::new().with_lars(true);
    check(Momentum::new(0.1, 0.9).into(), &lars, "Momentum alone works");
    let lamb = DistributedStrategy::new().with_lamb(true);
    check(Adam::new(0.1).into(), &lamb, "Adam alone works");
    let merge = DistributedStrategy::new().use_gradient_merge(4);
    check(Sgd::new(0.1).into(), &merge, "a_sync_configs.max_merge_var_num merges gradients");
    let nobody = Place { worker: 2, ..PLACE };
    assert!(rewritten(Sgd::new(0.1), None, &plain, nobody).is_err());

    // A table that is also used as a matrix would have to be complete on the worker.
    let net = Net::new();
    let attr = || ParamAttr::from("tied");
    let rows = net.data("ids", [-1, 1], DType::I64);
    let rows = rows.embedding(Embedding::new(10, 4).sparse().weight(attr())).flatten(1);
    let loss = rows.matmul_transposed(net.var("tied"), false, true).mean().id();
    let error = net.rewrite_with(|programs, registry| {
        minimize(programs, registry, loss, &Sgd::new(0.1).into(), None, &plain, PLACE)
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("another op reads the whole table"), "{error}");
}

/// Returns the inputs SkipUpdate of the ops with one of these names.
fn skips(main: &Program, names: &[&str]) -> Vec<Vec<fleet_ir::VarId>> {
    let ops = main.root_ops().filter(|(_, op)| names.contains(&op.name()));
    ops.map(|(_, op)| op.input("SkipUpdate").to_vec()).collect()
}

/// With mixed precision, a worker checks the gradients of all tables together, before it clips,
/// decays and sends them. All pushes and sends of a step are skipped, or none.
#[test]
fn a_worker_scales_its_loss_and_skips_whole_steps() {
    let modes = [
        (DistributedStrategy::new().with_a_sync(true), false),
        (DistributedStrategy::new().with_a_sync(false), false),
        (DistributedStrategy::new().with_a_sync(false), true),
    ];
    for (strategy, half_async) in modes {
        let strategy = strategy.use_amp(AmpConfig::default());
        let place = Place { half_async, ..PLACE };
        let (programs, plan) = rewritten(Adam::new(0.1), None, &strategy, place).unwrap();
        let main = &programs.main;
        assert_eq!(plan.chain_text(), "ParameterServer -> AMP -> adam");
        let checks = "check_finite_and_unscale";
        let behind = tail(main, checks);
        let unscale = [checks, "update_loss_scaling", "cast", "elementwise_add"];
        assert_eq!(behind[..4], unscale);
        assert_eq!(behind[4..6], PUSHES);
        let (_, op) = main.root_ops().find(|(_, op)| op.name() == checks).unwrap();
        // Four parameters of layers, and four lookups.
        assert_eq!(op.input("X").len(), 4 + 4);
        let found = op.output("FoundInfinite").to_vec();
        for name in ["distributed_push_sparse", "send"] {
            assert_eq!(skips(main, &[name]), [found.clone(), found.clone()], "{name}");
        }
    }
    let sync = DistributedStrategy::new().with_a_sync(false);
    let bf16 = sync.use_amp(AmpConfig::default().with_use_pure_bf16(true));
    let (programs, _) = rewritten(Adam::new(0.1), None, &bf16, PLACE).unwrap();
    assert_eq!(skips(&programs.main, &["send"]), [vec![], vec![]], "bfloat16 is not scaled");
}

/// GEO workers update their own copies: every update of a step is skipped, or none, so that a decay
/// does not change parameters in a step that overflows.
#[test]
fn geo_skips_the_updates_of_a_step() {
    let amp = AmpConfig::default();
    let strategy = DistributedStrategy::new().use_geo(5).use_amp(amp);
    let (programs, plan) = rewritten(Sgd::new(0.1), None, &strategy, PLACE).unwrap();
    let main = &programs.main;
    assert_eq!(plan.chain_text(), "ParameterServer -> AMP -> sgd");
    let (_, op) = main.root_ops().find(|(_, op)| op.name() == "check_finite_and_unscale").unwrap();
    let found = op.output("FoundInfinite").to_vec();
    assert_eq!(skips(main, &["sgd"]), vec![found.clone(); 4 + 2]);
    assert_eq!(skips(main, &["send"]), vec![found; 2]);
}

/// Counters are pulled but not pushed, gradients of click tables are sums, and shows are floats.
#[test]
fn click_tables_are_pushed_with_shows_and_clicks() {
    let text = "downpour_table_param { \
                table_name: \"t\" shard_num: 9 table_class: \"SSDSparseTable\" \
                accessor { accessor_class: \"CtrCommonAccessor\" embedx_threshold: 4 \
                embedx_sgd_param { adam { learning_rate: 0.5 } } } }";
    let strategy = DistributedStrategy::parse(text).unwrap();
    let net = Net::new();
    net.data("show", [-1, 1], DType::I64);
    net.data("click", [-1, 1], DType::F32);
    let entry = Entry::ShowClick { show: "show".into(), click: "click".into() };
    let table = SparseEmbedding::new(1u64 << 40, 11).weight("t").entry(entry);
    let loss = net.data("d", [-1, 2], DType::I64).sparse_embedding(table).mean().id();
    let plan = net
        .rewrite_with(|programs, registry| {
            minimize(programs, registry, loss, &Sgd::new(0.5).into(), None, &strategy, PLACE)
        })
        .unwrap();
    let main = net.build().unwrap().main;
    let (_, push) = main.root_ops().find(|(_, op)| op.name() == "distributed_push_sparse").unwrap();
    assert_eq!((push.attr_int("size"), push.attr_int("counter_columns")), (11, 2));
    assert!(push.attr_bool("use_cvm_op"));
    assert_eq!(main.var_name(push.input("Clicks")[0]), "click");
    assert_eq!(main.var(push.input("Shows")[0]).dtype, DType::F32);
    assert_eq!(count(&main, "cast"), 1);

    let [table] = &plan.tables.sparse[..] else { panic!("{:?}", plan.tables) };
    let Accessor::Ctr(click) = &table.config.accessor else { panic!("{table:?}") };
    assert_eq!((table.config.shard_count, click.embedx_threshold), (9, 4.0));
    assert_eq!(table.config.dim, 8);
    // Settings that are not described follow from the program.
    assert_eq!(click.embed_rule, Rule::Sgd(rule::Sgd { lr: 0.5 }));
    assert_eq!(click.embed_initializer, Initializer::Constant(0.0));
    assert!(matches!(table.config.rule, Rule::Adam(rule::Adam { lr: 0.5, .. })));
    assert!(matches!(table.config.initializer, Initializer::Uniform { .. }));
    let memory = "'t': rows of SSDSparseTable are kept in memory";
    assert!(plan.notes.iter().any(|note| note.starts_with(memory)), "{:?}", plan.notes);
}

/// `auto` selects GEO where workers may train alone with the whole model, else async.
#[test]
fn auto_chooses_the_exchange() {
    let auto = DistributedStrategy::new().with_auto(true);
    let exchange = |optimizer: OptimizerDesc, rows: Option<OptimizerDesc>, table: Embedding| {
        let net = Net::new();
        let loss = net.data("d", [-1, 2], DType::I64).embedding(table.sparse()).mean().id();
        let plan = net.rewrite_with(|programs, registry| {
            minimize(programs, registry, loss, &optimizer, rows.as_ref(), &auto, PLACE)
        });
        let plan = plan.unwrap();
        assert_eq!(plan.decisions.len(), 1, "{:?}", plan.decisions);
        (plan.exchange.name(), plan.decisions[0].reason.clone())
    };
    let small = || Embedding::new(100, 8);
    let (name, reason) = exchange(Sgd::new(0.1).into(), None, small());
    assert!(name == "geo" && reason.contains("k_steps 800"), "{name}: {reason}");
    let (name, reason) = exchange(Adam::new(0.1).into(), None, small());
    assert!(name == "async" && reason.contains("only with plain SGD"), "{name}: {reason}");
    let (name, _) = exchange(Sgd::new(0.1).into(), Some(Sgd::new(0.2).into()), small());
    assert_eq!(name, "async");
    let (name, reason) = exchange(Sgd::new(0.1).into(), None, Embedding::new(1 << 30, 8));
    assert!(name == "async" && reason.contains("more than 4"), "{name}: {reason}");
}

/// Settings that the lookups of a table and its description have.
#[test]
fn settings_of_lookups_are_kept_or_refused() {
    let plain = || SparseEmbedding::new(1000, 4).weight("t");
    let rewrite = |lookups: [SparseEmbedding; 2], text: &str| {
        let net = Net::new();
        let [first, second] = lookups;
        let ids = |name: &str| net.data(name, [-1, 1], DType::I64);
        let parts = [ids("a").sparse_embedding(first), ids("b").sparse_embedding(second)];
        let loss = net.concat(&parts, 1).mean().id();
        let strategy = DistributedStrategy::parse(text).unwrap();
        let optimizer = Sgd::new(0.1).into();
        let plan = net.rewrite_with(|programs, registry| {
            minimize(programs, registry, loss, &optimizer, None, &strategy, PLACE)
        })?;
        Ok::<_, fleet_nn::Error>((net.build()?.main, plan))
    };
    let refused = |lookups: [SparseEmbedding; 2], text: &str, words: &[&str]| {
        let error = rewrite(lookups, text).map(drop).unwrap_err().to_string();
        words.iter().for_each(|words| assert!(error.contains(words), "'{words}': {error}"));
    };
    let (geo, other) = ("a_sync: true a_sync_configs { k_steps: 3 }", "a_sync: true");
    let counted = || plain().entry(Entry::Count(10));
    refused(
        [counted(), counted()],
        geo,
        &["GEO does not support the entry of 't'", "k_steps to 0"],
    );
    for text in [geo, other] {
        refused([plain(), counted()], text, &["lookups of 't' differ in their entry"]);
        let ssd = plain().table_class("SSDSparseTable");
        refused([ssd, plain()], text, &["lookups of 't' differ in their table_class"]);
        let typo = || plain().table_class("MemorySparsTable");
        let words = ["unknown table_class of 't'; did you mean 'MemorySparseTable'?"];
        refused([typo(), typo()], text, &words);
    }
    let of_geo = || plain().table_class("MemorySparseGeoTable");
    refused([of_geo(), of_geo()], other, &["'t' has a table class of GEO"]);
    let (_, plan) = rewrite([of_geo(), of_geo()], geo).unwrap();
    assert_eq!(plan.tables.sparse[0].class, "MemorySparseGeoTable");

    // Lookups that only read are not part of what a worker of GEO sends; slots are not stored.
    let (main, plan) = rewrite([plain().slot(7), plain().is_test(true)], geo).unwrap();
    let (_, send) = main.root_ops().find(|(_, op)| op.name() == "send").unwrap();
    let grad = send.input("X")[0];
    let made: Vec<_> =
        main.root_ops().filter(|(_, op)| op.all_outputs().any(|out| out == grad)).collect();
    assert_eq!(made.len(), 1);
    assert_eq!(main.var_name(made[0].1.input("Ids")[0]), "a", "{main}");
    let slots = "'t': only click tables store the slot";
    assert!(plan.notes.iter().any(|note| note.starts_with(slots)), "{:?}", plan.notes);

    // The documented accessor of plain rows.
    let merge = |rest: &str, mode: &str| {
        let accessor = format!("accessor {{ accessor_class: \"CommMergeAccessor\" {rest} }}");
        format!("{mode} downpour_table_param {{ table_name: \"t\" {accessor} }}")
    };
    for mode in [geo, other] {
        let text = merge("fea_dim: 1000 embedx_dim: 4", mode);
        let (_, plan) = rewrite([plain(), plain()], &text).unwrap();
        assert_eq!(plan.tables.sparse[0].config.accessor, Accessor::Plain);
        let check = |rest: &str, words: &str| {
            refused([plain(), plain()], &merge(rest, mode), &[words]);
        };
        check("fea_dim: 7", "fea_dim does not match the embedding: expected 1000, got 7");
        check("embedx_dim: 5", "embedx_dim does not match the embedding: expected 4, got 5");
        check("embedx_threshold: 5", "CommMergeAccessor has no embedx_threshold");
    }
}
