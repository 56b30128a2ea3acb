"""Trust in the names of a pickle: parts of tensors and plain values, unknown classes, and names that run code.

A pickle names functions and calls them while it is loaded. The names that `torch.save` writes are known, and so are the
types of values in configs, trainer settings and random-number states. Everything else in Python's standard library is
refused, because the library has too many ways to run a program to list them all. In packages that are common in
training environments, functions are refused unless they are listed here, and classes are refused only if they are known
to run code.

Source:
    `torch/_weights_only_unpickler.py` of torch 2.13 (the names that `weights_only=True` allows), the output of pickling
    these values with Python 3.11 and numpy 1 and 2, and `_compat_pickle` for the names in Python 2.
"""

from __future__ import annotations

import builtins
import re
import sys
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from enum import Enum
from functools import lru_cache


class Trust(Enum):
    """Trust in a name."""

    KNOWN = "known"
    """The name creates a tensor or a plain value."""
    UNKNOWN = "unknown"
    """The name is probably a custom class, whose effect is unknown."""
    RUNS = "runs"
    """The name runs code, or provides access to code."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_KNOWN = {
    module: _names(names)
    for module, names in {
        "_codecs": "encode",
        "_operator": "getitem",
        "argparse": "Namespace",
        "array": "array _array_reconstructor",
        "builtins": "Ellipsis NotImplemented abs bool bytearray bytes complex dict enumerate float frozenset int len "
        "list max min object range reversed round set slice str sum tuple",
        "collections": "ChainMap Counter OrderedDict UserDict UserList UserString defaultdict deque",
        "copyreg": "__newobj__ __newobj_ex__ _reconstructor",
        "datetime": "date datetime time timedelta timezone",
        "decimal": "Decimal",
        "deepspeed.runtime.fp16.loss_scaler": "DynamicLossScaler LossScaler",
        "deepspeed.runtime.zero.config": "ZeroStageEnum",
        "deepspeed.utils.tensor_fragment": "fragment_address",
        "fractions": "Fraction",
        "functools": "partial",
        "inspect": "_empty",
        "itertools": "chain count cycle repeat",
        "logging": "getLogger",
        "math": "acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh degrees erf erfc exp expm1 fabs floor "
        "fmod gamma hypot isclose isfinite isinf isnan lgamma log log10 log1p log2 radians sin sinh sqrt tan tanh "
        "trunc",
        "megatron.core.transformer.enums": "AttnBackend AttnMaskType AttnType LayerType ModelType",
        "numpy.ma": "MaskedArray",
        "numpy.ma.core": "MaskedArray _mareconstruct",
        "numpy.random._mt19937": "MT19937",
        "numpy.random._pcg64": "PCG64 PCG64DXSM",
        "numpy.random._philox": "Philox",
        "numpy.random._pickle": "__bit_generator_ctor __generator_ctor __randomstate_ctor",
        "numpy.random._sfc64": "SFC64",
        "numpy.random.bit_generator": "SeedSequence __pyx_unpickle_SeedSequence",
        "operator": "getitem",
        "pathlib": "Path PosixPath PurePath PurePosixPath PureWindowsPath WindowsPath",
        "pathlib._local": "Path PosixPath PurePath PurePosixPath PureWindowsPath WindowsPath",
        "random": "Random",
        "re": "RegexFlag _compile",
        "signal": "Handlers Sigmasks Signals",
        "time": "struct_time",
        "torch": "Size Tensor bfloat16 bool chalf device per_channel_affine per_channel_affine_float_qparams "
        "per_channel_symmetric per_tensor_affine per_tensor_symmetric",
        "torch._C": "Generator",
        "torch._dynamo.decorators": "_DimRange",
        "torch._tensor": "Tensor _rebuild_from_type_v2",
        "torch.jit._pickle": "build_boollist build_doublelist build_intlist build_tensorlist restore_type_tag",
        "torch._utils": "_rebuild_device_tensor_from_cpu_tensor _rebuild_device_tensor_from_numpy "
        "_rebuild_meta_tensor_no_storage _rebuild_nested_tensor _rebuild_parameter _rebuild_parameter_with_state "
        "_rebuild_qtensor _rebuild_sparse_csr_tensor _rebuild_sparse_tensor _rebuild_tensor _rebuild_tensor_v2 "
        "_rebuild_tensor_v3 _rebuild_wrapper_subclass _rebuild_xla_tensor",
        "torch.distributed._mesh_layout": "_FlatLayout _MeshLayout",
        "torch.distributed._tensor.api": "DTensor",
        "torch.distributed._tensor.placement_types": "DTensorSpec Partial Replicate Shard TensorMeta _Partial",
        "torch.distributed.checkpoint.filesystem": "_StorageInfo",
        "torch.distributed.checkpoint.metadata": "BytesStorageMetadata ChunkStorageMetadata Metadata MetadataIndex "
        "StorageMeta TensorProperties TensorStorageMetadata _MEM_FORMAT_ENCODING",
        "torch.distributed.device_mesh": "DeviceMesh",
        "torch.distributed.tensor": "DTensor",
        "torch.distributed.tensor._dtensor_spec": "DTensorSpec ShardOrderEntry TensorMeta",
        "torch.distributed.tensor.placement_types": "Partial Replicate Shard",
        "torch.nn.parameter": "Buffer Parameter UninitializedBuffer UninitializedParameter",
        "torch.serialization": "_get_layout",
        "torch.storage": "TypedStorage UntypedStorage _TypedStorage _UntypedStorage",
        "torch.torch_version": "TorchVersion",
        "torch_npu.utils.storage": "_rebuild_npu_tensor",
        "types": "GenericAlias SimpleNamespace",
        "typing": "Any AnyStr Callable ClassVar DefaultDict Dict FrozenSet Generic Iterable List Literal Mapping "
        "Optional Sequence Set Tuple Type Union",
        "uuid": "SafeUUID UUID",
        "zoneinfo": "ZoneInfo",
    }.items()
}
_KNOWN["builtins"] |= {
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
}
_UNJUDGED = frozenset(
    f"builtins.{name}" for name in ("callable", "iter", "next", "pow", "print", "repr", "sorted", "type", "zip")
)
"""Builtins whose effect depends only on their arguments, which the pickle also names."""
_VALUES = _names("builtins collections datetime decimal fractions uuid")
"""Modules of plain values, whose methods have no other effects."""
_FAMILIES = re.compile(
    r"torch(\.cuda|\.npu|\.sparse|\.cuda\.sparse|_npu\.npu)?\.[A-Z][A-Za-z0-9]*(Storage|Tensor)"
    r"|torch\.(float|complex|u?int|quint|qint|bits)[0-9]+(x[0-9]+|_e[0-9]m[0-9][a-z0-9_]*)?"
    r"|numpy\.(dtype|ndarray|(bool|str|bytes|void|u?int|float|complex|datetime|timedelta)[0-9]*_?)"
    r"|numpy\.dtypes\.[A-Z][A-Za-z0-9]*DType"
    r"|numpy\._?core\.(multiarray\.(_reconstruct|scalar)|numeric\._frombuffer)"
)
"""Pattern of names that exist for every number type."""

_RUNS = _names(
    """
    IPython _distutils_hack asynchat asyncore cffi cloudpickle commands dill distutils imp invoke ipykernel jinja2
    joblib llvmlite mako marshal nose numba numpy.ctypeslib numpy.core.tests numpy.distutils numpy.f2py numpy.fromfile
    numpy.fromregex numpy.genfromtxt numpy.lib.format numpy.lib.npyio numpy.load numpy.loadtxt numpy.memmap
    numpy.save numpy.savetxt numpy.savez numpy.testing numpy.tests pandas.eval pandas.io pandas.read_pickle paramiko
    pexpect pip pipes pkg_resources plumbum pty pytest ray.cloudpickle requests scipy._lib._testutils setuptools sh
    ruamel.yaml smtpd sympy.core.sympify sympy.lambdify sympy.parsing sympy.sympify sympy.utilities test torch._dynamo
    torch._inductor torch._strobelight torch.classes torch.cuda._memory_viz torch.distributed.elastic.multiprocessing
    torch.distributed.launch torch.distributed.run torch.export torch.fx._lazy_graph_module torch.fx.graph_module
    torch.hub torch.jit.load torch.jit.unsupported_tensor_ops torch.load torch.multiprocessing torch.ops torch.package
    torch.save torch.serialization.load torch.serialization.save torch.storage._load_from_bytes torch.testing
    torch.utils._config_module torch.utils.benchmark torch.utils.bottleneck torch.utils.collect_env
    torch.utils.cpp_extension torch.utils.data.datapipes torch.utils.hipify torch.utils.model_zoo torch.utils.viz
    urllib3
    """
) | frozenset(sys.stdlib_module_names)
"""Modules and functions that run code; all of their attributes are refused, unless known to be harmless."""

_LIBRARIES = _names(
    "accelerate datasets deepspeed diffusers fsspec keras lightning mindspore numpy pandas peft psutil "
    "pytorch_lightning safetensors scipy sklearn tensorflow torch torch_npu torchaudio torchvision transformers yaml"
)
"""Packages with known functions, in which class names have the usual meaning of the words below.

