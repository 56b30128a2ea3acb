"""Quotas of users, groups and projects, as reported by `quota` or by Lustre's `lfs`, if these programs exist.

There is no common system call for quotas: NFS servers and Lustre are asked in their own ways, which these programs
know. They only read. If a program fails or hangs, the quota is unknown.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from ckpttool.core.domain.node import Space
from ckpttool.core.storage.mounts import mount_and_point

SECONDS = 5.0
"""Time after which a program is considered hung."""

_KIB = 1024
_NUMBER = r"\s+(\[?[0-9]{1,18}\]?)\*?\s+([0-9]{1,18})\s+([0-9]{1,18})\s+(\S+)"
_ROW = re.compile(rf"(?P<where>.*){_NUMBER}{_NUMBER}(?:\s|$)")
"""A file system, then used blocks in KiB, soft limit, hard limit and grace time, and the same for files."""
_HEADER = re.compile(r"Disk quotas for (user|group) .* \([ug]id ([0-9]{1,10})\):")
_PROJECT = re.compile(r"\s*([0-9]{1,10})\s")


class Quotas(NamedTuple):
    """The quotas of a folder."""

    spaces: tuple[Space, ...]
    """One space for each quota."""
    troubles: tuple[str, ...] = ()
    """Reasons why a quota is unknown."""


def quotas_of(folder: str, owner: os.stat_result, *, table: str) -> Quotas:
    """Return the quotas that limit new files of an owner in a folder.

    Args:
        folder: An existing folder.
        owner: The status of a file there. New files will have the same user and group.
        table: The mount table in the form of `/proc/self/mountinfo`.
    """
    mount, point = mount_and_point(folder, table)
    program = "lfs" if mount.kind == "lustre" else "quota"
    path = shutil.which(program)
    if path is None or not point:
        return Quotas(())
    troubles: list[str] = []
    if program == "lfs":
        spaces = list(_of_lustre(path, os.path.realpath(folder), owner, troubles))
    else:
        spaces = list(_of_quota(path, owner, (mount.source, point), troubles))
    return Quotas(tuple(spaces), tuple(dict.fromkeys(troubles)))


def owner_of(folder: str, path: str | None) -> os.stat_result:
    """Return the status of a file in a folder, or of the folder itself.

    Raises:
        OSError: It does not exist.
    """
    return os.stat(folder) if path is None else os.lstat(f"{folder}/{path}")


def _of_lustre(program: str, folder: str, owner: os.stat_result, troubles: list[str]) -> Iterator[Space]:
    asked = [("user", "-u", owner.st_uid), ("group", "-g", owner.st_gid)]
    project = _PROJECT.match(_output((program, "project", "-d", folder), troubles) or "")
    if project is not None and int(project[1]):
        asked.append(("project", "-p", int(project[1])))
    for kind, option, number in asked:
        output = _output((program, "quota", "-q", option, str(number), folder), troubles) or ""
        row = _ROW.match(" ".join(output.split()))  # a long path is followed by a line break
        if row is None:
            continue
        if "[" in row[2]:
            troubles.append(f"lfs reports the quota of {kind} {number} only in part")
        space = _space(kind, number, row)
        if space is not None:
            yield space


def _of_quota(program: str, owner: os.stat_result, place: tuple[str, str], troubles: list[str]) -> Iterator[Space]:
    """Yield the quotas on a file system.

    Only the quotas of the caller can be read for a single file system; those of others need privileges.
    """
    source, point = place
    common = (program, "-w", "-p", "-v")
    if owner.st_uid == os.getuid():
        calls: list[Sequence[str]] = [(*common, "-u", "-g", "-f", point)]
    else:
        calls = [(*common, "-u", str(owner.st_uid)), (*common, "-g", str(owner.st_gid))]
    wanted = {("user", owner.st_uid), ("group", owner.st_gid)}
    of: tuple[str, int] | None
    for call in calls:
        of = None
        for line in (_output(call, troubles) or "").splitlines():
            header = _HEADER.match(line)
            if header is not None:
                of = header[1], int(header[2])
            row = _ROW.match(line)
            if row is None or of is None or of not in wanted or row["where"].strip() not in {source, point}:
                continue
            space = _space(*of, row)
            if space is not None:
                yield space


def _space(kind: str, number: int, row: re.Match[str]) -> Space | None:
    """Return the space that a quota allows; None if it has no limit. An exceeded soft limit counts as the limit."""
    used, soft, hard = (int(text.strip("[]")) * _KIB for text in row.group(2, 3, 4))
    limit = soft if soft and (used > soft or not hard) else hard
    if not limit:
        return None
    return Space(
        limit=f"the quota of {kind} {number}",
        free_bytes=limit - used,
        total_bytes=limit,
        uid=number if kind == "user" else None,
        gid=number if kind == "group" else None,
    )


def _output(command: Sequence[str], troubles: list[str]) -> str | None:
    """Run a program, and return its output; None if it cannot be run or hangs."""
    name = os.path.basename(command[0])
    try:
        process = subprocess.Popen(  # noqa: S603  a system program with arguments of ours
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
        )
    except OSError as error:
        troubles.append(f"{name} cannot be run: {error.strerror or error}")
        return None
    try:
        output, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        troubles.append(f"{name} did not answer within {SECONDS:g} s")
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # a process that waits for a dead server cannot be killed
            process.communicate(timeout=1)
        return None
    return output.decode("utf-8", "surrogateescape")
