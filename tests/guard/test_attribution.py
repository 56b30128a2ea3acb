"""A suspicious step is attributed by what the same computation gave again, here and elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ckpttool.core.domain.guarding import EventValue, GuardEvent, GuardEventKind
from ckpttool.core.domain.units import Rank, Step
from ckpttool.guard import randomness
from ckpttool.guard.adapters.own_loss import OwnLoss
from ckpttool.guard.capture.again import CannotRecompute
from ckpttool.guard.capture.memory import Remembered
from ckpttool.guard.files.replayed import record, recorded
from ckpttool.guard.model.attribution import Attribution, Cause, RecordedReplay
from ckpttool.guard.rules.attribution import MOST, SuspiciousSteps, causes

K = GuardEventKind
Event = tuple[GuardEventKind, int, int, dict[str, EventValue]]
FINITE: dict[str, EventValue] = {"path": "p", "culprit": True, "finite_again": True, "repeats": True}
AGAIN_BAD: dict[str, EventValue] = {"path": "p", "culprit": True, "finite_again": False}
ELSEWHERE: dict[str, EventValue] = {"path": "p", "culprit": False, "finite_again": True}


def attributed(
    *events: Event, replays: tuple[RecordedReplay, ...] = (), world_size: int | None = 2
) -> tuple[Attribution, ...]:
    """Tally events of kind, step and rank; rank r is on host `node<r>`."""
    steps = SuspiciousSteps()
    for kind, step, rank, values in events:
        steps.add(GuardEvent(kind=kind, step=Step(step), values=values), Rank(rank), f"node{rank}")
    hosts = {Rank(rank): f"node{rank}" for rank in (0, 1)}
    return steps.attributions({"p": replays}, world_size=world_size, hosts=hosts)


def replay(verdict: str, *ranks: int, host: str = "other") -> RecordedReplay:
    numbers = tuple(map(Rank, ranks or (1,)))
    return RecordedReplay(host=host, device="cuda:3", verdict=verdict, why="why", ranks=numbers)


def only(*events: Event, replays: tuple[RecordedReplay, ...] = ()) -> Attribution:
    (found,) = attributed(*events, replays=replays)
    return found


@pytest.mark.parametrize(
    ("values", "verdicts", "cause"),
    [
        (FINITE, (), Cause.TRANSIENT),
        ({**FINITE, "repeats": False}, (), Cause.UNKNOWN),
        (AGAIN_BAD, (), Cause.UNKNOWN),
        (AGAIN_BAD, ("undecided",), Cause.UNKNOWN),
        (AGAIN_BAD, ("undecided", "device"), Cause.PERSISTENT),
        (AGAIN_BAD, ("data-or-model",), Cause.DATA_OR_MODEL),
        (AGAIN_BAD, ("data-or-model", "device"), Cause.UNKNOWN),
        (AGAIN_BAD, ("nonsense",), Cause.UNKNOWN),
        ({"path": "p", "culprit": True, "not_recomputed": "no room"}, (), Cause.UNKNOWN),
    ],
)
def test_a_nan_is_attributed_by_its_recomputation_and_its_replays(
    values: dict[str, EventValue], verdicts: tuple[str, ...], cause: Cause
) -> None:
    found = only((K.CAPTURE, 7, 1, values), replays=tuple(map(replay, verdicts)))
    assert (found.step, found.rank, found.host, found.suspicion) == (7, 1, "node1", "nonfinite")
    assert found.cause is cause
    assert found.why


def test_a_replay_of_another_rank_shows_nothing() -> None:
    assert only((K.CAPTURE, 7, 1, AGAIN_BAD), replays=(replay("device", 0),)).cause is Cause.UNKNOWN


def test_of_a_capture_on_all_ranks_only_the_culprit_is_listed() -> None:
    found = only((K.CAPTURE, 7, 0, ELSEWHERE), (K.CAPTURE, 7, 1, AGAIN_BAD))
    assert found.rank == 1


def test_what_is_finite_again_on_every_rank_is_transient_of_an_unknown_rank() -> None:
    events: list[Event] = [(K.CAPTURE, 7, rank, ELSEWHERE) for rank in (0, 1)]
    found = only(*events)
    assert (found.rank, found.host, found.cause) == (None, "", Cause.TRANSIENT)
    assert only(events[0]).cause is Cause.UNKNOWN  # the other rank's file is missing


def test_a_wrong_product_explains_the_nan_of_its_rank_and_step() -> None:
    wrong: dict[str, EventValue] = {"rank": 1, "host": "node9", "device": "npu:2", "fault": "persistent"}
    found = only((K.CAPTURE, 7, 1, AGAIN_BAD), (K.CHECKSUM_ABNORMAL, 7, 1, wrong))
    assert (found.cause, found.suspicion) == (Cause.PERSISTENT, "checksum-abnormal")
    assert (found.host, found.device) == ("node9", "npu:2")
    transient: dict[str, EventValue] = {"rank": 1, "fault": "transient"}
    both = only((K.CHECKSUM_ABNORMAL, 7, 1, transient), (K.CHECKSUM_ABNORMAL, 7, 1, wrong))
    assert both.cause is Cause.PERSISTENT


@pytest.mark.parametrize(
    ("same", "control", "cause"),
    [
        (None, None, Cause.UNKNOWN),
        (True, None, Cause.UNKNOWN),
        (False, None, Cause.UNKNOWN),
        (False, True, Cause.TRANSIENT),
        (False, False, Cause.UNKNOWN),
    ],
)
def test_a_strike_is_transient_only_if_a_control_step_had_the_same_bits(
    *, same: bool | None, control: bool | None, cause: Cause
) -> None:
    again: dict[str, EventValue] = {"suspicion": "sdc-strike", "of_step": 7, "same": same}
    events: list[Event] = [(K.SDC_STRIKE, 7, 1, {"rank": 1}), (K.RECOMPUTED, 8, 1, again)]
    if control is not None:
        events.append((K.RECOMPUTED, 9, 1, {"suspicion": "recomputed", "of_step": 8, "same": control}))
    assert only(*events).cause is cause


def test_differing_replicas_are_suspicious_on_the_ranks_that_differ() -> None:
    found = attributed((K.REPLICAS_DISAGREE, 7, 0, {"ranks": [1]}), (K.REPLICAS_DISAGREE, 7, 1, {"ranks": [1]}))
    assert [(one.rank, one.host) for one in found] == [(1, "node1")]
    assert only((K.REPLICAS_DISAGREE, 7, 0, {"ranks": []})).rank is None


def test_the_rows_count_by_host_and_rank_and_come_with_advice() -> None:
    strikes: list[Event] = [(K.CAPTURE, step, 0, FINITE) for step in (1, 2)]
    wrong: Event = (K.CHECKSUM_ABNORMAL, 3, 1, {"fault": "persistent", "device": "cuda:1"})
    first, second = causes(attributed(*strikes, wrong))
    assert (first.host, first.rank, first.persistent) == ("node1", 1, 1)
    assert first.advice == "drain node1, and test cuda:1 before it trains again"
    assert (second.rank, second.transient, second.advice) == (0, 2, "drain node0: node0 erred 2 times")


def test_a_file_from_anywhere_cannot_fill_the_memory() -> None:
    events: list[Event] = [(K.CAPTURE, step, 0, AGAIN_BAD) for step in range(3 * MOST)]
    odd: list[Event] = [(K.REPLICAS_DISAGREE, 1, 0, {"ranks": [True, -1, "x", None]}), (K.RECOMPUTED, 1, 0, {})]
    assert len(attributed(*events, *odd)) == MOST


def test_recorded_replays_are_read_back_and_damaged_ones_are_not(tmp_path: Path) -> None:
    first, second = replay("device"), replay("undecided", 0, 1)
    assert record(str(tmp_path), first).endswith("replay-000.json")
    path = record(str(tmp_path), second)
    assert recorded(str(tmp_path)) == (first, second)
    Path(path).write_bytes(Path(path).read_bytes().replace(b"undecided", b"device   "))
    assert recorded(str(tmp_path)) == (first,)
    assert recorded(str(tmp_path / "missing")) == ()


class Own(nn.Module):
    """Returns its loss in one of the ways that libraries do."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.how = nn.Linear(3, 1), how

    def forward(self, items: Tensor) -> object:
        loss = self.layer(items).square().mean()
        return {"alone": loss, "dict": {"loss": loss}, "tuple": (loss, items), "none": self.layer(items)}[self.how]


