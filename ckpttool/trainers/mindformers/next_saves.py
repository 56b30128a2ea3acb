"""Where a training will save next, and how many saves must fit there."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ckpttool.domain.preflight import NextSaves
from ckpttool.domain.settings import Settings
from ckpttool.domain.units import Rank
from ckpttool.trainers.mindformers.lint.view import KEPT_CHECKPOINTS, ConfigView

_STAYS = "older runs' checkpoints are never removed by MindFormers"


def next_saves(settings: Settings, root: str, *, ranks: Iterable[Rank] = ()) -> NextSaves:
    """Return where the next saves go, and how many are there at once before the oldest of them goes.

    That is as many as are kept and the one that is being written. What lies there now makes no room: MindFormers never
    removes files of an older run. Where all are kept there is no such number; a run should have room for two at least.

    Args:
        settings: Of the base config.
        root: The checkpoint folder that is resumed from; a relative path in a config means a folder of wherever the
            training is started, which is taken to be where it was started before.
        ranks: Those that have a folder there.
    """
    view = ConfigView(settings)
    callback = next(iter(view.callbacks("CheckpointMonitor")), "callbacks.0")
    kept = view.count(f"{callback}.keep_checkpoint_max", KEPT_CHECKPOINTS)
    folder = _below(view.get(f"{callback}.directory")) or _below(view.get("output_dir"))
    if view.is_newer_layout:
        kept = view.count("checkpoint.save_max", kept)
        save_path = view.get("checkpoint.save_path")
        folder = save_path if isinstance(save_path, str) and save_path.startswith("/") else folder
    return NextSaves(
        folder=folder or root,
        inside=tuple(os.path.join(root, f"rank_{rank}") for rank in ranks),
        count=max(kept, 1) + 1,
        stays=_STAYS,
    )


def _below(output: object) -> str | None:
    """Return the checkpoint folder of an output folder; None where it is relative, for then nobody knows to what."""
    return f"{output.rstrip('/')}/checkpoint" if isinstance(output, str) and output.startswith("/") else None
