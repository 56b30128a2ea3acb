"""Put together what several machines' storages answered about one tree, whatever the order of the looks."""

from __future__ import annotations

import errno
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from itertools import starmap

from ckpttool.core.domain.finding import worst
from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.domain.verdict import ShardReport
from ckpttool.core.errors import UsageError
from ckpttool.core.records import is_manifest
from ckpttool.core.records.damaged import FoundDamaged
from ckpttool.core.records.journal import TRASH
from ckpttool.core.storage.base import Entry, Kind
from ckpttool.nodes.model import BREAK_NS, Copy, Merge, Seat
from ckpttool.nodes.records.part import PartView
from ckpttool.nodes.storage.recorded import DIFFERENT, ENTRIES, FILE, Answers, Failure


class MergedViews:
    """A tree as several machines saw it."""

    def __init__(self, merge: Merge, answers: Answers, views: Sequence[PartView]) -> None:
        """Take the looks in the order of the merge's seats."""
        self.merge = merge
        self.answers = answers
        self._views = views

    def listing(self, folder: str) -> list[int]:
        """Return which of the merge's seats, by their place in it, have a folder and could list it."""
        return [at for at, view in enumerate(self._views) if folder in view.answers.entries]

    @cached_property
    def trashed(self) -> dict[str, list[str]]:
        """What lies in the machines' trash, and nowhere in its place: where it was, by the folder that it lies in."""
        by_folder: defaultdict[str, list[str]] = defaultdict(list)
        for path in self.merge.holders:
            folder, _, place = path.removeprefix(f"{TRASH}/").partition("/")
            if path.startswith(f"{TRASH}/") and place not in self.merge.holders:
                by_folder[folder].append(place)
        return dict(by_folder)

    def forget(self, paths: Iterable[str]) -> None:
        """Answer from now on as if nobody had seen some files or folders; who has what is still known."""
        entries, removed = self.answers.entries, set(paths)
        folders = tuple(f"{path}/" for path in removed if path in entries)
        for inner in [entry for entry in entries if entry in removed or entry.startswith(folders)]:
            del entries[inner]
        for above in {path.rpartition("/")[0] for path in removed} & entries.keys():
            start = f"{above}/" if above else ""
            entries[above] = tuple(entry for entry in entries[above] if f"{start}{entry.name}" not in removed)
        for path in removed:
            self.answers.stamps.pop(path, None)

    def report_of(self, path: str) -> ShardReport | None:
        """Return what was seen of a shard; of several looks the hardest, and of equal ones the worst."""
        copies = self.merge.copies.get(path)
        if copies is None:
            return next((self._views[at].report_of(path) for at in self.merge.holders.get(path, ())), None)
        return _chosen(copies).report

    def found_damaged(self) -> dict[str, tuple[FoundDamaged, FileStamp]]:
        """Return what earlier looks on a machine found of its files, by path, each with the stamp that it has there.

        Of several copies one that was found damaged counts, whichever is shown here.
        """
        return {
            damaged.path: (damaged, view.answers.stamps[damaged.path])
            for view in self._views
            for damaged in view.damaged
            if damaged.path in view.answers.stamps
        }


def merge(
    views: Iterable[PartView], *, source: str, unread: Sequence[tuple[str, str]], root: str | None
) -> MergedViews:
    """Put looks together.

    Args:
        views: In any order; not none.
        source: How they were given, for people.
        unread: What was given and cannot be read, with why.
        root: What the tree is called where the looks call it differently; None: they shall not.

    Raises:
        UsageError: They are of different trees, or of looks that were divided differently.
    """
    ordered = sorted(views, key=_order)
    retained, left_out = _of_newest_run(ordered)
    hosts = {view.seat.root: view.seat.host for view in reversed(retained) if "" in view.answers.entries}
    roots = sorted(hosts or {view.seat.root for view in retained})
    if root is None and len(roots) > 1:
        named = " and ".join(f"{hosts[folder]} at {folder}" if folder in hosts else folder for folder in roots[:2])
        raise UsageError(
            f"{source}: the parts are of different folders ({named}): let ckpttool part look at the tree's own folder "
            "on every machine; where these are one tree by several names, give --root PATH"
        )
    totals = sorted({view.seat.of for view in retained})
    if len(totals) > 1:
        raise UsageError(f"{source}: some parts are of {totals[0]}, others of {totals[1]}: give those of one run")
    blind = {}
    seeing = []
    for view in retained:
        failure = view.answers.failures.get((ENTRIES, ""))
        if failure is not None:
            blind[view.seat.number] = failure[1]
        else:
            seeing.append(view)
    numbers = {view.seat.number for view in retained}
    holders: defaultdict[str, list[int]] = defaultdict(list)
    for at, view in enumerate(seeing):
        for path in view.answers.stamps:
            holders[path].append(at)
    copies = _copies(seeing, {path for path, places in holders.items() if len(places) > 1})
    answers = _answers(seeing, copies)
    merged = Merge(
        source=source,
        root=root or roots[0],
        of=totals[0],
        seats=tuple(view.seat for view in seeing),
        seats_read=tuple(view.seat for view in retained),
        missing=tuple(number for number in range(1, totals[0] + 1) if number not in numbers),
        blind={number: errno.errorcode.get(code, str(code)) for number, code in blind.items()},
        unread=tuple(sorted(unread)),
        left_out=left_out,
        holders={path: tuple(places) for path, places in holders.items()},
        copies=copies,
        divided=tuple(view.answers.divided for view in seeing),
        different=frozenset(path for (_, path), failure in answers.failures.items() if failure == DIFFERENT),
    )
    return MergedViews(merged, answers, seeing)


