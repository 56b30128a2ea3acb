"""Train a little with Lightning while the device errs, and print as JSON the causes and what the training collected.

python lightning_recheck.py FOLDER JSON: the settings are `fault` (once, always or none), `precision` (32-true or
bf16-mixed), `accumulate`, `again` (whether a suspicious step may be computed again) and `strike` (whether a strike is
reported before the third step).
"""

import hashlib
import json
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import lightning
import torch
import torchmetrics
from torch import nn
from torch.utils.data import DataLoader

import ckpttool
from ckpttool.core.domain.guarding import GuardEventKind
from ckpttool.guard import CaptureBudget, CaptureSettings
from ckpttool.guard.adapters.lightning import LightningGuard
from tests.guard.faulty import FaultyDevice

warnings.simplefilter("ignore")
torch.set_num_threads(1)
STEPS, PRODUCTS = 6, 2  # addmm in each forward pass


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 3))
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=3)
        self.losses = []
        self.indices = []

    def training_step(self, batch, index):
        x, labels = batch
        logits = self.layers(x)
        loss = nn.functional.cross_entropy(logits, labels)
        self.accuracy(logits.nan_to_num(), labels)
        self.log("accuracy", self.accuracy, on_epoch=True)
        self.log_dict({"loss": loss.nan_to_num(), "index": float(index)}, on_epoch=True, on_step=False)
        self.losses.append(loss.detach())
        self.indices.append(index)
        return {"loss": loss}

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Striking(lightning.Callback):
    """Reports a strike before the third step, in which all is well."""

    def __init__(self, guard):
        self.guard = guard

    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == 2 and not hasattr(self, "told"):
            self.told = True
            self.guard.guards[0].tell(GuardEventKind.SDC_STRIKE, step=2, rank=0)


def main(folder, asked):
    lightning.seed_everything(5, verbose=False)
    count = 8 * STEPS * asked["accumulate"]
    data = list(zip(torch.randn(count, 6), torch.randint(3, (count,)), strict=True))
    budget = CaptureBudget() if asked["again"] else CaptureBudget(reruns=0)
    guard = LightningGuard(output=folder, capture=CaptureSettings(budget=budget))
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=STEPS,
        accumulate_grad_batches=asked["accumulate"],
        gradient_clip_val=1.0,
        precision=asked["precision"],
        callbacks=[guard, *([Striking(guard)] if asked["strike"] else [])],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Model()
    after = 2 * PRODUCTS * asked["accumulate"]  # the third step is the bad one
    times = {"once": 1, "always": 1_000_000, "none": 0}[asked["fault"]]
    fault = FaultyDevice(
        "aten.addmm.default", lambda result: result.view(-1)[:1].fill_(torch.nan), times=times, after=after
    )
    with fault if times else nullcontext():
        trainer.fit(model, DataLoader(data, batch_size=8))
    for each in guard.guards:
        each.close()
    report = ckpttool.library.guard_report(folder)
    digest = hashlib.sha256()
    for value in (*model.state_dict().values(), torch.get_rng_state(), *model.accuracy.metric_state.values()):
        digest.update(value.numpy().tobytes())
    return {
        "causes": [[each.step, each.cause.value, each.why] for each in report.attributions],
        "logged": {name: float(value) for name, value in trainer.callback_metrics.items()},
        "losses": len(model.losses),
        "indices": model.indices,
        "digest": digest.hexdigest(),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], json.loads(sys.argv[2]))))
