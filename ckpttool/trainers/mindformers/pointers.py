"""What the trainer's own records should name: the newest whole checkpoint, and never one that is gone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ckpttool.domain.checkpoint import Checkpoint
from ckpttool.domain.retention import RecordFix, SavedLast
from ckpttool.domain.units import Rank


def left_behind(
    records: Iterable[SavedLast], going: Iterable[Checkpoint], staying: Sequence[Checkpoint]
) -> Iterator[RecordFix]:
    """Find the records that name what goes; each shall name the best that stays on its rank.

    Args:
        records: As they are.
        going: The checkpoints that go.
        staying: Whole ones that stay, best first.
    """
    gone = {shard.path for one in going for shard in one.shards} | {one.name for one in going}
    best = [(one, _files(one)) for one in staying]
    for record in records:
        named = record.file if record.rank is None else f"rank_{record.rank}/{record.file}"
        if record.file is not None and named in gone:
            for one, files in best:
                if record.rank is None or record.rank in files:
                    yield _fix(record, one, files, f"names {record.file}, which goes")
                    break


def repairs(records: Iterable[SavedLast], checkpoint: Checkpoint) -> Iterator[RecordFix]:
    """Find the records that do not name this checkpoint, and say what is wrong with each.

    Args:
        records: As they are; of ranks that have a shard of it.
        checkpoint: The one that they shall name.
    """
    files = _files(checkpoint)
    for record in records:
        fix = _fix(record, checkpoint, files, record.trouble or f"names {record.file}")
        if (record.file, record.position) != (fix.file, fix.position):
            yield fix


def _files(checkpoint: Checkpoint) -> dict[Rank, str]:
    return {shard.rank: shard.path.rpartition("/")[2] for shard in checkpoint.shards if shard.rank is not None}


def _fix(record: SavedLast, checkpoint: Checkpoint, files: dict[Rank, str], trouble: str) -> RecordFix:
    if record.rank is None:
        return RecordFix(path=record.path, trouble=trouble, file=checkpoint.name, position=None)
    return RecordFix(path=record.path, trouble=trouble, file=files[record.rank], position=checkpoint.position)
