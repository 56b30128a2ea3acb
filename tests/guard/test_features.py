"""Feature values of real gradients: of which parameters, when, and whose."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from ckpttool.decide.asd.detector import FeatureValueDetector
from ckpttool.domain.guarding import GuardEvent
from ckpttool.domain.metrics import LocalTime
from ckpttool.domain.units import Rank, Step
from ckpttool.guard.features import FeatureProbe

RANKS = 3
STEPS = 15
CULPRIT = 1
WRONG_AT = 12


class Stack(nn.Module):
    """Seven matrices, vectors between them, one that is never used, and one in float16."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(7))
        self.unused = nn.Linear(8, 8, bias=False)
        self.narrow = nn.Parameter(torch.zeros(8, 8, dtype=torch.float16))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            batch = torch.tanh(layer(batch))
        return batch


def gradient(model: nn.Module, name: str) -> torch.Tensor:
    found = model.get_parameter(name).grad
    assert found is not None
    return found


class FailingProbe(FeatureProbe):
    """Raises in backward."""

    def _look(self, bucket: object) -> None:
        raise ZeroDivisionError(bucket)


def backward(model: nn.Module, factor: float = 1.0) -> None:
    (model(torch.randn(4, 8)).square().mean() * factor).backward()


def test_every_third_matrix_is_looked_at_and_its_largest_gradient_squared_comes_a_step_late() -> None:
    torch.manual_seed(1)
    model = Stack()
    probe = FeatureProbe(model, interval=3)
    assert probe.names == ("layers.0.weight", "layers.3.weight", "layers.6.weight")
    assert probe.rank == 0
    backward(model)
    probe.take(Step(1))
    assert probe.values() == ()
    expected = [float(gradient(model, name).abs().max()) ** 2 for name in probe.names]
    model.zero_grad()
    backward(model)
    probe.take(Step(2))
    values = probe.values()
    assert [(value.name, value.step, value.rank) for value in values] == [(name, 1, 0) for name in probe.names]
    assert [value.value for value in values] == expected
    assert probe.values() == ()
    assert {value.step for value in probe.values(all_of_them=True)} == {2}


def test_a_parameter_without_a_gradient_has_no_value_and_one_with_a_nan_has_that() -> None:
    model = Stack()
    probe = FeatureProbe(model, interval=1)
    assert "unused.weight" in probe.names
    assert "narrow" not in probe.names  # what overflows there is the scaler's business
    backward(model)
    gradient(model, "layers.2.weight")[3, 3] = math.nan
    gradient(model, "layers.4.weight")[0, 0] = -math.inf
    probe.take(Step(1), scale=1024.0)
    values = {value.name: value.value for value in probe.values(all_of_them=True)}
    assert "unused.weight" not in values
    assert math.isnan(values["layers.2.weight"])
    assert values["layers.4.weight"] == math.inf
    assert 0 < values["layers.0.weight"] < math.inf


def test_a_step_that_overflowed_can_be_forgotten_before_anybody_judges_it() -> None:
    model = Stack()
    probe = FeatureProbe(model)
    for step, factor in ((1, 1.0), (2, math.inf), (3, 1.0)):
        model.zero_grad()
        backward(model, factor)
        probe.take(Step(step))
        if step == 2:
            probe.forget()
    assert {value.step for value in probe.values(all_of_them=True)} == {1, 3}


def test_bfloat16_matrices_and_sparse_gradients_are_looked_at() -> None:
    model = nn.ModuleDict({"wide": nn.Linear(4, 4), "words": nn.Embedding(5, 4, sparse=True)}).bfloat16()
    probe = FeatureProbe(model, interval=1)
    model["wide"](model["words"](torch.tensor([1, 1, 3]))).sum().backward()
    probe.take(Step(1))
    assert {value.name for value in probe.values(all_of_them=True)} == {"wide.weight", "words.weight"}


def trained(rank: int, hook: str, *, views: bool = False, wrong: float = 1.0) -> dict[str, Any]:
    """Train a model on all ranks; return what became of it, and what was seen on this one."""
    torch.manual_seed(2)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(9, 33), nn.Tanh(), nn.Linear(33, 5)), gradient_as_bucket_view=views, bucket_cap_mb=1e-4
    )
    if hook == "other":
        model.register_comm_hook(None, allreduce_hook)
    kind = FailingProbe if hook == "failing" else FeatureProbe
    probe = None if hook == "none" else kind(model, interval=1)
    detector = FeatureValueDetector.of("enable:true,upper_thresh1:1000,upper_thresh2:10")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(100 + rank)
    events: list[GuardEvent] = []
    finite: list[bool | None] = []
    errors = 0
    for step in range(1, STEPS + 1):
        factor = wrong if (rank, step) == (CULPRIT, WRONG_AT) else 1.0
        with model.no_sync():
            (model(torch.randn(6, 9)).square().mean() * factor).backward()
        model(torch.randn(6, 9)).square().mean().backward()
        if probe is not None:
            try:
                probe.take(Step(step))
            except ZeroDivisionError:
                errors += 1
            finite.append(probe.own_are_finite)
            events += detector.take(probe.values(), at=LocalTime(60.0 * step), step=Step(step))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if math.isfinite(wrong):
            optimizer.step()
        optimizer.zero_grad()
    return {
        "weights": [parameter.detach().view(torch.int32).tolist() for parameter in model.parameters()],
        "before_reduction": probe.is_before_reduction if probe else None,
        "rank": probe.rank if probe else None,
        "events": [[event.kind.value, event.step, event.values.get("rank")] for event in events],
        "not_finite": [step for step, is_finite in enumerate(finite, start=1) if is_finite is False],
        "errors": errors,
    }


