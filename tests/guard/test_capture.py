"""What is written of a captured step is read back as it was, and what anybody else wrote is not believed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.units import MAX_RANKS, Step
from ckpttool.core.formats.strict_json import ParseError
from ckpttool.guard.files.capture import (
    CaptureHead,
    folder_name,
    head_bytes,
    head_step,
    rank_bytes,
    rank_of_record,
    read_head,
    read_rank,
    record_name,
    shard_name,
)
from ckpttool.guard.model.capture import CaptureLevel, LeftOut, Rerun
from tests.support.captures import DIGEST, gradient, loss, micro_batch, rank_capture
from tests.support.manifests import edited

HEAD = CaptureHead(step=Step(7), world_size=2, time="2026-11-20T03:00:00Z")
FULL = replace(
    rank_capture(1, world=2, losses=[1.5, -0.0], gradients=[gradient("a.b"), gradient("c", norm=2.5)]),
    rerun=Rerun(losses=(loss(math.inf),), gradients=(gradient("a.b", norm=math.inf),)),
    weights=(("a.b", DIGEST),),
    level=CaptureLevel.LIGHT,
    scale=1024.0,
    micro_batches=(
        micro_batch(1.5),
        replace(
            micro_batch(None), changed=True, index=3, left_out=LeftOut(path="a[0]", reason="set"), inner_autocast=None
        ),
    ),
    buffers_left_out=("mask",),
    model_config={"use_cache": False},
    data_position=[1, "two"],
)


@pytest.mark.parametrize("capture", [rank_capture(0), FULL], ids=["plain", "with all"])
def test_what_a_rank_writes_is_read_back(capture: Any) -> None:  # noqa: ANN401
    data = rank_bytes(capture)
    assert read_rank(data, capture.rank, where="r") == capture
    assert rank_bytes(read_rank(data, capture.rank, where="r")) == data
    assert json.loads(data)["resumable"] is False


def test_a_nan_comes_back_with_its_bits() -> None:
    capture = rank_capture(0, losses=[math.nan], gradients=[gradient("a", nan=1, norm=math.nan)])
    back = read_rank(rank_bytes(capture), 0, where="r")
    assert back.micro_batches[0].loss is not None
    assert math.isnan(back.micro_batches[0].loss.value)
    assert back.micro_batches[0].loss.bits == loss(math.nan).bits
    assert math.isnan(back.gradients[0].norm)


@pytest.mark.parametrize(
    ("reason", "over_budget", "advised"),
    [
        ("no room", True, "host_batches"),
        ("beyond.Recognition", False, "encode_batch"),  # a type of the user's
        ("above the limit of 50 MiB of host memory for the batches of a step", None, "host_batches"),
        ("beyond the 1 MiB that the batches of a step may take", None, "host_batches"),
        ("set", None, "encode_batch"),
    ],
)
def test_a_part_without_room_is_known_by_its_field_and_by_its_reason_in_captures_without_the_field(
    reason: str, over_budget: bool | None, advised: str
) -> None:
    def change(record: dict[str, Any]) -> None:
        left_out = record["micro_batches"][1]["left_out"]
        left_out.update(reason=reason, over_budget=over_budget)
        if over_budget is None:
            del left_out["over_budget"]

    left_out = read_rank(edited(rank_bytes(FULL), change), 1, where="r").micro_batches[1].left_out
    assert left_out is not None
    assert advised in left_out.remedy


def test_what_rank_0_writes_is_read_back() -> None:
    assert read_head(head_bytes(HEAD), where="h") == HEAD


@given(st.data())
def test_a_flipped_bit_or_a_cut_is_never_believed(data: st.DataObject) -> None:
    whole = bytearray(rank_bytes(FULL))
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        whole[at] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del whole[at:]
    with pytest.raises(ParseError, match="truncated or edited"):
        read_rank(bytes(whole), 1, where="r")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda record: record.update(schema="ckpttool/capture-rank/2"), "expected ckpttool/capture-rank/1"),
        (lambda record: record.update(rank=0), "is from rank 0, and was copied or renamed"),
        (lambda record: record.update(world_size=1), "at least 2"),
        (lambda record: record.update(world_size=10**12), "at most 1048576, found 1000000000000"),
        (lambda record: record["shard"].update(name="../x.safetensors"), "a file that is not its own shard"),
        (lambda record: record["shard"].update(xxh3_128="xyz"), "expected a digest"),
        (lambda record: record.update(level="half"), "expected full or light"),
        (lambda record: record["micro_batches"][0]["loss"].update(bits="0g"), "expected the bytes of a number"),
        (lambda record: record["environment"].update(torch=[1]), "a whole number"),
        (lambda record: record["gradients"][0].update(nan=-1), "at least 0"),
        (lambda record: record["gradients"][0].update(norm="many"), "expected a number"),
        (lambda record: record.pop("content") and record.pop("evaluating"), "is missing"),
    ],
)
def test_a_record_that_says_what_no_rank_writes_is_refused(
    change: Callable[[dict[str, Any]], object], says: str
) -> None:
    with pytest.raises(ParseError, match=says):
        read_rank(edited(rank_bytes(FULL), change), 1, where="r")
    assert read_rank(edited(rank_bytes(FULL), lambda record: record), 1, where="r") == FULL


@pytest.mark.parametrize("world_size", [MAX_RANKS + 1, 10**12])
def test_a_head_of_more_ranks_than_any_training_has_is_refused(world_size: int) -> None:
    head = CaptureHead(step=Step(7), world_size=MAX_RANKS, time="2026-11-20T03:00:00Z")
    assert read_head(head_bytes(head), where="h") == head
    with pytest.raises(ParseError, match="at most 1048576"):
        read_head(head_bytes(replace(head, world_size=world_size)), where="h")


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("nan-at-00000022", 22),
        ("nan-at-00000022-1", 22),
        (folder_name(Step(123456789)), 123456789),
        ("nan-at-22", None),
        ("nan-at-00000022.bak", None),
        ("old-nan-at-00000022", None),
        ("nan-at-00000022\n", None),
    ],
)
def test_a_folder_is_told_by_its_whole_name(name: str, step: int | None) -> None:
    assert head_step(name) == step


@pytest.mark.parametrize(("name", "rank"), [("r00012.json", 12), ("r12.json", None), ("r00012.json.bak", None)])
def test_a_record_is_told_by_its_whole_name(name: str, rank: int | None) -> None:
    assert rank_of_record(name) == rank
    assert (record_name(12), shard_name(12)) == ("r00012.json", "r00012.safetensors")
