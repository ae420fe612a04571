"""Functions of Python for the layers of the Rust library, in the spellings of the documents.

A spelling is a signature of Python, and the layer that it calls. Parameters have the layer's names
or one of `ALIASES`. Parameters of the layer that a spelling lacks have the layer's defaults. So the
only list of layers, with their defaults and their checks, is in Rust (`python/src/layers.rs`).
"""

import functools

from fleet import _fleet
from fleet._framework import call
from fleet._texts import help_of

#: Other names of parameters of layers.
ALIASES = {
    "act": "activation",
    "alpha": "negative_slope",
    "axes": "axis",
    "data": "x",
    "depth": "num_classes",
    "dim": "axis",
    "dropout_implementation": "mode",
    "dropout_prob": "p",
    "ids": "index",
    "input": "x",
    "inputs": "x",
    "keep_dim": "keepdim",
    "logits": "x",
    "other": "y",
    "param_attr": "weight_attr",
    "rate": "p",
    "target": "label",
    "value": "fill_value",
}

#: Parameters of the documents without a meaning here: they choose a kernel or its memory.
IGNORED = frozenset(
    [
        "use_cudnn",
        "in_place",
        "inplace",
        "force_cpu",
        "do_model_average_for_mean_and_var",
        "numeric_stable_mode",
        "sorted",
    ]
)

#: Names on the page of layers, where they differ from those here.
_PAGE = {
    "kl_div": "kldiv_loss",
    "log_sigmoid": "logsigmoid",
    "hardswish": "hard_swish",
    "hardsigmoid": "hard_sigmoid",
    "remainder": "modulo",
    "where": "where_true",
    "mean_of_all": "mean",
    "topk": "top_k",
    "add_n": "sum_of",
    "arange": "range",
    "shape": "shape_var",
}


def _parsed(signature):
    """Returns the name, and the parameters with the text of their defaults."""
    name, rest = signature.rstrip(")").split("(", 1)
    parameters = {}
    for part in rest.split(", "):
        parameter, _, default = part.partition("=")
        parameters[parameter] = default or None
    return name, parameters


_LAYERS = dict(_parsed(signature) for signature in _fleet.signatures())


def define(module, spellings):
    """Adds functions to the globals of a module. A spelling is a line `name(parameters)`, or
    `name(parameters) = layer` if the layer has another name."""
    for line in spellings.strip().splitlines():
        signature, _, layer = " ".join(line.split()).partition(" = ")
        name, parameters = _parsed(signature)
        module[name] = _function(name, parameters, layer or name, module["__name__"])


def _function(name, parameters, layer, module):
    """Returns the function of a spelling, with its own signature."""
    wanted = _LAYERS[layer]
    passed, meant = {}, {}
    for parameter in parameters:
        target = parameter if parameter in wanted else ALIASES.get(parameter)
        if target in wanted:
            passed[target] = parameter
        meant[parameter] = target if target in wanted else None
        if target not in wanted and parameter not in IGNORED:
            raise AssertionError(f"{name}: the layer {layer} has no parameter {parameter}")
    for parameter, default in wanted.items():
        if parameter not in passed:
            if default is None:
                raise AssertionError(f"{name}: the layer {layer} needs {parameter}")
            passed[parameter] = default
    texts = [p if default is None else f"{p}={default}" for p, default in parameters.items()]
    head = ", ".join(texts)
    body = ", ".join(f"{target!r}: {value}" for target, value in passed.items())
    code = f"def {name}({head}):\n    return _call({layer!r}, {{{body}}})\n"
    space = {"_call": call, "__name__": module}
    exec(compile(code, f"<fleet layer {name}>", "exec"), space)
    function = space[name]
    function.__module__ = module
    described = _docs().get(_PAGE.get(layer, layer), f"The op `{layer}`.")
    function.__doc__ = help_of(layer, described, meant)
    return function


@functools.lru_cache(maxsize=1)
def _docs():
    return _fleet.layer_docs()


def old_spellings(function):
    """Lets a function also take the names of parameters of the 1.x interface."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]

    @functools.wraps(function)
    def renamed(*args, **kwargs):
        for old in [name for name in kwargs if name not in names]:
            new = ALIASES.get(old)
            if new in names:
                if new in kwargs:
                    raise TypeError(f"{function.__name__}() got both '{new}' and '{old}'")
                kwargs[new] = kwargs.pop(old)
            elif old in IGNORED:
                del kwargs[old]
        return function(*args, **kwargs)

    return renamed
