"""A small damaged tree to try things on."""

from __future__ import annotations

from ckpttool.core.domain.answers import Answered
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.errors import ExitCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo(Answered):
    """The folder of the demo tree, and its damage."""

    NOUN = "demo"

    folder: str
    """The folder, as the user gave it; the following paths are relative to it."""
    tree: str
    """The folder of the checkpoints."""
    config: str
    """The training config that the run was started with."""
    damaged: tuple[str, ...]
    """The shards that are truncated."""

    @property
    def exit_code(self) -> ExitCode:
        """Return 0, because the folder was written."""
        return ExitCode.OK
