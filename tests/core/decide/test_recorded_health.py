"""What was recorded about a checkpoint's health reaches it, and nothing more is made of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckpttool.core.decide import recorded_health
from ckpttool.core.decide.recorded_health import health_reason, record_without_answer
from ckpttool.core.domain.checkpoint import Inventory
from ckpttool.core.domain.finding import Code, Row, Severity
from ckpttool.core.domain.health import Health, HealthBook, HealthRecord
from ckpttool.trainers.findings import TrainersCode
from tests.support.inventories import checkpoint, finding, tree


def book(**entries: Health) -> HealthBook:
    """`at10_2` is the first run's 10_2, `run1at10_2` that of the next."""
    records = tuple(
        HealthRecord(name=f"llama_rank_0{own.replace('run', '_')}-{label}.ckpt", health=health, entries=1)
        for (own, _, label), health in ((key.partition("at"), health) for key, health in entries.items())
    )
    return HealthBook(path="output/health_ckpts.json", records=records)


def attach_health(inventory: Inventory, said: HealthBook) -> Inventory:
    """Attach it under the names that rank 0's files have, or would have."""
    names = [f"llama_rank_0{f'_{one.run}' if one.run else ''}-{one.label}.ckpt" for one in inventory.checkpoints]
    return recorded_health.attach_health(inventory, said, names)


class TestAttach:
    def test_each_checkpoint_gets_what_was_recorded_for_rank_zeros_file(self) -> None:
        inventory = tree(checkpoint("10_2"), checkpoint("20_2"), checkpoint("20_2", run=1))
        said = book(at10_2=Health.HEALTHY, at20_2=Health.UNHEALTHY, run1at20_2=Health.HEALTHY)
        found = attach_health(inventory, said)
        assert [one.health for one in found.checkpoints] == [Health.HEALTHY, Health.UNHEALTHY, Health.HEALTHY]
        assert found.findings == ()

    def test_what_is_not_recorded_is_unknown(self) -> None:
        found = attach_health(tree(checkpoint("10_2"), checkpoint("20_2")), book(at10_2=Health.HEALTHY))
        assert [one.health for one in found.checkpoints] == [Health.HEALTHY, Health.UNKNOWN]

    def test_a_record_that_could_not_be_read_is_unknown_and_not_healthy(self) -> None:
        (one,) = attach_health(tree(checkpoint("10_2")), book(at10_2=Health.UNKNOWN)).checkpoints
        assert one.health is Health.UNKNOWN

    @pytest.mark.parametrize(
        ("first", "second", "expected"),
        [
            (None, Health.UNHEALTHY, Health.UNHEALTHY),
            (Health.HEALTHY, Health.UNHEALTHY, Health.UNHEALTHY),
            (Health.UNHEALTHY, Health.HEALTHY, Health.UNHEALTHY),
            (None, Health.HEALTHY, Health.HEALTHY),
        ],
    )
    def test_a_mark_of_any_ranks_file_counts_and_the_worst_of_all(
        self, first: Health | None, second: Health, expected: Health
    ) -> None:
        inventory = tree(checkpoint("10_2"), checkpoint("20_2"))
        names = ["of_rank_0", "of_another_save"]
        other = inventory.checkpoints[0].shards[1].path.rpartition("/")[2]
        records = [HealthRecord(name=other, health=second, entries=1)]
        records += [] if first is None else [HealthRecord(name="of_rank_0", health=first, entries=1)]
        said = HealthBook(path="h.json", records=tuple(records))
        found = recorded_health.attach_health(inventory, said, names)
        assert [one.health for one in found.checkpoints] == [expected, Health.UNKNOWN]
        assert found.findings == ()

    def test_an_entry_without_a_checkpoint_is_noted_and_harms_none(self) -> None:
        found = attach_health(
            tree(checkpoint("10_2")), book(at10_2=Health.HEALTHY, at5_2=Health.UNHEALTHY, at4_2=Health.UNHEALTHY)
        )
        (note,) = found.findings
        assert (note.code, note.severity) == (Code.HEALTH_NAMES_NOTHING, Severity.NOTE)
        assert "llama_rank_0-4_2.ckpt and 1 more" in note.message
        assert found.checkpoints[0].health is Health.HEALTHY

    def test_one_such_entry_is_named_alone(self) -> None:
        (note,) = attach_health(tree(), book(at5_2=Health.HEALTHY)).findings
        assert "and" not in note.message.partition("llama_rank_0-5_2.ckpt")[2].partition("but")[0]

    def test_a_checkpoint_that_holds_its_own_mark_keeps_it_and_entries_of_others_are_no_ghosts(self) -> None:
        inventory = tree(checkpoint("10_2", health=Health.UNHEALTHY))
        found = recorded_health.attach_health(inventory, book(at10_2=Health.HEALTHY, at5_2=Health.HEALTHY), [None])
        assert (found.checkpoints[0].health, found.findings) == (Health.UNHEALTHY, ())

    def test_findings_of_the_file_join_those_of_the_tree_in_order(self) -> None:
        about_file = finding(Code.HEALTH_UNREADABLE, Severity.UNKNOWN, "health_ckpts.json")
        about_tree = finding(Code.STRAY_FILE, Severity.NOTE, "x")
        said = HealthBook(path="health_ckpts.json", records=(), findings=(about_file,))
        found = attach_health(tree(findings=[about_tree]), said)
        assert found.findings == (about_file, about_tree)


