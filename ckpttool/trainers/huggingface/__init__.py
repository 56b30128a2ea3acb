"""Hugging Face's Trainer: ckpttool reads the logs, and neither checkpoints nor configs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.domain.expectation import Evidence

if TYPE_CHECKING:
    from ckpttool.domain.advice import Calibration, SpikeAdvice, StopAdvice, ThresholdSettings, TrainersDetour
    from ckpttool.domain.data_position import SkipBatches
    from ckpttool.domain.plan import TrainersSkip
    from ckpttool.domain.settings import RunConfig
    from ckpttool.logs.base import LogFormat, LogPlaces
    from ckpttool.storage.base import Storage
    from ckpttool.trainers.base import ConfigReader, Effects, HealthFile, LaunchTarget, Layout, Resume, Simulator


class HuggingFace:
    """A trainer of which only the log is known."""

    name = "huggingface"
    title = "Hugging Face's Trainer"
    places: tuple[str, ...] = ()
    layouts: tuple[Layout, ...] = ()
    layout_names: tuple[str, ...] = ()
    health_file: HealthFile | None = None
    configs: ConfigReader | None = None
    launch: LaunchTarget | None = None
    simulator: Simulator | None = None
    log_places: LogPlaces | None = None

    @property
    def log_formats(self) -> tuple[LogFormat, ...]:
        """The one that is known."""
        from ckpttool.trainers.huggingface.log import HfTrainer

        return (HfTrainer(),)

    def evidence(self, output: Storage, config: RunConfig | None) -> Evidence:
        """Say nothing: its trees are not read."""
        return Evidence()

    def saves_in(self, config: RunConfig) -> Layout | None:
        """Return none: its layouts are not known."""
        return None

    def detour(self, advice: SpikeAdvice | StopAdvice) -> TrainersDetour | None:
        """Return none: how it skips data is not known here."""
        return None

    def thresholds(self, calibration: Calibration) -> ThresholdSettings | None:
        """Return none: it takes none that are known here."""
        return None

    def skip(self, skip: SkipBatches) -> TrainersSkip | None:
        """Return none: it counts by itself, or nothing is known of it."""
        return None

    def effects(self, resume: Resume) -> Effects:
        """Say that nobody knows."""
        from ckpttool.trainers.base import no_effects

        return no_effects(self.title)
