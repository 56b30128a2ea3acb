"""CRC-32C (Castagnoli, reflected), which event files and OCDBT stores contain.

No library is used, because `google-crc32c` would be a dependency just for files of a few MB. Python computes 10 MB/s.
"""

from __future__ import annotations

from functools import cache

_POLYNOMIAL = 0x82F63B78


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of the bytes."""
    table = _table()
    value = 0xFFFFFFFF
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


@cache
def _table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [value >> 1 ^ (_POLYNOMIAL if value & 1 else 0) for value in table]
    return table
