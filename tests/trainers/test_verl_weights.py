"""The weights of verl and SkyRL are the complete tensors of the live model, or are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ckpttool.core.domain.weights import NotExportableError
from ckpttool.trainers.common.distributed_tensors import _taken
from tests.support.assembled_weights import Tensor, assembled, assert_bits_change_no_number, tensors_in, weights_of
from tests.support.torch_rewriting import rewrite
from tests.support.trees import FIXTURES, writable

EXPORTS = FIXTURES / "export"
SAVES = ["dtensor_placements_4ranks", "fsdp1_sharded_3ranks", "fsdp2_hsdp_4ranks", "fsdp2_tp_4ranks"]
SAVES.append("fsdp2_uneven_3ranks")
FOLDER = "global_step_1/actor"


def truth(save: str) -> dict[str, Tensor]:
    """Return the complete tensors of the model that was saved."""
    return tensors_in(EXPORTS / save / "truth.safetensors")


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[str], Path]:
    """Copy the tree of a fixture."""
    return lambda name: writable(EXPORTS / name / "tree", tmp_path / name)


def refusal(root: Path, part: str | None = None) -> NotExportableError:
    with pytest.raises(NotExportableError) as refused:
        weights_of(root, part=part)
    assert refused.value.finding.remedy
    return refused.value


def of_rank(root: Path, rank: int) -> Path:
    (path,) = (root / FOLDER).glob(f"model_world_size_*_rank_{rank}.pt")
    return path


@pytest.mark.parametrize("save", SAVES)
def test_every_tensor_equals_that_of_the_live_model(save: str) -> None:
    root = EXPORTS / save / "tree"
    assert assembled(root, weights_of(root)) == truth(save)


@pytest.mark.parametrize("save", ["verl_2ranks", "skyrl_2ranks", "verl_sft"])
def test_saves_of_the_trainers_themselves_are_complete(save: str) -> None:
    root = FIXTURES / "layouts" / save
    part = "policy" if save == "skyrl_2ranks" else None
    weights = weights_of(root, part=part)
    mine = assembled(root, weights)
    paths = sorted({piece.path for target in weights.targets for piece in target.pieces})
    parts = [torch.load(root / path, weights_only=False) for path in paths]
    assert mine.keys() == parts[0].keys()
    for name, one in parts[0].items():
        local = [part[name].to_local() for part in parts]
        real = torch.cat(local, one.placements[0].dim) if one.placements[0].is_shard() else local[0]
        assert mine[name][1:] == (tuple(one.shape), real.contiguous().view(torch.uint8).numpy().tobytes())


def test_several_models_need_a_choice() -> None:
    root = FIXTURES / "layouts" / "skyrl_2ranks"
    assert refusal(root).finding.code == "export-ambiguous-part"
    assert "critic, policy" in str(refusal(root, "actor"))
    assert "leave out" in (refusal(FIXTURES / "layouts" / "verl_sft", "actor").finding.remedy or "")
    for part in ("policy", "critic"):
        paths = {piece.path for target in weights_of(root, part=part).targets for piece in target.pieces}
        assert {path.split("/")[1] for path in paths} == {part}


def test_a_flat_parameter_of_fsdp_1_is_refused() -> None:
    refused = refusal(EXPORTS / "fsdp1_local_2ranks" / "tree")
    assert (refused.finding.code, "_flat_param" in str(refused)) == ("export-needs-model", True)


@pytest.mark.parametrize("save", SAVES)
def test_a_missing_rank_is_damage(copied: Callable[[str], Path], save: str) -> None:
    root = copied(save)
    of_rank(root, 1).unlink()
    refused = refusal(root)
    assert "rank 1 is missing" in str(refused)
    assert refused.finding.severity.word == "damage"


@pytest.mark.parametrize("save", SAVES)
def test_exchanged_files_of_ranks_are_refused(copied: Callable[[str], Path], save: str) -> None:
    root = copied(save)
    one, other = of_rank(root, 0), of_rank(root, 1)
    one.rename(root / "aside")
    other.rename(one)
    (root / "aside").rename(other)
    assert "was written as" in str(refusal(root))


@pytest.mark.parametrize("save", [save for save in SAVES if "fsdp1" not in save])
def test_a_copy_of_another_ranks_content_is_refused(copied: Callable[[str], Path], save: str) -> None:
    root = copied(save)
    data = torch.load(of_rank(root, 0), weights_only=False)
    torch.save(data, of_rank(root, 1))  # the folder in the archive has the right name
    assert "contradicts its shape or its rank" in str(refusal(root))


def test_files_of_two_numbers_of_ranks_are_refused(copied: Callable[[str], Path]) -> None:
    root = copied("fsdp2_uneven_3ranks")
    torch.save({}, of_rank(root, 0).with_name("model_world_size_2_rank_0.pt"))
    assert "2 and 3 ranks" in str(refusal(root))


def more(values: Any) -> None:  # noqa: ANN401  what the trainer pickled
    values["extra"] = torch.ones(2)


def wider(values: Any) -> None:  # noqa: ANN401  what the trainer pickled
    values["mean"] = torch.ones(4)


def other_numbers(values: Any) -> None:  # noqa: ANN401  what the trainer pickled
    values["mean"] += 1


@pytest.mark.parametrize(
    ("change", "word"), [(more, "on one of the ranks"), (wider, "different shapes"), (other_numbers, "differs from")]
)
def test_ranks_that_contradict_each_other_are_refused(
    copied: Callable[[str], Path], change: Callable[[Any], None], word: str
) -> None:
    root = copied("fsdp2_uneven_3ranks")
    rewrite(of_rank(root, 1), change)
    assert word in str(refusal(root))


def test_entries_that_are_not_tensors_are_left_out(copied: Callable[[str], Path]) -> None:
    root = copied("fsdp2_uneven_3ranks")
    for rank in range(3):
        rewrite(of_rank(root, rank), lambda values: values.update(note="text"))
    assert [left.names for left in weights_of(root).left_out] == [("note",)]


@pytest.mark.sample(1)
@pytest.mark.parametrize("save", SAVES)
def test_one_wrong_bit_never_gives_other_numbers(copied: Callable[[str], Path], save: str) -> None:
    root = copied(save)
    real = truth(save)
    assert_bits_change_no_number(root / FOLDER, save, real, lambda: assembled(root, weights_of(root)))


def rows(total: int, ranks: int, index: int, splits: int) -> list[int] | None:
    taken = _taken([(0, total)], ranks, index, splits)
    return None if taken is None else [row for first, length in taken for row in range(first, first + length)]


@pytest.mark.parametrize("total", [0, 1, 5, 7, 8, 24])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_rows_of_a_rank_are_those_of_torch(total: int, ranks: int) -> None:
    from torch.distributed.tensor.placement_types import _StridedShard

    chunks = [chunk.tolist() for chunk in torch.arange(total).chunk(ranks)]
    chunks += [[]] * (ranks - len(chunks))
    assert [rows(total, ranks, index, 1) for index in range(ranks)] == chunks
    for splits in (2, 3):
        placement = _StridedShard(0, split_factor=splits)
        real = placement._split_tensor(torch.arange(total), ranks, with_padding=False)[0]  # noqa: SLF001
        mine = [rows(total, ranks, index, splits) for index in range(ranks)]
        assert mine == ([part.tolist() for part in real] if total % (ranks * splits) == 0 else [None] * ranks)
