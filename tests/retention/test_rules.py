"""Which checkpoints may go, judged by a second rule over random trees; and that nothing else looks different after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.decide.lineage import Lineage
from ckpttool.core.decide.resume import choose
from ckpttool.core.decide.steps import settle
from ckpttool.core.domain.checkpoint import Checkpoint, CheckpointKey, Inventory, Rename
from ckpttool.core.domain.expectation import WorldEvidence
from ckpttool.core.domain.finding import Code, Row, Severity
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.plan import NoResumePoint
from ckpttool.core.domain.question import ResumeQuestion
from ckpttool.core.domain.retention import RetentionPlan, RetentionPolicy, Why
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.domain.verdict import Level, Verdict
from ckpttool.core.errors import IncompleteError, UsageError
from ckpttool.retention.rules import Circumstances, retain
from ckpttool.trainers.mindformers.layouts.names import ITERATION_LAYOUT
from tests.support.inventories import checkpoint, expect_ranks, finding, tree
from tests.support.reference_choice import left_behind
from tests.support.reference_retention import Kept, Looked, Wish, may_go, proven, whole
from tests.support.verifying import report

RENAME = Rename(source="rank_3/llama_rank_3-20_2.ckpt", target="rank_3/llama_rank_3_1-20_2.ckpt", why="they differ")


class Verifier:
    """A verifier that finds what a test planted, and writes down whose content was read."""

    def __init__(
        self,
        *,
        damaged: Iterable[str] = (),
        sealed: Iterable[str] = (),
        rotten: Iterable[str] = (),
        looked: Looked = "auto",
        unproven: Iterable[str] = (),
        needs: Mapping[str, str] | None = None,
        tied: Iterable[str] = (),
    ) -> None:
        self.damaged, self.sealed, self.rotten = set(damaged), set(sealed), set(rotten)
        self.unproven, self.tied = set(unproven), set(tied)
        self.looked = looked
        self.needs = needs or {}
        """Which one is whole only as long as another is there."""
        self.read: list[str] = []

    def headers(self, checkpoint: Checkpoint) -> Verdict:
        verdict = _verdict(checkpoint, Level.STRUCTURE, bad=checkpoint.name in self.damaged)
        if checkpoint.name not in self.tied:
            return verdict
        return replace(verdict, findings=(finding(Code.SCHEMA_DIFFERS, Severity.UNKNOWN),))

    def is_intact_in(self, remaining: Inventory, checkpoint: Checkpoint) -> bool:
        there = {one.name for one in remaining.checkpoints}
        return checkpoint.name not in self.damaged and self.needs.get(checkpoint.name) in {None, *there}

    def has_checksums(self, checkpoint: Checkpoint) -> bool:
        return checkpoint.name in self.sealed

    def content(self, checkpoint: Checkpoint) -> Verdict | None:
        if self.looked == "structure" or (self.looked == "auto" and checkpoint.name not in self.sealed):
            return None
        self.read.append(checkpoint.name)
        matched = checkpoint.name in self.sealed - self.unproven
        return _verdict(checkpoint, Level.CHECKSUM, bad=checkpoint.name in self.rotten, matched=matched)


def _verdict(checkpoint: Checkpoint, level: Level, *, bad: bool, matched: bool = False) -> Verdict:
    own = (finding(),) if bad else ()
    return Verdict(
        key=checkpoint.key,
        name=checkpoint.name,
        step=checkpoint.step,
        level=level,
        reports=(report(matched=matched),),
        findings=own,
    )


def planned(
    inventory: Inventory, policy: RetentionPolicy | None = None, verifier: Verifier | None = None
) -> RetentionPlan:
    """Plan for a tree in which nothing is missing but what is said to be."""
    return replanned(inventory, lambda raw: raw, policy, verifier)


def replanned(
    raw: Inventory,
    judge: Callable[[Inventory], Inventory] = expect_ranks,
    policy: RetentionPolicy | None = None,
    verifier: Verifier | None = None,
    refused: Mapping[CheckpointKey, str] | None = None,
) -> RetentionPlan:
    """Plan for a tree that is judged anew without what goes."""

    def without(gone: Sequence[Checkpoint]) -> Inventory:
        names = {one.name for one in gone}
        staying = [one for one in raw.checkpoints if one.name not in names or one.format not in formats(gone, one.name)]
        left = tree(
            *staying,
            layout=raw.layout,
            folders=raw.folder_ranks,
            tracked=None if raw.tracked is None else raw.tracked.name,
        )
        return judge(left)

    given = Circumstances(refused=refused or {})
    return retain(judge(raw), policy or RetentionPolicy(keep_last=1), verifier or Verifier(), without, given)


def formats(gone: Sequence[Checkpoint], name: str) -> set[FormatName]:
    return {one.format for one in gone if one.name == name}


def going(plan: RetentionPlan) -> set[str]:
    return {one.name for one in plan.going}


def whys(plan: RetentionPlan) -> dict[str, tuple[Why, ...]]:
    return {fate.checkpoint.name: fate.why for fate in plan.fates}


FOUR = tree(*(checkpoint(f"{epoch}_2") for epoch in (10, 20, 30, 40)))


class TestTheNewest:
    def test_so_many_as_the_policy_says_stay_and_the_rest_goes(self) -> None:
        plan = planned(FOUR, RetentionPolicy(keep_last=2))
        assert going(plan) == {"10_2", "20_2"}
        assert [(fate.checkpoint.name, fate.because) for fate in plan.fates] == [
            ("40_2", "among the 2 newest good checkpoints"),
            ("30_2", "among the 2 newest good checkpoints"),
            ("20_2", "2 newer good checkpoints stay"),
            ("10_2", "2 newer good checkpoints stay"),
        ]
        assert [one.name for one in plan.good] == ["40_2", "30_2"]

    def test_a_policy_that_keeps_one_speaks_of_one(self) -> None:
        plan = planned(FOUR, RetentionPolicy(keep_last=1))
        assert [fate.because for fate in plan.fates[:2]] == [
            "the newest good checkpoint",
            "1 newer good checkpoint stays",
        ]

    def test_where_there_are_too_few_nothing_goes(self) -> None:
        assert going(planned(FOUR, RetentionPolicy(keep_last=4))) == set()

    def test_a_damaged_one_counts_for_nothing_and_never_goes(self) -> None:
        plan = planned(FOUR, verifier=Verifier(damaged=["40_2", "10_2"]))
        assert going(plan) == {"20_2"}
        assert whys(plan)["40_2"] == (Why.NOT_WHOLE,)
        assert whys(plan)["10_2"] == (Why.NOT_WHOLE,)

    def test_where_nothing_is_good_nothing_goes(self) -> None:
        plan = planned(FOUR, verifier=Verifier(damaged=["10_2", "20_2", "30_2", "40_2"]))
        assert (going(plan), plan.good, plan.intact) == (set(), (), ())

    def test_an_incomplete_one_is_not_even_opened(self) -> None:
        missing = finding(Code.RANK_MISSING, Severity.DAMAGE)
        plan = planned(tree(checkpoint("10_2"), checkpoint("20_2"), checkpoint("30_2", findings=[missing])))
        assert going(plan) == {"10_2"}
        fate = plan.fates[0]
        assert (fate.why, fate.word) == ((Why.NOT_WHOLE,), None)
        assert fate.because == "not intact (rank-missing): never deleted"

    def test_one_without_a_step_and_one_that_needs_renames_stay_and_count_for_nothing(self) -> None:
        inventory = tree(
            checkpoint("10_2"), checkpoint("20_2"), checkpoint("30_2", step=None), checkpoint("40_2", renames=[RENAME])
        )
        plan = planned(inventory)
        assert going(plan) == {"10_2"}
        assert whys(plan)["30_2"] == (Why.STEP_UNKNOWN,)
        assert whys(plan)["40_2"] == (Why.NEEDS_RENAMES,)

    def test_one_of_doubtful_step_stays_for_the_fact_alone_also_if_names_have_colons(self) -> None:
        late = settle(
            tree(
                replace(checkpoint("10_2"), name="run:a", committed_ns=2),
                replace(checkpoint("20_2"), name="run:b", committed_ns=1),
            )
        )
        fates = {fate.checkpoint.name: fate for fate in planned(late).fates}
        assert fates["run:b"].why[0] is Why.STEP_UNKNOWN
        assert fates["run:b"].because == "run:b was committed before run:a, which has a lower step"
        assert fates["run:a"].why == (Why.LAST,)

    def test_the_same_save_in_two_formats_is_one(self) -> None:
        twin = checkpoint("40_2", fmt=FormatName.SAFETENSORS)
        plan = planned(tree(checkpoint("20_2"), checkpoint("30_2"), checkpoint("40_2"), twin))
        assert [(one.name, one.format) for one in plan.going] == [
            ("30_2", FormatName.MINDSPORE_CKPT),
            ("20_2", FormatName.MINDSPORE_CKPT),
        ]

    def test_a_later_run_is_newer_whatever_its_steps(self) -> None:
        plan = planned(tree(checkpoint("10_2"), checkpoint("12_2", run=1), checkpoint("20_2", run=1)))
        assert going(plan) == {"10_2", "_1-12_2"}


class TestHealth:
    INVENTORY = tree(
        checkpoint("10_2", health=Health.HEALTHY),
        checkpoint("20_2", health=Health.UNHEALTHY),
        checkpoint("30_2", health=Health.HEALTHY),
        checkpoint("40_2", health=Health.UNKNOWN),
        checkpoint("50_2", health=Health.UNHEALTHY),
    )

    def test_an_unhealthy_one_counts_for_nothing_but_goes_when_it_is_old(self) -> None:
        plan = planned(self.INVENTORY)
        assert whys(plan)["50_2"] == (Why.NEWER,)
        assert going(plan) == {"10_2", "20_2", "30_2"}

    def test_healthy_ones_are_counted_by_themselves(self) -> None:
        assert going(planned(self.INVENTORY, RetentionPolicy(keep_last=1, keep_healthy=1))) == {"10_2", "20_2"}
        plan = planned(self.INVENTORY, RetentionPolicy(keep_last=1, keep_healthy=2))
        assert going(plan) == {"20_2"}
        assert plan.fates[-1].because == "among the 2 newest healthy checkpoints"

    def test_a_rotten_healthy_one_does_not_stand_in_for_an_older(self) -> None:
        inventory = tree(
            checkpoint("10_2", health=Health.HEALTHY),
            checkpoint("20_2", health=Health.HEALTHY),
            checkpoint("30_2"),
        )
        verifier = Verifier(sealed=["10_2", "20_2", "30_2"], rotten=["20_2"])
        plan = planned(inventory, RetentionPolicy(keep_last=1, keep_healthy=1), verifier)
        assert going(plan) == set()
        assert whys(plan)["20_2"] == (Why.NOT_WHOLE,)


class TestEvery:
    def test_the_first_at_or_after_each_multiple_stays(self) -> None:
        inventory = tree(*(checkpoint(f"{step}_1") for step in (10, 30, 55, 60, 90, 100, 110, 160)))
        plan = planned(inventory, RetentionPolicy(keep_last=1, keep_every=50))
        assert going(plan) == {"10_1", "30_1", "60_1", "90_1", "110_1"}
        assert whys(plan)["160_1"] == (Why.LAST, Why.EVERY)
        assert {fate.because for fate in plan.fates if fate.why == (Why.EVERY,)} == {
            "the first at or after a multiple of 50 steps"
        }

    def test_where_two_runs_saved_the_same_step_the_later_one_s_stays(self) -> None:
        inventory = tree(checkpoint("50_1"), checkpoint("50_1", run=1), checkpoint("110_1", run=1))
        assert going(planned(inventory, RetentionPolicy(keep_last=1, keep_every=50))) == {"50_1"}

    def test_a_rotten_one_does_not_stand_in_for_the_next(self) -> None:
        inventory = tree(*(checkpoint(f"{step}_1") for step in (50, 60, 70, 120)))
        verifier = Verifier(sealed=["50_1", "60_1", "70_1", "120_1"], rotten=["50_1"])
        assert going(planned(inventory, RetentionPolicy(keep_last=1, keep_every=50), verifier)) == {"70_1"}

    def test_one_alone_in_its_stretch_is_not_read(self) -> None:
        inventory = tree(*(checkpoint(f"{step}_1") for step in (50, 100, 150)))
        verifier = Verifier(looked="checksum")
        assert going(planned(inventory, RetentionPolicy(keep_last=1, keep_every=50), verifier)) == set()
        assert verifier.read == ["150_1"]


class TestNames:
    def test_a_named_one_stays_whether_by_its_name_or_a_shard_s(self) -> None:
        for name in ("20_2", "llama_rank_3-20_2.ckpt"):
            plan = planned(FOUR, RetentionPolicy(keep_last=1, keep=(name,)))
            assert going(plan) == {"10_2", "30_2"}
            assert whys(plan)["20_2"] == (Why.NAMED,)

    def test_a_slip_of_the_pen_is_an_error(self) -> None:
        with pytest.raises(UsageError, match=r"--keep '25_2' names no checkpoint .* there are: 40_2, 30_2"):
            planned(FOUR, RetentionPolicy(keep_last=1, keep=("25_2",)))
        with pytest.raises(UsageError, match="there are: none"):
            planned(tree(), RetentionPolicy(keep_last=1, keep=("25_2",)))

    def test_why_a_damaged_one_stays_is_said_beside_its_name(self) -> None:
        plan = planned(FOUR, RetentionPolicy(keep_last=1, keep=("40_2",)), Verifier(damaged=["40_2"]))
        assert plan.fates[0].why == (Why.NOT_WHOLE, Why.NAMED)
        assert plan.fates[0].because == "not intact (shard-truncated): never deleted; named by --keep"


class TestTrainings:
    INVENTORY = tree(
        checkpoint("10_2", prefix="a"),
        checkpoint("20_2", prefix="a"),
        checkpoint("5_2", prefix="b"),
        checkpoint("15_2", prefix="b"),
    )

    def test_several_in_one_folder_are_not_guessed_between(self) -> None:
        with pytest.raises(UsageError, match=r"several training runs here \('a', 'b'\): choose one with --prefix"):
            planned(self.INVENTORY)

    def test_those_of_another_prefix_stay_and_count_for_nothing(self) -> None:
        plan = planned(self.INVENTORY, RetentionPolicy(keep_last=1, prefix="b", keep=("20_2",)))
        assert going(plan) == {"5_2"}
        assert whys(plan)["10_2"] == (Why.OTHER_TRAINING,)
        assert whys(plan)["20_2"] == (Why.OTHER_TRAINING, Why.NAMED)

    def test_a_prefix_that_is_not_there_is_answered_with_those_that_are(self) -> None:
        with pytest.raises(UsageError, match=r"the prefix 'c'; there are: 'a', 'b'$"):
            planned(self.INVENTORY, RetentionPolicy(keep_last=1, prefix="c"))


class TestProof:
    def test_what_a_checksum_can_prove_is_replaced_only_by_what_a_checksum_did_prove(self) -> None:
        verifier = Verifier(sealed=["10_2", "20_2"])
        plan = planned(FOUR, verifier=verifier)
        assert going(plan) == {"10_2", "30_2"}
        assert whys(plan)["20_2"] == (Why.VERIFIED,)
        assert plan.fates[2].because == "the newest checkpoint proven by a checksum"
        assert verifier.read == ["20_2"]

    def test_content_that_does_not_agree_counts_for_nothing_and_never_goes(self) -> None:
        verifier = Verifier(sealed=["10_2", "20_2", "30_2", "40_2"], rotten=["40_2", "20_2"])
        plan = planned(FOUR, verifier=verifier)
        assert going(plan) == {"10_2", "20_2"}  # nobody had a reason to read 20_2
        assert verifier.read == ["40_2", "30_2"]
        assert whys(plan)["40_2"] == (Why.NOT_WHOLE,)

    def test_a_checksum_that_was_not_compared_proves_nothing(self) -> None:
        plan = planned(FOUR, verifier=Verifier(sealed=["30_2", "40_2"], unproven=["40_2"]))
        assert going(plan) == {"10_2", "20_2"}
        assert whys(plan)["30_2"] == (Why.VERIFIED,)

    def test_none_that_a_checksum_could_prove_goes_before_enough_newer_ones_were_proven(self) -> None:
        plan = planned(FOUR, verifier=Verifier(sealed=["20_2", "30_2", "40_2"], unproven=["20_2", "30_2", "40_2"]))
        assert going(plan) == {"10_2"}
        assert whys(plan)["40_2"] == (Why.LAST,)
        assert whys(plan)["20_2"] == whys(plan)["30_2"] == (Why.UNPROVEN,)
        assert plan.fates[1].because == "a checksum can prove it, and no newer checkpoint is proven by one"

    def test_without_a_look_at_content_a_seal_still_counts_for_more(self) -> None:
        verifier = Verifier(sealed=["20_2"], rotten=["20_2"], looked="structure")
        assert going(planned(FOUR, verifier=verifier)) == {"10_2", "30_2"}
        assert verifier.read == []


class TestBranches:
    INVENTORY = tree(checkpoint("10_2"), checkpoint("40_2"), checkpoint("12_2", run=1), checkpoint("15_2", run=1))

    def test_a_branch_that_the_training_left_stays_unless_it_may_go(self) -> None:
        plan = planned(self.INVENTORY)
        assert going(plan) == {"10_2", "_1-12_2"}
        assert whys(plan)["40_2"] == (Why.ABANDONED,)
        assert going(planned(self.INVENTORY, RetentionPolicy(keep_last=1, drop_abandoned=True))) == {
            "10_2",
            "40_2",
            "_1-12_2",
        }

    def test_it_stays_for_all_that_where_too_few_good_ones_are_newer(self) -> None:
        plan = planned(self.INVENTORY, RetentionPolicy(keep_last=3, drop_abandoned=True))
        assert whys(plan)["40_2"] == (Why.NEWER,)

    def test_a_run_from_scratch_in_an_old_folder_costs_nothing_of_the_old_run(self) -> None:
        inventory = tree(*(checkpoint(f"{step}_1") for step in (900, 1000)), checkpoint("1_1", run=1))
        assert going(planned(inventory)) == set()

    def test_the_run_that_went_back_behind_a_branch_is_not_forgotten(self) -> None:
        inventory = tree(checkpoint("40_2"), checkpoint("12_2", run=1), checkpoint("50_2", run=2))
        plan = planned(inventory)
        assert going(plan) == set()
        assert whys(plan)["_1-12_2"] == (Why.EVIDENCE,)

    def test_how_far_a_run_came_is_not_forgotten_either(self) -> None:
        inventory = tree(
            checkpoint("12_2"), checkpoint("10_2", run=1), checkpoint("15_2", run=1), checkpoint("20_2", run=2)
        )
        plan = planned(inventory, RetentionPolicy(keep_last=1, keep=("12_2", "_1-10_2")))
        assert going(plan) == set()
        assert whys(plan)["_1-15_2"] == (Why.EVIDENCE,)

    def test_two_beyond_the_tracker_do_not_become_one(self) -> None:
        found = [replace(checkpoint(f"{step}_1"), name=f"iteration_{step:08d}") for step in (5, 10, 20, 30)]
        inventory = tree(*found, layout=ITERATION_LAYOUT, tracked="iteration_00000010")
        policy = RetentionPolicy(keep_last=1, drop_abandoned=True)
        # Nothing is newer than what the tracker left behind, as the folders are numbered.
        assert going(planned(inventory, policy)) == {"iteration_00000005"}
        stays = {one.checkpoint.name: one.because for one in planned(inventory).fates}
        assert stays["iteration_00000030"].endswith(
            "deletes it once enough checkpoints of the lineage have higher numbers"
        )

    def test_of_runs_that_names_tell_the_option_is_enough(self) -> None:
        inventory = tree(checkpoint("10_2"), checkpoint("40_2"), checkpoint("12_2", run=1))
        stays = {one.checkpoint.name: one.because for one in planned(inventory).fates}
        assert stays["40_2"].endswith("--drop-abandoned deletes it")


class TestEvidence:
    def test_what_shows_that_ranks_are_missing_stays(self) -> None:
        torn = checkpoint("15_2", ranks=(0, 1))
        later = [checkpoint(f"{epoch}_2", run=1) for epoch in (30, 40)]
        plan = replanned(tree(checkpoint("10_2"), torn, checkpoint("20_2"), *later))
        assert going(plan) == {"10_2", "_1-30_2"}
        assert whys(plan)["20_2"] == (Why.EVIDENCE,)

    def test_where_another_run_shows_it_too_nothing_more_stays(self) -> None:
        torn = checkpoint("15_2", run=1, ranks=(0, 1, 2))
        later = [checkpoint(f"{epoch}_2", run=2) for epoch in (20, 30)]
        plan = replanned(tree(checkpoint("10_2"), torn, *later))
        assert going(plan) == {"10_2", "_2-20_2"}

    def test_no_rank_s_folder_is_emptied_and_a_smaller_run_stays_proven(self) -> None:
        old = [checkpoint(f"{epoch}_2", ranks=range(8)) for epoch in (5, 10)]
        new = [checkpoint(f"{epoch}_2", run=1, ranks=range(4)) for epoch in (15, 20, 30)]
        plan = replanned(tree(*old, *new))
        assert "_1-30_2" in {one.name for one in plan.good}
        assert going(plan) == {"5_2", "_1-15_2"}
        assert whys(plan)["10_2"] == whys(plan)["_1-20_2"] == (Why.EVIDENCE,)

    def test_what_clears_another_s_header_stays(self) -> None:
        verifier = Verifier(needs={"40_2": "20_2"})
        plan = planned(FOUR, verifier=verifier)
        assert going(plan) == {"10_2", "30_2"}
        assert whys(plan)["20_2"] == (Why.EVIDENCE,)
        assert going(planned(FOUR)) == {"10_2", "20_2", "30_2"}

    def test_of_two_that_contradict_each_other_neither_goes_and_nobody_says_that_there_is_nothing_good(self) -> None:
        plan = planned(FOUR, verifier=Verifier(damaged=["10_2", "20_2", "30_2", "40_2"], tied=["30_2", "40_2"]))
        assert going(plan) == set()
        assert whys(plan)["40_2"] == whys(plan)["30_2"] == (Why.DISPUTED,)
        assert plan.fates[0].because == "one of two saves is wrong (schema-differs), and there is no evidence which"
        assert plan.is_undecided
        assert not planned(FOUR, verifier=Verifier(damaged=["40_2"], tied=["40_2"])).is_undecided

    @pytest.mark.parametrize("code", [Code.UNREADABLE, Code.DUPLICATE_CHECKPOINT, Code.RUN_MIXED])
    def test_of_saves_of_which_nobody_could_tell_whether_they_are_good_none_is_called_damaged(self, code: Row) -> None:
        unknown = tree(checkpoint("10_2", findings=(finding(code, Severity.UNKNOWN),)))
        plan = planned(unknown)
        assert going(plan) == set()
        assert Why.NOT_WHOLE not in whys(plan)["10_2"]
        assert plan.is_undecided
        damaged = tree(checkpoint("10_2", findings=(finding(Code.SHARD_EMPTY, Severity.DAMAGE),)))
        assert whys(planned(damaged))["10_2"] == (Why.NOT_WHOLE,)
        assert not planned(damaged).is_undecided

    def test_a_folder_that_holds_something_unknown_stays(self) -> None:
        stray = finding(Code.STRAY_FILE, Severity.NOTE)
        plan = planned(tree(checkpoint("10_2", findings=[stray]), checkpoint("20_2", findings=[stray])))
        assert whys(plan) == {"20_2": (Why.LAST, Why.UNKNOWN_FILES), "10_2": (Why.UNKNOWN_FILES,)}

    def test_what_is_not_to_be_moved_stays_with_the_reason_and_still_replaces_older_ones(self) -> None:
        saves = [checkpoint("10_2"), checkpoint("20_2"), checkpoint("30_2")]
        refused = {saves[0].key: "has a {brace}", saves[2].key: "is linked from elsewhere"}
        plan = replanned(tree(*saves), refused=refused)
        assert going(plan) == {"20_2"}
        assert whys(plan) == {"30_2": (Why.LAST, Why.NOT_MOVED), "20_2": (Why.REPLACED,), "10_2": (Why.NOT_MOVED,)}
        assert plan.fates[0].because.endswith("must not be moved: it is linked from elsewhere")
        assert plan.fates[2].because == "must not be moved: it has a {brace}"

    def test_what_would_be_taken_for_another_save_afterwards_keeps_its_neighbour(self) -> None:
        raw = tree(checkpoint("10_2"), checkpoint("20_2"), checkpoint("30_2"))

        def judge(inventory: Inventory) -> Inventory:
            """Without 10_2 nobody knows any more what 30_2 is."""
            if any(one.name == "10_2" for one in inventory.checkpoints):
                return inventory
            return replace(inventory, checkpoints=())

        plan = replanned(raw, judge)
        assert going(plan) == {"20_2"}
        assert whys(plan)["10_2"] == (Why.EVIDENCE,)

    def test_the_oldest_of_hundreds_is_found_by_few_looks_at_the_tree(self) -> None:
        looks = []

        def judge(inventory: Inventory) -> Inventory:
            looks.append(inventory)
            return expect_ranks(inventory)

        torn, whole = checkpoint("1_2", ranks=(0, 1)), checkpoint("2_2")
        later = [checkpoint(f"{epoch}_2", run=1) for epoch in range(3, 300)]
        plan = replanned(tree(torn, whole, *later), judge)
        assert whys(plan)["2_2"] == (Why.EVIDENCE,)
        assert len(going(plan)) == len(later) - 1
        assert len(looks) < 30

    def test_what_changed_by_itself_is_not_laid_to_what_goes(self) -> None:
        growing = tree(*(checkpoint(f"{epoch}_2") for epoch in range(1, 50)), checkpoint("50_2", ranks=(0, 1)))
        landed = tree(*(checkpoint(f"{epoch}_2") for epoch in range(1, 51)))
        before, after = expect_ranks(growing), expect_ranks(landed)
        with pytest.raises(IncompleteError, match="changed while the plan was made; nothing was changed"):
            retain(before, RetentionPolicy(keep_last=1), Verifier(), lambda _: after)


# ---- random trees, judged by the second rule ----

WORLD = 4
RANKS = st.one_of(st.just(frozenset(range(WORLD))), st.frozensets(st.integers(0, WORLD - 1), min_size=1))
SAVES = st.lists(
    st.builds(
        Kept,
        run=st.integers(0, 3),
        step=st.integers(1, 12),
        ranks=st.one_of(st.just(frozenset(range(WORLD))), RANKS),
        damaged=st.sampled_from([False, False, True]),
        unhealthy=st.sampled_from([False, False, True]),
        unmeasured=st.booleans(),
        sealed=st.booleans(),
        rotten=st.sampled_from([False, False, True]),
    ).map(lambda save: replace(save, unmeasured=save.unmeasured and not save.unhealthy)),
    max_size=12,
    unique_by=lambda save: (save.run, save.step),
)
WISHES = st.builds(
    Wish,
    last=st.integers(1, 3),
    every=st.none() | st.integers(1, 5),
    healthy=st.integers(0, 2),
    drop_abandoned=st.booleans(),
    looked=st.sampled_from(["auto", "structure", "checksum"]),
)


def raw_of(saves: Iterable[Kept], folders: Iterable[int] | None = None) -> Inventory:
    found = [
        checkpoint(
            f"{save.step}_1",
            run=save.run,
            ranks=sorted(save.ranks),
            health=Health.UNHEALTHY if save.unhealthy else Health.UNKNOWN if save.unmeasured else Health.HEALTHY,
        )
        for save in sorted(saves, key=lambda save: (save.run, save.step))
    ]
    return tree(*found, folders=folders)


def declared(inventory: Inventory) -> Inventory:
    return expect_ranks(inventory, [WorldEvidence(world_size=WORLD, source="this test says so", declared=True)])


def policy_of(wish: Wish) -> RetentionPolicy:
    return RetentionPolicy(
        keep_last=wish.last,
        keep_every=wish.every,
        keep_healthy=wish.healthy,
        drop_abandoned=wish.drop_abandoned,
    )


def verifier_of(saves: Iterable[Kept], wish: Wish) -> Verifier:
    def names(chosen: Callable[[Kept], bool]) -> list[str]:
        return [save.name for save in saves if chosen(save)]

    return Verifier(
        damaged=names(lambda save: save.damaged),
        sealed=names(lambda save: save.sealed),
        rotten=names(lambda save: save.rotten),
        looked=wish.looked,
    )


@given(SAVES, WISHES, st.randoms(use_true_random=False))
def test_what_goes_is_what_the_second_rule_lets_go_but_for_evidence(
    saves: list[Kept], wish: Wish, chance: Random
) -> None:
    plan = replanned(raw_of(saves), declared, policy_of(wish), verifier_of(saves, wish))
    expected = {save.name for save in saves if may_go(save, saves, wish, world=WORLD)}
    evidence = {name for name, why in whys(plan).items() if why == (Why.EVIDENCE,)}
    assert going(plan) | evidence == expected
    shuffled = list(saves)
    chance.shuffle(shuffled)
    assert replanned(raw_of(shuffled), declared, policy_of(wish), verifier_of(saves, wish)) == plan


@given(SAVES, WISHES)
def test_where_there_was_a_good_one_the_newest_good_ones_stay(saves: list[Kept], wish: Wish) -> None:
    plan = replanned(raw_of(saves), declared, policy_of(wish), verifier_of(saves, wish))
    good = [save for save in saves if proven(save, saves, wish, world=WORLD)]
    good.sort(key=lambda save: (save.run, save.step), reverse=True)
    assert {save.name for save in good[: wish.last]}.isdisjoint(going(plan))
    sealed = [save.name for save in good if save.sealed]
    assert set(sealed[: wish.last]).isdisjoint(going(plan))
    assert {one.name for one in plan.good} >= {save.name for save in good[: wish.last]}


@given(SAVES, WISHES)
def test_for_each_that_goes_so_many_newer_good_ones_of_no_lesser_proof_stay(saves: list[Kept], wish: Wish) -> None:
    plan = replanned(raw_of(saves), declared, policy_of(wish), verifier_of(saves, wish))
    gone = going(plan)
    staying = [save for save in saves if save.name not in gone and proven(save, saves, wish, world=WORLD)]
    for save in saves:
        if save.name in gone:
            newer = [one for one in staying if (one.run, one.step) > (save.run, save.step)]
            assert len([one for one in newer if one.sealed or not save.sealed]) >= wish.last


@given(SAVES, WISHES)
def test_nothing_damaged_incomplete_or_left_behind_goes(saves: list[Kept], wish: Wish) -> None:
    gone = going(replanned(raw_of(saves), declared, policy_of(wish), verifier_of(saves, wish)))
    for save in saves:
        if save.name in gone:
            assert whole(save, world=WORLD)
            assert wish.drop_abandoned or not left_behind(save, saves)


@given(SAVES, WISHES)
def test_the_resume_point_and_every_judgement_of_what_stays_are_the_same_afterwards(
    saves: list[Kept], wish: Wish
) -> None:
    ranks = {rank for save in saves for rank in save.ranks}
    before = expect_ranks(raw_of(saves))
    verifier = verifier_of(saves, wish)
    gone = going(replanned(raw_of(saves), expect_ranks, policy_of(wish), verifier))
    after = expect_ranks(raw_of([save for save in saves if save.name not in gone], folders=ranks))
    lacking = {one.name: bool(one.findings) for one in before.checkpoints}
    assert {one.name: lacking[one.name] for one in after.checkpoints} == {
        one.name: bool(one.findings) for one in after.checkpoints
    }
    left = {one.name: Lineage(before).abandoned(one) is not None for one in before.checkpoints}
    assert {one.name: left[one.name] for one in after.checkpoints} == {
        one.name: Lineage(after).abandoned(one) is not None for one in after.checkpoints
    }
    chosen = [choose(each, ResumeQuestion(), verifier.headers) for each in (before, after)]
    assert [None if isinstance(one, NoResumePoint) else one.checkpoint.name for one in chosen] in (
        [None, None],
        [chosen[1].checkpoint.name] * 2 if not isinstance(chosen[1], NoResumePoint) else [],
    )


@given(SAVES, WISHES)
def test_what_was_pruned_once_is_not_pruned_further(saves: list[Kept], wish: Wish) -> None:
    verifier = verifier_of(saves, wish)
    gone = going(replanned(raw_of(saves), declared, policy_of(wish), verifier))
    left = [save for save in saves if save.name not in gone]
    assert going(replanned(raw_of(left), declared, policy_of(wish), verifier)) == set()
