"""Attribution of suspicious steps to a cause, by comparing results of the same computation on several devices.

The rule is that of Megatron-core's rerun state machine. If the same device immediately gives another result, the fault
is transient. If it gives the same result, and another device another one, the fault is persistent. If all devices give
the same result, the result is correct, and the cause is the data or the model. If a computation that would decide is
missing, the cause is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from ckpttool.core.domain.guarding import EventValue, GuardEvent, GuardEventKind
from ckpttool.core.domain.units import Rank, Step, counted
from ckpttool.guard.model.attribution import Attribution, Cause, Causes, RecordedReplay
from ckpttool.guard.model.capture import NanVerdict

MOST = 100
"""Maximum number of suspicious steps to list per report, because the files are not trusted."""

_MOST_CHARACTERS = 500

_OF_VERDICT = {
    NanVerdict.TRANSIENT.value: Cause.TRANSIENT,
    NanVerdict.DEVICE.value: Cause.PERSISTENT,
    NanVerdict.DATA_OR_MODEL.value: Cause.DATA_OR_MODEL,
}
_CERTAINTY = (Cause.PERSISTENT, Cause.TRANSIENT, Cause.DATA_OR_MODEL, Cause.UNKNOWN)
"""Causes in order of precedence for one step on one rank: a wrong product explains a NaN."""

_SUSPICIOUS = frozenset(
    {
        GuardEventKind.CAPTURE,
        GuardEventKind.CHECKSUM_ABNORMAL,
        GuardEventKind.SDC_STRIKE,
        GuardEventKind.REPLICAS_DISAGREE,
    }
)

_FINITE_EVERYWHERE = (
    "recomputed immediately without the other ranks, it was finite on every rank: one of the devices, or the "
    "connection between them"
)
_REPLAY_ELSEWHERE = "guard replay with --record, on another device or machine, would decide"
_REPLAY = "guard replay with --record would decide"
_NEXT_STEP = "this rank's next step, recomputed immediately,"


class SuspiciousSteps:
    """Collector of the suspicious steps of all ranks, in bounded memory."""

    def __init__(self) -> None:
        self._steps: dict[tuple[Step, Rank | None, GuardEventKind], tuple[GuardEvent, str]] = {}
        self._again: dict[tuple[Rank, str, int], Mapping[str, EventValue]] = {}
        self._finite_again: dict[Step, set[Rank]] = {}

    def add(self, event: GuardEvent, rank: Rank, host: str) -> None:
        """Add an event of a rank's file.

        Args:
            event: Any event.
            rank: The rank of the file.
            host: The host of its process.
        """
        values = event.values
        if event.kind is GuardEventKind.RECOMPUTED:
            of_step = values.get("of_step")
            if isinstance(of_step, int) and len(self._again) < MOST:
                self._again.setdefault((rank, _text(values, "suspicion"), of_step), {**values, "step": event.step})
            return
        if event.kind not in _SUSPICIOUS:
            return
        if values.get("finite_again") is True and values.get("repeats") is not False and len(self._finite_again) < MOST:
            self._finite_again.setdefault(event.step, set()).add(rank)
        for suspect in _suspects(event, rank):
            key = (event.step, suspect, event.kind)
            before = self._steps.get(key)
            if (before is None and len(self._steps) < MOST) or (before is not None and _is_worse(event, before[0])):
                self._steps[key] = (event, host if suspect == rank else "")

    def attributions(
        self,
        replays: Mapping[str, Sequence[RecordedReplay]],
        *,
        world_size: int | None = None,
        hosts: Mapping[Rank, str] = MappingProxyType({}),
    ) -> tuple[Attribution, ...]:
        """Return one cause per step and rank, by step.

        Args:
            replays: The recorded replays of each capture, by the capture's path in the event.
            world_size: The number of ranks, or None if unknown.
            hosts: The host of each rank, for an event in the file of another rank.
        """
        by_place: dict[tuple[Step, Rank | None], Attribution] = {}
        for (step, rank, kind), (event, host) in self._steps.items():
            cause, why = self._cause(event, rank, replays)
            is_open = kind is GuardEventKind.CAPTURE and rank is None and cause is Cause.UNKNOWN
            if is_open and len(self._finite_again.get(step, ())) == world_size:
                cause, why = Cause.TRANSIENT, _FINITE_EVERYWHERE
            attribution = Attribution(
                step=step,
                rank=rank,
                host=_text(event.values, "host") or host or ("" if rank is None else hosts.get(rank, "")),
                device=_text(event.values, "device"),
                suspicion=GuardEventKind.NONFINITE.value if kind is GuardEventKind.CAPTURE else kind.value,
                cause=cause,
                why=why,
            )
            before = by_place.get((step, rank))
            if before is None or _CERTAINTY.index(cause) < _CERTAINTY.index(before.cause):
                by_place[step, rank] = attribution
        known = {step for step, rank in by_place if rank is not None}
        listed = (one for one in by_place.values() if one.rank is not None or one.step not in known)
        return tuple(sorted(listed, key=lambda one: (one.step, -1 if one.rank is None else one.rank)))

    def _cause(
        self, event: GuardEvent, rank: Rank | None, replays: Mapping[str, Sequence[RecordedReplay]]
    ) -> tuple[Cause, str]:
        values = event.values
        if event.kind is GuardEventKind.CHECKSUM_ABNORMAL:
            return _of_product(values)
        if event.kind is GuardEventKind.CAPTURE:
            recorded = [
                replay for replay in replays.get(_text(values, "path"), ()) if rank is None or rank in replay.ranks
            ]
            control = None if rank is None else self._again.get((rank, GuardEventKind.RECOMPUTED.value, event.step))
            return of_replays(recorded) or _of_capture(values, rank, control)
        if rank is None:
            return Cause.UNKNOWN, "the rank is unknown; checks of matrix products (patrol=...) would name it"
        again = self._again.get((rank, event.kind.value, event.step))
        control = None
        if again is not None and again.get("same") is False:
            control = self._again.get((rank, GuardEventKind.RECOMPUTED.value, _integer(again, "step")))
        return of_comparison(again, control)


def _suspects(event: GuardEvent, rank: Rank) -> Iterable[Rank | None]:
    values = event.values
    if event.kind is GuardEventKind.CAPTURE:
        return [rank if values.get("culprit") is True else None]
    ranks = values.get("ranks")
    if event.kind is GuardEventKind.REPLICAS_DISAGREE:
        numbers = ranks[:MOST] if isinstance(ranks, list) else []
        return [one for one in map(_rank, numbers) if one is not None] or [None]
    own = _rank(values.get("rank"))
    return [rank if own is None and event.kind is GuardEventKind.CHECKSUM_ABNORMAL else own]


def _rank(value: EventValue) -> Rank | None:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return Rank(value) if is_number and isinstance(value, int) and value >= 0 else None


def _is_worse(event: GuardEvent, before: GuardEvent) -> bool:
    """Return whether an event shows more than an earlier one of the same step, rank and kind."""
    return event.values.get("fault") == "persistent" and before.values.get("fault") != "persistent"


def _of_product(values: Mapping[str, EventValue]) -> tuple[Cause, str]:
    where = f"a matrix product ({_text(values, 'op')}) was wrong"
    if values.get("fault") == "persistent":
        return Cause.PERSISTENT, f"{where}, and had the same wrong bits when it was recomputed on the device"
    if values.get("fault") == "transient":
        return Cause.TRANSIENT, f"{where}, and had other bits when it was recomputed on the device"
    return Cause.UNKNOWN, f"{where}; no second result is recorded"


def _of_capture(
    values: Mapping[str, EventValue], rank: Rank | None, control: Mapping[str, EventValue] | None
) -> tuple[Cause, str]:
    finite = values.get("finite_again")
    if rank is None:
        return Cause.UNKNOWN, (
            "no rank is known to have computed it: each value was finite before the ranks were averaged, or unknown; "
            f"{_REPLAY}"
        )
    if finite is True or (finite is None and values.get("verdict") == "transient"):
        if values.get("repeats") is False:
            return Cause.UNKNOWN, (
                "it was finite when recomputed immediately, but two such computations differ: the device, or "
                "nondeterministic kernels; torch.use_deterministic_algorithms(True) would decide at the next time"
            )
        if control is not None and control.get("same") is False:
            return Cause.UNKNOWN, (
                "it was finite when recomputed immediately, but the next step, too, has other bits then: the device, "
                "or the recomputation is not the same (a loss_of that differs, code that changes gradients); "
                f"{_REPLAY}"
            )
        confirmed = control is not None and control.get("same") is True
        add = "; the next step, recomputed as a control, had the same bits" if confirmed else ""
        return Cause.TRANSIENT, f"recomputed immediately on the same device, it was finite{add}"
    if finite is False:
        return Cause.UNKNOWN, f"recomputed immediately on the same device, it was not finite again; {_REPLAY_ELSEWHERE}"
    why_not = _text(values, "not_recomputed")
    return Cause.UNKNOWN, f"not recomputed{f': {why_not}' if why_not else ''}; {_REPLAY}"


def of_replays(replays: Sequence[RecordedReplay]) -> tuple[Cause, str] | None:
    """Return the cause that recorded replays of one rank show, or None if they do not decide."""
    decided = [(replay, _OF_VERDICT[replay.verdict]) for replay in replays if replay.verdict in _OF_VERDICT]
    if not decided:
        return None
    causes = {cause for _, cause in decided}
    places = " and ".join(f"{replay.device} of {replay.host}" for replay, _ in decided[:2])
    if len(causes) > 1:
        return Cause.UNKNOWN, f"replays have different results, on {places}; one more on another machine would decide"
    return decided[0][1], f"{decided[0][0].why} (replayed on {places})"


def of_comparison(
    again: Mapping[str, EventValue] | None, control: Mapping[str, EventValue] | None
) -> tuple[Cause, str]:
    """Return the cause of a fault in finite values.

    When the fault is noticed, its step is already over, so a later step is recomputed and compared.

    Args:
        again: The event of that step, or None without such an event.
        control: The event of the step after it, which no fault made suspicious, or None without such an event.
    """
    if again is None:
        return Cause.UNKNOWN, "no step was recomputed after it; checks of matrix products (patrol=...) would decide"
    same = again.get("same")
    if same is True:
        return Cause.UNKNOWN, f"{_NEXT_STEP} had the same bits; a wrong matrix product (patrol=...) would decide"
    if same is None:
        return Cause.UNKNOWN, f"not recomputed: {_text(again, 'not_recomputed') or 'no reason is recorded'}"
    if control is not None and control.get("same") is True:
        return Cause.TRANSIENT, f"{_NEXT_STEP} had other bits, and the step after it had the same"
    if control is not None and control.get("same") is False:
        return Cause.UNKNOWN, (
            f"{_NEXT_STEP} had other bits, but so had the step after it: the device, nondeterministic kernels, or a "
            "loss_of that differs from the training; torch.use_deterministic_algorithms(True) would decide"
        )
    return Cause.UNKNOWN, f"{_NEXT_STEP} had other bits; the training did not compute another step to compare"


def causes(attributions: Sequence[Attribution]) -> tuple[Causes, ...]:
    """Return the number of each cause by host and rank, with the most urgent causes first."""
    counts: dict[tuple[str, Rank | None], Counter[Cause]] = {}
    devices: dict[tuple[str, Rank | None], str] = {}
    for attribution in attributions:
        place = attribution.host, attribution.rank
        counts.setdefault(place, Counter())[attribution.cause] += 1
        devices[place] = attribution.device or devices.get(place, "")
    rows = [
        Causes(
            host=host,
            rank=rank,
            device=devices[host, rank],
            transient=count[Cause.TRANSIENT],
            persistent=count[Cause.PERSISTENT],
            data_or_model=count[Cause.DATA_OR_MODEL],
            unknown=count[Cause.UNKNOWN],
            advice=_advice(host, devices[host, rank], count),
        )
        for (host, rank), count in counts.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.persistent, -row.transient, row.host, row.rank or 0)))


def _advice(host: str, device: str, count: Counter[Cause]) -> str:
    where = " of ".join(part for part in (device, host) if part) or "its device"
    if count[Cause.PERSISTENT]:
        return f"drain {host or 'its host'}, and test {device or 'its device'} before it trains again"
    if count[Cause.TRANSIENT] > 1:
        return f"drain {host or 'its host'}: {where} erred {counted(count[Cause.TRANSIENT], 'time')}"
    if count[Cause.TRANSIENT]:
        return f"keep training, and drain {host or 'its host'} if {where} errs again"
    if count[Cause.DATA_OR_MODEL]:
        return "check the data and the model of the captured step; the device is not the cause"
    return "the evidence names the computation that would decide"


def _text(values: Mapping[str, EventValue], key: str) -> str:
    value = values.get(key)
    return value[:_MOST_CHARACTERS] if isinstance(value, str) else ""


def _integer(values: Mapping[str, EventValue], key: str) -> int:
    value = values.get(key)
    return value if isinstance(value, int) else -1
