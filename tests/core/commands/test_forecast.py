"""`verify --dry-run` says what would be read and reads none of it; much of a store is read where somebody means it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ckpttool.core.errors import ExitCode
from tests.core.storage.test_storage_sees_all import copied
from tests.support.answers import FIXTURES
from tests.support.commands import ask
from tests.support.s3_relay import Relay, relay_over

SINK2 = str(FIXTURES / "sink2_ckpt/output")


def foreseen_of(*arguments: str) -> dict[str, Any]:
    said = ask("verify", *arguments, "--dry-run", "--format", "json")
    assert said.code == 0, said.stderr
    return said.json


def test_what_would_be_read_is_what_is_read() -> None:
    foreseen = foreseen_of(SINK2, "--level", "checksum")
    assert [(each["name"], each["asked"]) for each in foreseen["checkpoints"]] == [
        ("_1-25_2", False),
        ("_1-30_2", True),
    ]
    assert foreseen["requests"] is None
    files = [path for path in Path(SINK2).rglob("*_1-[23][05]_2.ckpt") if "1-20" not in path.name]
    assert foreseen["bytes"] == sum(path.stat().st_size for path in files)
    assert foreseen["tasks"] == len(files) == 8


def test_a_part_of_all_is_foreseen_as_a_part() -> None:
    parts = [foreseen_of(SINK2, "--checkpoint", "all", "--subset", f"{number}/3") for number in (1, 2, 3)]
    assert sum(part["tasks"] for part in parts) == 20


def test_no_checkpoint_is_nothing_to_read(tmp_path: Path) -> None:
    (tmp_path / "rank_0").mkdir()
    assert ask("verify", str(tmp_path), "--dry-run").code == ExitCode.NOTHING_TO_RESUME


@pytest.fixture
def relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Relay]:
    pytest.importorskip("obstore", reason="object stores are read by obstore, which is not installed")
    (tmp_path / "stores" / "bucket").mkdir(parents=True)
    copied("sink2_safetensors/output", tmp_path / "stores" / "bucket")
    with relay_over(tmp_path / "stores", monkeypatch) as relay:
        yield relay


@pytest.mark.parametrize(("level", "most"), [("structure", 1.0), ("checksum", 2.0)])
def test_a_store_is_asked_as_often_as_was_foreseen(level: str, most: float, relay: Relay) -> None:
    asked = ["s3://bucket/tree", "--level", level, "--checkpoint", "all"]
    foreseen = foreseen_of(*asked)["requests"]
    by_scan = len(relay.ranges)
    relay.ranges.clear()
    assert ask("verify", *asked).code == 0
    assert foreseen <= len(relay.ranges) - by_scan <= most * foreseen


def test_much_is_read_of_a_store_only_where_somebody_means_it(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckpttool.core.commands.verify._DEAR_BYTES", 1000)
    asked = ["verify", "s3://bucket/tree", "--level", "checksum"]
    assert ask("scan", "s3://bucket/tree").code == 0
    by_scan = len(relay.ranges)
    said = ask(*asked)
    assert said.code == ExitCode.USAGE
    assert "--yes" in said.stderr
    assert len(relay.ranges) == 2 * by_scan
    assert ask(*asked, "--yes").code == 0
    assert ask("verify", SINK2, "--level", "checksum").code == 0, "a disk is read without a word"
