"""A model of fleetx on servers: document 002, lines 3072 to 3110, and document 000, line 276."""

import numpy as np
import paddle
import paddle.distributed.fleet as fleet
import fleetx as X

paddle.enable_static()
fleet.init()
X.applications.Word2vec.SAMPLES = 4000
model = X.applications.Word2vec(vocabulary=60, width=16)
loader = model.load_dataset_from_file(train_files_path=["train.txt"], dict_path="dict.txt")
strategy = fleet.DistributedStrategy()
strategy.a_sync = True
optimizer = fleet.distributed_optimizer(paddle.optimizer.Adam(0.02), strategy)
optimizer.minimize(model.cost)

if fleet.is_server():
    fleet.init_server()
    fleet.run_server()

if fleet.is_worker():
    exe = paddle.static.Executor(paddle.CPUPlace(), threads=1)
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    losses = []
    for epoch in range(3):
        for feed in loader():
            losses.append(exe.run(feed=feed, fetch_list=[model.cost])[0])
    assert np.mean(losses[-10:]) < 0.8 * np.mean(losses[:5]), losses
    if fleet.is_first_worker():
        print("word2vec: done")
    fleet.stop_worker()
