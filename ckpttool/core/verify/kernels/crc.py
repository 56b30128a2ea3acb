"""The CRC32 of bytes, of concatenated parts, and of a file's tensors as MindSpore computes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache


def crc32(data: bytes | memoryview, start: int = 0) -> int:
    """Continue the CRC32 `start` over `data`; a `start` of 0 begins a new CRC32."""
    from isal import isal_zlib

    return isal_zlib.crc32(data, start)


def join_crc32(first: int, second: int, second_length: int) -> int:
    """Return the CRC32 of two consecutive parts, from the CRC32 of each.

    This lets two workers share a file, and the order of the tensors may differ from the order in the file.

    Args:
        first: CRC32 of the first piece.
        second: CRC32 of the second piece, started at 0.
        second_length: Bytes in the second piece.
    """
    from isal import isal_zlib

    return isal_zlib.crc32_combine(first, second, second_length) if second_length else first


@lru_cache(maxsize=64)  # one entry per power of two, because the lengths come from files
def _crc32_of_zeros_doubled(power: int) -> int:
    if power == 0:
        return crc32(b"\0")
    half = _crc32_of_zeros_doubled(power - 1)
    return join_crc32(half, half, 1 << (power - 1))


def crc32_of_zeros(count: int) -> int:
    """Return the CRC32 of `count` zero bytes in about `log2(count)` steps, without allocating the bytes.

    Raises:
        ValueError: The count is negative or has more than 63 bits.
    """
    if not 0 <= count < 1 << 63:
        raise ValueError(f"expected a number of bytes, got {count}")
    value = 0
    for power in range(count.bit_length()):
        if count >> power & 1:
            value = join_crc32(value, _crc32_of_zeros_doubled(power), 1 << power)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryBytes:
    """The facts about one tensor that MindSpore's checksum needs."""

    name: str
    crc32: int
    """CRC32 of the tensor's data in the file."""
    nbytes: int
    integer: int | None = None
    """The tensor's value, if it is an integer without dimensions (shape `[]`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntriesCrc:
    """The `crc_num` of a file with these tensors."""

    as_written: int
    """The value as MindSpore up to 2.10 computes it, including its bug."""
    as_stored: int
    """The value over the bytes as stored in the file, without the bug."""

    def matches(self, recorded: int) -> bool:
        """Return whether a recorded `crc_num` is one of the two values; a fixed MindSpore must not cause an alarm."""
        return recorded in (self.as_written, self.as_stored)


def entries_crc(entries: Iterable[EntryBytes]) -> EntriesCrc:
    """Compute the `crc_num` that MindSpore writes into the metadata of a safetensors file with `crc_check=True`.

    It is one CRC32 over the names and data of all tensors, sorted by name in code point order. The data are
    `bytes(array)`; for an integer array without dimensions, Python treats the value as a *count*, so `epoch_num = 3`
    enters as three zero bytes, not as its eight bytes.

    Source:
        `_exec_save` and `_load_safetensors_into_param_dict` in mindspore/train/serialization.py, 2.10.
    """
    written = stored = 0
    for entry in sorted(entries, key=lambda entry: entry.name):
        # MindSpore cannot write an unpaired surrogate, but a damaged header may contain one; it must not raise.
        name = entry.name.encode("utf-8", "surrogatepass")
        stored = join_crc32(crc32(name, stored), entry.crc32, entry.nbytes)
        written = crc32(name, written)
        # MindSpore fails to save a negative integer; the stored bytes then give a plain mismatch.
        if entry.integer is None or not 0 <= entry.integer < 1 << 63:
            written = join_crc32(written, entry.crc32, entry.nbytes)
        else:
            written = join_crc32(written, crc32_of_zeros(entry.integer), entry.integer)
    return EntriesCrc(as_written=written, as_stored=stored)
