"""`ckpttool diff`: what a user sees of two files, two checkpoints of a tree, and two trees."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_torch

from tests.conftest import FIXTURES, Golden
from tests.support.commands import ask
from tests.support.situations import real

Array = np.ndarray[Any, Any]

FORMS = {"table": "txt", "json": "json"}
QUESTIONS = {
    "two-checkpoints": ["10_2", "20_2", "--tree", "fixtures/sink2_ckpt/output", "--level", "numerics"],
    "structure": ["10_2", "20_2", "--tree", "fixtures/sink2_ckpt/output"],
    "two-files": ["fixtures/crc/tensors.ckpt", "fixtures/crc/split.ckpt", "--level", "numerics"],
    "two-formats": ["fixtures/crc/with_scalars.ckpt", "fixtures/crc/with_scalars.safetensors", "--level", "checksum"],
    "two-trees": ["fixtures/newfmt_1rank/output", "fixtures/newfmt_4rank/output", "--level", "numerics"],
    "two-roles": ["iteration_00000020", "iteration_00000030", "--tree", "fixtures/newfmt_tp2dp2/output", "--level",
                  "numerics", "--limit", "3"],
    "torch": ["fixtures/torch/adamw.pt", "fixtures/torch/checkpoint_700.pt", "--level", "numerics"],
}  # fmt: skip


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.usefixtures("beside_fixtures")
def test_the_answer_is_the_golden_one(name: str, form: str, golden: Golden) -> None:
    said = ask("diff", *QUESTIONS[name], "--format", form)
    assert said.code == 0
    golden(f"diff/{name}.{FORMS[form]}", said.stdout)
    if form == "json":
        assert said.json["schema"] == "ckpttool/difference/1"


def saved(here: Path, name: str, **tensors: Array) -> str:
    save_file(tensors, here / f"{name}.safetensors")
    return f"{name}.safetensors"


def changes(*words: str) -> dict[str, Any]:
    """The tensors that differ, by name, in the order in which they are told."""
    rows = ask("diff", *words, "--format", "json").json["tensors"]
    return {row["name"]: row for row in rows}


def test_a_tensor_that_moved_a_hundred_times_as_far_as_the_others_stands_first(here: Path) -> None:
    chance = np.random.default_rng(1)
    before = {f"layers.{at}.w": chance.normal(size=64).astype(np.float32) for at in range(20)}
    after = {name: (old * 1.001).astype(np.float32) for name, old in before.items()}
    after["layers.13.w"] = (before["layers.13.w"] * 1.1).astype(np.float32)
    after["layers.7.w"] = before["layers.7.w"]
    a, b = saved(here, "a", **before), saved(here, "b", **after)
    found = changes(a, b, "--level", "numerics")
    assert next(iter(found)) == "layers.13.w"
    assert found["layers.13.w"]["movement"]["times_median"] == pytest.approx(100, rel=1e-3)
    assert "layers.7.w" not in found
    said = ask("diff", a, b, "--level", "numerics").stdout
    assert "weights: 19 moved (relative L2 0.001 in the median), 1 bit-equal" in said


def test_a_copy_of_another_type_is_compared_by_its_values(here: Path) -> None:
    old = torch.linspace(-3, 3, 1000)
    save_torch({"w": old}, here / "a.safetensors")
    for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float64, torch.int32):
        save_torch({"w": old.to(dtype)}, here / "b.safetensors")
        change = changes("a.safetensors", "b.safetensors", "--level", "numerics")["w"]
        assert "dtype" in change["what"]
        gone = torch.linalg.norm(old.to(dtype).double() - old.double()) / torch.linalg.norm(old.double())
        assert change["movement"]["relative_l2"] == pytest.approx(float(gone), rel=1e-4, abs=1e-12)


def test_what_came_from_zero_and_what_became_nan_is_said(here: Path) -> None:
    zero, one = np.zeros(4, np.float32), np.ones(4, np.float32)
    sick = np.array([1, np.nan, np.inf, 1], np.float32)
    a = saved(here, "a", from_zero=zero, sick=one, cured=sick, w=one)
    b = saved(here, "b", from_zero=one, sick=sick, cured=one, w=one * 2)
    found = changes(a, b, "--level", "numerics")
    assert list(found) == ["sick", "from_zero", "w", "cured"]
    assert (found["sick"]["movement"]["nonfinite_before"], found["sick"]["movement"]["nonfinite_after"]) == (0, 2)
    assert (found["from_zero"]["movement"]["relative_l2"], found["from_zero"]["movement"]["cosine"]) == (None, None)
    said = ask("diff", a, b, "--level", "numerics").stdout
    assert "NaN or infinite: 0 → 2" in said
    assert "2 tensors with NaN or infinity: distances leave those elements out\n" in said
    assert "from 0" in said


def test_added_gone_and_reshaped_tensors_are_told_before_all_others(here: Path) -> None:
    one = np.ones((2, 3), np.float32)
    a = saved(here, "a", gone=one, shape=one, dtype=one, values=one, same=one)
    b = saved(here, "b", added=one, shape=one.T.copy(), dtype=one.astype(np.float16), values=one * 2, same=one)
    said = ask("diff", a, b, "--level", "numerics")
    assert said.code == 0
    assert list(changes(a, b, "--level", "numerics")) == ["gone", "added", "dtype", "shape", "values"]
    for words in ("removed F32 2×3", "added F32 2×3", "F32 2×3 → F16 2×3", "F32 2×3 → F32 3×2"):
        assert words in said.stdout
    assert "6 tensors: 1 removed, 1 added, 1 with another dtype, 1 with another shape, 1 moved" in " ".join(
        said.stdout.split()
    )
    assert list(changes(a, b)) == ["gone", "added", "dtype", "shape"]


def test_a_value_that_differs_is_an_exit_code_without_a_word_of_levels(here: Path) -> None:
    a, b = saved(here, "a", w=np.ones(4)), saved(here, "b", w=np.zeros(4))
    assert ask("diff", a, b, "--exit-code").code == 10
    assert ask("diff", a, a, "--exit-code").code == 0
    headers = ask("diff", a, b, "--exit-code", "--level", "structure")
    assert headers.code == 0
    assert headers.stdout.startswith("the one tensor is the same, in type and shape; values were not compared")


def test_of_a_tree_the_newest_whole_checkpoint_is_compared_not_a_damaged_one(here: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(FIXTURES / "sink2_ckpt" / "output", here / name)
    assert ask("diff", "a", "b", "--json").json["a"]["checkpoint"] == "_1-30_2"
    shard = here / "a" / "checkpoint" / "rank_2" / "llama2_7b_rank_2_1-30_2.ckpt"
    shard.write_bytes(shard.read_bytes()[:1000])
    assert ask("diff", "a", "b", "--json").json["a"]["checkpoint"] == "_1-25_2"


def test_a_difference_is_an_exit_code_only_where_that_is_asked_for(here: Path) -> None:
    one = np.ones(3, np.float32)
    a, b = saved(here, "a", w=one, step=np.array(1)), saved(here, "b", w=one * 2, step=np.array(2))
    numerics = ("--level", "numerics", "--exit-code")
    assert ask("diff", a, b, *numerics).code == 10
    assert ask("diff", a, b, *numerics[:2]).code == 0
    assert ask("diff", a, a, *numerics).code == 0
    assert ask("diff", a, b, "--exit-code", "--level", "structure").code == 0  # a scalar alone
    assert "step  1 → 2" in ask("diff", a, b).stdout
    assert "more" not in ask("diff", a, b, "--all").stdout


def test_a_damaged_side_is_told_with_its_place_and_compared_as_far_as_it_goes(here: Path) -> None:
    tree = real(here, "sink2_ckpt")
    real(here / "other", "sink2_ckpt")
    shard = tree / "rank_1" / "llama2_7b_rank_1-15_2.ckpt"
    shard.write_bytes(shard.read_bytes()[:1000])
    said = ask("diff", "output:15_2", "other/output:15_2", "--level", "numerics")
    assert said.code == 10
    assert "output/checkpoint/rank_1/llama2_7b_rank_1-15_2.ckpt: The file ends at" in " ".join(said.stdout.split())
    gone = changes("output:15_2", "other/output:15_2", "--level", "numerics")
    assert {row["what"][0] for row in gone.values()} == {"ranks"}
    assert ask("diff", "other/output:15_2", "output:15_2", "--level", "numerics").code == 10


def test_a_file_of_several_is_not_compared_with_a_checkpoint(beside_fixtures: Path) -> None:
    tree = real(beside_fixtures, "sink2_ckpt")
    said = ask("diff", str(tree / "rank_0" / "llama2_7b_rank_0-15_2.ckpt"), "output:15_2")
    assert (said.code, said.stdout) == (2, "")
    assert "give two files or two checkpoints" in said.stderr
    assert ask("diff", "fixtures/torch/adamw.pt", "fixtures/torch/adamw.pt", "--tensor", "x").code == 2


def test_a_tensor_that_lies_in_another_part_of_a_merged_checkpoint_is_found(here: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(FIXTURES / "unified" / "merged", here / name / "unified_checkpoint")
    folder = here / "b" / "unified_checkpoint"
    tensors = load_file(folder / "part0.safetensors")
    first, *rest = sorted(tensors)
    save_file({first: tensors[first] * 2}, folder / "part1.safetensors", metadata={"format": "ms"})
    save_file({name: tensors[name] for name in rest}, folder / "part0.safetensors", metadata={"format": "ms"})
    for words in (("a/unified_checkpoint", "b/unified_checkpoint"), ("b/unified_checkpoint", "a/unified_checkpoint")):
        found = changes(*words, "--level", "numerics")
        assert list(found) == [first]
        assert found[first]["movement"]["cosine"] == pytest.approx(1)


def test_tensors_without_elements_are_the_same_and_scattered_ones_are_not_compared(here: Path) -> None:
    none = torch.zeros(0, 3)
    torch.save({"none": none, "w": torch.arange(8.0)[::2], "c": torch.ones(2, dtype=torch.complex64)}, here / "a.pt")
    torch.save(
        {"none": none, "w": torch.arange(8.0)[::2], "c": torch.ones(2, dtype=torch.complex64) * 2}, here / "b.pt"
    )
    said = ask("diff", "a.pt", "b.pt", "--level", "numerics")
    assert "1 tensor could not be compared" in said.stdout
    assert list(changes("a.pt", "b.pt", "--level", "numerics")) == ["c"]
    assert "other bits" in said.stdout


def test_ranks_that_one_side_lacks_are_named_and_nothing_is_called_the_same(here: Path) -> None:
    tree = real(here, "sink2_ckpt")
    shutil.copytree(tree, here / "half")
    for rank in (2, 3):
        shutil.rmtree(here / "half" / f"rank_{rank}")
    for sides in (("output:20_2", "half:20_2"), ("half:20_2", "output:20_2")):
        said = ask("diff", *sides, "--level", "checksum", "--exit-code")
        assert said.code == 14
        assert said.stdout.startswith("0 tensors compared, none differs; 9 not compared, or not on every rank\n")
        assert f"ranks 2-3 in {'A' if sides[0].startswith('output') else 'B'} only" in said.stdout
        assert "the same" not in said.stdout
    assert ask("diff", "half:20_2", "half:20_2", "--level", "checksum", "--exit-code").code == 0


def test_names_cannot_act_on_a_terminal(here: Path) -> None:
    a = saved(here, "a", **{"x\x1b[31m\n\u202ey": np.ones(2, np.float32)})
    said = ask("diff", a, saved(here, "b", **{"x\x1b[31m\n\u202ey": np.zeros(2, np.float32)}), "--level", "numerics")
    assert "x\\x1b[31m\\x0a\\u202ey" in said.stdout
    assert "\x1b" not in said.stdout
