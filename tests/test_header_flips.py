"""A flipped bit in the header of one save: what the others of its tree prove is not lost with it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ckpttool.core.errors import ExitCode
from tests.support.answers import FIXTURES
from tests.support.commands import ask
from tests.support.trainer_trees import LAYOUTS, layout_of_tree, truths
from tests.support.trees import TreeBuilder

NONE_TO_RESUME = {"composer_weights", "hf_only_model", "titan_last_model_only", "loose_models", "mcore_integrity"}
"""Without two saves that a training can be resumed from."""

TREES = sorted(set(truths()) - NONE_TO_RESUME)
FLIPS = 2
"""For each file of the older save; a night tries more of them in `reliability`."""


def saves_of(root: Path) -> tuple[Path, list[dict[str, Any]]]:
    document = json.loads(ask("scan", str(root), "--json").stdout)
    return Path(document["root"]), sorted(document["checkpoints"], key=lambda save: save["step"])


def remove(base: Path, save: dict[str, Any]) -> None:
    if (base / save["name"]).is_dir():
        shutil.rmtree(base / save["name"])
    for shard in save["shards"]:
        (base / shard["path"]).unlink(missing_ok=True)


def in_header(content: bytes, random: Random) -> bytes:
    """Flip a bit of a safetensors header, or of what other formats have at their beginning or end."""
    at = random.choice([random.randrange(min(len(content), 4000)), -1 - random.randrange(min(len(content), 1500))])
    if content[8:9] == b"{":
        at = 8 + random.randrange(int.from_bytes(content[:8], "little"))
    return content[:at] + bytes([content[at] ^ 1 << random.randrange(7)]) + content[at:][1:]


def chosen(root: Path) -> tuple[ExitCode, str | None]:
    said = ask("resolve", str(root), "--json")
    resume = json.loads(said.stdout)["resume"]
    return ExitCode(said.code), None if resume is None else resume["name"]


@pytest.mark.sample(5)
@pytest.mark.parametrize("tree", TREES)
def test_a_flipped_header_of_the_older_of_two_saves_never_rules_out_the_newest(tree: str, tmp_path: Path) -> None:
    root = Path(shutil.copytree(LAYOUTS / tree, tmp_path / "run", symlinks=True))
    base, (*others, older, newest) = saves_of(root)
    for save in others:
        remove(base, save)
    assert chosen(root) == (ExitCode.OK, newest["name"])
    random, flipped = Random(tree), []  # noqa: S311  no secret
    for shard in older["shards"]:
        content = (base / shard["path"]).read_bytes()
        for _ in range(FLIPS):
            damaged = in_header(content, random)
            (base / shard["path"]).write_bytes(damaged)
            code, name = chosen(root)
            assert (code, name) in {(ExitCode.OK, newest["name"]), (ExitCode.INCOMPLETE, None)}, damaged[:200]
            flipped.append((shard["path"], damaged, code))
        (base / shard["path"]).write_bytes(content)
    if ask("seal", str(root), "--checkpoint", newest["name"]).code:
        assert layout_of_tree(tree) == "orbax"
        return
    for path, damaged, code in flipped:
        if code:
            (base / path).write_bytes(damaged)
            assert chosen(root) == (ExitCode.OK, newest["name"])
            break


def two_saves(base: Path, ranks: int) -> Path:
    """Two saves of a real training, of which the older one's first rank has a flipped bit in a tensor's name."""
    for rank in range(ranks):
        (base / f"rank_{rank}").mkdir(parents=True)
        for epoch in (15, 20):
            name = f"rank_{rank}/llama2_7b_rank_{rank}-{epoch}_2.safetensors"
            shutil.copy(FIXTURES / "sink2_safetensors/output/checkpoint" / name, base / name)
    older = base / "rank_0/llama2_7b_rank_0-15_2.safetensors"
    older.write_bytes(older.read_bytes().replace(b'"scale_sense"', b'"scale_sensd"'))
    return base


def test_two_saves_of_one_rank_that_contradict_each_other_are_unknown_and_either_can_be_named(tmp_path: Path) -> None:
    root = two_saves(tmp_path / "run", 1)
    said = ask("resolve", str(root))
    assert (said.code, said.stdout.splitlines()[0].split(":")[0]) == (
        ExitCode.INCOMPLETE,
        "Two saves disagree, and it is unknown which one is right",
    )
    assert ask("verify", str(root), "--checkpoint", "all").code == ExitCode.INCOMPLETE
    assert ask("prune", str(root), "--keep-last", "1").code == ExitCode.INCOMPLETE
    named = ask("resolve", str(root), "--checkpoint", "20_2")
    assert (named.code, "note schema-differs" in named.stdout) == (ExitCode.OK, True)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_of_two_saves_of_several_ranks_the_flipped_one_is_damaged_and_the_other_is_taken(
    ranks: int, tmp_path: Path
) -> None:
    root = two_saves(tmp_path / "run", ranks)
    assert chosen(root) == (ExitCode.OK, "20_2")
    told = json.loads(ask("verify", str(root), "--checkpoint", "all", "--json").stdout)["checkpoints"]
    assert {save["name"]: save["verdict"] for save in told} == {"20_2": "struct-ok", "15_2": "damaged"}


def flipped_middle(base: Path) -> Path:
    root = Path(shutil.copytree(LAYOUTS / "hf_single", base / "run"))
    path = root / "checkpoint-8/model.safetensors"
    content = path.read_bytes()
    at = content.index(b'.weight"') + 6
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    return root


def prune(root: Path) -> list[str]:
    assert ask("prune", str(root), "--keep-last", "1", "--grace", "0", "--apply").code == 0
    return sorted(path.name for path in root.glob("checkpoint-*"))


def test_prune_leaves_the_save_without_which_two_others_only_contradict_each_other(tmp_path: Path) -> None:
    root = flipped_middle(tmp_path)
    assert prune(root) == ["checkpoint-12", "checkpoint-4", "checkpoint-8"]
    assert chosen(root) == (ExitCode.OK, "checkpoint-12")


def test_prune_lets_it_go_where_a_seal_proves_what_stays_and_in_a_whole_tree(tmp_path: Path) -> None:
    root = flipped_middle(tmp_path)
    assert ask("seal", str(root)).code == 0
    assert prune(root) == ["checkpoint-12", "checkpoint-8"]
    assert chosen(root) == (ExitCode.OK, "checkpoint-12")
    whole = Path(shutil.copytree(LAYOUTS / "hf_single", tmp_path / "whole"))
    assert prune(whole) == ["checkpoint-12"]


FIRST_START, SECOND_START = ("-1_3", "-2_3"), ("_2-4_3", "_2-4_5")


def of_one_rank(base: Path, damage: dict[str, bytes]) -> Path:
    """Two saves of each of two starts of a real training, one rank's; in some the end of a name is flipped, or cut."""
    (base / "rank_0").mkdir(parents=True)
    for save in (*FIRST_START, *SECOND_START):
        name = f"rank_0/llama2_7b_rank_0{save}.ckpt"
        content = (FIXTURES / "nosink_ckpt/output/checkpoint" / name).read_bytes()
        if save in damage:
            before, word, after = content.partition(damage[save])
            flipped = word[:-1] + bytes([word[-1] ^ 1])
            content = before if word == CUT else before + flipped + after
        (base / name).write_bytes(content)
    return base


