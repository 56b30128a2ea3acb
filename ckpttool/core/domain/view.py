"""The amount of detail to display, and the grouping into nodes. JSON output always has everything."""

from __future__ import annotations

from typing import Annotated

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.option import Option


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The options of a table."""

    ranks_per_node: Annotated[
        int | None,
        Option(
            "--ranks-per-node", "Also show damage per node, assuming N consecutive ranks on each.", metavar="N", least=1
        ),
    ] = None
    """Consecutive ranks per machine, from rank 0: damage is then also reported per machine. None if unknown."""
    everything: Annotated[bool, Option("--verbose -v", "Show all details and the settings in effect.")] = False
    """Show every finding, rejected checkpoint and rank, instead of only the first of each and a count."""


USUAL = View()
