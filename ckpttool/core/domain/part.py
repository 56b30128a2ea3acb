"""A part: what one of several machines writes down of what it sees of a tree, so that another can answer for all."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from ckpttool.core.domain.answered import Answered
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.manifest import Sealing
from ckpttool.core.domain.merge import Seat
from ckpttool.core.domain.units import ByteCount, Rank
from ckpttool.core.domain.verdict import VerdictWord
from ckpttool.core.errors import ExitCode

if TYPE_CHECKING:
    from ckpttool.core.domain.question import CheckQuestion, TreeQuestion

MOST_PART_BYTES = ByteCount(64 << 20)
"""Of one part: those of 8 ranks have some 20 KB."""

MOST_PARTS_BYTES = ByteCount(2 << 30)
"""Of all parts of a tree together."""


class Split(str, Enum):
    """Among whom the files that are seen from here are divided."""

    AUTO = "auto"
    """All parts where other machines see the disk, else those of this machine."""
    NODE = "node"
    """The processes that the launcher started on this machine."""
    ALL = "all"
    """All parts."""
    NONE = "none"
    """Nobody: each looks at all that it sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartQuestion:
    """What to look at, which part it is, and where it goes."""

    tree: TreeQuestion
    check: CheckQuestion
    """How hard to look, and at which saves; of all others the headers are looked at."""
    out: str
    """A file, or a folder."""
    part: str = "auto"
    """`I/N`; `auto`, or `auto/N` where a launcher does not tell of how many."""
    split: Split = Split.AUTO
    ranks: tuple[Rank, ...] | None = None
    """Those that will start on this machine; None: not said."""
    devices_per_node: int | None = None
    """From which they follow, with the machine's number; None: not said."""
    run: str | None = None
    """What is the same in all parts of this look; None: what the launcher says."""
    seal: bool = False
    """Also record checksums of the shards that are seen from here, and read for that what `check` names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartWritten(Answered):
    """A part that is written, whatever it found."""

    NOUN = "part"

    seat: Seat
    """Which part it is."""
    version: str
    """Of the ckpttool that looked."""
    path: str
    """Where it is."""
    nbytes: ByteCount
    """Its length."""
    resolved_from: str | None
    """What was looked at instead of the path that was given, for people."""
    found: bool
    """Whether there is a tree."""
    words: tuple[tuple[VerdictWord, int], ...]
    """How many shards are what by themselves, the best word first: others may know more of them."""

    sealings: tuple[Sealing, ...] | None = None
    """What was sealed, newest save first; None where that was not asked for."""

    @property
    def exit_code(self) -> ExitCode:
        """0: a part is an answer whatever it found."""
        return ExitCode.OK

    @property
    def shards(self) -> int:
        """How many shards were looked at."""
        return sum(count for _, count in self.words)
