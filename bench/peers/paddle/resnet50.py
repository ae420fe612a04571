"""ResNet-50 (stride in the 3x3 convolution) in Paddle: 224x224, batch 16, NCHW.

Momentum 0.9 with L2 1e-4, softmax cross-entropy over 1000 classes. NCHW is Paddle's default
layout; channels-last was not tried.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common

args = common.options(batch_size=16, steps=5, warmup=2)

import paddle

paddle.seed(1)
paddle.set_device("cpu")
paddle.set_flags({"FLAGS_paddle_num_threads": args.threads})

model = paddle.vision.models.resnet50(num_classes=1000)
momentum = paddle.optimizer.Momentum(
    0.01, momentum=0.9, weight_decay=1e-4, parameters=model.parameters())


def step(batch):
    images, labels = batch
    loss = paddle.nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    momentum.step()
    momentum.clear_grad(set_to_zero=False)


batches = [(paddle.randn([args.batch_size, 3, 224, 224]),
            paddle.randint(0, 1000, [args.batch_size])) for _ in range(2)]
common.measure("train/resnet50", args, step, batches)
