"""One shard that differs from all it should equal is found; a training that changed is left alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.checkpoint import Checkpoint, Topology
from ckpttool.core.domain.finding import Code, Finding, Row, Severity
from ckpttool.core.domain.replicas import TensorDigests
from ckpttool.core.domain.shard import FormatName, ShardRole
from ckpttool.core.domain.units import Rank
from ckpttool.core.domain.verdict import ShardReport
from ckpttool.core.verify.siblings.compare import compare_siblings
from ckpttool.core.verify.siblings.neighbours import Neighbours, Sibling
from ckpttool.trainers.mindformers.scalars import TrainState
from tests.support.inventories import checkpoint, finding
from tests.support.verifying import report

CKPT = FormatName.MINDSPORE_CKPT


def before(*reports: ShardReport, same_run: bool = True, older: bool = True) -> Sibling:
    return Sibling(
        reports=tuple(replace(one, path=one.path.replace("now", "then")) for one in reports),
        older=older,
        same_run=same_run,
    )


def said(findings: Sequence[Finding]) -> list[tuple[Row, Severity, str | None]]:
    return [(one.code, one.severity, one.path) for one in findings]


def ranks(count: int = 4, **fields: Any) -> list[ShardReport]:  # noqa: ANN401  those of `report`
    """Reports on ranks that are alike."""
    return [report(rank, **fields) for rank in range(count)]


def of_kinds(models: Sequence[str], optimizers: Sequence[str]) -> list[ShardReport]:
    """A save with a file of each kind on each rank, by what each holds."""
    kinds = ((ShardRole.MODEL, models), (ShardRole.OPTIMIZER, optimizers))
    return [
        replace(report(rank, schema=schema, tail=f"page{rank} of {role}"), role=role, path=f"{role.value}-{rank}")
        for role, schemas in kinds
        for rank, schema in enumerate(schemas)
    ]


class TestKinds:
    """An optimizer's file that holds a model's tensors is a copy under another name, with no other save to compare."""

    @pytest.mark.parametrize(
        ("models", "optimizers", "misplaced"),
        [
            ("mmmm", "oooo", []),
            ("mmmm", "ooom", ["optimizer-3"]),
            ("mmom", "oooo", ["model-2"]),
            ("m", "om", ["optimizer-1"]),
            ("abab", "cdcb", ["optimizer-3"]),
            ("mmmm", "mmmm", []),
            ("abcd", "dcba", []),
            ("mm", "", []),
        ],
    )
    def test_a_file_that_holds_what_the_other_kind_does_is_damaged(
        self, models: str, optimizers: str, misplaced: list[str]
    ) -> None:
        found = compare_siblings(of_kinds(models, optimizers), [])
        assert said(found) == [(Code.SCHEMA_DIFFERS, Severity.DAMAGE, path) for path in misplaced]

    def test_the_file_of_its_own_rank_is_named_if_it_holds_the_same(self) -> None:
        (one,) = compare_siblings(of_kinds("mmmm", "ooom"), [])
        assert one.message == (
            "has the same content as model-3, which is a different kind of file: a copy under another name"
        )

    def test_what_was_sealed_so_is_left_alone(self) -> None:
        assert compare_siblings(of_kinds("mmmm", "ooom"), [], sealed={"optimizer-3"}) == []


class TestSchemas:
    def test_ranks_that_hold_what_they_held_are_left_alone(self) -> None:
        assert compare_siblings(ranks(), [before(*ranks())]) == []

    def test_stages_that_hold_different_layers_are_left_alone(self) -> None:
        stages = [report(rank, schema=f"stage{rank // 2}", tail=f"page{rank}") for rank in range(4)]
        assert compare_siblings(stages, [before(*stages)]) == []
        assert compare_siblings(stages, []) == []

    def test_one_rank_with_fewer_tensors_than_it_had_is_damaged(self) -> None:
        now = [*ranks(3), report(3, schema="cut", tensors=9)]
        (one,) = compare_siblings(now, [before(*ranks())])
        assert said([one]) == [(Code.ENTRIES_MISSING, Severity.DAMAGE, "rank_3/now")]
        assert (one.expected, one.actual) == ("10", "9")
        assert one.message == "has 9 tensors, but rank_3/then has 10; 3 other ranks still have the same structure"

    def test_one_rank_with_another_name_among_as_many_is_damaged(self) -> None:
        now = [*ranks(3), report(3, schema="flipped")]
        assert "as many tensors (10) as rank_3/then" in compare_siblings(now, [before(*ranks())])[0].message
        assert said(compare_siblings(now, [before(*ranks())])) == [(Code.SCHEMA_DIFFERS, Severity.DAMAGE, "rank_3/now")]

    def test_a_training_that_changed_on_all_ranks_or_in_one_stage_alone_is_left_alone(self) -> None:
        """Another optimizer, or layers that are trained no more."""
        assert compare_siblings(ranks(schema="sgd", tensors=5), [before(*ranks())]) == []
        then = [report(rank, schema=f"stage{rank // 2}", tail=f"page{rank}") for rank in range(4)]
        now = [replace(one, schema_hash="frozen", tensors=7) if one.schema_hash == "stage0" else one for one in then]
        assert compare_siblings(now, [before(*then)]) == []

    def test_files_that_were_all_cut_at_different_places_are_not_taken_for_a_change(self) -> None:
        now = [report(rank, schema=f"cut{rank}", tensors=9 - rank, fmt=CKPT, state=TrainState()) for rank in range(4)]
        found = compare_siblings(now, [before(*(replace(one, format=CKPT) for one in ranks()))])
        assert [one.code for one in found] == [Code.ENTRIES_MISSING] * 4

    def test_models_and_optimizers_of_a_checkpoint_are_judged_apart(self) -> None:
        """Half of all shards changed, but every optimizer: that is a change."""
        models = ranks(role=ShardRole.MODEL)
        adam = ranks(role=ShardRole.OPTIMIZER, schema="adam")
        muon = ranks(role=ShardRole.OPTIMIZER, schema="muon", tensors=5)
        assert compare_siblings([*models, *muon], [before(*models, *adam)]) == []
        odd = [*models, *adam[:3], muon[3]]
        assert [one.path for one in compare_siblings(odd, [before(*models, *adam)])] == ["rank_3/now"]

    def test_a_lone_ckpt_that_lost_its_end_is_damaged_and_a_lone_safetensors_is_suspect(self) -> None:
        """A `.ckpt` can be cut and stay valid; of a safetensors file only another configuration leaves less."""
        cut = report(schema="cut", tensors=9, fmt=CKPT, state=TrainState(epoch_num=10, step_num=20))
        assert said(compare_siblings([cut], [before(report(fmt=CKPT))]))[0][1] is Severity.DAMAGE
        fewer = report(schema="fewer", tensors=9)
        assert said(compare_siblings([fewer], [before(report())])) == [
            (Code.SCHEMA_DIFFERS, Severity.SUSPECT, "rank_0/now")
        ]

    def test_a_lone_rank_that_was_started_with_another_configuration_is_only_noted(self) -> None:
        other = report(schema="sgd", tensors=5)
        (one,) = compare_siblings([other], [before(report(), same_run=False)])
        assert one.severity is Severity.NOTE

    def test_a_shard_is_not_blamed_for_the_damage_of_its_sibling(self) -> None:
        """Only a second sibling can tell which of the two is right."""
        then = [*ranks(3), report(3, schema="flipped")]
        assert [one.severity for one in compare_siblings(ranks(), [before(*then)])] == [Severity.NOTE]
        assert compare_siblings(ranks(), [before(*then), before(*ranks())]) == []
        assert [one.severity for one in compare_siblings(ranks(), [before(*then), before(*then)])] == [Severity.SUSPECT]

    def test_nor_where_that_sibling_lacks_another_rank(self) -> None:
        then = [report(1, schema="flipped"), report(2)]
        assert [one.severity for one in compare_siblings(ranks(3), [before(*then)])] == [Severity.NOTE]
        assert said(compare_siblings([report(1, schema="cut", tensors=9), report(2)], [before(*ranks(3))])) == [
            (Code.ENTRIES_MISSING, Severity.DAMAGE, "rank_1/now")
        ]

    def test_a_rank_that_held_more_than_all_others_and_holds_what_they_do_is_suspect(self) -> None:
        """Another rank's file: a sibling comes by no tensor through damage."""
        then = [report(0, schema="counter", tensors=11), *ranks(4)[1:]]
        for siblings in ([before(*then)], [before(*then), before(*then)]):
            assert said(compare_siblings(ranks(), siblings)) == [(Code.SCHEMA_DIFFERS, Severity.SUSPECT, "rank_0/now")]
        assert compare_siblings(then, [before(*then)]) == []

    def test_several_ranks_with_tensors_of_their_own_excuse_none_that_lost_them(self) -> None:
        then = [report(0, schema="first", tensors=11), *ranks(6)[1:5], report(5, schema="last", tensors=11)]
        now = [report(0), *then[1:]]
        expected = [(Code.SCHEMA_DIFFERS, Severity.SUSPECT, "rank_0/now")]
        assert said(compare_siblings(now, [before(*then), before(*then)])) == expected
        assert compare_siblings(then, [before(*then), before(*then)]) == []

    def test_ranks_that_all_hold_what_none_of_them_held_in_the_same_run_are_unknown(self) -> None:
        then = [report(rank, schema=f"stage{rank}", tail=f"page{rank}") for rank in range(4)]
        found = compare_siblings([replace(one, schema_hash="one file") for one in then], [before(*then)])
        assert said(found) == [(Code.SCHEMA_DIFFERS, Severity.UNKNOWN, f"rank_{rank}/now") for rank in range(4)]

    def test_a_rank_that_holds_more_than_it_did_and_than_all_others_lost_nothing(self) -> None:
        """The other step may be the one that holds another rank's file."""
        now = [report(0, schema="counter", tensors=11), *ranks(4)[1:]]
        assert [one.severity for one in compare_siblings(now, [before(*ranks())])] == [Severity.NOTE]
        assert compare_siblings(now, [before(*ranks()), before(*now)]) == []
        assert [one.severity for one in compare_siblings(now, [before(*ranks()), before(*ranks())])] == [
            Severity.SUSPECT
        ]

    def test_a_rank_that_holds_more_because_it_is_a_copy_of_another_is_damaged(self) -> None:
        then = [report(0, schema="counter", tensors=11), *ranks(4)[1:]]
        now = [then[0], report(1, schema="counter", tensors=11), *then[2:]]
        assert said(compare_siblings(now, [before(*then)])) == [(Code.SCHEMA_DIFFERS, Severity.DAMAGE, "rank_1/now")]

    def test_a_second_sibling_clears_a_shard_of_what_the_first_one_says(self) -> None:
        flipped, healthy = before(report(schema="flipped")), before(report(), older=False)
        assert [one.severity for one in compare_siblings([report()], [flipped])] == [Severity.UNKNOWN]
        assert compare_siblings([report()], [flipped, healthy]) == []

    def test_of_two_files_that_contradict_each_other_neither_is_called_damaged_unless_a_third_sides_with_one(
        self,
    ) -> None:
        flipped, healthy = before(report(schema="flipped")), before(report(), older=False)
        for now, then in ((report(), flipped), (report(schema="flipped"), healthy)):
            (one,) = compare_siblings([now], [then])
            assert one.is_tie
            assert one.message.endswith("one of the two is wrong, and there is no evidence which")
        outvoted = compare_siblings([report(schema="flipped")], [healthy, before(report())])
        assert [one.severity for one in outvoted] == [Severity.SUSPECT]
        assert [one.is_tie for one in compare_siblings([report()], [flipped, before(report(schema="other"))])] == [True]

    def test_a_header_that_is_the_sealed_one_ends_the_dispute_on_either_side(self) -> None:
        then = before(report(schema="flipped"))
        assert compare_siblings([report()], [then], sealed={"rank_0/now"}) == []
        proven = replace(then, sealed=frozenset({"rank_0/then"}))
        assert [one.severity for one in compare_siblings([report()], [proven])] == [Severity.SUSPECT]

    def test_of_two_ranks_the_one_that_alone_holds_other_names_is_wrong_and_its_sibling_is_not_doubted(self) -> None:
        slices = [report(rank, tail=f"page{rank}") for rank in range(2)]
        for whole in (ranks(2), slices):
            flipped = [replace(whole[0], schema_hash="flipped"), whole[1]]
            assert [one.severity for one in compare_siblings(whole, [before(*flipped)])] == [Severity.NOTE]
            assert said(compare_siblings(flipped, [before(*whole)])) == [
                (Code.SCHEMA_DIFFERS, Severity.DAMAGE, "rank_0/now")
            ]

    def test_a_rank_is_not_convicted_by_a_sibling_that_may_hold_the_other_rank_s_file_in_its_place(self) -> None:
        stages = [report(rank, schema=f"stage{rank}", tail=f"page{rank}") for rank in range(2)]
        copied = [replace(stages[1], path="rank_0/now", rank=Rank(0)), stages[1]]
        for same_run in (True, False):
            (one,) = compare_siblings(stages, [before(*copied, same_run=same_run)])
            assert one.is_tie
        assert any(one.is_tie for one in compare_siblings(copied, [before(*stages)]))

    def test_two_saves_with_a_header_text_of_each_rank_s_own_are_a_tie_where_one_differs(self) -> None:
        own = [report(rank, metadata=f"rank {rank}") for rank in range(2)]
        other = [replace(own[0], metadata_hash="rbnk 0"), own[1]]
        assert [one.is_tie for one in compare_siblings(own, [before(*other)])] == [True]
        outvoted = compare_siblings(other, [before(*own), before(*own)])
        assert [one.severity for one in outvoted] == [Severity.SUSPECT]
        assert compare_siblings(own, [before(*own)]) == []

    def test_a_sibling_that_is_damaged_itself_is_not_believed(self) -> None:
        damaged = report(schema="other", findings=[finding()])
        cut = report(schema="cut", tensors=9, state=TrainState(epoch_num=10))
        for useless in (damaged, cut, report(schema=None)):
            assert compare_siblings([report()], [before(useless)]) == []

    def test_without_another_step_the_one_rank_that_differs_from_all_others_is_found(self) -> None:
        now = [*ranks(3), report(3, schema="cut", tensors=9)]
        assert said(compare_siblings(now, [])) == [(Code.ENTRIES_MISSING, Severity.DAMAGE, "rank_3/now")]

    def test_without_another_step_nobody_is_odd_where_a_rank_is_missing(self) -> None:
        """It may have held what the one holds: another pipeline stage's layers."""
        stages = [*ranks(2), report(2, schema="stage1")]
        assert compare_siblings(stages, [], is_complete=False) == []
        assert said(compare_siblings(stages, [])) == [(Code.SCHEMA_DIFFERS, Severity.SUSPECT, "rank_2/now")]

    @pytest.mark.parametrize(("count", "severity"), [(3, Severity.SUSPECT), (4, Severity.DAMAGE)])
    def test_without_another_step_two_that_agree_convict_no_third_of_other_names(
        self, count: int, severity: Severity
    ) -> None:
        now = [*ranks(count - 1), report(count - 1, schema="flipped")]
        assert said(compare_siblings(now, [])) == [(Code.SCHEMA_DIFFERS, severity, f"rank_{count - 1}/now")]
        lacking = [*ranks(2), report(2, schema="cut", tensors=9)]
        assert said(compare_siblings(lacking, [])) == [(Code.ENTRIES_MISSING, Severity.DAMAGE, "rank_2/now")]

    def test_without_another_step_a_rank_that_holds_more_than_the_others_is_only_noted(self) -> None:
        now = [report(0, schema="counter", tensors=11), *ranks(4)[1:]]
        assert said(compare_siblings(now, [])) == [(Code.SCHEMA_DIFFERS, Severity.NOTE, "rank_0/now")]

    def test_without_another_step_two_ranks_that_differ_prove_nothing(self) -> None:
        assert compare_siblings([report(0), report(1, schema="b")], []) == []

    def test_without_another_step_the_newer_layouts_shares_of_a_model_may_differ(self) -> None:
        shares = [report(rank, role=ShardRole.MODEL, schema="first" if rank == 0 else "rest") for rank in range(4)]
        assert compare_siblings(shares, []) == []

    def test_a_shard_whose_header_is_damaged_says_nothing_about_the_others(self) -> None:
        now = [*ranks(3), report(3, schema=None, findings=[finding()])]
        assert compare_siblings(now, [before(*ranks())]) == []


