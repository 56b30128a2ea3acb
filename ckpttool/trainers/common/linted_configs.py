"""Configs of trainers that ckpttool does not start: their mistakes, and their number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ckpttool.core.decide.lint_engine import Rule, View, findings, problems
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.settings import RunConfig
from ckpttool.core.formats.config_text import ConfigFile
from ckpttool.core.formats.safe_yaml import settings_of

if TYPE_CHECKING:
    from ckpttool.core.domain.finding import Finding
    from ckpttool.core.domain.settings import SafeFix


def _not_reported(view: View) -> None:
    del view


@dataclass(frozen=True, slots=True, kw_only=True)
class LintedConfigs:
    """Reader of the configs of a trainer that ckpttool does not start."""

    trainer: str
    """Name of the trainer."""
    words: tuple[str, ...]
    """Words that identify a config.

    A file that contains none of these words is not parsed.
    """
    is_own: Callable[[View], bool]
    """Recognizes a config by keys that no other trainer uses."""
    rules: tuple[Rule[View], ...]
    replicas: Callable[[View], int | None] = _not_reported
    """Counts the config's data-parallel ranks; None if the number is not set, or depends on the start."""
    batch: Callable[[View], int | None] = _not_reported
    """Returns the config's global batch size; None if it is not set, or depends on the start."""

    def may_be_own(self, content: bytes) -> bool:
        """Return whether the file contains any of the trainer's own words."""
        return any(key.encode() in content for key in self.words)

    def read(self, file: ConfigFile, *, devices: int | None = None) -> RunConfig | None:
        """Return the config; None if the file has none of the trainer's own keys in their proper places."""
        del devices
        if not self.may_be_own(file.content):
            return None
        settings = settings_of(file.document, path=file.path)
        view = View(settings)
        if not self.is_own(view):
            return None
        return RunConfig(
            trainer=self.trainer,
            path=file.path,
            text=file.document.text,
            settings=settings,
            world_size=None,
            global_batch_size=self.batch(view),
            sink_size=None,
            prefix=None,
            findings=(),
            replicas=self.replicas(view),
        )

    def saves_in(self, config: RunConfig) -> str | None:
        """Return None, because the trainer has only one layout."""
        del config
        return None

    def lint(self, config: RunConfig) -> tuple[Finding, ...]:
        """Check the config by the trainer's rules."""
        view = View(config.settings)
        return findings(view, problems(view, self.rules), path=config.path)

    def fixes(self, config: RunConfig) -> tuple[SafeFix, ...]:
        """Return no fixes, because the user may have intended the settings that these rules report."""
        del config
        return ()
