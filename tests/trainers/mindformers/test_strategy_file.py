"""What MindSpore's strategy files say of who holds which slice, on real ones and against slices cut by hand."""

from __future__ import annotations

import itertools
from math import prod
from random import Random

import pytest

from ckpttool.core.formats.strict_json import ParseError
from ckpttool.trainers.mindformers.strategy_file import MOST_PARAMETERS, SavedLayout, parse_strategy
from tests.conftest import FIXTURES
from tests.support.strategy_files import Lies, item, layout, message, number, strategy

REAL = FIXTURES / "strategy"


def holders(lies: SavedLayout | None, ranks: int) -> list[list[int]]:
    """The ranks that hold the same, by their slice."""
    assert lies is not None
    assert lies.slice_of is not None
    found: dict[tuple[int, ...], list[int]] = {}
    for rank in range(ranks):
        found.setdefault(lies.slice_of(rank), []).append(rank)
    return list(found.values())


@pytest.mark.parametrize("stage", [0, 1])
def test_a_real_stage_of_two_slices_on_four_ranks(stage: int) -> None:
    name = f"tp2_dp2_stage_{stage}_of_2.ckpt"
    told = parse_strategy((REAL / name).read_bytes(), where=name)
    assert (told.stage, told.ranks, len(told.layouts)) == (stage, 4, 16)
    for prefix in ("", "moment1.", "moment2.", "accu_grads."):
        sliced, whole = (told.layouts[f"{prefix}layers.{stage}.{each}"] for each in ("down", "norm"))
        assert holders(sliced, 4) == [[0, 2], [1, 3]]
        assert holders(whole, 4) == [[0, 1, 2, 3]]


def test_a_real_file_where_two_ranks_share_out_each_slice() -> None:
    name = "tp2_dp4_shared_by_2.ckpt"
    told = parse_strategy((REAL / name).read_bytes(), where=name)
    assert (told.stage, told.ranks, len(told.layouts)) == (0, 8, 24)
    assert holders(told.layouts["moment1.layers.0.up"], 8) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert holders(told.layouts["layers.1.norm"], 8) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert holders(told.layouts["layers.1.odd"], 8) == [[*range(8)]]


def test_a_real_file_of_the_other_form() -> None:
    told = parse_strategy((REAL / "dp4.json").read_bytes(), where="dp4.json")
    assert (told.stage, told.ranks) == (0, 4)
    assert {str(holders(each, 4)) for each in told.layouts.values()} == {"[[0, 1, 2, 3]]"}


def test_layouts_that_nothing_here_knows_of_are_left_out() -> None:
    known = Lies([2, 2], [0, -1])
    odd = {
        "by fields": known._replace(field=2),
        "by offsets": known._replace(offsets=[1]),
        "twice along a side": Lies([2, 2], [0, 0]),
        "along no side": Lies([2, 2], [2]),
        "along one below all": Lies([2, 2], [-2]),
        "on no ranks": Lies([2, 0], [0]),
        "on nothing": Lies([], []),
        "shared out by a step that is none": Lies([2, 2], [0], step=1, size=2),
        "shared out by nobody": Lies([2, 2], [0, 1], step=1, size=2),
        "shared out by three of four": Lies([4], [-1], step=1, size=3),
        "shared out by more than there are": Lies([4], [-1], step=1, size=8),
        "shared out by less than none": Lies([4], [-1], step=1, size=-2),
    }
    told = parse_strategy(strategy({"known": known, **odd}), where="x.ckpt")
    assert told.layouts.keys() == {"known"}
    two_grids = message(3, item("w", layout(known) + message(1, b"")))
    assert parse_strategy(strategy({"known": known}) + two_grids, where="x.ckpt").layouts.keys() == {"known"}


