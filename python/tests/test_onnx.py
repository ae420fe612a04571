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
        relative = 1e-3 if found.dtype == np.float16 else RELATIVE
        np.testing.assert_allclose(found, expected, relative, ABSOLUTE, err_msg=target)


def op_cases():
    """Cases with a name, by file."""
    for name in ["by_hand", "loss", "math", "metric", "nn", "tensor"]:
        for at, lines in enumerate(onnx_cases.blocks(onnx_cases.FOLDER / f"{name}.fleet")):
            case = onnx_cases.program_of(lines)
            if case is None or case[0].endswith("_grad"):
                continue
            # Programs that are fed no 16-bit floats are exported in 32 bits.
            halves = [array.dtype == np.float16 for array in case[2].values()]
            # onnxruntime normalizes no empty rows.
            is_empty = any(array.size == 0 for array in case[2].values())
            if ("f16" not in case[1] or any(halves)) and not (is_empty and "norm" in case[0]):
                yield f"{name}-{at}-{case[0]}", case


# Ops with cases that ONNX cannot express.
REFUSED = {
    "auc",
    "c_class_cross_entropy",
    "class_cross_entropy",
    "gaussian_random",
    "nonzero_rows",
    "randint",
    "randperm",
    "uniform_random",
}


def test_ops(exe, tmp_path):
    """Every case of every op that has a translation."""
    path = tmp_path / "case.onnx"
    failures, ran, refused = [], set(), set()
    for name, (op, text, feeds, targets) in op_cases():
        program = static.Program.parse(text)
        try:
            fleet.onnx.export(path, list(feeds), targets, exe, program)
        except NotImplementedError as error:
            assert "help:" in str(error)
            refused.add(op)
            continue
        try:
            compare(session_of(path), exe, program.clone(for_test=True), feeds, targets)
            ran.add(op)
        except Exception as error:
            failures.append(f"{name}: {str(error)[:700]}\n{text[:700]}")
    assert not failures, f"{len(failures)} failed\n" + "\n\n".join(failures)
    assert refused == REFUSED and len(ran) > 100, (refused, len(ran))


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
            # Small scales of batch norms keep the images of deep networks in range.
            start = 0.2 if var.name.endswith("_scale") else scope[var.name]
            scope[var.name] = (start + rng.uniform(0.0, 0.3, var.shape)).astype("float32")


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


BRANCHES = """fleet program 1
block0 {
  %x: f32[-1, 3] data
  %limit: f32[1] data
  %mean: f32[1]
  %asked: bool[1]
  %yes: bool[1]
  %no: bool[1]
  %twice: f32[-1, 3]
  %y: f32[-1, 3]
  %out: f32[-1, 3]
  (Out: %mean) = mean(X: %x)
  (Out: %asked) = greater_than(X: %mean, Y: %limit)
  (Out: %yes) = assign(X: %asked)
  (Out: %no) = logical_not(X: %yes)
  () = conditional_block(Cond: %yes) {sub_block: block1}
  () = conditional_block(Cond: %no) {sub_block: block2}
  (Out: %out) = assign(X: %y)
}
block1 in block0 {
  (Out: %twice) = scale(X: %x) {scale: 2.0}
  (Out: %y) = assign(X: %twice)
}
block2 in block0 {
  (Out: %y) = assign(X: %x)
}
"""


def test_branches(exe, tmp_path):
    path, program = tmp_path / "model.onnx", static.Program.parse(BRANCHES)
    fleet.onnx.export(path, ["x", "limit"], ["out"], exe, program)
    session, x = session_of(path), np.ones((2, 3), "float32")
    for limit in [0.0, 2.0]:
        feed = {"x": x, "limit": np.array([limit], "float32")}
        compare(session, exe, program, feed, ["out"])


def click_inputs():
    dense = static.data("dense_input", [None, 13])
    ids = static.data("sparse_input", [None, 26], "int64")
    return dense, ids, static.data("label", [None, 1])


def rows_of(ids, rows, width, name):
    table = fleet.ParamAttr(name=name, initializer=fleet.nn.initializer.Uniform(-0.5, 0.5))
    return static.nn.embedding(ids, [rows, width], is_sparse=True, param_attr=table)


