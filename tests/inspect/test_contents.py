"""Shards put together: one row a tensor, whatever the order in which they were read."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ckpttool.core.domain.checkpoint import Checkpoint, CommitState, Content, Inventory, StepSource, Topology
from ckpttool.core.domain.contents import Contents, ElementStats, Opened, is_selected
from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.scalars import Scalars
from ckpttool.core.domain.shard import FormatName, ShardRole, TensorEntry
from ckpttool.core.domain.units import ByteCount, Rank
from ckpttool.inspect.read_contents import open_shard
from ckpttool.inspect.rules_contents import Gathering, as_counted, kind_of
from tests.support.shard_writers import MemorySource
from tests.support.trees import floats, safetensors_bytes
from tests.support.verifying import task_for

CHECKPOINT = Checkpoint(
    name="5_2", scalars=Scalars(), step=None, step_source=StepSource.UNKNOWN, shards=(), topology=Topology(),
    format=FormatName.SAFETENSORS, commit=CommitState.UNRECORDED, content=Content.FULL,
)  # fmt: skip
TREE = Inventory(root="tree", layout="any", checkpoints=(CHECKPOINT,), runs=(), findings=())


def entry(name: str, *shape: int, dtype: DType = DType.F32, nbytes: int | None = None) -> TensorEntry:
    return TensorEntry(name=name, dtype=dtype, shape=shape, spans=() if nbytes is None else ((0, nbytes),))


def opened(rank: int | None, *entries: TensorEntry, **more: Any) -> Opened:  # noqa: ANN401  fields of the noun
    return Opened(
        path=f"rank_{rank}", rank=None if rank is None else Rank(rank), role=ShardRole.FULL,
        format=FormatName.SAFETENSORS, nbytes=ByteCount(9), schema=repr(entries), entries=entries, **more,
    )  # fmt: skip


def gathered(*shards: Opened, patterns: tuple[str, ...] = ()) -> Contents:
    gathering = Gathering(patterns)
    for shard in shards:
        gathering.add(shard)
    return gathering.contents(TREE, CHECKPOINT, file=None, findings=())


def test_the_tensors_of_ranks_are_in_memory_once_and_those_of_a_hundred_other_files_are_let_go() -> None:
    def entries(number: int, by: str = "") -> object:
        source = MemorySource(safetensors_bytes([floats(f"layer.{number}", (2,))], {"written by": by}))
        opened = open_shard(task_for(f"{number}.safetensors"), source).added
        assert isinstance(opened, Opened)
        return opened.entries

    first = entries(0)
    assert entries(0, by="another rank") is first
    for number in range(1, 101):
        entries(number)
    assert entries(0, by="a third one") is not first


def test_the_order_in_which_shards_come_makes_no_difference() -> None:
    stats = ElementStats(elements=4, nans=0, infinities=0, zeros=1, least=-1.0, greatest=2.0, norm=2.5)
    shards = [
        opened(
            rank,
            entry("w", 4),
            *([entry("last", 2)] if rank > 5 else []),
            values=(("step", rank // 7),),
            stats=(stats,),
        )
        for rank in range(8)
    ]
    expected = gathered(*shards)
    for seed in range(5):
        random.Random(seed).shuffle(shards)  # noqa: S311  the same on every run
        assert gathered(*shards) == expected
    (last, row) = expected.tensors
    assert (last.ranks, last.files) == ((6, 7), 2)
    assert row.stats == ElementStats(elements=32, nans=0, infinities=0, zeros=8, least=-1.0, greatest=2.0, norm=2.5)
    assert [(scalar.value, scalar.others) for scalar in expected.scalars] == [(0, ((1, (7,)),))]


def test_a_shape_that_few_ranks_have_is_told_beside_that_of_most() -> None:
    (row,) = gathered(opened(0, entry("w", 4)), opened(1, entry("w", 2, 2)), opened(2, entry("w", 4))).tensors
    assert (row.shape, row.ranks, row.others) == ((4,), (0, 1, 2), (("F32", (2, 2), (1,)),))


def test_files_that_all_ranks_share_have_no_rank() -> None:
    (row,) = gathered(opened(None, entry("w", 4), values=(("a", 1),))).tensors
    assert (row.ranks, row.files) == ((), 1)


def test_two_tensors_of_one_name_in_one_file_are_one_row() -> None:
    (row,) = gathered(opened(0, entry("a.b", 4), entry("a.b", 4))).tensors
    assert (row.files, row.others) == (1, ())


def test_true_is_not_one_and_nan_is_the_same_everywhere() -> None:
    found = gathered(
        opened(0, values=(("flag", True), ("nan", float("nan")))),
        opened(1, values=(("flag", 1), ("nan", float("nan")))),
    )
    assert {row.name: len(row.others) for row in found.scalars} == {"flag": 1, "nan": 0}


def test_bytes_are_those_of_the_shape_but_for_texts() -> None:
    found = gathered(opened(0, entry("w", 3, dtype=DType.BF16), entry("t", dtype=DType.STRING, nbytes=40)))
    assert {row.name: row.nbytes for row in found.tensors} == {"w": 6, "t": 40}


def test_parameters_are_what_is_no_state_and_no_single_number() -> None:
    names = ("w", "optimizer.adam_m.w", "optimizer.param", "state.0.exp_avg")
    entries = [entry(name, 10) for name in names]
    entries += [
        entry("step", 1),
        entry("scale"),
        entry("index", 10, dtype=DType.I32),
        entry("mask", 10, dtype=DType.BOOL),
    ]
    assert gathered(opened(0, *entries)).parameters == 10


def test_what_no_pattern_asks_for_is_counted() -> None:
    found = gathered(opened(0, entry("a.w", 1), entry("a.b", 1), entry("a[0]", 1)), patterns=("*.w", "a[0]"))
    assert [row.name for row in found.tensors] == ["a.w", "a[0]"]
    assert found.left_out == 1
    assert is_selected("a0", ("a[0]",))


def test_a_tensor_without_finite_elements_has_no_extremes() -> None:
    assert gathered(opened(0, entry("w", 2), stats=(None,))).tensors[0].stats is None
    none = ElementStats(elements=2, nans=2, infinities=0, zeros=0, least=None, greatest=None, norm=0.0)
    assert none.absmax is None
    assert none.join(none).least is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.layers.0.weight", "weights"),
        ("optimizer.adam_m.model.w", "adam_m"),
        ("state.3.exp_avg_sq", "exp_avg_sq"),
        ("optimizer.param_groups", "optimizer state"),
        ("optim/state", "optimizer state"),
        ("my_adam_m_layer.w", "weights"),
    ],
)
def test_a_tensor_is_what_its_name_says_between_dots(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_names_are_sorted_as_people_count() -> None:
    names = ["b.10.w", "b.9.w", "b.w", "a.2", "a.1b", "10", "9"]
    assert sorted(names, key=as_counted) == ["9", "10", "a.1b", "a.2", "b.9.w", "b.10.w", "b.w"]
