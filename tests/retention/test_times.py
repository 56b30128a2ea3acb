"""Rules that count hours, days and weeks, judged by a second rule; and no time that is in doubt costs a save."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.domain.retention import RetentionPlan, RetentionPolicy, Why
from ckpttool.core.domain.shard import FileStamp, FormatName
from ckpttool.retention.rules import Circumstances, retain
from ckpttool.retention.times import NS, Period, unknown_times
from tests.retention.test_rules import (
    SAVES,
    WISHES,
    WORLD,
    Verifier,
    declared,
    going,
    policy_of,
    raw_of,
    verifier_of,
    whys,
)
from tests.support.commands import ask
from tests.support.inventories import checkpoint, tree
from tests.support.reference_retention import Kept, Wish, may_go
from tests.support.reference_times import Times, hopes, kept_by_time
from tests.support.trees import TreeBuilder

HOUR, DAY, WEEK = 3600, 86400, 7 * 86400

MONDAY = int(datetime(2026, 11, 16, tzinfo=timezone.utc).timestamp())


def at(save: Checkpoint, seconds: float, *, writing: float = 30.0, size: int = 1000) -> Checkpoint:
    """Return a save whose last file was written then, and its first `writing` seconds before."""
    last = int(seconds * NS)
    many = max(1, len(save.shards) - 1)
    shards = [
        replace(
            shard, stamp=FileStamp.on_disk(size=size, mtime_ns=last - int(writing * NS) * (many - n) // many, inode=n)
        )
        for n, shard in enumerate(save.shards)
    ]
    return replace(save, shards=tuple(shards))


def planned(
    saves: Sequence[Checkpoint], policy: RetentionPolicy, verifier: Verifier | None = None, now: float | None = None
) -> RetentionPlan:
    def without(gone: Sequence[Checkpoint]) -> Inventory:
        return declared(tree(*(one for one in saves if one not in gone), folders=range(WORLD)))

    given = Circumstances(now_ns=None if now is None else int(now * NS))
    return retain(declared(tree(*saves)), policy, verifier or Verifier(), without, given)


def every(seconds: int, number: int, *, since: int = MONDAY) -> list[Checkpoint]:
    """Return so many saves, one every so many seconds, with steps 10, 20, and so on."""
    return [at(checkpoint(f"{10 * n}_1"), since + n * seconds) for n in range(1, number + 1)]


class TestDays:
    def test_of_each_of_the_last_days_the_newest_good_one_stays_with_the_day_as_reason(self) -> None:
        saves = every(6 * HOUR, 12)  # 06:00 on Monday to 00:00 on Thursday
        plan = planned(saves, RetentionPolicy(keep_last=1, keep_daily=3))
        stays = {fate.checkpoint.name: fate.because for fate in plan.fates if not fate.goes}
        assert stays == {
            "120_1": "the newest good checkpoint; the newest good one of 2026-11-19 (UTC)",
            "110_1": "the newest good one of 2026-11-18 (UTC)",
            "70_1": "the newest good one of 2026-11-17 (UTC)",
        }

    def test_days_without_a_save_are_not_counted(self) -> None:
        saves = [at(checkpoint(f"{day}_1"), MONDAY + day * DAY) for day in (1, 2, 40, 41)]
        assert going(planned(saves, RetentionPolicy(keep_last=1, keep_daily=3))) == {"1_1"}

    def test_where_there_are_fewer_days_the_oldest_stays_too(self) -> None:
        saves = every(6 * HOUR, 8)
        plan = planned(saves, RetentionPolicy(keep_last=1, keep_daily=9))
        assert [name for name, why in whys(plan).items() if why == (Why.OLDEST,)] == ["10_1"]
        assert going(planned(saves, RetentionPolicy(keep_last=1, keep_daily=3))) >= {"10_1"}

    def test_a_damaged_one_does_not_stand_for_its_day(self) -> None:
        plan = planned(every(6 * HOUR, 12), RetentionPolicy(keep_last=1, keep_daily=3), Verifier(damaged=["110_1"]))
        assert whys(plan)["100_1"] == (Why.DAILY,)
        assert whys(plan)["110_1"] == (Why.NOT_WHOLE,)

    def test_one_whose_content_is_damaged_does_not_stand_for_its_day_either(self) -> None:
        verifier = Verifier(sealed=[f"{10 * n}_1" for n in range(1, 13)], rotten=["110_1", "70_1"])
        plan = planned(every(6 * HOUR, 12), RetentionPolicy(keep_last=1, keep_daily=3), verifier)
        assert whys(plan)["110_1"] == whys(plan)["70_1"] == (Why.NOT_WHOLE,)
        assert whys(plan)["100_1"] == whys(plan)["60_1"] == (Why.DAILY,)
        assert "90_1" in going(plan)

    def test_one_that_a_checksum_can_prove_is_not_replaced_by_one_of_its_day_that_none_can(self) -> None:
        saves = every(6 * HOUR, 12)
        plan = planned(saves, RetentionPolicy(keep_last=1, keep_daily=3), Verifier(sealed=["90_1", "120_1"]))
        assert whys(plan)["110_1"] == (Why.DAILY,)
        assert whys(plan)["90_1"] == (Why.DAILY,)
        assert "100_1" in going(plan)

    def test_rules_add_up(self) -> None:
        saves = every(6 * HOUR, 60)
        policy = RetentionPolicy(keep_last=1, keep_hourly=2, keep_daily=2, keep_weekly=2, keep_within=7 * HOUR)
        plan = planned(saves, policy)
        assert whys(plan)["600_1"] == (Why.LAST, Why.WITHIN, Why.HOURLY, Why.DAILY, Why.WEEKLY)
        assert {name for name, why in whys(plan).items() if Why.WITHIN in why} == {"600_1", "590_1"}
        assert {name for name, why in whys(plan).items() if Why.HOURLY in why} == {"600_1", "590_1"}


class TestWithin:
    def test_it_is_measured_from_the_newest_good_one_and_not_from_now(self) -> None:
        saves = every(DAY, 10)
        plan = planned(saves, RetentionPolicy(keep_last=1, keep_within=3 * DAY), now=MONDAY + 300 * DAY)
        assert {name for name, why in whys(plan).items() if Why.WITHIN in why} == {"100_1", "90_1", "80_1", "70_1"}
        assert plan.fates[1].because == "saved within 3 d before the newest good one"

    def test_a_newer_damaged_one_does_not_shift_it(self) -> None:
        plan = planned(every(DAY, 10), RetentionPolicy(keep_last=1, keep_within=DAY), Verifier(damaged=["100_1"]))
        assert whys(plan)["80_1"] == (Why.WITHIN,)


class TestPeriods:
    @pytest.mark.parametrize(
        ("when", "names"),
        [
            ("2026-11-20T03:59:59", ["2026-11-20T03", "2026-11-20", "2026-W47"]),
            ("2027-01-03T23:59:59", ["2027-01-03T23", "2027-01-03", "2026-W53"]),
            ("2027-01-04T00:00:00", ["2027-01-04T00", "2027-01-04", "2027-W01"]),
            ("2024-12-30T12:00:00", ["2024-12-30T12", "2024-12-30", "2025-W01"]),
        ],
    )
    def test_weeks_are_those_of_iso_8601_and_all_times_are_utc(self, when: str, names: list[str]) -> None:
        time_ns = int(datetime.fromisoformat(f"{when}+00:00").timestamp() * NS)
        assert [period.of(time_ns) for period in Period] == names

    @pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu", "America/New_York", "Pacific/Kiritimati"])
    def test_neither_the_time_zone_nor_daylight_saving_changes_the_plan(
        self, zone: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        since = int(
            datetime(2026, 10, 31, 20, tzinfo=timezone.utc).timestamp()
        )  # New York turns its clocks on 1 November
        saves = every(HOUR, 30, since=since)
        policy = RetentionPolicy(keep_last=1, keep_hourly=26, keep_daily=2)
        expected = planned(saves, policy)
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        try:
            assert planned(saves, policy) == expected
        finally:
            monkeypatch.undo()
            time.tzset()
        assert {name for name, why in whys(expected).items() if Why.HOURLY in why} == {
            f"{10 * n}_1" for n in range(5, 31)
        }


class TestTimesThatAreNotBelieved:
    POLICY = RetentionPolicy(keep_last=1, keep_daily=1)

    def assert_kept(self, saves: Sequence[Checkpoint], *names: str, now: float | None = None) -> None:
        plan = planned(saves, self.POLICY, now=now)
        assert {name for name, why in whys(plan).items() if Why.TIME_UNKNOWN in why} == set(names)
        assert going(plan).isdisjoint(names)

    def test_healthy_neighbour_times_of_a_training_are_believed(self) -> None:
        self.assert_kept(every(HOUR, 12))

    def test_equal_times(self) -> None:
        saves = [at(checkpoint(f"{step}_1"), MONDAY, writing=0) for step in (10, 20, 30)]
        self.assert_kept(saves, "10_1", "20_1", "30_1")

    def test_a_copy_in_order_without_a_pause(self) -> None:
        copied = [at(checkpoint(f"{10 * n}_1"), MONDAY + 400 * n, writing=300) for n in range(1, 7)]
        self.assert_kept(copied, *(f"{10 * n}_1" for n in range(1, 7)))

    def test_a_copy_of_single_files_in_order(self) -> None:
        def single(n: int, seconds: int) -> Checkpoint:
            return at(checkpoint(f"{10 * n}_1", ranks=[0]), MONDAY + seconds * n, size=50 << 30)

        assert len(unknown_times([single(n, 120) for n in range(1, 5)], None)) == 4
        assert unknown_times([single(n, 1200) for n in range(1, 5)], None) == {}

    def test_a_copy_in_another_order(self) -> None:
        saves = every(HOUR, 4)
        shuffled = [at(save, MONDAY + HOUR * place) for save, place in zip(saves, (3, 1, 4, 2), strict=True)]
        self.assert_kept(shuffled, "10_1", "20_1", "30_1", "40_1")

    @pytest.mark.parametrize("which", [0, 3])
    def test_one_that_was_written_anew_at_another_time(self, which: int) -> None:
        saves = every(HOUR, 4)
        saves[which] = at(saves[which], MONDAY + (100 if which == 0 else -100) * HOUR)
        self.assert_kept(saves, "10_1", "20_1", "30_1", "40_1")

    def test_some_copied_before_the_training_went_on(self) -> None:
        copied = [at(checkpoint(f"{n}_1"), MONDAY + 40 * n, writing=30) for n in range(1, 7)]
        self.assert_kept([*copied, *every(HOUR, 8, since=MONDAY + HOUR)], *(f"{n}_1" for n in range(1, 7)))

    def test_no_time_at_all(self) -> None:
        saves = every(HOUR, 4)
        bare = replace(saves[1], shards=tuple(replace(shard, stamp=None) for shard in saves[1].shards))
        self.assert_kept([saves[0], bare, *saves[2:]], "20_1")

    def test_a_time_in_the_future(self) -> None:
        saves = every(HOUR, 4)
        ahead = at(checkpoint("50_1"), MONDAY + 1000 * DAY)
        self.assert_kept([*saves, ahead], "50_1", now=MONDAY + 2 * DAY)
        self.assert_kept([*saves, ahead])

    @pytest.mark.parametrize("seconds", [-(10**11), 10**12])
    def test_a_time_outside_the_calendar(self, seconds: int) -> None:
        saves = every(HOUR, 4)
        odd = at(checkpoint("5_1") if seconds < 0 else checkpoint("50_1"), seconds)
        self.assert_kept([*saves, odd], odd.name)

    def test_the_same_save_in_two_formats_contradicts_nothing(self) -> None:
        saves = every(HOUR, 4)
        twin = at(checkpoint("30_1", fmt=FormatName.SAFETENSORS), MONDAY + 3 * HOUR)
        assert unknown_times([*saves[:3], twin, saves[3]], None) == {}

    def test_the_trainer_s_own_record_is_believed_over_the_times_of_files(self) -> None:
        copied = [
            replace(at(checkpoint(f"{10 * n}_1"), MONDAY), committed_ns=(MONDAY + n * HOUR) * NS) for n in range(1, 7)
        ]
        self.assert_kept(copied)
        assert whys(planned(copied, RetentionPolicy(keep_last=1, keep_hourly=2)))["50_1"] == (Why.HOURLY,)

    def test_without_a_rule_of_time_times_do_not_matter(self) -> None:
        saves = [at(checkpoint(f"{step}_1"), MONDAY) for step in (10, 20, 30)]
        assert going(planned(saves, RetentionPolicy(keep_last=1))) == {"10_1", "20_1"}


TIMES = st.builds(
    Times,
    within=st.none() | st.integers(0, 40).map(lambda hours: hours * 3600.0 * 5),
    hourly=st.integers(0, 4),
    daily=st.integers(0, 4),
    weekly=st.integers(0, 3),
)
GAPS = st.lists(st.sampled_from([600, 1800, HOUR, 5 * HOUR, DAY, 3 * DAY, 20 * DAY]), min_size=12, max_size=12)


@given(SAVES, WISHES, TIMES, GAPS)
def test_what_goes_is_what_the_second_rule_lets_go_but_for_evidence(
    saves: list[Kept], wish: Wish, times: Times, gaps: list[int]
) -> None:
    wish = replace(wish, every=None)
    in_order = sorted(saves, key=lambda save: (save.run, save.step))
    when: dict[str, int] = {}
    now = MONDAY
    for save, gap in zip(in_order, gaps, strict=False):
        now += gap
        when[save.name] = now
    made = [at(one, when[one.name]) for one in raw_of(saves).checkpoints]
    policy = replace_policy(policy_of(wish), times)
    plan = planned(made, policy, verifier_of(saves, wish))
    expected = {
        save.name
        for save in saves
        if may_go(save, saves, wish, world=WORLD)
        and not (hopes(save, saves) and kept_by_time(save, saves, when, times, wish))
    }
    evidence = {name for name, why in whys(plan).items() if why == (Why.EVIDENCE,)}
    assert going(plan) | evidence == expected


def replace_policy(policy: RetentionPolicy, times: Times) -> RetentionPolicy:
    return RetentionPolicy(
        keep_last=policy.keep_last,
        keep_healthy=policy.keep_healthy,
        drop_abandoned=policy.drop_abandoned,
        keep_within=times.within,
        keep_hourly=times.hourly,
        keep_daily=times.daily,
        keep_weekly=times.weekly,
    )


class TestTheCommand:
    def days(self, folder: Path) -> TreeBuilder:
        """Five saves, two a day."""
        builder = TreeBuilder(folder).legacy(ranks=2, sparse=True)
        for n, epoch in enumerate((10, 15, 20, 25, 30)):
            builder.save(epoch=epoch, step=2)
            for rank in range(2):
                when = MONDAY + (n + 1) * DAY // 2 + rank
                os.utime(builder.output / builder.shard(rank, epoch, 2), (when, when))
        return builder

    def test_what_is_kept_by_day_stays_and_the_rest_goes(self, tmp_path: Path) -> None:
        root = str(self.days(tmp_path).checkpoint)
        said = ask("prune", root, "--keep-last", "1", "--keep-daily", "2", "--keep-within", "1h", "--apply", "--json")
        assert said.code == 0
        assert said.json["findings"] == []
        assert {one["name"]: one["why"] for one in said.json["checkpoints"]} == {
            "10_2": ["replaced"],
            "15_2": ["replaced"],
            "20_2": ["daily"],
            "25_2": ["replaced"],
            "30_2": ["last", "within", "daily"],
        }
        policy = said.json["policy"]
        assert (policy["keep_within"], policy["keep_daily"]) == (3600, 2)

    def test_of_a_copy_without_times_nothing_goes_and_a_note_says_why(self, tmp_path: Path) -> None:
        builder = self.days(tmp_path)
        for path in builder.checkpoint.rglob("*.ckpt"):
            os.utime(path, (MONDAY, MONDAY))
        said = ask("prune", str(builder.checkpoint), "--keep-last", "1", "--keep-daily", "2", "--apply", "--json")
        assert said.code == 0
        assert {one["fate"] for one in said.json["checkpoints"]} == {"keep"}
        assert [one["code"] for one in said.json["findings"]] == ["save-time-unknown"]
        assert [one["severity"] for one in said.json["findings"]] == ["note"]

    @pytest.mark.parametrize(
        ("option", "value", "words"),
        [
            ("--keep-within", "x", "is not a time such as"),
            ("--keep-within", "-1d", "is not a time such as"),
            ("--keep-daily", "-1", "whole number from 0"),
            ("--keep-hourly", "1.5", "whole number"),
            ("--keep-weekly", "all", "whole number"),
        ],
    )
    def test_a_bad_value_is_answered_in_one_line(self, option: str, value: str, words: str) -> None:
        said = ask("prune", "output", "--keep-last", "1", f"{option}={value}", "-q")
        assert (said.code, said.stderr.count("\n")) == (2, 1)
        assert words in said.stderr
