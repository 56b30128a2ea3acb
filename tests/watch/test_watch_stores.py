"""A tree in an object store that is watched: each look lists it anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ckpttool.core.domain.amounts import Amount
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.domain.verdict import Level
from ckpttool.core.errors import UsageError
from ckpttool.watch.model import WatchRule
from tests.support.s3_relay import Relay, relay_over
from tests.support.watched_trainings import Watching
from tests.watch.test_watch_layouts import Writer, Written

pytest.importorskip("obstore", reason="object stores are read by obstore, which is not installed")


@pytest.fixture
def relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Relay]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "stores" / "run").mkdir(parents=True)  # where the writer writes is a bucket
    with relay_over(tmp_path / "stores", monkeypatch) as relay:
        yield relay


def test_a_save_that_comes_into_a_store_is_told_and_one_that_is_cut_off_there_too(relay: Relay, tmp_path: Path) -> None:
    writer = Writer(Written("layouts/hf_single", ("trainer_state",)), tmp_path / "stores", seed=1)
    first, second, third = writer.saves
    writer.copy(first)
    watching = Watching("s3://run/hf_single", tmp_path / "state", world=None, level=Level.CHECKSUM)
    watching.poll(times=4)
    writer.write(second, watching)
    watching.poll(times=4)
    assert [(event.kind.value, event.name) for event in watching.told] == [("good", first), ("good", second)]
    assert watching.told[1].root == "s3://run/hf_single"
    writer.copy(third)
    (cut := writer.root / third / "model.safetensors").write_bytes(cut.read_bytes()[:-99])
    watching.poll(times=16)
    assert watching.kinds == ["good", "good", "bad"]
    watching.poll(times=4)
    assert relay.asked["HEAD"] == 0
    assert watching.notes == []


@pytest.mark.usefixtures("relay")
def test_a_store_has_no_room_to_watch(tmp_path: Path) -> None:
    writer = Writer(Written("layouts/hf_single", ("trainer_state",)), tmp_path / "stores", seed=1)
    writer.copy(writer.saves[0])
    rule = WatchRule(free_below=Amount(nbytes=ByteCount(1)))
    watching = Watching("s3://run/hf_single", tmp_path / "state", world=None, rule=rule)
    with pytest.raises(UsageError, match="--free-below needs a tree on a disk of this machine"):
        watching.poll()
