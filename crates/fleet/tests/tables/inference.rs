//! Inference over a network that was built apart from the one that is trained.

use fleet::prelude::*;
use fleet::ps::{CommunicatorOptions, LocalServers, SaveFormat, SaveMode, ServerTables};
use fleet::servers::{Place, ServerJob, Worker};
use std::sync::Arc;

/// The documents' `net(is_train)`: with dropout, a batch norm and a loss, or the scores alone.
fn network(net: &Net, is_train: bool) -> Var<'_> {
    let ids = net.data("ids", [-1, 2], DType::I64);
    let table = |name: &str| Embedding::new(40, 4).sparse().weight(ParamAttr::from(name));
    let rows = ids.embedding(table("words")).flatten(1);
    let again = ids.embedding(table("words")).flatten(1);
    let hidden =
        net.concat(&[rows, again], 1).fc(Fc::new(6).act(Act::Tanh)).batch_norm(BatchNorm::new());
    let hidden = if is_train { hidden.dropout(0.25) } else { hidden };
    let scores = hidden.fc(1);
    if !is_train {
        return scores;
    }
    scores.mse_loss(net.data("y", [-1, 1], DType::F32), Reduction::Mean)
}

fn worker(strategy: &str) -> (Worker, ServerJob) {
    let net = Net::new();
    let loss = network(&net, true);
    let place = Place { worker: 0, worker_count: 1, server_count: 2, half_async: false };
    let strategy = DistributedStrategy::parse(strategy).unwrap();
    let job = ServerJob::minimize(&net, loss, &Sgd::new(0.1).into(), None, &strategy, place);
    let job = job.unwrap();
    let servers = ServerTables::all(&job.tables).unwrap();
    let client = Arc::new(LocalServers::new(&servers, 0).unwrap());
    let (programs, options) = (net.build().unwrap(), CommunicatorOptions::default());
    let worker = Worker::start(client, programs, &job, ExecOptions::threads(1), options).unwrap();
    (worker, job)
}

fn feeds() -> [Tensor; 2] {
    let ids = Tensor::from_slice(&[1i64, 2, 3, 1, 30, 5], [3, 2]).unwrap();
    [ids, Tensor::from_slice(&[1.0f32, -1.0, 0.5], [3, 1]).unwrap()]
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    tensor.to_vec::<f32>().unwrap().iter().map(|value| value.to_bits()).collect()
}

#[test]
fn a_network_without_dropout_and_labels_scores_as_the_trained_one() {
    for strategy in ["a_sync: false", "a_sync: true a_sync_configs { k_steps: 2 }"] {
        let (mut worker, _) = worker(strategy);
        let [ids, y] = feeds();
        for _ in 0..5 {
            worker.run(&[("ids", &ids), ("y", &y)], &[]).unwrap();
        }
        worker.flush().unwrap();
        let test = Net::new();
        let score = network(&test, false).name();
        let mut apart = worker.infer_over(test.build().unwrap()).unwrap();
        let is_remote = apart.program().to_string().contains("distributed_lookup_table");
        assert_eq!(is_remote, !strategy.contains("k_steps"));
        let mut same = worker.infer().unwrap();
        let out = apart.run(&[("ids", &ids)], &[&score]).unwrap();
        let want = same.run(&[("ids", &ids)], &[&score]).unwrap();
        assert_eq!(bits(&out[0]), bits(&want[0]), "{strategy}");
        // New steps are seen after a refresh.
        worker.run(&[("ids", &ids), ("y", &y)], &[]).unwrap();
        worker.flush().unwrap();
        apart.refresh().unwrap();
        let later = apart.run(&[("ids", &ids)], &[&score]).unwrap();
        assert_ne!(bits(&later[0]), bits(&out[0]), "{strategy}");
        worker.stop().unwrap();
    }
}

#[test]
fn other_networks_are_refused_by_name() {
    let (mut worker, _) = worker("a_sync: false");
    let check = |build: &dyn Fn(&Net), words: &str| {
        let test = Net::new();
        build(&test);
        let refused = worker.infer_over(test.build().unwrap()).map(drop);
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(words), "'{words}' is not in: {error}");
    };
    check(
        &|net| _ = net.data("x", [-1, 16], DType::F32).fc(Fc::new(6).weight("fc_0.w_1")),
        "parameter 'fc_0.w_1' of the network for inference was not trained; did you mean \
         'fc_0.w_0'?",
    );
    check(
        &|net| _ = net.data("x", [-1, 15], DType::F32).fc(6),
        "parameter 'fc_0.w_0' has another size here: expected 96 numbers",
    );
    let wide = |net: &Net| {
        let table = Embedding::new(40, 5).sparse().weight(ParamAttr::from("words"));
        net.data("ids", [-1, 2], DType::I64).embedding(table);
    };
    check(&wide, "'words' has another width here: expected 4 columns");
    worker.stop().unwrap();
}

/// A later process predicts from a save, over a network that was built for inference.
#[test]
fn a_save_is_enough() {
    let folder = std::env::temp_dir().join(format!("fleet-infer-over-{}", std::process::id()));
    let fleet = Fleet::parameter_server().unwrap();
    let net = Net::new();
    let loss = network(&net, true);
    let optimizer = fleet.distributed_optimizer(Sgd::new(0.1), &DistributedStrategy::new());
    let job = optimizer.minimize_on_servers(&net, loss).unwrap();
    let options = ExecOptions::threads(1);
    let mut worker = fleet.init_worker(net.build().unwrap(), &job, options.clone()).unwrap();
    let [ids, y] = feeds();
    for _ in 0..5 {
        worker.run(&[("ids", &ids), ("y", &y)], &[]).unwrap();
    }
    worker.save_persistables(&folder, SaveMode::All, SaveFormat::Binary).unwrap();
    let test = Net::new();
    let score = network(&test, false).name();
    let mut infer = worker.infer_over(test.build().unwrap()).unwrap();
    let want = infer.run(&[("ids", &ids)], &[&score]).unwrap();
    worker.stop().unwrap();
    let programs = test.build().unwrap();
    let mut infer = fleet.distributed_infer_over(programs, &job, Some(&folder), options).unwrap();
    let out = infer.run(&[("ids", &ids)], &[&score]).unwrap();
    assert_eq!(bits(&out[0]), bits(&want[0]));
    infer.stop().unwrap();
    std::fs::remove_dir_all(&folder).ok();
}
