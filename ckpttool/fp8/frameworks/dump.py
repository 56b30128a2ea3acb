"""The settings that Megatron prints at its start: `  fp8_amax_history_len ............................ 1`.

They are the ones that hold, defaults and all, whatever scripts and files they came from.

Source:
    Megatron-LM core_v0.12 to 2026-08 (`_print_args` in `megatron/training/arguments.py`).
"""

from __future__ import annotations

import re

BEGINS = b"-- arguments --"
ENDS = b"-- end of arguments --"
DOTS = rb" \.{1,47} "

_WIDTH = 48
"""Of a name and the dots behind it."""

_LINE = re.compile(rb"(?:.{0,200}?\W)??(\w{1,47}) (\.{1,47})(?: (.*?))?\s*", re.DOTALL)
"""A launcher may put the rank in front."""


def argument(line: bytes) -> tuple[str, str] | None:
    """Return a printed setting and its value; None where a line is none."""
    match = _LINE.fullmatch(line)
    if match is None or len(match[1]) + len(match[2]) != _WIDTH:
        return None
    return match[1].decode("utf-8", "replace"), (match[3] or b"").decode("utf-8", "replace")
