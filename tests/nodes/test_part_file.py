"""What one of several machines saw comes back as it was written, or is known not to have come whole."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ckpttool.core.domain.finding import Code, note
from ckpttool.core.domain.node import Room
from ckpttool.core.domain.replicas import TensorDigests
from ckpttool.core.domain.shard import FileStamp, FormatName, ShardRole
from ckpttool.core.domain.units import ByteCount, Rank, Step
from ckpttool.core.domain.verdict import Level, ShardDigest, ShardReport
from ckpttool.core.records.damaged import FoundDamaged
from ckpttool.core.storage.base import Entry, Kind
from ckpttool.nodes.model import Seat
from ckpttool.nodes.part_file import PartView, encode_part, read_parts
from ckpttool.nodes.storage import Answers

SEAT = Seat(
    number=3, of=16, run="4711.0", host="node03", disk="boot 64769", shared=False, root="./output/checkpoint",
    began_ns=1_700_000_000_000_000_001, ended_ns=1_700_000_001_000_000_001, level=Level.STRUCTURE, share="1/2",
    claims=(Rank(8), Rank(9)), room=Room(free_bytes=1 << 50, free_files=None), unwritable=("/data/caf\udce9",),
    absolute="/caf\udce9/output/checkpoint",
)  # fmt: skip


def stamp(size: int = 1728) -> FileStamp:
    return FileStamp.on_disk(
        size=size, mtime_ns=1_600_000_000_000_000_003, inode=77, ctime_ns=1_600_000_000_000_000_009
    )


def report(path: str, rank: int | None = 8) -> ShardReport:
    return ShardReport(
        path=path, rank=None if rank is None else Rank(rank), role=ShardRole.FULL, level=Level.STRUCTURE,
        format=FormatName.MINDSPORE_CKPT, stamp=stamp(), scalars=(("epoch_num", 1), ("loss_scale", 0.5)),
        schema_hash="ab" * 16, tensors=11, checksum_matched=False, bytes_read=ByteCount(1728), findings=(),
        tail_hash="12" * 8,
    )  # fmt: skip


def answers() -> Answers:
    entries = (Entry("a-1_2.ckpt", Kind.FILE), Entry("b-1_2.ckpt", Kind.FILE), Entry("lost.ckpt", Kind.LOST))
    return Answers(
        entries={"": (Entry("rank_8", Kind.FOLDER), Entry("socket", Kind.OTHER)), "rank_8": entries},
        stamps={"rank_8/a-1_2.ckpt": stamp(), "rank_8/b-1_2.ckpt": stamp(), "../health_ckpts.json": stamp(5)},
        files={"rank_8/meta.json": b"{}", "rank_9/meta.json": b"{}", "../health_ckpts.json": b"\xff" * 300},
        pieces={"x.pt": {0: b"PK", 100: bytes(200)}},
        divided={"": "ab" * 8, "caf\udce9": "cd" * 8},
        failures={("entries", "rank_9"): ("OSError", 13), ("open", "rank_8/lost.ckpt"): ("LostLinkError", 2)},
    )


def read(data: bytes) -> PartView:
    ((name, look),) = read_parts(data, name="x.ckptpart")
    assert name == "x.ckptpart"
    assert isinstance(look, PartView), look
    return look


def why(data: bytes) -> str:
    ((_, look),) = read_parts(data, name="x.ckptpart")
    assert isinstance(look, str)
    return look


REPORTS = (report("rank_8/a-1_2.ckpt"), report("rank_8/b-1_2.ckpt", 9))


def part(*reports: ShardReport, seen: Answers | None = None, seat: Seat = SEAT) -> bytes:
    return encode_part(seat, seen or answers(), [("1_2", reports or REPORTS)], version="0.1.0")


def test_a_part_comes_back_as_it_was_written() -> None:
    look = read(part())
    assert look.seat == SEAT
    assert look.answers == answers()
    assert [look.report_of(each.path) for each in REPORTS] == list(REPORTS)
    assert look.report_of("rank_8/c.ckpt") is None


CHANGES: tuple[dict[str, object], ...] = (
    {"format": None, "stamp": None, "schema_hash": None, "tensors": None, "tail_hash": None, "scalars": ()},
    {
        "rank": None,
        "role": ShardRole.UNIFIED,
        "level": Level.CHECKSUM,
        "checksum_matched": True,
        "remembered": True,
    },
    {"stamp": stamp(9), "zero_tail": True, "embedded_checksum": True, "metadata_hash": "34" * 16},
    {"findings": (note(Code.ZERO_TAIL, "zeros", path="rank_8/a-1_2.ckpt", ranks=(Rank(8),), remedy="wait"),)},
    {"findings": (note(Code.STRAY_FILE, "no path, but a line", line=3), note(Code.STRAY_FILE, "m", path="other"))},
    {"digest": ShardDigest(xxh3_128="56" * 16, chunks=("56" * 16,))},
    {"tensor_digests": TensorDigests(names=("a", "b"), digests=bytes(range(16)))},
    {"tensor_digests": TensorDigests(names=(), digests=b"")},
    {"path": "rank_8/gone.ckpt", "stamp": None},
)
"""Of a report, what else its fields may hold."""


@pytest.mark.parametrize("changed", CHANGES)
def test_whatever_was_seen_of_a_shard_comes_back(changed: dict[str, object]) -> None:
    told = replace(REPORTS[0], **changed)  # type: ignore[arg-type]  # fields of a report
    assert read(part(told)).report_of(told.path) == told
    other = REPORTS[1]
    assert read(part(told, other)).report_of(told.path) == told
    assert read(part(told, other)).report_of(other.path) == other


def test_a_part_of_an_earlier_version_is_read_and_would_be_written_the_same_today() -> None:
    reports = [
        replace(report(f"rank_8/a{number}-1_2.ckpt"), **{**changed, "path": f"rank_8/a{number}-1_2.ckpt"})  # type: ignore[arg-type]
        for number, changed in enumerate(CHANGES)
    ]
    saves = [("1_2", reports), (b"caf\xe9".decode("utf-8", "surrogateescape"), [*REPORTS])]
    damaged = [
        FoundDamaged(
            path="a",
            stamp=stamp(),
            found_at=1_600_000_000,
            seal="ab" * 16,
            message="bytes",
            drifted=True,
            since=Step(9),
        ),
        FoundDamaged(path="b", stamp=stamp(5), found_at=1_600_000_000, seal=None, message="bytes differ"),
    ]
    earlier = (Path(__file__).parent / "version_1.ckptpart").read_bytes()
    assert encode_part(SEAT, answers(), saves, version="0.1.0", damaged=damaged) == earlier
    view = read(earlier)
    assert (view.seat, view.answers, [*view.damaged]) == (SEAT, answers(), damaged)
    for _, written in saves:
        assert [view.report_of(each.path) for each in written] == list(written)


def test_names_that_are_no_utf8_come_back() -> None:
    name = b"rank_8\xff".decode("utf-8", "surrogateescape")
    seen = Answers(entries={"": (Entry(name, Kind.FILE),)}, stamps={name: stamp()}, files={name: b"x"})
    look = read(part(report(name), seen=seen, seat=replace(SEAT, root=f"/data/{name}")))
    assert look.answers == seen
    assert look.seat.root == f"/data/{name}"
    assert look.report_of(name) == report(name)


def test_a_part_cut_at_any_byte_counts_as_missing_and_a_whole_one_does_not() -> None:
    whole = part()
    for end in range(len(whole)):
        assert why(whole[:end])
    assert read(whole).seat == SEAT


def test_a_part_with_any_byte_changed_counts_as_missing() -> None:
    whole = part()
    for at in range(len(whole)):
        assert why(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :]), at


def test_parts_may_lie_one_behind_another_and_a_torn_one_takes_no_other_with_it() -> None:
    whole, other = part(), part(seat=replace(SEAT, number=4))
    found = list(read_parts(whole + whole[:300] + b"\n" + other, name="all"))
    assert [name for name, _ in found] == ["all: part 1 in it", "all: part 2 in it", "all: part 3 in it"]
    assert [look.seat.number if isinstance(look, PartView) else "torn" for _, look in found] == [3, "torn", 4]


def test_another_versions_part_is_told_by_its_first_line() -> None:
    assert "another version" in why(part().replace(b"ckpttool/part/1", b"ckpttool/part/2"))


@pytest.mark.parametrize("foreign", [b"", b"\n", b"{}\n", b"\0" * 100, b"step 1 loss 2.0\n", b"[" * 10_000])
def test_what_is_no_part_is_said_to_be_none(foreign: bytes) -> None:
    assert "does not start with the first line of a part" in why(foreign)


def resealed(lines: list[str]) -> bytes:
    from xxhash import xxh3_128_hexdigest

    before = "".join(f"{line}\n" for line in lines).encode()
    return before + f'{{"lines": {len(lines) + 1}, "xxh3_128": "{xxh3_128_hexdigest(before)}"}}\n'.encode()


@pytest.mark.parametrize(
    ("line", "old", "new"),
    [
        (0, '"part": 3', '"part": 17'),
        (0, '"part": 3', '"part": 0'),
        (0, '"of": 16', '"of": 1000000'),
        (0, '"lines": 4', '"lines": 5'),
        (0, '"level": "structure"', '"level": "deep"'),
        (0, '"host": "node03"', '"host": null'),
        (0, '"shared": false', '"shared": 0'),
        (1, "rank_8", "../../etc"),
        (1, '"a-1_2.ckpt"', '"../a"'),
        (1, '"d"', '"q"'),
        (1, '"LostLinkError"', '"SystemExit"'),
        (1, '"OSError",13', '"OSError",99999999999999999999'),
        (1, "1728", '"many"'),
        (1, "1728", "-1"),
        (1, '"{}"', '[99999999999,"eJw="]'),
        (1, '"{}"', '[2,"####"]'),
        (1, '"folders"', '"other"'),
        (1, ",0]", ",7]"),
    ],
)
def test_a_part_that_somebody_else_spelled_is_refused_with_a_reason(line: int, old: str, new: str) -> None:
    lines = part().decode().splitlines()[:-1]
    assert read(resealed(lines)).seat == SEAT
    assert old in lines[line]
    lines[line] = lines[line].replace(old, new)
    assert why(resealed(lines))


def test_a_bomb_is_not_unpacked() -> None:
    import base64
    import zlib

    lines = part().decode().splitlines()[:-1]
    bomb = base64.b64encode(zlib.compress(bytes(1 << 24))).decode()
    record = json.loads(lines[1])
    record["contents"] = [[10, bomb]] * len(record["contents"])
    lines[1] = json.dumps(record)
    assert "whose length differs from the stated length" in why(resealed(lines))


def test_a_save_that_somebody_else_spelled_tells_nothing_of_its_shards() -> None:
    lines = part().decode().splitlines()[:-1]
    lines[2] = lines[2].replace('"mindspore-ckpt"', '"tar"')
    assert read(resealed(lines)).report_of(REPORTS[0].path) is None
