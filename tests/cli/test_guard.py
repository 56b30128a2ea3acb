"""What a guarded training left is read by every command that reads logs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from ckpttool.decide.policies.robust_z import RobustZPolicy
from ckpttool.decide.policies.skip import SkipPolicy
from ckpttool.domain.guarding import GuardEventKind, GuardMode
from tests.cli.running import Said, ask
from tests.guarded import Told, train
from tests.trees import TreeBuilder

EVENTS = "output/guard/events-00000.jsonl"
SPIKE = [*[1.0, 1.1, 0.9, 1.0] * 40, *[50.0] * 3, *[1.0, 1.1, 0.9, 1.0] * 10]  # at steps 161 to 163
NORMS = pytest.mark.parametrize("policy", ["zscore", "skip", "olmo", "zclip"])


def tree(here: Path, *steps: int) -> None:
    builder = TreeBuilder(here).legacy(ranks=2)
    for step in steps:
        builder.save(epoch=step // 2, step=2)


def resolved(*options: str) -> Said:
    return ask("resolve", *options, "--format", "json")


def document(said: Said) -> Any:  # noqa: ANN401  as scripts see it
    return said.json


def chosen(said: Said) -> object:
    resume = document(said)["resume"]
    return None if resume is None else resume["step"]


def test_a_dropped_spike_makes_no_checkpoint_suspect_and_an_applied_one_does(here: Path) -> None:
    tree(here, 100, 162)
    train(here / "output", SPIKE, policy=RobustZPolicy())
    dropped = resolved("--health-timeline", EVENTS)
    assert (dropped.code, chosen(dropped)) == (0, 162)
    (here / EVENTS).unlink()
    train(here / "output", SPIKE, policy=RobustZPolicy(), mode=GuardMode.WATCH)
    applied = resolved("--health-timeline", EVENTS)
    assert (applied.code, chosen(applied)) == (0, 100)


@pytest.mark.parametrize("guarded", [True, False], ids=["dropped", "applied"])
def test_replay_marks_what_was_saved_in_a_spike_only_where_it_was_applied(here: Path, *, guarded: bool) -> None:
    tree(here, 100, 162)
    train(here / "output", SPIKE, policy=RobustZPolicy() if guarded else None)
    said = ask("replay", EVENTS, "--policy", "zscore", "--health-timeline", "output/checkpoint", "--format", "json")
    assert {each["name"]: each["state"] for each in document(said)["checkpoints"]} == {
        "50_2": "clear",
        "81_2": "clear" if guarded else "suspect",
    }
    assert [event["step"] for event in document(said)["events"] if event["kind"] == "spike"] == [161, 162, 163]
    assert document(said)["logs"]["problem_count"] == 0


@NORMS
def test_every_policy_replays_a_file_as_it_does_the_same_log_in_json_lines(here: Path, policy: str) -> None:
    train(here / "output", SPIKE)
    text = "".join(f'{{"step": {step}, "loss": 2.5, "grad_norm": {norm}}}\n' for step, norm in enumerate(SPIKE, 1))
    (here / "log.jsonl").write_text(text)
    ours, theirs = (
        document(ask("replay", log, "--policy", policy, "--format", "json")) for log in (EVENTS, "log.jsonl")
    )
    assert ours["events"] == theirs["events"]
    assert ours["steps_seen"] == len(SPIKE)


def test_a_strike_makes_what_was_saved_since_its_first_event_suspect_and_what_came_before_not(here: Path) -> None:
    tree(here, 100, 150, 200)
    told: dict[int, list[Told]] = {
        140: [(GuardEventKind.SDC_EVENT, {"rank": 0, "value": 1e30})],
        160: [(GuardEventKind.SDC_STRIKE, {"rank": 0, "since_step": 140})],
    }
    train(here / "output", [1.0, 1.1] * 100, told=told)
    said = resolved("--health-timeline", EVENTS)
    assert chosen(said) == 100
    codes = {each["name"]: {reason["code"] for reason in each["reasons"]} for each in document(said)["rejected"]}
    assert codes == {"100_2": {"saved-after-strike"}, "75_2": {"saved-after-strike"}}
    replayed = document(ask("replay", EVENTS, "--policy", "features", "--format", "json"))
    assert [(event["kind"], event["step"]) for event in replayed["events"]] == [("sdc-event", 140), ("sdc-strike", 160)]
    train(here / "output" / "other", [1.0, 1.1] * 100, told={140: told[140]})  # an event alone means nothing
    assert chosen(resolved("--health-timeline", "output/other/" + EVENTS.partition("/")[2])) == 200


def test_after_a_stop_the_newest_is_taken_for_no_dropped_step_touched_it(here: Path) -> None:
    tree(here, 40, 56)
    train(here / "output", [1.0] * 50 + [9.0, math.nan] * 20, policy=SkipPolicy(threshold=3.0))
    said = resolved("--around-spike", "last")  # the file is found by itself
    assert (said.code, chosen(said)) == (0, 56)
    advice = document(said)["advice"]
    assert (advice["kind"], advice["stop"], advice["detour"]["skip_batches"]) == ("stop", 60, 4)


def test_health_judges_by_the_embedding_norm_of_an_event_file(here: Path) -> None:
    tree(here, 100)
    line = '{"kind": "step", "step": 100, "global_norm": 1.0, "embedding_local_norm": %s}\n'
    folder = here / "output" / "guard"
    folder.mkdir()
    run = '{"schema": "ckpttool/events/1", "kind": "run", "step": 0, "rank": 0}\n'
    for norm, health, code in (("300.5", "unhealthy", 10), ("269.5", "healthy", 0), ('"nan"', "unhealthy", 10)):
        (here / EVENTS).write_text(run + line % norm)
        for log in ((), ("--log", EVENTS)):
            said = ask("health", "--threshold", "270", *log, "--format", "json")
            assert (said.code, [each["health"] for each in document(said)["checkpoints"]]) == (code, [health])
