"""Level of detail in tables, and grouping of ranks by node. JSON output is always complete."""

from __future__ import annotations

from typing import Annotated

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.option import Option


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Display options of a table."""

    ranks_per_node: Annotated[
        int | None,
        Option(
            "--ranks-per-node", "Also show damage per node, assuming N consecutive ranks on each.", metavar="N", least=1
        ),
    ] = None
    """Number of consecutive ranks per machine, from rank 0, to also report damage per machine; None if unknown."""
    everything: Annotated[bool, Option("--verbose -v", "Show all details and the settings in effect.")] = False
    """Whether to show every finding, rejected checkpoint and rank, instead of only the first of each and a count."""


USUAL = View()
