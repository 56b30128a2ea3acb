"""Training scalars: small values that a trainer saves with the tensors, and the rules about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ckpttool.core.domain.finding import Row, Severity
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.shard import ShardRole

ScalarValues: TypeAlias = "tuple[tuple[str, int | float], ...]"
"""What one file says, by the trainer's own names, sorted; what it does not say is not there."""

_ALWAYS_SPELLED = ("epoch_num", "step_num", "global_step", "loss_scale", "global_batch_size", "consumed_samples")
"""What manifests and ledgers have had from the first on, null where a file has no such scalar."""


def encode_scalars(values: ScalarValues) -> dict[str, int | float | None]:
    """Return the values in the form of our own records."""
    return {**dict.fromkeys(_ALWAYS_SPELLED), **dict(values)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalars:
    """A save's progress, from the values inside it; None if no file records it."""

    step: int | None = None
    """Batches consumed."""
    samples: int | None = None
    tokens: int | None = None
    global_batch_size: int | None = None
    """Samples a batch over all ranks."""
    rest: ScalarValues = ()
    """What else its trainer saves, by the trainer's own names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedScalar:
    """A one-element tensor to read from a file."""

    name: str
    is_integer: bool = True
    """Whether it must be a whole number."""
    least: int = 0
    """Smallest legal value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreedScalar:
    """A scalar that must be equal on all ranks."""

    name: str
    code: Row
    """What it is called where one does not."""
    severity: Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class NameClaim:
    """The value of a scalar according to the name of a save."""

    scalar: str
    value: int
    at_least: bool = False
    """Whether a larger one agrees, too."""
    message: str
    """What to say where it does not, with `%d` for what is inside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarRules:
    """The scalars in the files of a layout, and the rules about them."""

    requested: tuple[RequestedScalar, ...] = ()
    """In the order in which they are named."""
    required: tuple[tuple[ShardRole, tuple[str, ...]], ...] = ()
    """Roles whose files must hold scalars, and which whatever their siblings hold."""
    agreed: tuple[AgreedScalar, ...] = ()
    without: str | None = None
    """What the trainer does with a file that lacks one."""
    without_batch_size: str | None = None
    """Which of the trainer's files hold no batch size by right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFacts:
    """The facts that a layout knows about a file before it is opened."""

    scalars: tuple[RequestedScalar, ...] = ()
    """To be read from it."""


NO_FACTS = ShardFacts()
NO_RULES = ScalarRules()


Facts: TypeAlias = "tuple[tuple[str, int | None], ...]"
"""What is shown of a save, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnScalars:
    """The training scalars in one trainer's files."""

    rules: ScalarRules
    meaning: Callable[[ScalarValues], tuple[Scalars, Facts]]
    """Says what those of one file mean."""
