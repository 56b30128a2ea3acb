"""What a shard was when it was written is known without a manifest, and goes with its save."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.finding import Code, Finding, Severity
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.manifest import Manifest, Sealing
from ckpttool.core.domain.question import CheckQuestion, TreeQuestion
from ckpttool.core.domain.units import Rank
from ckpttool.core.domain.verdict import Level, VerdictWord
from ckpttool.core.records import BIRTH_FOLDER, SealPlace, births_begin
from ckpttool.core.records.birth import birth_path, with_births
from ckpttool.core.records.manifest import manifest_bytes, read_manifest
from ckpttool.core.storage.local import LocalStorage
from tests.support.memory_storage import Bucket, MemoryStorage
from tests.support.prunable_trees import files, pruned, seal
from tests.support.trees import TreeBuilder

PREFIX = "llama2_7b"


def born(folder: Path) -> TreeBuilder:
    """Three saves on two ranks, each shard with its certificate, and no manifest."""
    tree = TreeBuilder(folder).legacy(ranks=2, fmt="safetensors")
    for epoch in (10, 20, 30):
        tree.save(epoch=epoch, step=2)
    certify(tree)
    return tree


def certify(tree: TreeBuilder) -> None:
    """Turn seals into certificates."""
    seal(tree)
    scanned = ckpttool.scan(TreeQuestion(path=str(tree.checkpoint)))
    for checkpoint in scanned.inventory.checkpoints:
        place = scanned.seal_place(checkpoint)
        assert place is not None
        assert place.births == births_begin(PREFIX, checkpoint.name)
        manifest = read_manifest(LocalStorage(str(tree.checkpoint)), place)
        assert isinstance(manifest, Manifest)
        for shard in manifest.shards:
            rank = Rank(int(shard.path.partition("/")[0].removeprefix("rank_")))
            path = tree.checkpoint / birth_path(place.births, rank)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(manifest_bytes(replace(manifest, shards=(shard,))))
        (tree.checkpoint / place.path).unlink()


def flip(tree: TreeBuilder, rank: int, epoch: int) -> None:
    path = tree.output / tree.shard(rank, epoch, 2)
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)


def verified(tree: TreeBuilder, level: Level = Level.CHECKSUM, name: str = "30_2") -> tuple[VerdictWord, list[Finding]]:
    answer = ckpttool.verify(TreeQuestion(path=str(tree.checkpoint)), CheckQuestion(level=level, name=name)).answer()
    (verdict,) = answer.verdicts
    return verdict.word, [finding for finding in verdict.findings if finding.severity > Severity.NOTE]


def sealed(tree: TreeBuilder, *, reseal: bool = False) -> Sealing:
    scanned = ckpttool.scan(TreeQuestion(path=str(tree.checkpoint), sizes=True))
    (sealing,) = ckpttool.seal(scanned, "30_2", reseal=reseal)
    return sealing


def test_a_healthy_save_is_verified_by_its_certificates_alone_and_without_them_nothing_is_wrong(tmp_path: Path) -> None:
    tree = born(tmp_path)
    assert verified(tree) == (VerdictWord.VERIFIED, [])
    shutil.rmtree(tree.checkpoint / ".ckpttool/birth")
    assert verified(tree) == (VerdictWord.AGREED, [])


class Noting(MemoryStorage):
    """Notes what is read."""

    def __init__(self, root: str, bucket: Bucket) -> None:
        super().__init__(root, bucket)
        self.read: list[str] = []

    def small_file(self, path: str, *, limit: int) -> bytes:
        self.read.append(path)
        return super().small_file(path, limit=limit)


def test_a_certificate_is_read_of_each_rank_and_none_where_a_tree_or_its_layout_has_none(tmp_path: Path) -> None:
    """A store takes milliseconds for each that is not there."""
    tree = born(tmp_path)
    scanned = ckpttool.scan(TreeQuestion(path=str(tree.checkpoint)))
    checkpoint = scanned.inventory.checkpoints[-1]
    place = scanned.seal_place(checkpoint)
    assert place is not None
    assert place.births is not None

    def read(of: SealPlace) -> list[str]:
        storage = Noting("memory://checkpoint", Bucket.copied(tree.checkpoint))
        with_births(None, storage, of, checkpoint.shards)
        return storage.read

    assert sorted(read(place)) == [birth_path(place.births, Rank(rank)) for rank in range(2)]
    assert read(replace(place, births=None)) == []
    shutil.rmtree(tree.checkpoint / BIRTH_FOLDER)
    assert read(place) == []


def test_a_flipped_byte_is_found_by_the_certificate_alone(tmp_path: Path) -> None:
    tree = born(tmp_path)
    flip(tree, 1, 30)
    word, (finding,) = verified(tree)
    assert (word, finding.code, finding.path) == (
        VerdictWord.DAMAGED,
        Code.CHECKSUM_MISMATCH,
        tree.shard(1, 30, 2).removeprefix("checkpoint/"),
    )
    assert verified(tree, name="20_2") == (VerdictWord.VERIFIED, [])


def test_a_rank_whose_folder_is_gone_is_missed_by_the_certificates(tmp_path: Path) -> None:
    tree = born(tmp_path)
    for epoch in (10, 20, 30):
        (tree.output / tree.shard(1, epoch, 2)).unlink()
    shutil.rmtree(tree.checkpoint / "rank_1")
    _, findings = verified(tree, Level.STRUCTURE)
    assert {finding.code for finding in findings} == {Code.RANK_MISSING}


def test_a_torn_certificate_verifies_nothing_and_is_said(tmp_path: Path) -> None:
    tree = born(tmp_path)
    path = tree.checkpoint / birth_path(births_begin(PREFIX, "30_2"), Rank(0))
    path.write_bytes(path.read_bytes()[:-7])
    word, (finding,) = verified(tree)
    assert (word, finding.code) == (VerdictWord.UNREADABLE, Code.MANIFEST_UNREADABLE)
    assert verified(tree, Level.STRUCTURE)[0] is VerdictWord.STRUCT_OK
    refused = sealed(tree)
    assert (refused.manifest, [finding.code for finding in refused.findings]) == (None, [Code.MANIFEST_UNREADABLE])
    assert sealed(tree, reseal=True).written
    assert verified(tree) == (VerdictWord.VERIFIED, [])


def test_a_seal_takes_the_certificates_over_and_then_stands_alone(tmp_path: Path) -> None:
    tree = born(tmp_path)
    sealing = sealed(tree)
    assert (sealing.written, sealing.findings) == (True, ())
    shutil.rmtree(tree.checkpoint / ".ckpttool/birth")
    assert verified(tree) == (VerdictWord.VERIFIED, [])
    assert not sealed(tree).written


def test_a_seal_blesses_nothing_that_differs_from_a_certificate(tmp_path: Path) -> None:
    tree = born(tmp_path)
    for rank in (0, 1):  # alike, so that copies agree and the certificates alone speak
        flip(tree, rank, 30)
    sealing = sealed(tree)
    assert {(each.code, each.severity) for each in sealing.findings} == {(Code.CHECKSUM_MISMATCH, Severity.DAMAGE)}
    assert verified(tree)[0] is VerdictWord.DAMAGED
    sealed(tree, reseal=True)
    assert verified(tree) == (VerdictWord.VERIFIED, [])


def test_certificates_of_another_format_of_the_same_save_are_not_its_own(tmp_path: Path) -> None:
    tree = born(tmp_path)
    for rank in (0, 1):
        (tree.output / tree.shard(rank, 30, 2)).unlink()
    tree.legacy(ranks=2, fmt="ckpt").save(epoch=30, step=2)
    assert verified(tree) == (VerdictWord.STRUCT_OK, [])


@pytest.mark.parametrize("is_sealed", [False, True])
def test_certificates_go_to_the_trash_with_their_save_and_come_back(is_sealed: bool, tmp_path: Path) -> None:
    tree = born(tmp_path)
    if is_sealed:
        seal(tree)
    before = files(tree)
    assert pruned(tree, trash_days=7).applied
    left = {path.name for path in (tree.checkpoint / ".ckpttool/birth").iterdir()}
    assert left == {f"{PREFIX}-30_2.r{rank}.json" for rank in (0, 1)}
    question = TreeQuestion(path=str(tree.checkpoint))
    content = ckpttool.library.trash(question).content
    assert {save.name for save in content} == {"10_2", "20_2"}
    for save in content:
        ckpttool.library.restore(question, save.name)
    after = files(tree)
    assert {path: after.get(path) for path in before if not path.endswith("meta.json")} == {
        path: content for path, content in before.items() if not path.endswith("meta.json")
    }
    assert list((tree.checkpoint / ".ckpttool/trash").iterdir()) == []
