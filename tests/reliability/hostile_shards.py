"""Whole trees of which one rank's newest shard is hostile: the checkpoint before it must be found."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from ckpttool.core.errors import ExitCode
from tests.reliability.hostile_situation import (
    LINKS,
    LOST_LINKS,
    MOST_MEBIBYTES,
    NO_FILES,
    Maker,
    Situation,
    ask,
    in_place_of,
    sound_tree,
    text,
)
from tests.support.hostile_files import CORPUS
from tests.support.shard_writers import compact, record, safetensors_file

KEPT = "output/checkpoint/rank_*/*-10_2.*"
OLDER = ask("resolve output", 0, "Resume from step 20 (10_2): intact on all 2 ranks")

# What `verify` makes of a shard; what is not named here is damage.
UNSAFE = {
    "too-many-records.ckpt",
    "lying-lengths.ckpt",
    "huge-name.ckpt",
    "bomb.pt",
    "folder-record.pt",
}
FILES_OF_A_KIND = {"a folder", "a link into /proc", "a link to the process's memory"}
HEAVY = {
    "bomb.pt",
    "many-records.pt",
    "many-sick-records.ckpt",
    "sick-all-over.safetensors",
    "header-in-no-order.safetensors",
    "too-many-tensors.safetensors",
    "many-tensors.safetensors",
    "too-many-records.ckpt",
}


def _million_tensors(path: Path) -> None:
    """A million tensors in a header that is none too long: 62 MB, in order, without a gap."""
    entry = '"w%d":{"dtype":"U8","shape":[1],"data_offsets":[%d,%d]}'
    entries = ",".join(entry % (number, number, number + 1) for number in range(1_000_000))
    path.write_bytes(safetensors_file(f"{{{entries}}}".encode()))
    os.truncate(path, path.stat().st_size + 1_000_000)


def _longest_header(path: Path) -> None:
    """One hundred megabytes of header that are really there."""
    header = b'{"__metadata__":{"a":"' + b"x" * 99_999_000 + b'"}}'
    path.write_bytes(safetensors_file(header))


def _million_records(path: Path) -> None:
    one = record("w", [1], "UInt8", b"1")
    path.write_bytes(one * 1_000_000)


def _repeated_name(path: Path) -> None:
    path.write_bytes(safetensors_file(b"{" + b'"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},' * 250_000 + b"}"))


def _huge_scalars(path: Path) -> None:
    path.write_bytes(record("step_num", [1 << 27], "Int64", b"\0" * (8 << 20)))


def _many_metadata(path: Path) -> None:
    path.write_bytes(safetensors_file(compact({"__metadata__": {f"k{number}": "v" for number in range(250_000)}})))


MORE: dict[str, tuple[Literal["ckpt", "safetensors"], Maker, int]] = {
    "a million tensors": ("safetensors", _million_tensors, ExitCode.UNSAFE),
    "a header of 100 MB": ("safetensors", _longest_header, ExitCode.DAMAGE),
    "a million records of one name": ("ckpt", _million_records, ExitCode.DAMAGE),
    "one name 250,000 times": ("safetensors", _repeated_name, ExitCode.DAMAGE),
    "scalars of a gigabyte": ("ckpt", _huge_scalars, ExitCode.DAMAGE),
    "a quarter of a million metadata": ("safetensors", _many_metadata, ExitCode.DAMAGE),
    "nothing but zeros": ("ckpt", text(bytes(5000)), ExitCode.DAMAGE),
}

LONG_HEADERS = {"a million tensors", "a header of 100 MB"}
LONG_HEADER_MEBIBYTES = 640
"""safetensors itself takes headers up to 100 MB, so they are read, as bytes and as text: 537 MiB were seen."""


def _with(put: Maker, fmt: Literal["ckpt", "safetensors"]) -> Maker:
    def make(here: Path) -> None:
        tree = sound_tree(here, fmt=fmt)
        in_place_of(tree.output / tree.shard(1, 15, 2), put)

    return make


def _of_corpus(name: str) -> ExitCode:
    return ExitCode.UNSAFE if name in UNSAFE or name.startswith("pickle") else ExitCode.DAMAGE


def _of_no_file(name: str) -> ExitCode:
    """A folder is an accident, /proc is full of files, though empty ones, and a link's disk may not be mounted."""
    if name in FILES_OF_A_KIND:
        return ExitCode.DAMAGE
    return ExitCode.INCOMPLETE if name in LOST_LINKS else ExitCode.UNSAFE


def situations() -> Iterator[Situation]:
    """Every file of the corpus, some more, and everything that is no file."""
    for name, put in CORPUS.items():
        fmt: Literal["ckpt", "safetensors"] = "safetensors" if name.endswith(".safetensors") else "ckpt"
        asks = (OLDER, ask("verify output", _of_corpus(name), "15_2"), ask("scan output", 0, "2 checkpoints"))
        yield Situation(
            name=f"shard: {name}", kind="tree", kept=KEPT, make=_with(put, fmt), asks=asks, heavy=name in HEAVY
        )
    for name, (fmt, put, code) in MORE.items():
        both = (OLDER, ask("verify output", code, "15_2"))
        yield Situation(
            name=f"shard: {name}",
            kind="tree",
            kept=KEPT,
            make=_with(put, fmt),
            asks=both,
            most_mebibytes=LONG_HEADER_MEBIBYTES if name in LONG_HEADERS else MOST_MEBIBYTES,
        )
    for name, put in NO_FILES.items():
        exit_ = _of_no_file(name)
        asks = (OLDER, ask("verify output", exit_, "15_2"), ask("scan output", exit_))
        yield Situation(name=f"shard: {name}", kind="tree", kept=KEPT, make=_with(put, "ckpt"), asks=asks)
    for name, put in LINKS.items():
        asks = (OLDER, ask("verify output", ExitCode.DAMAGE, "15_2: damaged"), ask("scan output", 0))
        yield Situation(name=f"shard: {name}", kind="tree", kept=KEPT, make=_with(put, "ckpt"), asks=asks)
