"""The choice: the newest good checkpoint, judged by a second picker over random trees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.decide.resume import against_refused, choose, objected
from ckpttool.core.decide.steps import settle
from ckpttool.core.domain.checkpoint import Checkpoint, Content, Inventory, Rename, Topology, Tracked
from ckpttool.core.domain.expectation import WorldEvidence
from ckpttool.core.domain.finding import Code, Row, Severity
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.plan import NoResumePoint, ResumePoint
from ckpttool.core.domain.question import ResumeQuestion
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.domain.units import Step
from ckpttool.core.domain.verdict import Level, Verdict
from ckpttool.core.errors import UsageError
from ckpttool.trainers.mindformers.layouts.names import ITERATION_LAYOUT
from tests.core.decide.test_steps import dated, save
from tests.support.inventories import checkpoint, expect_ranks, finding, tree, verdicts
from tests.support.reference_choice import Save, done_again, good, left_behind, lost, pick

ANY = ResumeQuestion()
RENAME = Rename(source="rank_3/llama_rank_3-20_2.ckpt", target="rank_3/llama_rank_3_1-20_2.ckpt", why="they differ")


def point(
    inventory: Inventory, question: ResumeQuestion = ANY, verdict_of: Callable[[Checkpoint], Verdict] | None = None
) -> ResumePoint:
    found = choose(inventory, question, verdict_of or verdicts())
    assert isinstance(found, ResumePoint)
    return found


def nothing(
    inventory: Inventory, question: ResumeQuestion = ANY, verdict_of: Callable[[Checkpoint], Verdict] | None = None
) -> NoResumePoint:
    found = choose(inventory, question, verdict_of or verdicts())
    assert isinstance(found, NoResumePoint)
    return found


def rejected(found: ResumePoint | NoResumePoint) -> list[tuple[str, set[Row]]]:
    return [(one.checkpoint.name, {reason.code for reason in one.reasons}) for one in found.rejected]


def remedies(found: ResumePoint | NoResumePoint) -> dict[Row, str | None]:
    return {reason.code: reason.remedy for one in found.rejected for reason in one.reasons}


class TestOrder:
    def test_the_newest_is_taken_and_nothing_older_is_opened(self) -> None:
        asked: list[str] = []
        found = point(tree(checkpoint("10_2"), checkpoint("20_2")), verdict_of=verdicts(asked=asked))
        assert (found.checkpoint.name, asked, found.lost_steps) == ("20_2", ["20_2"], 0)
        assert found.rejected == ()

    def test_a_damaged_one_is_passed_over_and_its_steps_are_lost(self) -> None:
        asked: list[str] = []
        inventory = tree(checkpoint("5_2"), checkpoint("10_2"), checkpoint("20_2"))
        found = point(inventory, verdict_of=verdicts(["20_2"], asked=asked))
        assert (found.checkpoint.name, asked, found.lost_steps) == ("10_2", ["20_2", "10_2"], 20)
        assert rejected(found) == [("20_2", {Code.SHARD_TRUNCATED})]

    def test_what_lies_beyond_a_step_is_not_opened_and_no_rejection(self) -> None:
        asked: list[str] = []
        inventory = tree(
            checkpoint("5_2"), checkpoint("10_2"), checkpoint("20_2", findings=[finding(Code.SHARD_MISSING)])
        )
        found = point(inventory, ResumeQuestion(before=Step(39)), verdicts(["20_2"], asked=asked))
        assert (found.checkpoint.name, asked, found.lost_steps, rejected(found)) == ("10_2", ["10_2"], 20, [])
        assert point(inventory, ResumeQuestion(before=Step(20))).checkpoint.name == "10_2"
        assert point(inventory, ResumeQuestion(before=Step(19))).checkpoint.name == "5_2"

    def test_a_damaged_one_before_the_step_is_passed_over(self) -> None:
        inventory = tree(checkpoint("5_2"), checkpoint("10_2"), checkpoint("20_2"))
        found = point(inventory, ResumeQuestion(before=Step(20)), verdicts(["10_2"]))
        assert (found.checkpoint.name, rejected(found)) == ("5_2", [("10_2", {Code.SHARD_TRUNCATED})])

    def test_what_tells_no_step_is_not_taken_for_one_before_it(self) -> None:
        inventory = tree(replace(checkpoint("5_2"), step=None), checkpoint("20_2"))
        found = nothing(inventory, ResumeQuestion(before=Step(20)))
        assert rejected(found) == [("5_2", {Code.STEP_UNKNOWN})]
        assert found.findings == ()

    def test_where_all_lie_beyond_the_step_it_says_where_they_begin(self) -> None:
        found = nothing(tree(checkpoint("10_2"), checkpoint("20_2")), ResumeQuestion(before=Step(19)))
        assert rejected(found) == []
        (said,) = found.findings
        assert said.code is Code.REWOUND_PAST
        assert said.message == "no checkpoint is at or before step 19: the first is 10_2, at step 20"

    def test_a_name_and_a_step_before_it_contradict_each_other(self) -> None:
        inventory = tree(checkpoint("10_2"), checkpoint("20_2"))
        with pytest.raises(UsageError, match=r"20_2 is at step 40, but the requested .* at or before step 39$"):
            choose(inventory, ResumeQuestion(name="20_2", before=Step(39)), verdicts())
        assert point(inventory, ResumeQuestion(name="10_2", before=Step(39))).step == 20

    def test_of_what_the_listing_rules_out_the_newest_alone_is_opened_to_say_all_that_is_wrong(self) -> None:
        asked: list[str] = []
        missing = [finding(Code.SHARD_MISSING)]
        inventory = tree(checkpoint("10_2"), checkpoint("15_2", findings=missing), checkpoint("20_2", findings=missing))
        found = point(inventory, verdict_of=verdicts(["20_2"], asked=asked))
        assert (found.checkpoint.name, asked) == ("10_2", ["10_2", "20_2"])
        codes = [[reason.code for reason in rejection.reasons] for rejection in found.rejected]
        assert codes == [[Code.SHARD_MISSING, Code.SHARD_TRUNCATED], [Code.SHARD_MISSING]]

    def test_what_the_listing_rules_out_is_not_read_whole(self) -> None:
        asked: list[str] = []
        inventory = tree(checkpoint("10_2"), checkpoint("20_2", findings=[finding(Code.SHARD_MISSING)]))
        point(inventory, ResumeQuestion(evidence=Level.CHECKSUM), verdict_of=verdicts(asked=asked))
        assert asked == ["10_2"]

    @pytest.mark.parametrize("severity", [one for one in Severity if one is not Severity.NOTE])
    def test_whatever_is_more_than_a_note_speaks_against_a_checkpoint(self, severity: Severity) -> None:
        inventory = tree(checkpoint("10_2"), checkpoint("20_2"))
        worse = verdicts(["20_2"], found=finding(severity=severity))
        assert point(inventory, verdict_of=worse).checkpoint.name == "10_2"

    def test_a_note_does_not(self) -> None:
        noted = verdicts(["20_2"], found=finding(severity=Severity.NOTE))
        assert point(tree(checkpoint("10_2"), checkpoint("20_2")), verdict_of=noted).checkpoint.name == "20_2"

    def test_where_nothing_is_good_every_one_is_rejected_newest_first(self) -> None:
        found = nothing(tree(checkpoint("10_2"), checkpoint("20_2")), verdict_of=verdicts(["10_2", "20_2"]))
        assert [name for name, _ in rejected(found)] == ["20_2", "10_2"]

    def test_an_empty_tree_has_nothing(self) -> None:
        assert nothing(tree()).rejected == ()


class TestUnknownSteps:
    def test_one_whose_step_nobody_tells_is_never_chosen_but_told(self) -> None:
        found = point(tree(checkpoint("10_2"), checkpoint("20_2", step=None)))
        assert (found.checkpoint.name, found.lost_steps) == ("10_2", 0)
        assert rejected(found) == [("20_2", {Code.STEP_UNKNOWN})]
        (note,) = found.findings
        assert (note.code, note.severity) == (Code.STEP_UNKNOWN, Severity.NOTE)

    @pytest.mark.parametrize("remedy", [None, "give --sink-size"])
    def test_what_would_tell_it_is_in_the_words_of_the_layout_or_nothing_is_promised(self, remedy: str | None) -> None:
        unknown = replace(checkpoint("20_2", step=None), step_remedy=remedy)
        assert remedies(nothing(tree(unknown))) == {Code.STEP_UNKNOWN: remedy}

    def test_the_damage_that_hides_the_step_is_the_reason_where_there_is_some(self) -> None:
        found = point(tree(checkpoint("10_2"), checkpoint("20_2", step=None)), verdict_of=verdicts(["20_2"]))
        assert rejected(found) == [("20_2", {Code.SHARD_TRUNCATED})]

    def test_an_older_one_is_no_business_of_the_answer(self) -> None:
        found = point(tree(checkpoint("10_2", step=None), checkpoint("20_2")))
        assert (found.rejected, found.findings) == ((), ())


class TestHealth:
    def test_an_unhealthy_one_is_passed_over(self) -> None:
        inventory = tree(checkpoint("10_2"), checkpoint("20_2", health=Health.UNHEALTHY))
        assert rejected(point(inventory)) == [("20_2", {Code.MARKED_UNHEALTHY})]
        assert point(inventory, ResumeQuestion(ignore_health=True)).checkpoint.name == "20_2"

    def test_an_option_is_offered_only_where_it_would_take_the_checkpoint(self) -> None:
        inventory = tree(checkpoint("10_2"), checkpoint("20_2", health=Health.UNHEALTHY))
        assert remedies(point(inventory)) == {Code.MARKED_UNHEALTHY: "--ignore-health chooses it anyway"}
        torn = point(inventory, verdict_of=verdicts(["20_2"]))
        assert rejected(torn) == [("20_2", {Code.MARKED_UNHEALTHY, Code.SHARD_TRUNCATED})]
        assert remedies(torn)[Code.MARKED_UNHEALTHY] is None
        taken = point(inventory, ResumeQuestion(ignore_health=True), verdict_of=verdicts(["20_2"]))
        assert taken.checkpoint.name == "10_2"

    def test_weights_alone_are_offered_too_only_where_nothing_else_is_against_them(self) -> None:
        weights = replace(checkpoint("20_2"), content=Content.WEIGHTS_ONLY)
        inventory = tree(checkpoint("10_2"), weights)
        assert remedies(point(inventory)) == {Code.WEIGHTS_ONLY: "--allow-weights-only chooses it anyway"}
        assert remedies(point(inventory, verdict_of=verdicts(["20_2"])))[Code.WEIGHTS_ONLY] is None
        both = tree(checkpoint("10_2"), replace(weights, health=Health.UNHEALTHY))
        promise = "--allow-weights-only --ignore-health chooses it anyway"
        assert remedies(point(both)) == {Code.WEIGHTS_ONLY: promise, Code.MARKED_UNHEALTHY: promise}
        taken = point(both, ResumeQuestion(allow_weights_only=True, ignore_health=True))
        assert taken.checkpoint.name == "20_2"

    def test_what_is_said_to_do_about_a_finding_does_not_make_it_one_of_health(self) -> None:
        torn = replace(finding(), remedy="--ignore-health chooses it anyway")
        inventory = tree(checkpoint("10_2"), checkpoint("20_2", health=Health.UNHEALTHY, findings=[torn]))
        assert remedies(point(inventory))[Code.MARKED_UNHEALTHY] is None

    def test_what_would_cost_the_reading_of_every_byte_is_promised_with_an_if(self) -> None:
        asked: list[str] = []
        inventory = tree(checkpoint("10_2"), checkpoint("20_2", health=Health.UNHEALTHY))
        found = point(inventory, ResumeQuestion(evidence=Level.CHECKSUM), verdict_of=verdicts(asked=asked))
        assert asked == ["10_2"]
        assert remedies(found) == {
            Code.MARKED_UNHEALTHY: "--ignore-health chooses it anyway, if its shards are intact: they were not read"
        }

    def test_an_unhealthy_one_on_a_branch_that_was_left_needs_its_name_too(self) -> None:
        bad = checkpoint("20_2", health=Health.UNHEALTHY)
        inventory = tree(bad, checkpoint("7_2", run=1, findings=[finding(Code.RANK_MISSING)]))
        found = nothing(inventory)
        assert remedies(found)[Code.MARKED_UNHEALTHY] == "--checkpoint 20_2 --ignore-health chooses it anyway"
        assert point(inventory, ResumeQuestion(name="20_2", ignore_health=True)).checkpoint.name == "20_2"

    def test_an_unknown_one_is_passed_over_only_where_health_is_required(self) -> None:
        inventory = tree(checkpoint("10_2", health=Health.HEALTHY), checkpoint("20_2"))
        assert point(inventory).checkpoint.name == "20_2"
        assert point(inventory, ResumeQuestion(require_health=True)).checkpoint.name == "10_2"

    def test_all_reasons_are_given_and_not_only_the_first(self) -> None:
        bad = checkpoint("20_2", health=Health.UNHEALTHY, findings=[finding(Code.SHARD_MISSING)])
        found = nothing(tree(bad, checkpoint("5_2", run=1, findings=[finding(Code.RANK_MISSING)])))
        assert rejected(found)[1] == (
            "20_2",
            {Code.MARKED_UNHEALTHY, Code.SHARD_MISSING, Code.ABANDONED_BRANCH},
        )


class TestRenames:
    def test_one_that_needs_renames_is_chosen_only_by_leave(self) -> None:
        inventory = tree(checkpoint("10_2"), checkpoint("20_2", renames=[RENAME]))
        found = point(inventory)
        assert rejected(found) == [("20_2", {Code.NEEDS_RENAMES})]
        (reason,) = found.rejected[0].reasons
        assert "rename rank_3/llama_rank_3-20_2.ckpt to rank_3/llama_rank_3_1-20_2.ckpt" in reason.message
        assert point(inventory, ResumeQuestion(allow_renames=True)).checkpoint.name == "20_2"

    def test_several_are_counted(self) -> None:
        (one,) = nothing(tree(checkpoint("20_2", renames=[RENAME, RENAME, RENAME]))).rejected
        assert one.reasons[0].message.endswith("and 2 more")

    def test_leave_to_rename_does_not_make_a_damaged_one_good(self) -> None:
        inventory = tree(checkpoint("10_2"), checkpoint("20_2", renames=[RENAME]))
        found = point(inventory, ResumeQuestion(allow_renames=True), verdicts(["20_2"]))
        assert rejected(found) == [("20_2", {Code.SHARD_TRUNCATED})]


class TestBranches:
    INVENTORY = tree(checkpoint("10_2"), checkpoint("20_2"), checkpoint("15_2", run=1))

    def test_a_branch_that_was_left_is_told_though_it_is_older_than_the_choice(self) -> None:
        found = point(self.INVENTORY)
        assert (found.checkpoint.name, found.lost_steps) == ("_1-15_2", 0)
        assert rejected(found) == [("20_2", {Code.ABANDONED_BRANCH})]
        assert [one.code for one in found.findings] == [Code.RUN_REWOUND]

    def test_it_is_no_fallback_and_does_not_count_as_lost(self) -> None:
        found = point(self.INVENTORY, verdict_of=verdicts(["_1-15_2"]))
        assert (found.checkpoint.name, found.lost_steps) == ("10_2", 10)
        assert [name for name, _ in rejected(found)] == ["_1-15_2", "20_2"]

    def test_if_nothing_else_is_whole_it_is_not_known_what_to_resume_from(self) -> None:
        left = tree(checkpoint("20_2"), checkpoint("15_2", run=1))
        found = nothing(left, verdict_of=verdicts(["_1-15_2"]))
        assert not found.is_sure
        (way,) = [one for one in found.findings if one.code is Code.ABANDONED_BRANCH]
        assert way.message == "20_2 is rejected only as part of an abandoned branch, and the later checkpoints are lost"
        assert nothing(left, verdict_of=verdicts(["_1-15_2", "20_2"])).is_sure

    def test_its_bytes_are_not_read_to_know_that(self) -> None:
        asked: list[str] = []
        inventory = replace(
            tree(checkpoint("20_2"), checkpoint("15_2", run=1)),
            tracked=Tracked(name="_1-15_2", step=Step(30), written_ns=None),
        )
        found = nothing(inventory, ResumeQuestion(evidence=Level.CHECKSUM), verdicts(["_1-15_2"], asked=asked))
        assert (asked, found.is_sure) == (["_1-15_2"], False)
        (way,) = [one for one in found.findings if one.code is Code.ABANDONED_BRANCH]
        assert way.message.startswith("the tracker names _1-15_2, which is not intact")

    def test_named_it_is_the_choice_and_not_at_the_same_time_rejected(self) -> None:
        found = point(self.INVENTORY, ResumeQuestion(name="20_2"))
        assert (found.checkpoint.name, found.lost_steps, found.rejected) == ("20_2", 0, ())


class TestNames:
    INVENTORY = tree(checkpoint("10_2"), checkpoint("20_2"), checkpoint("25_2", run=1))

    @pytest.mark.parametrize(
        "name",
        ["_1-25_2", "llama_rank_0_1-25_2.ckpt", "llama_rank_3_1-25_2.ckpt", "some/where/llama_rank_0_1-25_2.ckpt"],
    )
    def test_a_checkpoint_is_meant_by_its_name_or_by_any_of_its_files(self, name: str) -> None:
        assert point(self.INVENTORY, ResumeQuestion(name=name)).checkpoint.name == "_1-25_2"

    def test_an_older_one_that_is_named_costs_the_steps_after_it(self) -> None:
        found = point(self.INVENTORY, ResumeQuestion(name="10_2"))
        assert (found.checkpoint.name, found.lost_steps, found.rejected) == ("10_2", 30, ())

    def test_a_named_one_that_is_not_good_is_not_replaced_by_another(self) -> None:
        found = nothing(self.INVENTORY, ResumeQuestion(name="20_2"), verdicts(["20_2"]))
        assert rejected(found) == [("20_2", {Code.SHARD_TRUNCATED})]

    def test_of_saves_that_contradict_each_other_none_is_taken_unless_it_is_named_and_then_the_doubt_is_said(
        self,
    ) -> None:
        tie = finding(Code.SCHEMA_DIFFERS, Severity.UNKNOWN)
        tied = verdicts(["20_2", "_1-25_2", "10_2"], found=tie)
        for name in (None, "latest"):
            assert not nothing(self.INVENTORY, ResumeQuestion(name=name), tied).is_sure
        found = point(self.INVENTORY, ResumeQuestion(name="20_2"), tied)
        assert (found.checkpoint.name, found.findings[-1]) == ("20_2", replace(tie, severity=Severity.NOTE))
        assert nothing(self.INVENTORY, ResumeQuestion(name="20_2"), verdicts(["20_2"])).is_sure
        assert tie not in point(self.INVENTORY, ResumeQuestion(name="20_2")).findings

    def test_a_name_that_is_not_there_is_answered_with_those_that_are(self) -> None:
        with pytest.raises(UsageError, match=r"no checkpoint '30_2' .* there are: _1-25_2, 20_2, 10_2$"):
            point(self.INVENTORY, ResumeQuestion(name="30_2"))
        with pytest.raises(UsageError, match="there are: none"):
            point(tree(), ResumeQuestion(name="30_2"))

    def test_of_many_names_only_the_newest_are_listed(self) -> None:
        many = tree(*(checkpoint(f"{epoch}_2") for epoch in range(1, 11)))
        with pytest.raises(UsageError, match=r"there are: 10_2, .*, 3_2, …$"):
            point(many, ResumeQuestion(name="x"))

    def test_one_name_in_two_formats_is_one_choice_by_order(self) -> None:
        both = tree(checkpoint("10_2"), checkpoint("10_2", fmt=FormatName.SAFETENSORS))
        assert point(both, ResumeQuestion(name="10_2")).checkpoint.format is FormatName.SAFETENSORS
        assert point(both, ResumeQuestion(name="llama_rank_0-10_2.ckpt")).checkpoint.format is FormatName.MINDSPORE_CKPT

    def test_a_part_of_a_name_means_nothing(self) -> None:
        for name in ("5_2", "25_2", "_1-25_2.ckpt", ""):
            with pytest.raises(UsageError, match="there is no checkpoint"):
                point(self.INVENTORY, ResumeQuestion(name=name))


class TestPrefixes:
    INVENTORY = tree(checkpoint("10_2", prefix="a"), checkpoint("20_2", prefix="b"), checkpoint("20_2", prefix="a"))

    def test_several_trainings_in_one_folder_are_not_guessed_between(self) -> None:
        found = nothing(self.INVENTORY)
        assert found.rejected == ()
        (mixed,) = found.findings
        assert (mixed.code, mixed.remedy) == (Code.RUN_MIXED, "choose one with --prefix a")
        assert not found.is_sure

    def test_a_file_on_half_of_the_ranks_is_no_training_and_one_on_more_is(self) -> None:
        for ranks, is_mixed in (((0, 1), False), ((0, 1, 2), True)):
            other = replace(checkpoint("20_2", prefix="qwen", ranks=ranks), topology=Topology(world_size=4))
            found = choose(tree(checkpoint("10_2"), other), ANY, verdicts())
            assert isinstance(found, NoResumePoint) is is_mixed

    def test_a_prefix_chooses_one_of_them(self) -> None:
        found = point(self.INVENTORY, ResumeQuestion(prefix="b"))
        assert (found.checkpoint.prefix, found.lost_steps) == ("b", 0)

    def test_a_name_that_several_have_is_not_guessed_between(self) -> None:
        with pytest.raises(UsageError, match="several training runs"):
            point(self.INVENTORY, ResumeQuestion(name="20_2"))
        assert point(self.INVENTORY, ResumeQuestion(name="20_2", prefix="a")).checkpoint.prefix == "a"
        assert point(self.INVENTORY, ResumeQuestion(name="10_2")).checkpoint.prefix == "a"

    def test_a_prefix_that_is_not_there_is_answered_with_those_that_are(self) -> None:
        with pytest.raises(UsageError, match=r"the prefix 'c'; there are: 'a', 'b'$"):
            point(self.INVENTORY, ResumeQuestion(prefix="c"))
        with pytest.raises(UsageError, match="there are: none"):
            point(tree(), ResumeQuestion(prefix="c"))


def test_in_the_newer_layout_the_tracker_tells_the_course() -> None:
    found = tuple(
        replace(checkpoint(f"{step}_1"), name=f"iteration_{step:08d}", label=None, sort_key=()) for step in (10, 20, 30)
    )
    inventory = tree(*found, layout=ITERATION_LAYOUT, tracked="iteration_00000010")
    assert point(inventory).checkpoint.name == "iteration_00000010"
    assert [name for name, _ in rejected(point(inventory))] == ["iteration_00000030", "iteration_00000020"]


# ---- random trees, judged by the second picker ----

WORLD = 3
RANKS = st.one_of(st.just(frozenset(range(WORLD))), st.frozensets(st.integers(0, WORLD - 1), min_size=1))
SIZES: st.SearchStrategy[list[int | None]] = st.one_of(
    st.just([8] * 4), st.lists(st.sampled_from([4, 8, 8, 16, 12, None]), min_size=4, max_size=4)
)
"""Samples a batch, by run."""


def batched(saves: list[Save], sizes: list[int | None]) -> list[Save]:
    return [replace(save, batch=sizes[save.run]) for save in saves]


SAVES = st.lists(
    st.builds(
        Save,
        run=st.integers(0, 3),
        step=st.integers(1, 8),
        ranks=RANKS,
        damaged=st.booleans(),
        unhealthy=st.booleans(),
        unmeasured=st.booleans(),
    ),
    max_size=10,
    unique_by=lambda save: (save.run, save.step),
).flatmap(lambda saves: SIZES.map(lambda sizes: batched(saves, sizes)))


def as_inventory(saves: list[Save]) -> Inventory:
    found = [
        checkpoint(
            f"{save.step}_1",
            run=save.run,
            ranks=sorted(save.ranks),
            batch=save.batch,
            health=Health.UNHEALTHY if save.unhealthy else Health.UNKNOWN if save.unmeasured else Health.HEALTHY,
        )
        for save in saves
    ]
    declared = WorldEvidence(world_size=WORLD, source="this test says so", declared=True)
    return expect_ranks(tree(*found), [declared])


@given(SAVES, st.booleans(), st.booleans(), st.randoms(use_true_random=False))
def test_the_choice_is_the_newest_good_one_in_every_tree(
    saves: list[Save],
    ignore: bool,
    require: bool,
    chance: Random,
) -> None:
    damaged = [save.name for save in saves if save.damaged]
    question = ResumeQuestion(ignore_health=ignore, require_health=require)
    answer = choose(as_inventory(saves), question, verdicts(damaged))
    expected = pick(saves, world=WORLD, ignore_health=ignore, require_health=require)
    if expected is None:
        assert isinstance(answer, NoResumePoint)
        assert len(answer.rejected) == len(saves)
        return
    assert isinstance(answer, ResumePoint)
    assert (answer.checkpoint.run, answer.checkpoint.step) == (expected.run, expected.step)
    assert answer.lost_steps == lost(saves, expected)
    shuffled = list(saves)
    chance.shuffle(shuffled)
    assert choose(as_inventory(shuffled), question, verdicts(damaged)) == answer


@given(SAVES)
def test_everything_newer_than_the_choice_and_every_branch_that_was_left_is_accounted_for(saves: list[Save]) -> None:
    answer = choose(as_inventory(saves), ANY, verdicts([save.name for save in saves if save.damaged]))
    told = [(one.checkpoint.run, one.checkpoint.step) for one in answer.rejected]
    assert told == sorted(told, reverse=True)
    if isinstance(answer, ResumePoint):
        at = (answer.checkpoint.run, answer.checkpoint.step)
        chosen = next(save for save in saves if save.name == answer.checkpoint.name)
        instead = [save for save in saves if done_again(chosen, saves) and not done_again(save, saves)]
        assert set(told) == {
            (save.run, save.step)
            for save in saves
            if (save.run, save.step) > at or left_behind(save, saves) or save in instead
        }
    for one in answer.rejected:
        save = next(save for save in saves if save.name == one.checkpoint.name)
        assert not good(save, saves, world=WORLD) or done_again(save, saves)
        assert one.reasons


class TestOneOfSeveral:
    """Copies, and trainings that save into one folder."""

    TWO = tree(checkpoint("10_2"), checkpoint("20_2", prefix="gpt"))

    def test_the_training_that_the_config_saves_as_is_meant_and_it_is_said(self) -> None:
        found = point(self.TWO, ResumeQuestion(saves_as="llama"))
        assert (found.checkpoint.name, [one.code for one in found.findings]) == ("10_2", [Code.RUN_MIXED])

    def test_if_the_config_means_none_of_them_nothing_is_chosen(self) -> None:
        (found,) = nothing(self.TWO, ResumeQuestion(saves_as="other")).findings
        assert "the config selects none of them: it saves as other" in found.message

    def test_a_copy_is_no_training_of_its_own(self) -> None:
        copy = checkpoint("20_2", prefix="gpt", findings=[finding(Code.DUPLICATE_CHECKPOINT, Severity.SUSPECT)])
        assert point(tree(checkpoint("10_2"), copy)).checkpoint.name == "10_2"

    def test_nothing_is_chosen_while_nobody_knows_which_of_two_is_the_newest(self) -> None:
        tie = [finding(Code.DUPLICATE_CHECKPOINT, Severity.UNKNOWN)]
        found = nothing(tree(checkpoint("10_2"), checkpoint("20_2", findings=tie)))
        assert rejected(found)[0] == ("20_2", {Code.DUPLICATE_CHECKPOINT})

    def test_a_name_beyond_the_chosen_one_is_told_of_a_save_of_another_run_or_an_earlier_step(self) -> None:
        found = point(settle(tree(dated("500", 500, 1), dated("8", 8, 3))))
        assert (found.checkpoint.name, rejected(found)) == ("8", [("500", {Code.TIMES_DISAGREE})])
        found = point(settle(tree(save("step_99", 5), save("step_10", 10), save("step_20", 20))))
        assert (found.checkpoint.name, rejected(found)) == ("step_20", [("step_99", {Code.STEP_DISAGREES})])


def test_what_a_trainer_says_against_a_save_stands_against_it_and_no_other() -> None:
    inventory = tree(checkpoint("10_2"), checkpoint("20_2"))
    newest = inventory.checkpoints[-1]
    assert objected(inventory, lambda _: []) is inventory
    told = objected(inventory, lambda one: [finding()] if one is newest else [])
    assert rejected(point(told)) == [("20_2", {Code.SHARD_TRUNCATED})]
    unloadable = against_refused(inventory, {newest.key: "needs another reader"})
    assert rejected(point(unloadable)) == [("20_2", {Code.NOT_LOADABLE})]
