"""Python and Rust write the same programs and compute the same bits."""

import numpy as np
import pytest

import fleet
import models
from fleet import nn, optimizer, static
from fleet.utils import unique_name


def plain(text):
    """The text of a program without the lines of source files."""
    return static.Program.parse(text).to_string()


ZOO = "lenet vgg16 resnet18 resnet50 bert gpt wide_deep deepfm word2vec".split()


@pytest.mark.parametrize("name", ZOO)
def test_the_zoo_has_the_text_of_rust(command, name):
    getattr(models, name)()
    main, startup = static.default_main_program(), static.default_startup_program()
    assert main.to_string() == plain(command("print", f"model:{name}"))
    assert startup.to_string() == plain(command("print", f"model:{name}/startup"))


def test_steps_compute_the_bits_of_rust(command, exe, tmp_path):
    loss = models.lenet()
    clip = nn.ClipGradByGlobalNorm(1.0)
    optimizer.Adam(learning_rate=1e-3, grad_clip=clip).minimize(loss)
    main, startup = static.default_main_program(), static.default_startup_program()
    rng = np.random.default_rng(1)
    feed = {
        "x": rng.standard_normal((8, 1, 28, 28)).astype("float32"),
        "y": rng.integers(0, 10, (8, 1)),
    }
    exe.run(startup)
    for _ in range(3):
        out = exe.run(main, feed=feed, fetch_list=[loss])
    files = []
    for name, program in [("main", main), ("startup", startup)]:
        (tmp_path / name).write_text(program.to_string())
    for name, value in feed.items():
        np.save(tmp_path / f"{name}.npy", value)
        files += ["--feed", f"{name}={tmp_path / name}.npy"]
    saved, fetched = tmp_path / "vars.npz", tmp_path / "loss.npy"
    command(
        *["run", tmp_path / "main", "--startup", tmp_path / "startup", *files, "--runs", 3],
        *["--threads", 1, "--save", saved, "--fetch", f"{loss.name}={fetched}"],
    )
    assert np.array_equal(out[0], np.load(fetched))
    state, rust = main.state_dict(), np.load(saved)
    assert sorted(state) == sorted(name for name in rust.files if name in state)
    for name, value in state.items():
        assert np.array_equal(value, rust[name]), name


def test_ops_carry_the_line_of_the_script():
    x = static.data("x", [None, 13])
    static.nn.fc(x, 4)  # this line
    text = static.default_main_program().to_string(with_details=True)
    lines = open(__file__).read().splitlines()
    number = 1 + next(n for n, line in enumerate(lines) if line.endswith("# this line"))
    assert f'at="{__file__}:{number}"' in text


def test_scopes_labels_and_operators():
    x = static.data("x", [None, 4])
    with static.name_scope("tower"), static.device_guard("cpu"):
        y = static.nn.fc(x, 4)
    assert y.name == "tower/fc_0.tmp_1"
    assert "device=" in static.default_main_program().to_string()
    z = (1.0 - x * 2.0 + y) / y - x**2.0
    assert (z.shape, z.dtype) == ((-1, 4), "float32")
    assert x[:, 1:3].shape == (-1, 2)
    assert x[:, 0].shape == (-1,)
    assert fleet.shape(x)[0].shape == (1,)
    with pytest.raises(TypeError):
        list(x)
    with pytest.raises(TypeError):
        bool(x > 0.0)


def test_names_are_unique_among_programs_or_shared(exe):
    def network(main, startup):
        with static.program_guard(main, startup):
            return static.nn.fc(static.data("x", [None, 4]), 2)

    startup = static.Program()
    names = [network(static.Program(), startup).name for _ in range(2)]
    assert names == ["fc_0.tmp_1", "fc_1.tmp_1"]
    assert unique_name.generate("fc") == "fc_2"
    # Training and evaluation as two programs of the same parameters.
    startup, outputs = static.Program(), []
    for _ in range(2):
        with unique_name.guard():
            outputs.append(network(static.Program(), startup))
    assert [y.name for y in outputs] == ["fc_0.tmp_1"] * 2
    assert startup.op_names == ["uniform_random", "fill_constant"]
    exe.run(startup)
    feed = {"x": np.ones((2, 4), "float32")}
    first, second = [exe.run(y.program, feed=feed, fetch_list=[y])[0] for y in outputs]
    assert np.array_equal(first, second)


