"""Documented names that the package does not have: the error names the alternative."""

import importlib


class Unsupported(AttributeError, NotImplementedError):
    """A documented name that the package does not have."""


_FEED = "read the data in Python, and pass arrays: exe.run(feed=..)"
_LAYERS = "write the network with fleet.static.nn"
_JOBS = "fleet.distributed.fleet.distributed_optimizer, with the gradients of all workers summed"
_BRANCHES = "compute both branches and select: fleet.where"

_MAP_STYLE = ["BatchSampler", "Dataset", "DistributedBatchSampler", "IterableDataset", "Sampler"]

_NAMES = {
    "fleet": {
        "DataParallel": _JOBS,
        "Model": _LAYERS,
        "grad": "fleet.static.gradients",
        "inference": "fleet.static.load_inference_model, and run the program",
        "jit": "layers always write a program: fleet.static",
        "load": "fleet.static.load_vars or load_inference_model",
        "no_grad": "set stop_gradient of variables",
        "save": "fleet.static.save_vars or save_inference_model",
        "to_tensor": "feed arrays; constants: fleet.full",
    },
    "fleet.nn": {
        "AvgPool2D": "fleet.static.nn.pool2d",
        "BatchNorm": "fleet.static.nn.batch_norm",
        "BatchNorm2D": "fleet.static.nn.batch_norm",
        "CrossEntropyLoss": "fleet.nn.functional.cross_entropy",
        "Dropout": "fleet.nn.functional.dropout",
        "Flatten": "fleet.flatten",
        "GRU": _LAYERS,
        "LSTM": _LAYERS,
        "LayerNorm": "fleet.static.nn.layer_norm",
        "MSELoss": "fleet.nn.functional.mse_loss",
        "MaxPool2D": "fleet.static.nn.pool2d",
        "MultiHeadAttention": "fleet.static.nn.multi_head_attention",
        "Sigmoid": "fleet.nn.functional.sigmoid",
        "Softmax": "fleet.nn.functional.softmax",
        "SyncBatchNorm": "DistributedStrategy.sync_batch_norm",
        "Tanh": "fleet.nn.functional.tanh",
        "TransformerEncoder": "fleet.static.nn.transformer_layer",
    },
    "fleet.static": {
        "load": "fleet.static.load_vars or load_inference_model",
        "save": "fleet.static.save_vars or save_inference_model",
    },
    "fleet.static.nn": {name: _BRANCHES for name in ["case", "cond", "switch_case", "while_loop"]},
    "fleet.vision": {name: _FEED for name in ["datasets", "models", "transforms"]},
    "fleet.fluid": {
        "dygraph": _LAYERS,
        "memory_optimize": "leave it out: the executor plans memory",
        "release_memory": "leave it out: the executor plans memory",
    },
    "fleet.fluid.layers": {
        name: _BRANCHES for name in ["Switch", "While", "case", "cond", "while_loop"]
    },
    "fleet.io": {name: "fleet.io.DataLoader.from_generator" for name in _MAP_STYLE},
    "fleet.distributed": {
        "all_reduce": "fleet.distributed.fleet.util.all_reduce",
        "barrier": "fleet.distributed.fleet.barrier_worker",
        "init_parallel_env": "fleet.distributed.fleet.init(is_collective=True)",
        "spawn": "start the script with fleetrun",
    },
}


def advice(module, name):
    """Returns the alternative to a name that a module does not have, or None if there is none."""
    return _NAMES.get(module, {}).get(name)


def absent(module, lazy=()):
    """Returns the `__getattr__` of a module. Modules in `lazy` are imported at their first use."""

    def __getattr__(name):
        if name in lazy:
            return importlib.import_module(f"{module}.{name}")
        text = f"module '{module}' has no attribute '{name}'"
        known = advice(module, name)
        if known is not None:
            raise Unsupported(f"{text}: it is not supported in Python\n  help: {known}")
        raise AttributeError(text)

    return __getattr__
