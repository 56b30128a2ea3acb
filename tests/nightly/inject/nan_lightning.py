"""Train with Lightning and the guard until a step is not finite, or compute it again and print it as JSON.

python nan_lightning.py train FOLDER PRECISION, or replay FOLDER. Spectral norm, batch norm, dropout, accumulation of 2.
"""

import json
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import lightning
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import DataLoader, TensorDataset

import ckpttool
from ckpttool.guard.adapters.lightning import LightningGuard
from ckpttool.types import NanQuestion

warnings.simplefilter("ignore")


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.first = spectral_norm(nn.Linear(8, 8))
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.3)
        self.last = nn.Linear(8, 1)

    def training_step(self, batch, _):
        items, wanted, weight = batch
        told = self.last(self.drop(self.norm(torch.relu(self.first(items))))).squeeze(-1)
        loss = ((told - wanted).square() * weight).sqrt().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def replay(_capture):
    return Model()


def train(folder, precision):
    lightning.seed_everything(3, verbose=False)
    weight = torch.ones(96)
    weight[60] = 0
    data = TensorDataset(torch.randn(96, 8), torch.randn(96), weight)
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        precision=precision,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[LightningGuard(output=folder)],
    )
    trainer.fit(Model(), DataLoader(data, batch_size=8))


if __name__ == "__main__":
    if sys.argv[1] == "train":
        train(*sys.argv[2:])
        print("{}")
    else:
        question = NanQuestion(path=sys.argv[2], entry="nan_lightning:replay", exact=True)
        print(json.dumps(ckpttool.library.replay_nan(question).to_dict()))
