"""Sharded data parallelism in torch: fully_shard (FSDP2) over gloo, two processes on this machine.

Six layers of 2048 x 2048 with ReLU and a head of 10 classes (101 MB of parameters); each layer is a
shard of its own, and parameters are freed after use. Batch 128 a rank, momentum 0.9, softmax
cross-entropy. The ranks share `--threads` threads, at least one each. The result is the samples per
second of rank 0.
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
from torch.distributed.fsdp import fully_shard

from models import mlp


def worker(rank, port):
    ranks.join(rank, port, args)
    mesh = init_device_mesh("cpu", (args.ranks,))
    model = mlp()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    momentum = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=False)
    batch = args.batch_size
    batches = [(torch.randn(batch, 2048), torch.randint(10, (batch,))) for _ in range(2)]

    def step(batch):
        inputs, labels = batch
        loss = nn.functional.cross_entropy(model(inputs), labels)
        momentum.zero_grad(set_to_none=True)
        loss.backward()
        momentum.step()

    common.measure("mp/fsdp_vs_torch", args, step, batches, quiet=rank != 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks.start(worker, args)
