"""A prune's plan as a file: JSON of which the last key is the hash of all before it, a line for each file.

Whoever applies it has it from somebody else: every path is looked at before it is used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence

from ckpttool.domain.pointer import PointerFix, PointerText
from ckpttool.domain.prune_plan import MOST_PLAN_BYTES, Machine, PlannedSave, PrunePlan, Share, TreeOnDisk
from ckpttool.domain.retention import Move
from ckpttool.domain.shard import FileStamp
from ckpttool.domain.units import Rank, Step
from ckpttool.errors import IncompleteError, UnsafeError, UsageError
from ckpttool.formats.strict_json import (
    OWN_MEMORY,
    Json,
    JsonObject,
    ParseError,
    as_int,
    as_list,
    as_object,
    as_str,
    get_bool,
    get_int,
    get_list,
    get_optional_int,
    get_str,
    memory_of,
    parse_object,
)
from ckpttool.records import BIRTH_FOLDER, OWN_FOLDER, SEALS_BESIDE, is_manifest, leads_out
from ckpttool.records.hashed_json import closed, is_whole
from ckpttool.records.part_listing import spelled_text, text_of

SCHEMA = "ckpttool/prune-plan/1"

BEGIN = b'{\n  "schema": "ckpttool/prune-plan/'

_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")

_MOST_RECORD = 64 << 10
"""Bytes of one of the trainer's records."""

_MOST_NAME = 200
"""Bytes of a checkpoint's name: the name of its folder in the trash has more before it."""


def plan_bytes(plan: PrunePlan) -> bytes:
    """Return a plan as its file holds it; `read_plan` reads the same value back.

    Raises:
        UnsafeError: It is larger than any that would be read.
    """
    members = {
        "schema": SCHEMA,
        "version": plan.version,
        "made": plan.made,
        "valid_until": plan.valid_until,
        "run": plan.run,
        "root": spelled_text(plan.root),
        "layout": plan.layout,
    }
    lines = [f'  "{key}": {json.dumps(value, ensure_ascii=True)}' for key, value in members.items()]
    lists = {
        "disks": map(_one_line, map(_disk_spelled, plan.disks)),
        "going": map(_save_spelled, plan.going),
        "good": map(_save_spelled, plan.good),
        "records": map(_one_line, map(_record_spelled, plan.records)),
    }
    lines += [f'  "{key}": {_listed(each, "    ")}' for key, each in lists.items()]
    data = closed("{\n" + ",\n".join(lines))
    if len(data) > MOST_PLAN_BYTES or memory_of(data) > OWN_MEMORY:
        raise UnsafeError(
            f"the plan has {len(data)} bytes, and none so large is read: let fewer checkpoints go at once"
        )
    return data


def _one_line(value: object) -> str:
    return json.dumps(value, ensure_ascii=True)


def _listed(spelled: Iterable[str], inner: str) -> str:
    rows = f",\n{inner}".join(spelled)
    return f"[\n{inner}{rows}\n{inner[:-2]}]" if rows else "[]"


def _disk_spelled(disk: TreeOnDisk) -> dict[str, object]:
    machines = [{"host": spelled_text(each.host), "root": spelled_text(each.root)} for each in disk.machines]
    return {"id": disk.disk, "shared": disk.shared, "machines": machines}


def _save_spelled(save: PlannedSave) -> str:
    head = _one_line({"name": spelled_text(save.name), "prefix": _prefix(save.prefix), "step": save.step})
    return f'{head[:-1]}, "on": {_listed(map(_share_spelled, save.shares), " " * 6)}}}'


def _prefix(prefix: str | None) -> Json:
    return None if prefix is None else spelled_text(prefix)


def _share_spelled(share: Share) -> str:
    folders = [spelled_text(folder) for folder in share.folders]
    head = _one_line({"disk": share.disk, "ranks": list(share.ranks), "folders": folders})
    rows = (_one_line([spelled_text(file.path), file.stamp.size, *file.stamp.token]) for file in share.files)
    return f'{head[:-1]}, "files": {_listed(rows, " " * 8)}}}'


def _record_spelled(fix: PointerFix) -> dict[str, object]:
    return {
        "path": spelled_text(fix.path),
        "trouble": spelled_text(fix.trouble),
        "names": spelled_text(fix.text.name),
        "content": fix.text.content.decode("ascii"),
    }


def read_plan(data: bytes, *, name: str) -> PrunePlan:
    """Return the plan that a file holds.

    Args:
        data: The whole file.
        name: What it is called.

    Raises:
        UsageError: It is no plan at all.
        IncompleteError: It is torn or edited, another version's, or names what no plan names.
    """
    if not data.startswith(BEGIN):
        raise UsageError(f"{name} is no plan: ckpttool prune --plan-out writes one")
    try:
        return _plan(data, name)
    except _WRONG as error:
        why = str(error) if isinstance(error, ParseError) else f"{name} is spelled otherwise ({error})"
        raise IncompleteError(f"{why}; nothing was changed: make a new plan") from None


_WRONG = (ValueError, KeyError, IndexError, TypeError, OverflowError, RecursionError)
"""What foreign text may lead to; a `ParseError` is a ValueError."""


