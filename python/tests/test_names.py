"""The names that the documents use, and those of the interface that they describe."""

import importlib
import re

import pytest

import documents
import fleet
from fleet import compat

#: Modules, and the names in them.
NAMES = """
paddle: CPUPlace CUDAPlace ParamAttr add arange argmax assign batch cast concat divide enable_static
paddle: disable_static exp full full_like in_dynamic_mode is_compiled_with_cuda log matmul max mean
paddle: min multiply pow reshape scale seed shape split sqrt square squeeze stack subtract sum
paddle: get_device set_device transpose unsqueeze where core dataset distributed fluid io metric nn optimizer regularizer
paddle: static utils vision
paddle: __version__ device ones ones_like zeros zeros_like
paddle.device: get_device is_compiled_with_cuda set_device
paddle.core: EOFException
paddle.static: BuildStrategy CompiledProgram ExecutionStrategy Executor ParallelExecutor ParamAttr
paddle.static: Program Variable accuracy append_backward auc cpu_places create_global_var
paddle.static: create_parameter data default_main_program default_startup_program device_guard
paddle.static: global_scope gradients load_inference_model load_vars name_scope nn program_guard
paddle.static: save_inference_model save_vars scope_guard
paddle.static.Executor: close infer_from_dataset run train_from_dataset
paddle.static.Program: all_parameters clone global_block list_vars set_state_dict state_dict
paddle.static.nn: batch_norm cond conv2d embedding fc layer_norm pool2d sparse_embedding
paddle.nn: ClipGradByGlobalNorm ClipGradByNorm ClipGradByValue Conv2D Embedding Layer Linear ReLU
paddle.nn: Sequential functional initializer
paddle.nn.Layer: add_sublayer parameters set_state_dict state_dict sublayers
paddle.nn.functional: cross_entropy dropout l1_loss log_loss mse_loss relu sigmoid softmax
paddle.nn.functional: adaptive_avg_pool2d adaptive_max_pool2d avg_pool2d max_pool2d
paddle.nn.functional: square_error_cost
paddle.nn.initializer: Assign Constant KaimingNormal Normal TruncatedNormal Uniform XavierUniform
paddle.optimizer: Adagrad Adam AdamW Adamax Lamb Momentum RMSProp SGD lr
paddle.optimizer.lr: CosineAnnealingDecay ExponentialDecay InverseTimeDecay LambdaDecay LinearWarmup
paddle.optimizer.lr: NaturalExpDecay NoamDecay PiecewiseDecay PolynomialDecay StepDecay
paddle.regularizer: L1Decay L2Decay
paddle.metric: accuracy
paddle.io: DataLoader
paddle.io.DataLoader: from_generator
paddle.vision: set_image_backend
paddle.dataset.flowers: test train valid
paddle.dataset: cifar flowers imdb imikolov mnist uci_housing
paddle.utils: unique_name
paddle.utils.unique_name: generate guard
paddle.distributed: CountFilterEntry InMemoryDataset ProbabilityEntry QueueDataset ShowClickEntry
paddle.distributed: fleet get_rank get_world_size metrics
paddle.distributed.fleet: DistributedStrategy InMemoryDataset MultiSlotDataGenerator
paddle.distributed.fleet: MultiSlotStringDataGenerator PaddleCloudRoleMaker QueueDataset
paddle.distributed.fleet: UserDefinedRoleMaker barrier_worker data_generator distributed_optimizer
paddle.distributed.fleet: init init_server init_worker is_first_worker is_server is_worker
paddle.distributed.fleet: load_model metrics minimize run_server save_cache_model
paddle.distributed.fleet: save_inference_model save_persistables server_endpoints server_index
paddle.distributed.fleet: server_num shrink stop_worker util worker_endpoints worker_index
paddle.distributed.fleet: worker_num
paddle.distributed.fleet.MultiSlotDataGenerator: generate_batch generate_sample run_from_memory
paddle.distributed.fleet.MultiSlotDataGenerator: run_from_stdin set_batch
paddle.distributed.fleet.base.role_maker: PaddleCloudRoleMaker UserDefinedRoleMaker
paddle.distributed.fleet.metrics: acc auc mae max min mse rmse sum
paddle.distributed.fleet.util: all_gather all_reduce barrier get_file_shard print_on_rank
paddle.distributed.fleet.utils.ps_util: DistributedInfer
paddle.distributed.metrics: acc auc mae max min mse rmse sum
paddle.fluid: BuildStrategy CPUPlace CUDAPlace CompiledProgram DistributeTranspiler
paddle.fluid: DistributeTranspilerConfig ExecutionStrategy Executor ParallelExecutor ParamAttr
paddle.fluid: Program core default_main_program default_startup_program device_guard global_scope
paddle.fluid: io layers optimizer program_guard scope_guard
paddle.fluid.contrib: sparse_embedding
paddle.fluid.core: EOFException
paddle.common_ops_import.core: EOFException
paddle.fluid.incubate.data_generator: MultiSlotDataGenerator
paddle.fluid.incubate.fleet.collective: DistributedStrategy fleet
paddle.fluid.io: load_vars save_persistables save_vars
paddle.fluid.optimizer: LarsMomentumOptimizer MomentumOptimizer SGD
paddle.fluid: cuda_places one_hot
paddle.fluid.incubate.fleet.collective.fleet: distributed_optimizer
paddle.fluid.regularizer: L1DecayRegularizer L2DecayRegularizer
paddle.fluid.layers: cosine_decay exponential_decay expand inverse_time_decay linear_lr_warmup
paddle.fluid.layers: natural_exp_decay noam_decay one_hot piecewise_decay polynomial_decay pow
paddle.fluid.layers: fill_constant_batch_size_like ones zeros
paddle.static: cuda_places
paddle.fluid.layers: batch_norm conv2d elementwise_add embedding fc pool2d
fleetx: applications parse_train_configs utils
fleetx.applications: Resnet50 Word2vec
fleetx.utils: Downloader
plsc: Entry
"""

