"""The selection in the `iteration_*` layout: what the tracker names, and never anything older.

Source: `get_checkpoint_path`, `verify_ckpt_valid` and `get_healthy_checkpoint_path` of the wheels 1.7.0 to 2.1.0, and
the reading of common.json that follows them.
"""

from __future__ import annotations

import re

from ckpttool.trainers.mindformers.own_names import Pick, StopsError
from ckpttool.trainers.mindformers.simulate.versions import Quirks
from ckpttool.trainers.mindformers.simulate.view import IterationView, MindFormersView, Reading, require_read

_NEVER_OLDER = "and it never falls back to an older iteration"
_NUMBER = re.compile(r"iteration_(\d+)")


def select(view: MindFormersView, quirks: Quirks) -> Pick:
    """Pick as MindFormers does.

    Raises:
        StopsError: It would stop.
    """
    folder, because = _tracked(view, quirks)
    if quirks.looks_for_healthy_iteration and view.settings.use_checkpoint_health_monitor:
        folder, because = _healthy(view)
    _require_common(folder, quirks)
    name = folder.name or view.path.rpartition("/")[2]
    return Pick(name=name, because=because)


def _tracked(view: MindFormersView, quirks: Quirks) -> tuple[IterationView, str]:
    if quirks.takes_hugging_face and "model.safetensors.index.json" in (view.itself.names or ()):
        return view.itself, "model.safetensors.index.json makes the folder itself the checkpoint"
    tracker = view.tracker
    require_read(tracker.reading, "the tracker file")
    if tracker.reading is Reading.MISSING:
        return view.itself, f"there is no tracker, so it takes the folder itself, where {_verified(view.itself)}"
    if tracker.reading is not Reading.PRESENT:
        raise StopsError("the tracker file cannot be read")
    if tracker.folder is None:
        content = f"{tracker.text[:20]!r}, which is no number" if tracker.text else "empty"
        raise StopsError(f"the tracker file is {content}, {_NEVER_OLDER}")
    for folder in view.iterations:
        if folder.name == tracker.folder and folder.names is not None:
            return folder, f"the tracker names it and {_verified(folder)}"
    raise StopsError(f"the tracker names {tracker.folder}, which is no folder there, {_NEVER_OLDER}")


def _verified(folder: IterationView) -> str:
    """Return in what it trusts; it looks at names only."""
    names = frozenset(folder.names or ())
    where = folder.name or "the folder"
    require_read(folder.metadata.reading, f"the metadata.json of {where}")
    if folder.metadata.reading is Reading.MISSING:
        shards = sum(name.endswith(".safetensors") and not name.startswith(".") for name in names)
        if not shards:
            raise StopsError(f"{where} holds no *.safetensors, {_NEVER_OLDER}")
        return f"without a metadata.json one *.safetensors is enough for it ({shards} there); it never opens a shard"
    if folder.metadata.reading is not Reading.PRESENT:
        raise StopsError(f"the metadata.json of {where} is not what it expects, {_NEVER_OLDER}")
    for file in folder.metadata.files:
        if file not in names:
            raise StopsError(f"{where} lacks {file}, which its metadata.json lists, {_NEVER_OLDER}")
    return f"all shards that metadata.json lists ({len(folder.metadata.files)}) are there by name; it never opens one"


def _healthy(view: MindFormersView) -> tuple[IterationView, str]:
    """Return the newest iteration whose common.json says healthy, whatever the tracker says and whatever it holds."""
    if not view.iterations:
        raise StopsError("with the health monitor on it needs an iteration_* entry, and there is none")
    numbers = [match and int(match[1]) for match in (_NUMBER.search(folder.name) for folder in view.iterations)]
    if len(numbers) > 1 and None in numbers:
        invalid = view.iterations[numbers.index(None)].name
        raise StopsError(f"{invalid} has no number, and it cannot sort that among the others")
    ordered = sorted(zip(numbers, view.iterations, strict=True), key=lambda pair: pair[0] or 0, reverse=True)
    because = "it is the newest whose common.json has ckpt_status 0; neither the tracker nor the shards are looked at"
    for _, folder in ordered:
        reading = folder.common.reading
        require_read(reading, f"the common.json of {folder.name}")
        if reading in {Reading.NOT_TEXT, Reading.WRONG_SHAPE}:
            raise StopsError(f"the common.json of {folder.name} is no object, which it does not expect")
        if reading is Reading.PRESENT and folder.common.ckpt_status == 0:
            holds_some = any(name.endswith(".safetensors") for name in folder.names or ())
            return folder, because if holds_some else f"{because}, and this one holds none"
    raise StopsError("no iteration's common.json has ckpt_status 0; one that was never monitored counts as unhealthy")


def _require_common(folder: IterationView, quirks: Quirks) -> None:
    common = folder.common
    where = folder.name or "the folder"
    require_read(common.reading, f"the common.json of {where}")
    if common.reading is Reading.MISSING:
        raise StopsError(f"{where} has no common.json")
    if common.reading is not Reading.PRESENT:
        raise StopsError(f"the common.json of {where} is not what it expects")
    for field in common.fields:
        if field not in quirks.common_fields:
            raise StopsError(f"it does not know the field {field} in common.json, which a newer MindFormers wrote")
