"""Watch a tree: see each checkpoint as it lands, read it when it has come to rest, and tell what it is."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ckpttool.api.scanning import Tree, scans_often
from ckpttool.api.sealing import seal
from ckpttool.api.verifying import session_for, watched
from ckpttool.decide.watching import is_idle, judged, observe
from ckpttool.domain.checkpoint import Checkpoint
from ckpttool.domain.finding import Code, Finding, blocking
from ckpttool.domain.frozen import replace
from ckpttool.domain.progress import newest_first
from ckpttool.domain.question import CheckQuestion
from ckpttool.domain.units import ByteCount
from ckpttool.domain.verdict import Level, Verdict
from ckpttool.domain.watching import (
    Judge,
    Judgement,
    SeenSave,
    Sighting,
    Watched,
    WatchEvent,
    WatchQuestion,
)
from ckpttool.errors import CkptToolError, LockedError, UnknownLayoutError, UsageError
from ckpttool.records.watch_state import WatchState, read_state, state_bytes, state_place
from ckpttool.storage import is_local, open_storage
from ckpttool.storage.disk import LocalDisk
from ckpttool.storage.mounts import boot_id, disk_identity, mount_table
from ckpttool.storage.stream import was_cached
from ckpttool.verify.meter import Pace
from ckpttool.write.files import ensure_folder, locked
from ckpttool.write.files import replace as write

if TYPE_CHECKING:
    from ckpttool.domain.shard import FileStamp
    from ckpttool.storage.listed import ListedStorage

FULL_EVERY = 20
"""Polls after which all folders are listed whatever their times say: NFS shows these up to a minute late."""

STAMPS_A_POLL = 2048
"""Files of known saves that an idle poll looks at, all of them in turn: what is written in place moves no folder."""

KEEP_SECONDS = 60.0
"""After which the state is written though nothing happened: only the watch's clock would be lost."""

LEDGER_SECONDS = 86400.0
"""For which an earlier check of an unchanged file is trusted when a save is read for the first time."""

PROBED = 64
"""Shards that tell whether a save is still in memory."""

_INCOMPLETE = frozenset({
    Code.RANK_MISSING, Code.SHARD_MISSING, Code.SHARD_ELSEWHERE, Code.SHARD_EMPTY, Code.SHARD_TRUNCATED,
    Code.UNCOMMITTED_SAVE, Code.METADATA_INCOMPLETE, Code.UNREADABLE,
})  # fmt: skip
"""What a listing shows of a save that is under way."""


class Machine:
    """Time as the watch sees it; tests have one of their own."""

    def boot(self) -> str:
        """Return a word that holds until this machine starts anew."""
        return boot_id()

    def seconds(self) -> float:
        """Return seconds since it started, sleep included: no change of the clock moves them."""
        clock = getattr(time, "CLOCK_BOOTTIME", None)
        return time.monotonic() if clock is None else time.clock_gettime(clock)

    def wall(self) -> float:
        """Return seconds since 1970."""
        return time.time()


