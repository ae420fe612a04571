//! Messages that configure how a program is prepared and executed.

use super::define::message;

message! {
    /// Rewrites before a program runs; all of them keep its results.
    BuildStrategy = "BuildStrategy" {
        /// Runs ops one after another in program order.
        enable_sequential_execution(1): optional bool = false;
        /// Fuses `act(x + y)` into one pass over memory.
        fuse_elewise_add_act_ops(2): optional bool = false;
        /// Fuses batch norm with the activation that follows.
        fuse_bn_act_ops(3): optional bool = false;
        /// Fuses a relu into the depthwise convolution that follows.
        fuse_relu_depthwise_conv(4): optional bool = false;
        /// Fuses broadcasts of parameters.
        fuse_broadcast_ops(5): optional bool = false,
            ignored "all parameters are always broadcast together";
        /// Updates all parameters in one pass of the optimizer.
        fuse_all_optimizer_ops(6): optional bool = false;
        /// Lets outputs reuse the memory of inputs whose lifetime ends.
        enable_inplace(7): optional bool = false;
        /// Delays updates until the end of the backward pass; false lets them run while the sum of
        /// their gradients arrives, in ranks of one thread.
        enable_backward_optimizer_op_deps(8): optional bool = true;
        /// Caches the lookups of ops between runs.
        cache_runtime_context(9): optional bool = false,
            ignored "a plan always caches the lookups of its ops";
        /// Fuses batch norm, the sum that follows, and the activation.
        fuse_bn_add_act_ops(10): optional bool = true;
        /// Fuses groups of ops that have no field of their own: a layer norm with the preceding
        /// sum, and looked-up rows with their concatenation.
        enable_auto_fusion(11): optional bool = false;
        /// Adds gradients in place: of several uses of a variable, and of micro-batches.
        enable_addto(12): optional bool = false;
        /// Runs ops in the same order in every run.
        fix_op_run_order(13): optional bool = false, ignored "a plan has a fixed order of ops";
        /// Allows steps to be captured as CUDA graphs.
        allow_cuda_graph_capture(14): optional bool = false,
            ignored "CUDA graphs are not supported";
        /// How gradients are combined: 0 all-reduce, 1 reduce and broadcast.
        reduce_strategy(15): optional int32 = 0,
            allowed [
                Range(Included(0.0), Included(1.0)),
                "0 is all-reduce, 1 is reduce and broadcast",
                "0"
            ],
            ignored "an all-reduce gives the same results: every rank updates all parameters";
        /// Fuses a matrix product with its bias and activation.
        fuse_gemm_epilogue(16): optional bool = false;
        /// File that the first worker writes: the training program after all passes, as a graph in
        /// Graphviz format.
        debug_graphviz_path(17): optional string;
        /// Fuses attention into one op.
        fused_attention(18): optional bool = false, ignored "models use the attention op directly";
        /// Fuses the two products of a feed-forward layer into one op.
        fused_feedforward(19): optional bool = false,
            ignored "products are fused with their bias and activation (fuse_gemm_epilogue)";
    }

    /// Threads and iterations of a run.
    ExecutionStrategy = "ExecutionStrategy" {
        /// Compute threads.
        num_threads(1): optional int32 = 1,
            allowed [AT_LEAST_0, "0 means the number of cores", "0"];
        /// Number of runs without use after which a plan is dropped, with its temporaries.
        num_iteration_per_drop_scope(2): optional int32 = 10, allowed [AT_LEAST_1, COUNT, "10"];
        /// Iterations in one call of run.
        num_iteration_per_run(3): optional int32 = 1, allowed [AT_LEAST_1, COUNT, "1"];
        /// Makes the threads of a parameter-server worker wait for each other.
        use_thread_barrier(4): optional bool = false,
            ignored "a worker has a single training thread";
    }
}
