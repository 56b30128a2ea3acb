"""What real trainings logged about themselves is the judge: steps, samples, and what a resume really began with."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ckpttool.core.domain.finding import Severity, worst
from ckpttool.core.errors import ExitCode
from ckpttool.trainers.mindformers.load import load_keys, planned_skip
from ckpttool.trainers.mindformers.scalars import state_of
from tests.support.answers import chosen, document, names, plan, scanned, without_runs, writable_copy
from tests.support.commands import ask
from tests.support.trees import FIXTURES

RUNS = ("first", "resume", "resume2")
LEGACY = ("sink2_ckpt", "sink2_safetensors", "nosink_ckpt", "health_pp2", "async_ckpt")
NEWER = ("newfmt_1rank", "newfmt_4rank")
RANKS = {"newfmt_1rank": 1}
BATCHES_AN_EPOCH = {"nosink_ckpt": 5}
"""Only this training went through its data more than once."""


@dataclass(frozen=True, kw_only=True)
class Callback:
    """One line of a train log, and how many steps it stands for."""

    step: int
    optimizer_step: int
    samples: tuple[int, ...]
    saved: frozenset[str]
    steps: int


@dataclass(frozen=True, kw_only=True)
class Log:
    """The log of one run on rank 0."""

    resume: dict[str, Any] | None
    callbacks: tuple[Callback, ...]


def read_log(tree: str, run: str) -> Log | None:
    path = FIXTURES / tree / f"train_log_{run}_rank_0.jsonl"
    if not path.exists():
        return None
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    steps = max(1, next(line["sink_size"] for line in lines if "sink_size" in line))
    return Log(
        resume=next((line for line in lines if "resume" in line), None),
        callbacks=tuple(
            Callback(
                step=line["true_global_step"],
                optimizer_step=line["opt_global_step"],
                samples=tuple(line["sample_ids"]),
                saved=frozenset(line["saved"] or ()),
                steps=steps,
            )
            for line in lines
            if "true_global_step" in line
        ),
    )


def logs(tree: str) -> list[Log]:
    return [log for run in RUNS if (log := read_log(tree, run)) is not None]


def saved_at(tree: str) -> dict[str, Callback]:
    """When rank 0's files first stood in its folder; what the end of a run saves comes after its last line."""
    first: dict[str, Callback] = {}
    on_disk = {path.name for path in (FIXTURES / tree / "output/checkpoint/rank_0").glob("*_rank_*")}
    for number, log in enumerate(logs(tree)):
        for callback in log.callbacks:
            for name in callback.saved:
                first.setdefault(name, callback)
        own = f"_rank_0_{number}-" if number else "_rank_0-"
        for name in on_disk - first.keys():
            if own in name:
                first[name] = log.callbacks[-1]
    return first


def global_batch_size(tree: str) -> int:
    """Samples that rank 0 read a step, times the ranks: every rank reads its own slice."""
    sizes = {len(one.samples) / one.steps for log in logs(tree) for one in log.callbacks}
    assert len(sizes) == 1
    return int(sizes.pop() * RANKS.get(tree, 4))


def next_sample(tree: str, step: int) -> int:
    """The first sample that rank 0 reads after `step` steps."""
    return step % BATCHES_AN_EPOCH.get(tree, 10**9) * global_batch_size(tree)


@pytest.mark.parametrize("tree", [*LEGACY, *NEWER])
def test_the_logs_themselves_read_their_samples_one_batch_after_the_other(tree: str) -> None:
    """The premise of all that follows: a step is a global batch, and rank 0's slice begins with its first sample."""
    for log in logs(tree):
        for callback in log.callbacks:
            assert callback.samples[0] == next_sample(tree, callback.step - callback.steps)


@pytest.mark.parametrize("tree", LEGACY)
def test_every_checkpoint_is_at_the_step_at_which_it_was_saved(tree: str) -> None:
    inventory = scanned(FIXTURES / tree / "output")
    saves = saved_at(tree)
    assert {one.shards[0].path.rpartition("/")[2] for one in inventory.checkpoints} <= saves.keys()
    for one in inventory.checkpoints:
        save = saves[one.shards[0].path.rpartition("/")[2]]
        assert (one.step, one.scalars.step) == (save.step, save.step)
        assert state_of(one.scalars).global_step == save.optimizer_step
        assert one.scalars.global_batch_size == global_batch_size(tree)
        assert one.ranks == (0, 1, 2, 3)


@pytest.mark.parametrize("tree", NEWER)
def test_every_iteration_is_at_the_step_of_its_folder_and_of_the_log(tree: str) -> None:
    inventory = scanned(FIXTURES / tree / "output")
    (log,) = logs(tree)
    by_step = {callback.step: callback for callback in log.callbacks}
    assert [one.step for one in inventory.checkpoints] == [10, 20, 30]
    for one in inventory.checkpoints:
        assert one.step is not None
        assert one.name == f"iteration_{one.step:08d}"
        assert state_of(one.scalars).global_step == by_step[one.step].optimizer_step
        assert one.scalars.global_batch_size == global_batch_size(tree)
        assert len(one.ranks) == RANKS.get(tree, 4)


