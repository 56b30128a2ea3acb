"""Train a little in a loop with Accelerate and the guard, as the manual has it, and print as JSON what came of it.

python accelerate_guard.py FOLDER JSON: the settings are `precision` (no or bf16), `bad` (the micro-batch, from 0, that
holds a NaN, or null), `resume` (whether to go on from the state that the run before saved) and `without` (no guard in
the code: then it prints the bits of weights and moments after each step).
"""

import json
import math
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
from accelerate import Accelerator
from torch import nn

from ckpttool.guard import Guard, ReplayTask

warnings.simplefilter("ignore")
torch.set_num_threads(1)
BATCH, ACCUMULATE, MICRO_BATCHES = 4, 2, 12


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 1))

    def forward(self, items):
        return self.layers(items).squeeze(-1)


def loss_of(model, batch):
    return (model(batch) - batch.sum(1)).square().mean()


class GuardState:
    """What Accelerate saves and loads of the guard."""

    def __init__(self, guard):
        self.guard = guard

    def state_dict(self):
        return {"guard": self.guard.saved()}

    def load_state_dict(self, state):
        self.guard.restore(state["guard"])


def replay(capture):
    settings = dict(capture.run_config)
    model = Accelerator(mixed_precision=settings["precision"], cpu=True).prepare_model(Net())
    return ReplayTask(model=model, loss=lambda batch: loss_of(model, batch) / ACCUMULATE)


def main(folder, asked):
    from ckpttool.guard import CaptureSettings

    torch.manual_seed(0)
    accelerator = Accelerator(mixed_precision=asked["precision"], gradient_accumulation_steps=ACCUMULATE, cpu=True)
    items = torch.randn(BATCH * MICRO_BATCHES, 6, generator=torch.Generator().manual_seed(3))
    if asked["bad"] is not None:
        items[asked["bad"] * BATCH, 0] = math.nan
    model = Net()
    loader = torch.utils.data.DataLoader(items, batch_size=BATCH)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01), loader)
    events, untouched = [], []
    guard = Guard(
        model,
        optimizer,
        output=folder,
        scaler=accelerator.scaler,
        capture=CaptureSettings(run_config={"precision": asked["precision"]}),
        sinks=[lambda kind, /, *, step, **_: events.append([kind.value, step])],
    )
    accelerator.register_for_checkpointing(GuardState(guard))
    if asked["resume"]:
        accelerator.load_state(f"{folder}/state")
    began = guard.step
    for batch in loader:
        with accelerator.accumulate(model):
            with guard.micro(batch) as micro:
                loss = loss_of(model, batch)
                micro.loss(loss / accelerator.gradient_accumulation_steps)
                accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.unscale_gradients()
                guard.clip_(1.0)
            before = [parameter.detach().clone() for parameter in model.parameters()]
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients and not guard.applied:
            untouched.append(all(map(torch.equal, before, model.parameters())))
    accelerator.save_state(f"{folder}/state")
    values = [*model.parameters(), *(buffer for buffer in model.buffers() if buffer.is_floating_point())]
    return {
        "began": began,
        "step": guard.step,
        "dropped": guard.saved()["dropped"],
        "events": [event for event in events if event[0] != "step"],
        "untouched": untouched,
        "finite": all(bool(value.isfinite().all()) for value in values),
    }


def unguarded(asked):
    """Train as a loop that knows no guard."""
    torch.manual_seed(0)
    accelerator = Accelerator(mixed_precision=asked["precision"], gradient_accumulation_steps=ACCUMULATE, cpu=True)
    items = torch.randn(BATCH * MICRO_BATCHES, 6, generator=torch.Generator().manual_seed(3))
    if asked["bad"] is not None:
        items[asked["bad"] * BATCH, 0] = math.nan
    model = Net()
    loader = torch.utils.data.DataLoader(items, batch_size=BATCH)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01), loader)
    bits = []
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            moments = [value for each in optimizer.state_dict()["state"].values() for value in each.values()]
            values = [*model.parameters(), *model.buffers(), *moments]
            bits.append([value.detach().numpy().tobytes().hex() for value in values])
    return {"seen": [{"step": step, "bits": each} for step, each in enumerate(bits, 1)]}


if __name__ == "__main__":
    settings = json.loads(sys.argv[2])
    if settings.get("without"):
        print(json.dumps(unguarded(settings)))
        sys.exit()
    print(json.dumps(main(sys.argv[1], json.loads(sys.argv[2]))))
