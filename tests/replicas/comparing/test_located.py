"""On copies of a real data-parallel tree, without any manifest: what differs is located, to the byte."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.finding import Code, Finding, Severity, blocking
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.manifest import Manifest
from ckpttool.core.domain.verdict import Level
from ckpttool.core.records.manifest import manifest_bytes, read_manifest
from ckpttool.types import TreeQuestion
from tests.replicas.comparing.held import changed
from tests.support.fault_detection import with_crc
from tests.support.trees import TreeBuilder, floats, shard_bytes, training_scalars
from tests.support.verifying import flip, verdicts


@pytest.fixture
def tree(copy_tree: Callable[[str], Path]) -> Path:
    return copy_tree("sink2_ckpt") / "output"


def shard(tree: Path, rank: int, name: str = "20_2") -> Path:
    return tree / "checkpoint" / f"rank_{rank}" / f"llama2_7b_rank_{rank}-{name}.ckpt"


def said(tree: Path, name: str) -> dict[str, tuple[Finding, ...]]:
    return {verdict.name: blocking(verdict.findings) for verdict in verdicts(tree, Level.CHECKSUM, name)}


def test_one_flipped_bit_in_one_rank_s_weight_is_located_and_accuses_no_other_save(tree: Path) -> None:
    flip(shard(tree, 1), 884, 4)
    found = said(tree, "all")
    (finding,) = found.pop("20_2")
    assert (finding.code, finding.severity) == (Code.REPLICA_DIFFERS, Severity.DAMAGE)
    assert (finding.ranks, finding.tensor) == ((1,), "optimizer.adam_m.dense.weight")
    assert "ranks 0, 2-3 in 1 of" in finding.message
    assert "(byte 884, 1 bit in all)" in finding.message
    assert not any(found.values())


def test_of_two_ranks_both_are_doubted(tree: Path) -> None:
    for rank in (2, 3):
        shutil.rmtree(tree / "checkpoint" / f"rank_{rank}")
    flip(shard(tree, 1), 884, 4)
    found = [finding for finding in said(tree, "20_2")["20_2"] if finding.code is Code.REPLICA_DIFFERS]
    assert [(finding.ranks, finding.severity) for finding in found] == [
        ((0,), Severity.SUSPECT),
        ((1,), Severity.SUSPECT),
    ]


def test_a_rank_that_differs_from_a_step_on_drifted(tree: Path) -> None:
    for name in ("15_2", "20_2"):
        flip(shard(tree, 2, name), 884, 4)
    found = said(tree, "all")
    for name in ("15_2", "20_2"):
        assert not found[name] or {finding.ranks for finding in found[name]} == {(2,)}
    assert not found["10_2"]
    assert any(found.values())


def test_a_shard_put_under_another_ranks_name_accuses_no_later_save(tmp_path: Path) -> None:
    # Half of the tensors of these files count steps and such, which all ranks have in common.
    builder = TreeBuilder(tmp_path).legacy(ranks=0, fmt="ckpt")
    for step in (4, 5):
        for rank in range(3):
            held = 1 if (step, rank) == (4, 0) else rank
            weights = [floats(name, [4, 2], seed=step * 10 + held) for name in ("dense.weight", "adam_m.dense.weight")]
            path = builder.shard(rank, step, 1)
            builder.file(path, shard_bytes([*weights, *training_scalars(epoch=step, true_step=step)], "ckpt"))
            builder.meta(rank, step, 1, path.rpartition("/")[2])
    assert said(builder.output, "5_1") == {"5_1": ()}


@pytest.mark.parametrize("name", ["15_2", "all"])
@pytest.mark.parametrize("is_sealed", [False, True])
def test_neither_a_checksum_in_each_file_nor_an_order_to_seal_hides_another_run_s_file(
    tmp_path: Path, name: str, *, is_sealed: bool
) -> None:
    """The file is whole, with a CRC32 of its own that is right; but three copies hold another."""
    tree = TreeBuilder(tmp_path).legacy(ranks=0, fmt="ckpt")

    def save(rank: int, step: int, run: str) -> None:
        weights = [floats(f"layers.{at}.w", [4], seed=sum(f"{run}{at} {step}".encode())) for at in range(9)]
        path = tree.shard(rank, step, 2)
        data = shard_bytes([*weights, *training_scalars(epoch=step, true_step=2 * step)], "ckpt")
        tree.file(path, with_crc(path, data))

    for step in (5, 10, 15):
        for rank in range(4):
            save(rank, step, "this run")
    assert said(tree.output, name)["15_2"] == ()
    save(2, 15, "another")
    if is_sealed:
        assert not any(one.written for one in ckpttool.seal(str(tree.output), checkpoint="15_2").sealings)
    assert {(finding.code, finding.ranks) for finding in said(tree.output, name)["15_2"]} == {
        (Code.REPLICA_STALE, (2,))
    }


@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_manifest_with_a_wrong_digest_accuses_no_shard_that_holds_what_the_others_do(
    tree: Path, *, is_wrong: bool
) -> None:
    scanned = ckpttool.scan(TreeQuestion(path=str(tree), sizes=True))
    (checkpoint,) = (each for each in scanned.inventory.checkpoints if each.name == "20_2")
    assert all(one.written for one in ckpttool.seal(scanned, name="20_2"))
    place = scanned.seal_place(checkpoint)
    assert place is not None
    manifest = read_manifest(scanned.storage, place)
    assert isinstance(manifest, Manifest)
    others = [seal for seal in manifest.shards if "rank_3" not in seal.path]
    if is_wrong:
        others = [
            replace(seal, tensors=changed(seal.tensors, seal.tensors.names[0])) for seal in others if seal.tensors
        ]
    path = tree / "checkpoint" / place.path
    path.write_bytes(manifest_bytes(replace(manifest, shards=tuple(others))))
    assert said(tree, "20_2")["20_2"] == ()
    flip(shard(tree, 3), 884, 4)
    (finding,) = said(tree, "20_2")["20_2"]
    assert (finding.code, finding.ranks) == (Code.REPLICA_DIFFERS, (3,))
