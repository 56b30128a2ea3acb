"""Weights of which the optimizer has more elements than the files in `model/`: a rank's file is missing.

No record names the files of the weights, but the optimizer's record declares the shape of each parameter's state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import prod

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Code, Finding
from ckpttool.core.domain.shard import FormatName, Shard, ShardRole
from ckpttool.core.domain.units import counted
from ckpttool.core.formats import read_header
from ckpttool.core.formats.base import quoted
from ckpttool.core.formats.torch.dcp import SplitTensor
from ckpttool.core.storage.base import Storage
from ckpttool.core.storage.fan_out import map_waiting
from ckpttool.trainers.automodel import MODEL, OPTIMIZER
from ckpttool.trainers.common.listed import listed_damage
from ckpttool.trainers.torch_dcp.store import OF_THE_NEWEST, read_store

_PREFIX = "optim.state."
_OF_EQUAL_SHAPE = frozenset({"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer"})
"""States of Adam and SGD that have the shape of their parameter."""


def incomplete_weights(storage: Storage, checkpoint: Checkpoint) -> Iterator[Finding]:
    """Report parameters that the files in `model/` contain only in part.

    Names that only the optimizer has are skipped, because a model's weights may be saved under other names.

    Args:
        storage: The tree.
        checkpoint: A save whose weights are files of safetensors.
    """
    files = [
        shard for shard in checkpoint.shards if shard.role is ShardRole.MODEL and shard.format is FormatName.SAFETENSORS
    ]
    if not files:
        return
    store = read_store(storage, f"{checkpoint.name}/{OPTIMIZER}", most=OF_THE_NEWEST)
    parameters = {} if store.metadata is None else _parameters(store.metadata.tensors)
    saved = _elements(storage, files) if parameters else None
    if saved is None:
        return
    lacking = [name for name in sorted(parameters.keys() & saved.keys()) if saved[name] < parameters[name]]
    if lacking:
        first = lacking[0]
        example = f"{quoted(first)} with {saved[first]} of {parameters[first]}"
        message = (
            f"the file of a rank is missing: too few elements in {counted(len(lacking), 'tensor')}, such as {example}"
        )
        yield listed_damage(Code.ENTRIES_MISSING, message, f"{checkpoint.name}/{MODEL}")


def _parameters(tensors: Mapping[str, SplitTensor]) -> dict[str, int]:
    """Return the number of elements of each parameter, by the shapes of the optimizer's states."""
    elements: dict[str, int] = {}
    for name, tensor in tensors.items():
        parameter, _, state = name.removeprefix(_PREFIX).rpartition(".")
        if name.startswith(_PREFIX) and state in _OF_EQUAL_SHAPE:
            elements[parameter] = prod(tensor.shape)
    return elements


def _elements(storage: Storage, files: Sequence[Shard]) -> Counter[str] | None:
    """Return the number of elements of each tensor in all files; None if a file cannot be read, or is damaged."""
    saved: Counter[str] = Counter()
    for entries in map_waiting(lambda shard: _entries(storage, shard), files):
        if entries is None:
            return None
        saved.update(entries)
    return saved


def _entries(storage: Storage, shard: Shard) -> Counter[str] | None:
    try:
        with storage.open(shard.path) as source:
            header = read_header(source, named=shard.format)
    except OSError:
        return None
    if header.schema_hash is None:
        return None
    return Counter({entry.name: prod(entry.shape) for entry in header.entries})
