"""Datasets: ``QueueDataset`` streams the records of files, ``InMemoryDataset`` loads them.

The parsing of files, the shuffles and the threads are in Rust.
"""

import os
import sys
import warnings

from fleet._absent import spelled as _spelled
from fleet import _fleet
from fleet._framework import Variable

_DEFAULTS = {
    "batch_size": 1,
    "thread_num": 1,
    "use_var": [],
    "pipe_command": "cat",
    "input_type": 0,
    "fs_name": "",
    "fs_ugi": "",
    "download_cmd": "cat",
    "queue_num": -1,
    "drop_last": False,
    "seed": 0,
}

#: Settings of an `InMemoryDataset` for jobs, with their defaults.
_DISTRIBUTED = {
    "merge_size": -1,
    "parse_ins_id": False,
    "parse_content": False,
    "fleet_send_batch_size": 1024,
    "fleet_send_sleep_seconds": 0,
    "fea_eval": False,
    "candidate_size": 10000,
}

#: Settings without an effect, and the reason.
_NO_EFFECT = {
    "queue_num": "each reader thread has a queue of its own",
    "fleet_send_batch_size": "workers exchange records in rounds of a fixed size",
    "fleet_send_sleep_seconds": "workers exchange records as fast as all of them can",
    "candidate_size": "slots_shuffle draws from all records",
}

#: Settings of which one value is supported, and the alternative.
_ONLY = {
    "input_type": "the lines of a file are samples: convert them with pipe_command",
    "fs_name": "set download_cmd, such as 'hadoop fs -cat'",
    "fs_ugi": "set download_cmd, such as 'hadoop fs -cat'",
    "merge_size": "merge the samples of an id in the program of pipe_command",
    "parse_content": "put the content into a slot of its own",
}

#: The settings that may change while records are in memory.
_CHANGEABLE = ("batch_size", "thread_num", "pipe_command", "download_cmd", "drop_last", "seed")


class DatasetBase:
    """Records of files, for `Executor.train_from_dataset`, or as an iterable of feed dicts."""

    _in_memory = False
    _known = _DEFAULTS

    def __init__(self):
        self._settings = dict(self._known)
        self._files = None
        self._cell = None

    def init(self, **kwargs):
        """Sets all settings; those that are not given get their defaults.

        * ``batch_size=1``: records of a batch. The last batch of a pass may be smaller.
        * ``thread_num=1``: threads that read files.
        * ``use_var=[]``: the inputs that records fill, in the order of the slots in a line. int64
          inputs take slots of ids, float32 inputs slots of floats. ``lod_level=1`` allows any
          number of values in a record.
        * ``pipe_command="cat"``: a shell command that gets a file on its standard input, and writes
          the lines of records, such as ``python my_generator.py``.
        * ``download_cmd="cat"``: a shell command that gets the name of a file as its last argument,
          and writes the content.
        * ``drop_last=False``: whether to drop a last batch that is smaller.
        * ``seed=0``: seed of the shuffles.
        * ``input_type=0``, ``fs_name=""``, ``fs_ugi=""``, ``queue_num=-1``: accepted with their
          defaults.
        """
        self._settings = dict(self._known)
        self._set(kwargs)

    def _set(self, changes):
        """Changes settings. Nothing changes if one is wrong."""
        for name, value in changes.items():
            _check(type(self).__name__, name, value, self._known)
        settings = {**self._settings, **changes}
        if "use_var" in changes:
            settings["use_var"] = list(settings["use_var"])
        kept = all(
            name in _CHANGEABLE or _same(settings[name], self._settings[name]) for name in settings
        )
        if kept and self._cell is not None:
            self._cell.update(_for_rust(settings))
            self._settings = settings
            return
        cell = self._made(settings) if settings["use_var"] else None
        self._settings, self._cell = settings, cell

    def _made(self, settings):
        program = settings["use_var"][0].program
        names = [var.name for var in settings["use_var"]]
        ids = bool(settings.get("parse_ins_id", False))
        cell = _fleet.DatasetCell.of_files(
            self._in_memory, program._cell, names, ids, _for_rust(settings)
        )
        if self._files is not None:
            cell.set_filelist(self._files)
        return cell

    def _held(self):
        if self._cell is None:
            raise RuntimeError(
                "the dataset has no inputs\n  help: call dataset.init(use_var=[..], ..) first"
            )
        return self._cell

    def set_filelist(self, filelist):
        """Sets the files to read. All of them must exist."""
        if isinstance(filelist, (str, bytes, os.PathLike)):
            raise TypeError(f"filelist: expected a list of files, got {filelist!r}")
        files = [os.fspath(path) for path in filelist]
        if self._cell is not None:
            self._cell.set_filelist(files)
        self._files = files

    def get_filelist(self):
        """Returns the files."""
        return list(self._files or [])

    def set_date(self, date):
        """Sets the date, such as "20210222", which replaces ``{date}`` in the names of files."""
        self._held().set_date(date)

    def __iter__(self) -> "Iterator[dict[str, Any]]":
        """Iterates over the batches of a pass, as feeds: dicts of arrays."""
        return self._held().batches()

    def _source(self):
        return self._held()

    # The spellings of the 1.x interface.

    def set_use_var(self, var_list):
        """Sets the inputs that records fill."""
        self._set({"use_var": var_list})

    def set_batch_size(self, batch_size):
        """Sets the records of a batch."""
        self._set({"batch_size": batch_size})

    def set_thread(self, thread_num):
        """Sets the number of threads that read files."""
        self._set({"thread_num": thread_num})

    def set_pipe_command(self, pipe_command):
        """Sets the shell command that converts files."""
        self._set({"pipe_command": pipe_command})

    def set_download_cmd(self, download_cmd):
        """Sets the shell command that downloads files."""
        self._set({"download_cmd": download_cmd})

    def set_hdfs_config(self, fs_name, fs_ugi):
        """Not supported: use ``download_cmd``."""
        self._set({"fs_name": fs_name, "fs_ugi": fs_ugi})

    def __repr__(self):
        name, settings = type(self).__name__, self._settings
        inputs = ", ".join(var.name for var in settings["use_var"])
        files = len(self._files or [])
        return f"{name}([{inputs}], {files} files, batch_size={settings['batch_size']})"


