"""Layers as objects, and the objects of the 1.x interface that stand for programs and executors."""

import numpy as np
import pytest

import fleet
from fleet import fluid, nn, static


class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2D(1, 4, 3, padding=1, stride=2)
        body = nn.Sequential(nn.ReLU(), ("fc", nn.Linear(4, 3, bias_attr=False)))
        self.body = self.add_sublayer("body", body)
        self.scale = self.create_parameter([1], default_initializer=nn.initializer.Constant(2.0))

    def forward(self, image):
        features = fleet.mean(self.conv(image), axis=[2, 3])
        return self.body(features) * self.scale


def test_parameters_of_a_network():
    net = Net()
    names = {path: parameter.name for path, parameter in net.named_parameters()}
    assert names == {
        "scale": "net_0.w_0",
        "conv.weight": "conv2d_0.w_0",
        "conv.bias": "conv2d_0.b_0",
        "body.fc.weight": "linear_0.w_0",
    }
    assert [p.name for p in net.parameters()] == list(names.values())
    assert [p.name for p in net.parameters(include_sublayers=False)] == ["net_0.w_0"]
    assert [type(part).__name__ for part in net.sublayers()] == [
        "Conv2D",
        "Sequential",
        "ReLU",
        "Linear",
    ]
    assert dict(net.named_sublayers())["body.fc"] is net.body[1] and len(net.body) == 2
    assert list(net.children()) == [net.conv, net.body] and net.full_name() == "net_0"
    assert repr(net.body) == "Sequential(0: ReLU(), fc: Linear())"
    parameters = static.default_main_program().all_parameters()
    assert {p.name for p in parameters} == set(names.values())
    # Another object of the class has parameters of its own; replaced parts are not listed.
    assert nn.Linear(2, 2).weight.name == "linear_1.w_0"
    net.body = nn.ReLU()
    assert "body.fc.weight" not in dict(net.named_parameters())


def test_a_network_is_used_twice_and_trained(exe):
    x = static.data("x", [None, 1, 8, 8])
    y = static.data("y", [None, 1], "int64")
    net = Net()
    logits, again = net(x), net(x)
    loss = nn.functional.cross_entropy(logits, y)
    fleet.optimizer.Adam(0.01, parameters=net.parameters()).minimize(loss)
    exe.run(static.default_startup_program())
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=(48, 1))
    images = rng.standard_normal((48, 1, 8, 8)) + labels[:, :, None, None]
    feed = {"x": images.astype("float32"), "y": labels}
    losses = [exe.run(feed=feed, fetch_list=[loss])[0].item() for _ in range(300)]
    assert losses[-1] < 0.6 * losses[0]
    one, other = exe.run(feed=feed, fetch_list=[logits, again])
    assert np.array_equal(one, other) and one.shape == (48, 3)


def test_objects_write_the_program_of_functions():
    def written(objects):
        main, startup = static.Program(), static.Program()
        with static.program_guard(main, startup), fleet.utils.unique_name.guard():
            image = static.data("image", [None, 2, 6, 6])
            x = static.data("x", [None, 5, 3])
            ids = static.data("ids", [None, 4], "int64")
            if objects:
                nn.Conv2D(2, 4, 3, groups=2, bias_attr=False)(image)
                nn.Linear(3, 7)(x)
                nn.Embedding(9, 5, padding_idx=0, sparse=True)(ids)
            else:
                static.nn.conv2d(image, 4, 3, groups=2, bias_attr=False)
                static.nn.fc(x, 7, num_flatten_dims=2, name="linear_0")
                static.nn.embedding(ids, [9, 5], is_sparse=True, padding_idx=0)
        ops = [line for line in main.to_string().splitlines() if " = " in line]
        starts = startup.to_string().splitlines()
        return [op.split(" at=")[0] for op in ops], sorted(s.split(" at=")[0] for s in starts)

    assert written(True) == written(False)


def test_state_of_a_network(exe, raises):
    net = Net()
    exe.run(static.default_startup_program())
    state = net.state_dict()
    assert state["scale"].tolist() == [2.0] and state["conv.weight"].shape == (4, 1, 3, 3)
    state["scale"] = np.array([5.0], "float32")
    net.set_state_dict(state)
    assert static.global_scope()["net_0.w_0"].tolist() == [5.0]
    raises(ValueError, ["'nothing'"], lambda: net.set_state_dict({"nothing": [1.0]}))
    wrong = {"scale": np.zeros(1, "float32"), "conv.bias": np.zeros(3, "float32")}
    raises(ValueError, ["conv2d_0.b_0", "[4]", "[3]"], lambda: net.set_state_dict(wrong))
    assert static.global_scope()["net_0.w_0"].tolist() == [5.0]


def test_an_embedding_as_the_documents_write_it(raises):
    ids = static.data("ids", [None, 4], "int64")
    rows = nn.Embedding(input=ids, size=[10, 3], sparse=True)
    assert rows.shape == (-1, 4, 3)
    assert "is_sparse: true" in static.default_main_program().to_string()
    raises(ValueError, ["[rows, width]"], lambda: nn.Embedding(input=ids, size=[10]))


def test_layers_that_are_used_wrongly(raises):
    class Early(nn.Layer):
        def __init__(self):
            self.fc = nn.Linear(2, 2)

    raises(RuntimeError, ["Early", "'fc'", "super().__init__()"], Early)
    raises(NotImplementedError, ["forward"], lambda: nn.Layer()(1))
    raises(NotImplementedError, ["clone(for_test=True)"], nn.ReLU().eval)
    raises(NotImplementedError, ["'reflect'"], lambda: nn.Conv2D(1, 1, 1, padding_mode="reflect"))
    raises(TypeError, ["sublayer"], lambda: nn.ReLU().add_sublayer("x", 3))
    raises(TypeError, ["parameter"], lambda: nn.ReLU().add_parameter("x", 3))
    nn.ReLU().train()