class TestMetadata:
    def test_one_header_with_another_text_is_suspect(self) -> None:
        now = [*ranks(3), report(3, metadata="mr")]
        expected = [(Code.SCHEMA_DIFFERS, Severity.SUSPECT, "rank_3/now")]
        assert said(compare_siblings(now, [before(*ranks())])) == expected
        assert said(compare_siblings(now, [])) == expected

    def test_without_another_step_two_headers_that_differ_prove_nothing(self) -> None:
        assert compare_siblings([report(0), report(1, metadata="mr")], []) == []
        assert compare_siblings([report(0, metadata="a"), report(1, metadata="b"), report(2)], []) == []

    def test_a_newer_program_that_writes_another_text_on_all_ranks_is_left_alone(self) -> None:
        now = ranks(metadata="newer")
        assert compare_siblings(now, [before(*ranks())]) == []
        assert compare_siblings(now[:1], [before(*ranks(1))]) == []

    def test_what_a_ledger_remembers_does_not_hold_the_text_and_blames_nobody(self) -> None:
        known = [replace(one, metadata_hash=None, tail_hash=None, remembered=True) for one in ranks(3)]
        assert compare_siblings([*known, report(3)], []) == []
        assert compare_siblings([*known, report(3)], [before(*ranks())]) == []


