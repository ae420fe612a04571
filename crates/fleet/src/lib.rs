//! Fleet: training of deep models.
//!
//! A network is written with [`Net`](nn::Net), becomes a pair of programs, and is run by a
//! [`Session`]:
//!
//! ```
//! use fleet::prelude::*;
//!
//! let net = Net::new();
//! let x = net.data("x", [-1, 2], DType::F32);
//! let y = net.data("y", [-1, 1], DType::F32);
//! let loss = x.fc(1).mse_loss(y, Reduction::Mean);
//! net.minimize(loss, Sgd::new(0.1))?;
//! let loss = loss.name();
//!
//! let mut session = Session::new(net.build()?, ExecOptions::default())?;
//! let x = Tensor::from_slice(&[1.0f32, 0.0, 0.0, 1.0], [2, 2])?;
//! let y = Tensor::from_slice(&[3.0f32, -1.0], [2, 1])?;
//! for _ in 0..200 {
//!     session.run(&[("x", &x), ("y", &y)], &[])?;
//! }
//! let out = session.run(&[("x", &x), ("y", &y)], &[&loss])?;
//! assert!(out[0].item::<f32>()? < 1e-3);
//! # Ok::<(), fleet::Error>(())
//! ```

#![deny(missing_docs)]
#![forbid(unsafe_code)]
// These macros panic if a log's disk is full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod agree;
#[cfg(feature = "app")]
pub mod app;
mod checkpoints;
mod comm_world;
mod connection;
mod dataset_run;
mod distributed;
mod exchange;
mod explain;
mod feed_layout;
mod fit;
mod fleet;
mod hadoop;
mod job_store;
mod membership;
pub mod metrics;
mod model_average;
mod nccl;
mod numbers;
mod onnx;
mod optimizer;
mod options;
#[cfg_attr(not(feature = "app"), allow(dead_code))]
mod planner;
mod probe;
mod report;
mod rings;
mod save;
mod saved_tables;
pub mod servers;
mod session;
mod slices;
mod step_clock;
mod store_part;
mod terminal;
pub mod trainer;
mod util;
mod whole;

pub use checkpoints::{
    CheckpointPolicy, Checkpoints, Held, Resumed, SavedCheckpoint, SavedVar, Verified, VerifyState,
    checkpoints_in, verify_checkpoints,
};
pub use comm_world::CommWorld;
pub use dataset_run::{DatasetReport, DatasetRun, Fetched, run_batches, run_from_dataset};
pub use distributed::Distributed;
pub use exchange::WorkerExchange;
pub use feed_layout::{feed_layout, slots_of};
pub use fleet::Fleet;
pub use fleet_base::{Error, ErrorKind, Result};
pub use fleet_comm::ReduceOp;
pub use fleet_exec::{
    Device, ExecOptions, Executor, Interpreter, Memory, PlanSummary, Scope, Shares, Span, Trace,
};
pub use fleet_onnx::{OnnxBuilder, OnnxInputs, OnnxOptions, OnnxValue, WrittenOnnx};
pub use fleet_passes::BuildOptions;
pub use fleet_strategy::DistributedStrategy;
pub use fleet_tensor::{DType, Element, Shape, Tensor, bf16, f16};
pub use fleet_topology::Topology;
pub use onnx::{export_onnx, export_onnx_model, export_onnx_model_from};
pub use optimizer::DistributedOptimizer;
pub use options::{exec_options, in_force};
pub use rings::GroupRing;
pub use save::{
    InferenceModel, Precision, load_inference_model, load_params, load_persistables, load_vars,
    load_vars_where, save_inference_model, save_inference_model_as, save_params, save_persistables,
    save_vars,
};
pub use saved_tables::reads_tables;
pub use session::{Session, set_host_rates};
pub use trainer::Trainer;
pub use util::Util;
pub use whole::WholeModel;

