"""The answer of `demo`: a small damaged tree for experiments."""

from __future__ import annotations

from ckpttool.core.domain.answers import Answered
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.errors import ExitCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo(Answered):
    """Location of the demo tree, and its damage."""

    NOUN = "demo"

    folder: str
    """The folder, as the user typed it; the following paths are relative to it."""
    tree: str
    """The folder of the checkpoints."""
    config: str
    """The training config of the run that wrote the tree."""
    damaged: tuple[str, ...]
    """The truncated shards."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code, always 0, because the folder was written."""
        return ExitCode.OK