def _order(view: PartView) -> tuple[object, ...]:
    seat = view.seat
    return seat.number, seat.of, seat.run, seat.host, seat.began_ns, seat.ended_ns, seat.disk, seat.root, seat.level


def _of_newest_run(views: Sequence[PartView]) -> tuple[list[PartView], tuple[Seat, ...]]:
    """Leave out what is of an older run than the newest, and of one number in one place all but the newest."""
    newest = max(views, key=lambda view: (view.seat.began_ns, view.seat.run)).seat.run
    candidates = [view for view in views if view.seat.run == newest]
    candidates = candidates if newest else _without_a_break(candidates)
    last: dict[tuple[object, ...], PartView] = {}
    for view in candidates:
        place = (view.seat.number, view.seat.of, view.seat.host, view.seat.disk, view.seat.root)
        before = last.get(place)
        if before is None or before.seat.began_ns <= view.seat.began_ns:
            last[place] = view
    chosen = {id(view) for view in last.values()}
    retained = [view for view in candidates if id(view) in chosen]
    seats = {view.seat for view in retained}  # one that was given twice is left out, and not worth a word
    return retained, tuple(view.seat for view in views if id(view) not in chosen and view.seat not in seats)


def _without_a_break(views: Sequence[PartView]) -> list[PartView]:
    """Keep of looks without a name those that belong to the newest: each begins soon after an earlier one ended."""
    retained: list[PartView] = []
    ended = None
    for view in sorted(views, key=lambda view: view.seat.began_ns):
        if ended is not None and view.seat.began_ns > ended + BREAK_NS:
            retained = []
        retained.append(view)
        ended = max(ended or 0, view.seat.ended_ns)
    chosen = {id(view) for view in retained}
    return [view for view in views if id(view) in chosen]


def _copies(views: Sequence[PartView], paths: Collection[str]) -> dict[str, tuple[Copy, ...]]:
    """Return the looks at files of which there are several, but for those that saw on one disk what another one did.

    Args:
        views: By number.
        paths: Which files have several.
    """
    copies: defaultdict[str, list[tuple[Copy, bytes | None]]] = defaultdict(list)
    for view in views:
        by_line: defaultdict[bytes | None, list[str]] = defaultdict(list)
        for path in view.answers.stamps:
            if path in paths:
                by_line[view.line(path)].append(path)
        for line, seats in by_line.items():  # one after the other: a look keeps but a few of them in mind
            for path in seats:
                stamp, earlier = view.answers.stamps[path], copies[path]
                same = [copy for copy in earlier if copy[0].seat.disk == view.seat.disk and copy[0].stamp == stamp]
                if line is None or all(line != copy for _, copy in same):
                    report = view.report_of(path)
                    if all(copy.report != report for copy, _ in same):
                        earlier.append((Copy(seat=view.seat, stamp=stamp, report=report), line))
    return {path: tuple(copy for copy, _ in path_copies) for path, path_copies in copies.items()}


def _chosen(copies: Sequence[Copy]) -> Copy:
    """Return the copy that is shown: by what was found, never by when or in which order it was given."""
    return max(
        copies,
        key=lambda copy: (
            copy.report is not None,
            -1 if copy.report is None else worst(copy.report.findings),
            -1 if copy.report is None else copy.report.level,
            copy.stamp.size,
            copy.seat.host,
            copy.seat.disk,
            str(copy.stamp.token),
        ),
    )


def _answers(views: Sequence[PartView], copies: dict[str, tuple[Copy, ...]]) -> Answers:
    together = Answers()
    failed: dict[tuple[str, str], Failure] = {}
    for view in views:
        answers = view.answers
        together.stamps.update(answers.stamps)
        together.pieces.update(answers.pieces)
        for request, failure in sorted(answers.failures.items()):
            failed[request] = min(failed.get(request, failure), failure)
    for path, several in copies.items():
        together.stamps[path] = _chosen(several).stamp
    together.entries.update(_listed(views))
    _join_records(views, together, failed)
    together.failures.update(failed)
    return together


def _listed(views: Sequence[PartView]) -> dict[str, tuple[Entry, ...]]:
    listed: defaultdict[str, dict[str, Kind]] = defaultdict(dict)
    for view in views:
        for folder, entries in view.answers.entries.items():
            names = listed[folder]
            for name, kind in entries:
                names[name] = kind if name not in names else _either(names[name], kind)
    return {folder: tuple(sorted(starmap(Entry, names.items()))) for folder, names in listed.items()}


def _join_records(views: Sequence[PartView], together: Answers, failed: dict[tuple[str, str], Failure]) -> None:
    """Take the records that all who have them have alike; the others tell nothing, but for manifests, which join."""
    contents: defaultdict[str, set[bytes]] = defaultdict(set)
    for view in views:
        for path, content in view.answers.files.items():
            contents[path].add(content)
            if is_manifest(path):
                together.by_host[path] = (*together.by_host.get(path, ()), (view.seat.host, content))
    for path, copies in contents.items():
        if len(copies) == 1:
            (together.files[path],) = copies
        elif path not in together.by_host:  # whoever reads manifests joins them
            failed[FILE, path] = DIFFERENT


def _either(kind: Kind, other: Kind) -> Kind:
    """Return what counts where machines see different things under a name: never what is good by itself."""
    return max(kind, other, key=_KINDS.index)


_KINDS = (Kind.FILE, Kind.FOLDER, Kind.LOST, Kind.OTHER)
