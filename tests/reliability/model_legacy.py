"""The truth about a tree of the older layout: `rank_N/` folders, each with the files of one rank."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.reliability.model import (
    WORLD,
    Kind,
    Model,
    Place,
    Save,
    Shard,
    Tells,
    is_other_than_sealed,
    nearest,
)
from tests.support.reference_retention import Kept
from tests.support.trees import Fmt, Tensor, TreeBuilder, floats, shard_bytes, training_scalars


@dataclass(frozen=True)
class Habit:
    """How a training saves."""

    fmt: Fmt
    sliced: bool
    """Whether ranks hold slices of their own; else replicas, byte for byte."""

    def weights(self, place: Place) -> list[Tensor]:
        run, step, rank = place
        seed = run * 10_000 + step * 10 + (rank if self.sliced else 0)
        return [floats(name, [4, 2], seed=seed) for name in ("dense.weight", "adam_m.dense.weight")]

    def shard(self, place: Place) -> bytes:
        run, step, _ = place
        return shard_bytes(
            [*self.weights(place), *training_scalars(epoch=step, true_step=step, resumed=run > 0)], self.fmt
        )


def _tells_step(data: bytes | bytearray, step: int, at: int) -> bool:
    """Tell whether a byte may have a say in what the shard's step is read as."""
    number, name = struct.pack("<q", step), data.index(b"step_num")
    return name - 8 <= at < name + 80 or number in data[max(0, at - 7) : at + 8]


