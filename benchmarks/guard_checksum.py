"""Cost of the matrix checksum, its detections, and its false alarms.

    python benchmarks/guard_checksum.py [cost] [step] [found] [clean]

One thread, CPU time: each ratio is the median of pairs that ran in turns, so that other load on the machine has little
effect. `found` flips single bits of right products, on the same data for our rule and for Ascend's.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from ckpttool.core.domain.units import Rank
from ckpttool.guard.checksum import MatmulChecksum
from ckpttool.guard.products import PRODUCTS, Product, suspicious_rows, worst_element

ROWS = 10_000
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
INTEGERS = {"f32": (torch.int32, 32), "bf16": (torch.int16, 16), "f16": (torch.int16, 16)}
LIMITS = {"f32": 1.5, "bf16": 2.0}
PEAKED, SUSPICIOUS, SMALLEST = 5, 5, 5e-20
"""Ascend's rule: the limit for a peaked row, its tolerance, and the limit for zero."""
SPARSE = 0.05
WIDTH, LAYERS, LENGTH, BATCH, LETTERS = 256, 4, 128, 8, 512


def product(a: Tensor, b: Tensor) -> Product:
    """Multiply two matrices."""
    return PRODUCTS[torch.ops.aten.mm.default]((a, b), {}, a @ b)


def is_accused(found: Product) -> bool:
    """Return whether our rule reports a product as wrong."""
    rows = suspicious_rows(found)
    return bool(len(rows)) and worst_element(found, rows) is not None


def ascend_accuses(found: Product, again: Tensor) -> bool:
    """Return whether the rule of Ascend's patch does: a different result when it is computed again."""
    a, b, c = found.a[0].float(), found.b[0].float(), found.c[0].float()
    columns = c.shape[-1]
    error = (c.sum(-1) - a @ b.sum(-1)).abs()
    largest, mean = c.abs().amax(-1), c.abs().mean(-1)
    is_peaked = bool((largest / mean).min() > PEAKED)
    tolerance = largest * 2**-8 * columns**0.5 if is_peaked else mean * 2**-8 * columns
    is_suspicious = bool((error - SUSPICIOUS * tolerance > SMALLEST).any())
    return is_suspicious and bool((mean != again.float().abs().mean(-1)).any())


def pairs(plain: Callable[[], object], checked: Callable[[], object], times: int) -> float:
    """Return the ratio of the second time to the first."""
    found = []
    for number in range(times + 2):
        took: dict[Callable[[], object], float] = {}
        for call in (plain, checked) if number % 2 else (checked, plain):
            begun = time.process_time()
            call()
            took[call] = time.process_time() - begun
        if number > 1 and took[plain] > 0:
            found.append(took[checked] / took[plain])
    return statistics.median(found)


