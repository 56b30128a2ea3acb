"""Advice to users of the PyNative trainer, which has neither a data skip nor thresholds."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from ckpttool.core.domain.advice import Calibration, SpikeAdvice, StopAdvice, ThresholdSettings
    from ckpttool.core.domain.checkpoint import Inventory
    from ckpttool.core.domain.data_position import SkipBatches
    from ckpttool.trainers.abilities import PolicyWords

_NO_THRESHOLD = (
    "the PyNative trainer of MindFormers reads no threshold: give it to ckpttool log replay --policy skip --threshold; "
    "in 2.1, training.use_skip_step_on_nan: True leaves out updates with a NaN norm"
)


class PyNativeWords:
    """ckpttool's advice in the terms of the PyNative trainer, which has no settings for it."""

    @property
    def own_policy(self) -> str | None:
        """Return None, because the trainer only checks whether a norm is NaN."""
        return None

    def detour(self, advice: SpikeAdvice | StopAdvice) -> None:
        """Return None, because the trainer has no setting that moves the data."""
        del advice

    def skip(self, skip: SkipBatches) -> None:
        """Return None, because the trainer has no setting that skips data."""
        del skip

    def policy_words(self, settings: PolicyWords) -> PolicyWords:
        """Return the settings unchanged, because the trainer has no policy of its own."""
        return settings

    def thresholds(self, calibration: Calibration) -> ThresholdSettings | None:
        """Return no settings, only a note that the trainer cannot use thresholds."""
        from ckpttool.core.domain.advice import Threshold, ThresholdSettings

        norms = (calibration.global_norm, calibration.embedding_local_norm)
        notes = (_NO_THRESHOLD,) if any(isinstance(norm, Threshold) for norm in norms) else ()
        return ThresholdSettings(text="", notes=notes)


def words_for(inventory: Inventory | None, formats: Collection[str]) -> PyNativeWords | None:
    """Return `PyNativeWords` for the PyNative trainer's trees and logs; None for those of the static trainer."""
    from ckpttool.trainers.mindformers.pynative.log import NAME
    from ckpttool.trainers.mindformers.scalars import by_pynative

    is_own = NAME in formats or (inventory is not None and any(map(by_pynative, inventory.checkpoints)))
    return PyNativeWords() if is_own else None
