"""The weights of ZeRO saves, as the command writes them: those of DeepSpeed's own converter, or none."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.export.truth import Tensors, exported
from tests.support.commands import ask
from tests.support.torch_rewriting import rewrite
from tests.support.trainer_trees import flip
from tests.support.trees import FIXTURES, writable

EXPORTS = FIXTURES / "export"
SAVES = sorted(path.name for path in EXPORTS.glob("zero*"))
ALIAS = "head.weight"


def truth(save: str) -> Tensors:
    """What the real converter made; shared weights are written once."""
    from safetensors.torch import load_file

    from tests.export.truth import of_tensors

    return of_tensors(load_file(EXPORTS / save / "truth.safetensors"))


def export(tree: Path, out: Path, *options: str) -> tuple[int, Tensors]:
    """Export a tree; nothing may remain of a refused export."""
    said = ask("export", str(tree), "--output", str(out), *options)
    if said.code:
        assert not [path for path in out.parent.iterdir() if path.name.startswith(out.name)]
        return said.code, {}
    return 0, exported(out)


@pytest.mark.parametrize("save", [*SAVES, "accelerate_zero3_2ranks", "lightning_zero3_2ranks"])
def test_the_output_is_that_of_zero_to_fp32(save: str, tmp_path: Path) -> None:
    real = truth(save)
    code, mine = export(EXPORTS / save / "tree", tmp_path / "out")
    real.pop(ALIAS, None)
    assert code == 0
    assert {name: mine[name] for name in real} == real
    assert mine.keys() - real.keys() <= {"frozen.weight", "frozen.bias"}


@pytest.mark.parametrize("save", [save for save in SAVES if not save.startswith("zero1")])
def test_with_all_names_of_shared_weights_nothing_differs(save: str, tmp_path: Path) -> None:
    assert export(EXPORTS / save / "tree", tmp_path / "out", "--keep-tied") == (0, truth(save))


@pytest.fixture
def with_trainer(copy_tree: Callable[[str], Path]) -> Path:
    """A save of Hugging Face's Trainer with a 16-bit model beside DeepSpeed's tag."""
    tree = copy_tree("layouts/hf_single")
    save = tree / "checkpoint-12"
    shutil.copytree(EXPORTS / "zero2_bf16_2ranks/tree/global_step3", save / "global_step12")
    (save / "latest").write_text("global_step12")
    return tree


def test_in_a_save_of_trainer_the_tag_has_the_weights_and_the_model_is_the_copy(
    with_trainer: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    from tests.export.truth import of_tensors

    save = with_trainer / "checkpoint-12"
    code, mine = export(save, tmp_path / "out")
    assert code == 0
    assert mine["emb.weight"] == truth("zero2_bf16_2ranks")["emb.weight"]
    assert (tmp_path / "out" / "config.json").read_bytes() == (save / "config.json").read_bytes()
    assert export(save, tmp_path / "copy", "--16bit") == (0, of_tensors(load_file(save / "model.safetensors")))


def test_an_adapter_is_exported_instead_of_the_tag(with_trainer: Path, tmp_path: Path) -> None:
    save = with_trainer / "checkpoint-12"
    shutil.copy(FIXTURES / "layouts/hf_lora/checkpoint-6/adapter_model.safetensors", save)
    (save / "model.safetensors").unlink()
    code, mine = export(save, tmp_path / "out")
    assert code == 0
    assert all("lora" in name for name in mine)


def lies(values: Any, chance: random.Random) -> None:  # noqa: ANN401  what DeepSpeed pickled
    """Change one number in the records of one file, as a bug in a tool could; the file's checksums are right."""
    state = values.get("optimizer_state_dict")
    if state is not None:
        count = state["partition_count"]
        wrong = chance.choice([1, 2, 3, 4])
        state["partition_count"] = [wrong] * len(count) if isinstance(count, list) else wrong
        key = next(key for key in ("single_partition_of_fp32_groups", "fp32_flat_groups") if key in state)
        if chance.random() < 0.5:
            state[key].append(state[key].pop(0))
        return
    shapes = values["param_shapes"][0]
    name = chance.choice(sorted(shapes))
    axis = chance.randrange(len(shapes[name]))
    sizes = [*shapes[name]]
    sizes[axis] = max(0, sizes[axis] + chance.choice([-1, 1, 7]))
    shapes[name] = tuple(sizes)


def faults(tree: Path, chance: random.Random) -> None:
    """Damage a save in one of the ways in which saves are damaged, or records lie."""
    files = sorted(tree.glob("global_step3/*.pt"))
    path = chance.choice(files)
    kind = chance.choice(["bit", "bit", "cut", "gone", "swap", "lie", "lie", "lie"])
    if kind == "bit":
        flip(path, chance.randrange(path.stat().st_size), chance.randrange(8))
    elif kind == "cut":
        path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])
    elif kind == "gone":
        path.unlink()
    elif kind == "swap":
        other = chance.choice(files)
        mine, others = path.read_bytes(), other.read_bytes()
        path.write_bytes(others)
        other.write_bytes(mine)
    else:
        rewrite(path, lambda values: lies(values, chance))


@pytest.mark.sample(2)
@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("seed", range(4))
def test_a_faulty_save_never_gives_other_numbers(save: str, seed: int, tmp_path: Path) -> None:
    code, right = export(EXPORTS / save / "tree", tmp_path / "right")
    assert code == 0
    chance = random.Random(f"{save} {seed}")  # noqa: S311  no secret
    refused = 0
    for number in range(10):
        tree = writable(EXPORTS / save / "tree", tmp_path / f"tree{number}")
        faults(tree, chance)
        code, mine = export(tree, tmp_path / f"out{number}")
        assert code or mine == right
        refused += code != 0
    assert refused
