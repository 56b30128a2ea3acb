"""A run on several machines starts from scratch only if all of them say that nothing was ever saved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckpttool.nodes import part_file
from tests.support.commands import Said, ask


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two machines with disks of their own, each with the tree at the same place below it."""
    for name in ("a", "b"):
        (tmp_path / name / "run").mkdir(parents=True)
    (tmp_path / "parts").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recorded(machines: Path, *names: str) -> Path:
    for name in names:
        number = "ab".index(name) + 1
        out = machines / "parts" / f"{number}.ckptpart"
        tree = str(machines / name / "run" / "checkpoint")
        said = ask("part", tree, "--part", f"{number}/2", "--run-id", "r", "--out", str(out))
        assert said.code == 0, said.output
    return machines / "parts"


def start(machines: Path) -> Said:
    parts = str(machines / "parts")
    return ask("resolve", parts, "--root", str(machines / "a" / "run" / "checkpoint"), "--or-start", "--json")


def test_it_starts_from_scratch_if_no_machine_has_a_trace(machines: Path) -> None:
    recorded(machines, "a", "b")
    said = start(machines)
    assert (said.code, said.json["start"]) == (0, "scratch"), said.output
    assert said.json["root"] == str(machines / "a" / "run" / "checkpoint")
    for name in "ab":  # MindFormers makes these before the first save
        (machines / name / "run" / "checkpoint" / f"rank_{'ab'.index(name)}").mkdir(parents=True)
    recorded(machines, "a", "b")
    assert start(machines).code == 0


def test_a_trace_on_one_machine_prevents_it(machines: Path) -> None:
    trace = machines / "b" / "run" / "health_ckpts.json"
    trace.touch()
    recorded(machines, "a", "b")
    said = start(machines)
    assert (said.code, said.json["exit"]) == (11, 11)
    assert "part 2 of 2" in said.stderr
    assert str(trace) in said.stderr
    trace.unlink()
    recorded(machines, "b")
    assert start(machines).code == 0


def test_a_part_that_is_missing_or_does_not_say_leaves_it_unknown(
    machines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(machines, "a")
    assert start(machines).code == 14
    (machines / "b" / "run" / "checkpoint").symlink_to("not mounted")
    recorded(machines, "b")
    assert start(machines).code == 14
    (machines / "b" / "run" / "checkpoint").unlink()
    with monkeypatch.context() as patch:  # as a version wrote it that did not record this
        fields = part_file.seat_fields
        patch.setattr(
            part_file,
            "seat_fields",
            lambda seat, text: {name: value for name, value in fields(seat, text).items() if name != "trace"},
        )
        recorded(machines, "b")
    assert "trace" not in json.loads((machines / "parts" / "2.ckptpart").read_text().splitlines()[0])
    said = start(machines)
    assert said.code == 14
    assert "part 2 of 2" in said.stderr
    recorded(machines, "b")
    assert start(machines).code == 0


def test_parts_that_were_not_written_are_no_first_start(machines: Path) -> None:
    assert start(machines).code == 12
    assert ask("resolve", str(machines / "parts"), "--or-start").code == 0  # the folder itself may be a run's
