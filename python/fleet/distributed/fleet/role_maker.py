"""Descriptions of this process: ``fleet.distributed.fleet.role_maker``."""


class PaddleCloudRoleMaker:
    """The process that the environment describes."""

    def __init__(self, is_collective=False):
        self._is_collective = is_collective


class UserDefinedRoleMaker:
    """The worker that the script describes: its rank, and the endpoints of all workers."""

    def __init__(self, is_collective=False, current_id=0, worker_endpoints=()):
        self._is_collective = is_collective
        self.current_id = current_id
        self.worker_endpoints = list(worker_endpoints)
