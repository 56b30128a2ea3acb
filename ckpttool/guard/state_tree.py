"""The state of a training run as tensors and plain JSON, bit for bit and without a pickle.

`spell` accepts dict, list, tuple, str, int, float, bool, None, bytes, tensors, numpy arrays and scalars, dtypes and
devices. Reading any other class back would require importing it by a name from a file. Other types therefore raise
`Unsaveable`, with their path, before a byte is written. `read` rebuilds the value from a file that is not trusted.

A JSON list represents a list. Every JSON object is a tag with its content, so a user's key is never mistaken for a tag.
Keys keep the order of the dict, so the JSON must not be sorted when it is written.
"""

from __future__ import annotations

import base64
import math
import re
import struct
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from ckpttool.core.domain.frozen import dataclass
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
from ckpttool.guard.tensor_file import TYPES, strided

if TYPE_CHECKING:
    import numpy as np
    from torch.distributed.tensor import DTensor

MAX_DEPTH = 24
"""Greatest depth of containers. `parse_json` reads 64 brackets: a container needs two, and a record adds its own."""

_ARRAY_TYPE = re.compile(r"[<>|][biufc][0-9]{1,2}")
"""The types of numpy arrays that can be encoded. `O` is excluded, because objects are pickles."""

_LONGEST_INTEGER = 10_000  # bits: Python itself reads no more than 4,300 digits
_MOST_EMPTY = 4  # greatest ratio of a tensor's memory to its elements; above it the elements are stored in order
_MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "ordered"}
_SEQUENCES: dict[type, str] = {tuple: "tuple", torch.Size: "size"}

_NAN_BITS = re.compile(r"[0-9a-f]{16}")
_WORDS = ("nan", "inf", "-inf")
_PLACEMENT = re.compile(r"replicate|shard:-?[0-9]{1,2}")
_DTYPES = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}

_Container: TypeAlias = "dict[object, object] | list[object] | tuple[object, ...]"


class Unsaveable(TypeError):  # noqa: N818  it names what cannot be saved
    """Error for a value that cannot be encoded without a pickle.

    Attributes:
        path: Its place, such as `model.layers[3]`, or "" for the complete value.
        reason: Its type, or why it cannot be encoded.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path or 'the value'}: {reason}")
        self.path = path
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedValue:
    """A value, split into tensors and JSON."""

    tensors: dict[str, torch.Tensor]
    """Tensors by name. They are detached, stay on their device, and share memory with the value. Each occurs once."""
    tree: Json
    """The rest of the value, with the names of the tensors in their places."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharded:
    """One rank's part of a `DTensor`, which only a world of the same shape can restore."""

    local: torch.Tensor
    shape: tuple[int, ...]
    """Shape of the complete tensor."""
    stride: tuple[int, ...]
    """Strides of the complete tensor, in elements."""
    mesh_shape: tuple[int, ...]
    mesh_names: tuple[str, ...]
    """Names of the mesh's dimensions. Empty if they have no names."""
    placements: tuple[str, ...]
    """One entry per dimension of the mesh: `shard:N` or `replicate`."""
    device_type: str


def spell(value: object, prefix: str = "") -> EncodedValue:
    """Split a value into tensors and JSON.

    Args:
        value: Any nesting of the types in the module's docstring.
        prefix: Prefix of every tensor's name. The rest of the name is its path, joined by dots.

    Raises:
        Unsaveable: A value in it cannot be encoded. Nothing was copied yet.
    """
    speller = _Speller()
    tree = speller.tree(value, prefix, 0)
    return EncodedValue(tensors=speller.tensors, tree=tree)


