"""Errors that stop a command. Damage is a `Finding`, never an error."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum


class ExitCode(IntEnum):
    """Every exit code of a command: below 10 those of the runtime, from 10 on answers. The pages show these texts."""

    OK = 0
    """Answered, nothing wrong."""
    FAILED = 1
    """Internal error, or the system prevented writing: no permission, a full or read-only disk."""
    USAGE = 2
    """Usage."""
    DAMAGE = 10
    """Damage or a missing shard found (`resolve`: only with `--strict`, or if more is lost than `--max-lost-steps` or
    `--max-lost-time` allow); `launch`, `preflight`, `lint`: the training would not start, or not behave as
    intended; `health`: the newest checkpoint is unhealthy; `log calibrate`: the stretch is not normal; `guard report`:
    something needs attention; `asd`: a setting does not have the intended effect.
    """
    NOTHING_TO_RESUME = 11
    """There is no checkpoint to resume from."""
    UNKNOWN_LAYOUT = 12
    """There is no checkpoint folder that ckpttool recognizes."""
    LOCKED = 13
    """Another ckpttool is changing the tree."""
    INCOMPLETE = 14
    """The check is incomplete: something could not be read, or changed while it was read."""
    UNSAFE = 15
    """Refused for safety: it would run code, leave the tree, or write through a link."""
    NOT_DURABLE = 16
    """Written, but durability could not be confirmed."""
    INTERRUPTED = 130
    """Interrupted."""


class CkptToolError(Exception):
    """ckpttool cannot answer. The message is one line: what is wrong and what to do about it."""

    exit_code = ExitCode.FAILED


class UsageError(CkptToolError):
    """The question itself is wrong: an invalid option, config or name."""

    exit_code = ExitCode.USAGE


def unknown_word(
    noun: str, word: str, known: Sequence[str], where: str, matches: Sequence[str] | None = ()
) -> UsageError:
    """Report an unknown name, with the closest match, or the place that lists all names.

    Args:
        noun: The kind of name.
        word: The name as the user wrote it.
        known: All names.
        where: The place that lists them.
        matches: The certain matches; empty: similar names; None: no suggestion.
    """
    close = matches or ([] if matches is None else nearest(word.lower(), known))
    advice = f"did you mean {' or '.join(close)}?" if close else where
    return UsageError(f"unknown {noun} {word!r}: {advice}")


def nearest(word: str, known: Sequence[str]) -> list[str]:
    """Return the names most similar to a word, most similar first; much less similar names are left out."""
    from difflib import SequenceMatcher, get_close_matches

    close = get_close_matches(word, known, cutoff=_LIKE)
    ratios = [SequenceMatcher(None, name, word).ratio() for name in close]
    return [name for name, ratio in zip(close, ratios, strict=True) if ratio > ratios[0] - _MUCH_LESS]


_LIKE, _MUCH_LESS = 0.6, 0.15
"""Minimum similarity of a name (1: equal), and the maximum distance from the most similar name."""


class ConfigError(UsageError):
    """A config file cannot be used: not YAML, or not YAML of a config."""

    def __init__(self, message: str, *, line: int | None = None) -> None:
        """Take the complete message, and the line of the file with the error, from 1, if known."""
        super().__init__(message)
        self.line = line


class ForeignConfigError(ConfigError):
    """A readable file is not a training config, or none that ckpttool knows."""


class NothingToResumeError(CkptToolError):
    """The tree has no checkpoint that can be resumed from."""

    exit_code = ExitCode.NOTHING_TO_RESUME


class UnknownLayoutError(CkptToolError):
    """The folder contains nothing that ckpttool recognises as training checkpoints."""

    exit_code = ExitCode.UNKNOWN_LAYOUT


class LockedError(CkptToolError):
    """Another ckpttool is writing here."""

    exit_code = ExitCode.LOCKED


class IncompleteError(CkptToolError):
    """The answer depends on a file that could not be read or kept changing."""

    exit_code = ExitCode.INCOMPLETE


class UnsafeError(CkptToolError):
    """Refused: to continue would execute, escape the root, or exceed a limit."""

    exit_code = ExitCode.UNSAFE


class WriteFailedError(CkptToolError):
    """Nothing was changed: the old file still exists, unchanged."""


class NotDurableError(CkptToolError):
    """The new content is in place, but the disk did not confirm it; a power failure may still lose it."""

    exit_code = ExitCode.NOT_DURABLE
