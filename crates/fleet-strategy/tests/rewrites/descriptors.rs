//! The documented text of a job's tables.

use fleet_nn::optimizer::OptimizerDesc;
use fleet_nn::prelude::*;
use fleet_strategy::DistributedStrategy;
use fleet_strategy::servers::{Place, ServerPlan, minimize};

const PLACE: Place = Place { worker: 0, worker_count: 1, server_count: 1, half_async: false };

fn plan(
    net: &Net,
    loss: Var<'_>,
    optimizer: impl Into<OptimizerDesc>,
    strategy: &str,
) -> ServerPlan {
    let (loss, optimizer) = (loss.id(), optimizer.into());
    let strategy = DistributedStrategy::parse(strategy).unwrap();
    net.rewrite_with(|programs, registry| {
        minimize(programs, registry, loss, &optimizer, None, &strategy, PLACE)
    })
    .unwrap()
}

/// The documents' example: an embedding of [1000, 128], four layers, and Adam.
fn documented() -> ServerPlan {
    let net = Net::new();
    let ids = net.data("sparse_input", [-1, 1], DType::I64);
    let label = net.data("label", [-1, 1], DType::I64);
    let rows = ids.embedding(Embedding::new(1000, 128).sparse()).flatten(1);
    let hidden = [1024, 512, 256].iter().fold(rows, |x, size| x.fc(Fc::new(*size).act(Act::Relu)));
    let loss = hidden.fc(2).cross_entropy(label);
    plan(&net, loss, Adam::new(1e-4), "a_sync: true")
}

#[test]
fn the_example_of_the_documents() {
    let plan = documented();
    let text = plan.server_descriptor(PLACE, 0);
    let seed = plan.tables.sparse[0].config.seed;
    let expected = DOCUMENTED.replace("SEED", &seed.to_string());
    assert_eq!(text, expected, "{text}");
    // With two servers, each shows its part; workers show the whole.
    let place = Place { server_count: 2, worker_count: 3, ..PLACE };
    let second = plan.server_descriptor(place, 1);
    assert!(
        second.contains("fea_dim: 394368\n") && second.contains("trainer_num: 3\n"),
        "{second}"
    );
    let worker = plan.worker_descriptor(place);
    assert!(worker.starts_with("worker_param {\n  downpour_worker_param {\n"), "{worker}");
    assert!(worker.contains("dims: 788738\n") && !worker.contains("service_param"), "{worker}");
}

const DOCUMENTED: &str = r#"server_param {
  downpour_server_param {
    service_param {
      server_class: "BrpcPsServer"
      client_class: "BrpcPsClient"
      service_class: "BrpcPsService"
      start_server_port: 0
      server_thread_num: 12
    }
    downpour_table_param {
      table_id: 0
      table_class: "CommonSparseTable"
      shard_num: 256
      type: PS_SPARSE_TABLE
      accessor {
        accessor_class: "CommMergeAccessor"
        fea_dim: 1000
        embedx_dim: 128
      }
      common {
        name: "adam"
        table_name: "embedding_0.w_0"
        trainer_num: 1
        sync: false
        params: "Param"
        params: "Moment1"
        params: "Moment2"
        params: "Beta1Pow"
        params: "Beta2Pow"
        params: "LearningRate"
        dims: 128
        dims: 128
        dims: 128
        dims: 1
        dims: 1
        dims: 1
        initializers: "uniform_random&SEED&-0.0729324966669&0.0729324966669"
        initializers: "fill_constant&0.0"
        initializers: "fill_constant&0.0"
        initializers: "fill_constant&0.899999976158"
        initializers: "fill_constant&0.999000012875"
        initializers: "fill_constant&9.99999974738e-05"
        attr: "beta1&0.9#beta2&0.999#epsilon&1e-08"
      }
    }
    downpour_table_param {
      table_id: 1
      table_class: "CommonDenseTable"
      shard_num: 256
      type: PS_DENSE_TABLE
      accessor {
        accessor_class: "CommMergeAccessor"
        fea_dim: 788738
        embedx_dim: 1
      }
      common {
        name: "adam"
        table_name: "MergedDense"
        trainer_num: 1
        sync: false
        params: "Param"
        params: "Moment1"
        params: "Moment2"
        params: "Beta1Pow"
        params: "Beta2Pow"
        params: "LearningRate"
        dims: 788738
        dims: 788738
        dims: 788738
        dims: 1
        dims: 1
        dims: 1
        initializers: "fill_constant&0.0"
        initializers: "fill_constant&0.0"
        initializers: "fill_constant&0.0"
        initializers: "fill_constant&0.899999976158"
        initializers: "fill_constant&0.999000012875"
        initializers: "fill_constant&9.99999974738e-05"
        attr: "beta1&0.9#beta2&0.999#epsilon&1e-08"
      }
    }
    downpour_table_param {
      table_id: 2
      table_class: "BarrierTable"
      shard_num: 256
      type: PS_OTHER_TABLE
      accessor {
        accessor_class: "CommMergeAccessor"
        fea_dim: 0
        embedx_dim: 0
      }
      common {
        name: ""
        table_name: "barrier_table"
        trainer_num: 1
        sync: false
      }
    }
  }
}
"#;

/// Click rows, entries, GEO and schedules.
#[test]
fn other_tables() {
    let text = |optimizer: OptimizerDesc, strategy: &str| {
        let net = Net::new();
        let table = SparseEmbedding::new(1u64 << 40, 11).weight("rows");
        let ids = net.data("ids", [-1, 2], DType::I64);
        let loss = match strategy.contains("k_steps") {
            true => ids.embedding(Embedding::new(50, 11).sparse().weight("rows")).mean(),
            false => ids.sparse_embedding(table.entry(Entry::Count(10))).mean(),
        };
        plan(&net, loss, optimizer, strategy).server_descriptor(PLACE, 0)
    };
    let check = |text: &str, lines: &[&str]| {
        for line in lines {
            assert!(text.lines().any(|it| it.trim() == *line), "'{line}' is not in:\n{text}");
        }
    };
    let click = text(
        Sgd::new(0.5).into(),
        "a_sync: true downpour_table_param { table_name: \"rows\" compress_in_save: true \
         accessor { accessor_class: \"CtrCommonAccessor\" embedx_threshold: 4 \
         embedx_sgd_param { adam { learning_rate: 0.5 } } } }",
    );
    check(
        &click,
        &[
            "table_class: \"MemorySparseTable\"",
            "compress_in_save: true",
            "accessor_class: \"CtrCommonAccessor\"",
            "fea_dim: 11",
            "embedx_dim: 8",
            "embedx_threshold: 4",
            "show_click_decay_rate: 0.98",
            "name: \"SparseNaiveSGDRule\"",
            "name: \"SparseAdamSGDRule\"",
            "ada_epsilon: 1e-08",
            "entry: \"count_filter_entry:10\"",
        ],
    );
    let schedule = Adagrad::new(LrSchedule::exponential(0.5, 0.9));
    check(
        &text(schedule.into(), "a_sync: true"),
        &["name: \"adagrad\"", "params: \"Moment\"", "table_class: \"GlobalStepTable\""],
    );
    let geo = text(Sgd::new(0.5).into(), "a_sync: true a_sync_configs { k_steps: 4 }");
    check(&geo, &["table_class: \"MemorySparseGeoTable\"", "name: \"sum\"", "fea_dim: 50"]);
    assert!(!geo.contains("LearningRate"), "{geo}");
}
