"""A tree that many processes change at once: what each of them is to change, and what of it is there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from ckpttool.core.errors import ExitCode
from ckpttool.core.records import SealPlace
from ckpttool.core.records.hashed_json import is_intact
from ckpttool.core.records.ledger import ledger_place
from ckpttool.core.records.manifest import ManifestProblem, read_manifest
from ckpttool.core.storage.local import LocalStorage
from ckpttool.core.storage.mounts import boot_id, disk_identity, mount_table
from ckpttool.trainers.mindformers.layouts.names import RANK_LAYOUT
from ckpttool.trainers.mindformers.layouts.pointers import parse_meta
from tests.reliability.beside import ReplicaAnswer
from tests.reliability.crowd import HUNG, End
from tests.support.fault_detection import with_crc
from tests.support.training_logs import write_log
from tests.support.trees import TreeBuilder, shard_bytes, training_scalars, weights

RANKS = 2
VICTIM, NEWEST = 5, 95
TARGETS = tuple(range(10, 70, 5))
"""Epochs of two steps. Each gets a mark, and most a manifest or a place in the ledger, all from different processes."""
SEALED = (*TARGETS[:6], TARGETS[0], TARGETS[0])
VERIFIED = TARGETS[4:]
THRESHOLD = 1.0
FOREIGN = {"is_health": 0, "ckpt_name": "llama2_7b_rank_0-1_2.ckpt", "note": "an entry that nobody judges"}
LEDGER_PATIENCE = 5.0
"""Seconds after which a verify rather forgets what it read than waits for the ledger."""


def file_name(epoch: int, rank: int = 0) -> str:
    return f"llama2_7b_rank_{rank}-{epoch}_2.ckpt"


@dataclass(frozen=True, kw_only=True)
class Task:
    """What one process is to change."""

    what: str
    epoch: int
    argv: tuple[str, ...]
    codes: frozenset[int] = frozenset({ExitCode.OK, ExitCode.LOCKED})
    """How it may end by itself, all of the others at work."""


class Scene:
    """A tree on two ranks whose shards carry a CRC, and a log for each checkpoint that is to be marked."""

    def __init__(self, base: Path, cache: Path, chance: Random) -> None:
        self.tree = TreeBuilder(base).legacy(ranks=RANKS, sparse=True)
        self.root = self.tree.checkpoint
        self.health = self.tree.output / "health_ckpts.json"
        disk = disk_identity(str(self.root), table=mount_table(), boot=boot_id())
        self.ledger = Path(ledger_place(str(self.root), {"XDG_CACHE_HOME": str(cache)}, disk=disk) or "")
        self.logs = base / "logs"
        self.marks = {file_name(epoch): int(chance.random() < 0.5) for epoch in TARGETS}
        self._earlier: set[Path] = set()
        for epoch in (VICTIM, *TARGETS, NEWEST):
            self.save(epoch, seed=epoch)
        self.tree.meta(0, VICTIM, 2, file_name(VICTIM)).file("checkpoint/rank_1/meta.json", '{"last_ep')
        self.health.write_text(json.dumps([FOREIGN, {"is_health": 0, "ckpt_name": file_name(NEWEST)}], indent=4))
        self._earlier = {*self.temporaries()}

    def save(self, epoch: int, *, seed: int) -> None:
        """Write one checkpoint, and the log of its training."""
        tensors = [*weights(seed=seed, sparse=True), *training_scalars(epoch=epoch, true_step=2 * epoch)]
        for rank in range(RANKS):
            path = self.tree.shard(rank, epoch, 2)
            self.tree.file(path, with_crc(path, shard_bytes(tensors, "ckpt")))
        norm = THRESHOLD * (2.0 if self.marks.get(file_name(epoch)) else 0.5)
        log = {2 * epoch: norm, 2 * NEWEST: THRESHOLD / 2}
        write_log(self.logs / f"{epoch}.log", log, embeddings=log)

    def tasks(self) -> list[Task]:
        """One for each process of a storm."""
        return [*self.health_tasks(), *self.seal_tasks(), *self.verify_tasks(), *2 * self.change_tasks()]

    def tasks_without_health(self) -> list[Task]:
        """As many, but with records that stay as they are, so that a prune is not refused for it."""
        return [*self.seal_tasks(), *self.verify_tasks(), *8 * self.change_tasks()]

    def health_tasks(self) -> list[Task]:
        judge = ("--threshold", str(THRESHOLD), "--write", "-q", "--log")
        argv = ("health", str(self.root), *judge)
        return [Task(what="health", epoch=one, argv=(*argv, str(self.logs / f"{one}.log"))) for one in TARGETS]

    def seal_tasks(self) -> list[Task]:
        argv = ("seal", str(self.root), "-q", "--checkpoint")
        return [Task(what="seal", epoch=epoch, argv=(*argv, f"{epoch}_2")) for epoch in SEALED]

    def verify_tasks(self) -> list[Task]:
        argv = ("verify", str(self.root), "--level", "checksum", "-q", "--checkpoint")
        codes = frozenset({0})
        return [Task(what="verify", epoch=epoch, argv=(*argv, f"{epoch}_2"), codes=codes) for epoch in VERIFIED]

    def change_tasks(self) -> list[Task]:
        keep = [word for epoch in TARGETS for word in ("--keep", f"{epoch}_2")]
        now = ("--apply", "--grace", "0", "-q")
        codes = frozenset({ExitCode.OK, ExitCode.LOCKED, ExitCode.INCOMPLETE})
        repair = ("repair-meta", str(self.root), *now)
        prune = ("prune", str(self.root), "--keep-last", "1", *keep, *now)
        return [
            Task(what="repair", epoch=NEWEST, argv=repair, codes=codes),
            Task(what="prune", epoch=VICTIM, argv=prune, codes=codes),
        ]

    def marks_now(self) -> dict[str, object]:
        """What the health file says."""
        entries = json.loads(self.health.read_bytes())
        assert FOREIGN in entries, "an entry of somebody else is lost or changed"
        marks = {entry["ckpt_name"]: entry["is_health"] for entry in entries}
        assert len(marks) == len(entries), f"an entry is there twice: {entries}"
        return marks

    def remembered(self) -> set[str]:
        """The shards that the ledger knows."""
        if not self.ledger.exists():
            return set()
        data = self.ledger.read_bytes()
        assert is_intact(data), "the ledger is torn"
        return {one["path"] for one in json.loads(data)["shards"]}

    def manifests(self) -> dict[str, object]:
        """Every manifest that is there."""
        found: dict[str, object] = {}
        for path in (self.root / ".ckpttool").glob("*.manifest.json"):
            prefix, _, label = path.name.partition(".")[0].rpartition("-")
            where = f".ckpttool/{path.name}"
            place = SealPlace(path=where, layout=RANK_LAYOUT, checkpoint=label, prefix=prefix)
            manifest = read_manifest(LocalStorage(str(self.root)), place)
            assert not isinstance(manifest, ManifestProblem), f"{path.name} is torn"
            found[path.name] = manifest
        return found

    def names(self, rank: int) -> str | None:
        """What a rank's meta.json names; None where it is torn."""
        with suppress(ValueError):
            return parse_meta((self.root / f"rank_{rank}/meta.json").read_bytes(), where="meta.json").file
        return None

    def shards(self, epoch: int) -> set[str]:
        return {f"rank_{rank}/{file_name(epoch, rank)}" for rank in range(RANKS)}

    def shards_now(self) -> set[str]:
        """The shards that are there."""
        return {path.relative_to(self.root).as_posix() for path in self.root.glob("rank_*/*.ckpt")}

    def temporaries(self) -> list[Path]:
        """What killed writers left, in the tree and in the cache."""
        folders = (self.tree.output, self.ledger.parent)
        found = (path for folder in folders for path in folder.rglob(".ckpttool-*.tmp"))
        return [path for path in found if path not in self._earlier]

    def has(self, task: Task) -> bool:
        """Tell whether what a task was to change is changed, all of it."""
        match task.what:
            case "health":
                return self.marks_now().get(file_name(task.epoch)) == self.marks[file_name(task.epoch)]
            case "seal":
                return f"llama2_7b-{task.epoch}_2.ckpt.manifest.json" in self.manifests()
            case "verify":
                return self.shards(task.epoch) <= self.remembered()
            case "repair":
                return all(self.names(rank) == file_name(NEWEST, rank) for rank in range(RANKS))
            case _:
                return self.shards(task.epoch).isdisjoint(self.shards_now())

    def wrong(self, tasks: Sequence[Task], ends: Sequence[End]) -> Iterator[str]:
        """Say of every process what is wrong with how it ended, or with what it left."""
        for task, end in zip(tasks, ends, strict=True):
            who = f"{task.what} {task.epoch}: "
            if end.code == HUNG:
                yield f"{who}hangs: {end.told}"
            elif "Traceback" in end.stderr or (not end.killed and end.code not in task.codes):
                yield f"{who}exit {end.code}: {end.told}"
            elif end.code == 0 and not self.has(task) and (task.what != "verify" or end.seconds < LEDGER_PATIENCE):
                yield f"{who}its update is lost"
        yield from self._halves()

    def _halves(self) -> Iterator[str]:
        """Say what is neither as it was nor as it was to become."""
        for name, mark in self.marks_now().items():
            if mark != self.marks.get(name, 0):
                yield f"{name} is marked {mark}, which nobody found"
        for epoch in VERIFIED:
            if len(self.shards(epoch) & self.remembered()) == 1:
                yield f"the ledger knows one shard of {epoch}_2"
        for rank, before in enumerate((file_name(VICTIM), None)):
            if self.names(rank) not in {before, file_name(NEWEST, rank)}:
                yield f"meta.json of rank {rank} names {self.names(rank)}"
        for epoch in (*TARGETS, NEWEST):
            if not self.shards(epoch) <= self.shards_now():
                yield f"shards of {epoch}_2 are gone"


@dataclass(kw_only=True)
class Watch(ReplicaAnswer):
    """Reads what the storm writes, all the time: nothing is ever torn, missing, or forgotten again."""

    scene: Scene
    _before: dict[str, object] = field(default_factory=dict)

    def once(self) -> None:
        """Read everything once, and compare it with the time before."""
        now, before = self._seen(), self._before
        self.wrong += [f"{what} was {value} and is {now.get(what)}" for what, value in before.items() - now.items()]
        self._before = now
        self.done += 1
        self._stop.wait(0.001)

    def _seen(self) -> dict[str, object]:
        backup = self.scene.health.with_name("health_ckpts.json.bak")
        kept = {"backup": isinstance(json.loads(backup.read_bytes()), list)} if backup.exists() else {}
        return {
            **self.scene.marks_now(),
            **{name: repr(manifest) for name, manifest in self.scene.manifests().items()},
            **dict.fromkeys(self.scene.remembered(), "remembered"),
            **kept,
        }
