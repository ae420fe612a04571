"""Sparse tables in the spellings of document 002 (lines 2847 to 2895), and layers as objects."""

import numpy as np
import paddle
from paddle import nn

paddle.enable_static()
id_num, id_value_shape = 20, 6

x = paddle.static.data(name="ids", shape=[None, 1], dtype="int64")
label = paddle.static.data(name="label", shape=[None, 1], dtype="int64")
rows = [
    paddle.nn.Embedding(input=x, size=[id_num, id_value_shape], sparse=True),
    paddle.static.nn.embedding(input=x, size=[id_num, id_value_shape], is_sparse=True),
    paddle.fluid.contrib.sparse_embedding(input=x, size=[id_num, id_value_shape]),
]
old = paddle.fluid.layers.embedding(input=x, size=[id_num, id_value_shape], is_sparse=True)
features = paddle.concat([*(paddle.reshape(r, [-1, id_value_shape]) for r in rows), old], axis=1)


class Head(nn.Layer):
    """Layers that are made by number, as loops of the documents' models do."""

    def __init__(self, sizes):
        super().__init__()
        self.layers = []
        for index, (before, after) in enumerate(zip(sizes, sizes[1:])):
            attr = paddle.ParamAttr(initializer=nn.initializer.Normal(std=before**-0.5))
            linear = nn.Linear(before, after, weight_attr=attr)
            self.layers.append(self.add_sublayer(f"linear_{index}", linear))
            if index + 2 < len(sizes):
                self.layers.append(self.add_sublayer(f"act_{index}", nn.ReLU()))

    def forward(self, inputs):
        for layer in self.layers:
            inputs = layer(inputs)
        return inputs


head = Head([4 * id_value_shape, 16, 2])
loss = nn.functional.cross_entropy(input=head(features), label=label)
paddle.optimizer.Adam(0.05, lazy_mode=True).minimize(loss)
exe = paddle.static.Executor(paddle.CUDAPlace(0), threads=1)
exe.run(paddle.static.default_startup_program())
ids = np.arange(20).reshape(-1, 1)
feed = {"ids": ids, "label": (ids % 3 == 0).astype("int64")}
losses = [exe.run(feed=feed, fetch_list=[loss])[0] for _ in range(60)]
assert float(losses[-1]) < 0.3 * float(losses[0]), losses
assert set(head.state_dict()) == {
    "linear_0.weight",
    "linear_0.bias",
    "linear_1.weight",
    "linear_1.bias",
}
print("layers: done")
