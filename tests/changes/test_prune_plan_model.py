"""Random trees on random machines, a plan, whatever happens before it is applied, and on some of them it is.

Whatever that is: what stays by the plan is untouched on every machine, no checkpoint looks whole that was not, and all
that was moved comes back byte for byte.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random

import pytest

from ckpttool import api
from ckpttool.domain.plan import NoResumePoint
from ckpttool.domain.prune_plan import ApplyOrder, PlanApplied
from ckpttool.domain.retention import Pruning
from ckpttool.errors import CkptToolError
from tests.support.machines import Fleet
from tests.support.prunable_trees import Stop
from tests.support.split_trees import aged, damaged
from tests.support.trees import TreeBuilder


def random_tree(folder: Path, chance: Random) -> None:
    """Saves of one or two runs on some ranks, a cut-off one or a stale record among them."""
    ranks = chance.choice([2, 3, 4])
    if chance.random() < 0.3:
        tree = TreeBuilder(folder, world=ranks, sparse=True)
        for step in range(10, 10 * chance.randint(3, 5), 10):
            tree.iteration(step=step, tracker=chance.random() < 0.7)
    else:
        tree = TreeBuilder(folder).legacy(ranks=ranks, sparse=True)
        run = 0
        for epoch in range(5, 5 * chance.randint(4, 7), 5):
            run += chance.random() < 0.25
            cut_off = chance.random() < 0.1
            tree.save(epoch=epoch, step=2, run=run, ranks=range(ranks - 1) if cut_off else None)
        if chance.random() < 0.5:
            tree.meta(chance.randrange(ranks), 5, 2, "llama2_7b_rank_0-5_2.ckpt")
    if chance.random() < 0.3:
        damaged(tree.checkpoint, chance, 1)
    aged(tree.output)


def look(fleet: Fleet) -> tuple[str | None, set[str]]:
    """Let all machines look anew, and return what is resumed from, and what looks whole."""
    fleet.look()
    whole, chosen = set(), None
    for name in [None, *(save.name for save in api.scan(fleet.question).inventory.checkpoints)]:
        question = api.ResumeQuestion(name=name, ignore_health=True)
        decision = api.resolve(fleet.question, question, api.DataQuestion()).decision
        if not isinstance(decision, NoResumePoint):
            if name is None:
                chosen = decision.point.checkpoint.name
            else:
                whole.add(name)
    return chosen, whole


CHANGES = ("none", "none", "touched", "gone", "added", "saving", "half gone")


def change(fleet: Fleet, number: int, planned: Pruning, chance: Random) -> str:
    """Let something happen on a machine, and say what."""
    kind = chance.choice(CHANGES)
    with fleet.on(number):
        files = sorted(path for path in fleet.tree.rglob("*") if path.is_file() and ".ckpttool" not in path.parts)
        labels = [save.name for save in planned.plan.going]
        own = [path for path in files if any(label in str(path) for label in labels)]
        if kind == "touched" and files:
            os.utime(chance.choice(files), (1, 1))
        elif kind == "gone" and files:
            chance.choice(files).unlink()
        elif kind == "half gone" and len(own) > 1:
            own[0].unlink()
        elif kind == "added" and files:
            (chance.choice(files).parent / "mine").write_text("precious")
        elif kind == "saving" and files:
            (files[0].parent / "llama2_7b_rank_0_9-99_2.tmp").touch()
    return kind


def played(folder: Path, seed: int) -> list[str]:
    """Play one course, and return what happened on each machine."""
    chance = Random(seed)  # noqa: S311
    random_tree(folder, chance)
    fleet = Fleet(folder, of=chance.randint(1, 3), chance=chance)
    chosen, whole = look(fleet)
    planned = fleet.planned(last=chance.choice([1, 1, 2]))
    if planned.written is None:
        assert not fleet.plan.exists()
        return []
    good = {shard.path for save in planned.plan.good for shard in save.shards}
    happened = []
    moved: set[str] = set()
    skipped = chance.choice([None, None, *range(fleet.of)])
    for number in range(fleet.of):
        if number == skipped:
            happened.append("none: skipped")
            continue
        kind = change(fleet, number, planned, chance)
        before = fleet.files(number)
        answer = applied(fleet, number, chance)
        after = fleet.files(number)
        happened.append(
            f"{kind}: {'killed' if answer is None else 'moved' if answer.applied and answer.batches else '-'}"
        )
        assert {path for path in before if path not in after} == {*fleet.trash(number)} or answer is None
        assert all(after.get(path) == before[path] for path in good if path in before)
        if answer is not None and answer.refusals:
            assert after == before, kind
        if kind == "none":
            assert answer is None or answer.refusals == (), answer
        if answer is None:
            answer = fleet.applied(number)  # undone first, and then done
            assert answer.refusals == () or kind != "none"
        moved |= {save.name for save in answer.saves} if not answer.refusals else set()
        if chance.random() < 0.5:
            fleet.restore_all(number)
            assert without_records(fleet.files(number)) == without_records(before), kind
            fleet.applied(number)
    if all(each.startswith("none") for each in happened):
        now, left = look(fleet)
        assert now == chosen
        going = {save.name for save in planned.plan.going}
        # Of what lies on that machine alone nothing went; half of what lies there and elsewhere is whole to nobody.
        assert left == whole - {name for name in going if name in moved}
    return happened


def applied(fleet: Fleet, number: int, chance: Random) -> PlanApplied | None:
    """Apply the plan on a machine; None where it was killed."""
    if chance.random() < 0.7:
        return fleet.applied(number)
    with fleet.on(number), pytest.MonkeyPatch.context() as patch:
        Stop(patch, chance.randint(1, 60), KeyboardInterrupt(), after=chance.random() < 0.5, for_good=True)
        try:
            order = ApplyOrder(apply=True, grace=0.0)
            return api.apply_plan(api.TreeQuestion(path=str(fleet.tree)), str(fleet.plan), order)
        except (KeyboardInterrupt, CkptToolError):
            return None


def without_records(files: dict[str, bytes]) -> dict[str, bytes]:
    """Leave out the trainer's records, which name a newer save from then on."""
    return {path: content for path, content in files.items() if not path.endswith(("meta.json", "iteration.txt"))}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.mark.slow
