"""Hugging Face's Trainer: ckpttool reads the logs, and neither checkpoints nor configs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.trainers.common.log_only import LogOnly

if TYPE_CHECKING:
    from ckpttool.logs.base import LogFormat


class HuggingFace(LogOnly):
    """A trainer of which only the log is known."""

    name = "huggingface"
    title = "Hugging Face's Trainer"
    words = None

    @property
    def log_formats(self) -> tuple[LogFormat, ...]:
        """The one that is known."""
        from ckpttool.trainers.huggingface.log import HfTrainer

        return (HfTrainer(),)