class _Speller:
    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._names: dict[object, str] = {}
        self._inside: set[int] = set()

    def tree(self, value: object, path: str, depth: int) -> Json:  # noqa: PLR0911  one return per type
        match value:  # exact types: a subclass would be restored as another type
            case None | bool():
                return value
            case int() if type(value) is int:
                return _short(value, path)
            case float() if type(value) is float:
                return value if math.isfinite(value) else {"float": _float_word(value)}
            case str() if type(value) is str:
                return _text(value, path)
            case bytes() if type(value) is bytes:
                return {"bytes": base64.b64encode(value).decode("ascii")}
            case dict() | list() | tuple():
                return self._container(value, path, depth)
            case torch.Tensor():
                return self._tensor(value, path)
            case torch.dtype():
                return {"dtype": str(value).removeprefix("torch.")}
            case torch.device():
                return {"device": str(value)}
            case _:
                return self._array(value, path)

    def _container(self, value: _Container, path: str, depth: int) -> Json:
        if id(value) in self._inside:
            raise Unsaveable(path, "it contains itself")
        if depth == MAX_DEPTH:
            raise Unsaveable(path, f"nested deeper than {MAX_DEPTH}")
        self._inside.add(id(value))
        tree = self._mapping(value, path, depth + 1) if isinstance(value, dict) else self._items(value, path, depth + 1)
        self._inside.discard(id(value))
        return tree

    def _mapping(self, value: dict[object, object], path: str, depth: int) -> Json:
        if type(value) not in _MAPPINGS:
            raise Unsaveable(path, _type_name(value))
        tag = _MAPPINGS[type(value)]
        rows = [(key, self.tree(item, _below(path, key), depth)) for key, item in value.items()]
        if all(type(key) is str for key in value):
            return {tag: {_text(str(key), path): item for key, item in rows}}
        if any(isinstance(key, torch.Tensor) for key in value):
            raise Unsaveable(path, "a key that is a tensor")
        return {f"{tag}_pairs": [[self.tree(key, _below(path, key), depth), item] for key, item in rows]}

    def _items(self, value: list[object] | tuple[object, ...], path: str, depth: int) -> Json:
        items: list[Json] = [self.tree(item, f"{path}[{index}]", depth) for index, item in enumerate(value)]
        if type(value) is list:
            return items
        if type(value) not in _SEQUENCES:
            raise Unsaveable(path, _type_name(value))
        return {_SEQUENCES[type(value)]: items}

    def _tensor(self, value: torch.Tensor, path: str) -> JsonObject:
        module = sys.modules.get("torch.distributed.tensor")  # if it is not loaded, there is no DTensor
        if module is not None and isinstance(value, module.DTensor):
            return self._sharded(value, path)
        if type(value) not in {torch.Tensor, torch.nn.Parameter}:
            raise Unsaveable(path, _type_name(value))
        if value.layout is not torch.strided or value.is_quantized or value.is_meta:
            raise Unsaveable(path, f"a tensor of {value.layout} on {value.device}, which has no plain bytes")
        plain = value.detach().resolve_conj().resolve_neg()
        record: JsonObject = {"requires_grad": True} if value.requires_grad else {}
        # Includes the strides: another order in memory selects another kernel, and the last bits differ.
        if not plain.is_contiguous() and _fits(plain.shape, plain.stride()):
            record |= {"shape": list(plain.shape), "stride": list(plain.stride())}
            for dimension, step in enumerate(plain.stride()):
                plain = plain if step else plain.narrow(dimension, 0, 1)
        if plain.dtype is torch.complex128:  # safetensors has no such type
            plain, record["complex"] = torch.view_as_real(plain), True
        if plain.dtype not in TYPES:
            raise Unsaveable(path, f"a tensor of {plain.dtype}")
        return {"tensor": self._named(plain, path, _identity(plain)), **record}

    def _sharded(self, value: DTensor, path: str) -> JsonObject:
        from torch.distributed.tensor import Replicate, Shard

        placements: list[Json] = []
        for placement in value.placements:
            if type(placement) not in {Shard, Replicate}:
                raise Unsaveable(path, f"a DTensor placed as {placement}")
            placements.append(f"shard:{placement.dim}" if isinstance(placement, Shard) else "replicate")
        mesh = value.device_mesh
        return {
            "sharded": self._tensor(value.to_local().detach().requires_grad_(value.requires_grad), path),
            "shape": list(value.shape),
            "stride": list(value.stride()),
            "mesh_shape": list(mesh.mesh.shape),
            "mesh_names": list(mesh.mesh_dim_names or ()),
            "placements": placements,
            "device_type": mesh.device_type,
        }

    def _array(self, value: object, path: str) -> Json:
        import numpy as np

        if isinstance(value, np.dtype):
            return {"numpy_dtype": _array_type(value, path)}
        if type(value) is not np.ndarray and not isinstance(value, np.generic):
            raise Unsaveable(path, _type_name(value))
        array = np.asarray(value)
        kind = _array_type(array.dtype, path)
        content = torch.from_numpy(np.frombuffer(bytearray(array.tobytes()), dtype=np.uint8))
        tag = "array" if isinstance(value, np.ndarray) else "scalar"
        return {tag: self._named(content, path, content), "of": kind, "shape": list(array.shape)}

    def _named(self, tensor: torch.Tensor, path: str, identity: object) -> str:
        """Return the name of a tensor, which comes from the first place with the same elements."""
        if identity in self._names:
            return self._names[identity]
        name, count = _text(path, "") or "value", 1
        # A dict may have a key `a.b`, and a key `a` with `b` in it.
        while name in self.tensors or name == "__metadata__":
            count += 1
            name = f"{path}~{count}"
        self.tensors[name] = tensor
        self._names[identity] = name
        return name