class QueueDataset(DatasetBase):
    """Streams the records of files, once in each pass."""


class InMemoryDataset(DatasetBase):
    """Loads the records of files into memory, where they can be shuffled."""

    _in_memory = True
    _known = {**_DEFAULTS, **_DISTRIBUTED}

    def __init__(self):
        super().__init__()
        self._preload_threads = None

    def init(self, **kwargs):
        for name in kwargs:
            if name in _DISTRIBUTED:
                raise TypeError(
                    f"init() got the setting '{name}' for jobs\n  "
                    "help: pass it to _init_distributed_settings"
                )
        kept = {name: self._settings[name] for name in _DISTRIBUTED}
        self._settings = {**self._known, **kept}
        self._set(kwargs)

    init.__doc__ = DatasetBase.init.__doc__

    def _init_distributed_settings(self, **kwargs):
        """Sets the settings for jobs: ``parse_ins_id=True`` reads an id in front of the slots of
        each record, by which `global_shuffle` distributes records."""
        for name in kwargs:
            if name not in _DISTRIBUTED:
                _unknown("_init_distributed_settings", name, _DISTRIBUTED)
        self._set({**_DISTRIBUTED, **kwargs})

    def update_settings(self, **kwargs):
        """Changes settings. Records in memory stay, unless the form of records changes."""
        self._set(kwargs)

    def load_into_memory(self, is_shuffle=False):
        """Reads all files."""
        self.preload_into_memory()
        self.wait_preload_done()
        if is_shuffle:
            self.local_shuffle()

    def preload_into_memory(self, thread_num=None):
        """Starts to read all files, and returns. The records in memory stay usable until
        `wait_preload_done`."""
        if thread_num is not None:
            self._set({"thread_num": thread_num})
        self._held().preload()

    def wait_preload_done(self):
        """Waits until all files have been read, and makes their records the current ones."""
        self._held().wait_preload_done()

    def local_shuffle(self):
        """Shuffles the records of this worker."""
        self._loaded().local_shuffle()

    def global_shuffle(self, fleet=None, thread_num=12):
        """Redistributes the records of all workers at random, or by their ids, and shuffles them.
        All workers must call it. Without a job it is a local shuffle."""
        self._loaded().global_shuffle(_job(fleet))

    def slots_shuffle(self, slots):
        """Shuffles the values of some slots among the records, each slot by itself."""
        if isinstance(slots, str):
            slots = [slots]
        self._loaded().slots_shuffle([s.name if isinstance(s, Variable) else s for s in slots])

    def release_memory(self):
        """Drops all records."""
        self._held().release_memory()

    def get_memory_data_size(self, fleet=None):
        """Returns the number of records in memory: of this worker, or of all workers of a job."""
        return self._held().data_size(False, _job(fleet))

    def get_shuffle_data_size(self, fleet=None):
        """Returns the number of records after a global shuffle, 0 before: of this worker, or of all
        workers of a job."""
        return self._held().data_size(True, _job(fleet))

    def _loaded(self):
        cell = self._held()
        if cell.batch_count() is None:
            raise ValueError(
                "no records in memory\n  help: call dataset.load_into_memory() first"
            )
        return cell

    # The spellings of the 1.x interface.

    def set_queue_num(self, queue_num):
        """Has no effect."""
        self._set({"queue_num": queue_num})

    def set_parse_ins_id(self, parse_ins_id):
        """Sets whether an id is in front of the slots of a record."""
        self._set({"parse_ins_id": parse_ins_id})

    def set_fea_eval(self, record_candidate_size, fea_eval=True):
        """Allows `slots_shuffle`, which is always allowed."""
        self._set({"candidate_size": record_candidate_size, "fea_eval": fea_eval})


