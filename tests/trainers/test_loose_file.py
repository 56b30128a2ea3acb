"""A file that stands in no tree is looked at alone, and never resumed from."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ckpttool.core.domain.shard import FormatName
from ckpttool.core.errors import CkptToolError, ExitCode, UnknownLayoutError
from ckpttool.trainers.common import LOOSE_FILE_LAYOUT
from tests.support.answers import FIXTURES, cli, plan, scanned
from tests.support.trainer_trees import LAYOUTS, flip

REAL = FIXTURES / "sink2_ckpt/output/checkpoint/rank_0/llama2_7b_rank_0-20_2.ckpt"
REAL_SAFETENSORS = FIXTURES / "sink2_safetensors/output/checkpoint/rank_0/llama2_7b_rank_0-20_2.safetensors"


@pytest.mark.parametrize(
    ("source", "name", "fmt"),
    [
        (REAL, "model.ckpt", FormatName.MINDSPORE_CKPT),
        (REAL_SAFETENSORS, "model.safetensors", FormatName.SAFETENSORS),
        (REAL_SAFETENSORS, "model.ckpt", FormatName.SAFETENSORS),
        (REAL, "model.pt", FormatName.MINDSPORE_CKPT),
    ],
)
def test_its_content_tells_the_format_and_the_step(tmp_path: Path, source: Path, name: str, fmt: FormatName) -> None:
    shutil.copy(source, tmp_path / name)
    inventory = scanned(tmp_path / name)
    (found,) = inventory.checkpoints
    assert (inventory.layout, found.name, found.step, found.format) == (LOOSE_FILE_LAYOUT, name, 40, fmt)
    assert found.nbytes == source.stat().st_size


@pytest.mark.parametrize(
    ("name", "content", "fmt"),
    [
        ("a.pt", b"PK\x03\x04" + bytes(60), FormatName.TORCH_ZIP),
        ("a.ckpt", b"PK\x03\x04" + bytes(60), FormatName.TORCH_ZIP),
        ("a.metadata", b"\x80\x04}.", FormatName.TORCH_PICKLE),
        ("a.metadata", b"", FormatName.TORCH_PICKLE),
        ("a.ckpt", b"", FormatName.MINDSPORE_CKPT),
        ("a.safetensors", bytes(100), FormatName.SAFETENSORS),
    ],
)
def test_a_step_that_nothing_tells_is_unknown(tmp_path: Path, name: str, content: bytes, fmt: FormatName) -> None:
    (tmp_path / name).write_bytes(content)
    (found,) = scanned(tmp_path / name).checkpoints
    assert (found.step, found.step_source, found.format) == (None, "unknown", fmt)


@pytest.mark.parametrize("name", ["notes.txt", "ckpt", "model.ckpt.bak"])
def test_a_file_of_another_kind_is_none(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("x")
    with pytest.raises(UnknownLayoutError, match=name):
        scanned(tmp_path / name)


@pytest.fixture
def pretrained(tmp_path: Path) -> Path:
    """A model in four parts, without anything of a training."""
    save = LAYOUTS / "hf_sharded_index/checkpoint-3"
    folder = tmp_path / "pretrained"
    folder.mkdir()
    for file in (*save.glob("model*"), *save.glob("*config.json")):
        shutil.copy(file, folder)
    return folder


class TestModelFolder:
    """What `save_pretrained` leaves is checked and sealed as one; no training goes on from it."""

    def test_its_weights_are_one_checkpoint_and_whole(self, pretrained: Path) -> None:
        inventory = scanned(pretrained)
        (found,) = inventory.checkpoints
        assert (inventory.layout, found.name, len(found.shards)) == (LOOSE_FILE_LAYOUT, "model.safetensors", 4)
        said = cli("verify", str(pretrained))
        assert (said.exit_code, "the weights of a model" in said.stderr) == (ExitCode.OK, True)
        with pytest.raises(CkptToolError, match="pretrained"):
            plan(pretrained)

    def test_a_part_that_is_not_there_is_missing(self, pretrained: Path) -> None:
        (pretrained / "model-00003-of-00004.safetensors").unlink()
        said = cli("verify", str(pretrained))
        assert said.exit_code == ExitCode.DAMAGE
        assert "shard-missing model-00003-of-00004.safetensors" in said.stdout

    def test_its_seal_holds(self, pretrained: Path) -> None:
        assert cli("seal", str(pretrained)).exit_code == ExitCode.OK
        flip(pretrained / "model-00002-of-00004.safetensors")
        said = cli("verify", str(pretrained), "--level", "checksum")
        assert said.exit_code == ExitCode.DAMAGE
        assert "checksum-mismatch model-00002-of-00004.safetensors" in said.stdout
