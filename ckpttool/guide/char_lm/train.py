"""Train a small character model, with two bad batches on its way.

Batch 150 has a weight of 200: its gradient is a hundred times too large. Batch 220 is padding only: the mean over no
target is NaN, while all gradients are finite zeros, which no check of gradients sees.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ckpttool.guard import Guard, RobustZPolicy

TEXT = (Path(__file__).parent / "text.txt").read_text(encoding="utf-8")
LETTERS = sorted(set(TEXT))
LENGTH, BATCH, PADDING = 64, 16, -100


class CharModel(nn.Module):
    """Two layers of a transformer over single letters."""

    mask: Tensor

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), width)
        self.places = nn.Embedding(LENGTH, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.head = nn.Linear(width, len(LETTERS))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, letters: Tensor) -> Tensor:
        """Return what it expects behind each letter: (batch, length, letters)."""
        hidden = self.letters(letters) + self.places.weight
        for layer in self.layers:
            hidden = layer(hidden, src_mask=self.mask, is_causal=True)
        scores: Tensor = self.head(hidden)
        return scores


class Batches:
    """Batches without end, in an order that is one number's; `state_dict` says where it stands, as a resume needs."""

    def __init__(self) -> None:
        self.handed_out = 0
        index = {letter: number for number, letter in enumerate(LETTERS)}
        self.text = torch.tensor([index[letter] for letter in TEXT])

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
        """Return how many batches were handed out."""
        return {"handed_out": self.handed_out}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on behind what was handed out."""
        self.handed_out = state["handed_out"]


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return the weighted mean over all targets that are no padding."""
    scores = model(batch["letters"]).flatten(0, 1)
    return batch["weight"] * functional.cross_entropy(scores, batch["targets"].flatten(), ignore_index=PADDING)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="output", help="where to save [default: output]")
    parser.add_argument("--steps", type=int, default=300, help="train until this step [default: 300]")
    parser.add_argument("--kill-at", type=int, help="kill this process, as `kill -9` does, behind this step")
    asked = parser.parse_args()
    torch.set_num_threads(1)  # two that wait for each other on a busy machine take ten times as long
    torch.manual_seed(1)
    model, loader = CharModel(), Batches()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    guard = Guard(model, optimizer, output=asked.output, policy=RobustZPolicy())
    for batch in loader:
        with guard.micro(batch) as micro:
            loss = micro.loss(loss_of(model, batch))
            loss.backward()
        norm = guard.clip_(max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        if guard.step % 50 == 0 or not guard.applied:
            dropped = "" if guard.applied else "  dropped"
            print(f"step {guard.step:3d}  loss {loss:8.4f}  norm {norm:6.2f}{dropped}")
        if guard.step == asked.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if guard.step == asked.steps:
            return


if __name__ == "__main__":
    main()
