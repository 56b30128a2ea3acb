"""A timeline that a replay printed, read back; and what only looks like one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckpttool.core.domain.metrics import parse_local_time
from ckpttool.core.domain.units import Rank, Step
from ckpttool.core.errors import UsageError
from ckpttool.health.model.events import SuspectInterval, SuspectKind
from ckpttool.health.verbs.evidence import timeline_in

SPIKE: dict[str, object] = {
    "kind": "spike",
    "first_step": 5,
    "recovered_step": None,
    "first_time": None,
    "rank": None,
    "peak": 9.0,
    "reason": "a spike",
}
STRIKE: dict[str, object] = {**SPIKE, "kind": "sdc-strike", "first_step": None, "rank": 3}


def write(path: Path, timeline: object) -> str:
    path.write_text(json.dumps({"schema": "ckpttool/replay/1", "timeline": timeline}, indent=2))
    return str(path)


def test_steps_times_and_ranks_come_back(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", [SPIKE, {**STRIKE, "first_time": "2025-03-01 09:10:00"}])
    line = timeline_in(path)
    assert line is not None
    assert line.intervals == (
        SuspectInterval(kind=SuspectKind.SPIKE, reason="a spike", first_step=Step(5)),
        SuspectInterval(
            kind=SuspectKind.SDC_STRIKE,
            reason="a spike",
            first_time=parse_local_time("2025-03-01 09:10:00"),
            rank=Rank(3),
        ),
    )


@pytest.mark.parametrize(
    "timeline",
    [
        None,
        {},
        [1],
        [{**SPIKE, "kind": "spyke"}],
        [{**SPIKE, "first_step": "5"}],
        [{**SPIKE, "first_step": True}],
        [{**STRIKE, "first_time": "noon"}],
        [{"kind": "spike"}],
    ],
)
def test_one_that_is_broken_is_an_error_and_no_empty_timeline(timeline: object, tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", timeline)
    with pytest.raises(UsageError, match="expected the output of ckpttool log replay"):
        timeline_in(path)


def test_one_that_is_cut_short_is_an_error(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "t.json", [SPIKE]))
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(UsageError, match="not JSON"):
        timeline_in(str(path))


def test_a_log_or_a_missing_file_is_not_one(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text('a line about "timeline"\n')
    (tmp_path / "a.json").write_text('{"schema": "ckpttool/health/1", "timeline": []}')
    assert [timeline_in(str(tmp_path / name)) for name in ("a.log", "a.json", "absent")] == [None, None, None]
