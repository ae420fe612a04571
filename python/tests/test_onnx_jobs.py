"""ONNX files of models that job files trained: the same scores as `fleet predict`, from columns."""

import csv
import subprocess
import sys

import numpy as np
import pytest

import fleet
from test_onnx import session_of

HEAD = """version = 1
[data]
train = "train.csv"
missing = ["?"]
test = { share = 0.2 }
[columns]
"""
TRAIN = """
[train]
batch = 64
epochs = 2
optimizer = { rate = 0.01 }
[tables]
init = 0.3
"""
# Every kind of feature, each with missing and unknown values.
COLUMNS = """
y = { role = "label", positive = "yes" }
age = { kind = "number", embed = "piecewise", bins = 8 }
income = { kind = "number", transform = "log" }
height = { kind = "number", transform = "quantile", embed = "periodic", frequencies = 4 }
score = { kind = "number", transform = "none" }
city = { kind = "category", vocabulary = { min_count = 2 } }
user = { kind = "category", buckets = 50 }
tags = { kind = "categories", at_most = 2 }
words = { kind = "categories", pooling = "sum", buckets = 1099511627776, dim = 8 }
[crosses]
city_user = { columns = ["city", "user"] }
city_hash = { columns = ["user", "city"], buckets = 5000000000, dim = 8 }
"""
# Tables of so many buckets are on servers only.
SMALL = COLUMNS.replace("1099511627776", "1000").replace("5000000000", "300")
SIDES = """
y = { role = "label", positive = "yes" }
age = { kind = "number", side = "user" }
user = { kind = "category", side = "user" }
tags = { kind = "categories", side = "user" }
city = { kind = "category", side = "item" }
"""
HISTORIES = """
y = { role = "label", positive = "yes" }
age = { kind = "number" }
city = { kind = "category" }
watched = { kind = "categories", history_of = "city", at_most = 3 }
"""
CLASSES = """
city = { role = "label", kind = "category", classes = ["Rome", "Paris", "Oslo"] }
age = { kind = "number" }
tags = { kind = "categories" }
"""
JOBS = {
    "mlp": (SMALL, "kind = 'mlp'\ndim = 8\nhidden = [16]"),
    "wide_deep": (SMALL, "kind = 'wide_deep'\ndim = 8\nhidden = [16]\nnorm = 'batch'"),
    "deepfm": (SMALL, "kind = 'deepfm'\ndim = 8\nhidden = [16]\ndropout = 0.2"),
    "dcn_v2": (SMALL, "kind = 'dcn_v2'\ndim = 8\nhidden = [16]\nrank = 4\nactivation = 'gelu'"),
    "din": (HISTORIES, "kind = 'din'\ndim = 8\nhidden = [16]"),
    "two_tower": (SIDES, "kind = 'two_tower'\ndim = 8\nhidden = [16]\nsimilarity = 'cosine'"),
    "mf": (SIDES.replace(", side = \"user\" }\nuser", " }\nuser"), "kind = 'mf'\ndim = 8"),
    "mmoe": (
        'old = { role = "label", name = "z", at_least = 5.5 }' + SMALL,
        "kind = 'mmoe'\ndim = 8\nhidden = [16]\nexperts = 3\ntower = [8]",
    ),
    "servers": (COLUMNS, "kind = 'mlp'\ndim = 8\nhidden = [16]"),
    "classes": (CLASSES, "kind = 'mlp'\ndim = 8\nhidden = [16]\n[task]\nkind = 'multi_class'"),
    "regression": (
        HISTORIES.replace('y = { role = "label", positive = "yes" }', 'z = { role = "label" }'),
        "kind = 'dcn_v2'\ndim = 8\nhidden = [16]\n[task]\nkind = 'regression'",
    ),
}


