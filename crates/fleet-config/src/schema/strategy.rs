//! The strategy itself: switches, communication settings, and messages with further settings.

use super::collective::*;
use super::define::message;
use super::execution::*;
use super::hybrid::*;
use super::server::*;
use crate::reflect::EnumShape;

/// Kind of a job. It follows from how the job was started, and is rarely assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Mode {
    /// Workers exchange gradients among themselves.
    Collective = 1,
    /// Parameter servers update the parameters.
    Ps = 2,
    /// Workers are stages of a pipeline.
    Pipeline = 3,
    /// Workers have different kinds of devices.
    Heter = 4,
}

pub(crate) static MODE: EnumShape = EnumShape {
    name: "Mode",
    values: &[("COLLECTIVE", 1), ("PS", 2), ("PIPELINE", 3), ("HETER", 4)],
};

message! {
    /// All settings of a distributed job.
    DistributedStrategy = "DistributedStrategy" {
        /// The kind of job.
        mode(1): optional enumeration["Mode"] = "Collective",
            ignored "the launcher determines whether a job has servers";
        /// Automatic mixed precision (`amp_configs`).
        amp(2): optional bool = false;
        /// Recomputes activations in the backward pass instead of keeping them
        /// (`recompute_configs`).
        recompute(3): optional bool = false;
        /// Workers train alone, and parameters are averaged every few steps (`localsgd_configs`).
        localsgd(4): optional bool = false;
        /// Sends only the largest gradient elements and keeps the rest for later steps
        /// (`dgc_configs`).
        dgc(5): optional bool = false;
        /// Updates parameters every few steps, with the gradients of all these steps
        /// (`gradient_merge_configs`).
        gradient_merge(6): optional bool = false;
        /// Replaces a Momentum optimizer by LARS (`lars_configs`).
        lars(7): optional bool = false;
        /// Replaces an Adam optimizer by LAMB (`lamb_configs`).
        lamb(8): optional bool = false;
        /// Workers run consecutive stages of the program, cut at its device labels or by cost
        /// (`pipeline_configs`).
        pipeline(9): optional bool = false;
        /// Reserved for elastic jobs.
        elastic(10): optional bool = false,
            ignored "`fleetrun --nnodes MIN:MAX` starts an elastic job";
        /// Chooses the settings, if nothing else is assigned.
        auto(11): optional bool = false;
        /// Updates of a parameter server: true for asynchronous, false for synchronous
        /// (`a_sync_configs`).
        a_sync(12): optional bool = true, only Servers "the job has no servers";
        /// Sums gradients in the computing thread, which waits for each sum. If false or not
        /// assigned, sums overlap the backward pass.
        sync_nccl_allreduce(13): optional bool = true,
            only Collective "gradients are sent to servers";
        /// Number of parallel communicators. At most 8. Recommended: 1 on one machine, 2
        /// on several.
        nccl_comm_num(14): optional int32 = 1,
            allowed [AT_LEAST_1, "gradients need a communicator", "1 on one machine, 2 on several"],
            only Collective "gradients are sent to servers";
        /// All-reduce on two levels, within groups and across them.
        use_hierarchical_allreduce(15): optional bool = false,
            only Collective "gradients are sent to servers";
        /// Ranks in a group of the lower level; 1 means the ranks of one machine.
        hierarchical_allreduce_inter_nranks(16): optional int32 = 1,
            allowed [AT_LEAST_1, COUNT, "the number of workers on one machine"],
            only Collective "gradients are sent to servers";
        /// Batch norm computes statistics over all workers.
        sync_batch_norm(17): optional bool = false;
        /// All-reduces gradients in buckets.
        fuse_all_reduce_ops(18): optional bool = true,
            only Collective "gradients are sent to servers";
        /// Limit of a bucket's size, in MB; 0 for one bucket, -1 for one bucket per layer.
        fuse_grad_size_in_MB(19): optional int32 = 32,
            allowed [
                Range(Included(-1.0), Unbounded),
                "0 puts all gradients in one bucket, -1 those of each layer",
                "32, or fuse_all_reduce_ops false for no buckets"
            ],
            only Collective "gradients are sent to servers";
        /// Number of parameters, despite the name, above which a bucket of gradients is closed; the
        /// parameters of a layer stay together.
        fuse_grad_size_in_TFLOPS(20): optional float = 50.0,
            allowed [AT_LEAST_1, "it limits the parameters whose gradients share a bucket", "50"],
            only Collective "gradients are sent to servers";
        /// Chooses convolution algorithms by trying all of them.
        cudnn_exhaustive_search(21): optional bool = false,
            ignored "cuDNN is not used; Fleet chooses its convolution by shape";
        /// Limit of a convolution's scratch memory, in MB.
        conv_workspace_size_limit(22): optional int32 = 512,
            allowed [AT_LEAST_0, NOT_NEGATIVE, "512"],
            ignored "cuDNN is not used; scratch memory is planned";
        /// Uses the persistent batch norm algorithm.
        cudnn_batchnorm_spatial_persistent(23): optional bool = false, ignored "cuDNN is not used";
        /// LocalSGD with an interval that depends on the loss (`adaptive_localsgd_configs`).
        adaptive_localsgd(24): optional bool = false;
        /// All-reduces gradients as 16-bit floats (`fp16_allreduce_dtype`).
        fp16_allreduce(25): optional bool = false;
        /// Divides parameters, gradients and optimizer state among workers (`sharding_configs`).
        sharding(26): optional bool = false;
        /// Limit of the last bucket's size, in MB; a smaller bucket leaves less exposed
        /// communication.
        last_comm_group_size_MB(27): optional float = 1.0,
            allowed [ABOVE_0, "the last bucket cannot be empty", "1"],
            only Collective "gradients are sent to servers";
        /// Searches for parameters that a step does not use.
        find_unused_parameters(28): optional bool = false,
            ignored "a program states which parameters it uses";
        /// Divides layers among workers (`tensor_parallel_configs`).
        tensor_parallel(29): optional bool = false;
        /// If true, all-reduces are part of the program.
        without_graph_optimization(30): optional bool = true,
            ignored "all-reduces are always part of the program, which is always optimised";
        /// Parameters in a bucket. If only this limit is assigned, buckets are limited by count,
        /// not by size.
        fuse_grad_size_in_num(31): optional int32 = 8,
            allowed [AT_LEAST_1, "a bucket cannot be empty", "8"],
            only Collective "gradients are sent to servers";
        /// Runs collectives on the compute stream.
        calc_comm_same_stream(32): optional bool = false,
            ignored "each communicator has its own lane; waits follow from the program";
        /// Trains with 2:4 sparse weights.
        asp(33): optional bool = false, ignored "2:4 sparse weights are not supported";
        /// Merges gradients in one shared buffer.
        fuse_grad_merge(34): optional bool = false,
            ignored "memory is planned for the whole program";
        /// Semi-automatic parallelism.
        semi_auto(35): optional bool = false, ignored "programs carry no placement annotations";
        /// Adam with d2sum on the parameter server.
        adam_d2sum(36): optional bool = false, ignored "the table's accessor selects its rule";
        /// Searches for a parallel plan.
        auto_search(37): optional bool = false,
            ignored "auto chooses from the program's costs and does not search";
        /// Collectives between different kinds of devices.
        heter_ccl_mode(38): optional bool = false,
            ignored "all ranks of a job use one kind of device";
        /// Federated learning on the parameter server.
        is_fl_ps_mode(39): optional bool = false, ignored "federated learning is not supported";
        /// Federated learning with a coordinator.
        with_coordinator(40): optional bool = false, ignored "federated learning is not supported";
        /// Quantisation-aware training (`qat_configs`).
        qat(41): optional bool = false, ignored "quantised kernels are not supported";
        /// Divides batches among tensor-parallel workers.
        split_data(42): optional bool = true,
            ignored "data sets are divided among ranks by the loader";
        /// Settings of recompute.
        recompute_configs(101): optional message(RecomputeConfig);
        /// Settings of mixed precision: loss scaling and op lists.
        amp_configs(102): optional message(AmpConfig);
        /// Settings of LocalSGD.
        localsgd_configs(103): optional message(LocalSgdConfig);
        /// Settings of gradient merge.
        gradient_merge_configs(104): optional message(GradientMergeConfig);
        /// Settings of gradient compression.
        dgc_configs(105): optional message(DgcConfig);
        /// Settings of the pipeline.
        pipeline_configs(106): optional message(PipelineConfig);
        /// How workers and servers exchange gradients and parameters.
        a_sync_configs(107): optional message(AsyncConfig), only Servers "the job has no servers";
        /// Settings of LARS.
        lars_configs(108): optional message(LarsConfig);
        /// Settings of LAMB.
        lamb_configs(109): optional message(LambConfig);
        /// Settings of adaptive LocalSGD.
        adaptive_localsgd_configs(110): optional message(AdaptiveLocalSgdConfig);
        /// Settings of sharding.
        sharding_configs(111): optional message(ShardingConfig);
        /// Degrees of parallelism of a hybrid job.
        hybrid_configs(112): optional message(HybridConfig);
        /// Settings of tensor parallelism.
        tensor_parallel_configs(113): optional message(TensorParallelConfig);
        /// Output and special variables of the trainers in a parameter-server job.
        trainer_desc_configs(114): optional message(TrainerDescConfig),
            ignored "nothing is dumped while a program trains";
        /// The sparse tables of the parameter server.
        downpour_table_param(115): repeated message(TableParameter),
            only Servers "the job has no servers";
        /// The Hadoop client of saves to `hdfs://` and `afs://` folders.
        fs_client_param(116): optional message(FsClientParameter),
            only Servers "the job has no servers";
        /// Settings of quantisation-aware training.
        qat_configs(117): optional message(QatConfig),
            ignored "quantised kernels are not supported";
        /// Rewrites before a program runs.
        build_strategy(201): optional message(BuildStrategy);
        /// Threads and iterations of a run.
        execution_strategy(202): optional message(ExecutionStrategy);
        /// How the gradients of workers are combined.
        gradient_scale_configs(203): optional message(GradientScaleConfig);
        /// With `fp16_allreduce`: `float16`, or `bfloat16`, in which gradients neither overflow nor
        /// underflow but have fewer digits. This is Fleet's own field, unknown to other readers of
        /// the message.
        fp16_allreduce_dtype(1001): optional string = "float16",
            allowed [
                OneOf(&["float16",
                "bfloat16"]),
                "these are the 16-bit floats",
                "bfloat16 where gradients may be large or tiny, float16 for more digits"
            ];
    }

    /// A job as the master sees it: participants, programs, and strategy.
    DistributedJobInfo = "DistributedJobInfo" {
        /// Number of workers.
        worker_num(1): optional int32;
        /// Number of servers.
        server_num(2): optional int32;
        /// Addresses of the workers.
        worker_ips(3): repeated string;
        /// Addresses of the servers.
        server_endpoints(4): repeated string;
        /// The startup program before rewrites.
        origin_startup(5): optional string;
        /// The main program before rewrites.
        origin_main(6): optional string;
        /// The main program after rewrites.
        distributed_main(7): optional string;
        /// The user's optimizer.
        optimizer_name(8): optional string;
        /// The user's strategy.
        strategy(101): optional message(DistributedStrategy);
    }
}