@pytest.mark.parametrize("how", ["alone", "dict", "tuple"])
def test_the_loss_that_a_model_returns_is_computed_again_with_its_factors(how: str) -> None:
    model, own, items = Own(how), OwnLoss(), torch.randn(4, 3)
    model.register_forward_hook(own.returned)
    micro = Remembered({"args": (items,), "kwargs": {}}, None, randomness.states(), cloned=False)
    output = model(items)
    loss = {"alone": lambda: output, "dict": lambda: output["loss"], "tuple": lambda: output[0]}[how]() / 3 * 0.7
    own.passed(micro, loss)
    assert torch.equal(own.recompute(model, micro), loss)


@pytest.mark.parametrize(
    "change",
    [lambda loss, _: loss + 1, lambda loss, model: loss + 0.1 * model.layer.weight.square().sum(), lambda *_: None],
)
def test_another_loss_is_not_taken_for_the_models_own(change: object) -> None:
    model, own, items = Own("alone"), OwnLoss(), torch.randn(4, 3)
    model.register_forward_hook(own.returned)
    micro = Remembered({"args": (items,), "kwargs": {}}, None, randomness.states(), cloned=False)
    loss = model(items)
    changed = change(loss, model)  # type: ignore[operator]
    own.passed(micro, loss if changed is None else changed)
    if changed is None:  # a second one, such as of a regularizer
        own.passed(micro, model.layer.weight.square().sum())
    with pytest.raises(CannotRecompute, match="not the one that the model returns"):
        own.recompute(model, micro)