def test_lists_of_layers():
    layers = nn.LayerList([nn.Linear(2, 2)])
    layers.append(nn.ReLU())
    assert len(layers) == 2 and [type(layer) for layer in layers] == [nn.Linear, nn.ReLU]
    assert [name for name, _ in layers.named_parameters()] == ["0.weight", "0.bias"]


def network():
    x, y = static.data("x", [None, 4]), static.data("y", [None, 1])
    loss = fleet.mean(nn.functional.square_error_cost(static.nn.fc(x, 1), y))
    xs = np.ones((8, 4), "float32")
    return loss, {"x": xs, "y": xs.sum(1, keepdims=True)}


def test_compiled_programs_are_the_program(exe, raises):
    loss, feed = network()
    fleet.optimizer.SGD(0.01).minimize(loss)
    exe.run(static.default_startup_program())
    build = fluid.BuildStrategy()
    build.fuse_elewise_add_act_ops = True
    build.enable_inplace = True
    threads = fluid.ExecutionStrategy()
    threads.num_iteration_per_drop_scope = 30
    compiled = fluid.CompiledProgram(fluid.default_main_program(), build)
    parallel = compiled.with_data_parallel(loss_name=loss.name, exec_strategy=threads)
    first = exe.run(parallel, feed=feed, fetch_list=[loss])[0]
    second = exe.run(fluid.default_main_program(), feed=feed, fetch_list=[loss])[0]
    assert second < first
    raises(ValueError, ["no_loss"], lambda: compiled.with_data_parallel(loss_name="no_loss"))
    raises(TypeError, ["Program"], lambda: static.CompiledProgram("program"))
    raises(TypeError, ["BuildStrategy"], lambda: static.CompiledProgram(compiled, {"a": 1}))


def test_parallel_executors(raises):
    loss, feed = network()
    fleet.optimizer.SGD(0.01).minimize(loss)
    static.Executor(threads=1).run(static.default_startup_program())
    executor = static.ParallelExecutor(use_cuda=False, loss_name=loss.name)
    losses = [executor.run([loss.name], feed=feed)[0].item() for _ in range(3)]
    assert losses[2] < losses[1] < losses[0] and executor.device_count == 1
    raises(
        NotImplementedError,
        ["num_trainers", "fleetrun"],
        lambda: static.ParallelExecutor(num_trainers=2),
    )


@pytest.mark.parametrize(
    "kind, field, value",
    [("BuildStrategy", "reduce_strategy", 1), ("ExecutionStrategy", "num_iteration_per_run", 10)],
)
def test_settings_without_effect_are_refused(raises, kind, field, value):
    settings = getattr(static, kind)()
    setattr(settings, field, value)
    argument = {"BuildStrategy": "build_strategy", "ExecutionStrategy": "exec_strategy"}[kind]
    program = static.CompiledProgram(static.Program())
    raises(
        NotImplementedError,
        [f"{argument}.{field}", "DistributedStrategy"],
        lambda: program.with_data_parallel(**{argument: settings}),
    )


def test_threads_of_a_compiled_program_warn():
    settings = static.ExecutionStrategy()
    settings.num_threads = 3
    with pytest.warns(UserWarning, match="Executor") as caught:
        static.CompiledProgram(static.Program()).with_data_parallel(exec_strategy=settings)
    assert caught[0].filename == __file__


def test_steps_of_a_schedule(exe, raises):
    loss, feed = network()
    schedule = fleet.optimizer.lr.ExponentialDecay(0.1, gamma=0.5)
    optimizer = fleet.optimizer.SGD(schedule)
    optimizer.minimize(loss)
    schedule.step()
    exe.run(static.default_startup_program())
    rates = []
    for _ in range(3):
        rates.append(exe.run(feed=feed, fetch_list=[optimizer._rate])[0].item())
        schedule.step()
    np.testing.assert_allclose(rates, [0.1, 0.05, 0.025], rtol=1e-6)
    exe.run(feed=feed)
    exe.run(feed=feed)
    raises(NotImplementedError, ["after 2 runs", "in runs"], schedule.step)
    raises(NotImplementedError, ["epoch"], lambda: schedule.step(3))


def test_accuracy_without_counters(raises):
    x, y = static.data("x", [None, 4]), static.data("y", [None, 1], "int64")
    assert fleet.metric.accuracy(input=x, label=y, k=2).shape == (1,)
    total = static.create_global_var([1], 0.0, "float32")
    text = raises(
        NotImplementedError, ["correct and total"], lambda: static.accuracy(x, y, total=total)
    )
    assert "fleet.shape" in text


def test_a_tensor_with_the_batch_size_of_another(exe, raises):
    x = static.data("x", [None, 4])
    ones = fleet.full(shape=[fleet.shape(x)[0], 1], fill_value=2.0)
    assert ones.shape == (-1, 1)
    count = fleet.sum(fleet.full([fluid.layers.shape(x)[0]], 1, "int64"))
    feed = {"x": np.zeros((3, 4), "float32")}
    out = exe.run(feed=feed, fetch_list=[ones, count, fleet.shape(x)[1:], fleet.full(2, 5.0)])
    assert [a.tolist() for a in out] == [[[2.0]] * 3, [3], [4], [5.0, 5.0]]
    for wrong in [[fleet.shape(x)[1], 1], [2, fleet.shape(x)[0]], [fleet.sum(x), 1]]:
        raises(NotImplementedError, ["fleet.shape(x)[0]"], lambda: fleet.full(wrong, 1.0))
    raises(TypeError, ["input"], lambda: fleet.shape([3]))
