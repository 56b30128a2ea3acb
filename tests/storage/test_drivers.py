"""A tree that a driver of fsspec reads is judged as on a disk, and what a driver hides is never "not there"."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

import pytest

from ckpttool.domain.shard import FileStamp
from ckpttool.errors import ExitCode, UsageError
from ckpttool.storage import is_read_by_driver, is_remote, look_anew, open_storage
from ckpttool.storage.base import (
    Entry,
    Kind,
    LostLinkError,
    NotRegularError,
    OverLimitError,
    ReplacedError,
    Storage,
    UntoldError,
    WithheldError,
    is_there,
)
from ckpttool.storage.driver import reason_of, stamp_of
from ckpttool.storage.driver_files import FIRST_READ
from ckpttool.storage.driver_lanes import LANES
from ckpttool.storage.stream import read_blocks
from tests.storage.test_storage_sees_all import CHANGES, TREES, answer, copied, plain
from tests.support.answers import FIXTURES
from tests.support.commands import ask, shard_words
from tests.support.fsspec_drivers import SECRET, Lies, lying_driver

pytest.importorskip("fsspec", reason="drivers are fsspec's, which is not installed")

ROOT = "lying://server/tree"


@pytest.fixture
def lies(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lies]:
    """A driver that is synchronous if a test wants no other."""
    (tmp_path / "server").mkdir()
    with lying_driver(tmp_path / "server", monkeypatch, is_async=getattr(request, "param", False)) as lies:
        yield lies


SYNC_AND_ASYNC = pytest.mark.parametrize("lies", [False, True], ids=["sync", "async"], indirect=True)


def is_async(request: pytest.FixtureRequest) -> bool:
    return "async" in request.node.callspec.id.split("-")


def written(lies: Lies, path: str, data: bytes) -> Path:
    file = lies.folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file


def tree_of(lies: Lies, name: str = "sink2_ckpt/output") -> Path:
    return copied(name, lies.folder)


# ----------------------------------------------------------------------------------------------------- the same answers


@pytest.mark.sample(3)
@SYNC_AND_ASYNC
@pytest.mark.parametrize("tree", TREES)
def test_a_tree_by_a_driver_is_judged_as_the_same_tree_on_a_disk(
    tree: str, lies: Lies, request: pytest.FixtureRequest
) -> None:
    folder = tree_of(lies, tree)
    for question in ("checksum",) if is_async(request) else ("checksum", "resolve by the log", "health"):
        disk, said = answer(question, str(folder)), answer(question, ROOT)
        assert said.code == disk.code in {0, 10, 11, 14}, said.stderr
        assert plain(said) == plain(disk).replace(str(folder), ROOT), question


def test_nothing_is_listed_twice_and_each_connection_is_used_by_one_thread(lies: Lies) -> None:
    folder = tree_of(lies)
    assert ask("verify", ROOT, "--level", "checksum", "--checkpoint", "all").code == 0
    folders = 1 + len([path for path in folder.rglob("*") if path.is_dir()])
    assert lies.asked["ls"] <= folders + 4, "and what lies around the root"
    assert lies.asked["connect"] <= LANES
    assert {len(threads) for threads in lies.threads.values()} == {1}


# ------------------------------------------------------------------------------------------------------- what is hidden

HIDING = ["empty", "absent", "refused"]


@pytest.mark.sample(4)
@pytest.mark.parametrize("how", HIDING)
@pytest.mark.parametrize("hidden", ["tree", "tree/checkpoint", "tree/checkpoint/rank_3"])
def test_a_folder_that_is_hidden_makes_all_that_hangs_on_it_unknown(how: str, hidden: str, lies: Lies) -> None:
    tree_of(lies)
    getattr(lies, how).add(hidden)
    for question in ("scan", "structure", "resolve", "health"):
        said = answer(question, ROOT)
        assert said.code == ExitCode.INCOMPLETE, (question, said.stdout, said.stderr)
        assert '"severity": "damage"' not in said.stdout, question
    if how == "empty":
        told = ask("resolve", ROOT)
        words = " ".join(f"{told.stdout} {told.stderr}".split())
        assert "drivers of fsspec answer so also where one may not look" in words


@pytest.mark.parametrize("how", HIDING)
@pytest.mark.parametrize("tree", ["newfmt_4rank/output", "sink2_ckpt/output"])
def test_what_is_hidden_is_never_damage_and_no_save_with_it_is_good(tree: str, how: str, lies: Lies) -> None:
    folder = tree_of(lies, tree)
    for path in sorted(path for path in folder.rglob("*") if path.is_dir() and any(path.glob("*.*s*t*"))):
        getattr(lies, how).add(str(path.relative_to(lies.folder)))
        said = ask("verify", ROOT, "--checkpoint", "all", "--format", "json")
        assert said.code == ExitCode.INCOMPLETE, (path, said.stdout, said.stderr)
        assert "missing" not in shard_words(said)
        getattr(lies, how).clear()
    assert ask("verify", ROOT, "--checkpoint", "all").code == 0


def test_a_file_that_lacks_beside_others_is_missing_as_on_a_disk(lies: Lies) -> None:
    folder = tree_of(lies)
    (folder / "checkpoint/rank_3/llama2_7b_rank_3_1-30_2.ckpt").unlink()
    for question in ("scan", "structure"):
        disk, said = answer(question, str(folder)), answer(question, ROOT)
        assert (said.code, plain(said)) == (disk.code, plain(disk).replace(str(folder), ROOT))
    assert answer("structure", ROOT).code == ExitCode.DAMAGE


@pytest.mark.parametrize("path", ["typo", "tree/checkpoint/typo", "lost/tree"])
def test_what_is_not_there_by_a_driver_is_unknown_and_says_why(path: str, lies: Lies) -> None:
    tree_of(lies)
    said = ask("resolve", f"lying://server/{path}")
    assert said.code == ExitCode.INCOMPLETE
    assert "whether something lies there is not known" in " ".join(said.stderr.split())
    assert ask("resolve", str(lies.folder / path)).code == ExitCode.UNKNOWN_LAYOUT


def test_a_server_that_shows_no_checkpoint_has_not_said_that_there_is_none(lies: Lies) -> None:
    written(lies, "tree/checkpoint/rank_0/meta.json", b"{}")
    on_disk, said = ask("verify", str(lies.folder / "tree")), ask("verify", ROOT)
    assert (on_disk.code, said.code) == (ExitCode.NOTHING_TO_RESUME, ExitCode.INCOMPLETE)
    assert "shows no checkpoint" in said.stderr


def test_a_server_that_does_not_answer_is_unknown_and_nothing_of_what_it_was_asked_with_is_told(lies: Lies) -> None:
    tree_of(lies)
    lies.connections = 0
    said = ask("resolve", ROOT, "--format", "json")
    assert (said.code, said.json["exit"]) == (ExitCode.INCOMPLETE, ExitCode.INCOMPLETE)
    assert "no connection" in said.stderr
    assert SECRET not in said.stderr + said.stdout
    assert lies.asked["connect"] <= 2 * LANES, "who is not there is not asked for each file"


@pytest.mark.parametrize("error", [ValueError(f"bad {SECRET}"), KeyError("x"), OSError("broken"), EOFError()], ids=repr)
def test_whatever_a_driver_raises_is_unknown_in_one_line(error: Exception, lies: Lies) -> None:
    tree_of(lies)
    lies.error = error
    said = ask("resolve", ROOT)
    assert (said.code, said.stdout) == (ExitCode.INCOMPLETE, "")
    assert "its driver says: " in said.stderr
    assert SECRET not in said.stderr


def test_what_fails_once_over_a_connection_that_worked_is_asked_again_over_a_new_one(lies: Lies) -> None:
    tree_of(lies)
    assert ask("scan", ROOT).code == 0
    before = lies.asked["connect"]
    lies.error, lies.errors_left = ConnectionResetError("gone"), 1
    assert ask("verify", ROOT).code == 0
    assert (lies.errors_left, lies.asked["connect"] > before) == (0, True)


def test_where_few_connections_come_about_these_do_all(lies: Lies) -> None:
    tree_of(lies)
    lies.connections = 2
    assert ask("verify", ROOT, "--level", "checksum", "--checkpoint", "all").code == 0


# ----------------------------------------------------------------------------------------------- listings that are none


@pytest.mark.parametrize("lie", [{"itself": True}, {"child": True}, {"stale": True}], ids=str)
def test_odd_habits_of_drivers_change_nothing(lie: dict[str, bool], lies: Lies) -> None:
    folder = tree_of(lies)
    for name, value in lie.items():
        setattr(lies, name, value)
    assert plain(answer("structure", ROOT)) == plain(answer("structure", str(folder))).replace(str(folder), ROOT)
    shard = "checkpoint/rank_1/llama2_7b_rank_1-10_2.ckpt"
    assert ask("inspect", f"{ROOT}/{shard}").code == 0
    (folder / shard).unlink()
    assert answer("structure", ROOT).code == ExitCode.DAMAGE, "nothing is remembered from the question before"


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        ({"twice": "rank_1"}, "twice: nothing that it says can be relied on"),
        ({"foreign": "/elsewhere/rank_9"}, "what does not lie there"),
        ({"foreign": "/tree"}, "twice: nothing that it says can be relied on"),
    ],
    ids=str,
)
def test_a_listing_that_cannot_be_true_proves_nothing(lie: dict[str, str], said: str, lies: Lies) -> None:
    tree_of(lies)
    for name, value in lie.items():
        setattr(lies, name, value)
    told = ask("resolve", ROOT)
    assert told.code == ExitCode.INCOMPLETE
    assert said in " ".join(told.stderr.split())


# ----------------------------------------------------------------------------------------------------- files and states


@pytest.fixture
def shard(lies: Lies) -> Path:
    return written(lies, "tree/rank_0/shard.ckpt", bytes(range(251)) * 40_000)


def test_every_byte_comes_and_small_reads_cost_few_questions(lies: Lies, shard: Path) -> None:
    data = shard.read_bytes()
    with open_storage(ROOT).open("rank_0/shard.ckpt") as source:
        assert source.read(0, 8) == data[:8]
        assert source.read(100, 60_000) == data[100:60_100]
        assert lies.asked["read"] == 2, "the first read, and one more from elsewhere to see that it gives ranges"
        assert source.read(len(data) - 100, 200) == data[-100:]
        assert source.read(len(data), 1) == b""
        assert b"".join(bytes(block) for _, block in read_blocks(source, 1000, len(data))) == data[1000:]
    assert lies.asked["read"] <= 3 + len(data) / (4 << 20) + 1
    assert lies.asked["info"] == 1
    assert len(data) > 2 * FIRST_READ


@pytest.mark.parametrize("kept", ["mtime", "etag"])
def test_a_file_that_is_replaced_while_it_is_read_is_never_mixed(kept: str, lies: Lies, shard: Path) -> None:
    lies.left_out = {"mtime", "etag"} - {kept}
    opened = open_storage(ROOT).open("rank_0/shard.ckpt")
    source = opened.__enter__()
    source.read(0, 8)
    shard.write_bytes(shard.read_bytes()[::-1])
    os.utime(shard, ns=(1, 1))
    source.read(200_000, 8)
    with pytest.raises(ReplacedError):
        opened.__exit__(None, None, None)
    look_anew(ROOT)
    with open_storage(ROOT).open("rank_0/shard.ckpt") as source:
        assert source.read(0, 8) == shard.read_bytes()[:8]


def test_a_file_that_is_replaced_or_removed_is_unknown_and_never_damage(lies: Lies) -> None:
    shard = tree_of(lies) / "checkpoint/rank_1/llama2_7b_rank_1_1-30_2.ckpt"
    storage, real = open_storage(ROOT), shard.read_bytes()
    assert storage.stamp("checkpoint/rank_1/llama2_7b_rank_1_1-30_2.ckpt").size == len(real)
    shard.write_bytes(real[:900])
    with pytest.raises(ReplacedError), storage.open("checkpoint/rank_1/llama2_7b_rank_1_1-30_2.ckpt") as source:
        source.read(0, 4000)
    shard.unlink()
    with (
        pytest.raises(ReplacedError, match="or withheld"),
        storage.open("checkpoint/rank_1/llama2_7b_rank_1_1-30_2.ckpt") as source,
    ):
        source.read(0, 4000)


@pytest.mark.parametrize("level", ["structure", "checksum"])
def test_where_nothing_but_sizes_is_told_no_file_is_believed(level: str, lies: Lies) -> None:
    tree_of(lies)
    look = ["verify", ROOT, "--level", level, "--format", "json"]
    assert ask(*look).code == 0
    lies.left_out = {"mtime", "etag"}
    said = ask(*look)
    assert said.code == ExitCode.INCOMPLETE
    assert shard_words(said) == {"unreadable"}
    assert "whether the file is replaced" in said.stdout


@pytest.mark.parametrize(("not_told", "code"), [({"etag"}, 0), ({"etag", "mtime"}, 0), ({"size"}, ExitCode.INCOMPLETE)])
def test_what_a_driver_tells_of_one_file_need_not_be_all_that_a_listing_tells(
    not_told: set[str], code: int, lies: Lies
) -> None:
    tree_of(lies)
    lies.not_told = not_told
    assert ask("verify", ROOT).code == code


@SYNC_AND_ASYNC
@pytest.mark.parametrize(
    ("lie", "said"), [({"whole": True}, "gives other bytes than those that are asked for"), ({"short": 3}, "bytes of")]
)
def test_a_driver_that_gives_other_bytes_is_unknown_and_never_damage(
    lie: dict[str, int], said: str, lies: Lies
) -> None:
    tree_of(lies)
    for name, value in lie.items():
        setattr(lies, name, value)
    told = ask("verify", ROOT, "--level", "checksum", "--format", "json")
    assert told.code == ExitCode.INCOMPLETE
    assert shard_words(told) == {"unreadable"}
    assert said in told.stdout


def test_a_read_that_does_not_end_is_left(lies: Lies, shard: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckpttool.storage.driver_lanes.PATIENCE_SECONDS", 0.6)
    written(lies, "tree/rank_0/other.ckpt", b"x" * 100)
    storage = open_storage(ROOT)
    lies.hangs = {shard.name}
    with pytest.raises(TimeoutError, match=r"no answer within 0\.6 s"), storage.open("rank_0/shard.ckpt") as source:
        source.read(0, 8)
    with storage.open("rank_0/other.ckpt") as source:
        assert source.read(0, 8) == b"x" * 8


def test_a_server_that_hangs_again_and_again_is_asked_no_more(
    lies: Lies, shard: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckpttool.storage.driver_lanes.PATIENCE_SECONDS", 0.2)
    storage = open_storage(ROOT)
    lies.hangs = {shard.name}

    def look() -> None:
        with storage.open("rank_0/shard.ckpt") as source:
            source.read(0, 8)

    for _ in range(3):
        with pytest.raises(TimeoutError):
            look()
    before = lies.asked["connect"]
    with pytest.raises(TimeoutError):
        look()
    assert lies.asked["connect"] == before
    lies.released.set()
    lies.hangs = set()
    look_anew(ROOT)
    look()


@SYNC_AND_ASYNC
def test_no_more_is_asked_at_once_than_a_server_of_files_bears(lies: Lies, request: pytest.FixtureRequest) -> None:
    for number in range(60):
        written(lies, f"tree/rank_0/shard{number}", bytes([number]) * 100)
    storage = open_storage(ROOT)

    def look(number: int) -> bytes:
        with storage.open(f"rank_0/shard{number}") as source:
            return source.read(0, 100)

    with ThreadPoolExecutor(32) as pool:
        assert [*pool.map(look, range(60))] == [bytes([number]) * 100 for number in range(60)]
    assert lies.most_at_once <= (32 if is_async(request) else LANES)
    assert lies.asked["connect"] <= (1 if is_async(request) else LANES)


def test_links_are_followed_and_one_that_leads_nowhere_is_lost(shard: Path) -> None:
    (shard.parent / "link.ckpt").symlink_to(shard.name)
    (shard.parent / "lost.ckpt").symlink_to("gone")
    storage = open_storage(ROOT)
    assert {*storage.entries("rank_0")} == {
        Entry("shard.ckpt", Kind.FILE),
        Entry("link.ckpt", Kind.FILE),
        Entry("lost.ckpt", Kind.LOST),
    }
    assert storage.stamp("rank_0/link.ckpt").size == shard.stat().st_size
    for asked in (storage.kind, storage.stamp):
        with pytest.raises(LostLinkError):
            asked("rank_0/lost.ckpt")


# ------------------------------------------------------------------------------------------ what every storage promises


@pytest.fixture
def storage(lies: Lies) -> Storage:
    written(lies, "tree/rank_0/shard.ckpt", b"x" * 1280)
    written(lies, "tree/meta.json", b"{}")
    (lies.folder / "tree/empty").mkdir()
    return open_storage(ROOT)


def test_a_folder_is_listed_and_a_path_is_of_the_kind_that_the_listing_says(storage: Storage) -> None:
    assert {*storage.entries("")} == {
        Entry("rank_0", Kind.FOLDER),
        Entry("empty", Kind.FOLDER),
        Entry("meta.json", Kind.FILE),
    }
    assert all(storage.kind(entry.name) is entry.kind for entry in storage.entries(""))
    assert storage.kind("") is Kind.FOLDER
    assert open_storage(f"{ROOT}/meta.json").kind("") is Kind.FILE
    assert storage.small_file("meta.json", limit=2) == b"{}"
    with pytest.raises(OverLimitError):
        storage.small_file("meta.json", limit=1)


def test_what_looks_empty_is_not_said_to_be_so_and_what_lacks_beside_others_is_not_there(storage: Storage) -> None:
    with pytest.raises(UntoldError):
        storage.entries("empty")
    with pytest.raises(UntoldError):
        storage.kind("empty/anything")
    assert is_there(storage, "empty/anything"), "nobody knows, and that counts as there"
    for path in ("gone", "gone/deeper", "rank_0/gone"):
        assert not is_there(storage, path)
    with pytest.raises(NotADirectoryError):
        storage.entries("meta.json")
    with pytest.raises(FileNotFoundError):
        open_storage(f"{ROOT}/gone").kind("")
    with pytest.raises(NotRegularError):
        storage.stamp("rank_0")


def test_a_refusal_is_told_as_one(lies: Lies, storage: Storage) -> None:
    lies.refused = {"tree/rank_0"}
    with pytest.raises(WithheldError, match="may not be looked at"):
        storage.entries("rank_0")


def test_a_storage_goes_to_another_process_by_its_name_alone(storage: Storage) -> None:
    assert storage.kind("rank_0/shard.ckpt") is Kind.FILE
    sent = pickle.dumps(storage)
    assert SECRET.encode() not in sent
    assert pickle.loads(sent).kind("rank_0/shard.ckpt") is Kind.FILE  # noqa: S301  it is our own


# ----------------------------------------------------------------------------------------------- what is told of states

NOON = datetime(2026, 11, 28, 12, tzinfo=timezone.utc)
NOON_NS = int(NOON.timestamp()) * 10**9


@pytest.mark.parametrize(
    ("told", "modified_ns"),
    [
        ({"mtime": NOON}, NOON_NS),
        ({"modified": NOON.replace(tzinfo=None)}, NOON_NS),
        ({"modificationTime": NOON_NS // 10**6}, NOON_NS),
        ({"last_write_time": NOON_NS / 1e9}, NOON_NS),
        ({"mtime_ns": 1, "mtime": NOON_NS}, NOON_NS),
        ({"modify": "20261128120000.123"}, NOON_NS),
        ({"LastModified": "2026-11-28T12:00:00Z"}, NOON_NS),
        ({"modify": "Nov 28 12:00"}, None),
        ({"ETag": '"abc"'}, None),
        ({"checksum": b"\x01"}, None),
    ],
    ids=str,
)
def test_a_state_is_known_by_what_a_driver_calls_it(told: dict[str, object], modified_ns: int | None) -> None:
    stamp = stamp_of({"name": "x", "type": "file", "size": 3, **told})
    assert isinstance(stamp, FileStamp)
    assert (stamp.size, stamp.modified_ns) == (3, modified_ns)
    assert len(stamp.token) != 2, "which is a file's on a disk, where two names may be of one file"


def test_an_etag_is_the_same_with_quotes_and_without_and_what_tells_nothing_is_no_state() -> None:
    assert stamp_of({"size": 3, "ETag": '"abc"'}) == stamp_of({"size": "3", "e_tag": "abc"})
    for told in (
        {"size": 3},
        {"size": 3, "time": 1.0},
        {"size": 3, "etag": None},
        {"etag": "x"},
        {"size": -1, "etag": "x"},
    ):
        assert stamp_of(told) is None


def test_of_an_error_one_line_is_told_without_addresses_and_secrets() -> None:
    error = RuntimeError(f"GET https://user:{SECRET}@host/x?sig=1\nfailed for {SECRET} and pass1")
    said = reason_of(error, {"client": [{"secret_key": SECRET}], "auth": ("me", "pass1")})
    assert said == "GET … failed for … and …"
    assert len(reason_of(RuntimeError("x" * 999))) == 201


# --------------------------------------------------------------------------------------------------------- which places


@pytest.mark.parametrize(
    ("root", "said"),
    [
        ("file:///tmp/tree", "its path alone"),
        ("memory://tree", "no training saves there"),
        ("http://host/tree", "does not tell what lies in a folder"),
        ("zip://tree.zip", "another place's copy or archive"),
        ("s3a://bucket/tree", "say s3:// for this store"),
        ("abfs://container/tree", "say az:// for this store"),
        ("obs://bucket/tree", "no installed driver of fsspec reads obs://; set AWS_ENDPOINT_URL and say s3://"),
        ("quux://bucket/tree", "mount it or copy it"),
        ("lying://./tree", "names no server"),
        ("simplecache::lying://server/tree", "through others are not opened"),
        ("zip://a.zip::lying://server/tree", "through others are not opened"),
        ("lying://server/a.zip::file://x", "through others are not opened"),
    ],
)
def test_a_place_that_is_not_read_says_why_and_the_way_on(root: str, said: str, lies: Lies) -> None:
    told = ask("resolve", root)
    assert (told.code, told.stdout) == (ExitCode.USAGE, "")
    assert said in " ".join(told.stderr.split())
    assert lies.asked["connect"] == 0


@pytest.mark.parametrize("place", ["user:{}@server", "user:a/{}@server", "user:{}@server:22", ":{}@server"])
@pytest.mark.parametrize("scheme", ["lying", "s3", "nobodys"])
def test_a_password_in_a_url_is_refused_and_never_shown(scheme: str, place: str, lies: Lies) -> None:
    root = f"{scheme}://{place.format(SECRET)}/tree"
    for command in (
        ["resolve"],
        ["verify", "--json"],
        ["scan", "--all"],
        ["prune", "--keep-last", "1"],
        ["inspect", "-v"],
    ):
        said = ask(command[0], root, *command[1:])
        assert said.code == ExitCode.USAGE, said.stderr
        assert SECRET not in said.stdout + said.stderr
    assert lies.asked["connect"] == 0


@pytest.mark.parametrize("place", ["user@server", "server:8020", "user@server:22"])
def test_a_name_and_a_port_are_no_password(place: str, lies: Lies) -> None:
    tree_of(lies)
    assert ask("resolve", f"lying://{place}/tree").code == 0
    assert ask("resolve", f"lying://{place}/tree@2/x:y").code == ExitCode.INCOMPLETE


@pytest.mark.usefixtures("lies")
def test_a_driver_that_lacks_a_package_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.fs", None)
    said = ask("resolve", "hdfs://server/tree")
    assert said.code == ExitCode.USAGE
    assert "its driver lacks a package" in said.stderr


def test_without_fsspec_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(
        UsageError, match=r"is read by fsspec, which is not installed: pip install 'ckpttool\[fsspec\]'"
    ):
        open_storage("sftp://server/tree")


# --------------------------------------------------------------------------------------------------- nothing is changed


@pytest.mark.parametrize("command", CHANGES, ids=" ".join)
def test_nothing_is_changed_by_a_driver(command: list[str], lies: Lies) -> None:
    folder = tree_of(lies, "health_pp2/output")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    said = ask(command[0], ROOT, *command[1:])
    assert said.code == ExitCode.UNSAFE, said.stderr
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_launch_needs_a_copy_on_a_disk_and_says_which_files(lies: Lies, tmp_path: Path) -> None:
    folder = tree_of(lies)
    asked = ["launch", ROOT, "--config", str(FIXTURES / "configs" / "pretrain_sink2.yaml")]
    asked += ["--output", str(tmp_path / "new.yaml")]
    refused = ask(*asked)
    assert (refused.code, "--load-checkpoint" in refused.stderr) == (ExitCode.USAGE, True)
    copies = ask("resolve", ROOT, "--format", "json").json["copy"]
    assert isinstance(copies, list)
    for path in copies:
        (tmp_path / "copy" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "checkpoint" / path, tmp_path / "copy" / path)
    assert ask(*asked, "--load-checkpoint", str(tmp_path / "copy")).code == 0
    assert (is_remote(ROOT), is_read_by_driver(ROOT), is_remote(str(folder))) == (True, True, False)


@pytest.mark.parametrize(("empty", "code"), [("iteration_00000030/empty", ExitCode.INCOMPLETE), ("empty", 0)])
def test_what_to_copy_is_not_told_where_a_part_of_it_is_not(empty: str, code: int, lies: Lies) -> None:
    (tree_of(lies, "newfmt_4rank/output") / "checkpoint" / empty).mkdir()
    said = ask("resolve", ROOT, "--format", "json")
    assert said.code == code, said.stderr
    assert ("iteration_00000030/empty looks empty" in said.stderr) is bool(code)


def test_a_dry_run_names_no_requests_for_nobody_pays_for_them(lies: Lies) -> None:
    tree_of(lies)
    said = ask("verify", ROOT, "--dry-run", "--json")
    assert said.code == 0
    assert not re.search(r'"requests": [0-9]', said.stdout)
