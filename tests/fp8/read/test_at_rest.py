"""Weights that lie in FP8: scales that are there and fit, and those that are lost, of another, or no numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import ckpttool
from ckpttool.core.domain.finding import Code, Finding, Row, Severity
from ckpttool.core.errors import ExitCode
from ckpttool.fp8.findings import Fp8Code
from ckpttool.fp8.model.probe import Fp8Probe, Risk
from tests.support.commands import ask

Tensors = dict[str, torch.Tensor]

WEIGHT = torch.randn(256, 320, generator=torch.Generator().manual_seed(1)) * 0.02


def blocks(side: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight in FP8, and its scale by blocks."""
    high, wide = -(-256 // side), -(-320 // side)
    scale = torch.zeros(high, wide)
    codes = torch.zeros(256, 320)
    for row in range(high):
        for column in range(wide):
            at = slice(row * side, (row + 1) * side), slice(column * side, (column + 1) * side)
            scale[row, column] = WEIGHT[at].abs().max() / 448
            codes[at] = WEIGHT[at] / scale[row, column]
    return codes.to(torch.float8_e4m3fn), scale


def whole(name: str = "weight_scale_inv", *, side: int = 128) -> Tensors:
    codes, scale = blocks(side)
    return {"a.weight": codes, f"a.{name}": scale, "b.weight": WEIGHT.to(torch.bfloat16)}


def probe(folder: Path, tensors: Tensors) -> Fp8Probe:
    save_file(tensors, folder / "model.safetensors")
    return ckpttool.library.fp8_probe(str(folder / "model.safetensors"))


def about(found: Fp8Probe) -> list[tuple[Row, Severity]]:
    return [(finding.code, finding.severity) for finding in found.findings]


def one(found: Fp8Probe) -> Finding:
    (finding,) = found.findings
    return finding


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["weight_scale_inv", "weight_scale"])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_weight_with_the_scales_of_its_blocks_is_well_and_shows_its_largest_number(
    name: str, kind: torch.dtype, tmp_path: Path
) -> None:
    tensors = whole(name)
    tensors[f"a.{name}"] = tensors[f"a.{name}"].to(kind)
    found = probe(tmp_path, tensors)
    assert found.findings == ()
    (codes,) = (tensor for tensor in found.tensors if tensor.numbers.name == "a.weight")
    assert codes.numbers.amax == pytest.approx(float(WEIGHT.abs().max()), rel=0.01)
    assert (codes.numbers.recipes, codes.risk, codes.numbers.dtype) == ((), Risk.FINE, "F8_E4M3")
    assert {tensor.numbers.name for tensor in found.tensors} == {"a.weight", "b.weight"}


@pytest.mark.parametrize(
    "scale",
    [
        torch.tensor(float(WEIGHT.abs().max()) / 448),
        torch.full((1,), float(WEIGHT.abs().max()) / 448),
        torch.full((256,), float(WEIGHT.abs().max()) / 448),
        torch.full((256, 1), float(WEIGHT.abs().max()) / 448),
    ],
    ids=lambda scale: "x".join(map(str, scale.shape)) or "one",
)
def test_one_scale_and_one_a_row_are_scales_too(scale: torch.Tensor, tmp_path: Path) -> None:
    codes = WEIGHT / (float(WEIGHT.abs().max()) / 448)
    codes[:, 0] = 400
    found = probe(tmp_path, {"a.weight": codes.to(torch.float8_e4m3fn), "a.weight_scale": scale})
    assert found.findings == ()


def test_scales_of_eight_bits_are_powers_of_two_and_the_last_of_their_codes_is_no_number(tmp_path: Path) -> None:
    codes = blocks()[0]
    scale = torch.full((2, 3), 120, dtype=torch.uint8)
    tensors = {"a.weight": codes, "a.weight_scale": scale.view(torch.float8_e8m0fnu)}
    found = probe(tmp_path, tensors)
    assert found.findings == ()
    assert found.tensors[0].numbers.amax == 448 * 2.0**-7
    scale[1, 1] = 255
    assert one(probe(tmp_path, tensors)).code is Fp8Code.FP8_SCALE_INVALID


def test_the_scales_of_a_stack_of_experts_are_those_of_its_matrices(tmp_path: Path) -> None:
    codes, scale = blocks()
    tensors = {"experts.weight": torch.stack([codes] * 3), "experts.weight_scale_inv": torch.stack([scale] * 3)}
    assert probe(tmp_path, tensors).findings == ()
    for fits in (torch.ones(3, 1, 1), torch.ones(3), torch.ones(3, 256, 1)):
        assert about(probe(tmp_path, tensors | {"experts.weight_scale_inv": fits})) in (
            [],
            [(Fp8Code.FP8_RANGE_UNUSED, Severity.NOTE)],
        )
    assert one(probe(tmp_path, tensors | {"experts.weight_scale_inv": scale})).code is Fp8Code.FP8_SCALE_SHAPE