CUT, FLIP, OTHER_FLIP, THIRD_FLIP = b"scale_sense", b"adam_m.dense.bias", b"adam_m.model", b"adam_v.dense.bias"


@pytest.mark.parametrize("first", [CUT, THIRD_FLIP])
def test_no_save_of_an_earlier_start_is_taken_that_nothing_bears_out_if_later_ones_contradict_it_and_each_other(
    tmp_path: Path, first: bytes
) -> None:
    root = of_one_rank(tmp_path, {"-1_3": first, "-2_3": FLIP, "_2-4_3": OTHER_FLIP})
    assert chosen(root) == (ExitCode.INCOMPLETE, None)
    assert ask("prune", str(root), "--keep-last", "1").code == ExitCode.INCOMPLETE
    assert ask("seal", str(root), "--checkpoint", "_2-4_5").code == ExitCode.INCOMPLETE


@pytest.mark.parametrize("damaged", [*FIRST_START, "_2-4_3"])
def test_the_newest_of_one_rank_is_taken_if_only_one_older_save_is_damaged(tmp_path: Path, damaged: str) -> None:
    root = of_one_rank(tmp_path, {damaged: FLIP})
    assert chosen(root) == (ExitCode.OK, "_2-4_5")


def test_a_save_of_an_earlier_start_that_alone_is_left_of_it_is_no_worse_for_a_later_start_of_other_tensors(
    tmp_path: Path,
) -> None:
    root = of_one_rank(tmp_path, {"-1_3": CUT, "-2_3": FLIP})
    told = json.loads(ask("verify", str(root), "--checkpoint", "2_3", "--json").stdout)["checkpoints"]
    assert [save["verdict"] for save in told] == ["struct-ok"]
    assert chosen(root) == (ExitCode.OK, "_2-4_5")


