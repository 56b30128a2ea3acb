"""Combine several machines' records of one tree, in any order of the parts."""

from __future__ import annotations

import errno
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import starmap

from ckpttool.core.errors import UsageError
from ckpttool.core.records import is_manifest
from ckpttool.core.storage.base import Entry, Kind
from ckpttool.nodes.machines import MachinesOfParts, chosen_copy
from ckpttool.nodes.model import BREAK_NS, Copy, Merge, Seat
from ckpttool.nodes.part_file import PartView
from ckpttool.nodes.storage import DIFFERENT, ENTRIES, FILE, Answers, Failure


def merge(
    views: Iterable[PartView], *, source: str, unread: Sequence[tuple[str, str]], root: str | None
) -> MachinesOfParts:
    """Combine parts.

    Args:
        views: At least one, in any order.
        source: The inputs, for messages.
        unread: Names of files that cannot be read as parts, with the reasons.
        root: Path of the tree if the parts have different paths; None if all paths must be equal.

    Raises:
        UsageError: The parts are of different trees, or were divided differently.
    """
    ordered = sorted(views, key=_order)
    retained, left_out = _of_newest_run(ordered)
    root = root or _common_root(retained, source)
    of = _common_total(retained, source)
    seeing = [view for view in retained if (ENTRIES, "") not in view.answers.failures]
    blind: dict[int, str] = {}
    for view in retained:
        failure = view.answers.failures.get((ENTRIES, ""))
        if failure is not None:
            blind[view.seat.number] = errno.errorcode.get(failure[1], str(failure[1]))
    numbers = {view.seat.number for view in retained}
    holders: defaultdict[str, list[int]] = defaultdict(list)
    for at, view in enumerate(seeing):
        for path in view.answers.stamps:
            holders[path].append(at)
    copies = _copies(seeing, {path for path, places in holders.items() if len(places) > 1})
    answers = _answers(seeing, copies)
    merged = Merge(
        source=source,
        root=root,
        of=of,
        seats=tuple(view.seat for view in seeing),
        seats_read=tuple(view.seat for view in retained),
        missing=tuple(number for number in range(1, of + 1) if number not in numbers),
        blind=blind,
        unread=tuple(sorted(unread)),
        left_out=left_out,
        holders={path: tuple(places) for path, places in holders.items()},
        copies=copies,
        divided=tuple(view.answers.divided for view in seeing),
        different=frozenset(path for (_, path), failure in answers.failures.items() if failure == DIFFERENT),
    )
    return MachinesOfParts(merged, answers, seeing)


def _order(view: PartView) -> tuple[object, ...]:
    seat = view.seat
    return seat.number, seat.of, seat.run, seat.host, seat.began_ns, seat.ended_ns, seat.disk, seat.root, seat.level


def _common_root(views: Sequence[PartView], source: str) -> str:
    """Return the tree's path, which must be equal in all parts that list the tree or, if none does, in all parts."""
    hosts = {view.seat.root: view.seat.host for view in reversed(views) if "" in view.answers.entries}
    roots = sorted(hosts or {view.seat.root for view in views})
    if len(roots) > 1:
        named = " and ".join(f"{hosts[folder]} at {folder}" if folder in hosts else folder for folder in roots[:2])
        raise UsageError(
            f"{source}: the parts are of different folders ({named}): run ckpttool part on the tree's own folder on "
            "every machine; if these are one tree under several names, give --root PATH"
        )
    return roots[0]


def _common_total(views: Sequence[PartView], source: str) -> int:
    totals = sorted({view.seat.of for view in views})
    if len(totals) > 1:
        raise UsageError(f"{source}: some parts are of {totals[0]}, others of {totals[1]}: give the parts of one run")
    return totals[0]


def _of_newest_run(views: Sequence[PartView]) -> tuple[list[PartView], tuple[Seat, ...]]:
    """Drop parts from runs before the newest run, and all but the newest part with each number."""
    newest = max(views, key=lambda view: (view.seat.began_ns, view.seat.run)).seat.run
    candidates = [view for view in views if view.seat.run == newest]
    if not newest:
        candidates = _without_a_break(candidates)
    last: dict[tuple[object, ...], PartView] = {}
    for view in candidates:
        place = (view.seat.number, view.seat.of, view.seat.host, view.seat.disk, view.seat.root)
        before = last.get(place)
        if before is None or before.seat.began_ns <= view.seat.began_ns:
            last[place] = view
    chosen = {id(view) for view in last.values()}
    seats = {view.seat for view in last.values()}  # a part that was passed twice is omitted without a message
    left_out = (view.seat for view in views if id(view) not in chosen)
    return [view for view in views if id(view) in chosen], tuple(seat for seat in left_out if seat not in seats)


