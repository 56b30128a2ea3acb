"""A kill and every error at every system call of every writer, and what must hold afterwards."""

from __future__ import annotations

import itertools
import re
import shutil
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

from ckpttool.core.errors import ExitCode
from tests.reliability.traced import ERRNOS, KILL, Call, Point, Run, traced, untraced
from tests.reliability.warm import Warm
from tests.reliability.writers import TEMPORARY, State, Writer, newest_good, same, state, torn, without_trash

MUTATING = re.compile(
    r"(write|pwrite64|writev|fsync|fdatasync|rename\w*|link\w*|symlink\w*|unlink\w*|mkdir\w*|rmdir|f?chmod\w*|ftruncate)$"
)
"""Calls that change a disk, or wait until it has changed; so does an open that creates."""

WORKERS = 2


@dataclass
class Bench:
    """One writer, undisturbed: what it begins with, what it ends with, which calls it makes."""

    writer: Writer
    folder: Path
    before: State = field(default_factory=dict)
    after: State = field(default_factory=dict)
    run: Run | None = None
    newest: set[str | None] = field(default_factory=set)
    """What may be resumed from, before and afterwards."""

    def prepare(self, warm: Warm) -> None:
        """Make the tree, and run the command once on a copy."""
        template = self.folder / "template"
        template.mkdir(parents=True)
        self.writer.make(template)
        place = self.place("undisturbed")
        self.begins(place)
        # Twice: what is loaded from disk at the first use must not be counted.
        self.go(warm, place, None)
        place = self.place("undisturbed")
        self.run = self.go(warm, place, None)
        self.ends(place)

    def begins(self, place: Path) -> None:
        """Take down the tree as it is before the command."""
        self.before, self.newest = state(place), {newest_good(place)}

    def ends(self, place: Path) -> None:
        """Take down the tree as the undisturbed command left it."""
        self.after = state(place)
        self.newest.add(newest_good(place))
        assert not same(self.writer, self.before, self.after), "a writer that writes nothing proves nothing"

    def place(self, name: str) -> Path:
        """Make a fresh copy of the tree to run in."""
        place = self.folder / name
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.folder / "template", place, symlinks=True)
        return place

    def go(self, warm: Warm, place: Path, point: Point | None) -> Run:
        """Run the command under strace."""
        scratch = self.folder / f"{place.name}.scratch"
        return traced(warm, self.writer.argv, cwd=place, scratch=scratch, env=self._env(place), point=point)

    def go_free(self, warm: Warm, place: Path) -> Run:
        """Run the command with nobody watching."""
        scratch = self.folder / f"{place.name}.scratch"
        return untraced(warm, self.writer.argv, cwd=place, scratch=scratch, env=self._env(place))

    def _env(self, place: Path) -> dict[str, str]:
        env = {"XDG_CACHE_HOME": str(self.folder / "other-cache"), **self.writer.env}
        return {name: value.format(cwd=place) for name, value in env.items()}

    @property
    def calls(self) -> Sequence[Call]:
        assert self.run is not None
        return self.run.calls


def changes_the_disk(call: Call) -> bool:
    """Whether a call can; writing to the terminal is no change."""
    if call.name == "openat":
        return "O_CREAT" in call.line
    return bool(MUTATING.match(call.name)) and not re.match(r"write\([12]<", call.line)


def stops(calls: Sequence[Call], *, everything: bool) -> Iterator[Point]:
    """Choose where it is killed: everywhere, or before each call that changes the disk, for between those nothing does.

    Everything: also by the signals that a scheduler and a person send, before each call that changes the disk.
    """
    for call in calls:
        changing = changes_the_disk(call)
        if everything or changing:
            yield Point(call, KILL)
        if everything and changing:
            yield from (Point(call, name) for name in ("SIGTERM", "SIGINT", "SIGHUP"))


def errors(calls: Sequence[Call], *, everything: bool) -> Iterator[Point]:
    """Choose what fails: everything everywhere, and what stays broken where the disk is to change.

    Else one error at each call that changes the disk and at every fortieth other, each as often as the others.
    """
    turns = itertools.cycle(ERRNOS)
    for index, call in enumerate(calls):
        changing = changes_the_disk(call)
        some = ERRNOS if everything else [next(turns)] * (changing or index % 40 == 0)
        for error in some:
            yield Point(call, error)
        if everything and changing:
            yield from (Point(call, error, for_good=True) for error in ("ENOSPC", "EIO", "EROFS"))


@dataclass(frozen=True)
class Outcome:
    """What came of one point."""

    hit: bool
    """Whether it really happened. With threads a call may be another one's turn, or not come at all."""
    wrong: tuple[str, ...]