class DatasetFactory:
    """Creates datasets by name: the 1.x interface."""

    def create_dataset(self, datafeed_class="QueueDataset"):
        """Returns a "QueueDataset" or an "InMemoryDataset"."""
        kinds = {"QueueDataset": QueueDataset, "InMemoryDataset": InMemoryDataset}
        if datafeed_class not in kinds:
            raise ValueError(
                f"datafeed_class: expected 'QueueDataset' or 'InMemoryDataset', "
                f"got {datafeed_class!r}"
            )
        return kinds[datafeed_class]()


def _job(fleet):
    """Returns the job of the module `fleet.distributed.fleet`, if it is given."""
    if fleet is None:
        return None
    from fleet.distributed.fleet._job import joined

    if not hasattr(fleet, "worker_num"):
        text = f"fleet: expected the module fleet.distributed.fleet, got {fleet!r}"
        raise TypeError(_spelled(text))
    return joined()


def _same(one, other):
    if isinstance(one, list):
        return len(one) == len(other) and all(a is b for a, b in zip(one, other))
    return one == other


def _check(dataset, name, value, known):
    if name not in known:
        _unknown(f"{dataset} settings", name, known)
    default = known[name]
    if name == "use_var":
        _check_inputs(value)
        return
    kinds = {bool: "True or False", int: "an integer", str: "a string"}
    kind = type(default)
    wrong = not isinstance(value, kind) or (kind is int and isinstance(value, bool))
    if wrong and not (name == "fleet_send_sleep_seconds" and isinstance(value, float)):
        raise TypeError(f"{name}: expected {kinds[kind]}, got {value!r}")
    if name in ("batch_size", "thread_num") and value < 1:
        raise ValueError(f"{name}: expected 1 or more, got {value}")
    if name == "seed" and not 0 <= value < 2**64:
        raise ValueError(f"seed: expected 0 to 2**64 - 1, got {value}")
    if name in _ONLY and value != default:
        raise NotImplementedError(
            f"{name}: only {default!r} is supported, got {value!r}\n  help: {_ONLY[name]}"
        )
    if name in _NO_EFFECT and value != default:
        warnings.warn(f"{name} has no effect: {_NO_EFFECT[name]}", UserWarning, stacklevel=4)


def _unknown(what, name, known):
    import difflib

    near = difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean '{near[0]}'?" if near else f": expected {', '.join(known)}"
    raise TypeError(f"{what}: unknown name '{name}'{hint}")


def _check_inputs(use_var):
    if isinstance(use_var, (str, Variable)) or not hasattr(use_var, "__iter__"):
        raise TypeError(f"use_var: expected a list of variables, got {use_var!r}")
    use_var = list(use_var)
    for var in use_var:
        if not isinstance(var, Variable):
            raise TypeError(f"use_var: expected variables, got {var!r}")
        if var.program is not use_var[0].program:
            raise ValueError(f"use_var: {var!r} belongs to another program than {use_var[0]!r}")


def _for_rust(settings):
    made = {name: settings[name] for name in _CHANGEABLE}
    made["pipe_command"] = with_interpreter(made["pipe_command"])
    return made


def with_interpreter(command):
    """Returns a shell command in which `python` at the start is this interpreter, if the search
    path has no `python`."""
    import shlex
    import shutil

    words = command.split(None, 1)
    if not words or words[0] not in ("python", "python3") or shutil.which(words[0]):
        return command
    return " ".join([shlex.quote(sys.executable), *words[1:]])
