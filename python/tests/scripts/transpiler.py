"""`DistributeTranspiler`: document 004, lines 19 to 27 (mode pserver) and 69 to 76 (mode nccl2)."""

import os
import sys

import numpy as np
import paddle.fluid as fluid

mode, order = sys.argv[1:]
image = fluid.layers.data(name="image", shape=[8], dtype="float32")
label = fluid.layers.data(name="label", shape=[1], dtype="int64")
prediction = fluid.layers.fc(input=image, size=3, act="softmax")
loss = fluid.layers.mean(fluid.layers.cross_entropy(input=prediction, label=label))
fluid.optimizer.SGD(learning_rate=0.5).minimize(loss)

config = fluid.DistributeTranspilerConfig()
trainer_id = int(os.environ.get("PADDLE_TRAINER_ID", 0))
exe = fluid.Executor(fluid.CPUPlace())
if mode == "pserver":
    config.slice_var_up = False
    config.split_method = "HashName"
    t = fluid.DistributeTranspiler(config=config)
    t.transpile(
        trainer_id,
        program=fluid.default_main_program(),
        pservers=os.environ["PADDLE_PSERVERS_IP_PORT_LIST"],
        trainers=int(os.environ["PADDLE_TRAINERS_NUM"]),
        sync_mode=True,
    )
    if os.environ["TRAINING_ROLE"] == "PSERVER":
        endpoint = os.environ["POD_IP"] + ":" + os.environ["PADDLE_PORT"]
        pserver_prog = t.get_pserver_program(endpoint)
        exe.run(t.get_startup_program(endpoint, pserver_prog))
        exe.run(pserver_prog)
        sys.exit()
    # Scripts do this before or after they ask for the program.
    if order == "before":
        exe.run(fluid.default_startup_program())
        fluid.global_scope().find_var("fc_0.b_0").get_tensor().set(np.ones(3, "float32"))
    program = t.get_trainer_program()
    if order == "after":
        exe.run(fluid.default_startup_program())
else:
    config.mode = "nccl2"
    t = fluid.DistributeTranspiler(config=config)
    t.transpile(
        trainer_id,
        program=fluid.default_main_program(),
        startup_program=fluid.default_startup_program(),
        trainers=os.environ["PADDLE_TRAINER_ENDPOINTS"],
        current_endpoint=os.environ["PADDLE_CURRENT_ENDPOINT"],
    )
    program = fluid.default_main_program()
    exe.run(fluid.default_startup_program())

rng = np.random.default_rng(trainer_id)
images = rng.standard_normal((32, 8), dtype="float32")
feed = {"image": images, "label": images[:, :3].argmax(axis=1, keepdims=True)}
losses = []
for step in range(40):
    (value,) = exe.run(program, feed=feed, fetch_list=[loss])
    losses.append(float(value))
    if step == 0 and order == "before":
        # The values that the trainer has are those of the job.
        assert abs(fluid.global_scope()["fc_0.b_0"].mean() - 1.0) < 0.2
assert losses[-1] < 0.7 * losses[0], losses
if trainer_id == 0:
    print("transpiler: done")
exe.close()
