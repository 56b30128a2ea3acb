"""What `heal` says, and how it ends."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import FIXTURES, Golden
from tests.core.commands.test_answers import FORMATS
from tests.support.commands import ask


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
    assert ask("heal", "-q").stdout == "step 40 (20_2): no shard is missing or damaged\noutput/checkpoint\n"


def test_healing_is_the_remedy_of_the_rejection_that_it_would_mend_and_no_note_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tree = Path("output/checkpoint")
    shutil.copytree(FIXTURES / "sink2_ckpt/output", tmp_path / "output")
    for path in (*tree.glob("rank_?/*_rank_?_1-*"), tree / "rank_3/llama2_7b_rank_3-20_2.ckpt"):
        path.unlink()
    command = f"ckpttool repair shards {tree} --checkpoint 20_2 --apply"
    said = ask("resolve", str(tree))
    words = " ".join(said.stdout.split())
    assert words.count("to save 10 steps") == 1
    launch = ask("launch", str(tree), "--config", str(FIXTURES / "configs/pretrain_sink2.yaml"), "--output", "new.yaml")
    assert " ".join(launch.stdout.split()).count("to save 10 steps") == 1
    (rejection,) = (part for part in said.stdout.split("\n\n") if part.startswith("Not chosen:"))
    assert f"to save 10 steps: {command}" in " ".join(rejection.split())
    (rejected,) = json.loads(ask("resolve", str(tree), "--json").stdout)["rejected"]
    assert {reason["remedy"].split("to save 10 steps: ")[1] for reason in rejected["reasons"]} == {command}
    for path in tree.glob("rank_?/*-10_2.ckpt"):
        path.unlink()
    unproven = " ".join(ask("resolve", str(tree)).stdout.split())  # one other save proves no copy
    assert "to see whether another rank has a proven copy: ckpttool repair shards" in unproven
    assert "other ranks have proven copies" not in unproven


@pytest.mark.parametrize(
    "command",
    [
        ("heal", "output"),
        ("repair-meta", "output"),
        ("trash", "empty", "output"),
        ("prune", "output", "--keep-last", "1"),
    ],
)
def test_a_dry_run_can_be_said_and_is_what_happens_without_apply(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(FIXTURES / "sink2_ckpt/output", tmp_path / "output")
    monkeypatch.chdir(tmp_path)
    before = sorted(path for path in tmp_path.rglob("*"))
    plain, said = ask(*command), ask(*command, "--dry-run")
    assert (said.code, said.stdout) == (plain.code, plain.stdout)
    assert sorted(path for path in tmp_path.rglob("*")) == before
    both = ask(*command, "--dry-run", "--apply")
    assert (both.code, both.stderr) == (
        2,
        "ckpttool: error: --dry-run and --apply cannot be used together\n",
    )
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_a_nan_in_a_damaged_shard_is_rebuilt_with_it(tmp_path: Path) -> None:
    tree = tmp_path / "output" / "checkpoint"
    shutil.copytree(FIXTURES / "newfmt_4rank/output", tree.parent)
    (shard,) = (tree / "iteration_00000030").glob("*-model-0000001-*")
    content = bytearray(shard.read_bytes())
    content[-4:] = b"\0\0\xc0\x7f"  # a NaN in float32
    shard.write_bytes(content)
    found = ask("verify", str(tree), "--level", "numerics").stdout
    assert "1 NaN" in found
    healing = ask("repair", "shards", str(tree), "--grace", "0", "--json")
    assert (healing.code, healing.json["lost"]) == (0, [])
    assert "to save 10 steps" in " ".join(ask("resolve", str(tree)).stdout.split())
    assert ask("repair", "shards", str(tree), "--grace", "0", "--tensor", "dense.bias").code != 0


def test_repair_without_a_word_names_the_commands_that_apply_it_and_the_checkpoint_after_them(here: Path) -> None:
    lost(here, "proven")
    said = ask("repair", "output", "-q")
    assert said.code == 0
    assert "\nckpttool repair shards output/checkpoint --checkpoint 20_2 --apply\n" in said.stdout
    assert "\nckpttool repair pointer output/checkpoint --apply\n" in said.stdout
    assert said.stdout.endswith("Repair the shards first; after that, the records should point to 20_2.\n")


@pytest.mark.parametrize("command", ["shards", "pointer"])
def test_the_tree_before_the_word_is_a_wrong_order(command: str, here: Path) -> None:
    lost(here, "proven")
    said = ask("repair", "output", command)
    assert (said.code, said.stdout) == (2, "")
    assert said.stderr == f"ckpttool: error: `{command}` comes first: ckpttool repair {command} output\n"
