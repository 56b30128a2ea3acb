"""A small damaged tree for trying out commands."""

from __future__ import annotations

import time
from importlib.resources import files

from ckpttool.core.domain.demo import Demo

_HOUR = 3600.0
"""Age in seconds of the newest file, so that no save seems to be in progress."""


def demo(folder: str = "ckpttool-demo") -> Demo:
    """Write a small tree of a real trainer whose newest save is truncated on two ranks.

    Args:
        folder: A new or empty folder.

    Raises:
        CkptToolError: The folder is not empty, or could not be written.
    """
    from zipfile import ZipFile

    from ckpttool.core.write.unpacking import unpack

    with (files("ckpttool") / "demo.zip").open("rb") as packed, ZipFile(packed) as archive:
        unpack(archive, folder, newest=time.time() - _HOUR)
        names = [file.filename for file in archive.infolist()]
        damaged = tuple(file.filename for file in archive.infolist() if file.comment)
    config = next(name for name in names if name.endswith(".yaml"))
    return Demo(folder=folder, tree="output/checkpoint", config=config, damaged=damaged)
