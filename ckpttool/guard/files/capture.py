"""Records of a non-finite step: each rank's `r00000.json` next to its shard, and rank 0's `capture.json`.

Both are read without torch, and neither is trusted: a shard is opened by the name for its rank, never by a name in a
file. Each has `"resumable": false`, in case it is found without the other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import MAX_RANKS, ByteCount, Rank, Step
from ckpttool.core.formats.strict_json import (
    OWN_MEMORY,
    Json,
    JsonObject,
    ParseError,
    as_int,
    as_list,
    as_number,
    as_object,
    as_str,
    get_bool,
    get_int,
    get_list,
    get_object,
    get_optional_int,
    get_str,
    number,
    parse_object,
)
from ckpttool.core.records.hashed_json import closed, is_intact
from ckpttool.guard.model.capture import (
    CaptureLevel,
    GradientFacts,
    LeftOut,
    LossBits,
    MicroBatch,
    RankCapture,
    Rerun,
    Setting,
    ShardFile,
)

HEAD = "capture.json"
"""Name of rank 0's record, which does not wait for other ranks."""

_FOLDER = re.compile(r"nan-at-([0-9]{8,18})(?:-[0-9]{1,3})?")
"""Pattern of a capture's folder. It matches no trainer's pattern for checkpoints, so no layout recognizes a capture."""

_RECORD = re.compile(r"r([0-9]{5,7})\.json")

RECORD_LIMIT = ByteCount(256 << 20)
"""Largest size of a record in bytes. 100,000 gradients, and the tree of as many parameters, need 40 MB."""

_RANK_SCHEMA = "ckpttool/capture-rank/1"
_HEAD_SCHEMA = "ckpttool/capture/1"
_DIGEST = re.compile(r"[0-9a-f]{32}")
_BITS = re.compile(r"(?:[0-9a-f]{2}){1,16}")
_OVER_BUDGET_BEFORE = ("above the limit of ", "beyond ")
"""Beginnings of the reason for a missing part, in captures without the field `over_budget`, if there was no room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureHead:
    """Rank 0's record of the complete capture."""

    step: Step
    world_size: int
    time: str
    """Time in UTC, to the second."""


def folder_name(step: Step, attempt: int = 0) -> str:
    """Return the name of a capture's folder.

    `attempt` distinguishes later captures of the same step, counted from 1.
    """
    return f"nan-at-{step:08d}" + (f"-{attempt}" if attempt else "")


def shard_name(rank: int) -> str:
    """Return the file name of a rank's tensors."""
    return f"r{rank:05d}.safetensors"


def record_name(rank: int) -> str:
    """Return the file name of a rank's record."""
    return f"r{rank:05d}.json"


def head_bytes(head: CaptureHead) -> bytes:
    """Encode rank 0's record; `read_head` decodes it."""
    document = {
        "schema": _HEAD_SCHEMA,
        "resumable": False,
        "step": head.step,
        "world_size": head.world_size,
        "time": head.time,
    }
    return closed(json.dumps(document, indent=2).removesuffix("\n}"))


def read_head(data: bytes, *, where: str) -> CaptureHead:
    """Decode the output of `head_bytes`.

    Raises:
        ParseError: The data is truncated, edited, or from another file.
    """
    record = _complete_record(data, _HEAD_SCHEMA, where)
    return CaptureHead(
        step=Step(get_int(record, "step", where=where)),
        world_size=_world_size(record, 1, where),
        time=get_str(record, "time", where=where),
    )


def rank_bytes(capture: RankCapture) -> bytes:
    """Encode the record of one rank in the model's order. `read_rank` decodes it."""
    rerun: Json = None
    if capture.rerun is not None:
        rerun = {
            "losses": [_loss(loss) for loss in capture.rerun.losses],
            "gradients": [_gradient(gradient) for gradient in capture.rerun.gradients],
            "repeats": capture.rerun.repeats,
        }
    document: JsonObject = {
        "schema": _RANK_SCHEMA,
        "resumable": False,
        "rank": capture.rank,
        "world_size": capture.world_size,
        "step": capture.step,
        "optimizer_step": capture.optimizer_step,
        "level": capture.level.value,
        "host": capture.host,
        "device": capture.device,
        "shard": {"name": capture.shard.name, "size": capture.shard.size, "xxh3_128": capture.shard.xxh3_128},
        "micro_batches": [_micro_batch(batch) for batch in capture.micro_batches],
        "gradients": [_gradient(gradient) for gradient in capture.gradients],
        "rerun": rerun,
        "weights": dict(capture.weights),
        "evaluating": [*capture.evaluating],
        "buffers_left_out": [*capture.buffers_left_out],
        "scale": number(capture.scale),
        "environment": dict(capture.environment),
        "model_config": capture.model_config,
        "run_config": capture.run_config,
        "data_position": capture.data_position,
        "content": capture.content,
    }
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in document.items())
    return closed(f"{{\n{lines}")


