"""What the policy `skip` is called where users read of it: it is MindFormers' data skip by the global norm.

Source:
    MindFormers 1.6 to 2.1, the training wrapper and TrainingStateMonitor.
"""

from __future__ import annotations

from enum import Enum


class NanWord(str, Enum):
    """What a NaN does to the count in a row."""

    AS_MINDFORMERS = "as-mindformers"
    STRICT = "strict"


NAN_BY_DEFAULT = NanWord.AS_MINDFORMERS


def spelled(settings: tuple[tuple[str, str | float], ...]) -> tuple[tuple[str, str | float], ...]:
    """Return a policy's settings with whether a NaN counts in the word that users have for it."""
    words = {False: NanWord.AS_MINDFORMERS.value, True: NanWord.STRICT.value}
    return tuple(("nan", words[bool(value)]) if name == "nan_counts" else (name, value) for name, value in settings)
