"""Signs that a run has saved before, although its folder has no checkpoint: names, leftovers and logs.

A wrong start from scratch costs all training so far, so that each sign prevents it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from ckpttool.core.decide.naming import LIKE_A_SAVE
from ckpttool.core.domain.checkpoint import Checkpoint, CommitState, Inventory
from ckpttool.core.domain.units import Step
from ckpttool.core.records import MANIFEST_NAME, OWN_FOLDER, PART_SUFFIX

_STATES = r"(?i).+\.(?:ckpt|safetensors|pt|pth|bin|distcp|metadata|pkl|npz|pdparams|pdopt)|\.metadata|.+\.pth?\.tar"
"""Pattern for names of files with weights or states, of any trainer."""

RECORDED = "is a record that a trainer writes with its saves"
"""Meaning of a trainer's record."""

_BEFORE_A_SAVE = r"ckpt_strategy_rank_[0-9]+\.ckpt"
"""Pattern for names of files that look like states, but are written before the first save."""

_LOG = r"(?i).*(?:log|\.out|\.err|\.jsonl|\.csv|\.txt|stdout|stderr|tfevents)(?:[.0-9_-].*)?(?:\.gz)?"
"""Pattern for names of files that may be a training log."""

SUMMARY = "wandb-summary.json"
"""The last step of a run, as Weights & Biases records it."""

_SAVED = re.compile(
    rb"(?i)\b(?:saved|wrote|finish(?:ed)? saving|saving)\b(?![^\n]{0,80}\bevery\b)[^\n]{0,120}?"
    rb"(?:checkpoint(?!ing)|ckpt|global_step|model|state)[^\n]*"
)
"""Pattern for a log line about a save."""
_NUMBERED = re.compile(rb"(?i)(?:step|iter|iteration|epoch|ckpt|checkpoint)[-_=: ]{0,8}([0-9]{1,18})")
_STEP = re.compile(rb"(?i)(?<![a-z_])(?:step|iter|iteration)(?: *[:=/#\[]| +) *([0-9]{1,18})")
_SUMMARY_STEP = re.compile(rb'"_step": *([0-9]{1,18})')


class TraceKind(IntEnum):
    """Kind of a sign, the most telling first."""

    OWN = 0
    """A record of ckpttool."""
    RECORD = 1
    """A record or pointer of a trainer."""
    LEFTOVER = 2
    """A file or folder of a save."""
    LOG = 3


class Trace(NamedTuple):
    """A sign that the run has saved before."""

    kind: TraceKind
    path: str
    """Path of the file or folder, as the user would type it."""
    why: str
    """Meaning of the sign, as a clause that follows the path."""

    @property
    def text(self) -> str:
        """The sign, as a clause."""
        return f"{self.path} {self.why}"


class Names(NamedTuple):
    """The names by which a trainer's files are recognized."""

    records: re.Pattern[str]
    """Records and pointers that exist only after a save."""

    def trace(self, path: str, inner: str, *, inside: int | None) -> Trace | None:
        """Return the sign in a name, or None.

        Args:
            path: The path, as the user would type it.
            inner: The path below the folder that is searched.
            inside: Number of names in the folder; None for a file.
        """
        name = inner.rpartition("/")[2]
        if inside is None and (name == MANIFEST_NAME or inner.startswith(f"{OWN_FOLDER}/")):
            # A command that only waited for the lock proves no save.
            return None if name.endswith(".lock") else Trace(TraceKind.OWN, path, "is a record of ckpttool")
        if inside is None and name.endswith(PART_SUFFIX):
            return Trace(TraceKind.OWN, path, "is the record that a machine made of a tree")
        if self.records.fullmatch(name):
            return Trace(TraceKind.RECORD, path, RECORDED)
        why = None
        if inside is not None and re.fullmatch(LIKE_A_SAVE, name):
            why = "is named like a save" if inside else "is the empty folder of a save"
        elif inside == 0 and name.isdecimal():
            why = "is the empty folder of a save"
        elif inside is None and re.fullmatch(_STATES, name) and not re.fullmatch(_BEFORE_A_SAVE, name):
            why = "is a file with weights or training state"
        return None if why is None else Trace(TraceKind.LEFTOVER, path, why)


