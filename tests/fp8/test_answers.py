"""Every answer about FP8, over all that lies in the fixtures: its JSON, its exit code, and what it leaves alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.errors import ExitCode
from ckpttool.types import CurvesQuestion, PlanQuestion, Recipe
from tests.conftest import FIXTURES
from tests.core.logs.test_tensorboard import VERSION, event, record, scalar
from tests.fp8.rules.curves import Runs, stepped
from tests.support.commands import Said, ask, known_exits
from tests.support.json_schemas import problems_of

TOY = FIXTURES / "fp8"
MOST_DIGITS = 6


def kept(command: str, said: Said) -> None:
    """Hold an answer against its schema, the codes that its help lists, and the digits that were measured."""
    assert problems_of(said.json) == []
    assert said.code in {*known_exits()[command], ExitCode.USAGE}
    if command not in {"fp8 lint", "fp8 probe"}:
        own = {key: value for key, value in said.json.items() if key not in {"baseline", "candidate", "repeats"}}
        assert [number for number in numbers(own) if digits(number) > MOST_DIGITS] == []


def numbers(value: object) -> Iterator[float]:
    if isinstance(value, dict):
        for each in value.values():
            yield from numbers(each)
    elif isinstance(value, list):
        for each in value:
            yield from numbers(each)
    elif isinstance(value, float):
        yield value


def digits(value: float) -> int:
    return len(Decimal(repr(value)).normalize().as_tuple().digits)


def test_the_library_gives_what_the_commands_print(here: Path) -> None:
    shutil.copytree(TOY, here / "fp8")
    curves = CurvesQuestion(baseline="fp8/bf16.csv", candidate="fp8/fp8.csv", repeats=("fp8/bf16_regrouped.csv",))
    said = ask("fp8", "compare", "fp8/bf16.csv", "fp8/fp8.csv", "--repeat", "fp8/bf16_regrouped.csv", "--json")
    assert ckpttool.library.fp8_compare(curves).to_dict() == said.json
    asked = PlanQuestion(curves=curves, framework="te", output="plan", recipe=Recipe.DELAYED)
    assert ckpttool.library.fp8_plan(asked).to_dict() == json.loads((here / "plan" / "plan.json").read_text())
    assert ckpttool.library.fp8_verdict("plan").to_dict() == ask("fp8", "verdict", "plan", "--json").json
    log = "fp8/megatron_0.14_hybrid.log"
    assert ckpttool.library.fp8_lint(log).to_dict() == ask("fp8", "lint", log, "--json").json
    tree = f"{FIXTURES / 'layouts' / 'hf_single'}"
    assert ckpttool.library.fp8_probe(tree).to_dict() == ask("fp8", "probe", tree, "--json").json
    with pytest.raises(ckpttool.UsageError, match="50 to 1,000,000 steps"):
        ckpttool.library.fp8_plan(PlanQuestion(curves=curves, framework="te", output="other", horizon=10**9))


def test_tensorboards_events_are_a_log_by_their_tags(here: Path) -> None:
    runs = Runs(3, steps=300, wander=0.002)
    for name, losses in (
        ("base", runs.run()),
        ("again", runs.run()),
        ("worse", stepped(runs.run(), by=0.06, since=180)),
    ):
        events = (event(varint(step), scalar("train/loss", loss)) for step, loss in enumerate(losses, 1))
        (here / name).mkdir()
        (here / name / "events.out.tfevents.1").write_bytes(b"".join(map(record, (VERSION, *events))))
    found = [f"{name}/events*" for name in ("base", "worse", "again")]
    said = ask("fp8", "compare", *found[:2], "--repeat", found[2], "--columns", "loss=train/loss", "--json")
    kept("fp8 compare", said)
    assert (said.code, said.json["class"], said.json["pairs"]) == (10, "step", 300)


def varint(number: int) -> bytes:
    return bytes([number]) if number < 1 << 7 else bytes([number & 0x7F | 0x80, number >> 7])


def test_what_the_trainer_of_hugging_face_prints_has_no_steps_and_the_way_on_is_named(here: Path) -> None:
    lines = (
        f"{{'loss': {2 - place / 1000:.4f}, 'grad_norm': 1.5, 'learning_rate': 5e-05, 'epoch': {place / 100}}}\n"
        for place in range(300)
    )
    (here / "printed.log").write_text("  0%|          | 0/300 [00:00<?, ?it/s]\n" + "".join(lines))
    said = ask("fp8", "compare", "printed.log", "printed.log")
    assert said.code == 14
    assert said.stdout.count("printed.log:2: the Trainer prints no steps: give the trainer_state.json") == 2
    assert "not JSON" not in said.stdout
