"""Train a little with DeepSpeed and the guard, one process per rank, several times, and write as JSON what happened.

torchrun deepspeed_guard.py FOLDER JSON: settings by name, and each rank writes FOLDER/NAME/rankN.json. They are
`stage`, `precision` (32, bf16 or 16), `accumulate`, `steps`, `clip`, `bad` (by step: inf, loss or spike, on rank 1
alone), `without` (no guard in the code), `mode`, `policy` (zclip or a threshold) and `scale` (the power of two with
which the loss scale begins).
"""

import hashlib
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch
from torch import nn

from ckpttool.guard import SkipPolicy, ZClipPolicy
from ckpttool.guard.adapters.deepspeed import attach

torch.set_num_threads(1)
MICRO, SIZE = 4, 8
PRECISIONS = {
    "32": {},
    "bf16": {"bf16": {"enabled": True}},
    "16": {"fp16": {"enabled": True, "loss_scale_window": 1000, "hysteresis": 1}},
}


DTYPES = {"32": torch.float32, "bf16": torch.bfloat16, "16": torch.float16}


class Average(nn.Module):
    """Changes a buffer in each forward pass, as a batch norm does, in any precision."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, items):
        with torch.no_grad():
            self.mean.copy_(0.9 * self.mean + 0.1 * items.detach().float().mean(0))
        return items


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(SIZE, 16), Average(), nn.Dropout(0.2), nn.Linear(16, SIZE))

    def forward(self, items, weight, offset):
        return self.layers(items).float().square().mean() * weight + offset


def batches(asked, rank):
    """Yield the micro-batches of each step: its number, and the arguments of the model."""
    chance = torch.Generator().manual_seed(10 + rank)
    for step in range(1, asked["steps"] + 1):
        parts = [torch.randn(MICRO, SIZE, generator=chance) for _ in range(asked["accumulate"])]
        kind = asked["bad"].get(str(step)) if rank == 1 else None
        if kind == "inf":
            parts[0][0, 0] = float("inf")
        weight = torch.tensor(1000.0 if kind == "spike" else 1.0)
        offset = torch.tensor(float("nan") if kind == "loss" else 0.0)  # a loss of NaN, and finite gradients
        yield step, [(part, weight, offset) for part in parts]


def digest(engine):
    """Return a digest of all that this rank trains: weights, their float32 parts, moments and buffers."""
    zero = engine.optimizer
    parts = getattr(zero, "fp32_partitioned_groups_flat", None) or zero.single_partition_of_fp32_groups
    weights = [getattr(weight, "ds_tensor", weight) for weight in engine.module.parameters()]
    state = [value for each in zero.optimizer.state.values() for value in each.values()]
    together = hashlib.sha256()
    for value in (*weights, *parts, *state, *engine.module.buffers()):
        flat = torch.as_tensor(value).detach().contiguous().reshape(-1)
        together.update(flat.view(torch.uint8).numpy().tobytes())
    return together.hexdigest()


def train(folder, asked):
    rank = torch.distributed.get_rank()
    torch.manual_seed(3)
    model = Net()
    config = {
        "train_micro_batch_size_per_gpu": MICRO,
        "gradient_accumulation_steps": asked["accumulate"],
        "gradient_clipping": asked["clip"],
        "zero_optimization": {"stage": asked["stage"], "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
        **PRECISIONS[asked["precision"]],
    }
    if "fp16" in config:
        config["fp16"] = config["fp16"] | {"initial_scale_power": asked.get("scale", 10)}
    groups = [{"params": list(model.layers[:2].parameters())}, {"params": list(model.layers[2:].parameters())}]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule, config=config)
    events, settings = [], {}
    if asked.get("policy"):
        threshold = asked["policy"]
        settings["policy"] = ZClipPolicy(warm_up=3) if threshold == "zclip" else SkipPolicy(threshold=threshold)
    if not asked.get("without"):
        attach(
            engine,
            output=folder,
            mode=asked.get("mode", "act"),
            sinks=[lambda kind, /, *, step, **values: events.append([kind.value, step, values])],
            **settings,
        )
    seen = []
    for step, parts in batches(asked, rank):
        for items, *others in parts:
            loss = engine(items.to(DTYPES[asked["precision"]]), *others)
            engine.backward(loss)
            engine.step()
        seen.append({
            "step": step,
            "bits": digest(engine),
            "applied": engine.was_step_applied(),
            "skipped": engine.skipped_steps,
            "lr": engine.get_lr()[0],
            "scale": float(engine.optimizer.loss_scale),
            "norm": float(engine.get_global_grad_norm()),
        })  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"rank{rank}.json").write_text(json.dumps({"seen": seen, "events": events}))


def main(folder, cases):
    deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: (
        True
    )  # torch's CPU can, and DeepSpeed refuses it
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    for name, asked in cases.items():
        train(Path(folder, name), asked)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