def tried(bench: Bench, chosen: Sequence[Point]) -> tuple[int, list[str]]:
    """Try every point, two at a time, and return how many happened and what came out wrong."""
    servers: SimpleQueue[tuple[int, Warm]] = SimpleQueue()

    def one(point: Point) -> Outcome:
        number, warm = servers.get()
        try:
            return _outcome(bench, warm, point, f"at-{number}")
        finally:
            servers.put((number, warm))

    with ExitStack() as stack:
        for number in range(WORKERS):
            servers.put((number, stack.enter_context(closing(Warm()))))
        with ThreadPoolExecutor(WORKERS) as pool:
            outcomes = list(pool.map(one, chosen))
    return sum(each.hit for each in outcomes), [wrong for each in outcomes for wrong in each.wrong]


def _outcome(bench: Bench, warm: Warm, point: Point, name: str) -> Outcome:
    place = bench.place(name)
    run = bench.go(warm, place, point)
    now = state(place)
    wrong = [*judged(bench, run, now, point), *judged_next(bench, warm, place)]
    assert bench.run is not None
    hit = run.code != bench.run.code if point.is_signal else bool(run.met)
    return Outcome(hit, tuple(f"{bench.writer.name}, {point}: {each}" for each in wrong))


def judged_next(bench: Bench, warm: Warm, place: Path) -> Iterator[str]:
    """Say what is wrong with what comes afterwards: what `resolve` takes, and where the same command again ends."""
    if newest_good(place) not in bench.newest:
        yield f"resolve then takes {newest_good(place)} instead of {bench.newest}"
    again = bench.go_free(warm, place)
    assert bench.run is not None
    if again.code != bench.run.code or not same(bench.writer, _no_backup(state(place)), _no_backup(bench.after)):
        yield f"run again: exit {again.code}, {again.stderr.strip()!r}, {_differences(bench, state(place))}"


def _no_backup(found: State) -> dict[str, bytes]:
    """Leave backups out: where the first run got as far as the new file, that is what the second one keeps."""
    return {path: content for path, content in found.items() if not path.endswith(".bak")}


def _differences(bench: Bench, found: State) -> list[str]:
    return [path for path in {*found, *bench.after} if found.get(path) != bench.after.get(path)][:5]


def judged(bench: Bench, run: Run, now: State, point: Point) -> Iterator[str]:
    """Say what is wrong with how a command ended that something happened to."""
    assert bench.run is not None
    yield from torn(bench.writer, bench.before, now, bench.after)
    odd = bench.writer.between(bench.before, now, bench.after)
    if odd is not None:
        yield odd
    if not point.is_signal:
        yield from _judged_end(bench, run, now)
        yield from _judged_words(bench, run)
        return
    # Ctrl-C ends a command in an orderly way; the other signals end the process at once.
    expected = {"SIGINT": ExitCode.INTERRUPTED}.get(point.fault, -signal.Signals[point.fault])
    if run.code not in {expected, bench.run.code}:
        yield f"exit {run.code}: {run.stderr.strip()!r}"


def _judged_end(bench: Bench, run: Run, now: State) -> Iterator[str]:
    """Compare what the exit code says with what is there."""
    assert bench.run is not None
    done, good = same(bench.writer, now, bench.after), bench.run.code
    left = [path for path in now if TEMPORARY.fullmatch(path)]
    if left and not any(call.name.startswith("unlink") for call in run.met):
        yield f"leaves {left}"
    if run.code == good and not done and not bench.writer.less(bench.before, now, bench.after):
        yield f"says it is done (exit {run.code}), but it is not: {_differences(bench, now)}"
    if run.code == good and done and run.stdout.partition("\n")[0] != bench.run.stdout.partition("\n")[0]:
        yield f"says {run.stdout.splitlines()[:1]}"
    if run.code == ExitCode.NOT_DURABLE and not (done or same(bench.writer, without_trash(now), bench.after)):
        yield f"exit 16, but {_differences(bench, now)}"


def _judged_words(bench: Bench, run: Run) -> Iterator[str]:
    """Whatever stopped it is said in a line, and by the right code."""
    assert bench.run is not None
    # A config that cannot be read is a usage error.
    if run.code not in set(ExitCode) or (run.code == ExitCode.USAGE and "cannot read the config" not in run.stderr):
        yield f"exit {run.code}: {run.stderr.strip()!r}"
    if run.code != bench.run.code and not run.stderr.strip() and all(call.name != "write" for call in run.met):
        yield f"exit {run.code} without a word"
    # Where its own modules cannot be read it can say no more than that.
    ours = all(call.is_in(bench.folder) for call in run.met)
    if "Traceback" in run.stderr or ("internal error" in run.stderr and ours):
        yield f"exit {run.code}: {run.stderr.strip()!r}"
