"""Remedies name `repair shards` only where another rank's shard may be a copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.finding import Finding, Severity
from ckpttool.core.domain.progress import newest_first
from tests.conftest import FIXTURES
from tests.support.commands import ask


def damage(tree: Path, name: str) -> list[Finding]:
    """Return the damage that a scan and a check of the headers find in a checkpoint."""
    (checkpoint,) = (each for each in ckpttool.scan(str(tree)).inventory.checkpoints if each.name == name)
    (verdict,) = ckpttool.verify(str(tree), checkpoint=name).verdicts
    findings = (*checkpoint.findings, *verdict.findings)
    return [finding for finding in findings if finding.severity is Severity.DAMAGE]


def cut(shard: Path) -> None:
    shard.write_bytes(shard.read_bytes()[:-8])


def copied(fixture: str, place: Path) -> Path:
    return Path(shutil.copytree(FIXTURES / fixture, place / "tree"))


@pytest.mark.parametrize("is_missing", [False, True])
def test_a_shard_that_may_have_a_copy_is_looked_for_on_the_other_ranks(is_missing: bool, tmp_path: Path) -> None:
    tree = copied("newfmt_4rank/output/checkpoint", tmp_path)
    (shard,) = (tree / "iteration_00000030").glob("*-model-0000001-*")
    if is_missing:
        shard.unlink()
    else:
        cut(shard)
    command = f"ckpttool repair shards {tree} --checkpoint iteration_00000030"
    findings = damage(tree, "iteration_00000030")
    assert findings
    for finding in findings:
        assert (finding.remedy or "").endswith(f"; to see whether another rank has a proven copy: {command}")
    assert damage(tree, "iteration_00000020") == []
    assert ask(*command.split()[1:], "--grace", "0").code == 0  # it can be pasted


@pytest.mark.parametrize("fixture", ["newfmt_1rank/output/checkpoint", "layouts/dcp_fsdp2_4ranks"])
def test_no_repair_is_promised_where_no_rank_can_have_a_copy(fixture: str, tmp_path: Path) -> None:
    tree = copied(fixture, tmp_path)
    newest = newest_first(ckpttool.scan(str(tree)).inventory.checkpoints)[0]
    cut(tree / newest.shards[0].path)
    findings = damage(tree, newest.name)
    assert findings
    assert not [finding for finding in findings if "repair shards" in (finding.remedy or "")]


def test_each_skipped_checkpoint_shows_its_remedy_even_if_all_have_the_same(tmp_path: Path) -> None:
    tree = copied("layouts/dcp_fsdp2_4ranks", tmp_path)
    newest = newest_first(ckpttool.scan(str(tree)).inventory.checkpoints)[:2]
    for checkpoint in newest:
        cut(tree / checkpoint.shards[0].path)
    rejections = ask("resolve", str(tree)).stdout.partition("Not chosen:")[2]
    assert rejections.count("shard-truncated") >= len(newest)
    assert rejections.count("      try: if this file is a copy") == len(newest)
