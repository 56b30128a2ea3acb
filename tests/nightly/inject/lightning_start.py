"""Start Lightning in many trees, and print how each start began.

    python lightning_start.py < STARTS

A line of STARTS is JSON: `tree`, the folder of the saves, and `resume`, the `ckpt_path` of the fit. Each answer is a
line: the step, whether the optimizer holds what was saved, and the first batch; or the error.
"""

import json
import sys
import warnings

answers, sys.stdout = sys.stdout, sys.stderr

import lightning  # noqa: E402
import torch  # noqa: E402
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: E402

SAMPLES, BATCH = 40, 4
warnings.simplefilter("ignore")


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(1, 1)
        self.first = None

    def training_step(self, batch, _):
        if self.first is None:
            self.first = {
                "step": self.global_step, "batch": batch.flatten().int().tolist(),
                "optimizer": len(self.optimizers().optimizer.state) > 0,
            }  # fmt: skip
        self.trainer.should_stop = True
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


def start(tree, resume):
    data = torch.arange(SAMPLES, dtype=torch.float32).reshape(-1, 1)
    saves = ModelCheckpoint(dirpath=tree, every_n_train_steps=100, save_top_k=-1, save_last=True)
    trainer = lightning.Trainer(
        accelerator="cpu", max_steps=30, min_steps=0, callbacks=[saves], logger=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tree,
    )  # fmt: skip
    model = Model()
    try:
        trainer.fit(model, StatefulDataLoader(data, batch_size=BATCH), ckpt_path=resume)
    except Exception as error:  # noqa: BLE001  whatever it stops with is the answer
        return {"error": f"{type(error).__name__}: {error}"}
    return model.first or {"error": "no step was done"}


torch.set_num_threads(1)
for line in sys.stdin:
    print(json.dumps(start(**json.loads(line))), file=answers, flush=True)
