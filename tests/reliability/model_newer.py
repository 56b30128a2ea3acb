"""The truth about a tree of the newer layout: `iteration_*/` folders that all ranks share, and a tracker."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable
from pathlib import Path

from tests.reliability.model import WORLD, Kind, Model, Save, Shard, is_other_than_sealed, nearest
from tests.support.reference_choice import beyond_tracker
from tests.support.reference_retention import Kept
from tests.support.trees import TreeBuilder

RECORDS = ("common.json", "metadata.json")
PARTS = 2
"""Files a rank: its weights and its optimizer's."""
TRACKER = "latest_checkpointed_iteration.txt"
MANIFEST = "ckpttool.manifest.json"


def _weights(data: bytes) -> list[range]:
    """Return where the tensors of a file lie, but for the training's scalars."""
    begin = 8 + int.from_bytes(data[:8], "little")
    tensors = {name: one for name, one in json.loads(data[8:begin]).items() if name != "__metadata__"}
    spans = [one["data_offsets"] for one in tensors.values() if math.prod(one["shape"]) > 1]
    return [range(begin + first, begin + end) for first, end in spans]


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except ValueError:
        return False
    return True


class Newer(Model):
    """A tree of `iteration_*/` folders. A save's run is always 0: the tracker tells of rewinds."""

    def __init__(self, base: Path) -> None:
        self.tree = TreeBuilder(base, world=WORLD)
        self.unfinished = set()
        self.shards: dict[int, dict[str, Shard]] = {}
        """By step and file name, the two records too."""
        self.health: dict[int, int | None] = {}
        self.seals: dict[int, dict[str, bytes]] = {}
        self.tracked: int | None = None

    def folder(self, step: int) -> Path:
        return self.tree.checkpoint / f"iteration_{step:08d}"

    def spelled(self, save: Save) -> str:
        return self.folder(save[1]).name

    def paths(self, save: Save) -> set[str]:
        return {f"{self.spelled(save)}/{path.name}" for path in self.folder(save[1]).glob("*")}

    def manifest(self, save: Save) -> Path:
        return self.folder(save[1]) / MANIFEST

    def ranks_of(self, step: int) -> dict[str, Shard]:
        return {name: shard for name, shard in self.shards[step].items() if name not in RECORDS}

    def rows(self) -> list[Kept]:
        written = self.tree.checkpoint / TRACKER
        tracker = None if self.tracked is None else (self.tracked, written.stat().st_mtime_ns)
        finished = {step: self._is_finished(step) for step in self.shards}
        left = beyond_tracker(finished, {step: self._times(step) for step in self.shards}, tracker)
        return [self._row(step, left=step in left) for step in sorted(self.shards)]

    def _row(self, step: int, *, left: bool) -> Kept:
        files, ranks, seals = self.shards[step], self.ranks_of(step), self.seals.get(step, {})
        there = {rank for rank in range(WORLD) if sum(f"-{rank:07d}-" in name for name in ranks) == PARTS}
        broken = any(shard.kind is Kind.BROKEN for shard in files.values())
        return Kept(
            run=0,
            step=step,
            ranks=frozenset(there),
            damaged=broken or not files.keys() >= set(RECORDS),
            unhealthy=self.health[step] == 1,
            unmeasured=self.health[step] is None,
            left=left,
            sealed=bool(seals),
            rotten=any(seals.get(name, shard.data) != shard.data for name, shard in ranks.items()),
        )

    def _times(self, step: int) -> list[int]:
        return [(self.folder(step) / name).stat().st_mtime_ns for name in self.ranks_of(step)]

    def _is_finished(self, step: int) -> bool:
        """Tell whether names and records say so: both records can be read, and all files are there."""
        files = self.shards[step]
        there = len(files) == PARTS * WORLD + len(RECORDS) and files.keys() >= set(RECORDS)
        return there and all(_is_json(files[name].data) for name in RECORDS)

    def rotten(self) -> set[Save]:
        return self._with({Kind.ROTTEN})

    def doubtful(self) -> set[Save]:
        """Return those with a stale shard or a bent header: no rank's file says what is in another's, or its step.

        Where all that can testify is of that kind, or most of the replicas at one step are damaged, a whole one may
        look like the odd one.
        """
        strange = self._with({Kind.BENT, Kind.TWIN})
        split = {(0, step) for step in self.shards if self._is_split(step)}
        saves = [(0, step) for step in self.shards]
        beside = {save: set(nearest(save, saves)) for save in saves}
        return {
            save
            for save in saves
            if save in strange
            or (beside[save] and beside[save] <= strange)
            or beside[save] & split
            or self._is_replaced(save[1])
        }

    def _is_split(self, step: int) -> bool:
        """Tell whether too few files of one kind are as they were to outvote the others."""
        for kind in ("-model-", "-opt-"):
            shards = [shard.kind for name, shard in self.ranks_of(step).items() if kind in name]
            if sum(one is not Kind.WHOLE for one in shards) > 1:
                return True
        return False

    def _with(self, kinds: set[Kind]) -> set[Save]:
        return {(0, step) for step, files in self.shards.items() if kinds & {shard.kind for shard in files.values()}}

    def is_mostly_strange(self) -> bool:
        """Tell whether more than a third of the saves hold what no header gives away: more, and nothing is certain."""
        return 3 * len(self._with({Kind.BENT, Kind.TWIN})) > len(self.shards)

    def _is_replaced(self, step: int) -> bool:
        files, seals = self.shards[step], self.seals.get(step, {})
        return any(is_other_than_sealed(files[name], seals[name]) for name in files.keys() & seals.keys())

    def misread(self) -> dict[Save, list[int | None]]:
        return {}

    def is_tangled(self) -> bool:
        return False

    def forget(self, save: Save) -> None:
        del self.shards[save[1]]
        self.seals.pop(save[1], None)

    def seal(self, save: Save) -> None:
        now = {name: shard.data for name, shard in self.ranks_of(save[1]).items()}
        self.seals[save[1]] = now | self.seals.get(save[1], {})

    def reread(self) -> None:
        tracker = self.tree.checkpoint / TRACKER
        text = tracker.read_text() if tracker.exists() else ""
        self.tracked = int(text) if text.isdigit() else None

    # ---- what happens ----

    def save(
        self, step: int, ranks: Iterable[int] = range(WORLD), *, status: int | None = None, done: bool = True
    ) -> None:
        """Save, over what an earlier course left in the folder; where it is not done, without what comes last."""
        before = self.shards.get(step, {})
        self.folder(step).mkdir(parents=True, exist_ok=True)  # the builder does not know that a prune took it
        self.tree.iteration(step=step, ranks=ranks, ckpt_status=status, tracker=done)
        if not done:
            for name in RECORDS:
                (self.folder(step) / name).unlink()
        self.health[step] = status if done else None
        there = {path.name: Shard(path.read_bytes()) for path in self.folder(step).iterdir() if path.name != MANIFEST}
        written = tuple(f"-{rank:07d}-{WORLD:07d}.safetensors" for rank in ranks)
        fresh = {shard.data for name, shard in there.items() if name.endswith(written)}
        for name in [name for name in before if name not in RECORDS and not name.endswith(written)]:
            # What lay there may be of another step, from a folder that was copied.
            is_other = before[name].kind is Kind.WHOLE and before[name].data not in fresh
            there[name] = Shard(before[name].data, Kind.TWIN) if is_other else before[name]
        self.shards[step] = there
        if done:
            self.tracked = step

    def put(self, step: int, name: str, shard: Shard) -> None:
        self.tree.file(f"checkpoint/{self.folder(step).name}/{name}", shard.data)
        self.shards[step][name] = shard

    def flip(self, step: int, name: str, bit: int) -> None:
        """Flip one bit: in the weights, or in a header or a step, which no other rank's file need repeat."""
        data = bytearray(self.shards[step][name].data)
        at = bit // 8 % len(data)
        is_weight = any(at in span for span in _weights(bytes(data)))
        data[at] ^= 1 << bit % 8
        self.put(step, name, Shard(bytes(data), Kind.ROTTEN if is_weight else Kind.BENT))

    def remove(self, step: int, name: str) -> None:
        (self.folder(step) / name).unlink()
        del self.shards[step][name]

    def copy_folder(self, step: int, to: int) -> None:
        """Copy a save under another step's name: its record says which it is."""
        shutil.copytree(self.folder(step), self.folder(to))
        self.shards[to] = dict(self.shards[step])
        self.health[to] = self.health[step]
        (self.folder(to) / MANIFEST).unlink(missing_ok=True)
        if "common.json" in self.shards[to]:
            self.shards[to]["common.json"] = Shard(self.shards[to]["common.json"].data, Kind.BROKEN)

    def mark(self, step: int, status: int | None) -> None:
        """Write another state of health into the record, where there is a whole one."""
        shard = self.shards[step].get("common.json")
        if shard is not None and shard.kind is Kind.WHOLE:
            record = json.loads(shard.data)
            self.put(step, "common.json", Shard(json.dumps(record | {"ckpt_status": status}).encode()))
            self.health[step] = status

    def track(self, text: str | None) -> None:
        """Write the tracker, or take it away."""
        self.tracked = int(text) if text is not None and text.isdigit() else None
        (self.tree.checkpoint / TRACKER).unlink(missing_ok=True)
        if text is not None:
            self.tree.tracker(text)
