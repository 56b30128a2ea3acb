"""The free text of a safetensors header: no checksum covers it, and no size follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import chain

from ckpttool.domain.finding import Code, Finding, Severity
from ckpttool.formats.base import Header, quoted

CHECKSUM_KEY = "crc_num"
"""Where MindSpore puts a checksum. Not part of what siblings have in common."""

_VALUES: dict[str, frozenset[str]] = {
    CHECKSUM_KEY: frozenset(),
    "format": frozenset({"ms", "pt", "np", "tf"}),
    "remove_redundancy": frozenset({"True", "False"}),
}
"""The keys that MindSpore writes, and what it and others write there; of a key without values, any will do.

Source: `_exec_save` in mindspore/train/serialization.py, 2.10.
"""


def metadata_hash(header: Header) -> str | None:
    """Hash what siblings have in common of the free text, so that they can be compared; None without any."""
    common = _common(header)
    return _hash(common) if common else None


def misspelt(header: Header) -> tuple[Finding, ...]:
    """Find words that are one bit away from a word that MindSpore writes.

    Anybody may write other words, and they are no damage. But nobody writes `crc_nul` by intent: it is where a
    checksum was, and the file would pass for one that never had any.
    """
    return _misspelt(_common(header))


_Pairs = tuple[tuple[str, str], ...]


def _common(header: Header) -> _Pairs:
    """Return the free text without the checksum, whose value is different in every file and never misspelt."""
    return tuple([pair for pair in header.metadata if pair[0] != CHECKSUM_KEY])


@lru_cache(maxsize=1)  # all ranks have the same; no more, for it comes from files
def _hash(pairs: _Pairs) -> str:
    from xxhash import xxh3_128_hexdigest  # half a millisecond that `--help` need not pay

    return xxh3_128_hexdigest("\0".join(chain.from_iterable(pairs)).encode("utf-8", "surrogatepass"))


@lru_cache(maxsize=1)
def _misspelt(pairs: _Pairs) -> tuple[Finding, ...]:
    return tuple(_one_bit_off(pairs))


def _one_bit_off(pairs: _Pairs) -> Iterator[Finding]:
    for key, value in pairs:
        known = _VALUES.get(key)
        if known is None:
            close = next((word for word in _VALUES if _one_bit_apart(word, key)), None)
            spelled = key
        else:
            close = None if value in known else next((word for word in known if _one_bit_apart(word, value)), None)
            spelled = value
        if close is not None:
            yield Finding(
                code=Code.HEADER_INVALID,
                severity=Severity.DAMAGE,
                message=f"The header's metadata say {quoted(spelled)}, which is one bit away from {quoted(close)}.",
                expected=close,
                actual=spelled,
            )


def _one_bit_apart(word: str, other: str) -> bool:
    ours, theirs = word.encode(), other.encode("utf-8", "surrogatepass")
    if len(ours) != len(theirs):
        return False
    return sum((mine ^ its).bit_count() for mine, its in zip(ours, theirs, strict=True)) == 1
