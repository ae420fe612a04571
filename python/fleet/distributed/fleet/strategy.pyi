from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path


class DistributedStrategy:
    a_sync: bool
    a_sync_configs: Any
    adam_d2sum: bool
    adaptive_localsgd: bool
    adaptive_localsgd_configs: Any
    amp: bool
    amp_configs: Any
    asp: bool
    auto: bool
    auto_search: bool
    build_strategy: Any
    calc_comm_same_stream: bool
    conv_workspace_size_limit: int
    cudnn_batchnorm_spatial_persistent: bool
    cudnn_exhaustive_search: bool
    dgc: bool
    dgc_configs: Any
    downpour_table_param: Any
    elastic: bool
    execution_strategy: Any
    find_unused_parameters: bool
    fp16_allreduce: bool
    fp16_allreduce_dtype: str
    fs_client_param: Any
    fuse_all_reduce_ops: bool
    fuse_grad_merge: bool
    fuse_grad_size_in_MB: int
    fuse_grad_size_in_TFLOPS: float
    fuse_grad_size_in_num: int
    gradient_merge: bool
    gradient_merge_configs: Any
    gradient_scale_configs: Any
    heter_ccl_mode: bool
    hierarchical_allreduce_inter_nranks: int
    hybrid_configs: Any
    is_fl_ps_mode: bool
    lamb: bool
    lamb_configs: Any
    lars: bool
    lars_configs: Any
    last_comm_group_size_MB: float
    localsgd: bool
    localsgd_configs: Any
    mode: str
    nccl_comm_num: int
    pipeline: bool
    pipeline_configs: Any
    qat: bool
    qat_configs: Any
    recompute: bool
    recompute_configs: Any
    semi_auto: bool
    sharding: bool
    sharding_configs: Any
    split_data: bool
    sync_batch_norm: bool
    sync_nccl_allreduce: bool
    tensor_parallel: bool
    tensor_parallel_configs: Any
    trainer_desc_configs: Any
    use_hierarchical_allreduce: bool
    with_coordinator: bool
    without_graph_optimization: bool
    def __init__(self) -> None: ...
    def save_to_prototxt(self, output: Any) -> None: ...
    def load_from_prototxt(self, pb_file: Path) -> None: ...
