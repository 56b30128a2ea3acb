"""Every kind of fault that names, records, headers and siblings can show, and what must be said of it."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Callable, Sequence

from ckpttool.core.domain.shard import FormatName
from ckpttool.core.formats import read_header
from ckpttool.trainers.mindformers.scalars import FACTS
from tests.reliability.big_tree import EPOCHS, STAGES, BigTree, Planted, Spot, right_scalars
from tests.support.shard_writers import MemorySource

OLDER, NEWER = EPOCHS
_PAGE = 4_096
_BROKEN = ("shard-truncated", "header-invalid", "offsets-not-contiguous")
_ODD = ("schema-differs", "entries-missing")
_OTHER_STEP = ("step-disagrees", "epoch-disagrees", "name-disagrees")

Fault = Callable[[Spot], Planted]


def _data_ranges(data: bytes | bytearray) -> list[tuple[int, int]]:
    header = read_header(MemorySource(bytes(data)), named=FormatName.MINDSPORE_CKPT, facts=FACTS)
    return [span for entry in header.entries for span in entry.spans]


def companions(tree: BigTree, rank: int) -> tuple[int, int]:
    """Return a rank of the same stage, and one of another."""
    return (rank + 2 * STAGES) % (tree.ranks // STAGES * STAGES), rank + 1 - STAGES * (rank % STAGES == STAGES - 1)


def missing(spot: Spot) -> Planted:
    spot.vacate()
    return spot.found("shard-missing")


def rank_missing(spot: Spot) -> Planted:
    shutil.rmtree(spot.tree.root / f"rank_{spot.rank}")
    return _both(spot, "rank-missing")


def rank_link_loop(spot: Spot) -> Planted:
    folder = spot.tree.root / f"rank_{spot.rank}"
    shutil.rmtree(folder)
    folder.symlink_to(folder.name)
    return _both(spot, "unreadable", also=(folder.name,))


def _both(spot: Spot, code: str, also: Sequence[str] = ()) -> Planted:
    paths = tuple(spot.tree.shard(spot.rank, epoch) for epoch in EPOCHS)
    return Planted(paths=paths, codes=frozenset({code}), also=frozenset(also))


def empty(spot: Spot) -> Planted:
    spot.put(b"")
    return spot.found("shard-empty")


def zeroed(spot: Spot) -> Planted:
    spot.put(bytes(len(spot.data)))
    return spot.found("shard-zeroed")


def zero_tail(spot: Spot) -> Planted:
    spot.put(spot.data[:-_PAGE] + bytes(_PAGE))
    return spot.found("zero-tail", *_BROKEN)


def cut(spot: Spot) -> Planted:
    data = spot.data
    ends = {end for _, end in _data_ranges(data)} if spot.tree.fmt == "ckpt" else set()
    spot.put(data[: spot.chance.choice([size for size in range(1, len(data)) if size not in ends])])
    return spot.found(*_BROKEN)


def cut_at_an_entry(spot: Spot) -> Planted:
    data = spot.data
    spot.put(data[: spot.chance.choice(sorted(end for _, end in _data_ranges(data))[:-1])])
    return spot.found("scalars-missing", "entries-missing")


def header_flip(spot: Spot) -> Planted:
    data = bytearray(spot.data)
    content = {place for begin, end in _data_ranges(data) for place in range(begin, end)}
    place = spot.chance.choice([place for place in range(len(data)) if place not in content])
    data[place] ^= 1 << spot.chance.randrange(8)
    spot.put(bytes(data))
    return spot.found(
        *_BROKEN, *_ODD, "header-not-canonical", "trailing-bytes", "scalars-missing", "unsupported-format"
    )


def written_twice(spot: Spot) -> Planted:
    spot.put(2 * spot.data)
    return spot.found(*_BROKEN, "trailing-bytes")


def longer(spot: Spot) -> Planted:
    spot.put(spot.data + spot.chance.randbytes(spot.chance.randrange(1, 100)))
    return spot.found(*_BROKEN, "trailing-bytes")


def stale(spot: Spot) -> Planted:
    """The other save's shard: the older one under the newer name, or the other way round."""
    spot.put(spot.tree.content(spot.rank, OLDER if spot.epoch == NEWER else NEWER))
    return spot.found(*_OTHER_STEP)


