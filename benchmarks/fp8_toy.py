r"""A small training in FP8 that goes wrong, and the experiments that show why: the worked example of `ckpttool fp8`.

    python benchmarks/fp8_toy.py train OUT        bf16, bf16_regrouped and fp8, a folder each: about a minute
    python benchmarks/fp8_toy.py run PLAN TRAINED experiments of `ckpttool fp8 plan --framework te`, without a log yet
    python benchmarks/fp8_toy.py table OUT        all sets of products, and three cures, into the guide: four minutes

A transformer of two layers learns the text of Python's standard library. Each of its linear layers quantises the six
operands of its three matrix products to E4M3, with delayed scaling. The loss of one step is a million times too large,
as after a wrong weight of a batch; the clip of the gradient's norm hides that from the optimizer, but the scales of the
gradients keep it for the 1,024 steps of their history: all later gradients round to zero.

Products are computed in 32 bits from operands that were rounded (to FP8 or to BF16), on one thread of a CPU. Saves are
in the format of torch.distributed.checkpoint and include the histories of the scales; a run starts from one as any
training does. With a debug config it does the same as Transformer Engine's features, and logs each operand as
nvdlfw-inspect does.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import torch
import yaml
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ckpttool.fp8.model.fp8 import OPERANDS, Arithmetic, Gemm, Operand

PAGE = Path(__file__).resolve().parent.parent / "ckpttool" / "guide" / "fp8.md"
BEGIN, END = "<!-- toy:begin -->", "<!-- toy:end -->"
LAYERS, WIDTH, HEADS, CONTEXT, LETTERS, BATCH = 2, 64, 4, 48, 256, 8
STEPS, RATE, SAVE_EVERY = 400, 3e-3, 10
BAD_STEP, BAD_WEIGHT = 20, 1e6
HISTORY = 1024
LOG, COLUMNS = "log.csv", ("step", "loss", "grad_norm", "learning_rate", "validation_loss")
LARGEST = 448.0  # of E4M3
TEXT_BYTES, VALIDATION_BYTES, VALIDATION_EVERY = 1 << 20, 1 << 15, 25

Cell = Mapping[tuple[Gemm, Operand], Arithmetic]
"""The cast of each of the six operands."""
WORDS = {Arithmetic.FP8: "Quantize", Arithmetic.BF16: "High Precision"}


def cell(*low: Gemm, as_: Arithmetic = Arithmetic.FP8, other: Arithmetic = Arithmetic.BF16) -> Cell:
    """Return the cell in which both operands of some products have one cast, and the others another."""
    return {
        (gemm, operand): as_ if gemm in low else other for gemm, operands in OPERANDS.items() for operand in operands
    }


def cell_of(features: Mapping[str, Any]) -> Cell:
    """Return the casts of the candidate's operands under the feature of a debug config."""
    ((feature, setting),) = features.items()
    changed = dict(cell(*Gemm))
    for gemm in map(Gemm, setting["gemms"]):
        for operand in OPERANDS[gemm]:
            if feature == "PerTensorScaling":
                if operand.value in setting["tensors"]:
                    changed[gemm, operand] = Arithmetic.CURRENT
            else:
                named = {each["tensor"] for each in setting.get("tensors_struct", ())}
                changed[gemm, operand] = Arithmetic.FAKE if operand.value in named else Arithmetic.BF16
    return changed


def to_fp8(values: Tensor, amax: Tensor) -> Tensor:
    """Round to E4M3 under the scale of a largest magnitude, and scale back."""
    scale = torch.where((amax > 0) & torch.isfinite(amax), LARGEST / amax, 1.0)
    return (values * scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).float() / scale


class Quantiser:
    """The cast of one operand of one product."""

    def __init__(self) -> None:
        self.history = torch.zeros(HISTORY)
        self.newest = torch.zeros(())

    def __call__(self, values: Tensor, arithmetic: Arithmetic) -> Tensor:
        """Return the operand in the form for the product."""
        if arithmetic is Arithmetic.BF16:
            return values.bfloat16().float()
        amax = values.abs().max()
        self.newest = torch.maximum(self.newest, amax)
        return to_fp8(values, self.history.max() if arithmetic is Arithmetic.FP8 else amax)

    def end_step(self) -> None:
        """Add the largest magnitude of this step to the history."""
        self.history = torch.cat((self.newest[None], self.history[:-1]))
        self.newest = torch.zeros(())


