"""Cases of ops from tests/filetests/ops as programs, and their inputs."""

import re
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parents[2] / "tests/filetests/ops"
TYPES = {
    "bool": "bool",
    "u8": "uint8",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
}
# Results that ONNX does not compute: statistics for gradients.
SKIPPED = {"Mask", "Mean", "SavedMean", "SavedVariance", "SoftmaxLse", "Stats", "Variance"}
# Results that ops have and cases may leave out.
CLASSES = {
    "Softmax": "f32[-1, -1]",
    "Features": "f32[-1, -1]",
    "Columns": "i64[-1]",
    "Slopes": "f32[-1]",
    "Sampled": "i64[-1]",
}
NEEDED = {
    "c_class_cross_entropy": CLASSES,
    "class_cross_entropy": CLASSES,
    "auc": {"StatPosOut": "i64[-1]", "StatNegOut": "i64[-1]"},
    "layer_norm": {"Mean": "f32[-1]", "Variance": "f32[-1]"},
    "nll_loss": {"Total_weight": "f32[1]"},
    "softmax_with_cross_entropy": {"Softmax": "f32[-1, -1]"},
}
# Attributes whose values are element types.
DTYPES = {"dtype", "out_dtype"}


def rand(count, seed, low, high):
    """The numbers of ``rand SEED LOW HIGH``."""
    with np.errstate(over="ignore"):
        z = np.arange(count, dtype=np.uint64) + (np.uint64(seed) << np.uint64(32))
        z = z + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return low + (high - low) * ((z >> np.uint64(40)).astype(np.float64) / 2.0**24)


def array(kind, values):
    dtype, dims = re.fullmatch(r"(\w+)\[([\d,]*)\]", kind).groups()
    shape = [int(dim) for dim in dims.split(",") if dim]
    count, dtype = int(np.prod(shape, dtype=np.int64)), TYPES[dtype]
    words = values.split()
    if not words:
        numbers = np.zeros(count)
    elif words[0] == "rand":
        numbers = rand(count, int(words[1]), float(words[2]), float(words[3]))
        numbers = numbers if np.dtype(dtype).kind == "f" else np.floor(numbers)
    elif words[0] == "fill":
        numbers = np.full(count, float(words[1]))
    elif words[0] == "range":
        numbers = float(words[1]) + float(words[2]) * np.arange(count)
    else:
        is_int = np.dtype(dtype).kind in "iu"
        numbers = np.array([int(it) if is_int else float(it) for it in words])
    return numbers.astype(dtype).reshape(shape)


def attribute(op, text):
    name, value = text.split("=", 1)
    is_plain = re.fullmatch(r"\[.*\]|true|false|[-+.\de]*\d[-+.\de]*|-?inf|nan", value)
    is_type = name in DTYPES and op != "fill_any_like"
    if is_plain and value.startswith("["):
        items = [item for item in value[1:-1].split(",") if item]
        quoted = [it if re.fullmatch(r"[-+.\de]+", it) else f'"{it}"' for it in items]
        return f"{name}: [{', '.join(quoted)}]"
    return f"{name}: {value}" if is_plain or is_type else f'{name}: "{value.strip(chr(34))}"'


def blocks(path):
    """The cases of a file, as lists of lines."""
    for block in path.read_text().split("\n\n"):
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        if lines:
            yield lines


def program_of(lines):
    """The text of a program that computes a case, its feeds and its results; None if it has no
    numbers to compare or needs what ONNX lacks."""
    words = [line.split(" ", 1) for line in lines]
    if any(word in ("error", "stat", "same") or ("@" in rest and word in ("in", "out"))
           for word, *rest in words for rest in [" ".join(rest)]) or re.search("filter64|bf16", str(lines)):
        return None
    op, *attributes = re.findall(r'(?:[^\s"]|"[^"]*")+', words[0][1])
    feeds, inputs, outputs, variables = {}, {}, {}, []
    for word, *rest in words[1:]:
        if word not in ("in", "out"):
            continue
        slot, kind, *values = rest[0].split(" ", 2)
        name = f"{slot}_{len(variables)}".replace("@", "_")
        data = " data" if word == "in" else ""
        variables.append(f"%{name}: {kind.replace(',', ', ')}{data}")
        (inputs if word == "in" else outputs).setdefault(slot, []).append(name)
        if word == "in":
            numbers = values[0][1:] if values and values[0].startswith("=") else ""
            feeds[name] = array(kind, numbers.strip())
    if not outputs:
        return None
    for slot, kind in NEEDED.get(op, {}).items():
        if slot not in outputs:
            variables.append(f"%{slot}_needed: {kind}")
            outputs[slot] = [f"{slot}_needed"]
    slots = [
        ", ".join(
            f"{slot}: {', '.join('%' + name for name in names)}"
            for slot, names in some.items()
        )
        for some in (outputs, inputs)
    ]
    given = ", ".join(attribute(op, text) for text in attributes)
    given = f" {{{given}}}" if given else ""
    body = "\n".join([*variables, f"({slots[0]}) = {op}({slots[1]}){given}"])
    targets = [
        name
        for slot, names in outputs.items()
        for name in names
        if slot not in SKIPPED and not name.endswith("_needed")
    ]
    return op, f"fleet program 1\nblock0 {{\n{body}\n}}", feeds, targets
