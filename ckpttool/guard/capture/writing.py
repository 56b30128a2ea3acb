"""One rank's part of a capture on its way to the disk: whole, or not there."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress

import torch
from torch import Tensor

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.units import ByteCount, moment
from ckpttool.core.errors import WriteFailedError
from ckpttool.core.formats.safetensors.header import encoded_header
from ckpttool.core.write.files import ensure_folder
from ckpttool.core.write.files import replace as replace_file
from ckpttool.core.write.stream import stream
from ckpttool.guard.files.capture import HEAD, CaptureHead, head_bytes, rank_bytes, record_name, shard_name
from ckpttool.guard.model.capture import RankCapture, ShardFile
from ckpttool.guard.tensor_file import block, named

_WAIT = 0.05  # seconds between two looks at the writer


class ShardWriter:
    """Writes one rank's part in a thread: a disk that hangs must not hang the training."""

    def __init__(self, path: str, capture: RankCapture, tensors: Mapping[str, Tensor], *, is_first: bool) -> None:
        """Take the capture's folder, the record but for its shard, the tensors, and whether this rank heads it."""
        self._path = path
        self._capture = capture
        self._tensors = tensors
        self._is_first = is_first
        self._progress = 0
        self._given_up = False
        self._error: Exception | None = None

    def write(self, io_timeout: float) -> None:
        """Write all of it, or nothing.

        Raises:
            WriteFailedError, OSError: It was not written; what was begun is gone.
            TimeoutError: The disk took nothing for so long; what was begun goes when it does.
        """
        thread = threading.Thread(target=self._run, name="ckpttool-capture", daemon=True)
        thread.start()
        progress, since = -1, time.monotonic()
        while thread.is_alive():
            thread.join(_WAIT if self._progress else _WAIT / 10)
            if self._progress != progress:
                progress, since = self._progress, time.monotonic()
            elif time.monotonic() - since > io_timeout:
                self._given_up = True
                raise TimeoutError(f"{self._path}: the disk took nothing for {io_timeout:g} s")
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with torch.no_grad():
                self._write()
        except Exception as error:  # noqa: BLE001  it is raised where it was waited for
            self._remove()
            self._error = error

    def _write(self) -> None:
        ensure_folder(self._path)
        head, entries = encoded_header(named(self._tensors.items()))
        size = ByteCount(entries[-1].spans[0][1] if entries else len(head))
        name = shard_name(self._capture.rank)
        blocks = self._blocks(head, [entry.name for entry in entries])
        streamed = stream(f"{self._path}/{name}", blocks, size=size, temporary=f".{name}.tmp")
        self._go_on()
        shard = ShardFile(name=name, size=streamed.size, xxh3_128=streamed.xxh3_128)
        record = rank_bytes(replace(self._capture, shard=shard))
        replace_file(f"{self._path}/{record_name(self._capture.rank)}", record, overwrite=False, backup=False)
        if self._is_first:
            capture_head = CaptureHead(
                step=self._capture.step, world_size=self._capture.world_size, time=moment(time.time())
            )
            replace_file(f"{self._path}/{HEAD}", head_bytes(capture_head), overwrite=False, backup=False)

    def _blocks(self, head: bytes, names: list[str]) -> Iterator[bytes | memoryview]:
        """Yield the file's content; one tensor at a time is copied from the device."""
        yield head
        for name in names:
            self._go_on()
            yield block(self._tensors[name])

    def _go_on(self) -> None:
        """Say that something was written; what nobody waits for any more ends here, and goes."""
        self._progress += 1
        if self._given_up:
            raise WriteFailedError(f"{self._path}: given up")

    def _remove(self) -> None:
        own_files = [
            shard_name(self._capture.rank),
            record_name(self._capture.rank),
            *([HEAD] if self._is_first else []),
        ]
        for name in own_files:
            with suppress(OSError):
                os.unlink(f"{self._path}/{name}")
        with suppress(OSError):  # other ranks may have theirs in it
            os.rmdir(self._path)