class TestStrippedChecksums:
    def test_a_checksum_that_all_others_have_is_missed(self) -> None:
        now = [*ranks(3, crc=True), report(3)]
        assert said(compare_siblings(now, [])) == [(Code.CHECKSUM_MISSING, Severity.SUSPECT, "rank_3/now")]

    def test_a_lone_shard_that_had_one_at_the_step_before_is_suspect(self) -> None:
        assert said(compare_siblings([report()], [before(report(crc=True))])) == [
            (Code.CHECKSUM_MISSING, Severity.SUSPECT, "rank_0/now")
        ]

    def test_a_checksum_is_not_missed_where_every_tensor_is_what_a_verified_copy_holds(self) -> None:
        now = [*ranks(3, crc=True, matched=True), report(3)]
        assert compare_siblings([*now[:3], replace(now[3], copies=4, copy_matched=True)], []) == []
        assert compare_siblings([*now[:3], replace(now[3], copies=4)], [])

    def test_checksums_switched_on_or_off_for_all_are_left_alone(self) -> None:
        assert compare_siblings(ranks(), [before(*ranks(crc=True))]) == []
        assert compare_siblings([report()], [before(report(crc=True), same_run=False)]) == []
        assert compare_siblings(ranks(crc=True), [before(*ranks())]) == []


