"""The meta.json of each rank, in which MindFormers names the rank's latest save.

These records are only hints: the shards are authoritative. This module reads them, and writes them as MindFormers does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import Rank
from ckpttool.core.formats.strict_json import ParseError, get_int, get_str, parse_object
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.mindformers.scalars import EpochStep, epoch_step

if TYPE_CHECKING:
    from ckpttool.core.domain.pointer import Pointer, PointerText

META_LIMIT = 64 * 1024
"""Maximum size in bytes.

A real meta.json has about 90, so MindFormers cannot have written a larger file.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaRecord:
    """One parsed meta.json."""

    position: EpochStep
    """`last_epoch` and `last_step`: the numbers in the file's *name*."""
    file: str
    """The file name in `last_ckpt_file`.

    It is untrusted, so it is compared with names, and never joined to a path.
    """

    @property
    def escapes(self) -> bool:
        """Whether the file name points outside the rank's folder, or contains control characters."""
        hostile = any(ord(character) < ord(" ") or character in "/\\\x7f" for character in self.file)
        return hostile or self.file in {"", ".", ".."}


def parse_meta(data: bytes, *, where: str) -> MetaRecord:
    """Parse a meta.json strictly: a truncated file, `{"last_step": true}` or a duplicate key is invalid.

    Raises:
        ParseError: The message names the file and the invalid key.
    """
    record = parse_object(data, where=where)
    position = EpochStep(
        epoch=get_int(record, "last_epoch", where=where), step=get_int(record, "last_step", where=where)
    )
    return MetaRecord(position=position, file=get_str(record, "last_ckpt_file", where=where))


def meta_pointers(storage: Storage, ranks: Iterable[Rank]) -> Iterator[Pointer]:
    """Read the meta.json of each given rank."""
    for rank in ranks:
        yield _meta_pointer(storage, rank)


def metas_naming(checkpoint: Checkpoint) -> dict[str, PointerText]:
    """Return the meta.json contents of every rank with a shard of a checkpoint, as written with that save."""
    from ckpttool.core.domain.pointer import PointerText  # not needed for a scan

    position = epoch_step(checkpoint)
    if position is None:
        return {}
    own_files = [(shard.rank, shard.path.rpartition("/")[2]) for shard in checkpoint.shards if shard.rank is not None]
    return {
        f"rank_{rank}/meta.json": PointerText(name=file, content=meta_bytes(position, file), like="rank_0/meta.json")
        for rank, file in own_files
    }


def _meta_pointer(storage: Storage, rank: Rank) -> Pointer:
    from ckpttool.core.domain.pointer import Pointer  # not needed for a scan

    path = f"rank_{rank}/meta.json"
    try:
        record = parse_meta(storage.small_file(path, limit=META_LIMIT), where=path)
    except FileNotFoundError:
        return Pointer(path=path, rank=rank, trouble="is missing")
    except OSError as error:
        return Pointer(path=path, rank=rank, trouble=f"cannot be read ({error.strerror or error})", unknown=True)
    except ParseError:
        return Pointer(path=path, rank=rank, trouble="is truncated or edited")
    content = meta_bytes(record.position, record.file)
    return Pointer(path=path, rank=rank, name=record.file, target=f"rank_{rank}/{record.file}", content=content)


def meta_bytes(position: EpochStep, file: str) -> bytes:
    """Encode a meta.json as one line, without a newline."""
    record = {"last_epoch": position.epoch, "last_step": position.step, "last_ckpt_file": file}
    return json.dumps(record, ensure_ascii=True).encode("ascii")