def _micro_batch(batch: MicroBatch) -> JsonObject:
    inner = batch.inner_autocast
    return {
        "loss": None if batch.loss is None else _loss(batch.loss),
        "changed": batch.changed,
        "left_out": None if batch.left_out is None else _left_out(batch.left_out),
        "index": batch.index,
        "outer_autocast": dict(batch.outer_autocast),
        "inner_autocast": None if inner is None else dict(inner),
    }


def _left_out(left_out: LeftOut) -> JsonObject:
    return {"path": left_out.path, "reason": left_out.reason, "over_budget": left_out.is_over_budget}


def _loss(loss: LossBits) -> JsonObject:
    return {"value": number(loss.value), "dtype": loss.dtype, "bits": loss.bits}


def _gradient(gradient: GradientFacts) -> JsonObject:
    return {
        "name": gradient.name,
        "shape": [*gradient.shape],
        "xxh3_128": gradient.xxh3_128,
        "norm": number(gradient.norm),
        "nan": gradient.nan,
        "positive_inf": gradient.positive_inf,
        "negative_inf": gradient.negative_inf,
        "first": None if gradient.first is None else [*gradient.first],
    }


def read_rank(data: bytes, rank: int, *, where: str) -> RankCapture:
    """Decode the output of `rank_bytes`.

    Args:
        data: The complete file.
        rank: The rank in its file name.
        where: Name of the file for error messages.

    Raises:
        ParseError: The data is truncated, edited, from another rank, or from another file.
    """
    record = _complete_record(data, _RANK_SCHEMA, where)
    if get_int(record, "rank", where=where) != rank:
        raise ParseError(f"is from rank {record['rank']}, and was copied or renamed to here", where=where)
    shard = get_object(record, "shard", where=where)
    if get_str(shard, "name", where=where) != shard_name(rank):
        raise ParseError("names a file that is not its own shard", where=where, key="shard.name")
    rerun = None
    if record.get("rerun") is not None:
        again = as_object(record["rerun"], where=where, key="rerun")
        losses = tuple(_read_loss(as_object(loss)) for loss in get_list(again, "losses"))
        repeats = get_bool(again, "repeats") if again.get("repeats") is not None else None
        rerun = Rerun(losses=losses, gradients=_read_gradients(again), repeats=repeats)
    scale, environment = record.get("scale"), get_object(record, "environment", where=where)
    level = get_str(record, "level", where=where)
    if level not in {known.value for known in CaptureLevel}:
        raise ParseError(f"expected full or light, found {level!a:.40}", where=where, key="level")
    return RankCapture(
        rank=Rank(rank),
        world_size=_world_size(record, rank + 1, where),
        step=Step(get_int(record, "step", where=where)),
        optimizer_step=get_optional_int(record, "optimizer_step", where=where),
        level=CaptureLevel(level),
        host=get_str(record, "host", where=where),
        device=get_str(record, "device", where=where),
        micro_batches=tuple(_read_batch(as_object(batch, where=where)) for batch in get_list(record, "micro_batches")),
        gradients=_read_gradients(record),
        rerun=rerun,
        weights=tuple((name, _digest(as_str(digest))) for name, digest in get_object(record, "weights").items()),
        evaluating=_texts(get_list(record, "evaluating", where=where)),
        buffers_left_out=_texts(get_list(record, "buffers_left_out", where=where)),
        scale=None if scale is None else as_number(scale),
        environment=tuple((name, _setting(value)) for name, value in environment.items()),
        model_config=record.get("model_config"),
        run_config=record.get("run_config"),
        data_position=record.get("data_position"),
        content=record.get("content"),
        shard=ShardFile(
            name=shard_name(rank),
            size=ByteCount(get_int(shard, "size", where=where)),
            xxh3_128=_digest(get_str(shard, "xxh3_128", where=where)),
        ),
    )


