"""Minutes that a resume loses, and the gate that CI closes where they are too many."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import FIXTURES, Golden
from tests.support.commands import Said, ask
from tests.support.training_logs import write_log
from tests.support.trees import FIRST_SAVE_NS, MINUTE_NS, TreeBuilder

LOG = "train.log"


def torn(here: Path) -> TreeBuilder:
    """Saved every 21 minutes; the newest two are torn."""
    tree = TreeBuilder(here).legacy(ranks=4)
    for epoch in (10, 15, 20, 25):
        tree.save(epoch=epoch, step=2)
        tree.now_ns += 20 * MINUTE_NS
    for epoch in (20, 25):
        tree.remove(tree.shard(3, epoch, 2))
    return tree


@pytest.mark.parametrize("form", ["table", "json"])
def test_the_minutes_that_are_lost_are_said_with_what_tells_them(
    form: str, here: Path, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckpttool.core.commands.resolve.clock", lambda: (FIRST_SAVE_NS + 90 * MINUTE_NS) / 1e9)
    torn(here)
    golden(f"resolve/minutes-lost.{'txt' if form == 'table' else 'json'}", ask("resolve", "--format", form).stdout)


def when(here: Path, monkeypatch: pytest.MonkeyPatch, *, after: float) -> tuple[str, str]:
    """Ask so many minutes after the chosen one was saved, and return what the table and the JSON say of it."""
    tree = TreeBuilder(here).legacy(ranks=2).save(epoch=10, step=2)
    written = max(path.stat().st_mtime_ns for path in tree.checkpoint.rglob("*.ckpt"))
    monkeypatch.setattr("ckpttool.core.commands.resolve.clock", lambda: (written + after * MINUTE_NS) / 1e9)
    (row,) = [line for line in ask("resolve").stdout.splitlines() if line.startswith("  saved ")]
    return row.split(None, 1)[1], ask("resolve", "--print", "resume.saved_at").stdout.strip()


def test_resolve_says_when_the_chosen_one_was_saved_and_how_long_ago(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, saved_at = when(here, monkeypatch, after=150)
    assert said == "2023-11-14 22:13 UTC, 2.5 h ago"
    assert saved_at.startswith("2023-11-14T22:13:")


def test_the_json_of_resolve_does_not_depend_on_when_it_is_asked(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torn(here)
    said = set()
    for now in (0.0, 2e9):
        monkeypatch.setattr("ckpttool.core.commands.resolve.clock", lambda now=now: now)
        said.add(ask("resolve", "--format", "json").stdout)
    assert len(said) == 1


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--max-lost-steps", "20"], 0),
        (["--max-lost-steps", "19"], 10),
        (["--max-lost-time", "42m"], 0),
        (["--max-lost-time", "41.9m"], 10),
        (["--max-lost-time", "2h", "--max-lost-steps", "1"], 10),
    ],
)
@pytest.mark.parametrize("command", ["resolve", "preflight", "launch"])
def test_a_choice_that_loses_more_than_it_may_is_no_go(command: str, options: list[str], code: int, here: Path) -> None:
    torn(here)
    (here / "base.yaml").write_text((FIXTURES / "configs" / "pretrain_sink2.yaml").read_text())
    config = [] if command == "resolve" else ["--config", "base.yaml"]
    output = ["--output", "new.yaml"] if command == "launch" else []
    said = ask(command, *config, *output, *options)
    assert said.code == code
    assert ("too-much-lost" in said.stdout) == (code != 0)
    assert (here / "new.yaml").exists() == (command == "launch" and code == 0)
    if command != "resolve" and code:
        assert ask(command, *config, *output, *options, "--allow", "too-much-lost").code == 0


def test_a_time_that_nothing_tells_is_not_good_enough_for_a_limit(here: Path) -> None:
    tree = torn(here)
    for path in tree.checkpoint.rglob("*.ckpt"):
        os.utime(path, ns=(FIRST_SAVE_NS, FIRST_SAVE_NS))
    said = ask("resolve", "--max-lost-time", "30d")
    assert said.code == 14
    assert said.stdout.splitlines()[0].endswith("(exit 14)")
    assert "unknown too-much-lost" in said.stdout
    assert ask("resolve", "--max-lost-steps", "20").code == 0


def logged(here: Path, steps: int) -> Said:
    write_log(here / LOG, range(1, steps + 1))
    return ask("resolve", "--log", LOG, "--format", "json")


def test_a_log_says_how_long_it_took_and_how_far_the_training_came(here: Path) -> None:
    torn(here)
    document = logged(here, 57).json
    assert (document["lost_steps"], document["lost_samples"]) == (27, 216)
    assert (document["lost_seconds"], document["lost_seconds_source"]) == (27 * 60, "log")
    said = ask("resolve", "--log", LOG)
    assert "27 steps to redo, about 27 min (by the log)." in said.stdout
    assert ask("resolve", "--log", LOG, "--max-lost-steps", "26").code == 10
