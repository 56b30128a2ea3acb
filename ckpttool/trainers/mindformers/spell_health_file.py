"""`health_ckpts.json` with new judgements in it, otherwise as it was."""

from __future__ import annotations

import json
from collections.abc import Iterable

from ckpttool.domain.health import Health

_MARKS = {Health.HEALTHY: 0, Health.UNHEALTHY: 1}


def updated_health_json(old: bytes | None, judgements: Iterable[tuple[str, Health]]) -> bytes:
    """Return the file's new content; the very same bytes where nothing changes.

    Order, unknown fields and entries of other checkpoints stay. Every entry of a judged name gets its mark, so that
    no contradiction is left; a name without an entry gets one at the end. What is unknown changes nothing: the file has
    no word for it.

    Args:
        old: The file as it is; None where there is none.
        judgements: File names as the trainer writes them (rank 0's), with what they were found to be.

    Raises:
        ValueError: The old content is no list of objects; overwriting it could lose what somebody still wants to see.
    """
    entries = _entries(old)
    changed = False
    for name, health in judgements:
        mark = _MARKS.get(health)
        if mark is None:
            continue
        own = [entry for entry in entries if entry.get("ckpt_name") == name]
        for entry in own:
            # `True == 1`: only an integer is what MindFormers writes and readers understand.
            if type(entry.get("is_health")) is not int or entry["is_health"] != mark:
                entry["is_health"] = mark
                changed = True
        if not own:
            entries.append({"is_health": mark, "ckpt_name": name})
            changed = True
    if old is not None and not changed:
        return old
    return json.dumps(entries, indent=4).encode("ascii")


def _entries(old: bytes | None) -> list[dict[str, object]]:
    if old is None:
        return []
    try:
        document = json.loads(old)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(document, list) or not all(isinstance(entry, dict) for entry in document):
        raise ValueError("expected a list of objects")
    return document
