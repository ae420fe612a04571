"""Programs of `DistributeTranspiler`. Jobs of it are in `test_scripts.py`."""

import pytest

import fleet
from fleet import fluid, static


def network():
    x = static.data("x", [None, 1000])
    loss = fleet.mean(static.nn.fc(x, 64))
    fleet.optimizer.Momentum(0.1, 0.9).minimize(loss)


def test_programs_of_servers_and_trainers():
    network()
    config = fluid.DistributeTranspilerConfig()
    config.min_block_size = 8192
    t = fluid.DistributeTranspiler(config=config)
    pservers = "192.168.0.1:6174,192.168.0.2:6174"
    t.transpile(0, pservers=pservers, trainers=2, sync_mode=True)
    trainer = t.get_trainer_program()
    assert trainer.op_names.count("momentum") == 0 and "send" in trainer.op_names
    # The program is rewritten in place.
    assert static.default_main_program().op_names == trainer.op_names
    for endpoint in pservers.split(","):
        server, startup = t.get_pserver_programs(endpoint)
        assert "listen_and_serv" in server.op_names and "momentum" in server.to_string()
        assert "fc_0.w_0.block" in startup.to_string()


def test_wrong_calls(raises):
    config = fluid.DistributeTranspilerConfig()
    assert "slice_var_up: true" in repr(config)
    config.split_method = "HashName"
    assert config.split_method == "HashName" and "HashName" in repr(config)

    def assign(name, value):
        return lambda: setattr(config, name, value)

    raises(AttributeError, ["slice_var", "slice_var_up"], assign("slice_var", True))
    raises(TypeError, ["min_block_size", "integer"], assign("min_block_size", "many"))
    raises(TypeError, ["slice_var_up", "True or False"], assign("slice_var_up", "no"))
    raises(ValueError, ["'nccl'", "nccl2"], assign("mode", "nccl"))
    raises(ValueError, ["HashName"], assign("split_method", "Hash"))
    raises(AttributeError, ["print_log"], lambda: config.print_log)
    raises(TypeError, ["config"], lambda: fluid.DistributeTranspiler(config=3))
    raises(RuntimeError, ["transpile first"], fluid.DistributeTranspiler().get_trainer_program)

    network()
    before = static.default_main_program().to_string()
    t = fluid.DistributeTranspiler()
    raises(TypeError, ["trainers"], lambda: t.transpile(0, trainers=[1, 2]))
    raises(ValueError, ["number of trainers"], lambda: t.transpile(0, trainers="a:1,b:2"))
    raises(ValueError, ["pservers"], lambda: t.transpile(0, pservers="a:1,a:1"))
    assert static.default_main_program().to_string() == before
    config.mode = "nccl2"
    config.sync_mode = False
    with pytest.raises(ValueError):
        fluid.DistributeTranspiler(config).transpile(0, trainers="127.0.0.1:1")
    assert static.default_main_program().to_string() == before
    t.transpile(0, pservers="127.0.0.1:6174")
    raises(ValueError, ["127.0.0.1:9"], lambda: t.get_pserver_program("127.0.0.1:9"))