class Legacy(Model):
    """A tree of `rank_N/` folders."""

    def __init__(self, base: Path, habit: Habit) -> None:
        self.habit = habit
        self.tree = TreeBuilder(base).legacy(ranks=WORLD, fmt=habit.fmt)
        self.unfinished = set()
        self.shards: dict[Place, Shard] = {}
        self.seals: dict[Save, dict[int, bytes]] = {}
        self.torn_seals: set[Save] = set()
        self.marks: dict[Save, list[int]] = {}
        self.is_health_torn = False
        self.backups: dict[int, dict[Save, Shard]] = {}

    # ---- what the machines ask ----

    def saves(self) -> list[Save]:
        return sorted({(run, step) for run, step, _ in self.shards})

    def of(self, save: Save) -> dict[int, Shard]:
        """Return the shards of a save by rank."""
        return {place[2]: shard for place, shard in self.shards.items() if place[:2] == save}

    def path(self, place: Place) -> str:
        run, step, rank = place
        return self.tree.shard(rank, step, 1, run=run)

    def file(self, place: Place) -> Path:
        return self.tree.output / self.path(place)

    def spelled(self, save: Save) -> str:
        run, step = save
        return f"_{run}-{step}_1" if run else f"{step}_1"

    def paths(self, save: Save) -> set[str]:
        found = {(*save, rank) for rank in range(WORLD) if self.file((*save, rank)).exists()}
        return {self.path(place).removeprefix("checkpoint/") for place in found}

    def manifest(self, save: Save) -> Path:
        name = f"{self.tree.prefix}-{self.spelled(save)}.{self.habit.fmt}.manifest.json"
        return self.tree.checkpoint / ".ckpttool" / name

    def rows(self) -> list[Kept]:
        return [self._row(save) for save in self.saves()]

    def _row(self, save: Save) -> Kept:
        shards, seals = self.of(save), self.seals.get(save, {})
        marks = self.marks.get(save, [])
        return Kept(
            run=save[0],
            step=save[1],
            ranks=frozenset(shards),
            damaged=self._shows(save),
            unhealthy=1 in marks,
            unmeasured=1 not in marks and (set(marks) != {0} or self.is_health_torn),
            told=any(shard.tells is Tells.TRUTH for shard in shards.values()),
            sealed=bool(seals) and save not in self.torn_seals,
            # What a torn manifest covers is not verified, and that is as bad as if it were known to be damaged.
            rotten=save in self.torn_seals
            or any(seals.get(rank, one.data) != one.data for rank, one in shards.items()),
        )

    def _shows(self, save: Save) -> bool:
        kinds = [shard.kind for shard in self.of(save).values()]
        return Kind.BROKEN in kinds or (kinds.count(Kind.BENT) == 1 and Kind.TWIN not in kinds)

    def rotten(self) -> set[Save]:
        return {(run, step) for (run, step, _), shard in self.shards.items() if shard.kind is Kind.ROTTEN}

    def doubtful(self) -> set[Save]:
        """Return what nobody can tell from headers: where siblings differ, and too few are left to outvote one."""
        odd = {(run, step) for (run, step, _), shard in self.shards.items() if shard.kind in {Kind.BENT, Kind.TWIN}}
        alone = {save for save in odd if sum(one.kind is Kind.WHOLE for one in self.of(save).values()) < WORLD - 1}
        saves = self.saves()
        beside = {save: set(nearest(save, saves)) for save in saves}
        return {
            save
            for save in saves
            if not self._shows(save)
            and (
                save in odd
                or (beside[save] and beside[save] <= alone)
                or any(self._looks_sliced(one) for one in beside[save])
                or self._is_replaced(save)
            )
        }

    def _is_replaced(self, save: Save) -> bool:
        seals, shards = self.seals.get(save, {}), self.of(save)
        return any(is_other_than_sealed(shards[rank], seals[rank]) for rank in shards.keys() & seals.keys())

    def _looks_sliced(self, save: Save) -> bool:
        """Tell whether most replicas of a save differ: so do slices, and then a step where they do not is a copy's."""
        unequal = [
            shard
            for rank, shard in self.of(save).items()
            if shard.kind is not Kind.WHOLE and len(shard.data) == len(self.habit.shard((*save, rank)))
        ]
        return not self.habit.sliced and len(unequal) > 1

    def misread(self) -> dict[Save, list[int | None]]:
        saves = self.saves()
        last = max((step for _, step in saves), default=0)
        found = dict[Save, list[int | None]]()
        for save in saves:
            told = {shard.tells for shard in self.of(save).values()}
            if Tells.ANYTHING in told:
                # How far a run came matters beside the steps of others: one of them, or beyond them all.
                found[save] = [save[1], None, 0, *sorted({step for _, step in saves} - {save[1]}), last + 1]
            elif Tells.TRUTH_OR_NOTHING in told and Tells.TRUTH not in told:
                found[save] = [save[1], None]
        return found

    def is_tangled(self) -> bool:
        """Tell whether ranks may seem to have counted their runs differently, as a replaced node does.

        So it may be where what a rank has of a run was saved, more of it, by another run on a rank that saw most runs.
        """
        held = [self._steps_on(rank) for rank in range(WORLD)]
        most = max(len(runs) for runs in held)
        wrong = {(run, step) for (run, step, _), shard in self.shards.items() if shard.tells is Tells.ANYTHING}
        for reference in [runs for runs in held if len(runs) == most]:
            for run, steps in [item for runs in held for item in runs.items()]:
                same = {step for step in steps & reference.get(run, set()) if (run, step) not in wrong}
                if any(len(steps & others) > len(same) for number, others in reference.items() if number != run):
                    return True
        return False

    def _steps_on(self, rank: int) -> dict[int, set[int]]:
        """Return what a rank has, by run."""
        found = dict[int, set[int]]()
        for run, step, one in self.shards:
            if one == rank:
                found.setdefault(run, set()).add(step)
        return found

    # ---- what happens to a tree ----

    def save(self, save: Save, ranks: Iterable[int] = range(WORLD)) -> None:
        """Save as a training does, on these ranks."""
        for rank in ranks:
            scalars = training_scalars(epoch=save[1], true_step=save[1], resumed=save[0] > 0)
            tensors = self.habit.weights((*save, rank))
            self.tree.save(epoch=save[1], step=1, run=save[0], ranks=[rank], tensors=tensors, scalars=scalars)
            place = (*save, rank)
            self.shards[place] = Shard(self.file(place).read_bytes())

    def put(self, place: Place, shard: Shard) -> None:
        """Let this be what lies there."""
        self.tree.file(self.path(place), shard.data)
        self.shards[place] = shard

    def copy(self, source: Place, target: Place) -> None:
        """Put a whole shard where another belongs."""
        data = self.shards[source].data
        if data == self.habit.shard(target):
            self.put(target, Shard(data))
        elif source[1] == target[1]:
            self.put(target, Shard(data, Kind.TWIN))
        else:
            self.put(target, Shard(data, Kind.BROKEN, Tells.NOTHING))

    def flip(self, place: Place, bit: int, *, weights: bool) -> None:
        """Flip one bit of a whole shard: in its weights, or anywhere else."""
        data = bytearray(self.shards[place].data)
        spans = [(data.index(tensor.data), len(tensor.data)) for tensor in self.habit.weights(place)]
        inside = [at for begin, size in spans for at in range(begin, begin + size)]
        places = inside if weights else sorted(set(range(len(data))) - set(inside))
        at = places[bit // 8 % len(places)]
        tells = (
            Tells.TRUTH if weights else Tells.ANYTHING if _tells_step(data, place[1], at) else Tells.TRUTH_OR_NOTHING
        )
        data[at] ^= 1 << bit % 8
        self.put(place, Shard(bytes(data), Kind.ROTTEN if weights else Kind.BENT, tells))

    def cut(self, place: Place, size: int) -> None:
        """Cut a shard. More than a stump is left only where another rank shows what is missing."""
        others = [shard for rank, shard in self.of(place[:2]).items() if rank != place[2]]
        if not any(shard.kind is Kind.WHOLE for shard in others):
            size = min(size, 20)
        data = self.shards[place].data[:size]
        self.put(place, Shard(data, Kind.BROKEN, Tells.NOTHING if size <= 20 else Tells.TRUTH_OR_NOTHING))

    def remove(self, place: Place) -> None:
        """Delete a shard."""
        self.file(place).unlink()
        del self.shards[place]

    def back_up(self, rank: int) -> None:
        """Copy a rank's folder beside it, as people do."""
        folder, copy = self._folder(rank), self._folder(f"{rank}_bak")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        self.backups[rank] = {(run, step): shard for (run, step, one), shard in self.shards.items() if one == rank}

    def bring_back(self, rank: int) -> None:
        """Put the copy of a rank's folder in its place: what was saved since is gone there, and what went is back."""
        self._empty(rank)
        shutil.copytree(self._folder(f"{rank}_bak"), self._folder(rank), dirs_exist_ok=True)
        self.shards |= {(*save, rank): shard for save, shard in self.backups[rank].items()}
        self.unfinished |= {f"rank_{rank}/{path.name}" for path in self._folder(rank).glob("*.tmp")}

    def replace_folder(self, rank: int, other: int, *, renamed: bool) -> None:
        """Put a copy of another rank's folder in a rank's place, the files renamed to its number or not."""
        self._empty(rank)
        for run, step, one in [place for place in self.shards if place[2] == other]:
            if not renamed:
                name = Path(self.path((run, step, one))).name
                self.tree.file(f"checkpoint/rank_{rank}/{name}", self.shards[run, step, one].data)
            elif self.shards[run, step, one].kind is Kind.WHOLE:
                self.copy((run, step, one), (run, step, rank))

    def _empty(self, rank: int) -> None:
        shutil.rmtree(self._folder(rank))
        self._folder(rank).mkdir()
        self.shards = {place: shard for place, shard in self.shards.items() if place[2] != rank}
        self.unfinished = {path for path in self.unfinished if not path.startswith(f"rank_{rank}/")}

    def _folder(self, rank: object) -> Path:
        return self.tree.checkpoint / f"rank_{rank}"

    def leave_unfinished(self, place: Place) -> None:
        """Leave the temporary file that MindSpore saves into."""
        path = f"{self.path(place)}.tmp"
        self.tree.file(path, self.habit.shard(place)[:50])
        self.unfinished.add(path.removeprefix("checkpoint/"))

    def write_health(self) -> None:
        """Write what is recorded; a torn file lacks its end."""
        entries = [(Path(self.path((*save, 0))).name, mark) for save, marks in self.marks.items() for mark in marks]
        self.tree.health(entries)
        file = self.tree.output / "health_ckpts.json"
        if self.is_health_torn:
            file.write_text(file.read_text()[:-1])

    def tear_manifest(self, save: Save) -> None:
        """Cut the manifest of a save."""
        manifest = self.manifest(save)
        manifest.write_bytes(manifest.read_bytes()[:-20])
        self.torn_seals.add(save)

    # ---- what is done about it ----

    def seal(self, save: Save) -> None:
        if save not in self.torn_seals:
            now = {rank: shard.data for rank, shard in self.of(save).items()}
            self.seals[save] = now | self.seals.get(save, {})

    def forget(self, save: Save) -> None:
        self.shards = {place: shard for place, shard in self.shards.items() if place[:2] != save}
        self.seals.pop(save, None)
        self.torn_seals.discard(save)

    def reread(self) -> None:
        """A meta.json has no say in what is chosen."""