SCALAR, NAME, OTHER_NAME, THIRD_NAME = b"loss_scale", b"adam_m.dense.bias", b"adam_m.model", b"dense.bias"


def of_five(base: Path, flipped: dict[int, bytes], *, is_cut: bool = True, run: int = 0) -> Path:
    """Five saves of one rank; the first may be of an earlier start, and the last may have lost its end."""
    tree = TreeBuilder(base).legacy(ranks=1)
    for epoch in (5, 10, 15, 20, 25):
        tree.save(epoch=epoch, step=2, run=run if epoch > 5 else 0, fmt="safetensors")
    for path in base.rglob("*.safetensors"):
        content, epoch = path.read_bytes(), int(path.stem.split("-")[1].split("_")[0])
        if epoch in flipped:
            at = content.index(flipped[epoch]) + 3
            path.write_bytes(content[:at] + bytes([content[at] ^ 2]) + content[at + 1 :])
        elif is_cut and epoch == 25:
            path.write_bytes(content[:-200])
    return base


@pytest.mark.parametrize(
    ("flipped", "answer"),
    [
        ({5: OTHER_NAME, 10: SCALAR, 15: NAME}, (ExitCode.INCOMPLETE, None)),
        ({5: OTHER_NAME, 15: SCALAR, 20: NAME}, (ExitCode.INCOMPLETE, None)),
        ({15: SCALAR, 20: NAME}, (ExitCode.OK, "10_2")),
        ({10: SCALAR, 15: SCALAR}, (ExitCode.OK, "20_2")),
        ({15: SCALAR}, (ExitCode.OK, "20_2")),
    ],
    ids=["a-tie-across-one", "a-tie-beyond-one", "outvoted-from-afar", "borne-out-from-afar", "borne-out"],
)
def test_a_save_between_others_that_are_damaged_is_compared_with_those_that_are_not(
    flipped: dict[int, bytes], answer: tuple[ExitCode, str | None], tmp_path: Path
) -> None:
    assert chosen(of_five(tmp_path, flipped)) == answer


def test_two_saves_that_agree_bear_each_other_out_across_others_that_contradict_each_other(tmp_path: Path) -> None:
    root = of_five(tmp_path, {5: THIRD_NAME, 15: NAME, 20: OTHER_NAME}, is_cut=False, run=1)
    assert chosen(root) == (ExitCode.OK, "_1-25_2")


def test_a_save_of_the_same_start_contradicts_before_one_of_an_earlier_start(tmp_path: Path) -> None:
    root = of_five(tmp_path, {15: SCALAR, 20: SCALAR, 25: NAME}, run=1)
    assert chosen(root) == (ExitCode.OK, "_1-10_2")
