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

torch.manual_seed(1)
torch.set_num_threads(args.threads)


def conv_norm(inputs, outputs, kernel, stride=1):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.first = conv_norm(inputs, width, 1)
        self.second = conv_norm(width, width, 3, stride)
        self.third = conv_norm(width, 4 * width, 1)
        project = stride != 1 or inputs != 4 * width
        self.short = conv_norm(inputs, 4 * width, 1, stride) if project else nn.Identity()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.relu(self.second(self.relu(self.first(x))))
        y = self.third(y)
        y += self.short(x)
        return self.relu(y)


def resnet50():
    parts = [conv_norm(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, depth in enumerate([3, 4, 6, 3]):
        width = 64 << stage
        for block in range(depth):
            parts.append(Bottleneck(channels, width, 2 if stage > 0 and block == 0 else 1))
            channels = 4 * width
    parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]
    return nn.Sequential(*parts)


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
