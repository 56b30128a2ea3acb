"""Training scalars: small values that a trainer saves with the tensors, and the rules about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ckpttool.core.domain.finding import Row, Severity
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.shard import RecordedEntries, ShardRole

ScalarValues: TypeAlias = "tuple[tuple[str, int | float], ...]"
"""The scalars of one file, by the trainer's names, sorted; absent scalars are left out."""

_ALWAYS_SPELLED = ("epoch_num", "step_num", "global_step", "loss_scale", "global_batch_size", "consumed_samples")
"""Keys that manifests and ledgers have always had; the value is null if a file has no such scalar."""


def encode_scalars(values: ScalarValues) -> dict[str, int | float | None]:
    """Return the values in the form that our own records use."""
    return {**dict.fromkeys(_ALWAYS_SPELLED), **dict(values)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalars:
    """A save's progress, from the values inside it; None if no file records it."""

    step: int | None = None
    """Batches consumed."""
    samples: int | None = None
    tokens: int | None = None
    global_batch_size: int | None = None
    """Samples per batch over all ranks."""
    rest: ScalarValues = ()
    """The trainer's other scalars, by its own names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedScalar:
    """A one-element tensor to read from a file."""

    name: str
    is_integer: bool = True
    """Whether it must be an integer."""
    least: int = 0
    """Smallest legal value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreedScalar:
    """A scalar that must be equal on all ranks."""

    name: str
    code: Row
    """Code of the finding if the values differ."""
    severity: Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class NameClaim:
    """The value of a scalar according to the name of a save."""

    scalar: str
    value: int
    at_least: bool = False
    """Whether a larger value also agrees with the name."""
    message: str
    """Message if the value inside contradicts the name, with `%d` for the value inside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarRules:
    """The scalars in the files of a layout, and the rules about them."""

    requested: tuple[RequestedScalar, ...] = ()
    """The scalars to read, in the order of the request."""
    required: tuple[tuple[ShardRole, tuple[str, ...]], ...] = ()
    """Roles whose files must contain scalars, and the scalars that each needs, regardless of the other files."""
    agreed: tuple[AgreedScalar, ...] = ()
    without: str | None = None
    """The trainer's reaction to a file that lacks a required scalar."""
    without_batch_size: str | None = None
    """The files of the trainer that legitimately contain no batch size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFacts:
    """The facts that a layout knows about a file before it is opened."""

    scalars: tuple[RequestedScalar, ...] = ()
    """The scalars to read from the file."""
    entries: RecordedEntries = ()
    """Tensors that the file must contain according to its save's own record; empty if there is no record."""


NO_FACTS = ShardFacts()
NO_RULES = ScalarRules()


Facts: TypeAlias = "tuple[tuple[str, int | None], ...]"
"""The facts for display of a save, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnScalars:
    """The training scalars in one trainer's files."""

    rules: ScalarRules
    meaning: Callable[[ScalarValues], tuple[Scalars, Facts]]
    """Returns the meaning of one file's scalars."""
