"""Diagnosis of a NaN: its rank, whether it was reproduced, and its cause, which may be data, model or device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.units import Step, counted
from ckpttool.guard.model.capture import (
    Capture,
    CaptureRow,
    Culprit,
    GradientFacts,
    LossBits,
    NanVerdict,
    Origin,
    OriginKind,
    RankCapture,
    RankReplay,
    is_finite,
    norm_overflows,
)


def culprits(ranks: Sequence[RankCapture]) -> tuple[Culprit, ...]:
    """Return the ranks on which the fault began, in ascending order. Only ranks with available files are considered.

    After a reduction every rank has the same gradient. A rank is therefore identified by its own loss, or else by its
    own gradients, which only a run without the other ranks shows. A single rank needs no such run. If all of these are
    finite, the norm was not: it overflows if elements reach 1e19.
    """
    by_loss = [Culprit(rank=rank.rank, why=_bad_loss(rank)) for rank in ranks if rank.bad_losses]
    if by_loss:
        return tuple(by_loss)
    reruns = [(rank, rank.rerun) for rank in ranks if rank.rerun is not None and not rank.rerun.is_finite]
    if reruns:
        return tuple(Culprit(rank=rank.rank, why=_bad_gradients(rank, rerun.gradients)) for rank, rerun in reruns)
    alone = [rank for rank in ranks if rank.world_size == 1]
    return tuple(Culprit(rank=rank.rank, why=_bad_gradients(rank, rank.gradients)) for rank in alone)


def in_a_row(captures: Sequence[Capture]) -> tuple[CaptureRow, ...]:
    """Return series of captures with the same weights: consecutive steps, the same ranks, and equal applied updates.

    Args:
        captures: The captures, by step.
    """
    columns: list[tuple[Step, object, str]] = []
    for capture in captures:
        applied = {rank.optimizer_step for rank in capture.ranks}
        shared: object = None  # the number of applied updates is unknown
        if len(applied) == 1 and None not in applied:
            shared = (*applied, *(culprit.rank for culprit in capture.culprits))
        columns.append((capture.step, shared, capture.path))
    return rows(columns)


def rows(captures: Iterable[tuple[Step, object, str]]) -> tuple[CaptureRow, ...]:
    """Return series of consecutive steps with a common value that is not None.

    Args:
        captures: Step, value and path of each capture, by step.
    """
    capture_rows: list[CaptureRow] = []
    before: object = None
    for step, shared, path in captures:
        if capture_rows and shared is not None and shared == before and step == capture_rows[-1].last + 1:
            capture_rows[-1] = replace(capture_rows[-1], last=step)
        else:
            capture_rows.append(CaptureRow(first=step, last=step, path=path))
        before = shared
    return tuple(row for row in capture_rows if row.count > 1)


def _bad_loss(rank: RankCapture) -> str:
    bad = [
        (number, batch.loss)
        for number, batch in enumerate(rank.micro_batches)
        if batch.loss and not batch.loss.is_finite
    ]
    number, loss = bad[0]
    where = f" in micro-batch {number + 1} of {len(rank.micro_batches)}" if len(rank.micro_batches) > 1 else ""
    return f"its loss was {loss.value}{where}"


def _bad_gradients(rank: RankCapture, gradients: Sequence[GradientFacts]) -> str:
    bad = [gradient for gradient in gradients if not gradient.is_finite]
    loss_is_known = rank.micro_batches and all(batch.loss for batch in rank.micro_batches)
    if not bad:
        subject = "each of them and its loss were" if loss_is_known else "each of them was"
        return f"the norm of its {counted(len(gradients), 'gradient')} was not finite, while {subject}"
    loss = "while its loss was" if loss_is_known else "and its loss is unknown"
    return f"{len(bad)} of its {counted(len(gradients), 'gradient')} were not finite, {loss}"


def compared(
    captured: RankCapture,
    losses: Sequence[LossBits],
    facts: Sequence[GradientFacts],
    reduced: Sequence[GradientFacts] | None,
) -> RankReplay:
    """Compare a run with its capture: losses and finiteness bit for bit, and gradients.

    Args:
        captured: The rank's capture.
        losses: Losses of each micro-batch in this run.
        facts: This run's gradients of this rank alone.
        reduced: The mean over all ranks of this run, or None if some were not run.
    """
    losses_before = [batch.loss for batch in captured.micro_batches]
    differ = tuple(
        number
        for number, (before, after) in enumerate(zip(losses_before, losses, strict=True))
        if before and (before.dtype, before.bits) != (after.dtype, after.bits)
    )
    captured_gradients, current = _to_compare(captured, facts, reduced)
    wrong = [name for name, gradient in captured_gradients.items() if _is_other(gradient, current.get(name))]
    if (
        not captured_gradients
    ):  # this rank's own gradients are unknown: a non-finite gradient here must have been finite in the sum
        were_finite = {(gradient.name, gradient.shape) for gradient in captured.gradients if gradient.is_finite}
        bad = [gradient for gradient in facts if not gradient.is_finite]
        wrong = [gradient.name for gradient in bad if (gradient.name, gradient.shape) in were_finite]
    else:
        wrong += sorted(current.keys() - captured_gradients.keys())
    compares_norms = bool(captured_gradients) and captured_gradients.keys() == current.keys()
    return RankReplay(
        rank=captured.rank,
        losses_equal=sum(1 for loss in losses_before if loss is not None) - len(differ),
        losses=sum(1 for loss in losses_before if loss is not None),
        micro_batches=len(losses_before),
        gradients_equal=sum(
            captured_gradients[name].xxh3_128 == gradient.xxh3_128
            for name, gradient in current.items()
            if name in captured_gradients
        ),
        gradients=len(captured_gradients),
        pattern_differs=tuple(wrong),
        losses_differ=differ,
        nonfinite=tuple(gradient for gradient in facts if not gradient.is_finite),
        is_finite=is_finite(losses, facts),
        norm_overflows=norm_overflows(facts),
        norm_differs=compares_norms
        and norm_overflows([*captured_gradients.values()]) != norm_overflows([*current.values()]),
    )


def _is_other(before: GradientFacts, after: GradientFacts | None) -> bool:
    """Return whether a gradient is finite in only one run. A missing gradient counts as zeros."""
    return before.norm != 0 if after is None else before.is_finite != after.is_finite


def _to_compare(
    captured: RankCapture, facts: Sequence[GradientFacts], reduced: Sequence[GradientFacts] | None
) -> tuple[dict[str, GradientFacts], dict[str, GradientFacts]]:
    """Return the captured and current gradients of the same ranks.

    If the ranks differ, no captured ones are returned.
    """
    if captured.world_size > 1 and reduced is not None:
        before, after = captured.gradients, reduced
    elif captured.world_size == 1:
        before, after = captured.gradients, facts
    else:
        before, after = (captured.rerun.gradients if captured.rerun is not None else ()), facts
    # For a sharded parameter, a rank stored its part, and a run has all of it: these cannot be compared.
    by_name, current = {gradient.name: gradient for gradient in before}, {gradient.name: gradient for gradient in after}
    sharded = {name for name, gradient in by_name.items() if name in current and gradient.shape != current[name].shape}
    return (
        {name: gradient for name, gradient in by_name.items() if name not in sharded},
        {name: gradient for name, gradient in current.items() if name not in sharded},
    )


def is_reproduced(ranks: Sequence[RankReplay], *, exact: bool) -> bool:
    """Return whether every loss is equal bit for bit and the same gradients are non-finite.

    With `exact`, every gradient must be equal bit for bit.
    """
    return any(rank.losses + rank.gradients for rank in ranks) and all(
        not rank.losses_differ
        and not rank.pattern_differs
        and not rank.norm_differs
        and (not exact or rank.gradients_equal == rank.gradients)
        for rank in ranks
    )


def verdict(
    captured: Sequence[RankCapture],
    replayed: Sequence[RankReplay],
    *,
    same_device: bool,
    same_host: bool = True,
    origin: Origin | None = None,
) -> tuple[NanVerdict, str]:
    """Return the origin, with the evidence.

    Three runs decide: one immediately on the same device, one later on such a device, and one on another device. For
    training on a CPU its machine has no other device. If the fault recurs there, data or model is the cause.

    Args:
        captured: Captures of the ranks that were recomputed.
        replayed: These runs, in the same order.
        same_device: Whether the device is of the kind on which they were captured.
        same_host: Whether they were run on a machine on which they were captured, so possibly on the same device.
        origin: The origin, if found.
    """
    reruns = [rank.rerun for rank in captured if rank.rerun is not None]
    bad_again = any(not rerun.is_finite for rerun in reruns)
    bad_here = any(not rank.is_finite for rank in replayed)
    if len(reruns) == len(captured) and all(rerun.is_finite for rerun in reruns):
        outcome = "recomputed immediately on the same device, it was finite"
        if all(rerun.repeats is not False for rerun in reruns):
            return NanVerdict.TRANSIENT, outcome
        outcome += ", but two recomputations differ: the device, or nondeterministic kernels"
        return NanVerdict.UNDECIDED, outcome
    on_accelerator = any(rank.device != "cpu" for rank in captured)
    if bad_here and (not same_device or not same_host or not on_accelerator):
        where = "" if same_device else " and on another kind of device"
        where = where if same_host else f"{where} and on another machine"
        outcome = f"it happens again in another process{where}"
        if origin is not None and origin.kind is OriginKind.PARAMETER:
            outcome += (
                f"; {origin.op} was not finite before this step: an earlier update or a flipped bit in memory caused "
                "it; resume from a checkpoint before that"
            )
        return NanVerdict.DATA_OR_MODEL, outcome
    if bad_here:
        return NanVerdict.UNDECIDED, "it happens again on this kind of device; a replay with --device cpu would decide"
    if bad_again and not (same_device and same_host):
        elsewhere = "such a device of another machine" if same_device else "another device"
        return NanVerdict.DEVICE, f"it happened twice on that rank's device, but not on {elsewhere}"
    outcome = "it does not happen again here; a replay on the rank's own machine would decide"
    if not same_device:
        outcome = "it does not happen on another device; a replay on the rank's own device would decide"
    return NanVerdict.UNDECIDED, outcome
