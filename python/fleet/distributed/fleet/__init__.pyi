from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet._data_generator import MultiSlotDataGenerator as MultiSlotDataGenerator
from fleet._data_generator import MultiSlotStringDataGenerator as MultiSlotStringDataGenerator
from fleet._datasets import DatasetBase as DatasetBase
from fleet._datasets import InMemoryDataset as InMemoryDataset
from fleet._datasets import QueueDataset as QueueDataset
from fleet.distributed.fleet import base as base
from fleet.distributed.fleet import data_generator as data_generator
from fleet.distributed.fleet import metrics as metrics
from fleet.distributed.fleet import role_maker as role_maker
from fleet.distributed.fleet import strategy as strategy
from fleet.distributed.fleet import utils as utils
from fleet.distributed.fleet._job import init as init
from fleet.distributed.fleet._optimizer import DistributedOptimizer as DistributedOptimizer
from fleet.distributed.fleet._optimizer import amp_init as amp_init
from fleet.distributed.fleet._optimizer import distributed_optimizer as distributed_optimizer
from fleet.distributed.fleet._optimizer import get_loss_scaling as get_loss_scaling
from fleet.distributed.fleet._optimizer import minimize as minimize
from fleet.distributed.fleet._servers import barrier_worker as barrier_worker
from fleet.distributed.fleet._servers import init_server as init_server
from fleet.distributed.fleet._servers import init_worker as init_worker
from fleet.distributed.fleet._servers import is_first_worker as is_first_worker
from fleet.distributed.fleet._servers import is_server as is_server
from fleet.distributed.fleet._servers import is_worker as is_worker
from fleet.distributed.fleet._servers import load_model as load_model
from fleet.distributed.fleet._servers import load_one_table as load_one_table
from fleet.distributed.fleet._servers import node_num as node_num
from fleet.distributed.fleet._servers import resume as resume
from fleet.distributed.fleet._servers import run_server as run_server
from fleet.distributed.fleet._servers import save_cache_model as save_cache_model
from fleet.distributed.fleet._servers import save_inference_model as save_inference_model
from fleet.distributed.fleet._servers import save_one_table as save_one_table
from fleet.distributed.fleet._servers import save_persistables as save_persistables
from fleet.distributed.fleet._servers import server_endpoints as server_endpoints
from fleet.distributed.fleet._servers import server_index as server_index
from fleet.distributed.fleet._servers import server_num as server_num
from fleet.distributed.fleet._servers import shrink as shrink
from fleet.distributed.fleet._servers import stop_worker as stop_worker
from fleet.distributed.fleet._servers import whole_model as whole_model
from fleet.distributed.fleet._servers import worker_endpoints as worker_endpoints
from fleet.distributed.fleet._servers import worker_index as worker_index
from fleet.distributed.fleet._servers import worker_num as worker_num
from fleet.distributed.fleet._util import UtilBase as UtilBase
from fleet.distributed.fleet.role_maker import PaddleCloudRoleMaker as PaddleCloudRoleMaker
from fleet.distributed.fleet.role_maker import Role as Role
from fleet.distributed.fleet.role_maker import UserDefinedRoleMaker as UserDefinedRoleMaker
from fleet.distributed.fleet.strategy import DistributedStrategy as DistributedStrategy

util: UtilBase
