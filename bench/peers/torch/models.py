"""Networks that several scripts train."""

from torch import nn


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


def mlp():
    """Six layers of 2048 x 2048 and a head of 10 classes: 101 MB of parameters."""
    parts = []
    for _ in range(6):
        parts += [nn.Linear(2048, 2048), nn.ReLU(inplace=True)]
    return nn.Sequential(*parts, nn.Linear(2048, 10))
