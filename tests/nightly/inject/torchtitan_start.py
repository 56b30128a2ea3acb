"""Save with torchtitan's own manager, or start it in many trees and print how each start began.

    python torchtitan_start.py FOLDER      saves after steps 2, 4 and 6
    python torchtitan_start.py < STARTS

A line of STARTS is JSON: `tree`, the folder of the saves, and `resume`, the step to load (-1: its own choice). Each
answer is a line: the step, and whether the optimizer holds what was saved; or the error.
"""

import json
import os
import sys

answers, sys.stdout = sys.stdout, sys.stderr
os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29518"}

import torch  # noqa: E402
from torch.distributed.checkpoint.state_dict import (  # noqa: E402
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torchtitan.components.checkpointer.dcp import CheckpointManager  # noqa: E402

FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


class Trainer:
    """Of torchtitan's states those that a save is told by, with its names."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.nn.Linear(4, 4)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.step = 0

    def train(self, steps):
        for _ in range(steps):
            self.model(torch.ones(1, 4)).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.step += 1

    def state_dict(self):
        return {"step": self.step, "ntokens_seen": self.step * 64}

    def load_state_dict(self, state):
        self.step = state["step"]


class Optimizers:
    def __init__(self, trainer):
        self.trainer = trainer

    def state_dict(self):
        return get_optimizer_state_dict(self.trainer.model, self.trainer.optimizer, options=FLAT)

    def load_state_dict(self, state):
        set_optimizer_state_dict(self.trainer.model, self.trainer.optimizer, state, options=FLAT)


class Counter:
    def __init__(self, trainer, key):
        self.trainer, self.key, self.loaded = trainer, key, None

    def state_dict(self):
        return {self.key: self.trainer.step}

    def load_state_dict(self, state):
        self.loaded = state[self.key]


class Loader(Counter):
    def state_dict(self):
        return {"dp_rank_0": json.dumps({"step": self.trainer.step}).encode(), "world_size": 1}

    def load_state_dict(self, state):
        self.loaded = json.loads(state["dp_rank_0"])["step"]


def made(folder):
    trainer = Trainer()
    loader, schedule = Loader(trainer, "step"), Counter(trainer, "last_epoch")
    base, _, name = folder.rpartition("/")
    config = CheckpointManager.Config(enable=True, folder=name, interval=2, keep_latest_k=0, last_save_model_only=False)
    manager = CheckpointManager(
        config, dataloader=loader, model_parts=[trainer.model], optimizers=Optimizers(trainer), lr_schedulers=schedule,
        states={"train_state": trainer}, sd_adapter=None, base_folder=base,
    )  # fmt: skip
    return trainer, manager, loader, schedule


def start(tree, resume):
    trainer, manager, loader, schedule = made(tree)
    try:
        if not manager.load(step=resume):
            return {"step": 0, "optimizer": False}
    except BaseException as error:  # noqa: BLE001  that of torch's checkpoints is no Exception
        return {"error": f"{type(error).__name__}: {error}".strip().replace("\n", " ")[-300:]}
    moments = [state["exp_avg"].abs().sum() for state in trainer.optimizer.state.values()]
    whole = bool(moments) and all(moment > 0 for moment in moments)
    return {"step": trainer.step, "optimizer": whole and loader.loaded == schedule.loaded == trainer.step}


torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
if len(sys.argv) > 1:
    mine, manager, *_ = made(sys.argv[1])
    for _ in range(3):
        mine.train(2)
        manager.save(mine.step)
else:
    for line in sys.stdin:
        print(json.dumps(start(**json.loads(line))), file=answers, flush=True)
torch.distributed.destroy_process_group()
