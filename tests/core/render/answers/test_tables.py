"""What people see: the answer first, nothing cut that the answer needs."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console, RenderableType

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory, Listing, Rename, Topology
from ckpttool.core.domain.data_position import (
    SkipBatches,
)
from ckpttool.core.domain.finding import Code, Finding, Row, Severity
from ckpttool.core.domain.plan import MOST_REJECTED, NoResumePoint, Outcome, Rejection, Simulation
from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.domain.units import ByteCount, Rank, Step
from ckpttool.core.domain.verdict import Level
from ckpttool.core.errors import ExitCode
from ckpttool.core.render import text as text_parts
from ckpttool.core.render.answers import inventory as inventory_answer
from ckpttool.core.render.answers import plan as table
from ckpttool.core.render.finding_lines import MOST_FINDINGS
from ckpttool.trainers.mindformers.layouts.names import RANK_LAYOUT
from tests.support.plans import resume_plan

SAVED_NS = 1_700_000_000_000_000_000
NOW = SAVED_NS / 1e9 + 9000


def drawn(renderable: RenderableType, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False, emoji=False)
    with console.capture() as captured:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in captured.get().split("\n"))


def checkpoint(name: str, step: int) -> Checkpoint:
    return replace(
        resume_plan().point.checkpoint,
        name=name,
        step=Step(step),
        sort_key=(step // 2, 2),
        topology=Topology(world_size=4),
    )


def inventory(*checkpoints: Checkpoint, findings: tuple[Finding, ...] = ()) -> Inventory:
    return Inventory(root="out", layout=RANK_LAYOUT, checkpoints=checkpoints, runs=(), findings=findings)


def listing(*checkpoints: Checkpoint, findings: tuple[Finding, ...] = (), limit: int | None = None) -> Listing:
    return Listing(inventory=inventory(*checkpoints, findings=findings), now=NOW, limit=limit)


def finding(code: Row = Code.SHARD_MISSING, severity: Severity = Severity.DAMAGE, path: str = "rank_1/x") -> Finding:
    return Finding(code=code, severity=severity, message="it is gone", path=path, remedy="put it back")


def rejection(name: str, step: int, *reasons: Finding) -> Rejection:
    return Rejection(checkpoint=checkpoint(name, step), reasons=reasons)


def test_the_newest_checkpoint_stands_first() -> None:
    text = drawn(inventory_answer.table(listing(checkpoint("5_2", 10), checkpoint("10_2", 20))))
    assert text.startswith("2 checkpoints, 2 on all 4 ranks, newest step 20 (10_2)\n")
    assert text.index("\n10_2") < text.index("\n5_2")


def test_a_damaged_newest_one_is_not_called_the_newest_whole_one() -> None:
    broken = replace(checkpoint("10_2", 20), findings=(finding(),))
    text = drawn(inventory_answer.table(listing(checkpoint("5_2", 10), broken)))
    assert text.startswith("2 checkpoints, 1 on all 4 ranks, newest complete step 10 (5_2)\n")


def test_the_newest_is_the_one_that_is_furthest_whatever_its_prefix() -> None:
    """As `resolve` means it: the order of the inventory puts one training after the other."""
    ahead, behind = replace(checkpoint("20_2", 40), prefix="alpha"), replace(checkpoint("5_2", 10), prefix="beta")
    text = drawn(inventory_answer.table(listing(ahead, behind)))
    assert text.startswith("2 checkpoints, 2 on all 4 ranks, newest step 40 (20_2)\n")


def test_one_without_a_step_is_the_newest_where_its_name_says_so() -> None:
    lost = replace(checkpoint("10_2", 20), step=None, label="10_2", findings=(finding(),))
    text = drawn(inventory_answer.table(listing(lost, checkpoint("5_2", 10))))
    assert text.startswith("2 checkpoints, 1 on all 4 ranks, newest complete step 10 (5_2)\n")


@pytest.mark.parametrize("width", [24, 30, 40, 59, 60, 80, 200])
def test_a_name_is_never_cut(width: int) -> None:
    text = drawn(inventory_answer.table(listing(checkpoint("iteration_00000030", 30))), width)
    assert "iteration_00000030" in "".join(text.split())
    assert max(map(len, text.splitlines())) <= width


def saved(name: str, step: int, *modified_ns: int | None) -> Checkpoint:
    shards = [
        replace(shard, stamp=FileStamp(size=ByteCount(100), token=(), modified_ns=time))
        for shard, time in zip(checkpoint(name, step).shards * len(modified_ns), modified_ns, strict=False)
    ]
    return replace(checkpoint(name, step), shards=tuple(shards))


def test_a_save_was_made_when_its_last_shard_was_written() -> None:
    two = saved("10_2", 20, SAVED_NS, SAVED_NS - 10**12)
    text = drawn(inventory_answer.table(listing(two)))
    assert text.splitlines()[4].split()[-3:] == ["SAVED", "(UTC)", "AGE"]
    assert text.splitlines()[5].endswith("2023-11-14 22:13  2.5 h")
    document: Any = inventory_answer.document(listing(two))
    assert document["checkpoints"][0]["saved_at"] == "2023-11-14T22:13:20Z"


@pytest.mark.parametrize("modified_ns", [None, 10**21, -(10**21)])
def test_a_time_that_is_none_is_not_told(modified_ns: int | None) -> None:
    one = saved("10_2", 20, modified_ns)
    text = drawn(inventory_answer.table(listing(one)))
    assert text.splitlines()[5].split()[-2] == "?"
    document: Any = inventory_answer.document(listing(one))
    assert document["checkpoints"][0]["saved_at"] is None


def test_a_table_leaves_out_whole_columns_before_anything_is_broken() -> None:
    answer = listing(saved("10_2", 20, SAVED_NS))
    texts = {width: drawn(inventory_answer.table(answer), width) for width in range(28, 90)}
    heads = {width: text[text.index("\nNAME") :].split("\n")[1] for width, text in texts.items()}
    for width, head in heads.items():
        assert len(head) <= width
        assert {"NAME", "STEP", "RANKS", "HEALTH"} <= set(head.split()), width
    kept = [len(head.split()) for width, head in heads.items() if width >= text_parts.NARROW]
    assert kept == sorted(kept)
    assert "OPT STEP" in heads[89]


def test_rows_that_are_left_out_are_counted_and_the_option_brings_them() -> None:
    three = [checkpoint(f"{step}_1", step) for step in (10, 20, 30)]
    text = drawn(inventory_answer.table(listing(*three, limit=2)))
    assert text.startswith("3 checkpoints, 3 on all 4 ranks")
    assert "\nand 1 older: --limit 3\n" in text
    assert "\n10_1" not in text
    assert "older" not in drawn(inventory_answer.table(listing(*three, limit=3)))


def test_five_hundred_lost_shards_are_one_line() -> None:
    lost = tuple(replace(finding(path=f"rank_{rank}/x"), ranks=(Rank(rank),)) for rank in range(500))
    text = drawn(inventory_answer.table(listing(replace(checkpoint("10_2", 20), findings=lost))))
    assert text.count("damage shard-missing") == 1
    # Of how many is said where that many there can be.
    assert "; 500 findings in all, on ranks 0-499 try: put it back" in " ".join(text.split())


def test_the_gravest_finding_stands_first() -> None:
    notes = finding(Code.STRAY_FILE, Severity.NOTE, "a"), finding(Code.UNSAFE_NAME, Severity.UNSAFE, "b")
    text = drawn(inventory_answer.table(listing(checkpoint("10_2", 20), findings=notes)))
    assert text.index("unsafe unsafe-name b: it is gone") < text.index("note stray-file a: it is gone")


def test_more_kinds_of_findings_than_fit_are_counted() -> None:
    kinds = tuple(finding(code, Severity.NOTE) for code in list(Code)[: MOST_FINDINGS + 3])
    text = drawn(inventory_answer.table(listing(checkpoint("10_2", 20), findings=kinds)))
    assert "and 3 other kinds: -v" in text


def test_markup_in_a_name_is_text() -> None:
    text = drawn(inventory_answer.table(listing(checkpoint("10_2", 20), findings=(finding(path="[red]x[/red]\x1b"),))))
    assert "[red]x[/red]\\x1b" in text


def test_no_step_is_called_lost_or_not_lost_that_no_save_can_tell_of() -> None:
    """The training may have gone on behind its newest save; and a branch that was left is not newer on its course."""
    told = {}
    for name, code in (("branch", Code.ABANDONED_BRANCH), ("damage", Code.SHARD_MISSING)):
        plan = resume_plan()
        rejected = (Rejection(checkpoint=plan.point.checkpoint, reasons=(finding(code),)),)
        told[name] = drawn(table.plan_table(replace(plan, point=replace(plan.point, rejected=rejected))))
    assert "No newer checkpoint on this lineage was skipped." in told["branch"]
    assert "No skipped checkpoint is further along." in told["damage"]
    assert "lost" not in told["branch"] + told["damage"]


SKIP = SkipBatches(batches=30, repeated_samples=0, samples=240, global_batch_size=8)


def test_lost_steps_and_the_reason_are_told() -> None:
    plan = resume_plan()
    point = replace(plan.point, lost_steps=10, rejected=(rejection("20_2", 40, finding()),))
    text = drawn(table.plan_table(replace(plan, point=point)))
    assert "10 steps to redo." in text
    assert "  step 40 (20_2)\n    damage shard-missing rank_1/x: it is gone" in text
    assert "try: put it back" in text


@pytest.mark.parametrize(("steps", "cost"), [(0, "How many steps to redo is unknown"), (2, "At least 2 steps")])
def test_of_what_does_not_tell_its_step_nobody_knows_how_much_is_lost(steps: int, cost: str) -> None:
    plan = resume_plan()
    torn = rejection("20_2", 40, finding())
    torn = replace(torn, checkpoint=replace(torn.checkpoint, step=None))
    point = replace(plan.point, lost_steps=steps, rejected=(torn,))
    text = drawn(table.plan_table(replace(plan, point=point)))
    assert cost in text
    assert ": the step of a skipped checkpoint is unknown." in " ".join(text.split())


def test_more_rejections_than_fit_are_counted() -> None:
    rejected = tuple(rejection(f"{step}_2", step, finding()) for step in range(MOST_REJECTED + 5, 0, -1))
    answer = NoResumePoint(root="out", evidence=Level.STRUCTURE, rejected=rejected, findings=())
    text = drawn(table.plan_table(answer))
    assert text.startswith("Nothing to resume from in out")
    assert "and 5 more: -v" in text


def test_renames_are_listed_before_anything_is_started() -> None:
    plan = resume_plan()
    renamed = replace(plan.point.checkpoint, renames=(Rename(source="rank_3/a", target="rank_3/b", why="they differ"),))
    text = drawn(table.plan_table(replace(plan, point=replace(plan.point, checkpoint=renamed))))
    assert "First rename, in the checkpoint folder:\n  rank_3/a -> rank_3/b" in text


@pytest.mark.parametrize(
    ("pick", "outcome", "deed"),
    [
        ("15_2", Outcome.LOADS, "load: the same checkpoint"),
        ("20_2", Outcome.LOADS, "load: 20_2"),
        ("20_2", Outcome.STOPS, "choose: 20_2, and stop"),
        ("20_2", Outcome.UNKNOWN, "choose: 20_2"),
        (None, Outcome.SCRATCH, "start from random weights"),
        (None, Outcome.UNKNOWN, "load: unknown"),
    ],
)
def test_mindformers_own_choice_is_compared_with_ours(pick: str | None, outcome: Outcome, deed: str) -> None:
    simulation = Simulation(
        trainer="mindformers",
        title="MindFormers",
        version="2.1.0",
        would_resume=pick,
        outcome=outcome,
        because="why.",
    )
    text = drawn(table.plan_table(resume_plan(), simulation))
    assert f"On its own, MindFormers 2.1.0 would {deed}\n  why." in text


def test_a_note_on_the_start_with_the_reason_of_the_simulation_is_not_repeated() -> None:
    simulation = Simulation(
        trainer="mindformers",
        title="MindFormers",
        version=None,
        would_resume="20_2",
        outcome=Outcome.LOADS,
        because="20_2 is the newest name",
    )
    repeated, other = (
        replace(finding(Code.START_DIFFERS), severity=Severity.NOTE, message=f"it takes 20_2: {why}")
        for why in ("20_2 is the newest name", "the config names it")
    )
    shown = drawn(table.plan_table(replace(resume_plan(), findings=(repeated, other)), simulation))
    text = " ".join(shown.split())
    assert (text.count("20_2 is the newest name"), text.count("the config names it")) == (1, 1)


def test_only_a_choice_that_exits_with_0_is_green() -> None:
    def style(code: ExitCode) -> str:
        console = Console(force_terminal=True, color_system="standard", no_color=False, width=80)
        with console.capture() as captured:
            console.print(table.plan_table(resume_plan(), code=code))
        return captured.get().partition("Resume")[0]

    green, yellow = "\x1b[1;32m", "\x1b[1;33m"
    assert style(ExitCode.OK) == green
    assert style(ExitCode.INCOMPLETE) == yellow
    assert style(ExitCode.DAMAGE) == yellow


@pytest.mark.parametrize(
    ("later", "told"), [(9000, True), (0, True), (-1, False), (-86_400 * 400, False)], ids=["ago", "now", "just", "far"]
)
def test_the_age_of_a_save_from_the_future_is_not_known(later: int, told: bool) -> None:
    assert (inventory_answer.age(SAVED_NS, SAVED_NS / 1e9 + later) is not None) is told
    assert inventory_answer.age(None, NOW) is None
