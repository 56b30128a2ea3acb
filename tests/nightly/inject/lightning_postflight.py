"""Train with Lightning, kill it at step 74, and resume from step 50, rightly and with every fault.

python lightning_postflight.py FOLDER: each way is a folder with `lightning_logs`, and what both runs printed.
"""

import json
import math
import sys
import warnings
from pathlib import Path

import lightning
import torch
from killed_runs import BATCH, Characters, Samples, copy, kill, killed
from lightning.pytorch.callbacks import Callback, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

warnings.simplefilter("ignore")
FOLDER = Path(sys.argv[1])
EPOCH, EVERY, CRASH, SECOND = 90, 25, 74, 74
SAVED, OLDER = 50, 25


def rate(step):
    """A warm-up, and a decay."""
    return min(1, (step + 1) / 20) * math.exp(-step / 200)


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.characters = Characters()

    def training_step(self, batch, _):
        loss = self.characters(**batch)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=4e-3)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Killed(Callback):
    def __init__(self, step, seed):
        self.step = step
        self.seed = seed

    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == self.step:
            kill()
        if self.seed is not None:
            torch.manual_seed(self.seed + trainer.global_step)


def train(folder, until, resume=None, *, weights=None, loader=StatefulDataLoader, seed=None, every=1, epoch=EPOCH):
    """Train until a step, in the usual way of a script."""
    lightning.seed_everything(7, verbose=False)
    save = ModelCheckpoint(every_n_train_steps=EVERY, save_top_k=-1)
    trainer = lightning.Trainer(
        accelerator="cpu", max_steps=300, default_root_dir=folder, logger=CSVLogger(str(folder)),
        callbacks=[save, LearningRateMonitor(), Killed(until, seed)], enable_progress_bar=False,
        **({"log_every_n_steps": every} if every else {}),
    )  # fmt: skip
    order = torch.Generator().manual_seed(5) if loader is StatefulDataLoader else None
    data = loader(Samples(epoch * BATCH), batch_size=BATCH, shuffle=True, generator=order)
    model = Model.load_from_checkpoint(found(folder, weights)) if weights else Model()
    trainer.fit(model, data, ckpt_path=found(folder, resume) if resume else None)


def found(folder, step):
    """The save of a step."""
    return next((folder / "lightning_logs" / "version_0" / "checkpoints").glob(f"*step={step}.ckpt"))


def edit(folder, *keys, of_older=False):
    """Empty lists in the save, or take its weights from the older one."""
    save = torch.load(found(folder, SAVED), weights_only=False)
    for *outer, key in (key.split("/") for key in keys):
        place = save
        for name in outer:
            place = place[name]
        place[key] = []
    if of_older:
        save["state_dict"] = torch.load(found(folder, OLDER), weights_only=False)["state_dict"]
    torch.save(save, found(folder, SAVED))


FAULTS = {
    "scheduler_lost": (("lr_schedulers",), False),
    "optimizer_lost": (("optimizer_states",), False),
    "loader_restarted": (("loops/fit_loop/state_dict/combined_loader",), False),
    "other_weights": ((), True),
}
RESUMES = {
    "right": {},
    "older": {"resume": OLDER},
    "scratch": {"resume": None},
    "only_weights": {"resume": None, "weights": SAVED},
}
OTHERS = {
    "seed_by_step": {"seed": 1000},
    "next_epoch": {"seed": 1000, "epoch": 65},
    "plain_loader": {"loader": DataLoader},
    "plain_loader_at_the_end_of_an_epoch": {"loader": DataLoader, "epoch": 50},
    "by_default": {"every": None},
}


def resumed(folder, **settings):
    """Resume a run, and kill it again."""
    killed(folder / "second.log", train, folder, SECOND, **({"resume": SAVED} | settings))


def faulty(folder, keys, of_older):
    """Edit the save in a process, because this one computes nothing."""

    def edit_and_end():
        edit(folder, *keys, of_older=of_older)
        kill()

    killed(folder / "edit.log", edit_and_end)


def main():
    """Train all."""
    first = FOLDER / "first"
    first.mkdir(parents=True)
    killed(first / "first.log", train, first, CRASH)
    for way in (*FAULTS, *RESUMES):
        folder = copy(first, FOLDER / way)
        if way in FAULTS:
            faulty(folder, *FAULTS[way])
        resumed(folder, **RESUMES.get(way, {}))
    for way, settings in OTHERS.items():
        folder = FOLDER / way
        folder.mkdir()
        killed(folder / "first.log", train, folder, CRASH, **settings)
        resumed(folder, **settings)
    print(json.dumps([*FAULTS, *RESUMES, *OTHERS]))


if __name__ == "__main__":
    main()
