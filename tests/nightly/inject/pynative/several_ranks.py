"""Let the PyNative trainer run on several CPU ranks: the same model on all, gradients summed.

The object gathers of `mint.distributed` use HCCL only; here they use all-reduce. `fully_shard` is replaced, too.
"""

import pickle

import numpy as np
from mindspore import Tensor
from mindspore.communication import init
from mindspore.mint import distributed
from on_a_cpu import RANK, WORLD


def all_gather(value):
    """Return the value of each rank."""
    mine = pickle.dumps(value)
    sizes = np.zeros(WORLD, np.int32)
    sizes[RANK] = len(mine)
    sizes = all_reduced(sizes)
    padded = np.zeros((WORLD, int(sizes.max())), np.int32)
    padded[RANK, : len(mine)] = np.frombuffer(mine, np.uint8)
    padded = all_reduced(padded)
    return [pickle.loads(padded[rank, : sizes[rank]].astype(np.uint8).tobytes()) for rank in range(WORLD)]  # noqa: S301


def all_reduced(array):
    tensor = Tensor(array)
    distributed.all_reduce(tensor)
    return tensor.asnumpy()


def gather_object(value, gathered=None, dst=0, group=None):
    values = all_gather(value)
    if dst == RANK:
        gathered[:] = values


def scatter_object_list(received, values, src=0, group=None):
    received[0] = all_gather(values)[src][RANK]


def replace_gathers():
    """Replace the functions of `mint.distributed`; call this before `mindformers` is imported."""
    distributed.gather_object = gather_object
    distributed.scatter_object_list = scatter_object_list
    distributed.barrier = lambda *words, **more: all_gather(0)
    distributed.init_process_group = lambda *words, **more: init("mccl")
    distributed.destroy_process_group = lambda *words, **more: None


def sum_gradients():
    """Sum the gradients of all ranks before their norm is calculated."""
    from mindformers.pynative.trainer import trainer

    norm_of = trainer._calculate_global_grad_norm

    def norm_of_the_sum(parameters, **more):
        for parameter in parameters:
            if parameter.grad is not None:
                distributed.all_reduce(parameter.grad)
        return norm_of(parameters, **more)

    trainer.Trainer._apply_parallelism = lambda trainer, model, parallelism: None
    trainer._calculate_global_grad_norm = norm_of_the_sum
