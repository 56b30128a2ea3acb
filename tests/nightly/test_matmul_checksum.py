"""The matrix checksum by the thousand: no right row is accused, and what it finds of wrong ones is what it promises."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from ckpttool.core.domain.guarding import EventValue, GuardEventKind
from ckpttool.core.domain.units import Rank, Step
from ckpttool.guard.checksum import MatmulChecksum
from ckpttool.guard.products import Product, suspicious_rows, worst_element
from tests.guard.faulty import INTEGERS, clean_products, flip, product

nightly = pytest.mark.skipif("not config.getoption('--nightly')", reason="thousands of products: --nightly")

ROWS = 10_000


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """On a loaded machine several wait for each other most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def is_accused(found: Product) -> bool:
    rows = suspicious_rows(found)
    return bool(len(rows)) and worst_element(found, rows) is not None


@nightly
def test_of_ten_thousand_right_rows_none_is_accused() -> None:
    rows, seed = 0, 0
    while rows < ROWS:
        torch.manual_seed(seed)
        seed += 1
        for name, found in clean_products([(32, 64, 64), (8, 512, 512), (8, 300, 77), (4, 16, 2048), (2, 2048, 33)]):
            assert not is_accused(found), (seed, name)
            rows += found.c.shape[1]


def flips(dtype: torch.dtype, columns: int) -> Iterator[tuple[float, bool]]:
    """Flip each bit of elements of many products; yield how far that moved it, in rms, and whether it is found."""
    for seed in range(20):
        torch.manual_seed(seed)
        right = product(torch.randn(8, 512).to(dtype), torch.randn(512, columns).to(dtype))
        rms = right.c.double().square().mean().sqrt()
        place = (seed % 8, int(torch.randint(columns, ())))
        for bit in range(INTEGERS[dtype].itemsize * 8):
            wrong = Product(a=right.a, b=right.b, c=right.c.clone())
            flip(wrong.c[0], place, bit)
            moved = (wrong.c[0][place].double() - right.c[0][place].double()).abs() / rms
            yield float(moved), is_accused(wrong)


@nightly
@pytest.mark.parametrize(
    ("dtype", "columns", "of_half_to_two", "of_two_to_ten"),
    [
        (torch.float32, 512, 1.0, 1.0),
        (torch.bfloat16, 512, 0.8, 1.0),
        (torch.bfloat16, 4096, 0.1, 0.95),
        (torch.float16, 512, 1.0, 1.0),
    ],
)
def test_flips_are_found_by_how_far_they_move_an_element(
    dtype: torch.dtype, columns: int, of_half_to_two: float, of_two_to_ten: float
) -> None:
    seen, found = Counter[str](), Counter[str]()
    for moved, is_found in flips(dtype, columns):
        size = "vast" if not moved < 10 else "far" if moved >= 2 else "near" if moved >= 0.5 else "small"
        seen[size] += 1
        found[size] += is_found
    assert found["near"] >= of_half_to_two * seen["near"]
    assert found["far"] >= of_two_to_ten * seen["far"]
    assert found["vast"] == seen["vast"] > 20


def lose(c: Tensor, a: Tensor, b: Tensor) -> None:
    """A tile lost the last of its sums."""
    c[:16, :16] = (a[:16, :-32] @ b[:-32, :16]).to(c.dtype)


def negate(c: Tensor, _a: Tensor, _b: Tensor) -> None:
    c[:16, :16] *= -1


def clear(c: Tensor, _a: Tensor, _b: Tensor) -> None:
    c[:16, :16] = 0


def swap(c: Tensor, _a: Tensor, _b: Tensor) -> None:
    c[[0, 1]] = c[[1, 0]]


@nightly
@pytest.mark.parametrize("spoil", [lose, negate, clear, swap])
@pytest.mark.parametrize("dtype", list(INTEGERS))
def test_what_happens_to_a_tile_is_found_each_time(dtype: torch.dtype, spoil: Callable[..., None]) -> None:
    for seed in range(40):
        torch.manual_seed(seed)
        a, b = torch.randn(64, 512).to(dtype), torch.randn(512, 512).to(dtype)
        found = product(a, b)
        assert not is_accused(found)
        spoil(found.c[0], a, b)
        assert is_accused(found), seed


@nightly
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_healthy_training_is_never_accused(dtype: torch.dtype) -> None:
    told: list[dict[str, EventValue]] = []

    def emit(kind: GuardEventKind, /, *, step: Step, **values: EventValue) -> None:
        if kind is GuardEventKind.CHECKSUM_ABNORMAL:
            told.append({**values, "step": step})

    torch.manual_seed(9)
    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, norm_first=True)
    model = nn.Sequential(
        nn.Embedding(50, 64), nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), nn.Linear(64, 50)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    checksum = MatmulChecksum(model, emit, rank=Rank(0))
    losses = []
    for step in range(100):
        batch = torch.randint(50, (8, 33)).sort(-1).values  # something can be learned
        with checksum, torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
            checksum.step = Step(step)
            scores = model(batch[:, :-1]).flatten(0, 1)
            loss = nn.functional.cross_entropy(scores.float(), batch[:, 1:].flatten())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert told == []
    assert losses[-1] < losses[0] / 1.5
    products = checksum.summary()["products"]
    assert isinstance(products, int)
    assert products > 100 * 3 * 12
    assert math.isfinite(losses[-1])


@nightly
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler itself
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_the_products_of_a_compiled_model_are_seen(backend: str) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    compiled = torch.compile(model, backend=backend)
    checksum = MatmulChecksum(model, lambda *_, **__: None, rank=Rank(0))
    for _ in range(2):
        compiled(torch.randn(4, 8)).sum().backward()
        with checksum:
            compiled(torch.randn(4, 8)).sum().backward()
        assert checksum.summary()["products"] == 5
