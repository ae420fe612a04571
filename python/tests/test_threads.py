"""Guards of one thread do not change what other threads write."""

import sys
import threading

import numpy as np

import fleet
from fleet import static
from fleet.utils import unique_name


def in_threads(*calls):
    """Runs calls in threads of their own, which all meet at each `meet()`."""
    barrier = threading.Barrier(len(calls), timeout=60)
    failed = []

    def run(call):
        try:
            call(barrier.wait)
        except BaseException as error:
            failed.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def test_guards_of_two_threads():
    mains = [static.Program(), static.Program()]
    scopes = [static.Scope(), static.Scope()]
    here = static.default_main_program(), static.global_scope()

    def call(index, meet):
        meet()
        # They enter in one order and leave in the other.
        if index == 1:
            meet()
        with static.program_guard(mains[index], static.Program()):
            with static.scope_guard(scopes[index]), unique_name.guard():
                with static.name_scope(f"n{index}"), static.device_guard(f"gpu:{index}"):
                    if index == 0:
                        meet()
                    meet()
                    assert static.default_main_program() is mains[index]
                    assert static.global_scope() is scopes[index]
                    y = static.nn.fc(static.data(f"x{index}", [None, 4]), 2)
                    assert y.name == f"n{index}/fc_0.tmp_1"
                    if index == 1:
                        meet()
        if index == 0:
            meet()
        meet()
        assert static.default_main_program() not in mains
        assert static.global_scope() not in scopes

    in_threads(lambda meet: call(0, meet), lambda meet: call(1, meet))
    assert [main.op_names for main in mains] == [["mul", "elementwise_add"]] * 2
    assert ["gpu:1" in str(main) for main in mains] == [False, True]
    assert (static.default_main_program(), static.global_scope()) == here


def test_a_thread_starts_with_the_programs_of_the_process():
    seen = []

    def call(meet):
        seen.append((static.default_main_program(), static.default_startup_program()))
        seen.append(static.global_scope())

    guarded = static.default_main_program()
    in_threads(call)
    in_threads(call)
    assert seen[:2] == seen[2:]
    assert seen[0][0] is not guarded


def test_threads_share_the_counters_of_names():
    """Calls of two threads wait for each other, also if Python switches threads in them."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    mains = [static.Program(), static.Program()]

    def call(index, meet):
        with static.program_guard(mains[index], static.Program()):
            x = static.data("x", [None, 4])
            meet()
            for _ in range(300):
                x = x + 1.0

    try:
        in_threads(lambda meet: call(0, meet), lambda meet: call(1, meet))
    finally:
        sys.setswitchinterval(interval)
    names = [[var.name for var in main.list_vars() if var.name != "x"] for main in mains]
    assert [len(of) for of in names] == [300, 300]
    assert not set(names[0]) & set(names[1])


def test_training_in_two_threads():
    losses = [None, None]

    def call(index, meet):
        main, startup = static.Program(), static.Program()
        with static.program_guard(main, startup), static.scope_guard(static.Scope()):
            with unique_name.guard():
                x = static.data("x", [None, 4])
                loss = fleet.mean(fleet.square(static.nn.fc(x, 1) - 1.0 - index))
                main.random_seed = startup.random_seed = 1
                fleet.optimizer.SGD(0.1).minimize(loss)
            exe = static.Executor(threads=1)
            exe.run(startup)
            feed = {"x": np.ones((2, 4), "float32")}
            meet()
            losses[index] = [exe.run(feed=feed, fetch_list=[loss])[0].item() for _ in range(3)]

    in_threads(lambda meet: call(0, meet), lambda meet: call(1, meet))
    assert all(of[-1] < of[0] for of in losses) and losses[0] != losses[1]


def test_large_variables_are_copied_beside_each_other():
    """Copies of large variables release the interpreter's lock, and calls wait for them."""
    scope, count = static.Scope(), 1 << 20
    with static.program_guard(static.Program(), static.Program()):
        static.create_global_var([count], 3.0, "float32", persistable=True, name="large")
        static.create_global_var([1], 1.0, "float32", persistable=True, name="small")
        static.Executor(threads=1).run(static.default_startup_program(), scope=scope)

    def read(meet):
        meet()
        for _ in range(30):
            assert scope["large"][-1] == 3.0 and scope["small"] == 1.0

    def write(meet):
        meet()
        for _ in range(30):
            scope["large"] = np.full(count, 3.0, "float32")

    in_threads(read, read, write)
