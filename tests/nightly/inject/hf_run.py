"""Train a small model with Hugging Face's Trainer, and print which samples it read, and with which step it began.

    python hf_run.py OUT MICRO ACCUMULATION STEPS [RESUME]

Each sample holds its own number, so that the batches tell what was read. RESUME is a path, or `True`.
"""

import json
import sys

import torch
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments

SAMPLES = 40


class Config(PretrainedConfig):
    """Of a model with one layer."""

    model_type = "small"


class Small(PreTrainedModel):
    """One layer."""

    config_class = Config

    def __init__(self, config):
        super().__init__(config)
        self.layer = torch.nn.Linear(1, 1)
        self.read = []
        self.post_init()

    def _init_weights(self, module):
        del module

    def forward(self, number=None, labels=None):
        self.read += [int(each) for each in number.flatten()]
        out = self.layer(number / SAMPLES)
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}


class Data(torch.utils.data.Dataset):
    """Samples that are numbers."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return {"number": torch.tensor([float(index)]), "labels": torch.tensor([1.0])}


class Began(TrainerCallback):
    """Notes the step with which training begins."""

    step = None

    def on_train_begin(self, args, state, control, **beside):
        del args, control, beside
        self.step = state.global_step


def main():
    """Train, and print."""
    out, micro, accumulation, steps, *resume = sys.argv[1:]
    began, model = Began(), Small(Config())
    arguments = TrainingArguments(
        output_dir=out, per_device_train_batch_size=int(micro), gradient_accumulation_steps=int(accumulation),
        max_steps=int(steps), save_steps=4, logging_steps=1, learning_rate=0.01, use_cpu=True, report_to=[], seed=7,
        disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=Data(), callbacks=[began])
    named = resume[0] if resume else None
    trainer.train(resume_from_checkpoint=named == "True" or named)
    print(json.dumps({"step": began.step, "read": model.read}))


if __name__ == "__main__":
    main()
