"""Cost of the guard for a training: a step with it against the same step without it, in turns.

    python benchmarks/guard.py [PAIRS]

Small transformers on one thread, f32: about 10 ms, 0.1 s and 1 s per step without a guard, with the usual clipping.
Each pair of steps is measured separately and the median of all ratios is printed, so that other load on the machine
does not count. In one process it is CPU time, including the guard's own threads; in two processes, which wait for each
other, it is wall time.

For comparison, each length of step is also measured with a callback as it is commonly written: before each batch it
reads all random-number states, and before each update it joins all gradients to look for a NaN. It drops no update,
judges no norm and writes no events.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ckpttool.core.domain.guarding import GuardEventKind
from ckpttool.guard import Guard, RobustZPolicy, randomness
from ckpttool.guard.capture.memory import StepMemory

LETTERS = 256
LIMITS = {"10 ms": 1.05, "0.1 s": 1.01, "1 s": 1.01, "features": 1.03, "two processes": 1.02}
FEATURES = "enable:true,grad_sample_interval:3"
WARM_UP = 5
OWN_CLOCK = 20
MICRO_BATCHES = 16

Clock = Callable[[], float]


class Size(NamedTuple):
    """The size of a training."""

    width: int
    layers: int
    batch: int
    """Samples of a batch."""
    length: int
    """Letters of a sample."""


SIZES = {"10 ms": Size(64, 2, 4, 64), "0.1 s": Size(256, 4, 8, 128), "1 s": Size(512, 5, 8, 200)}
USUAL = SIZES["0.1 s"]


class Model(nn.Module):
    """Some layers of a transformer."""

    def __init__(self, size: Size = USUAL) -> None:
        super().__init__()
        width = size.width
        self.letters = nn.Embedding(LETTERS, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, size.layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, LETTERS)

    def forward(self, batch: Tensor) -> Tensor:
        """Return the loss of one batch: (samples, length + 1)."""
        scores = self.head(self.layers(self.letters(batch[:, :-1])))
        return nn.functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())


class Training:
    """A model with its optimizer, and no guard."""

    def __init__(self, size: Size = USUAL, *, distributed: bool = False) -> None:
        torch.manual_seed(1)
        bare = Model(size)
        self.size = size
        self.model = DistributedDataParallel(bare) if distributed else bare
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def step(self, batch: Tensor) -> None:
        """Do one step."""
        self.backward(batch)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def backward(self, batch: Tensor) -> None:
        """Compute gradients, and clip them."""
        self.model(batch).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)


class GuardedTraining(Training):
    """The same with a guard."""

    def __init__(self, output: str, size: Size = USUAL, *, distributed: bool = False, **settings: Any) -> None:  # noqa: ANN401  of `Guard`
        super().__init__(size, distributed=distributed)
        self.guard = Guard(self.model, self.optimizer, output=output, policy=RobustZPolicy(), **settings)

    def backward(self, batch: Tensor) -> None:
        """Compute gradients, decide, and clip."""
        with self.guard.micro(batch) as micro:
            loss = self.model(batch)
            micro.loss(loss)
            loss.backward()
        self.guard.clip_(1.0)


class TrainingWithCallback(Training):
    """The same with a callback that looks for a NaN."""

    def backward(self, batch: Tensor) -> None:
        """Store the inputs of a replay, and inspect all gradients before the clipping."""
        self.before = batch, randomness.states()
        self.model(batch).backward()
        gradients = [parameter.grad.view(-1) for parameter in self.model.parameters() if parameter.grad is not None]
        if torch.isnan(torch.cat(gradients)).any():
            raise FloatingPointError("a gradient is NaN")
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)


def ratios(trainings: Sequence[Training], rounds: int, clock: Clock) -> tuple[list[float], list[list[float]]]:
    """Measure trainings in turns.

    Returns:
        The seconds of each step of the first one, and of each other one the ratios of its steps to these.
    """
    chance = torch.Generator().manual_seed(2)
    order = random.Random(2)  # noqa: S311  the same in both processes
    turns = [*trainings]
    size = trainings[0].size
    seconds: list[float] = []
    found: list[list[float]] = [[] for _ in trainings[1:]]
    for number in range(rounds + WARM_UP):
        batch = torch.randint(LETTERS, (size.batch, size.length + 1), generator=chance)
        took = {}
        order.shuffle(turns)
        for training in turns:
            if dist.is_initialized():
                dist.barrier()
            begun = clock()
            training.step(batch)
            took[training] = clock() - begun
        if number >= WARM_UP:
            plain, *others = [took[training] for training in trainings]
            seconds.append(plain)
            for ratio, other in zip(found, others, strict=True):
                ratio.append(other / plain)
    return seconds, found


def told(name: str, seconds: list[float], found: list[float], target: float | None) -> None:
    """Print the median of the ratios, and its 95 % confidence interval."""
    middle, error = statistics.median(found), 1.25 * 1.96 * statistics.stdev(found) / len(found) ** 0.5
    step = statistics.median(seconds)
    aim = "" if target is None else f"  (target {target})"
    print(f"{name}: {middle:.4f} ± {error:.4f} x a step of {step * 1000:.0f} ms{aim}")


def lengths(pairs: int) -> None:
    """Measure steps of three lengths, about as long for each."""
    for name, size in SIZES.items():
        rounds = {"10 ms": 5 * pairs, "1 s": pairs // 8}.get(name, pairs)
        with tempfile.TemporaryDirectory() as output:
            guarded = GuardedTraining(output, size)
            seconds, found = ratios(
                [Training(size), guarded, TrainingWithCallback(size)], max(rounds, 2), time.process_time
            )
            guarded.guard.close()
        told(name, seconds, found[0], LIMITS[name])
        told("  a callback that looks for NaN", seconds, found[1], None)


def alone(name: str, pairs: int, **settings: Any) -> None:  # noqa: ANN401  of `Guard`
    """Measure in one process, then by the guard's own clock, which the machine's load disturbs least."""
    shares: list[float] = []

    def listen(_kind: GuardEventKind, /, **values: Any) -> None:  # noqa: ANN401  an event's
        shares.extend([values["overhead"]] if "overhead" in values else [])

    with tempfile.TemporaryDirectory() as output:
        guarded = GuardedTraining(output, **settings)
        seconds, found = ratios([Training(), guarded], pairs, time.process_time)
        told(name, seconds, found[0], LIMITS[name])
        guarded.guard.sinks.append(listen)
        ratios([guarded], OWN_CLOCK, time.process_time)
        guarded.guard.close()
    print(f"  {1 + statistics.median(shares):.4f} x by the guard's own clock")


def nbytes(held: object) -> int:
    """Return the memory of a value, and its components."""
    if isinstance(held, (Tensor, np.ndarray)):
        return held.nbytes
    inner = held.values() if isinstance(held, dict) else held if isinstance(held, (tuple, list)) else ()
    return sys.getsizeof(held) + sum(map(nbytes, inner))


def memory() -> None:
    """Print the memory of micro-batches that are retained until their step ends, so that it can be captured."""
    remembered = StepMemory(Model())
    for _ in range(MICRO_BATCHES):
        remembered.micro(torch.zeros(USUAL.batch, USUAL.length + 1, dtype=torch.int64))
    states = [state for micro in remembered.micro_batches for state in micro.random.values()]
    chance = sum({id(state): nbytes(state) for state in states}.values())
    print(
        f"capture memory of {MICRO_BATCHES} micro-batches: {remembered.nbytes} bytes by reference, "
        f"{chance} bytes of random-number states"
    )


def together(rank: int, pairs: int, folder: str) -> None:
    """Measure in one of two processes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    trainings = [Training(distributed=True), GuardedTraining(folder, distributed=True)]
    seconds, found = ratios(trainings, pairs, time.perf_counter)
    if rank == 0:
        told("two processes", seconds, found[0], LIMITS["two processes"])
    dist.destroy_process_group()


def main() -> None:
    """Run each measurement."""
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    torch.set_num_threads(1)
    memory()
    lengths(pairs)
    alone("features", pairs, features=FEATURES)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(together, (pairs, folder), nprocs=2)


if __name__ == "__main__":
    main()
