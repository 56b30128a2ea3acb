"""Digests as a training's ranks would have them, without a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b

from ckpttool.core.domain.replicas import TENSOR_DIGEST_BYTES, TensorDigests
from ckpttool.core.domain.units import Rank, Step
from ckpttool.replicas.comparing.model import Sample

Slices = Callable[[int, str], object]
"""Which slice of a tensor a rank holds, by its number and the tensor's name."""

NAMES = tuple(f"layer.{number:02}" for number in range(12))


def digest(*of: object) -> bytes:
    """Eight bytes that stand for a tensor."""
    return blake2b(repr(of).encode(), digest_size=TENSOR_DIGEST_BYTES).digest()


def held(
    ranks: Iterable[int],
    step: int,
    slices: Slices = lambda rank, name: 0,  # noqa: ARG005
    *,
    names: Sequence[str] = NAMES,
    frozen: Sequence[str] = (),
) -> dict[Rank, TensorDigests]:
    """What ranks hold at a step: replicas the same, and every tensor another at every step but the frozen ones."""
    return {
        Rank(rank): TensorDigests(
            names=tuple(names),
            digests=b"".join(digest(name, slices(rank, name), name in frozen or step) for name in names),
        )
        for rank in ranks
    }


def changed(of: TensorDigests, *names: str, by: object = "a flipped bit") -> TensorDigests:
    """The same with other bytes in some tensors."""
    digests = b"".join(
        digest(of.at(index), by) if name in names else of.at(index) for index, name in enumerate(of.names)
    )
    return TensorDigests(names=of.names, digests=digests)


def others(now: int, saved: Mapping[int, Mapping[Rank, TensorDigests]], *, most: int | None = None) -> list[Sample]:
    """All other checkpoints but the one of a step, nearest first."""
    near = sorted((step for step in saved if step != now), key=lambda step: (abs(step - now), step))
    return [
        Sample(name=f"step-{step}", step=Step(10 * step + 10), older=step < now, same_run=True, tensors=saved[step])
        for step in near[:most]
    ]
