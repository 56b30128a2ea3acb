"""Train with Hugging Face's Trainer, kill it at step 88, and resume from step 60, rightly and with every fault.

python hf_postflight.py FOLDER: each way is a folder with the output folder `out`, and what both runs printed.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from killed_runs import BATCH, Characters, Samples, copy, kill, killed
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments

FOLDER = Path(sys.argv[1])
EPOCH, EVERY, CRASH, SECOND = 80, 30, 88, 89
SAVED, OLDER = "checkpoint-60", "checkpoint-30"


class Config(PretrainedConfig):
    model_type = "characters"


class Model(PreTrainedModel):
    config_class = Config

    def __init__(self, config):
        super().__init__(config)
        self.characters = Characters()
        self.post_init()

    def _init_weights(self, module):
        del module

    def forward(self, inputs=None, labels=None):
        return {"loss": self.characters(inputs, labels)}


class Killed(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_begin(self, args, state, control, **_):
        del args, control
        if state.global_step == self.step:
            kill()


class NewOptimizer(Trainer):
    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        self.optimizer.state.clear()


def train(folder, until, resume=None, *, weights=None, trainer=Trainer, every=1, **arguments):
    """Train until a step, in the usual way of a script."""
    out = folder / "out"
    arguments = TrainingArguments(
        output_dir=str(out), per_device_train_batch_size=BATCH, max_steps=300, save_steps=EVERY, learning_rate=4e-3,
        warmup_steps=20, lr_scheduler_type="cosine", use_cpu=True, seed=7, report_to="tensorboard",
        dataloader_pin_memory=False, **({"logging_steps": every} if every else {}), **arguments,
    )  # fmt: skip
    torch.manual_seed(7)
    model = Model.from_pretrained(out / weights) if weights else Model(Config())
    made = trainer(model=model, args=arguments, train_dataset=Samples(EPOCH * BATCH), callbacks=[Killed(until)])
    made.train(resume_from_checkpoint=str(out / resume) if resume else None)


def planted(folder, *, without="", of_older=""):
    """Plant a fault in the save."""
    save = folder / "out" / SAVED
    if without:
        (save / without).unlink()
    if of_older:
        shutil.copyfile(folder / "out" / OLDER / of_older, save / of_older)


FAULTS = {
    "scheduler_missing": {"without": "scheduler.pt"},
    "optimizer_missing": {"without": "optimizer.pt"},
    "random_state_missing": {"without": "rng_state.pth"},
    "other_weights": {"of_older": "model.safetensors"},
}
RESUMES = {
    "right": {},
    "optimizer_new": {"trainer": NewOptimizer},
    "data_from_start": {"ignore_data_skip": True},
    "other_order": {"data_seed": 99},
    "older": {"resume": OLDER},
    "scratch": {"resume": None},
    "only_weights": {"resume": None, "weights": SAVED},
}


def main():
    """Train all."""
    first = FOLDER / "first"
    first.mkdir(parents=True)
    killed(first / "first.log", train, first, CRASH)
    for way in (*FAULTS, *RESUMES):
        folder = copy(first, FOLDER / way)
        planted(folder, **FAULTS.get(way, {}))
        killed(folder / "second.log", train, folder, SECOND, **({"resume": SAVED} | RESUMES.get(way, {})))
    rare = FOLDER / "by_default"
    rare.mkdir()
    killed(rare / "first.log", train, rare, CRASH, every=None)
    killed(rare / "second.log", train, rare, SECOND, SAVED, every=None)
    print(json.dumps([*FAULTS, *RESUMES, "by_default"]))


if __name__ == "__main__":
    main()
