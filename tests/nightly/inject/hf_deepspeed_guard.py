"""Train a little with Hugging Face's Trainer on DeepSpeed, one process per rank, and write as JSON what happened.

torchrun hf_deepspeed_guard.py FOLDER JSON: the settings are `stage`, `bad` (the steps with an Inf, on rank 1 alone),
`steps`, `count` and `without` (no guard in the code). Each rank writes FOLDER/rankN.json.
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
os.environ["DS_ACCELERATOR"] = "cpu"

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments

from ckpttool.guard.adapters.huggingface import attach

torch.set_num_threads(1)
SIZE, BATCH = 6, 4


class Config(PretrainedConfig):
    model_type = "small"
    hidden_size = SIZE


class Small(PreTrainedModel):
    config_class = Config

    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.Sequential(
            nn.Linear(SIZE, 16), nn.Dropout(0.2), nn.Linear(16, 2)
        )  # even: ZeRO 3 pads with what was there
        self.post_init()

    def _init_weights(self, module):
        del module

    def forward(self, x=None):
        return {"loss": self.layers(x).square().mean()}


class Seen(TrainerCallback):
    """Notes after each step which weights this rank has."""

    def __init__(self):
        self.steps = []

    def on_step_end(self, args, state, control, model=None, **_):
        weights = [getattr(weight, "ds_tensor", weight) for weight in model.parameters()]
        bits = [weight.detach().numpy().tobytes().hex() for weight in weights]
        self.steps.append({"step": state.global_step, "bits": bits})


def samples(asked, ranks):
    chance = torch.Generator().manual_seed(3)
    made = [torch.randn(SIZE, generator=chance) for _ in range(ranks * BATCH * asked["steps"])]
    for step in asked["bad"]:
        made[(step - 1) * BATCH * ranks + (ranks - 1) * BATCH][0] = float("inf")
    return [{"x": each} for each in made]


class InOrder(Trainer):
    """Reads the samples as they stand."""

    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def main(folder, asked):
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    arguments = TrainingArguments(
        output_dir=folder, per_device_train_batch_size=BATCH, max_steps=asked["steps"], learning_rate=0.01, seed=7,
        use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no", logging_strategy="no", optim="adamw_torch",
        deepspeed={
            "zero_optimization": {"stage": asked["stage"]}, "train_micro_batch_size_per_gpu": BATCH,
            "zero_allow_untested_optimizer": True, "gradient_clipping": 1.0,
        },
    )  # fmt: skip
    torch.manual_seed(5)
    seen, events = Seen(), []
    trainer = InOrder(model=Small(Config()), args=arguments, train_dataset=samples(asked, ranks), callbacks=[seen])
    attached = None
    if not asked.get("without"):
        tell = lambda kind, /, *, step, **_: events.append([kind.value, step])  # noqa: E731
        attached = attach(trainer, output=folder, count_threshold=asked.get("count", 10), sinks=[tell])
    trainer.train()
    (Path(folder) / f"rank{rank}.json").write_text(json.dumps({
        "seen": seen.steps,
        "events": events,
        "ends": trainer.state.global_step,
        "stopped": str(attached.stopped) if attached and attached.stopped else None,
        "kind": type(trainer.model_wrapped).__name__,
    }))  # fmt: skip


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    main(sys.argv[1], json.loads(sys.argv[2]))