class _Products(torch.autograd.Function):
    """The three products of a linear layer."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, layer: Linear) -> Tensor:  # noqa: ANN401  torch's own
        ctx.save_for_backward(values, weight)
        ctx.layer = layer
        activation, by = layer.operands(Gemm.FPROP, {Operand.ACTIVATION: values, Operand.WEIGHT: weight})
        return activation @ by.T

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:  # noqa: ANN401  torch's own
        values, weight = ctx.saved_tensors
        gradient, by = ctx.layer.operands(Gemm.DGRAD, {Operand.GRADIENT: gradients[0], Operand.WEIGHT: weight})
        activation, back = ctx.layer.operands(Gemm.WGRAD, {Operand.ACTIVATION: values, Operand.GRADIENT: gradients[0]})
        return gradient @ by, back.T @ activation, None


class Linear(nn.Module):
    """A linear layer without a bias, of (rows, inputs); its state includes the histories of its scales."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * 0.02)
        self.cell = cell()
        self.quantisers = {site: Quantiser() for site in self.cell}

    def operands(self, gemm: Gemm, values: Mapping[Operand, Tensor]) -> Iterator[Tensor]:
        """Yield both operands of a product in the form for it."""
        for operand, value in values.items():
            yield self.quantisers[gemm, operand](value, self.cell[gemm, operand])

    def get_extra_state(self) -> Tensor:
        """Return the histories: (operands, steps)."""
        return torch.stack([quantiser.history for quantiser in self.quantisers.values()])

    def set_extra_state(self, state: Tensor) -> None:
        """Restore the histories."""
        for quantiser, history in zip(self.quantisers.values(), state, strict=True):
            quantiser.history = history.clone()

    def forward(self, values: Tensor) -> Tensor:
        """Multiply."""
        return cast("Tensor", _Products.apply(values, self.weight, self))  # type: ignore[no-untyped-call]


class Block(nn.Module):
    """A layer of the transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = Linear(WIDTH, 3 * WIDTH), Linear(WIDTH, WIDTH)
        self.fc1, self.fc2 = Linear(WIDTH, 4 * WIDTH), Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        """Attend and transform: (samples, context, width)."""
        samples = hidden.shape[0]
        heads = self.qkv(self.norm_1(hidden).flatten(0, 1)).view(samples, CONTEXT, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        query, key, value = heads
        attended = scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)
        hidden = hidden + self.proj(attended.reshape(-1, WIDTH)).view_as(hidden)
        inner = gelu(self.fc1(self.norm_2(hidden).flatten(0, 1)))
        out: Tensor = hidden + self.fc2(inner).view_as(hidden)
        return out


class Model(nn.Module):
    """A transformer over bytes; embedding and head are not for FP8, as in every recipe."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.position_embedding = nn.Embedding(LETTERS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, LETTERS)

    def forward(self, text: Tensor) -> Tensor:
        """Return the loss of samples: (samples, context + 1)."""
        hidden = self.embedding(text[:, :-1]) + self.position_embedding.weight
        for layer in self.layers:
            hidden = layer(hidden)
        return cross_entropy(self.head(self.norm(hidden)).flatten(0, 1), text[:, 1:].flatten())

    def linears(self) -> dict[str, Linear]:
        """Return the layers that FP8 affects, by name."""
        return {name: module for name, module in self.named_modules() if isinstance(module, Linear)}


