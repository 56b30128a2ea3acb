"""Every command that writes, with a tree to write in, and what may be found there whatever stopped it."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import ckpttool
from ckpttool import library
from ckpttool.core.domain.data_position import DataQuestion
from ckpttool.core.domain.plan import NoResumePoint
from ckpttool.core.domain.question import ResumeQuestion, TreeQuestion
from tests.conftest import FIXTURES
from tests.support.prunable_trees import newer, seal
from tests.support.trees import TreeBuilder

State = Mapping[str, bytes]
"""Every file below a folder, by path; a link as what it points at, and `{cwd}` for the folder; `PATH mode` its mode."""

RUBBISH = re.compile(r"(.*/)?(\.ckpttool-[0-9a-f]{16}\.tmp|[^/]*\.lock|\.ckpttool/reserve)")
"""Temporary files of one that was killed, and lock files: neither matters to anybody."""
_TRASHED = re.compile(r"(?<=/\.ckpttool/trash/)[0-9]{8}T[0-9]{6}Z")
"""When something was moved there."""
_LEDGER = re.compile(r"ledger/[0-9a-f]{32}\.json")
"""Named by the tree's place, which differs from test to test."""
_MARK = re.compile(r"(?<=-)[0-9a-f]{16}(?=\.json$)")
"""What makes the name of a mark unique."""
TEMPORARY = re.compile(r"(.*/)?\.ckpttool-[0-9a-f]{16}\.tmp")


@dataclass(frozen=True, kw_only=True)
class Writer:
    """A command line that writes."""

    name: str
    make: Callable[[Path], None]
    """Fills the folder that the command runs in."""
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    """Beyond the tests' own; `{cwd}` is the folder."""
    alike: Callable[[str, bytes], object] = lambda _, content: content
    """What of a file two undisturbed runs have in common; all of it, but for the ledger's inodes and times."""
    less: Callable[[State, State, State], bool] = lambda *_: False
    """Given the same: whether it is right to have done less and to say that all is well."""
    between: Callable[[State, State, State], str | None] = lambda *_: None
    """Given what was, what is and what should be: what is wrong with a state that is neither, or nothing."""


def state(folder: Path) -> dict[str, bytes]:
    """Read everything below a folder."""
    found = {}
    for base, folders, names in os.walk(folder):
        for name in [*names, *(each for each in folders if Path(base, each).is_symlink())]:
            path = Path(base, name)
            content = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
            mode = f"{path.lstat().st_mode:o}".encode()
            relative = _LEDGER.sub("ledger/tree.json", path.relative_to(folder).as_posix())
            relative = _TRASHED.sub("TIME", relative)
            if "/.ckpttool/marks/" in relative:
                relative = _MARK.sub("TOKEN", relative)
            found[relative] = content.replace(os.fsencode(folder), b"{cwd}")
            if not RUBBISH.fullmatch(relative):
                found[f"{relative} mode"] = mode
    return found


def without_rubbish(found: State) -> dict[str, bytes]:
    return {path: content for path, content in found.items() if not RUBBISH.fullmatch(path)}


def without_trash(found: State) -> dict[str, bytes]:
    """Leave out what a prune deletes last; it stays there until the next one while the disk confirms nothing."""
    return {path: content for path, content in found.items() if "/.ckpttool/trash/" not in path}


def torn(writer: Writer, before: State, now: State, after: State) -> list[str]:
    """Name every file that is neither as it was nor as it should be."""
    wrong = []
    for path in sorted({*before, *now, *after}):
        if RUBBISH.fullmatch(path) or _is_on_its_way(path):
            continue
        allowed = [_look(writer, each, path) for each in (before, after)]
        if _look(writer, now, path) not in allowed:
            wrong.append(f"{path} is neither the old nor the new one: {now.get(path, b'(missing)')[:80]!r}")
    return wrong


def same(writer: Writer, one: State, other: State) -> bool:
    """Whether two states are the same to a user."""
    one, other = without_rubbish(one), without_rubbish(other)
    return one.keys() == other.keys() and all(_look(writer, one, path) == _look(writer, other, path) for path in one)


def _look(writer: Writer, found: State, path: str) -> object:
    return writer.alike(path, found[path]) if path in found else None


def _is_on_its_way(path: str) -> bool:
    """Whether a path is one that a prune makes and removes again: its journal, and the trash."""
    return "/.ckpttool/trash/" in path or "/.ckpttool/prune.json" in path


# --- what they write in ----------------------------------------------------------------------------------------------


def _fixture(name: str) -> Callable[[Path], None]:
    return lambda folder: _copy(FIXTURES / name, folder)


def _copy(source: Path, folder: Path) -> None:
    shutil.copytree(source, folder, dirs_exist_ok=True, copy_function=shutil.copyfile)
    for path in (folder, *folder.rglob("*")):  # the source may lie in a read-only checkout
        path.chmod(0o755 if path.is_dir() else 0o644)


def _old_health_record(folder: Path) -> None:
    _copy(FIXTURES / "health_pp2", folder)
    path = folder / "output/health_ckpts.json"
    path.write_text(json.dumps(json.loads(path.read_text())[:1], indent=4))


def _sealed_before(folder: Path) -> None:
    """A save that was sealed when only its first two ranks were there."""
    tree = TreeBuilder(folder).legacy(ranks=4, sparse=True).save(epoch=10, step=2)
    seal(tree)
    tree.save(epoch=20, step=2)


def _on_many_ranks(folder: Path) -> None:
    """A save whose manifest takes several pages."""
    TreeBuilder(folder).legacy(ranks=24, sparse=True).save(epoch=10, step=2)


