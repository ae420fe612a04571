"""Writes the type stubs (`*.pyi`) of the package: `python python/tools/stubs.py` with an installed fleet.

The stubs follow from the functions themselves. Their types follow from the names of parameters,
which mean the same everywhere, and from the few tables below. A test runs this too.
"""

import ast
import collections.abc
import importlib
import inspect
import pkgutil
import sys
import textwrap
import types
from pathlib import Path

import fleet

#: Types by the name of a parameter. Others follow from the default.
PARAMETERS = {
    "Variable": "x input label logits index condition updates loss key_value",
    "Operand": "y other",
    "Sequence[Variable]": "inputs targets",
    "Sequence[int | None]": "shape",
    "int | Sequence[int]": "axis dim axes filter_size pool_size pool_stride pool_padding stride "
    "padding dilation num_or_sections",
    "Sequence[int]": "starts ends strides perm repeat_times milestones",
    "Attr": "weight_attr param_attr bias_attr attr",
    "str": "name dtype mode key act activation data_format moving_mean_name "
    "moving_variance_name prefix device filename dirname fs_name fs_ugi",
    "int": "size num_filters k d_model T_max decay_steps warmup_steps step_size padding_idx nproc "
    "num_classes classes heads ffn current_id worker_num rank_id value_int id epoch begin_norm_axis "
    "device_count start_axis stop_axis mode_int",
    "float": "gamma coeff p rate low high mean std clip_norm min max fill_value count_filter "
    "probability dropout_prob alpha start_lr end_lr eta_min momentum",
    "bool": "is_test trainable",
    "LearningRate": "learning_rate",
    "Sequence[float]": "values",
    "Program": "main_program startup_program program",
    "Scope": "scope",
    "Executor": "executor exe",
    "Feeds": "feed",
    "Sequence[Variable | str]": "fetch_list feed_vars fetch_vars target_vars feeded_var_names vars",
    "Path": "path path_prefix pb_file output_file",
    "Sequence[str]": "files filelist worker_endpoints server_endpoints names",
    "Callable[..., Any]": "function predicate lr_lambda",
    "Sequence[Any]": "args",
}

#: Functions whose parameters have other types than their names say.
EXCEPTIONS = {
    ("concat", "x"): "Sequence[Variable]",
    ("concat", "input"): "Sequence[Variable]",
    ("stack", "x"): "Sequence[Variable]",
    ("all_reduce", "input"): "Any",
    ("all_gather", "input"): "Any",
    ("embedding", "size"): "Sequence[int]",
    ("sparse_embedding", "size"): "Sequence[int]",
    ("assign", "x"): "Any",
    ("save_vars", "vars"): "Sequence[Variable | str] | None",
    ("set_state_dict", "state_dict"): "Mapping[str, Any]",
    ("save_persistables", "executor"): "Executor | str | None",
    ("__setitem__", "value"): "Any",
    ("export_model", "opset_version"): "int",
    ("category_hash", "text"): "str | float | None",
    ("set", "value"): "Any",
}

#: Results that are not a `Variable` (of functions) or `None` (of methods).
RESULTS = {
    "Array": "all_reduce __array__ value metrics.sum metrics.max metrics.min",
    "bool": "is_compiled_with_cuda in_dynamic_mode is_worker is_server is_first_worker has_var "
    "__contains__ __bool__ __eq__ _is_heter_worker",
    "int": "worker_index worker_num server_num server_index __len__ __hash__ "
    "get_memory_data_size get_shuffle_data_size category_hash",
    "float": "get_lr acc mae mse rmse metrics.auc",
    "str": "to_string __repr__ __str__ generate applied_strategies",
    "list[Array]": "Executor.run",
    "list[str]": "op_names get_file_shard",
    "list[float]": "all_gather",
    "list[Variable]": "list_vars all_parameters split unstack gradients",
    "tuple[Variable, Variable]": "topk",
    "tuple[Variable, Variable, list[Variable]]": "auc",
    "list[tuple[Variable, Variable]]": "append_backward backward",
    "tuple[list[str], list[tuple[Variable, Variable]]]": "minimize",
    "Program": "default_main_program default_startup_program clone parse global_block",
    "Scope": "global_scope",
    "Variable": "var",
    "ScopeVariable | None": "find_var",
    "ScopeVariable": "get_tensor",
    "dict[str, Array]": "state_dict",
    "list[Any]": "load_inference_model cpu_places cuda_places",
    "DistributedOptimizer": "distributed_optimizer",
    "Any": "launch Layer.forward DataGenerator.generate_sample "
    "__getitem__ __getattr__ apply_gradients __dlpack__ __dlpack_device__ compute_dense",
    "Iterator[str]": "__iter__",
}