def test_a_scale_that_is_lost_is_damage_where_others_have_one(tmp_path: Path) -> None:
    tensors = whole() | {"c.weight": blocks()[0]}
    found = probe(tmp_path, tensors)
    assert about(found) == [(Fp8Code.FP8_SCALE_MISSING, Severity.DAMAGE)]
    assert one(found).tensor == "c.weight"


def test_weights_that_were_cast_without_any_scale_are_only_noted(tmp_path: Path) -> None:
    found = probe(tmp_path, {"c.weight": blocks()[0], "d.weight": blocks()[0].clone()})
    assert set(about(found)) == {(Fp8Code.FP8_SCALE_MISSING, Severity.NOTE)}


@pytest.mark.parametrize("shape", [(2, 2), (320,), (2, 3, 1)])
def test_a_scale_of_another_shape_is_of_another_weight(shape: tuple[int, ...], tmp_path: Path) -> None:
    found = probe(tmp_path, whole() | {"a.weight_scale_inv": torch.ones(shape)})
    assert about(found) == [(Fp8Code.FP8_SCALE_SHAPE, Severity.DAMAGE)]
    assert one(found).expected == "1 or 256 or 2×3"


@pytest.mark.sample(2)
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_no_positive_number_is_damage(value: float, tmp_path: Path) -> None:
    tensors = whole()
    tensors["a.weight_scale_inv"][1, 2] = value
    found = probe(tmp_path, tensors)
    assert about(found) == [(Fp8Code.FP8_SCALE_INVALID, Severity.DAMAGE)]
    assert (one(found).actual, one(found).path) == ("1", "model.safetensors")


@pytest.mark.parametrize(
    ("kind", "code", "said"),
    [
        (torch.float8_e4m3fn, 0x7F, "1 NaN and 0 infinite"),
        (torch.float8_e5m2, 0x7C, "0 NaN and 1 infinite"),
        (torch.float8_e5m2, 0xFF, "1 NaN and 0 infinite"),
    ],
)
def test_codes_that_are_no_number_are_found_and_the_largest_is_none_of_them(
    kind: torch.dtype, code: int, said: str, tmp_path: Path
) -> None:
    codes = (WEIGHT * 1000).to(kind)
    codes[7, 0] = 400
    largest = float(codes.float().abs().max())
    codes.view(torch.uint8)[3, 5] = code
    found = probe(tmp_path, {"a.weight": codes, "a.weight_scale": torch.tensor(0.5)})
    sick = [finding for finding in found.findings if finding.code is Code.NONFINITE_VALUES]
    assert [said in finding.message for finding in sick] == [True]
    assert found.tensors[0].numbers.amax == largest / 2
    assert found.tensors[0].risk is Risk.LOST


def test_a_stale_scale_is_noted_by_the_range_that_its_codes_leave_unused(tmp_path: Path) -> None:
    codes, scale = blocks()
    values = codes.float()
    values[:128, :128] /= 8
    scale[0, 0] *= 8
    found = probe(tmp_path, {"a.weight": values.to(torch.float8_e4m3fn), "a.weight_scale_inv": scale})
    assert about(found) == [(Fp8Code.FP8_RANGE_UNUSED, Severity.NOTE)]
    assert "1 of 6 blocks" in one(found).message


def test_blocks_of_zeros_use_no_range_and_are_not_noted(tmp_path: Path) -> None:
    codes, scale = blocks()
    codes.view(torch.uint8)[:128, :128] = 0
    assert probe(tmp_path, {"a.weight": codes, "a.weight_scale_inv": scale}).findings == ()


def test_scales_in_another_file_of_the_save_and_the_models_own_block_size_are_found(tmp_path: Path) -> None:
    codes, scale = blocks(64)
    save_file({"a.weight": codes}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"a.weight_scale_inv": scale}, tmp_path / "model-00002-of-00002.safetensors")
    index = {"a.weight": "model-00001-of-00002.safetensors", "a.weight_scale_inv": "model-00002-of-00002.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    config = {"quantization_config": {"weight_block_size": [64, 64]}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = ckpttool.library.fp8_probe(str(tmp_path))
    assert [finding for finding in found.findings if finding.code.value.startswith("fp8")] == []
    config = {"quantization_config": {"weight_block_size": [64, -1]}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert Fp8Code.FP8_SCALE_SHAPE in {finding.code for finding in ckpttool.library.fp8_probe(str(tmp_path)).findings}


def test_damage_ends_with_10_and_a_whole_checkpoint_with_0(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(whole(), path)
    assert ask("fp8", "probe", str(path)).code == ExitCode.OK
    tensors = whole()
    tensors["a.weight_scale_inv"][0, 0] = 0
    save_file(tensors, path)
    said = ask("fp8", "probe", str(path))
    assert said.code == ExitCode.DAMAGE
    assert "Already in FP8: 1 tensor" in said.stdout
