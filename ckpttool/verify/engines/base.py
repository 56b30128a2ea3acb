"""The seam for engines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from ckpttool.domain.frozen import dataclass
from ckpttool.domain.verdict import CheckTask
from ckpttool.verify.observation import Observation


class Engine(Protocol):
    """Runs check tasks."""

    def run(self, tasks: Sequence[CheckTask]) -> Iterator[Observation]:
        """Yield one observation a task, in any order, as they finish."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """Who reads what of a tree; the same engine may do both."""

    tasks: Engine
    """The shards that were asked for, as hard as was asked for."""
    headers: Engine
    """The headers of their siblings."""
