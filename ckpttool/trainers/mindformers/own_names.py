"""MindFormers' own parsing of file names, which is less strict than ckpttool's and affects its choice.

Source: the helpers for checkpoint names in its tools; the patterns reproduce its behaviour.
"""

from __future__ import annotations

import re

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.plan import Outcome


class StopsError(Exception):
    """Raised if the simulated MindFormers stops with an error; the message gives the reason."""


class UnreadError(Exception):
    """Raised if the result of the simulated MindFormers depends on a record that could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """The save that the simulated MindFormers chooses."""

    name: str | None
    """Checkpoint name; None if MindFormers picks nothing, or files with different names."""
    because: str
    outcome: Outcome = Outcome.UNKNOWN
    """Whether the chosen checkpoint then loads; the selection itself does not check this."""


def label_of(file: str, fmt: str) -> tuple[int, int]:
    """Return the epoch and step in a file name.

    Only the first match counts, wherever it is in the name.

    Raises:
        StopsError: The name has no match. One such file stops the resume.
    """
    match = re.search(rf"-(\d+)_(\d+)\.{re.escape(fmt)}", file)
    if match is None:
        raise StopsError(f"it finds no epoch and step in the name {file}, and one such name stops the whole resume")
    return _whole(match[1]), _whole(match[2])


def run_label_of(file: str, fmt: str) -> tuple[int, int, int]:
    """Return the run, epoch and step by which the health monitor sorts rank 0's names.

    Raises:
        StopsError: There is no number before the dash; the fallback for that case fails on a match that is None.
    """
    match = re.search(rf"_(\d+)-(\d+)_(\d+)\.{re.escape(fmt)}", file)
    if match is None:
        raise StopsError(f"its health monitor cannot sort {file}, which has no number before its last dash")
    # Without a run suffix this is the rank. Only rank 0 sorts, so it is 0, which happens to be right.
    return _whole(match[1]), _whole(match[2]), _whole(match[3])


def rank_of(file: str) -> int:
    """Return the rank in a file name.

    The first `_rank_` counts, so a prefix such as `my_rank_7_model` gives the wrong rank.

    Raises:
        StopsError: The name contains no rank.
    """
    match = re.search(r"_rank_(\d+)", file)
    if match is None:
        raise StopsError(f"it finds no rank in the name {file}")
    return _whole(match[1])


def with_rank(file: str, rank: int) -> str:
    """Return the same name for a different rank.

    Raises:
        StopsError: The name contains no rank.
    """
    return file.replace(f"_rank_{rank_of(file)}", f"_rank_{rank}")


def is_regular(file: str, fmt: str) -> bool:
    """Return whether a name has the form PREFIX-EPOCH_STEP.FORMAT."""
    return re.match(rf"^[^/]+-\d+_\d+\.{re.escape(fmt)}$", file) is not None


def checkpoint_name(file: str, fmt: str) -> str:
    """Return ckpttool's name for the checkpoint of a file: `20_2`, `_1-25_2`."""
    stem, _, label = file.removesuffix(f".{fmt}").rpartition("-")
    run = re.search(r"_rank_\d+_(\d+)\Z", stem)
    return label if run is None else f"_{run[1]}-{label}"


def _whole(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:  # thousands of digits, which a meta.json may contain
        raise StopsError(f"it cannot read a number of {len(digits)} digits in a name") from None
