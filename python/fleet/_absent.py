"""Documented names that the package does not have: the error names the alternative."""

import dis
import importlib
import re
import sys


class Unsupported(AttributeError, NotImplementedError):
    """A documented name that the package does not have."""


class UnsupportedModule(ImportError, NotImplementedError):
    """A documented module or name that cannot be imported. The text names the alternative."""


_FEED = "read the data in Python, and pass arrays: exe.run(feed=..)"
_LAYERS = "write the network with fleet.static.nn"
_JOBS = "fleet.distributed.fleet.distributed_optimizer, with the gradients of all workers summed"
_BRANCHES = "fleet.static.nn.cond, or compute both branches and select: fleet.where"
_LOOPS = "write the steps one after another, or loop in Python over runs of exe.run"
_RANDOM = "feed random arrays, which differ in every run: np.random.rand(..)"
_RAGGED = "pad the rows to one length, look them up, and reduce: fleet.sum(rows, axis=1)"
_SEQUENCE = "pad the rows to one length, and use layers of whole arrays: fleet.static.nn"
_HETEROGENEOUS = "start the job with servers and workers, which compute the whole step: " \
    "fleetrun --server_num=1 --worker_num=2"
_CLIP = "pass it to the optimizer: fleet.optimizer.SGD(0.1, grad_clip=..)"
_METRIC = "add fleet.metric.accuracy to the network, fetch it, and average in Python"

