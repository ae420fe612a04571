"""Documented names that the package does not have: the error names the alternative."""

_FEED = "read the data in Python, and pass arrays: exe.run(feed=..)"
_LAYERS = "write the network with fleet.static.nn"

_MAP_STYLE = ["BatchSampler", "Dataset", "DistributedBatchSampler", "IterableDataset", "Sampler"]

_NAMES = {
    "fleet": {
        "DataParallel": "fleet.distributed.fleet.distributed_optimizer",
        "Model": _LAYERS,
        "dataset": _FEED,
        "no_grad": "set stop_gradient of variables",
        "onnx": "fleet.static.save_inference_model",
        "to_tensor": "feed arrays; constants: fleet.full",
        "vision": _FEED,
    },
    "fleet.nn": {name: _LAYERS for name in ["Conv2D", "Embedding", "Layer", "Linear", "ReLU"]},
    "fleet.static": {
        "CompiledProgram": "run the program itself; set a BuildStrategy in DistributedStrategy",
        "ParallelExecutor": "fleet.distributed.fleet.distributed_optimizer",
        "load": "fleet.static.load_vars or load_inference_model",
        "save": "fleet.static.save_vars or save_inference_model",
    },
    "fleet.fluid": {
        "CompiledProgram": "run the program itself; set a BuildStrategy in DistributedStrategy",
        "DistributeTranspiler": "the Rust API: fleet::servers",
        "DistributeTranspilerConfig": "the Rust API: fleet::servers",
        "dygraph": _LAYERS,
    },
    "fleet.fluid.layers": {},
    "fleet.io": {name: "fleet.io.DataLoader.from_generator" for name in _MAP_STYLE},
    "fleet.distributed": {},
    "fleet.distributed.fleet": {
    },
}


def absent(module):
    """Returns the `__getattr__` of a module."""
    known = _NAMES[module]

    def __getattr__(name):
        text = f"module '{module}' has no attribute '{name}'"
        if name in known:
            text += f": it is not supported in Python\n  help: {known[name]}"
        raise AttributeError(text)

    return __getattr__
