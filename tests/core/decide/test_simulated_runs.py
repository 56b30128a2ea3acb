"""Trees that simulated trainings leave behind: the truth is what the runs did, not what names or numbers say.

Runs go on from a save or go back to one, with the batch size of before or another, and are cut off while they save. The
names, counters and times are those that MindFormers gives. What is chosen must be whole and of one save, on the way
that the training took last, and no older than necessary.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import ckpttool
from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.plan import NoResumePoint
from ckpttool.types import DataQuestion, ResumeQuestion, TreeQuestion
from tests.support.trees import MINUTE_NS, TreeBuilder

WORLD = 3
FIRST_BATCH = 8
INTERVAL = 4 * FIRST_BATCH
"""Samples from one save to the next, or a little less."""


@dataclass(eq=False)
class Save:
    """One save of one run."""

    step: int
    batch: int
    before: Save | None
    """What the training had saved last when it came here."""
    files: set[str] = field(default_factory=set)
    """What is on disk of it, whole; relative to the checkpoint folder."""

    @property
    def samples(self) -> int:
        return self.step * self.batch

    def way(self) -> list[Save]:
        """This save and those that the training came by, newest first."""
        return [self, *(self.before.way() if self.before is not None else [])]


@dataclass(frozen=True)
class Run:
    """What one start of the training does."""

    back: int
    """Saves that it goes back from the newest whole one."""
    batch: int
    saves: int
    cut_on: frozenset[int]
    """Ranks whose last file of its last save is not written."""
    tracked: bool = True
    """Whether the last save comes to the tracker."""


def runs_of(back: list[int], batches: list[int]) -> st.SearchStrategy[list[Run]]:
    run = st.builds(
        Run,
        back=st.sampled_from(back),
        batch=st.sampled_from(batches),
        saves=st.integers(1, 4),
        cut_on=st.frozensets(st.integers(0, WORLD - 1), max_size=2),
        tracked=st.booleans(),
    )
    return st.lists(run, min_size=1, max_size=4)


RUNS = st.one_of(runs_of([0, 0, 0, 1, 2], [8, 8, 16, 4, 2]), runs_of([0], [8, 12, 5, 7]))
"""Runs that go back save at the same places as those that they leave: else nobody can tell that they went back."""

FAULTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, WORLD - 1)), max_size=3)
"""Which save, counted from the newest, loses its file on which rank."""


class Training:
    """A training and the truth about it."""

    def __init__(self, base: Path) -> None:
        self.tree = TreeBuilder(base, sparse=True).legacy(ranks=WORLD, sparse=True)
        self.saves: list[Save] = []
        self.newest: Save | None = None
        """Where the training stands, whole or not."""

    def whole(self, save: Save) -> bool:
        raise NotImplementedError

    def write(self, save: Save, ranks: set[int], *, tracked: bool) -> None:
        raise NotImplementedError

    def begin(self) -> None:
        """Note what a run sees when it starts."""

    def on_course(self) -> list[Save]:
        """The whole saves that the training came by, newest first."""
        way = self.newest.way() if self.newest is not None else []
        return [one for one in way if self.whole(one)]

    def train(self, run: Run) -> None:
        course = self.on_course()
        save = course[min(run.back, len(course) - 1)] if course else None
        step = 0 if save is None else save.step * save.batch // run.batch
        every = max(1, INTERVAL // run.batch)
        self.begin()
        self.tree.now_ns += 120 * MINUTE_NS
        for number in range(run.saves):
            step += every
            is_last = number == run.saves - 1
            save = Save(step=step, batch=run.batch, before=save)
            self.saves.append(save)
            ranks = set(range(WORLD)) - (run.cut_on if is_last else frozenset())
            self.write(save, ranks, tracked=not is_last or (run.tracked and not run.cut_on))
            self.newest = save

    def lose(self, save: Save, rank: int) -> None:
        """Lose a file of a whole save; of what was cut off something must stay to tell of it."""
        if not self.whole(save):
            return
        gone = {path for path in save.files if f"rank_{rank}/" in path or f"-{rank:07d}-" in path}
        for path in gone:
            self.tree.remove(f"checkpoint/{path}")
        save.files -= gone

    def owner(self, checkpoint: Checkpoint) -> set[int]:
        """Return which saves a checkpoint's files are of."""
        return {
            number for number, save in enumerate(self.saves) for shard in checkpoint.shards if shard.path in save.files
        }

    def chosen(self) -> Save | None:
        """Resolve the tree; what is chosen must be one whole save."""
        question = TreeQuestion(path=str(self.tree.checkpoint), world_size=WORLD)
        choice = ResumeQuestion(allow_renames=True)
        decision = ckpttool.resolve(question, choice, DataQuestion()).decision
        if isinstance(decision, NoResumePoint):
            return None
        found = self.owner(decision.point.checkpoint)
        if len(found) > 1:  # no name gives away that the first save of one run was cut off where the next one's was not
            said = {finding.code for finding in decision.point.findings}
            assert Code.TIMES_DISAGREE in said, f"{decision.point.checkpoint.name} is {len(found)} saves in one"
            return None
        save = self.saves[found.pop()]
        assert self.whole(save), f"{decision.point.checkpoint.name} is not whole"
        return save