def on_servers(file):
    code = "from fleet._commands import fleetrun; fleetrun()"
    flags = ["--server_num=1", "--worker_num=1", f"--log_dir={file.parent / 'logs'}"]
    call = [sys.executable, "-c", code, *flags, f"job:{file}"]
    ran = subprocess.run(call, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def rows(seed, count, is_new):
    """Rows of all columns. New ones have values that the training rows lack."""
    random = np.random.default_rng(seed)
    cities = ["Rome", "Paris", "Oslo"]
    others = ["Kraków am Fluß", "x"] if is_new else []
    names = ["age", "income", "height", "score", "city", "user", "tags", "words", "watched"]
    yield [*names, "y", "z"]

    def several(of, most):
        return "|".join(random.choice(of, random.integers(0, most + 1)))

    for at in range(count):
        age = random.uniform(20, 80)
        city = str(random.choice(cities + others))
        row = {
            "age": f"{age:.2f}",
            "income": f"{random.lognormal(0, 4) * random.choice([-1, 1]):.5g}",
            "height": f"{random.integers(140, 200) / 100 if at % 3 else random.normal(1.7, 0.4)}",
            "score": str(random.integers(0, 3)),
            "city": city,
            "user": f"user number {random.integers(0, 60)}",
            "tags": several(["a", "b", "c", "d"] + others, 5),
            "words": several([f"w{it}" for it in range(30)], 4),
            "watched": several(cities + others, 6),
        }
        for name in row:
            if name != "city" and random.uniform() < 0.05:
                row[name] = random.choice(["", "?"])
        is_yes = random.normal(age - 50, 10) > (10 if city == "Rome" else -10)
        yield [*row.values(), "yes" if is_yes else "no", f"{age / 10 + random.normal():.3f}"]


def feeds_of(session, path):
    """The inputs of a file: numbers as they are, and hashes of texts; no other change."""
    with open(path, newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    feeds = {}
    for info in session.get_inputs():
        texts = ["" if row[info.name] == "?" else row[info.name] for row in table]
        if info.type == "tensor(float)":
            values = [[float(text or "nan")] for text in texts]
            feeds[info.name] = np.array(values, "float32")
        elif info.shape[1] == 1:
            hashes = [[fleet.onnx.category_hash(text)] for text in texts]
            feeds[info.name] = np.array(hashes, "int64")
        else:
            lists = [[fleet.onnx.category_hash(it) for it in text.split("|")] for text in texts]
            feeds[info.name] = np.zeros((len(lists), max(map(len, lists))), "int64")
            for row, hashes in zip(feeds[info.name], lists):
                row[: len(hashes)] = hashes
    return feeds


@pytest.mark.parametrize("name", JOBS)
def test_scores_are_those_of_predict(name, command, tmp_path):
    columns, model = JOBS[name]
    (tmp_path / "job.toml").write_text(f"{HEAD}{columns}[model]\n{model}\n{TRAIN}")
    for file, seed, count, is_new in [("train", 1, 1500, False), ("new", 2, 300, True)]:
        with open(tmp_path / f"{file}.csv", "w", newline="", encoding="utf-8") as out:
            csv.writer(out).writerows(rows(seed, count, is_new))
    if name == "servers":
        on_servers(tmp_path / "job.toml")
    else:
        command("job", "train", tmp_path / "job.toml")
    scores = tmp_path / "scores.csv"
    command("predict", tmp_path / "model", "--data", tmp_path / "new.csv", "--out", scores)
    said = command("export", "--onnx", tmp_path / "model", tmp_path / "model.onnx")
    output = "score_" if "score =" in columns else "score"
    assert f"outputs {output}" in said and "opset" in said
    session = session_of(tmp_path / "model.onnx")
    feeds = feeds_of(session, tmp_path / "new.csv")
    expected = np.loadtxt(scores, delimiter=",", skiprows=1, ndmin=2)
    found = session.run([output], feeds)[0]
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < 1e-6 * max(1, np.abs(expected).max())
    # Rows alone have the scores that they have together.
    for at in [0, 7, 250]:
        one = session.run([output], {name: feed[at : at + 1] for name, feed in feeds.items()})[0]
        assert np.abs(one - expected[at]).max() < 1e-6 * max(1, np.abs(expected).max())


def test_hashes_are_those_of_the_models():
    # From the documentation of `category_hash` in Rust.
    assert fleet.onnx.category_hash("7") & 0xFFFFFFFFFFFFFFFF == 0x9EB79721855F3EE7
    assert fleet.onnx.category_hash(7) == fleet.onnx.category_hash(" 7 ")
    missing = [None, float("nan"), "", " "]
    assert [fleet.onnx.category_hash(text) for text in missing] == [0] * 4
