"""A disk with room for a part of what a writer needs: the old state or the new one, and the right word."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.reliability.disks import PAGE, in_memory, why_not
from tests.reliability.figures import Figure, Programme
from tests.reliability.injection import Bench, judged, judged_next
from tests.reliability.traced import Call, Point, Run
from tests.reliability.warm import Warm
from tests.reliability.writers import LARGE, WRITERS, State, Writer, same, state

FULL = Point(Call("write", 0, "a full disk"), "ENOSPC")
AMPLE = 60
"""Pages or inodes that no writer of a tree this small needs."""
SPARE = 400
"""Pages and inodes that are there before the disk is filled: for the tree."""


class Disk(Bench):
    """A writer on a disk of its own."""

    shortages = 0
    """How often the room was too little."""

    def prepare(self, warm: Warm) -> None:
        self.folder.mkdir(parents=True)
        template = self.folder / "template"
        template.mkdir()
        self.writer.make(template)
        for reserve in template.rglob(".ckpttool/reserve"):
            reserve.unlink()  # with it there is no shortage: tests/retention/test_prune_full_disk.py
        place = self.folder / "disk" / "tree"
        with in_memory(place.parent, pages=SPARE, inodes=SPARE):
            shutil.copytree(template, place)
            self.begins(place)
            self.run = self.go_free(warm, place)
            self.ends(place)

    def tried(self, warm: Warm, *, pages: int, inodes: int) -> tuple[bool, list[str]]:
        """Run the writer with so much room, and return whether it was too little, and what was wrong.

        Last of all it gets all the room it wants, and must come to its end.
        """
        place = self.folder / "disk" / "tree"
        with in_memory(place.parent, pages=SPARE, inodes=SPARE):
            shutil.copytree(self.folder / "template", place)
            filler = place.parent / "filler"
            _fill(filler, pages=pages, inodes=inodes)
            run, now = self.go_free(warm, place), state(place)
            wrong = list(self.judge(run, now))
            shutil.rmtree(filler)
            wrong += judged_next(self, warm, place)
        assert self.run is not None
        return run.code != self.run.code or not same(self.writer, now, self.after), wrong

    def judge(self, run: Run, now: State) -> Iterator[str]:
        yield from judged(self, run, now, FULL)


def _fill(folder: Path, *, pages: int, inodes: int) -> None:
    """Leave so many pages and inodes free."""
    folder.mkdir()
    with (folder / "big").open("wb") as file:
        for number in range(max(0, os.statvfs(folder).f_ffree - inodes)):
            (folder / str(number)).touch()
        file.write(bytes(max(0, os.statvfs(folder).f_bavail - pages) * PAGE))
    left = os.statvfs(folder)
    assert (left.f_bavail, left.f_ffree) == (pages, inodes)


def _rooms(disk: Disk, warm: Warm, room: Callable[[int], dict[str, int]]) -> Iterator[str]:
    """Give a little more room each time until it was enough twice; yield what was wrong, and count."""
    enough = 0
    for size in range(AMPLE):
        short, wrong = disk.tried(warm, **room(size))
        yield from (f"{disk.writer.name}, {room(size)}: {each}" for each in wrong)
        disk.shortages += short
        enough = 0 if short else enough + 1
        if enough > 1:
            return


@pytest.mark.parametrize("writer", [*WRITERS, *LARGE], ids=lambda writer: writer.name)
def test_a_full_disk_leaves_the_old_state_or_the_new_one(writer: Writer, programme: Programme, tmp_path: Path) -> None:
    reason = why_not(tmp_path, images=False)
    if reason is not None:
        programme.report("full-disk", Figure(tried=0, unit="fillings", seconds=0, note=reason))
        pytest.skip(reason)
    start = time.monotonic()
    disk = Disk(writer, tmp_path / "bench")
    with closing(Warm()) as warm:
        disk.prepare(warm)
        wrong = list(_rooms(disk, warm, lambda size: {"pages": size, "inodes": AMPLE}))
        by_pages = disk.shortages
        wrong += _rooms(disk, warm, lambda size: {"pages": AMPLE, "inodes": size})
    assert not wrong, "\n".join(wrong[:20])
    assert by_pages
    assert disk.shortages > by_pages
    note = "from no room at all, a page or an inode more each time, until it is enough"
    seconds = time.monotonic() - start
    programme.report(
        "full-disk", Figure(tried=disk.shortages, unit="shortages", seconds=seconds, note=note), writer.name
    )


def test_what_half_a_file_would_be_is_caught(tmp_path: Path) -> None:
    """Were a file there that a full disk cut, or an answer that says all is well, the judge would say so."""
    disk = Disk(WRITERS[0], tmp_path)
    path = "output/health_ckpts.json"
    disk.before, disk.after = {path: b"old"}, {path: b"new content"}
    disk.run = Run(10, "The newest", "", ())
    assert list(disk.judge(Run(1, "", "ckpttool: error: full", ()), {path: b"old"})) == []
    assert "neither the old nor the new one" in "".join(disk.judge(Run(1, "", "full", ()), {path: b"new con"}))
    assert "says it is done" in "".join(disk.judge(disk.run, disk.before))
    assert "leaves" in "".join(
        disk.judge(Run(1, "", "full", ()), {**disk.before, "a/.ckpttool-0123456789abcdef.tmp": b""})
    )