#: Modules whose functions take variables, arrays, or names.
OF_NUMBERS = ("fleet.distributed.fleet.metrics",)

#: Results of functions in modules without layers, where no other rule applies.
MODULES_OF_LAYERS = ("fleet", "fleet.static", "fleet.static.nn", "fleet.nn.functional")
MODULES_OF_LAYERS += ("fleet.fluid.layers", "fleet.metric", "fleet.fluid.contrib.layers")

#: Longest line, less the indentation of a method.
COLUMNS = 96

HEADER = """from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
"""

TYPES = """from collections.abc import Mapping
from os import PathLike
from typing import Any, TypeAlias

from numpy.typing import NDArray

from fleet._attributes import ParamAttr
from fleet._framework import Variable
from fleet.optimizer.lr import LRScheduler

Array: TypeAlias = NDArray[Any]
Attr: TypeAlias = ParamAttr | str | bool | None | Any
Feeds: TypeAlias = Mapping[str, Any]
LearningRate: TypeAlias = float | LRScheduler
Operand: TypeAlias = Variable | float
Path: TypeAlias = str | PathLike[str]
"""


def _by_name(table):
    return {name: kind for kind, names in table.items() for name in names.split()}


PARAMETER_OF = _by_name(PARAMETERS)
RESULT_OF = _by_name(RESULTS)


def modules():
    """Returns all modules of the package, by name."""
    found = {"fleet": fleet}
    for info in pkgutil.walk_packages(fleet.__path__, "fleet."):
        if info.name not in ("fleet._fleet", "fleet.distributed.launch"):
            found[info.name] = importlib.import_module(info.name)
    return found


def stub(module):
    """Returns the text of a module's stub."""
    imports, lines = set(), []
    for name, value in sorted(vars(module).items()):
        if name.startswith("_") and name != "__version__":
            # Private classes are named by public functions.
            if not inspect.isclass(value) or value.__module__ != module.__name__:
                continue
            if not _is_own(value):
                continue
        if isinstance(value, types.ModuleType):
            if value.__name__ == f"{module.__name__}.{name}":
                imports.add(f"from {module.__name__} import {name} as {name}")
            elif value.__name__.startswith("fleet"):
                home, _, last = value.__name__.rpartition(".")
                imports.add(f"from {home} import {last} as {last}")
                lines += [f"{name} = {last}"] if name != last else []
            continue
        lines += _member(module, name, value, imports)
    body = "\n".join(lines)
    own = {line.split()[1].split("(")[0].rstrip(":") for line in lines if line.startswith("class ")}
    for kind, home in KINDS.items():
        if home != module.__name__ and kind not in own and kind in body:
            imports.add(f"from {home} import {kind} as {kind}")
    text = HEADER + "\n".join(sorted(imports)) + "\n\n" + body + "\n"
    return text


#: Where the classes that the tables name are defined.
KINDS = {
    "Variable": "fleet._framework",
    "Program": "fleet._framework",
    "Scope": "fleet._executor",
    "ScopeVariable": "fleet._executor",
    "Executor": "fleet._executor",
    "DistributedOptimizer": "fleet.distributed.fleet",
}


