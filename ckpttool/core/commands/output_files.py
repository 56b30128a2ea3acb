"""Files that a command writes in addition to its answer. They replace only an earlier file of the same kind.

Each command defines how an earlier file is recognised.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpttool.core.domain.units import ByteCount
from ckpttool.core.errors import CkptToolError, UsageError
from ckpttool.core.storage.base import ByteSource
from ckpttool.core.storage.local import LocalStorage
from ckpttool.trainers.locate import locate

if TYPE_CHECKING:
    from ckpttool.core.domain.question import TreeQuestion

_LIMIT = 64 << 20
"""Maximum bytes of a file, enough for a report on 10,000 ranks that each lost a shard."""

_FIRST_LINE = ByteCount(1 << 20)
"""Maximum bytes of the first line, which needs about 300 and the name of a tensor."""


def assert_folder(path: str, *, option: str) -> None:
    """Reject a target whose folder does not exist, which is probably a typing error.

    Raises:
        UsageError: The folder does not exist.
    """
    folder = Path(path).parent
    if not folder.is_dir():
        raise UsageError(f"{option} {path!r}: the folder {str(folder)!r} does not exist")


def assert_replaceable(path: str, *, option: str, is_ours: Callable[[ByteSource], bool], purpose: str) -> None:
    """Reject a target that ckpttool did not write, before the work for it begins.

    Args:
        path: The target.
        option: The option that names the target.
        is_ours: Returns whether the content of an existing file is ours.
        purpose: The files that ckpttool writes there, as a plural noun.

    Raises:
        UsageError: The target's folder does not exist, or the target is a file of a different kind.
    """
    target = Path(path)
    assert_folder(path, option=option)
    if os.path.lexists(path) and not _is_ours(target, is_ours):
        raise UsageError(f"{option} {path!r} already exists and contains no {purpose} of ckpttool; give a new file")


def assert_outside(path: str, root: str | None, *, option: str) -> None:
    """Reject a target inside the tree that is read. `root` is None if no tree is read.

    Raises:
        UsageError: The target is in the tree.
    """
    if root is not None and lies_under(path, root):
        raise UsageError(f"{option} {path!r} is in the checkpoint tree, which is never changed")


def root_of(tree: TreeQuestion) -> str | None:
    """Return the folder that is read, or None if it does not exist, which the report then shows."""
    try:
        located = locate(tree.path, layout=tree.layout, config=tree.config)
    except UsageError:  # several trees: none of them is changed
        return tree.path or os.curdir
    except CkptToolError:
        return None
    return located.storage.root if located.layout.is_tree else None


def whole(judge: Callable[[str], bool]) -> Callable[[ByteSource], bool]:
    """Return a function that judges a file by its full text and rejects a file larger than any report."""

    def is_ours(source: ByteSource) -> bool:
        size = source.stamp.size
        return size <= _LIMIT and judge(source.read(0, size).decode("utf-8"))

    return is_ours


def first_line(source: ByteSource) -> Any:  # noqa: ANN401  any JSON value
    """Parse the first line of a file as JSON.

    Raises:
        ValueError: The line is not JSON.
    """
    return json.loads(source.read(0, min(source.stamp.size, _FIRST_LINE)).partition(b"\n")[0])


def lies_under(path: str, root: str) -> bool:
    """Return whether a path is in a tree, by its name or through links."""
    by_name = Path(os.path.abspath(path)).is_relative_to(os.path.abspath(root))  # noqa: PTH100  links as they are
    return by_name or _resolved(path).is_relative_to(_resolved(root))


def same_file(first: str, second: str) -> bool:
    """Return whether two paths refer to the same file, even if it does not exist yet."""
    try:
        return Path(first).samefile(second)
    except OSError:
        return _resolved(first) == _resolved(second)


def _resolved(path: str) -> Path:
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError):  # a loop of links, which is reported later, for the target itself
        return Path(os.path.abspath(path))  # noqa: PTH100  as above


def _is_ours(target: Path, is_ours: Callable[[ByteSource], bool]) -> bool:
    """Return whether ckpttool wrote a file, or the file is empty and may always be replaced."""
    if target.is_symlink():
        return False
    try:
        with LocalStorage(str(target.parent)).open(target.name) as source:
            return source.stamp.size == 0 or is_ours(source)
    except (OSError, ValueError, RecursionError):
        return False
