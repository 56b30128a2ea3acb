"""The plan of a resume: the JSON of `ckpttool resolve`, from a file or a pipe."""

from __future__ import annotations

import os
import sys

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.metrics import local_time_of
from ckpttool.core.domain.question import STDIN
from ckpttool.core.domain.units import ByteCount, Step
from ckpttool.core.errors import NothingToResumeError, UsageError
from ckpttool.core.formats.strict_json import (
    JsonObject,
    ParseError,
    get_int,
    get_object,
    get_optional_int,
    get_str,
    parse_object,
)

_LIMIT = ByteCount(64 << 20)
"""Maximum size: a plan with a thousand rejected checkpoints of ten thousand ranks is smaller."""

_SCHEMA = "ckpttool/plan/1"
_WITH_PLAN = "ckpttool/preflight/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The facts of a plan that logs can confirm."""

    root: str
    """The checkpoint folder."""
    saved: Step
    """The step before the first step of the resumed run, in steps of the resumed run."""
    saved_before: Step
    """The step of the save, in steps of the run that saved."""
    saved_at: float | None
    """When the checkpoint was saved, in seconds since 1970; None if unknown."""
    world_size: int | None
    """Ranks of the run that saved."""
    batch_before: int | None
    """Samples per batch of the run that saved."""
    batch_after: int | None
    """Samples per batch of the resumed run; None: unknown, or as before."""


def is_plan(path: str | None) -> bool:
    """Return whether a path names a plan and not a tree: standard input, or a JSON file."""
    if path == STDIN:
        return True
    return path is not None and path.endswith(".json") and os.path.isfile(path)


def read_plan(path: str) -> Plan:
    """Read a plan.

    Args:
        path: A file, or `-` for standard input.

    Raises:
        UsageError: It cannot be read, or is not a plan.
        NothingToResumeError: The plan chooses no checkpoint.
    """
    where = "the plan on standard input" if path == STDIN else path
    try:
        if path == STDIN and sys.stdin is None:
            raise UsageError("standard input is closed, so there is no plan to read")
        if path == STDIN:
            data = sys.stdin.buffer.read(_LIMIT + 1)
        else:
            with open(path, "rb") as file:
                data = file.read(_LIMIT + 1)
        return _plan(parse_object(data, where=where, limit=_LIMIT), where)
    except OSError as error:
        raise UsageError(f"{where} cannot be read: {error.strerror or error}") from None
    except ParseError as error:
        raise UsageError(f"{error!s:.500}; give the output of ckpttool resolve --json") from None


def _time(text: object) -> float | None:
    """Return the seconds of a time such as `2026-11-20T03:00:00Z`; None if it is not one."""
    return local_time_of(text.removesuffix("Z")) if isinstance(text, str) else None


def _plan(document: JsonObject, where: str) -> Plan:
    schema = get_str(document, "schema", where=where)
    if schema == _WITH_PLAN and document.get("plan") is not None:
        document = get_object(document, "plan", where=where)
    elif schema != _SCHEMA:
        raise ParseError(f"expected {_SCHEMA}, found {schema!a:.80}", where=where, key="schema")
    root = get_str(document, "root", where=where)
    if document.get("resume") is None:
        raise NothingToResumeError(f"{where} chooses no checkpoint of {root}: ckpttool resolve {root} shows why")
    resume = get_object(document, "resume", where=where)
    saved = saved_before = Step(get_int(resume, "step", minimum=0, where=where))
    batch_after = None
    if document.get("data") is not None:
        data = get_object(document, "data", where=where)
        batch_after = get_optional_int(data, "global_batch_size", minimum=1, where=where)
        following = get_optional_int(data, "next_step", minimum=1, where=where)
        saved = saved if following is None else Step(following - 1)
    return Plan(
        root=root,
        saved=saved,
        saved_before=saved_before,
        saved_at=_time(resume.get("saved_at")),
        world_size=get_optional_int(resume, "world_size", minimum=1, where=where),
        batch_before=get_optional_int(resume, "global_batch_size", minimum=1, where=where),
        batch_after=batch_after,
    )
