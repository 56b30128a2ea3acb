"""Trees to be changed, and what they hold afterwards."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import ckpttool
from ckpttool.core.domain.finding import Finding
from ckpttool.core.domain.plan import NoResumePoint
from ckpttool.core.domain.question import TreeQuestion
from ckpttool.core.domain.retention import PruneOrder, Pruning, RetentionPolicy
from ckpttool.core.errors import CkptToolError
from ckpttool.types import DataQuestion, ResumeQuestion
from tests.support.trees import TreeBuilder

OURS = {".ckpttool/prune.lock", ".ckpttool/seal.lock", ".ckpttool/reserve"}
"""Lock files stay, whatever happened: to unlink one lets two in. A reserve is there while there is room."""

MUTATING = ("open", "mkdir", "rename", "replace", "link", "unlink", "rmdir", "fsync", "write")
"""Every function of `os` that a change of the tree goes through."""


def legacy(folder: Path, *, ranks: int = 3) -> TreeBuilder:
    """Three saves of a first run and two of a second; rank 1's meta.json names one of the old ones."""
    tree = TreeBuilder(folder).legacy(ranks=ranks, sparse=True)
    for epoch in (10, 15, 20):
        tree.save(epoch=epoch, step=2)
    for epoch in (25, 30):
        tree.save(epoch=epoch, step=2, run=1)
    return tree.meta(1, 15, 2, "llama2_7b_rank_1-15_2.ckpt")


def newer(folder: Path) -> TreeBuilder:
    """Three iterations; the tracker names the second, for it was not written after the third."""
    tree = TreeBuilder(folder, world=2, sparse=True)
    for step in (10, 20, 30):
        tree.iteration(step=step, tracker=step < 30)
    return tree


def small(folder: Path) -> TreeBuilder:
    """Two sealed saves to go and one to stay, on two ranks; rank 1's meta.json names one that goes."""
    tree = TreeBuilder(folder).legacy(ranks=2, sparse=True).save(epoch=10, step=2).save(epoch=20, step=2)
    tree.save(epoch=30, step=2, run=1).meta(1, 10, 2, "llama2_7b_rank_1-10_2.ckpt")
    seal(tree)
    return tree


def seal(tree: TreeBuilder) -> None:
    list(ckpttool.seal(ckpttool.scan(TreeQuestion(path=str(tree.checkpoint), sizes=True)), "all"))


LAYOUTS: dict[str, Callable[[Path], TreeBuilder]] = {"legacy": legacy, "newer": newer}


def pruned(
    tree: TreeBuilder,
    *,
    last: int = 1,
    keep: tuple[str, ...] = (),
    apply: bool = True,
    trash_days: float = 0.0,
    grace: float = 300.0,
    wait: float = 0.0,
    waiting: Callable[[Finding], None] | None = None,
) -> Pruning:
    """Prune as the command does."""
    order = PruneOrder(apply=apply, trash_days=trash_days, grace=grace, wait=wait)
    policy = RetentionPolicy(keep_last=last, keep=keep)
    return ckpttool.prune(TreeQuestion(path=str(tree.checkpoint)), policy, order, waiting=waiting)


def names_and_inodes(tree: TreeBuilder) -> dict[str, tuple[int, int]]:
    """Every name but ours, with inode and mtime, and nothing opened: a pipe would never end."""
    return {
        str(path): (path.lstat().st_ino, path.lstat().st_mtime_ns)
        for path in tree.checkpoint.rglob("*")
        if ".ckpttool" not in path.parts
    }


def files(tree: TreeBuilder) -> dict[str, bytes]:
    """Every file of the checkpoint folder with its content, but for locks and the reserve."""
    found = {}
    for folder, _, names in os.walk(tree.checkpoint):
        for name in names:
            path = Path(folder, name)
            relative = path.relative_to(tree.checkpoint).as_posix()
            if relative not in OURS:
                found[relative] = path.read_bytes()
    return found


