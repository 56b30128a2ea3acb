"""Train a little with Hugging Face's Trainer and the guard, with bad batches, and print as JSON what came of it.

python hf_guard.py FOLDER JSON: as lightning_guard.py; `without` leaves the guard away, `restores` lets the trainer
restore its callbacks by itself.
"""

import json
import math
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
from safetensors.torch import load_file
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments

from ckpttool.guard import SkipPolicy
from ckpttool.guard.adapters.huggingface import attach

warnings.simplefilter("ignore")
torch.set_num_threads(1)
BATCH, CLASSES, MOST_STEPS = 8, 5, 12


class Config(PretrainedConfig):
    model_type = "small"


class Small(PreTrainedModel):
    config_class = Config

    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, CLASSES))
        self.post_init()

    def _init_weights(self, module):
        del module

    def forward(self, x=None, labels=None, weight=None):
        scores = self.layers(x)
        return {"loss": weight.mean() * nn.functional.cross_entropy(scores, labels, ignore_index=-100)}


def samples(asked):
    accumulate = asked["accumulate"]
    chance = torch.Generator().manual_seed(3)
    made = []
    for number in range(accumulate * MOST_STEPS):
        x = torch.randn(BATCH, 6, generator=chance)
        labels = torch.randint(CLASSES, (BATCH,), generator=chance)
        weight = torch.ones(BATCH)
        step, last = divmod(number + 1, accumulate)
        kind = asked["bad"].get(str(step)) if last == 0 else None
        if kind == "inf":
            x[0, 0] = math.inf
        elif kind == "padding":
            labels[:] = -100
        elif kind == "spike":
            weight[:] = 1000.0
        made += [
            {"x": one, "labels": label, "weight": each} for one, label, each in zip(x, labels, weight, strict=True)
        ]
    return made


class InOrder(Trainer):
    """Reads the samples as they stand."""

    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def shown(folder):
    """Return of one checkpoint what the test asks: its step, updates, finiteness, and its bytes."""
    weights = load_file(folder / "model.safetensors")
    state = torch.load(folder / "optimizer.pt", weights_only=True)["state"]
    kept = weights | {f"{number}.{name}": value for number, of in state.items() for name, value in of.items()}
    trainer_state = json.loads((folder / "trainer_state.json").read_text())
    return {
        "step": trainer_state["global_step"],
        "updates": int(state[0]["step"]) if state else 0,
        "finite": all(bool(torch.isfinite(value).all()) for value in kept.values()),
        "bits": {name: value.numpy().tobytes().hex() for name, value in kept.items()},
        "guard": trainer_state["stateful_callbacks"].get("CkpttoolGuard"),
    }


def use_scaler(accelerator):
    """Let accelerate scale losses on a CPU, which it refuses where it is asked."""
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    accelerator.native_amp = True
    accelerator.state._mixed_precision = "fp16"


def replay(_):
    """Return the model as it was built: an entry for `ckpttool guard replay`."""
    return Small(Config())


def main(folder, asked):
    events = []

    def tell(kind, /, **values):
        events.append({"kind": kind.value, **{name: str(value) for name, value in values.items()}})

    arguments = TrainingArguments(
        output_dir=folder, per_device_train_batch_size=BATCH, gradient_accumulation_steps=asked["accumulate"],
        max_steps=asked["steps"], save_steps=1, logging_steps=1, learning_rate=0.01, use_cpu=True, report_to=[], seed=7,
        disable_tqdm=True, dataloader_pin_memory=False, bf16=asked["precision"] == "bf16",
        max_grad_norm=asked["clip"] or 0.0, restore_callback_states_from_checkpoint=asked.get("restores", False),
        optim="adamw_torch", remove_unused_columns=False,
    )  # fmt: skip
    torch.manual_seed(5)
    trainer = InOrder(model=Small(Config()), args=arguments, train_dataset=samples(asked))
    if asked["precision"] == "16":
        use_scaler(trainer.accelerator)
    attached = None
    if not asked.get("without"):
        policy = SkipPolicy(threshold=100.0)
        attached = attach(trainer, policy=policy, count_threshold=asked.get("count", 10), sinks=[tell], output=folder)
    trainer.train(resume_from_checkpoint=asked.get("resume"))
    checkpoints = sorted(map(shown, Path(folder).glob("checkpoint-*")), key=lambda each: each["step"])
    print(json.dumps({
        "ends": trainer.state.global_step,
        "checkpoints": checkpoints,
        "events": events,
        "logged": [entry.get("grad_norm") for entry in trainer.state.log_history],
        "stopped": str(attached.stopped) if attached and attached.stopped else None,
        "left": "training_step" not in vars(trainer),
    }))  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
