"""Where a fault is made: a copy of a real tree, what it is given first, and what a command said of it."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ckpttool.core.domain.finding import Code, Severity
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.formats import read_header
from ckpttool.trainers.mindformers.scalars import FACTS
from tests.conftest import FIXTURES
from tests.support.commands import Said, ask
from tests.support.fault_detection import megabyte, with_crc
from tests.support.shard_writers import MemorySource

if TYPE_CHECKING:
    import pytest

NEWEST = "_1-30_2"
BEFORE = "_1-25_2"


@dataclass(frozen=True, kw_only=True)
class Site:
    """A test's own folder, in which it stands; the tree is `output` there."""

    folder: Path
    patch: pytest.MonkeyPatch
    """For disks that misbehave; undone after the test."""
    held: ExitStack
    """For what is to be let go after the test: a lock, a read that hangs."""

    @property
    def output(self) -> Path:
        return self.folder / "output"

    @property
    def checkpoint(self) -> Path:
        return self.output / "checkpoint"

    def shard(self, rank: int, label: str = NEWEST) -> Path:
        """A rank's shard of a checkpoint of the rank layout."""
        (found,) = self.checkpoint.glob(f"rank_{rank}/*_rank_{rank}{label}.*")
        return found

    def shards(self, label: str = NEWEST) -> list[Path]:
        """All ranks' shards of it."""
        return sorted(self.checkpoint.glob(f"rank_*/*_rank_[0-9]{label}.*"))


Change = Callable[[Site], object]
WHERE = "rank_1/"
"""Where most faults are made."""


def nothing(site: Site) -> None:
    """Leave the tree as the trainer wrote it."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One way in which a fault shows."""

    tree: str
    """The folder of fixtures/ that is copied."""
    make: Change
    """Makes the fault."""
    prepare: Change = nothing
    """What the healthy neighbour has too: checksums, a megabyte."""
    where: str = WHERE
    """Must stand in the path or the message of a finding of each code that the healthy tree has not."""
    words: str = ""
    """Must be said, whatever the line breaks."""
    after: Change = nothing
    """Asserts what else must hold once the command is done."""


SCENES: dict[str, Scene] = {}
"""By the number of the fault and a name: `01-folder-gone`."""

CKPT, SAFETENSORS, ITERATIONS, ONE_CARD = "sink2_ckpt", "sink2_safetensors", "newfmt_tp2dp2", "newfmt_1rank"


def scene(
    *faults: int,
    tree: str = CKPT,
    prepare: Change = nothing,
    where: str = WHERE,
    words: str = "",
    after: Change = nothing,
) -> Callable[[Change], Change]:
    """Register a function that makes a fault, under its own name."""

    def register(make: Change) -> Change:
        for fault in faults:
            name = f"{fault:02}-{make.__name__.replace('_', '-')}"
            assert name not in SCENES
            SCENES[name] = Scene(tree=tree, make=make, prepare=prepare, where=where, words=words, after=after)
        return make

    return register


def stage(one: Scene, site: Site) -> None:
    """Put the healthy tree and a training's config into the folder, and nothing else."""
    for path in site.folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    source = FIXTURES / one.tree
    shutil.copytree(
        source / "output" if (source / "output").is_dir() else source,
        site.output,
        ignore=shutil.ignore_patterns("checkpoint_network"),
        copy_function=shutil.copyfile,
    )
    shutil.copyfile(FIXTURES / "configs/pretrain_sink2.yaml", site.folder / "base.yaml")
    for folder in (site.output, *(path for path in site.output.rglob("*") if path.is_dir())):
        folder.chmod(0o755)  # the source may lie in a read-only checkout
    one.prepare(site)


# --- what a healthy tree is given ------------------------------------------------------------------------------------


def sealed(site: Site) -> None:
    """A manifest."""
    assert ask("seal", str(site.output), "-q").code == 0


def checksummed(site: Site) -> None:
    """MindSpore's own checksums in every shard."""
    for path in site.checkpoint.glob("rank_*/*_rank_*"):
        path.write_bytes(with_crc(path.name, path.read_bytes()))


def large(site: Site) -> None:
    """Shards of a megabyte, of the two newest saves alone."""
    kept = {*site.shards(), *site.shards(BEFORE)}
    for path in site.checkpoint.glob("rank_*/*_rank_*"):
        path.write_bytes(_grown(path.name, path.read_bytes())) if path in kept else path.unlink()


_grown = cache(megabyte)  # eight of them, for several scenes


def large_and_sealed(site: Site) -> None:
    """The same, with a manifest."""
    large(site)
    sealed(site)


# --- ways to change a file -------------------------------------------------------------------------------------------


def patch_bytes(path: Path, begin: int, new: bytes) -> None:
    """Write over some bytes."""
    data = path.read_bytes()
    assert begin + len(new) <= len(data)
    path.write_bytes(data[:begin] + new + data[begin + len(new) :])


def flip(path: Path, byte: int) -> None:
    """Flip the lowest bit of a byte."""
    patch_bytes(path, byte, bytes([path.read_bytes()[byte] ^ 1]))