def test_a_failed_layer_leaves_the_program_as_it_was(raises):
    x = static.data("x", [None, 13])
    main, startup = static.default_main_program(), static.default_startup_program()
    before = (main.to_string(), startup.to_string())
    wrong = [
        (ValueError, ["wrong size of fc", "test_programs.py:"], lambda: static.nn.fc(x, 0)),
        (ValueError, ["unknown activation"], lambda: static.nn.fc(x, 4, activation="rellu")),
        (TypeError, ["fc(): size", "'4' (str)"], lambda: static.nn.fc(x, "4")),
        (TypeError, ["a Variable", "ndarray"], lambda: static.nn.fc(np.zeros(3), 4)),
        (TypeError, ["unexpected keyword"], lambda: static.nn.fc(x, 4, sise=1)),
        (ValueError, ["add"], lambda: x + static.data("z", [None, 12])),
    ]
    for kind, parts, call in wrong[:-1]:
        raises(kind, parts, call)
        assert (main.to_string(), startup.to_string()) == before
    raises(*wrong[-1])
    # The network goes on.
    optimizer.SGD(0.1).minimize(fleet.mean(static.nn.fc(x, 1)))
    with static.program_guard(static.Program()):
        raises(ValueError, ["belongs to another program"], lambda: static.nn.fc(x, 4))


def test_a_failed_minimize_leaves_the_program_as_it_was(raises):
    loss = fleet.mean(static.nn.fc(static.data("x", [None, 13]), 1))
    main, startup = static.default_main_program(), static.default_startup_program()
    before = (main.to_string(), startup.to_string())
    raises(ValueError, ["learning rate", "-1"], lambda: optimizer.SGD(-1.0).minimize(loss))
    raises(ValueError, ["no variable 'w'"], lambda: optimizer.SGD(0.1, ["w"]).minimize(loss))
    raises(TypeError, ["learning_rate"], lambda: optimizer.SGD("fast").minimize(loss))
    raises(TypeError, ["loss"], lambda: optimizer.SGD(0.1).minimize("loss"))
    optimizer.SGD(0.1).minimize(loss)
    assert before[0] in main.to_string() or main.op_names[-1] == "sgd"
    assert main.op_names.count("sgd") == 2
    assert startup.to_string() != before[1]


@pytest.mark.parametrize(
    "make",
    [
        lambda: optimizer.SGD(0.1),
        lambda: optimizer.Momentum(0.1, 0.9, use_nesterov=True, weight_decay=1e-4),
        lambda: optimizer.Adam(optimizer.lr.NoamDecay(512, 4000)),
        lambda: optimizer.AdamW(optimizer.lr.CosineAnnealingDecay(0.1, 100)),
        lambda: optimizer.Adamax(optimizer.lr.StepDecay(0.1, 10)),
        lambda: optimizer.Adagrad(optimizer.lr.PiecewiseDecay([5, 9], [0.1, 0.2, 0.3])),
        lambda: optimizer.Adadelta(0.1, weight_decay=fleet.regularizer.L1Decay(0.1)),
        lambda: optimizer.RMSProp(0.1, centered=True, grad_clip=nn.ClipGradByValue(1.0)),
        lambda: optimizer.Lamb(0.1, exclude_from_weight_decay=["b_0"]),
        lambda: optimizer.LarsMomentum(
            optimizer.lr.LinearWarmup(optimizer.lr.PolynomialDecay(0.1, 50), 5, 0.0, 0.1)
        ),
        lambda: fleet.fluid.optimizer.AdamOptimizer(
            learning_rate=0.1, regularization=fleet.fluid.regularizer.L2Decay(1e-4)
        ),
    ],
)
def test_optimizers_learn(exe, make):
    x, y = static.data("x", [None, 4]), static.data("y", [None, 1])
    loss = fleet.mean(fleet.nn.functional.square_error_cost(static.nn.fc(x, 1), y))
    ops, pairs = make().minimize(loss)
    assert len(pairs) == 2 and ops
    exe.run(static.default_startup_program())
    rng = np.random.default_rng(0)
    xs = rng.standard_normal((32, 4)).astype("float32")
    feed = {"x": xs, "y": xs.sum(1, keepdims=True)}
    losses = [exe.run(feed=feed, fetch_list=[loss])[0][0] for _ in range(20)]
    assert losses[-1] < losses[0]


