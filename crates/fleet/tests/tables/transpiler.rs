//! Jobs of `DistributeTranspiler`: the split method decides where blocks are, and training equals
//! that without blocks.

use fleet::prelude::*;
use fleet::ps::{CommunicatorOptions, LocalServers, SaveFormat, SaveMode, ServerTables, Servers};
use fleet::servers::{
    DistributeTranspiler, DistributeTranspilerConfig, Exchange, PushMode, SplitMethod, Transpile,
    TranspiledJob, Worker,
};
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
    let who = Transpile { pservers, trainers, ..Default::default() };
    DistributeTranspiler::new(config).transpile(&net, net.var(&loss), Momentum::new(0.1, 0.9), &who)
}

fn names(job: &TranspiledJob, endpoint: &str) -> Vec<String> {
    let blocks = job.transpiled.blocks(endpoint).unwrap();
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
    assert_eq!(job.job.plan.notes.iter().filter(|note| note.contains(" on 10.0.0.")).count(), 5);
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
    let sends = job.get_trainer_program().root_ops().find(|(_, op)| op.name() == "send").unwrap();
    let epmap = [ENDPOINTS[0], ENDPOINTS[1], ENDPOINTS[0], ENDPOINTS[1], ENDPOINTS[0]];
    assert_eq!(sends.1.attr_strs("epmap"), epmap);
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
    let servers = ServerTables::all(&job.job.tables).unwrap();
    let client = Arc::new(LocalServers::new(&servers, 0).unwrap());
    let (exec, options) = (ExecOptions::threads(1), CommunicatorOptions::default());
    let worker = Worker::start(client, job.programs.clone(), &job.job, exec, options).unwrap();
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
    let [table] = &job.job.tables.tables[..] else { panic!() };
    let (table_id, len) = (table.table_id(), table.dense_len());
    let values = |servers: &Servers| {
        let mut values = vec![0.0; len];
        servers.tables.pull_dense(table_id, &mut values).unwrap();
        values
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

#[test]
fn switches_choose_the_mode() {
    let base = DistributeTranspilerConfig::default;
    let check = |config: DistributeTranspilerConfig, exchange: Exchange, corrects: bool| {
        let (net, loss) = network();
        let who = Transpile { pservers: SERVERS, trainers: 2, ..Default::default() };
        let transpiler = DistributeTranspiler::new(config);
        let job = transpiler.transpile(&net, net.var(&loss), Sgd::new(0.1), &who).unwrap();
        assert_eq!((job.job.plan.exchange, job.job.plan.corrects_delay), (exchange, corrects));
    };
    let late = || DistributeTranspilerConfig { sync_mode: false, ..base() };
    check(base(), Exchange::Pushes(PushMode::Sync), false);
    check(late(), Exchange::Pushes(PushMode::Async), false);
    check(
        DistributeTranspilerConfig { half_async: true, ..late() },
        Exchange::Pushes(PushMode::HalfAsync),
        false,
    );
    check(
        DistributeTranspilerConfig { enable_dc_asgd: true, ..late() },
        Exchange::Pushes(PushMode::HalfAsync),
        true,
    );
    let geo = DistributeTranspilerConfig { geo_sgd_mode: true, ..late() };
    check(geo, Exchange::Geo { k_steps: 100 }, false);

    let refused = |config: DistributeTranspilerConfig, words: &str| {
        let error = transpiled(config, 1).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    refused(DistributeTranspilerConfig { min_block_size: 100, ..base() }, "at least 8192");
    let split = DistributeTranspilerConfig { runtime_split_send_recv: true, ..base() };
    refused(split, "runtime_split_send_recv conflicts with sync_mode");
    refused(
        DistributeTranspilerConfig { enable_dc_asgd: true, ..base() },
        "set sync_mode to false",
    );
    let nccl = DistributeTranspilerConfig { mode: "nccl2".into(), ..base() };
    refused(nccl, "Fleet::collective");
}
