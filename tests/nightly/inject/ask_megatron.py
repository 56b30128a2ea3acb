"""Parse the arguments of experiments by a real Megatron-LM, as far as its start goes without a GPU.

    python ask_megatron.py CHECKOUT TE_VERSION [LAYER,LAYER…] < ARGUMENTS

A line of ARGUMENTS is a JSON list. Prints JSON, a line for each: the error that Megatron would stop with, or what it
took; and for a file of precisions whether each layer's linear modules stay in FP8.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import types
import typing

checkout, engine, layers = sys.argv[1:4]
sys.path.insert(0, checkout)
answers, sys.stdout = sys.stdout, sys.stderr  # it prints much
os.environ |= {"RANK": "0", "WORLD_SIZE": "8", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}

import torch  # noqa: E402
import typing_extensions  # noqa: E402
from packaging.version import Version  # noqa: E402

typing.override = typing_extensions.override  # newer versions ask for Python 3.12
torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(major=9, minor=0)
torch.cuda.get_device_capability = lambda *_: (9, 0)
torch.cuda.current_device = lambda: 0

from megatron.core import utils  # noqa: E402

utils._te_version = Version(engine)
utils.get_te_version = lambda: utils._te_version

from megatron.core.distributed import DistributedDataParallelConfig  # noqa: E402
from megatron.core.optimizer import OptimizerConfig  # noqa: E402
from megatron.training import arguments  # noqa: E402

NAMES = (
    "fp8", "fp8_recipe", "fp8_margin", "fp8_amax_history_len", "fp8_param_gather", "bf16", "load", "ckpt_step", "save",
    "exit_interval", "train_iters", "lr_decay_iters", "micro_batch_size", "global_batch_size", "sequence_parallel",
    "tp_comm_overlap", "overlap_grad_reduce", "overlap_param_gather", "recompute_granularity", "cuda_graph_impl",
    "num_experts", "save_interval", "data_parallel_size", "pipeline_model_parallel_size",
    "enable_cuda_graph", "external_cuda_graph", "moe_router_padding_for_fp8", "first_last_layers_bf16",
)  # fmt: skip


def built(kind, args):
    """Build a config of Megatron from its arguments as its training does: by the fields of one name."""
    import dataclasses

    values = {field.name: getattr(args, field.name) for field in dataclasses.fields(kind) if hasattr(args, field.name)}
    return kind(**values)


def precisions(path):
    """Return whether each layer's modules stay in FP8, as what computes them would be told."""
    from megatron.core.extensions import transformer_engine as te
    from megatron.core.quantization.utils import get_quant_config_or_none, load_quantization_recipe

    recipe = load_quantization_recipe(path)
    told = {}
    for layer in layers.split(","):
        config = get_quant_config_or_none(layer, recipe)
        own = None if config is None else te.TEQuantizationParams.parse_from_config(config)
        told[layer] = te._get_should_context_be_quantized_params(own, True, True)
    return told


def ask(words):
    sys.argv = ["pretrain_gpt.py", *words]
    try:
        args = arguments.validate_args(arguments.parse_args())
        config = arguments.core_transformer_config_from_args(args)
        built(OptimizerConfig, args)
        built(DistributedDataParallelConfig, args)
    except (Exception, SystemExit) as error:  # noqa: BLE001  whatever it stops with is the answer
        at = traceback.extract_tb(error.__traceback__)[-1]
        return {"error": f"{type(error).__name__}: {error} ({at.name}: {at.line})"}
    found = {name: getattr(args, name, None) for name in NAMES} | {"config_fp8": config.fp8}
    path = getattr(args, "te_precision_config_file", None)
    return found | {"precisions": precisions(path) if path else None}


for line in sys.stdin:
    print(json.dumps(ask(json.loads(line)), default=str), file=answers, flush=True)
