"""MindFormers' own choice.

Its two trainers use the same records, but different settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from ckpttool.core.domain.plan import JudgedStart, ResumePlan, Simulation
    from ckpttool.core.domain.settings import RunConfig
    from ckpttool.trainers.abilities import OwnStart
    from ckpttool.trainers.mindformers.pynative.config import PyNativeConfig


class MindFormersSimulator:
    """Simulator of the trainer that the config is for; without a config, of the static trainer."""

    def pick(self, start: OwnStart, version: str | None) -> Simulation:
        """Simulate MindFormers' choice in the folder, with the config's settings or those that fit the newest save."""
        if _is_for_pynative(start.config):
            from ckpttool.trainers.mindformers.pynative.start import pick

            return pick(start, start.storage, version)
        from ckpttool.trainers.mindformers.simulate import simulate, view_of
        from ckpttool.trainers.mindformers.simulate.versions import KNOWN_VERSIONS

        return simulate(view_of(start, start.storage), version or KNOWN_VERSIONS[-1])

    def as_it_stands(self, start: OwnStart, plan: ResumePlan | None) -> JudgedStart:
        """Return the result of a start from the path in the config."""
        if plan is None:
            from ckpttool.core.domain.plan import JudgedStart

            return JudgedStart(simulation=self.pick(start, None))
        if _is_for_pynative(start.config):
            from ckpttool.trainers.mindformers.pynative import start as pynative

            return pynative.as_it_stands(start, start.config, plan)
        from ckpttool.trainers.mindformers.simulate.own_start import as_it_stands

        return as_it_stands(start, plan)


def _is_for_pynative(config: RunConfig | None) -> TypeGuard[PyNativeConfig]:
    if config is None:
        return False
    from ckpttool.trainers.mindformers.pynative.config import PyNativeConfig

    return isinstance(config, PyNativeConfig)
