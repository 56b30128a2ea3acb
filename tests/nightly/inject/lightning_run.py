"""Train a little with Lightning, or resume from a path, and print as JSON what was read first and at which step.

python lightning_run.py FOLDER plain|stateful STEPS [CKPT_PATH]: samples are whole numbers in their order, four a batch
and 40 an epoch, so that the first batch says where the data stand.
"""

import json
import sys
import warnings

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

warnings.simplefilter("ignore")
FOLDER, LOADER, STEPS, *PATH = sys.argv[1:]
SAMPLES, BATCH = 40, 4


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(1, 1)
        self.first = None

    def training_step(self, batch, _):
        if self.first is None:
            samples = batch.flatten().int().tolist()
            self.first = {"step": self.global_step, "epoch": self.current_epoch, "batch": samples}

        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


def loader():
    data = torch.arange(SAMPLES, dtype=torch.float32).reshape(-1, 1)
    if LOADER == "plain":
        return DataLoader(data, batch_size=BATCH)
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(data, batch_size=BATCH)


saves = ModelCheckpoint(dirpath=f"{FOLDER}/checkpoints", every_n_train_steps=4, save_top_k=-1, save_last=True)
trainer = lightning.Trainer(
    accelerator="cpu",
    max_steps=int(STEPS),
    callbacks=[saves],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    default_root_dir=FOLDER,
)
model = Model()
trainer.fit(model, loader(), ckpt_path=PATH[0] if PATH else None)
print(json.dumps({**(model.first or {}), "ends": trainer.global_step}))
