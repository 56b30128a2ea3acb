"""A value put together from what `state_tree.spell` made of it; the file may come from anybody."""

from __future__ import annotations

import base64
import re
import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from ckpttool.core.formats.strict_json import (
    Json,
    JsonObject,
    ParseError,
    as_int,
    as_list,
    as_object,
    as_str,
    get_bool,
    get_list,
    get_object,
    get_str,
)
from ckpttool.guard.state_tree import ARRAY_TYPE, Sharded, fits
from ckpttool.guard.tensor_file import strided

if TYPE_CHECKING:
    import numpy as np

_NAN_BITS = re.compile(r"[0-9a-f]{16}")
_WORDS = ("nan", "inf", "-inf")
_PLACEMENT = re.compile(r"replicate|shard:-?[0-9]{1,2}")
_DTYPES = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}


class UnreadableState(ValueError):  # noqa: N818  it names what cannot be read
    """A tree that `spell` did not write: damaged, or made by somebody else."""


def read(tree: Json, tensors: Mapping[str, torch.Tensor]) -> object:
    """Put a value together from what `spell` made of it; tensors that were one are one again.

    Args:
        tree: As `EncodedValue.tree`; from a file it may be anything.
        tensors: By name. They are used as they are, not copied.

    Returns:
        The value; a `Sharded` where a `DTensor` was.

    Raises:
        UnreadableState: The tree is none that `spell` writes, or a tensor is missing or of another type.
    """
    return _Reader(tensors).value(tree)


class _Reader:
    """Reads one tree, which may come from anybody."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._made: dict[object, torch.Tensor] = {}

    def value(self, tree: Json) -> object:
        if isinstance(tree, list):
            return [self.value(item) for item in tree]
        if not isinstance(tree, dict):
            return tree
        tag = next(iter(tree), "")
        read = self._READERS.get(tag)
        if read is None:
            raise UnreadableState(f"an object that begins with {tag!a:.40} is none that ckpttool writes")
        try:
            return read(self, tree)
        except (ParseError, TypeError, ValueError, RuntimeError, OverflowError) as error:
            if isinstance(error, UnreadableState):
                raise
            raise UnreadableState(f"{tag}: {error}") from None

    def _mapping(self, tree: JsonObject) -> object:
        tag = next(iter(tree))
        rows = [(key, self.value(item)) for key, item in as_object(tree[tag]).items()]
        return dict(rows) if tag == "dict" else OrderedDict(rows)

    def _pairs(self, tree: JsonObject) -> object:
        tag = next(iter(tree))
        pairs = [as_list(pair) for pair in as_list(tree[tag])]
        rows = [(self.value(key), self.value(item)) for key, item in pairs]
        return dict(rows) if tag == "dict_pairs" else OrderedDict(rows)

    def _tuple(self, tree: JsonObject) -> object:
        return tuple(self.value(item) for item in get_list(tree, "tuple"))

    def _size(self, tree: JsonObject) -> object:
        return torch.Size(_integers(tree, "size"))

    def _float(self, tree: JsonObject) -> object:
        text = get_str(tree, "float")
        if text in _WORDS:
            return float(text)
        if _NAN_BITS.fullmatch(text) is None:
            raise ParseError(f"expected bits of a NaN, found {text!a:.40}")
        value: float = struct.unpack(">d", bytes.fromhex(text))[0]
        return value

    def _bytes(self, tree: JsonObject) -> object:
        return base64.b64decode(get_str(tree, "bytes"), validate=True)

    def _dtype(self, tree: JsonObject) -> object:
        name = get_str(tree, "dtype")
        if name not in _DTYPES:
            raise ParseError(f"this torch has no {name!a:.40}")
        return _DTYPES[name]

    def _device(self, tree: JsonObject) -> object:
        return torch.device(get_str(tree, "device"))

    def _numpy_dtype(self, tree: JsonObject) -> object:
        return _read_array_type(tree, "numpy_dtype")

    def _tensor(self, tree: JsonObject) -> torch.Tensor:
        """Return a tensor; the same one wherever the same was."""
        grad = "requires_grad" in tree and get_bool(tree, "requires_grad")
        strided = (_integers(tree, "shape"), _integers(tree, "stride")) if "stride" in tree else None
        same = (get_str(tree, "tensor"), grad, strided, "complex" in tree)
        if same not in self._made:
            stored = self._stored(tree, "tensor")
            stored = torch.view_as_complex(stored) if "complex" in tree else stored
            made = stored.detach() if strided is None else _strided(stored, *strided)
            self._made[same] = made.requires_grad_(grad)
        return self._made[same]

    def _sharded(self, tree: JsonObject) -> object:
        return Sharded(
            local=self._tensor(get_object(tree, "sharded")),
            shape=_integers(tree, "shape"),
            stride=_integers(tree, "stride"),
            mesh_shape=_integers(tree, "mesh_shape"),
            mesh_names=tuple(as_str(name) for name in get_list(tree, "mesh_names")),
            placements=tuple(_placement(placement) for placement in get_list(tree, "placements")),
            device_type=get_str(tree, "device_type"),
        )

    def _array(self, tree: JsonObject) -> object:
        tag = next(iter(tree))
        kind = _read_array_type(tree, "of")
        content = self._stored(tree, tag).contiguous().view(torch.uint8).numpy()
        array = content.copy().view(kind).reshape(_integers(tree, "shape"))
        return array if tag == "array" else array[()]

    def _stored(self, tree: JsonObject, key: str) -> torch.Tensor:
        name = get_str(tree, key)
        if name not in self._tensors:
            raise ParseError(f"there is no tensor {name!a:.80}")
        return self._tensors[name]

    _READERS: ClassVar[dict[str, Callable[[_Reader, JsonObject], object]]] = {
        "dict": _mapping,
        "ordered": _mapping,
        "dict_pairs": _pairs,
        "ordered_pairs": _pairs,
        "tuple": _tuple,
        "size": _size,
        "float": _float,
        "bytes": _bytes,
        "dtype": _dtype,
        "device": _device,
        "numpy_dtype": _numpy_dtype,
        "tensor": _tensor,
        "sharded": _sharded,
        "array": _array,
        "scalar": _array,
    }


def _read_array_type(tree: JsonObject, key: str) -> np.dtype[Any]:
    import numpy as np

    text = get_str(tree, key)
    if ARRAY_TYPE.fullmatch(text) is None:
        raise ParseError(f"expected the type of an array, found {text!a:.40}")
    return np.dtype(text)


def _integers(tree: JsonObject, key: str) -> tuple[int, ...]:
    return tuple(as_int(value, minimum=0) for value in get_list(tree, key))


def _placement(placement: Json) -> str:
    text = as_str(placement)
    if _PLACEMENT.fullmatch(text) is None:
        raise ParseError(f"expected a placement, found {text!a:.40}")
    return text


def _strided(stored: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    if len(shape) != len(stride) or not fits(shape, stride):
        raise ParseError("strides that no tensor is saved with")
    once = tuple(length if step else min(length, 1) for length, step in zip(shape, stride, strict=True))
    if tuple(stored.shape) != once:
        raise ParseError(f"expected a tensor of shape {once}, found {tuple(stored.shape)}")
    return strided(stored, shape, stride)
