"""Train with Hugging Face's Trainer and the guard until a step is not finite, or compute it again and print it as JSON.

python nan_hf.py train FOLDER PRECISION, or replay FOLDER. GPT-2 with dropout, accumulation of two; step 3 is padding.
"""

import json
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import ckpttool
from ckpttool.guard.adapters.huggingface import attach
from ckpttool.types import NanQuestion

warnings.simplefilter("ignore")
PADDING = set(range(16, 24))


def make():
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=50, n_positions=32))


def replay(_capture):
    return make()


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        letters = torch.randint(0, 50, (16,), generator=torch.Generator().manual_seed(index))
        labels = torch.full_like(letters, -100) if index in PADDING else letters.clone()
        return {"input_ids": letters, "labels": labels}


class InOrder(Trainer):
    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def train(folder, precision):
    torch.manual_seed(1)
    arguments = TrainingArguments(
        f"{folder}/trainer",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=6,
        bf16=precision == "bf16",
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    trainer = InOrder(model=make(), args=arguments, train_dataset=Data())
    attach(trainer, output=folder)
    trainer.train()


if __name__ == "__main__":
    if sys.argv[1] == "train":
        train(*sys.argv[2:])
        print("{}")
    else:
        question = NanQuestion(path=sys.argv[2], entry="nan_hf:replay", exact=True)
        print(json.dumps(ckpttool.library.replay_nan(question).to_dict()))
