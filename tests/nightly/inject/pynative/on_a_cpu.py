"""Make MindFormers' PyNative trainer importable and runnable on a CPU; import this before `mindformers`.

What is not real, and why: `hyper_parallel` was never published, so an import hook supplies empty names for it;
`Tensor.backward` is part of it; two kernels have no CPU form; MindSpore 2.10 lacks a module that MindFormers imports.
"""

import importlib.machinery
import os
import sys
import types

import mindspore as ms
from mindspore import mint
from mindspore._c_expression import TensorPy, run_backward
from mindspore.dataset import transforms
from mindspore.graph.api import _pynative_executor
from mindspore.nn import Cell

RANK = int(os.environ.get("RANK_ID", os.environ.get("MS_NODE_ID", "0")))
WORLD = int(os.environ.get("MS_WORKER_NUM", os.environ.get("RANK_SIZE", "1")))

FULL_SHAPES = {}
"""The full shape of each parameter whose rows are divided among the ranks, by name."""


def layout_of(net):
    """Return the layout of a network's parameters on this rank, in the form of `hyper_parallel`."""
    layout = {}
    for _, parameter in net.parameters_and_names():
        full = FULL_SHAPES.get(parameter.name.removeprefix("adam_m.").removeprefix("adam_v."))
        entry = {"type": str(parameter.dtype), "full_shape": list(full or parameter.shape)}
        if full:
            entry |= {
                "device_matrix": [WORLD], "alias_name": ["fsdp"], "rank_list": list(range(WORLD)),
                "tensor_map": [0] + [-1] * (len(parameter.shape) - 1), "interleaved_parallel": False,
            }  # fmt: skip
        layout[parameter.name] = entry
    return {str(RANK): layout}


def backward(tensor, gradient=None, retain_graph=None, create_graph=False, inputs=None):
    if gradient is not None and not isinstance(gradient, tuple):
        gradient = (gradient.reshape(tensor.shape),)
    run_backward(
        (tensor,), gradient, retain_graph, create_graph, inputs, allow_unreachable=True, accumulate_grad=True
    )  # fmt: skip


def enable_backward():
    """Give tensors the interface of torch's, as `hyper_parallel.platform.mindspore.autograd_compat` does."""
    if hasattr(TensorPy, "backward"):
        return
    _pynative_executor.set_grad_flag(True)
    TensorPy.requires_grad = property(
        lambda tensor: tensor._requires_grad, lambda tensor, on: setattr(tensor, "_requires_grad", bool(on))
    )
    TensorPy.grad = property(lambda tensor: tensor._grad, lambda tensor, value: setattr(tensor, "_grad", value))
    TensorPy.backward = backward


class NothingIsOne(type):
    def __instancecheck__(cls, instance):
        return False


class SkipDTensorDispatch:
    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False


NEEDED = {
    "enable_mindspore_backward_compat": enable_backward,
    "get_current_layout": layout_of,
    "get_global_layout": layout_of,
    "SkipDTensorDispatch": SkipDTensorDispatch,
}


class HyperParallel(types.ModuleType):
    """Every name in it is a class that does nothing, apart from those that the trainer needs."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name in NEEDED:
            return NEEDED[name]
        nothing = {"__init__": lambda self, *words, **more: None, "__call__": lambda self, *words, **more: None}
        return NothingIsOne(name, (), nothing)


class Finder:
    """Find `hyper_parallel` and all that is in it."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] != "hyper_parallel":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return HyperParallel(spec.name)

    def exec_module(self, module): ...


def add_missing_names():
    if not hasattr(transforms, "py_transforms"):
        module = types.ModuleType("mindspore.dataset.transforms.py_transforms")
        module.PyTensorOperation = type("PyTensorOperation", (), {})
        sys.modules[module.__name__] = module
        transforms.py_transforms = module
    mint.stack = lambda tensors, dim=0: ms.ops.concat([tensor.expand_dims(dim) for tensor in tensors], dim)
    mint.addcmul = lambda tensor, one, other, value=1: tensor + one * other * value
    if not hasattr(Cell, "to_empty"):
        Cell.to_empty = lambda cell: cell
    if not hasattr(Cell, "init_states"):
        Cell.init_states = lambda cell: None


sys.meta_path.append(Finder())
add_missing_names()
ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
