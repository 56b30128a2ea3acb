"""Cost of the guard for a training: a step with it against the same step without it, in turns.

    python benchmarks/guard.py [PAIRS]

A small transformer on one thread, f32: about 0.1 s per step without a guard, with the usual clipping. Each pair of
steps is measured separately and the median of all ratios is printed, so that other load on the machine does not count.
In one process it is CPU time, including the guard's own threads; in two processes, which wait for each other, it is
wall time.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ckpttool.core.domain.guarding import GuardEventKind
from ckpttool.guard import Guard, RobustZPolicy
from ckpttool.guard.capture.memory import StepMemory

WIDTH, LAYERS, LENGTH, BATCH, LETTERS = 256, 4, 128, 8, 512
LIMITS = {"norm": 1.01, "features": 1.03, "two processes": 1.02}
FEATURES = "enable:true,grad_sample_interval:3"
WARM_UP = 5
OWN_CLOCK = 20

Clock = Callable[[], float]


class Model(nn.Module):
    """Four layers of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, LETTERS)

    def forward(self, batch: Tensor) -> Tensor:
        """Return the loss of one batch: (samples, length + 1)."""
        scores = self.head(self.layers(self.letters(batch[:, :-1])))
        return nn.functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())


class Training:
    """A model with its optimizer, with or without a guard."""

    def __init__(self, output: str | None, *, distributed: bool, **settings: Any) -> None:  # noqa: ANN401  of `Guard`
        torch.manual_seed(1)
        bare = Model()
        self.model = DistributedDataParallel(bare) if distributed else bare
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.guard = None
        if output is not None:
            self.guard = Guard(self.model, self.optimizer, output=output, policy=RobustZPolicy(), **settings)

    def step(self, batch: Tensor) -> None:
        """Do one step."""
        if self.guard is None:
            self.model(batch).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        else:
            with self.guard.micro(batch) as micro:
                loss = self.model(batch)
                micro.loss(loss)
                loss.backward()
            self.guard.clip_(1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def ratios(plain: Training, guarded: Training, pairs: int, clock: Clock) -> tuple[list[float], list[float]]:
    """Return the seconds of each plain step, and the ratio of the guarded step to it."""
    chance = torch.Generator().manual_seed(2)
    seconds, found = [], []
    for number in range(pairs + WARM_UP):
        batch = torch.randint(LETTERS, (BATCH, LENGTH + 1), generator=chance)
        took = {}
        for training in (plain, guarded) if number % 2 else (guarded, plain):
            if dist.is_initialized():
                dist.barrier()
            begun = clock()
            training.step(batch)
            took[training] = clock() - begun
        if number >= WARM_UP:
            seconds.append(took[plain])
            found.append(took[guarded] / took[plain])
    return seconds, found


def told(name: str, seconds: list[float], found: list[float]) -> None:
    """Print the median of the ratios, and its 95 % confidence interval."""
    middle, error = statistics.median(found), 1.25 * 1.96 * statistics.stdev(found) / len(found) ** 0.5
    step = statistics.median(seconds)
    print(f"{name}: {middle:.4f} ± {error:.4f} x a step of {step * 1000:.0f} ms  (target {LIMITS[name]})")


def alone(name: str, pairs: int, **settings: Any) -> None:  # noqa: ANN401  of `Guard`
    """Measure in one process, then by the guard's own clock, which the machine's load disturbs least."""
    shares: list[float] = []

    def listen(_kind: GuardEventKind, /, **values: Any) -> None:  # noqa: ANN401  an event's
        shares.extend([values["overhead"]] if "overhead" in values else [])

    with tempfile.TemporaryDirectory() as output:
        plain, guarded = Training(None, distributed=False), Training(output, distributed=False, **settings)
        told(name, *ratios(plain, guarded, pairs, time.process_time))
        if guarded.guard is not None:
            guarded.guard.sinks.append(listen)
            ratios(guarded, guarded, OWN_CLOCK, time.process_time)
            guarded.guard.close()
    print(f"  {1 + statistics.median(shares):.4f} x by the guard's own clock")


def nbytes(held: object) -> int:
    """Return the memory of a value, and its components."""
    if isinstance(held, (Tensor, np.ndarray)):
        return held.nbytes
    inner = held.values() if isinstance(held, dict) else held if isinstance(held, (tuple, list)) else ()
    return sys.getsizeof(held) + sum(map(nbytes, inner))


def memory() -> None:
    """Print the memory of a micro-batch that is retained until its step ends, so that it can be captured."""
    remembered = StepMemory(Model())
    remembered.micro(torch.zeros(BATCH, LENGTH + 1, dtype=torch.int64))
    chance = nbytes(remembered.micro_batches[0].random)
    print(f"capture memory: {remembered.nbytes} bytes of a micro-batch by reference, {chance} bytes of random numbers")


def together(rank: int, pairs: int, folder: str) -> None:
    """Measure in one of two processes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    plain, guarded = Training(None, distributed=True), Training(folder, distributed=True)
    measured = ratios(plain, guarded, pairs, time.perf_counter)
    if rank == 0:
        told("two processes", *measured)
    dist.destroy_process_group()


def main() -> None:
    """Run each measurement."""
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    torch.set_num_threads(1)
    memory()
    alone("norm", pairs)
    alone("features", pairs, features=FEATURES)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(together, (pairs, folder), nprocs=2)


if __name__ == "__main__":
    main()