def may_be_state(name: str) -> bool:
    """Return whether a name contains a suffix of files with weights or states, also before the end."""
    return re.search(r"(?i)\.(?:ckpt|safetensors|pth?|bin|distcp|metadata)(?![a-z])", name) is not None


def may_be_save(name: str) -> bool:
    """Return whether a name is that of a folder with a save, or with the files of one rank."""
    return re.fullmatch(rf"{LIKE_A_SAVE}|rank_[0-9]+", name) is not None


def may_be_log(name: str) -> bool:
    """Return whether a file's name is that of a log."""
    return name == SUMMARY or re.fullmatch(_LOG, name) is not None


class FirstSave(NamedTuple):
    """The facts about a run's first save, as far as they are known."""

    every: int | None = None
    """Number of steps between saves."""
    unfinished: tuple[Checkpoint, ...] = ()
    """The save that the run did not finish, at most one."""

    @property
    def step(self) -> Step | None:
        """Step of the unfinished save, if known."""
        return self.unfinished[0].step if self.unfinished else None

    @property
    def last_quiet(self) -> int:
        """The last step that a log may show without proving that a save was finished or due."""
        if self.step is not None:
            return self.step
        return -1 if self.every is None else self.every - 1

    def may_have_begun(self, line: bytes) -> bool:
        """Return whether a log line only reports the beginning of the unfinished save."""
        if not self.unfinished or not line.lower().startswith(b"saving"):
            return False
        steps = {int(number) for number in _NUMBERED.findall(line)}
        return not steps or self.step in steps

    def objection(self) -> str | None:
        """Return why the unfinished save is not the run's first one, or None."""
        if self.step is not None and self.every is not None and self.step > self.every:
            return f"is at step {self.step}, but the first save was due at step {self.every}"
        return None


class LogFacts(NamedTuple):
    """The facts in a log that matter for a first start."""

    path: str
    last_step: int | None
    """The last step; None if the log shows no step."""
    saves: tuple[bytes, ...]
    """The first lines about saves."""


def trace_in_log(log: LogFacts, first: FirstSave) -> Trace | None:
    """Return the sign in a log: a save that it names, or a step at which a save was due."""
    for line in log.saves:
        if not first.may_have_begun(line):
            excerpt = " ".join(line[:160].decode("utf-8", "replace").split())
            return Trace(TraceKind.LOG, log.path, f"reports a save: {excerpt}")
    if log.last_step is None or log.last_step <= first.last_quiet:
        return None
    why = f"shows step {log.last_step}"
    if first.step is not None:
        return Trace(TraceKind.LOG, log.path, f"{why}, beyond the unfinished save at step {first.step}")
    if first.every is not None:
        return Trace(TraceKind.LOG, log.path, f"{why}, and the first save was due at step {first.every}")
    return Trace(
        TraceKind.LOG, log.path, f"{why}, and it is unknown whether a save was due before: give --save-every STEPS"
    )


def save_lines(data: bytes) -> Iterable[bytes]:
    """Yield the parts of a log's lines that report a save."""
    return (match[0] for match in _SAVED.finditer(data))


def last_step_in(data: bytes, *, summary: bool = False) -> int | None:
    """Return the highest step that a text of an unknown form names, or None."""
    pattern = _SUMMARY_STEP if summary else _STEP
    return max((step for found in pattern.findall(data) if (step := int(found)) > 0), default=None)


def unfinished_first_save(inventory: Inventory) -> tuple[Checkpoint, ...]:
    """Return the only save of a tree if its trainer marks complete saves, and this one lacks the mark; otherwise ().

    A save of a layout without such a mark may be complete, and an empty folder may be the rest of a deleted save.
    """
    saves = inventory.checkpoints
    is_unfinished = len(saves) == 1 and saves[0].commit is CommitState.UNCOMMITTED and bool(saves[0].shards)
    return saves if is_unfinished else ()


def and_more(traces: Sequence[object]) -> str:
    """Return the number of further signs, for the end of a sentence."""
    return "" if len(traces) < 2 else f" (and {len(traces) - 1} more)"  # noqa: PLR2004  one is named
