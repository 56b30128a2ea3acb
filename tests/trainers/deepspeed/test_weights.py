"""The weights in ZeRO saves are those that DeepSpeed's own converter finds, or are refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ckpttool.core.domain.finding import Severity
from ckpttool.core.domain.weights import NotExportableError, Weights, WeightsRequest
from ckpttool.core.storage import open_storage
from ckpttool.trainers.deepspeed_tags.weights import tag_weights
from tests.support.assembled_weights import Tensor, assembled, assert_bits_change_no_number, tensors_in, weights_of
from tests.support.torch_rewriting import rewrite
from tests.support.trees import FIXTURES, writable

EXPORTS = FIXTURES / "export"
TAG = "global_step3"
SAVES = sorted(path.name for path in EXPORTS.glob("zero*"))
FROZEN = {"frozen.weight", "frozen.bias"}
TIED = {"head.weight": "emb.weight"}


def truth(save: str) -> dict[str, Tensor]:
    """Return what the trainer's own converter made of a save."""
    return tensors_in(EXPORTS / save / "truth.safetensors")


def found(root: Path, *, is_16bit: bool = False) -> Weights:
    return weights_of(root, TAG, is_16bit=is_16bit)


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[str], Path]:
    """Copy the tree of a fixture."""
    return lambda name: writable(EXPORTS / name / "tree", tmp_path / name)


def refusal(root: Path, **options: bool) -> NotExportableError:
    with pytest.raises(NotExportableError) as refused:
        found(root, **options)
    assert refused.value.finding.remedy
    return refused.value


def of_rank(root: Path, rank: int, kind: str) -> Path:
    (path,) = (root / TAG).glob(f"*rank_{rank}_mp*_{kind}_states.pt")
    return path


def every(root: Path, kind: str, change: Callable[[Any], None]) -> None:
    for path in (root / TAG).glob(f"*_{kind}_states.pt"):
        rewrite(path, change)


@pytest.mark.parametrize("save", SAVES)
def test_every_tensor_equals_that_of_zero_to_fp32(save: str) -> None:
    real = truth(save)
    root = EXPORTS / save / "tree"
    weights = found(root)
    mine = assembled(root, weights)
    assert weights.tied == TIED
    assert mine["emb.weight"] == real.pop("head.weight") == real["emb.weight"]
    lost = FROZEN if save.startswith("zero1") else set()
    assert mine.keys() - real.keys() == lost, "zero_to_fp32 loses the frozen parameters of stage 1"
    assert {name: mine[name] for name in real} == real
    assert [target.name for target in weights.targets][-2:] == ["bn.weight", "bn.bias"], "not the model's order"


def test_frozen_parameters_that_zero_to_fp32_loses_are_those_of_the_other_stages() -> None:
    one, two = (EXPORTS / name / "tree" for name in ("zero1_bf16_3ranks", "zero2_bf16_2ranks"))
    mine, real = assembled(one, found(one)), assembled(two, found(two))
    assert {name: mine[name] for name in FROZEN} == {name: real[name] for name in FROZEN}


def test_lightning_drops_the_prefix_of_older_versions() -> None:
    save = "lightning_zero3_2ranks"
    root = EXPORTS / save / "tree"
    request = WeightsRequest(layout="lightning")
    folder = "epoch=0-step=2.ckpt/checkpoint"
    weights = tag_weights(open_storage(str(root)), folder, request, names_of="names", drops="model.")
    assert {f"model.{name}" if name != "mean" else name for name in assembled(root, weights)} == truth(save).keys()


@pytest.mark.parametrize("save", ["zero1_bf16_3ranks", "zero2_bf16_2ranks", "bf16_optimizer_2ranks"])
def test_the_16_bit_copy_is_that_of_the_model_file(save: str) -> None:
    root = EXPORTS / save / "tree"
    weights = found(root, is_16bit=True)
    mine = assembled(root, weights)
    assert weights.tied == TIED
    assert {mine[name][0] for name in ("emb.weight", "a.bias", "halfb", *FROZEN)} == {"BF16"}
    assert [mine[name][0] for name in ("mean", "small", "dbl", "table", "flag")] == ["F32", "F16", "F64", "I64", "BOOL"]


