"""Every writer, killed at every system call, and with every error at every one: the old state or the new one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.reliability.figures import Figure, Programme
from tests.reliability.injection import Bench, errors, stops, tried
from tests.reliability.traced import ERRNOS, KILL, Call, Point, works
from tests.reliability.warm import CARELESS, Warm
from tests.reliability.writers import WRITERS, Writer

MOST_MISSES = 0.05
"""The share of points that may not come to pass: threads take turns."""

Choice = Callable[..., Iterator[Point]]

PARTS: dict[str, tuple[Choice, str, str]] = {
    "kill": (
        stops,
        "kills",
        "before calls that change the disk also by SIGTERM, SIGINT and SIGHUP",
    ),
    "errno": (
        errors,
        "errors",
        f"{', '.join(ERRNOS[:-1])} and {ERRNOS[-1]}; ENOSPC, EIO and EROFS also for good",
    ),
}
"""What is chosen, what it is called, and what is to be said of it, by part of the programme."""


def prepared(writer: Writer, folder: Path) -> Bench:
    bench = Bench(writer, folder / "bench")
    with closing(Warm()) as warm:
        bench.prepare(warm)
    return bench


@pytest.fixture
def traceable(programme: Programme) -> None:
    """Skip where strace cannot be had, and count that; in CI it must be there."""
    reason = works()
    if reason is None:
        return
    for part, (_, unit, _) in PARTS.items():
        programme.report(part, Figure(tried=0, unit=unit, seconds=0, note=reason))
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.mark.usefixtures("traceable")
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.name)
def test_whatever_happens_at_whichever_call_every_file_is_the_old_one_or_the_new_one(
    writer: Writer, part: str, programme: Programme, tmp_path: Path
) -> None:
    choose, unit, note = PARTS[part]
    bench = prepared(writer, tmp_path)
    chosen = list(choose(bench.calls, everything=programme.nightly))
    start = time.monotonic()
    hits, wrong = tried(bench, chosen)
    assert not wrong, f"{len(wrong)} of {len(chosen)}:\n" + "\n".join(wrong[:20])
    assert hits >= (1 - MOST_MISSES) * len(chosen), f"only {hits} of {len(chosen)} came to pass"
    programme.report(part, Figure(tried=hits, unit=unit, seconds=time.monotonic() - start, note=note), writer.name)


@pytest.mark.usefixtures("traceable")
def test_a_writer_that_writes_in_place_is_caught(tmp_path: Path) -> None:
    bench = prepared(replace(WRITERS[0], env={CARELESS: "1"}), tmp_path)
    calls = [call for call in bench.calls if call.name == "write" and "health_ckpts.json" in call.line]
    for fault in (KILL, "ENOSPC"):
        assert any("neither the old nor the new one" in each for each in told(bench, calls, fault))


@pytest.mark.usefixtures("traceable")
def test_one_that_ends_otherwise_than_it_says_is_caught(tmp_path: Path) -> None:
    """The judge is told another truth than it would find: each of its rules then has something to say."""
    bench = prepared(WRITERS[0], tmp_path)
    fsync = [call for call in bench.calls if call.name == "fsync"][-1:]
    after, bench.after = bench.after, {**bench.after, "output/more": b""}
    assert any("exit 16, but" in each for each in told(bench, fsync, "EIO"))
    harmless = [call for call in bench.calls if call.name == "ioctl"][-1:]
    assert any("says it is done" in each for each in told(bench, harmless, "EIO"))
    bench.after, bench.newest = after, {"another"}
    assert any("resolve then takes" in each for each in told(bench, fsync, KILL))


def told(bench: Bench, calls: Sequence[Call], fault: str) -> list[str]:
    return tried(bench, [Point(call, fault) for call in calls])[1]