In other packages, the words may mean anything.
"""
_FUNCTION = re.compile(r"_*[a-z].*", re.DOTALL)
"""Pattern of names of functions, methods, and some classes.

A name that `_HARMLESS` does not list is refused. In torch, numpy, yaml and fsspec alone, 46 functions evaluate or
unpickle their arguments, or start a program.
"""
_MATH = _names(
    """
    abs absolute acos add all allclose amax amin any arange arccos arcsin arctan argmax argmin array as_tensor asarray
    asin atan atan2 average bmm cat ceil clamp clip clone concat concatenate cos cosh cumprod cumsum diag div divide dot
    einsum empty empty_like equal erf exp exp2 expand_dims expm1 eye flatten flip floor frac from_numpy full full_like
    gelu greater hardtanh heaviside hstack index_select inner isfinite isinf isnan leaky_relu less linspace log log10
    log1p log2 log_softmax logaddexp logit logsumexp masked_fill matmul max maximum mean median min minimum mish mm
    moveaxis mul multiply nan_to_num nanmax nanmean nanmin nansum neg negative norm not_equal numel ones ones_like outer
    percentile permute pow power prod quantile rand rand_like randint randn randn_like randperm reciprocal relu relu_
    reshape rms_norm round rrelu rsqrt selu sigmoid sign silu sin sinh softmax softplus split sqrt square squeeze stack
    std sub subtract sum swapaxes take tan tanh tensor tile transpose tril triu true_divide unsqueeze var vstack where
    zeros zeros_like
    """
)
_HARMLESS = re.compile(
    r"torch\.(nn\.functional|nn\.init|_C\._nn|special)\.(?!handle_torch_function|boolean_dispatch)[a-z0-9_]+"
    r"|torch(_npu)?(\.[a-z0-9_]+)*\._rebuild_[a-z0-9_]+"
    rf"|(torch|torch\._C\._VariableFunctions(Class)?|numpy)\.({'|'.join(_MATH)})"
    r"|torch\.(cuda\.)?amp\.grad_scaler\._refresh_per_optimizer_state"
    r"|torch\.distributed\.remote_device\._remote_device"
    r"|torch\.nn\.modules\.[a-z]+\.Lazy[A-Za-z0-9]+\._(lazy_load_hook|infer_parameters)"
    r"|torch\.optim\.swa_utils\.SWALR\._(cosine|linear)_anneal"
    r"|torch\.optim\.lr_scheduler\.(OneCycleLR\._annealing_(cos|linear)"
    r"|CyclicLR\._(triangular2?|exp_range)_scale_fn)"
    r"|torch\.utils\.data\.(dataloader|_utils\.collate)\.default_(collate|convert)"
    r"|deepspeed\.utils\.tensor_fragment\.tensor_fragment"
    r"|(pytorch_lightning|lightning\.pytorch)\.utilities\.argparse(_utils)?\._[a-z_]+_(default|type)"
    r"|transformers(\.[a-z0-9_]+)*\.(gelu|gelu_new|gelu_fast|gelu_python|quick_gelu|linear_act|mish|silu|swish)"
    r"|numpy(\.[a-z_]+)*\.(recarray|record|matrix|chararray|poly1d|generic|number|integer|floating|inexact|flexible"
    r"|signedinteger|unsignedinteger|complexfloating|character|finfo|iinfo)"
    r"|scipy\.sparse(\.[a-z_]+)*\.(csr|csc|coo|bsr|dia|dok|lil)_(matrix|array)"
    r"|pandas\.core\.indexes\.base\._new_Index"
)
"""Pattern of names that compute, or that create a value from numbers; the contents of a refused module stay refused."""
_RUNNING = re.compile(
    r"([a-z0-9_]*_)?(loads?|run|runs|runstring|main|exec|execute|eval|system|popen|spawn|unpickle|deserialize|savez?"
    r"|savetxt|loadtxt|genfromtxt|fromfile|from_file|tofile|fromregex|memmap|import|open|compile|dumps?|to_object"
    r"|start_process(es)?)(_[a-z0-9_]*)?|Popen|[A-Za-z]*Subprocess[A-Za-z]*"
)
"""Pattern of words in a name that suggest reading a file as code or running a file.

