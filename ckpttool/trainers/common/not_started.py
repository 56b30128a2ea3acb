"""What trainers answer of which ckpttool reads the saves, and starts no training.

The answers are final: a trainer of which more is known answers all such questions itself, and none in silence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ckpttool.core.domain.expectation import Evidence

if TYPE_CHECKING:
    from ckpttool.core.domain.settings import RunConfig
    from ckpttool.core.storage.base import Storage


class NotStarted:
    """A trainer that ckpttool does not start; beside its saves it keeps nothing that is read."""

    health_file: Final = None
    launch: Final = None
    asd_dialects: Final = ()
    scalars: Final = None

    def evidence(self, output: Storage, config: RunConfig | None) -> Evidence:
        """Say nothing: each save tells itself what belongs to it."""
        return Evidence()


class WithoutLogs(NotStarted):
    """One whose logs are not read, so that it is told nothing of what they advise."""

    log_formats: Final = ()
    log_places: Final = None
    words: Final = None
