"""Machines of one training, each with a disk of its own at one path, on this one machine."""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

import ckpttool
from ckpttool.core.domain.question import CheckQuestion, TreeQuestion
from ckpttool.core.domain.verdict import Level
from ckpttool.nodes.model import PartQuestion
from tests.support.split_trees import split

OURS = re.compile(r"\.ckpttool/(prune\.lock|seal\.lock|reserve|trash)")
"""What any change leaves in a tree that has nothing else of ours."""


class _InARow(Random):
    """Deals ranks out to machines, one after the other."""

    def __init__(self) -> None:
        super().__init__(0)
        self._next = -1

    def randrange(self, of: int) -> int:  # type: ignore[override]
        self._next += 1
        return self._next % of


_HEADERS = Level.STRUCTURE


class Fleet:
    """Machines that see the tree at one path; which of them is here is for a `with` to say."""

    def __init__(
        self,
        folder: Path,
        *,
        of: int = 2,
        tree: str = "checkpoint",
        chance: Random | None = None,
        level: Level = _HEADERS,
    ) -> None:
        """Divide what lies in `folder/output` over machines.

        Args:
            folder: Where all of it is.
            of: How many machines.
            tree: The tree's folder below `output`; empty for that itself.
            chance: Says where each file lies; None: the ranks of which there is a folder are dealt out in a row.
            level: How hard they look.
        """
        self.folder, self.of, self.level = folder, of, level
        self.output = folder / "output"
        self.tree = self.output / tree if tree else self.output
        self.parts = folder / "parts"
        self.parts.mkdir()
        self.disks = [folder / f"disk{number}" for number in range(of)]
        self.disk_of = [f"disk of {number}" for number in range(of)]
        """What tells each machine's disk."""
        self.looks = 0
        for disk in self.disks:
            disk.mkdir()
        split(self.output, self.tree, of, chance or _InARow(), self.disks)
        shutil.rmtree(self.output)

    @contextmanager
    def on(self, number: int) -> Iterator[None]:
        """Be one of the machines."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket, "gethostname", lambda: f"node{number}")
            patch.setattr("ckpttool.nodes.verbs.disk_id", lambda _: self.disk_of[number])
            self.disks[number].rename(self.output)
            try:
                yield
            finally:
                self.output.rename(self.disks[number])

    def look(self, *, seal: bool = False) -> int:
        """Let each machine write its part, of a new look, and return how many shards they looked at."""
        shutil.rmtree(self.parts)
        self.parts.mkdir()
        self.looks += 1
        shards = 0
        for number in range(self.of):
            with self.on(number):
                written = ckpttool.library.part(
                    PartQuestion(
                        tree=TreeQuestion(path=str(self.tree)),
                        check=CheckQuestion(level=self.level, name="all"),
                        out=f"{self.parts}/",
                        part=f"{number + 1}/{self.of}",
                        run=f"look{self.looks}",
                        seal=seal,
                    )
                )
                shards += 0 if written is None else written.shards
        return shards

    @property
    def question(self) -> TreeQuestion:
        """All of it, as the machines saw it."""
        return TreeQuestion(path=str(self.parts))

    def files(self, number: int) -> dict[str, bytes]:
        """Return what a machine's tree holds, but for what any change leaves."""
        root = self.disks[number] / self.tree.relative_to(self.output)
        return {path: content for path, content in files_in(root).items() if not OURS.match(path)}

    def trash(self, number: int) -> list[str]:
        """Return what lies in a machine's trash, without the time at which it went."""
        trash = self.disks[number] / self.tree.relative_to(self.output) / ".ckpttool/trash"
        found = files_in(trash) if trash.is_dir() else {}
        return sorted(re.sub("^[0-9TZ]+-[^/]*/", "", path) for path in found)

    def restore_all(self, number: int) -> None:
        """Bring back all that went to a machine's trash."""
        with self.on(number):
            trash = self.tree / ".ckpttool/trash"
            folders = sorted(trash.iterdir()) if trash.is_dir() else []
            if folders:
                names = [folder.name for folder in folders]
                ckpttool.library.restore(TreeQuestion(path=str(self.tree)), *names, grace=0.0)


def files_in(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder."""
    found = {}
    for inner, _, names in os.walk(folder):
        for name in names:
            path = Path(inner, name)
            found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return found
