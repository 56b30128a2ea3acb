"""Whole commands: which ranks hold copies is learned once, said in the verdict, and damage in one is located."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ckpttool.core.domain.finding import Code, Severity
from ckpttool.core.domain.verdict import Level, Verdict, VerdictWord
from tests.support.verifying import flip, seal_whole, verdicts

LEVELS = (Level.CHECKSUM, Level.NUMERICS)


@pytest.fixture
def tree(copy_tree: Callable[[str], Path]) -> Path:
    root = copy_tree("sink2_ckpt") / "output/checkpoint"
    for path in root.rglob("*.ckpt"):
        os.utime(path, (1_700_000_000, 1_700_000_000))  # what was written a moment ago is not remembered
    return root


def judged(
    tree: Path, *, level: Level = Level.CHECKSUM, name: str = "20_2", replicas: bool = True, memory: bool = True
) -> Verdict:
    (verdict,) = verdicts(tree, level, name, replicas=replicas, jump=0, max_age=3600.0 if memory else None)
    return verdict


def flipped(tree: Path, rank: int = 2) -> Path:
    """Flip a bit of a rank's newest shard, whose time stays."""
    (path,) = tree.glob(f"rank_{rank}/*20_2.ckpt")
    flip(path, 1000, 4)
    os.utime(path, (1_700_000_000, 1_700_000_000))
    return path


@pytest.mark.parametrize("level", LEVELS)
def test_copies_that_agree_are_a_word_between_looked_at_and_verified(tree: Path, level: Level) -> None:
    verdict = judged(tree, level=level)

    assert verdict.word is VerdictWord.AGREED
    assert {report.copies for report in verdict.reports} == {4}
    assert verdict.is_proven
    assert verdict.compared_with == verdict.also_read == ("15_2",)


@pytest.mark.parametrize("level", LEVELS)
def test_one_flipped_bit_is_located_without_any_checksum(tree: Path, level: Level) -> None:
    path = flipped(tree)
    verdict = judged(tree, level=level)

    (finding,) = [each for each in verdict.findings if each.severity > Severity.NOTE]
    assert (finding.code, finding.severity) == (Code.REPLICA_DIFFERS, Severity.DAMAGE)
    assert (finding.path, finding.ranks) == (str(path.relative_to(tree)), (2,))
    assert finding.tensor == "optimizer.adam_m.dense.bias"
    assert "byte 1000, 1 bit" in finding.message
    assert (finding.remedy or "").endswith(f"proven copy: ckpttool repair shards {tree} --checkpoint 20_2")
    assert not verdict.is_proven


def test_headers_alone_say_nothing_of_copies(tree: Path) -> None:
    flipped(tree)
    verdict = judged(tree, level=Level.STRUCTURE)

    assert (verdict.word, verdict.compared_with) == (VerdictWord.STRUCT_OK, ())


def test_no_other_checkpoint_is_read_where_that_is_not_wanted(tree: Path) -> None:
    verdict = judged(tree, replicas=False, memory=False)

    assert (verdict.word, verdict.compared_with, verdict.also_read) == (VerdictWord.STRUCT_OK, (), ())


def test_what_was_read_once_is_not_read_again_for_its_copies_sake(tree: Path) -> None:
    first, second = judged(tree), judged(tree)

    assert (first.also_read, second.also_read) == (("15_2",), ())
    assert second.compared_with == ("15_2",)
    assert (first.word, second.word) == (VerdictWord.AGREED, VerdictWord.AGREED)


def test_what_the_ledger_had_of_a_file_that_changed_since_teaches_nothing(tree: Path) -> None:
    judged(tree)
    for path in tree.glob("rank_*/*15_2.ckpt"):
        os.utime(path)

    assert judged(tree).also_read == ("15_2",)


def test_a_sealed_checkpoint_teaches_without_being_read(tree: Path) -> None:
    seal_whole(tree, "15_2")
    verdict = judged(tree, memory=False)

    assert (verdict.compared_with, verdict.also_read) == (("15_2",), ())
    assert verdict.word is VerdictWord.AGREED


def test_a_verified_checkpoint_needs_no_copies(tree: Path) -> None:
    seal_whole(tree, "20_2")
    verdict = judged(tree, memory=False)

    assert (verdict.word, verdict.also_read) == (VerdictWord.VERIFIED, ())


def test_what_copies_show_is_not_forgotten_by_a_later_look_at_headers(tree: Path) -> None:
    flipped(tree)
    judged(tree)
    assert judged(tree, level=Level.STRUCTURE).word is VerdictWord.DAMAGED

    flipped(tree)  # back again, with its time set back
    assert judged(tree, level=Level.STRUCTURE).word is VerdictWord.UNREADABLE
    assert judged(tree).word is VerdictWord.AGREED
    assert judged(tree, level=Level.STRUCTURE).word is VerdictWord.STRUCT_OK


def test_ranks_that_hold_nothing_alike_cost_no_second_read(copy_tree: Callable[[str], Path]) -> None:
    root = copy_tree("newfmt_1rank") / "output/checkpoint"
    verdict = judged(root, name="iteration_00000030", memory=False)

    assert verdict.also_read == ()


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_one_file_under_several_ranks_names_is_no_copy_of_itself(
    tree: Path, link: Callable[[Path, Path], None]
) -> None:
    (first,) = tree.glob("rank_0/*20_2.ckpt")
    for rank in (1, 2, 3):
        (path,) = tree.glob(f"rank_{rank}/*20_2.ckpt")
        path.unlink()
        link(first, path)
    verdict = judged(tree)
    assert verdict.word is VerdictWord.STRUCT_OK
    assert not verdict.is_proven

    (path,) = tree.glob("rank_3/*20_2.ckpt")  # its neighbour: a second file is a second copy
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    os.utime(path, (1_700_000_000, 1_700_000_000))
    verdict = judged(tree)
    assert verdict.word is VerdictWord.AGREED
    assert {report.copies for report in verdict.reports} == {2}


def test_a_file_that_two_ranks_share_is_doubted_at_both(tree: Path) -> None:
    first, second = flipped(tree, rank=0), next(tree.glob("rank_1/*20_2.ckpt"))
    second.unlink()
    second.hardlink_to(first)
    found = [finding for finding in judged(tree).findings if finding.code is Code.REPLICA_DIFFERS]
    assert [(finding.ranks, finding.severity) for finding in found] == [  # two files against one convict none
        ((0,), Severity.SUSPECT),
        ((1,), Severity.SUSPECT),
    ]


def test_a_checkpoint_whose_tensors_cannot_be_read_is_read_once(tree: Path) -> None:
    for path in tree.glob("rank_*/*15_2.ckpt"):
        path.write_bytes(path.read_bytes()[:-100] + b"\xff" * 100)
    verdict = judged(tree)

    assert (verdict.also_read, verdict.compared_with) == (("15_2", "10_2"), ("10_2",))
