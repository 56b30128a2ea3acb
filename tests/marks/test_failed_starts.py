"""A save from which starts fail again and again is marked, and no other."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from ckpttool.core.domain.metrics import LocalTime, LogAttempt, StepMetrics, parse_local_time
from ckpttool.core.domain.units import Step
from ckpttool.marks.rules import FailedStarts, failed_starts, next_save
from tests.conftest import FIXTURES
from tests.marks.test_mark import marks_of, records, resumed
from tests.support.commands import Said, ask
from tests.support.loss_logs import FORMATS
from tests.support.trees import writable

SAVES = (Step(10), Step(20), Step(30))


def attempt(first: int, last: int, *, every: int = 1, begun: bool = True, hour: int | None = None) -> LogAttempt:
    rows = tuple(
        StepMetrics(
            step=Step(step), loss=1 / step, time=None if hour is None else f"2026-11-20 {hour:02d}:00:{step % 60:02d}"
        )
        for step in range(first, last + 1, every)
    )
    return LogAttempt(rows=rows, begun=begun, ended=True)


def counted(
    *attempts: LogAttempt, saves: tuple[Step, ...] = SAVES, since: dict[Step, LocalTime] | None = None
) -> tuple[int, int] | None:
    """Return the step of the save, and the number of its failed starts; None if no save is known."""
    found = failed_starts(attempts, saves, since)
    return (found.saved, len(found.starts)) if isinstance(found, FailedStarts) else None


FIRST = attempt(1, 36, begun=False)


class TestRule:
    def test_starts_in_a_row_from_the_newest_save_are_counted(self) -> None:
        assert counted(FIRST, attempt(31, 36), attempt(31, 37), attempt(31, 35)) == (30, 3)

    def test_the_first_start_in_the_logs_counts_only_if_its_beginning_is_known(self) -> None:
        assert counted(attempt(31, 36, begun=False), attempt(31, 36)) == (30, 1)
        assert counted(attempt(31, 36), attempt(31, 36)) == (30, 2)

    def test_a_start_of_another_save_ends_the_row(self) -> None:
        assert counted(FIRST, attempt(31, 36), attempt(31, 36), attempt(21, 34), attempt(31, 35)) == (30, 1)
        assert counted(FIRST, attempt(31, 36), attempt(21, 34)) == (20, 0)

    def test_a_start_that_reached_the_next_save_of_the_tree_did_not_fail(self) -> None:
        assert counted(FIRST, attempt(21, 30), attempt(21, 26)) == (20, 1)
        assert counted(FIRST, attempt(21, 29), attempt(21, 26)) == (20, 2)

    def test_a_start_that_got_to_where_the_next_save_was_due_did_not_fail_because_of_the_save(self) -> None:
        assert counted(FIRST, attempt(31, 40), attempt(31, 39)) == (30, 1)
        assert counted(FIRST, attempt(31, 41)) == (30, 0)

    def test_of_a_single_save_no_interval_is_known(self) -> None:
        assert next_save(Step(30), (Step(30),)) is None
        assert counted(attempt(1, 90, begun=False), attempt(31, 80), saves=(Step(30),)) == (30, 1)

    def test_a_start_whose_save_is_gone_blames_no_older_one(self) -> None:
        assert counted(FIRST, attempt(35, 36), attempt(35, 36)) is None
        assert counted(FIRST, attempt(31, 36), attempt(35, 36), attempt(31, 36)) == (30, 1)

    def test_a_start_from_nothing_blames_no_save(self) -> None:
        assert counted(FIRST, attempt(1, 5), attempt(1, 5), attempt(1, 5)) is None
        assert counted() is None

    def test_a_log_of_every_fifth_step_shows_the_save_too(self) -> None:
        sparse = [attempt(35, 35, every=5), attempt(35, 35, every=5)]
        assert counted(attempt(5, 35, every=5, begun=False), *sparse) == (30, 2)

    def test_starts_before_a_person_judged_the_save_do_not_count(self) -> None:
        starts = (attempt(1, 36, hour=1, begun=False), *(attempt(31, 36, hour=hour) for hour in (2, 3, 4)))
        noon = {Step(30): parse_local_time("2026-11-20 03:30:00")}
        assert counted(*starts) == (30, 3)
        assert counted(*starts, since=noon) == (30, 1)
        assert counted(*starts, since={Step(20): noon[Step(30)]}) == (30, 3)

    def test_without_times_no_start_is_known_to_be_later_than_that(self) -> None:
        since = {Step(30): parse_local_time("2026-11-20 03:30:00")}
        assert counted(FIRST, attempt(31, 36), attempt(31, 36), since=since) == (30, 0)


def csv(*runs: tuple[int, int], begins: datetime) -> str:
    """The steps of several starts, each from its first to its last."""
    rows, time = ["step,loss,time"], begins
    for first, last in runs:
        time += timedelta(minutes=5)
        for step in range(first, last + 1):
            time += timedelta(seconds=10)
            rows.append(f"{step},{1 / step + len(rows) / 1e5:.6f},{time:%Y-%m-%d %H:%M:%S}")
    return "\n".join(rows) + "\n"


LONG_AGO = datetime(2020, 1, 1)  # noqa: DTZ001  logs have no zone
LATER = datetime(2040, 1, 1)  # noqa: DTZ001


@pytest.fixture
def tree(tmp_path: Path) -> str:
    """Saves of the steps 20, 30, 40, 50 and 60."""
    return str(writable(FIXTURES / "sink2_ckpt/output", tmp_path / "output"))


def marked(tree: str, count: int, log: Path, *options: str) -> Said:
    return ask("mark", "--after-failed-starts", str(count), tree, "--log", str(log), *options, "--json")


class TestCommand:
    @pytest.fixture
    def log(self, tmp_path: Path) -> Path:
        path = tmp_path / "run.csv"
        path.write_text(csv((1, 65), (61, 64), (61, 66), (61, 63), begins=LONG_AGO))
        return path

    def test_enough_failed_starts_mark_their_save(self, tree: str, log: Path) -> None:
        assert resumed(tree) == "_1-30_2"
        said = marked(tree, 3, log)
        assert said.code == 0
        assert said.json["written"]["automatic"]
        assert said.json["written"]["reason"] == (
            "3 starts in a row from step 60 ended before the next save (at step 64, 66, 63): by the log "
            f"{log}, lines 67, 71, 77"
        )
        assert log.read_text().splitlines()[66].startswith("61,")
        assert resumed(tree) == "_1-25_2"
        assert "by ckpttool for " in ask("scan", tree).stdout

    def test_too_few_mark_nothing(self, tree: str, log: Path) -> None:
        said = marked(tree, 4, log)
        assert (said.code, said.json["written"]) == (0, None)
        assert "3 of 4 starts in a row from step 60" in said.json["unchanged"]
        assert records(tree) == []

    def test_a_dry_run_marks_nothing(self, tree: str, log: Path) -> None:
        assert marked(tree, 3, log, "--dry-run").json["written"]["mark"] == "bad"
        assert records(tree) == []

    def test_again_it_marks_nothing_more(self, tree: str, log: Path) -> None:
        marked(tree, 3, log)
        assert "already marked" in marked(tree, 3, log).json["unchanged"]
        assert len(records(tree)) == 1

    def test_then_the_older_save_fails_too_down_to_nothing(self, tree: str, log: Path) -> None:
        runs = [(1, 65), *((first, first + 3) for first in (61, 51, 41, 31, 21) for _ in range(3))]
        for number in range(1, 6):
            log.write_text(csv(*runs[: 1 + 3 * number], begins=LONG_AGO))
            assert marked(tree, 3, log).json["written"] is not None
        resolved = ask("resolve", tree, "--json")
        assert resolved.code == 11
        assert [[reason["code"] for reason in one["reasons"]] for one in resolved.json["rejected"]] == [
            ["marked-bad"]
        ] * 5

    @pytest.mark.parametrize("way", ["--clear", "--good"])
    def test_what_failed_before_a_person_cleared_it_does_not_mark_it_again(
        self, tree: str, log: Path, way: str
    ) -> None:
        marked(tree, 3, log)
        ask("mark", "_1-30_2", tree, way)
        assert marked(tree, 1, log).json["written"] is None
        log.write_text(log.read_text() + csv((61, 63), (61, 64), begins=LATER).partition("\n")[2])
        assert "2 of 3" in marked(tree, 3, log).json["unchanged"]
        assert marked(tree, 2, log).json["written"] is not None

    def test_a_newer_save_that_the_last_start_wrote_ends_the_row(self, tree: str, log: Path) -> None:
        log.write_text(csv((1, 55), (51, 54), (51, 55), (51, 62), begins=LONG_AGO))
        assert marked(tree, 1, log).json["written"] is None
        assert records(tree) == []

    @pytest.mark.parametrize("form", ["mindformers", "megatron"])
    def test_the_logs_of_trainers_show_their_starts(self, tree: str, log: Path, form: str) -> None:
        runs = [(1, 65), (61, 64), (61, 66), (61, 63)]
        header = FORMATS[form]([1 / step for step in range(1, 67)]).splitlines(keepends=True)
        assert len(header) == 66
        log.write_text("".join(line for first, last in runs for line in header[first - 1 : last]))
        assert marked(tree, 3, log).json["written"] is not None
        assert marks_of(tree) == {"_1-30_2": ("bad", "counts")}

    def test_each_start_may_have_its_own_log(self, tree: str, tmp_path: Path) -> None:
        for number, run in enumerate([(1, 65), (61, 64), (61, 66), (61, 63)]):
            log = tmp_path / f"start_{number}.csv"
            log.write_text(csv(run, begins=LONG_AGO + timedelta(days=number)))
        said = ask("mark", "--after-failed-starts", "3", tree, "--log", str(tmp_path / "start_*.csv"), "--json")
        assert "by 4 logs: " in said.json["written"]["reason"]

    def test_logs_of_two_ranks_are_one_run(self, tree: str, tmp_path: Path) -> None:
        for rank in range(3):
            (tmp_path / f"rank_{rank}.csv").write_text(csv((1, 65), (61, 64), begins=LONG_AGO))
        said = ask("mark", "--after-failed-starts", "2", tree, "--log", str(tmp_path / "rank_*.csv"), "--json")
        assert said.json["written"] is None
        assert "1 of 2" in said.json["unchanged"]

    def test_a_log_of_all_steps_without_the_starts_is_refused(self, tmp_path: Path) -> None:
        tree = str(writable(FIXTURES / "layouts/hf_single", tmp_path / "tree"))
        said = ask("mark", "--after-failed-starts", "3", tree)
        assert said.code == 14
        assert "give the printed log with --log" in said.stderr

    def test_a_log_that_is_missing_or_unreadable_is_refused(self, tree: str, tmp_path: Path) -> None:
        assert marked(tree, 3, tmp_path / "none.csv").code == 2
        assert ask("mark", "--after-failed-starts", "3", tree).code == 2
        (tmp_path / "text.log").write_text("no log\nat all\n")
        assert marked(tree, 3, tmp_path / "text.log").code == 14
        assert records(tree) == []

    @pytest.mark.parametrize(
        "arguments",
        [
            ("_1-30_2", "{tree}", "--after-failed-starts", "3", "--bad", "x"),
            ("--after-failed-starts", "0", "{tree}"),
            ("--log", "x.csv", "{tree}"),
            ("_1-30_2", "{tree}", "--after-failed-starts", "3"),
        ],
    )
    def test_an_unclear_request_is_refused(self, tree: str, arguments: tuple[str, ...]) -> None:
        assert ask("mark", *(argument.format(tree=tree) for argument in arguments)).code == 2
