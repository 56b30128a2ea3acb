"""Places of Lightning's logs: each start writes its own `version_N/`."""

from __future__ import annotations

import os
import re
from contextlib import suppress

from ckpttool.core.logs.run_folder import logs_in
from ckpttool.core.storage import above, open_storage

_VERSION = re.compile(r"version_[0-9]{1,9}")
_DEFAULT = "lightning_logs"


def start_logs(root: str) -> tuple[str, ...]:
    """Return the logs in `version_N/` folders, lowest N first: `metrics.csv`, or TensorBoard's event files.

    Source: the loggers of Lightning 2.6. Saves are in `version_N/checkpoints`, unless ModelCheckpoint has a `dirpath`;
    then the logs are in `lightning_logs` of the folder in which the training was started.
    """
    parent = above(root)
    places = [f"{folder}/{_DEFAULT}" for folder in (root, parent)]
    if _VERSION.fullmatch(os.path.basename(os.path.abspath(parent))):
        places = [above(parent)]
    return next((logs for place in places if (logs := _of_versions(place))), ())


def _of_versions(folder: str) -> tuple[str, ...]:
    names: list[str] = []
    with suppress(OSError):  # a logger may be off, or write elsewhere
        names = [entry.name for entry in open_storage(folder).entries("") if _VERSION.fullmatch(entry.name)]
    names.sort(key=lambda name: int(name.removeprefix("version_")))
    return tuple(log for name in names for log in logs_in(f"{folder}/{name}"))