def test_the_16_bit_copy_is_the_rounded_master() -> None:
    root = EXPORTS / "zero2_bf16_2ranks" / "tree"
    copy, master = (assembled(root, found(root, is_16bit=is_16bit)) for is_16bit in (True, False))
    for name in ("emb.weight", "a.bias", "bn.bias"):
        rounded = torch.frombuffer(bytearray(master[name][2]), dtype=torch.float32).bfloat16()
        assert copy[name][2] == rounded.view(torch.uint8).numpy().tobytes()


def test_zero_3_has_no_16_bit_copy_and_says_so() -> None:
    weights = found(EXPORTS / "zero3_bf16_3ranks" / "tree", is_16bit=True)
    (finding,) = weights.findings
    assert "--dtype bf16" in (finding.remedy or "")


def test_another_optimizer_for_bf16_is_refused_with_the_way_to_the_copy() -> None:
    refused = refusal(EXPORTS / "bf16_optimizer_2ranks" / "tree")
    assert refused.finding.code == "export-not-understood"
    assert "--half" in (refused.finding.remedy or "")


def test_without_zero_the_model_file_has_the_weights(copied: Callable[[str], Path]) -> None:
    root = copied("zero2_fp32_3ranks")
    for rank in range(3):
        of_rank(root, rank, "optim").unlink()
    every(root, "model", lambda values: values.update(param_shapes=None, shared_params=None))
    weights = found(root)
    assert weights.tied == TIED, "two names of one storage"
    real = truth("zero2_fp32_3ranks")
    mine = assembled(root, weights)
    assert mine["emb.weight"] == real["emb.weight"]


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("mp_rank_01_model_states.pt", "tensor-parallel"),
        ("layer_00-model_00-model_states.pt", "pipeline"),
        ("layer_0_expert_1_mp_rank_00_model_states.pt", "expert"),
        ("expp_rank_0_mp_rank_00_optim_states.pt", "expert"),
    ],
)
def test_other_parallelism_is_refused(copied: Callable[[str], Path], name: str, word: str) -> None:
    root = copied("zero2_bf16_2ranks")
    shutil.copy(of_rank(root, 0, "optim"), root / TAG / name)
    refused = refusal(root)
    assert (refused.finding.code, word in str(refused)) == ("export-needs-model", True)
    assert "ds_to_universal" in (refused.finding.remedy or "")


@pytest.mark.parametrize("key", ["ds_autoep_layers", "autoep_layers"])
def test_experts_of_autoep_are_refused(copied: Callable[[str], Path], key: str) -> None:
    root = copied("zero3_fp32_2ranks")
    every(root, "model", lambda values: values.update({key: [{"checkpoint_format": "zero3_partitioned"}]}))
    assert refusal(root).finding.code == "export-needs-model"


def test_quantized_frozen_weights_are_refused(copied: Callable[[str], Path]) -> None:
    root = copied("zero3_fp32_2ranks")
    setting = {"zero_quantized_nontrainable_weights": True}
    every(root, "model", lambda values: values["ds_config"]["zero_optimization"].update(setting))
    assert refusal(root).finding.code == "export-not-understood"


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("kind", ["model", "optim"])
def test_a_rank_without_a_file_is_damage_or_unknown(copied: Callable[[str], Path], save: str, kind: str) -> None:
    root = copied(save)
    max((root / TAG).glob(f"*_{kind}_states.pt")).unlink()
    refused = refusal(root)
    assert refused.finding.code == "export-incomplete"


