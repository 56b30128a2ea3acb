"""Fuzz targets: the JSON records of trainers and of ckpttool itself."""

from __future__ import annotations

import json
import math
import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import PurePosixPath
from typing import Any, NoReturn

from ckpttool.core.domain.finding import Severity
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.shard import FileStamp, FormatName
from ckpttool.core.errors import IncompleteError, UsageError
from ckpttool.core.formats.strict_json import MAX_DEPTH, ParseError, parse_json
from ckpttool.core.records import JOURNAL, SealPlace, ledger
from ckpttool.core.records.hashed_json import closed, is_intact
from ckpttool.core.records.journal import TRASH, journal_bytes, read_journal
from ckpttool.core.records.manifest import ManifestProblem, manifest_bytes, read_manifest
from ckpttool.core.storage.base import Entry, Kind, OverLimitError
from ckpttool.health.verbs.evidence import timeline_in
from ckpttool.trainers.mindformers.health_file import read_health, updated_health_json
from ckpttool.trainers.mindformers.layouts.iteration import files_in, parse_common, parse_metadata
from ckpttool.trainers.mindformers.layouts.names import RANK_LAYOUT
from ckpttool.trainers.mindformers.layouts.pointers import parse_meta
from ckpttool.trainers.mindformers.layouts.unified import parse_name_map
from ckpttool.trainers.registry import LAYOUT_NAMES
from tests.support.faulty_storages import layout_of
from tests.support.manifests import sealed_checkpoint
from tests.support.shard_writers import MemorySource

LONGEST_MESSAGE = 2000
"""Characters of one problem with a record, the file's name and the way down to the value included."""


