"""What the real converters make of a save, tensor by tensor, and what `export` wrote."""

from __future__ import annotations

import io
import json
import pickle
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]
"""Type, shape and bytes of each tensor, by name."""


def bits(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], bytes]:
    """The type, the shape and the bytes of a tensor."""
    import torch

    plain = tensor.detach().contiguous().reshape(-1)
    data = plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return str(tensor.dtype), tuple(tensor.shape), data


def of_tensors(tensors: dict[str, torch.Tensor]) -> Tensors:
    """The same of all."""
    return {name: bits(tensor) for name, tensor in tensors.items()}


def exported(folder: Path) -> Tensors:
    """What safetensors itself reads of an output: all files, by the index if there is one."""
    from safetensors.torch import load_file

    found: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= load_file(file)
    index = folder / "model.safetensors.index.json"
    if index.exists():
        listed = json.loads(index.read_text(encoding="utf-8"))
        assert {*listed["weight_map"]} == {*found}
        assert {*listed["weight_map"].values()} == {file.name for file in folder.glob("*.safetensors")}
        assert listed["metadata"]["total_size"] == sum(len(data) for _, _, data in of_tensors(found).values())
    return of_tensors(found)


def by_dcp_to_torch(folder: Path, scratch: Path) -> dict[str, Any]:
    """What torch's own converter makes of a DCP folder, whose record may have classes of trainers.

    Args:
        folder: The folder.
        scratch: A folder that does not exist.
    """
    import torch
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    shutil.copytree(folder, scratch)
    record = scratch / ".metadata"
    metadata = Reader(io.BytesIO(record.read_bytes())).load()
    record.write_bytes(pickle.dumps(metadata))
    dcp_to_torch_save(scratch, scratch / "all.pt")
    loaded: dict[str, Any] = torch.load(scratch / "all.pt", weights_only=False)
    shutil.rmtree(scratch)
    return loaded


class Reader(pickle.Unpickler):
    """Takes another writer's record of a place for torch's own, which it copies."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401  any class
        own = "torch.distributed.checkpoint.filesystem"
        return super().find_class(own if name == "_StorageInfo" else module, name)


def flattened(tree: Any, prefix: str = "") -> dict[str, torch.Tensor]:  # noqa: ANN401  whatever was saved
    """The tensors of a tree, by their path with dots."""
    import torch

    found: dict[str, torch.Tensor] = {}
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in pairs:
        name = f"{prefix}{key}"
        if isinstance(value, torch.Tensor):
            found[name] = value
        else:
            found |= flattened(value, f"{name}.")
    return found
