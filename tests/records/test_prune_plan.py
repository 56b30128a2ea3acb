"""A plan comes back as it was written, and nothing that another hand made of it is believed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.domain.frozen import replace
from ckpttool.domain.pointer import PointerFix, PointerText
from ckpttool.domain.prune_plan import Machine, PlannedSave, PrunePlan, Share, TreeOnDisk
from ckpttool.domain.retention import Move
from ckpttool.domain.shard import FileStamp
from ckpttool.domain.units import Rank, Step
from ckpttool.errors import IncompleteError, UnsafeError, UsageError
from ckpttool.records.hashed_json import closed
from ckpttool.records.prune_plan import plan_bytes, read_plan
from tests.support.json_schemas import problems_of
from tests.support.manifests import edited


def move(path: str, inode: int = 1) -> Move:
    return Move(path=path, stamp=FileStamp.on_disk(size=10, mtime_ns=-5, inode=inode))


def save(name: str, *shares: Share, step: int | None = 20) -> PlannedSave:
    return PlannedSave(name=name, prefix="llama", step=None if step is None else Step(step), shares=shares)


PLAN = PrunePlan(
    version="0.1.0",
    made="2026-11-28T03:40:00Z",
    valid_until="2026-11-28T04:40:00Z",
    run="night",
    root="output/checkpoint",
    layout="mindformers-rank",
    disks=(
        TreeOnDisk(disk="a", shared=False, machines=(Machine(host="node01", root="/data/output/checkpoint"),)),
        TreeOnDisk(disk="b", shared=True, machines=(Machine(host="n2", root="/a"), Machine(host="n3", root="/b"))),
    ),
    going=(
        save(
            "10_2",
            Share(disk=0, ranks=(Rank(0),), files=(move("rank_0/x-10_2.ckpt"), move(".ckpttool/x.manifest.json"))),
            Share(disk=1, folders=("iteration_10",), files=(move("iteration_10/a"), move(".ckpttool/birth/x.r1.json"))),
        ),
    ),
    good=(save("20_2", Share(disk=0, ranks=(Rank(0),), files=(move("rank_0/x-20_2.ckpt"),)), step=None),),
    records=(
        PointerFix(
            path="rank_0/meta.json",
            trouble="names x-10_2.ckpt, which goes",
            text=PointerText(name="x-20_2.ckpt", content=b'{"last_epoch": 20}'),
        ),
    ),
)

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=20).filter(
    lambda text: text not in {".", "..", ".ckpttool"}
)
BYTES = st.binary(min_size=1, max_size=20).map(lambda name: name.decode("utf-8", "surrogateescape"))
NAMES = TEXT | BYTES.filter(lambda name: not {"/", "\0"} & {*name} and name not in {".", "..", ".ckpttool"})
NUMBERS = st.integers(0, 2**63)


@given(names=st.tuples(NAMES, NAMES, NAMES, NAMES), size=NUMBERS, time=st.integers(-(2**63), 2**63))
def test_a_plan_comes_back_as_it_was_written_whatever_files_and_machines_are_called(
    names: tuple[str, str, str, str], size: int, time: int
) -> None:
    name, host, folder, file = names
    stamp = FileStamp.on_disk(size=size, mtime_ns=time, inode=size)
    share = Share(disk=0, folders=(folder,), files=(Move(path=f"{folder}/{file}", stamp=stamp),))
    disk = TreeOnDisk(disk="d", shared=False, machines=(Machine(host=host, root=f"/{folder}"),))
    fix = PointerFix(path=folder, trouble=f"names {file}", text=PointerText(name=file, content=b"{}"))
    plan = replace(PLAN, disks=(disk,), going=(save(name, share),), good=(save("good"),), root=folder, records=(fix,))
    assert read_plan(plan_bytes(plan), name="x") == plan
    assert problems_of(json.loads(plan_bytes(plan))) == []


def test_a_plan_keeps_to_its_schema_and_has_a_line_for_each_file() -> None:
    data = plan_bytes(PLAN)
    assert problems_of(json.loads(data)) == []
    assert read_plan(data, name="x") == PLAN
    assert [line for line in data.decode().splitlines() if 'x-10_2.ckpt"' in line] == [
        '        ["rank_0/x-10_2.ckpt", 10, -5, 1],'
    ]


def test_a_plan_that_nobody_would_read_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, limit in (("MOST_PLAN_BYTES", len(plan_bytes(PLAN)) - 1), ("OWN_MEMORY", 1000)):
        with monkeypatch.context() as patch:
            patch.setattr(f"ckpttool.records.prune_plan.{name}", limit)
            with pytest.raises(UnsafeError, match="let fewer checkpoints go at once"):
                plan_bytes(PLAN)


def test_an_empty_plan_is_one() -> None:
    plan = replace(PLAN, going=(), good=(), records=())
    assert problems_of(json.loads(plan_bytes(plan))) == []
    assert read_plan(plan_bytes(plan), name="x") == plan


def test_no_plan_that_is_cut_or_has_another_byte_is_believed() -> None:
    data = plan_bytes(PLAN)
    for end in range(0, len(data), 5):
        with pytest.raises((IncompleteError, UsageError)):
            read_plan(data[:end], name="x")
    for at in range(0, len(data), 7):
        with pytest.raises((IncompleteError, UsageError)):
            read_plan(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], name="x")


@pytest.mark.parametrize("data", [b"", b"{}", b"night.00001-of-00002", b'{"schema": "ckpttool/prune/1"}', b"\xff" * 99])
def test_what_is_no_plan_at_all_is_a_slip_of_the_pen(data: bytes) -> None:
    with pytest.raises(UsageError, match="x is no plan: ckpttool prune --plan-out writes one"):
        read_plan(data, name="x")


def test_a_plan_that_was_written_otherwise_and_says_the_same_is_the_same() -> None:
    assert read_plan(edited(plan_bytes(PLAN), lambda _: None), name="x") == PLAN


def put(place: str, value: object) -> Callable[[dict[str, Any]], object]:
    """Return what puts a value at a dotted place."""

    def change(document: Any) -> None:  # noqa: ANN401  whatever JSON is
        *above, last = [int(part) if part.isdigit() else part for part in place.split(".")]
        for part in above:
            document = document[part]
        document[last] = value

    return change


LEADS_OUT = ["../x", "/etc/passwd", "rank_0/../../x", "", ".", "a//b", "rank_0/\0", "rank_0/."]
OURS = [
    ".ckpttool", ".ckpttool/prune.json", ".ckpttool/prune.lock", ".ckpttool/trash/20260101T000000Z-5_2/rank_0/x",
    ".ckpttool/trash/x.manifest.json", ".ckpttool/reserve",
]  # fmt: skip


@pytest.mark.parametrize("path", [*LEADS_OUT, *OURS])
@pytest.mark.parametrize(
    "place", ["going.0.on.0.files.0.0", "going.0.on.1.folders.0", "good.0.on.0.files.0.0", "records.0.path"]
)
def test_no_path_leads_out_of_the_tree_or_to_what_is_ours(path: str, place: str) -> None:
    with pytest.raises(IncompleteError, match="which is no file of a checkpoint; nothing was changed: make a new plan"):
        read_plan(edited(plan_bytes(PLAN), put(place, path)), name="x")


@pytest.mark.parametrize(
    "path", [".ckpttool/seals/x.manifest/1-of-2.json", "rank_0/x..y", "iteration_10/ckpttool.manifest.json"]
)
def test_what_was_recorded_of_a_save_and_odd_names_are_believed(path: str) -> None:
    plan = read_plan(edited(plan_bytes(PLAN), put("going.0.on.0.files.0.0", path)), name="x")
    assert plan.going[0].shares[0].files[0].path == path


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("schema", "ckpttool/prune-plan/2", "another ckpttool wrote it"),
        ("made", "yesterday", "made: is no time in UTC"),
        ("valid_until", "2026-11-28 04:40", "valid_until: is no time in UTC"),
        ("going.0.name", "../10_2", "names a checkpoint '../10_2'"),
        ("going.0.name", "a" * 201, "names a checkpoint"),
        ("going.0.step", True, "step: expected an integer"),
        ("going.0.on.0.disk", 2, "names a disk that is not there"),
        ("going.0.on.0.files.0", ["rank_0/x"], "is spelled otherwise"),
        ("going.0.on.0.files.0.1", -1, "expected an integer of at least 0"),
        ("going.0.on.0.files.0.3", 1.0, "expected an integer"),
        ("going.0.on.0.files.0.0", {"bytes": "zz"}, "is spelled otherwise"),
        ("going.0.on.0.ranks", [-1], "expected an integer of at least 0"),
        ("good", [], "names none that stays for them"),
        ("good.0.on.0.files.0.0", "rank_0/x-10_2.ckpt", "lets go what stays"),
        ("going.0.on.0.files.1.0", "rank_0/x-10_2.ckpt", "names a file twice"),
        ("disks.0.machines", [], "names a disk that no machine sees"),
        ("disks.0.machines.0.root", "output", "as a tree's folder"),
        ("disks.0.machines.0.host", 7, "expected text"),
        ("disks.0.shared", 1, "expected true or false"),
        ("records.0.content", "x" * 70_000, "a record of more bytes than any trainer's"),
        ("records.0.content", "é", "is spelled otherwise"),
        ("root", None, "expected text"),
    ],
)  # fmt: skip
def test_what_no_plan_says_is_not_believed_though_its_hash_fits(place: str, value: object, words: str) -> None:
    with pytest.raises(IncompleteError, match=words):
        read_plan(edited(plan_bytes(PLAN), put(place, value)), name="x")


def test_nothing_that_stays_may_lie_in_a_folder_that_goes() -> None:
    stays = save("20_2", Share(disk=1, files=(move("iteration_10/b"),)))
    with pytest.raises(IncompleteError, match="lets go what stays"):
        read_plan(plan_bytes(replace(PLAN, good=(stays,))), name="x")
    other = save("20_2", Share(disk=0, files=(move("iteration_10/b"),)))
    assert read_plan(plan_bytes(replace(PLAN, good=(other,))), name="x").good == (other,)


def test_a_plan_of_deep_nesting_is_refused_before_it_is_read() -> None:
    with pytest.raises(IncompleteError, match="nesting"):
        read_plan(closed('{\n  "schema": "ckpttool/prune-plan/1",\n  "going": ' + "[" * 100 + "]" * 100), name="x")
