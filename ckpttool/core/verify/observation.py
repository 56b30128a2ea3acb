"""Observations of one task, before they are judged; and the interface for engines, which run tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.verdict import CheckTask, ShardReport
from ckpttool.core.formats.base import Header

if TYPE_CHECKING:
    from ckpttool.core.formats.torch.zip_directory import ZipDirectory
    from ckpttool.core.verify.kernels.passes import PassResult


class Added(Protocol):
    """Results that a feature's own check of a shard adds: a frozen value that can be sent to another process."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


A = TypeVar("A", bound=Added)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The outcome of one task. Picklable; the order of observations never matters."""

    task: CheckTask
    report: ShardReport
    """The contents of the header or, if the file could not be read, only the reason."""
    header: Header | None = None
    """The header; None if no content was read, because its entries are not needed then."""
    records: ZipDirectory | None = None
    """The zip directory of a file that torch wrote, under the same condition as `header`."""
    content: PassResult | None = None
    """The results for the task's bytes; None if only the header was to be read, or the header is damaged."""
    added: Added | None = None
    """The result of a feature's own check; None if there is no such check. `result` returns it by type."""

    def result(self, kind: type[A]) -> A | None:
        """Return the added result of this kind, if there is one."""
        return self.added if isinstance(self.added, kind) else None


class Engine(Protocol):
    """An engine that runs check tasks."""

    def run(self, tasks: Sequence[CheckTask]) -> Iterator[Observation]:
        """Yield one observation per task, in any order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """The engines for headers and contents of a tree; one engine may do both."""

    tasks: Engine
    """The engine for the requested shards, at the requested level."""
    headers: Engine
    """The engine for the headers of their siblings."""
