"""How a start of the PyNative trainer begins: ckpttool's prediction, and what the real trainer did."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

import numpy as np
from safetensors.numpy import load_file

from ckpttool.core.domain.plan import JudgedStart, Outcome, Simulation
from ckpttool.core.domain.question import TreeQuestion
from ckpttool.core.errors import CkptToolError
from ckpttool.core.verbs.configs import read_base
from ckpttool.core.verbs.resolving import resolve
from ckpttool.core.verbs.starting import judged_start
from tests.nightly.real_mindformers import Row, Trace
from tests.nightly.real_pynative import PyNative, moments, weights


@dataclass(frozen=True)
class Start:
    """The begin of a start; steps of 0 are those before the first update."""

    step: int | None
    """After which it begins; None: it stops with an error."""
    weights: int | None = 0
    """The step of the save with its weights; None: neither those of a save nor the first ones.

    Without a model file they are the first moments: `load_param_into_net` of MindSpore removes the prefix `adam_m.`.
    """
    moments: int | None = 0
    """The same for the moments of the optimizer."""
    trains: bool = True
    """Whether it trains at least one step."""
    samples: int | None = None
    """Consumed samples; None: not stated."""

    def equals(self, real: Start) -> bool:
        """Return whether a prediction is right."""
        stated = self.samples is None or self.samples == real.samples
        return stated and (self.step, self.weights, self.moments, self.trains) == (
            real.step, real.weights, real.moments, real.trains,
        )  # fmt: skip


STOPS = Start(step=None)
RANDOM = Start(step=0, samples=0)


def predicted(base: str = "base.yaml", root: str = "output/checkpoint", devices: int = 1) -> tuple[Start | None, str]:
    """Return ckpttool's prediction for a start in the current folder (None: unknown), and its words."""
    try:
        config = read_base(base, (), devices=devices).run
        judged = judged_start(resolve(TreeQuestion(path=root, config=config)))
    except CkptToolError as error:
        return None, str(error)
    if judged is None:
        return None, "no checkpoint was chosen"
    if judged.simulation is None:
        return None, judged.why
    return _start(judged, judged.simulation), f"{judged.simulation.because} {judged.lacks or ''}"


def _start(judged: JudgedStart, simulation: Simulation) -> Start | None:
    because, outcome = simulation.because, simulation.outcome
    save = _number(r"iteration_(\d+)", simulation.would_resume or "")
    if outcome is Outcome.LOADS:
        begin = _number(r"it begins after step (\d+)", because)
        lacks = judged.lacks or ""
        return Start(
            step=begin,
            weights=None if "has no model file" in lacks else save,
            moments=0 if re.search(r"optimizer starts at zero|moment of Adam at zero", lacks) else save,
            samples=_number(r" and (\d+) sample", because.replace(",", "")),
        )
    if outcome is Outcome.SCRATCH:
        only = _number(r"loads only the weights of iteration_(\d+)", because)
        return Start(step=0, weights=only or 0, samples=0)
    if outcome is Outcome.STOPS and "trains nothing" in because:
        begin = _number(r"it begins at step (\d+)", because)
        return Start(step=begin, weights=save, moments=save, trains=False)
    return STOPS if outcome is Outcome.STOPS else None


def _number(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text)
    return int(found[1]) if found else None


def observed(training: PyNative, trace: Trace, template: PyNative, history: Trace) -> Start:
    """Return how the real trainer began; steps are those with the same tensors on all ranks.

    Args:
        training: It, after its end.
        trace: Of this start.
        template: The training that made the saves.
        history: The tensors of the template after each step.
    """
    began: list[Row] = [row["begin"] for rank in trace.ranks for row in rank[:1]]
    if training.code != 0 or len(began) < training.ranks:
        return STOPS
    rows = [{0: history.first("begin", rank), **history.of_rank(rank)} for rank in range(len(history.ranks))]
    if training.ranks < template.ranks:
        rows = [{step: _joined(template, step, row) for step, row in rows[0].items()}]
    matches: dict[str, int | None] = {}
    for name, of in (("weights", weights), ("moments", moments)):
        steps = [
            {step for step, row in rows[min(rank, len(rows) - 1)].items() if of(row) == of(begin)}
            for rank, begin in enumerate(began)
        ]
        matches[name] = min(set.intersection(*steps), default=None)
    return Start(
        step=began[0]["step"], trains=bool(trace.steps), samples=began[0]["consumed_samples"], **matches
    )  # fmt: skip


def _joined(training: PyNative, step: int, row: Row) -> Row:
    """Return a row with the tensors of all ranks joined, from the files of a save."""
    if not training.environment or not training.save(step).exists():
        return row
    parts: dict[str, list[np.ndarray]] = {}
    for shard in sorted(training.save(step).glob("*.safetensors")):
        for name, values in load_file(shard).items():
            parts.setdefault(name, []).append(values)
    return {"tensors": {name: _digest(values) for name, values in parts.items()}}


def _digest(parts: list[np.ndarray]) -> str:
    values = np.concatenate(parts) if parts[0].ndim == 2 else parts[0]
    return hashlib.sha256(values.tobytes()).hexdigest()
