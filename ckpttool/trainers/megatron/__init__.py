"""Megatron-LM and its forks: ckpttool reads the logs, and neither checkpoints nor configs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.trainers.common.log_only import LogOnly

if TYPE_CHECKING:
    from ckpttool.domain.advice import Calibration, SpikeAdvice, StopAdvice, ThresholdSettings, TrainersDetour
    from ckpttool.domain.data_position import SkipBatches
    from ckpttool.domain.plan import TrainersSkip
    from ckpttool.logs.base import LogFormat
    from ckpttool.trainers.abilities import OwnWords, PolicyWords


class Megatron(LogOnly):
    """A trainer of which only the log is known, and how it is told to skip data."""

    name = "megatron"
    title = "Megatron-LM"

    @property
    def log_formats(self) -> tuple[LogFormat, ...]:
        """The one that is known."""
        from ckpttool.trainers.megatron.log import Megatron as Text

        return (Text(),)

    @property
    def words(self) -> OwnWords | None:
        """Options of its command."""
        return MegatronWords()


class MegatronWords:
    """Of all that ckpttool advises, it is known how its data skip is told."""

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
        return TrainersDetour(trainer=Megatron.name, title=Megatron.title, argument=argument)

    def thresholds(self, calibration: Calibration) -> ThresholdSettings | None:
        """Return none: it takes none that are known here."""
        return None

    def skip(self, skip: SkipBatches) -> TrainersSkip | None:
        """Return none: it counts by itself."""
        return None

    def policy_words(self, settings: PolicyWords) -> PolicyWords:
        """Leave them: no policy that is known here is its own."""
        return settings
