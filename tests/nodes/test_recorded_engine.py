"""What was told of a shard where it lies is told again, and no more than is asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckpttool.core.domain.finding import Code, Finding, Severity
from ckpttool.core.domain.verdict import CheckTask, Level
from ckpttool.nodes.machines import OF_CONTENT, OF_THE_SAVE_BEFORE, RecordedEngine
from tests.support.verifying import report, task_for

PATH = "rank_0/x.ckpt"
FINDINGS = tuple(
    Finding(code=code, severity=Severity.SUSPECT, message="told", path=PATH)
    for code in (Code.NORM_JUMP, Code.ALL_ZERO_TENSOR, Code.CHECKSUM_MISMATCH, Code.SHARD_ZEROED)
)
REPORT = replace(report(findings=FINDINGS), path=PATH, rank=None, level=Level.NUMERICS)


def task(level: Level = Level.STRUCTURE, path: str = PATH) -> CheckTask:
    return replace(task_for(path, level), root="x", path=path)


def told(engine: RecordedEngine, asked: CheckTask) -> list[str]:
    (observed,) = engine.run([asked])
    assert observed.report.rank == 0
    return [finding.code.value for finding in observed.report.findings]


@pytest.mark.parametrize("level", [Level.STRUCTURE, Level.CHECKSUM, Level.NUMERICS])
def test_a_lower_level_hides_nothing_of_what_was_found(level: Level) -> None:
    assert told(RecordedEngine({PATH: REPORT}.get), task(level)) == [finding.code.value for finding in FINDINGS]


def test_who_does_not_ask_for_the_save_before_hears_nothing_of_it() -> None:
    engine = RecordedEngine({PATH: REPORT}.get, but=OF_THE_SAVE_BEFORE)
    assert told(engine, task(Level.NUMERICS)) == ["checksum-mismatch", "shard-zeroed"]


def test_who_compares_headers_hears_nothing_of_content() -> None:
    assert told(RecordedEngine({PATH: REPORT}.get, but=OF_CONTENT), task()) == ["shard-zeroed"]


def test_what_was_not_looked_at_or_not_so_hard_is_unknown() -> None:
    engine = RecordedEngine({PATH: replace(REPORT, level=Level.STRUCTURE, findings=())}.get)
    assert told(engine, task()) == []
    assert told(engine, task(Level.CHECKSUM)) == ["not-looked-at"]
    assert told(engine, task(path="rank_1/x.ckpt")) == ["not-looked-at"]
