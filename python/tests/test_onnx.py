"""ONNX files: accepted by the checker, and equal to our executor in onnxruntime."""

import re

import numpy as np
import onnx
import onnx_cases
import onnxruntime
import pytest

import fleet
from fleet import static
from fleet.nn import functional as F

RELATIVE, ABSOLUTE = 1e-4, 1e-5


def session_of(path):
    onnx.checker.check_model(str(path), full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def compare(session, exe, program, feed, targets):
    """Runs both on the same inputs."""
    ours = exe.run(program, feed=feed, fetch_list=targets)
    names = {info.name for info in session.get_inputs()}
    theirs = session.run(targets, {name: it for name, it in feed.items() if name in names})
    for target, expected, found in zip(targets, ours, theirs):
        assert found.dtype == expected.dtype and found.shape == expected.shape, target
        np.testing.assert_allclose(found, expected, RELATIVE, ABSOLUTE, err_msg=target)


def op_cases():
    """Cases with a name, by file: one of each op and attributes may have the same name."""
    for name in ["by_hand", "loss", "math", "metric", "nn", "tensor"]:
        for at, lines in enumerate(onnx_cases.blocks(onnx_cases.FOLDER / f"{name}.fleet")):
            case = onnx_cases.program_of(lines)
            if case is not None and not case[0].endswith("_grad"):
                yield f"{name}-{at}-{case[0]}", case


def test_ops(exe, tmp_path):
    path = tmp_path / "case.onnx"
    failures, ran, refused = [], 0, set()
    for name, (op, text, feeds, targets) in op_cases():
        try:
            program = static.Program.parse(text)
            try:
                fleet.onnx.export(path, list(feeds), targets, exe, program)
            except NotImplementedError as error:
                refused.add(op)
                assert "help:" in str(error)
                continue
            compare(session_of(path), exe, program.clone(for_test=True), feeds, targets)
            ran += 1
        except Exception as error:
            failures.append(f"{name}: {str(error)[:700]}\n{text[:600]}")
    print(ran, refused)
    assert not failures, f"{len(failures)} of {ran}\n" + "\n\n".join(failures)


# Sizes of the zoo's networks, and smaller ones. The text of a program has them in shapes and
# attributes.
BERT = {30522: 103, 768: 48, 3072: 64, 2304: 144, 64: 4, 128: 8, 512: 16}
GPT = {50257: 101, 768: 48, 3072: 64, 2304: 144, 64: 4, 1024: 16}
VGG = {224: 32, 112: 16, 56: 8, 28: 4, 14: 2, 7: 1, 25088: 512, 4096: 64}
ZOO = {
    "bert": BERT,
    "gpt": GPT,
    "lenet": {},
    "resnet18": {},
    "resnet50": {},
    "vgg16": VGG,
    "wide_deep": {1000000: 1000, 400: 20},
}
# Slots whose values ONNX computes, of ops at the end of a network.
RESULTS = {"Accuracy", "Loss", "Out", "Softmax", "Y"}


def smaller(text, sizes):
    """Replaces numbers that stand alone."""
    return re.sub(r"(?<![\w.])\d+(?![\w.])", lambda it: str(sizes.get(int(it[0]), it[0])), text)


def results(text):
    """The values that no op reads, and logits."""
    read, written, logits = set(), [], []
    for left, right in re.findall(r"^\s*\((.*)\) = \w+\((.*?)\)", text, re.MULTILINE):
        inputs = re.findall(r"(\w+): %([\w.]+)", right)
        read |= set(re.findall(r"%([\w.]+)", right))
        logits += [name for slot, name in inputs if slot == "Logits"]
        written += re.findall(r"(\w+): %([\w.]+)", left)
    ends = [name for slot, name in written if slot in RESULTS and name not in read]
    return list(dict.fromkeys(ends + logits))


def fill(exe, startup, program, rng):
    """Initializes the variables, and moves scales, biases and statistics off their usual values."""
    exe.run(startup)
    scope = static.global_scope()
    for var in program.list_vars():
        if var.persistable and var.ndim == 1 and var.dtype == "float32":
            value = scope[var.name]
            scope[var.name] = value + rng.uniform(0.0, 0.3, value.shape).astype("float32")


def inputs_of(program, batch, rng):
    """Random feeds: ids and labels are small, which suits every table and class."""
    highs = {"sent_ids": 2, "mask_pos": batch * 4, "label": 2}
    feed = {}
    for var in program.list_vars():
        if not var.is_data:
            continue
        # As many masked words as there are is no multiple of the batch.
        rows = 3 * batch - 1 if var.name.startswith("mask_") else batch
        shape = [rows if dim < 0 else dim for dim in var.shape]
        if var.dtype == "int64":
            feed[var.name] = rng.integers(0, highs.get(var.name, 8), shape)
        elif var.name in ("label", "input_mask"):
            feed[var.name] = rng.integers(0, 2, shape).astype("float32")
            feed[var.name][:, 0] = 1.0
        else:
            feed[var.name] = rng.uniform(-1.0, 1.0, shape).astype("float32")
    return feed


def check_model(path, exe, program, targets, opset=17):
    """Exports a program, and compares it for two sizes of a batch."""
    rng = np.random.default_rng(7)
    test = program.clone(for_test=True)
    feeds = [var.name for var in program.list_vars() if var.is_data]
    fleet.onnx.export(path, feeds, targets, exe, program, opset_version=opset)
    session = session_of(path)
    for batch in [1, 3]:
        compare(session, exe, test, inputs_of(program, batch, rng), targets)
    return session


@pytest.mark.parametrize("name", ZOO)
def test_zoo(name, exe, command, tmp_path):
    texts = [smaller(command("print", f"model:{name}{it}"), ZOO[name]) for it in ["", "/startup"]]
    program, startup = map(static.Program.parse, texts)
    fill(exe, startup, program, np.random.default_rng(3))
    session = check_model(tmp_path / "model.onnx", exe, program, results(texts[0]))
    assert session.get_inputs()[0].shape[0] == "batch"
    if name == "bert":
        dims = {info.name: info.shape[0] for info in session.get_inputs()}
        assert dims["src_ids"] == dims["sent_ids"] == dims["input_mask"] == "batch"
        assert dims["mask_pos"] == dims["mask_label"] != "batch"