def _stale_records(folder: Path) -> None:
    tree = TreeBuilder(folder).legacy(ranks=3, sparse=True).save(epoch=10, step=2).save(epoch=20, step=2)
    tree.meta(0, 10, 2, "llama2_7b_rank_0-10_2.ckpt").file("checkpoint/rank_1/meta.json", '{"last_ep')
    tree.remove("checkpoint/rank_2/meta.json")


def _stale_tracker(folder: Path) -> None:
    newer(folder)


def _launched_before(folder: Path) -> None:
    _copy(FIXTURES / "sink2_ckpt/output", folder / "output")
    _copy(FIXTURES / "configs", folder)
    (folder / "resume.yaml").write_text("an: older one\n")


def _prunable(folder: Path) -> None:
    tree = TreeBuilder(folder).legacy(ranks=2, sparse=True).save(epoch=10, step=2)
    tree.save(epoch=30, step=2, run=1).meta(1, 10, 2, "llama2_7b_rank_1-10_2.ckpt")
    seal(tree)


def _prunable_iterations(folder: Path) -> None:
    tree = TreeBuilder(folder, world=2, sparse=True)
    tree.iteration(step=10).iteration(step=30, tracker=False)


def _verified_before(folder: Path) -> None:
    tree = TreeBuilder(folder).legacy(ranks=2, sparse=True).save(epoch=10, step=2)
    tree.save(epoch=20, step=2)
    seal(tree)


# --- what may be found -----------------------------------------------------------------------------------------------


def newest_good(folder: Path) -> str | None:
    """The checkpoint that `resolve` takes."""
    answer = ckpttool.resolve(TreeQuestion(path=str(folder / "output")), ResumeQuestion(), DataQuestion())
    return None if isinstance(answer.decision, NoResumePoint) else answer.decision.point.checkpoint.name


def _pruning(before: State, now: State, after: State) -> str | None:
    """All shards are somewhere, in the tree or in the trash, until the newest state is reached; the kept never move."""
    gone = [path for path in after if "30" in path and now.get(path) != after[path]]
    if gone:
        return f"{gone[0]} was to stay"
    # What moved lies in the trash with its content, until all has moved and the journal is gone.
    journal = any(path.endswith("/.ckpttool/prune.json") for path in now)
    trash = {path.partition("/.ckpttool/trash/")[2].partition("/")[2]: content for path, content in now.items()}
    lost = [
        path
        for path in before
        if path not in after and before[path] not in {now.get(path), trash.get(path.removeprefix("output/checkpoint/"))}
    ]
    return f"{lost[0]} is neither in the tree nor in the trash" if journal and lost else None


def _unchanged(before: State, now: State, after: State) -> bool:
    del after
    return without_rubbish(before) == without_rubbish(now)


def _pruned_less(before: State, now: State, after: State) -> bool:
    """Whether each checkpoint stayed whole or went whole: one that cannot be proven good lets nothing older go."""
    for mark in ("-10_2", "iteration_00000010"):
        paths = {path for path in before if mark in path and path not in after}
        if paths & now.keys() not in (set(), paths):
            return False
    return True


def _ledger(path: str, content: bytes) -> object:
    """A ledger names inodes and times, which no two trees share, and leaves out what could not be read: it is whole."""
    if "cache/" not in path or path.endswith(" mode"):
        return content
    from ckpttool.core.records.hashed_json import is_intact

    assert is_intact(content), f"{path} is torn"
    return "whole"


def _mark(path: str, content: bytes) -> object:
    """A mark has the time of its setting and the times of its save's files: all but these is the same."""
    if "/.ckpttool/marks/" not in path or path.endswith(" mode"):
        return content
    from ckpttool.core.records.hashed_json import is_intact

    assert is_intact(content), f"{path} is torn"
    record = json.loads(content)
    return record["mark"], record["reason"], record["checkpoint"], [file["sample"] for file in record["files"]]


def _marked_before(folder: Path) -> None:
    _verified_before(folder)
    assert library.mark("20_2", folder / "output", good=True)


_PRUNE = ("prune", "output", "--keep-last", "1", "--apply", "--level", "structure")

WRITERS = (
    Writer(
        name="health file",
        make=_old_health_record,
        argv=("health", "output", "--threshold", "0.2", "--log", "train_log_first_rank_0.jsonl", "--write"),
    ),
    Writer(name="manifest", make=_sealed_before, argv=("seal", "output", "--checkpoint", "all", "--jobs", "1")),
    Writer(
        name="launch config",
        make=_launched_before,
        argv=("launch", "output", "--config", "pretrain_sink2.yaml", "--output", "resume.yaml", "--force"),
    ),
    Writer(name="meta.json", make=_stale_records, argv=("repair-meta", "output", "--apply")),
    Writer(name="tracker", make=_stale_tracker, argv=("repair-meta", "output", "--apply")),
    Writer(
        name="prune",
        make=_prunable,
        argv=_PRUNE,
        between=_pruning,
        less=_pruned_less,
    ),
    Writer(
        name="prune of iterations",
        make=_prunable_iterations,
        argv=_PRUNE,
        between=_pruning,
        less=_pruned_less,
    ),
    Writer(name="mark", make=_marked_before, argv=("mark", "20_2", "output", "--bad", "diverged"), alike=_mark),
    Writer(
        name="ledger",
        make=_verified_before,
        argv=("verify", "output", "--level", "checksum", "--checkpoint", "all", "--jobs", "1"),
        env={"XDG_CACHE_HOME": "{cwd}/cache"},
        alike=_ledger,
        less=_unchanged,  # it only spares reading: a verify that cannot keep it has answered all the same
    ),
)

LARGE = (Writer(name="large manifest", make=_on_many_ranks, argv=("seal", "output", "--jobs", "1")),)
"""What writes more than a page; too many calls for one fault at each."""
