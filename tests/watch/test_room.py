"""`--free-below`: that the room will be short is told one save ahead, once, and with how long it lasts if known."""

from __future__ import annotations

import json
import os
import shutil
from fractions import Fraction
from pathlib import Path

import pytest

from ckpttool.core.domain.amounts import Amount
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.node import Space
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.storage.disk import LocalDisk
from ckpttool.watch.answers import text
from ckpttool.watch.model import Watched
from ckpttool.watch.state import WatchState, read_state, state_bytes
from tests.support.commands import ask
from tests.support.programs import program
from tests.support.watched_trainings import watched
from tests.watch.test_rules import MISSING, RULE, Course, good, save
from tests.watch.test_watch import events, tree

__all__ = ["tree"]  # a fixture

BELOW_50 = replace(RULE, free_below=Amount(nbytes=ByteCount(50)))


def disk(free_bytes: int, total: int = 1000, limit: str = "the disk") -> Space:
    return Space(limit=limit, free_bytes=free_bytes, total_bytes=total)


def seen(course: Course, *spaces: Space, times: int = 1) -> Course:
    return course.poll(save(nbytes=100), times=times, spaces=spaces)


def test_it_is_told_when_the_next_save_will_leave_less_and_not_before_and_once() -> None:
    course = seen(good(BELOW_50, save(nbytes=100)), disk(150), times=3)
    assert course.kinds == ["good"]
    seen(course, disk(149), times=5)
    assert course.kinds == ["good", "room-low"]
    finding = course.told[-1].findings[0]
    assert finding.code.value == "room-low"
    assert finding.message == (
        "after the next checkpoint, the disk will have less than 50 bytes free: 149 bytes are free, and a has "
        "100 bytes (room for 1 more save)"
    )
    assert "room-low" in text(course.told[-1])


def test_after_there_was_room_again_it_is_told_again() -> None:
    course = seen(good(BELOW_50, save(nbytes=100)), disk(149), times=2)
    seen(seen(course, disk(500)), disk(20))
    assert course.kinds == ["good", "room-low", "room-low"]


def test_without_the_option_nothing_is_told() -> None:
    assert seen(good(RULE, save(nbytes=100)), disk(1), times=3).kinds == ["good"]


def test_the_tightest_of_the_disk_and_the_quotas_counts() -> None:
    course = seen(good(BELOW_50, save(nbytes=100)), disk(9999), disk(149, limit="the quota of user 7"))
    assert "the quota of user 7 will have less" in course.told[-1].findings[0].message


def test_a_share_is_of_the_disk() -> None:
    rule = replace(RULE, free_below=Amount(part=Fraction(1, 10)))
    assert seen(good(rule, save(nbytes=100)), disk(200, 1000)).kinds == ["good"]
    assert seen(good(rule, save(nbytes=100)), disk(199, 1000)).kinds == ["good", "room-low"]


def test_an_exceeded_quota_has_no_room_and_not_less() -> None:
    course = seen(good(BELOW_50, save(nbytes=100)), disk(-500, limit="the quota of user 7"))
    assert "0 bytes are free" in course.told[-1].findings[0].message
    assert "(room for 0 more saves)" in course.told[-1].findings[0].message


def test_how_long_it_lasts_is_said_when_the_pace_is_known() -> None:
    course = Course(BELOW_50)
    for name in "abcd":
        older = [save(one, nbytes=100) for one in reversed("abcd"[: "abcd".index(name)])]
        course.poll(save(name, nbytes=100), *older, times=3, passed=1200.0).judge()
    course.poll(*(save(one, nbytes=100) for one in "dcba"), spaces=(disk(349),))
    assert course.kinds == ["good"] * 4
    rule = replace(RULE, free_below=Amount(nbytes=ByteCount(300)))
    course.rule = rule
    course.poll(*(save(one, nbytes=100) for one in "dcba"), spaces=(disk(349),))
    assert course.told[-1].findings[0].message.endswith("(room for 3 more saves, about 3 h)")


