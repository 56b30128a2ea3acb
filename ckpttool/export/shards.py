"""The files of the output: tensors by file, headers, the index, and their content in the order of the file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.domain.weights import Target
from ckpttool.core.formats.safetensors.header import encoded_header, size_in_bytes
from ckpttool.core.verbs.verifying import advance
from ckpttool.export.bands import blocks
from ckpttool.export.sources import Sources

_METADATA = (("format", "pt"),)
"""Metadata without which model libraries refuse a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlan:
    """A file to write."""

    name: str
    header: bytes
    targets: tuple[Target, ...]
    """Tensors in the order of their data in the file."""
    nbytes: ByteCount
    """Size of the file."""


def planned(targets: Sequence[Target], *, stem: str, most: int) -> tuple[ShardPlan, ...]:
    """Divide the tensors into files, in their order; a tensor larger than the limit has its own file.

    Args:
        targets: Checked tensors.
        stem: Beginning of the files' names.
        most: Maximum number of bytes of the tensors in one file.
    """
    groups: list[list[Target]] = [[]]
    filled = 0
    for target in targets:
        nbytes = nbytes_of(target)
        if groups[-1] and filled + nbytes > most:
            groups.append([])
            filled = 0
        groups[-1].append(target)
        filled += nbytes
    return tuple(_plan(group, _name(stem, number, len(groups))) for number, group in enumerate(groups, 1))


def _name(stem: str, number: int, count: int) -> str:
    return f"{stem}.safetensors" if count == 1 else f"{stem}-{number:05d}-of-{count:05d}.safetensors"


def _plan(targets: Sequence[Target], name: str) -> ShardPlan:
    by_name = {target.name: target for target in targets}
    header, entries = encoded_header([(target.name, target.dtype, target.shape) for target in targets], _METADATA)
    ordered = tuple(by_name[entry.name] for entry in entries)
    nbytes = len(header) + sum(map(nbytes_of, ordered))
    return ShardPlan(name=name, header=header, targets=ordered, nbytes=ByteCount(nbytes))


def nbytes_of(target: Target) -> int:
    """Return the size of a checked tensor in bytes."""
    return size_in_bytes(target.dtype, target.shape) or 0


def content(plan: ShardPlan, sources: Sources) -> Iterator[bytes | memoryview]:
    """Yield a file's content in order; a block is valid until the next one.

    Raises:
        NotExportableError: A source is damaged, or has changed or cannot be read.
    """
    yield plan.header
    for target in plan.targets:
        for block in blocks(target, sources):
            yield block
            advance(len(block))


def index(plans: Sequence[ShardPlan], origin: Mapping[str, object]) -> bytes:
    """Encode the index of several files, in the form that model libraries read.

    Args:
        plans: The files.
        origin: The checkpoint that the weights are from, as an additional entry of the metadata.
    """
    total = sum(nbytes_of(target) for plan in plans for target in plan.targets)
    names = {target.name: plan.name for plan in plans for target in plan.targets}
    document = {"metadata": {"ckpttool": origin, "total_size": total}, "weight_map": names}
    return f"{json.dumps(document, indent=2, sort_keys=True)}\n".encode()