def library_text() -> tuple[Tensor, Tensor]:
    """Return the bytes of the standard library to learn from, and some to validate with."""
    text = bytearray()
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += file.read_bytes()
        if len(text) >= TEXT_BYTES + VALIDATION_BYTES:
            break
    letters = torch.frombuffer(text, dtype=torch.uint8).long()
    return letters[:TEXT_BYTES], letters[TEXT_BYTES : TEXT_BYTES + VALIDATION_BYTES]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training."""

    folder: Path
    """Folder for its log and, if it saves, its checkpoints."""
    cell: Cell
    start: Path | None = None
    """The checkpoint from which it starts; None: from scratch."""
    keep_history: bool = True
    """Whether the scales continue with the histories of the checkpoint."""
    last: int = STEPS
    """The last step."""
    parts: int = 1
    """Number of micro-batches per batch."""
    debug: Mapping[str, Any] | None = None
    """A section of a debug config: `layers` and the feature that is active there."""
    saves: bool = False

    def __call__(self) -> Path:
        """Train, and return the log."""
        torch.manual_seed(1)
        torch.set_num_threads(1)
        self.folder.mkdir(parents=True, exist_ok=True)
        training = Training(self)
        log = self.folder / LOG
        with log.open("w", encoding="utf-8") as lines:
            lines.write(f"{','.join(COLUMNS)}\n")
            for step in range(training.begin(), self.last + 1):
                lines.write(f"{step},{training.step(step)}\n")
                if self.saves and step % SAVE_EVERY == 0:
                    training.save(step)
        if self.debug is not None:
            there = self.folder / "inspect" / "nvdlfw_inspect_logs"
            there.mkdir(parents=True, exist_ok=True)
            told = "".join(f"{line}\n" for line in training.operands())
            (there / "nvdlfw_inspect_globalrank-0.log").write_text(told, encoding="utf-8")
        return log


class Training:
    """A model, its optimizer and its data."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.model = Model()
        self._compute()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE)
        self.text, self.validation = library_text()

    def begin(self) -> int:
        """Load the checkpoint from which the run starts, and return the first step to do."""
        if self.run.start is None:
            return 1
        for group in self.optimizer.param_groups:  # its state must exist to be loaded into
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        state = self._state(step=0)
        load(state, checkpoint_id=self.run.start, no_dist=True)
        histories = [linear.get_extra_state() for linear in self.model.linears().values()]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if not self.run.keep_history:
            for linear, fresh in zip(self.model.linears().values(), histories, strict=True):
                linear.set_extra_state(fresh)
        return cast("int", state["step"]) + 1

    def _state(self, *, step: int) -> dict[str, Any]:
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        return state | {"step": step, "consumed_samples": step * BATCH, "global_batch_size": BATCH}

    def save(self, step: int) -> None:
        """Save as torch.distributed.checkpoint does."""
        save(self._state(step=step), checkpoint_id=self.run.folder / "saves" / f"step_{step:06d}", no_dist=True)

    def step(self, step: int) -> str:
        """Do one step, and return the text of its line in the log after the number."""
        chance = torch.Generator().manual_seed(step)
        begins = torch.randint(len(self.text) - CONTEXT, (BATCH,), generator=chance)
        samples = torch.stack([self.text[begin : begin + CONTEXT + 1] for begin in begins])
        weight = BAD_WEIGHT if step == BAD_STEP else 1.0
        told = 0.0
        for part in samples.chunk(self.run.parts):
            loss = self.model(part) / self.run.parts
            (loss * weight).backward()
            told += loss.item()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0).item()
        self.optimizer.step()
        self.optimizer.zero_grad()
        for linear in self.model.linears().values():
            for quantiser in linear.quantisers.values():
                quantiser.end_step()
        validation = f"{self.validate():.5f}" if step % VALIDATION_EVERY == 0 else ""
        return f"{told:.5f},{norm:.5f},{RATE:.6f},{validation}"

    @torch.no_grad()
    def validate(self) -> float:
        """Return the loss over validation text, without an effect on the scales."""
        samples = self.validation.unfold(0, CONTEXT + 1, CONTEXT)
        for linear in self.model.linears().values():
            linear.cell = cell()
        loss = self.model(samples).item()
        self._compute()
        return cast("float", loss)

    def _compute(self) -> None:
        """Configure each layer for the run."""
        for name, linear in self.model.linears().items():
            linear.cell = self.run.cell
            if self.run.debug is not None and re.search(self.run.debug["layers"]["layer_name_regex_pattern"], name):
                linear.cell = cell_of(self.run.debug["transformer_engine"])

    def operands(self) -> Iterator[str]:
        """Yield the cast of each operand, in the words of nvdlfw-inspect's log."""
        for name, linear in self.model.linears().items():
            for (gemm, operand), arithmetic in linear.cell.items():
                word = WORDS.get(arithmetic, "modify_tensor()")
                yield f"INFO - LAYER={name}: Tensor: {operand.value}, gemm {gemm.value} - {word}"
                if word not in WORDS.values():
                    feature = "FakeQuant" if arithmetic is Arithmetic.FAKE else "PerTensorScaling"
                    yield f"INFO - LAYER={name}: Feature={feature}, API=process_tensor: {gemm.value}, {operand.value}"


