"""Texts have the names that a user of Python can call: no `Type::method` of Rust."""

import tempfile

import pytest

import fleet
from fleet import static
from fleet.distributed import fleet as jobs


def squeezed():
    fleet.squeeze(static.data("x", [None, 2, 3]), [0])


def reshaped():
    fleet.reshape(static.data("x", [None, 2, 3]), [7, 7, -1, -1])


def transposed():
    fleet.transpose(static.data("x", [None, 2, 3]), [0, 0, 1])


def minimized():
    loss = fleet.mean(static.nn.fc(static.data("x", [None, 2]), 1))
    jobs.distributed_optimizer(fleet.optimizer.SGD(0.1)).minimize(loss)


def no_server():
    jobs.init()
    minimized()
    jobs.init_server()


def no_goal():
    jobs.init(is_collective=True)
    minimized()
    exe = static.Executor(threads=1)
    exe.run(static.default_startup_program())
    fleet.Trainer(early_stop=2).run(exe, lambda: [{}])


def no_program():
    exe = static.Executor(threads=1)
    weight = static.create_parameter([2], "float32", name="w")
    exe.run(static.default_startup_program())
    with tempfile.TemporaryDirectory() as folder:
        static.save_vars(exe, folder, vars=[weight])
        static.load_inference_model(folder, exe)


#: Calls, and a part of the error.
ERRORS = {
    squeezed: "axis of squeeze",
    reshaped: "shape of reshape",
    transposed: "perm of transpose",
    no_server: "this process is not a server",
    no_goal: "goal=(metric",
    no_program: "no program",
}


@pytest.mark.parametrize("call", ERRORS, ids=lambda call: call.__name__)
def test_errors_name_no_rust(call):
    with pytest.raises((ValueError, RuntimeError)) as caught:
        call()
    text = str(caught.value)
    assert ERRORS[call] in text and "::" not in text, text


def layers():
    for module in [fleet, static, static.nn, fleet.nn.functional, fleet.fluid.layers]:
        for name, value in vars(module).items():
            if callable(value) and getattr(value, "__module__", "") == module.__name__:
                if not isinstance(value, type) and not name.startswith("_"):
                    yield f"{module.__name__}.{name}", value


@pytest.mark.parametrize("name, layer", list(layers()), ids=lambda it: it if isinstance(it, str) else "")
def test_help_names_no_rust(name, layer):
    text = layer.__doc__
    assert text and "::" not in text and "The op `" not in text, text
    code = getattr(layer, "__wrapped__", layer).__code__
    if code.co_filename.startswith("<fleet layer"):
        for parameter in code.co_varnames[: code.co_argcount]:
            assert f"``{parameter}``: " in text, (parameter, text)


@pytest.mark.parametrize("kind", fleet.optimizer.Optimizer.__subclasses__())
def test_help_of_optimizers(kind):
    if kind.__module__ != "fleet.optimizer":
        return
    code = kind.__init__.__code__
    for text in (kind.__doc__, kind.__init__.__doc__):
        assert "::" not in text and "lr" in text
        for parameter in code.co_varnames[1 : code.co_argcount]:
            assert f"``{parameter}``: " in text, (parameter, text)
