"""Train a little with Lightning and the guard, with bad batches, and print as JSON what its saves and events tell.

python lightning_guard.py FOLDER JSON: the settings are `precision` (32, bf16 or 16 with a loss scaler), `accumulate`,
`clip`, `steps`, `bad` ({"step": "inf" | "padding" | "spike"}), `count` (dropped in a row until it stops), `resume` (a
checkpoint), `begin` (steps whose data are left out), `least` (steps before which nothing stops it) and `without` (the
guard). Each step is saved.
"""

import json
import math
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn
from torch.utils.data import DataLoader

from ckpttool.guard import GuardStop, SkipPolicy
from ckpttool.guard.adapters.lightning import LightningGuard

warnings.simplefilter("ignore")
torch.set_num_threads(1)
BATCH, CLASSES, MOST_STEPS = 8, 5, 12


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, CLASSES))

    def training_step(self, batch, _):
        x, labels, weight = batch
        return weight.mean() * nn.functional.cross_entropy(self.layers(x), labels, ignore_index=-100)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 5), "interval": "step"}]


def samples(asked):
    chance = torch.Generator().manual_seed(3)
    count = BATCH * asked["accumulate"] * MOST_STEPS
    x = torch.randn(count, 6, generator=chance)
    labels = torch.randint(CLASSES, (count,), generator=chance)
    weight = torch.ones(count)
    for step, kind in asked["bad"].items():
        begin = (int(step) * asked["accumulate"] - 1) * BATCH  # of its last micro-batch
        if kind == "inf":
            x[begin, 0] = math.inf
        elif kind == "padding":
            labels[begin : begin + BATCH] = -100
        else:
            weight[begin : begin + BATCH] = 1000.0
    # After a resume, a plain loader begins the epoch again.
    return list(zip(x, labels, weight, strict=True))[asked.get("begin", 0) * BATCH * asked["accumulate"] :]


def flat(value, path=""):
    """Yield every number and tensor of a saved state with its path."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for key, inner in enumerate(value):
            yield from flat(inner, f"{path}.{key}")
    elif isinstance(value, (torch.Tensor, int, float)):
        yield path, torch.as_tensor(value)


def shown(path):
    """Return of one checkpoint what the test asks: its step, updates, finiteness, and its bytes."""
    saved = torch.load(path, weights_only=True)
    kept = dict(flat({"model": saved["state_dict"], "optimizer": saved["optimizer_states"][0]["state"]}))
    return {
        "step": saved["global_step"],
        "updates": int(next((value for name, value in kept.items() if name.endswith("step")), 0)),
        "finite": all(bool(torch.isfinite(value).all()) for value in kept.values()),
        "bits": {name: value.numpy().tobytes().hex() for name, value in kept.items()},
        "guard": saved["callbacks"].get("LightningGuard"),
    }


def replay(_):
    """Return the model as it was built: an entry for `ckpttool guard replay`."""
    return Model()


def main(folder, asked):
    precision = {"32": "32-true", "bf16": "bf16-mixed", "16": None}[asked["precision"]]
    scaled = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**10))
    saves = ModelCheckpoint(dirpath=f"{folder}/checkpoints", every_n_train_steps=1, save_top_k=-1, filename="{step}")
    events = []

    def tell(kind, /, **values):
        events.append({"kind": kind.value, **{name: str(value) for name, value in values.items()}})

    policy = SkipPolicy(threshold=100.0)
    guard = LightningGuard(policy=policy, count_threshold=asked.get("count", 10), sinks=[tell], output=folder)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=asked["steps"],
        accumulate_grad_batches=asked["accumulate"],
        gradient_clip_val=asked["clip"],
        min_steps=asked.get("least"),
        callbacks=[saves] if asked.get("without") else [guard, saves],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **({"precision": precision} if precision else {"plugins": [scaled]}),
    )
    lightning.seed_everything(5, verbose=False)
    model = Model()
    stopped = None
    try:
        trainer.fit(model, DataLoader(samples(asked), batch_size=BATCH), ckpt_path=asked.get("resume"))
    except GuardStop as stop:
        stopped = str(stop)
    checkpoints = sorted(map(shown, Path(folder, "checkpoints").glob("*.ckpt")), key=lambda each: each["step"])
    print(json.dumps({"ends": trainer.global_step, "checkpoints": checkpoints, "events": events, "stopped": stopped}))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