Modules that only re-export such a name also match.
"""

_MODULES = _names("builtins ctypes nt os pickle posix pty runpy subprocess sys")
_REACHES = _MODULES | _names(
    "ag_frame cr_frame eval exec execfile f_back f_builtins f_globals f_locals getattr "
    "gi_frame importlib marshal popen shutil socket system tb_frame"
)
"""Words in a name that lead from one module to another that it imported: `os.system` in `torch.serialization`."""


def modern(module: str, name: str) -> tuple[str, str]:
    """Return the Python 3 module and name for a module and name in a Python 2 pickle."""
    return NAME_MAPPING.get((module, name)) or (IMPORT_MAPPING.get(module, module), name)


@lru_cache(maxsize=1024)
def trust(module: str, name: str) -> Trust:
    """Classify a global of a pickle.

    Args:
        module: The module as written in the pickle, by Python 2 or 3.
        name: The name in the module; dotted for an attribute of an object in the module.
    """
    module, name = modern(module, name)
    full = f"{module}.{name}"
    if name in _KNOWN.get(module, ()) or _FAMILIES.fullmatch(full):
        return Trust.KNOWN
    above, parts = module.split(".")[1:], name.split(".")
    if _reaches(parts) or not _MODULES.isdisjoint(above):
        return Trust.RUNS
    path = full.split(".")
    begins = (".".join(path[:length]) for length in range(1, len(path) + 1))
    is_refused = not _RUNS.isdisjoint(begins)
    if path[0] in _LIBRARIES and not is_refused:
        if _HARMLESS.fullmatch(full):
            return Trust.UNKNOWN
        is_refused = any(map(_RUNNING.fullmatch, parts)) or _FUNCTION.fullmatch(parts[-1]) is not None
    elif full in _UNJUDGED or (module in _VALUES and parts[0] in _KNOWN[module]):
        return Trust.UNKNOWN
    return Trust.RUNS if is_refused else Trust.UNKNOWN


def _reaches(parts: list[str]) -> bool:
    return any(part.startswith("__") and part.endswith("__") for part in parts) or not _REACHES.isdisjoint(parts)
