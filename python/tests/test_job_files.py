"""`fleet.Job`: job files from Python."""

import threading

import numpy as np
import pytest

import fleet

JOB = """version = 1
[data]
train = "rows.csv"
test = { share = 0.2 }
[columns]
y = { role = "label" }
age = { kind = "number" }
city = { kind = "category" }
[model]
kind = "mlp"
dim = 4
hidden = [16]
[train]
batch = 64
epochs = 3
optimizer = { rate = 0.01 }
"""


@pytest.fixture
def columns():
    random = np.random.default_rng(1)
    age, city = random.uniform(20, 80, 2000), random.integers(0, 5, 2000)
    y = (age - 50 + 20 * (city % 2) > random.normal(0, 10, 2000)).astype(int)
    names = [f"city {at}" for at in city]
    return {"age": np.round(age, 2).tolist(), "city": names, "y": y.tolist()}


@pytest.fixture
def job(tmp_path, columns):
    write(tmp_path / "rows.csv", columns)
    (tmp_path / "job.toml").write_text(JOB)
    return fleet.Job(tmp_path / "job.toml", threads=1)


def write(path, columns):
    rows = zip(*columns.values())
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]))


def test_a_job_trains_and_predicts(job, columns, tmp_path, capsys):
    assert job.check() == []
    with pytest.raises(ValueError, match="no report: expected a model folder"):
        job.report
    report = job.train()
    assert report == job.report
    assert report["report"]["all"]["auc"] > 0.85
    shown = capsys.readouterr().out
    assert "AUC" in shown and "importance" in shown
    assert (tmp_path / "model" / "report.html").exists()

    scores = job.predict(tmp_path / "rows.csv")
    assert scores.dtype == np.float32 and scores.shape == (2000,)
    assert (job.predict([tmp_path / "rows.csv"]) == scores).all()
    # A table gives the same bits, also without the label.
    rows = {name: columns[name][:50] for name in ("age", "city")}
    assert (job.predict(rows) == scores[:50]).all()
    missing = job.predict({"age": [39, None, float("nan")], "city": ["city 1", "Rome", None]})
    assert np.isfinite(missing).all() and len(missing) == 3


def test_tables_of_other_packages(job, columns, tmp_path):
    job.train(quiet=True)
    scores = job.predict(tmp_path / "rows.csv")
    pandas = pytest.importorskip("pandas")
    assert (job.predict(pandas.DataFrame(columns)) == scores).all()
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table(columns)
    assert (job.predict(table) == scores).all()
    assert (job.predict(table.to_batches()[0]) == scores).all()


def test_classes_have_a_column_each(job, tmp_path, capfd):
    text = JOB.replace('y = { role = "label" }', "")
    text = text.replace(
        'city = { kind = "category" }',
        'city = { role = "label", kind = "category", classes = ["city 0", "city 1", "city 2", '
        '"city 3", "city 4"] }',
    )
    (tmp_path / "job.toml").write_text(text + '[task]\nkind = "multi_class"\n')
    job.train(quiet=True)
    assert capfd.readouterr().out == ""
    scores = job.predict({"age": [30.0, 60.0]})
    assert scores.shape == (2, 5)
    assert np.allclose(scores.sum(axis=1), 1, atol=1e-5)


def test_errors_have_places(job, tmp_path, raises):
    (tmp_path / "job.toml").write_text(JOB.replace('"mlp"', '"mpl"').replace("dim = 4", "dims = 4"))
    parts = ["job.toml:10:8: error: model.kind", "did you mean 'mlp'", "job.toml:11:1"]
    raises(ValueError, parts, job.check)
    raises(ValueError, parts, job.train)
    (tmp_path / "job.toml").write_text(JOB)
    raises(ValueError, ["not a model folder"], lambda: job.predict({"age": [1], "city": ["a"]}))
    job.train(quiet=True)
    raises(ValueError, ["city"], lambda: job.predict({"age": [1]}))
    raises(ValueError, ["expected files, a table", "int"], lambda: job.predict(7))
    raises((ValueError, RuntimeError), ["no.csv"], lambda: job.predict(tmp_path / "no.csv"))
    with pytest.raises((ValueError, RuntimeError)):
        fleet.Job(tmp_path / "no.toml")


def test_other_threads_run_during_a_training(job, tmp_path):
    (tmp_path / "job.toml").write_text(JOB.replace("epochs = 3", "epochs = 30"))
    done = threading.Event()

    def train():
        try:
            job.train(quiet=True)
        finally:
            done.set()

    thread = threading.Thread(target=train)
    thread.start()
    waits = 0
    while not done.wait(0.001):
        waits += 1
    thread.join()
    assert job.report["steps"] > 0
    # A training that held the lock would let this thread run before it and after it only.
    assert waits > 10
