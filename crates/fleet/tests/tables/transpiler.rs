//! Jobs of `DistributeTranspiler`: the split method decides where blocks are, gradients are sent
//! while the backward pass continues, and training equals that of one process. A program with
//! updates makes the same job as a network.

use fleet::ir::Program;
use fleet::nn::Programs;
use fleet::nn::optimizer::OptimizerDesc;
use fleet::prelude::*;
use fleet::ps::{CommunicatorOptions, LocalServers, SaveFormat, SaveMode, ServerTables, Servers};
use fleet::servers::{
    CollectiveMode, DistributeTranspiler, DistributeTranspilerConfig, Exchange, Part, Place,
    PushMode, ServerJob, SplitMethod, Transpile, TranspiledJob, TranspilerMode, Worker,
};
use fleet::topology::Env;
use std::sync::Arc;

const SERVERS: &str = "10.0.0.1:6174,10.0.0.2:6174";
const ENDPOINTS: [&str; 2] = ["10.0.0.1:6174", "10.0.0.2:6174"];
const BATCH: usize = 4;

/// Builds a network with a layer that is split in two, and one that is too small to split.
fn network() -> (Net, String) {
    let net = Net::new();
    net.set_seed(5);
    let (x, y) = (net.data("x", [-1, 128], DType::F32), net.data("y", [-1, 1], DType::F32));
    let hidden = x.fc(Fc::new(150).act(Act::Tanh));
    let loss = hidden.fc(1).mse_loss(y, Reduction::Mean).name();
    (net, loss)
}

fn transpiled(config: DistributeTranspilerConfig, trainers: usize) -> fleet::Result<TranspiledJob> {
    transpiled_on(SERVERS, config, trainers)
}

fn transpiled_on(
    pservers: &str,
    config: DistributeTranspilerConfig,
    trainers: usize,
) -> fleet::Result<TranspiledJob> {
    let (net, loss) = network();
    let call = Transpile { pservers, trainers: trainers.into(), ..Default::default() };
    let optimizer = Momentum::new(0.1, 0.9);
    DistributeTranspiler::new(config).transpile(&net, net.var(&loss), optimizer, &call)
}

fn names(job: &TranspiledJob, endpoint: &str) -> Vec<String> {
    let blocks = job.blocks(endpoint).unwrap();
    blocks.into_iter().map(|block| block.name.clone()).collect()
}

/// Blocks are distributed as in Paddle 2.6.2.
#[test]
fn blocks_are_dealt_in_the_order_of_names() {
    let job = transpiled(DistributeTranspilerConfig::default(), 2).unwrap();
    assert_eq!(names(&job, ENDPOINTS[0]), ["fc_0.b_0", "fc_0.w_0.block1", "fc_1.w_0"]);
    assert_eq!(names(&job, ENDPOINTS[1]), ["fc_0.w_0.block0", "fc_1.b_0"]);
}

#[test]
fn whole_parameters_and_names() {
    let whole = DistributeTranspilerConfig { slice_var_up: false, ..Default::default() };
    let job = transpiled(whole.clone(), 1).unwrap();
    let mut all = [names(&job, ENDPOINTS[0]), names(&job, ENDPOINTS[1])];
    assert_eq!([all[0].len(), all[1].len()], [2, 2]);
    all.iter_mut().for_each(|names| names.sort());
    assert!(all.concat().iter().all(|name| !name.contains("block")));
    let again = transpiled(whole, 1).unwrap();
    assert_eq!(names(&again, ENDPOINTS[0]), names(&job, ENDPOINTS[0]), "the same by seed");

    let config = DistributeTranspilerConfig {
        split_method: SplitMethod::HashName,
        print_log: true,
        ..Default::default()
    };
    let job = transpiled(config, 1).unwrap();
    let count = names(&job, ENDPOINTS[0]).len() + names(&job, ENDPOINTS[1]).len();
    assert_eq!(count, 5);
    let notes = &job.server_job().unwrap().plan.notes;
    assert_eq!(notes.iter().filter(|note| note.contains(" on 10.0.0.")).count(), 5);
}

