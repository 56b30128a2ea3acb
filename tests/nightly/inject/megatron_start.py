"""Let Megatron-LM's own functions choose and read a save in many trees, and print what each start began with.

    python megatron_start.py CHECKOUT < STARTS

A line of STARTS is JSON: `tree`, what `--load` names, and `resume`, what `--ckpt-step` does. What is read is all that
two tensor-parallel ranks read; no model is made of it. Each answer is a line: the step; or the error.
"""

import json
import os
import sys
import types
import typing

checkout = sys.argv[1]
sys.path.insert(0, checkout)
answers, sys.stdout = sys.stdout, sys.stderr  # it prints much
os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29519"}

import torch  # noqa: E402
import typing_extensions  # noqa: E402

typing.override = typing_extensions.override  # newer versions ask for Python 3.12
torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(major=9, minor=0)
torch.cuda.get_device_capability = lambda *_: (9, 0)
torch.cuda.current_device = lambda: "cpu"
tensor = torch.tensor


def on_cpu(*words, device=None, **more):
    """Make what ranks compare where there is a place for it."""
    return tensor(*words, **more)


torch.tensor = on_cpu

from megatron.core import dist_checkpointing, mpu  # noqa: E402
from megatron.training import checkpointing  # noqa: E402
from megatron.training.arguments import parse_args  # noqa: E402

CheckpointType = checkpointing.CheckpointType
RANKS = (0, 1)


def arguments(tree, step):
    sys.argv = ["pretrain_gpt.py", "--load", tree, "--auto-detect-ckpt-format", "--micro-batch-size", "1"]
    args = parse_args(ignore_unknown_args=True)
    args.ckpt_step, args.use_dist_ckpt, args.non_persistent_ckpt_type = step, True, None
    args.ckpt_fully_parallel_load = False
    return args


def as_rank(rank):
    mpu.get_tensor_model_parallel_rank = lambda: rank
    mpu.get_pipeline_model_parallel_rank = mpu.get_expert_model_parallel_rank = lambda: 0
    mpu.get_pipeline_model_parallel_world_size = mpu.get_expert_model_parallel_world_size = lambda: 1


def start(tree, resume):
    args = arguments(tree, resume)
    try:
        state, name, _, kind = checkpointing._load_base_checkpoint(tree, args, rank0=True)
        if state is None:
            return {"step": 0}
        if kind is CheckpointType.GLOBAL:
            tensors = dist_checkpointing.load_tensors_metadata(name)
            checkpointing._load_base_checkpoint(tree, args, sharded_state_dict=tensors)
            return {"step": state["iteration"]}
        for rank in RANKS:
            as_rank(rank)
            state, name, *_ = checkpointing._load_base_checkpoint(tree, args)
            optimizer = checkpointing.get_distributed_optimizer_checkpoint_name(name)
            torch.load(optimizer, weights_only=False)  # as `load_parameter_state` of its distributed optimizer
        return {"step": state["iteration"]}
    except BaseException as error:  # noqa: BLE001  it leaves by sys.exit, and torch's own is no Exception
        return {"error": f"{type(error).__name__}: {error}".strip().replace("\n", " ")[-300:]}


torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
as_rank(0)
for line in sys.stdin:
    print(json.dumps(start(**json.loads(line))), file=answers, flush=True)
torch.distributed.destroy_process_group()
