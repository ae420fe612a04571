"""Communication between processes outside of programs, and file systems: ``fleet.util``."""

from fleet import _fleet
from fleet import _numpy as np

from ._job import joined
from .role_maker import Role


#: Integers below this are exact in float64, as which numbers travel between processes.
EXACT_MAX = 2**53


def as_floats(call, array):
    """Returns the numbers of an array for a call of Rust, or raises an error if one is not exact."""
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{call}: expected numbers, got {array.dtype}")
    if array.dtype.kind in "iu":
        _check_exact(call, array, "got")
    return array.astype("float64").ravel().tolist()


def as_type(call, numbers, array):
    """Returns numbers of Rust in the shape and type of an array."""
    made = np.array(numbers, dtype="float64").reshape(array.shape)
    if array.dtype.kind in "iu":
        _check_exact(call, made, "the result is")
        limits = np.iinfo(array.dtype)
        if made.size and not limits.min <= made.min() <= made.max() <= limits.max:
            wrong = made.max() if made.max() > limits.max else made.min()
            raise ValueError(f"{call}: the result is too large for {array.dtype}: {int(wrong)}")
    return made.astype(array.dtype)


def _check_exact(call, array, got):
    wrong = [number for number in array.ravel().tolist() if not -EXACT_MAX < number < EXACT_MAX]
    if wrong:
        raise ValueError(
            f"{call}: expected integers below 2**53, {got} {int(wrong[0])}\n  "
            "help: send larger ones in two parts: divmod(number, 2**32)"
        )


class UtilBase:
    """Communication outside of programs. All members of ``comm_world`` must make the same calls:
    "worker" are all workers, "server" all servers, and "all" both. Groups with servers need
    ``fleetrun --with_gloo 2``, and servers take part before ``fleet.run_server``."""

    def all_reduce(self, input, mode="sum", comm_world="worker"):
        """Reduces numbers of all members element by element: "sum", "max" or "min"."""
        array = np.asarray(input)
        reduced = joined().all_reduce(as_floats("all_reduce", array), mode, comm_world)
        return as_type("all_reduce", reduced, array)

    def all_gather(self, input, comm_world="worker"):
        """Returns the numbers of all members, in order of rank."""
        array = np.asarray(input)
        gathered = joined().all_gather(as_floats("all_gather", array), comm_world)
        arrays = [as_type("all_gather", each, array) for each in gathered]
        return arrays if isinstance(input, np.ndarray) else [each.tolist() for each in arrays]

    def barrier(self, comm_world="worker"):
        """Waits until all members have called it."""
        joined().barrier(comm_world)

    def get_file_shard(self, files):
        """Returns this worker's part of a list of files."""
        if not isinstance(files, list):
            raise TypeError("files should be a list of file need to be read.")
        return joined().file_shard(files)

    def print_on_rank(self, message, rank_id):
        """Prints on one worker."""
        place = joined().topology()
        if place.role == Role.WORKER and place.rank == rank_id:
            print(message, flush=True)

    def get_fs(self):
        """Returns the file system of the job: HDFS if ``PADDLE_GLOO_FS_NAME`` names one, else that
        of this machine."""
        return FileSystem(_fleet.FsCell.of_job(joined()))


class FileSystem:
    """Files and folders by name."""

    def __init__(self, cell):
        self._cell = cell

    def ls_dir(self, fs_path):
        """Returns the names of the folders and of the files in a folder."""
        return self._cell.ls(fs_path)

    def list_dirs(self, fs_path):
        """Returns the names of the folders in a folder."""
        return self._cell.ls(fs_path)[0]

    def is_exist(self, fs_path):
        """Returns whether a file or a folder exists."""
        return self._cell.exists(fs_path)

    def is_dir(self, fs_path):
        """Returns whether the path is a folder."""
        return self._cell.is_folder(fs_path) is True

    def is_file(self, fs_path):
        """Returns whether the path is a file."""
        return self._cell.is_folder(fs_path) is False

    def mkdirs(self, fs_path):
        """Creates a folder and those above it."""
        self._cell.mkdirs(fs_path)

    def delete(self, fs_path):
        """Removes a file, or a folder with all in it."""
        self._cell.delete(fs_path)

    def mv(self, fs_src_path, fs_dst_path):
        """Renames a file or a folder."""
        self._cell.mv(fs_src_path, fs_dst_path)

    rename = mv

    def upload(self, local_path, fs_path):
        """Copies a local file or folder into a folder."""
        self._cell.upload(local_path, fs_path)

    def download(self, fs_path, local_path):
        """Copies a file or folder into a local folder."""
        self._cell.download(fs_path, local_path)


util = UtilBase()
