"""What MindFormers' streaming data loader leaves at each save: `step_N/dataset_state_rankR.json`."""

from __future__ import annotations

from collections.abc import Iterable

from ckpttool.domain.frozen import dataclass
from ckpttool.domain.units import ByteCount, Rank
from ckpttool.formats.strict_json import ParseError, get_object, parse_object
from ckpttool.storage import open_storage

STATE_LIMIT = ByteCount(64 << 20)
"""A few counters for each file of the data set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetStates:
    """The state files of one step."""

    missing: tuple[Rank, ...]
    """Ranks without one."""
    broken: tuple[tuple[Rank, str], ...]
    """Ranks whose file the loader cannot load, and why."""
    unread: tuple[tuple[Rank, str], ...]
    """Ranks whose file could not be looked at, and why."""


def read_states(folder: str, ranks: Iterable[Rank]) -> DatasetStates:
    """Look for the state of each rank, as the loader will; what is in it beyond that is the `datasets` library's.

    Args:
        folder: Of the step.
        ranks: Those that load a state.
    """
    storage = open_storage(folder)
    missing, broken, unread = [], [], []
    for rank in ranks:
        name = f"dataset_state_rank{rank}.json"
        try:
            state = parse_object(storage.small_file(name, limit=STATE_LIMIT), what=name, limit=STATE_LIMIT)
            get_object(state, "_train_state", where=name)
        except (FileNotFoundError, NotADirectoryError):
            missing.append(rank)
        except OSError as error:
            unread.append((rank, error.strerror or str(error)))
        except ParseError as error:
            broken.append((rank, str(error)))
    return DatasetStates(missing=tuple(missing), broken=tuple(broken), unread=tuple(unread))