def _complete_record(data: bytes, schema: str, where: str) -> JsonObject:
    # The hash comes first: a damaged file does not need to be parsed.
    if not is_intact(data):
        raise ParseError("truncated or edited: it does not match its own hash", where=where)
    record = parse_object(data, where=where, limit=RECORD_LIMIT, most_memory=OWN_MEMORY)
    own_schema = get_str(record, "schema", where=where)
    if own_schema != schema:
        raise ParseError(f"expected {schema}, found {own_schema!a:.80}", where=where, key="schema")
    return record


def _world_size(record: JsonObject, least: int, where: str) -> int:
    """Return the world size if it is plausible, because readers iterate over all ranks."""
    world_size = get_int(record, "world_size", minimum=least, where=where)
    if world_size > MAX_RANKS:
        raise ParseError(f"expected at most {MAX_RANKS}, found {world_size!a:.40}", where=where, key="world_size")
    return world_size


def _read_batch(record: JsonObject) -> MicroBatch:
    loss, left_out, inner = record.get("loss"), record.get("left_out"), record.get("inner_autocast")
    return MicroBatch(
        loss=None if loss is None else _read_loss(as_object(loss, key="loss")),
        changed=get_bool(record, "changed"),
        left_out=None if left_out is None else _read_left_out(as_object(left_out, key="left_out")),
        index=get_optional_int(record, "index"),
        outer_autocast=_autocast(get_object(record, "outer_autocast")),
        inner_autocast=None if inner is None else _autocast(as_object(inner, key="inner_autocast")),
    )


def _read_left_out(record: JsonObject) -> LeftOut:
    reason = get_str(record, "reason")
    if "over_budget" in record:
        is_over_budget = get_bool(record, "over_budget")
    else:
        is_over_budget = reason.startswith(_OVER_BUDGET_BEFORE)
    return LeftOut(path=get_str(record, "path"), reason=reason, is_over_budget=is_over_budget)


def _autocast(record: JsonObject) -> tuple[tuple[str, str], ...]:
    return tuple((device, as_str(dtype)) for device, dtype in record.items())


def _read_loss(record: JsonObject) -> LossBits:
    bits = get_str(record, "bits")
    if _BITS.fullmatch(bits) is None:
        raise ParseError(f"expected the bytes of a number, found {bits!a:.40}", key="bits")
    return LossBits(value=as_number(record.get("value")), dtype=get_str(record, "dtype"), bits=bits)


def _read_gradients(record: JsonObject) -> tuple[GradientFacts, ...]:
    gradients = []
    for row in map(as_object, get_list(record, "gradients")):
        first = row.get("first")
        gradient = GradientFacts(
            name=get_str(row, "name"),
            shape=_integers(get_list(row, "shape")),
            xxh3_128=_digest(get_str(row, "xxh3_128")),
            norm=as_number(row.get("norm")),
            nan=get_int(row, "nan"),
            positive_inf=get_int(row, "positive_inf"),
            negative_inf=get_int(row, "negative_inf"),
            first=None if first is None else _integers(as_list(first, key="first")),
        )
        gradients.append(gradient)
    return tuple(gradients)


def _setting(value: Json) -> Setting:
    if isinstance(value, (dict, list, float)):
        raise ParseError("expected a text, a whole number, true, false or null", key="environment")
    return value


def _digest(text: str) -> str:
    if _DIGEST.fullmatch(text) is None:
        raise ParseError(f"expected a digest, found {text!a:.40}", key="xxh3_128")
    return text


def _integers(values: Iterable[Json]) -> tuple[int, ...]:
    return tuple(as_int(value) for value in values)


def _texts(values: Iterable[Json]) -> tuple[str, ...]:
    return tuple(as_str(value) for value in values)


def head_step(name: str) -> Step | None:
    """Return the step in a folder's name, or None if it is not the name of a capture."""
    match = _FOLDER.fullmatch(name)
    return None if match is None else Step(int(match[1]))


def rank_of_record(name: str) -> Rank | None:
    """Return the rank in a record's file name, or None if it is not the name of a record."""
    match = _RECORD.fullmatch(name)
    return None if match is None else Rank(int(match[1]))
