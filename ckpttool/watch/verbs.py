"""Watching of a tree: detect each checkpoint as it is saved, read it completely, and report the result."""

from __future__ import annotations

import os
import queue
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.errors import (
    CkptToolError,
    LockedError,
    NotDurableError,
    UnknownLayoutError,
    UsageError,
    WriteFailedError,
)
from ckpttool.core.storage import is_local, open_storage
from ckpttool.core.storage.disk import LocalDisk
from ckpttool.core.storage.mounts import boot_id, mount_table
from ckpttool.core.storage.quotas import Quotas, owner_of, quotas_of
from ckpttool.core.verbs.scanning import Tree
from ckpttool.core.write.files import ensure_folder, locked
from ckpttool.core.write.files import replace as write
from ckpttool.watch.metrics import measured
from ckpttool.watch.model import (
    EventKind,
    Judge,
    Sighting,
    Watched,
    WatchEvent,
    WatchQuestion,
)
from ckpttool.watch.part_keeping import PartKeeping, part_keeping
from ckpttool.watch.reading import Read, Reading, is_cached
from ckpttool.watch.resumes import LogsRead, ResumeReading
from ckpttool.watch.rules import is_idle, judged, observe, still_bad, unreported, unseen
from ckpttool.watch.rules_resumes import accepted, resumed, still_wrong
from ckpttool.watch.rules_seen_saves import key_of
from ckpttool.watch.seeing import InPlace, assert_consistent, scans_often, sighting
from ckpttool.watch.state import WatchState, read_state, state_bytes, state_place

if TYPE_CHECKING:
    from ckpttool.core.domain.node import Space
    from ckpttool.watch.seeing import Moves

FULL_EVERY = 20
"""Number of polls after which all folders are listed regardless of times, because NFS may show times a minute late."""

QUOTA_SECONDS = 60.0
"""Seconds between two reads of quotas, which run programs."""

KEEP_SECONDS = 60.0
"""Seconds after which the state is written even without events. Without this, only the watch's clock would be lost."""


class Machine:
    """The clock of the watch. Tests replace it."""

    def boot(self) -> str:
        """Return an ID that is valid until this machine reboots."""
        return boot_id()

    def seconds(self) -> float:
        """Return seconds since boot. Clock changes do not affect them, and they do not advance during suspend."""
        return time.monotonic()

    def wall(self) -> float:
        """Return seconds since 1970."""
        return time.time()


