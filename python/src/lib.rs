//! The compiled module `fleet._fleet` of the Python package: the Rust API in the form that the thin
//! Python modules in `python/fleet` need.
//!
//! Python holds programs, scopes, strategies and executors as cells behind a lock that is never
//! waited for: use in two threads at once is an exception. Variables are ids in a program.

#![forbid(unsafe_code)]

mod args;
mod arrays;
mod commands;
mod cond;
mod data;
mod dataset_pass;
mod error;
mod executor;
mod files;
mod fs;
mod interrupt;
mod job;
mod jobs;
mod layers;
mod notes;
mod onnx;
mod optimizer;
mod program;
mod scope;
mod servers;
mod session;
mod strategy;
mod topology;
mod trainer;
mod transpiler;

/// The module `fleet._fleet`.
#[pyo3::pymodule(gil_used = true)]
mod _fleet {
    #[pymodule_export]
    use crate::commands::{run_fleet, run_fleetrun};
    #[pymodule_export]
    use crate::cond::{begin_cond, begin_else, end_cond};
    #[pymodule_export]
    use crate::data::{BatchesCell, DatasetCell};
    #[pymodule_export]
    use crate::executor::ExecutorCell;
    #[pymodule_export]
    use crate::files::{load_inference_model, load_vars, save_inference_model, save_vars};
    #[pymodule_export]
    use crate::fs::FsCell;
    #[pymodule_export]
    use crate::interrupt::is_waiting;
    #[pymodule_export]
    use crate::job::{FleetCell, amp_init, loss_scaling, whole_model};
    #[pymodule_export]
    use crate::jobs::{job_check, job_folder, job_predict, job_train};
    #[pymodule_export]
    use crate::layers::{call, layer_docs, signatures};
    #[pymodule_export]
    use crate::notes::{end_notes, log_notes};
    #[pymodule_export]
    use crate::onnx::{export_onnx, export_onnx_model};
    #[pymodule_export]
    use crate::optimizer::{apply_gradients, backward, check_optimizer, gradients, minimize};
    #[pymodule_export]
    use crate::program::{MarkCell, NamesCell, ProgramCell};
    #[pymodule_export]
    use crate::scope::ScopeCell;
    #[pymodule_export]
    use crate::servers::{
        dense_parameters, infer_program, init_server, init_worker, load_model, load_table, resume,
        run_server, save_model, save_table, save_tables, shrink, stop_worker,
    };
    #[pymodule_export]
    use crate::strategy::StrategyCell;
    #[pymodule_export]
    use crate::topology::TopologyCell;
    #[pymodule_export]
    use crate::transpiler::{TranspiledCell, TranspilerConfigCell, transpile};

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        crate::interrupt::remember_main_thread(module)
    }

    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
