"""Scripts that are written for Paddle: ``import paddle`` is the package ``fleet``.

::

    import fleet.compat

    fleet.compat.install()
    import paddle

``python -m fleet.compat script.py`` and ``fleetrun --compat=paddle script.py`` run a script that is
not changed. A module of Paddle is the same object as the module of this package, so both names may
be used in one program; ``paddle`` itself has the attributes of ``fleet``, and the version of
Paddle. An installed Paddle is hidden only by these calls.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types

import numpy as np

import fleet as _package
from fleet import _executor
from fleet._absent import UnsupportedModule, advice, nearest, set_root, spelled

#: Names of modules, and the modules that they stand for. The longest name that fits applies, also
#: to the modules below it.
NAMES = {
    "paddle": "fleet",
    "paddle.base": "fleet.fluid",
    "paddle.common_ops_import": "fleet.fluid",
    "paddle.distributed.metrics": "fleet.distributed.fleet.metrics",
    "paddle.fleet": "fleet.distributed.fleet",
    "paddle.fluid.core": "fleet.core",
    "paddle.fluid.incubate.data_generator": "fleet.distributed.fleet.data_generator",
    "paddle.fluid.incubate.fleet.base": "fleet.distributed.fleet.base",
    "paddle.fluid.metrics": "fleet.metric",
    "paddle.fluid.param_attr": "fleet.fluid",
    "paddle.fluid.regularizer": "fleet.regularizer",
    "paddle.fluid.unique_name": "fleet.utils.unique_name",
    "paddle.incubate": "fleet.fluid.incubate",
    "fleetx": "fleet.compat.fleetx",
    "plsc": "fleet.compat.plsc",
}

#: `paddle.__version__`: the version of Paddle whose interface this is. Scripts compare it as text,
#: as a version, and as three numbers between dots, so it has no suffix.
VERSION = "2.0.0"

def target(name):
    """Returns the module that a name of Paddle stands for, or None for other names."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        found = NAMES.get(".".join(parts[:count]))
        if found is not None:
            return ".".join([found, *parts[count:]])
    return None


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of `NAMES`, and tells the alternatives of names that are not supported."""

    def find_spec(self, fullname, path=None, target_module=None):
        if fullname.partition(".")[0] == "fleet":
            # `from paddle import DataParallel` asks for a module of this name when the package has
            # no such attribute.
            module, _, name = fullname.rpartition(".")
            known = advice(module, name)
            if known is not None:
                raise _unsupported(fullname, f"{module} does not support {name}", known)
            return None
        meant = target(fullname)
        if meant is None:
            return None
        try:
            own = importlib.util.find_spec(meant)
        except ModuleNotFoundError:
            own = None
        if own is None:
            text = f"Fleet has no module for {fullname}"
            parent, _, name = meant.rpartition(".")
            text += nearest(name, parent)
            raise _unsupported(fullname, text, "docs/python.md lists the modules")
        is_package = own.submodule_search_locations is not None
        return importlib.machinery.ModuleSpec(fullname, _Loader(own), is_package=is_package)


class _Paddle(types.ModuleType):
    """The module `paddle`: the attributes of the package, and the version of Paddle."""

    __version__ = VERSION

    def __init__(self, name):
        super().__init__(name, _package.__doc__)

    def __getattr__(self, name):
        if name == "__all__":
            # For `from paddle import *`.
            return [name for name in vars(_package) if not name.startswith("_")]
        return getattr(_package, name)

    def __setattr__(self, name, value):
        is_own = name.startswith("__") and name.endswith("__")
        super().__setattr__(name, value) if is_own else setattr(_package, name, value)

    def __delattr__(self, name):
        delattr(_package, name)

    def __dir__(self):
        return dir(_package)


class _Loader(importlib.abc.InspectLoader):
    """Loads a name of Paddle: the module itself, not a copy."""

    def __init__(self, own):
        self._own = own

    def create_module(self, spec):
        if spec.name == "paddle":
            return _Paddle(spec.name)
        return importlib.import_module(self._own.name)

    def exec_module(self, module):
        if not isinstance(module, _Paddle):
            # The module has run under its own name, which it keeps.
            module.__spec__ = self._own

    def get_code(self, fullname):
        """Returns the code of the module, for ``python -m paddle.distributed.launch``."""
        return self._own.loader.get_code(self._own.name)

    def get_source(self, fullname):
        """Returns the text of the module."""
        return self._own.loader.get_source(self._own.name)


def _unsupported(name, text, advice):
    return UnsupportedModule(spelled(f"{text}\n  help: {advice}"), name=name)


class _Number(np.ndarray):
    """An array of one element that is a number too: ``"%.5f" % loss``. Newer NumPy converts
    arrays without dimensions only; the loss of a batch has one."""

    def __float__(self):
        return float(self.item())

    def __int__(self):
        return int(self.item())

    def __repr__(self):
        return repr(self.view(np.ndarray))


def _fetched(array):
    return array.view(_Number) if array.size == 1 and array.ndim else array


_finder = _Finder()


def path():
    """Returns the folder that lets other processes import `paddle`, if it is in `PYTHONPATH`."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "path")


def install():
    """Makes `import paddle`, `fleetx`, `plsc` and their modules resolve to this package. Fetched arrays of
    one element are numbers from then on, as scripts expect."""
    if _finder in sys.meta_path:
        return
    for name in _imported():
        raise RuntimeError(
            f"'{name}' is imported already\n  help: call fleet.compat.install() before the import"
        )
    sys.meta_path.insert(0, _finder)
    set_root("paddle")
    _executor.convert_fetched = _fetched


def uninstall():
    """Ends what `install` began. Modules that are imported already stay what they are."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
        set_root("fleet")
        _executor.convert_fetched = None
        for name in _imported():
            del sys.modules[name]


def _imported():
    roots = {name.partition(".")[0] for name in NAMES}
    return [name for name in sys.modules if name.partition(".")[0] in roots]