def test_a_schedule_of_python_sets_the_rate(exe, raises):
    loss = fleet.mean(static.nn.fc(static.data("x", [None, 4]), 1))
    rates = [1.0, 0.5, 0.25]
    schedule = optimizer.lr.LambdaDecay(0.8, lambda step: rates[step])
    optimizer.SGD(schedule).minimize(loss)
    exe.run(static.default_startup_program())
    feed = {"x": np.zeros((2, 4), "float32")}
    for rate in rates:
        out = exe.run(feed=feed, fetch_list=["learning_rate_0"])
        assert out[0] == np.float32(0.8 * rate)
    raises(NotImplementedError, ["every run"], schedule.step)


class Mine(Exception):
    """An exception of a user's function."""


def test_an_exception_of_a_schedule_is_raised(exe, raises):
    loss = fleet.mean(static.nn.fc(static.data("x", [None, 4]), 1))
    steps = []

    def factor(step):
        steps.append(step)
        if step >= limit:
            raise Mine(f"at step {step}")
        return 1.0

    limit = 0
    schedule = optimizer.lr.LambdaDecay(0.8, factor)
    main, startup = static.default_main_program(), static.default_startup_program()
    before = main.to_string(), startup.to_string()
    raises(Mine, ["at step 0"], lambda: optimizer.SGD(schedule).minimize(loss))
    assert (main.to_string(), startup.to_string()) == before
    limit = 3
    optimizer.SGD(schedule).minimize(loss)
    exe.run(startup)
    feed = {"x": np.zeros((2, 4), "float32")}
    for _ in range(3):
        exe.run(feed=feed)
    raises(Mine, ["at step 3"], lambda: exe.run(feed=feed))
    # Later errors are their own.
    limit = 4
    wrong = lambda: exe.run(feed=feed, fetch_list=["nothing"])  # noqa: E731
    raises(ValueError, ["no variable 'nothing'"], wrong)
    exe.run(feed=feed)
    table = fleet.io.from_table({"x": np.zeros((8, 4))}, use_var=[main.var("x")], batch_size=2)
    limit = 6
    raises(Mine, ["at step 6"], lambda: exe.train_from_dataset(dataset=table))
    wrong = optimizer.lr.LambdaDecay(0.8, lambda step: "fast")
    with static.program_guard(static.Program(), static.Program()):
        loss = fleet.mean(static.nn.fc(static.data("x", [None, 4]), 1))
        raises(TypeError, ["str"], lambda: optimizer.SGD(wrong).minimize(loss))


def test_embeddings_of_both_interfaces(raises):
    ids = static.data("ids", [None, 1], "int64")
    assert static.nn.embedding(ids, [10, 4]).shape == (-1, 1, 4)
    assert fleet.fluid.embedding(ids, [10, 4]).shape == (-1, 1, 4)
    assert fleet.fluid.layers.embedding(ids, [10, 4]).shape == (-1, 4)
    wide = static.data("wide", [None, 3], "int64")
    wrong = lambda: fleet.fluid.layers.embedding(wide, [10, 4])  # noqa: E731
    raises(ValueError, ["last dimension of 1", "[-1, 3]"], wrong)
    entry = fleet.distributed.CountFilterEntry(3)
    rows = fleet.fluid.contrib.sparse_embedding(ids, [10, 4], entry=entry)
    assert rows.shape == (-1, 1, 4)
    assert "count_filter_entry:3" in static.default_main_program().to_string()
    with pytest.raises(ValueError):
        size = fleet.distributed.CountFilterEntry(-3)
        static.nn.sparse_embedding(ids, [10, 4], entry=size)


def test_missing_names_tell_the_alternative(raises):
    def wanted(module, name):
        return lambda: getattr(module, name)

    raises(AttributeError, ["'Model'", "fleet.static.nn"], wanted(fleet, "Model"))
    raises(NotImplementedError, ["'LSTM'", "fleet.static.nn"], wanted(nn, "LSTM"))
    raises(AttributeError, ["has no attribute 'nothing'"], wanted(static, "nothing"))
    assert fleet.metric.accuracy is static.accuracy


def test_functions_have_signatures_and_descriptions():
    import inspect

    signature = inspect.signature(static.nn.fc)
    assert signature.parameters["num_flatten_dims"].default == 1
    assert "fully connected" in static.nn.fc.__doc__
    missing = []
    for module in [fleet, static, static.nn, nn.functional, fleet.fluid.layers]:
        for name, value in vars(module).items():
            if callable(value) and not name.startswith("_") and not value.__doc__:
                missing.append(f"{module.__name__}.{name}")
    assert not missing