def test_while_a_save_is_written_nothing_is_told() -> None:
    course = good(BELOW_50, save(nbytes=100)).poll(save("b", incomplete=[MISSING]), save(nbytes=100), spaces=(disk(1),))
    assert course.kinds == ["good"]


def test_a_state_remembers_it_and_one_of_an_older_version_is_read_too(tmp_path: Path) -> None:
    state = WatchState(watched=Watched(room_told=True), boot="b", seconds=1.0, wall=2.0)
    (tmp_path / "state.json").write_bytes(state_bytes(state))
    assert read_state(str(tmp_path / "state.json")) == state
    from ckpttool.core.records.hashed_json import closed

    document = json.loads(state_bytes(state))
    del document["room_told"]
    del document[list(document)[-1]]
    (tmp_path / "old.json").write_bytes(closed(json.dumps(document)[:-1]))
    read = read_state(str(tmp_path / "old.json"))
    assert read is not None
    assert not read.watched.room_told


def test_a_restart_repeats_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalDisk, "space", lambda *_: disk(149, limit="the disk"))
    trainer, watching = watched(tmp_path, seed=3, rule=replace(RULE, free_below=Amount(nbytes=ByteCount(1 << 40))))
    watching.save(trainer)
    watching.poll(times=3)
    assert watching.kinds == ["good", "room-low"]
    watching.killed()
    watching.poll(times=5)
    assert watching.kinds == ["good", "room-low"]


class TestTheCommand:
    def test_the_event_keeps_to_its_schema_and_a_hook_gets_it(self, tree: Path, tmp_path: Path) -> None:
        hook = f"sh -c 'cat >> {tmp_path}/told; echo $CKPTTOOL_EVENT >> {tmp_path}/kinds'"
        options = ("--once", "--level", "structure", "--free-below", "100%", "--on-event", hook, "--json")
        for _ in range(2):  # the first reads the saves, and the second knows their size as that of good ones
            said = ask("watch", str(tree), *options)
            assert said.code == 0
        assert (tmp_path / "kinds").read_text().split() == ["good", "good", "room-low"]
        told = events((tmp_path / "told").read_text())[-1]
        assert (told["event"], told["checkpoint"]) == ("room-low", "2_1")
        assert [finding["code"] for finding in told["findings"]] == ["room-low"]
        assert told["findings"][0]["severity"] == "suspect"

    def test_with_enough_room_nothing_is_told(self, tree: Path) -> None:
        options = ("watch", str(tree), "--once", "--level", "structure", "--free-below", "1K", "--json")
        ask(*options)
        said = ask(*options)
        assert (said.code, said.stdout) == (0, "")

    def test_a_quota_counts_and_one_that_hangs_is_noted(
        self, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("ckpttool.watch.verbs.mount_table", lambda: "36 35 98:0 / / rw - ext4 /dev/q rw\n")
        place = tmp_path / "bin"
        place.mkdir()
        for name in ("cat", "sh", "sleep"):
            (place / name).symlink_to(str(shutil.which(name)))
        monkeypatch.setenv("PATH", str(place))
        program(place, "quota", output=f"Disk quotas for user me (uid {os.getuid()}):\n /dev/q 99 0 100 0 1 0 0 0\n")
        options = ("watch", str(tree), "--once", "--level", "structure", "--free-below", "1K")
        ask(*options)
        assert f"the quota of user {os.getuid()} will have less than 1,024 bytes free" in ask(*options).stdout
        program(place, "quota", output="", then="sleep 600")
        monkeypatch.setattr("ckpttool.core.storage.quotas.SECONDS", 0.05)
        assert "quota did not answer within 0.05 s" in ask(*options).stderr

    @pytest.mark.parametrize("text", ["5", "0%", "101%", "x", "-5G"])
    def test_an_amount_that_is_none_is_answered_in_one_line(self, text: str, tree: Path) -> None:
        said = ask("watch", str(tree), "--once", f"--free-below={text}")
        assert (said.code, said.stderr.count("\n")) == (2, 1)
        assert "--free-below takes a size such as 500GiB, or a share such as 10%" in said.stderr
