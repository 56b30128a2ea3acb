"""Writer of atomic checkpoints that are sealed from memory and complete enough to continue bit for bit.

The header is written here, because the safetensors library needs all tensors in memory at once. This module copies,
hashes and writes one tensor at a time.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from struct import pack
from threading import Thread
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from ckpttool import __version__
from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.guarding import GuardEventKind
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.manifest import Manifest, ShardSeal
from ckpttool.core.domain.saving import SavedScalar, SaveLabel, SaveLayout, SaveProgress
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.domain.units import ByteCount, Rank, Step, moment
from ckpttool.core.errors import CkptToolError, UsageError
from ckpttool.core.formats.base import schema_hash, schema_rows
from ckpttool.core.formats.safetensors.header import encoded_header
from ckpttool.core.formats.strict_json import JsonObject
from ckpttool.core.records import OWN_STATE, births_begin
from ckpttool.core.records.birth import birth_path
from ckpttool.core.records.manifest import manifest_bytes
from ckpttool.core.verify.kernels.tensors import TensorHashes
from ckpttool.core.write.files import ensure_folder, locked, remove, sweep
from ckpttool.core.write.files import replace as replace_file
from ckpttool.core.write.stream import Block, Streamed, stream
from ckpttool.guard.agree import Ranks
from ckpttool.guard.embedding import EmbeddingHealth
from ckpttool.guard.files.words import log_embedding
from ckpttool.guard.objects import Objects
from ckpttool.guard.state_tree import EncodedValue, Unsaveable, spell
from ckpttool.guard.tensor_file import block, named

STATE_SCHEMA = "ckpttool/training-state/1"

_STATE_UNIT = 64 << 10
"""The header is padded with blanks to a multiple of this number of bytes, so that all saves have equal headers."""

_PACKED = {DType.I64: "<q", DType.I32: "<i", DType.F32: "<f"}

_PATIENCE_SECONDS = 5.0
"""Seconds to wait for another process that updates the health file."""


class CheckpointWriter:
    """Writer of a training run's checkpoints. Each rank writes a separate file, without waiting for another rank.

    Use it in a `with` statement, or call `close`. Both wait for the save in the background.
    """

    def __init__(  # noqa: PLR0913  callers name each argument
        self,
        output: str,
        objects: Objects,
        layout: SaveLayout,
        *,
        prefix: str,
        steps_per_epoch: int | None,
        global_batch_size: int | None,
        health: EmbeddingHealth,
        group: Any = None,  # noqa: ANN401  a process group, which a torch without distributed lacks
    ) -> None:
        """Prepare to save, as `checkpoint_writer` describes. Every rank must call it, to agree on a run number.

        Raises:
            UsageError: The prefix would make names that can be read in two ways.
            WriteFailedError: The folder cannot be created.
        """
        if (why := layout.objection(prefix)) is not None:
            raise UsageError(f"the prefix {prefix!r} cannot be used: {why}")
        self._objects, self._layout, self._health = objects, layout, health
        self._prefix, self._steps_per_epoch, self._global_batch_size = prefix, steps_per_epoch, global_batch_size
        ranks = Ranks(group, objects.device)
        self._rank, self._world = Rank(ranks.own), ranks.count
        self._health_file = f"{output}/{layout.health_file}"
        self._tree = f"{output}/{layout.folder}"
        self._copies: dict[str, Tensor] = {}
        self._thread: Thread | None = None
        self._error: BaseException | None = None
        self._run = max(ranks.gather(self._own_run()))

    def _own_run(self) -> int:
        """Create this rank's folder, delete leftover files in it, and return the number of this run."""
        folder = f"{self._tree}/{self._layout.rank_folder(self._rank)}"
        ensure_folder(folder)
        sweep(folder)
        names = os.listdir(folder)
        for name in self._layout.leftovers(names, self._prefix, self._rank):
            with suppress(OSError):
                os.unlink(f"{folder}/{name}")
        return self._layout.next_run(names, self._prefix, self._rank)

    def save(self, step: int | None = None, *, background: bool = False) -> str:
        """Save everything, and return the name of the save.

        Args:
            step: Number of batches consumed. If None, the guard's count is used.
            background: Return when everything is copied to host memory. A save in progress is waited for first.

        Raises:
            Unsaveable: Something can only be saved by a pickle. Nothing was written.
            UsageError: There is neither a step nor a guard.
            WriteFailedError: This save, or the one in the background before it, could not be written.
            NotDurableError: The save is written, but the disk did not confirm it.
        """
        self._wait()
        began = time.monotonic()
        save = self._collected(step)
        log_embedding(save.step, self._health.squares)
        if not background:
            self._write(save, began)
            return save.name
        self._thread = Thread(target=self._written_behind, args=(self._copied(save), began), name="ckpttool-save")
        self._thread.start()
        return save.name

    def close(self) -> None:
        """Wait for the save in progress.

        Raises:
            CkptToolError: The save could not be written.
        """
        self._wait()
        self._copies.clear()

    def __enter__(self) -> CheckpointWriter:  # noqa: PYI034  `Self` is in Python since 3.11
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Wait for the save in progress. Its error does not hide the exception that ends the training run."""
        with suppress(*(() if error is None else (CkptToolError,))):
            self.close()

    def _wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if (error := self._error) is not None:
            self._error = None
            raise error

    def _collected(self, step: int | None) -> _Save:
        """Collect the state without copying or writing anything."""
        tree = self._objects.tree()
        progress = self._progress(step, tree)
        label = self._layout.label(self._prefix, self._run, progress)
        parts = spell(tree)
        if OWN_STATE in parts.tensors:
            raise Unsaveable(OWN_STATE, "the name is reserved for ckpttool's own state")
        return _Save(
            name=self._layout.checkpoint(label),
            label=label,
            step=progress.step,
            scalars=self._layout.scalars(progress),
            tensors=parts.tensors,
            state=_state(parts, self._world),
            health=self._health.of(progress.step),
        )

    def _progress(self, step: int | None, tree: Mapping[str, Any]) -> SaveProgress:
        guard = tree["guard"]
        if step is None:
            if self._objects.guard is None:
                raise UsageError(
                    "pass save(step=…), the number of consumed batches: there is no guard that counts them"
                )
            step = self._objects.guard.step
        every = self._steps_per_epoch or max(step, 1)
        epoch, rest = divmod(max(step, 1) - 1, every)
        scale = (tree["scaler"] or {}).get("scale", 1.0)
        return SaveProgress(
            step=Step(step),
            applied=step if guard is None else int(guard["applied"]),
            epoch=epoch + 1,
            step_in_epoch=min(step, rest + 1),
            loss_scale=float(scale),
            global_batch_size=self._global_batch_size,
        )

    def _copied(self, save: _Save) -> _Save:
        """Copy the tensors to host memory, reusing the memory of the previous copies if they fit."""
        copies = {}
        for name, tensor in save.tensors.items():
            copy = self._copies.get(name)
            if copy is None or (copy.shape, copy.dtype) != (tensor.shape, tensor.dtype):
                copy = torch.empty(tensor.shape, dtype=tensor.dtype)
            copies[name] = copy.copy_(tensor)
        self._copies = copies
        return replace(save, tensors=copies)

    def _written_behind(self, save: _Save, began: float) -> None:
        try:
            self._write(save, began)
        except BaseException as error:  # noqa: BLE001  the next save raises it
            self._error = error

    def _write(self, save: _Save, began: float) -> None:
        try:
            streamed = self._write_files(save)
        except BaseException as error:
            self._emit_event(GuardEventKind.SAVE_FAILED, save, message=f"{type(error).__name__}: {error}"[:500])
            raise
        seconds = round(time.monotonic() - began, 6)
        self._emit_event(GuardEventKind.SAVED, save, bytes=streamed.size, digest=streamed.xxh3_128, seconds=seconds)

    def _emit_event(self, kind: GuardEventKind, save: _Save, **values: str | float) -> None:
        if self._objects.guard is not None:
            fields = {"checkpoint": save.name, "path": self._layout.shard(save.label, self._rank), **values}
            self._objects.guard.tell(kind, step=save.step, health=save.health.value, **fields)

    def _write_files(self, save: _Save) -> Streamed:
        """Write the shard, then its certificate, then the record that names it as the latest save, then its health."""
        path = self._layout.shard(save.label, self._rank)
        birth = f"{self._tree}/{birth_path(births_begin(self._prefix, save.name), self._rank)}"
        ensure_folder(os.path.dirname(birth))
        # If the step is saved again, the old certificate would briefly belong to another file.
        if os.path.lexists(f"{self._tree}/{path}"):
            remove(birth)
        file = _File(save)
        streamed = stream(
            f"{self._tree}/{path}",
            file.blocks(),
            size=file.size,
            temporary=self._layout.temporary(save.label, self._rank),
        )
        manifest = self._certificate(save, path, streamed, file)
        replace_file(birth, manifest_bytes(manifest), overwrite=True, backup=False)
        for record, content in self._layout.records(save.label, self._rank):
            replace_file(f"{self._tree}/{record}", content, overwrite=True, backup=False)
        if self._rank == 0 and save.health is not Health.UNKNOWN:
            self._record_health(save)
        return streamed

    def _certificate(self, save: _Save, path: str, streamed: Streamed, file: _File) -> Manifest:
        now = moment(time.time())
        scalars = ((scalar.name, _as_saved(scalar)) for scalar in save.scalars)
        seal = ShardSeal(
            path=path,
            size=streamed.size,
            xxh3_128=streamed.xxh3_128,
            chunks=streamed.chunks,
            format=FormatName.SAFETENSORS,
            schema_hash=schema_hash(schema_rows(file.entries)),
            scalars=tuple(sorted(scalars)),
            first_seen=now,
            tensors=file.hashes.result().digests(),
        )
        return Manifest(
            layout=self._layout.name,
            checkpoint=save.name,
            prefix=self._prefix,
            world_size=self._world,
            sealed_at=now,
            sealed_by=__version__,
            shards=(seal,),
        )

    def _record_health(self, save: _Save) -> None:
        """Add the entry to the trainer's own record. A record of another form stays unchanged."""
        path = self._health_file
        with locked(path, timeout=_PATIENCE_SECONDS):
            try:
                with open(path, "rb") as file:
                    old = file.read()
            except FileNotFoundError:
                old = None
            try:
                new = self._layout.with_health(old, save.label, save.health)
            except ValueError:
                return
            replace_file(path, new, overwrite=True, backup=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Save:
    """One rank's part of a save, before it is written."""

    name: str
    label: SaveLabel
    step: Step
    scalars: tuple[SavedScalar, ...]
    tensors: dict[str, Tensor]
    state: bytes
    """The state other than tensors."""
    health: Health


class _File:
    """The bytes of a rank's file, one tensor after the other."""

    def __init__(self, save: _Save) -> None:
        self._tensors = save.tensors
        self._ready: dict[str, Block] = {
            scalar.name: pack(_PACKED[scalar.dtype], scalar.value) for scalar in save.scalars
        }
        self._ready[OWN_STATE] = save.state
        rows = [*named(save.tensors.items()), (OWN_STATE, DType.U8, (len(save.state),))]
        rows += [(scalar.name, scalar.dtype, scalar.shape) for scalar in save.scalars]
        self._head, self.entries = encoded_header(rows)
        self.size = ByteCount(len(self._head) + sum(entry.nbytes for entry in self.entries))
        self.hashes = TensorHashes(self.entries, 0, self.size)
        """The hash of each tensor, as written."""

    def blocks(self) -> Iterator[Block]:
        """Yield the bytes. A tensor on an accelerator is copied when it is needed."""
        yield self._head
        begin = len(self._head)
        for entry in self.entries:
            if entry.nbytes:
                data = self._ready[entry.name] if entry.name in self._ready else block(self._tensors[entry.name])
                self.hashes.feed(begin, memoryview(data).cast("B"))
                begin += entry.nbytes
                yield data


def _state(parts: EncodedValue, world_size: int) -> bytes:
    document: JsonObject = {
        "schema": STATE_SCHEMA,
        "world_size": world_size,
        "versions": {"ckpttool": __version__, "torch": str(torch.__version__)},
        "tree": parts.tree,
    }
    text = json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")
    return text + b" " * (-len(text) % _STATE_UNIT)


def _as_saved(scalar: SavedScalar) -> int | float:
    """Return a scalar in the form used in the file."""
    if scalar.dtype is not DType.F32 or not math.isfinite(scalar.value):
        return scalar.value
    value: float = torch.tensor(scalar.value, dtype=torch.float32).item()
    return value
