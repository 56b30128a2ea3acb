"""One rank's tensors of a capture, written atomically and read back.

The header is written here, because the safetensors library needs all tensors in memory at once. This module copies,
hashes and writes one tensor at a time.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product

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
from ckpttool.guard.state_tree import Sharded, UnreadableState, read
from ckpttool.guard.tensor_file import block, named, open_tensors

_WAIT = 0.05  # seconds between two checks of the writer

_IN_SAVES = "model."


class ShardWriter:
    """Writer of one rank's part in a thread, because a hung disk must not hang the training run."""

    def __init__(self, path: str, capture: RankCapture, tensors: Mapping[str, Tensor], *, is_first: bool) -> None:
        """Store the arguments.

        Args:
            path: Path of the capture's folder.
            capture: The record without its shard.
            tensors: The tensors by name.
            is_first: Whether this rank writes the head.
        """
        self._path = path
        self._capture = capture
        self._tensors = tensors
        self._is_first = is_first
        self._progress = 0
        self._given_up = False
        self._error: Exception | None = None

    def write(self, io_timeout: float) -> None:
        """Write the complete part, or nothing.

        Raises:
            WriteFailedError, OSError: The part was not written. Incomplete files were removed.
            TimeoutError: The disk accepted no data until the timeout. Incomplete files are removed once it responds.
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
                raise TimeoutError(f"{self._path}: the disk accepted no data for {io_timeout:g} s")
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
        """Yield the file's content, copying one tensor at a time from the device."""
        yield head
        for name in names:
            self._go_on()
            yield block(self._tensors[name])

    def _go_on(self) -> None:
        """Record progress, or raise an error here if the caller has timed out."""
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
        with suppress(OSError):  # other ranks may have files in it
            os.rmdir(self._path)


class Content:
    """The contents of a rank's shard."""

    def __init__(self, captured: RankCapture, path: str) -> None:
        """Read the shard.

        Raises:
            UnreadableState, OSError, ValueError: The shard does not match the record.
        """
        self._captured = captured
        content = read(captured.content, open_tensors(path))
        if not isinstance(content, dict):
            raise UnreadableState("the content is not an object")
        self.parameters: dict[str, Tensor | Sharded] = content.get("parameters", {})
        self.buffers: dict[str, Tensor] = content.get("buffers", {})
        self.batches: list[object] = content.get("batches", [])
        self.random: list[Mapping[str, object]] = content.get("rng", [])
        self.drawn: list[dict[str, object]] = content.get("drawn", [])
        """The items that the data loaders returned for the step, if a guard without code captured it."""
        self.optimizer: dict[str, object] = content.get("optimizer", {})
        """The optimizer's `state`, and the names of its parameters as `updated`. Empty if not captured."""
        self.scaler: dict[str, object] = content.get("scaler", {})
        """State of the loss scaler. Empty if not captured."""
        expected = len(captured.micro_batches)
        parts = (self.parameters, self.buffers, self.batches, self.random, self.drawn, self.optimizer, self.scaler)
        if [type(part) for part in parts] != [dict, dict, list, list, list, dict, dict]:
            raise UnreadableState("the content does not have the arrangement that ckpttool writes")
        self.trained = {
            name: (value.local if isinstance(value, Sharded) else value).requires_grad
            for name, value in self.parameters.items()
        }
        """Whether each parameter required a gradient. Empty if a light capture has no such data."""
        if not all(isinstance(drawn, dict) and {"loader", "item"} <= drawn.keys() for drawn in self.drawn):
            raise UnreadableState("the items of the data loaders do not have the arrangement that ckpttool writes")
        if [len(self.batches), len(self.random)] != [expected, expected]:
            raise UnreadableState(f"expected {expected} micro-batches, found {len(self.batches)}")

    def take_weights(self, path: str) -> None:
        """Load the weights of another file by parameter name, with or without the prefix `model.` of a save.

        Raises:
            OSError, ValueError: The file cannot be read.
        """
        stored = open_tensors(path)
        nested = {name.removeprefix(_IN_SAVES): value for name, value in stored.items() if name.startswith(_IN_SAVES)}
        names = [name for name, _ in self._captured.weights]
        is_save = names[0] in nested if names else bool(nested)
        weights = nested if is_save else stored
        # A save also has buffers, moments and more.
        self.parameters = {name: value for name, value in weights.items() if not names or name in names}

    def join(self, contents: Sequence[Content]) -> None:
        """Combine sharded weights from all ranks.

        Raises:
            ValueError: A part is missing, or the parts cannot be combined.
        """
        for name, part in self.parameters.items():
            if isinstance(part, Sharded):
                parts = [content.parameters.get(name) for content in contents]
                try:
                    self.parameters[name] = put_together([part for part in parts if isinstance(part, Sharded)])
                except ValueError as error:
                    raise ValueError(f"the sharded weight {name} cannot be assembled: {error}") from None


def put_together(parts: Sequence[Sharded]) -> Tensor:
    """Combine the parts of a sharded tensor.

    Args:
        parts: Parts of all ranks of the mesh, in the order of ranks, which fill the mesh row by row.

    Raises:
        ValueError: A part is missing, the parts belong to different tensors, or one has the wrong shape for its
            position.
    """
    first = parts[0]
    if {(part.shape, part.mesh_shape, part.placements) for part in parts} != {
        (first.shape, first.mesh_shape, first.placements)
    }:
        raise ValueError("its parts belong to different tensors")
    if len(parts) != math.prod(first.mesh_shape):
        raise ValueError(f"{math.prod(first.mesh_shape)} parts were saved, but {len(parts)} were found")
    if math.prod(first.shape) > sum(part.local.numel() for part in parts):
        raise ValueError(f"its parts have fewer elements than its shape {first.shape}")
    tensor = torch.empty(first.shape, dtype=first.local.dtype)
    for place, part in zip(product(*map(range, first.mesh_shape)), parts, strict=True):
        target = tensor
        for axis, placement in enumerate(first.placements):
            if placement != "replicate":
                target = _chunk(target, int(placement.removeprefix("shard:")), first.mesh_shape[axis], place[axis])
        if target.shape != part.local.shape:
            raise ValueError(f"a part has the shape {tuple(part.local.shape)}, but {tuple(target.shape)} was expected")
        target.copy_(part.local.detach())
    return tensor.requires_grad_(first.local.requires_grad)


def _chunk(tensor: Tensor, dimension: int, count: int, place: int) -> Tensor:
    """Return one chunk of a dimension, divided as by `torch.chunk`: the last chunk may be smaller, or empty."""
    length = tensor.shape[dimension]
    length_per_part = -(-length // count)
    begin = min(place * length_per_part, length)
    return tensor.narrow(dimension, begin, min(length_per_part, length - begin))