class Watch:
    """One watch of one tree. `run` polls until somebody calls `stop`."""

    def __init__(
        self,
        question: WatchQuestion,
        tell: Callable[[WatchEvent], None],
        note: Callable[[str], None],
        machine: Machine | None = None,
    ) -> None:
        """Take what to watch, who is told, and who hears what goes wrong beside.

        Args:
            question: Which tree, and how.
            tell: Called with each event before the hook is run.
            note: Called with a sentence for people.
            machine: Whose clock counts; None: this one's.
        """
        self.question = question
        self.known = Watched()
        self.hook_failures = 0
        self.verified_bytes = 0
        self.free_bytes: ByteCount | None = None
        self._tell = tell
        self._note = note
        self._machine = machine or Machine()
        self._stopping = threading.Event()
        self._polls = 0
        self._tree: Tree | None = None
        self._listed: ListedStorage | None = None
        self._last = Sighting(saves=())
        self._stamps: list[tuple[str, FileStamp]] = []
        self._next_stamp = 0
        self._place: str | None = None
        self._offset = 0.0
        self._kept: tuple[Watched, float] | None = None
        self._said: str | None = None

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Hold the lock of this tree's watch, and know what the last one knew.

        Raises:
            LockedError: The tree is watched already, by this user on this machine.
            UsageError: There is nowhere to keep the state.
            WriteFailedError: The state cannot be written.
        """
        root = self.question.tree.path or "."
        disk = disk_identity(root, table=mount_table(), boot=boot_id())
        place = state_place(root, self.question.environment or os.environ, disk=disk)
        if place is None:
            raise UsageError("there is no place for what the watch must remember: set XDG_STATE_HOME to a folder")
        ensure_folder(os.path.dirname(place))
        try:
            with locked(place, timeout=0):
                self._recall(place)
                try:
                    yield
                finally:
                    self._keep(always=True)
        except LockedError:
            raise LockedError(f"{root} is watched already, by this user on this machine: one watch is enough") from None

    def stop(self) -> None:
        """End after what is being read; safe in a signal handler."""
        self._stopping.set()

    def run(self) -> None:
        """Poll until `stop` is called, or once.

        Raises:
            CkptToolError: With `once`, the tree cannot be listed; or the state cannot be written.
        """
        while not self._stopping.is_set():
            began = self._machine.seconds()
            self.poll()
            if self.question.once:
                return
            self._stopping.wait(max(0.0, self.question.every - (self._machine.seconds() - began)))

    def poll(self) -> None:
        """Look once, read what has come to rest, and tell what there is to tell."""
        began = self._machine.seconds()
        seen = self._look()
        if seen is None:
            return
        self.known, actions = observe(self.known, seen, self.question.rule, now=self._now())
        for action in actions:
            if isinstance(action, WatchEvent):
                self._announce(action)
        self._keep()
        for asked in (action for action in actions if isinstance(action, Judge)):
            self._judge(asked)
            late = self._machine.seconds() - began >= self.question.every and not self.question.once
            if late or self._stopping.is_set():
                return  # whoever waits is read at the next poll, behind what has come meanwhile

    # What is seen.

    def _look(self) -> Sighting | None:
        """Return what there is to see now; None where it cannot be seen, which is said once."""
        self._polls += 1
        try:
            if self._is_unmoved():
                self._last = replace(self._last, free_bytes=self._free())
                return self._last
            tree, self._listed = scans_often(replace(self.question.tree, sizes=True))
            # What is read must not tell the list of folders that they were listed.
            self._tree = replace(tree, storage=open_storage(tree.inventory.root))
        except UnknownLayoutError as error:
            if self.question.once:
                raise
            self._say(f"{error}: waiting for the first checkpoint" if not self.known.saves else str(error))
            return None
        except (CkptToolError, OSError) as error:
            if self.question.once or isinstance(error, UsageError):
                raise
            self._say(f"{error}; the next poll looks again")
            return None
        self._said = None
        ordered = newest_first(tree.inventory.checkpoints)
        self._stamps = [(shard.path, shard.stamp) for each in ordered for shard in each.shards if shard.stamp]
        wall = self._machine.wall()
        saves = tuple(_seen(checkpoint, wall) for checkpoint in ordered)
        self._last = Sighting(saves=saves, whole=not tree.inventory.unlisted, free_bytes=self._free())
        return self._last

    def _is_unmoved(self) -> bool:
        """Tell whether the last sighting still holds, at a small part of a scan's cost."""
        if self._listed is None or self._polls % FULL_EVERY == 0 or not is_idle(self.known):
            return False
        return not self._listed.moved() and not self._is_written()

    def _is_written(self) -> bool:
        """Tell whether one of the files whose turn it is was written in place."""
        storage, count = open_storage(self._tree.inventory.root) if self._tree else None, len(self._stamps)
        for _ in range(min(STAMPS_A_POLL, count)):
            path, stamp = self._stamps[self._next_stamp % count]
            self._next_stamp += 1
            try:
                if storage is None or storage.stamp(path) != stamp:
                    return True
            except OSError:
                return True
        return False

    def _free(self) -> ByteCount | None:
        root = self._tree.inventory.root if self._tree else ""
        if root and is_local(root):
            with suppress(OSError):
                self.free_bytes = ByteCount(LocalDisk().room(root).free_bytes)
        return self.free_bytes

    def _say(self, text: str) -> None:
        if text != self._said:
            self._note(text)
        self._said = text

    # What is read.

    def _judge(self, asked: Judge) -> None:
        """Read a save, and tell what it is if it still is as it was."""
        tree = self._tree
        found = [] if tree is None else [each for each in tree.inventory.checkpoints if _key(each) == asked.key]
        if tree is None or not found:
            return
        cached = _is_cached(tree, found[0]) if self.question.level > Level.STRUCTURE else None
        verdict = self._verdict(tree, found[0], cold=asked.cold)
        if verdict is None or not _is_as_it_was(tree, found[0]):
            return  # the next poll sees what became of it
        self.verified_bytes += verdict.bytes_read
        findings, sealed = verdict.findings, False
        if self.question.seal and not asked.cold and not blocking(findings):
            sealed, against = self._seal(tree, found[0])
            findings = (*findings, *against)
        self.known, events = judged(
            self.known, Judgement(asked=asked, word=verdict.word, findings=findings, cached=cached, sealed=sealed)
        )
        for event in events:
            self._announce(event)
        self._keep()

    def _verdict(self, tree: Tree, checkpoint: Checkpoint, *, cold: bool) -> Verdict | None:
        """Read one save with one worker; None where it was stopped between two shards."""
        max_age = None if cold else LEDGER_SECONDS
        question = CheckQuestion(level=self.question.level, jobs=1, max_age=max_age, replicas=False)
        with watched(Pace(self.question.max_rate)):
            session = session_for(tree, question)
            try:
                for event in session.events(checkpoint):
                    if isinstance(event, Verdict):
                        return event
                    if self._stopping.is_set():
                        return None
            finally:
                session.close()
        return None

    def _seal(self, tree: Tree, checkpoint: Checkpoint) -> tuple[bool, tuple[Finding, ...]]:
        """Record what it is, and return whether that is done and what it differs from."""
        try:
            sealings = seal(tree, (checkpoint.name,), jobs=1).answer().sealings
        except CkptToolError as error:
            self._note(f"{checkpoint.name} is not sealed: {error}")
            return False, ()
        against = tuple(finding for sealing in sealings for finding in sealing.findings)
        return all(sealing.manifest is not None for sealing in sealings), against

    # What is told.

    def _announce(self, event: WatchEvent) -> None:
        from hashlib import sha256

        root = self._tree.inventory.root if self._tree else self.question.tree.path or "."
        what = f"{os.path.realpath(root)}\0{event.kind.value}\0{event.subject}"
        told = replace(
            event,
            root=root,
            id=sha256(what.encode("utf-8", "surrogateescape")).hexdigest()[:32],
            at=self._machine.wall(),
        )
        self._tell(told)
        if not self.question.hook:
            return
        from ckpttool.api.watch_hooks import run_hook

        failure = run_hook(self.question.hook, told, self.question.environment or os.environ)
        if failure is not None:
            self.hook_failures += 1
            self._note(f"the hook of {told.kind.value} {told.name or root} {failure}")

    # What is remembered.

    def _now(self) -> float:
        return self._machine.seconds() + self._offset

    def _recall(self, place: str) -> None:
        self._place, state = place, read_state(place)
        if state is None:
            self._offset = -self._machine.seconds()
            return
        self.known = state.watched
        same = bool(state.boot) and state.boot == self._machine.boot()
        passed = self._machine.seconds() - state.seconds if same else self._machine.wall() - state.wall
        self._offset = self.known.now + max(0.0, passed) - self._machine.seconds()

    def _keep(self, *, always: bool = False) -> None:
        """Write the state down where something happened; what was told is in it once its hook ran."""
        if self._place is None:
            return
        now, known = self._now(), replace(self.known, now=0.0)
        if not always and self._kept is not None and self._kept[0] == known and now - self._kept[1] < KEEP_SECONDS:
            return
        state = WatchState(
            watched=replace(self.known, now=max(now, self.known.now)),
            boot=self._machine.boot(),
            seconds=self._machine.seconds(),
            wall=self._machine.wall(),
        )
        write(self._place, state_bytes(state), overwrite=True, backup=False)
        self._kept = known, now


