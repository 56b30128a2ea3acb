"""What torch wrote is looked at tensor by tensor: a CRC32 names the tensor, and NaN is seen."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest

import ckpttool
from ckpttool.core.domain.finding import Code, Finding
from ckpttool.core.domain.verdict import Level, ShardReport
from ckpttool.types import CheckQuestion, TreeQuestion
from tests.support.trainer_trees import LAYOUTS
from tests.support.verifying import flip

SAVE = LAYOUTS / "dcp_fsdp2_4ranks" / "step_000015"
FLIPPED = 9038
"""A byte of a tensor in `__3_0.distcp`."""


def looked(path: Path, level: Level = Level.NUMERICS) -> list[ShardReport]:
    """Reports on the one save that a path means."""
    tree = ckpttool.scan(TreeQuestion(path=str(path), sizes=True))
    return [event for event in ckpttool.verify(tree, CheckQuestion(level=level)) if isinstance(event, ShardReport)]


def findings(path: Path, level: Level = Level.NUMERICS) -> list[Finding]:
    return [finding for report in looked(path, level) for finding in report.findings]


@pytest.fixture
def save(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SAVE, tmp_path / "saves" / "step_000015"))


def saved(tmp_path: Path, what: Any) -> Path:  # noqa: ANN401  whatever torch takes
    import torch

    torch.save(what, tmp_path / "model.pt")
    return tmp_path / "model.pt"


@pytest.mark.parametrize("level", [Level.CHECKSUM, Level.NUMERICS])
def test_a_flipped_bit_is_told_with_the_tensor_that_it_lies_in(save: Path, level: Level) -> None:
    assert findings(save, level) == []
    flip(save / "__3_0.distcp", FLIPPED, 64)
    (found,) = findings(save, level)
    assert (found.code, found.tensor) == (Code.CHECKSUM_MISMATCH, "app.model.0.weight (part 4 of 4)")
    assert "the slice at byte 7566" in found.message


def test_a_lone_file_without_its_record_is_told_by_the_place_alone(tmp_path: Path) -> None:
    file = Path(shutil.copy(SAVE / "__3_0.distcp", tmp_path / "part.distcp"))
    assert findings(file) == []
    flip(file, FLIPPED, 64)
    (found,) = findings(file)
    assert (found.code, found.tensor) == (Code.CHECKSUM_MISMATCH, None)
    assert "the slice at byte 7566" in found.message


def test_every_floating_point_tensor_of_a_chain_is_counted_under_its_name(save: Path) -> None:
    reports = looked(save)
    stats = {stat.name: stat for report in reports for stat in report.stats}
    assert {f"app.model.0.weight (part {number} of 4)" for number in range(1, 5)} <= stats.keys()
    assert all(stat.finite for stat in stats.values())
    assert all(report.checksum_matched for report in reports)


@pytest.mark.parametrize("sick", [math.nan, math.inf])
def test_a_number_that_is_none_is_seen_in_a_torch_file(tmp_path: Path, sick: float) -> None:
    import torch

    assert findings(saved(tmp_path, {"model": {"w": torch.ones(8)}, "step": 3})) == []
    (found,) = findings(saved(tmp_path, {"model": {"w": torch.tensor([1.0, sick])}, "step": 3}))
    assert (found.code, found.tensor) == (Code.NONFINITE_VALUES, "model.w")


def test_what_cannot_be_looked_at_is_counted_and_its_bytes_are_compared_all_the_same(tmp_path: Path) -> None:
    import torch

    whole = torch.ones(8, 8)
    file = saved(tmp_path, {"all": torch.ones(4), "part": whole[:4], "other": whole.t()})
    (report,) = looked(file)
    (found,) = report.findings
    assert (found.code, found.actual) == (Code.UNSUPPORTED_FORMAT, "2 tensors that are not")
    assert report.checksum_matched
    assert [stat.name for stat in report.stats] == ["all"]


def test_one_tensor_under_two_names_is_looked_at_once(tmp_path: Path) -> None:
    import torch

    shared = torch.ones(4)
    (report,) = looked(saved(tmp_path, {"embedding": shared, "head": shared}))
    assert (report.findings, [stat.name for stat in report.stats]) == ((), ["embedding"])


def test_what_holds_no_tensor_is_looked_at_all_the_same(tmp_path: Path) -> None:
    (report,) = looked(saved(tmp_path, {"step": 7}))
    assert (report.findings, len(report.stats)) == ((), 0)
