"""Real disks of a few MiB: one in memory, which can be filled, and one in a file, which can be copied while in use."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PAGE = 4096
"""Bytes: what tmpfs and our ext4 give out at least."""


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(done.stderr.strip() or f"mount failed with {done.returncode}")


def _unmount(place: Path) -> None:
    if subprocess.run(["umount", place], capture_output=True, check=False).returncode:
        subprocess.run(["umount", "--lazy", place], capture_output=True, check=False)
        raise OSError(f"{place} is still in use: what its disk holds cannot be told")


@contextmanager
def in_memory(place: Path, *, pages: int, inodes: int) -> Iterator[Path]:
    """Mount a tmpfs of so many pages and inodes, its root folder included.

    Raises:
        OSError: This user or machine may not.
    """
    place.mkdir(exist_ok=True)
    _mount("-t", "tmpfs", "-o", f"size={pages * PAGE},nr_inodes={inodes}", "tmpfs", str(place))
    try:
        yield place
    finally:
        _unmount(place)


def make_image(image: Path, *, mebibytes: int) -> None:
    """Make an ext4 in a file.

    Raises:
        OSError: mkfs.ext4 is not there or fails.
    """
    with image.open("wb") as file:
        file.truncate(mebibytes << 20)
    done = subprocess.run(
        ["mkfs.ext4", "-q", "-F", "-b", str(PAGE), image], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise OSError(done.stderr.strip())


@contextmanager
def mounted(image: Path, place: Path) -> Iterator[Path]:
    """Mount an image through a loop device; what was in its journal is done first, as after a power cut.

    Without the heuristics by which ext4 forgives programs that rename a file before its content is on the disk: other
    file systems have none.

    Raises:
        OSError: This user or machine may not.
    """
    place.mkdir(exist_ok=True)
    _mount("-o", "loop,noauto_da_alloc", str(image), str(place))
    try:
        yield place
    finally:
        _unmount(place)


def cut_off(image: Path, copy: Path, *, commit: Path | None = None) -> None:
    """Copy what has reached the disk so far, with nothing that the kernel still holds back: what a power cut leaves.

    Args:
        image: Of a mounted disk.
        copy: The image to make.
        commit: On that disk; somebody else's file there is brought to the disk before. The file system then brings all
            names and sizes along, but not what is in the files.
    """
    if commit is not None:
        with commit.open("wb") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
    subprocess.run(["cp", "--sparse=always", image, copy], check=True)


def why_not(folder: Path, *, images: bool) -> str | None:
    """Tell why this machine cannot mount a tmpfs, or images as well, or nothing where it can."""
    if os.geteuid() != 0:
        return "mounting needs root"
    try:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            image, place = Path(scratch, "image"), Path(scratch, "place")
            with in_memory(place, pages=4, inodes=4):
                pass
            if images:
                make_image(image, mebibytes=4)
                with mounted(image, place):
                    pass
            return None
    except OSError as error:
        return f"no disk can be mounted here: {error}"
