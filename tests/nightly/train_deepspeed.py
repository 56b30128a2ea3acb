"""`python train_deepspeed.py RUN STEPS [TAG]`, one process a rank: train with the real DeepSpeed, or resume.

It saves every second step and prints, on rank 0, one JSON line: where it began, by DeepSpeed's own counters.
"""

from __future__ import annotations

import json
import os
import sys

import deepspeed  # type: ignore[import-not-found]  # the test installs it
import torch

CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "zero_optimization": {"stage": int(os.environ["ZERO_STAGE"])},
    "zero_allow_untested_optimizer": True,
}


def main(run: str, steps: int, tag: str | None) -> None:
    """Train up to so many steps, from the save of a tag if there is one."""
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)
    loaded = None
    if tag is not None:
        loaded, _ = engine.load_checkpoint(load_dir=run, tag=tag)
    if torch.distributed.get_rank() == 0:
        told = {"loaded": loaded, "steps": engine.global_steps, "samples": engine.global_samples}
        sys.stdout.write(f"{json.dumps(told)}\n")
    saved = engine.global_steps
    while engine.global_steps < steps:
        loss = engine(torch.ones(2, 8)).square().mean()
        engine.backward(loss)
        engine.step()
        if tag is None and engine.global_steps == saved + 2:
            engine.save_checkpoint(run)
            saved = engine.global_steps


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