def deepfm():
    dense, ids, label = click_inputs()
    first = static.nn.fc(dense, 1)
    first = first + fleet.sum(
        fleet.flatten(rows_of(ids, 50, 1, "first_order"), 1), axis=[1], keepdim=True
    )
    factors = static.create_parameter([13, 10], "float32", name="factors_of_numbers")
    numbers = fleet.unsqueeze(dense, [2]) * factors
    features = fleet.concat([rows_of(ids, 50, 10, "factors"), numbers], axis=1)
    square = fleet.square(fleet.sum(features, axis=[1]))
    squares = fleet.sum(fleet.square(features), axis=[1])
    second = fleet.scale(fleet.sum(square - squares, axis=[1], keepdim=True), 0.5)
    deep = static.nn.fc(fleet.flatten(features, 1), 20, activation="relu")
    logit = fleet.add_n([first, second, static.nn.fc(deep, 1)])
    loss = fleet.mean(F.sigmoid_cross_entropy_with_logits(logit, label))
    return [F.sigmoid(logit), loss]


def word2vec():
    center, context = (static.data(name, [None, 1], "int64") for name in ["center", "context"])
    negatives = static.data("negatives", [None, 5], "int64")
    word = rows_of(center, 50, 8, "emb")
    others = rows_of(fleet.concat([context, negatives], axis=1), 50, 8, "emb_w")
    logits = fleet.sum(others * word, axis=[2])
    right, wrong = fleet.split(logits, [1, 5], axis=1)
    wrong = fleet.sum(F.softplus(wrong), axis=[1], keepdim=True)
    return [logits, fleet.mean(F.softplus(-right) + wrong)]


def mlp():
    x = static.data("x", [None, 6])
    hidden = F.dropout(static.nn.fc(x, 5, activation="gelu"), 0.5)
    return [F.softmax(static.nn.fc(hidden, 3))]


@pytest.mark.parametrize("network", [deepfm, word2vec, mlp])
def test_networks_of_python(network, exe, tmp_path):
    targets = network()
    main = static.default_main_program()
    exe.run(static.default_startup_program())
    for opset in range(17, 24):
        names = [target.name for target in targets]
        session = check_model(tmp_path / "model.onnx", exe, main, names, opset)
    if network is mlp:
        types = {node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node}
        assert "Dropout" not in types and "Gelu" in types
        assert [info.shape for info in session.get_outputs()] == [["batch", 3]]


def trained(exe):
    """A network after a step of training, as users export it."""
    x, y = static.data("x", [None, 4]), static.data("y", [None, 1])
    out = static.nn.fc(x, 1)
    fleet.optimizer.Adam(0.1).minimize(fleet.mean(F.square_error_cost(out, y)))
    exe.run(static.default_startup_program())
    feed = {"x": np.ones((2, 4), "float32"), "y": np.ones((2, 1), "float32")}
    exe.run(feed=feed)
    return x, y, out, feed


def test_saved_models_and_the_command(exe, command, tmp_path):
    x, _, out, feed = trained(exe)
    fleet.onnx.export(tmp_path / "direct.onnx", [x], [out], exe)
    static.save_inference_model(tmp_path / "model", [x], [out], exe)
    fleet.onnx.export_model(tmp_path / "model", tmp_path / "saved.onnx", opset_version=18)
    said = command("export", "--onnx", tmp_path / "model", tmp_path / "told.onnx", "--opset", 18)
    assert f"inputs x; outputs {out.name}; opset 18, " in said
    files = [tmp_path / name for name in ["direct.onnx", "saved.onnx", "told.onnx"]]
    assert files[1].read_bytes() == files[2].read_bytes()
    test = static.default_main_program().clone(for_test=True)
    for file in files:
        compare(session_of(file), exe, test, feed, [out.name])
    opsets = [onnx.load(file).opset_import[0].version for file in files]
    assert opsets == [17, 18, 18]


