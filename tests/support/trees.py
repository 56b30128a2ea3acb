"""Builds checkpoint trees as MindFormers writes them: same names, same records, same bytes, tiny tensors.

>>> tree = TreeBuilder(tmp_path).legacy(ranks=4)                                    # doctest: +SKIP
>>> tree.save(epoch=10, step=2).save(epoch=15, step=2)                              # doctest: +SKIP
>>> tree.save(epoch=20, step=2, run=1, ranks=[0, 1, 2]).remove(tree.shard(2, 15, 2))   # doctest: +SKIP
>>> scan(tree.checkpoint)                                                           # doctest: +SKIP

Every method returns the builder. Paths that one takes are relative to the output folder (`tree.output`), as
`tree.shard(…)` gives them. Each save is a minute later than the one before it, so mtimes tell an order that no
clock disturbs; `touch` sets another. `sparse=True` keeps one tensor a shard, for trees of thousands of ranks.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

FIXTURES = Path(__file__).resolve().parent.parent.parent / "fixtures"

Fmt = Literal["ckpt", "safetensors"]

FIRST_SAVE_NS = 1_700_000_000_000_000_000
MINUTE_NS = 60_000_000_000

# MindSpore's name -> (safetensors' name, bytes an element, place in safetensors' order: wide and unsigned first)
_DTYPES = {
    "Int64": ("I64", 8, 0),
    "Float64": ("F64", 8, 1),
    "Float32": ("F32", 4, 2),
    "Int32": ("I32", 4, 3),
    "BFloat16": ("BF16", 2, 4),
    "Float16": ("F16", 2, 5),
}


def writable(source: Path, target: Path) -> Path:
    """Copy a tree, free to be damaged, and return the copy: the source may lie in a read-only checkout."""
    shutil.copytree(source, target, symlinks=True)
    for path in (target, *target.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
    return target


@dataclass(frozen=True, slots=True)
class Tensor:
    """One record of a shard: dtype in MindSpore's spelling, data little-endian."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


def floats(name: str, shape: Sequence[int], *, seed: int = 0, values: Iterable[float] | None = None) -> Tensor:
    """A Float32 tensor of `values`, or of small numbers that differ by name and seed and repeat in every run."""
    count = 1
    for size in shape:
        count *= size
    salt = zlib.crc32(f"{name}/{seed}".encode())
    numbers = values if values is not None else [((salt >> (i % 16)) % 997 + 1) / 4096 for i in range(count)]
    return Tensor(name, "Float32", tuple(shape), struct.pack(f"<{count}f", *numbers))


def weights(*, seed: int = 0, sparse: bool = False) -> list[Tensor]:
    """Two weights and their optimizer state, in the order a `.ckpt` has them."""
    if sparse:
        return [floats("dense.bias", [2], seed=seed)]
    shapes = {"model.tok_embeddings.embedding_weight": (8, 4), "dense.bias": (8,)}
    return [
        *(floats(name, shape, seed=seed) for name, shape in shapes.items()),
        *(floats(f"adam_m.{name}", shape, seed=seed) for name, shape in shapes.items()),
    ]


def training_scalars(
    *,
    epoch: int,
    true_step: int,
    optimizer_step: int | None = None,
    loss_scale: float = 65536.0,
    global_batch_size: int | None = 8,
    resumed: bool = False,
) -> list[Tensor]:
    """The appended training state, in the order of a first run or of a resumed one."""
    records = {
        "epoch_num": Tensor("epoch_num", "Int64", (), struct.pack("<q", epoch)),
        "step_num": Tensor("step_num", "Int64", (), struct.pack("<q", true_step)),
        "global_step": Tensor(
            "global_step", "Int32", (1,), struct.pack("<i", true_step if optimizer_step is None else optimizer_step)
        ),
        "loss_scale": Tensor("loss_scale", "Float32", (), struct.pack("<f", loss_scale)),
    }
    order = ["step_num", "epoch_num", "loss_scale", "global_step"] if resumed else list(records)
    batch = []
    if global_batch_size is not None:
        batch.append(Tensor("global_batch_size", "Int64", (), struct.pack("<q", global_batch_size)))
    return [*(records[name] for name in order), *batch]


