"""Answers that take long: what is found comes as it is found, and the whole at the end."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Generic, TypeVar

from ckpttool.core.domain.answered import Answered

E = TypeVar("E")
A = TypeVar("A", bound=Answered)


class Running(Iterator[E], Generic[E, A]):
    """What a verb finds, as it finds it, and then its answer. Nothing is read before it is asked for."""

    def __init__(self, found: Generator[E, None, None], whole: Callable[[Sequence[E]], A]) -> None:
        """Take what finds, and what makes an answer of all that was found."""
        self._found = found
        self._whole = whole
        self._kept: list[E] = []

    def __next__(self) -> E:
        """Return what is found next."""
        event = next(self._found)
        self._kept.append(event)
        return event

    def close(self) -> None:
        """Read no further."""
        self._found.close()

    def answer(self) -> A:
        """Find all that is left, and return the answer."""
        for _ in self:
            pass
        return self._whole(self._kept)

    def to_dict(self) -> dict[str, Any]:
        """Find all that is left, and return the document that the command prints with `--format json`."""
        return self.answer().to_dict()
