"""A rank that computes wrongly among three: seen, named, and answered by all of them in the same step."""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from ckpttool.decide.asd.detector import FeatureValueDetector
from ckpttool.domain.guarding import GuardEvent
from ckpttool.domain.metrics import LocalTime
from ckpttool.domain.units import Step
from ckpttool.guard import Guard, GuardStop
from ckpttool.guard.features import FeatureProbe
from ckpttool.guard.replicas import ReplicaCheck
from tests.guard.faulty import FaultyDevice, flip
from tests.guard.loop import Told, bits
from tests.guard.ranks import on_ranks

RANKS = 3  # of two, a reciprocal is exact and nobody is the odd one
STEPS = 4
CULPRIT = 1
WRONG_AT = 12
FAULTY_FROM = 15
SENSITIVE = "enable:true,with_checksum:true,strikes_num:1,upper_thresh1:1000,upper_thresh2:10"

Seen = dict[str, Any]

pytestmark = pytest.mark.slow  # beside two ranks of tests/guard/test_ranks.py that share a start with others


class FailingProbe(FeatureProbe):
    """Raises in backward."""

    def _look(self, bucket: object) -> None:
        raise ZeroDivisionError(bucket)


def small_model(**settings: Any) -> DistributedDataParallel:  # noqa: ANN401  DDP's own
    torch.manual_seed(2)
    return DistributedDataParallel(nn.Sequential(nn.Linear(9, 33), nn.Tanh(), nn.Linear(33, 5)), **settings)


def hooked(
    rank: int,
    *,
    probe_of: type[FeatureProbe] | None,
    other: bool = False,
    views: bool = False,
    wrong: float = 1.0,
    steps: int = STEPS,
) -> Seen:
    """Train, and look at feature values by hand."""
    model = small_model(gradient_as_bucket_view=views, bucket_cap_mb=1e-4)
    if other:
        model.register_comm_hook(None, allreduce_hook)
    probe = None if probe_of is None else probe_of(model, interval=1)
    detector = FeatureValueDetector.of(SENSITIVE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(100 + rank)
    events: list[GuardEvent] = []
    finite: list[bool | None] = []
    errors = 0
    for step in range(1, steps + 1):
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
        "weights": bits(list(model.parameters())),
        "knows": (probe.is_before_reduction, probe.rank) if probe else None,
        "events": [(event.kind.value, event.step, event.values.get("rank")) for event in events],
        "not_finite": [step for step, is_finite in enumerate(finite, start=1) if is_finite is False],
        "errors": errors,
    }


def with_and_without_a_hook(rank: int) -> dict[str, Seen]:
    return {"hooked": hooked(rank, probe_of=FeatureProbe), "plain": hooked(rank, probe_of=None)}


def compared(_rank: int, *, spoils: int | None, fails: bool = False) -> Seen:
    """Flip a bit of a weight on one rank, and compare."""
    model = small_model()
    check = ReplicaCheck(model)
    with torch.no_grad():
        if _rank == spoils:
            flip(model.module[2].weight, (3, 4), 0)
    found = check.compare(None if fails and _rank == 0 else check.hashes())
    return {"found": None if found is None else (found.parameters, found.count, found.ranks)}


def double(result: Tensor) -> None:
    result.view(-1)[5] += 7.0


def guarded(rank: int, **settings: Any) -> Seen:  # noqa: ANN401  the guard's own
    """Train under a guard; rank 1 has a wrong gradient once, and three steps later a device that computes wrongly."""
    model, told = small_model(), Told()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    guard = Guard(model, optimizer, sinks=[told], features=SENSITIVE, **settings)
    torch.manual_seed(100 + rank)
    stopped = None
    for step in range(1, 18):
        is_faulty = rank == CULPRIT and step >= FAULTY_FROM
        batch = torch.randn(6, 9)
        with FaultyDevice("aten.addmm.default", double) if is_faulty else nullcontext(), guard.micro(batch) as micro:
            loss = model(batch).square().mean() * (1e9 if (rank, step) == (CULPRIT, WRONG_AT) else 1.0)
            micro.loss(loss)
            loss.backward()
        if step == 9 and rank == CULPRIT:
            with torch.no_grad():
                flip(model.module[0].weight, (1, 1), 0)
        try:
            guard.clip_(1.0)
        except GuardStop as stop:
            stopped = (step, str(stop))
            break
        optimizer.step()
        optimizer.zero_grad()
    return {
        "stopped": stopped,
        "told": [(kind.value, step) for kind, step, _ in told.events if kind.value != "step"],
        "checked": [step for kind, step, values in told.events if "checked" in values],
        "values": [values for kind, _, values in told.events if kind.value != "step"],
    }


