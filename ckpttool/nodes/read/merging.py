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
from ckpttool.nodes.records.part import Look
from ckpttool.nodes.storage.recorded import DIFFERENT, ENTRIES, FILE, Answers, Failure


class MergedLooks:
    """A tree as several machines saw it."""

    def __init__(self, merge: Merge, answers: Answers, looks: Sequence[Look]) -> None:
        """Take the looks in the order of the merge's seats."""
        self.merge = merge
        self.answers = answers
        self._looks = looks

    def listing(self, folder: str) -> list[int]:
        """Return which of the merge's seats, by their place in it, have a folder and could list it."""
        return [at for at, look in enumerate(self._looks) if folder in look.answers.entries]

    @cached_property
    def trashed(self) -> dict[str, list[str]]:
        """What lies in the machines' trash, and nowhere in its place: where it was, by the folder that it lies in."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for path in self.merge.held:
            folder, _, place = path.removeprefix(f"{TRASH}/").partition("/")
            if path.startswith(f"{TRASH}/") and place not in self.merge.held:
                found[folder].append(place)
        return dict(found)

    def forget(self, paths: Iterable[str]) -> None:
        """Answer from now on as if nobody had seen some files or folders; who has what is still known."""
        entries, gone = self.answers.entries, set(paths)
        folders = tuple(f"{path}/" for path in gone if path in entries)
        for inner in [entry for entry in entries if entry in gone or entry.startswith(folders)]:
            del entries[inner]
        for above in {path.rpartition("/")[0] for path in gone} & entries.keys():
            start = f"{above}/" if above else ""
            entries[above] = tuple(entry for entry in entries[above] if f"{start}{entry.name}" not in gone)
        for path in gone:
            self.answers.stamps.pop(path, None)

    def told(self, path: str) -> ShardReport | None:
        """Return what was seen of a shard; of several looks the hardest, and of equal ones the worst."""
        copies = self.merge.copies.get(path)
        if copies is None:
            return next((self._looks[at].told(path) for at in self.merge.held.get(path, ())), None)
        return _chosen(copies).report

    def found_damaged(self) -> dict[str, tuple[FoundDamaged, FileStamp]]:
        """Return what earlier looks on a machine found of its files, by path, each with the stamp that it has there.

        Of several copies one that was found damaged counts, whichever is shown here.
        """
        return {
            known.path: (known, look.answers.stamps[known.path])
            for look in self._looks
            for known in look.found
            if known.path in look.answers.stamps
        }


def merge(looks: Iterable[Look], *, source: str, unread: Sequence[tuple[str, str]], root: str | None) -> MergedLooks:
    """Put looks together.

    Args:
        looks: In any order; not none.
        source: How they were given, for people.
        unread: What was given and cannot be read, with why.
        root: What the tree is called where the looks call it differently; None: they shall not.

    Raises:
        UsageError: They are of different trees, or of looks that were divided differently.
    """
    ordered = sorted(looks, key=_order)
    kept, left_out = _of_newest_run(ordered)
    hosts = {look.seat.root: look.seat.host for look in reversed(kept) if "" in look.answers.entries}
    roots = sorted(hosts or {look.seat.root for look in kept})
    if root is None and len(roots) > 1:
        named = " and ".join(f"{hosts[folder]} at {folder}" if folder in hosts else folder for folder in roots[:2])
        raise UsageError(
            f"{source}: the parts are of different folders ({named}): let ckpttool part look at the tree's own folder "
            "on every machine; where these are one tree by several names, give --root PATH"
        )
    totals = sorted({look.seat.of for look in kept})
    if len(totals) > 1:
        raise UsageError(f"{source}: some parts are of {totals[0]}, others of {totals[1]}: give those of one run")
    blind = {}
    seeing = []
    for look in kept:
        failure = look.answers.failures.get((ENTRIES, ""))
        if failure is not None:
            blind[look.seat.number] = failure[1]
        else:
            seeing.append(look)
    numbers = {look.seat.number for look in kept}
    held: defaultdict[str, list[int]] = defaultdict(list)
    for at, look in enumerate(seeing):
        for path in look.answers.stamps:
            held[path].append(at)
    copies = _copies(seeing, {path for path, places in held.items() if len(places) > 1})
    answers = _answers(seeing, copies)
    merged = Merge(
        source=source,
        root=root or roots[0],
        of=totals[0],
        seats=tuple(look.seat for look in seeing),
        looked=tuple(look.seat for look in kept),
        missing=tuple(number for number in range(1, totals[0] + 1) if number not in numbers),
        blind={number: errno.errorcode.get(code, str(code)) for number, code in blind.items()},
        unread=tuple(sorted(unread)),
        left_out=left_out,
        held={path: tuple(places) for path, places in held.items()},
        copies=copies,
        divided=tuple(look.answers.divided for look in seeing),
        different=frozenset(path for (_, path), failure in answers.failures.items() if failure == DIFFERENT),
    )
    return MergedLooks(merged, answers, seeing)


def _order(look: Look) -> tuple[object, ...]:
    seat = look.seat
    return seat.number, seat.of, seat.run, seat.host, seat.began_ns, seat.ended_ns, seat.disk, seat.root, seat.level


def _of_newest_run(looks: Sequence[Look]) -> tuple[list[Look], tuple[Seat, ...]]:
    """Leave out what is of an older run than the newest, and of one number in one place all but the newest."""
    newest = max(looks, key=lambda look: (look.seat.began_ns, look.seat.run)).seat.run
    own = [look for look in looks if look.seat.run == newest]
    own = own if newest else _without_a_break(own)
    last: dict[tuple[object, ...], Look] = {}
    for look in own:
        place = (look.seat.number, look.seat.of, look.seat.host, look.seat.disk, look.seat.root)
        before = last.get(place)
        if before is None or before.seat.began_ns <= look.seat.began_ns:
            last[place] = look
    chosen = {id(look) for look in last.values()}
    kept = [look for look in own if id(look) in chosen]
    seats = {look.seat for look in kept}  # one that was given twice is left out, and not worth a word
    return kept, tuple(look.seat for look in looks if id(look) not in chosen and look.seat not in seats)


def _without_a_break(looks: Sequence[Look]) -> list[Look]:
    """Keep of looks without a name those that belong to the newest: each begins soon after an earlier one ended."""
    kept: list[Look] = []
    ended = None
    for look in sorted(looks, key=lambda look: look.seat.began_ns):
        if ended is not None and look.seat.began_ns > ended + BREAK_NS:
            kept = []
        kept.append(look)
        ended = max(ended or 0, look.seat.ended_ns)
    chosen = {id(look) for look in kept}
    return [look for look in looks if id(look) in chosen]


def _copies(looks: Sequence[Look], paths: Collection[str]) -> dict[str, tuple[Copy, ...]]:
    """Return the looks at files of which there are several, but for those that saw on one disk what another one did.

    Args:
        looks: By number.
        paths: Which files have several.
    """
    found: defaultdict[str, list[tuple[Copy, bytes | None]]] = defaultdict(list)
    for look in looks:
        by_line: defaultdict[bytes | None, list[str]] = defaultdict(list)
        for path in look.answers.stamps:
            if path in paths:
                by_line[look.line(path)].append(path)
        for line, own in by_line.items():  # one after the other: a look keeps but a few of them in mind
            for path in own:
                stamp, known = look.answers.stamps[path], found[path]
                alike = [seen for seen in known if seen[0].seat.disk == look.seat.disk and seen[0].stamp == stamp]
                if line is None or all(line != other for _, other in alike):
                    report = look.told(path)
                    if all(copy.report != report for copy, _ in alike):
                        known.append((Copy(seat=look.seat, stamp=stamp, report=report), line))
    return {path: tuple(copy for copy, _ in known) for path, known in found.items()}


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


def _answers(looks: Sequence[Look], copies: dict[str, tuple[Copy, ...]]) -> Answers:
    together = Answers()
    failed: dict[tuple[str, str], Failure] = {}
    for look in looks:
        answers = look.answers
        together.stamps.update(answers.stamps)
        together.pieces.update(answers.pieces)
        for asked, failure in sorted(answers.failures.items()):
            failed[asked] = min(failed.get(asked, failure), failure)
    for path, several in copies.items():
        together.stamps[path] = _chosen(several).stamp
    together.entries.update(_listed(looks))
    _join_records(looks, together, failed)
    together.failures.update(failed)
    return together


def _listed(looks: Sequence[Look]) -> dict[str, tuple[Entry, ...]]:
    listed: defaultdict[str, dict[str, Kind]] = defaultdict(dict)
    for look in looks:
        for folder, entries in look.answers.entries.items():
            known = listed[folder]
            for name, kind in entries:
                known[name] = kind if name not in known else _either(known[name], kind)
    return {folder: tuple(sorted(starmap(Entry, known.items()))) for folder, known in listed.items()}


def _join_records(looks: Sequence[Look], together: Answers, failed: dict[tuple[str, str], Failure]) -> None:
    """Take the records that all who have them have alike; the others tell nothing, but for manifests, which join."""
    contents: defaultdict[str, set[bytes]] = defaultdict(set)
    for look in looks:
        for path, content in look.answers.files.items():
            contents[path].add(content)
            if is_manifest(path):
                together.by_host[path] = (*together.by_host.get(path, ()), (look.seat.host, content))
    for path, found in contents.items():
        if len(found) == 1:
            (together.files[path],) = found
        elif path not in together.by_host:  # whoever reads manifests joins them
            failed[FILE, path] = DIFFERENT


def _either(kind: Kind, other: Kind) -> Kind:
    """Return what counts where machines see different things under a name: never what is good by itself."""
    return max(kind, other, key=_KINDS.index)


_KINDS = (Kind.FILE, Kind.FOLDER, Kind.LOST, Kind.OTHER)
