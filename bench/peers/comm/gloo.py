"""All-reduce of f32 in torch over gloo, between processes of this machine.

FLEET_BENCH_NAMESPACES names a network namespace for each rank, where each is to be in one of its own.
"""

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import common

args = common.options()
namespaces = os.environ.get("FLEET_BENCH_NAMESPACES", "").split()
os.environ.setdefault("GLOO_SOCKET_IFNAME", "cable" if namespaces else "lo")
os.environ["OMP_NUM_THREADS"] = "1"
STORE, RANK = "FLEET_BENCH_GLOO_STORE", "FLEET_BENCH_GLOO_RANK"


def worker(rank, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=args.ranks)
    data = torch.zeros(args.bytes // 4)
    common.measure(args, rank, dist.barrier, lambda: dist.all_reduce(data))
    dist.destroy_process_group()


def start_in_namespaces(store):
    """This script again, in each of them; its exit code."""
    def start(rank):
        command = ["ip", "netns", "exec", namespaces[rank], sys.executable, *sys.argv]
        return subprocess.Popen(command, env={**os.environ, STORE: store, RANK: str(rank)})

    return max([rank.wait() for rank in [start(rank) for rank in range(args.ranks)]])


if STORE not in os.environ:
    store = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"fleet-gloo-{os.getpid()}")
    if namespaces:
        code = start_in_namespaces(store)
        if os.path.exists(store):
            os.remove(store)
        sys.exit(code)

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

if STORE in os.environ:
    worker(int(os.environ[RANK]), os.environ[STORE])
else:
    # Forked, ranks need not load torch each: that takes longer than what is measured.
    mp.start_processes(worker, args=(store,), nprocs=args.ranks, start_method="fork")
    if os.path.exists(store):
        os.remove(store)