def ckpt_bytes(tensors: Iterable[Tensor]) -> bytes:
    """Encode a MindSpore `.ckpt`: protobuf `Checkpoint` messages, one after the other."""
    parts = []
    for tensor in tensors:
        dims = b"".join(b"\x08" + _varint(size) for size in tensor.shape)
        body = dims + _field(2, tensor.dtype.encode()) + _field(3, tensor.data)
        parts.append(_field(1, _field(1, tensor.name.encode()) + _field(2, body)))
    return b"".join(parts)


def safetensors_bytes(tensors: Iterable[Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Encode a safetensors file as the library does: by dtype and name, header padded to 8 bytes with spaces."""
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata is not None else {}
    data = []
    begin = 0
    for tensor in sorted(tensors, key=lambda tensor: (_DTYPES[tensor.dtype][2], tensor.name)):
        end = begin + len(tensor.data)
        shape = list(tensor.shape)
        header[tensor.name] = {"dtype": _DTYPES[tensor.dtype][0], "shape": shape, "data_offsets": [begin, end]}
        data.append(tensor.data)
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data)


def flip(path: Path, at: int, *, bits: int = 1, keep_times: bool = False) -> None:
    """Flip bits of one byte of a file; behind everybody's back where its times are kept."""
    stamp, content = path.stat(), bytearray(path.read_bytes())
    content[at] ^= bits
    path.write_bytes(content)
    if keep_times:
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


def shard_bytes(tensors: Sequence[Tensor], fmt: Fmt) -> bytes:
    """Encode a legacy shard in either format."""
    if fmt == "ckpt":
        return ckpt_bytes(tensors)
    return safetensors_bytes(tensors, {"remove_redundancy": "False", "format": "ms"})


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


@dataclass
class TreeBuilder:
    """An output folder below `base` that grows by one save at a time."""

    base: Path
    prefix: str | None = "llama2_7b"
    world: int = 4
    fmt: Fmt = "ckpt"
    sparse: bool = False
    now_ns: int = FIRST_SAVE_NS
    _folders: set[str] = field(default_factory=set)

    @property
    def output(self) -> Path:
        """The output folder, as `output_dir` names it."""
        return self.base / "output"

    @property
    def checkpoint(self) -> Path:
        """The folder that `load_checkpoint` names."""
        return self.output / "checkpoint"

    def legacy(
        self, *, ranks: int = 4, prefix: str = "llama2_7b", fmt: Fmt = "ckpt", sparse: bool = False
    ) -> TreeBuilder:
        """Set what later saves take for granted, and make the checkpoint folder."""
        self.world, self.prefix, self.fmt, self.sparse = ranks, prefix, fmt, sparse
        self.checkpoint.mkdir(parents=True, exist_ok=True)
        return self

    def shard(self, rank: int, epoch: int, step: int, *, run: int = 0, fmt: Fmt | None = None) -> str:
        """The path of a legacy shard, whether or not it is there."""
        return f"checkpoint/rank_{rank}/{self._name(rank, epoch, step, run, fmt or self.fmt)}"

    def save(
        self,
        *,
        epoch: int,
        step: int,
        true_step: int | None = None,
        run: int = 0,
        ranks: Iterable[int] | None = None,
        fmt: Fmt | None = None,
        global_batch_size: int | None = 8,
        optimizer_step: int | None = None,
        tensors: Sequence[Tensor] | None = None,
        scalars: Sequence[Tensor] | None = None,
        meta: bool = True,
    ) -> TreeBuilder:
        """Write one legacy checkpoint on all ranks or on `ranks`, and their meta.json unless told not to.

        Args:
            epoch: As the file name has it; also stored as `epoch_num`.
            step: As the file name has it.
            true_step: Stored as `step_num`; by default `epoch * step`, as with a data sink of `step`.
            run: 0 for no suffix, else the `_k`.
            ranks: Ranks that save; all by default.
            fmt: Other than the tree's.
            global_batch_size: None leaves the record out, as MindFormers 1.2 does.
            optimizer_step: Stored as `global_step`; the true step by default.
            tensors: The weights; small ones that differ from save to save by default. All ranks get the same.
            scalars: Instead of the training scalars that the other arguments make.
            meta: Whether meta.json follows.
        """
        fmt = fmt or self.fmt
        true_step = epoch * step if true_step is None else true_step
        if tensors is None:
            tensors = weights(seed=true_step, sparse=self.sparse)
        if scalars is None:
            scalars = training_scalars(
                epoch=epoch,
                true_step=true_step,
                optimizer_step=optimizer_step,
                global_batch_size=global_batch_size,
                resumed=run > 0,
            )
        content = shard_bytes([*tensors, *scalars], fmt)
        for rank in range(self.world) if ranks is None else ranks:
            name = self._name(rank, epoch, step, run, fmt)
            self.file(f"checkpoint/rank_{rank}/{name}", content)
            if meta:
                self.meta(rank, epoch, step, name)
        self.now_ns += MINUTE_NS
        return self

    def meta(self, rank: int, epoch: object, step: object, file: object) -> TreeBuilder:
        """Write a rank's meta.json; the values go in as they are, right or wrong."""
        record = {"last_epoch": epoch, "last_step": step, "last_ckpt_file": file}
        return self.file(f"checkpoint/rank_{rank}/meta.json", json.dumps(record))

    def health(self, entries: Iterable[tuple[str, object]]) -> TreeBuilder:
        """Write health_ckpts.json from (file name of rank 0, is_health); 0 means healthy."""
        records = [{"is_health": mark, "ckpt_name": name} for name, mark in entries]
        return self.file("health_ckpts.json", json.dumps(records, indent=4))

    def iteration(
        self,
        *,
        step: int,
        world: int | None = None,
        epoch: int | None = None,
        ranks: Iterable[int] | None = None,
        global_batch_size: int | None = 8,
        ckpt_status: int | None = None,
        era: Literal["1.7", "1.9", "2.1"] = "2.1",
        optimizer: bool = True,
        tracker: bool = True,
    ) -> TreeBuilder:
        """Write one checkpoint of the newer layout, its records, and the tracker unless told not to.

        Args:
            step: Global step; also the folder's name.
            world: Ranks that metadata.json and the file names count; more than one brings a metadata.json.
            epoch: Stored as `epoch_num`; half the step by default, as with a data sink of 2.
            ranks: Ranks whose shards are really there; all by default.
            global_batch_size: Stored in common.json; None becomes null.
            ckpt_status: 0 normal, 1 abnormal, None (null) not monitored.
            era: First MindFormers that writes this set of fields into common.json.
            optimizer: Whether optimizer shards are written.
            tracker: Whether the tracker names this checkpoint afterwards.
        """
        world = self.world if world is None else world
        folder = f"checkpoint/iteration_{step:08d}"
        tensors = weights(seed=step, sparse=self.sparse)
        parts = {"model": [tensor for tensor in tensors if not tensor.name.startswith("adam_")]}
        if optimizer:
            count = Tensor("global_step", "Int32", (1,), struct.pack("<i", step))
            parts["opt"] = [*(tensor for tensor in tensors if tensor.name.startswith("adam_")), count]
        for part, members in parts.items():
            content = safetensors_bytes(members, {"format": "ms"})
            for rank in range(world) if ranks is None else ranks:
                self.file(f"{folder}/{self._iteration_name(part, rank, world)}", content)
        if world > 1:
            self.file(f"{folder}/metadata.json", json.dumps(self._metadata(parts, world), separators=(",", ":")))
        common: dict[str, object] = {
            "epoch_num": step // 2 if epoch is None else epoch,
            "step_num": step,
            "global_step": step,
            "loss_scale": 65536.0,
            "global_batch_size": global_batch_size,
        }
        if era == "2.1":
            common["consumed_samples"] = None
        if era != "1.7":
            common["ckpt_status"] = ckpt_status
        self.file(f"{folder}/common.json", json.dumps(common, indent=4))
        if tracker:
            self.tracker(str(step))
        self.now_ns += MINUTE_NS
        return self

    def tracker(self, text: str) -> TreeBuilder:
        """Write the tracker file of the newer layout."""
        return self.file("checkpoint/latest_checkpointed_iteration.txt", text)

    def file(self, path: str, content: bytes | str = b"", *, mtime_ns: int | None = None) -> TreeBuilder:
        """Write any file, and its folders; the time is that of the save under way unless given."""
        folder = os.path.dirname(f"{self.output}/{path}")  # noqa: PTH120 - a Path a file is too slow for 8192 ranks
        if folder not in self._folders:
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - as above
            self._folders.add(folder)
        full = f"{self.output}/{path}"
        fd = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
        try:
            os.write(fd, content.encode() if isinstance(content, str) else content)
        finally:
            os.close(fd)
        return self.touch(path, self.now_ns if mtime_ns is None else mtime_ns)

    def folder(self, path: str) -> TreeBuilder:
        """Make an empty folder."""
        (self.output / path).mkdir(parents=True, exist_ok=True)
        return self

    def touch(self, path: str, mtime_ns: int) -> TreeBuilder:
        """Set a file's or a folder's mtime."""
        os.utime(f"{self.output}/{path}", ns=(mtime_ns, mtime_ns))
        return self

    def truncate(self, path: str, size: int) -> TreeBuilder:
        """Cut a file to `size` bytes and leave its mtime as it was."""
        before = (self.output / path).stat().st_mtime_ns
        os.truncate(self.output / path, size)
        return self.touch(path, before)

    def remove(self, path: str) -> TreeBuilder:
        """Delete a file or a whole folder."""
        full = self.output / path
        if full.is_dir():
            shutil.rmtree(full)
            self._folders.clear()
        else:
            full.unlink()
        return self

    def _name(self, rank: int, epoch: int, step: int, run: int, fmt: Fmt) -> str:
        suffix = f"_{run}" if run else ""
        return f"{self.prefix}_rank_{rank}{suffix}-{epoch}_{step}.{fmt}"

    def _iteration_name(self, part: str, rank: int, world: int) -> str:
        stem = f"{part}-{rank:07d}-{world:07d}.safetensors"
        return stem if self.prefix is None else f"{self.prefix}-{stem}"

    def _metadata(self, parts: Mapping[str, Sequence[Tensor]], world: int) -> dict[str, object]:
        everyone = list(range(world))
        states = {}
        places = {}
        for part, tensors in parts.items():
            names = [self._iteration_name(part, rank, world) for rank in everyone]
            owners = [
                {"file_name": name, "storage_rank": rank, "rank_group": everyone} for rank, name in enumerate(names)
            ]
            for tensor in tensors:
                places[f"('{tensor.name}', (0,))"] = owners
                states[tensor.name] = _state(tensor, everyone)
        return {"state_dict_metadata": states, "storage_data": places}


def _state(tensor: Tensor, ranks: list[int]) -> dict[str, object]:
    shape = list(tensor.shape)
    layout = {
        "device_matrix": [len(ranks)],
        "tensor_map": [-1] * len(shape),
        "interleaved_parallel": False,
        "alias_name": ["dp"],
        "rank_list": ranks,
    }
    properties = {
        "dtype": tensor.dtype,
        "replica_id": ranks,
        "allow_shape_mismatch": False,
        "allow_to_save": True,
    }
    return {
        "properties": properties,
        "global_shape": shape,
        "axis_fragmentations": [1] * len(shape),
        "layout": layout,
        "chunk": [{"global_offset": [0], "local_shape": shape}],
    }
