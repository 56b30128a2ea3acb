"""Trees that other trainers wrote, and what is true of them: `fixtures/layouts`."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.answers import FIXTURES

LAYOUTS = FIXTURES / "layouts"
_NEAR = 8
"""Bytes within which a pickled value follows its name."""


@cache
def truths() -> dict[str, dict[str, Any]]:
    """What is true of each tree, by its name."""
    told: dict[str, dict[str, Any]] = json.loads((LAYOUTS / "truth.json").read_text())
    return told


@cache
def faults() -> dict[str, dict[str, Any]]:
    """How trees are damaged, and what is to be answered then, by name."""
    lines = (LAYOUTS / "faults.jsonl").read_text().splitlines()
    return {fault["fault"]: fault for fault in map(json.loads, lines)}


def recount(file: Path, name: str, old: int, new: int) -> None:
    """Let a file of `torch.save` say another small number under a name; its CRC32s are right."""
    with zipfile.ZipFile(file) as archive:
        records = {record: archive.read(record) for record in archive.namelist()}
    (pickled,) = (record for record in records if record.endswith("/data.pkl"))
    before, key, after = records[pickled].partition(name.encode())
    at = after.index(bytes((ord("K"), old)))
    assert at < _NEAR, f"{name} is not {old}"
    records[pickled] = before + key + after[: at + 1] + bytes((new,)) + after[at + 2 :]
    with zipfile.ZipFile(file, "w") as archive:
        for record, content in records.items():
            archive.writestr(record, content)


def edit_json(file: Path, **changes: object) -> None:
    """Let a record say something else under these keys."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}, indent=2))


def flip(file: Path, at: int = -1, bit: int = 0) -> None:
    """Turn a bit of a file over; that of its last byte by default."""
    content = bytearray(file.read_bytes())
    content[at] ^= 1 << bit
    file.write_bytes(content)


def flip_tensor(file: Path) -> None:
    """Turn a bit of the first tensor in a file of `torch.save` over; its CRC32 stays as it was."""
    with zipfile.ZipFile(file) as archive:
        record = next(record for record in archive.infolist() if record.filename.endswith("/data/0"))
    content = file.read_bytes()
    lengths = content[record.header_offset + 26 : record.header_offset + 30]
    name, extra = (int.from_bytes(lengths[at : at + 2], "little") for at in (0, 2))
    flip(file, at=record.header_offset + 30 + name + extra)


def layout_of_tree(tree: str) -> str:
    """Which layout it is."""
    return str(truths()[tree]["layout"])


def healthy(tree: str, out: Path) -> Path:
    """Copy a tree."""
    return Path(shutil.copytree(LAYOUTS / tree, out / "run", symlinks=True))


def damaged(fault: str, out: Path) -> Path:
    """Make a damaged tree."""
    recipe = faults()[fault]
    root = healthy(recipe["tree"], out)
    for edit in recipe["edits"]:
        _EDITS[edit["op"]](root, **{name: value for name, value in edit.items() if name != "op"})
    return root


def edit(root: Path, name: str, path: str, value: str | int | None = None) -> None:
    """Do an edit of this name to a file; a copy's value is what is copied there."""
    if name == "copy":
        _copy(root, str(value), path)
    else:
        _EDITS[name](root, path, *(() if value is None else (value,)))


def _remove(root: Path, path: str) -> None:
    file = root / path
    shutil.rmtree(file) if file.is_dir() and not file.is_symlink() else file.unlink()


def _cut(root: Path, path: str, keep: int) -> None:
    """Keep the first bytes; a negative number: all but the last."""
    (root / path).write_bytes((root / path).read_bytes()[:keep])


def _zero(root: Path, path: str) -> None:
    (root / path).write_bytes(bytes((root / path).stat().st_size))


def _flip(root: Path, path: str, at: int, bit: int = 0) -> None:
    flip(root / path, at, bit)


def _write(root: Path, path: str, text: str) -> None:
    """Write a file; another one's place it takes with its time, for the real one was not written today either."""
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    times = (root / path).stat() if (root / path).exists() else None
    (root / path).write_text(text)
    if times is not None:
        os.utime(root / path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _rename(root: Path, path: str, to: str) -> None:
    (root / path).rename(root / to)


def _copy(root: Path, path: str, to: str) -> None:
    (root / to).parent.mkdir(parents=True, exist_ok=True)
    if (root / path).is_dir():
        shutil.copytree(root / path, root / to, symlinks=True)
    else:
        shutil.copy2(root / path, root / to)


def _folder(root: Path, path: str) -> None:
    (root / path).mkdir()


def _link(root: Path, path: str) -> None:
    """Make a broken link."""
    (root / path).symlink_to("nowhere")


def _mtime(root: Path, path: str, delta: int) -> None:
    """Set a time so many seconds after that of the newest file."""
    newest = max(file.lstat().st_mtime for file in root.rglob("*") if file.is_file())
    for file in (root / path, *(root / path).rglob("*")):
        os.utime(file, (newest + delta,) * 2, follow_symlinks=False)


_EDITS: dict[str, Callable[..., None]] = {
    "remove": _remove, "cut": _cut, "zero": _zero, "flip": _flip, "write": _write, "rename": _rename, "copy": _copy,
    "mtime": _mtime, "folder": _folder, "link": _link,
}  # fmt: skip


def lay_deepspeed_saves(base: Path) -> Path:
    """Lay two saves of Lightning's DeepSpeed strategy, from DeepSpeed's own tags: Lightning calls each `checkpoint`."""
    saves = base / "checkpoints"
    for step in (3, 6):
        save = saves / f"epoch=0-step={step}.ckpt"
        shutil.copytree(LAYOUTS / f"ds_zero1_2ranks/global_step{step}", save / "checkpoint")
        (save / "latest").write_text("checkpoint")
    return saves