/// A server's program lists the ops of its tables.
#[test]
fn a_servers_program_updates_its_blocks() {
    let job = transpiled(DistributeTranspilerConfig::default(), 2).unwrap();
    let programs = job.get_pserver_programs(ENDPOINTS[0]).unwrap();
    fleet::ops::verify::verify(&programs.main, fleet::ops::Registry::standard()).unwrap();
    fleet::ops::verify::verify(&programs.startup, fleet::ops::Registry::standard()).unwrap();
    let main = &programs.main;
    let (_, serve) = main.root_ops().find(|(_, op)| op.name() == "listen_and_serv").unwrap();
    assert_eq!(serve.attr_ints("optimize_blocks"), [1, 2, 3]);
    assert_eq!((serve.attr_int("Fanin"), serve.attr_int("distributed_mode")), (2, 0));
    let block = main.block_ids().nth(2).unwrap();
    let ops: Vec<&str> = main.block_ops(block).map(|(_, op)| op.name()).collect();
    assert_eq!(ops, ["sum", "scale", "momentum"]);
    assert!(main.find_var("fc_0.w_0@GRAD.block1.trainer_1").is_some());
    // Blocks of whole rows of 150 columns.
    let shape = main.var(main.find_var("fc_0.w_0.block1").unwrap()).shape;
    assert_eq!(shape.dims(), [64, 150]);
    assert!(job.get_pserver_program("10.0.0.9:1").is_err());
    let sends = job.get_trainer_program().root_ops().filter(|(_, op)| op.name() == "send");
    let both = |op: &fleet::ir::Op| ["send_varnames", "epmap"].map(|it| op.attr_strs(it).join(" "));
    let mut sends: Vec<[String; 2]> = sends.map(|(_, op)| both(op)).collect();
    sends.sort();
    let [one, other] = ENDPOINTS;
    let expected = [
        ["fc_0.b_0@GRAD", one],
        ["fc_0.w_0@GRAD.block0 fc_0.w_0@GRAD.block1", &format!("{other} {one}")],
        ["fc_1.b_0@GRAD", other],
        ["fc_1.w_0@GRAD", one],
    ];
    assert_eq!(sends, expected);
}

/// Returns the positions of the ops of a program for which `is_one` holds.
fn positions(program: &Program, is_one: impl Fn(&fleet::ir::Op) -> bool) -> Vec<usize> {
    let ops = program.root_ops().enumerate();
    ops.filter(|(_, (_, op))| is_one(op)).map(|(at, _)| at).collect()
}

/// A gradient is on the way while the backward pass computes the others. Only a clip by the global
/// norm needs all of them first.
#[test]
fn sends_follow_their_gradients() {
    let made = |optimizer: OptimizerDesc| {
        let (net, loss) = network();
        let call = Transpile { pservers: SERVERS, ..Default::default() };
        let transpiler = DistributeTranspiler::default();
        transpiler.transpile(&net, net.var(&loss), optimizer, &call).unwrap()
    };
    let decay = Regularizer::L2(0.1);
    let clip = GradClip::value(0.1);
    for optimizer in [Sgd::new(0.1), Sgd::new(0.1).weight_decay(decay).grad_clip(clip)] {
        let job = made(optimizer.into());
        let main = job.get_trainer_program();
        let sends = positions(main, |op| op.name() == "send");
        let products = positions(main, |op| op.name().ends_with("_grad"));
        assert_eq!(sends.len(), 4);
        assert!(sends[0] < products[products.len() - 2], "{main}");
        let ops: Vec<_> = main.root_ops().map(|(_, op)| op).collect();
        for at in sends {
            let sent = ops[at].input("X")[0];
            let made = ops.iter().rposition(|op| op.all_outputs().any(|out| out == sent)).unwrap();
            let between = &ops[made + 1..at];
            assert!(between.iter().all(|op| op.name() == "send"), "{main}");
        }
    }
    let job = made(Sgd::new(0.1).grad_clip(GradClip::GlobalNorm(0.1)).into());
    let main = job.get_trainer_program();
    let norm = positions(main, |op| op.name() == "global_norm_scale")[0];
    assert!(positions(main, |op| op.name() == "send").iter().all(|at| *at > norm), "{main}");
}

