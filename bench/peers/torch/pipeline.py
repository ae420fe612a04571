"""A pipeline in torch: torch.distributed.pipelining over gloo, two processes on this machine.

Six layers of 2048 x 2048 with ReLU and a head of 10 classes (101 MB of parameters), three layers on
each rank. A step is 8 micro-batches of 128 in the schedule 1F1B. Momentum 0.9, softmax
cross-entropy. The ranks share `--threads` threads, at least one each. The result is the samples per
second of the ranks together.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common

MICRO_BATCHES = 8

args = common.options(batch_size=MICRO_BATCHES * 128, steps=10, warmup=3)
args.threads = max(1, args.threads // 2)

import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from models import mlp


def worker(rank, port):
    ranks.join(rank, port, args)
    layers = list(mlp())
    # Two modules, a layer and its ReLU, are one of six parts; the last rank has the head too.
    cuts = [2 * (6 * part // args.ranks) for part in range(args.ranks)] + [len(layers)]
    model = nn.Sequential(*layers[cuts[rank] : cuts[rank + 1]])
    stage = PipelineStage(model, rank, args.ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=nn.functional.cross_entropy)
    momentum = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=False)
    batch = args.batch_size
    batches = [(torch.randn(batch, 2048), torch.randint(10, (batch,))) for _ in range(2)]
    is_first, is_last = rank == 0, rank == args.ranks - 1

    def step(batch):
        inputs, labels = batch
        momentum.zero_grad(set_to_none=True)
        schedule.step(*([inputs] if is_first else []), **({"target": labels} if is_last else {}))
        momentum.step()

    common.measure("mp/pipeline_vs_torch", args, step, batches, quiet=rank != 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks.start(worker, args)
