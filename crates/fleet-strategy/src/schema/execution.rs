//! Messages of how one program is prepared and run.

use super::message;

message! {
    /// Rewrites before a program runs; all of them keep its results.
    BuildStrategy = "BuildStrategy" {
        /// Ops run one after the other in program order.
        enable_sequential_execution(1): optional bool = false;
        /// `act(x + y)` in one pass over memory.
        fuse_elewise_add_act_ops(2): optional bool = false;
        /// Batch norm with the activation that follows it.
        fuse_bn_act_ops(3): optional bool = false;
        /// A relu into the depthwise convolution that follows it.
        fuse_relu_depthwise_conv(4): optional bool = false;
        /// Broadcasts of parameters are joined.
        fuse_broadcast_ops(5): optional bool = false, ignored "all parameters are always broadcast together";
        /// One sweep of the optimizer over all parameters.
        fuse_all_optimizer_ops(6): optional bool = false;
        /// Outputs take over the memory of inputs that end there.
        enable_inplace(7): optional bool = false;
        /// Updates wait for the whole backward pass.
        enable_backward_optimizer_op_deps(8): optional bool = true, ignored "an update waits for what it reads, by the program";
        /// What ops look up is kept between runs.
        cache_runtime_context(9): optional bool = false, ignored "a plan always keeps what its ops look up";
        /// Batch norm, the sum that follows it, and the activation.
        fuse_bn_add_act_ops(10): optional bool = true;
        /// Chains of elementwise ops are compiled into one kernel.
        enable_auto_fusion(11): optional bool = false, ignored "fusions are rewrites with names; nothing is compiled while a program runs";
        /// Gradients of variables with several uses are added in place.
        enable_addto(12): optional bool = false;
        /// Ops run in the same order in every run.
        fix_op_run_order(13): optional bool = false, ignored "a plan has one order";
        /// Steps may be captured as CUDA graphs.
        allow_cuda_graph_capture(14): optional bool = false, ignored "there are no CUDA graphs";
        /// How gradients are joined: 0 all-reduce, 1 reduce and broadcast.
        reduce_strategy(15): optional int32 = 0, ignored "gradients are all-reduced: every rank updates all parameters";
        /// A matrix product with its bias and activation.
        fuse_gemm_epilogue(16): optional bool = false;
        /// Where the rewritten program is written to.
        debug_graphviz_path(17): optional string, ignored "fleet rewrite and fleet print show programs";
        /// Attention in one op.
        fused_attention(18): optional bool = false, ignored "models write attention as one op themselves";
        /// The two products of a feed-forward layer in one op.
        fused_feedforward(19): optional bool = false, ignored "products are fused with their bias and activation (fuse_gemm_epilogue)";
    }

    /// Threads and iterations of a run.
    ExecutionStrategy = "ExecutionStrategy" {
        /// Threads that compute.
        num_threads(1): optional int32 = 1;
        /// Runs after which temporaries are dropped.
        num_iteration_per_drop_scope(2): optional int32 = 10;
        /// Iterations in one call of run.
        num_iteration_per_run(3): optional int32 = 1;
        /// Threads of a parameter-server worker wait for each other.
        use_thread_barrier(4): optional bool = false, ignored "a worker has one training thread; its pool is no matter of the program";
    }
}