class Legacy(Training):
    """`rank_N/` folders: each rank counts its runs by what lies in its own folder."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.seen: list[set[int]] = [set() for _ in range(WORLD)]
        self.suffixes = [0] * WORLD
        self.disagree = False

    def begin(self) -> None:
        self.suffixes = [max(seen) + 1 if seen else 0 for seen in self.seen]

    def whole(self, save: Save) -> bool:
        return len(save.files) == WORLD

    def write(self, save: Save, ranks: set[int], *, tracked: bool) -> None:
        del tracked
        now = self.tree.now_ns
        self.disagree |= len(set(self.suffixes)) > 1
        for rank in sorted(ranks):
            run = self.suffixes[rank]
            path = self.tree.shard(rank, save.step, 1, run=run).removeprefix("checkpoint/")
            for other in self.saves:
                other.files.discard(path)
            self.tree.now_ns = now
            self.tree.save(epoch=save.step, step=1, run=run, ranks=[rank], global_batch_size=save.batch)
            save.files.add(path)
            self.seen[rank].add(run)


class Newer(Training):
    """`iteration_*/` folders, one for each number of steps, and a tracker."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.tree.world = WORLD
        self.tracked: Save | None = None
        self.cut: list[Save] = []

    def whole(self, save: Save) -> bool:
        return len(save.files) == 2 * WORLD

    def write(self, save: Save, ranks: set[int], *, tracked: bool) -> None:
        folder = f"iteration_{save.step:08d}"
        if (self.tree.checkpoint / folder).exists():
            ranks = set(range(WORLD))  # a save that is cut off over another leaves both, and no number tells
        self.tree.iteration(step=save.step, ranks=sorted(ranks), global_batch_size=save.batch, tracker=tracked)
        for path in (self.tree.checkpoint / folder).glob(f"*-{WORLD:07d}.safetensors"):
            if any(f"-{rank:07d}-" in path.name for rank in ranks):
                for other in self.saves:
                    other.files.discard(f"{folder}/{path.name}")
                save.files.add(f"{folder}/{path.name}")
        if tracked:
            self.tracked = save


EXAMPLES = settings(max_examples=settings().max_examples // 2, suppress_health_check=list(HealthCheck))


@EXAMPLES
@given(RUNS, FAULTS)
def test_whatever_runs_did_in_rank_folders_the_newest_whole_save_of_the_last_course_is_chosen(
    runs: list[Run], faults: list[tuple[int, int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        training = Legacy(Path(folder))
        for run in runs:
            training.train(run)
        # Where ranks count their runs differently, which run saved what is a guess from what is there.
        for number, rank in [] if training.disagree else faults:
            training.lose(training.saves[-1 - number % len(training.saves)], rank)
        chosen, course = training.chosen(), training.on_course()
        event(f"course {bool(course)}, suffixes disagree {training.disagree}")
        if course and not training.disagree:
            assert chosen is not None, "there is a whole one on the course"
            assert chosen is course[0], f"{chosen.step} of {chosen.batch}, not {course[0].step} of {course[0].batch}"


@EXAMPLES
@given(RUNS, FAULTS)
def test_whatever_runs_did_in_iteration_folders_nothing_worse_than_the_tracker_is_chosen(
    runs: list[Run], faults: list[tuple[int, int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        training = Newer(Path(folder))
        for run in runs:
            # Where the first save of a run that went back is cut off, no record tells that it went back at all.
            training.train(run if not run.back or run.saves > 1 else Run(run.back, run.batch, 1, frozenset()))
        for number, rank in faults:
            training.lose(training.saves[-1 - number % len(training.saves)], rank)
        chosen, course, tracked = training.chosen(), training.on_course(), training.tracked
        is_tracked_whole = tracked is not None and training.whole(tracked)
        event(f"course {bool(course)}, tracked {is_tracked_whole}")
        if is_tracked_whole:
            assert chosen is course[0], f"{chosen and chosen.step} and not {course[0].step} of {course[0].batch}"
        elif chosen is not None and chosen not in course and tracked is not None:
            assert chosen.samples <= tracked.samples, "of a branch that was left, and further than the tracker"
