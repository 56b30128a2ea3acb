"""Train a little with Megatron-core's optimizers and the guard, one process per rank, and write as JSON what happened.

torchrun megatron_guard.py FOLDER JSON: settings by name, and each rank writes FOLDER/NAME/rankN.json. They are
`precision` (32, bf16 or 16), `distributed` (the distributed optimizer), `tensor` (the ranks share a model instead of
the data), `experts` (a second optimizer), `steps`, `clip`, `bad` (by step: inf or spike, on rank 1 alone), `without`
(no guard in the code), `mode`, `policy` (zclip or a threshold) and `scale` (of the loss, at first).

Megatron-core asks for CUDA devices: here the CPU takes their place.
"""

import hashlib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
from torch import nn
from torch.overrides import TorchFunctionMode


class OnCpu(TorchFunctionMode):
    """Makes tensors on the CPU that are requested on CUDA devices, and names the types of all as on CUDA devices."""

    def __torch_function__(self, function, _types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if "device" in kwargs and str(kwargs["device"]).startswith("cuda"):
            kwargs["device"] = "cpu"
        result = function(*args, **kwargs)
        if function is torch.Tensor.type and isinstance(result, str):
            return result.replace("torch.", "torch.cuda.")
        return args[0] if function is torch.Tensor.cuda else result


torch.cuda.current_device = lambda: "cpu"
torch.cuda.synchronize = lambda *_: None
torch.cuda.is_current_stream_capturing = lambda: False
torch.set_num_threads(1)

from megatron.core import parallel_state  # noqa: E402
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig  # noqa: E402
from megatron.core.optimizer import OptimizerConfig  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402
from megatron.core.transformer.module import MegatronModule  # noqa: E402

from ckpttool.guard import SkipPolicy, ZClipPolicy  # noqa: E402
from ckpttool.guard.adapters.megatron import attach  # noqa: E402

DTYPES = {"32": torch.float32, "bf16": torch.bfloat16, "16": torch.float16}
SIZE, BATCH = 8, 4


class Net(MegatronModule):
    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.Sequential(nn.Linear(SIZE, 16), nn.Dropout(0.2), nn.Linear(16, SIZE))
        self.register_buffer("mean", torch.zeros(SIZE))

    def forward(self, items):
        with torch.no_grad():
            self.mean.copy_(0.9 * self.mean + 0.1 * items.float().mean(0))
        return self.layers(items).float().square().mean()


def batches(asked, rank):
    """Yield the step, its items and the weight of its loss."""
    chance = torch.Generator().manual_seed(10 + (0 if asked.get("tensor") else rank))
    for step in range(1, asked["steps"] + 1):
        items = torch.randn(BATCH, SIZE, generator=chance)
        kind = asked["bad"].get(str(step)) if rank == 1 else None
        if kind == "inf":
            items[0, 0] = float("inf")
        yield step, items, 1000.0 if kind == "spike" else 1.0


def parts_of(optimizer):
    return [part for each in getattr(optimizer, "chained_optimizers", [optimizer]) for part in [each.optimizer]]


def digest(model, optimizer):
    """Return a digest of all that this rank trains: weights, their float32 copies, moments and buffers."""
    values = [*model.parameters(), *model.module.buffers()]  # `model.buffers` is a list of its own
    for part in parts_of(optimizer):
        values += [weight for group in part.param_groups for weight in group["params"]]
        values += [value for state in part.state.values() for value in state.values()]
    together = hashlib.sha256()
    for value in values:
        flat = torch.as_tensor(value).detach().contiguous().reshape(-1)
        together.update(flat.view(torch.uint8).numpy().tobytes())
    return together.hexdigest()


def made(asked):
    from megatron.core.optimizer import get_megatron_optimizer

    torch.manual_seed(3)
    dtype, distributed = DTYPES[asked["precision"]], bool(asked.get("distributed"))
    config = TransformerConfig(num_layers=1, hidden_size=SIZE, num_attention_heads=1)
    net = Net(config).to(dtype)
    net.mean.data = net.mean.float()
    for weight in net.parameters():
        weight.tensor_model_parallel = bool(asked.get("tensor"))
    if asked.get("experts"):
        for weight in net.layers[2].parameters():
            weight.allreduce = False
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=distributed, grad_reduce_in_fp32=True)
    model = DistributedDataParallel(config, ddp, net)
    model.broadcast_params()
    settings = OptimizerConfig(
        optimizer="adam", lr=0.01, weight_decay=0.01, bf16=dtype is torch.bfloat16, fp16=dtype is torch.float16,
        params_dtype=dtype, use_distributed_optimizer=distributed, clip_grad=asked["clip"],
        initial_loss_scale=asked.get("scale", 1024.0), hysteresis=1, min_loss_scale=1.0,
    )  # fmt: skip
    return model, get_megatron_optimizer(settings, [model])


def train(folder, asked):
    rank = torch.distributed.get_rank()
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2 if asked.get("tensor") else 1)
    model, optimizer = made(asked)
    events, settings, guard = [], {}, None
    if asked.get("policy"):
        threshold = asked["policy"]
        settings["policy"] = ZClipPolicy(warm_up=3) if threshold == "zclip" else SkipPolicy(threshold=threshold)
    if not asked.get("without"):
        guard = attach(
            [model],
            optimizer,
            output=str(folder),
            mode=asked.get("mode", "act"),
            sinks=[lambda kind, /, *, step, **values: events.append([kind.value, step, values])],
            **settings,
        )
    seen = []
    for step, items, weight in batches(asked, rank):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        loss = model(items.to(DTYPES[asked["precision"]])) * weight
        if guard is not None:
            guard.take_loss(loss.detach())
        optimizer.scale_loss(loss).backward()
        model.finish_grad_sync()
        success, norm, _ = optimizer.step()
        torch.manual_seed(step)
        seen.append({
            "step": step,
            "bits": digest(model, optimizer),
            "applied": success,
            "scale": float(optimizer.get_loss_scale()),
            "norm": norm,
        })  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"rank{rank}.json").write_text(json.dumps({
        "kind": type(optimizer).__name__,
        "parts": [type(each).__name__ for each in getattr(optimizer, "chained_optimizers", [optimizer])],
        "seen": seen,
        "events": events,
    }))  # fmt: skip


def main(folder, cases):
    torch.distributed.init_process_group("gloo")
    with OnCpu():
        for name, asked in cases.items():
            train(Path(folder, name), asked)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