@dataclass(slots=True)
class MemoryTree:
    """A tree in memory: files by path, and the folders that they imply."""

    files: dict[str, bytes]
    root: str = "/tree"
    _folders: dict[str, dict[str, Kind]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._folders[""] = {}
        for path in self.files:
            below, kind = path, Kind.FILE
            while below:
                above, _, name = below.rpartition("/")
                self._folders.setdefault(above, {})[name] = kind
                below, kind = above, Kind.FOLDER

    def entries(self, folder: str) -> list[Entry]:
        if folder not in self._folders:
            raise FileNotFoundError(2, "No such file or directory", folder)
        return [Entry(name, kind) for name, kind in self._folders[folder].items()]

    def kind(self, path: str) -> Kind:
        if path in self._folders:
            return Kind.FOLDER
        self.open(path)
        return Kind.FILE

    def stamp(self, path: str) -> FileStamp:
        return self.open(path).stamp

    def small_file(self, path: str, *, limit: int) -> bytes:
        data = self.open(path).data
        if len(data) > limit:
            raise OverLimitError(27, "File too large", path)
        return data

    def open(self, path: str) -> _OpenFile:
        if path not in self.files:
            raise FileNotFoundError(2, "No such file or directory", path)
        return _OpenFile(self.files[path])


class _OpenFile(MemorySource):
    def __enter__(self) -> _OpenFile:  # noqa: PYI034  Self is newer than the oldest Python that we support
        return self

    def __exit__(self, *_: object) -> None:
        pass


@cache
def _memory() -> int:
    return os.memfd_create("ckpttool-fuzz")


def written(data: bytes) -> str:
    """Put the input where a path can name it, for readers that take nothing else; never on a disk."""
    os.ftruncate(_memory(), 0)
    os.pwrite(_memory(), data, 0)
    return f"/proc/self/fd/{_memory()}"


def same(one: object, other: object) -> bool:
    """Compare as JSON and YAML mean it: True is not 1, and not-a-number is itself."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        # A key that is not-a-number is not equal to itself.
        return len(one) == len(other) and all(
            same(a, b) and same(x, y) for (a, x), (b, y) in zip(one.items(), other.items(), strict=True)
        )
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other or (one != one and other != other)  # noqa: PLR0124  only not-a-number differs from itself


def assert_short(error: Exception, longest: int = LONGEST_MESSAGE) -> None:
    """Whatever was read, what is wrong with it is said, and not at its length."""
    assert 0 < len(str(error)) <= longest, len(str(error))


# --- JSON, against the standard library's reader ---------------------------------------------------------------------


class _RefusedError(Exception):
    """Why a document that `json` reads is refused all the same."""


def _refuse(_: str) -> NoReturn:
    raise _RefusedError


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise _RefusedError
    return dict(pairs)


def _finite(text: str) -> float:
    if math.isinf(float(text)):
        raise _RefusedError
    return float(text)


def depth(value: object) -> int:
    """Count how deep lists and mappings are nested."""
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


def _plainly(data: bytes, *, nonfinite: bool) -> object:
    """Read JSON as strictly as it is promised, without a line of ours.

    Raises:
        ValueError: No JSON, or no text.
        RecursionError: It is nested too deep for `json`, so for us as well.
        _RefusedError: It is JSON that not every reader understands alike.
    """
    document = json.loads(
        data.decode("utf-8"),
        object_pairs_hook=_unique,
        parse_constant=float if nonfinite else _refuse,
        parse_float=float if nonfinite else _finite,
    )
    if depth(document) > MAX_DEPTH:
        raise _RefusedError
    json.dumps(document, ensure_ascii=False).encode()
    return document


_NOTHING = object()


def strict_json(data: bytes) -> None:
    """Read any JSON; what is refused and what is read is the same as said by the plainest reader."""
    for nonfinite in (False, True):
        try:
            expected = _plainly(data, nonfinite=nonfinite)
        except (ValueError, RecursionError, _RefusedError):
            expected = _NOTHING
        try:
            found: object = parse_json(data, where="a.json", nonfinite=nonfinite)
        except ParseError as error:
            assert_modest(error)
            found = _NOTHING
        assert same(found, expected), (found, expected)


def assert_modest(error: ParseError) -> None:
    """Whatever the document holds, the problem with it can be read, on one line."""
    text = str(error)
    assert len(text) <= LONGEST_MESSAGE + len(error.where) + len(error.key), len(text)
    assert "\n" not in error.problem, text


# --- records of trainers ---------------------------------------------------------------------------------------------


def meta_json(data: bytes) -> None:
    """Read a meta.json; a file name that is called safe stays in its folder."""
    try:
        record = parse_meta(data, where="meta.json")
    except ParseError as error:
        assert_modest(error)
        return
    document = _plainly(data, nonfinite=False)
    assert isinstance(document, dict)
    position = record.position
    assert (position.epoch, position.step) == (document["last_epoch"], document["last_step"])
    assert min(position.epoch, position.step) >= 0
    assert record.file == document["last_ckpt_file"]
    if not record.escapes:
        assert os.path.normpath(f"rank_0/{record.file}") == f"rank_0/{record.file}"
        assert PurePosixPath(f"rank_0/{record.file}").parent == PurePosixPath("rank_0")
        assert not any(character < " " for character in record.file)


def iteration_json(data: bytes) -> None:
    """Read a common.json, a metadata.json and a map of names; what is there is what the document says."""
    document: Any = None
    with suppress(ValueError, RecursionError, _RefusedError):
        document = _plainly(data, nonfinite=False)
    try:
        common = parse_common(data, what="common.json")
    except ParseError as error:
        assert_modest(error)
    else:
        expected = {0: Health.HEALTHY, 1: Health.UNHEALTHY}.get(document.get("ckpt_status"), Health.UNKNOWN)
        assert common.health is expected
        assert common.state.step_num == document.get("step_num")
        assert (common.state.step_num or 0) >= 0
    try:
        files = files_in(parse_metadata(data, what="metadata.json"), "metadata.json")
    except ParseError as error:
        assert_modest(error)
    else:
        places = document["storage_data"].values()
        assert files == {place["file_name"] for listed in places for place in listed}
    try:
        names = parse_name_map(data, where="param_name_map.json")
    except ParseError as error:
        assert_modest(error)
    else:
        assert names == set(document.get("weight_map", document).values())


def health_json(data: bytes) -> None:
    """Read health marks: nothing is called healthy that a plain reader does not, and a new mark reads back."""
    book = read_health(MemoryTree({"health_ckpts.json": data}), "health_ckpts.json")
    assert all(finding.severity in {Severity.UNKNOWN, Severity.SUSPECT} for finding in book.findings)
    assert len({record.name for record in book.records}) == len(book.records)
    document: Any = None
    with suppress(ValueError, RecursionError, _RefusedError):
        document = _plainly(data, nonfinite=False)
    entries = [entry for entry in document if isinstance(entry, dict)] if isinstance(document, list) else []
    for record in book.records:
        marks = [entry.get("is_health") for entry in entries if entry.get("ckpt_name") == record.name]
        if record.health is Health.HEALTHY:
            assert set(marks) == {0}
            assert bool not in map(type, marks)
    if not isinstance(document, list):
        assert book.findings
    _marked_anew(data)


def _marked_anew(data: bytes) -> None:
    judged = [("a_rank_0-1_1.ckpt", Health.UNHEALTHY), ("a_rank_0-2_1.ckpt", Health.HEALTHY)]
    try:
        new = updated_health_json(data, judged)
    except ValueError:
        return
    assert updated_health_json(new, judged) == new
    book = read_health(MemoryTree({"h": new}), "h")
    known = {record.name: record.health for record in book.records}
    try:
        _plainly(new, nonfinite=False)
    except (ValueError, RecursionError, _RefusedError):  # it was so before, in a field that is nobody's
        assert known.get("a_rank_0-2_1.ckpt") is not Health.HEALTHY
        return
    assert dict(judged).items() <= known.items()


# --- records of ours -------------------------------------------------------------------------------------------------


def hashed(data: bytes) -> bytes:
    """Give a document the hash that it needs to be looked into: anybody can, who edits one."""
    try:
        text = data.decode("ascii")
    except UnicodeDecodeError:
        return data
    if is_intact(data):
        return data
    body = text.rpartition(',\n  "hash"')[0] or text.removesuffix("}\n")
    whole = closed(body)
    assert is_intact(whole)
    return whole


def journal(data: bytes) -> None:
    """Read the journal of a prune; one that is believed moves nothing into or out of the tree, and is spelled so."""
    for document in (data, hashed(data)):
        tree = MemoryTree({JOURNAL: document})
        try:
            batches = read_journal(tree)
        except IncompleteError as error:
            assert_short(error)
            continue
        for batch in batches:
            for path in (batch.trash, *(move.path for move in batch.moves)):
                assert not path.startswith("/")
                assert ".." not in path.split("/")
            assert batch.trash.startswith(f"{TRASH}/")
        tree.files[JOURNAL] = journal_bytes(batches)
        assert read_journal(tree) == batches


def manifest(data: bytes) -> None:
    """Read a manifest in the place that it names; one that is believed is written and read back as the same value."""
    for document in (data, hashed(data)):
        place = _place(document)
        path = place.path
        tree = MemoryTree({path: document})
        found = read_manifest(tree, place)
        assert found is not None
        if isinstance(found, ManifestProblem):
            assert len(found.finding.message) <= LONGEST_MESSAGE + len(path)
            assert found.finding.severity is Severity.UNKNOWN
            continue
        assert all(not seal.path.startswith("/") and ".." not in seal.path.split("/") for seal in found.shards)
        tree.files[path] = manifest_bytes(found)
        assert read_manifest(tree, place) == found
        # In another checkpoint's place the same bytes prove nothing.
        other = replace(place, checkpoint=f"{place.checkpoint}0")
        assert isinstance(read_manifest(tree, other), ManifestProblem)


def _place(document: bytes) -> SealPlace:
    record: Any = None
    with suppress(ValueError, RecursionError):
        record = json.loads(document)
    own = record if isinstance(record, dict) else {}
    spelled = own.get("layout")
    name, prefix = (str(own.get(key, "")).replace("/", "_") for key in ("checkpoint", "prefix"))
    checkpoint = sealed_checkpoint(name, prefix, FormatName.MINDSPORE_CKPT)
    layout = spelled if isinstance(spelled, str) and spelled in LAYOUT_NAMES else RANK_LAYOUT
    try:
        place = layout_of(layout).seal_place(checkpoint)
    except UnicodeEncodeError:  # half a surrogate pair, which no file is named by
        return SealPlace(path="a.manifest.json", layout=layout, checkpoint=name, prefix=prefix)
    assert isinstance(place, SealPlace)
    return place


def own_ledger(data: bytes) -> None:
    """Load what is remembered of a tree; what is believed is written and read back as the same value."""
    for document in (data, hashed(data)):
        found = ledger.load(written(document))
        if not is_intact(document):
            assert found == ledger.Ledger()
        for known in found.shards.values():
            assert known.stamp.size >= 0
        if found.shards and all(_is_text(path) for path in (*found.shards, *found.tensors)):
            spelled = ledger._encode(found)  # noqa: SLF001  saving takes whole reports, which a ledger has not
            assert ledger.load(written(spelled)) == found


def _is_text(path: str) -> bool:
    with suppress(UnicodeEncodeError):
        return bool(path.encode()) or True
    return False


def timeline(data: bytes) -> None:
    """Read a replay that was saved: a timeline, or a message of ours, or not its kind of file."""
    try:
        found = timeline_in(written(data))
    except UsageError as error:
        assert_short(error)
        return
    if found is None:
        return
    document: Any = _plainly(data, nonfinite=False)
    assert [one.kind.value for one in found.intervals] == [item["kind"] for item in document["timeline"]]
    for one, item in zip(found.intervals, document["timeline"], strict=True):
        assert (one.first_step, one.recovered_step, one.rank) == tuple(
            item.get(key) for key in ("first_step", "recovered_step", "rank")
        )