def _key(checkpoint: Checkpoint) -> str:
    return "/".join(checkpoint.key)


def _seen(checkpoint: Checkpoint, wall: float) -> SeenSave:
    from hashlib import sha256

    stamps = ((shard.path, shard.stamp) for shard in checkpoint.shards)
    files = sorted((path, None if stamp is None else (stamp.size, stamp.token)) for path, stamp in stamps)
    saved = checkpoint.saved_ns
    return SeenSave(
        key=_key(checkpoint),
        name=checkpoint.name,
        step=checkpoint.step,
        fingerprint=sha256(repr(files).encode("utf-8", "surrogateescape")).hexdigest()[:32],
        incomplete=tuple(finding for finding in blocking(checkpoint.findings) if finding.code in _INCOMPLETE),
        nbytes=checkpoint.nbytes,
        age=None if saved is None else max(0.0, wall - saved / 1e9),
    )


def _is_as_it_was(tree: Tree, checkpoint: Checkpoint) -> bool:
    """Tell whether all files of a save are still those that the listing saw: retention may take it while it is read."""
    try:
        return all(tree.storage.stamp(shard.path) == shard.stamp for shard in checkpoint.shards)
    except OSError:
        return False


def _is_cached(tree: Tree, checkpoint: Checkpoint) -> bool | None:
    """Tell whether most of a save is in memory, so that reading it says nothing of the disk; None: nobody knows."""
    told = []
    for shard in checkpoint.shards[:: 1 + len(checkpoint.shards) // PROBED]:
        if not is_local(tree.inventory.root) or shard.stamp is None:
            return None
        with suppress(OSError), open(tree.inventory.path_of(shard.path), "rb") as file:
            told.append(was_cached(file.fileno(), 0, shard.stamp.size))
    known = [each for each in told if each is not None]
    return sum(known) * 2 > len(known) if known else None
