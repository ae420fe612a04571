"""Wide & deep in Paddle, dynamic graph: the workload of ../torch/wide_deep.py.

The table has sparse gradients under SGD or Adagrad; everything else takes Adam. Gradients are dropped
after a step, not zeroed: zeroing them, Paddle's default, costs 40 %.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common

args = common.options(batch_size=2048, steps=100, warmup=20)

import paddle
from paddle import nn

paddle.seed(1)
paddle.set_device("cpu")
paddle.set_flags({"FLAGS_paddle_num_threads": args.threads})


class WideDeep(nn.Layer):
    def __init__(self):
        super().__init__()
        width = common.SLOT_COUNT * 16 + common.DENSE_COUNT
        self.wide = nn.Linear(common.DENSE_COUNT, 1)
        self.deep = nn.Sequential(
            nn.Linear(width, 400), nn.ReLU(),
            nn.Linear(400, 400), nn.ReLU(),
            nn.Linear(400, 400), nn.ReLU(),
            nn.Linear(400, 1),
        )

    def forward(self, dense, rows):
        features = paddle.concat([rows.flatten(1), dense], axis=1)
        return self.wide(dense) + self.deep(features)


table = nn.Embedding(common.ROW_COUNT, 16, sparse=True,
                     weight_attr=nn.initializer.Uniform(-0.01, 0.01))
head = WideDeep()
rule = paddle.optimizer.SGD if args.optimizer == "sgd" else paddle.optimizer.Adagrad
sparse = rule(0.01, parameters=table.parameters())
adam = paddle.optimizer.Adam(1e-3, parameters=head.parameters())


def step(batch):
    dense, ids, labels = batch
    logits = head(dense, table(ids))
    loss = nn.functional.binary_cross_entropy_with_logits(logits, labels)
    loss.backward()
    sparse.step()
    adam.step()
    sparse.clear_grad(set_to_zero=False)
    adam.clear_grad(set_to_zero=False)


batches = [tuple(paddle.to_tensor(part) for part in batch)
           for batch in common.click_batches(16, args.batch_size)]
common.measure(f"train/wide_deep_{args.optimizer}", args, step, batches)
