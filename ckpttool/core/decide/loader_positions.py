"""Rules about the states of data loaders in one save, and since the previous save of the run."""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Code, Finding, Row, Severity, suspect, unsafe
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.loader_state import LoaderState, SavedLoader
from ckpttool.core.domain.units import Rank, counted

Loaders: TypeAlias = "Sequence[SavedLoader]"

_EVALUATION = re.compile(r"(?:^|[._])(?:eval|evaluation|val|valid|validation|dev|test)(?:[._]|_?data|_?loader|$)")
"""Part of a loader's name that shows that it does not read training data."""


def described(state: LoaderState) -> str:
    """Format the position in a state; "unknown" if the state shows none."""
    of = " in total" if state.is_total else ""
    parts = [] if state.epoch is None else [f"epoch {state.epoch}"]
    if state.batches is not None:
        parts.append(f"{counted(state.batches, 'batch', 'batches')}{of}")
    if state.samples is not None:
        parts.append(f"{counted(state.samples, 'sample')}{of}")
    if state.place is not None:
        parts.append(state.place)
    if state.finished:
        parts.append("at its end")
    return ", ".join(parts) or "position unknown"


def of_one_save(loaders: Loaders, *, is_newest: bool) -> Iterator[Finding]:
    """Report states that run code, that never moved, that are at an epoch's end, and ranks that are apart.

    Args:
        loaders: The states.
        is_newest: Whether the run would resume from this save; at an epoch's end, an older save is only a note.
    """
    for loader in loaders:
        if loader.is_unsafe:
            message = f"the data loader's state {loader.key or loader.path} {loader.problem}"
            yield unsafe(
                Code.UNSAFE_PICKLE, message, path=loader.path, remedy="do not load it, and find out who wrote it"
            )
    known = [(loader, loader.state) for loader in loaders if loader.state is not None]
    yield from _joined(_still_initial(loader, state) for loader, state in known if state.never_moved and state.batches)
    for finding in _joined(_at_end(loader, state) for loader, state in known if state.yields_nothing is not None):
        yield finding if is_newest else replace(finding, severity=Severity.NOTE)
    yield from _ranks_that_differ(loaders)


def compared(checkpoint: Checkpoint, loaders: Loaders, before: Checkpoint, before_loaders: Loaders) -> list[Finding]:
    """Report positions that went back, or did not change, since the previous save of the run.

    Args:
        checkpoint: The save.
        loaders: Its states.
        before: The previous save, at a lower step.
        before_loaders: Its states.
    """
    earlier = {_identity(loader): loader for loader in before_loaders}
    if {loader.rank for loader in before_loaders} != {loader.rank for loader in loaders}:
        return []  # with other ranks, each loader has another part of the data
    back, still = [], []
    for loader in loaders:
        peer = earlier.get(_identity(loader))
        if peer is None or _EVALUATION.search(loader.key):  # the script may begin an evaluation again at any time
            continue
        if peer.state is None or loader.state is None or not _comparable(loader.state, peer.state):
            continue
        here, there = described(loader.state), described(peer.state)
        if loader.state.order < peer.state.order:
            message = f"the data position went back: {here}, but {there} in the earlier save {before.name}"
            back.append(_finding(Code.DATA_POSITION_BACK, loader, message, here, there))
        elif _is_same(loader.state, peer.state):
            steps = counted((checkpoint.step or 0) - (before.step or 0), "step")
            message = f"the data position did not change: {here}, as in the save {before.name}, {steps} earlier"
            still.append(_finding(Code.DATA_POSITION_STILL, loader, message, here, None))
    return [*_joined(back), *_joined(still)]


def _comparable(state: LoaderState, peer: LoaderState) -> bool:
    return (state.kind, state.identity, len(state.order)) == (peer.kind, peer.identity, len(peer.order))


def _is_same(state: LoaderState, peer: LoaderState) -> bool:
    """Return whether a position that had to change is the same; a state without any progress changes with it."""
    if state.never_moved and peer.never_moved and not state.batches and state.epoch == peer.epoch:
        return True
    return bool(state.order) and state.order == peer.order and state.is_strict


def _identity(loader: SavedLoader) -> tuple[str, Rank | None]:
    """Return what identifies a loader in several saves."""
    return loader.key or posixpath.basename(loader.path), loader.rank


def _finding(code: Row, loader: SavedLoader, message: str, actual: str, expected: str | None) -> Finding:
    ranks = () if loader.rank is None else (loader.rank,)
    return suspect(code, message, path=loader.path, actual=actual, expected=expected, ranks=ranks, remedy=loader.remedy)


def _still_initial(loader: SavedLoader, state: LoaderState) -> Finding:
    batches = counted(state.batches or 0, "batch", "batches")
    message = f"the data set's state is the initial one, although its loader had yielded {batches}"
    return _finding(Code.DATA_POSITION_STILL, loader, message, described(state), None)


def _at_end(loader: SavedLoader, state: LoaderState) -> Finding:
    message = f"a resume from this data position yields no batches at first: {state.yields_nothing}"
    return _finding(Code.DATA_POSITION_AT_END, loader, message, described(state), None)


def _ranks_that_differ(loaders: Loaders) -> Iterator[Finding]:
    """Report ranks whose loaders had yielded different numbers of batches, although all ranks read in step."""
    by_name: Mapping[tuple[str, str], dict[int, list[SavedLoader]]] = defaultdict(lambda: defaultdict(list))
    for loader in loaders:
        state = loader.state
        if loader.rank is not None and state is not None and state.is_lockstep and state.batches is not None:
            name = re.sub(r"\.(?:dp_)?rank_[0-9]+$", "", loader.key)
            by_name[state.kind, name][state.batches].append(loader)
    for by_batches in by_name.values():
        if len(by_batches) < 2:  # noqa: PLR2004  two positions differ
            continue
        (most, same), *others = sorted(by_batches.items(), key=lambda item: (-len(item[1]), -item[0]))
        apart = [loader for _, differing in others for loader in differing]
        first = apart[0]
        message = (
            f"the data loaders of the ranks are apart: {counted(others[0][0], 'batch', 'batches')} on rank "
            f"{first.rank}, but {most} on rank {same[0].rank}"
        )
        finding = _finding(Code.DATA_POSITION_DIFFERS, first, message, str(others[0][0]), str(most))
        yield replace(finding, ranks=tuple(sorted(loader.rank for loader in apart if loader.rank is not None)))


def _joined(findings: Iterable[Finding]) -> list[Finding]:
    """Return one finding for all ranks with the same problem."""
    several = list(findings)
    if not several:
        return []
    ranks = sorted({rank for finding in several for rank in finding.ranks})
    return [replace(several[0], ranks=tuple(ranks))]