/// Imports for most programs: networks, sessions, jobs, strategies and data sets.
pub mod prelude {
    pub use crate::data::{
        Dataset, DatasetOptions, InMemoryDataset, QueueDataset, Schema, Slot, TextFiles,
    };
    pub use crate::{
        BuildOptions, CheckpointPolicy, DType, DatasetRun, DistributedStrategy, Error, ExecOptions,
        Executor, Fleet, ReduceOp, Result, Scope, Session, Shape, Tensor, Trainer,
    };
    pub use fleet_nn::prelude::*;
}

/// Networks: layers, losses, optimizers, learning rates and a zoo of models.
pub mod nn {
    pub use fleet_nn::{
        Act, Auc, AucVars, CrossEntropy, Curve, Elementwise, GradClip, Gradients, Guard, HostFn,
        HostRate, Init, LearningRate, LrSchedule, Minimized, Net, OpCall, OpenCond, Operand,
        Outputs, ParamAttr, Programs, Reduction, Regularizer, Var, layers, models, optimizer,
    };
}

/// Programs: blocks, ops and variables by id.
pub mod ir {
    pub use fleet_ir::{
        Attr, Block, BlockId, Division, NameCounters, Op, OpBuilder, OpId, OpRole, Param, Program,
        Var, VarId, VarKind,
    };
}

/// Definitions of ops: their slots and attributes, shape and gradient rules, kernels and traits.
///
/// A program with an op of its own, which [`Registry::install`](ops::Registry::install) adds to
/// those that networks, executors, strategies, servers and loaders of models know:
///
/// ```standalone_crate
/// use fleet::ops::{AmpClass, AttrConst, Grad, Kernel, OpDef, OpSpec, OpTraits, Registry};
/// use fleet::ops::{attr, map::map, one};
/// use fleet::prelude::*;
///
/// static SHIFT: OpDef = OpDef {
///     spec: OpSpec {
///         name: "shift",
///         inputs: &[one("X")],
///         outputs: &[one("Out")],
///         attrs: &[attr("by", AttrConst::Float(1.0))],
///     },
///     infer: |i| {
///         let x = i.input("X")?;
///         i.set("Out", x.dtype, x.shape);
///         Ok(())
///     },
///     grad: Grad::None,
///     cpu: |p| {
///         let by = p.op.attr_float("by") as f32;
///         Ok(Kernel::new(move |k| {
///             map(k.pool, k.input_or_output(0, 0), k.output::<f32>(0), |x| x + by);
///             Ok(())
///         }))
///     },
///     traits: OpTraits::amp(AmpClass::Gray),
/// };
///
/// Registry::install(&[&SHIFT])?; // first in `main`
/// let net = Net::new();
/// let x = net.data("x", [-1], DType::F32);
/// let y = net.op("shift").input("X", x).attr("by", 2.0).one("Out").name();
/// let mut session = Session::new(net.build()?, ExecOptions::threads(1))?;
/// let x = Tensor::from_slice(&[1.0f32, 2.0], [2])?;
/// let out = session.run(&[("x", &x)], &[&y])?;
/// assert_eq!(out[0].to_vec::<f32>()?, [3.0, 4.0]);
/// # Ok::<(), fleet::Error>(())
/// ```
pub mod ops {
    pub use fleet_ir::{
        Arity, AttrConst, AttrKind, AttrSpec, OpSpec, SlotSpec, attr, many, one, optional, required,
    };
    pub use fleet_kernels::input::Input;
    pub use fleet_kernels::map;
    pub use fleet_kernels::pool::Pool;
    pub use fleet_ops::{
        AmpClass, Cost, CostCtx, Emit, Grad, GradCtx, Images, InferCtx, Kernel, KernelCtx, Lane,
        LookUp, Lookup, Meta, OpDef, OpEmitter, OpTraits, PrepareCtx, PushRows, Registry, Ring,
        Services, Spill, Spread, Tables, Traffic, elementwise_cost, meta, verify,
    };
    pub use fleet_tensor::{Layout, Out, View, view_as, view_as_mut};
}

