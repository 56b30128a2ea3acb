"""A walk over JSON of a known grammar, piece by piece.

No general JSON parser: a safetensors header is three levels deep, so whatever nests deeper, repeats a key or builds
millions of empty lists ends at the first character that does not belong there, without recursion and in bounded memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from json import JSONDecodeError, JSONDecoder

from ckpttool.formats.base import MAX_DIMS, quoted

MAX_SIZE = 2**64 - 1
"""Largest number that safetensors can hold; it refuses a larger one, and so do we."""

MAX_KEYS = 200_000
"""Keys of one object, tensors or metadata; what is kept of so many stays below 256 MB."""


class InvalidHeaderError(Exception):
    """The text leaves the grammar; the message says where and how."""


_WHOLE_NUMBER = re.compile(r"0|[1-9][0-9]{0,19}")
_BLANK = re.compile(r"[ \t\n\r]*")
_DECODER = JSONDecoder()
_LIST_CHARS = 4096
"""Room for MAX_DIMS numbers of 20 digits, with blanks between."""


class TooManyKeysError(InvalidHeaderError):
    """The text may be well, but holds more than we keep in memory."""


class Scanner:
    """Walks the text once, without recursion and without looking back."""

    __slots__ = ("_at", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def members(self) -> Iterator[str]:
        """Yield the keys of the object that begins here; the caller consumes the value before the next key."""
        seen: set[str] = set()
        self._expect("{")
        if self._take("}"):
            return
        while True:
            key = self.string()
            if key in seen:
                raise InvalidHeaderError(f"the key {quoted(key)} stands twice in one object")
            if len(seen) == MAX_KEYS:
                raise TooManyKeysError(f"an object has more than {MAX_KEYS} keys")
            seen.add(key)
            self._expect(":")
            yield key
            if not self._take(","):
                break
        self._expect("}")

    def string(self) -> str:
        """Consume a JSON string."""
        self._skip_blanks()
        if self._text[self._at : self._at + 1] != '"':
            raise self._unexpected("a string")
        try:
            value, self._at = _DECODER.raw_decode(self._text, self._at)
            value.encode()  # half a surrogate pair is no character
        except (JSONDecodeError, UnicodeEncodeError) as error:
            raise self._unexpected("a whole string") from error
        return str(value)

    def numbers(self) -> tuple[int, ...]:
        """Consume a list of whole numbers that are not negative."""
        self._expect("[")
        end = self._text.find("]", self._at, self._at + _LIST_CHARS)
        if end < 0:
            raise self._unexpected(f"a list of at most {MAX_DIMS} numbers")
        words = [word.strip(" \t\n\r") for word in self._text[self._at : end].split(",")]
        if words == [""]:
            words = []
        if len(words) > MAX_DIMS or not all(map(_WHOLE_NUMBER.fullmatch, words)):
            raise self._unexpected(f"a list of at most {MAX_DIMS} whole numbers")
        values = tuple(map(int, words))
        if values and max(values) > MAX_SIZE:
            raise self._unexpected("numbers below 2^64")
        self._at = end + 1
        return values

    def rest(self) -> str:
        """Return what follows the last consumed character."""
        return self._text[self._at :]

    def _skip_blanks(self) -> None:
        blank = _BLANK.match(self._text, self._at)
        self._at = blank.end() if blank else self._at

    def _take(self, char: str) -> bool:
        self._skip_blanks()
        if self._text[self._at : self._at + 1] != char:
            return False
        self._at += 1
        return True

    def _expect(self, char: str) -> None:
        if not self._take(char):
            raise self._unexpected(f"'{char}'")

    def _unexpected(self, expected: str) -> InvalidHeaderError:
        there = self._text[self._at : self._at + 20]
        return InvalidHeaderError(f"expected {expected} at character {self._at}, not {there!r}")
