"""Saves of Lightning's DeepSpeed strategies: folders with DeepSpeed's tag in them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ckpttool.core.errors import ExitCode
from tests.support.commands import ask
from tests.support.trainer_trees import lay_deepspeed_saves

NEWEST = "epoch=0-step=6.ckpt"


@pytest.fixture
def saves(tmp_path: Path) -> Path:
    return lay_deepspeed_saves(tmp_path)


def codes(saves: Path, *options: str) -> set[str]:
    answer = ask("scan", str(saves), "--json", *options).json
    return {finding["code"] for save in answer["checkpoints"] for finding in save["findings"]}


def test_the_newest_save_is_loaded_by_its_folder(saves: Path) -> None:
    said = ask("resolve", str(saves), "--json")
    assert (said.code, said.json["resume"]["step"], said.json["resume"]["name"]) == (ExitCode.OK, 6, NEWEST)
    assert said.json["resume"]["world_size"] == 2
    assert said.json["load"]["path"].endswith(NEWEST)


def test_a_record_that_names_another_tag_is_damage(saves: Path) -> None:
    (saves / NEWEST / "latest").write_text("global_step6")
    said = ask("resolve", str(saves), "--json")
    assert said.json["resume"]["step"] == 3
    assert "metadata-incomplete" in codes(saves)


def test_a_model_file_of_another_save_is_found(saves: Path) -> None:
    model = "checkpoint/mp_rank_00_model_states.pt"
    shutil.copyfile(saves / NEWEST / model, saves / "epoch=0-step=3.ckpt" / model)
    assert ask("resolve", str(saves), "--json").json["resume"]["name"] == NEWEST
    assert "step-disagrees" in codes(saves)


def test_a_complete_copy_stands_for_an_incomplete_save(saves: Path) -> None:
    shard = "checkpoint/zero_pp_rank_1_mp_rank_00_optim_states.pt"
    shutil.copytree(saves / NEWEST, saves / "last.ckpt")
    content = (saves / NEWEST / shard).read_bytes()
    (saves / NEWEST / shard).unlink()
    answer = ask("resolve", str(saves), "--simulate", "own", "--json").json
    assert (answer["resume"]["name"], answer["simulation"]["outcome"]) == ("last.ckpt", "loads")
    (saves / "last.ckpt" / shard).unlink()
    (saves / NEWEST / shard).write_bytes(content)
    answer = ask("resolve", str(saves), "--simulate", "own", "--json").json
    assert (answer["resume"]["name"], answer["simulation"]["outcome"]) == (NEWEST, "stops")


def test_a_copy_that_was_not_checked_is_not_said_to_stop(saves: Path) -> None:
    shutil.copytree(saves / NEWEST, saves / "last.ckpt")
    shard = saves / NEWEST / "checkpoint/zero_pp_rank_1_mp_rank_00_optim_states.pt"
    shard.write_bytes(shard.read_bytes()[:-100])
    answer = ask("resolve", str(saves), "--simulate", "own", "--json").json
    assert answer["resume"]["step"] == 3
    assert (answer["simulation"]["would_resume"], answer["simulation"]["outcome"]) == ("last.ckpt", "unknown")
    shutil.rmtree(saves / "last.ckpt")
    (saves / "last.ckpt").symlink_to(NEWEST)
    assert ask("resolve", str(saves), "--simulate", "own", "--json").json["simulation"]["outcome"] == "stops"


def test_other_numbers_of_ranks_are_refused_as_by_deepspeed(saves: Path) -> None:
    assert ask("resolve", str(saves), "--world-size", "2", "-q").code == ExitCode.OK
    refused = ask("resolve", str(saves), "--world-size", "4", "--json")
    assert refused.code != ExitCode.OK
    assert "ZeRO loads its parts" in refused.stdout


def test_scripts_that_deepspeed_adds_are_no_strays(saves: Path) -> None:
    (saves / NEWEST / "zero_to_fp32.py").write_text("# a script")
    assert "stray-file" not in codes(saves)
    (saves / NEWEST / "notes.txt").write_text("x")
    assert "stray-file" in codes(saves)


def test_a_flipped_bit_in_a_rank_file_is_damage(saves: Path) -> None:
    shard = saves / NEWEST / "checkpoint/zero_pp_rank_1_mp_rank_00_optim_states.pt"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    said = ask("verify", str(saves), "--level", "checksum", "--json")
    assert said.code == ExitCode.DAMAGE
    assert "checksum-mismatch" in said.stdout
