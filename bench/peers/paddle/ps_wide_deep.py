"""Wide & deep on parameter servers in Paddle 2.6.2, the last release with a wheel that has them: one
server, one or two workers of one trainer thread, asynchronous, Adam on everything: the workload of
`fleet-bench ps/wide_deep_1s1w_vs_paddle`. `bench/py/wide_deep_script_vs_paddle.py` runs the same
script on Fleet.

The process that is started is the launcher: it starts this script as server and workers, and adds
up their speeds. Paddle trains with servers only through `train_from_dataset` (its `exe.run` loop
sends nothing), so batches come from text files in memory; the pass that is timed follows one that
is not. A third pass prints its loss, for comparison at the same number of samples.

Gradients are sent as they come (the default of both systems). With the settings
FLAGS_communicator_max_merge_var_num and the like at 20, a fast worker merges 20 steps into one
update, and learns less from the same samples.
"""

import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common

FOLDER = "FLEET_PEER_FOLDER"


def write_batches(path, args):
    """One pass: 16 batches again and again, as MultiSlot text."""
    batches = common.click_batches(16, args.batch_size)
    with open(path, "w") as file:
        for index in range(args.steps):
            dense, ids, labels = batches[index % len(batches)]
            for row in range(args.batch_size):
                values = " ".join(f"{value:.6f}" for value in dense[row])
                slots = " ".join(str(value) for value in ids[row])
                label = f"1 {labels[row][0]:.0f}"
                file.write(f"{common.DENSE_COUNT} {values} {common.SLOT_COUNT} {slots} {label}\n")


def launch(args, workers, interpreter):
    with tempfile.TemporaryDirectory() as folder:
        write_batches(Path(folder) / "part-0", args)
        # Taken and given back: the processes take them next.
        taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(1 + workers)]
        ports = [str(one.getsockname()[1]) for one in taken]
        for one in taken:
            one.close()
        env = dict(os.environ, **{
            FOLDER: folder,
            "PADDLE_PSERVERS_IP_PORT_LIST": f"127.0.0.1:{ports[0]}",
            "PADDLE_TRAINER_ENDPOINTS": ",".join(f"127.0.0.1:{port}" for port in ports[1:]),
            "PADDLE_TRAINERS_NUM": str(workers),
            "POD_IP": "127.0.0.1",
            "PADDLE_WITH_GLOO": "0",
            "FLEET_OPEN": "loopback",
            "CPU_NUM": "1",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
        })

        def start(role, port, rank):
            place = {"TRAINING_ROLE": role, "PADDLE_PORT": port, "PADDLE_TRAINER_ID": str(rank)}
            # Paddle writes descriptions of its trainers where it stands.
            command = [*interpreter, str(Path(__file__).resolve()), *sys.argv[1:]]
            return subprocess.Popen(command, env=dict(env, **place), cwd=folder,
                                    stdout=subprocess.PIPE, text=True,
                                    stderr=open(Path(folder) / f"{role}.{rank}", "w"))

        server = start("PSERVER", ports[0], 0)
        children = [start("TRAINER", port, rank) for rank, port in enumerate(ports[1:])]
        total, losses = 0.0, []
        try:
            for rank, child in enumerate(children):
                out, _ = child.communicate(timeout=170)
                rates = [line for line in out.splitlines() if line.startswith("rate ")]
                if not rates:
                    said = (Path(folder) / f"TRAINER.{rank}").read_text()[-2000:]
                    code = child.returncode
                    raise SystemExit(f"a worker ended with {code} and no rate:\n{said}")
                total += float(rates[-1].split()[1])
                # Paddle prints `loss[1]:[0.5]`, Fleet `loss: 0.5`.
                losses += [float(loss) for loss in re.findall(r"loss(?:\[1\])?: ?\[?([0-9.e-]+)", out)]
        finally:
            for child in [server, *children]:
                child.kill()
                child.wait()
    return total, statistics.fmean(losses)


def part(args):
    import paddle
    import paddle.distributed.fleet as fleet

    paddle.enable_static()
    dense = paddle.static.data("dense", [None, common.DENSE_COUNT], "float32")
    ids = paddle.static.data("ids", [None, common.SLOT_COUNT], "int64")
    label = paddle.static.data("label", [None, 1], "float32")
    rows = paddle.static.nn.sparse_embedding(
        paddle.reshape(ids, [-1, 1]), [common.ROW_COUNT, 16],
        param_attr=paddle.ParamAttr(
            "table", initializer=paddle.nn.initializer.Uniform(-0.01, 0.01)))
    hidden = paddle.concat([paddle.reshape(rows, [-1, common.SLOT_COUNT * 16]), dense], axis=1)
    for width in (400, 400, 400):
        hidden = paddle.static.nn.fc(hidden, width, activation="relu")
    logit = paddle.static.nn.fc(dense, 1) + paddle.static.nn.fc(hidden, 1)
    loss = paddle.mean(paddle.nn.functional.binary_cross_entropy_with_logits(logit, label))

    # Its way of printing a strategy imports what protobuf 4 does not have.
    fleet.DistributedStrategy.__repr__ = lambda self: "a strategy"
    fleet.init(is_collective=False)
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    strategy.a_sync_configs = {"k_steps": 0}
    optimizer = fleet.distributed_optimizer(paddle.optimizer.Adam(1e-3), strategy)
    optimizer.minimize(loss)
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        return
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    dataset = paddle.distributed.InMemoryDataset()
    dataset.init(batch_size=args.batch_size, thread_num=1, pipe_command="cat",
                 use_var=[dense, ids, label])
    dataset.set_filelist([str(Path(os.environ[FOLDER]) / "part-0")])
    dataset.load_into_memory()
    main = paddle.static.default_main_program()
    for timed in (False, True):
        start = time.perf_counter()
        exe.train_from_dataset(main, dataset, thread=1)
        seconds = time.perf_counter() - start
    exe.train_from_dataset(main, dataset, thread=1, fetch_list=[loss], fetch_info=["loss"],
                           print_period=1)
    print(f"rate {args.steps * args.batch_size / seconds}", flush=True)
    fleet.stop_worker()


def main(interpreter):
    """Runs as launcher, or as the part of the job that the launcher has started."""
    args = common.options(batch_size=2048, steps=60, warmup=60)
    if FOLDER in os.environ:
        return part(args)
    rate, loss = launch(args, args.ranks, interpreter)
    line = {"bench": f"ps/wide_deep_1s{args.ranks}w", "unit": "samples/s", "runs": args.steps}
    line.update({key: round(rate, 1) for key in ("median", "min", "max")})
    print(json.dumps({**line, "threads": 1, "peak_rss_mb": 0, "loss": round(loss, 4)}))


if __name__ == "__main__":
    main([sys.executable])
