"""Train a little with Accelerate, or resume from a folder, and print as JSON what was read first and at which step.

python accelerate_run.py PROJECT STEPS [FOLDER ITERATION]: samples are whole numbers in their order, four a batch and 40
an epoch; FOLDER `-` leaves the choice to Accelerate.
"""

import json
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from torch.utils.data import DataLoader

PROJECT, STEPS, *RESUME = sys.argv[1:]
SAMPLES, BATCH, EVERY = 40, 4, 4


class Progress:
    """What the script itself counts."""

    def __init__(self):
        self.step = 0

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]


iteration = int(RESUME[1]) if len(RESUME) > 1 else 0
configuration = ProjectConfiguration(project_dir=PROJECT, automatic_checkpoint_naming=True, iteration=iteration)
accelerator = Accelerator(project_config=configuration, cpu=True)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(torch.arange(SAMPLES, dtype=torch.float32).reshape(-1, 1), batch_size=BATCH)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
progress = Progress()
accelerator.register_for_checkpointing(progress)
if RESUME:
    accelerator.load_state(None if RESUME[0] == "-" else RESUME[0])
began, first = progress.step, None
while progress.step < int(STEPS):
    done = progress.step % len(loader)
    for batch in accelerator.skip_first_batches(loader, done) if done else loader:
        first = first or batch.flatten().int().tolist()
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        progress.step += 1
        if progress.step % EVERY == 0:
            accelerator.save_state()
        if progress.step == int(STEPS):
            break
print(json.dumps({"step": began, "batch": first}))