/// Messages of a strategy, the file that it was read from, and its effect on a program.
pub mod strategy {
    pub use fleet_strategy::{
        AdaptiveLocalSgdConfig, AmpConfig, AsyncConfig, Axis, BuildStrategy, CtrAccessorParameter,
        DgcConfig, DistributedStrategy, ExecutionStrategy, FsClientParameter, GradientMergeConfig,
        Grid, HybridConfig, LambConfig, LarsConfig, LocalSgdConfig, LocalVar, Notices,
        PipelineConfig, RecomputeConfig, ShardingConfig, Spread, StageInfo, StrategyForm,
        StrategySource, TableAccessorParameter, TableParameter, TensorParallelConfig,
        TrainerDescConfig, Value, Written, cost, local_state, validate,
    };
}

/// Data: slots, formats of files, datasets, loaders and images.
pub mod data {
    #[cfg(feature = "object-store")]
    pub use fleet_data::ObjectStores;
    #[cfg(feature = "parquet")]
    pub use fleet_data::ParquetFiles;
    pub use fleet_data::{
        BadRows, Batch, BatchLayout, BatchSource, Batches, Block, Column, ColumnFiles, ColumnKind,
        ColumnSpec, ColumnSummary, Criteo, CriteoHash, Csv, CsvColumn, CsvHeader, Cursor,
        DataFormat, DataGenerator, DataLoader, DataLoaderOptions, Dataset, DatasetOptions,
        Downloader, Exchange, Feed, Field, FieldSample, ImageList, ImageOptions, Images,
        InMemoryDataset, InProcessExchange, InferredKind, Input, JsonLines, LibSvm, LineError,
        LineFormat, LineReader, Loader, LoaderOptions, MultiSlot, MultiSlotWriter, NumberSummary,
        OnError, Part, Pixels, Prefetch, QueueDataset, RecordFormat, RecordReader, RowRef, Sample,
        SampleWriter, Samples, Schema, Skipped, Slot, SlotForm, SlotKind, SuppliedBatches, Survey,
        SurveyOptions, TensorDataset, TextDictionary, TextFiles, TextObserver, Value, Values,
        category_hash, decode_image, file_shard, glob, hash_bucket, shard_range, sum_over,
    };
    #[cfg(feature = "tfrecord")]
    pub use fleet_data::{TfRecordReader, TfRecords};
}

/// File systems: that of this machine, and those that a Hadoop client reaches.
pub mod fs {
    pub use fleet_base::fs::{CommandFs, Entry, FileSystem, LocalFs, joined};
}

/// Files of tensors and programs: checkpoints, safetensors, npy and npz.
pub mod format {
    pub use fleet_format::{
        Checkpoint, Form, Meta, NamedTensors, TensorInfo, list_tensors, load_model, load_program,
        load_tensors, load_vars, read_npy, read_npz, read_safetensors, save_model, save_program,
        save_tensors, write_npy, write_npz, write_safetensors,
    };
}

/// Parameter servers: their tables, the requests of workers, and saves. [`servers`] has the jobs.
pub mod ps {
    #[cfg(feature = "grpc")]
    pub use fleet_ps::control;
    pub use fleet_ps::{
        Accessor, Arrival, Barriers, CommunicatorOptions, CommunicatorStats, CtrAccessor,
        DenseConfig, Durability, Entry, Ids, Initializer, JobTables, LocalServers, NonFinite,
        PullMode, Push, Rule, RunControl, START_ROUNDS, SaveFormat, SaveFs, SaveMode, SavedTable,
        ServerTables, Servers, SparseConfig, Step, TableAccess, TableAdmin, TableConfig,
        TableIndex, TableStats, Tables, UniqueIds, WorkerSeen,
    };
}

/// The place of a process in its job, as the environment or the program describes it.
pub mod topology {
    pub use fleet_topology::{
        Endpoint, Env, Gloo, GlooMembers, HeterStage, Host, Job, Local, Mode, Rendezvous, Role,
        Secret, Topology, UserDefinedRoleMaker,
    };
}

/// Random numbers that depend only on seed, stream and position.
pub mod rng {
    pub use fleet_base::rng::{Philox, Sequence};
}