@pytest.mark.sample(60)
@pytest.mark.parametrize("seed", range(200))
def test_slices_are_those_that_a_tensor_is_cut_into(seed: int) -> None:
    chance = Random(seed)  # noqa: S311  the same layouts for the same seed, no secret
    grid = [chance.choice([1, 2, 2, 3, 4]) for _ in range(chance.randint(1, 4))]
    sides = chance.sample(range(len(grid)), chance.randint(0, len(grid)))
    tensor_map = [side if chance.random() < 0.8 else -1 for side in sides] or [-1]
    used = [len(grid) - 1 - side for side in tensor_map if side >= 0]
    free = [side for side in range(len(grid)) if side not in used and grid[side] > 1]
    sharers = chance.choice([0, -1, 2, 4, *[prod(grid[side] for side in free)]])
    step = prod(grid[free[-1] + 1 :]) if free else 0
    lies = {"w": Lies(grid, tensor_map, step=step, size=sharers), "plain": Lies(grid, [-1])}
    told = parse_strategy(strategy(lies, packed=seed % 2 == 0), where="x.ckpt")
    if "w" not in told.layouts:
        assert sharers  # what is not shared out can always be told
        return
    assert sorted(holders(told.layouts["w"], prod(grid))) == sorted(cut(grid, tensor_map, sharers))


def cut(grid: list[int], tensor_map: list[int], sharers: int) -> list[list[int]]:
    """Cut a tensor in pieces as a grid of ranks does, hand them out, and say who holds the same."""
    held: dict[object, list[int]] = {}
    for rank, place in enumerate(itertools.product(*map(range, grid))):
        piece = tuple(0 if side < 0 else place[len(grid) - 1 - side] for side in tensor_map)
        held.setdefault(piece, []).append(rank)
    if not sharers:
        return list(held.values())
    shared: list[list[int]] = []
    for ranks in held.values():
        parts = len(ranks) if sharers < 0 else sharers
        shared += [ranks[part::parts] for part in range(parts)]
    return shared


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(b"", id="empty"),
        pytest.param(strategy({}), id="no parameter"),
        pytest.param(strategy({"w": Lies([2], [0])})[:-3], id="torn"),
        pytest.param(strategy({"w": Lies([2], [0])}) + strategy({"w": Lies([2], [0])}), id="a parameter twice"),
        pytest.param(strategy({"w": Lies([2], [0]), "v": Lies([4], [0])}), id="two sizes"),
        pytest.param(strategy({"w": Lies([2], [0])}) + strategy({"v": Lies([2], [0])}, stage=1), id="two stages"),
        pytest.param(strategy({"w": Lies([2], [0])}) + message(2, message(2, number(2, 1))), id="no stage"),
        pytest.param(strategy({"w": Lies([2], [0])}) + message(3, message(1, b"v")), id="an item without content"),
        pytest.param(strategy({"w": Lies([2], [0])}) + message(3, message(1, b"\xff") + message(2, b"")), id="a name"),
        pytest.param(strategy({"w": Lies([2], [0])}) + message(3, item("v", message(5, b""))), id="no number"),
        pytest.param(
            strategy({"w": Lies([2], [0])}) + message(3, item("v", message(1, message(1, b"\x80")))), id="dim"
        ),
    ],
)
def test_what_is_no_strategy_of_one_stage_is_refused(broken: bytes) -> None:
    with pytest.raises(ParseError):
        parse_strategy(broken, where="x.ckpt")


@pytest.mark.parametrize("text", [b"[]", b"{}", b'{"parallel_strategy_item": {}, "parallel_layout_item": {"w": {}}}'])
def test_what_is_no_strategy_in_json_is_refused(text: bytes) -> None:
    with pytest.raises(ParseError):
        parse_strategy(text, where="x.json")


def test_more_parameters_than_any_model_has_are_refused() -> None:
    data = strategy({}) + message(3, b"") * (MOST_PARAMETERS + 1)
    with pytest.raises(ParseError, match="more than"):
        parse_strategy(data, where="x.ckpt")


@pytest.mark.parametrize("name", sorted(path.name for path in REAL.iterdir()))
def test_wherever_a_real_file_ends_too_early_it_tells_nothing_else(name: str) -> None:
    whole = (REAL / name).read_bytes()
    layouts = parse_strategy(whole, where=name).layouts
    for end in range(len(whole)):
        try:
            told = parse_strategy(whole[:end], where=name)
        except ParseError:
            continue
        assert told.layouts.items() <= layouts.items()


@pytest.mark.slow
def test_whatever_bit_of_a_real_file_flips_it_is_read_or_refused() -> None:
    name = "tp2_dp2_stage_1_of_2.ckpt"
    whole = (REAL / name).read_bytes()
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        try:
            told = parse_strategy(bytes(data), where=name)
        except ParseError:
            continue
        assert all(len(each.slice_of(0)) < 8 for each in told.layouts.values() if each.slice_of is not None)
