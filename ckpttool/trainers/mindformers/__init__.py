"""MindFormers (MindSpore Transformers): all that ckpttool asks of it. A start imports what it is asked for, no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckpttool.core.domain.asd import AsdDialect
    from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.core.domain.expectation import Evidence
    from ckpttool.core.domain.finding import Finding
    from ckpttool.core.domain.question import AskedSizes
    from ckpttool.core.domain.settings import RunConfig
    from ckpttool.core.logs.base import LogFormat, LogPlaces
    from ckpttool.core.storage.base import Storage
    from ckpttool.trainers.abilities import ConfigReader, HealthFile, LaunchTarget, OwnScalars, OwnWords, Simulator
    from ckpttool.trainers.base import Effects, Layout, Resume, Trainer


class MindFormers:
    """The home ground: every question is answered."""

    name = "mindformers"
    title = "MindFormers"
    records = (
        r"(?:meta|common|metadata|param_name_map)\.json|dataset_state_rank[0-9]+\.json"
        r"|latest_checkpointed_iteration\.txt"
    )
    places = ("checkpoint", "output/checkpoint", "unified_checkpoint", "output/unified_checkpoint")

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """Unified weights, one folder a save (1.7 and later), one folder a rank (every version)."""
        from ckpttool.trainers.mindformers.layouts.iteration import MindFormersIteration
        from ckpttool.trainers.mindformers.layouts.rank import MindFormersRank
        from ckpttool.trainers.mindformers.layouts.unified import MindFormersUnified

        return MindFormersUnified(), MindFormersIteration(), MindFormersRank()

    @property
    def layout_names(self) -> tuple[str, ...]:
        """What they are called."""
        from ckpttool.trainers.mindformers.layouts.names import ITERATION_LAYOUT, RANK_LAYOUT, UNIFIED_LAYOUT

        return UNIFIED_LAYOUT, ITERATION_LAYOUT, RANK_LAYOUT

    @property
    def log_formats(self) -> tuple[LogFormat, ...]:
        """Its loss lines and those of its monitors."""
        from ckpttool.trainers.mindformers.logs.text import MindFormers as Text

        return (Text(),)

    @property
    def log_places(self) -> LogPlaces | None:
        """Its own, and those of msrun."""
        from ckpttool.trainers.mindformers.logs.places import MindFormersLogs

        return MindFormersLogs()

    @property
    def health_file(self) -> HealthFile | None:
        """That of its health monitor."""
        from ckpttool.trainers.mindformers.health_file import MindFormersHealthFile

        return MindFormersHealthFile()

    @property
    def configs(self) -> ConfigReader | None:
        """Its YAML."""
        from ckpttool.trainers.mindformers.config import TrainConfigs

        return TrainConfigs()

    @property
    def launch(self) -> LaunchTarget | None:
        """Msrun with a config."""
        from ckpttool.trainers.mindformers.launch import MindFormersLaunch

        return MindFormersLaunch()

    def evidence(self, output: Storage, config: RunConfig | None) -> Evidence:
        """Ask the config for the ranks that it starts, and the strategy files for those that trained."""
        from ckpttool.trainers.mindformers.strategy import world_evidence

        return world_evidence(output, config)

    @property
    def words(self) -> OwnWords | None:
        """Settings of its config."""
        from ckpttool.trainers.mindformers.policies import MindFormersWords

        return MindFormersWords()

    @property
    def asd_dialects(self) -> tuple[AsdDialect, ...]:
        """Its SDCMonitor."""
        from ckpttool.trainers.mindformers.silent_errors import MONITOR

        return (MONITOR,)

    @property
    def scalars(self) -> OwnScalars | None:
        """Those that it appends to a rank's file."""
        from ckpttool.trainers.abilities import OwnScalars
        from ckpttool.trainers.mindformers.scalars import RULES, meaning

        return OwnScalars(rules=RULES, meaning=meaning)

    @property
    def simulator(self) -> Simulator | None:
        """Its own choice, by version."""
        from ckpttool.trainers.mindformers.simulate import MindFormersSimulator

        return MindFormersSimulator()

    def objections(self, inventory: Inventory, checkpoint: Checkpoint, asked: AskedSizes) -> tuple[Finding, ...]:
        """Say nothing: the ranks that a save must have are compared with those that are asked for when it is listed."""
        return ()

    def effects(self, resume: Resume) -> Effects:
        """Say what it rounds and resets, what it would load instead, and whether streaming data can go on."""
        from ckpttool.trainers.mindformers.effects import effects

        return effects(resume)


TRAINER: Trainer = MindFormers()