def other_stages_shard(spot: Spot) -> Planted:
    """Two saves alone cannot tell in which of them the rank's tensors are its own, nor which of two files is a copy."""
    _, neighbour = companions(spot.tree, spot.rank)
    spot.put(spot.tree.content(neighbour, spot.epoch))
    also = (spot.tree.shard(neighbour, spot.epoch), *(spot.tree.shard(spot.rank, epoch) for epoch in EPOCHS))
    return spot.found(*_ODD, also=also)


def other_ranks_shard(spot: Spot) -> Planted:
    """Of the same tensors: the last page tells, but not which of the two is the copy."""
    peer, _ = companions(spot.tree, spot.rank)
    spot.put(spot.tree.content(peer, spot.epoch))
    return spot.found("schema-differs", also=(spot.tree.shard(peer, spot.epoch),))


def wrong_scalar(name: str, *codes: str) -> Fault:
    def plant(spot: Spot) -> Planted:
        wrong = {name: 2 * right_scalars(spot.epoch)[name]}
        spot.put(spot.tree.content(spot.rank, spot.epoch, **wrong))
        return spot.found(*codes)

    return plant


def in_its_place(make: Callable[[Spot], None], *codes: str) -> Fault:
    """Something that is no file, where the shard should be."""

    def plant(spot: Spot) -> Planted:
        make(spot)
        return spot.found(*codes)

    return plant


def _fifo(spot: Spot) -> None:
    os.mkfifo(spot.vacate())


def _folder(spot: Spot) -> None:
    spot.vacate().mkdir()


def _link_to_itself(spot: Spot) -> None:
    place = spot.vacate()
    place.symlink_to(place.name)


def _link_to_nothing(spot: Spot) -> None:
    spot.vacate().symlink_to("/nowhere/at/all")


def _archive(spot: Spot) -> None:
    with zipfile.ZipFile(spot.vacate(), "w") as archive:
        archive.writestr("holiday.txt", "a zip file, but none of torch")


def _bytes(data: bytes) -> Callable[[Spot], None]:
    return lambda spot: spot.put(data)


def record(data: Callable[[Spot], bytes], *codes: str) -> Fault:
    """Another meta.json."""

    def plant(spot: Spot) -> Planted:
        spot.tree.write(spot.meta, data(spot))
        return Planted(paths=(spot.meta,), codes=frozenset(codes))

    return plant


def _torn(spot: Spot) -> bytes:
    return spot.tree.meta(spot.rank, NEWER)[: spot.chance.randrange(1, 60)]


def _given_twice(spot: Spot) -> bytes:
    return spot.tree.meta(spot.rank, NEWER).replace(b'"last_step": 2', b'"last_step": 2, "last_step": 1')


def _as(**changes: object) -> Callable[[Spot], bytes]:
    return lambda spot: spot.tree.meta(spot.rank, NEWER, **changes)


def _of_another_rank(spot: Spot) -> bytes:
    return spot.tree.meta(spot.rank, NEWER, last_ckpt_file=spot.tree.name(spot.rank + 1, NEWER))


def meta_missing(spot: Spot) -> Planted:
    spot.tree.full(spot.meta).unlink()
    return Planted(paths=(spot.meta,), codes=frozenset({"meta-missing"}))


def meta_folder(spot: Spot) -> Planted:
    spot.tree.full(spot.meta).unlink()
    spot.tree.full(spot.meta).mkdir()
    return Planted(paths=(spot.meta,), codes=frozenset({"not-a-regular-file"}))


def beside(name: Callable[[Spot], str], code: str, *, instead: bool = False) -> Fault:
    """A file more; or instead of the shard, which was never finished."""

    def plant(spot: Spot) -> Planted:
        extra = f"rank_{spot.rank}/{name(spot)}"
        spot.tree.write(extra, spot.data[:100])
        if instead:
            spot.vacate()
        paths = (extra, spot.path) if instead else (extra,)
        return Planted(paths=paths, codes=frozenset({code, "shard-missing"} if instead else {code}))

    return plant


def _temporary(spot: Spot) -> str:
    return spot.path.partition("/")[2].replace(spot.tree.fmt, "tmp")


def data_flip(spot: Spot) -> Planted:
    """A bit of a weight: only a manifest shows it."""
    data = bytearray(spot.data)
    begin, end = max(_data_ranges(data), key=lambda span: span[1] - span[0])
    data[spot.chance.randrange(begin, end)] ^= 1 << spot.chance.randrange(8)
    spot.put(bytes(data))
    return spot.found("checksum-mismatch")