class Watch:
    """A watch of one tree. `run` polls until `stop` is called."""

    def __init__(
        self,
        question: WatchQuestion,
        tell: Callable[[WatchEvent], None],
        note: Callable[[str], None],
        machine: Machine | None = None,
    ) -> None:
        """Store the question, the receiver of events, and the receiver of other problems.

        Args:
            question: The tree to watch, and the options.
            tell: Called with each event before the hook is run.
            note: Called with a sentence for the user.
            machine: The machine whose clock is used, or None for this machine.
        """
        self.question = question
        self.known = Watched()
        self.told: Counter[EventKind] = Counter()
        self.hook_failures = 0
        self.verified_bytes = 0
        self.polled_at: float | None = None
        self.norm: float | None = None
        self.free_bytes: ByteCount | None = None
        self._tell = tell
        self._note = note
        self._write_metrics: Callable[[], None] = lambda: None
        self._machine = machine or Machine()
        self._rule = replace(question.rule, seal=question.seal)
        self._stopping = False
        self._mail: queue.SimpleQueue[Read | LogsRead | None] = queue.SimpleQueue()
        """Results of reads. None is a request to check whether to stop."""
        self._logs = ResumeReading(question, self._mail.put)
        self._reading: Reading | None = None
        self._waiting: list[Judge] = []
        self._is_idle = False
        """Whether the last poll found no change."""
        self._polls = 0
        self._tree: Tree | None = None
        self._listed: Moves | None = None
        self._last = Sighting(saves=())
        self._files: InPlace | None = None
        self._place: str | None = None
        self._held, self._also_held = ExitStack(), ""
        self._offset = 0.0
        self._last_saved: tuple[Watched, float] | None = None
        self._open_problems: dict[str, str] = {}
        """Current problems that were reported, by subject."""
        self._part: PartKeeping | None = None
        self._quotas = Quotas(())
        self._quotas_read: float | None = None

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Take the lock of this tree's watch, and load the last saved state.

        Raises:
            LockedError: This user is already watching the tree on this machine.
            UsageError: There is no folder for the state.
            WriteFailedError: The state cannot be written.
        """
        root = self.question.tree.path or "."
        place = state_place(root, self.question.environment or os.environ, table=mount_table())
        if place is None:
            raise UsageError("there is no folder for the state of the watch: set XDG_STATE_HOME to a folder")
        try:
            ensure_folder(os.path.dirname(place))
        except WriteFailedError as error:
            raise WriteFailedError(f"{error}; set XDG_STATE_HOME to a folder for the state of the watch") from None
        with _alone(place, root), self._held, measured(self) as self._write_metrics:
            self._recall(place)
            self._keep()
            self._write_metrics()
            self._part = part_keeping(self.question, self._report_problem)
            try:
                yield
            finally:
                if self._reading is not None:
                    self._reading.leave()
                self._keep(always=True)

    def stop(self) -> None:
        """End after the current event. Safe to call in a signal handler."""
        self._stopping = True
        self._mail.put(None)  # among the ways to wake a thread, only this one is reentrant

    def run(self) -> None:
        """Poll until `stop` is called, or once.

        Raises:
            CkptToolError: With `once`, the tree cannot be listed or read.
        """
        while not self._stopping:
            before = self.known
            self.poll()
            self._measure()
            until = self._machine.seconds() + self.question.every  # a pause for a slow disk
            if self.question.once:
                self.finish_reading()
                self._keep_part()
                if self._part is None:
                    remaining_faults = (*still_bad(before, self.known), *still_wrong(before, self.known))
                    for text in (*remaining_faults, *unreported(self.known, self._rule)):
                        self._note(text)
                return
            while (remaining := until - self._machine.seconds()) > 0 and not self._stopping:
                self._take(remaining)

    def poll(self) -> None:
        """Poll once, report the events, and begin to read complete saves."""
        while not self._stopping and self._take(0):
            pass
        current, now = self._observed(), self._now()
        self.polled_at = self._machine.wall()
        self._keep_part(moved=not self._is_idle)
        if isinstance(current, str):
            self._tell_and_keep(*unseen(self.known, self._rule, current, now=now))
            return
        watched, actions = observe(self.known, current, self._rule, now=now)
        self._tell_and_keep(watched, tuple(action for action in actions if isinstance(action, WatchEvent)))
        self._waiting = [action for action in actions if isinstance(action, Judge) and not self._is_needless(action)]
        self._begin_reading()
        if self._tree is not None and self._part is None:
            self._logs.begin(self._tree, is_idle=self._is_idle)

    def _is_needless(self, judge: Judge) -> bool:
        """Return whether a save is already being read, or does not need an early read while nothing changes."""
        if judge.early and self._is_idle:
            return True
        being_read = None if self._reading is None else self._reading.requested
        return being_read is not None and (judge.key, judge.fingerprint) == (being_read.key, being_read.fingerprint)

    def finish_reading(self) -> None:
        """Wait until all waiting saves and the logs are read."""
        while (self._reading is not None or self._logs.is_running) and not self._stopping:
            self._take(None)

    # Observation.

    def _observed(self) -> Sighting | str:
        """Return the current observation, or the reason if none is possible. A reason is reported once."""
        self._polls += 1
        self._is_idle = False
        try:
            self._is_idle = self._is_unmoved()
            if self._is_idle:
                self._last = replace(self._last, free_bytes=self._free(), spaces=self._spaces())
                return self._last
            tree, self._listed = scans_often(replace(self.question.tree, sizes=True))
            assert_consistent(self.question, tree)
            self._tree = tree
        except UnknownLayoutError as error:
            if self._is_only_poll:
                raise
            self._report_problem(
                "tree", f"{error}: waiting for the first checkpoint" if not self.known.saves else str(error)
            )
            return str(error)
        except (CkptToolError, OSError) as error:
            is_meant = self._tree is None and isinstance(error, UsageError)  # a path that appeared later
            if self._is_only_poll or is_meant:
                raise
            self._report_problem("tree", f"{error}; the next poll tries again")
            return str(error)
        self._open_problems.pop("tree", None)
        self._hold(self._tree)
        self._last = self._sighting(self._tree, self._listed)
        return self._last

    def _hold(self, tree: Tree) -> None:
        """Prevent a second watch of this tree under another name, such as the folder above it.

        Raises:
            LockedError: Another watch of that tree is running.
        """
        root = tree.inventory.root
        place = state_place(root, self.question.environment or os.environ, table=mount_table())
        if tree.machines.is_here and place is not None and place not in {self._place, self._also_held}:
            self._held.close()
            self._held.enter_context(_alone(place, root))
            self._also_held = place

    @property
    def _is_only_poll(self) -> bool:
        """Whether only this single poll can report an unreadable tree. A part reports that itself."""
        return self.question.once and self._part is None

    def _sighting(self, tree: Tree, listed: Moves) -> Sighting:
        if not tree.machines.is_here:
            self._rule = replace(self._rule, again=0.0)  # the machine with the files reads them again
        self._files = InPlace(tree, 0 if self._files is None else self._files.turn)
        current = sighting(tree, listed, self.question, self.known, self._machine.wall())
        return replace(current, free_bytes=self._free(), spaces=self._spaces())

    def _keep_part(self, *, moved: bool = False) -> None:
        if self._part is not None:
            self._part.keep(self._reading, moved=moved)

    def _is_unmoved(self) -> bool:
        """Return whether the last observation is still valid. This costs much less than a scan."""
        if self._listed is None or self._files is None or self._polls % FULL_EVERY == 0 or not is_idle(self.known):
            return False
        return not self._listed.moved() and not self._files.moved()

    def _free(self) -> ByteCount | None:
        if self._tree is not None and is_local(self._tree.storage.root):
            with suppress(OSError):
                self.free_bytes = ByteCount(LocalDisk().room(self._tree.storage.root).free_bytes)
        return self.free_bytes

    def _spaces(self) -> tuple[Space, ...]:
        """Return the limits on the next save, if a limit is watched. Quotas are read at most once a minute."""
        if self._tree is None or self._rule.free_below is None:
            return ()
        root, now = self._tree.inventory.root, self._machine.seconds()
        shard = next((save.shards[0].path for save in self._tree.inventory.checkpoints if save.shards), None)
        try:
            disk = LocalDisk().space(root)
            if self._quotas_read is None or now - self._quotas_read >= QUOTA_SECONDS:
                self._quotas_read, self._quotas = now, quotas_of(root, owner_of(root, shard), table=mount_table())
        except OSError as error:
            self._report_problem("space", f"the free space is unknown: {error.strerror or error}")
            return ()
        self._report_problem("space", "; ".join(self._quotas.troubles))
        return disk, *self._quotas.spaces

    def _report_problem(self, about: str, text: str) -> None:
        """Report a problem once, as long as it persists."""
        if text and text != self._open_problems.get(about):
            self._note(text)
        self._open_problems[about] = text

    # Reading.

    def _begin_reading(self) -> None:
        """Read the first waiting save, unless a read is in progress."""
        while self._reading is None and self._waiting and not self._stopping:
            judge = self._waiting.pop(0)
            tree = self._tree
            checkpoints = (
                []
                if tree is None
                else [checkpoint for checkpoint in tree.inventory.checkpoints if key_of(checkpoint) == judge.key]
            )
            if tree is None or not checkpoints or (judge.early and is_cached(tree, checkpoints[0]) is not False):
                continue
            reading_tree = replace(tree, storage=open_storage(tree.storage.root))  # which does not cache a listing
            self._reading = Reading(self.question, reading_tree, checkpoints[0], judge, self._mail.put)

    def _take(self, seconds: float | None) -> bool:
        """Wait for the current read, and report the result. Return False on a timeout."""
        try:
            read = self._mail.get(timeout=seconds)
        except queue.Empty:
            return False
        if read is None:
            return True
        if isinstance(read, LogsRead):
            self._finish_logs(read)
        else:
            self._finish(read)
        self._measure()
        return True

    def _finish(self, read: Read) -> None:
        self._keep_part()
        self._reading = None
        for text in read.notes:
            self._note(text)
        self.verified_bytes += read.bytes_read
        if isinstance(read.error, (CkptToolError, OSError)) and not self.question.once:
            self._report_problem("reading", f"{read.error}; the next poll tries again")
        elif read.error is not None:
            raise read.error
        else:
            self._open_problems.pop("reading", None)
        if read.judgement is not None:
            self.norm = self.norm if read.judgement.norm is None else read.judgement.norm
            self._tell_and_keep(*judged(self.known, read.judgement))
        self._begin_reading()

    def _finish_logs(self, read: LogsRead) -> None:
        self._logs.is_running = False
        error = read.error
        if error is None:
            self._open_problems.pop("resume", None)
        elif isinstance(error, UsageError) and self.question.once and self.question.logs.patterns:
            raise error
        elif isinstance(error, (CkptToolError, OSError)):
            self._report_problem("resume", f"the logs do not show whether the training resumed as planned: {error}")
        else:
            raise error
        if read.resume is not None:
            self._tell_and_keep(*resumed(self.known, read.resume))

    # Reports.

    def _tell_and_keep(self, watched: Watched, events: tuple[WatchEvent, ...]) -> None:
        """Report the events, and only then mark them as reported, because an interrupt may come at any moment."""
        for event in events:
            if self._part is not None and event.kind not in {EventKind.DISK_SPACE_LOW, EventKind.ROOM_LOW}:
                continue  # a part of a save has nothing else to report
            if self._stopping:  # the next watch reports it: a hook may take a minute
                return
            self._announce(event)
        self.known = watched
        self._keep()

    def _announce(self, event: WatchEvent) -> None:
        from hashlib import sha256

        requested = self.question.tree.path or "."
        root = requested if self._tree is None else self._tree.inventory.root
        place = root if self._tree is None or self._tree.machines.is_here else requested
        identity = f"{os.path.realpath(place)}\0{event.kind.value}\0{event.subject}"
        reported = replace(
            event,
            root=root,
            id=sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:32],
            at=self._machine.wall(),
        )
        self._tell(reported)
        self.told[event.kind] += 1
        if not self.question.hook:
            return
        from ckpttool.watch.hooks import run_hook

        failure = run_hook(self.question.hook, reported, self.question.environment or os.environ)
        if failure is not None:
            self.hook_failures += 1
            self._note(f"the hook of {reported.kind.value} {reported.name or root} {failure}")

    def _measure(self) -> None:
        """Write the metrics. If that fails, the age of the metrics shows the failure."""
        try:
            self._write_metrics()
        except (WriteFailedError, NotDurableError) as error:
            self._report_problem("metrics", f"{error}; the watch continues")
        else:
            self._open_problems.pop("metrics", None)

    # Stored state.

    def _now(self) -> float:
        return self._machine.seconds() + self._offset

    def _recall(self, place: str) -> None:
        self._place, state = place, read_state(place)
        if state is None:
            self._offset = -self._machine.seconds()
            return
        self.known = accepted(state.watched, self.question.allowed)
        same = bool(state.boot) and state.boot == self._machine.boot()
        passed = self._machine.seconds() - state.seconds if same else self._machine.wall() - state.wall
        self._offset = self.known.now + max(0.0, passed) - self._machine.seconds()

    def _keep(self, *, always: bool = False) -> None:
        """Save the state after events. The state contains a reported event once the event's hook ran.

        If the disk refuses the write, the watch continues, and the next watch reports the unsaved events again.
        """
        if self._place is None:
            return
        now, watched = self._now(), replace(self.known, now=0.0)
        if (
            not always
            and self._last_saved is not None
            and self._last_saved[0] == watched
            and now - self._last_saved[1] < KEEP_SECONDS
        ):
            return
        state = WatchState(
            watched=replace(self.known, now=max(now, self.known.now)),
            boot=self._machine.boot(),
            seconds=self._machine.seconds(),
            wall=self._machine.wall(),
        )
        try:
            write(self._place, state_bytes(state), overwrite=True, backup=False)
        except (WriteFailedError, NotDurableError) as error:
            if self._last_saved is None:
                raise
            self._report_problem(
                "state", f"{error}; the watch continues, and the next watch will report these events again"
            )
            return
        self._open_problems.pop("state", None)
        self._last_saved = watched, now


@contextmanager
def _alone(place: str, root: str) -> Iterator[None]:
    """Lock a watch's state while the context is open.

    Raises:
        LockedError: Another watch of that tree is running.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(place, timeout=0))
        except LockedError:
            why = "is watched already, by this user on this machine: one watch is enough"
            raise LockedError(f"{root} {why}") from None
        yield