def _without_a_break(views: Sequence[PartView]) -> list[PartView]:
    """Return the newest group of parts without a run ID: each part begins soon after an earlier part ended."""
    retained: list[PartView] = []
    ended = 0
    for view in sorted(views, key=lambda view: view.seat.began_ns):
        if view.seat.began_ns > ended + BREAK_NS:
            retained = []
        retained.append(view)
        ended = max(ended, view.seat.ended_ns)
    return sorted(retained, key=_order)


def _copies(views: Sequence[PartView], paths: Collection[str]) -> dict[str, tuple[Copy, ...]]:
    """Return the records of files on several machines, excluding duplicates on one disk.

    Args:
        views: The views, by number.
        paths: The files that several machines have.
    """
    copies: defaultdict[str, list[tuple[Copy, bytes | None]]] = defaultdict(list)
    for view in views:
        by_line: defaultdict[bytes | None, list[str]] = defaultdict(list)
        for path in view.answers.stamps:
            if path in paths:
                by_line[view.line(path)].append(path)
        for line, paths_in_line in by_line.items():  # a view caches the reports of only a few lines
            for path in paths_in_line:
                stamp = view.answers.stamps[path]
                same = [
                    (copy, copy_line)
                    for copy, copy_line in copies[path]
                    if (copy.seat.disk, copy.stamp) == (view.seat.disk, stamp)
                ]
                if line is not None and any(line == copy_line for _, copy_line in same):
                    continue  # the encoded lines are equal, so the report does not need to be decoded
                report = view.report_of(path)
                if all(copy.report != report for copy, _ in same):
                    copies[path].append((Copy(seat=view.seat, stamp=stamp, report=report), line))
    return {path: tuple(copy for copy, _ in path_copies) for path, path_copies in copies.items()}


def _answers(views: Sequence[PartView], copies: dict[str, tuple[Copy, ...]]) -> Answers:
    """Return the answers of a single storage with all files."""
    together = Answers()
    failed: dict[tuple[str, str], Failure] = {}
    for view in views:
        answers = view.answers
        together.stamps.update(answers.stamps)
        together.pieces.update(answers.pieces)
        for request, failure in answers.failures.items():
            failed[request] = min(failed.get(request, failure), failure)
    for path, several in copies.items():
        together.stamps[path] = chosen_copy(several).stamp
    together.entries.update(_listed(views))
    _join_records(views, together, failed)
    together.failures.update(failed)
    return together


def _listed(views: Sequence[PartView]) -> dict[str, tuple[Entry, ...]]:
    """Merge the listings; if machines disagree about a name, the worst kind decides."""
    listed: defaultdict[str, dict[str, Kind]] = defaultdict(dict)
    for view in views:
        for folder, entries in view.answers.entries.items():
            names = listed[folder]
            for name, kind in entries:
                names[name] = max(kind, names.get(name, kind), key=_WORST_LAST.index)
    return {folder: tuple(sorted(starmap(Entry, names.items()))) for folder, names in listed.items()}


_WORST_LAST = (Kind.FILE, Kind.FOLDER, Kind.LOST, Kind.OTHER)


def _join_records(views: Sequence[PartView], together: Answers, failed: dict[tuple[str, str], Failure]) -> None:
    """Use records that are equal on all machines that have them; other records, except manifests, count as failed."""
    contents: defaultdict[str, set[bytes]] = defaultdict(set)
    for view in views:
        for path, content in view.answers.files.items():
            contents[path].add(content)
            if is_manifest(path):
                together.by_host[path] = (*together.by_host.get(path, ()), (view.seat.host, content))
    for path, copies in contents.items():
        if len(copies) == 1:
            (together.files[path],) = copies
        elif path not in together.by_host:  # readers of manifests join them
            failed[FILE, path] = DIFFERENT