def test_wrong_calls(exe, raises, tmp_path):
    x, y, out, _ = trained(exe)
    path = tmp_path / "model.onnx"
    export = fleet.onnx.export
    loss = next(var for var in static.default_main_program().list_vars() if "mean" in var.name)
    raises(ValueError, ["need the input 'y'", "help:"], lambda: export(path, [x], [loss], exe))
    raises(ValueError, ["not an input"], lambda: export(path, [out], [out], exe))
    raises(TypeError, ["feed_vars"], lambda: export(path, 3, [out], exe))
    old = lambda: export(path, [x], [out], exe, opset_version=9)  # noqa: E731
    raises(NotImplementedError, ["17 to 23", "got 9"], old)
    raises(ValueError, ["nothing"], lambda: fleet.onnx.export_model(tmp_path / "nothing", path))
    missing = lambda: export(tmp_path / "no/model.onnx", [x], [out], exe)  # noqa: E731
    raises(ValueError, ["folder does not exist"], missing)
    noise = fleet.static.Program.parse(
        "fleet program 1\nblock0 {\n%z: f32[2]\n"
        '(Out: %z) = uniform_random() {shape: [2]} at="net.py:3"\n}'
    )
    refused = lambda: export(path, [], ["z"], exe, noise)  # noqa: E731
    raises(NotImplementedError, ["uniform_random", "z", "net.py:3", "help:"], refused)
    ids = static.data("ids", [None, 2], "int64")
    rows = static.nn.embedding(ids, [30, 2])
    exe.run(static.default_startup_program())
    few = lambda: export(path, [ids], [rows], exe, max_table_rows=29)  # noqa: E731
    raises(NotImplementedError, ["at most 29 rows, got 30", "max_table_rows"], few)
    assert not path.exists()


def test_tables_of_servers(tmp_path):
    """A demo job saves its table; ids without a row read as zeros."""
    import subprocess
    import sys

    model, path = tmp_path / "save", tmp_path / "model.onnx"
    code = "from fleet._commands import fleetrun; fleetrun()"
    flags = ["--server_num=1", "--worker_num=1", f"--log_dir={tmp_path / 'logs'}"]
    job = ["demo:wide_deep", "--samples=2000", f"--output={model}"]
    call = [sys.executable, "-c", code, *flags, *job]
    ran = subprocess.run(call, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    model = model / "program"
    fleet.onnx.export_model(model, path)
    session = session_of(path)
    graph = onnx.load(path).graph
    constants = {it.name: onnx.numpy_helper.to_array(it) for it in graph.initializer}
    tables = []
    for lookup in (node for node in graph.node if node.op_type == "LabelEncoder"):
        keys = next(it for it in lookup.attribute if it.name == "keys_int64s").ints
        gather = next(node for node in graph.node if lookup.output[0] in node.input)
        rows = constants[gather.input[0]]
        assert list(keys) == sorted(keys) and rows.shape[0] == len(keys) + 1
        assert np.abs(rows[:-1]).max() > 0 and not rows[-1].any()
        tables.append(({key: at for at, key in enumerate(keys)}, rows))

    # The same network with the rows as inputs, computed by our executor.
    program, feeds, targets = static.load_inference_model(model / "model", None)
    text = program.to_string()
    lines = [it for it in text.splitlines() if "distributed_lookup_table" in it]
    assert len(lines) == len(tables) == 2
    rng = np.random.default_rng(1)
    feed = inputs_of(program, 4, rng)
    known = list(tables[0][0])
    found_rows = {}
    for line, (places, rows) in zip(lines, tables):
        found = re.search(r"Outputs: %([\w.]+)\) = .*Ids: %([\w.]+)\)", line)
        found, ids = found.groups()
        text = text.replace(line, "")
        text = re.sub(rf"(%{re.escape(found)}: f32\[.*\])", r"\1 data", text)
        if not found_rows:
            feed[ids] = rng.choice(known, feed[ids].shape)
            feed[ids][:, :3] = [-1, 2**62, max(known) + 1]
        at = np.vectorize(lambda key, places=places: places.get(key, len(places)))(feed[ids])
        found_rows[found] = rows[at]
    split = static.Program.parse(text)
    names = [target.name for target in targets]
    exe = static.Executor(threads=1)
    given = {name: feed[name] for name in feeds if name != ids}
    ours = exe.run(split, feed={**given, **found_rows}, fetch_list=names)
    theirs = session.run(names, {name: feed[name] for name in feeds})
    for expected, value in zip(ours, theirs):
        np.testing.assert_allclose(value, expected, RELATIVE, ABSOLUTE)
