"""A judge that cannot say no is none: it is shown answers and prunes that are wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import Phase, settings

import ckpttool
from ckpttool.core.domain.plan import NoResumePoint
from ckpttool.core.domain.retention import PruneOrder, Pruning, RetentionPolicy, Why
from ckpttool.core.domain.verdict import Level
from ckpttool.types import Answer, DataQuestion, ResumeQuestion, TreeQuestion
from tests.reliability.model import Kind, Shard
from tests.reliability.model_machine import Tally
from tests.reliability.test_model import PLAIN, LegacyTraining, NewerTraining, run
from tests.support.reference_retention import Wish

resolve, prune = ckpttool.resolve, ckpttool.prune


def newest_by_name(question: TreeQuestion, *_: object) -> SimpleNamespace:
    """What a loader does that opens nothing."""
    newest = max(ckpttool.scan(question).inventory.checkpoints, key=lambda one: (one.run, one.step or 0, one.name))
    return SimpleNamespace(decision=SimpleNamespace(point=SimpleNamespace(checkpoint=newest, lost_steps=0)))


def blind_to_health(question: TreeQuestion, choice: ResumeQuestion, data: DataQuestion) -> Answer:
    return resolve(question, replace(choice, ignore_health=True), data)


def blind_to_content(question: TreeQuestion, choice: ResumeQuestion, data: DataQuestion) -> Answer:
    return resolve(question, replace(choice, evidence=Level.STRUCTURE), data)


def too_careful(question: TreeQuestion, choice: ResumeQuestion, data: DataQuestion) -> Answer:
    return resolve(question, replace(choice, require_health=not choice.ignore_health), data)


def one_too_many(question: TreeQuestion, policy: RetentionPolicy, order: PruneOrder) -> Pruning:
    """Let a shard of rank 0 go beside what may go."""
    pruning = prune(question, policy, order)
    for shard in sorted(Path(question.path or ".").glob("rank_0/*-*"))[:1]:
        shard.unlink()
    return pruning


def greedy(question: TreeQuestion, policy: RetentionPolicy, order: PruneOrder) -> Pruning:
    """Keep one where more are asked for."""
    return prune(question, replace(policy, keep_last=1), order)


def hoarding(question: TreeQuestion, policy: RetentionPolicy, order: PruneOrder) -> Pruning:
    """Keep everything, as evidence."""
    pruning = prune(question, policy, replace(order, apply=False))
    fates = tuple(
        replace(fate, why=(Why.EVIDENCE,)) if fate.why == (Why.REPLACED,) else fate for fate in pruning.plan.fates
    )
    return replace(pruning, plan=replace(pruning.plan, fates=fates))


def finding_nothing(*_: object) -> SimpleNamespace:
    return SimpleNamespace(decision=NoResumePoint(root="", evidence=Level.STRUCTURE, rejected=(), findings=()))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (newest_by_name, "answered .*, right is"),
        (blind_to_health, "answered .*, right is"),
        (too_careful, "answered None, right is"),
    ],
)
def test_a_wrong_choice_is_noticed_by_chance(
    wrong: Callable[..., object], words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ckpttool, "resolve", wrong)
    quick = settings(
        PLAIN, max_examples=60, derandomize=True, database=None, phases=[Phase.generate], report_multiple_bugs=False
    )
    with pytest.raises(AssertionError, match=words):
        run(lambda: LegacyTraining(Tally(), tmp_path), quick)


def legacy(folder: Path) -> LegacyTraining:
    """Six sealed saves, the newest of them rotten, and one shard of the oldest another rank's."""
    machine = LegacyTraining(Tally(), folder)
    machine.first("ckpt", sliced=True, declared=True)
    machine.train(2)
    machine.seal(everything=True)
    machine.model.copy((0, 1, 0), (0, 1, 1))
    machine.model.flip((0, 6, 2), 77, weights=True)
    return machine


def newer(folder: Path) -> NewerTraining:
    """Six saves, and one file of the oldest is of another step."""
    machine = NewerTraining(Tally(), folder)
    machine.first(declared=True)
    machine.train(2, 0)
    name = min(machine.model.ranks_of(1))
    machine.model.put(1, name, Shard(machine.model.shards[3][name].data, Kind.TWIN))
    return machine


@pytest.mark.parametrize(
    ("made", "verb", "wrong", "words"),
    [
        (legacy, "resolve", blind_to_content, "checksum, .* answered .*, right is"),
        (legacy, "resolve", finding_nothing, "answered None, right is"),
        (newer, "resolve", finding_nothing, "answered None, right is"),
        (legacy, "prune", one_too_many, "was changed|only a part went|made another choice"),
        (legacy, "prune", greedy, "went .* but may go"),
        (legacy, "prune", hoarding, "kept as evidence, of which nothing is judged"),
        (newer, "prune", hoarding, "kept as evidence, of which nothing is judged"),
    ],
)
def test_a_wrong_answer_is_noticed(
    made: Callable[[Path], LegacyTraining | NewerTraining],
    verb: str,
    wrong: Callable[..., object],
    words: str,
    tmp_path: Path,
) -> None:
    machine = made(tmp_path)
    wish = Wish(last=2)
    try:
        machine.exactly_the_right_one_is_chosen()
        machine.patch.setattr(ckpttool, verb, wrong)
        with pytest.raises(AssertionError, match=words):  # noqa: PT012  one of the two says it
            machine.exactly_the_right_one_is_chosen()
            machine.judged_prune(wish, None, lambda: machine.pruned(wish, None, 0.0))
    finally:
        machine.teardown()


@pytest.mark.parametrize("made", [legacy, newer])
def test_what_is_done_right_is_let_pass(made: Callable[[Path], LegacyTraining | NewerTraining], tmp_path: Path) -> None:
    machine = made(tmp_path)
    try:
        machine.exactly_the_right_one_is_chosen()
        machine.judged_prune(Wish(last=2), None, lambda: machine.pruned(Wish(last=2), None, 0.0))
        assert machine.tally.pruned
    finally:
        machine.teardown()