class TestZeroTails:
    def test_a_page_that_was_not_zero_before_is_suspect(self) -> None:
        now = [*ranks(3), report(3, zero_tail=True)]
        assert said(compare_siblings(now, [before(*ranks())])) == [(Code.ZERO_TAIL, Severity.SUSPECT, "rank_3/now")]

    def test_pages_that_all_ranks_lost_are_suspect_and_those_never_trained_are_not(self) -> None:
        now = ranks(zero_tail=True)
        assert [one.severity for one in compare_siblings(now, [before(*ranks())])] == [Severity.SUSPECT] * 4
        assert compare_siblings(now, [before(*now)]) == []

    def test_rows_of_tokens_that_came_later_are_left_alone(self) -> None:
        """Zero now and not afterwards is how every moment begins; only a note is left."""
        now = [report(rank, tail=f"page{rank}") for rank in range(3)] + [report(3, zero_tail=True)]
        later = before(*(report(rank, tail=f"page{rank}") for rank in range(4)), older=False)
        assert [one.severity for one in compare_siblings(now, [later])] == [Severity.NOTE]

    def test_the_one_slice_with_rows_that_nobody_uses_is_left_alone(self) -> None:
        """Of a vocabulary that is split over ranks, the last one holds the padding."""
        slices = [*(report(rank, tail=f"page{rank}") for rank in range(3)), report(3, zero_tail=True)]
        assert compare_siblings(slices, [before(*slices)]) == []
        assert [one.severity for one in compare_siblings(slices, [])] == [Severity.NOTE]

    def test_without_another_step_replicas_show_that_a_page_is_lost(self) -> None:
        now = [*ranks(3), report(3, zero_tail=True)]
        assert said(compare_siblings(now, [])) == [(Code.ZERO_TAIL, Severity.SUSPECT, "rank_3/now")]

    def test_with_nobody_to_ask_it_stays_a_note(self) -> None:
        assert [one.severity for one in compare_siblings([report(zero_tail=True)], [])] == [Severity.NOTE]

    def test_a_step_at_which_the_tensors_were_others_is_no_sibling(self) -> None:
        now = ranks(schema="sgd", zero_tail=True)
        assert {one.severity for one in compare_siblings(now, [before(*ranks())])} == {Severity.NOTE}