@pytest.mark.parametrize("save", SAVES)
def test_exchanged_files_of_ranks_are_refused(copied: Callable[[str], Path], save: str) -> None:
    root = copied(save)
    one, other = (of_rank(root, rank, "optim") for rank in (0, 1))
    one.rename(root / "aside")
    other.rename(one)
    (root / "aside").rename(other)
    refused = refusal(root)
    assert "was written as" in str(refused)
    assert refused.finding.severity is Severity.UNKNOWN


def halve(values: Any) -> None:  # noqa: ANN401  what DeepSpeed pickled
    state = values["optimizer_state_dict"]
    count = state["partition_count"]
    state["partition_count"] = [1] * len(count) if isinstance(count, list) else 1


def transposed(values: Any) -> None:  # noqa: ANN401  what DeepSpeed pickled
    values["param_shapes"][0]["emb.weight"] = (7, 11)


def larger(values: Any) -> None:  # noqa: ANN401  what DeepSpeed pickled
    values["param_shapes"][0]["b.weight"] = (7, 12)


def repeated(values: Any) -> None:  # noqa: ANN401  what DeepSpeed pickled
    groups = values["param_shapes"]
    groups[-1]["emb.weight"] = groups[-1].pop("bn.bias")


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize(("kind", "lie"), [("optim", halve), ("model", larger), ("model", repeated)])
def test_records_that_contradict_each_other_are_refused(
    copied: Callable[[str], Path], save: str, kind: str, lie: Callable[[Any], None]
) -> None:
    root = copied(save)
    every(root, kind, lie)
    assert refusal(root).finding.code == "export-incomplete"


@pytest.mark.parametrize("save", [save for save in SAVES if not save.startswith("zero3")])
def test_a_shape_is_compared_with_that_of_the_copy(copied: Callable[[str], Path], save: str) -> None:
    root = copied(save)
    every(root, "model", transposed)
    assert "has the shape" in str(refusal(root))


def test_files_of_two_saves_are_refused(copied: Callable[[str], Path]) -> None:
    root = copied("zero3_fp32_2ranks")
    rewrite(of_rank(root, 1, "model"), lambda values: values.update(global_steps=4))
    assert "`global_steps` differs" in str(refusal(root))


def later(values: Any) -> None:  # noqa: ANN401  what DeepSpeed pickled
    state = values["optimizer_state_dict"]
    inner = state.get("base_optimizer_state", state.get("optimizer_state_dict"))
    for own in inner["state"].values():
        own["step"] = own["step"] + 1


def counting(values: Any) -> None:  # noqa: ANN401  what DeepSpeed's own optimizers pickle
    state = values["optimizer_state_dict"]
    inner = state.get("base_optimizer_state", state.get("optimizer_state_dict"))
    for own in inner["state"].values():
        del own["step"]
    inner["param_groups"][0]["step"] = 3


def resumed(values: Any) -> None:  # noqa: ANN401  what DeepSpeed's own optimizers pickle
    state = values["optimizer_state_dict"]
    state.get("base_optimizer_state", state.get("optimizer_state_dict"))["param_groups"][0]["step"] = 4


@pytest.mark.parametrize("save", SAVES)
def test_optimizer_states_of_two_saves_are_refused(copied: Callable[[str], Path], save: str) -> None:
    root = copied(save)
    rewrite(of_rank(root, 1, "optim"), later)
    assert "different numbers of steps" in str(refusal(root))
    every(root, "optim", counting)
    assert found(root).targets
    rewrite(of_rank(root, 0, "optim"), resumed)
    assert "different numbers of steps" in str(refusal(root))


@pytest.mark.sample(1)
@pytest.mark.parametrize("save", SAVES)
def test_one_wrong_bit_never_gives_other_numbers(copied: Callable[[str], Path], save: str) -> None:
    root = copied(save)
    real = assembled(root, found(root))
    assert_bits_change_no_number(root / TAG, save, real, lambda: assembled(root, found(root)))
