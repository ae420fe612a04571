"""Starts the ranks of a script, as processes on this machine that are connected by gloo."""

import os
import socket

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def join(rank, port, args):
    """Joins the other ranks, in the process of one of them."""
    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank),
                      WORLD_SIZE=str(args.ranks))
    dist.init_process_group("gloo")


def start(worker, args):
    """Calls `worker(rank, port)` in a process for each rank, and waits for all of them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(worker, args=(port,), nprocs=args.ranks)
