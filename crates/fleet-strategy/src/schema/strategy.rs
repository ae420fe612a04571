//! The strategy itself: switches, numbers of communication, and the messages of the rest.

use super::*;
use crate::EnumShape;

/// What kind of job runs; it follows from how the job was started and is rarely assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Mode {
    Collective = 1,
    Ps = 2,
    Pipeline = 3,
    Heter = 4,
}

pub(crate) static MODE: EnumShape = EnumShape {
    name: "Mode",
    values: &[("COLLECTIVE", 1), ("PS", 2), ("PIPELINE", 3), ("HETER", 4)],
};

message! {
    /// Everything that a user can ask of a distributed job.
    DistributedStrategy = "DistributedStrategy" {
        /// The kind of job.
        mode(1): optional enumeration["Mode"] = "Collective", ignored "the launcher says whether a job has servers";
        /// Automatic mixed precision (`amp_configs`).
        amp(2): optional bool = false;
        /// Activations are computed again in the backward pass instead of kept
        /// (`recompute_configs`).
        recompute(3): optional bool = false;
        /// Every worker trains alone and parameters are averaged every few steps
        /// (`localsgd_configs`).
        localsgd(4): optional bool = false;
        /// Only the largest gradients are sent, the rest waits (`dgc_configs`).
        dgc(5): optional bool = false;
        /// Parameters are updated every few steps with the gradients of all of them
        /// (`gradient_merge_configs`).
        gradient_merge(6): optional bool = false;
        /// A Momentum optimizer becomes LARS (`lars_configs`).
        lars(7): optional bool = false;
        /// An Adam optimizer becomes LAMB (`lamb_configs`).
        lamb(8): optional bool = false;
        /// The program is cut at its device labels into stages (`pipeline_configs`).
        pipeline(9): optional bool = false, refused "a program runs whole on every rank";
        /// Reserved for jobs that change their size.
        elastic(10): optional bool = false, ignored "reserved: jobs keep their size";
        /// Choose what applies; only when nothing else is assigned.
        auto(11): optional bool = false;
        /// Updates of a parameter server: true for asynchronous, false for synchronous
        /// (`a_sync_configs`). Without effect in collective jobs.
        a_sync(12): optional bool = true;
        /// Each communication thread waits for its all-reduce; false lets them overlap.
        sync_nccl_allreduce(13): optional bool = true, ignored "communicators overlap, and waits follow from the program";
        /// Communicators beside each other: 1 on one machine, 2 on several is good advice.
        nccl_comm_num(14): optional int32 = 1;
        /// All-reduce in two levels, inside groups and between them.
        use_hierarchical_allreduce(15): optional bool = false;
        /// Ranks in a group of the lower level; 1 stands for those of one machine.
        hierarchical_allreduce_inter_nranks(16): optional int32 = 1;
        /// Batch norm takes its statistics over all workers.
        sync_batch_norm(17): optional bool = false;
        /// Gradients are all-reduced in buckets.
        fuse_all_reduce_ops(18): optional bool = true;
        /// Bytes in a bucket at most, in MB.
        fuse_grad_size_in_MB(19): optional int32 = 32;
        /// Despite its name: the most layers whose gradients share a bucket.
        fuse_grad_size_in_TFLOPS(20): optional float = 50.0;
        /// Convolution algorithms are chosen by trying all.
        cudnn_exhaustive_search(21): optional bool = false, ignored "there are no cuDNN kernels; Fleet chooses its convolution by shape";
        /// Scratch memory of a convolution, in MB.
        conv_workspace_size_limit(22): optional int32 = 512, ignored "there are no cuDNN kernels; scratch memory is planned";
        /// The persistent batch norm algorithm.
        cudnn_batchnorm_spatial_persistent(23): optional bool = false, ignored "there are no cuDNN kernels";
        /// LocalSGD whose interval follows the loss (`adaptive_localsgd_configs`).
        adaptive_localsgd(24): optional bool = false;
        /// Gradients are all-reduced as 16-bit floats (`fp16_allreduce_dtype`).
        fp16_allreduce(25): optional bool = false;
        /// Parameters, gradients and optimizer state are divided among workers
        /// (`sharding_configs`).
        sharding(26): optional bool = false, refused "every rank holds all parameters";
        /// Bytes in the last bucket at most, in MB: the smaller, the less is waited for at the end.
        last_comm_group_size_MB(27): optional float = 1.0;
        /// Parameters that a step does not use are looked for.
        find_unused_parameters(28): optional bool = false, ignored "a program states which parameters it uses";
        /// Layers are divided among workers (`tensor_parallel_configs`).
        tensor_parallel(29): optional bool = false, ignored "layers are divided by the model, with its own collective ops";
        /// True: all-reduces are written into the program itself.
        without_graph_optimization(30): optional bool = true, ignored "all-reduces are always written into the program, and it is always optimised";
        /// Parameters in a bucket: assigned alone, buckets are counted instead of measured.
        fuse_grad_size_in_num(31): optional int32 = 8;
        /// Collectives run on the stream of the compute.
        calc_comm_same_stream(32): optional bool = false, ignored "each communicator has a lane of its own; waits between lanes follow from the program";
        /// Training with 2:4 sparse weights.
        asp(33): optional bool = false, ignored "there are no kernels for 2:4 sparse weights";
        /// Gradients that are merged share one buffer.
        fuse_grad_merge(34): optional bool = false, ignored "memory is planned for the whole program";
        /// Semi-automatic parallelism.
        semi_auto(35): optional bool = false, ignored "programs carry no placement annotations";
        /// Adam with d2sum on the parameter server.
        adam_d2sum(36): optional bool = false, ignored "the table's accessor says which rule it uses";
        /// Search for a parallel plan.
        auto_search(37): optional bool = false, ignored "auto chooses from the program's costs and does not search";
        /// Collectives between unlike devices.
        heter_ccl_mode(38): optional bool = false, ignored "all ranks of a job use one kind of device";
        /// Federated learning on the parameter server.
        is_fl_ps_mode(39): optional bool = false, ignored "there is no federated mode";
        /// Federated learning with a coordinator.
        with_coordinator(40): optional bool = false, ignored "there is no federated mode";
        /// Training for quantised inference (`qat_configs`).
        qat(41): optional bool = false, ignored "there are no quantised kernels";
        /// Batches are divided among tensor-parallel workers.
        split_data(42): optional bool = true, ignored "data sets are divided among ranks by the loader";
        /// How recompute cuts the program.
        recompute_configs(101): optional message(RecomputeConfig);
        /// Loss scaling and lists of mixed precision.
        amp_configs(102): optional message(AmpConfig);
        /// The interval of LocalSGD.
        localsgd_configs(103): optional message(LocalSgdConfig);
        /// The interval of gradient merge.
        gradient_merge_configs(104): optional message(GradientMergeConfig);
        /// The sparsity of gradient compression.
        dgc_configs(105): optional message(DgcConfig);
        /// Micro-batches and their schedule.
        pipeline_configs(106): optional message(PipelineConfig), refused "a program runs whole on every rank";
        /// How workers and servers exchange.
        a_sync_configs(107): optional message(AsyncConfig);
        /// The coefficients of LARS.
        lars_configs(108): optional message(LarsConfig);
        /// The coefficients of LAMB.
        lamb_configs(109): optional message(LambConfig);
        /// The first interval of adaptive LocalSGD.
        adaptive_localsgd_configs(110): optional message(AdaptiveLocalSgdConfig);
        /// How wide to shard, and what.
        sharding_configs(111): optional message(ShardingConfig), refused "every rank holds all parameters";
        /// The grid of parallel degrees of a hybrid job.
        hybrid_configs(112): optional message(HybridConfig);
        /// The degree of tensor parallelism.
        tensor_parallel_configs(113): optional message(TensorParallelConfig), ignored "layers are divided by the model, with its own collective ops";
        /// What the trainers of a parameter-server job print and treat specially.
        trainer_desc_configs(114): optional message(TrainerDescConfig), ignored "nothing is dumped while a program trains";
        /// The sparse tables of the parameter server. Without effect in collective jobs.
        downpour_table_param(115): repeated message(TableParameter);
        /// The file system that tables are saved to.
        fs_client_param(116): optional message(FsClientParameter), ignored "tables are saved to folders";
        /// Bits of quantised training.
        qat_configs(117): optional message(QatConfig), ignored "there are no quantised kernels";
        /// Rewrites before a program runs.
        build_strategy(201): optional message(BuildStrategy);
        /// Threads and iterations of a run.
        execution_strategy(202): optional message(ExecutionStrategy);
        /// How gradients of workers are joined.
        gradient_scale_configs(203): optional message(GradientScaleConfig);
        /// With `fp16_allreduce`: `float16`, or `bfloat16`, in which no gradient becomes infinite
        /// or vanishes and fewer digits travel. Fleet's own field: other readers of the message do
        /// not know it.
        fp16_allreduce_dtype(1001): optional string = "float16";
    }

    /// A job as the master sees it: who takes part, the programs, the strategy.
    DistributedJobInfo = "DistributedJobInfo" {
        /// Workers of the job.
        worker_num(1): optional int32;
        /// Servers of the job.
        server_num(2): optional int32;
        /// Addresses of the workers.
        worker_ips(3): repeated string;
        /// Addresses of the servers.
        server_endpoints(4): repeated string;
        /// The startup program as the user wrote it.
        origin_startup(5): optional string;
        /// The main program as the user wrote it.
        origin_main(6): optional string;
        /// The main program as it runs.
        distributed_main(7): optional string;
        /// The optimizer of the user.
        optimizer_name(8): optional string;
        /// The strategy of the user.
        strategy(101): optional message(DistributedStrategy);
    }
}
