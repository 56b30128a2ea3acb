"""Megatron-LM and its forks: ckpttool reads the checkpoints and the logs, and no configs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.trainers.common.not_started import NotStarted

if TYPE_CHECKING:
    from ckpttool.core.domain.advice import Calibration, SpikeAdvice, StopAdvice, ThresholdSettings, TrainersDetour
    from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.core.domain.data_position import SkipBatches, TrainersSkip
    from ckpttool.core.domain.finding import Finding
    from ckpttool.core.domain.question import AskedSizes
    from ckpttool.core.logs.base import LogFormat
    from ckpttool.trainers.abilities import OwnWords, PolicyWords, Simulator
    from ckpttool.trainers.base import Effects, Layout, Resume, Trainer


class Megatron(NotStarted):
    """A trainer that goes by a tracker file."""

    name = "megatron"
    title = "Megatron-LM"
    records = r"(?:metadata|integrity)\.json|latest_checkpointed_iteration\.txt"
    places = ()
    layout_names = (name,)
    log_places = None
    configs = None

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """One folder an iteration."""
        from ckpttool.trainers.megatron.layout import MegatronIterations

        return (MegatronIterations(),)

    @property
    def log_formats(self) -> tuple[LogFormat, ...]:
        """The one that is known."""
        from ckpttool.trainers.megatron.log import Megatron as Text

        return (Text(),)

    @property
    def words(self) -> OwnWords | None:
        """Options of its command."""
        return MegatronWords()

    @property
    def simulator(self) -> Simulator | None:
        """Its own choice: what the tracker names."""
        from ckpttool.trainers.common.own_choice import OwnChoice
        from ckpttool.trainers.megatron.resumes import choose

        return OwnChoice(trainer=self, choose=choose, by_records=True)

    def objections(self, inventory: Inventory, checkpoint: Checkpoint, asked: AskedSizes) -> tuple[Finding, ...]:
        """Say which sizes its loader refuses."""
        from ckpttool.trainers.megatron import resumes

        return resumes.objections(checkpoint, asked)

    def effects(self, resume: Resume) -> Effects:
        """Say where its samplers go on, and what the tracker would change about the start."""
        from ckpttool.trainers.megatron import resumes

        return resumes.effects(resume)


class MegatronWords:
    """Of all that ckpttool advises, it is known how its data skip is told."""

    def detour(self, advice: SpikeAdvice | StopAdvice) -> TrainersDetour | None:
        """Spell its option for a shell: it wants every single iteration.

        After a stop it can do what one number of steps cannot: train the good batches before the bad ones.
        """
        from ckpttool.core.domain.advice import StopAdvice, TrainersDetour

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

    @property
    def own_policy(self) -> str | None:
        """Return none: it drops no update for its norm."""
        return None

    def policy_words(self, settings: PolicyWords) -> PolicyWords:
        """Leave them: no policy that is known here is its own."""
        return settings


TRAINER: Trainer = Megatron()
