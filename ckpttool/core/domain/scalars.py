"""Training scalars: small values that a trainer saves with the tensors, and the rules about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ckpttool.core.domain.finding import Row, Severity
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.shard import RecordedEntries, ShardRole

ScalarValues: TypeAlias = "tuple[tuple[str, int | float], ...]"
"""Scalars of one file by the trainer's names, sorted; absent scalars are left out."""

_ALWAYS_SPELLED = ("epoch_num", "step_num", "global_step", "loss_scale", "global_batch_size", "consumed_samples")
"""Keys that manifests and ledgers always contain; the value is null if a file has no such scalar."""


def encode_scalars(values: ScalarValues) -> dict[str, int | float | None]:
    """Encode scalars in the form that ckpttool's own records use."""
    return {**dict.fromkeys(_ALWAYS_SPELLED), **dict(values)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalars:
    """Progress of a save according to the values inside it; None for values that no file records."""

    step: int | None = None
    """Number of batches consumed."""
    samples: int | None = None
    tokens: int | None = None
    global_batch_size: int | None = None
    """Samples per batch over all ranks."""
    rest: ScalarValues = ()
    """Other scalars, by the trainer's names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedScalar:
    """Description of a one-element tensor to read from a file."""

    name: str
    is_integer: bool = True
    """Whether the value must be an integer."""
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
    """Value of a scalar according to the name of a save."""

    scalar: str
    value: int
    at_least: bool = False
    """Whether a larger value is also consistent with the name."""
    message: str
    """Message if the actual value contradicts the name, with `%d` for the actual value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarRules:
    """Scalars in the files of a layout, and the rules about them."""

    requested: tuple[RequestedScalar, ...] = ()
    """The scalars to read, in the order of the request."""
    required: tuple[tuple[ShardRole, tuple[str, ...]], ...] = ()
    """Scalars that the files of each role must contain, regardless of the other files."""
    agreed: tuple[AgreedScalar, ...] = ()
    without: str | None = None
    """Consequence in the trainer if a file lacks a required scalar."""
    without_batch_size: str | None = None
    """Description of the trainer's files that need not contain a batch size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFacts:
    """Facts that a layout knows about a file before it is opened."""

    scalars: tuple[RequestedScalar, ...] = ()
    """The scalars to read from the file."""
    entries: RecordedEntries = ()
    """Tensors that the file must contain according to the save's own record; empty if there is no record."""


NO_FACTS = ShardFacts()
NO_RULES = ScalarRules()


Facts: TypeAlias = "tuple[tuple[str, int | None], ...]"
"""Facts about a save for display, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnScalars:
    """Scalars in one trainer's files, with their meaning."""

    rules: ScalarRules
    meaning: Callable[[ScalarValues], tuple[Scalars, Facts]]
    """Function that returns the meaning of one file's scalars."""
