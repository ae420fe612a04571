//! Fleet's side of the benchmarks:
//! `fleet-bench NAME [--threads N] [--steps N] [--warmup N] [--profile]` runs one workload and
//! prints one JSON line. `bench/README.md` describes the workloads, and `cargo xtask bench` runs
//! them alternately with the peers.

#![forbid(unsafe_code)]

mod bert4;
mod cpu;
mod csv_training;
mod data;
mod datasets;
mod ddp;
mod images;
mod launch;
mod logs;
mod measure;
mod mp;
mod nearest;
mod plsc;
mod ps_rpc;
mod ps_table;
mod ps_train;
mod py;
mod rec;
mod resnet50;
mod serving;
mod wide_deep;

use measure::Options;
use mp::Division;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let outcome = Options::parse(&args).and_then(|options| {
        match options.name.as_str() {
            "train/wide_deep_sgd" => wide_deep::run(&options, wide_deep::TableRule::Sgd),
            "train/wide_deep_adagrad" => wide_deep::run(&options, wide_deep::TableRule::Adagrad),
            "train/bert4" => bert4::run(&options, false),
            "train/bert4_bf16" => bert4::run(&options, true),
            "train/resnet50" => resnet50::run(&options),
            "data/multislot_parse_vs_500MBps" => data::multislot_parse(&options),
            "data/wide_deep_text_vs_memory" => data::wide_deep_text_vs_memory(&options),
            "data/wide_deep_text_vs_memory_1s2w" => ps_train::text_vs_memory(&options),
            "data/load" => datasets::load(&options),
            "data/shuffle" => datasets::shuffle(&options),
            "data/batches" => datasets::batches(&options),
            "data/csv_load" => datasets::csv_load(&options),
            "data/columns_load" => datasets::columns_load(&options),
            "data/images_vs_compute" => images::images_vs_compute(&options),
            "ps/table_pull_rows_per_core_1e7" => ps_table::pull(&options),
            "ps/table_push_rows_per_core_5e6" => ps_table::push(&options),
            "ps/table_payload_percent_of_held" => ps_table::memory(&options),
            "ps/rpc_pull_rows_per_pair_3e6" => ps_rpc::pull(&options),
            "ps/rpc_push_rows_per_pair_3e6" => ps_rpc::push(&options),
            "ps/wide_deep_durability" => ps_train::durability(&options),
            "ps/durability_cost" => ps_rpc::durability(&options),
            "ps/wide_deep_1s1w_vs_paddle" => ps_train::run(&options, 1, true),
            "ps/wide_deep_1s2w_vs_paddle" => ps_train::run(&options, 2, true),
            "ps/wide_deep_1s2w_sync" => ps_train::run(&options, 2, false),
            "py/run_overhead" => py::run_overhead(&options),
            "launch/startup_vs_50ms" => launch::startup(&options),
            "ddp/mlp_step_vs_torch" => ddp::step(&options, "mlp"),
            "ddp/resnet50_step_vs_torch" => ddp::step(&options, "resnet50"),
            "ddp/mlp_weak_scaling" | "ddp/mlp_weak_scaling_vs_torch" => {
                ddp::weak_scaling(&options, "mlp")
            }
            "ddp/resnet50_weak_scaling" | "ddp/resnet50_weak_scaling_vs_torch" => {
                ddp::weak_scaling(&options, "resnet50")
            }
            "ddp/mlp_side_by_side" => ddp::side_by_side(&options, "mlp"),
            "ddp/resnet50_side_by_side" => ddp::side_by_side(&options, "resnet50"),
            "ddp/mlp_in_step" => ddp::in_step(&options, "mlp"),
            "ddp/resnet50_in_step" => ddp::in_step(&options, "resnet50"),
            "ddp/mlp_exposed_comm" => ddp::exposed_comm(&options, "mlp"),
            "ddp/resnet50_exposed_comm" => ddp::exposed_comm(&options, "resnet50"),
            "ddp/mlp_update_on_arrival" => ddp::update_on_arrival(&options),
            "mp/pipeline" => mp::scaling(&options, Division::Stages("1F1B")),
            "mp/pipeline_vs_torch" => mp::step(&options, Division::Stages("ZBH1")),
            "mp/tensor" => mp::scaling(&options, Division::Layers),
            "mp/tensor_vs_torch" => mp::step(&options, Division::Layers),
            "mp/sharding_stage1" => mp::sharding(&options, 1),
            "mp/sharding_stage2" => mp::sharding(&options, 2),
            "mp/sharding_stage3" => mp::sharding(&options, 3),
            "mp/fsdp_vs_torch" => mp::step(&options, Division::State(3)),
            "mp/plsc" => plsc::step(&options),
            other => job(other, &options),
        }
        .map_err(|error| error.to_string())
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a benchmark of job files.
fn job(name: &str, options: &Options) -> fleet::Result<()> {
    match name {
        "rec/serve_json" => serving::serve_json(options),
        #[cfg(feature = "grpc")]
        "rec/serve_grpc" => serving::serve_grpc(options),
        "rec/predict" => serving::predict(options),
        "rec/csv_training" => csv_training::run(options, csv_training::Rows::Loaded),
        "rec/csv_training_streamed" => csv_training::run(options, csv_training::Rows::Streamed),
        "rec/nearest_100000" => nearest::run(options, 100_000),
        "rec/nearest_1000000" => nearest::run(options, 1_000_000),
        "rec/criteo_logs" => logs::run(options),
        "rec/adult_vs_widedeep" => rec::run(options, &rec::ADULT),
        "rec/movielens_vs_widedeep" => rec::run(options, &rec::MOVIELENS),
        other => Err(fleet::Error::invalid("unknown benchmark").got(other)),
    }
}
