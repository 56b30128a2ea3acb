"""Quoting of words so that bash parses them as intended, even if a script passes them to `eval` unquoted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

_ONE_LINE = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]*")
"""Text that can be printed and copied unchanged."""
_SPLIT_PROOF = re.compile(r"(?!.*  )[^\\*?\[\]]*", re.DOTALL)
"""Text that bash does not change when it splits at white space and expands wildcards: inside quotes that are not yet
parsed, a single space survives, two spaces do not."""
_LAST_ASCII = 0x7F
_UNDECODED = range(0xDC80, 0xDD00)
"""Python's surrogates for bytes of a file name that are not UTF-8."""


def quote(argument: str) -> str:
    """Return `argument` as one word of a bash command, on one line.

    Raises:
        ValueError: The argument contains a NUL, which a program argument cannot contain.
    """
    if "\0" in argument:
        raise ValueError("an argument cannot contain a NUL")
    return shlex.quote(argument) if _ONE_LINE.fullmatch(argument) else _ansi_c(argument)


def quote_for_eval(argument: str) -> str:
    """Return `argument` as one word of a text that a script runs with an unquoted `eval $TEXT`.

    Before `eval` parses the quotes, bash splits the text at white space and expands wildcards. If ordinary quotes do
    not survive this, the word is written as `$'…'`, with every such character escaped.

    Raises:
        ValueError: The argument contains a NUL, which a program argument cannot contain.
    """
    return quote(argument) if _SPLIT_PROOF.fullmatch(argument) else _ansi_c(argument)


def join(arguments: Iterable[str]) -> str:
    """Join words into a command line."""
    return " ".join(map(quote, arguments))


def join_for_eval(arguments: Iterable[str]) -> str:
    """Join words into a command line for an unquoted `eval`."""
    return " ".join(map(quote_for_eval, arguments))


def _ansi_c(argument: str) -> str:
    return "$'" + "".join(map(_escaped, argument)) + "'"


def _escaped(char: str) -> str:
    """Escape one character for bash's `$'…'`; octal escapes have a fixed length, so a digit may follow."""
    if char.isascii() and (char.isalnum() or char in "/._-=:,@%+~"):
        return char
    code = ord(char)
    if code in _UNDECODED:
        return f"\\{code - 0xDC00:03o}"
    if code > _LAST_ASCII and char.isprintable():
        return char
    return "".join(f"\\{byte:03o}" for byte in char.encode("utf-8", "surrogatepass"))
