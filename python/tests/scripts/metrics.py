"""Metrics across workers: document 002, lines 3375 to 3647."""

import numpy as np
import paddle
import paddle.distributed.fleet as fleet

paddle.enable_static()
fleet.init(is_collective=True)

x = paddle.static.data("x", [None, 2])
label = paddle.static.data("label", [None, 1], "int64")
value = paddle.static.data("value", [None, 1])
pred = paddle.static.nn.fc(x, 2, weight_attr=paddle.nn.initializer.Assign([[1, 0], [0, 1]]))
score = paddle.sum(x, axis=1, keepdim=True)
counters = {
    name: paddle.static.create_global_var(
        name=name, persistable=True, dtype="float32", shape=[1], value=0
    )
    for name in ["right_cnt", "total_cnt", "abserr", "sqrerr"]
}
batch_cnt = paddle.sum(paddle.full(shape=[paddle.shape(label)[0], 1], fill_value=1.0))
batch_accuracy = paddle.static.accuracy(input=pred, label=label)
updates = {
    "right_cnt": batch_cnt * batch_accuracy,
    "total_cnt": batch_cnt,
    "abserr": paddle.nn.functional.l1_loss(score, value, reduction="sum"),
    "sqrerr": paddle.nn.functional.mse_loss(score, value, reduction="sum"),
}
for name, update in updates.items():
    paddle.assign(counters[name] + update, counters[name])
accuracy = counters["right_cnt"] / counters["total_cnt"]
probability = paddle.nn.functional.softmax(pred)
_, _, (_, _, stat_pos, stat_neg) = paddle.static.auc(probability, label, num_thresholds=2**12)
loss = paddle.mean(score)

exe = paddle.static.Executor(threads=1)
exe.run(paddle.static.default_startup_program())
rank = fleet.worker_index()
xs = np.array([[2, 1], [1, 2], [3, 0], [0, 3]], "float32")[rank * 2 :][:2]
feed = {"x": xs, "label": [[0], [0]], "value": np.full((2, 1), 1.0, "float32")}
loss_val, local = exe.run(feed=feed, fetch_list=[loss.name, accuracy])
assert float(local) == 0.5

workers = fleet.worker_num()
right, total = counters["right_cnt"], counters["total_cnt"]
global_cnt = fleet.metrics.sum(total)
global_correct = fleet.metrics.sum("right_cnt")
assert float(global_correct) / float(global_cnt) == 0.5
assert fleet.metrics.acc(right, total) == 0.5
assert fleet.metrics.mae(counters["abserr"], total) == 2.0
assert fleet.metrics.mse(counters["sqrerr"], total) == 4.0
assert fleet.metrics.rmse("sqrerr", "total_cnt") == 2.0
assert fleet.metrics.sum(loss_val).tolist() == [3.0 * workers]
assert fleet.metrics.max(np.array([rank])).tolist() == [workers - 1]
assert fleet.metrics.min(np.array([rank])).tolist() == [0]
# There is no positive label.
assert fleet.metrics.auc(stat_pos, stat_neg) == 0.5
# Counters begin again.
tensor = paddle.static.global_scope().find_var("total_cnt").get_tensor()
tensor.set(np.zeros(tensor._get_dims(), "float32"), paddle.CPUPlace())
assert fleet.metrics.sum("total_cnt").tolist() == [0.0]
if fleet.is_first_worker():
    print("metrics: done")
