"""Errors that stop a command; damage is reported as a `Finding`, never as an error."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of all commands; codes from 10 are answers. The manual shows these texts."""

    OK = 0
    """The command succeeded and found no problem."""
    FAILED = 1
    """Internal error, or a failed write: no permission, or a full or read-only disk."""
    USAGE = 2
    """Invalid command line, option, config or name."""
    DAMAGE = 10
    """A shard is damaged or missing (`resolve`: only with `--strict`, or if the loss exceeds `--max-lost-steps` or
    `--max-lost-time`); `launch`, `preflight`, `lint`: training would not start or not behave as intended; `health`: the
    newest checkpoint is unhealthy; `postflight`: the run did not resume as planned; `log calibrate`: the stretch is not
    normal; `guard report`: something needs attention; `asd`: a setting does not have the intended effect.
    """
    NOTHING_TO_RESUME = 11
    """There is no checkpoint to resume from."""
    UNKNOWN_LAYOUT = 12
    """No checkpoint folder was recognized."""
    LOCKED = 13
    """Another ckpttool process is changing the tree."""
    INCOMPLETE = 14
    """The check is incomplete: a file or folder could not be read, or changed during the read."""
    UNSAFE = 15
    """Refused for safety: continuing would run code, leave the tree, or write through a link."""
    NOT_DURABLE = 16
    """The data was written, but the disk did not confirm it."""
    INTERRUPTED = 130
    """Interrupted."""


class CkptToolError(Exception):
    """Base class of errors that leave a command without an answer.

    The message states in one line what is wrong and what to do about it.
    """

    exit_code = ExitCode.FAILED


class UsageError(CkptToolError):
    """The request is invalid: a wrong option, config or name."""

    exit_code = ExitCode.USAGE


def unknown_word(
    noun: str, word: str, known: Sequence[str], where: str, matches: Sequence[str] | None = ()
) -> UsageError:
    """Return an error for an unknown name, with similar names or the place that lists all names.

    Args:
        noun: The kind of name.
        word: The name as the user typed it.
        known: All valid names.
        where: The place that lists all names.
        matches: Names that certainly match. If empty, similar names are suggested; if None, no names are suggested.
    """
    close = matches or ([] if matches is None else nearest(word.lower(), known))
    advice = f"did you mean {' or '.join(close)}?" if close else where
    return UsageError(f"unknown {noun} {word!r}: {advice}")


def nearest(word: str, known: Sequence[str]) -> list[str]:
    """Return the names that are most similar to a word, most similar first; much less similar names are left out."""
    from difflib import SequenceMatcher, get_close_matches

    close = get_close_matches(word, known, cutoff=_LIKE)
    ratios = [SequenceMatcher(None, name, word).ratio() for name in close]
    return [name for name, ratio in zip(close, ratios, strict=True) if ratio > ratios[0] - _MUCH_LESS]


_LIKE, _MUCH_LESS = 0.6, 0.15
"""Minimum similarity of a name (1: equal), and maximum difference from the most similar name."""


class ConfigError(UsageError):
    """A config file cannot be used, because it is not YAML or not a config."""

    def __init__(self, message: str, *, line: int | None = None) -> None:
        """Store the complete message and, if known, the line number of the error, from 1."""
        super().__init__(message)
        self.line = line


class ForeignConfigError(ConfigError):
    """A file is readable, but it is not a training config that ckpttool knows."""


class NothingToResumeError(CkptToolError):
    """The tree has no checkpoint that can be resumed from."""

    exit_code = ExitCode.NOTHING_TO_RESUME


class UnknownLayoutError(CkptToolError):
    """The folder contains nothing that ckpttool recognizes as training checkpoints."""

    exit_code = ExitCode.UNKNOWN_LAYOUT


class LockedError(CkptToolError):
    """Another ckpttool process is changing the tree."""

    exit_code = ExitCode.LOCKED


class IncompleteError(CkptToolError):
    """The answer depends on a file that could not be read, or that kept changing during the read."""

    exit_code = ExitCode.INCOMPLETE


class UnsafeError(CkptToolError):
    """The operation was refused, because it would execute code, leave the root, or exceed a limit."""

    exit_code = ExitCode.UNSAFE


class WriteFailedError(CkptToolError):
    """The write failed; the old file is unchanged."""


class NotDurableError(CkptToolError):
    """The new content is written, but the disk did not confirm it, so a power failure may still lose it."""

    exit_code = ExitCode.NOT_DURABLE