class TestCopies:
    def slices(self, name: str, *, count: int = 4) -> list[ShardReport]:
        return [report(rank, tail=f"{name}{rank}") for rank in range(count)]

    def test_another_ranks_file_of_the_same_tensors_is_suspect(self) -> None:
        now = self.slices("b")
        now[3] = replace(now[3], tail_hash=now[2].tail_hash)
        paths = [one.path for one in compare_siblings(now, [before(*self.slices("a"))])]
        assert paths == ["rank_2/now", "rank_3/now"]  # nobody can tell which of the two it is

    @pytest.mark.parametrize("is_copy", [True, False])
    def test_where_every_byte_was_read_slices_that_only_end_alike_are_left_alone(self, is_copy: bool) -> None:
        """Their last page is of numbers that each rank counts for itself, and for once are equal."""
        digests = [TensorDigests(names=("w",), digests=bytes([rank]) * 8) for rank in range(4)]
        now = [replace(one, tensor_digests=held) for one, held in zip(self.slices("b"), digests, strict=True)]
        now[3] = replace(now[3], tail_hash=now[2].tail_hash, tensor_digests=digests[2] if is_copy else digests[3])
        paths = [one.path for one in compare_siblings(now, [before(*self.slices("a"))])]
        assert paths == (["rank_2/now", "rank_3/now"] if is_copy else [])

    def test_what_was_compared_tensor_by_tensor_is_not_guessed_from_last_pages(self) -> None:
        now = self.slices("b")
        now[3] = replace(now[3], tail_hash=now[2].tail_hash)
        others = [before(*self.slices("a"))]
        assert compare_siblings(now, others)
        assert compare_siblings(now, others, {one.path for one in now}) == []

    def test_among_replicas_only_the_copy_is_named(self) -> None:
        then = [report(rank, tail=f"a{rank % 2}") for rank in range(6)]
        now = [report(rank, tail=f"b{rank % 2}") for rank in range(6)]
        now[0] = replace(now[0], tail_hash="b1")
        assert [one.path for one in compare_siblings(now, [before(*then)])] == ["rank_0/now"]

    def test_replicas_one_of_which_was_damaged_at_the_other_step_are_left_alone(self) -> None:
        """They end alike now, and did not then: but that is the other step's fault."""
        then = [*ranks(3), report(3, tail="flipped")]
        assert [one.severity for one in compare_siblings(ranks(), [before(*then)])] == [Severity.NOTE]
        assert compare_siblings(ranks(), [before(*then), before(*ranks())]) == []

    def test_of_two_ranks_a_second_sibling_tells_a_copy_from_a_damaged_sibling(self) -> None:
        now = [report(0, tail="b"), report(1, tail="b")]
        first, second = (before(*self.slices(name, count=2)) for name in ("a", "c"))
        assert [one.severity for one in compare_siblings(now, [first])] == [Severity.NOTE] * 2
        assert [one.severity for one in compare_siblings(now, [first, second])] == [Severity.SUSPECT] * 2

    def test_two_ranks_are_compared_at_every_sibling_that_knows_both(self) -> None:
        now = self.slices("c")
        now[3] = replace(now[3], tail_hash=now[2].tail_hash)
        nearer = before(*self.slices("b", count=3))
        for whole, names in ((now, ["rank_2/now", "rank_3/now"]), (self.slices("c"), [])):
            found = compare_siblings(whole, [nearer, before(*self.slices("a"))])
            assert [(one.path, one.severity) for one in found] == [(name, Severity.SUSPECT) for name in names]

    def test_replicas_of_which_other_ones_were_damaged_at_each_other_step_are_left_alone(self) -> None:
        first, second = (before(*(report(rank, tail=f"{rank == odd}") for rank in range(3))) for odd in (1, 2))
        assert compare_siblings(ranks(3), [first, second]) == []

    def test_what_each_rank_counts_for_itself_may_become_equal_on_all(self) -> None:
        counted = before(*(report(rank, tail=f"{rank % 2}") for rank in range(4)))
        assert [one.severity for one in compare_siblings(ranks(), [counted])] == [Severity.NOTE] * 4
        assert compare_siblings(ranks(), [counted, before(*ranks())]) == []
        assert [one.severity for one in compare_siblings(ranks(), [counted] * 2)] == [Severity.SUSPECT] * 4

    def test_pages_of_zeros_at_the_other_step_make_no_slices_of_replicas(self) -> None:
        lost = [*ranks(4)[:2], *(report(rank, zero_tail=True) for rank in (2, 3))]
        severities = [one.severity for one in compare_siblings([*ranks(3), report(3, tail="x")], [before(*lost)])]
        assert severities == [Severity.NOTE]

    def test_slices_are_left_alone(self) -> None:
        assert compare_siblings(self.slices("b"), [before(*self.slices("a"))]) == []
        assert compare_siblings(self.slices("b"), [before(*ranks())]) == []
        assert compare_siblings(ranks(), [before(*self.slices("a"), same_run=False)]) == []

    def test_pages_of_zeros_are_no_copies_of_each_other(self) -> None:
        now = ranks(zero_tail=True)
        codes = {one.code for one in compare_siblings(now, [before(*self.slices("a"))])}
        assert codes == {Code.ZERO_TAIL}


