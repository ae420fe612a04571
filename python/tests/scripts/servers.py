"""A job with parameter servers: document 002, lines 2227 to 2283, 2526 to 2568, 2704 to 2740, 3143 to
3199 (training), 3260 to 3289 (saves) and 3730 to 3774 (inference)."""

import os
import sys

import numpy as np
import paddle
import paddle.distributed.fleet as fleet
import paddle.distributed.fleet.base.role_maker as role_maker
from paddle.distributed.fleet.utils.ps_util import DistributedInfer

paddle.enable_static()
mode = sys.argv[1]


class WideDeepModel:
    """Two sparse features and three dense ones."""

    def net(self, is_train):
        dense = paddle.static.data(name="dense_input", shape=[None, 3], dtype="float32")
        label = paddle.static.data(name="label", shape=[None, 1], dtype="int64")
        rows = []
        for name in ["C1", "C2"]:
            ids = paddle.static.data(name=name, shape=[None, 1], dtype="int64")
            attr = paddle.ParamAttr(name="embedding")
            rows.append(
                paddle.fluid.layers.embedding(
                    input=ids, size=[100, 4], is_sparse=True, param_attr=attr
                )
            )
        hidden = paddle.static.nn.fc(paddle.concat([*rows, dense], axis=1), 8, activation="relu")
        predict = paddle.static.nn.fc(hidden, size=2, activation="softmax")
        self.cost = paddle.mean(paddle.fluid.layers.cross_entropy(predict, label))


def batches(count):
    rng = np.random.default_rng(fleet.worker_index())
    for _ in range(count):
        feed = {name: rng.integers(100, size=(16, 1)) for name in ["C1", "C2"]}
        feed["dense_input"] = rng.standard_normal((16, 3), dtype="float32")
        feed["label"] = (feed["C1"] > 50).astype("int64")
        yield feed


role = role_maker.PaddleCloudRoleMaker()
fleet.init(role)
model = WideDeepModel()
model.net(is_train=True)
strategy = fleet.DistributedStrategy()
strategy.a_sync = mode != "sync"
if mode == "geo":
    strategy.a_sync_configs = {"k_steps": 4}
learner = paddle.optimizer.SGD(0.5) if mode == "geo" else paddle.optimizer.Adam(0.01)
optimizer = fleet.distributed_optimizer(learner, strategy)
optimizer.minimize(model.cost)

if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    exe = paddle.static.Executor(paddle.CPUPlace(), threads=1)
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    losses = []
    for batch_id, feed in enumerate(batches(200)):
        loss_val = exe.run(
            program=paddle.static.default_main_program(),
            feed=feed,
            fetch_list=[model.cost.name],
        )
        losses.append(np.mean(loss_val))
    print("TRAIN ---> pass: {} loss: {}".format(0, losses[-1]))
    assert np.mean(losses[-20:]) < 0.7 * np.mean(losses[:20]), losses

    test_main, test_startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main_program=test_main, startup_program=test_startup):
        with paddle.utils.unique_name.guard():
            model.net(is_train=False)
    infer = DistributedInfer(main_program=test_main, startup_program=test_startup)
    program = infer.get_dist_infer_program()
    tested = [
        np.mean(exe.run(program=program, feed=feed, fetch_list=[model.cost.name]))
        for feed in batches(10)
    ]
    print("TEST ---> batch_idx: {} loss: {}".format(10, tested[-1]))
    assert np.mean(tested) < 0.7 * losses[0], tested

    if fleet.is_first_worker() and fleet.server_num():
        dirname = "saved_" + mode
        fleet.save_persistables(dirname)
        assert os.listdir(dirname)
    if fleet.is_first_worker():
        print("servers: done")
    fleet.stop_worker()
