"""A tree of torch.distributed.checkpoint saves: whatever they are called, with what the application put in."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from ckpttool.core.domain.checkpoint import Content
from ckpttool.core.domain.finding import Code
from tests.support.answers import FIXTURES, refusal, scanned, why_not
from tests.support.commands import ask
from tests.support.trainer_trees import healthy
from tests.trainers.test_locate import deny


def test_a_name_tells_the_step_only_behind_a_word_that_counts_steps(tmp_path: Path) -> None:
    weights = Path(healthy("titan_last_model_only", tmp_path)) / "checkpoint" / "step-7"
    for name in ("best_12", "step_9", "step_11", "final"):
        shutil.copytree(weights, tmp_path / "saves" / name)
    saves = {save.name: (save.step, save.step_source.value) for save in scanned(tmp_path / "saves").checkpoints}
    unknown = (None, "unknown")
    assert saves == {"best_12": unknown, "final": unknown, "step_9": (9, "name"), "step_11": (11, "name")}
    assert {save.content for save in scanned(tmp_path / "saves").checkpoints} == {Content.UNKNOWN}


def test_tensors_in_the_form_of_safetensors_are_not_read_and_not_called_cut_off(tmp_path: Path) -> None:
    root = Path(shutil.copytree(FIXTURES / "torch" / "dcp_safetensors", tmp_path / "run"))
    answer = refusal(root)
    assert [(name, found) for name, found in why_not(answer)] == [("step_5", {Code.UNSUPPORTED_FORMAT})]
    assert not answer.is_sure
    (root / "step_5" / "__0_0.distcp").unlink()
    assert why_not(refusal(root)) == [("step_5", {Code.UNSUPPORTED_FORMAT, Code.SHARD_MISSING})]


def test_a_save_with_a_cut_file_is_marked_although_its_files_belong_to_all_ranks(tmp_path: Path) -> None:
    root = Path(healthy("dcp_fsdp2_4ranks", tmp_path))
    assert "all !" not in ask("scan", str(root)).stdout
    shard = root / "step_000015" / "__2_0.distcp"
    shard.write_bytes(shard.read_bytes()[:20_000])
    (row,) = [line for line in ask("scan", str(root)).stdout.splitlines() if line.startswith("step_000015 ")]
    assert "all !" in row


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_folder_that_cannot_be_listed_may_be_the_newest_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_closed: bool
) -> None:
    tree = healthy("dcp_plain_2ranks", tmp_path)
    if is_closed:
        deny(monkeypatch, f"{tree}/8", errno.EACCES)
    said = ask("resolve", str(tree)).stdout
    assert ("No newer checkpoint was skipped." in said) != is_closed
    assert ("8 cannot be read." in said) == is_closed
