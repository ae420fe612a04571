"""Strategies of collective jobs, with the calls of documents 000 (lines 88 to 188), 001 (line 75),
002 (lines 444 to 462, 748 to 877, 951 to 1047, 1144, 1164, 1267, 1448, 1667, 1780) and 003."""

import numpy as np
import paddle
import paddle.distributed.fleet as fleet
from paddle.distributed.fleet import DistributedStrategy

paddle.enable_static()
fleet.init(is_collective=True)
exe = paddle.static.Executor(paddle.CPUPlace(), threads=1)
rng = np.random.default_rng(fleet.worker_index())


def train(strategy, optimizer=None, steps=4):
    """Trains a network with the strategy, and checks that the loss falls and workers agree."""
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
        with paddle.static.scope_guard(paddle.static.Scope()):
            x = paddle.static.data(name="x", shape=[None, 8], dtype="float32")
            label = paddle.static.data(name="y", shape=[None, 1], dtype="int64")
            hidden = paddle.static.nn.fc(x, size=16, activation="relu")
            logits = paddle.static.nn.fc(hidden, size=3)
            loss = paddle.nn.functional.cross_entropy(input=logits, label=label)
            optimizer = optimizer or paddle.optimizer.SGD(learning_rate=0.05)
            optimizer = fleet.distributed_optimizer(optimizer, strategy)
            optimizer.minimize(loss)
            exe.run(startup)
            xs = rng.standard_normal((16, 8), dtype="float32")
            feed = {"x": xs, "y": xs[:, :3].argmax(axis=1, keepdims=True)}
            losses = [exe.run(main, feed=feed, fetch_list=[loss])[0] for _ in range(steps)]
            assert losses[-1] <= losses[0], losses
            return optimizer.applied_strategies()


fused = DistributedStrategy()
fused.fuse_all_optimizer_ops = True
fused.fuse_bn_act_ops = True
fused.fuse_elewise_add_act_ops = True
fused.fuse_all_reduce_ops = True
fused.nccl_comm_num = 2
fused.thread_num = 1
threads = paddle.static.ExecutionStrategy()
threads.num_threads = 1
threads.num_iteration_per_drop_scope = 30
fused.exec_strategy = threads
train(fused)

build = paddle.static.BuildStrategy()
build.enable_sequential_execution = True
build.fuse_elewise_add_act_ops = True
build.fuse_relu_depthwise_conv = True
build.enable_inplace = True
built = fleet.DistributedStrategy()
built.build_strategy = build
built.fuse_grad_size_in_MB = 16
built._fuse_grad_size_in_TFLOPS = 50
built.sync_nccl_allreduce = False
train(built)

auto = fleet.DistributedStrategy()
auto.auto = True
train(auto)

amp = fleet.DistributedStrategy()
amp.amp = True
amp.amp_configs = {
    "init_loss_scaling": 128,
    "incr_every_n_steps": 1000,
    "decr_ratio": 0.5,
    "custom_white_list": ["conv2d"],
}
assert "AMP" in train(amp)

merged = fleet.DistributedStrategy()
merged.gradient_merge = True
merged.gradient_merge_configs = {"k_steps": 2, "avg": True}
assert "GradientMerge" in train(merged)

recomputed = fleet.DistributedStrategy()
recomputed.recompute = True
recomputed.recompute_configs = {
    "checkpoints": ["fc_0.tmp_2"],
    "enable_offload": False,
    "checkpoint_shape": [],
}
assert "Recompute" in train(recomputed)

lars = fleet.DistributedStrategy()
lars.lars = True
lars.lars_configs = {
    "lars_coeff": 0.001,
    "lars_weight_decay": 0.0005,
    "epsilon": 0,
    "exclude_from_weight_decay": ["batch_norm", ".b_0"],
}
assert "Lars" in train(lars, paddle.optimizer.Momentum(0.1, 0.9))

lamb = fleet.DistributedStrategy()
lamb.lamb = True
lamb.lamb_configs = {"lamb_weight_decay": 0.01, "exclude_from_weight_decay": []}
assert "Lamb" in train(lamb, paddle.optimizer.Adam(0.01))

if fleet.worker_num() > 1:
    local = fleet.DistributedStrategy()
    local.use_local_sgd = True
    local.local_sgd_is_warm_steps = 1
    local.local_sgd_steps = 2
    assert "LocalSGD" in train(local)

    adaptive = fleet.DistributedStrategy()
    adaptive.adaptive_localsgd = True
    adaptive.adaptive_localsgd_configs = {"init_k_steps": 1, "begin_step": 2}
    assert "AdaptiveLocalSGD" in train(adaptive)

    compressed = fleet.DistributedStrategy()
    compressed.dgc = True
    compressed.dgc_configs = {
        "rampup_begin_step": 2,
        "rampup_step": 3,
        "sparsity": [0.75, 0.9, 0.99],
    }
    assert "DGC" in train(compressed, paddle.optimizer.Momentum(0.05, 0.9))

    half = fleet.DistributedStrategy()
    half.fp16_allreduce = True
    assert "FP16" in train(half)

    levels = fleet.DistributedStrategy()
    levels.use_hierarchical_allreduce = True
    levels.hierarchical_allreduce_inter_nranks = 8
    train(levels)

shards = fleet.DistributedStrategy()
shards.sharding = True
assert fleet.worker_num() == 1 or "Sharding" in train(shards)

stages = fleet.DistributedStrategy()
stages.pipeline = True
stages.pipeline_configs = {"micro_batch": 2}
assert "Pipeline" in train(stages)

if fleet.is_first_worker():
    print("strategies: done")
