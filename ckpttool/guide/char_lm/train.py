"""Train a small character model under a guard. The same command continues from the newest save.

Two of its batches are bad. Batch 150 has a weight of 200, so its gradient is a hundred times too large. Batch 220
contains only padding. The mean over no targets is NaN, while all gradients are finite zeros, which no check of
gradients detects.
"""

from __future__ import annotations

import argparse
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import ckpttool
from ckpttool.guard import Guard, ReplayTask, RobustZPolicy

TEXT = (Path(__file__).parent / "text.txt").read_text(encoding="utf-8")
LETTERS = sorted(set(TEXT))
LENGTH, BATCH, PADDING = 64, 16, -100


class CharModel(nn.Module):
    """A transformer with two layers that predicts characters."""

    mask: Tensor

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(len(LETTERS), width), nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, len(LETTERS))
        self.nll = nn.CrossEntropyLoss(ignore_index=PADDING)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return the loss, which is the weighted mean over all targets that are not padding."""
        hidden = self.letters(batch["letters"]) + self.places.weight
        scores = self.head(self.layers(hidden, mask=self.mask, is_causal=True))
        loss: Tensor = batch["weight"] * self.nll(scores.flatten(0, 1), batch["targets"].flatten())
        return loss


class Batches:
    """An endless sequence of batches.

    Its state is the number of yielded batches, so a resumed run continues with the next.
    """

    def __init__(self) -> None:
        self.handed_out = 0
        self.text = torch.tensor([LETTERS.index(letter) for letter in TEXT])

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        while True:
            self.handed_out += 1
            chance = torch.Generator().manual_seed(self.handed_out)
            begins = torch.randint(len(self.text) - LENGTH, (BATCH,), generator=chance)
            windows = torch.stack([self.text[begin : begin + LENGTH + 1] for begin in begins])
            batch = {"letters": windows[:, :-1], "targets": windows[:, 1:].clone(), "weight": torch.tensor(1.0)}
            if self.handed_out == 150:
                batch["weight"].fill_(200)
            if self.handed_out == 220:
                batch["targets"].fill_(PADDING)
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return the number of yielded batches."""
        return {"handed_out": self.handed_out}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.handed_out = state["handed_out"]


def train(output: str, steps: int, kill_at: int | None) -> None:
    """Train until a step, and save every 50 steps."""
    torch.set_num_threads(1)  # two that wait for each other on a busy machine take ten times as long
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(1)
    model, loader = CharModel(), Batches()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    guard = Guard(model, optimizer, output=output, policy=RobustZPolicy())
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader, "guard": guard}
    resumed = ckpttool.resume_training(output, **parts, fresh_ok=True)
    print(f"resumed from {resumed.checkpoint}" if resumed.checkpoint else "a fresh start")
    with ckpttool.checkpoint_writer(output, prefix="char_lm", **parts, global_batch_size=BATCH) as writer:
        for batch in resumed.batches(loader):
            if guard.step >= steps:
                break
            with guard.micro(batch) as micro:
                loss = micro.loss(model(batch))
                loss.backward()
            norm = guard.clip_(max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
            if guard.step % 50 == 0 or not guard.applied:
                dropped = "" if guard.applied else "  dropped"
                print(f"step {guard.step:3d}  loss {loss:8.4f}  norm {norm:6.2f}{dropped}", flush=True)
            if guard.step % 50 == 0:
                writer.save()
            if guard.step == kill_at:
                signal.raise_signal(signal.SIGKILL)


def replay(_capture: object) -> ReplayTask:
    """Return the objects of a step, for `ckpttool guard replay`."""
    model = CharModel()
    return ReplayTask(model=model, loss=model)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="output", help="where to save [default: output]")
    parser.add_argument("--steps", type=int, default=300, help="train until this step [default: 300]")
    parser.add_argument("--kill-at", type=int, help="kill this process, as `kill -9` does, behind this step")
    train(**vars(parser.parse_args()))