@pytest.mark.parametrize("tree", [*LEGACY, *NEWER])
def test_the_data_go_on_with_the_first_sample_that_was_not_seen(tree: str) -> None:
    answer = plan(FIXTURES / tree / "output")
    seen = [callback for log in logs(tree) for callback in log.callbacks if callback.step <= (chosen(answer)[1] or 0)]
    samples = sum(len(callback.samples) for callback in seen) * RANKS.get(tree, 4)
    # Runs overlap nowhere in these logs, so the steps up to the checkpoint are each there once.
    assert planned_skip(answer).samples == samples
    assert planned_skip(answer).batches == sum(callback.steps for callback in seen)
    assert planned_skip(answer).repeated_samples == 0
    assert answer.next_step == max(callback.step for callback in seen) + 1


@pytest.mark.parametrize(
    ("tree", "run"), [("sink2_ckpt", 1), ("sink2_safetensors", 1), ("nosink_ckpt", 1), ("nosink_ckpt", 2)]
)
def test_a_tree_taken_back_to_before_a_resume_is_resumed_from_what_the_trainer_took(
    tmp_path: Path, tree: str, run: int
) -> None:
    """In these trees nothing is broken, so MindFormers chose rightly, and its own log says where it began."""
    output = without_runs(writable_copy(tree, tmp_path / tree), run)
    log = logs(tree)[run]
    assert log.resume is not None
    answer = plan(output)
    assert load_keys(answer.load).resume_training == log.resume["resume"]
    assert chosen(answer)[1] == log.resume["initial_step"]
    first = log.callbacks[0]
    assert answer.next_step == first.step - first.steps + 1
    assert next_sample(tree, planned_skip(answer).batches) == first.samples[0]
    assert answer.point.rejected == ()
    assert answer.point.lost_steps == 0


@pytest.mark.parametrize("tree", [*LEGACY, *NEWER, "newfmt_tp2dp2"])
def test_a_real_tree_that_nobody_damaged_raises_no_false_alarm(tree: str) -> None:
    inventory = scanned(FIXTURES / tree / "output")
    everything = [*inventory.findings, *(finding for one in inventory.checkpoints for finding in one.findings)]
    assert worst(everything) is Severity.NOTE
    assert ask("scan", str(FIXTURES / tree / "output")).code == ExitCode.OK
    answer = plan(FIXTURES / tree / "output")
    refused = [reason.code.value for one in answer.point.rejected for reason in one.reasons]
    assert refused == (["marked-unhealthy"] if tree == "health_pp2" else [])


def test_sharded_and_replicated_iterations_without_a_log_are_whole_too() -> None:
    output = FIXTURES / "newfmt_tp2dp2" / "output"
    assert names(scanned(output)) == ["iteration_00000020", "iteration_00000030"]
    assert chosen(plan(output)) == ("iteration_00000030", 30)


class TestTheExampleWeStartedFrom:
    """Four ranks, a save every ten steps, and rank 3's newest shard is gone."""

    @pytest.fixture
    def output(self, tmp_path: Path) -> Path:
        output = without_runs(writable_copy("sink2_ckpt", tmp_path / "tree"), 1)
        (output / "checkpoint/rank_3/llama2_7b_rank_3-20_2.ckpt").unlink()
        return output

    def test_it_is_resumed_from_the_newest_save_that_all_ranks_have(self, output: Path) -> None:
        found = document("resolve", str(output))
        resume, data = found["resume"], found["data"]
        assert (resume["name"], resume["step"], resume["epoch"], resume["run"]) == ("15_2", 30, 15, 0)
        assert (resume["optimizer_step"], resume["global_batch_size"], resume["world_size"]) == (30, 8, 4)
        assert resume["resume_training"] == "llama2_7b_rank_0-15_2.ckpt"
        assert resume["load_checkpoint"] == str(output / "checkpoint")
        assert resume["load_ckpt_format"] == "ckpt"
        assert (data["data_skip_steps"], data["ignore_data_skip"], data["next_step"]) == (30, False, 31)
        assert data["repeated_samples"] == 0
        assert found["lost_steps"] == 10
        (rejected,) = found["rejected"]
        assert (rejected["name"], rejected["step"]) == ("20_2", 40)
        assert [(reason["code"], reason["path"]) for reason in rejected["reasons"]] == [
            ("shard-missing", "rank_3/llama2_7b_rank_3-20_2.ckpt")
        ]

    def test_the_exit_says_that_there_is_an_answer_and_strictly_that_it_is_not_the_newest(self, output: Path) -> None:
        assert ask("resolve", str(output)).code == ExitCode.OK
        assert ask("resolve", "--strict", str(output)).code == ExitCode.DAMAGE
        assert ask("scan", str(output)).code == ExitCode.DAMAGE

    def test_with_the_shard_in_place_the_newest_is_taken_and_even_strictly_all_is_well(self, tmp_path: Path) -> None:
        output = without_runs(writable_copy("sink2_ckpt", tmp_path / "whole"), 1)
        found = document("resolve", str(output))
        assert (found["resume"]["name"], found["lost_steps"], found["rejected"]) == ("20_2", 0, [])
        assert ask("resolve", "--strict", str(output)).code == ExitCode.OK

    def test_the_table_says_the_same_within_eighty_columns(self, output: Path) -> None:
        text = ask("resolve", str(output)).stdout
        for words in ("15_2", "step 30", "data_skip_steps", "10 steps", "20_2", "shard-missing"):
            assert words in text
        assert max(len(line) for line in text.splitlines() if str(output) not in line) <= 80
