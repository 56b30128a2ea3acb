"""Who reads: this process, or a cluster."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from enum import Enum
from typing import IO, Annotated, Any, cast

import typer

import ckpttool
from ckpttool.core.commands import progress
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.errors import UsageError


class EngineName(str, Enum):
    """Who does the reading."""

    THREADS = "threads"
    RAY = "ray"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Who reads."""

    engine: Annotated[
        EngineName,
        typer.Option(
            help="Who reads: this process, or the nodes of a Ray cluster that is there.", rich_help_panel="Evidence"
        ),
    ] = EngineName.THREADS
    ray_address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Which cluster; default: RAY_ADDRESS. None is started.",
            rich_help_panel="Evidence",
        ),
    ] = None

    @property
    def address(self) -> str | None:
        """The cluster's; None where nobody names one.

        Raises:
            UsageError: One is named, and none is to read.
        """
        if self.engine is EngineName.THREADS and self.ray_address is not None:
            raise UsageError("--ray-address names a cluster, and --engine ray lets it read: give both")
        return self.ray_address or os.environ.get("RAY_ADDRESS")

    @contextmanager
    def reading(self, *, quiet: bool) -> Iterator[None]:
        """Read inside as was asked for, and show how far it has come.

        Raises:
            UsageError, IncompleteError: As `ckpttool.on_ray`.
        """
        address = self.address
        if self.engine is EngineName.THREADS:
            with progress.watched(quiet=quiet):
                yield
            return
        own = None if sys.stdout is None else _Ours(sys.stdout)
        shown = nullcontext() if own is None else own.let_through()
        with redirect_stdout(cast("Any", own)), ckpttool.on_ray(address), shown, progress.watched(quiet=quiet):
            yield


class _Ours:
    """Stdout without what Ray writes there about its nodes: by threads of its own, and as it is joined and left."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._thread: int | None = None

    @contextmanager
    def let_through(self) -> Iterator[None]:
        """Write inside what this thread writes."""
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            self._thread = None

    def write(self, text: str) -> int:
        """Write, or do as if."""
        return self._stream.write(text) if threading.get_ident() == self._thread else len(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)