_NAMES = {
    "fleet": {
        "DataParallel": _JOBS,
        "Model": _LAYERS,
        "Tensor": "variables are fleet.static.Variable, and fetched values arrays of NumPy",
        "amp": "DistributedStrategy.amp",
        "grad": "fleet.static.gradients",
        "inference": "fleet.static.load_inference_model, and run the program",
        "jit": "layers always write a program: fleet.static",
        "load": "fleet.static.load_vars or load_inference_model",
        "no_grad": "set stop_gradient of variables",
        "normal": _RANDOM,
        "rand": _RANDOM,
        "randint": _RANDOM,
        "randn": _RANDOM,
        "randperm": _RANDOM,
        "save": "fleet.static.save_vars or save_inference_model",
        "set_default_dtype": "name the type of inputs: fleet.static.data(.., dtype='float32')",
        "summary": "print(fleet.static.default_main_program())",
        "to_tensor": "feed arrays; constants: fleet.full",
        "uniform": _RANDOM,
    },
    "fleet.device": {"cuda": "programs run on the CPU: leave it out"},
    "fleet.metric": {name: _METRIC for name in ["Accuracy", "Auc", "Precision", "Recall"]},
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
    "fleet.nn.functional": {
        "avg_pool1d": "fleet.nn.functional.avg_pool2d of x with a height of 1",
        "batch_norm": "fleet.static.nn.batch_norm",
        "binary_cross_entropy": "fleet.mean(fleet.nn.functional.log_loss(x, label))",
        "conv2d": "fleet.static.nn.conv2d, which has the parameter",
        "embedding": "fleet.static.nn.embedding, which has the parameter",
        "layer_norm": "fleet.static.nn.layer_norm",
        "linear": "fleet.matmul(x, weight) + bias, or fleet.static.nn.fc",
        "max_pool1d": "fleet.nn.functional.max_pool2d of x with a height of 1",
        "normalize": "x * fleet.rsqrt(fleet.sum(x * x, axis=1, keepdim=True) + 1e-12)",
        "smooth_l1_loss": "fleet.fluid.layers.huber_loss, with delta",
    },
    "fleet.static": {
        "load": "fleet.static.load_vars or load_inference_model",
        "save": "fleet.static.save_vars or save_inference_model",
    },
    "fleet.static.nn": {
        **{name: _BRANCHES for name in ["case", "switch_case"]},
        "while_loop": _LOOPS,
    },
    "fleet.vision": {name: _FEED for name in ["datasets", "models", "transforms"]},
    "fleet.fluid": {
        "create_lod_tensor": "pad the rows to one length and feed an array, or read them with a "
        "dataset, whose inputs may have lod_level=1",
        "create_random_int_lodtensor": "feed arrays: np.random.randint(..)",
        "dygraph": _LAYERS,
        "install_check": "leave it out",
        "memory_optimize": "leave it out: the executor plans memory",
        "nets": "write the parts with fleet.static.nn",
        "profiler": "fleet.Trainer(scalars=..) for its speed, or a profiler of Python",
        "release_memory": "leave it out: the executor plans memory",
        "require_version": "leave it out",
    },
    "fleet.fluid.clip": {
        "ErrorClipByValue": _CLIP,
        "set_gradient_clip": _CLIP,
    },
    "fleet.fluid.layers": {
        **{name: _BRANCHES for name in ["IfElse", "Switch", "case"]},
        **{name: _LOOPS for name in ["DynamicRNN", "StaticRNN", "While", "while_loop"]},
        **{name: _RANDOM for name in ["gaussian_random", "uniform_random"]},
        **{name: _SEQUENCE for name in ["dynamic_gru", "dynamic_lstm", "lstm"]},
        **{name: _SEQUENCE for name in ["sequence_conv", "sequence_softmax"]},
        "Print": "fetch the variable: exe.run(fetch_list=[..])",
        "autoincreased_step_counter": "count the runs in Python",
        "cos_sim": "fleet.sum(x * y, axis=1) of normalized rows",
        "l2_normalize": "x * fleet.rsqrt(fleet.sum(x * x, axis=1, keepdim=True) + 1e-12)",
        "mul": "fleet.matmul",
        "nce": "fleet.nn.functional.softmax_with_cross_entropy, or sampled negatives as an input",
        "sequence_expand": _RAGGED,
        "sequence_first_step": "x[:, 0] of padded rows",
        "sequence_last_step": "x[:, -1] of padded rows",
        "sequence_pool": _RAGGED,
        "smooth_l1": "fleet.fluid.layers.huber_loss, with delta",
        "where": "fleet.where(condition, x, y)",
    },
    "fleet.io": {
        "ComposeDataset": "a class of your own that derives from fleet.io.Dataset",
        "RandomSampler": "fleet.io.BatchSampler(dataset, shuffle=True)",
        "Sampler": "fleet.io.BatchSampler(sampler=..) takes any iterable of numbers",
        "SequenceSampler": "fleet.io.BatchSampler(dataset)",
        "Subset": "a class of your own that derives from fleet.io.Dataset",
        "TensorDataset": "fleet.io.from_table, for a dict of arrays",
        "get_worker_info": "workers of a loader are threads, which share the dataset",
        "random_split": "fleet.io.BatchSampler(sampler=..) with the numbers of each part",
    },
    "fleet.distributed.fleet": {
        name: _HETEROGENEOUS
        for name in ["init_heter_worker", "is_heter_worker", "run_heter_worker"]
    },
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


#: What scripts call this package: "paddle" after `fleet.compat.install()`.
_root = "fleet"


def set_root(name):
    """Sets what scripts call this package."""
    global _root
    _root = name


def spelled(text):
    """Returns a text with the names of this package as scripts write them. Names of the module
    `fleet.distributed.fleet`, which scripts call `fleet`, stay: `fleet.init`."""
    if _root == "fleet":
        return text
    return re.sub(r"(?<![\w.])fleet((?:\.\w+)+|(?='))", _respelled, text)


def _respelled(match):
    parts = match[1].split(".")[1:]
    package = sys.modules["fleet"]
    if not parts or parts[0] in _LAZY:
        return _root + match[1]
    known = vars(package)
    if parts[0] == "utils" and len(parts) > 1:
        # Both modules have one of this name.
        known, parts = vars(package.utils), parts[1:]
    is_own = parts[0] in known or parts[0] in _NAMES["fleet"]
    return (_root if is_own and parts[0] != "compat" else "fleet") + match[1]


#: Modules that the package imports at their first use.
_LAZY = ("dataset", "device", "fluid", "vision")


def nearest(name, module):
    """Returns the end of an error: the name of a module that is the most similar to this one."""
    if name.startswith("_") or module not in sys.modules:
        return ""
    import difflib

    known = [known for known in vars(sys.modules[module]) if not known.startswith("_")]
    near = difflib.get_close_matches(name, known, 1)
    return f"; did you mean '{near[0]}'?" if near else ""


def _is_import(frame):
    """Whether a frame is at the name of a ``from module import name``."""
    return frame.f_code.co_code[frame.f_lasti] == dis.opmap["IMPORT_FROM"]


def absent(module, lazy=(), made=None):
    """Returns the `__getattr__` of a module. Modules in `lazy` are imported at their first use.
    ``made`` has functions of the name for attributes that are made at each use."""

    def __getattr__(name):
        if made and name in made:
            return made[name](name)
        if name in lazy:
            return importlib.import_module(f"{module}.{name}")
        text = spelled(f"module '{module}' has no attribute '{name}'")
        known = advice(module, name)
        if known is not None:
            kind = Unsupported
            text = f"{text}: it is not supported in Python\n  help: {spelled(known)}"
        else:
            kind, text = AttributeError, text + nearest(name, module)
        if _is_import(sys._getframe(1)):
            # `from module import name` replaces an AttributeError by a text of its own.
            kind = UnsupportedModule if known is not None else ImportError
            raise kind(text, name=module)
        raise kind(text)

    return __getattr__
