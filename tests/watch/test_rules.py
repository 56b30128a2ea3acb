"""What a poll of a watched tree means: what is read, what is told, and what is not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.finding import Code, Finding, Row, Severity, damage, note, suspect, unknown, unsafe
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.units import ByteCount, Rank, Step
from ckpttool.core.domain.verdict import VerdictWord
from ckpttool.core.errors import ExitCode
from ckpttool.watch.answers import text
from ckpttool.watch.model import (
    EventKind,
    Judge,
    Judgement,
    SaveState,
    SeenNode,
    SeenSave,
    Sighting,
    Watched,
    WatchEvent,
    WatchRule,
)
from ckpttool.watch.rules import (
    LEAST_PATIENCE,
    is_idle,
    is_silent,
    judged,
    observe,
    patience_of,
    still_bad,
    unreported,
    unseen,
)

RULE = WatchRule(settle=2, patience=100.0, again=0.0)
MISSING = damage(Code.SHARD_MISSING, "rank 3 has no file", ranks=(Rank(3),))
CUT = damage(Code.SHARD_TRUNCATED, "is cut off")


def save(
    name: str = "a",
    fingerprint: str = "1",
    *,
    incomplete: Sequence[Finding] = (),
    written: tuple[int, int] | None = None,
    beside: str = "",
    **more: float,
) -> SeenSave:
    return SeenSave(
        key=f"/{name}",
        name=name,
        step=Step(1),
        fingerprint=fingerprint,
        incomplete=tuple(incomplete),
        nbytes=ByteCount(int(more["nbytes"])) if "nbytes" in more else None,
        age=more.get("age"),
        written_ns=written,
        files=int(more.get("files", 0)),
        beside=beside,
        is_committed=bool(more.get("committed", False)),
    )


class Course:
    """Polls one after another, ten seconds apart, with answers to what is to be read."""

    def __init__(self, rule: WatchRule = RULE) -> None:
        self.known, self.rule, self.now = Watched(), rule, 0.0
        self.told: list[WatchEvent] = []
        self.asked: list[Judge] = []

    def poll(self, *saves: SeenSave, times: int = 1, passed: float = 10.0, **more: object) -> Course:
        for _ in range(times):
            self.now += passed
            sighting = Sighting(saves=saves, **more)  # type: ignore[arg-type]
            self.known, actions = observe(self.known, sighting, self.rule, now=self.now)
            self.asked = [action for action in actions if isinstance(action, Judge)]
            self.told += [action for action in actions if isinstance(action, WatchEvent)]
        return self

    def judge(
        self,
        *findings: Finding,
        word: VerdictWord = VerdictWord.VERIFIED,
        at: int = 0,
        cached: bool | None = None,
        since: Sequence[str] = (),
    ) -> Course:
        judgement = Judgement(
            request=self.asked[at], word=word, findings=findings, cached=cached, written_since=frozenset(since)
        )
        self.known, events = judged(self.known, judgement)
        self.told += events
        return self

    @property
    def kinds(self) -> list[str]:
        return [event.kind.value for event in self.told]


def good(rule: WatchRule = RULE, *seen: SeenSave) -> Course:
    return Course(rule).poll(*(seen or [save()]), times=3).judge()


def test_a_save_is_read_when_it_has_not_changed_for_two_polls_and_not_before() -> None:
    course = Course().poll(save(fingerprint="1")).poll(save(fingerprint="2"), times=2)
    assert not course.asked
    assert not is_idle(course.known)
    assert [asked.fingerprint for asked in course.poll(save(fingerprint="2")).asked] == ["2"]
    assert course.judge(note(Code.ZERO_TAIL, "it is long")).kinds == ["good"]
    assert is_idle(course.known)
    assert not course.poll(save(fingerprint="2"), times=50).asked
    assert course.kinds == ["good"]


def test_saves_that_wait_are_read_newest_first() -> None:
    course = Course().poll(save("b"), save("a"), times=3)
    assert [asked.key for asked in course.asked] == ["/b", "/a"]


def test_a_rank_that_hangs_is_told_once_when_patience_ends_and_named() -> None:
    course = Course().poll(save(incomplete=[MISSING]), times=10)
    assert course.kinds == []
    course.poll(save(incomplete=[MISSING]), times=30)
    assert course.kinds == ["save-incomplete"]
    first = course.told[0].findings[0]
    assert (first.ranks, first.severity) == ((3,), Severity.UNKNOWN)
    assert text(course.told[0]).endswith("a is not complete on rank 3, and none of its files has changed for 100 s")


def test_what_a_save_lacks_that_has_no_ranks_is_said() -> None:
    lacks = damage(Code.UNCOMMITTED_SAVE, "no trainer_state.json", path="a")
    course = Course().poll(save(incomplete=[lacks, lacks]), times=12)
    assert text(course.told[0]).endswith("and none of its files has changed for 100 s: no trainer_state.json")


def test_a_save_that_still_grows_is_waited_for_however_long_it_takes() -> None:
    course = Course()
    for turn in range(100):
        course.poll(save(fingerprint=str(turn), incomplete=[MISSING]))
    assert course.kinds == []
    assert course.poll(save(fingerprint="end"), times=3).judge().kinds == ["good"]


def test_what_looks_cut_off_is_told_only_when_patience_ends() -> None:
    course = Course().poll(save(), times=3).judge(CUT, word=VerdictWord.DAMAGED)
    assert course.kinds == []
    assert not course.poll(save(), times=6).asked
    assert [asked.final for asked in course.poll(save(), times=3).asked] == [True]
    assert course.judge(CUT, word=VerdictWord.DAMAGED).kinds == ["bad"]
    assert not course.poll(save(), times=5).asked


@pytest.mark.parametrize(
    "finding", [suspect(Code.NONFINITE_VALUES, "has NaN"), unsafe(Code.UNSAFE_PICKLE, "would run code")]
)
def test_what_no_save_under_way_shows_is_told_at_once(finding: Finding) -> None:
    assert Course().poll(save(), times=3).judge(finding, word=VerdictWord.SUSPECT).kinds == ["bad"]


def test_what_cannot_be_read_is_told_as_that_and_only_when_patience_ends() -> None:
    withheld = unknown(Code.UNREADABLE, "the disk does not answer")
    course = Course().poll(save(), times=3).judge(withheld, word=VerdictWord.UNREADABLE)
    assert course.kinds == []
    course.poll(save(), times=9).judge(withheld, word=VerdictWord.UNREADABLE)
    assert course.kinds == ["unreadable"]


def test_a_good_save_that_is_no_longer_what_was_sealed_is_told_as_that() -> None:
    course = good().poll(save(fingerprint="2"), times=3)
    course.judge(damage(Code.CHECKSUM_MISMATCH, "is not what was sealed"), word=VerdictWord.DAMAGED)
    assert course.kinds == ["good", "checksum-mismatch"]


@pytest.mark.parametrize("code", [Code.HEADER_INVALID, Code.OFFSETS_NOT_CONTIGUOUS])
def test_a_good_save_whose_header_is_broken_is_told_at_once_and_one_that_is_written_anew_is_waited_for(
    code: Row,
) -> None:
    broken = damage(code, "its lengths contradict each other")
    assert good().poll(save(fingerprint="2"), times=3).judge(broken).kinds == ["good", "bad"]
    assert good().poll(save(fingerprint="2"), times=3).judge(CUT).kinds == ["good"]
    assert Course().poll(save(), times=3).judge(broken).kinds == []


def test_a_save_of_which_each_file_was_written_anew_is_another_one_and_one_of_which_some_were_is_not() -> None:
    damaged = damage(Code.CHECKSUM_MISMATCH, "is not what was sealed")
    for first, kinds in [(21, ["good", "good"]), (20, ["good", "checksum-mismatch"])]:
        course = good(RULE, save(written=(10, 20))).poll(save(fingerprint="2", written=(first, 30)), times=3)
        (asked,) = course.asked
        assert (asked.fresh, asked.rewritten) == ((True, True) if first == 21 else (False, False))
        course.judge(*(() if asked.rewritten else (damaged,)))
        assert course.kinds == kinds


def test_retention_takes_a_save_away_a_file_at_a_time_and_nothing_is_told() -> None:
    newer = save("b")
    course = good(RULE, newer, save()).judge(at=1)
    course.poll(newer, save(fingerprint="2", incomplete=[MISSING]), times=5).poll(newer, times=3)
    assert course.kinds == ["good", "good"]
    assert [known.name for known in course.known.saves] == ["b"]


def test_a_tree_without_any_checkpoint_is_rather_one_that_is_not_there_and_that_is_told_once() -> None:
    course = good().poll(times=10)
    assert course.kinds == ["good"]
    course.poll(times=30)
    assert course.kinds == ["good", "unreadable"]
    assert (course.told[1].name, course.told[1].word) == (None, None)
    assert course.told[1].findings[0].severity is Severity.UNKNOWN
    assert course.poll(save(), times=5).kinds == ["good", "unreadable"]
    course.poll(times=12)
    assert course.kinds == ["good", "unreadable", "unreadable"]


def test_of_a_tree_that_never_had_a_checkpoint_nothing_is_told() -> None:
    known, told = unseen(Watched(), RULE, "there is no such folder", now=1000.0)
    assert unseen(known, RULE, "there is no such folder", now=9000.0)[1] == told == ()


def test_a_folder_that_could_not_be_listed_for_a_while_makes_no_save_good_twice() -> None:
    withheld = unknown(Code.UNREADABLE, "cannot be listed")
    course = good().poll(save(fingerprint="2", incomplete=[withheld]), times=3).poll(save(), times=20)
    assert course.kinds == ["good"]
    assert not course.asked
    assert is_idle(course.known)


def test_a_good_save_that_lost_a_file_for_good_is_read_and_told() -> None:
    course = good().poll(save(fingerprint="2", incomplete=[MISSING]), times=12)
    assert [asked.final for asked in course.asked] == [True]
    assert course.judge(MISSING, word=VerdictWord.MISSING).kinds == ["good", "bad"]


def test_what_was_read_says_nothing_of_files_that_changed_or_went_meanwhile() -> None:
    course = Course().poll(save(), times=3)
    asked = course.asked[0]
    for later in ([save(fingerprint="2")], []):
        course.poll(*later)
        known, events = judged(course.known, Judgement(request=asked, word=VerdictWord.DAMAGED, findings=(CUT,)))
        assert (known, events) == (course.known, ())


def test_a_folder_that_cannot_be_listed_takes_no_save_away() -> None:
    assert [known.name for known in good().poll(is_complete=False).known.saves] == ["a"]


def test_a_good_save_is_read_once_more_and_then_never_again() -> None:
    rule = replace(RULE, again=60.0)
    course = good(rule).poll(save(), times=5)
    assert not course.asked
    assert [asked.cold for asked in course.poll(save()).asked] == [True]
    assert course.judge().kinds == ["good", "read-again"]
    assert not course.poll(save(), times=50).asked


def test_a_good_save_is_read_once_more_as_soon_as_a_newer_one_is_good_where_it_has_left_the_memory() -> None:
    course = good(replace(RULE, again=1000.0)).poll(save("b"), save(), times=3)
    assert [(asked.key, asked.cold) for asked in course.asked] == [("/b", False)]
    course.judge().poll(save("b"), save())
    assert [(asked.key, asked.cold, asked.early) for asked in course.asked] == [("/a", True, True)]
    assert course.judge().kinds == ["good", "good", "read-again"]
    assert not course.poll(save("b"), save(), times=50).asked


@pytest.mark.parametrize("cached", [False, True, None])
def test_what_came_from_the_disk_when_it_was_read_first_is_not_read_once_more(cached: bool | None) -> None:
    course = Course(replace(RULE, again=60.0)).poll(save(), times=3).judge(cached=cached)
    assert [asked.cold for asked in course.poll(save(), times=10).asked] == ([] if cached is False else [True])


def test_a_good_save_that_an_earlier_watch_did_not_seal_is_read_once_more_to_be_sealed() -> None:
    course = good()
    course.rule = replace(RULE, seal=True)
    assert [(asked.cold, asked.seal) for asked in course.poll(save()).asked] == [(True, True)]
    assert course.judge().kinds == ["good", "read-again"]
    assert not course.poll(save(), times=50).asked


def test_a_good_save_that_can_no_longer_be_read_is_told_when_a_second_try_fails_and_again_when_it_can() -> None:
    withheld = unknown(Code.UNREADABLE, "input/output error")
    course = good(replace(RULE, again=200.0)).poll(save(), times=20)
    assert course.judge(withheld, word=VerdictWord.UNREADABLE).kinds == ["good"]
    assert [asked.final for asked in course.poll(save()).asked] == [True]
    assert course.judge(withheld, word=VerdictWord.UNREADABLE).kinds == ["good", "unreadable"]
    assert not course.poll(save(), times=9).asked
    assert course.poll(save()).judge(withheld, word=VerdictWord.UNREADABLE).kinds == ["good", "unreadable"]
    assert not course.poll(save(), times=9).asked
    assert course.poll(save()).judge().kinds == ["good", "unreadable", "good"]


def test_what_is_found_bad_when_read_again_is_told_at_once() -> None:
    course = good(replace(RULE, again=60.0)).poll(save(), times=6).judge(CUT, word=VerdictWord.DAMAGED)
    assert course.kinds == ["good", "bad"]


def saved(count: int, *, passed: float = 50.0) -> Course:
    course = Course()
    for number in range(count):
        course.poll(*[save(str(each)) for each in range(number, -1, -1)], passed=passed)
    return course


def test_that_no_save_comes_is_told_once_and_again_after_the_next_one() -> None:
    course = saved(4)
    there = [save(str(each)) for each in range(3, -1, -1)]
    assert course.poll(*there, times=15).kinds == []
    assert course.poll(*there, times=20).kinds == ["save-overdue"]
    assert course.told[0].name == "3"
    course.poll(save("4"), *there, times=100)
    assert course.kinds == ["save-overdue", "save-overdue"]
    assert len({event.subject for event in course.told}) == 2


def test_that_no_save_comes_is_told_again_of_a_training_that_went_back_to_an_earlier_one() -> None:
    older = [save(str(each), written=(each, each)) for each in (3, 2, 1, 0)]
    course = Course()
    for number in range(4):
        course.poll(*older[3 - number :], passed=50.0)
    course.poll(*older, times=3)
    for at in range(4):
        course.judge(at=at)
    course.poll(*older, times=40)
    assert course.kinds[4:] == ["save-overdue"]
    again = [*older[:2], save("1", "other", written=(9, 9)), older[3]]
    course.poll(*again, times=3).judge().poll(*again, times=100)
    assert course.kinds[4:] == ["save-overdue", "good", "save-overdue"]
    assert "since 1;" in course.told[-1].findings[0].message
    assert len({event.subject for event in course.told}) == len(course.told)


def test_a_file_that_is_written_anew_again_and_again_is_a_save_each_time_and_takes_as_long_as_it_takes() -> None:
    course = good(RULE, save(written=(10, 10)))
    for turn in range(2, 6):
        course.poll(save(fingerprint=f"{turn} cut", written=(10 * turn, 10 * turn)), times=2, passed=20.0)
        course.poll(save(fingerprint=str(turn), written=(10 * turn + 1, 10 * turn + 1)), times=3).judge()
    assert course.kinds == ["good"] * 5
    assert course.known.durations == (0.0, 30.0, 30.0, 30.0, 30.0)
    assert course.known.intervals == (40.0, 70.0, 70.0, 70.0)
    assert course.poll(save(fingerprint="5", written=(51, 51)), times=30).kinds[5:] == ["save-overdue"]


def test_when_the_last_save_came_its_files_tell_whoever_looks_for_the_first_time() -> None:
    course = Course().poll(save("b", age=500.0), save("a", age=400.0)).poll(save("c"), save("b"), save("a"))
    assert (course.known.intervals, course.known.newest) == ((410.0,), "/c")
    assert Course().poll(save("b"), save("a")).known.newest == "/b"


def test_nobody_knows_what_is_usual_of_two_saves() -> None:
    assert saved(2).poll(save("1"), save("0"), times=500).kinds == []


def test_that_the_next_save_will_not_fit_is_told_once_until_there_is_room() -> None:
    course = good(RULE, save(nbytes=100)).poll(save(nbytes=100), free_bytes=ByteCount(200))
    assert course.kinds == ["good"]
    course.poll(save(nbytes=100), times=5, free_bytes=ByteCount(99))
    assert course.kinds == ["good", "disk-space-low"]
    course.poll(save(nbytes=100), free_bytes=ByteCount(101)).poll(save(nbytes=100), free_bytes=ByteCount(99))
    assert course.kinds == ["good", "disk-space-low", "disk-space-low"]


def test_the_room_that_a_save_takes_while_it_is_written_is_not_missed() -> None:
    course = good(RULE, save(nbytes=100)).poll(
        save("b", incomplete=[MISSING]), save(nbytes=100), free_bytes=ByteCount(1)
    )
    assert course.kinds == ["good"]


def test_a_save_that_was_left_half_written_hides_no_lack_of_room_and_is_looked_at_no_more() -> None:
    half = save("b", incomplete=[MISSING])
    course = good(RULE, save(nbytes=100)).poll(half, save(nbytes=100), times=5, free_bytes=ByteCount(1))
    assert course.kinds == ["good"]
    assert not is_idle(course.known)
    course.poll(half, save(nbytes=100), times=10, free_bytes=ByteCount(1))
    assert course.kinds == ["good", "save-incomplete", "disk-space-low"]
    assert is_idle(course.known)
    course.poll(save("b", "2"), save(nbytes=100))
    assert not is_idle(course.known)
    assert course.poll(save("b", "2"), save(nbytes=100), times=2).judge().kinds[3:] == ["good"]
    assert course.known.exit_code is ExitCode.OK


def test_while_a_rank_writes_under_another_name_nobody_says_that_nothing_changes() -> None:
    course = Course().poll(save(incomplete=[MISSING]))
    for turn in range(30):
        course.poll(save(incomplete=[MISSING]), under_way=str(turn))
    assert course.kinds == []
    assert course.poll(save(incomplete=[MISSING]), times=11, under_way="29").kinds == ["save-incomplete"]


def test_a_save_that_is_whole_does_not_wait_for_another_that_is_under_way() -> None:
    course = Course()
    for turn in range(3):
        course.poll(save(), under_way=str(turn))
    assert [asked.final for asked in course.asked] == [False]


def test_a_record_that_was_half_written_when_it_was_read_is_read_again() -> None:
    torn = damage(Code.META_UNREADABLE, "is no JSON")
    course = Course().poll(save(beside="1"), times=14).judge(torn, word=VerdictWord.DAMAGED)
    assert course.kinds == ["bad"]
    course.poll(save(beside="2"), times=2)
    assert not course.asked
    assert course.poll(save(beside="2")).judge().kinds == ["bad", "good"]
    assert is_idle(course.poll(save(), times=3).known)  # of a good one nobody looks beside


def test_what_was_read_of_a_record_that_changed_meanwhile_says_nothing() -> None:
    course = Course().poll(save(beside="1"), times=12)
    (asked,) = course.asked
    course.poll(save(beside="2"))
    torn = damage(Code.META_UNREADABLE, "is no JSON")
    assert judged(course.known, Judgement(request=asked, word=VerdictWord.DAMAGED, findings=(torn,)))[1] == ()
    assert course.poll(save(beside="2"), times=2).judge().kinds == ["good"]


@pytest.mark.parametrize(("files", "committed", "polls"), [(3, False, 11), (3, True, 3), (4, False, 3), (5, False, 3)])
def test_a_save_with_fewer_files_than_the_last_good_one_is_waited_for_unless_its_trainer_says_that_it_is_whole(
    files: int, committed: bool, polls: int
) -> None:
    course = good(RULE, save(files=4))
    new = save("b", files=files, committed=committed)
    assert not course.poll(new, save(files=4), times=polls - 1).asked
    assert [asked.key for asked in course.poll(new, save(files=4)).asked] == ["/b"]
    assert course.judge().kinds == ["good", "good"]


def test_of_a_good_save_to_which_files_came_it_is_known_that_it_has_grown() -> None:
    for files, grown in [(5, True), (4, False), (3, False)]:
        course = good(RULE, save(files=4)).poll(save(fingerprint="2", files=files), times=3)
        assert [(asked.fresh, asked.grown) for asked in course.asked] == [(False, grown)]


def test_patience_is_three_times_what_a_save_takes_here_and_ten_minutes_at_least() -> None:
    rule = replace(RULE, patience=None)
    assert patience_of(Watched(), rule) == LEAST_PATIENCE
    assert patience_of(Watched(durations=(10.0, 12.0)), rule) == LEAST_PATIENCE
    assert patience_of(Watched(durations=(900.0, 1000.0, 9000.0)), rule) == 3000.0


def test_one_look_alone_takes_old_files_for_at_rest_and_young_ones_not() -> None:
    rule = replace(RULE, rested=60.0)
    assert Course(rule).poll(save(age=61.0)).asked
    assert not Course(rule).poll(save(age=59.0)).asked
    assert not Course(rule).poll(save()).asked
    assert [asked.final for asked in Course(rule).poll(save(age=101.0)).asked] == [True]
    assert Course(rule).poll(save(age=101.0, incomplete=[MISSING])).kinds == ["save-incomplete"]


def test_what_came_since_the_last_look_rests_no_longer_though_its_files_are_older() -> None:
    course = Course(replace(RULE, rested=60.0)).poll(save(age=500.0)).judge()
    copied = save("b", age=400.0, incomplete=[MISSING])
    assert course.poll(copied, save(), passed=70.0).kinds == ["good"]
    assert course.poll(copied, save(), passed=40.0).kinds == ["good", "save-incomplete"]
    assert [asked.final for asked in course.poll(save("b", "2", age=400.0), save(), passed=70.0).asked] == [False]


def test_a_clock_that_goes_back_is_one_that_stands_still() -> None:
    course = Course().poll(save(incomplete=[MISSING]), times=5)
    before = course.known.now
    course.poll(save(incomplete=[MISSING]), passed=-1000.0)
    assert course.known.now == before
    assert course.kinds == []


SAVES = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from("12"), st.booleans()), max_size=3, unique_by=lambda each: each[0]
)


@given(
    st.lists(st.tuples(SAVES, st.floats(-1000, 1000), st.sampled_from(["good", "cut", "none"])), max_size=30),
    st.booleans(),
)
def test_in_any_order_and_with_any_clock_nothing_is_told_twice_of_files_that_stay_and_nothing_grows(
    turns: list[tuple[list[tuple[str, str, bool]], float, str]],
    whole: bool,
) -> None:
    course = Course()
    told = 0
    for saves, passed, answer in turns:
        seen = [save(name, mark, incomplete=[MISSING] if part else []) for name, mark, part in saves]
        course.poll(*seen, passed=passed, is_complete=whole)
        for at in range(len(course.asked)):
            if answer != "none":
                course.judge(*([CUT] if answer == "cut" else []), at=at)
        assert len({known.key for known in course.known.saves}) == len(course.known.saves) <= 3
        assert len(course.known.intervals) <= 8 >= len(course.known.durations)
        assert all(known.state is not SaveState.GOOD or known.was_good for known in course.known.saves)
        assert len(course.told) - told <= 2 * len(seen) + 2
        told = len(course.told)
        course.poll(*seen, passed=0.0, is_complete=whole)
    assert {event.kind for event in course.told} <= set(EventKind)


def node(number: int, mark: str) -> SeenNode:
    return SeenNode(number=number, name=f"part {number} of 2 (host-{number})", mark=mark)


def test_a_machine_whose_part_is_written_no_longer_is_told_once_and_again_when_it_fell_silent_anew() -> None:
    course = good()
    for turn in range(12):
        course.poll(save(), nodes=(node(1, str(turn)), node(2, "a")))
    assert course.kinds == ["good", "part-stale"]
    assert "part 2 of 2 (host-2) was last written 100 s ago" in course.told[-1].findings[0].message
    assert is_silent(course.known, 2, 100.0)
    assert not is_silent(course.known, 1, 100.0)
    assert not is_silent(course.known, 7, 100.0)
    course.poll(save(), nodes=(node(1, "11"), node(2, "b")), times=9)
    assert course.kinds == ["good", "part-stale"]
    course.poll(save(), nodes=(node(1, "12"), node(2, "b")), times=4)
    assert course.kinds == ["good", "part-stale", "part-stale"]
    assert len({event.subject for event in course.told}) == 3


def test_a_part_that_is_not_there_is_told_when_patience_ends() -> None:
    course = Course().poll(save(), nodes=(node(1, ""),), times=11)
    assert course.kinds == ["part-missing"]
    assert course.known.exit_code is ExitCode.INCOMPLETE
    assert course.poll(save(), nodes=(node(1, "a"),), times=5).kinds == ["part-missing"]


def differs(path: str) -> Finding:
    return damage(Code.CHECKSUM_MISMATCH, "is not what was sealed", path=path)


def test_a_save_that_is_written_once_more_rank_after_rank_alarms_nobody_until_patience_ends() -> None:
    course = good(RULE, save(written=(10, 20)))
    course.poll(save(fingerprint="2", written=(10, 30)), times=3)
    assert [asked.good_ns for asked in course.asked] == [20]
    course.judge(differs("0"), suspect(Code.REPLICA_DIFFERS, "differs", path="1"), since=["0"])
    course.poll(save(fingerprint="3", written=(10, 40)), times=3).judge(differs("0"), differs("1"), since=["0", "1"])
    assert course.kinds == ["good"]
    course.poll(save(fingerprint="4", written=(25, 50)), times=3).judge()
    assert course.kinds == ["good", "good"]


def test_one_that_stays_half_rewritten_is_told_when_patience_ends() -> None:
    course = good(RULE, save(written=(10, 20))).poll(save(fingerprint="2", written=(10, 30)), times=3)
    course.judge(differs("0"), since=["0"])
    assert course.kinds == ["good"]
    course.poll(save(fingerprint="2", written=(10, 30)), times=10)
    assert [asked.final for asked in course.asked] == [True]
    assert course.judge(differs("0"), since=["0"]).kinds == ["good", "checksum-mismatch"]


@pytest.mark.parametrize("since", [[], ["0"]])
def test_a_file_that_differs_and_was_not_rewritten_is_told_at_once(since: list[str]) -> None:
    course = good(RULE, save(written=(10, 20))).poll(save(fingerprint="2", written=(10, 30)), times=3)
    assert course.judge(differs("1"), since=since).kinds == ["good", "checksum-mismatch"]


def test_what_no_save_under_way_shows_is_told_at_once_of_a_rewritten_file_too() -> None:
    course = good(RULE, save(written=(10, 20))).poll(save(fingerprint="2", written=(10, 30)), times=3)
    nan = suspect(Code.NONFINITE_VALUES, "has NaN", path="0")
    assert course.judge(nan, differs("0"), since=["0"]).kinds == ["good", "checksum-mismatch"]


def test_one_look_says_which_saves_it_did_not_read_and_when_it_would() -> None:
    rule = replace(RULE, rested=60.0)
    course = Course(rule).poll(save("b", age=15.0, files=1), save("a", age=70.0)).judge()
    (fresh,) = unreported(course.known, rule)
    assert fresh.startswith(
        "b was not read: one of its files changed 15 s ago, and a save is read once it is unchanged for 60 s; "
    )
    assert fresh.endswith("run again in 45 s, or reduce --settle and --every")
    lacking = Course(rule).poll(save(age=70.0, incomplete=[MISSING]))
    (unfinished,) = unreported(lacking.known, rule)
    assert unfinished.startswith("a was not read: it is not complete yet, which is reported after 100 s (--patience); ")
    begun = Course(rule).poll(save(incomplete=[MISSING]))  # no file of it shows a time yet
    (unfinished,) = unreported(begun.known, rule)
    assert unfinished.startswith("a was not read: it is not complete yet, which is reported after 100 s (--patience); ")
    told = Course(rule).poll(save(age=101.0, incomplete=[MISSING]))
    assert unreported(told.known, rule) == ()
    assert unreported(Course(rule).poll(save(age=61.0)).judge().known, rule) == ()


def test_a_save_that_was_read_and_is_not_good_is_not_called_unread_and_counts_as_damaged() -> None:
    rule = replace(RULE, rested=60.0)
    course = Course(rule).poll(save(age=70.0, files=1)).judge(CUT, word=VerdictWord.DAMAGED)
    assert course.kinds == []
    (text_,) = unreported(course.known, rule)
    assert text_ == (
        "a is not good (damaged): is cut off; the event follows after 100 s without a change (--patience), because the "
        "save may be in progress"
    )
    assert course.known.exit_code is ExitCode.DAMAGE
    assert Course(rule).poll(save(age=70.0, files=1)).known.exit_code is ExitCode.INCOMPLETE  # it was not read
    unclear = (
        Course(rule)
        .poll(save(age=70.0, files=1))
        .judge(unknown(Code.UNREADABLE, "does not answer"), word=VerdictWord.UNREADABLE)
    )
    assert unclear.known.exit_code is ExitCode.INCOMPLETE


def test_what_an_earlier_watch_reported_as_bad_is_named_again_but_not_what_is_new_or_good() -> None:
    first = (
        Course()
        .poll(save("b", age=1.0), save("a", incomplete=[MISSING]), times=12)
        .judge(replace(CUT, path="b/0"), word=VerdictWord.DAMAGED)
    )
    assert sorted(first.kinds) == ["bad", "save-incomplete"]
    assert still_bad(Watched(), first.known) == ()  # the events have just been reported
    before = first.known
    first.poll(save("c"), save("b", age=1.0), save("a", incomplete=[MISSING]), times=3).judge()
    assert still_bad(before, first.known) == (
        "b is still not good (damaged): b/0: is cut off",
        "a is still not good (missing): rank 3 has no file",
    )
    mended = first.poll(save("c"), save("b", "2"), save("a", "2"), times=3)
    assert still_bad(before, mended.known) == ()
