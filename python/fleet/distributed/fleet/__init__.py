"""This process as a member of its job: ``from fleet.distributed import fleet``.

In collective jobs every worker trains on its part of each batch, and gradients are summed. In jobs
with parameter servers, servers hold the parameters, and workers send gradients to them.
"""

from fleet._absent import absent as _absent
from fleet._data_generator import MultiSlotDataGenerator, MultiSlotStringDataGenerator
from fleet._datasets import DatasetBase, InMemoryDataset, QueueDataset

from . import base, data_generator, metrics, role_maker, utils
from ._job import init
from ._optimizer import (
    DistributedOptimizer,
    amp_init,
    distributed_optimizer,
    get_loss_scaling,
    minimize,
    minimized as _minimized,
)
from ._servers import (
    barrier_worker,
    init_server,
    init_worker,
    is_first_worker,
    is_server,
    is_worker,
    load_model,
    load_one_table,
    node_num,
    resume,
    run_server,
    save_cache_model,
    save_inference_model,
    save_one_table,
    save_persistables,
    server_endpoints,
    server_index,
    server_num,
    shrink,
    stop_worker,
    whole_model,
    worker_endpoints,
    worker_index,
    worker_num,
)
from ._util import UtilBase, util
from .role_maker import PaddleCloudRoleMaker, Role, UserDefinedRoleMaker
from .strategy import DistributedStrategy

# `fleet.main_program` of scripts for 1.x.
_programs = {"main_program": _minimized, "startup_program": _minimized}
__getattr__ = _absent(__name__, made=_programs)
