"""The opcodes of pickles, up to protocol 5, and patterns that pass over many at once.

Source:
    Lib/pickletools.py of Python 3.13 for the opcodes and their arguments.
"""

from __future__ import annotations

import re

_DULL = rb"\((?![Xhj\x8c])|[)012NRQabdelostu}\]\x81\x85-\x88\x89\x8f-\x92\x97\x98]+|[K\x80].|M..|J....|G.{8}"
"""Opcodes that name nothing, whatever their arguments."""
LINES = b"IFLVSPg"
"""Those whose argument is a line."""
_TEXT = rb"(?:X(.{4})|\x8c(.))?"
"""A string that follows a run of them; its length."""
# Runs are limited: `re` keeps a place to go back to for each turn.
OLD_RUN = re.compile(
    rb"(?:" + _DULL + rb"|[hq].|[jr]....|\x95.{8}|[" + LINES + rb"p][^\n]*\n){0,4096}" + _TEXT, re.DOTALL
)
NEW_RUN = re.compile(rb"(?:" + _DULL + rb"|[" + LINES + rb"][^\n]*\n){0,4096}" + _TEXT, re.DOTALL)
CAREFUL_RUN = re.compile(
    rb"(?:" + _DULL + rb"|[" + LINES.replace(b"g", b"") + rb"][^\n]*\n){0,4096}" + _TEXT, re.DOTALL
)
NAMES = re.compile(rb"([^\n]{0,512})\n([^\n]{0,512})\n").match
LONG_NAME = re.compile(rb"([\w.\x80-\xff]{1,512}\n)?[\w.\x80-\xff]{513}").match
PROTO = re.compile(rb"\x80[\x00-\x05]").match
MEMO_IN_BYTES = 4  # the first protocol whose picklers number what they remember by themselves
STOP, STACK_GLOBAL, MEMOIZE, FRAME, MARK, INST = b".\x93\x94\x95(i"
FIXED = {**dict.fromkeys(b"Khq\x80\x82", 1), **dict.fromkeys(b"M\x83", 2), **dict.fromkeys(b"Jjr\x84", 4)}
FIXED |= dict.fromkeys(b"G\x95", 8)
COUNTED = {**dict.fromkeys(b"UC\x8c\x8a", 1), **dict.fromkeys(b"TBX\x8b", 4), **dict.fromkeys(b"\x8d\x8e\x96", 8)}
"""Bytes of the length that stands before the data."""
SIGNED = frozenset(b"T\x8b")