def _plan(data: bytes, name: str) -> PrunePlan:
    if not is_whole(data):
        raise ParseError("is torn or edited: it does not match its own hash", where=name)
    record = parse_object(data, what=name, limit=MOST_PLAN_BYTES, most_memory=OWN_MEMORY)
    if get_str(record, "schema", where=name) != SCHEMA:
        raise ParseError("another ckpttool wrote it", where=name)
    disks = tuple(_disk(as_object(each, where=name)) for each in get_list(record, "disks", where=name))
    plan = PrunePlan(
        version=get_str(record, "version", where=name),
        made=_moment(record, "made"),
        valid_until=_moment(record, "valid_until"),
        run=get_str(record, "run", where=name),
        root=text_of(record["root"]),
        layout=get_str(record, "layout", where=name),
        disks=disks,
        going=tuple(_saves(record, "going", len(disks))),
        good=tuple(_saves(record, "good", len(disks))),
        records=tuple(_record(as_object(each, where=name)) for each in get_list(record, "records", where=name)),
    )
    _assert_of_one_mind(plan)
    return plan


def _assert_of_one_mind(plan: PrunePlan) -> None:
    """See that nothing goes of what stays, and nothing without a reason."""
    if plan.going and not plan.good:
        raise ParseError("lets checkpoints go, and names none that stays for them")
    going, good = (
        [(share.disk, path) for save in saves for share in save.shares for path in _paths(share)]
        for saves in (plan.going, plan.good)
    )
    folders = {(share.disk, folder) for save in plan.going for share in save.shares for folder in share.folders}
    twice = len({*going}) < len(going) or not {*going}.isdisjoint(good)
    if twice or any((disk, above) in folders for disk, path in good for above in _above(path)):
        raise ParseError("names a file twice, or lets go what stays")


def _paths(share: Share) -> Iterator[str]:
    yield from share.folders
    yield from (file.path for file in share.files)


def _above(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def _moment(record: JsonObject, key: str) -> str:
    text = get_str(record, key)
    if _MOMENT.fullmatch(text) is None:
        raise ParseError("is no time in UTC", key=key)
    return text


def _disk(record: JsonObject) -> TreeOnDisk:
    machines = [as_object(each) for each in get_list(record, "machines")]
    if not machines:
        raise ParseError("names a disk that no machine sees")
    return TreeOnDisk(
        disk=get_str(record, "id"),
        shared=get_bool(record, "shared"),
        machines=tuple(Machine(host=text_of(each["host"]), root=_root(text_of(each["root"]))) for each in machines),
    )


def _root(path: str) -> str:
    if not path.startswith("/") or "\0" in path:
        raise ParseError(f"names {path!a:.80} as a tree's folder")
    return path


def _saves(record: JsonObject, key: str, disks: int) -> Iterator[PlannedSave]:
    for each in get_list(record, key):
        save = as_object(each)
        name, prefix, step = text_of(save["name"]), save["prefix"], get_optional_int(save, "step")
        if leads_out(name) or "/" in name or len(name.encode("utf-8", "surrogateescape")) > _MOST_NAME:
            raise ParseError(f"names a checkpoint {name!a:.80}")
        yield PlannedSave(
            name=name,
            prefix=None if prefix is None else text_of(prefix),
            step=None if step is None else Step(step),
            shares=tuple(_share(as_object(share), disks) for share in get_list(save, "on")),
        )


def _share(record: JsonObject, disks: int) -> Share:
    disk = get_int(record, "disk")
    if disk >= disks:
        raise ParseError("names a disk that is not there")
    return Share(
        disk=disk,
        ranks=tuple(Rank(as_int(rank)) for rank in get_list(record, "ranks")),
        folders=tuple(_path(folder) for folder in get_list(record, "folders")),
        files=tuple(_file(as_list(file)) for file in get_list(record, "files")),
    )


def _file(columns: Sequence[Json]) -> Move:
    path, size, mtime_ns, inode = columns
    stamp = FileStamp.on_disk(size=as_int(size), mtime_ns=as_int(mtime_ns, minimum=None), inode=as_int(inode))
    return Move(path=_path(path), stamp=stamp)


def _path(value: Json) -> str:
    """Return a path that stays in the tree, and is none of ours but what was recorded of a save."""
    path = text_of(value)
    first, _, inner = path.partition("/")
    recorded = path.startswith((f"{SEALS_BESIDE}/", f"{BIRTH_FOLDER}/")) or ("/" not in inner and is_manifest(path))
    if leads_out(path) or (first == OWN_FOLDER and not recorded):
        raise ParseError(f"names {path!a:.80}, which is no file of a checkpoint")
    return path


def _record(record: JsonObject) -> PointerFix:
    content = as_str(record["content"]).encode("ascii")
    if len(content) > _MOST_RECORD:
        raise ParseError("holds a record of more bytes than any trainer's")
    return PointerFix(
        path=_path(record["path"]),
        trouble=text_of(record["trouble"]),
        text=PointerText(name=text_of(record["names"]), content=content),
    )
