"""The number of this process's part, the total number of parts, the name of the run, and the output file."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from ckpttool.core.domain.node import Process
from ckpttool.core.errors import UsageError
from ckpttool.core.records import PART_SUFFIX, STREAM
from ckpttool.nodes.model import BREAK_NS
from ckpttool.nodes.part_file import MOST_PARTS, is_part, seat_in

if TYPE_CHECKING:
    from ckpttool.nodes.model import PartQuestion, Seat

_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

NO_RUN = "part"
"""Prefix of a part's file name if its run has no name."""


def process_of_part(text: str) -> Process | None:
    """Return this process's number among the parts, or None if the process writes no part.

    Raises:
        UsageError: The number is unknown.
    """
    match = re.fullmatch(r"(auto)|auto/([1-9][0-9]{0,5})|([1-9][0-9]{0,5})/([1-9][0-9]{0,5})", text)
    if match is None or int(match[3] or 0) > int(match[4] or 0):
        raise UsageError(f"--part takes auto, auto/N, or I/N from 1/N to N/N, such as 3/16, not {text!r}")
    if match[3] is None:
        from ckpttool.trainers.common.processes import process_of

        process = process_of(os.environ, count=None if match[2] is None else int(match[2]))
        if process is not None and process.count > MOST_PARTS:
            raise UsageError(
                f"{process.launcher} started {process.count} processes, but at most {MOST_PARTS} parts are possible"
            )
        return process
    return Process(
        launcher="--part",
        index=int(match[3]) - 1,
        count=int(match[4]),
        local_index=None,
        local_count=None,
        run=None,
        attempt=0,
    )


def run_of(question: PartQuestion, process: Process | None) -> str:
    """Return the name that all parts of this run share; empty if unknown.

    Raises:
        UsageError: The user's run name is invalid.
    """
    if question.run is not None:
        if _RUN.fullmatch(question.run) is None:
            raise UsageError(f"--run-id takes up to 64 letters, digits, dots, dashes and _, not {question.run!r}")
        return question.run
    if process is None or process.run is None:
        return ""
    return f"{process.run[:56]}.{process.attempt}" if process.attempt else process.run


def place_of(out: str, root: str, run: str, number: int, of: int) -> str:
    """Return the path of the file to write.

    Args:
        out: The path from the user. If it does not exist and there are several parts, the path is a folder, unless it
            has the name of a part: otherwise each machine would write the same file.
        root: The tree.
        run: The name that all parts of this run share; empty if unknown.
        number: Number of the part, from 1.
        of: Total number of parts.

    Raises:
        UsageError: The file is in the tree, its folder does not exist, or the path is taken by a different file, or by
            something other than a file.
        UnsafeError, WriteFailedError: The file's folder cannot be created.
    """
    if out == STREAM:
        raise UsageError(
            "--out -: a part is a file: name a folder that all machines share, or one file per machine, and collect "
            "the files"
        )
    is_meant_for_all = of > 1 and not os.path.lexists(out) and not out.endswith(PART_SUFFIX)
    is_named_folder = out.endswith("/") or os.path.isdir(out) or is_meant_for_all
    place = out
    if is_named_folder:
        place = os.path.join(out, f"{run or NO_RUN}.{number:05}-of-{of:05}{PART_SUFFIX}")
    real, tree = os.path.realpath(place), os.path.realpath(root)
    if os.path.isdir(tree) and real.startswith(f"{tree.rstrip('/')}/"):
        raise UsageError(f"--out {out} is in the checkpoint tree, which is never changed")
    if is_named_folder:
        from ckpttool.core.write.files import ensure_folder

        ensure_folder(out.rstrip("/") or "/")
    elif not os.path.isdir(os.path.dirname(place) or "."):
        raise UsageError(f"--out {out}: there is no folder {os.path.dirname(place)!r}")
    if os.path.lexists(place) and not is_part(place):
        raise UsageError(f"--out {out}: {place} exists and is not a part that ckpttool wrote; name another file")
    return place


def assert_own(place: str, seat: Seat, *, keeps: bool = False) -> None:
    """Refuse to overwrite a different part of the same run.

    Args:
        place: The path of the file.
        seat: The part to be written.
        keeps: Whether a watch keeps the file up to date: the watch may have been restarted under a different name, as
            for a pod.

    Raises:
        UsageError: The file belongs to a different machine.
    """
    owner = seat_in(place)
    if owner is None:
        return
    is_same_host = keeps or owner.host == seat.host
    if (owner.number, owner.of) == (seat.number, seat.of) and is_same_host:
        return
    if owner.run == seat.run and owner.ended_ns > seat.began_ns - BREAK_NS:
        raise UsageError(
            f"--out: {place} is {owner.name}, and this is {seat.name}: name a folder, with a / at the end, so that "
            "each part has its own name"
        )
