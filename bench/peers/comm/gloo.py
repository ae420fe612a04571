"""All-reduce of f32 in torch over gloo, between processes of this machine."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import common

args = common.options()
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def worker(rank, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=args.ranks)
    data = torch.zeros(args.bytes // 4)
    common.measure(args, rank, dist.barrier, lambda: dist.all_reduce(data))
    dist.destroy_process_group()


if __name__ == "__main__":
    store = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"fleet-gloo-{os.getpid()}")
    # Forked, ranks need not load torch each: that takes longer than what is measured.
    mp.start_processes(worker, args=(store,), nprocs=args.ranks, start_method="fork")
    if os.path.exists(store):
        os.remove(store)
