"""The power goes at a system call of a writer: what the disk holds then is the old state or the new one.

A tree lies on an ext4 in a file. The writer is killed just before a call, and at that moment the file is copied: it
holds what the file system had sent to the disk, and nothing that the kernel still kept in memory. A second copy is made
after somebody else's file was brought to the disk, which takes all names along and no content: so a name that came
before its content is found out. The copies are mounted, as a machine does that starts again. After a writer that said
it was done, the new state must be on the disk.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.reliability.disks import cut_off, make_image, mounted, why_not
from tests.reliability.figures import Figure, Programme
from tests.reliability.injection import Bench, changes_the_disk, judged, judged_next
from tests.reliability.traced import KILL, Call, Point, works
from tests.reliability.warm import CARELESS, HASTY, Warm
from tests.reliability.writers import LARGE, WRITERS, Writer, same, state, without_trash

MEBIBYTES = 8
CUTS = ("cut", "cut-after-a-commit")


class Plug(Bench):
    """A writer on a disk whose power can be cut."""

    def prepare(self, warm: Warm) -> None:
        self.folder.mkdir(parents=True)
        make_image(self.folder / "fresh", mebibytes=MEBIBYTES)
        with self.disk("fresh") as place:
            self.writer.make(place)
            self.begins(place)
        for _ in range(2):  # what is loaded at the first use must not be counted
            with self.started() as place:
                self.run = self.go(warm, place, None)
                self.ends(place)

    def disk(self, image: str) -> _Tree:
        return _Tree(self.folder / image, self.folder / "disk")

    def started(self) -> _Tree:
        """Mount a copy of the disk as it was before the writer began."""
        shutil.copyfile(self.folder / "fresh", self.folder / "running")
        return self.disk("running")

    def cut_at(self, warm: Warm, call: Call | None) -> Iterator[str]:
        """Cut the power just before a call, or as soon as the writer has ended; then say what is wrong."""
        point = Point(call or Call("exit", 0, ""), KILL)
        with self.started() as place:
            run = self.go(warm, place, point if call else None)
            cut_off(self.folder / "running", self.folder / CUTS[0])
            cut_off(self.folder / "running", self.folder / CUTS[1], commit=place.parent / "of somebody else")
        for cut in CUTS:
            with self.disk(cut) as place:
                now = state(place)
                yield from judged(self, run, now, point)
                # What a prune has moved away may come back to the trash, which the next one empties.
                if call is None and not same(self.writer, without_trash(now), self.after):
                    yield "it said it was done, and after a power cut it was not"
                yield from judged_next(self, warm, place)


class _Tree:
    """A mounted image, and the folder in it that the tree is in."""

    def __init__(self, image: Path, place: Path) -> None:
        self._mount = mounted(image, place)
        self._place = place / "tree"

    def __enter__(self) -> Path:
        self._mount.__enter__()
        self._place.mkdir(exist_ok=True)
        return self._place

    def __exit__(self, *_: object) -> None:
        self._mount.__exit__(None, None, None)


@pytest.fixture
def cuttable(programme: Programme, tmp_path: Path) -> None:
    reason = works() or why_not(tmp_path, images=True)
    if reason is not None:
        programme.report("power-cut", Figure(tried=0, unit="images", seconds=0, note=reason))
        pytest.skip(reason)


@pytest.mark.usefixtures("cuttable")
@pytest.mark.parametrize("writer", [*WRITERS, *LARGE], ids=lambda writer: writer.name)
def test_after_a_power_cut_every_file_is_the_old_one_or_the_new_one(
    writer: Writer, programme: Programme, tmp_path: Path
) -> None:
    start = time.monotonic()
    plug = Plug(writer, tmp_path / "bench")
    with closing(Warm()) as warm:
        plug.prepare(warm)
        calls = [call for call in plug.calls if changes_the_disk(call)]
        chosen = calls if programme.nightly else calls[:: max(1, len(calls) // 3)]
        wrong = [
            f"{writer.name}, {call.line[:100] if call else 'at the end'}: {each}"
            for call in (*chosen, None)
            for each in plug.cut_at(warm, call)
        ]
    assert not wrong, "\n".join(wrong[:20])
    note = "each mounted again: every file the old one or the new one, and the new one wherever a writer had said so"
    tried, seconds = len(CUTS) * (len(chosen) + 1), time.monotonic() - start
    programme.report("power-cut", Figure(tried=tried, unit="images", seconds=seconds, note=note), writer.name)


@pytest.mark.usefixtures("cuttable")
@pytest.mark.parametrize("fault", [CARELESS, HASTY])
def test_a_writer_that_waits_for_no_disk_is_caught(fault: str, tmp_path: Path) -> None:
    plug = Plug(replace(WRITERS[0], env={fault: "1"}), tmp_path / "bench")
    with closing(Warm()) as warm:
        plug.prepare(warm)
        wrong = [each for call in (*plug.calls[-1:], None) for each in plug.cut_at(warm, call)]
    assert wrong
