"""Trees that lie on the disks of several machines, each of which looks at what it has."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import TypeVar

from ckpttool.core.domain.node import Room
from ckpttool.core.domain.question import CheckQuestion
from ckpttool.core.domain.verdict import Level, ShardReport
from ckpttool.core.errors import CkptToolError
from ckpttool.nodes import looking
from ckpttool.nodes.model import Seat
from ckpttool.nodes.part_file import PartView, encode_part, read_parts
from ckpttool.trainers.locate import locate

T = TypeVar("T")
BEGAN_NS = 1_700_000_000 * 10**9
SAVED_SECONDS = 1_600_000_000


def look_at(seat: Seat) -> PartView:
    """Look at what lies at the seat's root, and read that as it was written down."""
    ((_, look),) = read_parts(written(seat), name="x")
    assert isinstance(look, PartView), look
    return look


def written(seat: Seat) -> bytes:
    """Look at what lies at the seat's root, and write it down."""
    try:
        located = locate(seat.root)
    except CkptToolError:
        located = None
    if located is not None and located.storage.root != seat.root:
        located = None
    seen = looking.view_of(located, seat.root, CheckQuestion(level=seat.level, name="all"))
    saves: dict[str, list[ShardReport]] = {}
    for path, report in sorted(seen.reports.items()):
        saves.setdefault(seen.saves.get(path, ""), []).append(report)
    return encode_part(seat, seen.answers, saves.items(), version="0")


def seat(number: int, of: int, root: Path, level: Level = Level.STRUCTURE) -> Seat:
    return Seat(
        number=number,
        of=of,
        run="r",
        host=f"node{number:02}",
        disk=f"disk{number}",
        shared=False,
        root=str(root),
        began_ns=BEGAN_NS,
        ended_ns=BEGAN_NS,
        level=level,
        room=Room(free_bytes=1 << 40, free_files=1 << 20),
    )


_RANK = re.compile(r"rank_([0-9]+)|-([0-9]{7})-|__([0-9]+)_|rank_([0-9]+)_|_([0-9]+)_of|([0-9]+)\.(?:pt|ckpt|distcp)$")


def home_of(path: str, homes: dict[str, int], of: int, chance: Random) -> int:
    """Return which machine has a file: all of a rank's are in one place, and what is no rank's is anywhere."""
    if path.startswith(".."):
        return 0
    matches = list(_RANK.finditer(path))
    own = [match for match in matches if match[0].startswith("rank_")] or matches  # `_2.ckpt` is a step
    found = [int(next(filter(None, match.groups()))) for match in own]
    key = f"rank {found[-1]}" if found else path
    if key not in homes:
        homes[key] = chance.randrange(of)
    return homes[key]


def is_record(within: Path) -> bool:
    """Tell whether a file is what a seal left."""
    return ".ckpttool" in within.parts or ".manifest" in within.name


def split(output: Path, tree: Path, of: int, chance: Random, places: Sequence[Path]) -> None:
    """Copy each file of an output folder into one of several; the folders that hold none go with rank or anywhere."""
    homes: dict[str, int] = {}
    for path in sorted(output.rglob("*")):
        inner = path.relative_to(output)
        within = path.relative_to(tree) if path.is_relative_to(tree) else Path("..")
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()) or re.fullmatch("rank_[0-9]+", path.name):
                target = places[home_of(str(within), homes, of, chance)] / inner
                target.mkdir(parents=True, exist_ok=True)
            continue
        own = places[home_of(str(within), homes, of, chance)]
        # What was sealed is known on every machine: of what a machine has no record it compares nothing with one.
        for place in places if is_record(within) else [own]:
            target = place / inner
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target, follow_symlinks=False)


def looks_at(output: Path, tree: Path, of: int, chance: Random, level: Level) -> list[PartView]:
    """Divide a tree over machines, and let each look at its own part, at the place where the whole was."""
    return _of_each(output, tree, of, chance, lambda number: look_at(seat(number, of, tree, level)))


def parts_of(output: Path, tree: Path, of: int, chance: Random, level: Level) -> list[bytes]:
    """Do the same, and return the parts as they are written."""
    return _of_each(output, tree, of, chance, lambda number: written(seat(number, of, tree, level)))


def _of_each(output: Path, tree: Path, of: int, chance: Random, look: Callable[[int], T]) -> list[T]:
    places = [output.with_name(f"{output.name}-{number}") for number in range(of)]
    for place in places:
        place.mkdir()
    split(output, tree, of, chance, places)
    whole = output.with_name(f"{output.name}-whole")
    output.rename(whole)
    looks = []
    for number, place in enumerate(places, 1):
        place.rename(output)
        looks.append(look(number))
        shutil.rmtree(output)
    whole.rename(output)
    return looks


def aged(output: Path) -> None:
    for path in output.rglob("*"):
        os.utime(path, (SAVED_SECONDS, SAVED_SECONDS), follow_symlinks=False)


def damaged(tree: Path, chance: Random, times: int) -> list[str]:  # noqa: C901  one kind of damage a branch
    done = []
    for _ in range(times):
        files = sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
        if not files:
            break
        path = chance.choice(files)
        kind = chance.choice(["cut", "flip", "gone", "empty", "zeroed", "stray", "folder gone", "garbage"])
        data = path.read_bytes()
        stamp = path.stat()
        at = chance.randrange(len(data)) if data else 0
        if kind == "cut":
            path.write_bytes(data[:at])
        elif kind == "flip" and data:
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :])
        elif kind == "gone":
            path.unlink()
        elif kind == "empty":
            path.write_bytes(b"")
        elif kind == "zeroed":
            path.write_bytes(bytes(len(data)))
        elif kind == "stray":
            (path.parent / "stray.txt").write_bytes(b"?")
        elif kind == "folder gone" and path.parent != tree:
            shutil.rmtree(path.parent)
        elif kind == "garbage":
            path.write_bytes(chance.randbytes(len(data)))
        done.append(f"{kind} {path.relative_to(tree)} at {at}")
        if path.exists():
            os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    aged(tree)
    return done
