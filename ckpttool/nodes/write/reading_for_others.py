"""Read of files what the records of another machine may send a reader to: what lies here tells nobody that it will."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from ckpttool.core.domain.shard import FormatName
from ckpttool.core.formats import read_header
from ckpttool.core.formats.torch.pickle_objects import BrokenPickleError, Tensor
from ckpttool.core.formats.torch.plain import plain_values
from ckpttool.core.formats.torch.zips import archives_of
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.common.loose_file import SHARD_SUFFIXES
from ckpttool.trainers.listing import HEAD_BYTES

MOST_OF_A_VALUE = 32 << 10
"""Bytes of an archive that may be a counter or the state of a loader, and no tensor worth the name."""

MOST_VALUES = 64
"""Of one file."""


def read_for_others(noted: Storage, storage: Storage, paths: Iterable[str]) -> None:
    """Read headers and plain values through a storage that writes down what it answers.

    Args:
        noted: That storage.
        storage: The same without it.
        paths: Of files that look like shards.
    """
    for path in paths:
        # What is wrong with them is told by the check of every file.
        with suppress(OSError, BrokenPickleError):
            named = SHARD_SUFFIXES.get(path.rpartition(".")[2])
            if named is FormatName.SAFETENSORS:
                with noted.open(path) as source:
                    read_header(source, named=named)
            elif named is FormatName.MINDSPORE_CKPT:  # a `.ckpt`, of which the first bytes tell whose it is
                with noted.open(path) as source:
                    source.read(0, HEAD_BYTES)
            elif named is FormatName.TORCH_ZIP:
                with noted.open(path) as source:
                    plain_values(source)
            elif named is FormatName.TORCH_ZIPS:
                spans = [*_values(storage, path)]
                with noted.open(path) as source:
                    for begin, end in spans:
                        plain_values(source, begin, end)


def _values(storage: Storage, path: str) -> Iterator[tuple[int, int]]:
    """Yield where the archives of a file lie that hold something else than a tensor."""
    with storage.open(path) as source:
        small = [(begin, end) for begin, end in archives_of(source) if end - begin <= MOST_OF_A_VALUE]
        for begin, end in small[:MOST_VALUES]:
            with suppress(BrokenPickleError):
                if not isinstance(plain_values(source, begin, end), Tensor):
                    yield begin, end