class TestReason:
    @pytest.mark.parametrize(
        ("health", "require", "ignore", "code"),
        [
            (Health.HEALTHY, False, False, None),
            (Health.HEALTHY, True, False, None),
            (Health.UNKNOWN, False, False, None),
            (Health.UNKNOWN, True, False, Code.HEALTH_UNKNOWN),
            (Health.UNKNOWN, True, True, None),
            (Health.UNHEALTHY, False, False, Code.MARKED_UNHEALTHY),
            (Health.UNHEALTHY, True, False, Code.MARKED_UNHEALTHY),
            (Health.UNHEALTHY, False, True, None),
        ],
    )
    def test_unhealthy_forbids_unknown_only_on_demand_and_ignoring_beats_both(
        self, health: Health, code: Row | None, *, require: bool, ignore: bool
    ) -> None:
        reason = health_reason(checkpoint(health=health), require=require, ignore=ignore)
        assert (reason.code if reason else None) is code


class TestUnheard:
    TORN = HealthBook(
        path="h.json", records=(), findings=(finding(Code.HEALTH_UNREADABLE, Severity.UNKNOWN, "h.json"),)
    )

    @pytest.mark.parametrize("named", [False, True])
    def test_a_torn_file_is_not_heard_where_nothing_else_tells_of_what_was_chosen(self, named: bool) -> None:
        (one,) = record_without_answer(self.TORN, named=named, health=Health.UNKNOWN)
        assert (one.code, one.severity, one.path) == (Code.HEALTH_UNHEARD, Severity.UNKNOWN, "h.json")

    def test_where_a_log_or_the_save_tells_a_torn_file_is_missed_only_by_whoever_named_it(self) -> None:
        assert record_without_answer(self.TORN, named=False, health=Health.HEALTHY) == ()
        assert record_without_answer(self.TORN, named=True, health=Health.HEALTHY) != ()

    @pytest.mark.parametrize("named", [False, True])
    def test_a_file_over_the_limit_is_never_heard(self, named: bool) -> None:
        (one,) = record_without_answer(replace(self.TORN, over_limit=True), named=named, health=Health.HEALTHY)
        assert one.code is Code.HEALTH_UNHEARD

    @pytest.mark.parametrize("said", [book(at10_2=Health.UNHEALTHY), HealthBook(path=None, records=())])
    def test_a_whole_file_and_none_at_all_are_heard(self, said: HealthBook) -> None:
        assert record_without_answer(said, named=True, health=Health.UNKNOWN) == ()

    def test_a_contradiction_is_heard(self) -> None:
        said = replace(self.TORN, findings=(finding(TrainersCode.HEALTH_CONTRADICTORY, Severity.SUSPECT, "h.json"),))
        assert record_without_answer(said, named=True, health=Health.UNKNOWN) == ()


def test_unknown_health_that_will_do_is_a_note_and_all_else_stays() -> None:
    doubts = [
        finding(code, Severity.UNKNOWN) for code in (Code.HEALTH_UNREADABLE, Code.HEALTH_UNKNOWN, Code.STEP_UNKNOWN)
    ]
    assert [each.severity for each in recorded_health.accepted(doubts)] == [
        Severity.NOTE, Severity.NOTE, Severity.UNKNOWN,
    ]  # fmt: skip
