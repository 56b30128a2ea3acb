"""The map of ranks: every fault in its column, nothing else marked, neighbours that are alike as one."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from rich.console import Console

from ckpttool.core.domain.checkpoint import Checkpoint, Topology
from ckpttool.core.domain.finding import Code, Finding, damage, note, suspect
from ckpttool.core.domain.shard import Shard
from ckpttool.core.domain.units import Rank
from ckpttool.core.domain.verdict import VerdictWord
from ckpttool.core.render.rank_map import Drawn, Mark, Row, Span, mark_of, rank_map
from tests.support.inventories import checkpoint


def save(*, world: int | None, ranks: Iterable[int] | None = None) -> Checkpoint:
    there = range(world or 0) if ranks is None else ranks
    return replace(checkpoint(ranks=there), topology=Topology(world_size=world))


def broken(*ranks: int) -> list[Finding]:
    return [damage(Code.SHARD_EMPTY, "empty", ranks=(Rank(rank),)) for rank in ranks]


def only(row: tuple[Checkpoint, list[Finding]], *, columns: int = 512) -> Row:
    (drawn,) = rank_map([row], columns=columns).rows
    return drawn


def told(row: Row) -> list[str]:
    return [span.title for span in row.spans]


def test_a_save_without_a_fault_is_one_span_and_a_note_is_no_fault() -> None:
    remark = note(Code.HEALTH_UNKNOWN, "nobody measured", ranks=(Rank(1),))
    assert told(only((save(world=4), [remark]))) == ["ranks 0 to 3: intact"]


def test_neighbours_that_are_alike_are_one_span_and_others_are_not() -> None:
    row = only((save(world=8, ranks=[0, 1, 4, 5, 6, 7]), broken(5, 6)))
    assert told(row) == [
        "ranks 0 to 1: intact",
        "ranks 2 to 3: missing (2)",
        "rank 4: intact",
        "ranks 5 to 6: damaged (2)",
        "rank 7: intact",
    ]
    assert row.summary == "8 ranks: 4 intact, 2 damaged, 2 missing"


def test_a_column_shows_the_worst_of_its_ranks_and_how_many_are_so() -> None:
    row = only((save(world=16, ranks=[rank for rank in range(16) if rank != 5]), broken(4, 6)), columns=4)
    assert told(row) == ["ranks 0 to 3: intact", "ranks 4 to 7: damaged (2)", "ranks 8 to 15: intact"]


def test_what_is_wrong_with_the_save_as_a_whole_is_drawn_over_all_of_it_unless_a_rank_is_to_blame() -> None:
    unfinished = damage(Code.UNCOMMITTED_SAVE, "not finished", path="10_2")
    assert told(only((save(world=4), [unfinished]))) == ["ranks 0 to 3: damaged as a checkpoint"]
    assert told(only((save(world=4), [unfinished, *broken(3)]))) == ["ranks 0 to 2: intact", "rank 3: damaged (1)"]


def test_ranks_of_which_nobody_says_that_they_must_be_there_are_neither_whole_nor_missing() -> None:
    row = only((save(world=None, ranks=[0, 3]), []))
    assert told(row) == ["rank 0: intact", "rank 3: intact"]
    assert [(span.first, span.last) for span in row.spans] == [(0, 0), (3, 3)]


def test_a_smaller_save_beside_a_larger_one_ends_where_its_ranks_end() -> None:
    drawn = rank_map([(save(world=8), []), (save(world=4), broken(1))], columns=512)
    assert [told(row) for row in drawn.rows] == [
        ["ranks 0 to 7: intact"],
        ["rank 0: intact", "rank 1: damaged (1)", "ranks 2 to 3: intact"],
    ]


def files(*names: str) -> Checkpoint:
    one = checkpoint(ranks=[0])
    (shard,) = one.shards
    shards = tuple(replace(shard, path=f"{one.name}/{name}", rank=None) for name in names)
    return replace(one, shards=shards, topology=Topology(shared=True))


def test_saves_without_ranks_show_their_files_and_one_that_only_another_save_has_is_no_loss() -> None:
    lost = damage(Code.SHARD_MISSING, "gone", path="10_2/b.pt")
    saves = [(files("a.pt", "c.pt"), [lost]), (files("a.pt", "c.pt", "d.pt"), []), (files("a.pt", "b.pt", "d.pt"), [])]
    drawn = rank_map(saves, columns=512)
    assert (drawn.noun, drawn.width) == ("file", 4)
    assert [told(row) for row in drawn.rows] == [
        ["a.pt: intact", "b.pt: missing (1)", "c.pt: intact"],
        ["a.pt: intact", "c.pt to d.pt: intact"],
        ["a.pt to b.pt: intact", "d.pt: intact"],
    ]


def test_files_whose_names_are_new_at_each_save_stand_below_each_other() -> None:
    (old, new), cut = (
        (files("d/1f", "d/c3", "manifest"), files("d/99", "manifest")),
        damage(Code.SHARD_TRUNCATED, "cut off", path="10_2/d/c3"),
    )
    drawn = rank_map([(new, []), (old, [cut])], columns=512)
    assert drawn.width == 3
    assert [[(span.first, span.last, span.title) for span in row.spans] for row in drawn.rows] == [
        [(0, 1, "manifest to d/99: intact")],
        [(0, 1, "manifest to d/1f: intact"), (2, 2, "d/c3: damaged (1)")],
    ]
    alone = rank_map([(files("epoch=1.ckpt"), []), (files("epoch=0.ckpt"), [])], columns=512)
    assert [[span.title for span in row.spans] for row in alone.rows] == [
        ["epoch=1.ckpt: intact"],
        ["epoch=0.ckpt: intact"],
    ]
    assert alone.width == 1


def test_a_lost_file_is_its_ranks_where_another_save_says_whose_it_is() -> None:
    shard = checkpoint().shards[0]

    def of(name: str, paths: dict[str, int]) -> Checkpoint:
        shards: tuple[Shard, ...] = tuple(
            replace(shard, path=f"{name}/{path}", rank=Rank(rank)) for path, rank in paths.items()
        )
        return replace(checkpoint(), name=name, shards=shards, topology=Topology(world_size=2))

    lost = damage(Code.SHARD_MISSING, "gone", path="new/model_1.pt")
    older = of("old", {"model_0.pt": 0, "optim_0.pt": 0, "model_1.pt": 1, "optim_1.pt": 1})
    newer = of("new", {"model_0.pt": 0, "optim_0.pt": 0, "optim_1.pt": 1})
    assert told(rank_map([(newer, [lost]), (older, [])], columns=9).rows[0]) == [
        "rank 0: intact",
        "rank 1: missing (1)",
    ]


@pytest.mark.parametrize("seed", range(25))
def test_each_rank_is_drawn_in_its_column_and_no_worse_than_the_worst_there(seed: int) -> None:
    chance = Random(seed)  # noqa: S311  the same trees in every run
    world = chance.choice([1, 7, 64, 513, 1000, 5000])
    columns = chance.choice([1, 3, 64, 512])
    gone = set(chance.sample(range(world), chance.randint(0, min(world - 1, 40))))
    bad = set(chance.sample(range(world), chance.randint(0, min(world, 40)))) - gone
    doubt = set(chance.sample(range(world), chance.randint(0, min(world, 40)))) - gone
    findings = [*broken(*bad), *(suspect(Code.STEP_DISAGREES, "odd", ranks=(Rank(rank),)) for rank in doubt)]
    row = (save(world=world, ranks=[rank for rank in range(world) if rank not in gone]), findings)
    drawn = rank_map([row], columns=columns)
    spans = drawn.rows[0].spans
    assert (spans[0].first, spans[-1].last) == (0, drawn.columns - 1)
    assert all(after.first == before.last + 1 for before, after in pairwise(spans))
    at = {column: span for span in spans for column in range(span.first, span.last + 1)}
    want: dict[int, Mark] = {}
    for rank in range(world):
        mark = Mark.DAMAGED if rank in bad else Mark.MISSING if rank in gone else Mark.GOOD
        mark = Mark.DOUBT if rank in doubt and mark is Mark.GOOD else mark
        column = rank * drawn.columns // world
        want[column] = max(want.get(column, Mark.GOOD), mark, key=list(Mark).index)
    assert {column: span.mark for column, span in at.items()} == want
    if drawn.columns == world:
        assert sum(_number(span) for span in spans if span.mark is Mark.DAMAGED) == len(bad)


def _number(span: Span) -> int:
    (number,) = re.findall(r"\((\d+)\)$", span.title)
    return int(number)


def test_a_save_with_very_many_faults_is_drawn_coarser() -> None:
    row = (save(world=4096), broken(*range(0, 4096, 2)))
    every_other = (save(world=4096), broken(*range(8, 4096, 16)))
    assert rank_map([row], columns=512, coarse=128).columns == 512  # all columns are alike: one span
    assert rank_map([every_other], columns=512, coarse=128).columns == 128
    assert rank_map([every_other], columns=512).columns == 512


def test_a_world_of_a_quadrillion_ranks_costs_no_more_than_its_columns() -> None:
    row = only((save(world=10**15, ranks=[0, 10**15 - 1]), []), columns=4)
    assert [span.mark for span in row.spans] == [Mark.MISSING]


def test_every_verdict_has_a_mark_and_none_is_better_than_whole() -> None:
    marks = [mark_of(word) for word in VerdictWord]
    assert marks[0] is Mark.GOOD
    assert {*marks} == {*Mark}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on(stream: io.StringIO, *, width: int, world: int = 48, faults: Iterable[int] = (17,)) -> str:
    console = Console(file=stream, width=width, height=25, color_system=None, legacy_windows=False)
    console.print(Drawn([(save(world=world), broken(*faults)), (save(world=world), [])]))
    return stream.getvalue()


def test_a_terminal_shows_the_saves_that_are_not_whole_rank_by_rank() -> None:
    _, axis, row, legend = on(Terminal(), width=80).rstrip("\n").split("\n")
    assert axis == "      rank 0" + "47".rjust(48 - len("rank 0"))
    assert row == f"10_2  {'▪' * 17}✗{'▪' * 30}"
    assert legend == "      ▪ intact  ✗ damaged"


@pytest.mark.parametrize(
    ("stream", "width", "world", "faults"),
    [
        (io.StringIO(), 80, 48, [17]),  # a pipe
        (Terminal(), 36, 48, [17]),  # too narrow
        (Terminal(), 80, 8, [5]),  # few ranks
        (Terminal(), 80, 48, []),  # nothing is wrong
    ],
)
def test_there_is_no_map_in_a_pipe_or_where_it_would_say_nothing(
    stream: io.StringIO, width: int, world: int, faults: list[int]
) -> None:
    assert on(stream, width=width, world=world, faults=faults) == ""