CASES = {
    "plain": partial(hooked, probe_of=None),
    "hooked": partial(hooked, probe_of=FeatureProbe),
    "failing": partial(hooked, probe_of=FailingProbe),
    "plain in views": partial(hooked, probe_of=None, views=True),
    "hooked in views": partial(hooked, probe_of=FeatureProbe, views=True),
    "culprit": partial(hooked, probe_of=FeatureProbe, wrong=1e9, steps=WRONG_AT + 1),
    "culprit behind another hook": partial(hooked, probe_of=FeatureProbe, other=True, wrong=1e9, steps=WRONG_AT),
    "nan": partial(hooked, probe_of=FeatureProbe, wrong=math.nan, steps=WRONG_AT),
    "equal weights": partial(compared, spoils=None),
    "a flipped weight": partial(compared, spoils=2),
    "no hashes": partial(compared, spoils=2, fails=True),
    "warns": partial(guarded, replica_every=10),
    "stops": partial(guarded, replica_every=0, on_abnormal="stop"),
    "patrols": partial(guarded, replica_every=0, patrol=4),
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Seen]]:
    return on_ranks(RANKS, CASES, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize(
    ("plain", "ours"), [("plain", "hooked"), ("plain", "failing"), ("plain in views", "hooked in views")]
)
def test_the_hook_changes_no_bit_of_a_training_not_even_where_it_fails(
    seen: dict[str, list[Seen]], plain: str, ours: str
) -> None:
    expected = seen[plain][0]["weights"]
    assert [found["weights"] for found in seen[plain]] == [expected] * RANKS
    assert [found["weights"] for found in seen[ours]] == [expected] * RANKS


def test_of_three_ranks_the_one_with_the_wrong_gradient_is_seen_and_no_other(seen: dict[str, list[Seen]]) -> None:
    for rank, found in enumerate(seen["culprit"]):
        if rank == CULPRIT:
            assert found["events"][0] == ("sdc-event", WRONG_AT, CULPRIT)
            assert {event[1:] for event in found["events"] if event[0].startswith("sdc")} == {(WRONG_AT, CULPRIT)}
        else:
            assert found["events"] == []
    assert [found["events"] for found in seen["hooked"]] == [[]] * RANKS


def test_behind_another_hook_all_see_the_same_and_name_nobody(seen: dict[str, list[Seen]]) -> None:
    for found in seen["culprit behind another hook"]:
        assert found["knows"] == (False, None)
        assert found["events"][0] == ("sdc-event", WRONG_AT, None)
    # In views of its buckets torch divides what is accumulated, and multiplies else: for three ranks other bits.
    assert [found["knows"] for found in seen["hooked in views"]] == [(False, None)] * RANKS
    assert [found["knows"] for found in seen["hooked"]] == [(True, 0), (True, 1), (True, 2)]


def test_whose_gradients_were_not_finite_is_known_after_the_reduction(seen: dict[str, list[Seen]]) -> None:
    assert [found["not_finite"] for found in seen["nan"]] == [[], [WRONG_AT], []]
    assert [found["not_finite"] for found in seen["hooked"]] == [[], [], []]


def test_what_fails_in_backward_is_raised_where_it_can_be_contained(seen: dict[str, list[Seen]]) -> None:
    assert [found["errors"] for found in seen["failing"]] == [STEPS] * RANKS


def test_a_flipped_bit_of_a_weight_is_found_by_all_ranks_and_the_odd_one_is_named(seen: dict[str, list[Seen]]) -> None:
    assert [found["found"] for found in seen["a flipped weight"]] == [(("2.weight",), 1, (2,))] * RANKS
    assert [found["found"] for found in seen["equal weights"]] == [None] * RANKS
    assert [found["found"] for found in seen["no hashes"]] == [None] * RANKS


def test_a_guard_compares_weights_now_and_then(seen: dict[str, list[Seen]]) -> None:
    for found in seen["warns"]:
        told = [
            event for event in zip(found["told"], found["values"], strict=True) if event[0][0] == "replicas-disagree"
        ]
        assert [event for event, _ in told] == [("replicas-disagree", 10)]
        assert told[0][1]["parameters"] == ["0.weight"]
        assert told[0][1]["ranks"] == [CULPRIT]
        assert told[0][1]["message"] == "weights differ from rank to rank: another one on rank 1, in 0.weight"
    assert all("replicas-disagree" not in dict(found["told"]) for found in seen["stops"])


def test_a_strike_of_one_rank_starts_the_checksum_on_all_in_the_same_step(seen: dict[str, list[Seen]]) -> None:
    for rank, found in enumerate(seen["warns"]):
        assert found["checked"] == [14, 15, 16, 17]
        assert [event for event in found["told"] if event[0] == "checksum-on"] == [("checksum-on", 13)]
        strikes = [event for event in found["told"] if event[0] == "sdc-strike"]
        assert strikes == ([("sdc-strike", WRONG_AT)] if rank == CULPRIT else [])


def test_a_wrong_product_is_told_by_its_rank_alone_and_all_go_on_unless_they_were_told_to_stop(
    seen: dict[str, list[Seen]],
) -> None:
    for rank, found in enumerate(seen["warns"]):
        wrong = {step for kind, step in found["told"] if kind == "checksum-abnormal"}
        assert wrong == ({15, 16, 17} if rank == CULPRIT else set())
        assert found["stopped"] is None
    for found in seen["stops"]:
        step, message = found["stopped"]
        assert step == FAULTY_FROM
        assert "a matrix product was wrong" in message


def test_on_patrol_whole_steps_are_checked_before_any_strike(seen: dict[str, list[Seen]]) -> None:
    for found in seen["patrols"]:
        assert found["checked"] == [4, 8, 12, 14, 15, 16, 17]
