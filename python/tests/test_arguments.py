"""Wrong arguments fail where they are given; objects show what they were made of."""

import copy

import pytest

import fleet
from fleet import fluid, nn, optimizer, static


def test_places_and_devices(raises):
    for place in [5, "gpu:7", [fleet.CPUPlace()]]:
        raises(TypeError, ["place", "CPUPlace()", "set_device"], lambda: static.Executor(place))
    static.Executor(fleet.set_device("cpu")).close()

    def guarded(device):
        with static.device_guard(device):
            pass

    raises(TypeError, ["device", "5"], lambda: guarded(5))
    for device in ["gpu:x", "GPU", "", "gpu:", "cpu:0"]:
        raises(ValueError, ["device", "'gpu:N'"], lambda: guarded(device))
    for device in [None, "cpu", "gpu", "gpu:12", "gpu:all"]:
        guarded(device)


def test_optimizers_check_their_settings(raises):
    raises(TypeError, ["learning_rate", "'a'"], lambda: optimizer.SGD("a"))
    raises(ValueError, ["learning rate", "NaN"], lambda: optimizer.SGD(float("nan")))
    raises(ValueError, ["learning rate", "-1"], lambda: optimizer.Adam(-1.0))
    raises(ValueError, ["beta1", "nan"], lambda: optimizer.Adam(beta1=float("nan")))
    raises(TypeError, ["beta1", "'x'"], lambda: optimizer.Adam(beta1="x"))
    raises(TypeError, ["parameters", "got 1"], lambda: optimizer.Adam(parameters=[1, 2]))
    raises(TypeError, ["parameters", "'w'"], lambda: optimizer.Adam(parameters="w"))
    raises(TypeError, ["grad_clip", "'x'"], lambda: optimizer.Adam(grad_clip="x"))
    raises(TypeError, ["regularizer", "'x'"], lambda: optimizer.SGD(0.1, weight_decay="x"))
    old = fluid.optimizer.SGDOptimizer
    raises(TypeError, ["parameters", "got 3"], lambda: old(0.1, parameter_list=[3]))


def test_fused_all_reduces_of_a_build_strategy(raises):
    from fleet.distributed.fleet import DistributedStrategy

    build = fluid.BuildStrategy()
    assert build.fuse_all_reduce_ops is True
    for value in [True, False]:
        build.fuse_all_reduce_ops = value
        build.enable_inplace = True
        static.CompiledProgram(static.Program(), build)
        strategy = DistributedStrategy()
        strategy.build_strategy = build
        assert strategy.fuse_all_reduce_ops is value
    plain = DistributedStrategy()
    plain.fuse_all_reduce_ops = False
    plain.build_strategy = fluid.BuildStrategy()
    assert plain.fuse_all_reduce_ops is False
    raises(TypeError, ["True or False"], lambda: setattr(build, "fuse_all_reduce_ops", "yes"))
    threads = fluid.ExecutionStrategy()
    raises(
        AttributeError,
        ["'num_thread'", "did you mean 'num_threads'"],
        lambda: setattr(threads, "num_thread", 2),
    )
    raises(AttributeError, ["'nothing'"], lambda: setattr(build, "nothing", True))
    raises(ValueError, ["num_threads", "32-bit"], lambda: setattr(threads, "num_threads", "a"))


def test_objects_show_their_settings():
    assert repr(static.Executor(threads=2)) == "Executor(CPUPlace(), threads=2)"
    clip = nn.ClipGradByGlobalNorm(1.5)
    assert repr(clip) == "ClipGradByGlobalNorm(1.5)"
    assert repr(nn.ClipGradByValue(2.0)) == "ClipGradByValue(max=2.0, min=-2.0)"
    w = static.create_parameter([2], "float32", name="w")
    made = optimizer.Momentum(0.1, parameters=[w], weight_decay=1e-4, grad_clip=clip)
    assert repr(made) == (
        "Momentum(learning_rate=0.1, momentum=0.9, use_nesterov=False, parameters=['w'], "
        "weight_decay=0.0001, grad_clip=ClipGradByGlobalNorm(1.5))"
    )
    decay = fleet.regularizer.L2Decay(0.5)
    assert "weight_decay=L2Decay(0.5)" in repr(optimizer.SGD(0.1, weight_decay=decay))


def test_programs_list_their_ops_and_are_copied():
    static.nn.fc(static.data("x", [None, 3]), 2)
    main = static.default_main_program()
    ops = main.global_block().ops
    assert [op.type for op in ops] == ["mul", "elementwise_add"]
    assert ops[0].input_arg_names == ["x", "fc_0.w_0"]
    assert ops[0].output_arg_names == ops[1].input_arg_names[:1] == ["fc_0.tmp_0"]
    assert repr(ops[0]) == "Operator(fc_0.tmp_0 = mul(x, fc_0.w_0))"
    for made in [copy.deepcopy(main), copy.copy(main)]:
        assert str(made) == str(main)
        with static.program_guard(made):
            static.nn.fc(made.var("x"), 2)
        assert len(main.ops) == 2 and len(made.ops) == 4


@pytest.mark.parametrize("kind", ["BuildStrategy", "ExecutionStrategy"])
def test_fields_of_settings_have_suggestions(raises, kind):
    raises(AttributeError, ["has no field"], lambda: setattr(getattr(static, kind)(), "x", 1))
