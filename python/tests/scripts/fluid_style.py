"""The 1.x interface: documents 000 (line 236) and 001 (line 75), and what surrounds them."""

import numpy as np
import paddle.fluid as fluid
from paddle.fluid.incubate.fleet.base import role_maker
from paddle.fluid.incubate.fleet.collective import DistributedStrategy, fleet

fleet.init(role_maker.PaddleCloudRoleMaker(is_collective=True))
strategy = DistributedStrategy()
strategy.nccl_comm_num = 2
strategy.fuse_all_reduce_ops = True
strategy.BuildStrategy = {"num_iteration_per_drop_scope": 30}

main_prog, startup_prog = fluid.Program(), fluid.Program()
with fluid.program_guard(main_prog, startup_prog):
    image = fluid.layers.data(name="image", shape=[1, 8, 8], dtype="float32")
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    conv = fluid.layers.conv2d(
        input=image,
        num_filters=4,
        filter_size=3,
        padding=1,
        bias_attr=False,
        param_attr=fluid.ParamAttr(name="conv_weights"),
    )
    norm = fluid.layers.batch_norm(input=conv, act="relu")
    pool = fluid.layers.pool2d(input=norm, pool_size=2, pool_stride=2, pool_type="avg")
    prediction = fluid.layers.fc(input=pool, size=4, act="softmax")
    cost = fluid.layers.cross_entropy(input=prediction, label=label)
    avg_cost = fluid.layers.mean(x=cost)
    accuracy = fluid.layers.accuracy(input=prediction, label=label)
    test_prog = main_prog.clone(for_test=True)
    optimizer = fluid.optimizer.MomentumOptimizer(
        learning_rate=0.05, momentum=0.9, regularization=fluid.regularizer.L2Decay(1e-4)
    )
    optimizer = fleet.distributed_optimizer(optimizer, strategy=strategy)
    optimizer.minimize(avg_cost)

exe = fluid.Executor(fluid.CPUPlace())
exe.run(startup_prog)
rng = np.random.default_rng(fleet.worker_index())
labels = rng.integers(4, size=(32, 1))
images = rng.standard_normal((32, 1, 8, 8), dtype="float32")
images += labels[:, :, None, None].astype("float32")
feed = {"image": images, "label": labels}
costs = []
for batch_id in range(30):
    if batch_id % 10 == 0:
        (fetched,) = exe.run(main_prog, feed=feed, fetch_list=[avg_cost.name])
        costs.append(fetched)
    else:
        exe.run(main_prog, feed=feed)
assert costs[-1] < costs[0], costs
correct, tested = exe.run(test_prog, feed=feed, fetch_list=[accuracy, avg_cost])
if fleet.is_first_worker():
    print("accuracy %.2f cost %.4f" % (correct, tested))
    print("fluid_style: done")
