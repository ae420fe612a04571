"""ResNet-50 (stride in the 3x3 convolution) in torch: 224x224, batch 16, channels-last.

Momentum 0.9 with L2 1e-4 on every parameter, softmax cross-entropy over 1000 classes.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common

args = common.options(batch_size=16, steps=5, warmup=2)

import torch
from torch import nn

from models import resnet50

torch.manual_seed(1)
torch.set_num_threads(args.threads)

model = resnet50().to(memory_format=torch.channels_last)
# Eager is the default: compiling gains less than 2 %, which is noise.
run_model = torch.compile(model) if args.compile else model
momentum = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)


def step(batch):
    images, labels = batch
    loss = nn.functional.cross_entropy(run_model(images), labels)
    momentum.zero_grad(set_to_none=True)
    loss.backward()
    momentum.step()


batches = [(torch.randn(args.batch_size, 3, 224, 224).to(memory_format=torch.channels_last),
            torch.randint(1000, (args.batch_size,))) for _ in range(2)]
common.measure("train/resnet50", args, step, batches)
