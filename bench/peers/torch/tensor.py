"""Tensor parallelism in torch: DTensor's parallelize_module over gloo, two processes on this machine.

Six layers of 2048 x 2048 with ReLU, in pairs of columns and rows, and a head of 10 classes (101 MB
of parameters). All ranks have the same batch of 128. Momentum 0.9, softmax cross-entropy. The ranks
share `--threads` threads, at least one each. The result is the samples per second of the ranks
together.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common

args = common.options(batch_size=128, steps=10, warmup=3)
args.threads = max(1, args.threads // 2)

import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from models import mlp


def worker(rank, port):
    ranks.join(rank, port, args)
    mesh = init_device_mesh("cpu", (args.ranks,))
    model = mlp()
    layers = [name for name, layer in model.named_children() if isinstance(layer, nn.Linear)]
    styles = [ColwiseParallel, RowwiseParallel]
    plan = {name: styles[at % 2]() for at, name in enumerate(layers[:-1])}
    parallelize_module(model, mesh, plan)
    for layer in model:
        if isinstance(layer, nn.ReLU):
            # Outputs of divided layers are views, which torch does not change in place.
            layer.inplace = False
    momentum = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=False)
    batch = args.batch_size
    batches = [(torch.randn(batch, 2048), torch.randint(10, (batch,))) for _ in range(2)]

    def step(batch):
        inputs, labels = batch
        loss = nn.functional.cross_entropy(model(inputs), labels)
        momentum.zero_grad(set_to_none=True)
        loss.backward()
        momentum.step()

    common.measure("mp/tensor_vs_torch", args, step, batches, quiet=rank != 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks.start(worker, args)