FPROP, DGRAD, WGRAD = Gemm
BASELINE = Run(folder=Path("bf16"), cell=cell(), saves=True)
REPEAT = Run(folder=Path("bf16_regrouped"), cell=cell(), parts=2)
CANDIDATE = Run(folder=Path("fp8"), cell=cell(*Gemm), saves=True)
CELLS = {
    "all in FP8": cell(*Gemm),
    "fprop in BF16": cell(DGRAD, WGRAD),
    "dgrad in BF16": cell(FPROP, WGRAD),
    "wgrad in BF16": cell(FPROP, DGRAD),
    "fprop, dgrad in BF16": cell(WGRAD),
    "fprop, wgrad in BF16": cell(DGRAD),
    "dgrad, wgrad in BF16": cell(FPROP),
    "all rounded with a current scale": cell(*Gemm, as_=Arithmetic.FAKE),
    "current scaling for dgrad": cell(DGRAD, as_=Arithmetic.CURRENT, other=Arithmetic.FP8),
    "current scaling for dgrad, wgrad": cell(DGRAD, WGRAD, as_=Arithmetic.CURRENT, other=Arithmetic.FP8),
}
"""The values in the table, relative to all products in BF16."""


def train(out: Path) -> None:
    """Run the baseline, the baseline with another order of sums, and the candidate."""
    for run in (BASELINE, REPEAT, CANDIDATE):
        replace(run, folder=out / run.folder)()


def run(plan: Path, trained: Path) -> None:
    """Run each experiment of a plan that has no log yet.

    Args:
        plan: The folder that `ckpttool fp8 plan` wrote.
        trained: The folder that `train` wrote.
    """
    for file in sorted(plan.glob("*/experiment.json")):
        experiment = json.loads(file.read_text(encoding="utf-8"))
        if experiment["change"] is None or (file.parent / LOG).exists():
            continue
        planned = _run_of(experiment, file.parent, trained)
        print(f"{experiment['id']}: {experiment['title']}{'' if planned else ': nothing here does that'}", flush=True)
        if planned:
            planned()


def _run_of(experiment: Mapping[str, Any], folder: Path, trained: Path) -> Run | None:
    """Return the run that an experiment requires of a script on Transformer Engine; None if the script cannot do it."""
    asked, first = experiment["change"]["set"], experiment["start_step"]
    config, recipe = asked.get("debug_api.initialize.config_file"), asked.get("fp8_autocast.fp8_recipe")
    if recipe not in {None, "Float8CurrentScaling()"} or experiment["id"].startswith("E1"):
        return None
    in_fp8 = Arithmetic.CURRENT if recipe else Arithmetic.FP8
    return Run(
        folder=folder,
        cell=cell() if asked.get("fp8_autocast.enabled") == "False" else cell(*Gemm, as_=in_fp8),
        start=trained / CANDIDATE.folder / "saves" / f"step_{first:06d}" if first else None,
        keep_history=not experiment["drops_history"],
        last=experiment["last_step"],
        parts=2 if experiment["regrouped"] else 1,
        debug=next(iter(yaml.safe_load(Path(config).read_text("utf-8")).values())) if config else None,
    )


def mean_loss(log: Path) -> float:
    """Return the mean loss of the last third of a log."""
    losses = [float(line.split(",")[1]) for line in log.read_text(encoding="utf-8").splitlines()[1:]]
    return fmean(losses[-(len(losses) // 3) :])


def table(out: Path) -> str:
    """Return, for each cell, its gap to BF16 and the share of the candidate's gap that it restores."""
    reference = mean_loss(Run(folder=out / BASELINE.folder, cell=cell())())
    gaps = {
        name: mean_loss(Run(folder=out / name.replace(", ", "_").replace(" ", "_"), cell=of)()) - reference
        for name, of in CELLS.items()
    }
    regrouped = mean_loss(replace(REPEAT, folder=out / REPEAT.folder)()) - reference
    whole = next(iter(gaps.values()))
    rows = [f"| {name} | {gap:.4f} | {1 - gap / whole:.3f} |" for name, gap in gaps.items()]
    rows.append(f"| all in BF16, two micro-batches | {regrouped:.4f} | – |")
    return "\n".join(("| run | loss over BF16 | restored |", "|---|---|---|", *rows))


def main() -> None:
    """Run the requested command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = parser.add_subparsers(dest="task", required=True)
    tasks.add_parser("train").add_argument("out", type=Path)
    tasks.add_parser("table").add_argument("out", type=Path)
    planned = tasks.add_parser("run")
    planned.add_argument("plan", type=Path)
    planned.add_argument("trained", type=Path)
    asked = parser.parse_args()
    if asked.task == "train":
        train(asked.out)
    elif asked.task == "run":
        run(asked.plan, asked.trained)
    else:
        rows = table(asked.out)
        print(rows)
        page = PAGE.read_text(encoding="utf-8")
        before, (_, after) = page.split(BEGIN)[0], page.split(END)
        PAGE.write_text(f"{before}{BEGIN}\n{rows}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
