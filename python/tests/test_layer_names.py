"""`name=` in all layers that have it in the documents' interface: it begins the result's name."""

import inspect
import warnings

import pytest

import fleet
from fleet import fluid, static
from fleet.nn import functional

MODULES = {
    "fleet": fleet,
    "static": static,
    "static.nn": static.nn,
    "functional": functional,
    "layers": fluid.layers,
}

#: Parameters of layers by name; the others are `x` or its like.
GIVEN = {
    "act": None,
    "alpha": 0.5,
    "axes": [1],
    "axis": 1,
    "condition": "positive",
    "delta": 1.0,
    "dtype": "float32",
    "end": 4,
    "end_lr": 0.1,
    "expand_times": [1, 2],
    "factor": 2.0,
    "dropout_prob": 0.5,
    "ffn": 8,
    "fill_value": 1.0,
    "filter_size": 3,
    "heads": 2,
    "index": "index",
    "inputs": ["x", "x"],
    "k": 1,
    "kernel_size": 2,
    "label": "x",
    "logit": "x",
    "max": 1.0,
    "min": 0.0,
    "num_classes": 3,
    "num_filters": 2,
    "num_or_sections": 2,
    "output_size": 1,
    "paddings": [0, 0, 1, 1],
    "perm": [1, 0],
    "pred": "one",
    "repeat_times": [1, 2],
    "shape": [2, 4],
    "size": 3,
    "start": 0,
    "updates": "x",
    "value": 1.0,
    "y": "x",
}

#: Layers whose inputs are of another kind.
SPECIAL = {
    "batch_norm": {"input": "image"},
    "conv2d": {"input": "image"},
    "pool2d": {"input": "image", "pool_size": 2},
    "matmul": {"y": "square"},
    "cond": {
        "true_fn": lambda: static.default_main_program().var("x"),
        "false_fn": lambda: static.default_main_program().var("x"),
    },
    "max_pool2d": {"x": "image"},
    "avg_pool2d": {"x": "image"},
    "adaptive_max_pool2d": {"x": "image"},
    "adaptive_avg_pool2d": {"x": "image"},
    "multi_head_attention": {"x": "words"},
    "transformer_layer": {"x": "words"},
    "class_loss": {"label": "column", "classes": 3},
    "cross_entropy": {"input": "x", "label": "column"},
    "nll_loss": {"input": "x", "label": "index"},
    "gather_nd": {"index": "column"},
    "logical_and": {"x": "positive", "y": "positive"},
    "logical_or": {"x": "positive", "y": "positive"},
    "logical_not": {"x": "positive"},
    "one_hot": {"x": "index"},
    "concat": {"x": ["x", "x"], "input": ["x", "x"]},
    "stack": {"x": ["x", "x"]},
    "squeeze": {"x": "thin", "input": "thin", "axis": 1, "axes": [1]},
    "scatter": {"updates": "x"},
    "expand": {"shape": [2, 4]},
    "cumsum": {"axis": 1},
}

#: Functions whose name is not that of a layer: the variable has it as it is.
VARIABLES = {"data", "create_parameter", "create_global_var"}
#: Without an op: a loader that has inputs of this name, and a reader.
OTHERS = {"py_reader", "double_buffer", "name_scope"}

