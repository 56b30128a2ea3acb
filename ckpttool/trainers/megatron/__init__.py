"""Megatron-LM and its forks: ckpttool reads the logs, and neither checkpoints nor configs."""

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


class Megatron:
    """A trainer of which only the log is known."""

    name = "megatron"
    title = "Megatron-LM"
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
        from ckpttool.trainers.megatron.log import Megatron as Text

        return (Text(),)

    def evidence(self, output: Storage, config: RunConfig | None) -> Evidence:
        """Say nothing: its trees are not read."""
        return Evidence()

    def saves_in(self, config: RunConfig) -> Layout | None:
        """Return none: its layouts are not known."""
        return None

    def detour(self, advice: SpikeAdvice | StopAdvice) -> TrainersDetour | None:
        """Spell its option for a shell: it wants every single iteration.

        After a stop it can do what one number of steps cannot: train the good batches before the bad ones.
        """
        from ckpttool.domain.advice import StopAdvice, TrainersDetour

        detour = advice.detour
        if detour is None:
            return None
        first = detour.first_skipped + (advice.good_batches_lost if isinstance(advice, StopAdvice) else 0)
        argument = f"--iterations-to-skip $(seq {first} {detour.last_skipped})" if detour.skip_batches else None
        return TrainersDetour(trainer=self.name, title=self.title, argument=argument)

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
