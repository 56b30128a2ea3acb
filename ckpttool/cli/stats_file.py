"""Where `verify --stats` may write: never over anything but its own earlier numbers."""

from __future__ import annotations

import json

from ckpttool.cli import own_output
from ckpttool.domain.checkpoint import Inventory, LayoutName
from ckpttool.domain.units import ByteCount
from ckpttool.domain.verdict import Verification
from ckpttool.errors import UsageError
from ckpttool.storage.base import ByteSource

_FIRST_LINE = ByteCount(1 << 20)
"""Bytes. A line takes 300 and the name of a tensor."""


def assert_replaceable(path: str, tree: Inventory) -> None:
    """Refuse a target that is not ours, before hours of reading are spent on what cannot be written.

    Raises:
        UsageError: It lies in the tree, its folder is not there, or something else stands in its place.
    """
    # A lone file's folder is anybody's, and no tree.
    if tree.layout is not LayoutName.LOOSE_FILE and own_output.lies_under(path, tree.root):
        raise UsageError(f"--stats {path!r} lies in the checkpoint tree, in which verify changes nothing")
    own_output.assert_replaceable(path, option="--stats", is_ours=_holds_numbers, what="numbers")


def write(path: str, answer: Verification) -> None:
    """Write each tensor's numbers to a file.

    Raises:
        CkptToolError: It could not be written.
    """
    from ckpttool.render.answers.verdicts import stats_lines
    from ckpttool.write import replace

    replace(path, stats_lines(answer.verdicts).encode("ascii"), overwrite=True, backup=False)


def _holds_numbers(source: ByteSource) -> bool:
    line = source.read(0, min(source.stamp.size, _FIRST_LINE)).partition(b"\n")[0]
    first = json.loads(line)
    return isinstance(first, dict) and {"checkpoint", "tensor"} <= first.keys()
