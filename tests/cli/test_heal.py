"""What `heal` says, and how it ends."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.running import ask
from tests.cli.test_answers import FORMATS, Golden
from tests.conftest import FIXTURES


def lost(here: Path, name: str) -> None:
    """The documentation's example: the newest save of the run lacks rank 3's shard. Or a lone resume, or slices."""
    fixture = "newfmt_tp2dp2" if name == "slices" else "sink2_ckpt"
    shutil.copytree(FIXTURES / fixture / "output", here / "output")
    tree = here / "output" / "checkpoint"
    if name == "slices":
        for rank in (1, 3):
            (tree / f"iteration_00000030/llama2_7b-model-{rank:07}-0000004.safetensors").unlink()
        (tree / "iteration_00000030/llama2_7b-opt-0000000-0000004.safetensors").write_bytes(b"")
        return
    if name == "proven":
        for later in tree.glob("rank_*/*_rank_?_1-*.ckpt"):
            later.unlink()
    if name == "too-few":
        for earlier in tree.glob("rank_*/*_rank_?-*.ckpt"):
            earlier.unlink()
    max((tree / "rank_3").glob("*_2.ckpt")).unlink()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("name", "code"), [("proven", 0), ("too-few", 11), ("slices", 11)])
def test_the_answer_is_the_golden_one(name: str, code: int, form: str, here: Path, golden: Golden) -> None:
    lost(here, name)
    said = ask("heal", "--grace", "0", "--format", form, "-q")
    assert said.code == code
    golden(f"heal/{name}.{FORMATS[form]}", said.stdout)


def test_with_apply_it_is_done_and_there_is_nothing_left(here: Path, golden: Golden) -> None:
    lost(here, "proven")
    said = ask("heal", "--grace", "0", "--apply", "-q")
    assert said.code == 0
    golden("heal/applied.txt", said.stdout)
    assert ask("heal", "-q").stdout == "20_2: no shard is missing or damaged\noutput/checkpoint\n"


def test_while_a_file_is_young_nothing_is_changed(here: Path) -> None:
    lost(here, "proven")
    (here / "output/checkpoint/rank_0/llama2_7b_rank_0-20_2.ckpt").touch()
    said = ask("heal", "--apply", "-q")
    assert said.code == 14
    assert said.stdout.startswith("Refused: 20_2 has a proven copy of 1 of 1 shard, and nothing was changed")
    assert not (here / "output/checkpoint/rank_3/llama2_7b_rank_3-20_2.ckpt").exists()
