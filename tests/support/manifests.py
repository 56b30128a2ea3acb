"""Seals and manifests made by hand, and any that there can be; and our records as another hand would edit them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from ckpttool.core.domain.checkpoint import Checkpoint, CommitState, Content, StepSource, Topology
from ckpttool.core.domain.manifest import CHUNK_BYTES, Manifest, ShardSeal
from ckpttool.core.domain.scalars import Scalars
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.records.hashed_json import closed
from ckpttool.trainers.mindformers.layouts.names import RANK_LAYOUT
from ckpttool.trainers.mindformers.scalars import TrainState
from ckpttool.trainers.registry import LAYOUT_NAMES
from tests.support.scalars import values

EARLIER, LATER = "2025-01-31T23:59:59Z", "2025-02-01T00:00:00Z"

DIGESTS = st.integers(0, 2**128 - 1).map(lambda number: f"{number:032x}")
TIMES = st.datetimes().map(lambda time: f"{time:%Y}".zfill(4) + f"{time:-%m-%dT%H:%M:%SZ}")
COUNTS = st.none() | st.integers(0, 2**63)
# Any bytes that a file system may hold, as Python holds them; `%` because it is an escape in the file.
NAMES = (
    st.lists(st.binary(min_size=1, max_size=6) | st.just(b"%25") | st.just("ß\u202e".encode()), min_size=1)
    .map(b"".join)
    .map(lambda raw: raw.replace(b"/", b"_").replace(b"\0", b"_").decode("utf-8", "surrogateescape"))
    .filter(lambda name: name not in {".", ".."})
)


def digest(number: int) -> str:
    """Some digest."""
    return f"{number:032x}"


def sealed_checkpoint(name: str, prefix: str, fmt: FormatName) -> Checkpoint:
    """As much of a checkpoint as the place of its manifest depends on."""
    return Checkpoint(
        name=name,
        prefix=prefix,
        run=0,
        scalars=Scalars(),
        step=None,
        step_source=StepSource.UNKNOWN,
        shards=(),
        topology=Topology(),
        format=fmt,
        commit=CommitState.UNRECORDED,
        content=Content.FULL,
    )


def seal(
    path: str = "rank_0/llama_rank_0-10_2.ckpt",
    *,
    chunks: tuple[int, ...] = (1,),
    size: int | None = None,
    first_seen: str = EARLIER,
) -> ShardSeal:
    """A seal of as many whole chunks; its contents are told by numbers."""
    return ShardSeal(
        path=path,
        size=ByteCount(len(chunks) * CHUNK_BYTES if size is None else size),
        xxh3_128=digest(sum(chunks) * 1000),
        chunks=tuple(map(digest, chunks)),
        format=FormatName.MINDSPORE_CKPT,
        schema_hash=digest(77),
        scalars=(("loss_scale", 65536.0), ("step_num", 20)),
        first_seen=first_seen,
    )


def manifest(
    *seals: ShardSeal, world_size: int | None = 4, sealed_at: str = EARLIER, checkpoint: str = "10_2"
) -> Manifest:
    """A manifest of the legacy layout."""
    return Manifest(
        layout=RANK_LAYOUT,
        checkpoint=checkpoint,
        prefix="llama",
        world_size=world_size,
        sealed_at=sealed_at,
        sealed_by="0.1.0",
        shards=tuple(sorted(seals, key=lambda one: one.path)),
    )


@st.composite
def any_seal(draw: st.DrawFn) -> ShardSeal:
    size = draw(st.integers(0, 3 * CHUNK_BYTES + 1))
    count = -(-size // CHUNK_BYTES)
    return ShardSeal(
        path="/".join(draw(st.lists(NAMES, min_size=1, max_size=3))),
        size=ByteCount(size),
        xxh3_128=draw(DIGESTS),
        chunks=tuple(draw(st.lists(DIGESTS, min_size=count, max_size=count))),
        format=draw(st.sampled_from(FormatName)),
        schema_hash=draw(st.none() | DIGESTS),
        scalars=draw(
            st.builds(
                TrainState,
                epoch_num=COUNTS,
                step_num=COUNTS,
                global_step=COUNTS,
                loss_scale=st.none() | st.floats(allow_nan=False, allow_infinity=False),
                global_batch_size=COUNTS,
                consumed_samples=COUNTS,
            ).map(values)
        ),
        first_seen=draw(TIMES),
    )


@st.composite
def any_manifest(draw: st.DrawFn) -> Manifest:
    seals = draw(st.lists(any_seal(), max_size=4, unique_by=lambda one: one.path))
    return Manifest(
        layout=draw(st.sampled_from(LAYOUT_NAMES)),
        checkpoint=draw(NAMES),
        prefix=draw(st.just("") | NAMES),
        world_size=draw(st.none() | st.integers(1, 2**31)),
        sealed_at=draw(TIMES),
        sealed_by=draw(st.text(st.characters(exclude_categories=["Cs"]))),
        shards=tuple(sorted(seals, key=lambda one: one.path)),
    )


def edited(record: bytes, change: Callable[[Any], object]) -> bytes:
    """Return a record of ours with its JSON changed and a hash that fits, as a hostile editor's or a bug of ours."""
    document: dict[str, Any] = json.loads(record)
    del document["hash"]
    change(document)
    return closed(json.dumps(document, indent=2).removesuffix("\n}"))


def reworded(record: bytes, old: str, new: str) -> bytes:
    """Return a record of ours with another text in place of one that it holds, and a hash that fits."""
    text = record.decode()
    assert old in text
    return closed(text.replace(old, new, 1).rpartition(',\n  "hash"')[0])