def train_on_a_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    found = {
        "none": trained(rank, "none"),
        "ours": trained(rank, "ours"),
        "failing": trained(rank, "failing"),
        "none in views": trained(rank, "none", views=True),
        "ours in views": trained(rank, "ours", views=True),
        "culprit": trained(rank, "ours", wrong=1e9),
        "culprit behind another hook": trained(rank, "other", wrong=1e9),
        "nan": trained(rank, "ours", wrong=math.nan),
    }
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("ranks")
    spawn(train_on_a_rank, (str(folder),), nprocs=RANKS)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize(
    ("plain", "hooked"), [("none", "ours"), ("none", "failing"), ("none in views", "ours in views")]
)
def test_the_hook_changes_no_bit_of_a_training_not_even_where_it_fails(
    on_ranks: list[dict[str, dict[str, Any]]], plain: str, hooked: str
) -> None:
    for found in on_ranks:
        assert found[hooked]["weights"] == found[plain]["weights"] == on_ranks[0][plain]["weights"]


def test_of_three_ranks_the_one_with_the_wrong_gradient_is_seen_and_no_other(
    on_ranks: list[dict[str, dict[str, Any]]],
) -> None:
    for rank, found in enumerate(on_ranks):
        events = found["culprit"]["events"]
        if rank == CULPRIT:
            assert events[0] == ["sdc-event", WRONG_AT, CULPRIT]
            assert {tuple(event[1:]) for event in events} == {(WRONG_AT, CULPRIT)}
        else:
            assert events == []
        assert found["ours"]["events"] == []


def test_behind_another_hook_all_see_the_same_and_name_nobody(on_ranks: list[dict[str, dict[str, Any]]]) -> None:
    for found in on_ranks:
        other = found["culprit behind another hook"]
        assert (other["before_reduction"], other["rank"]) == (False, None)
        assert other["events"][0] == ["sdc-event", WRONG_AT, None]
    views = on_ranks[0]["ours in views"]
    assert (views["before_reduction"], views["rank"]) == (False, None)  # three ranks: see _hook_into
    assert [found["ours"]["rank"] for found in on_ranks] == [0, 1, 2]


def test_whose_gradients_were_not_finite_is_known_after_the_reduction(
    on_ranks: list[dict[str, dict[str, Any]]],
) -> None:
    assert [found["nan"]["not_finite"] for found in on_ranks] == [[], [WRONG_AT], []]
    assert [found["ours"]["not_finite"] for found in on_ranks] == [[], [], []]


def test_what_fails_in_backward_is_raised_where_it_can_be_contained(on_ranks: list[dict[str, dict[str, Any]]]) -> None:
    assert [found["failing"]["errors"] for found in on_ranks] == [STEPS] * RANKS


@pytest.mark.usefixtures("one_process_group")
def test_a_second_hook_of_torchs_own_leaves_the_first_alone() -> None:
    model = DistributedDataParallel(nn.Linear(4, 4))
    allreduce = dist.BuiltinCommHookType.ALLREDUCE  # type: ignore[attr-defined]
    model._register_builtin_comm_hook(allreduce)  # noqa: SLF001  the public way takes none of these
    probe = FeatureProbe(model, interval=1)
    assert (probe.is_before_reduction, probe.rank) == (False, Rank(0))
    model(torch.ones(2, 4)).sum().backward()
    probe.take(Step(1))
    assert len(probe.values(all_of_them=True)) == 1


@pytest.mark.usefixtures("one_process_group")
def test_a_closed_probe_leaves_the_averaging_and_takes_nothing() -> None:
    model = DistributedDataParallel(nn.Linear(4, 4))
    probe = FeatureProbe(model, interval=1)
    assert probe.is_before_reduction
    probe.close()
    model(torch.ones(2, 4)).sum().backward()
    probe.take(Step(1))
    assert probe.values(all_of_them=True) == ()
    assert model.module.weight.grad is not None
