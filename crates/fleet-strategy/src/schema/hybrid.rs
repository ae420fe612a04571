//! Messages of hybrid, tensor-parallel and quantised jobs: additions after the documents.

use super::message;

message! {
    /// The degrees of a grid of workers.
    HybridConfig = "HybridConfig" {
        /// Copies of the model; -1 for what the other degrees leave.
        dp_degree(1): optional int32 = "-1";
        /// Workers that share a layer.
        mp_degree(2): optional int32 = 1, refused "layers are not divided among ranks";
        /// Stages of a pipeline.
        pp_degree(3): optional int32 = 1, refused "a program runs whole on every rank";
        /// Workers that share one copy of the state.
        sharding_degree(4): optional int32 = 1, refused "every rank holds all parameters";
        /// Workers that share a sequence.
        sep_degree(5): optional int32 = 1, refused "sequences are not divided among ranks";
        /// Details of tensor parallelism.
        mp_configs(6): optional message(MpConfig), ignored "layers are not divided among workers";
        /// Details of the pipeline.
        pp_configs(7): optional message(PpConfig), ignored "there are no pipelines";
        /// Details of sharding.
        sharding_configs(8): optional message(DygraphShardingConfig), ignored "nothing is sharded";
        /// The axes of the grid, outermost first; `dp`, `pp`, `sharding`, `sep`, `mp` if none is
        /// given. Fleet's own field: other readers of the message do not know it.
        order(1001): repeated string, ignored "the grid has one axis";
    }

    /// Details of tensor parallelism.
    MpConfig = "MpConfig" {
        /// Parameters are made equal after the update.
        sync_param(1): optional bool = true;
        /// Gradients are made equal before the update.
        sync_grad(2): optional bool = false;
        /// Moments are made equal after the update.
        sync_moment(3): optional bool = false;
        /// How they are made equal: `broadcast` or `average`.
        sync_mode(4): optional string = "broadcast";
        /// The backward all-reduce overlaps with compute.
        mp_async_allreduce(5): optional bool = false;
        /// The identity at the input of a divided layer is left out.
        mp_skip_c_identity(6): optional bool = false;
        /// The weight's gradient is added in the matrix product.
        mp_fused_linear_param_grad_add(7): optional bool = false;
        /// The first worker's batch goes to all that share layers with it.
        need_broadcast_data(8): optional bool = true;
        /// Parameters that are made equal: those whose names contain one of these; `embedding`,
        /// `layer_norm`, `.b_` if none is given. Fleet's own field: other readers do not know it.
        sync_param_name(1001): repeated string;
    }

    /// Details of the pipeline of a hybrid job.
    PpConfig = "PpConfig" {
        /// Data-parallel collectives overlap with the pipeline.
        dp_comm_overlap(1): optional bool = false;
        /// The loss is scaled at the end.
        delay_scale_loss(2): optional bool = false;
        /// Times are taken.
        enable_timer(3): optional bool = false;
        /// Sharding collectives overlap with the pipeline.
        sharding_comm_overlap(4): optional bool = false;
        /// The pipeline is profiled.
        profiling(5): optional bool = false;
    }

    /// Details of sharding in a hybrid job.
    DygraphShardingConfig = "DygraphShardingConfig" {
        /// Tensors are joined into one buffer.
        tensor_fusion(1): optional bool = false;
        /// Batches whose gradients make one update.
        accumulate_steps(2): optional int32 = 1;
        /// Collectives overlap with compute.
        comm_overlap(3): optional bool = false;
        /// Single parameters are divided too.
        split_param(4): optional bool = false;
        /// One sweep of the optimizer.
        fuse_optimizer(5): optional bool = true;
    }

    /// Layers divided among workers.
    TensorParallelConfig = "TensorParallelConfig" {
        /// Workers that share a layer.
        tensor_parallel_degree(1): optional int32 = 1;
        /// The seed of divided parameters; -1 for the program's.
        tensor_init_seed(2): optional int32 = "-1";
    }

    /// Training for quantised inference.
    QatConfig = "QatConfig" {
        /// One scale a channel.
        channel_wise_abs_max(1): optional bool = true;
        /// Bits of a weight.
        weight_bits(2): optional int32 = 8;
        /// Bits of an activation.
        activation_bits(3): optional int32 = 8;
        /// Layers that keep their floats.
        not_quant_pattern(4): repeated string;
        /// The algorithm.
        algo(5): optional string;
    }
}
