"""An operand's magnitudes, counted in a training: what a scale of the whole tensor takes of it follows exactly."""

from __future__ import annotations

import pytest
import torch

from ckpttool.decide.fp8.risk import operand_risk, underflow_of
from ckpttool.domain.fp8 import Fp8Format, Gemm, Operand
from ckpttool.domain.fp8_histogram import PATTERNS, MagnitudeHistogram, OperandSite
from ckpttool.domain.fp8_probe import Risk
from ckpttool.domain.frozen import replace
from ckpttool.domain.units import Rank, Step

KINDS = {Fp8Format.E4M3: torch.float8_e4m3fn, Fp8Format.E5M2: torch.float8_e5m2}
LARGEST = {Fp8Format.E4M3: 448.0, Fp8Format.E5M2: 57344.0}
SITE = OperandSite(layer="layers.0.fc1", gemm=Gemm.DGRAD, operand=Operand.GRADIENT, rank=Rank(0))


def counted(values: torch.Tensor, site: OperandSite = SITE) -> MagnitudeHistogram:
    patterns = values.bfloat16().view(torch.int16).flatten().int() & 0x7FFF
    counts = torch.bincount(patterns, minlength=PATTERNS)
    pairs = tuple((int(at), int(counts[at])) for at in counts.nonzero().flatten())
    return MagnitudeHistogram(site=site, step=Step(7), counts=pairs)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def outlier() -> torch.Tensor:
    values = normal(20_000) * 1e-3
    values[0] = 30.0
    return values


@pytest.mark.parametrize("margin", [-2, 0, 3])
@pytest.mark.parametrize("format_", Fp8Format)
@pytest.mark.parametrize(
    "values",
    [normal(20_000), outlier(), torch.exp(normal(20_000) * 8), normal(20_000) / normal(20_000).abs().pow(2)],
    ids=["gaussian", "outlier", "log-normal", "heavy"],
)
def test_what_becomes_zero_is_what_torch_makes_zero_of_the_elements(
    values: torch.Tensor, format_: Fp8Format, margin: int
) -> None:
    values = values.bfloat16().float()
    scale = (torch.tensor(LARGEST[format_]) / values.abs().max()) / 2**margin
    cast = (values * scale).clamp(-LARGEST[format_], LARGEST[format_]).to(KINDS[format_]).float()
    gone = float(((cast == 0) & (values != 0)).sum() / (values != 0).sum())
    assert underflow_of(counted(values), format_, margin=margin) == pytest.approx(gone, rel=1e-6)


def test_two_add_up_over_micro_batches_and_over_ranks() -> None:
    first, second = normal(1000), normal(1000) * 3
    elsewhere = replace(SITE, rank=Rank(1))
    both = torch.cat([first, second])
    assert counted(first) + counted(second) == counted(both)
    assert counted(first) + counted(second, elsewhere) == counted(both, replace(SITE, rank=None))


@pytest.mark.parametrize("changes", [{"layer": "layers.1"}, {"gemm": Gemm.WGRAD}, {"operand": Operand.WEIGHT}])
def test_what_is_of_two_operands_or_two_steps_does_not_add_up(changes: dict[str, str]) -> None:
    seen = counted(normal(10))
    with pytest.raises(ValueError, match="do not add up"):
        _ = seen + replace(seen, site=replace(SITE, **changes))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="do not add up"):
        _ = seen + replace(seen, step=Step(8))


@pytest.mark.parametrize(("small", "risk"), [(0, Risk.FINE), (49, Risk.FINE), (50, Risk.WEAK), (200, Risk.LOST)])
def test_an_operand_is_judged_by_what_becomes_zero(small: int, risk: Risk) -> None:
    values = torch.ones(1000)
    values[:small] = 1e-9
    assert operand_risk(counted(values), Fp8Format.E4M3) is risk


def test_what_is_not_finite_is_lost_and_nothing_but_zeros_is_fine() -> None:
    values = torch.ones(10)
    assert operand_risk(counted(values), Fp8Format.E5M2) is Risk.FINE
    values[3] = float("inf")
    assert operand_risk(counted(values), Fp8Format.E5M2) is Risk.LOST
    assert operand_risk(counted(torch.zeros(10)), Fp8Format.E5M2) is Risk.FINE
