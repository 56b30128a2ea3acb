"""Who reads: this process, or a cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from enum import Enum
from typing import Annotated

import typer

from ckpttool import api
from ckpttool.cli import progress
from ckpttool.domain.frozen import dataclass
from ckpttool.errors import UsageError


class EngineName(str, Enum):
    """Who does the reading."""

    THREADS = "threads"
    RAY = "ray"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Who reads."""

    engine: Annotated[
        EngineName, typer.Option(help="Who reads: this process, or the nodes of a Ray cluster that is there.")
    ] = EngineName.THREADS
    ray_address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Which cluster; default: RAY_ADDRESS. None is started.")
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
            UsageError, IncompleteError: As `api.on_ray`.
        """
        address = self.address
        joined = api.on_ray(address) if self.engine is EngineName.RAY else nullcontext()
        with joined, progress.watched(quiet=quiet):
            yield
