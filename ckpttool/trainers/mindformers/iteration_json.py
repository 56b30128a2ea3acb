"""`common.json` and `metadata.json` of the newer MindFormers layout."""

from __future__ import annotations

from typing import NamedTuple

from ckpttool.domain.health import Health
from ckpttool.formats.strict_json import (
    MOST_MEMORY,
    as_list,
    as_object,
    get_object,
    get_optional_float,
    get_optional_int,
    get_str,
    parse_object,
)
from ckpttool.trainers.mindformers.scalars import TrainState

_MEMORY_A_FILE = 512 << 10
"""With 8,192 ranks the file has some hundred megabytes, most of it numbers: 20 kB for each shard."""


class CommonRecord(NamedTuple):
    """Training state that all ranks share."""

    state: TrainState
    health: Health
    """`ckpt_status` 0 is healthy, 1 is not; absent or null: the monitor was off, so nothing is known."""


_HEALTH = {0: Health.HEALTHY, 1: Health.UNHEALTHY, None: Health.UNKNOWN}


def parse_common(data: bytes, *, what: str) -> CommonRecord:
    """Parse a common.json; fields of other versions are ignored.

    Raises:
        ParseError: With the file and the key that is wrong.
    """
    record = parse_object(data, what=what)
    health = _HEALTH.get(get_optional_int(record, "ckpt_status", where=what), Health.UNKNOWN)
    state = TrainState(
        epoch_num=get_optional_int(record, "epoch_num", where=what),
        step_num=get_optional_int(record, "step_num", where=what),
        global_step=get_optional_int(record, "global_step", where=what),
        loss_scale=get_optional_float(record, "loss_scale", where=what),
        global_batch_size=get_optional_int(record, "global_batch_size", where=what),
        consumed_samples=get_optional_int(record, "consumed_samples", where=what),
    )
    return CommonRecord(state=state, health=health)


def metadata_memory(files: int) -> int:
    """Return what the values of a metadata.json may take: it tells of every slice of every rank.

    Args:
        files: In the same folder. Whoever wants us to take much memory has to make as many.
    """
    return MOST_MEMORY + files * _MEMORY_A_FILE


def parse_metadata_files(data: bytes, *, what: str, most_memory: int = MOST_MEMORY) -> frozenset[str]:
    """Return the names of all files that a metadata.json says belong to its checkpoint.

    Args:
        data: The whole file.
        what: Names the file in the error.
        most_memory: As `metadata_memory` gives it.

    Raises:
        ParseError: With the file and the key that is wrong.
    """
    storage = get_object(parse_object(data, what=what, most_memory=most_memory), "storage_data", where=what)
    return frozenset(
        get_str(as_object(place, where=what, key=key), "file_name", where=f"{what}: {key}")
        for key, places in storage.items()
        for place in as_list(places, where=what, key=key)
    )