def _type_name(value: object) -> str:
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def _below(path: str, key: object) -> str:
    if isinstance(key, str):
        name = key
    elif isinstance(key, (bool, float, bytes)):
        name = f"{key!r:.40}"
    elif isinstance(key, int):
        name = str(_short(key, path))
    else:
        name = _type_name(key)
    return f"{path}.{name}" if path else name


def _short(value: int, path: str) -> int:
    if value.bit_length() > _LONGEST_INTEGER:
        raise Unsaveable(path, f"an int of {value.bit_length()} bits")
    return value


def _text(value: str, path: str) -> str:
    """Return the text if a file can represent it.

    Raises:
        Unsaveable: The text has half of a surrogate pair, which UTF-8 cannot represent.
    """
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise Unsaveable(path.encode("ascii", "backslashreplace").decode("ascii"), "text that is not UTF-8") from None
    return value


def _float_word(value: float) -> str:
    """Encode a float that JSON cannot represent. A NaN with an unusual payload is encoded by its bits."""
    text, bits = str(value), struct.pack(">d", value)
    return text if struct.pack(">d", float(text)) == bits else bits.hex()


def _array_type(dtype: np.dtype[Any], path: str) -> str:
    if _ARRAY_TYPE.fullmatch(dtype.str) is None:
        raise Unsaveable(path, f"a numpy array of {dtype}")
    return str(dtype.str)


def _identity(tensor: torch.Tensor) -> object:
    """Return a value that is equal for two tensors exactly if they have the same elements in the same order."""
    if not tensor.numel():
        return object()  # nothing to share
    first = tensor.untyped_storage().data_ptr(), tensor.storage_offset()
    return (tensor.device, *first, tensor.dtype, tensor.shape, tensor.stride())


