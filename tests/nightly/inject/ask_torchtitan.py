"""Load configs of experiments in a real torchtitan 0.2, and tell what it makes of them without a GPU.

    python ask_torchtitan.py [LAYER,LAYER…] < CONFIGS

A line of CONFIGS is a JSON text: a TOML file. Prints JSON, a line for each: the error that it stops with, or what it
took; which checkpoint it would load; the learning rates of its own scheduler; and of each layer what computes each
product.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
import types

answers, sys.stdout = sys.stdout, sys.stderr
layers = sys.argv[1].split(",")

import torch  # noqa: E402
from torchao.float8.config import ScalingType  # noqa: E402
from torchtitan.components import checkpoint, lr_scheduler  # noqa: E402
from torchtitan.components.quantization import float8  # noqa: E402
from torchtitan.config import ConfigManager  # noqa: E402
from torchtitan.distributed.tensor_parallel import maybe_enable_async_tp  # noqa: E402

float8.has_cuda_capability = lambda *_: True

STEPS = range(0, 1000, 50)


def model():
    """Return linear layers of these names, and one that no recipe puts into FP8."""
    top = torch.nn.Module()
    for name in layers:
        inner = top
        *folders, last = name.split(".")
        for folder in folders:
            if not hasattr(inner, folder):
                inner.add_module(folder, torch.nn.Module())
            inner = getattr(inner, folder)
        inner.add_module(last, torch.nn.Linear(64, 64, bias=False))
    return top


def products(config):
    """Return what computes each product of every layer."""
    net = model()
    gathers = False
    if "quantize.linear.float8" in config.model.converters:
        parallel = types.SimpleNamespace(dp_shard_enabled=True)
        converter = float8.Float8LinearConverter(config, parallel)
        gathers = converter.config.enable_fsdp_float8_all_gather
        converter.convert(net)
    told = {}
    for name in layers:
        module = net.get_submodule(name)
        cast = getattr(module, "config", None)
        if cast is None:
            told[name] = dict.fromkeys(("fprop", "dgrad", "wgrad"), "bf16")
            continue
        pairs = {
            "fprop": (cast.cast_config_input, cast.cast_config_weight),
            "dgrad": (cast.cast_config_grad_output, cast.cast_config_weight_for_grad_input),
            "wgrad": (cast.cast_config_input_for_grad_weight, cast.cast_config_grad_output_for_grad_weight),
        }
        told[name] = {
            gemm: "bf16"
            if all(each.scaling_type is ScalingType.DISABLED for each in both)
            else "-".join(sorted({each.scaling_granularity.value for each in both}))
            for gemm, both in pairs.items()
        }
    return told, gathers


def loaded(config):
    """Return what it would load, and how: its own code, with a load that only tells."""
    own, asked = config.checkpoint, []
    manager = object.__new__(checkpoint.CheckpointManager)
    manager.__dict__ |= {
        "enable": own.enable,
        "enable_ft_dataloader_checkpoints": False,
        "folder": f"{config.job.dump_folder}/{own.folder}",
        "initial_load_path": own.initial_load_path,
        "initial_load_model_only": own.initial_load_model_only,
        "initial_load_in_hf": own.initial_load_in_hf,
        "initial_load_in_hf_quantized": own.initial_load_in_hf_quantized,
        "sd_adapter": None,
        "_states_to_load": lambda model_only: "model" if model_only else "all",
        "dcp_load": lambda states, **more: asked.append((states, more["checkpoint_id"], more["from_hf"])),
    }
    manager.load(step=own.load_step)
    return asked


def rates(config):
    """Return the factors of the learning rate over the steps, as its scheduler gives them."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    made = lr_scheduler.build_lr_schedulers([optimizer], config.lr_scheduler, config.training.steps)
    found = []
    for step in range(max(STEPS) + 1):
        if step in STEPS:
            found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        made.step()
    return found


def ask(text):
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        try:
            config = ConfigManager().parse_args(["--job.config_file", file.name])
            told, gathers = products(config)
            maybe_enable_async_tp(config, None)
            return {
                "config": dataclasses.asdict(config), "products": told, "gathers": gathers, "loaded": loaded(config),
                "rates": rates(config),
            }  # fmt: skip
        except (Exception, SystemExit) as error:  # noqa: BLE001  whatever it stops with is the answer
            return {"error": f"{type(error).__name__}: {error}"}


for line in sys.stdin:
    print(json.dumps(ask(json.loads(line)), default=str), file=answers, flush=True)