def _member(module, name, value, imports):
    if inspect.isclass(value) or inspect.isfunction(value):
        home, real = value.__module__, value.__name__
        is_public = not real.startswith("_") and hasattr(sys.modules.get(home), real)
        if home != module.__name__ and home.startswith("fleet") and is_public:
            if real == name:
                imports.add(f"from {home} import {name} as {name}")
                return []
            imports.add(f"from {home} import {real} as _{real}")
            return [f"{name} = _{real}"]
        if home.startswith("fleet") and is_public and real != name:
            return [f"{name} = {real}"]
        if not home.startswith("fleet"):
            return []
        if inspect.isclass(value):
            return _class(value, imports)
        return [_function(value, name, module.__name__)]
    if isinstance(value, (str, int, float)):
        return [f"{name}: {type(value).__name__}"]
    if type(value).__module__.startswith("fleet"):
        kind = type(value)
        if kind.__module__ != module.__name__:
            imports.add(f"from {kind.__module__} import {kind.__name__} as {kind.__name__}")
        return [f"{name}: {kind.__name__}"]
    return []


def _class(cls, imports):
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        imports.add("from typing import NamedTuple")
        return [f"class {cls.__name__}(NamedTuple):"] + [f"    {it}: Any" for it in cls._fields]
    bases = []
    for base in cls.__bases__:
        if base.__module__ == cls.__module__:
            bases.append(base.__name__)
        elif base is not object:
            imports.add(f"import {base.__module__}")
            bases.append(f"{base.__module__}.{base.__qualname__}")
    lines = [f"class {cls.__name__}({', '.join(bases)}):" if bases else f"class {cls.__name__}:"]
    if not _is_own(cls):
        # A part of another library's protocol, which no user calls.
        return [lines[0] + " ..."]
    for name, kind in _fields(cls):
        lines.append(f"    {name}: {kind}")
    for name, value in vars(cls).items():
        method = "\n".join(_method(cls, name, value)).splitlines()
        lines += ["    " + line for line in method]
    return lines if len(lines) > 1 else [lines[0] + " ..."]


def _fields(cls):
    """Returns attributes that methods assign, and the fields of a strategy."""
    if cls.__name__ == "DistributedStrategy":
        strategy = cls()
        for name in dir(strategy):
            if not name.startswith("_") and not callable(getattr(cls, name, None)):
                value = getattr(strategy, name)
                plain = isinstance(value, (bool, int, float, str))
                yield name, type(value).__name__ if plain else "Any"
        return
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError):
        return
    found = {}
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in targets:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                if target.value.id == "self" and not target.attr.startswith("_"):
                    found[target.attr] = PARAMETER_OF.get(target.attr, "Any")
    for name, kind in found.items():
        if not hasattr(cls, name):
            yield name, "Any" if kind in ("Variable", "Operand") else kind


def _is_own(cls):
    return all(base.__module__.startswith(("fleet", "builtins")) for base in cls.__bases__)


DUNDERS = "__init__ __call__ __len__ __contains__ __iter__ __getitem__ __setitem__ __bool__ __array__"
DUNDERS += " __enter__ __exit__ __next__ __getattr__ __dlpack__ __dlpack_device__"
OPERATORS = "add radd sub rsub mul rmul truediv rtruediv pow rpow mod rmod floordiv rfloordiv "
OPERATORS += "matmul lt le gt ge"


def _method(cls, name, value):
    if isinstance(value, property):
        lines = ["@property", f"def {name}(self) -> {_property(name)}: ..."]
        if value.fset:
            lines += [f"@{name}.setter", f"def {name}(self, value: {_property(name)}) -> None: ..."]
        return lines
    kind = None
    if isinstance(value, (staticmethod, classmethod)):
        kind, value = type(value).__name__, value.__func__
    if not inspect.isfunction(value):
        return []
    if name.strip("_") in OPERATORS.split():
        return [f"def {name}(self, other: Operand) -> Variable: ..."]
    if name in ("__eq__", "__ne__") and cls.__name__ == "Variable":
        return [f"def {name}(self, other: object) -> Variable: ...  # type: ignore[override]"]
    if name == "__neg__":
        return ["def __neg__(self) -> Variable: ..."]
    if name == "__getitem__" and cls.__name__ == "Variable":
        return ["def __getitem__(self, items: Any) -> Variable: ..."]
    if name.startswith("_") and name not in DUNDERS.split() and name != "_is_heter_worker":
        return []
    if name == "__getattr__" and cls.__name__ == "DistributedStrategy":
        return []
    lines = [f"@{kind}"] if kind else []
    return lines + [_signature(value, name, _result(value, f"{cls.__name__}.{name}", "None"))]


