"""Train two replicas with torch, on the CPU, and flip one bit of a weight of one of them between two steps.

Run as `python -m tests.nightly.drift_training FOLDER RANK STEP`; each rank saves its whole state, as a data-parallel
training does that every rank saves of.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tests.support.trees import Tensor, TreeBuilder, safetensors_bytes, training_scalars

STEPS, EACH, RANKS = 80, 10, 2
FLIPPED = "0.weight"
_BIT = 1 << 21
"""Of the mantissa: the weight stays near what it was, as after a silent error it may."""


def train(rank: int, folder: str, odd: int, at: int) -> None:
    """Train one of the ranks."""
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    distributed.init_process_group("gloo", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(replica.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(1 + rank)  # each rank reads samples of its own
    for step in range(1, STEPS + 1):
        inputs = torch.randn(8, 16, generator=data)
        optimizer.zero_grad()
        (replica(inputs) - inputs[:, :4]).square().mean().backward()
        optimizer.step()
        if rank == odd and step == at:
            with torch.no_grad():
                model.get_parameter(FLIPPED).view(torch.int32)[3, 5] ^= _BIT
        if step % EACH == 0:
            save(Path(folder), rank, step, model.state_dict(), optimizer.state_dict()["state"])
    distributed.barrier()
    distributed.destroy_process_group()


def save(folder: Path, rank: int, step: int, weights: dict[str, Any], moments: dict[int, dict[str, Any]]) -> None:
    """Save what one rank holds, in the layout of the fixtures."""
    held = dict(weights)
    for (name, _), (_, state) in zip(weights.items(), sorted(moments.items()), strict=True):
        held |= {f"adam_m.{name}": state["exp_avg"], f"adam_v.{name}": state["exp_avg_sq"]}
    tensors = [Tensor(name, "Float32", tuple(of.shape), of.numpy().tobytes()) for name, of in held.items()]
    builder = TreeBuilder(folder).legacy(ranks=RANKS, fmt="safetensors")
    scalars = training_scalars(epoch=step // 2, true_step=step)
    path = builder.shard(rank, step // 2, 2)
    builder.file(path, safetensors_bytes([*tensors, *scalars], {"format": "ms"}))
    builder.meta(rank, step // 2, 2, path.rpartition("/")[2])


def main(folder: str, odd: str, at: str) -> None:
    """Start both ranks."""
    from torch.multiprocessing.spawn import spawn

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ.get("MASTER_PORT", "29517")}
    spawn(train, (folder, int(odd), int(at)), nprocs=RANKS)


if __name__ == "__main__":
    main(*sys.argv[1:])
