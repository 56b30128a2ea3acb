"""Trainings of many ranks as nothing goes wrong in them: who holds which slice, and what a slice is at a step.

Every way of sharing a model out, and all that is equal by chance for a while: slices that nobody has trained yet,
layers that are frozen, steps that were skipped on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b
from pathlib import Path
from random import Random

from tests.support.trees import Fmt, TreeBuilder, floats, shard_bytes, training_scalars

Slice = tuple[object, ...]
"""What tells one slice of a tensor from the others; equal for replicas."""

ZERO = (0.0,)


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """How ranks are arranged."""

    data: int
    tensor: int
    pipeline: int
    tensor_last: bool
    """Whether neighbours are of one tensor-parallel group, as is usual; else of one data-parallel group."""
    experts: int
    """Data-parallel ranks among which experts are shared out; divides `data`."""
    shards: int
    """Data-parallel ranks among which the optimizer's state is shared out; divides `data`."""
    weights_too: bool
    """Whether they share out the weights, too."""

    @property
    def world(self) -> int:
        return self.data * self.tensor * self.pipeline

    def place(self, rank: int) -> tuple[int, int, int]:
        """Return the rank's place along data, tensor and pipeline."""
        inner, outer = (self.tensor, self.data) if self.tensor_last else (self.data, self.tensor)
        fast, slow, stage = rank % inner, rank // inner % outer, rank // (inner * outer)
        return (slow, fast, stage) if self.tensor_last else (fast, slow, stage)


