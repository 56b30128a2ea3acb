"""Detector logs of three dialects: each line once, with rank and time."""

from __future__ import annotations

import io

from ckpttool.core.domain.metrics import LogProblem, parse_local_time
from ckpttool.core.logs.base import LogSource
from ckpttool.health.model.asd import AsdEvent, AsdKind
from ckpttool.health.read.asd_events import read_asd_events, without_relayed
from tests.core.logs.reading import LOGS


def read(data: bytes) -> tuple[list[AsdEvent], list[LogProblem]]:
    items = list(read_asd_events(LogSource(name="log", stream=io.BytesIO(data))))
    events = [item for item in items if isinstance(item, AsdEvent)]
    return events, [item for item in items if isinstance(item, LogProblem)]


def fixture(dialect: str) -> tuple[list[AsdEvent], list[LogProblem]]:
    return read((LOGS / f"asd_{dialect}_made.log").read_bytes())


def test_torch_npus_lines_are_read_and_its_info_line_is_no_second_strike() -> None:
    events, problems = fixture("torch_npu")
    assert [event.kind for event in events] == [
        *[AsdKind.EVENT] * 4,
        AsdKind.STRIKE,
        AsdKind.CHECKSUM_ON,
        AsdKind.CHECKSUM_ABNORMAL,
        AsdKind.CHECKSUM_OFF,
        AsdKind.CHECKSUM_ABNORMAL,
    ]
    first, strike = events[0], events[4]
    assert (first.rank, first.name, first.value, first.backward) == (3, "module.layers.0.mlp_backward", 1e12, 412)
    assert first.time == parse_local_time("2025-03-01 09:10:00")
    assert strike.group_since == parse_local_time("2025-03-01 09:10:00")
    assert (events[6].rank, events[6].time, events[8].rank) == (3, None, None)
    assert [problem.line for problem in problems] == [14]


def test_a_relayed_line_is_kept_once_and_order_is_that_of_time() -> None:
    events, _ = fixture("torch_npu")
    kept = without_relayed([*reversed(events), *events])
    assert [event.kind for event in kept].count(AsdKind.EVENT) == 3
    assert [event.kind for event in kept].count(AsdKind.STRIKE) == 1
    times = [event.time for event in kept if event.time is not None]
    assert times == sorted(times)


def test_mindspores_lines_are_read_by_the_clock_at_their_head() -> None:
    events, problems = fixture("mindspore")
    assert [(event.kind, event.rank) for event in events] == [
        (AsdKind.EVENT, None),
        (AsdKind.STRIKE, 5),
        (AsdKind.CHECKSUM_ABNORMAL, 5),
    ]
    assert events[0].time == parse_local_time("2025-08-26 10:46:26")
    assert (events[0].name, events[0].value) == ("fc1.weight", float("inf"))
    assert problems == []


def test_mindformers_lines_are_read_with_their_steps() -> None:
    events, problems = fixture("mindformers")
    assert [(event.kind, event.step, event.rank) for event in events] == [
        (AsdKind.EVENT, 120, None),
        (AsdKind.EVENT, None, None),
        (AsdKind.STRIKE, None, 2),
        (AsdKind.CHECKSUM_ON, 130, None),
        (AsdKind.CHECKSUM_OFF, 180, None),
        (AsdKind.CHECKSUM_ABNORMAL, None, 2),
    ]
    assert problems == []


def test_a_strike_at_the_end_of_a_log_and_one_with_a_torn_list_are_not_lost() -> None:
    line = b"[Warning][2025-03-01 15:50:00] [Rank 3]: feature detection detects abnormal results!\n"
    (strike,), _ = read(line)
    assert (strike.kind, strike.group_since) == (AsdKind.STRIKE, None)
    (torn,), _ = read(line + b"Grad-norm spike: index 0, time 2025-")
    assert torn.group_since is None


def test_a_time_that_is_none_and_a_value_that_is_none_are_left_out() -> None:
    data = (
        b"[Event][2025-13-41 09:10:00] [Rank None]: A grad-norm spike may happen, param name a, abnormal value ???, "
        b"previous value 1.0, history avg 0.1, bp time 1, normal count 4.\n"
    )
    (event,), _ = read(data)
    assert (event.time, event.value, event.rank) == (None, None, None)


def test_a_line_that_is_too_long_is_told() -> None:
    _, problems = read(b"x" * (3 << 20) + b"\n")
    assert len(problems) == 1


def test_a_strike_that_lists_its_steps_begins_with_the_first_of_them() -> None:
    events, _ = fixture("mindformers")
    assert [event.group_since_step for event in events if event.kind is AsdKind.STRIKE] == [100]
    bare, _ = read(b"2025-08-26 10:47:26,100 - SDC 3 strikes and out on rank: 2\n")
    assert [event.group_since_step for event in bare] == [None]