#: The functions of the documents' interface with this parameter.
DOCUMENTED = """
fleet: abs add add_n argmax argmin ceil clip concat cos divide equal erf exp expand flatten floor
fleet: floor_divide full full_like gather gather_nd greater_equal greater_than less_equal less_than
fleet: arange log logical_and logical_not logical_or matmul max maximum mean min minimum mod
fleet: multiply not_equal ones ones_like pow prod reciprocal remainder reshape round rsqrt scale scatter sign
fleet: sin split sqrt square squeeze stack subtract sum tanh tile topk transpose unsqueeze where
fleet: zeros zeros_like cumsum
static: create_global_var create_parameter data
static.nn: batch_norm cond conv2d fc layer_norm
functional: adaptive_avg_pool2d adaptive_max_pool2d avg_pool2d binary_cross_entropy_with_logits
functional: cross_entropy dropout elu gelu hardsigmoid hardswish kl_div l1_loss label_smooth
functional: leaky_relu log_loss log_sigmoid log_softmax max_pool2d mse_loss nll_loss one_hot relu
functional: relu6 selu sigmoid silu softmax softplus softsign swish tanh
layers: batch_norm concat cond conv2d data create_parameter dropout elementwise_add elementwise_div
layers: elementwise_floordiv elementwise_max elementwise_min elementwise_mod elementwise_mul
layers: elementwise_pow elementwise_sub expand fc fill_constant flatten gather_nd label_smooth
layers: layer_norm log_loss logical_and logical_not logical_or matmul mean pad pool2d pow py_reader
layers: reduce_max reduce_mean reduce_min reduce_prod reduce_sum relu reshape scale scatter sigmoid
layers: sigmoid_cross_entropy_with_logits softmax split squeeze topk transpose unsqueeze range
"""


def listed():
    for line in DOCUMENTED.strip().splitlines():
        module, _, names = line.partition(": ")
        yield from (f"{module}.{name}" for name in names.split())


def with_a_name():
    for key, module in MODULES.items():
        for name, value in vars(module).items():
            if name.startswith("_") or not inspect.isfunction(value):
                continue
            if "name" in inspect.signature(value).parameters and name not in OTHERS:
                yield f"{key}.{name}"


def test_all_documented_layers_have_it():
    known = {*with_a_name(), "layers.py_reader"}
    # `fluid.layers.data` needs one.
    assert set(listed()) - known == set()


def variables():
    x = static.data("x", [2, 4])
    return {
        "x": x,
        "positive": x > 0.0,
        "one": fleet.mean(x) > 0.0,
        "square": static.data("square", [4, 4]),
        "image": static.data("image", [2, 3, 8, 8]),
        "words": static.data("words", [2, 5, 8]),
        "thin": static.data("thin", [2, 1, 4]),
        "index": static.data("index", [2], "int64"),
        "column": static.data("column", [2, 1], "int64"),
    }


def first(made):
    return first(made[0]) if isinstance(made, (list, tuple)) else made


@pytest.mark.parametrize("key", sorted(with_a_name()))
def test_a_name_is_used(key):
    module, _, name = key.rpartition(".")
    function = getattr(MODULES[module], name)
    made = variables()

    def meant(value):
        if isinstance(value, list):
            return [meant(part) for part in value]
        return made[value] if isinstance(value, str) and value in made else value

    args = {}
    for parameter, described in inspect.signature(function).parameters.items():
        special = SPECIAL.get(name, {})
        if parameter == "name":
            args["name"] = "mine"
        elif parameter in special:
            args[parameter] = meant(special[parameter])
        elif described.default is inspect.Parameter.empty:
            args[parameter] = meant(GIVEN.get(parameter, "x"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = first(function(**args))
    # Layers of several layers name their parts, such as `mine_output_fc`.
    has_parts = name in ("multi_head_attention", "transformer_layer")
    wanted = "mine" if name in VARIABLES else "mine_" if has_parts else "mine."
    assert result.name.startswith(wanted), result.name


def test_names_of_options(raises):
    x = static.data("x", [2, 4])
    made = [
        fleet.maximum(x, 1.0, name="a"),
        functional.cross_entropy(x, x, soft_label=True, name="b"),
        functional.mse_loss(x, x, "none", name="c"),
        functional.dropout(x, 0.5, training=False, mode="downscale_in_infer", name="d"),
        fleet.full([fleet.shape(x)[0], 3], 1.0, name="e"),
        functional.binary_cross_entropy_with_logits(x, x, weight=x, reduction="sum", name="f"),
        functional.binary_cross_entropy_with_logits(x, x, reduction="none", name="g"),
    ]
    assert [var.name[:2] for var in made] == [f"{letter}." for letter in "abcdefg"]
    raises(TypeError, ["name", "a string", "3"], lambda: functional.dropout(x, 0.5, name=3))
    raises(TypeError, ["name", "a string", "3"], lambda: fleet.where(x > 0.0, x, x, name=3))
