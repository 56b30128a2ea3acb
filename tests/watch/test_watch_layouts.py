"""Trees that real trainers wrote, written once more a file at a time, at any pace, while they are watched."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.verdict import Level
from tests.support.answers import FIXTURES
from tests.support.watched_trainings import Watching


class Written(NamedTuple):
    """A tree, and how its trainer writes a save: what comes last by the names' beginnings, and the tracker."""

    tree: str
    last: tuple[str, ...] = ()
    tracker: str = ""


TREES = [
    Written("layouts/hf_fsdp2ranks", (".metadata", "trainer_state")),
    Written("layouts/ds_zero1_2ranks", (), "latest"),
    Written("layouts/verl_2ranks", (), "latest_checkpointed_iteration.txt"),
    Written("layouts/accel_ddp2/checkpoints"),
]


def number(name: str) -> int:
    return int(re.findall(r"\d+", name)[-1])


class Writer:
    """Writes a tree that is there once more, the oldest save first."""

    def __init__(self, written: Written, base: Path, seed: int) -> None:
        self._from = FIXTURES / written.tree
        self._how = written
        self._chance = random.Random(seed)  # noqa: S311  a course that can be had again
        self.root = base / "run" / Path(written.tree).name
        self.saves = sorted((each.name for each in self._from.iterdir() if each.is_dir()), key=number)

    def copy(self, name: str) -> None:
        """Have a save as it is, at once."""
        shutil.copytree(self._from / name, self.root / name)
        self._track(name)

    def write(self, name: str, watching: Watching) -> None:
        """Write a save, a file after another, each cut off for a while."""
        files = [each for each in sorted((self._from / name).rglob("*")) if each.is_file()]
        self._chance.shuffle(files)
        files.sort(
            key=lambda file: max((at for at, word in enumerate(self._how.last, 1) if word in file.name), default=0)
        )
        for file in files:
            target = self.root / file.relative_to(self._from)
            target.parent.mkdir(parents=True, exist_ok=True)
            data = file.read_bytes()
            target.write_bytes(data[: len(data) // 2])
            watching.poll(times=self._chance.randrange(2))
            target.write_bytes(data)
            watching.poll(times=self._chance.randrange(4))
        self._track(name)

    def _track(self, name: str) -> None:
        if self._how.tracker:
            word = name if self._how.tracker == "latest" else str(number(name))
            (self.root / self._how.tracker).write_text(word)


def written_and_watched(written: Written, base: Path, seed: int) -> tuple[Writer, Watching]:
    """Watch while all saves but the first are written: of what a training writes nobody knows before."""
    writer = Writer(written, base, seed)
    writer.copy(writer.saves[0])
    watching = Watching(writer.root, base / "state", world=None, level=Level.CHECKSUM, seal=True)
    watching.poll(times=4)
    for name in writer.saves[1:]:
        writer.write(name, watching)
        watching.poll(times=16)
    return writer, watching


def assert_told_once(writer: Writer, watching: Watching) -> None:
    assert [(event.kind.value, event.name, event.sealed) for event in watching.told] == [
        ("good", name, True) for name in writer.saves
    ]
    assert watching.notes == []


@pytest.mark.sample(1)
@pytest.mark.parametrize("written", TREES, ids=lambda each: each.tree)
def test_each_save_of_every_trainer_is_told_once_and_nothing_else(written: Written, tmp_path: Path) -> None:
    assert_told_once(*written_and_watched(written, tmp_path, seed=1))


def test_a_save_whose_record_goes_away_is_told_though_all_its_shards_are_as_they_were(tmp_path: Path) -> None:
    writer = Writer(Written("layouts/dcp_plain_2ranks"), tmp_path, seed=1)
    for name in writer.saves:
        writer.copy(name)
    watching = Watching(writer.root, tmp_path / "state", world=None)
    watching.poll(times=4)
    (writer.root / writer.saves[1] / ".metadata").unlink()
    watching.poll(times=16)
    told = [(event.kind.value, event.name) for event in watching.told]
    assert told == [("good", "8"), ("good", "4"), ("bad", "8")]
    assert watching.told[-1].findings[0].code is Code.UNCOMMITTED_SAVE


def test_a_save_that_was_sealed_before_its_last_rank_began_is_sealed_anew_and_one_that_lost_a_rank_is_not(
    tmp_path: Path,
) -> None:
    writer = Writer(Written("layouts/accel_ddp2/checkpoints"), tmp_path, seed=1)
    first = writer.saves[0]
    writer.copy(first)
    late = writer.root / first / "random_states_1.pkl"
    data = late.read_bytes()
    late.unlink()
    watching = Watching(writer.root, tmp_path / "state", world=None, level=Level.CHECKSUM, seal=True)
    watching.poll(times=4)
    late.write_bytes(data)
    watching.poll(times=16)
    assert [(event.kind.value, event.sealed) for event in watching.told] == [("good", True), ("good", True)]
    late.unlink()
    watching.poll(times=16)
    assert watching.kinds == ["good", "good", "bad"]


def test_another_trainers_save_that_somebody_puts_beside_is_said_and_ends_no_watch(tmp_path: Path) -> None:
    writer = Writer(Written("layouts/hf_single"), tmp_path, seed=1)
    writer.copy(writer.saves[0])
    watching = Watching(writer.root, tmp_path / "state", world=None)
    watching.poll(times=4)
    beside = shutil.copytree(FIXTURES / "health_pp2" / "output" / "checkpoint" / "rank_0", writer.root / "rank_0")
    watching.poll(times=2)
    assert ["side by side" in note for note in watching.notes] == [True]
    shutil.rmtree(beside)
    writer.copy(writer.saves[1])
    watching.poll(times=4)
    assert watching.kinds == ["good", "good"]