def cost() -> None:
    """Print the time of a check, in units of the product of the same operands."""
    for name in ("f32", "bf16"):
        for size in (512, 1024, 2048):
            a, b = (torch.randn(size, size).to(TYPES[name]) for _ in range(2))
            done = product(a, b)
            # A check alone is measured against a product alone: their sum would hide how small it is.
            ratio = pairs(lambda a=a, b=b: a @ b, lambda done=done: suspicious_rows(done), max(7, 20_000 // size))
            print(f"check ÷ product, {name} {size}³: {ratio:.2f}")


class Model(nn.Module):
    """Four layers of a transformer, as in the guard's own benchmark."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, LETTERS)

    def forward(self, batch: Tensor) -> Tensor:
        """Return the loss of one batch: (samples, length + 1)."""
        scores = self.head(self.layers(self.letters(batch[:, :-1])))
        return nn.functional.cross_entropy(scores.flatten(0, 1).float(), batch[:, 1:].flatten())


def step() -> None:
    """Print the time of a complete step while it is checked."""
    torch.manual_seed(1)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = torch.randint(LETTERS, (BATCH, LENGTH + 1))
    checksum = MatmulChecksum(model, lambda *_, **__: None, rank=Rank(0))
    for name, limit in LIMITS.items():

        def one(*, checked: bool, name: str = name) -> None:
            narrow = torch.autocast("cpu", torch.bfloat16, enabled=name == "bf16")
            with checksum if checked else nullcontext(), narrow:
                model(batch).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        ratio = pairs(lambda one=one: one(checked=False), lambda one=one: one(checked=True), 40)
        covered = checksum.summary()["covered_flops"]
        print(
            f"a step while it is checked, {name}: {ratio:.2f} x (target {limit}); "
            f"every 200th: {1 + (ratio - 1) / 200:.4f} x (target 1.01); covered {covered:.0%} of its operations"
        )


def flipped(found: Product, name: str, row: int, column: int, bit: int) -> Product:
    """Return a product with one bit of one element flipped."""
    integer, width = INTEGERS[name]
    c = found.c.clone()
    c[0].view(integer)[row, column] ^= 1 << bit if bit < width - 1 else -(1 << bit)
    return Product(a=found.a, b=found.b, c=c)


def found_bits() -> None:
    """Print for each bit the number of flips that our rule and Ascend's rule detect."""
    for name, columns in (("f32", 512), ("bf16", 512), ("bf16", 4096)):
        right, again = None, None
        seen, ours, theirs = Counter[int](), Counter[int](), Counter[int]()
        for trial in range(20):
            torch.manual_seed(trial)
            right = product(torch.randn(8, 512).to(TYPES[name]), torch.randn(512, columns).to(TYPES[name]))
            again = right.c[0]
            row, column = trial % 8, int(torch.randint(columns, ()))
            for bit in range(INTEGERS[name][1]):
                wrong = flipped(right, name, row, column, bit)
                seen[bit] += 1
                ours[bit] += is_accused(wrong)
                theirs[bit] += ascend_accuses(wrong, again)
        print(f"one bit flipped, {name}, rows of {columns}: bit, found of {seen[0]} by ours, by Ascend's rule")
        for bit in reversed(range(INTEGERS[name][1])):
            print(f"  {bit:2} {ours[bit]:3} {theirs[bit]:3}")


def kinds(rows: int, columns: int) -> Iterator[tuple[str, Tensor]]:
    """Yield a matrix of each of twelve distributions."""
    usual = torch.randn(rows, columns)
    yield "gaussian", usual
    yield "positive", torch.rand(rows, columns)
    yield "heavy tails", usual**5
    yield "lognormal", torch.exp(3 * usual).clamp(max=1e3)
    yield "sparse", usual * (torch.rand(rows, columns) < SPARSE)
    yield "nearly equal", 0.3 + 1e-3 * usual
    yield "vanishing", usual * 1e-20
    yield "huge", usual * 1e15
    yield "rows of all sizes", usual * torch.exp(5 * torch.randn(rows, 1))
    yield "columns of all sizes", usual * torch.exp(5 * torch.randn(columns))
    yield "one large column", torch.cat([usual[:, :1] * 1e4, usual[:, 1:]], 1)
    yield "attention", torch.softmax(3 * usual, -1)


def clean() -> None:
    """Print the number of correct rows that are suspected, and that are reported: this must be 0."""
    rows = suspected = accused = overflown = 0
    seed = 0
    while rows < ROWS:
        torch.manual_seed(seed)
        seed += 1
        for m, k, n in ((32, 64, 64), (8, 512, 512), (8, 300, 77), (4, 16, 2048)):
            for (_, a), (_, b) in zip(kinds(m, k), kinds(k, n), strict=True):
                for dtype in TYPES.values():
                    found = product(a.to(dtype), b.to(dtype))
                    doubtful = suspicious_rows(found)
                    rows += m
                    suspected += len(doubtful)
                    overflown += int((~found.c[0].isfinite()).any(-1).sum())
                    accused += len(doubtful) > 0 and worst_element(found, doubtful) is not None
    print(f"right rows: {rows}, overflown {overflown}, suspected {suspected}, products accused {accused} (target 0)")
    if accused:
        sys.exit(1)


def main() -> None:
    """Run the requested measurements, or all."""
    torch.set_num_threads(1)
    parts = {"cost": cost, "step": step, "found": found_bits, "clean": clean}
    for name, part in parts.items():
        if name in sys.argv[1:] or len(sys.argv) == 1:
            part()


if __name__ == "__main__":
    main()
