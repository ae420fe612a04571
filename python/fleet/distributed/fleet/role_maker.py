"""Descriptions of this process: ``fleet.distributed.fleet.role_maker``."""

from fleet import _fleet


class Role:
    """Roles of processes, by their documented numbers."""

    WORKER = 1
    SERVER = 2
    HETER_WORKER = 3
    ALL = 4
    COORDINATOR = 5


class _RoleMaker:
    """The place of a process in its job. It is read on first use."""

    _cell = None

    def _topology(self):
        if self._cell is None:
            self._cell = self._read()
        return self._cell

    def _is_worker(self):
        """Returns whether this process is a worker."""
        return self._topology().role == Role.WORKER

    def _is_server(self):
        """Returns whether this process is a parameter server."""
        return self._topology().role == Role.SERVER

    def _is_heter_worker(self):
        """Returns whether this process is a worker with another kind of device."""
        return self._topology().role == Role.HETER_WORKER

    def _is_coordinator(self):
        """Returns whether this process is a coordinator."""
        return self._topology().role == Role.COORDINATOR

    def _is_first_worker(self):
        """Returns whether this is worker 0."""
        return self._topology().is_first_worker

    def _is_non_distributed(self):
        """Returns whether no launcher started this process: it is worker 0 of 1."""
        return self._topology().is_non_distributed

    def _worker_index(self):
        """Returns the rank of a worker."""
        return self._topology().rank

    def _server_index(self):
        """Returns the rank of a server."""
        return self._topology().rank

    def _role_id(self):
        """Returns the rank within the role."""
        return self._topology().rank

    def _worker_num(self):
        """Returns the number of workers."""
        return self._topology().worker_num

    def _server_num(self):
        """Returns the number of servers."""
        return self._topology().server_num

    def _node_num(self):
        """Returns the number of machines that run workers."""
        return self._topology().node_num

    def _get_trainer_endpoints(self):
        """Returns the endpoints of the workers."""
        return self._topology().worker_endpoints

    def _get_pserver_endpoints(self):
        """Returns the endpoints of the servers."""
        return self._topology().server_endpoints

    is_worker = _is_worker
    is_server = _is_server
    is_first_worker = _is_first_worker
    worker_index = _worker_index
    server_index = _server_index
    worker_num = _worker_num
    server_num = _server_num
    get_trainer_endpoints = _get_trainer_endpoints
    get_pserver_endpoints = _get_pserver_endpoints


class PaddleCloudRoleMaker(_RoleMaker):
    """The process that the environment describes. Without a launcher it is worker 0 of 1."""

    def __init__(self, is_collective=False):
        self._is_collective = is_collective

    def _read(self):
        return _fleet.TopologyCell.from_env(self._is_collective)


class UserDefinedRoleMaker(_RoleMaker):
    """The process that the script describes: its role, its rank, and all endpoints.

    ``worker_num`` replaces ``worker_endpoints`` in a job with servers. The workers connect to each
    other on first use, with and without ``init_gloo``. Processes of a job share a secret: set
    ``FLEET_TOKEN``, or ``FLEET_OPEN=loopback`` for a job on one machine.
    """

    def __init__(
        self,
        is_collective=False,
        init_gloo=False,
        *,
        current_id=0,
        role=Role.WORKER,
        worker_num=None,
        worker_endpoints=(),
        server_endpoints=(),
    ):
        self._is_collective = is_collective
        self._described = (
            is_collective,
            _count("current_id", current_id),
            _count("role", role),
            None if worker_num is None else _count("worker_num", worker_num),
            _endpoints("worker_endpoints", worker_endpoints),
            _endpoints("server_endpoints", server_endpoints),
        )

    def _read(self):
        return _fleet.TopologyCell.described(*self._described)


def _count(name, value):
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}: expected an integer, got {value!r}")
    if value < 0:
        raise ValueError(f"{name}: expected 0 or more, got {value}")
    return value


def _endpoints(name, given):
    given = given.split(",") if isinstance(given, str) else list(given)
    for item in given:
        if not isinstance(item, str):
            raise TypeError(f"{name}: expected endpoints such as '10.0.0.1:6170', got {item!r}")
    return given
