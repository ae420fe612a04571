"""Data-parallel training in torch: DistributedDataParallel over gloo, processes on this machine.

`--model mlp` is six layers of 2048 x 2048 with ReLU and a head of 10 classes (101 MB of parameters),
batch 128 a rank; `--model resnet50` the network of resnet50.py, batch 8 a rank. Momentum 0.9,
softmax cross-entropy. The ranks share `--threads` threads, at least one each. The result is the
samples per second of rank 0, with `--weak-scaling` divided by what one rank alone reaches.
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common

args = common.options(batch_size=0, steps=10, warmup=3)
args.threads = max(1, args.threads // 2)
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from models import mlp, resnet50


def worker(rank, store):
    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    if args.ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=args.ranks)
    if args.model == "mlp":
        model, batch = mlp(), args.batch_size or 128
        batches = [(torch.randn(batch, 2048), torch.randint(10, (batch,))) for _ in range(2)]
    else:
        model, batch = resnet50().to(memory_format=torch.channels_last), args.batch_size or 8
        batches = [(torch.randn(batch, 3, 224, 224).to(memory_format=torch.channels_last),
                    torch.randint(1000, (batch,))) for _ in range(2)]
    if args.ranks > 1:
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    momentum = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(batch):
        inputs, labels = batch
        loss = nn.functional.cross_entropy(model(inputs), labels)
        momentum.zero_grad(set_to_none=True)
        loss.backward()
        momentum.step()

    args.batch_size = batch
    common.measure(f"ddp/{args.model}", args, step, batches, quiet=rank != 0)
    if args.ranks > 1:
        dist.destroy_process_group()


def weak_scaling():
    def speed(ranks):
        command = [sys.executable, __file__, "--model", args.model, "--ranks", str(ranks)]
        command += ["--threads", str(2 * args.threads), "--steps", str(args.steps)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return json.loads(output.splitlines()[-1])["median"]

    ratios = sorted(speed(args.ranks) / speed(1) for _ in range(3))
    print(json.dumps({
        "bench": f"ddp/{args.model}_weak_scaling",
        "unit": "of one rank's speed",
        "median": round(statistics.median(ratios), 4),
        "min": round(ratios[0], 4),
        "max": round(ratios[-1], 4),
        "runs": len(ratios),
        "threads": args.threads,
    }))


if __name__ == "__main__":
    if args.weak_scaling:
        weak_scaling()
        sys.exit()
    store = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"fleet-ddp-{os.getpid()}")
    if args.ranks == 1:
        worker(0, store)
    else:
        mp.spawn(worker, args=(store,), nprocs=args.ranks)
    if os.path.exists(store):
        os.remove(store)
