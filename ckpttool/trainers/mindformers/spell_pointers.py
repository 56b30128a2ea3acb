"""The trainer's own records, spelled as MindFormers spells them."""

from __future__ import annotations

import json

from ckpttool.domain.retention import RecordFix


def record_bytes(fix: RecordFix) -> bytes:
    """Return a meta.json (one line, no newline), or the tracker, which holds the bare step."""
    if fix.position is None:
        return str(int(fix.file.removeprefix("iteration_"))).encode("ascii")
    record = {"last_epoch": fix.position.epoch, "last_step": fix.position.step, "last_ckpt_file": fix.file}
    return json.dumps(record, ensure_ascii=True).encode("ascii")
