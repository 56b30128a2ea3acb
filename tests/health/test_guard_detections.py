"""What a detector noticed in a guarded training: by steps, and as it was told there."""

from __future__ import annotations

import io
import math
from pathlib import Path

from ckpttool.core.domain.guarding import GuardEventKind
from ckpttool.core.domain.metrics import LogProblem
from ckpttool.core.logs.base import LogSource
from ckpttool.health.asd.features import FeaturePolicy
from ckpttool.health.model.asd import AsdConfig, AsdEvent, AsdKind
from ckpttool.health.model.events import EventKind, SuspectKind
from ckpttool.health.read.asd_events import detector_events, read_asd_events
from ckpttool.health.rules.timeline import timeline
from tests.core.logs.test_guard_events import RUN, SKIP, line
from tests.support.guard_events import Told, train

STRIKE: dict[int, list[Told]] = {
    30: [(GuardEventKind.SDC_EVENT, {"rank": 3, "name": "layer.0", "value": 1e30, "clock": 1e9})],
    31: [(GuardEventKind.SDC_ECHO, {"rank": 3, "name": "layer.0", "value": math.inf, "clock": 1e9})],
    40: [
        (
            GuardEventKind.SDC_STRIKE,
            {"rank": 3, "since_step": 30, "clock": 1e9, "message": "3 abnormal values: a strike"},
        ),
        (GuardEventKind.CHECKSUM_ON, {"clock": 1e9}),
    ],
}


def test_what_a_detector_noticed_is_handed_on_by_steps_and_stands_as_it_was_told(tmp_path: Path) -> None:
    path = train(tmp_path, [1.0] * 50, rank=3, world_size=4, told=STRIKE)
    found, unread = detector_events([str(path)])
    assert unread == ()
    assert [event.kind for event in found] == [AsdKind.EVENT, AsdKind.ECHO, AsdKind.STRIKE, AsdKind.CHECKSUM_ON]
    assert [(event.step, event.rank, event.time) for event in found[:3]] == [
        (30, 3, None),
        (31, 3, None),
        (40, 3, None),
    ]
    assert (found[0].name, found[1].value, found[2].group_since_step) == ("layer.0", math.inf, 30)
    noticed = tuple(FeaturePolicy(config=AsdConfig(enable=True)).judge_events(found))
    kinds = [event.kind for event in noticed]
    assert kinds == [EventKind.SDC_EVENT, EventKind.SDC_ECHO, EventKind.SDC_STRIKE, EventKind.CHECKSUM_ON]
    assert noticed[2].message == "3 abnormal values: a strike"
    (interval,) = timeline(noticed).intervals
    assert (interval.kind, interval.first_step, interval.recovered_step) == (SuspectKind.SDC_STRIKE, 30, None)
    assert interval.first_time is None


def test_a_training_without_a_detector_has_no_such_events(tmp_path: Path) -> None:
    path = train(tmp_path, [1.0, 9.0, math.nan], policy=SKIP)
    assert detector_events([str(path)]) == ((), ())


def test_a_wrong_product_is_this_rank_s_and_a_strike_without_a_rank_is_nobody_s(tmp_path: Path) -> None:
    wrong: dict[int, list[Told]] = {
        2: [(GuardEventKind.CHECKSUM_ABNORMAL, {"op": "mm"}), (GuardEventKind.SDC_STRIKE, {})]
    }
    path = train(tmp_path, [1.0] * 3, rank=5, told=wrong)
    found, _ = detector_events([str(path)])
    assert {(event.kind, event.rank) for event in found} == {(AsdKind.CHECKSUM_ABNORMAL, 5), (AsdKind.STRIKE, None)}


def detector_events_of(data: bytes) -> tuple[list[AsdEvent], list[LogProblem]]:
    found = list(read_asd_events(LogSource(name="log", stream=io.BytesIO(data))))
    return [each for each in found if not isinstance(each, LogProblem)], [
        each for each in found if isinstance(each, LogProblem)
    ]


def test_a_value_that_is_no_number_is_told_and_so_is_a_torn_line_but_at_the_end() -> None:
    events, unread = detector_events_of(RUN + line("sdc-strike", 1, value="much") + line("sdc-strike", 2, rank="x"))
    assert (events, len(unread)) == ([], 2)
    torn = RUN + b'{"kind\n' + line("sdc-strike", 1) + b'{"kind'
    events, unread = detector_events_of(torn)
    assert (len(events), [problem.line for problem in unread]) == (1, [2])


def test_a_name_that_a_terminal_would_obey_is_not_passed_on() -> None:
    events, _ = detector_events_of(RUN + line("sdc-strike", 1, name="a\x1b[2J", message="b\nc"))
    (event,) = events
    assert (event.name, event.message) == ("", "")