def outside_trash(found: dict[str, bytes]) -> dict[str, bytes]:
    return {path: content for path, content in found.items() if not path.startswith(".ckpttool/trash/")}


def resumes_from(tree: TreeBuilder) -> str | None:
    """The checkpoint that `resolve` chooses."""
    answer = ckpttool.resolve(TreeQuestion(path=str(tree.checkpoint)), ResumeQuestion(), DataQuestion())
    return None if isinstance(answer.decision, NoResumePoint) else answer.decision.point.checkpoint.name


def whole(tree: TreeBuilder) -> set[str]:
    """The checkpoints that look whole to us, each on all the ranks that it should have."""
    names = set()
    for name in [one.name for one in ckpttool.scan(TreeQuestion(path=str(tree.checkpoint))).inventory.checkpoints]:
        question = ResumeQuestion(name=name, ignore_health=True)
        answer = ckpttool.resolve(TreeQuestion(path=str(tree.checkpoint)), question, DataQuestion())
        if not isinstance(answer.decision, NoResumePoint):
            names.add(name)
    return names


class Stop:
    """Stops the n-th call that changes the disk, by an error or as Ctrl-C does, before or after it is done."""

    def __init__(
        self, patch: pytest.MonkeyPatch, nth: int, error: BaseException, *, after: bool, for_good: bool
    ) -> None:
        self.calls: list[str] = []
        self._nth, self._error, self._after, self._for_good = nth, error, after, for_good
        for name in MUTATING:
            patch.setattr(os, name, self._wrapped(name, getattr(os, name)))

    @property
    def happened(self) -> bool:
        return len(self.calls) >= self._nth

    def _wrapped(self, name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            if name == "open" and not _writes(arguments):
                return real(*arguments, **options)
            self.calls.append(name)
            now = len(self.calls) == self._nth or (self._for_good and len(self.calls) > self._nth)
            if not now:
                return real(*arguments, **options)
            if self._after and len(self.calls) == self._nth and name != "open":
                real(*arguments, **options)
            raise self._error

        return call


def _writes(arguments: tuple[object, ...]) -> bool:
    return len(arguments) > 1 and isinstance(arguments[1], int) and bool(arguments[1] & (os.O_CREAT | os.O_WRONLY))


WAYS = {
    "the call fails": (OSError(errno.EIO, os.strerror(errno.EIO)), False, False),
    "the call fails and so do all after it": (OSError(errno.EROFS, os.strerror(errno.EROFS)), False, True),
    "Ctrl-C before the call": (KeyboardInterrupt(), False, False),
    "Ctrl-C after the call": (KeyboardInterrupt(), True, False),
    "killed before the call": (KeyboardInterrupt(), False, True),
    "killed after the call": (KeyboardInterrupt(), True, True),
}
"""The error, whether the call is done first, and whether all later ones fail too: who is killed undoes nothing."""


def calls_to_stop_at(way: str, config: pytest.Config) -> range:
    """Return every call at night, else every tenth, from another one on in each way."""
    return range(1, 1000) if config.getoption("--nightly") else range(1 + 2 * [*WAYS].index(way) % 10, 1000, 10)


def stopped(change: Callable[[], object], nth: int, way: str) -> Stop:
    """Change a tree, and stop at the n-th call that changes the disk."""
    error, after, for_good = WAYS[way]
    with pytest.MonkeyPatch.context() as patch:
        stop = Stop(patch, nth, error, after=after, for_good=for_good)
        with suppress(CkptToolError, KeyboardInterrupt, OSError):
            change()
        return stop


def call_of_the_half(
    make: Callable[[Path], TreeBuilder],
    change: Callable[[TreeBuilder], object],
    is_half: Callable[[TreeBuilder], bool],
) -> int:
    """The first call after which a change that is killed has its journal written and a part of its files moved."""
    with TemporaryDirectory() as folder:
        for nth in range(25, 200):  # before, it is made ready
            tree = make(Path(folder, str(nth)))
            stopped(partial(change, tree), nth, "killed after the call")
            if is_half(tree):
                return nth
    raise AssertionError("never half done")