def swapped(spot: Spot) -> Planted:
    """Two ranks' shards, one for the other, at both saves: the ranks differ as they did."""
    other, _ = companions(spot.tree, spot.rank)
    for epoch in EPOCHS:
        spot.tree.write(spot.tree.shard(spot.rank, epoch), spot.tree.content(other, epoch))
        spot.tree.write(spot.tree.shard(other, epoch), spot.tree.content(spot.rank, epoch))
    paths = tuple(spot.tree.shard(rank, epoch) for rank in (spot.rank, other) for epoch in EPOCHS)
    return Planted(paths=paths, codes=frozenset({"checksum-mismatch"}))


IN_SHARDS: dict[str, Fault] = {
    "missing": missing,
    "rank missing": rank_missing,
    "empty": empty,
    "zeroed": zeroed,
    "zero tail": zero_tail,
    "cut": cut,
    "header flip": header_flip,
    "written twice": written_twice,
    "longer": longer,
    "stale": stale,
    "another stage's": other_stages_shard,
    "another rank's": other_ranks_shard,
    "step_num": wrong_scalar("step_num", "step-disagrees"),
    "epoch_num": wrong_scalar("epoch_num", "epoch-disagrees", "name-disagrees"),
    "global_step": wrong_scalar("global_step", "step-disagrees"),
    "global_batch_size": wrong_scalar("global_batch_size", "schema-differs"),
    "loss_scale": wrong_scalar("loss_scale", "schema-differs"),
    "text": in_its_place(_bytes(b"Not a shard, but a note.\n" * 9), *_BROKEN, "unsupported-format"),
    "program": in_its_place(_bytes(b"\x7fELF\2\1\1" + bytes(200)), *_BROKEN, "unsupported-format"),
    "zip": in_its_place(_archive, *_BROKEN, "unsupported-format"),
    "pickle": in_its_place(
        _bytes(b"\x80\x02cposix\nsystem\nX\x04\0\0\0true\x85R."), "unsafe-pickle", "unsupported-format"
    ),
}
"""What `verify` must say."""

CKPT_ONLY: dict[str, Fault] = {"cut at an entry": cut_at_an_entry}

IN_LISTINGS: dict[str, Fault] = {
    "rank in a loop of links": rank_link_loop,
    "FIFO": in_its_place(_fifo, "not-a-regular-file"),
    "folder": in_its_place(_folder, "not-a-regular-file"),
    "loop of links": in_its_place(_link_to_itself, "unreadable"),
    "link to nothing": in_its_place(_link_to_nothing, "unreadable"),
    "save cut off": beside(_temporary, "in-progress", instead=True),
    "temporary file": beside(lambda spot: f"tmp{spot.rank:08d}", "in-progress"),
    "another rank's name": beside(lambda spot: spot.tree.name(spot.rank + 1, spot.epoch), "name-disagrees"),
    "meta torn": record(_torn, "meta-unreadable"),
    "meta empty": record(lambda _: b"", "meta-unreadable"),
    "meta ahead": record(lambda spot: spot.tree.meta(spot.rank, spot.chance.randrange(21, 10**9)), "meta-ahead"),
    "meta behind": record(lambda spot: spot.tree.meta(spot.rank, OLDER), "meta-behind"),
    "meta key twice": record(_given_twice, "meta-unreadable"),
    "meta of true": record(_as(last_step=True), "meta-unreadable"),
    "meta of text": record(_as(last_epoch="20"), "meta-unreadable"),
    "meta climbs": record(_as(last_ckpt_file="../../etc/passwd"), "unsafe-name"),
    "meta absolute": record(_as(last_ckpt_file="/etc/passwd"), "unsafe-name"),
    "meta controls": record(_as(last_ckpt_file="a\0b\x1b[31m.ckpt"), "unsafe-name"),
    "meta of another rank": record(_of_another_rank, "meta-disagrees"),
    "meta missing": meta_missing,
    "meta is a folder": meta_folder,
}
"""What `scan` must say."""

SEALED_ONLY: dict[str, Fault] = {"bit of a weight": data_flip, "two shards swapped": swapped}
"""What only a manifest shows."""
