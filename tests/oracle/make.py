#!/usr/bin/env python3
"""Writes tests/filetests/ops/*.fleet: op cases whose expected numbers come from NumPy.

Needs NumPy only; run it as `python3 tests/oracle/make.py [family ...]`. Each `ops_<family>.py` beside
this file is a list of calls of `case` and `fail`, and becomes `<family>.fleet`. The format is described
in crates/fleet-testkit/src/filetest.rs.

    case("relu", X=rand(2, 3), alpha=0.5, out={"Out": ...}, grad="X", tol=1e-5)

Keyword arguments whose name starts with a capital letter are inputs (a list is several variables;
names such as `Out@GRAD` go into `inputs={...}`), others are attributes, except the few named in `case`.
"""
import os
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "..", "filetests", "ops")
NAMES = {"bool": "bool", "uint8": "u8", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
         "float16": "f16", "float32": "f32", "float64": "f64"}
# Longer outputs are compared at this many places.
COMPARED_MAX = 24

lines = []


class Value(np.ndarray):
    """An array that remembers how the runner can make it (`spec`)."""


def rand(*shape, seed=1, low=-1.0, high=1.0, dtype="float32"):
    """The numbers of `= rand SEED LOW HIGH`."""
    count = int(np.prod(shape, dtype=np.int64))
    with np.errstate(over="ignore"):
        z = np.arange(count, dtype=np.uint64) + (np.uint64(seed) << np.uint64(32))
        z = z + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    values = low + (high - low) * ((z >> np.uint64(40)).astype(np.float64) / 2.0**24)
    if np.dtype(dtype).kind != "f":
        values = np.floor(values)
    array = values.astype(dtype).reshape(shape).view(Value)
    array.spec = f"rand {seed} {low} {high}"
    return array


def f32(values, shape=None):
    return np.array(values, np.float32).reshape(shape if shape is not None else np.shape(values))


def i64(values, shape=None):
    return np.array(values, np.int64).reshape(shape if shape is not None else np.shape(values))


class Rows:
    """Sparse rows: ids and as many rows of a matrix of `height` rows."""

    def __init__(self, ids, values, height):
        self.ids, self.values, self.height = ids, values, height

    def dense(self):
        values = np.asarray(self.values, np.float64)
        dense = np.zeros((self.height,) + values.shape[1:])
        np.add.at(dense, self.ids, values)
        return dense


class Shape:
    """A type without values, for cases that must fail."""

    def __init__(self, *dims, dtype="f32"):
        self.text = f"{dtype}[{','.join(map(str, dims))}]"


class Packed:
    """A convolution filter kept in `Layout::Filter64`."""

    def __init__(self, value):
        self.value = value


def number(x):
    if isinstance(x, (bool, np.bool_)):
        return str(int(x))
    if isinstance(x, (int, np.integer)):
        return str(int(x))
    return f"{float(x):.9g}"


def type_of(array, dtype=None):
    name = dtype or NAMES[array.dtype.name]
    return f"{name}[{','.join(map(str, array.shape))}]"


def input_text(value):
    if isinstance(value, Packed):
        return input_text(value.value).replace("]", "]:filter64", 1)
    if isinstance(value, Shape):
        return value.text
    if isinstance(value, Rows):
        values = np.asarray(value.values)
        dims = (value.height,) + values.shape[1:]
        ids = ",".join(map(str, value.ids))
        numbers = " ".join(map(number, values.ravel()))
        return f"f32[{','.join(map(str, dims))}]@{ids} = {numbers}"
    spec = getattr(value, "spec", None)
    value = np.asarray(value)
    return f"{type_of(value)} = {spec or ' '.join(map(number, value.ravel()))}".rstrip()


def output_text(value, dtype):
    if isinstance(value, Packed):
        return output_text(value.value, dtype).replace("]", "]:filter64", 1)
    if isinstance(value, Shape):
        return value.text
    if isinstance(value, Rows):
        value = value.dense()
    value = np.asarray(value)
    if dtype is None and value.dtype == np.float64:
        dtype = "f32"  # oracles compute in double
    flat = value.ravel()
    if flat.size <= COMPARED_MAX:
        return f"{type_of(value, dtype)} = {' '.join(map(number, flat))}".rstrip(" =")
    places = sorted({int(i) for i in np.linspace(0, flat.size - 1, COMPARED_MAX)})
    pairs = " ".join(f"{i}:{number(flat[i])}" for i in places)
    return f"{type_of(value, dtype)} at {pairs}"


def attr_text(value):
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(attr_text, value)) + "]"
    if isinstance(value, str):
        return value if value and " " not in value else '""'
    return repr(value)


def many(value):
    return value if isinstance(value, list) else [value]


def write_op(op, keys, inputs):
    slots = {name: value for name, value in keys.items() if name[0].isupper()}
    slots.update(inputs or {})
    attrs = {name: value for name, value in keys.items() if not name[0].isupper()}
    lines.append(" ".join([f"op {op}"] + [f"{name}={attr_text(v)}" for name, v in attrs.items()]))
    for slot, values in slots.items():
        for value in many(values):
            lines.append(f"in {slot} {input_text(value)}")


def case(op, out=None, out_dtype_of=None, inputs=None, tol=None, grad=None, loss=None, diff=None,
         same=None, stat=None, seed_of_program=None, run_step=None, static=False, **keys):
    """One case. `out`: slot -> expected array (or list of arrays). `out_dtype_of`: slot -> type name
    where it is not that of the array (f64 arrays count as f32). `grad`, `loss`: blank-separated slots.
    `tol`, `diff`: text. `same`, `stat`: lists of text."""
    write_op(op, keys, inputs)
    for slot, values in (out or {}).items():
        for value in many(values):
            lines.append(f"out {slot} {output_text(value, (out_dtype_of or {}).get(slot))}")
    for word, texts in [("same", same), ("stat", stat)]:
        lines.extend(f"{word} {text}" for text in many(texts or []))
    singles = [("tol", tol), ("grad", grad), ("loss", loss), ("diff", diff),
               ("seed", seed_of_program), ("step", run_step)]
    lines.extend(f"{word} {value}" for word, value in singles if value is not None)
    if static:
        lines.append("static")
    lines.append("")


def fail(op, *messages, inputs=None, **keys):
    """A case that is refused with these words."""
    write_op(op, keys, inputs)
    lines.extend(f"error {message}" for message in messages)
    lines.append("")


def main():
    sys.path.insert(0, HERE)
    sys.modules["make"] = sys.modules["__main__"]
    names = sorted(name[4:-3] for name in os.listdir(HERE) if name.startswith("ops_"))
    for family in sys.argv[1:] or names:
        lines.clear()
        lines.append(f"# Made by tests/oracle/make.py from ops_{family}.py; do not edit.")
        lines.append("")
        __import__(f"ops_{family}")
        path = os.path.join(OUT, f"{family}.fleet")
        with open(path, "w") as file:
            file.write("\n".join(lines).rstrip() + "\n")
        print(f"{path}: {sum(line.startswith('op ') for line in lines)} cases")


if __name__ == "__main__":
    main()