def test_whatever_happens_what_stays_is_untouched_and_what_went_comes_back(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    happened: list[str] = []
    for seed in range(400 if request.config.getoption("--nightly") else 25):
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            happened += played(folder, seed)
        except BaseException as error:
            raise AssertionError(f"course {seed}: {error}") from error
        shutil.rmtree(folder)
    assert {"none: moved", "none: killed", "none: skipped", "touched: -", "added: -"} <= {*happened}


@pytest.mark.no_cover
@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", [3, 24, 39, 41])
def test_on_whichever_machines_a_plan_is_applied_half_of_a_checkpoint_is_none(seed: int, tmp_path: Path) -> None:
    applied_on_some(tmp_path, seed)


@pytest.mark.skipif("not config.getoption('--nightly')", reason="fifty trees: --nightly")
def test_so_it_is_of_trees_of_all_kinds(tmp_path: Path) -> None:
    for seed in range(100, 150):
        applied_on_some(tmp_path / str(seed), seed)


def applied_on_some(folder: Path, seed: int) -> None:
    """Let runs of a training have other numbers of ranks: half of a save of eight ranks looks like one of four."""
    chance = Random(seed)  # noqa: S311
    ranks = chance.choice([4, 6, 8])
    tree = TreeBuilder(folder).legacy(ranks=ranks, sparse=True)
    run = 0
    for epoch in range(5, 5 + 5 * chance.randint(2, 5), 5):
        tree.save(epoch=epoch, step=2, run=run, ranks=range(chance.choice([ranks, ranks, ranks // 2])) if run else None)
        run += chance.random() < 0.5
    aged(tree.output)
    fleet = Fleet(folder, of=chance.choice([2, ranks // 2, ranks]))
    _, whole = look(fleet)
    planned = fleet.planned()
    good = {save.name for save in planned.plan.good}
    assert planned.written is not None
    gone: set[str] = set()
    for number in chance.sample(range(fleet.of), fleet.of)[:3]:
        moved = fleet.applied(number)
        assert moved.refusals == ()
        gone |= {save.name for save in moved.saves}
        chosen, left = look(fleet)
        assert left == whole - gone
        assert chosen in good
