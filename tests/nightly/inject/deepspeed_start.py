"""Train with DeepSpeed on one rank, or start it in many trees and print how each start began.

    python deepspeed_start.py STAGE RUN      trains six steps, and saves every second
    python deepspeed_start.py STAGE < STARTS

A line of STARTS is JSON: `tree`, and `resume`, the tag that `load_checkpoint` is given. Each answer is a line: the step
that DeepSpeed counts, its samples, and whether the optimizer holds what was saved; or the error.
"""

import json
import os
import sys

answers, sys.stdout = sys.stdout, sys.stderr
os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed  # noqa: E402
import torch  # noqa: E402

STAGE, *RUN = sys.argv[1:]
CONFIG = {
    "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
    "zero_optimization": {"stage": int(STAGE)}, "zero_allow_untested_optimizer": True,
}  # fmt: skip


def made():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)[0]


def train(engine, steps):
    saved = 0
    while engine.global_steps < steps:
        engine.backward(engine(torch.ones(2, 8)).square().mean())
        engine.step()
        if engine.global_steps == saved + 2:
            engine.save_checkpoint(RUN[0])
            saved = engine.global_steps


def start(tree, resume):
    engine = made()
    try:
        loaded, _ = engine.load_checkpoint(load_dir=tree, tag=resume)
    except (Exception, SystemExit) as error:  # noqa: BLE001  whatever it stops with is the answer
        return {"error": f"{type(error).__name__}: {error}"}
    state = engine.optimizer.optimizer.state
    full = any(value.abs().sum() > 0 for each in state.values() for key, value in each.items() if key == "exp_avg")
    return {"loaded": loaded, "step": engine.global_steps, "samples": engine.global_samples, "optimizer": bool(full)}


torch.set_num_threads(1)
deepspeed.init_distributed(dist_backend="gloo", verbose=False)
if RUN:
    train(made(), 6)
else:
    for line in sys.stdin:
        print(json.dumps(start(**json.loads(line))), file=answers, flush=True)
