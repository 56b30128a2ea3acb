"""A config as MindFormers reads it: its callbacks, its stages, its layout."""

from __future__ import annotations

from ckpttool.decide.lint_engine import View
from ckpttool.domain.settings import dotted
from ckpttool.trainers.mindformers.train_config import AUTO_PARALLEL, LEGACY_SWITCHES

KEPT_CHECKPOINTS = 5
"""MindFormers' default of `keep_checkpoint_max` and of `save_max`."""


class ConfigView(View):
    """A config to look things up in, by dotted keys: `runner_config.sink_size`, `callbacks.1.prefix`."""

    def callbacks(self, kind: str) -> list[str]:
        """Return the keys of the callbacks of a type, in order: `callbacks.1`."""
        return [
            dotted(entry.key) for entry in self.inside("callbacks") if self.get(f"{dotted(entry.key)}.type") == kind
        ]

    @property
    def stages(self) -> int:
        """Pipeline stages: 1 without automatic parallelism, whatever is set."""
        return max(self.count("parallel_config.pipeline_stage"), 1) if self.is_auto_parallel else 1

    @property
    def is_auto_parallel(self) -> bool:
        """Whether the sizes of `parallel_config` count."""
        mode = self.get("parallel.parallel_mode")
        return self.is_on("use_parallel") and (1 if mode is None else mode) in AUTO_PARALLEL

    @property
    def is_newer_layout(self) -> bool:
        """Whether checkpoints are saved as `iteration_*`."""
        return self.is_section("checkpoint") or any(self.get(switch) is False for switch in LEGACY_SWITCHES)