def _fits(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Return whether no elements overlap, except in repeated dimensions, and few places in memory are unused."""
    steps = sorted((step, length) for step, length in zip(stride, shape, strict=True) if length > 1 and step)
    extent = 1
    for step, length in steps:
        if step < extent:
            return False
        extent += (length - 1) * step
    return extent <= _MOST_EMPTY * math.prod(length for _, length in steps)


class UnreadableState(ValueError):  # noqa: N818  it names what cannot be read
    """Error for a tree that is damaged or was not written by `spell`."""


def read(tree: Json, tensors: Mapping[str, torch.Tensor]) -> object:
    """Rebuild a value from the output of `spell`. Tensors that were shared are shared again.

    Args:
        tree: A tree like `EncodedValue.tree`. A tree from a file is not trusted.
        tensors: Tensors by name. They are not copied.

    Returns:
        The value, with a `Sharded` in place of each `DTensor`.

    Raises:
        UnreadableState: The tree is not an output of `spell`, or a tensor is missing or of another type.
    """
    return _Reader(tensors).value(tree)


class _Reader:
    """Decoder for one untrusted tree."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._made: dict[object, torch.Tensor] = {}

    def value(self, tree: Json) -> object:
        if isinstance(tree, list):
            return [self.value(item) for item in tree]
        if not isinstance(tree, dict):
            return tree
        tag = next(iter(tree), "")
        try:
            return self._tagged(tag, tree)
        except UnreadableState:
            raise
        except (ParseError, TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise UnreadableState(f"{tag}: {error}") from None

    def _tagged(self, tag: str, tree: JsonObject) -> object:  # noqa: C901, PLR0911, PLR0912  one return per tag
        match tag:
            case "dict" | "ordered":
                rows = [(key, self.value(item)) for key, item in as_object(tree[tag]).items()]
                return dict(rows) if tag == "dict" else OrderedDict(rows)
            case "dict_pairs" | "ordered_pairs":
                keyed = [as_list(pair) for pair in as_list(tree[tag])]
                pairs = [(self.value(key), self.value(item)) for key, item in keyed]
                return dict(pairs) if tag == "dict_pairs" else OrderedDict(pairs)
            case "tuple":
                return tuple(self.value(item) for item in get_list(tree, tag))
            case "size":
                return torch.Size(_integers(tree, tag))
            case "float":
                text = get_str(tree, tag)
                if text in _WORDS:
                    return float(text)
                if _NAN_BITS.fullmatch(text) is None:
                    raise ParseError(f"expected bits of a NaN, found {text!a:.40}")
                return struct.unpack(">d", bytes.fromhex(text))[0]
            case "bytes":
                return base64.b64decode(get_str(tree, tag), validate=True)
            case "dtype":
                name = get_str(tree, tag)
                if name not in _DTYPES:
                    raise ParseError(f"this torch has no {name!a:.40}")
                return _DTYPES[name]
            case "device":
                return torch.device(get_str(tree, tag))
            case "numpy_dtype":
                return _read_array_type(tree, tag)
            case "tensor":
                return self._tensor(tree)
            case "sharded":
                return Sharded(
                    local=self._tensor(get_object(tree, tag)),
                    shape=_integers(tree, "shape"),
                    stride=_integers(tree, "stride"),
                    mesh_shape=_integers(tree, "mesh_shape"),
                    mesh_names=tuple(as_str(name) for name in get_list(tree, "mesh_names")),
                    placements=tuple(_placement(placement) for placement in get_list(tree, "placements")),
                    device_type=get_str(tree, "device_type"),
                )
            case "array" | "scalar":
                kind = _read_array_type(tree, "of")
                content = self._stored(tree, tag).contiguous().view(torch.uint8).numpy()
                array = content.copy().view(kind).reshape(_integers(tree, "shape"))
                return array if tag == "array" else array[()]
            case _:
                raise UnreadableState(f"an object that begins with {tag!a:.40} is not one that ckpttool writes")

    def _tensor(self, tree: JsonObject) -> torch.Tensor:
        """Return a tensor, as the same object each time."""
        grad = "requires_grad" in tree and get_bool(tree, "requires_grad")
        strided = (_integers(tree, "shape"), _integers(tree, "stride")) if "stride" in tree else None
        same = (get_str(tree, "tensor"), grad, strided, "complex" in tree)
        if same not in self._made:
            stored = self._stored(tree, "tensor")
            stored = torch.view_as_complex(stored) if "complex" in tree else stored
            made = stored.detach() if strided is None else _strided(stored, *strided)
            self._made[same] = made.requires_grad_(grad)
        return self._made[same]

    def _stored(self, tree: JsonObject, key: str) -> torch.Tensor:
        name = get_str(tree, key)
        if name not in self._tensors:
            raise ParseError(f"there is no tensor {name!a:.80}")
        return self._tensors[name]


def _read_array_type(tree: JsonObject, key: str) -> np.dtype[Any]:
    import numpy as np

    text = get_str(tree, key)
    if _ARRAY_TYPE.fullmatch(text) is None:
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
    if len(shape) != len(stride) or not _fits(shape, stride):
        raise ParseError("strides that no saved tensor can have")
    once = tuple(length if step else min(length, 1) for length, step in zip(shape, stride, strict=True))
    if tuple(stored.shape) != once:
        raise ParseError(f"expected a tensor of shape {once}, found {tuple(stored.shape)}")
    return strided(stored, shape, stride)
