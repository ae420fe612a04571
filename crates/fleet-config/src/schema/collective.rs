//! Messages that configure rewrites for collective jobs.

use super::define::message;

message! {
    /// Recompute: keeps the checkpoints and recomputes the other activations.
    RecomputeConfig = "RecomputeConfig" {
        /// Names of the variables to keep; everything between two of them is recomputed.
        checkpoints(1): repeated string;
        /// Stores checkpoints in a file until the backward pass needs them.
        enable_offload(2): optional bool = false;
        /// The shape of every checkpoint; Paddle needs it for offload.
        checkpoint_shape(3): repeated[packed = "false"] int32,
            allowed [
                AT_LEAST_1,
                "it is the shape of a tensor",
                "the shape with the batch size in place of -1"
            ],
            ignored "shapes follow from the program";
        /// Lets the tuner choose the checkpoints.
        enable_tuning(4): optional bool = false, ignored "automatic tuning is not supported";
        /// Patterns of ops that are not recomputed.
        refined_ops_patterns(5): repeated message(RefinedOpsPattern),
            ignored "only checkpoints determine what is kept";
    }

    /// A pattern of ops in the program.
    RefinedOpsPattern = "RefinedOpsPattern" {
        /// The ops that match.
        main_ops(1): repeated string;
        /// Number of matches that count; 0 for all.
        num(2): optional int32 = 0;
        /// Ops that precede them.
        pre_ops(3): repeated string;
        /// Ops that follow them.
        suf_ops(4): repeated string;
    }

    /// Mixed precision: the loss is scaled up so that 16-bit gradients do not underflow.
    AmpConfig = "AMPConfig" {
        /// Initial loss scaling factor.
        init_loss_scaling(1): optional float = 32768.0,
            allowed [ABOVE_0, "gradients are divided by it", "32768"];
        /// Number of consecutive finite steps after which the factor grows.
        incr_every_n_steps(2): optional int32 = 1000, allowed [AT_LEAST_1, COUNT, "1000"];
        /// Number of consecutive steps with infinite or NaN gradients after which the factor
        /// shrinks.
        decr_every_n_nan_or_inf(3): optional int32 = 2, allowed [AT_LEAST_1, COUNT, "2"];
        /// The factor is multiplied by this when it grows.
        incr_ratio(4): optional float = 2.0,
            allowed [
                Range(Excluded(1.0), Unbounded),
                "the loss scaling factor must grow by it",
                "2"
            ];
        /// The factor is multiplied by this when it shrinks.
        decr_ratio(5): optional float = 0.8,
            allowed [
                Range(Excluded(0.0), Excluded(1.0)),
                "the loss scaling factor must shrink by it",
                "0.5"
            ];
        /// Whether the factor grows and shrinks; if false, it is constant.
        use_dynamic_loss_scaling(6): optional bool = true;
        /// Additional op kinds that compute in 16 bits.
        custom_white_list(7): repeated string;
        /// Additional op kinds that compute in 32 bits.
        custom_black_list(8): repeated string;
        /// Variables whose ops compute in 32 bits.
        custom_black_varnames(9): repeated string;
        /// Also computes unlisted ops in 16 bits; parameters stay 32-bit.
        use_pure_fp16(10): optional bool = false;
        /// With `use_pure_fp16` or `use_pure_bf16`: only ops built under `fp16_guard()` compute in
        /// 16 bits. If there are none, an explicit true is an error, and the default includes all
        /// ops.
        use_fp16_guard(11): optional bool = true;
        /// Makes the optimizer compute in 16 bits.
        use_optimizer_fp16(12): optional bool = false,
            ignored "parameters and optimizer state stay 32-bit, which is more exact";
        /// Like `use_pure_fp16`, in bfloat16; the loss is not scaled.
        use_pure_bf16(13): optional bool = false;
    }

    /// LocalSGD: workers train alone and average parameters every few steps.
    LocalSgdConfig = "LocalSGDConfig" {
        /// Steps between two averagings.
        k_steps(1): optional int32 = 1, allowed [AT_LEAST_1, COUNT, "2 or 4"];
        /// Up to this step, workers average in every step.
        begin_step(2): optional int32 = 1,
            allowed [AT_LEAST_0, NOT_NEGATIVE, "the number of steps for warming up"];
    }

    /// LocalSGD with an interval that depends on the loss.
    AdaptiveLocalSgdConfig = "AdaptiveLocalSGDConfig" {
        /// Steps between the first two averagings.
        init_k_steps(1): optional int32 = 1, allowed [AT_LEAST_1, COUNT, "1"];
        /// Up to this step, workers average in every step.
        begin_step(2): optional int32 = 1,
            allowed [AT_LEAST_0, NOT_NEGATIVE, "the number of steps for warming up"];
    }

    /// Gradient merge: several batches make one update.
    GradientMergeConfig = "GradientMergeConfig" {
        /// Steps whose gradients make one update.
        k_steps(1): optional int32 = 1,
            allowed [AT_LEAST_1, COUNT, "the batch you want divided by the batch that fits"];
        /// Updates with the mean of the gradients; false for the sum.
        avg(2): optional bool = true;
    }

    /// Deep gradient compression: only the largest gradient elements are sent.
    DgcConfig = "DGCConfig" {
        /// First step with compression.
        rampup_begin_step(1): optional int32 = 0,
            allowed [AT_LEAST_0, NOT_NEGATIVE, "0, or the number of steps for warming up"];
        /// Number of steps over which the list of sparsities is spread.
        rampup_step(2): optional int32 = 1, allowed [AT_LEAST_1, COUNT, "1"];
        /// Fractions of the gradient elements that are not sent, ascending; 0.999 if none is given.
        sparsity(3): repeated[packed = "false"] float,
            allowed [UNDER_1, "it is the fraction of the gradient that is not sent", "0.999"];
    }

    /// LARS: layer-wise adaptive learning rates for Momentum.
    LarsConfig = "LarsConfig" {
        /// Trust coefficient.
        lars_coeff(1): optional float = 0.001,
            allowed [ABOVE_0, "it multiplies the learning rate", "0.001"];
        /// Weight decay within the layer-wise rate.
        lars_weight_decay(2): optional float = 0.0005,
            allowed [AT_LEAST_0, "weights would grow", "0.0005"];
        /// Added to the divisor.
        epsilon(3): optional float = 0.0,
            allowed [AT_LEAST_0, "it keeps a divisor away from zero", "0 or 1e-8"];
        /// Parameters whose names contain one of these have no weight decay, and the learning rate
        /// without a layer-wise factor.
        exclude_from_weight_decay(4): repeated string;
    }

    /// LAMB: layer-wise adaptive learning rates for Adam.
    LambConfig = "LambConfig" {
        /// Weight decay.
        lamb_weight_decay(1): optional float = 0.01,
            allowed [AT_LEAST_0, "weights would grow", "0.01"];
        /// Parameters whose names contain one of these have no weight decay, and the learning rate
        /// without a layer-wise factor.
        exclude_from_weight_decay(2): repeated string;
    }

    /// Pipeline parallelism: the stages of a program process several micro-batches at once.
    PipelineConfig = "PipelineConfig" {
        /// Samples in a micro-batch. If it is not assigned, it follows from the batch that is fed.
        micro_batch_size(1): optional int32 = 1,
            allowed [AT_LEAST_1, COUNT, "the batch size divided by accumulate_steps"];
        /// Micro-batches in a batch; the update uses the mean of their gradients.
        accumulate_steps(2): optional int32 = 1,
            allowed [
                AT_LEAST_1, COUNT,
                "at least the number of stages, which keeps all of them busy"
            ];
        /// Schedule: `1F1B` (one forward and one backward in turn, with memory for as many
        /// micro-batches as there are stages), `F-then-B` (all forward, then all backward), or
        /// `ZBH1` (1F1B with gradients of weights computed while a stage would wait).
        schedule_mode(3): optional string = "1F1B",
            allowed [
                OneOf(&["1F1B", "F-then-B", "ZBH1"]),
                "these are the schedules",
                "1F1B, which needs less memory"
            ];
        /// Negotiates the shapes of tensors between stages only once.
        p2p_cache_shape(4): optional bool = true, ignored "shapes are known before the first step";
        /// Each tensor-parallel worker sends only a part.
        enable_partial_send_recv(5): optional bool = true,
            ignored "a worker sends whole values to the next stage";
        /// Parts of the program on each stage (interleaved schedule): stage s of S runs the parts
        /// s, S + s, 2 S + s ... This shortens the time in which stages wait, and sends more. 1 if
        /// it is not assigned and labels do not name more parts than there are stages. This is
        /// Fleet's own field, unknown to other readers of the message.
        virtual_stages(1001): optional int32 = 1, allowed [AT_LEAST_1, COUNT, "1"];
    }

    /// Sharding: parameters, gradients and optimizer state are divided among the workers of a
    /// group.
    ShardingConfig = "ShardingConfig" {
        /// How the program is cut into segments: `segment_broadcast_MB` (by size) or
        /// `segment_anchors` (at named variables).
        sharding_segment_strategy(1): optional string = "segment_broadcast_MB",
            allowed [
                OneOf(&["segment_broadcast_MB",
                "segment_anchors"]),
                "segments are cut by bytes or at named variables",
                "segment_broadcast_MB"
            ];
        /// Size of the parameters of one broadcast, in MB.
        segment_broadcast_MB(2): optional float = 32.0,
            allowed [ABOVE_0, "a segment cannot be empty", "32"];
        /// Variables at which segments end.
        segment_anchors(3): repeated string;
        /// Workers that share one copy of the parameters. If it is not assigned: all workers, or as
        /// many as `dp_degree` leaves.
        sharding_degree(4): optional int32 = 8,
            allowed [AT_LEAST_1, COUNT, "the number of workers that hold one copy together"];
        /// Workers that share a layer (tensor parallelism).
        mp_degree(5): optional int32 = 1,
            allowed [AT_LEAST_1, COUNT, "1"];
        /// Groups of workers, each with one copy of the parameters.
        dp_degree(6): optional int32 = 1, allowed [AT_LEAST_1, COUNT, "1"];
        /// Combines sharding with data parallelism: there are as many groups of `sharding_degree`
        /// workers as the job has room for.
        hybrid_dp(7): optional bool = false;
        /// Steps whose gradients make one update.
        gradient_merge_acc_step(8): optional int32 = 1, allowed [AT_LEAST_1, COUNT, "1"];
        /// Keeps the optimizer state in host memory.
        optimize_offload(9): optional bool = false,
            ignored "optimizer state is in host memory already";
        /// With a pipeline: all-reduces gradients in the update.
        pp_allreduce_in_optimize(10): optional bool = false,
            ignored "merged gradients are sent once a step already";
        /// Stages of a pipeline; more than 1 turns `pipeline` on.
        pp_degree(11): optional int32 = 1, allowed [AT_LEAST_1, COUNT, "1"];
        /// Casts parameters in the update instead of the forward pass.
        optimize_cast(12): optional bool = false,
            ignored "parameters are cast where they are used";
        /// Divides the optimizer state among data-parallel workers.
        _dp_as_optimizer_sharding(13): optional bool = false,
            ignored "stage 1 divides the optimizer state among data-parallel workers";
        /// Divided state: 1 the optimizer state, 2 also gradients, 3 also parameters. If it is not
        /// assigned: all of them.
        stage(14): optional int32 = 1,
            allowed [
                Range(Included(1.0), Included(3.0)),
                "1 divides the optimizer state, 2 gradients too, 3 parameters too",
                "1"
            ];
        /// Lets the tuner choose.
        enable_tuning(15): optional bool = false, ignored "automatic tuning is not supported";
        /// Runs collectives on the compute stream.
        use_calc_stream(16): optional bool = false, ignored "each communicator has its own lane";
    }

    /// How the gradients of workers are combined.
    GradientScaleConfig = "GradientScaleConfig" {
        /// `avg` (mean over workers), `sum`, or `customized` (defined by the program).
        scale_strategy(1): optional string = "avg",
            allowed [
                OneOf(&["avg",
                "sum",
                "customized"]),
                "these are the ways to combine gradients",
                "avg"
            ];
        /// Scales the gradients instead of the loss.
        scale_gradient(2): optional bool = false,
            ignored "the loss is scaled, which gives the same gradients";
    }
}