def tensor(path: Path, part: str) -> tuple[int, int]:
    """Return where the data of the first tensor with this in its name begins and ends."""
    header = read_header(MemorySource(path.read_bytes()), named=FormatName.MINDSPORE_CKPT, facts=FACTS)
    return next(entry.spans[0] for entry in header.entries if part in entry.name)


def floats(path: Path, part: str, number: Callable[[float], float]) -> None:
    """Change every number of a tensor of 32-bit floats."""
    begin, end = tensor(path, part)
    count = (end - begin) // 4
    old = struct.unpack(f"<{count}f", path.read_bytes()[begin:end])
    patch_bytes(path, begin, struct.pack(f"<{count}f", *map(number, old)))


# --- what was said ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Heard:
    """An answer."""

    said: Said
    word: str
    """The verdict, or what was chosen or done."""
    told: Mapping[str, str]
    """The paths and messages of all findings, by code."""
    heavy: frozenset[str]
    """Of those that weigh more than a note."""
    name: str | None
    """Of the checkpoint that `resolve` chose."""

    @property
    def codes(self) -> frozenset[str]:
        """Of all findings but those on the checkpoint or the start as a whole, which follow from the fault."""
        return frozenset(self.told) - {Code.CAN_BE_HEALED.value, Code.START_DIFFERS.value}

    def elsewhere(self, healthy: Heard, where: str) -> list[str]:
        """Return the codes that are news and are nowhere told of the place of the fault."""
        return sorted(code for code in self.codes - healthy.codes if where not in self.told[code])

    def beside(self, healthy: Heard) -> str:
        """Tell it in a line, as the table does; codes that the healthy tree has too are no news."""
        moved = self.name is not None and self.name != healthy.name
        word = "an older one" if moved else self.word
        news = " ".join(sorted(self.codes - healthy.codes))
        return f"{word}, exit {self.said.code}" + (f": {news}" if news else "")


PATIENCE = 60
"""Seconds that the disk of a healthy tree is given, whatever else the machine has to do."""


def patiently(command: str) -> str:
    """Return a command line as a healthy tree is asked: it must answer in the end, however late."""
    words = command.split()
    if "--timeout" in words:
        words[words.index("--timeout") + 1] = str(PATIENCE)
    return " ".join(words)


def hear(command: str) -> Heard:
    """Run a command line (without `ckpttool`) and take in its JSON."""
    arguments = command.split()
    quiet = () if arguments[0] == "lint-config" else ("-q",)
    said = ask(*arguments, *quiet, "--format", "json")
    document = {} if "ckpttool/error/1" in said.stdout else said.json
    # What sums up the others' ranks is no word on a fault of its own.
    found = [one for one in findings(document) if one["code"] != "ranks-to-restore"]
    told: dict[str, str] = {}
    for one in found:
        told[str(one["code"])] = f"{told.get(str(one['code']), '')}{one['path']}: {one['message']}\n"
    resume = document.get("resume")
    return Heard(
        said=said,
        word=WORDS[arguments[0]](document) if document else "error",
        told=told,
        heavy=frozenset(str(one["code"]) for one in found if one["severity"] != "note"),
        name=str(resume["name"]) if isinstance(resume, dict) else None,
    )


def findings(document: object) -> Iterator[dict[str, object]]:
    """Every finding of a document, wherever it is."""
    if isinstance(document, dict):
        if {"code", "severity"} <= document.keys():
            yield document
        for value in document.values():
            yield from findings(value)
    elif isinstance(document, list):
        for value in document:
            yield from findings(value)


def _rows(document: dict[str, object], key: str) -> list[dict[str, object]]:
    rows = document[key]
    assert isinstance(rows, list)
    return rows


def _heaviest(document: dict[str, object]) -> str:
    worst = max((Severity[str(one["severity"]).upper()] for one in findings(document)), default=None)
    return "clean" if worst is None else worst.word


def _going(document: dict[str, object]) -> str:
    return f"{sum(one['fate'] == 'go' for one in _rows(document, 'checkpoints'))} go"


WORDS: dict[str, Callable[[dict[str, object]], str]] = {
    "verify": lambda document: " ".join(str(one["verdict"]) for one in _rows(document, "checkpoints")),
    "scan": _heaviest,
    "resolve": lambda document: "the newest" if document["resume"] else "nothing",
    "health": lambda document: str(_rows(document, "checkpoints")[-1]["health"]),
    "seal": lambda document: "sealed" if _rows(document, "checkpoints")[-1]["sealed"] else "not sealed",
    "launch": lambda document: "written" if document["changes"] else "nothing",
    "lint-config": lambda document: "go" if document["go"] else "no-go",
    "prune": _going,
    "repair-meta": lambda document: f"{len(_rows(document, 'records'))} to write",
}
"""What a command says in a word, by its document."""

CHANGES = {"prune", "repair-meta", "launch", "seal", "health"}
"""Commands that may change the tree: the healthy one and the broken one are then two copies."""
