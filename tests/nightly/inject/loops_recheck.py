"""Train a little while the device errs, and print as JSON the causes and a digest of what was trained.

python loops_recheck.py FOLDER JSON: the settings are `trainer` (huggingface, accelerate, or unaware: a loop that knows
nothing of the guard, of which CKPTTOOL_GUARD is set), `fault` (once or none), `strike` (whether one is reported before
the third step), `precision` (no or bf16) and `accumulate`.
"""

import hashlib
import json
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
from torch import nn

import ckpttool
from ckpttool.core.domain.guarding import GuardEventKind
from ckpttool.guard import CaptureSettings, Guard
from tests.guard.faulty import FaultyDevice

warnings.simplefilter("ignore")
torch.set_num_threads(1)
STEPS, BATCH, PRODUCTS = 6, 4, 2
GUARDS = []


class Net(nn.Module):
    """Returns its loss, as models of libraries do."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 3))
        self.calls = 0

    def forward(self, items, labels):
        self.calls += 1
        logits = self.layers(items)
        return {"loss": nn.functional.cross_entropy(logits.float(), labels), "logits": logits}


def strike(asked, step):
    if asked["strike"] and step == 2:
        for guard in GUARDS:
            guard.tell(GuardEventKind.SDC_STRIKE, step=2, rank=0)


def huggingface(folder, asked, data, model):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from ckpttool.guard.adapters.huggingface import attach

    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=asked["accumulate"],
        bf16=asked["precision"] == "bf16",
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    attached = attach(trainer, output=folder)

    class Striking(TrainerCallback):
        def on_step_begin(self, _args, state, _control, **_):
            GUARDS[:] = [attached.guard]
            strike(asked, state.global_step)

    trainer.add_callback(Striking())
    trainer.train()


def accelerate(folder, asked, data, model):
    from accelerate import Accelerator

    accelerator = Accelerator(
        mixed_precision=asked["precision"], gradient_accumulation_steps=asked["accumulate"], cpu=True
    )
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01), loader)
    capture = CaptureSettings(loss_of=lambda model, batch: model(**batch)["loss"] / asked["accumulate"])
    guard = Guard(model, optimizer, output=folder, scaler=accelerator.scaler, capture=capture)
    GUARDS.append(guard)
    for number, batch in enumerate(loader):
        strike(asked, guard.step if number % asked["accumulate"] == 0 else None)
        with accelerator.accumulate(model):
            with guard.micro(batch) as micro:
                loss = model(**batch)["loss"]
                micro.loss(loss / accelerator.gradient_accumulation_steps)
                accelerator.backward(loss)
            if accelerator.sync_gradients:
                guard.clip_(1.0)
            optimizer.step()
            optimizer.zero_grad()
    guard.close()


def unaware(folder, asked, data, model):
    from ckpttool.guard.adapters import automatic
    from ckpttool.guard.switch import Switch

    installed = automatic.install(Switch(output=folder))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    micro_batches = iter(torch.utils.data.DataLoader(data, batch_size=BATCH))
    GUARDS[:] = installed._guards
    for step in range(STEPS):
        GUARDS[:] = installed._guards
        strike(asked, step)
        for _ in range(asked["accumulate"]):
            batch = next(micro_batches)
            with torch.autocast("cpu", torch.bfloat16, enabled=asked["precision"] == "bf16"):
                out = model(batch["items"], labels=batch["labels"])
            (out["loss"] / asked["accumulate"]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    for guard in installed._guards:
        guard.close()


def main(folder, asked):
    torch.manual_seed(5)
    count = BATCH * STEPS * asked["accumulate"]
    items, labels = torch.randn(count, 6), torch.randint(3, (count,))
    data = [{"items": item, "labels": label} for item, label in zip(items, labels, strict=True)]
    model = Net()
    times = {"once": 1, "none": 0}[asked["fault"]]
    after = 2 * PRODUCTS * asked["accumulate"]  # the third step is the bad one
    fault = FaultyDevice(
        "aten.addmm.default", lambda result: result.view(-1)[:1].fill_(torch.nan), times=times, after=after
    )
    with fault if times else nullcontext():
        {"huggingface": huggingface, "accelerate": accelerate, "unaware": unaware}[asked["trainer"]](
            folder, asked, data, model
        )
    for guard in GUARDS:
        guard.close()
    report = ckpttool.library.guard_report(folder)
    digest = hashlib.sha256()
    for value in (*model.state_dict().values(), torch.get_rng_state()):
        digest.update(value.numpy().tobytes())
    return {
        "causes": [[each.step, each.cause.value, each.why] for each in report.attributions],
        "calls": model.calls,
        "digest": digest.hexdigest(),
        "errors": report.errors,
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], json.loads(sys.argv[2]))))
