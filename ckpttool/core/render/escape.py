"""Escaping of file names: untrusted text must not move the cursor, change a colour or reverse the line."""

from __future__ import annotations

_HIDDEN = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp"}
"""Unicode categories: controls, formats (such as bidirectional overrides), private, surrogates, line ends."""


def shown(text: str) -> str:
    r"""Return `text` for display: terminal control characters become `\xNN` or `\uNNNN`.

    Invalid UTF-8 (surrogates in Python) is shown as the original bytes.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(character) for character in text)


def _escaped(character: str) -> str:
    import unicodedata  # loads a megabyte of tables, which ASCII names do not need

    if unicodedata.category(character) not in _HIDDEN:
        return character
    point = ord(character)
    if 0xDC80 <= point <= 0xDCFF:  # noqa: PLR2004  surrogateescape's range: byte + 0xDC00
        return f"\\x{point - 0xDC00:02x}"
    return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}"  # noqa: PLR2004  one byte


def size(nbytes: int | None) -> str:
    """Format a size in bytes for people, with powers of 1024; '?' if the size is unknown."""
    if nbytes is None:
        return "?"
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":  # noqa: PLR2004
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError(nbytes)