def _property(name):
    known = {"shape": "tuple[int, ...]", "name": "str", "dtype": "str", "op_names": "list[str]"}
    known.update(ndim="int", lod_level="int", random_seed="int", persistable="bool")
    known.update(stop_gradient="bool", is_data="bool", trainable="bool")
    return known.get(name, "Any")


def _function(function, name, module):
    inner = getattr(function, "__wrapped__", None)
    if inner is not None and inspect.isgeneratorfunction(inner):
        return _signature(function, name, "AbstractContextManager[None]")
    is_layer = module in MODULES_OF_LAYERS
    plain = "Variable" if is_layer and _returns(function) else "Any" if _returns(function) else "None"
    result = _result(function, f"{module}.{name}", plain)
    return _signature(function, name, result, module in OF_NUMBERS)


def _returns(function):
    """Returns whether a function has a `return` with a value."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        # A layer, which is made at run time.
        return True
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Return)]
    return any(node.value is not None for node in nodes)


def _result(function, name, plain):
    annotated = inspect.signature(function).return_annotation
    if isinstance(annotated, str):
        return annotated
    parts = name.split(".")
    known = RESULT_OF.get(".".join(parts[-2:])) or RESULT_OF.get(parts[-1])
    if name.endswith("__init__") or known is None and not _returns(function):
        return "None"
    return known or ("Any" if plain == "None" else plain)


def _signature(function, name, result, of_numbers=False):
    parts, after_star = [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not after_star:
            parts.append("*")
            after_star = True
        parts.append(_parameter(parameter, name, of_numbers))
        after_star |= parameter.kind is parameter.VAR_POSITIONAL
    line = f"def {name}({', '.join(parts)}) -> {result}: ..."
    if len(line) <= COLUMNS:
        return line
    return "\n".join([f"def {name}(", *(f"    {part}," for part in parts), f") -> {result}: ..."])


def _parameter(parameter, function, of_numbers):
    name, default = parameter.name, parameter.default
    if name in ("self", "cls"):
        return name
    if parameter.kind is parameter.VAR_POSITIONAL:
        return f"*{name}: Any"
    if parameter.kind is parameter.VAR_KEYWORD:
        return f"**{name}: Any"
    kind = EXCEPTIONS.get((function, name)) or PARAMETER_OF.get(name)
    kind = "Any" if of_numbers else kind
    if isinstance(parameter.annotation, str):
        kind = parameter.annotation
    if default is parameter.empty:
        return f"{name}: {kind or 'Any'}"
    if isinstance(default, (bool, str)) or kind is None and isinstance(default, (int, float)):
        kind = type(default).__name__ if kind in (None, "str", "bool") else kind
    if isinstance(default, float) and kind == "int":
        kind = "float"
    if default is None and kind not in (None, "Any", "Attr"):
        kind = f"{kind} | None"
    return f"{name}: {kind or 'Any'} = ..."


def write(folder):
    """Writes all stubs below a folder, and returns their paths."""
    written = []
    for name, module in modules().items():
        path = Path(folder, *name.split("."))
        is_package = hasattr(module, "__path__")
        path = path / "__init__.pyi" if is_package else path.with_suffix(".pyi")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(stub(module))
        written.append(path)
    types_file = Path(folder, "fleet", "_types.pyi")
    types_file.write_text(TYPES)
    return [*written, types_file]


if __name__ == "__main__":
    write(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent)
