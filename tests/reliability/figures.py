"""What the reliability programme found, kept as data, and as the manual's page shows it.

A part of the programme reports what it tried, once it has come out right. A nightly run in which nothing was wrong
writes that to `figures.json`, and the page's table is made of it. Nobody edits either by hand: a test compares them.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

FIGURES = Path(__file__).with_name("figures.json")

PARTS = {
    "kill": "a writer killed at a system call",
    "errno": "a failing system call of a writer",
    "reader-errno": "a failing system call of a reader",
    "full-disk": "a full disk, or one without free inodes (tmpfs)",
    "power-cut": "a power failure (images of a mounted ext4)",
    "model": "random sequences of saves, crashes, copies, damage, health and prunes, compared with a simple model",
    "hostile": "hostile files",
    "fuzz": "coverage-guided fuzzing of every parser",
    "writers": "many concurrent writers, some of them killed",
    "readers": "scan and verify during saves and prunes",
    "ranks": "faults injected into a tree of 10,000 ranks",
}
"""Every part of the programme, in the page's order."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What one part did."""

    tried: int
    """How many cases; 0 where the machine could not run it."""
    unit: str
    """What a case is, in the plural."""
    seconds: float
    """Of wall time."""
    note: str = ""
    """What else is worth knowing, as Markdown: sizes, limits, memory; or why it was skipped."""
    run: str = ""
    """When and on what."""
    nightly: bool = True
    """Whether it was all of it, not a commit's part."""


Figures = Mapping[str, Mapping[str, Figure]]
"""By part, and by what of it: a run of one writer alone leaves the figures of the others."""


def table(figures: Figures) -> str:
    """Draw the page's table."""
    rows = [
        "| what happens | tried | time | |",
        "|---|---|---|---|",
        *(_row(PARTS[part], figures[part]) for part in PARTS if part in figures),
    ]
    runs = sorted({figure.run for of in figures.values() for figure in of.values()})
    return "\n".join([*rows, "", f"Run: {'; '.join(runs)}.", ""])


def _row(part: str, of: Mapping[str, Figure]) -> str:
    every = list(of.values())
    notes = [note for note in dict.fromkeys(figure.note for figure in every) if note]
    partly = [name for name, figure in of.items() if figure.tried and not figure.nightly]
    if partly:
        notes.append(f"only a commit's part{' of ' * any(partly)}{', '.join(partly)}")
    tried = sum(figure.tried for figure in every)
    if not tried:
        return f"| {part} | not run | – | {'; '.join(notes)} |"
    seconds = sum(figure.seconds for figure in every)
    return f"| {part} | {tried:,} {every[0].unit} | {_time(seconds)} | {'; '.join(notes)} |"


def _time(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def this_run() -> str:
    """Say when and on what we run."""
    cores = len(os.sched_getaffinity(0))
    when = datetime.now(tz=timezone.utc).date()
    return f"{when}, Python {platform.python_version()}, Linux {platform.release().split('-')[0]}, {cores} cores"


def load(path: Path = FIGURES) -> dict[str, dict[str, Figure]]:
    """Read the figures of the last runs."""
    parts = json.loads(path.read_text()).items()
    return {part: {name: Figure(**figure) for name, figure in of.items()} for part, of in parts}


def store(figures: Figures, path: Path = FIGURES) -> None:
    """Write them; those of what did not run now are kept."""
    known = load(path) if path.exists() else {}
    merged = {part: {**known.get(part, {}), **figures.get(part, {})} for part in PARTS}
    ordered = {part: {name: asdict(figure) for name, figure in of.items()} for part, of in merged.items() if of}
    path.write_text(json.dumps(ordered, indent=2, ensure_ascii=False) + "\n")


class Programme:
    """What a test of the programme is told, and tells."""

    def __init__(self, *, nightly: bool) -> None:
        self.nightly = nightly
        """Whether to try everything; else as much as a commit can wait for."""
        self.figures: dict[str, dict[str, Figure]] = {}

    def report(self, part: str, figure: Figure, of: str = "") -> None:
        """Add what a test did of this part, or of one thing in it; several tests may share one."""
        assert part in PARTS
        figure = replace(figure, run=this_run(), nightly=self.nightly)
        known = self.figures.setdefault(part, {})
        before = known.get(of)
        if before is None:
            known[of] = figure
            return
        notes: Sequence[str] = [note for note in dict.fromkeys((before.note, figure.note)) if note]
        known[of] = Figure(
            tried=before.tried + figure.tried,
            unit=before.unit,
            seconds=round(before.seconds + figure.seconds, 1),
            note="; ".join(notes),
            run=figure.run,
            nightly=self.nightly,
        )