@dataclass(frozen=True, kw_only=True)
class Training:
    """One training: what it trains, and how it saves."""

    seed: int
    meshes: tuple[Mesh, ...]
    """Of each start."""
    saves: tuple[int, ...]
    """Of each start."""
    zero_start: bool
    """Whether the first save is from before the first update."""
    same_seed: bool
    """Whether slices begin equal, for each rank draws them with one seed."""
    has_rng: bool
    has_counter: bool
    """A number that each rank counts for itself."""
    has_statistics: bool
    """Running statistics of a rank's own data, equal before the first step."""
    has_frozen: bool
    unfrozen_at: int | None
    """Step at which the frozen layer begins to be trained."""
    rare: bool
    """Whether some slices of moments stay zero until somebody sees their tokens."""
    skipped: frozenset[int]
    """Saves before which every update was dropped."""
    shifting_batch: bool
    fmt: Fmt

    def steps(self) -> list[tuple[int, int]]:
        """Return (start, step) of every save."""
        numbers, step = [], 0 if self.zero_start else 10
        for start, saves in enumerate(self.saves):
            for _ in range(saves):
                numbers.append((start, step))
                step += 10 - step % 10
        return numbers

    def held(self, start: int, rank: int, step: int) -> dict[str, tuple[Sequence[int], Slice]]:
        """Return a rank's tensors at a step: shape, and what tells their content."""
        mesh, seen = self.meshes[start], self._updates(step)
        return {
            **self._model(mesh, rank, seen),
            **self._frozen(mesh, rank, seen),
            **self._own(mesh, rank, step),
            "beta1_power": ([1], ("beta", seen)),
            "constant": ([1], ("constant",)),
        }

    def recorded(self, start: int) -> dict[str, dict[int, int]]:
        """Return what a record of a start's arrangement says: by tensor, a number a slice.

        It tells nothing of what is each rank's own, nor of what has no layout.
        """
        trained = 10**6
        ranks = range(self.meshes[start].world)
        found: dict[str, dict[int, int]] = {}
        for rank in ranks:
            own = {*self._own(self.meshes[start], rank, trained), "beta1_power", "constant"}
            for name, (_, content) in self.held(start, rank, trained).items():
                if name not in own:
                    found.setdefault(name, {})[rank] = hash_of(content)
        return found

    def _model(self, mesh: Mesh, rank: int, seen: int) -> dict[str, tuple[Sequence[int], Slice]]:
        data, tensor, stage = mesh.place(rank)
        weights = 1 if not mesh.weights_too else mesh.shards
        found: list[tuple[str, bool, str, int, Slice]] = []
        for name, split, begins in (
            (f"stage{stage}.column.weight", True, "random"),
            (f"stage{stage}.column.bias", True, "zero"),
            (f"stage{stage}.row.bias", False, "zero"),
            (f"stage{stage}.norm.weight", False, "one"),
        ):
            found.append((name, split, begins, weights, ()))
            found += [(f"{moment}.{name}", split, "zero", mesh.shards, ()) for moment in ("adam_m", "adam_v")]
        if stage in {0, mesh.pipeline - 1}:
            found.append(("embedding.weight", True, "random", weights, ()))
        if mesh.experts > 1:
            expert = data % mesh.experts
            found += [(f"stage{stage}.expert{local}.weight", True, "random", 1, (expert,)) for local in range(2)]
        if self.rare:
            found.append(("rare.adam_m.embedding", True, "zero", mesh.shards, ()))
        held: dict[str, tuple[Sequence[int], Slice]] = {}
        for name, split, begins, shards, own in found:
            place: Slice = (tensor if split else 0, data % shards, mesh.tensor if split else 1, *own)
            begun = seen > (1 + hash_of(self.seed, name, place) % 40 if name.startswith("rare.") else 0)
            content = (name, place, seen) if begun else _untrained(name, place, begins, self)
            held[name] = [max(1, 8 // (mesh.tensor if split else 1) // shards)], content
        return held

    def _frozen(self, mesh: Mesh, rank: int, seen: int) -> dict[str, tuple[Sequence[int], Slice]]:
        tensor = mesh.place(rank)[1]
        trained = 0 if self.unfrozen_at is None else max(0, seen - self.unfrozen_at)
        return {
            name: (
                [8 // mesh.tensor],
                (name, tensor, trained) if trained else _untrained(name, (tensor,), begins, self),
            )
            for name, begins in (("frozen.weight", "random"), ("frozen.bias", "zero"))
            if self.has_frozen
        }

    def _own(self, mesh: Mesh, rank: int, step: int) -> dict[str, tuple[Sequence[int], Slice]]:
        """Return what each rank has for itself."""
        mean = f"stage{mesh.place(rank)[2]}.running_mean"
        every = {
            "rng_state": (self.has_rng, 8, ("rng", rank, step)),
            "tokens_seen": (self.has_counter, 1, ("counter", step * 1000 + hash_of(self.seed, rank) % 7)),
            mean: (self.has_statistics, 8, ("mean", rank, step) if step else ZERO),
        }
        return {name: ([size], content) for name, (there, size, content) in every.items() if there}

    def _updates(self, step: int) -> int:
        return sum(10 for at in range(10, step + 1, 10) if at not in self.skipped)


def _untrained(name: str, place: Slice, begins: object, training: Training) -> Slice:
    if begins == "zero":
        return ZERO
    if begins == "one":
        return (1.0,)
    return (name, "begins") if training.same_seed else (name, place, "begins")


def hash_of(*of: object) -> int:
    """A number that is the same in every process."""
    return int.from_bytes(blake2b(repr(of).encode(), digest_size=4).digest(), "big")


def drawn(seed: int, *, most: int = 16) -> Training:
    """Draw a training of at most so many ranks."""
    chance = Random(seed)  # noqa: S311  the same training for the same seed, no secret
    mesh = _mesh(chance, most)
    meshes = [mesh]
    saves = [chance.randint(1, 5)]
    for _ in range(chance.choice([0, 0, 1, 2])):
        meshes.append(_changed(chance, meshes[-1], most))
        saves.append(chance.randint(1, 3))
    return Training(
        seed=seed,
        meshes=tuple(meshes),
        saves=tuple(saves),
        zero_start=chance.random() < 0.3,
        same_seed=chance.random() < 0.3,
        has_rng=chance.random() < 0.3,
        has_counter=chance.random() < 0.3,
        has_statistics=chance.random() < 0.3,
        has_frozen=chance.random() < 0.5,
        unfrozen_at=chance.choice([None, None, 10, 20]),
        rare=chance.random() < 0.4,
        skipped=frozenset(at for at in range(10, 100, 10) if chance.random() < 0.1),
        shifting_batch=chance.random() < 0.3,
        fmt=chance.choice(["ckpt", "safetensors"]),
    )


def _mesh(chance: Random, most: int) -> Mesh:
    while True:
        data, tensor, pipeline = chance.choice([1, 2, 3, 4, 8]), chance.choice([1, 2, 4]), chance.choice([1, 1, 2])
        if data * tensor * pipeline <= most:
            divisors = [of for of in (1, 1, 2, 4, 8) if data % of == 0]
            return Mesh(
                data=data,
                tensor=tensor,
                pipeline=pipeline,
                tensor_last=chance.random() < 0.7,
                experts=chance.choice(divisors),
                shards=chance.choice(divisors),
                weights_too=chance.random() < 0.3,
            )


def _changed(chance: Random, mesh: Mesh, most: int) -> Mesh:
    """Return the arrangement after a restart: the same, or not."""
    what = chance.choice(["same", "same", "order", "shards", "other"])
    if what == "order":
        return replace(mesh, tensor_last=not mesh.tensor_last)
    if what == "shards":
        return replace(mesh, shards=chance.choice([of for of in (1, 2, 4, 8) if mesh.data % of == 0]))
    return mesh if what == "same" else _mesh(chance, most)


@cache
def numbers(content: Slice, count: int) -> tuple[float, ...]:
    """Return the numbers that a slice holds: other contents, other numbers."""
    if len(content) == 1 and isinstance(content[0], float):
        return (content[0],) * count
    return tuple((hash_of(content, index) % 16_777_213 + 1) / 2**24 for index in range(count))


def parallel_tree(base: Path, training: Training) -> Path:
    """Save a training's files in the legacy layout, and return the output folder.

    It has no save from before the first step.
    """
    training = replace(training, zero_start=False)
    builder = TreeBuilder(base).legacy(ranks=0, fmt=training.fmt)
    for start, step in training.steps():
        mesh = training.meshes[start]
        label = step // 2, 2
        scalars = training_scalars(epoch=label[0], true_step=step, resumed=start > 0)
        for rank in range(mesh.world):
            tensors = [
                floats(name, shape, values=numbers(content, shape[0]))
                for name, (shape, content) in sorted(training.held(start, rank, step).items())
            ]
            path = builder.shard(rank, *label, run=start)
            builder.file(path, shard_bytes([*tensors, *scalars], training.fmt))
            builder.meta(rank, *label, path.rpartition("/")[2])
    return builder.output
