"""When matrix products and replicas are checked: after a strike, on patrol, every so many steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from torch.nn.parallel import DistributedDataParallel

from ckpttool.core.domain.guarding import EventValue, GuardEventKind
from ckpttool.core.domain.units import Rank, Step, on_ranks
from ckpttool.core.errors import UsageError
from ckpttool.core.storage import path_text
from ckpttool.guard.agree import Ranks
from ckpttool.guard.capture.settings import CaptureSettings
from ckpttool.guard.checksum import MatmulChecksum
from ckpttool.guard.contain import Containment, Part
from ckpttool.guard.model.guarding import GuardMode
from ckpttool.guard.replicas import Disagreement, ReplicaCheck

if TYPE_CHECKING:
    from torch import nn

T = TypeVar("T")

_CLOSER = 20
"""Steps that are checked after a result that was not finite, and then was."""


class Checks:
    """Stands around forward and backward of the steps that are checked, and compares replicas between steps."""

    def __init__(
        self, model: nn.Module, ranks: Ranks, contain: Containment, *, patrol: int, replica_every: int
    ) -> None:
        """Begin to count steps.

        Args:
            model: As it is trained.
            ranks: That train together.
            contain: What keeps exceptions in, and whom wrong products are told to.
            patrol: Matrix products are checked in one step of so many; 0: only after a strike.
            replica_every: Steps between two comparisons of weights over ranks; 0: never.

        Raises:
            UsageError: A number of steps is none.
        """
        for name, steps in (("patrol", patrol), ("replica_every", replica_every)):
            if type(steps) is not int or steps < 0:
                raise UsageError(f"{name} is a number of steps, 0 for never, not {steps!r}")
        self._patrol = patrol
        self._replica_every = replica_every
        self._model = model
        self._ranks = ranks
        self._contain = contain
        self._checksum: MatmulChecksum | None = None
        self._is_inside = False
        self._closer_until = Step(-1)
        self._replicas = ReplicaCheck(model) if isinstance(model, DistributedDataParallel) else None

    def enter(self, step: Step, *, runs: bool) -> None:
        """Begin forward and backward of a micro-batch.

        Args:
            step: That is trained now.
            runs: Whether the ranks agreed to check every step.
        """
        self.leave()  # an exception may have ended the last one where nobody told
        is_patrol = self._patrol > 0 and step % self._patrol == 0
        if (runs or is_patrol or step <= self._closer_until) and self._contain.is_on(Part.CHECKSUM):
            self._run(lambda: self._begin(step))

    def look_closer(self, step: Step) -> None:
        """Check the products of the next steps on this rank: at this one it computed what it does not compute again."""
        self._closer_until = Step(step + _CLOSER)

    def leave(self) -> None:
        """End forward and backward of a micro-batch."""
        if self._is_inside and (checksum := self._checksum) is not None:
            self._is_inside = False
            # Also where it was switched off meanwhile: what stands around everything else must go.
            self._contain.run(Part.CHECKSUM, lambda: checksum.__exit__(None, None, None), waits=True, always=True)

    def take_abnormal(self) -> bool:
        """Tell whether a product was wrong on this rank since this was asked last."""
        return self._checksum is not None and (self._run(self._checksum.take_abnormal) or False)

    def fields(self) -> dict[str, EventValue]:
        """Return what was checked in this step, for its line."""
        summary = {} if self._checksum is None else self._checksum.summary()
        return {"checked": summary} if summary.get("products") else {}

    def compare_replicas(self, step: Step) -> None:
        """Compare the weights of all ranks, where it is time. Every rank must call it in each step: it takes all."""
        if self._replicas is None or self._replica_every == 0 or step % self._replica_every:
            return
        hashes = self._contain.run(Part.CHECKSUM, self._replicas.hashes)
        disagreement = self._replicas.compare(hashes)
        if disagreement is not None:
            self._contain.emit(
                GuardEventKind.REPLICAS_DISAGREE,
                step=step,
                parameters=[*disagreement.parameters],
                count=disagreement.count,
                ranks=[*disagreement.ranks],
                message=_disagreement(disagreement),
            )

    def _begin(self, step: Step) -> None:
        if self._checksum is None:
            bare = self._model.module if isinstance(self._model, DistributedDataParallel) else self._model
            self._checksum = MatmulChecksum(bare, self._contain.emit, rank=Rank(self._ranks.own), contained=self._run)
        self._checksum.step = step
        self._checksum.__enter__()
        self._is_inside = True

    def _run(self, call: Callable[[], T]) -> T | None:
        """A checked step is slow, and is meant to be: that is not the guard's share of an ordinary one."""
        return self._contain.run(Part.CHECKSUM, call, waits=True)


def _disagreement(disagreement: Disagreement) -> str:
    names = ", ".join(disagreement.parameters)
    more = (
        f" and {disagreement.count - len(disagreement.parameters)} more"
        if disagreement.count > len(disagreement.parameters)
        else ""
    )
    on_which = f": another one on {on_ranks(disagreement.ranks)}" if disagreement.ranks else ""
    return f"weights differ from rank to rank{on_which}, in {names}{more}"


def refuse_settings(output: object, policy: object, scaler: object, capture: object, step: object) -> None:
    """Refuse what a guard cannot mean, before it stands anywhere.

    Raises:
        UsageError: A setting is such.
    """
    if output is not None:
        path_text(output, "output")
    if policy is not None and (isinstance(policy, type) or not hasattr(policy, "begin")):
        raise UsageError(f"a policy is an object, as RobustZPolicy() makes one, not {policy!r}")
    if scaler is not None and not (hasattr(scaler, "get_scale") and hasattr(scaler, "is_enabled")):
        raise UsageError(f"scaler is a loss scaler, as torch.amp.GradScaler() makes one, not {scaler!r}")
    if capture is not None and not isinstance(capture, CaptureSettings):
        raise UsageError(f"capture is CaptureSettings(...), or None for no captures, not {capture!r}")
    if type(step) is not int or step < 0:
        raise UsageError(f"step is a number of steps that were done, not {step!r}")


def mode_of(setting: GuardMode | str) -> GuardMode:
    """Return what a guard does.

    Raises:
        UsageError: There is no such mode.
    """
    try:
        return GuardMode(setting)
    except ValueError:
        raise UsageError(f"a guard can act or watch, not {setting!r}") from None


def stops_at_abnormal(setting: str) -> bool:
    """Return what follows from a wrong product: whether the training ends.

    Raises:
        UsageError: It is neither `warn` nor `stop`.
    """
    if setting not in {"warn", "stop"}:
        raise UsageError(f"on_abnormal can be 'warn' or 'stop', not {setting!r}")
    return setting == "stop"
