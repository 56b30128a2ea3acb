"""Conversion of tensors to the bytes of a safetensors file, one at a time, and back."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence

import torch

from ckpttool.core.domain.dtype import DType

_NAMES = {
    "float64": DType.F64,
    "float32": DType.F32,
    "float16": DType.F16,
    "bfloat16": DType.BF16,
    "float8_e5m2": DType.F8_E5M2,
    "float8_e4m3fn": DType.F8_E4M3,
    "float8_e5m2fnuz": DType.F8_E5M2FNUZ,
    "float8_e4m3fnuz": DType.F8_E4M3FNUZ,
    "float8_e8m0fnu": DType.F8_E8M0,
    "complex64": DType.C64,
    "int64": DType.I64,
    "int32": DType.I32,
    "int16": DType.I16,
    "int8": DType.I8,
    "uint64": DType.U64,
    "uint32": DType.U32,
    "uint16": DType.U16,
    "uint8": DType.U8,
    "bool": DType.BOOL,
}

TYPES: dict[torch.dtype, DType] = {
    dtype: stored for name, stored in _NAMES.items() if isinstance(dtype := getattr(torch, name, None), torch.dtype)
}
"""The types of the format that this version of torch supports."""

_DTYPES = {stored: dtype for dtype, stored in TYPES.items()}

_MOST_HEADER = 100_000_000
"""The longest header that the format allows."""


def block(tensor: torch.Tensor) -> memoryview:
    """Return the elements of a tensor in order, as bytes of a file. Tensors on an accelerator or with gaps are copied.

    Raises:
        ValueError: The format has no such type: see `TYPES`.
    """
    if tensor.dtype not in TYPES:
        raise ValueError(f"safetensors has no type for {tensor.dtype}")
    here = tensor.detach().to("cpu").contiguous()
    # A single element may have any stride, and torch accesses its bytes only if that is 1.
    return here.as_strided((here.numel(),), (1,)).view(torch.uint8).numpy().data


def named(tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, DType, tuple[int, ...]]]:
    """Yield the header entry of each tensor: name, type and shape."""
    for name, tensor in tensors:
        yield name, TYPES[tensor.dtype], tuple(tensor.shape)


def open_tensors(path: str) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file by name. Their data is read from disk when it is used.

    The tensors share the file's memory map, and nothing is ever written back. Only the header is checked here: compare
    the file's digest first to know whether the file is intact.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not a safetensors file, or has a type that this version of torch does not support.
    """
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise ValueError(f"{path} is not a safetensors file")
        return tensors_in(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), path)


def tensors_in(content: mmap.mmap | memoryview, path: str) -> dict[str, torch.Tensor]:
    """Return the tensors by name in the bytes of a complete file. They share its memory. `path` is for error messages.

    Raises:
        ValueError: As for `open_tensors`.
    """
    from ckpttool.core.formats.safetensors.header import parse_strictly

    size, length = len(content), int.from_bytes(content[:8], "little")
    if not 2 <= length <= min(size - 8, _MOST_HEADER):  # noqa: PLR2004  `{}`
        raise ValueError(f"{path} is not a safetensors file")
    header = parse_strictly(bytes(content[8 : 8 + length]).decode("utf-8").rstrip(" "), data_begin=8 + length)
    wrong = [finding.message for finding in header.findings]
    if wrong or 8 + length + header.data_bytes != size:
        raise ValueError(f"{path}: {wrong[0] if wrong else 'its size does not match its header'}")
    made = {}
    for entry in header.entries:
        if entry.dtype not in _DTYPES:
            raise ValueError(f"{path}: this torch has no type for {entry.dtype.value}")
        dtype, ((begin, _),), count = _DTYPES[entry.dtype], entry.spans, math.prod(entry.shape)
        if not count:
            made[entry.name] = torch.empty(entry.shape, dtype=dtype)
            continue
        if begin % dtype.itemsize:  # not written by us or by safetensors, which sorts wide types first
            raise ValueError(f"{path}: a tensor begins in the middle of an element")
        made[entry.name] = torch.frombuffer(content, dtype=dtype, count=count, offset=begin).reshape(entry.shape)
    return made


def strided(stored: torch.Tensor, shape: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """Return a copy with these strides. A dimension with stride 0 is stored once and has length 1 in `stored`."""
    made = torch.empty_strided(stored.shape, stride, dtype=stored.dtype, device=stored.device)
    return made.copy_(stored).expand(shape)


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same strides at an address that torch chose, like the tensors of a training run.

    The address of a tensor in a file can change the order in which a kernel sums it: MKL does so on some CPUs if the
    address is not a multiple of 16.
    """
    shape, stride = tensor.shape, tensor.stride()
    once = [length if step else min(length, 1) for length, step in zip(shape, stride, strict=True)]
    return strided(tensor.as_strided(once, stride), shape, stride)
