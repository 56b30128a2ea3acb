"""`fp8 probe` in numbers: what torch's own casts give, whatever format a tensor lies in."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ckpttool.core.domain.finding import Code, Severity
from ckpttool.core.verify.check import check
from ckpttool.core.verify.observation import Observation
from ckpttool.fp8.model.fp8 import Fp8Format, Recipe
from ckpttool.fp8.model.probe import CastNumbers, Lines, ProbeQuestion, Risk, TensorNumbers
from ckpttool.fp8.read import kernel_sample as fp8_sample
from ckpttool.fp8.read.probe import ShardNumbers, probe_shard
from ckpttool.fp8.rules.risk import is_probed, judged
from tests.support.shard_writers import record
from tests.support.verifying import task_for

Tensors = dict[str, torch.Tensor]

KINDS = {Fp8Format.E4M3: torch.float8_e4m3fn, Fp8Format.E5M2: torch.float8_e5m2}
LARGEST = {Fp8Format.E4M3: 448.0, Fp8Format.E5M2: 57344.0}
NORMAL = {Fp8Format.E4M3: 2.0**-6, Fp8Format.E5M2: 2.0**-14}
HALF_STEP = {Fp8Format.E4M3: 2.0**-4, Fp8Format.E5M2: 2.0**-3}
EXACT = ProbeQuestion(exact=True)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small tensors in many threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def seen(path: Path, question: ProbeQuestion = ProbeQuestion()) -> Observation:  # noqa: B008
    look = partial(probe_shard, question=question, is_selected=partial(is_probed, optimizer=question.optimizer))
    return check(task_for(path), compare=look)


def probed(path: Path, question: ProbeQuestion = ProbeQuestion()) -> tuple[TensorNumbers, ...]:  # noqa: B008
    added = seen(path, question).result(ShardNumbers)
    assert added is not None
    return added.tensors


def numbers(folder: Path, tensor: torch.Tensor, question: ProbeQuestion = EXACT) -> TensorNumbers:
    path = folder / "w.safetensors"
    save_file({"a.weight": tensor.contiguous()}, path)
    (found,) = probed(path, question)
    return found


def risk(found: TensorNumbers, question: ProbeQuestion = EXACT) -> Risk:
    return judged(found, question).risk


def of(found: TensorNumbers, recipe: Recipe, format_: Fp8Format = Fp8Format.E4M3) -> CastNumbers:
    (cast,) = (cast for cast in found.recipes if (cast.recipe, cast.format) == (recipe, format_))
    return cast


def gaussian(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.02


# --- a second way to the same numbers: torch, in the plainest words ---------------------------------------------------


def scale_of(amax: torch.Tensor, recipe: Recipe, format_: Fp8Format) -> torch.Tensor:
    amax = amax.float()
    scale = torch.tensor(LARGEST[format_]) / amax
    if recipe in {Recipe.ROWWISE, Recipe.BLOCKWISE, Recipe.MXFP8}:
        scale = torch.exp2(torch.floor(torch.log2(scale.double()))).float()
    if recipe is Recipe.MXFP8_FLOOR:
        largest = math.floor(math.log2(LARGEST[format_]))
        scale = torch.exp2(largest - torch.floor(torch.log2(amax.double()))).float()
    return torch.where(amax > 0, scale, torch.tensor(1.0))


def scales_of(values: torch.Tensor, recipe: Recipe, format_: Fp8Format) -> torch.Tensor:
    blocks = {Recipe.ROWWISE: (1, values.shape[1]), Recipe.TENSORWISE: tuple(values.shape)}
    blocks |= dict.fromkeys((Recipe.BLOCKWISE, Recipe.BLOCKWISE_F32), (128, 128))
    height, width = blocks.get(recipe, (1, 32))
    amax = torch.nn.functional.max_pool2d(values.abs()[None], (height, width), ceil_mode=True)[0]
    scales = scale_of(amax, recipe, format_)
    whole = scales.repeat_interleave(height, 0).repeat_interleave(width, 1)
    return whole[: values.shape[0], : values.shape[1]]


def runs(matrix: torch.Tensor) -> torch.Tensor:
    """Sums of runs of 128 along rows; shorter ones at the edge only where no others exist."""
    parts = matrix.split(128, dim=1)
    whole = [part for part in parts if part.shape[1] == 128] or [parts[0]]
    return torch.cat([part.sum(1) for part in whole])


def channels(values: torch.Tensor, error: torch.Tensor) -> float:
    lower = []
    for signal, lost in ((values, error), (values.T, error.T)):
        over, under = runs(signal.square()), runs(lost.square())
        decibels = (10 * torch.log10(over[over > 0] / under[over > 0])).clamp(max=99.0)
        lower.append(float(torch.quantile(decibels, 0.01)))
    return min(lower)


def reference(values: torch.Tensor, recipe: Recipe, format_: Fp8Format) -> dict[str, float]:
    values = values.abs().float()
    scales = scales_of(values, recipe, format_)
    scaled = values * scales
    cast = scaled.clamp(max=LARGEST[format_]).to(KINDS[format_]).float()
    there = values > 0
    back = cast.double() / scales.double()
    error = back - values.double()
    share = [
        float((there & each).sum() / there.sum())
        for each in (
            cast == 0,
            (cast > 0) & (cast < NORMAL[format_]),
            (cast - scaled).abs() > HALF_STEP[format_] * scaled,
        )
    ]
    return {
        "underflow": share[0],
        "subnormal": share[1],
        "lost": share[2],
        "snr_db": float(10 * torch.log10(values.double().square().sum() / error.square().sum())),
        "cosine": float((values.double() * back).sum() / (values.double().norm() * back.norm())),
        "channel_snr_db": channels(values.double(), error),
    }


RECIPES = (*Recipe,)[1:]


@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(256, 384), (300, 200), (64, 96)])
def test_every_number_is_what_torch_makes_of_every_element(
    kind: torch.dtype, shape: tuple[int, int], tmp_path: Path
) -> None:
    tensor = gaussian(*shape) * torch.logspace(0, -3, shape[0])[:, None]
    tensor[3] = 0
    tensor = tensor.to(kind)
    question = ProbeQuestion(recipes=RECIPES, formats=tuple(Fp8Format), exact=True)
    found = numbers(tmp_path, tensor, question)
    values = tensor.to(torch.bfloat16) if kind is torch.float32 else tensor
    assert (found.elements, found.sampled, found.nonfinite) == (tensor.numel(), tensor.numel(), 0)
    assert found.amax == float(values.float().abs().max())
    assert found.live == Lines(rows=shape[0] - 1, columns=shape[1])
    for cast in found.recipes:
        wanted = reference(values, cast.recipe, cast.format)
        said = {name: getattr(cast, name) for name in wanted}
        assert said == pytest.approx(wanted, rel=2e-5, abs=1e-6), (cast.recipe, cast.format)


def test_a_tensor_is_the_same_in_every_format_of_file(tmp_path: Path) -> None:
    tensor = gaussian(96, 160).to(torch.bfloat16)
    save_file({"a.weight": tensor}, tmp_path / "a.safetensors")
    torch.save({"a.weight": tensor}, tmp_path / "a.pt")
    raw = tensor.view(torch.int16).numpy().tobytes()
    half = len(raw) // 2 + 2
    whole, cut = record("a.weight", [96, 160], "BFloat16", raw), [raw[:half], raw[half:]]
    (tmp_path / "a.ckpt").write_bytes(whole)
    (tmp_path / "cut.ckpt").write_bytes(b"".join(record("a.weight", [96, 160], "BFloat16", part) for part in cut))
    found = [probed(tmp_path / name) for name in ("a.safetensors", "a.pt", "a.ckpt", "cut.ckpt")]
    assert [len(each) for each in found] == [1, 1, 1, 1]
    assert {(each[0].amax, each[0].live, each[0].recipes) for each in found} == {
        (found[0][0].amax, found[0][0].live, found[0][0].recipes)
    }


def test_one_outlier_takes_every_other_weight_and_looks_best_in_the_whole_tensors_ratio(tmp_path: Path) -> None:
    tensor = gaussian(1024, 1024) / 20
    tensor[5, 7] = 1e4
    found = numbers(tmp_path, tensor)
    cast = of(found, Recipe.TENSORWISE)
    assert cast.snr_db == pytest.approx(79.8, abs=0.05)
    assert cast.cosine == pytest.approx(1.0, abs=1e-6)
    assert cast.channel_snr_db == pytest.approx(0.0, abs=1e-6)
    assert cast.underflow == pytest.approx(1 - 2.0**-20)
    assert cast.gone == Lines(rows=1023, columns=1023)
    assert risk(found) is Risk.LOST
    assert of(found, Recipe.MXFP8).channel_snr_db == pytest.approx(29.9, abs=0.2)


def test_a_far_outlier_among_many_is_harmless(tmp_path: Path) -> None:
    tensor = gaussian(1024, 1024)
    tensor[5, 7] = 0.02 * 500
    found = numbers(tmp_path, tensor)
    assert of(found, Recipe.TENSORWISE).channel_snr_db == pytest.approx(29.9, abs=0.3)
    assert risk(found) is Risk.FINE


@pytest.mark.parametrize(("gone", "meant"), [(0, Risk.FINE), (4, Risk.WEAK), (10, Risk.WEAK), (11, Risk.LOST)])
def test_few_rows_that_become_zero_are_weak_and_a_percent_of_them_is_lost(
    gone: int, meant: Risk, tmp_path: Path
) -> None:
    tensor = gaussian(1024, 1024)
    tensor[:gone] *= 1e-6
    found = numbers(tmp_path, tensor)
    assert of(found, Recipe.TENSORWISE).gone == Lines(rows=gone, columns=0)
    assert risk(found) is meant
    assert of(found, Recipe.ROWWISE).gone is None


def test_rows_of_zeros_in_the_file_are_not_gone(tmp_path: Path) -> None:
    tensor = gaussian(256, 256)
    tensor[:100] = 0
    found = numbers(tmp_path, tensor)
    assert (found.live, of(found, Recipe.TENSORWISE).gone) == (Lines(rows=156, columns=256), Lines(rows=0, columns=0))
    assert risk(found) is Risk.FINE


def test_rows_of_unequal_size_look_well_as_a_whole_and_lose_their_channels(tmp_path: Path) -> None:
    tensor = gaussian(1024, 1024) * torch.logspace(0, -8, 1024)[:, None]
    found = numbers(tmp_path, tensor)
    cast = of(found, Recipe.TENSORWISE)
    assert cast.snr_db == pytest.approx(31.6, abs=0.2)
    assert cast.channel_snr_db == pytest.approx(0.0, abs=1e-4)
    assert risk(found) is Risk.LOST
    assert risk(found, ProbeQuestion(recipes=(Recipe.ROWWISE,))) is Risk.FINE


@pytest.mark.sample(4)
@pytest.mark.parametrize(("value", "nans"), [(math.nan, 1), (math.inf, 0), (-math.inf, 0)])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32])
def test_what_is_not_finite_is_lost_and_said_and_the_rest_is_counted(
    value: float, nans: int, kind: torch.dtype, tmp_path: Path
) -> None:
    tensor = gaussian(256, 256).to(kind)
    without = tensor.clone()
    without[7, 9] = 0
    healthy = numbers(tmp_path, without)
    tensor[7, 9] = value
    found = numbers(tmp_path, tensor)
    assert (found.nonfinite, risk(found), risk(healthy)) == (1, Risk.LOST, Risk.FINE)
    assert found.recipes == healthy.recipes
    assert found.amax == healthy.amax
    (finding,) = seen(tmp_path / "w.safetensors").report.findings
    assert finding.code is Code.NONFINITE_VALUES
    assert f"{nans} NaN and {1 - nans} infinite" in finding.message


@pytest.mark.parametrize("shape", [(0, 16), (16, 0), (0,), (256, 256), (300,)])
def test_of_zeros_and_of_nothing_nothing_is_lost_and_no_number_is_made_up(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    found = numbers(tmp_path, torch.zeros(shape))
    assert risk(found) is Risk.FINE
    assert (found.amax, found.bits, found.amax_over_rms) == (0.0 if 0 not in shape else None, None, None)
    for cast in found.recipes:
        assert {cast.channel_snr_db, cast.lost, cast.underflow, cast.snr_db, cast.cosine, cast.lost_error} == {None}


def test_numbers_of_any_size_lose_alike(tmp_path: Path) -> None:
    tensor = gaussian(256, 256).to(torch.bfloat16)
    found = {numbers(tmp_path, tensor * factor).recipes[1].channel_snr_db for factor in (1.0, 2.0**-60, 2.0**100)}
    assert len(found) == 1


def test_what_is_far_below_the_largest_is_seen_where_its_row_has_a_scale_of_its_own(tmp_path: Path) -> None:
    tensor = gaussian(256, 256)
    tensor[128:] *= 2.0**-80
    found = numbers(tmp_path, tensor, ProbeQuestion())
    assert of(found, Recipe.ROWWISE).channel_snr_db == pytest.approx(30.0, abs=0.2)
    assert of(found, Recipe.TENSORWISE).channel_snr_db == pytest.approx(0.0, abs=1e-6)


def test_a_sample_says_what_all_elements_do_within_its_own_error_and_always_the_same(tmp_path: Path) -> None:
    tensor = (gaussian(2048, 2560) * torch.linspace(0.01, 1, 2048).pow(3)[:, None]).to(torch.bfloat16)
    exact = numbers(tmp_path, tensor)
    sampled, again = numbers(tmp_path, tensor, ProbeQuestion()), numbers(tmp_path, tensor, ProbeQuestion())
    assert sampled == again
    assert sampled.sampled == 16 * 128 * 128
    for ours, theirs in zip(sampled.recipes, exact.recipes, strict=True):
        assert ours.lost is not None
        assert ours.lost_error is not None
        assert theirs.lost_error is None
        assert ours.lost == pytest.approx(theirs.lost, abs=4 * ours.lost_error)
        assert (ours.gone, ours.faint) == (theirs.gone, theirs.faint)
    assert sampled.amax == exact.amax


@pytest.mark.sample(2)
@pytest.mark.parametrize("shape", [(3, 80_000), (1_500_000,), (200_000,), (70_000, 3)])
def test_long_thin_and_flat_tensors_are_looked_at_too(shape: tuple[int, ...], tmp_path: Path) -> None:
    tensor = gaussian(*shape)
    tensor.view(-1)[tensor.numel() // 2] = 0.25
    exact, sampled = numbers(tmp_path, tensor), numbers(tmp_path, tensor, ProbeQuestion())
    assert exact.amax == sampled.amax == 0.25
    assert exact.sampled == tensor.numel()
    assert exact.live == (None if len(shape) == 1 else Lines(rows=shape[0], columns=shape[1]))
    for found in (exact, sampled):
        snr = of(found, Recipe.MXFP8).snr_db
        assert snr is not None
        assert snr == pytest.approx(31.5, abs=0.4)


def test_numbers_of_64_bits_are_looked_at_as_bf16_too_and_none_becomes_infinite(tmp_path: Path) -> None:
    tensor = gaussian(256, 256)
    wide = tensor.double()
    assert numbers(tmp_path, wide).recipes == numbers(tmp_path, tensor).recipes
    wide[0, 0] = 1e300
    found = numbers(tmp_path, wide)
    assert (found.nonfinite, found.amax) == (0, torch.finfo(torch.bfloat16).max)


def test_of_a_tensor_with_more_rows_than_fit_into_memory_none_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fp8_sample, "_LONGEST", 1000)
    tensor = gaussian(1001, 7)
    found = numbers(tmp_path, tensor)
    assert (found.live, found.sampled, found.amax) == (None, 7007, float(tensor.bfloat16().abs().max()))
    assert numbers(tmp_path, tensor[:1000]).live == Lines(rows=1000, columns=7)


def test_a_kernel_is_looked_at_by_its_outputs_and_a_stack_of_experts_as_all_their_rows(tmp_path: Path) -> None:
    save_file({"conv.weight": gaussian(8, 4, 3, 3), "experts.w": gaussian(4, 16, 32)}, tmp_path / "w.safetensors")
    found = {each.name: each.live for each in probed(tmp_path / "w.safetensors")}
    assert found == {"conv.weight": Lines(rows=8, columns=36), "experts.w": Lines(rows=64, columns=32)}


def test_numbers_of_32_bits_are_cast_as_the_copy_in_bf16_is_unless_asked_otherwise(tmp_path: Path) -> None:
    tensor = gaussian(256, 256)
    rounded = numbers(tmp_path, tensor.to(torch.bfloat16))
    found, stored = (numbers(tmp_path, tensor, ProbeQuestion(exact=True, as_stored=each)) for each in (False, True))
    assert found.recipes == rounded.recipes
    assert stored.amax == float(tensor.abs().max())
    wanted = reference(tensor, Recipe.TENSORWISE, Fp8Format.E4M3)
    assert of(stored, Recipe.TENSORWISE).lost == pytest.approx(wanted["lost"], abs=1e-9)
    assert found.recipes != stored.recipes


def test_the_largest_numbers_of_32_bits_are_not_taken_for_infinite(tmp_path: Path) -> None:
    tensor = gaussian(256, 256)
    tensor[0, 0] = torch.finfo(torch.float32).max
    found = numbers(tmp_path, tensor)
    assert (found.nonfinite, found.amax) == (0, torch.finfo(torch.bfloat16).max)


def test_of_a_tensor_that_cannot_be_read_it_is_said_and_the_others_are_looked_at(tmp_path: Path) -> None:
    whole = gaussian(64, 64)
    torch.save({"a.weight": whole, "b.weight": whole[:, ::2]}, tmp_path / "a.pt")
    assert [each.name for each in probed(tmp_path / "a.pt")] == ["a.weight"]
    (finding,) = seen(tmp_path / "a.pt").report.findings
    assert (finding.code, finding.severity) == (Code.UNSUPPORTED_FORMAT, Severity.UNKNOWN)
    assert finding.message.startswith("1 tensor could not be checked")


def test_states_of_the_optimizer_and_scalars_are_not_looked_at_unless_asked(tmp_path: Path) -> None:
    tensors = {"a.weight": gaussian(8, 8), "exp_avg.a.weight": gaussian(8, 8), "step": torch.tensor([1.0])}
    save_file(tensors, tmp_path / "w.safetensors")
    names = [
        {each.name for each in probed(tmp_path / "w.safetensors", ProbeQuestion(optimizer=optimizer))}
        for optimizer in (False, True)
    ]
    assert names == [{"a.weight"}, {"a.weight", "exp_avg.a.weight"}]


def test_a_probe_needs_neither_torch_nor_ml_dtypes(tmp_path: Path) -> None:
    save_file({"a.weight": gaussian(64, 64)}, tmp_path / "w.safetensors")
    code = (
        "import sys, ckpttool; "
        f"ckpttool.library.fp8_probe({str(tmp_path / 'w.safetensors')!r}); "
        "sys.exit(bool({'torch', 'ml_dtypes'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