class TestWitnesses:
    def tree(self) -> list[Checkpoint]:
        return [
            checkpoint("10_2"),
            checkpoint("15_2"),
            checkpoint("20_2"),
            checkpoint("17_2", run=1),
            checkpoint("22_2", run=1),
        ]

    @pytest.mark.parametrize(
        ("index", "expected"),
        [
            (0, ["15_2", "20_2"]),
            (1, ["10_2", "20_2"]),
            (2, ["15_2", "10_2"]),
            (3, ["_1-22_2", "20_2"]),
            (4, ["_1-17_2", "20_2"]),
        ],
    )
    def test_the_nearest_of_the_own_run_come_first_then_an_earlier_run(self, index: int, expected: list[str]) -> None:
        tree = self.tree()
        assert [one.name for one in Neighbours(tree).siblings(tree[index])] == expected

    def test_other_trainings_formats_and_world_sizes_are_no_siblings(self) -> None:
        one = checkpoint("10_2")
        others = [
            checkpoint("15_2", prefix="qwen"),
            checkpoint("15_2", fmt=FormatName.SAFETENSORS),
            replace(checkpoint("15_2"), topology=Topology(world_size=8)),
        ]
        assert Neighbours([one, *others]).siblings(one) == ()

    @pytest.mark.parametrize(("index", "expected"), [(0, None), (1, "10_2"), (2, "15_2"), (3, "15_2"), (4, "_1-17_2")])
    def test_numbers_are_compared_with_what_the_training_passed(self, index: int, expected: str | None) -> None:
        """Run 1 went on before step 40, so what run 0 saved at step 40 is another branch."""
        tree = self.tree()
        earlier = Neighbours(tree).earlier(tree[index])
        assert (earlier.name if earlier else None) == expected

    def test_what_the_training_passed_goes_by_samples_where_the_batch_size_changed(self) -> None:
        """100 steps of 8 samples went on as 50 of 16: the one before step 55 is step 100, not step 50."""
        before = [checkpoint("50_1"), checkpoint("100_1")]
        after = checkpoint("55_1", run=1, batch=16)
        neighbours = Neighbours([*before, after])
        assert neighbours.earlier(after) is before[1]
        assert neighbours.is_older(before[1], after)
        newer = [
            replace(checkpoint(f"{step}_1", batch=size), label=None, sort_key=()) for step, size in ((27, 2), (22, 4))
        ]
        assert Neighbours(newer).is_older(newer[0], newer[1])
        assert not Neighbours(newer).is_older(newer[1], newer[0])

    def test_a_checkpoint_of_unknown_step_has_none_before_it(self) -> None:
        unknown = checkpoint("20_2", step=None)
        assert Neighbours([checkpoint("10_2"), unknown]).earlier(unknown) is None
        assert Neighbours([unknown]).earlier(checkpoint("20_2")) is None

    @given(
        st.lists(
            st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 1), st.booleans()),
            max_size=14,
        )
    )
    def test_asked_one_by_one_or_sorted_once_the_neighbours_are_the_same(
        self, saves: list[tuple[int, int, int, bool]]
    ) -> None:
        tree = [
            checkpoint(f"{label}_2", run=run, prefix="ab"[prefix], step=10 * label if told else None)
            for run, label, prefix, told in sorted(saves)
        ]
        neighbours = Neighbours(tree)
        for one in tree:
            alike = [other for other in tree if other.prefix == one.prefix]
            own_run = [other for other in alike if other.run == one.run]
            at = next(index for index, other in enumerate(own_run) if other.name == one.name)
            before, after = own_run[:at], own_run[at + 1 :]
            earlier_runs = [other for other in alike if other.run < one.run]
            nearest = (*before[-1:], *after[:1], *before[-2:-1], *after[1:2], *earlier_runs[-1:])
            assert neighbours.siblings(one) == nearest[:2]
            told = [(other.run, other.step, other) for other in alike if other.step is not None]
            passed = [other for other in told if one.step is not None and other[0] <= one.run and other[1] < one.step]
            expected = max(passed, key=lambda other: other[:2], default=None)
            assert neighbours.earlier(one) is (None if expected is None else expected[2])

    def test_a_checkpoint_of_another_tree_has_no_neighbours_in_this_one(self) -> None:
        other_family = checkpoint("10_2", prefix="qwen")
        assert Neighbours(self.tree()).siblings(other_family) == ()
        assert Neighbours(self.tree()).earlier(other_family) is None


@pytest.mark.parametrize(("fmt", "is_doubted"), [(CKPT, False), (FormatName.SAFETENSORS, True)])
def test_the_end_of_a_ckpt_with_a_flipped_name_makes_no_copy_of_two_ranks_that_end_alike(
    fmt: FormatName, *, is_doubted: bool
) -> None:
    """It holds names, too; that of a safetensors file holds data alone, and then they differed."""
    now = ranks(2, fmt=fmt)
    older = before(now[0], replace(now[1], schema_hash="flipped", tail_hash="other"))
    oldest = before(replace(now[0], schema_hash="flipped", tail_hash="another"), now[1])
    found = compare_siblings(now, [older, oldest])
    assert any("is a copy of the other" in one.message for one in found) is is_doubted
