"""Several machines have a file of one path: is it one, are they alike, or does nobody know which of them counts?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from ckpttool.core.domain.finding import Code, Finding, note, suspect, unknown
from ckpttool.core.domain.verdict import ShardReport
from ckpttool.nodes.findings import NodesCode
from ckpttool.nodes.model import Copy

_MOST_NAMED = 8
"""Machines that one line holds."""


def differing(path: str, copies: Iterable[Copy]) -> Iterator[Finding]:
    """Say where looks at a path disagree, and where machines have copies of their own.

    Args:
        path: Of the file.
        copies: Looks at it, of which there are several.
    """
    different: dict[str, list[Copy]] = {}
    for copy in copies:
        different.setdefault(copy.seat.disk, []).append(copy)
    exports = _one_export(different.values())
    for same in exports:
        yield from _of_one_disk(path, same)
    if len(exports) > 1:
        yield _on_several(path, [export[0] for export in exports])


def _one_export(groups: Iterable[Sequence[Copy]]) -> list[list[Copy]]:
    """Put together what two addresses show of one shared disk: files of the same size, time and inode."""
    exports: list[list[Copy]] = []
    for group in groups:
        first = group[0]
        same = next(
            (
                copies
                for copies in exports
                if first.seat.shared and copies[0].seat.shared and {c.stamp for c in copies} == {c.stamp for c in group}
            ),
            None,
        )
        if same is None:
            exports.append(list(group))
        else:
            same.extend(group)
    return exports


def _of_one_disk(path: str, copies: Sequence[Copy]) -> Iterator[Finding]:
    if len({copy.stamp for copy in copies}) > 1:
        names = _hosts(copies)
        names = names if len(names) > 1 else [copy.seat.name for copy in copies]
        message = f"was another file when {names[0]} looked than when {names[-1]} did: somebody writes it"
        yield unknown(Code.CHANGED_WHILE_READING, message, path=path, remedy="run again when nothing writes here")
        return
    for first, second in combinations([copy for copy in copies if copy.report is not None], 2):
        if not _may_be_same(first.report, second.report):
            yield suspect(
                NodesCode.NODES_DISAGREE,
                f"{first.seat.host} and {second.seat.host} read different things in one unchanged file of one disk",
                path=path,
                expected=first.seat.host,
                actual=second.seat.host,
                remedy="a cache, a link or a controller of one of them is bad: read it on a third machine",
            )
            return


def _may_be_same(first: ShardReport | None, second: ShardReport | None) -> bool:
    """Tell whether two looks can be at the same bytes: as far as both went, they saw the same."""
    if first is None or second is None:
        return first is second
    names = ["format", "scalars", "schema_hash", "tensors", "tail_hash", "metadata_hash"]
    if first.level is second.level:
        names.append("findings")
    if first.digest is not None and second.digest is not None:
        names.append("digest")
    if first.tensor_digests is not None and second.tensor_digests is not None:
        names.append("tensor_digests")
    return all(getattr(first, name) == getattr(second, name) for name in names)


def _on_several(path: str, copies: Sequence[Copy]) -> Finding:
    """Say that machines have files of their own under one path: which counts, nobody knows where they differ."""
    hosts = _hosts(copies)
    named = hosts if len(hosts) <= _MOST_NAMED else [*hosts[:_MOST_NAMED], f"{len(hosts) - _MOST_NAMED} more"]
    where = f"{', '.join(named[:-1])} and {named[-1]}" if len(named) > 1 else f"two disks of {named[0]}"
    first = copies[0]
    ranks = () if first.report is None or first.report.rank is None else (first.report.rank,)
    if all(copy.stamp.size == first.stamp.size and _may_be_same(first.report, copy.report) for copy in copies[1:]):
        return note(
            NodesCode.RANK_ON_SEVERAL_NODES, f"lies on {where}, as far as was looked alike", path=path, ranks=ranks
        )
    return suspect(
        NodesCode.RANK_ON_SEVERAL_NODES,
        f"lies on {where}, and they differ: nobody knows which of them the training would load",
        path=path,
        ranks=ranks,
        remedy="remove what a former rank left there, on the machine where this rank will not start",
    )


def _hosts(copies: Sequence[Copy]) -> list[str]:
    return sorted({copy.seat.host for copy in copies})
