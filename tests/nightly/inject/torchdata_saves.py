"""Train with torchdata's loader, save on the way, and print as JSON which batches were seen and what the weights are.

python torchdata_saves.py FOLDER WORKERS plain|seeded STEPS: goes on from what lies in FOLDER. Each item is augmented
at random, in the workers where there are some.
"""

import hashlib
import json
import sys
import warnings
from pathlib import Path

import torch
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import ckpttool
from ckpttool.guard import SeededByIndex

warnings.simplefilter("ignore")
FOLDER, WORKERS, SEEDED, STEPS = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "seeded", int(sys.argv[4])
EPOCH, SAVED_AT = 10, (17, 20)


class Noisy:
    def __len__(self):
        return 4 * EPOCH

    def __getitem__(self, index):
        return torch.full((6,), float(index)) + torch.randn(6)


torch.set_num_threads(1)
torch.manual_seed(0)
data = SeededByIndex(Noisy(), 7) if SEEDED else Noisy()
loader = StatefulDataLoader(data, batch_size=4, shuffle=True, num_workers=WORKERS)
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))
objects = {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.01), "loader": loader}
resumed = ckpttool.resume_training(FOLDER, **objects, fresh_ok=True)
step, epoch, order = resumed.step, resumed.epoch, []
with ckpttool.checkpoint_writer(FOLDER, prefix="run", **objects, steps_per_epoch=EPOCH) as writer:
    while step < STEPS:
        if SEEDED:
            data.set_epoch(epoch)
        for batch in resumed.batches(loader):
            order.append(hashlib.sha256(batch.numpy().tobytes()).hexdigest())
            objects["optimizer"].zero_grad()
            model(batch).square().mean().backward()
            objects["optimizer"].step()
            step += 1
            if step in SAVED_AT:
                writer.save(step=step, background=True)
            if step == STEPS:
                break
        epoch += 1
content = b"".join(value.contiguous().numpy().tobytes() for value in model.state_dict().values())
print(json.dumps({"from": resumed.step, "order": order, "bits": hashlib.sha256(content).hexdigest()}))