/// Returns the batch of a step.
fn batch(at: usize) -> [(&'static str, Tensor); 2] {
    let mut rng = fleet::rng::Sequence::new(3, at as u64);
    let mut numbers = |count: usize| -> Vec<f32> {
        (0..count).map(|_| rng.below(2001) as f32 / 1000.0 - 1.0).collect()
    };
    let (x, y) = (numbers(BATCH * 128), numbers(BATCH));
    let x = Tensor::from_slice(&x, [BATCH as i64, 128]).unwrap();
    [("x", x), ("y", Tensor::from_slice(&y, [BATCH as i64, 1]).unwrap())]
}

fn step(worker: &mut Worker, at: usize, loss: &str) -> f32 {
    let [(x, first), (y, second)] = &batch(at);
    worker.run(&[(x, first), (y, second)], &[loss]).unwrap()[0].item().unwrap()
}

fn start(job: &TranspiledJob) -> (Worker, String) {
    let made = job.server_job().unwrap();
    let servers = ServerTables::all(&made.tables).unwrap();
    let client = Arc::new(LocalServers::new(&servers, 0).unwrap());
    let (exec, options) = (ExecOptions::threads(1), CommunicatorOptions::default());
    let worker = Worker::start(client, job.programs.clone(), made, exec, options).unwrap();
    (worker, network().1)
}

#[test]
fn training_does_not_depend_on_where_blocks_are() {
    let configs = [
        DistributeTranspilerConfig::default(),
        DistributeTranspilerConfig { slice_var_up: false, ..Default::default() },
        DistributeTranspilerConfig { split_method: SplitMethod::HashName, ..Default::default() },
    ];
    let (net, loss) = network();
    net.minimize(net.var(&loss), Momentum::new(0.1, 0.9)).unwrap();
    let mut alone = Session::new(net.build().unwrap(), ExecOptions::threads(1)).unwrap();
    let mut losses = Vec::new();
    for at in 0..6 {
        let [(x, first), (y, second)] = &batch(at);
        let out = alone.run(&[(x, first), (y, second)], &[&loss]).unwrap();
        losses.push(out[0].item::<f32>().unwrap());
    }
    for config in configs {
        let job = transpiled(config, 1).unwrap();
        let (mut worker, loss) = start(&job);
        for (at, want) in losses.iter().enumerate() {
            let got = step(&mut worker, at, &loss);
            assert!((got - want).abs() < 1e-5, "step {at}: {got} and {want}");
        }
        worker.stop().unwrap();
    }
}

/// A save of blocks loads into any other blocks, on any number of servers.
#[test]
fn saves_know_their_blocks() {
    let folder = std::env::temp_dir().join(format!("fleet-blocks-{}", std::process::id()));
    let job = transpiled(DistributeTranspilerConfig::default(), 1).unwrap();
    let (mut worker, loss) = start(&job);
    step(&mut worker, 0, &loss);
    worker.save_persistables(&folder, SaveMode::All, SaveFormat::Binary).unwrap();
    let tables = &job.server_job().unwrap().plan.tables.dense;
    let values = |servers: &Servers| {
        let mut all = Vec::new();
        for table in tables {
            let mut values = vec![0.0; table.len];
            servers.tables.pull_dense(table.table_id, &mut values).unwrap();
            all.extend(values);
        }
        all
    };
    let want = values(worker.servers());
    let after = step(&mut worker, 1, &loss);
    let next = step(&mut worker, 2, &loss);
    let whole = DistributeTranspilerConfig { slice_var_up: false, ..Default::default() };
    let hashed =
        DistributeTranspilerConfig { split_method: SplitMethod::HashName, ..Default::default() };
    let one = "127.0.0.1:6174";
    let three = "127.0.0.1:6174,127.0.0.1:6175,127.0.0.1:6176";
    for (config, pservers) in [
        (Default::default(), SERVERS),
        (Default::default(), one),
        (Default::default(), three),
        (hashed, three),
        (whole, SERVERS),
    ] {
        let (mut other, loss) = start(&transpiled_on(pservers, config, 1).unwrap());
        assert_ne!(values(other.servers()), want);
        other.load_persistables(&folder).unwrap();
        assert_eq!(values(other.servers()), want, "{pservers}");
        // Including the state of their update rule.
        assert_eq!(step(&mut other, 1, &loss), after, "{pservers}");
        assert_eq!(step(&mut other, 2, &loss), next, "{pservers}");
        other.stop().unwrap();
    }
    worker.stop().unwrap();
    let _ = std::fs::remove_dir_all(&folder);
}

/// Parameters are found by name: a save loads into a job that groups them in other tables, and the
/// reverse.
#[test]
fn saves_load_into_other_tables() {
    let folder = std::env::temp_dir().join(format!("fleet-grouped-{}", std::process::id()));
    let (net, loss) = network();
    let strategy = DistributedStrategy::new().with_a_sync(false);
    let place = Place { worker: 0, worker_count: 1, server_count: 3, half_async: false };
    let optimizer = Momentum::new(0.1, 0.9).into();
    let job = ServerJob::minimize(&net, net.var(&loss), &optimizer, None, &strategy, place);
    let (job, programs) = (job.unwrap(), net.build().unwrap());
    assert_eq!(job.plan.tables.dense.len(), 1);
    let start_grouped = || {
        let servers = ServerTables::all(&job.tables).unwrap();
        let client = Arc::new(LocalServers::new(&servers, 0).unwrap());
        let (exec, options) = (ExecOptions::threads(1), CommunicatorOptions::default());
        Worker::start(client, programs.clone(), &job, exec, options).unwrap()
    };
    let apart = || start(&transpiled(Default::default(), 1).unwrap()).0;
    let check = |mut from: Worker, mut to: Worker, name: &str| {
        let dir = folder.join(name);
        step(&mut from, 0, &loss);
        from.save_persistables(&dir, SaveMode::All, SaveFormat::Binary).unwrap();
        to.load_persistables(&dir).unwrap();
        // Including the state of the update rule, which the second step shows.
        for at in 1..3 {
            let (want, got) = (step(&mut from, at, &loss), step(&mut to, at, &loss));
            assert!((want - got).abs() < 1e-6, "{name}, step {at}: {want} {got}");
        }
        from.stop().unwrap();
        to.stop().unwrap();
    };
    check(apart(), start_grouped(), "apart");
    check(start_grouped(), apart(), "together");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn switches_choose_the_mode() {
    let base = DistributeTranspilerConfig::default;
    let check = |config: DistributeTranspilerConfig, exchange: Exchange, corrects: bool| {
        let (net, loss) = network();
        let call = Transpile { pservers: SERVERS, trainers: 2.into(), ..Default::default() };
        let transpiler = DistributeTranspiler::new(config);
        let made = transpiler.transpile(&net, net.var(&loss), Sgd::new(0.1), &call).unwrap();
        let plan = &made.server_job().unwrap().plan;
        assert_eq!((plan.exchange, plan.corrects_delay), (exchange, corrects));
    };
    let late = || DistributeTranspilerConfig { sync_mode: false, ..base() };
    check(base(), Exchange::Pushes(PushMode::Sync), false);
    check(late(), Exchange::Pushes(PushMode::Async), false);
    let half = Exchange::Pushes(PushMode::HalfAsync);
    check(DistributeTranspilerConfig { half_async: true, ..late() }, half, false);
    check(DistributeTranspilerConfig { completely_not_async: true, ..late() }, half, false);
    check(DistributeTranspilerConfig { enable_dc_asgd: true, ..late() }, half, true);
    let geo = DistributeTranspilerConfig { geo_sgd_mode: true, ..late() };
    check(geo, Exchange::Geo { k_steps: 100 }, false);

    let refused = |config: DistributeTranspilerConfig, words: &str| {
        let error = transpiled(config, 1).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    refused(DistributeTranspilerConfig { min_block_size: 100, ..base() }, "at least 8192");
    let split = DistributeTranspilerConfig { runtime_split_send_recv: true, ..base() };
    refused(split, "runtime_split_send_recv conflicts with sync_mode");
    for config in [
        DistributeTranspilerConfig { enable_dc_asgd: true, ..base() },
        DistributeTranspilerConfig { completely_not_async: true, ..base() },
    ] {
        refused(config, "set sync_mode to false");
    }
    let both = DistributeTranspilerConfig { completely_not_async: true, ..late() };
    let both = DistributeTranspilerConfig { geo_sgd_mode: true, ..both };
    refused(both, "geo_sgd_mode conflicts with half_async, completely_not_async");
    // Switches of the other modes.
    for config in [
        DistributeTranspilerConfig { nccl_comm_num: 2, ..base() },
        DistributeTranspilerConfig { use_hierarchical_allreduce: true, ..base() },
        DistributeTranspilerConfig { hierarchical_allreduce_inter_nranks: 8, ..base() },
    ] {
        refused(config, "has no effect in this mode: expected mode nccl2 or collective");
    }
    let local = Some(CollectiveMode::LocalSgd);
    let config = DistributeTranspilerConfig { collective_mode: local, ..base() };
    refused(config, "collective_mode has no effect in this mode: expected mode collective");
}

/// Returns the network's programs with updates.
fn minimized(optimizer: OptimizerDesc) -> (Programs, String) {
    let (net, loss) = network();
    net.minimize(net.var(&loss), optimizer).unwrap();
    (net.build().unwrap(), loss)
}

/// A program with updates makes the job of its network and optimizer: with the same tables, and the
/// same numbers in every step.
#[test]
fn updates_of_a_program_become_those_of_servers() {
    let late = || DistributeTranspilerConfig { sync_mode: false, ..Default::default() };
    let half = || DistributeTranspilerConfig { half_async: true, ..late() };
    let geo =
        DistributeTranspilerConfig { geo_sgd_mode: true, geo_sgd_need_push_nums: 2, ..late() };
    let warm = LrSchedule::exponential(0.1, 0.9).warmup(3, 0.01, 0.1);
    let clipped = Momentum::new(0.1, 0.9).grad_clip(GradClip::GlobalNorm(0.5));
    let cases: [(DistributeTranspilerConfig, OptimizerDesc); 6] = [
        (Default::default(), Momentum::new(0.1, 0.9).use_nesterov(true).into()),
        (Default::default(), clipped.weight_decay(Regularizer::L2(0.01)).into()),
        (half(), Adam::new(warm).grad_clip(GradClip::Norm(0.5)).into()),
        (half(), Adagrad::new(0.1).initial_accumulator_value(0.2).into()),
        (half(), Sgd::new(LrSchedule::lambda(0.1, |step| 1.0 / (step + 1) as f64)).into()),
        (geo, Sgd::new(0.1).weight_decay(Regularizer::L1(0.01)).into()),
    ];
    let call = Transpile { pservers: SERVERS, ..Default::default() };
    for (config, optimizer) in cases {
        let transpiler = DistributeTranspiler::new(config);
        let (net, loss) = network();
        let of_net = transpiler.transpile(&net, net.var(&loss), optimizer.clone(), &call).unwrap();
        let (programs, _) = minimized(optimizer.clone());
        let of_program = transpiler.transpile_program(programs, &call).unwrap();
        let registry = fleet::ops::Registry::standard();
        fleet::ops::verify::verify(&of_program.programs.main, registry).unwrap();
        let tables = |made: &TranspiledJob| made.server_job().unwrap().tables.clone();
        assert_eq!(tables(&of_program), tables(&of_net), "{optimizer:?}");
        for endpoint in ENDPOINTS {
            assert_eq!(
                of_program.get_pserver_program(endpoint).unwrap().to_string(),
                of_net.get_pserver_program(endpoint).unwrap().to_string()
            );
        }
        let (mut one, loss) = start(&of_net);
        let (mut other, _) = start(&of_program);
        // A norm sums in another order, and GEO takes in changes when they arrive: this rounds.
        for at in 0..6 {
            let (one, other) = (step(&mut one, at, &loss), step(&mut other, at, &loss));
            assert!((one - other).abs() < 1e-6, "step {at}, {optimizer:?}: {one} {other}");
        }
        one.stop().unwrap();
        other.stop().unwrap();
    }
}

/// Rows have their own rule, which is found among the updates.
#[test]
fn rows_of_a_program_become_tables() {
    let build = |net: &Net| {
        net.set_seed(5);
        let ids = net.data("ids", [-1, 2], DType::I64);
        let rows = ids.embedding(Embedding::new(50, 4).sparse().weight("table")).flatten(1);
        rows.fc(1).mean().name()
    };
    let optimizer = || Adam::new(0.1).rows(Adagrad::new(0.5));
    let call = Transpile { pservers: SERVERS, ..Default::default() };
    let (transpiler, net) = (DistributeTranspiler::default(), Net::new());
    let loss = build(&net);
    let of_net = transpiler.transpile(&net, net.var(&loss), optimizer(), &call).unwrap();
    let net = Net::new();
    let loss = build(&net);
    net.minimize(net.var(&loss), optimizer()).unwrap();
    let of_program = transpiler.transpile_program(net.build().unwrap(), &call).unwrap();
    let tables = |made: &TranspiledJob| made.server_job().unwrap().tables.clone();
    assert_eq!(tables(&of_program), tables(&of_net));
    let names = |made: &TranspiledJob| -> Vec<&'static str> {
        made.get_trainer_program().root_ops().map(|(_, op)| op.name()).collect()
    };
    assert_eq!(names(&of_program), names(&of_net));

    let net = Net::new();
    let loss = build(&net);
    let clip = GradClip::Norm(1.0);
    net.minimize(net.var(&loss), Sgd::new(0.1).grad_clip(clip)).unwrap();
    let error = transpiler.transpile_program(net.build().unwrap(), &call).unwrap_err().to_string();
    assert!(error.contains("gradient clipping is not supported for 'table'"), "{error}");
}

const TRAINERS: &str = "10.0.0.1:6174,10.0.0.2:6174,10.0.0.3:6174";

/// Returns the job of the second of three trainers.
fn among_trainers(config: DistributeTranspilerConfig) -> fleet::Result<TranspiledJob> {
    let trainers = TRAINERS.into();
    let current_endpoint = "10.0.0.2:6174";
    let call = Transpile { trainer_id: 1, trainers, current_endpoint, ..Default::default() };
    let (programs, _) = minimized(Momentum::new(0.1, 0.9).grad_clip(GradClip::Norm(1.0)).into());
    DistributeTranspiler::new(config).transpile_program(programs, &call)
}

/// Trainers without servers sum gradients before they clip them.
#[test]
fn trainers_of_nccl2_sum_gradients() {
    let nccl2 = || DistributeTranspilerConfig { mode: TranspilerMode::Nccl2, ..Default::default() };
    let job = among_trainers(nccl2()).unwrap();
    let main = job.get_trainer_program();
    fleet::ops::verify::verify(main, fleet::ops::Registry::standard()).unwrap();
    let sums = positions(main, |op| op.name() == "c_allreduce_sum");
    let clips = positions(main, |op| op.name() == "clip_by_norm");
    assert_eq!((sums.len(), clips.len()), (1, 4));
    assert!(sums[0] < clips[0]);
    assert_eq!(positions(main, |op| op.name() == "momentum").len(), 4);
    assert!(job.programs.startup.to_string().contains("c_broadcast"));
    let error = job.get_pserver_program("10.0.0.1:6174").unwrap_err().to_string();
    assert!(error.contains("have no servers"), "{error}");
    let server = Part::Pserver("10.0.0.1:6174");
    assert!(job.join(server, &Env::new()).err().unwrap().to_string().contains("no servers"));

    // One all-reduce for each gradient, over two communicators in turn.
    let collective = DistributeTranspilerConfig { mode: TranspilerMode::Collective, ..nccl2() };
    let config = DistributeTranspilerConfig { nccl_comm_num: 2, ..collective.clone() };
    let job = among_trainers(config).unwrap();
    let sums =
        job.get_trainer_program().root_ops().filter(|(_, op)| op.name() == "c_allreduce_sum");
    let rings: Vec<i64> = sums.map(|(_, op)| op.attr_int("ring_id")).collect();
    assert_eq!(rings, [0, 1, 0, 1]);
    assert_eq!(job.distributed().unwrap().plan.rings.len(), 2);

    let local = Some(CollectiveMode::LocalSgd);
    let config = DistributeTranspilerConfig { collective_mode: local, ..collective };
    let job = among_trainers(config).unwrap();
    assert_eq!(job.distributed().unwrap().plan.chain_text(), "RawProgram -> LocalSGD -> momentum");
    let main = job.get_trainer_program();
    assert!(positions(main, |op| op.name() == "c_allreduce_sum").is_empty());
    assert!(main.to_string().contains("c_allreduce_sum"), "parameters are averaged in a block");
}

#[test]
fn calls_that_describe_no_trainer_are_refused() {
    let nccl2 = || DistributeTranspilerConfig { mode: TranspilerMode::Nccl2, ..Default::default() };
    let refused = |config: DistributeTranspilerConfig, call: Transpile<'_>, words: &str| {
        let (programs, _) = minimized(Adam::new(0.1).into());
        let made = DistributeTranspiler::new(config).transpile_program(programs, &call);
        let error = made.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    let call = |trainer_id: usize, current_endpoint: &'static str| {
        let trainers = TRAINERS.into();
        Transpile { trainer_id, trainers, current_endpoint, ..Default::default() }
    };
    let words = "expected 10.0.0.2:6174, entry 1 of trainers, got 10.0.0.1:6174";
    refused(nccl2(), call(1, "10.0.0.1:6174"), words);
    refused(nccl2(), call(3, "10.0.0.1:6174"), "expected below 3, the number of trainers, got 3");
    refused(nccl2(), Transpile::default(), "take the endpoints of trainers");
    let first = || call(0, "10.0.0.1:6174");
    refused(Default::default(), first(), "mode pserver takes the number of trainers");
    let words = "has no effect in this mode: expected mode pserver, got nccl2";
    refused(DistributeTranspilerConfig { sync_mode: false, ..nccl2() }, first(), words);
    refused(DistributeTranspilerConfig { slice_var_up: false, ..nccl2() }, first(), words);
    let config = DistributeTranspilerConfig { hierarchical_allreduce_inter_nranks: 3, ..nccl2() };
    refused(config, first(), "requires use_hierarchical_allreduce");
    let local = DistributeTranspilerConfig {
        mode: TranspilerMode::Collective,
        collective_mode: Some(CollectiveMode::LocalSgd),
        ..Default::default()
    };
    refused(local, first(), "localsgd requires SGD or Momentum, but the optimizer is adam");
    let error = "single_process_multi_thread".parse::<CollectiveMode>().unwrap_err().to_string();
    assert!(error.contains("start one trainer"), "{error}");
}

/// A process joins the job of the call; an environment of another job is an error.
#[test]
fn the_call_is_what_the_job_runs_by() {
    let call =
        Transpile { trainer_id: 1, pservers: SERVERS, trainers: 2.into(), ..Default::default() };
    let (programs, _) = minimized(Sgd::new(0.1).into());
    let made = DistributeTranspiler::default().transpile_program(programs, &call).unwrap();
    let fleet = made.join(Part::Trainer, &Env::new()).unwrap();
    assert!(fleet.is_worker());
    assert_eq!((fleet.worker_index(), fleet.worker_num(), fleet.server_num()), (1, 2, 2));
    let listed: Vec<String> =
        fleet.topology().server_endpoints().iter().map(ToString::to_string).collect();
    assert_eq!(listed, ENDPOINTS);
    let server = made.join(Part::Pserver(ENDPOINTS[1]), &Env::new()).unwrap();
    assert!(server.is_server());
    assert_eq!(server.topology().rank(), 1);
    let refused = |part: Part<'_>, variable: (&str, &str), words: &str| {
        let error = made.join(part, &Env::from([variable])).err().expect("a refusal").to_string();
        assert!(error.contains(words), "{error}");
    };
    let words = "PADDLE_TRAINER_ID differs from the call of transpile: expected 1, got 0";
    refused(Part::Trainer, ("PADDLE_TRAINER_ID", "0"), words);
    let other = ("PADDLE_PSERVERS_IP_PORT_LIST", "10.0.0.1:6174");
    let words = "expected 10.0.0.1:6174,10.0.0.2:6174, got 10.0.0.1:6174";
    refused(Part::Pserver(ENDPOINTS[0]), other, words);
    refused(Part::Pserver("10.0.0.9:1"), ("CPU_NUM", "1"), "no server of this job");
}
