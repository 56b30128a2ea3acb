"""Where the data go on after a resume, in the trainer's own currency."""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from ckpttool.domain.frozen import dataclass


class DataEffect(str, Enum):
    """What becomes of the samples."""

    EXACT = "exact"
    REPEATS = "repeats"
    LOSES = "loses"
    REORDERS = "reorders"
    RESTARTS = "restarts"
    """The data begin anew."""
    REFUSES = "refuses"
    """The trainer stops."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipBatches:
    """The data loader drops what was consumed, in batches of the *new* global batch size."""

    batches: int
    """Batches to skip."""
    repeated_samples: int | None
    """Samples that the resumed run sees a second time, because the skip is a whole number of batches (and sinks).
    None where there are some, but no batch size tells how many."""
    samples: int | None
    """Samples consumed before the place where the data go on; None where the batch size is not known (and not needed).
    """
    global_batch_size: int | None
    """New global batch size in samples; None where neither a shard nor the user told it."""
    sink_size: int | None = None
    """Batches a data sink, where the skip was rounded down to a multiple of it."""
    lost_samples: int | None = 0
    """Samples that are left out on purpose, to get around them; None: some, but no batch size tells how many."""
    begins_anew: bool = False
    """Whether the data are new, so that what was consumed of the old ones does not count."""

    @property
    def effect(self) -> DataEffect:
        """What becomes of the samples, the gravest first."""
        if self.begins_anew:
            return DataEffect.RESTARTS
        if self.lost_samples != 0:
            return DataEffect.LOSES
        return DataEffect.EXACT if self.repeated_samples == 0 else DataEffect.REPEATS


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The trainer goes on behind so many samples by itself, however large its batches are."""

    samples: int
    effect: DataEffect
    unchanged: SkipBatches
    """What that comes to if the batches stay as large as they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The trainer goes on behind so many tokens by itself."""

    tokens: int
    effect: DataEffect


@dataclass(frozen=True, slots=True, kw_only=True)
class Stateful:
    """The data loader goes on from states that it saved itself, whatever the settings say."""

    where: str
    """Folder or file of the states, as the trainer will look for it."""
    without: SkipBatches | None
    """What would be skipped if there were none; None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Nobody can say where the data go on."""

    why: str
    """One sentence."""


DataPosition: TypeAlias = SkipBatches | Samples | Tokens | Stateful | Unknown


def effect_of(position: DataPosition) -> DataEffect:
    """Return what becomes of the samples."""
    match position:
        case SkipBatches() | Samples() | Tokens():
            return position.effect
        case Stateful():
            return DataEffect.EXACT
        case Unknown():  # pragma: no branch  mypy knows all
            return DataEffect.UNKNOWN


def skip_of(position: DataPosition) -> SkipBatches | None:
    """Return the batches that are skipped, or would be if nothing changed; None where no batches are counted."""
    match position:
        case SkipBatches():
            return position
        case Samples():
            return position.unchanged
        case Stateful():
            return position.without
        case Tokens() | Unknown():  # pragma: no branch  mypy knows all
            return None
