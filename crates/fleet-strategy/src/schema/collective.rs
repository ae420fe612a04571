//! Messages of the rewrites for collective jobs.

use super::message;

message! {
    /// Recompute: keep the checkpoints, compute the rest again.
    RecomputeConfig = "RecomputeConfig" {
        /// Names of the variables that are kept; between two of them everything is computed again.
        checkpoints(1): repeated string;
        /// Checkpoints wait in a file until the backward pass needs them.
        enable_offload(2): optional bool = false;
        /// The shape of every checkpoint, which Paddle needs for offload.
        checkpoint_shape(3): repeated[packed = "false"] int32, ignored "shapes follow from the program";
        /// Let the tuner choose the checkpoints.
        enable_tuning(4): optional bool = false, ignored "there is no tuner";
        /// Patterns of ops that are not computed again.
        refined_ops_patterns(5): repeated message(RefinedOpsPattern), ignored "checkpoints alone say what is kept";
    }

    /// Ops around a place in the program.
    RefinedOpsPattern = "RefinedOpsPattern" {
        /// The ops in question.
        main_ops(1): repeated string;
        /// How many matches count; 0 for all.
        num(2): optional int32 = 0;
        /// Ops that stand before.
        pre_ops(3): repeated string;
        /// Ops that stand after.
        suf_ops(4): repeated string;
    }

    /// Mixed precision: the loss is scaled up so that 16-bit gradients do not vanish.
    AmpConfig = "AMPConfig" {
        /// The factor on the loss in the first step.
        init_loss_scaling(1): optional float = 32768.0;
        /// After so many good steps in a row the factor grows.
        incr_every_n_steps(2): optional int32 = 1000;
        /// After so many bad steps in a row (infinite or not a number) the factor shrinks.
        decr_every_n_nan_or_inf(3): optional int32 = 2;
        /// What the factor is multiplied with when it grows.
        incr_ratio(4): optional float = 2.0;
        /// What the factor is multiplied with when it shrinks.
        decr_ratio(5): optional float = 0.8;
        /// The factor grows and shrinks; false keeps it as it is.
        use_dynamic_loss_scaling(6): optional bool = true;
        /// Op kinds that compute in 16 bits, besides those known to gain.
        custom_white_list(7): repeated string;
        /// Op kinds that compute in 32 bits, besides those known to need it.
        custom_black_list(8): repeated string;
        /// Variables whose ops compute in 32 bits.
        custom_black_varnames(9): repeated string;
        /// Ops on no list compute in 16 bits, too; parameters stay in 32.
        use_pure_fp16(10): optional bool = false;
        /// With `use_pure_fp16` or `use_pure_bf16`: only ops that were made under `fp16_guard()`.
        /// Without such ops it is refused if it was assigned true, and else takes in every op.
        use_fp16_guard(11): optional bool = true;
        /// The optimizer computes in 16 bits. Refused: parameters and their state stay in 32.
        use_optimizer_fp16(12): optional bool = false;
        /// As `use_pure_fp16`, in bfloat16: nothing is scaled.
        use_pure_bf16(13): optional bool = false;
    }

    /// Workers train alone and meet every few steps.
    LocalSgdConfig = "LocalSGDConfig" {
        /// Steps between two averagings.
        k_steps(1): optional int32 = 1;
        /// The step from which workers train alone; before it they meet in every step.
        begin_step(2): optional int32 = 1;
    }

    /// LocalSGD with an interval that follows the loss.
    AdaptiveLocalSgdConfig = "AdaptiveLocalSGDConfig" {
        /// Steps between the first two averagings.
        init_k_steps(1): optional int32 = 1;
        /// The step from which workers train alone.
        begin_step(2): optional int32 = 1;
    }

    /// Several batches make one update.
    GradientMergeConfig = "GradientMergeConfig" {
        /// Steps whose gradients make one update.
        k_steps(1): optional int32 = 1;
        /// The update takes the mean of the gradients; false for the sum.
        avg(2): optional bool = true;
    }

    /// Deep gradient compression: only the largest gradients are sent.
    DgcConfig = "DGCConfig" {
        /// The step with which compression starts.
        rampup_begin_step(1): optional int32 = 0;
        /// The steps that the list of sparsities is spread over.
        rampup_step(2): optional int32 = 1;
        /// Shares of the gradient that are not sent, ascending; 0.999 if none is given.
        sparsity(3): repeated[packed = "false"] float;
    }

    /// Layer-wise adaptive rates for Momentum.
    LarsConfig = "LarsConfig" {
        /// The trust coefficient.
        lars_coeff(1): optional float = 0.001;
        /// The weight decay inside of the rate.
        lars_weight_decay(2): optional float = 0.0005;
        /// Added to the divisor.
        epsilon(3): optional float = 0.0;
        /// Parameters whose names contain one of these do not decay.
        exclude_from_weight_decay(4): repeated string;
    }

    /// Layer-wise adaptive rates for Adam.
    LambConfig = "LambConfig" {
        /// The weight decay.
        lamb_weight_decay(1): optional float = 0.01;
        /// Parameters whose names end with one of these do not decay.
        exclude_from_weight_decay(2): repeated string;
    }

    /// The stages of a program work on several micro-batches at once.
    PipelineConfig = "PipelineConfig" {
        /// Samples in a micro-batch.
        micro_batch_size(1): optional int32 = 1;
        /// Micro-batches in a batch: the update takes the mean of so many gradients.
        accumulate_steps(2): optional int32 = 1;
        /// `1F1B` (one forward, one backward, in turns: memory for as many micro-batches as there
        /// are stages) or `F-then-B` (all forward, then all backward).
        schedule_mode(3): optional string = "1F1B";
        /// Shapes of what stages send are agreed on once.
        p2p_cache_shape(4): optional bool = true;
        /// Tensor-parallel workers send a part each.
        enable_partial_send_recv(5): optional bool = true;
    }

    /// Parameters, gradients and optimizer state are divided among the workers of a group.
    ShardingConfig = "ShardingConfig" {
        /// How the program is cut into segments: `segment_broadcast_MB` (by bytes) or
        /// `segment_anchors` (at named variables).
        sharding_segment_strategy(1): optional string = "segment_broadcast_MB";
        /// Bytes of parameters that are broadcast at a time, in MB.
        segment_broadcast_MB(2): optional float = 32.0;
        /// Variables at which segments end.
        segment_anchors(3): repeated string;
        /// Workers that share one copy of the parameters.
        sharding_degree(4): optional int32 = 8;
        /// Workers that share a layer.
        mp_degree(5): optional int32 = 1;
        /// Copies of the sharding group.
        dp_degree(6): optional int32 = 1;
        /// Data parallelism on top of sharding.
        hybrid_dp(7): optional bool = false;
        /// Steps whose gradients make one update.
        gradient_merge_acc_step(8): optional int32 = 1;
        /// Optimizer state waits in host memory.
        optimize_offload(9): optional bool = false;
        /// With a pipeline: gradients are all-reduced in the update.
        pp_allreduce_in_optimize(10): optional bool = false;
        /// Stages of a pipeline.
        pp_degree(11): optional int32 = 1;
        /// Parameters are cast in the update instead of the forward pass.
        optimize_cast(12): optional bool = false;
        /// Data-parallel workers divide the optimizer state.
        _dp_as_optimizer_sharding(13): optional bool = false;
        /// What is divided: 1 the optimizer state, 2 gradients too, 3 parameters too.
        stage(14): optional int32 = 1;
        /// Let the tuner choose.
        enable_tuning(15): optional bool = false, ignored "there is no tuner";
        /// Collectives run on the stream of the compute.
        use_calc_stream(16): optional bool = false, ignored "each communicator has a lane of its own";
    }

    /// How the gradients of workers are joined.
    GradientScaleConfig = "GradientScaleConfig" {
        /// `avg` (divided by the workers), `sum`, or `customized` (as the program says).
        scale_strategy(1): optional string = "avg";
        /// The gradients are scaled rather than the loss.
        scale_gradient(2): optional bool = false, ignored "the loss is scaled, which gives the same gradients";
    }
}
