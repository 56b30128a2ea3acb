"""What a hostile situation is made of, and things that are no files where a file should be."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support.trees import TreeBuilder

Maker = Callable[[Path], None]
"""Puts something hostile where the path says."""

CANARY = "canary-ran"
"""What every command that hides in an input would make, in the working directory."""

CONFIG = """\
load_checkpoint: ''
resume_training: False
runner_config: {epochs: 3, batch_size: 4, sink_mode: True, sink_size: 2}
use_parallel: True
parallel_config: {data_parallel: 2, model_parallel: 1, pipeline_stage: 1, micro_batch_num: 1}
"""


MOST_MEBIBYTES = 256


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A command line and what must come of it."""

    line: str
    """Split at blanks: every situation uses the same names."""
    exit: int
    """Negative where any of `among` will do."""
    says: str = ""
    """What stands in what it says, blanks counted as one."""
    among: frozenset[int] = frozenset()


def ask(line: str, exit_: int, says: str = "") -> Ask:
    return Ask(line=line, exit=exit_, says=says)


@dataclass(frozen=True, kw_only=True)
class Situation:
    """A working directory with something hostile in it."""

    name: str
    kind: str
    """Which commands suit it: see `SWEEPS`."""
    make: Maker
    """Gets the empty working directory."""
    asks: tuple[Ask, ...]
    heavy: bool = False
    """Whether a commit goes without it."""
    kept: str = ""
    """Which files, as a pattern, no command may change: those of the checkpoint that must be found."""
    string: str = ""
    """What stands for `STRING` in a command line."""
    most_mebibytes: int = MOST_MEBIBYTES
    """Memory that a command may take."""


def sound_tree(here: Path, *, ranks: int = 2, fmt: str = "ckpt") -> TreeBuilder:
    """An older checkpoint, 10_2, and the newest one, 15_2, both whole; a config that fits."""
    (here / "config.yaml").write_text(CONFIG)
    tree = TreeBuilder(here).legacy(ranks=ranks, fmt="safetensors" if fmt == "safetensors" else "ckpt")
    return tree.save(epoch=10, step=2).save(epoch=15, step=2)


def sound_iterations(here: Path) -> TreeBuilder:
    """The same in the newer layout: iterations 20 and 30."""
    (here / "config.yaml").write_text(CONFIG)
    return TreeBuilder(here).legacy(ranks=2).iteration(step=20).iteration(step=30)


def in_place_of(path: Path, put: Maker) -> None:
    """Put something where a file is, or was to be."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path)


def sparse(size: int, head: bytes = b"") -> Maker:
    """A file that says it is large and takes no room."""

    def put(path: Path) -> None:
        path.write_bytes(head)
        os.truncate(path, size)

    return put


def text(content: str | bytes) -> Maker:
    """A file of that content."""
    data = content.encode() if isinstance(content, str) else content

    def put(path: Path) -> None:
        path.write_bytes(data)

    return put


def fifo(path: Path) -> None:
    """A pipe that nobody writes to: to open it waits for ever."""
    os.mkfifo(path)


def loop(path: Path) -> None:
    """A link to itself."""
    path.symlink_to(path.name)


def device(path: Path) -> None:
    """A device that never ends; who may not make one gets a link to one."""
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        path.symlink_to("/dev/zero")


def endless(path: Path) -> None:
    """A link to a device that never ends."""
    path.symlink_to("/dev/zero")


def socket(path: Path) -> None:
    """A socket's name."""
    os.mknod(path, 0o600 | stat.S_IFSOCK)


def folder(path: Path) -> None:
    """A folder with something in it."""
    path.mkdir()
    (path / "inner").write_bytes(b"x")


def nowhere(path: Path) -> None:
    """A link to nothing."""
    path.symlink_to("not-there")


def memory(path: Path) -> None:
    """A link to the memory of whoever opens it."""
    path.symlink_to("/proc/self/mem")


def kernel(path: Path) -> None:
    """A link to a file that has a size of 0 and content all the same."""
    path.symlink_to("/proc/self/status")


def outside(path: Path) -> None:
    """A link to somebody else's file, outside the tree."""
    path.symlink_to(os.path.relpath(_others(path), path.parent))


def hard_link(path: Path) -> None:
    """Somebody else's file, linked hard."""
    os.link(_others(path), path)


def _others(path: Path) -> Path:
    """Return somebody else's file beside the output folder, which was no shard before."""
    here = next(folder.parent for folder in path.parents if folder.name == "output")
    target = here / "outside" / "precious"
    target.parent.mkdir(exist_ok=True)
    if not target.exists():
        target.write_bytes(b"nobody may touch this")
    return target


NO_FILES: dict[str, Maker] = {
    "a FIFO": fifo,
    "a link to itself": loop,
    "a device": device,
    "a link to /dev/zero": endless,
    "a socket": socket,
    "a folder": folder,
    "a link to nothing": nowhere,
    "a link to the process's memory": memory,
    "a link into /proc": kernel,
}
"""None of them is a regular file of its own."""

LOST_LINKS = {"a link to itself", "a link to nothing"}
"""What they should lead to may come back: unknown, where the rest may block or never end."""

LINKS: dict[str, Maker] = {"a link out of the tree": outside, "a hard link out of the tree": hard_link}
