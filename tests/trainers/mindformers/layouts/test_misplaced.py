"""Proves that a shard in another folder, or under another spelling, is told from one that is where it belongs."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.plan import ResumePlan
from ckpttool.core.domain.units import MAX_RANKS
from ckpttool.core.storage import open_storage
from ckpttool.trainers.mindformers.layouts.misplaced import mere_names, misplaced_shards, ranks_found_elsewhere
from tests.support.answers import chosen, decide, plan, scanned, writable_copy
from tests.support.inventories import checkpoint, tree
from tests.support.trees import TreeBuilder

_SMALL = st.integers(0, 30)
_ZEROS = st.text("0", max_size=3)


def found(*paths: str) -> dict[str, str]:
    """Return where each would belong, of those that are misplaced."""
    inventory = replace(tree(checkpoint("10_2")), strays=paths)
    return {one.path: one.target for one in misplaced_shards(inventory).values()}


@given(
    numbers=st.tuples(_SMALL, _SMALL, _SMALL, _SMALL), zeros=st.tuples(_ZEROS, _ZEROS, _ZEROS, _ZEROS), folder=_SMALL
)
def test_a_shard_belongs_where_mindformers_writes_it(
    numbers: tuple[int, ...], zeros: tuple[str, ...], folder: int
) -> None:
    spelled = [f"{zero}{number}" for zero, number in zip(zeros, numbers, strict=True)]
    path = "rank_{}/a_rank_{}_{}-{}_{}.ckpt".format(folder, *spelled)
    rank, run, epoch, step = numbers
    suffix = f"_{run}" if run else ""
    target = f"rank_{rank}/a_rank_{rank}{suffix}-{epoch}_{step}.ckpt"
    assert found(path) == ({} if path == target else {path: target})
    assert found(target) == {}


@pytest.mark.parametrize(
    "path",
    [
        "rank_0/a_rank_1.ckpt",
        "rank_0/a_rank_1-best.ckpt",
        "rank_0/a_rank_1-10_2.ckpt.bak",
        "rank_0_bak/a_rank_1-10_2.ckpt",
        "rank_0/b/../a_rank_1-10_2",
        f"rank_0/a_rank_{MAX_RANKS}-10_2.ckpt",
        "best.ckpt",
    ],
)
def test_what_is_no_ranks_shard_is_not_misplaced(path: str) -> None:
    assert found(path) == {}


def test_a_rank_takes_part_in_the_run_whose_save_its_file_lies_beside() -> None:
    inventory = tree(checkpoint("10_2", ranks=[0]), checkpoint("15_2", run=1, ranks=[0]))
    strays = ("rank_0/llama_rank_1-10_2.ckpt", "rank_0/llama_rank_5-10_2.ckpt", "rank_0/llama_rank_9-11_2.ckpt")
    inventory = replace(inventory, strays=strays)
    highest = ranks_found_elsewhere(inventory, misplaced_shards(inventory))
    assert {run: one.rank for run, one in highest.items()} == {("llama", 0): 5}


NOTHING = {"empty": b"", "five letters": b"zzzzz", "zeros": bytes(3000), "a page": b"<html>moved</html>" * 40}
STRAY = "checkpoint/rank_0/llama2_7b_rank_7_1-30_2.ckpt"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """A real tree of 4 ranks."""
    return writable_copy("sink2_ckpt", tmp_path / "tree")


@pytest.mark.parametrize("content", NOTHING.values(), ids=NOTHING.keys())
def test_one_named_for_rank_7_leaves_the_world_at_4(output: Path, content: bytes) -> None:
    (output / STRAY).write_bytes(content)
    answer = plan(output)
    assert (chosen(answer), answer.point.checkpoint.topology.world_size) == (("_1-30_2", 60), 4)
    assert STRAY.removeprefix("checkpoint/") in scanned(output).strays


@pytest.mark.parametrize("keep", [None, 900])
def test_a_shard_of_such_a_rank_whole_or_cut_off_still_tells_that_there_was_one(output: Path, keep: int | None) -> None:
    shard = output / "checkpoint/rank_0/llama2_7b_rank_0_1-30_2.ckpt"
    (output / STRAY).write_bytes(shard.read_bytes()[:keep])
    assert chosen(plan(output)) != ("_1-30_2", 60)


def test_what_cannot_be_read_may_be_a_shard(output: Path) -> None:
    (output / STRAY).write_bytes(b"")
    path, gone = STRAY.removeprefix("checkpoint/"), "rank_0/llama2_7b_rank_9_1-30_2.ckpt"
    assert mere_names(open_storage(str(output / "checkpoint")), [path, gone, "rank_0/notes.txt"]) == (path,)


def random_tree(base: Path, random_: random.Random) -> TreeBuilder:
    """One to three runs of a few saves, some of them torn."""
    tree = TreeBuilder(base).legacy(ranks=random_.choice([1, 2, 4]))
    epoch = 0
    for run in range(random_.randint(1, 3)):
        for _ in range(random_.randint(1, 3)):
            epoch += random_.randint(1, 4)
            tree.save(epoch=epoch, step=2, run=run)
            if random_.random() < 0.3:
                path = tree.shard(random_.randrange(tree.world), epoch, 2, run=run)
                tree.remove(path) if random_.random() < 0.5 else tree.truncate(path, 200)
    return tree


@pytest.mark.sample(4)
@pytest.mark.parametrize("seed", range(40))
def test_in_any_tree_the_choice_with_one_is_the_choice_without(tmp_path: Path, seed: int) -> None:
    random_ = random.Random(seed)  # noqa: S311  the same trees each time
    tree = random_tree(tmp_path, random_)
    before = decide(tree.checkpoint)
    folder, rank = random_.randrange(tree.world), random_.randrange(12)
    names = sorted(path.name for path in (tree.checkpoint / f"rank_{folder}").glob("*.ckpt"))
    if not names or rank == folder:
        return
    name = random_.choice(names).replace(f"_rank_{folder}", f"_rank_{rank}")
    tree.file(f"checkpoint/rank_{folder}/{name}", random_.choice(list(NOTHING.values())))
    after = decide(tree.checkpoint)
    assert isinstance(after, ResumePlan) is isinstance(before, ResumePlan)
    if isinstance(before, ResumePlan) and isinstance(after, ResumePlan):
        assert chosen(after) == chosen(before)
        assert after.point.checkpoint.topology == before.point.checkpoint.topology
