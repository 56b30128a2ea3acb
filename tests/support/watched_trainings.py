"""A training that saves while it is watched, by a clock that passes only when it is told to."""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path

from ckpttool.core.domain.question import TreeQuestion
from ckpttool.core.domain.verdict import Level
from ckpttool.watch.model import WatchEvent, WatchQuestion, WatchRule
from ckpttool.watch.verbs import Machine, Watch
from tests.support.trees import TreeBuilder, ckpt_bytes, training_scalars, weights

RANKS = 8


class Clock(Machine):
    """A machine whose time passes only when it is told to."""

    now = 1000.0

    def seconds(self) -> float:
        """Return seconds since it started."""
        return self.now

    def wall(self) -> float:
        """Return seconds since 1970, by a clock that is moved now and then."""
        return 1_800_000_000.0 + self.now % 7000


class Trainer:
    """Saves on eight ranks, each at its own pace, by rename and in place in turn; keeps the last `kept`."""

    kept = 4

    def __init__(self, base: Path, seed: int) -> None:
        self._chance = random.Random(seed)  # noqa: S311  a course that can be had again
        made = TreeBuilder(base / "made", world=RANKS, sparse=True).legacy(ranks=RANKS)
        made.save(epoch=1, step=1)
        self.root = base / "output" / "checkpoint"
        self._content = [next((made.checkpoint / f"rank_{rank}").glob("*.ckpt")) for rank in range(RANKS)]
        for rank in range(RANKS):
            (self.root / f"rank_{rank}").mkdir(parents=True)
        self.saves = 0
        self.seed = 0
        self._due: list[tuple[int, str, bytes, Path]] = []

    def file(self, rank: int, number: int) -> Path:
        name = self._content[rank].name.replace("1_1.ckpt", f"{number}_1.ckpt")
        return self.root / f"rank_{rank}" / name

    def begin(self, *, hangs: int | None = None) -> None:
        """Begin a save; what each rank does comes in later polls."""
        self.saves += 1
        for rank in range(RANKS):
            target, data = self.file(rank, self.saves), self._bytes(rank)
            at = self._chance.randrange(4)
            if rank == hangs:
                continue
            if self.saves % 2:
                self._due.append((at, "whole", data, target))
            else:
                self._due += [(at, "cut", data[: len(data) // 2], target), (at + 1, "place", data, target)]
        for rank in range(RANKS if self.saves > self.kept else 0):
            self._due.append((self._chance.randrange(3, 7), "gone", b"", self.file(rank, self.saves - self.kept)))

    def step(self) -> None:
        """Do what is due, and come one poll nearer to the rest."""
        for _, what, data, target in [each for each in self._due if each[0] == 0]:
            if what == "gone":
                target.unlink(missing_ok=True)
            elif what == "whole":
                part = target.with_name(f".{target.name}.part")
                part.write_bytes(data)
                part.rename(target)
            else:
                target.write_bytes(data)
        self._due = [(at - 1, *rest) for at, *rest in self._due if at]  # type: ignore[misc]

    def _bytes(self, rank: int) -> bytes:
        return ckpt_bytes(
            [*weights(seed=self.seed + rank, sparse=True), *training_scalars(epoch=self.saves, true_step=self.saves)]
        )


class Watching:
    """The watch of a trainer, ended and begun anew as if it had been killed."""

    def __init__(self, root: Path | str, state: Path, *, world: int | None = RANKS, **more: object) -> None:
        self.clock, self.told, self.notes = Clock(), list[WatchEvent](), list[str]()
        self.question = WatchQuestion(
            tree=TreeQuestion(path=str(root), world_size=world),
            every=10.0,
            environment={"XDG_STATE_HOME": str(state)},
            **{"rule": WatchRule(settle=2, patience=120.0, again=0.0), "level": Level.STRUCTURE, **more},  # type: ignore[arg-type]
        )
        self.watch = self.anew()

    def anew(self) -> Watch:
        """Begin as a process does that knows what is on the disk, and no more."""
        watch = Watch(self.question, self.told.append, self.notes.append, self.clock)
        self._held = ExitStack()
        self._held.enter_context(watch.begun())
        return watch

    def killed(self) -> None:
        """Lose all that is not on the disk."""
        self.watch._place = None  # noqa: SLF001  it writes nothing any more
        self._held.close()  # the lock goes with the process
        self.watch = self.anew()

    def end(self) -> None:
        """End it as a signal does."""
        self._held.close()

    def look(self, trainer: Trainer | None = None, times: int = 1) -> None:
        """Poll, and do not wait for what is being read."""
        for _ in range(times):
            if trainer is not None:
                trainer.step()
            self.clock.now += 10.0
            self.watch.poll()

    def poll(self, trainer: Trainer | None = None, times: int = 1) -> None:
        for _ in range(times):
            self.look(trainer)
            self.watch.finish_reading()

    def save(self, trainer: Trainer) -> None:
        """Look on while a save is written and read."""
        trainer.begin()
        self.poll(trainer, times=10)

    @property
    def kinds(self) -> list[str]:
        return [event.kind.value for event in self.told]


def watched(base: Path, seed: int, **more: object) -> tuple[Trainer, Watching]:
    """A training and who watches it."""
    trainer = Trainer(base, seed)
    return trainer, Watching(trainer.root, base / "state", **more)  # type: ignore[arg-type]


def course(trainer: Trainer, watching: Watching, *, saves: int, kills: int) -> None:
    """Watch some saves, and begin the watch anew so many times."""
    chance = random.Random(3)  # noqa: S311
    killed = set(chance.sample(range(saves * 14), kills))
    for number in range(saves):
        trainer.begin()
        for turn in range(14):
            watching.poll(trainer)
            if number * 14 + turn in killed:
                watching.killed()


def assert_told_and_nothing_else(trainer: Trainer, watching: Watching) -> None:
    assert set(watching.kinds) == {"good"}
    by_save = {event.name: {each.id for each in watching.told if each.name == event.name} for event in watching.told}
    assert {name: len(ids) for name, ids in by_save.items()} == {f"{n}_1": 1 for n in range(1, trainer.saves + 1)}
