//! Messages of hybrid, tensor-parallel and quantised jobs, which are newer than the documents.

use super::define::message;

message! {
    /// Degrees of a grid of workers.
    HybridConfig = "HybridConfig" {
        /// Copies of the model; -1 for the number that the other degrees leave.
        dp_degree(1): optional int32 = "-1",
            allowed [
                Range(Included(-1.0), Unbounded),
                "-1 means the number that the other degrees leave",
                "-1"
            ];
        /// Workers that share a layer (tensor parallelism).
        mp_degree(2): optional int32 = 1,
            allowed [AT_LEAST_1, COUNT, "1"];
        /// Stages of a pipeline; more than 1 turns `pipeline` on.
        pp_degree(3): optional int32 = 1, allowed [AT_LEAST_1, COUNT, "1"];
        /// Workers that share one copy of the state.
        sharding_degree(4): optional int32 = 1, allowed [AT_LEAST_1, COUNT, "1"];
        /// Workers that share a sequence.
        sep_degree(5): optional int32 = 1,
            allowed [AT_LEAST_1, COUNT, "1"],
            refused "sequences are not divided among ranks";
        /// Settings of tensor parallelism.
        mp_configs(6): optional message(MpConfig),
            ignored "whole parameters are the same on workers that share layers";
        /// Settings of the pipeline.
        pp_configs(7): optional message(PpConfig),
            ignored "transfers always overlap compute, and `fleet trace` measures times";
        /// Settings of sharding.
        sharding_configs(8): optional message(DygraphShardingConfig), ignored "nothing is sharded";
        /// The axes of the grid, outermost first; `dp`, `pp`, `sharding`, `sep`, `mp` if none is
        /// given. This is Fleet's own field, unknown to other readers of the message.
        order(1001): repeated string,
            allowed [
                OneOf(&["dp",
                "pp",
                "sharding",
                "sep",
                "mp"]),
                "these are the axes of the grid",
                "dp, pp, sharding, sep, mp"
            ],
            ignored "the grid has one axis";
        /// Divides sequences among the workers that share layers, where layers are whole: norms,
        /// dropouts and sums. Each worker then keeps a part of these activations. This is Fleet's
        /// own field, unknown to other readers of the message.
        mp_split_sequence(1002): optional bool = false;
        /// Divides the classes of `class_loss` layers among the workers of data parallelism. Each
        /// worker has the weights of some classes, for the samples of all workers. This is Fleet's
        /// own field, unknown to other readers of the message.
        split_classes(1003): optional bool = false;
    }

    /// Settings of tensor parallelism.
    MpConfig = "MpConfig" {
        /// Synchronises parameters after the update.
        sync_param(1): optional bool = true;
        /// Synchronises gradients before the update.
        sync_grad(2): optional bool = false;
        /// Synchronises moments after the update.
        sync_moment(3): optional bool = false;
        /// How they are synchronised: `broadcast` or `average`.
        sync_mode(4): optional string = "broadcast",
            allowed [
                OneOf(&["broadcast",
                "average"]),
                "these are the ways to synchronise parameters",
                "broadcast"
            ];
        /// Overlaps the backward all-reduce with compute.
        mp_async_allreduce(5): optional bool = false;
        /// Omits the identity at the input of a divided layer.
        mp_skip_c_identity(6): optional bool = false;
        /// Accumulates the weight's gradient in the matrix product.
        mp_fused_linear_param_grad_add(7): optional bool = false;
        /// Sends the first worker's batch to all workers that share layers with it.
        need_broadcast_data(8): optional bool = true;
        /// Synchronises parameters whose names contain one of these; `embedding`, `layer_norm`,
        /// `.b_` if none is given. This is Fleet's own field, unknown to other readers of the
        /// message.
        sync_param_name(1001): repeated string;
    }

    /// Settings of the pipeline of a hybrid job.
    PpConfig = "PpConfig" {
        /// Overlaps data-parallel collectives with the pipeline.
        dp_comm_overlap(1): optional bool = false;
        /// Scales the loss at the end.
        delay_scale_loss(2): optional bool = false;
        /// Measures times.
        enable_timer(3): optional bool = false;
        /// Overlaps sharding collectives with the pipeline.
        sharding_comm_overlap(4): optional bool = false;
        /// Profiles the pipeline.
        profiling(5): optional bool = false;
    }

    /// Settings of sharding in a hybrid job.
    DygraphShardingConfig = "DygraphShardingConfig" {
        /// Fuses tensors into one buffer.
        tensor_fusion(1): optional bool = false;
        /// Batches whose gradients make one update.
        accumulate_steps(2): optional int32 = 1, allowed [AT_LEAST_1, COUNT, "1"];
        /// Overlaps collectives with compute.
        comm_overlap(3): optional bool = false;
        /// Also divides single parameters.
        split_param(4): optional bool = false;
        /// Updates all parameters in one pass of the optimizer.
        fuse_optimizer(5): optional bool = true;
    }

    /// Tensor parallelism: layers are divided among workers.
    TensorParallelConfig = "TensorParallelConfig" {
        /// Workers that share a layer.
        tensor_parallel_degree(1): optional int32 = 1, allowed [AT_LEAST_1, COUNT, "1"];
        /// Seed of divided parameters; -1 for the program's seed.
        tensor_init_seed(2): optional int32 = "-1",
            ignored "parts have the first values of whole parameters, by the program's seed";
    }

    /// Quantisation-aware training.
    QatConfig = "QatConfig" {
        /// Uses one scale per channel.
        channel_wise_abs_max(1): optional bool = true;
        /// Bits of a weight.
        weight_bits(2): optional int32 = 8,
            allowed [Range(Included(1.0), Included(16.0)), "wider numbers are not quantised", "8"];
        /// Bits of an activation.
        activation_bits(3): optional int32 = 8,
            allowed [Range(Included(1.0), Included(16.0)), "wider numbers are not quantised", "8"];
        /// Layers that are not quantised.
        not_quant_pattern(4): repeated string;
        /// The quantisation algorithm.
        algo(5): optional string;
    }
}
