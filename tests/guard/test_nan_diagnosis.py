"""Whose NaN it was is told by what a rank alone knows, and the verdict by the runs that there are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from ckpttool.core.domain.units import Rank, Step
from ckpttool.guard.model.capture import (
    Capture,
    Culprit,
    GradientFacts,
    LossBits,
    NanVerdict,
    Origin,
    OriginKind,
    RankCapture,
    RankReplay,
    Rerun,
)
from ckpttool.guard.rules.nan_diagnosis import compared, culprits, in_a_row, is_reproduced, verdict
from tests.support.captures import gradient, loss, micro_batch, rank_capture

NAN = math.nan
FINE, BAD = gradient("a"), gradient("a", nan=1)


def again(*gradients: GradientFacts, losses: Sequence[float] = (1.0,)) -> Rerun:
    return Rerun(losses=tuple(map(loss, losses)), gradients=gradients)


def run(
    captured: RankCapture,
    *own: GradientFacts,
    losses: Sequence[float] = (1.0,),
    reduced: Sequence[GradientFacts] | None = None,
) -> RankReplay:
    return compared(captured, tuple(map(loss, losses)), own, reduced)


def named(*ranks: RankCapture) -> list[tuple[int, str]]:
    return [(culprit.rank, culprit.why) for culprit in culprits(ranks)]


def test_a_rank_is_named_by_its_own_loss_first() -> None:
    bad = rank_capture(1, world=2, losses=[0.5, NAN], gradients=[BAD], rerun=again(FINE))
    other = rank_capture(0, world=2, losses=[0.5, 0.5], gradients=[BAD], rerun=again(BAD))
    assert named(other, bad) == [(1, "its loss was nan in micro-batch 2 of 2")]
    assert named(rank_capture(0, losses=[math.inf], gradients=[BAD])) == [(0, "its loss was inf")]


def test_where_every_loss_was_finite_its_own_gradients_tell_in_a_run_without_the_others() -> None:
    ranks = [
        rank_capture(number, world=2, gradients=[BAD, gradient("b")], rerun=again(each, gradient("b")))
        for number, each in enumerate((FINE, BAD))
    ]
    assert named(*ranks) == [(1, "1 of its 2 gradients were not finite, while its loss was")]


def test_after_a_reduction_all_hold_the_same_gradient_and_nobody_is_named() -> None:
    assert named(*[rank_capture(number, world=2, gradients=[BAD]) for number in (0, 1)]) == []
    assert named(rank_capture(0, gradients=[BAD])) == [(0, "1 of its 1 gradient were not finite, while its loss was")]
    assert named(rank_capture(0, world=2, gradients=[FINE])) == []


HUGE = gradient("a", norm=math.inf)


@pytest.mark.parametrize("gradients", [[HUGE, FINE], [gradient("a", norm=1.5e19), gradient("b", norm=1.5e19)], [FINE]])
def test_the_only_rank_is_the_one_whose_norm_overflowed(gradients: list[GradientFacts]) -> None:
    ((rank, why),) = named(rank_capture(0, gradients=gradients))
    assert rank == 0
    assert why.endswith("was not finite, while each of them and its loss were")
    ((_, why),) = named(rank_capture(0, losses=[None], gradients=gradients))
    assert why.endswith("was not finite, while each of them was")


def test_a_norm_that_overflows_again_in_place_is_neither_finite_nor_transient() -> None:
    ranks = [
        rank_capture(0, world=2, gradients=[HUGE], rerun=again(FINE)),
        rank_capture(1, world=2, gradients=[HUGE], rerun=again(HUGE)),
    ]
    assert [rank for rank, _ in named(*ranks)] == [1]
    told, _ = verdict(ranks, [run(rank, FINE) for rank in ranks], same_device=True)
    assert told is not NanVerdict.TRANSIENT
    assert verdict(ranks[:1], [run(ranks[0], FINE)], same_device=True)[0] is NanVerdict.TRANSIENT


def test_an_overflowing_norm_is_the_event_that_a_replay_repeats_or_does_not() -> None:
    captured = rank_capture(0, gradients=[HUGE])
    same = run(captured, HUGE)
    assert (same.is_finite, same.norm_overflows, same.norm_differs) == (False, True, False)
    assert is_reproduced([same], exact=True)
    assert verdict([captured], [same], same_device=True) == (
        NanVerdict.DATA_OR_MODEL, "it happens again in another process",
    )  # fmt: skip
    other = run(captured, FINE)
    assert (other.is_finite, other.norm_overflows, other.norm_differs) == (True, False, True)
    assert not is_reproduced([other], exact=False)
    healthy = run(rank_capture(0, gradients=[FINE]), FINE)
    assert (healthy.is_finite, healthy.norm_differs) == (True, False)


def test_of_a_weight_that_was_bad_before_the_step_the_verdict_says_so() -> None:
    captured = rank_capture(0, gradients=[HUGE])
    origin = Origin(
        rank=Rank(0), micro_batch=0, phase="forward", kind=OriginKind.PARAMETER, op="head.weight", module="",
        line=None, shape=(3,), nan=0, inf=0, value=1e37, times_rms=1e38,
    )  # fmt: skip
    _, why = verdict([captured], [run(captured, HUGE)], same_device=True, origin=origin)
    assert "head.weight was not finite before this step" in why
    _, why = verdict([captured], [run(captured, HUGE)], same_device=True, origin=replace(origin, kind=OriginKind.OP))
    assert why == "it happens again in another process"


@pytest.mark.parametrize("losses", [[], [None], [0.5, None]])
def test_of_a_loss_that_nobody_told_it_is_not_said_that_it_was_finite(losses: list[float | None]) -> None:
    why = "1 of its 1 gradient were not finite, and its loss is unknown"
    assert named(rank_capture(0, losses=losses, gradients=[BAD])) == [(0, why)]


def test_a_loss_is_equal_where_its_bits_are() -> None:
    captured = rank_capture(0, losses=[NAN, 1.0], gradients=[BAD])
    same = run(captured, BAD, losses=[NAN, 1.0])
    assert (same.losses_equal, same.losses, same.losses_differ) == (2, 2, ())
    other_nan = replace(loss(NAN), bits="0000c0ff")
    told = compared(captured, (other_nan, loss(1.0)), (BAD,), None)
    assert (told.losses_equal, told.losses_differ) == (1, (0,))
    half = replace(loss(1.0), dtype="float16")
    assert compared(captured, (loss(NAN), half), (BAD,), None).losses_differ == (1,)


def test_a_loss_that_was_not_told_is_compared_with_none() -> None:
    captured = rank_capture(0, losses=[None], gradients=[BAD])
    told = run(captured, BAD)
    assert (told.losses_equal, told.losses) == (0, 0)
    assert is_reproduced([told], exact=True)
    nothing = run(rank_capture(0, losses=[None]))
    assert not is_reproduced([nothing], exact=False)  # there was nothing to compare


@pytest.mark.parametrize(
    ("then", "now", "differs"),
    [
        ([BAD], [BAD], []),
        ([BAD], [gradient("a", digest="1" * 32, nan=2)], []),
        ([BAD], [FINE], ["a"]),
        ([FINE], [BAD], ["a"]),
        ([BAD], [], ["a"]),
        ([FINE], [], ["a"]),
        ([gradient("a", norm=0.0)], [], []),
        ([FINE], [FINE, gradient("b")], ["b"]),
        ([gradient("a", shape=(2,))], [gradient("a", shape=(4,), nan=1)], []),
    ],
)
def test_the_same_gradients_have_to_be_not_finite(
    then: list[GradientFacts], now: list[GradientFacts], differs: list[str]
) -> None:
    told = run(rank_capture(0, gradients=then), *now)
    assert list(told.pattern_differs) == differs
    assert is_reproduced([told], exact=False) is (not differs)


def test_exact_means_every_gradient_in_every_bit() -> None:
    other = run(rank_capture(0, gradients=[FINE]), gradient("a", digest="1" * 32))
    assert (other.gradients_equal, other.gradients) == (0, 1)
    assert is_reproduced([other], exact=False)
    assert not is_reproduced([other], exact=True)
    assert is_reproduced([run(rank_capture(0, gradients=[FINE]), FINE)], exact=True)


def test_of_several_ranks_the_mean_of_all_is_held_against_what_was_reduced_and_else_a_run_in_place() -> None:
    captured = rank_capture(1, world=2, gradients=[BAD], rerun=again(FINE))
    assert run(captured, FINE, reduced=[BAD]).pattern_differs == ()
    assert run(captured, FINE).pattern_differs == ()
    assert run(captured, BAD).pattern_differs == ("a",)
    alone = rank_capture(1, world=2, gradients=[BAD, gradient("b")])
    assert run(alone, BAD, gradient("b")).pattern_differs == ()
    assert run(alone, FINE, gradient("b", nan=1)).pattern_differs == ("b",)  # which not even the sum was


BAD_HERE = run(rank_capture(0, gradients=[BAD]), BAD)
FINE_HERE = run(rank_capture(0, gradients=[BAD]), FINE)


@pytest.mark.parametrize(
    ("device", "rerun", "here", "same", "said"),
    [
        ("cpu", None, BAD_HERE, True, NanVerdict.DATA_OR_MODEL),
        ("cpu", again(BAD), BAD_HERE, True, NanVerdict.DATA_OR_MODEL),
        ("cpu", again(FINE), BAD_HERE, True, NanVerdict.TRANSIENT),
        ("cuda:0", again(FINE), FINE_HERE, True, NanVerdict.TRANSIENT),
        ("cuda:0", again(BAD), BAD_HERE, True, NanVerdict.UNDECIDED),
        ("cuda:0", again(BAD), BAD_HERE, False, NanVerdict.DATA_OR_MODEL),
        ("cuda:0", again(BAD), FINE_HERE, False, NanVerdict.DEVICE),
        ("cuda:0", None, FINE_HERE, False, NanVerdict.UNDECIDED),
        ("cuda:0", None, FINE_HERE, True, NanVerdict.UNDECIDED),
        ("cpu", None, FINE_HERE, True, NanVerdict.UNDECIDED),
    ],
)
def test_the_verdict_follows_from_the_runs_that_there_are(
    device: str, rerun: Rerun | None, here: RankReplay, same: bool, said: NanVerdict
) -> None:
    captured = rank_capture(0, gradients=[BAD], rerun=rerun, device=device)
    told, why = verdict([captured], [here], same_device=same)
    assert told is said
    assert ("would decide" in why) is (said is NanVerdict.UNDECIDED)


def test_what_a_capture_says_of_itself() -> None:
    captured = rank_capture(0, losses=[NAN, None, 1.0], gradients=[BAD, gradient("b")])
    assert captured.bad_losses == 1
    assert captured.bad_gradients == (BAD,)
    assert again(FINE).is_finite
    assert not again(BAD).is_finite
    assert not again(FINE, losses=[NAN]).is_finite
    assert isinstance(micro_batch(1.0).loss, LossBits)


def capture_of(step: int, *, applied: int | None = 5, world: int = 1, culprits: tuple[int, ...] = (0,)) -> Capture:
    ranks = tuple(replace(rank_capture(rank, world=world), optimizer_step=applied) for rank in range(world))
    return Capture(
        path=f"captures/{step}", step=Step(step), world_size=world, time=None, ranks=ranks,
        culprits=tuple(Culprit(rank=Rank(rank), why="its loss was nan") for rank in culprits), findings=(),
    )  # fmt: skip


def found_rows(*captures: Capture) -> list[tuple[int, int, str]]:
    return [(row.first, row.last, row.path) for row in in_a_row(captures)]


def test_captures_of_neighbouring_steps_on_the_same_weights_are_a_row() -> None:
    ten = [capture_of(step) for step in range(21, 31)]
    assert found_rows(capture_of(3, applied=2), *ten, capture_of(40, applied=9)) == [(21, 30, "captures/21")]
    two = [capture_of(step, applied=step // 10) for step in (10, 11, 20, 21, 22)]
    assert found_rows(*two) == [(10, 11, "captures/10"), (20, 22, "captures/20")]


@pytest.mark.parametrize(
    "captures",
    [
        [],
        [capture_of(4)],
        [capture_of(4), capture_of(5, applied=6)],
        [capture_of(4), capture_of(6)],
        [capture_of(4), capture_of(4)],
        [capture_of(4, applied=None), capture_of(5, applied=None)],
        [capture_of(4, world=2), capture_of(5, world=2, culprits=(1,))],
        [replace(capture_of(4), ranks=()), replace(capture_of(5), ranks=())],
    ],
)
def test_captures_of_which_that_is_not_known_are_no_row(captures: list[Capture]) -> None:
    assert found_rows(*captures) == []