def names():
    for line in NAMES.strip().splitlines():
        module, _, listed = line.partition(": ")
        for name in listed.split():
            yield f"{module}.{name}"


@pytest.fixture
def installed():
    compat.install()
    yield
    compat.uninstall()


def resolved(name):
    """Imports the longest module of a dotted name, and returns the attribute that is left."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        except compat.UnsupportedModule:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise AssertionError(name)


@pytest.mark.parametrize("name", sorted(set(names())))
def test_a_documented_name(installed, name):
    assert resolved(name) is not None


#: What the listings call the modules.
SHORT = {
    "fleet": "paddle.distributed.fleet",
    "fluid": "paddle.fluid",
    "role_maker": "paddle.distributed.fleet.base.role_maker",
    "X": "fleetx",
}


@pytest.mark.skipif(documents.folder() is None, reason="the documents are not here")
def test_every_name_in_a_listing_is_listed(installed):
    known = set(names()) | {name.rpartition(".")[0] for name in names()}
    known |= {compat.target(name) or name for name in known}
    roots = "|".join(["paddle", *SHORT])
    missing = {}
    for document in ["000", "001", "002", "003", "004"]:
        for key, listing in documents.listings(document).items():
            if document == "002" and not documents.is_python(listing):
                continue
            code = re.sub(r"#.*|'[^'\n]*'|\"[^\"\n]*\"", "", listing.text)
            for found in re.findall(rf"(?<![\w.])(?:{roots})(?:\.\w+)+", code):
                root, _, rest = found.partition(".")
                name = f"{SHORT.get(root, root)}.{rest}"
                if not known & {name, compat.target(name)}:
                    missing[name] = key
    assert not missing


#: Names that scripts use and the package lacks, with a part of the alternative; and typing errors,
#: with the name that is meant.
ABSENT = {
    "paddle.distributed.fleet.is_heter_worker": "fleetrun --server_num=1",
    "paddle.distributed.fleet.init_heter_worker": "servers and workers",
    "paddle.distributed.fleet.run_heter_worker": "servers and workers",
    "paddle.rand": "np.random.rand",
    "paddle.Tensor": "paddle.static.Variable",
    "paddle.metric.Accuracy": "paddle.metric.accuracy",
    "paddle.fluid.layers.Print": "exe.run(fetch_list",
    "paddle.fluid.layers.sequence_pool": "pad the rows",
    "paddle.fluid.create_lod_tensor": "lod_level=1",
    "paddle.fluid.clip.set_gradient_clip": "grad_clip=",
    "paddle.nn.functional.binary_cross_entropy": "log_loss",
    "paddle.nn.functional.sigmod": "did you mean 'sigmoid'?",
    "paddle.optimizer.Adamm": "did you mean 'Adam'?",
    "paddle.static.Executer": "did you mean 'Executor'?",
    "paddle.fluid.optimizer.SGDOptimiser": "did you mean 'SGDOptimizer'?",
    "paddle.distributed.fleet.stop_workers": "did you mean 'stop_worker'?",
}


@pytest.mark.parametrize("name", ABSENT)
def test_a_missing_name_has_an_alternative(installed, name):
    with pytest.raises(AttributeError) as caught:
        resolved(name)
    assert ABSENT[name] in str(caught.value)


@pytest.mark.parametrize("name", ABSENT)
def test_an_import_of_a_missing_name_has_the_alternative(installed, name):
    module, _, last = name.rpartition(".")
    with pytest.raises(ImportError) as caught:
        exec(f"from {module} import {last}")
    assert ABSENT[name] in str(caught.value)


def test_imports_of_missing_names_without_paddle():
    for line, part in [
        ("from fleet.fluid.layers import Print", "exe.run(fetch_list"),
        ("from fleet import to_tensor", "fleet.full"),
        ("from fleet.nn import (functional, LSTM)", "fleet.static.nn"),
        ("from fleet.static import Executer", "did you mean 'Executor'?"),
    ]:
        with pytest.raises(ImportError) as caught:
            exec(line)
        assert part in str(caught.value)
        is_known = "did you mean" not in part
        assert isinstance(caught.value, NotImplementedError) == is_known
    assert not hasattr(fleet.fluid.layers, "Print")


MODULES = """
fleet distributed distributed.fleet distributed.fleet.metrics fluid fluid.clip fluid.initializer
fluid.io fluid.layers fluid.optimizer io metric nn nn.functional nn.initializer onnx optimizer
optimizer.lr reader regularizer static static.nn utils vision device
"""


@pytest.mark.parametrize("name", MODULES.split())
def test_a_module_names_the_nearest_name(name):
    module = importlib.import_module(name if name == "fleet" else f"fleet.{name}")
    public = [known for known in vars(module) if not known.startswith("_")]
    longest = max(public, key=len)
    with pytest.raises(AttributeError, match=f"did you mean '{longest}'"):
        getattr(module, longest + "q")
