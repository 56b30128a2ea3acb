"""The JSON that scripts read: fields, order, bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.checkpoint import Inventory, Listing
from ckpttool.core.domain.data_position import DataEffect, DataPosition, GoesOn, SkipAnswer, SkipBatches, Unknown
from ckpttool.core.domain.finding import Code, Finding, Severity
from ckpttool.core.domain.plan import NoResumePoint, Outcome, Rejection, Simulation
from ckpttool.core.domain.shard import FileStamp, FormatName, Shard, ShardRole
from ckpttool.core.domain.units import Rank, Step
from ckpttool.core.domain.verdict import Level
from ckpttool.core.render import json as document
from ckpttool.core.render.answers import inventory as inventory_answer
from ckpttool.core.render.answers import plan as plan_answer
from ckpttool.core.render.answers import skip as skip_answer
from ckpttool.core.verbs.skipping import skip_setting
from ckpttool.trainers.mindformers.layouts.names import RANK_LAYOUT
from tests.support.inventories import tree
from tests.support.plans import resume_plan

FINDING = Finding(code=Code.SHARD_MISSING, severity=Severity.DAMAGE, message="gone", path="rank_1/x", remedy="look")


def told(value: document.Document) -> dict[str, object]:
    result = json.loads(document.dumps(value))
    assert isinstance(result, dict)
    return result


def test_a_plan_has_every_field_of_the_contract() -> None:
    plan = told(plan_answer.plan_document(resume_plan()))
    fields = {
        "schema",
        "root",
        "evidence",
        "resume",
        "data",
        "load",
        "position",
        "lost_steps",
        "lost_samples",
        "lost_seconds",
        "lost_seconds_source",
        "rejected",
        "findings",
    }
    assert fields == plan.keys()
    resume, data = plan["resume"], plan["data"]
    assert isinstance(resume, dict)
    assert isinstance(data, dict)
    assert {
        "name": "15_2",
        "run": 0,
        "step": 30,
        "optimizer_step": 30,
        "epoch": 15,
        "global_batch_size": 8,
        "health": "unknown",
        "load_checkpoint": "output/checkpoint",
        "resume_training": "llama2_7b_rank_0-15_2.ckpt",
        "load_ckpt_format": "ckpt",
    }.items() <= resume.items()
    assert {
        "ignore_data_skip": False,
        "data_skip_steps": 30,
        "repeated_samples": 0,
        "next_step": 31,
        "global_batch_size": 8,
    }.items() <= data.items()


THIRTY = SkipBatches(batches=30, repeated_samples=0, samples=240, global_batch_size=8)


@pytest.mark.parametrize(
    ("position", "kind", "effect", "told_of_it"),
    [
        (THIRTY, "skip-batches", "exact", {"batches": 30, "samples": 240, "repeated": 0, "lost": 0}),
        (replace(THIRTY, repeated_samples=3), "skip-batches", "repeats", {"repeated": 3}),
        (replace(THIRTY, repeated_samples=None), "skip-batches", "repeats", {"repeated": None}),
        (replace(THIRTY, lost_samples=16), "skip-batches", "loses", {"lost": 16}),
        (replace(THIRTY, batches=0, begins_anew=True), "skip-batches", "restarts", {"batches": 0, "samples": 240}),
        (GoesOn(samples=9, effect=DataEffect.REORDERS, unchanged=THIRTY), "samples", "reorders", {"samples": 9}),
        (GoesOn(tokens=7, effect=DataEffect.EXACT), "tokens", "exact", {"tokens": 7, "lost": None}),
        (
            GoesOn(where="states/step_30", unchanged=THIRTY, effect=DataEffect.EXACT),
            "stateful",
            "exact",
            {"where": "states/step_30"},
        ),
        (Unknown(why="the script decides"), "unknown", "unknown", {"why": "the script decides", "batches": None}),
    ],
)
def test_a_position_says_its_kind_its_effect_and_what_that_currency_tells(
    position: DataPosition, kind: str, effect: str, told_of_it: dict[str, object]
) -> None:
    plan = told(plan_answer.plan_document(replace(resume_plan(), data=position)))
    said = plan["position"]
    assert isinstance(said, dict)
    assert (said["kind"], said["effect"]) == (kind, effect)
    assert told_of_it.items() <= said.items()
    assert (plan["data"] is None) is (kind in {"tokens", "unknown"})


def test_what_must_be_set_is_said_with_its_place_the_data_last() -> None:
    load = told(plan_answer.plan_document(resume_plan(batches=0)))["load"]
    assert isinstance(load, dict)
    assert load["settings"][-2:] == [
        {"place": "config:ignore_data_skip", "value": True},
        {"place": "config:data_skip_steps", "value": None},
    ]


def test_mindformers_is_only_there_when_asked_for() -> None:
    assert "mindformers" not in told(plan_answer.plan_document(resume_plan()))
    simulation = Simulation(
        trainer="mindformers",
        title="MindFormers",
        version="2.1.0",
        would_resume=None,
        outcome=Outcome.STOPS,
        because="it stops.",
        older="mindformers",
    )
    told_by = told(plan_answer.plan_document(resume_plan(), simulation))["mindformers"]
    assert told_by == {"version": "2.1.0", "would_resume": None, "because": "it stops."}


def test_no_resume_point_has_nulls_and_its_reasons() -> None:
    checkpoint = resume_plan().point.checkpoint
    rejected = (Rejection(checkpoint=checkpoint, reasons=(FINDING,)),)
    answer = NoResumePoint(root="x", evidence=Level.CHECKSUM, rejected=rejected, findings=())
    plan = told(plan_answer.plan_document(answer))
    assert (plan["resume"], plan["data"], plan["lost_steps"]) == (None, None, None)
    assert plan["evidence"] == "checksum"
    assert plan["rejected"] == [
        {"name": "15_2", "run": 0, "step": 30, "samples": 240, "reasons": [told(document.finding_document(FINDING))]}
    ]


def test_findings_about_the_choice_and_about_the_resume_are_both_told() -> None:
    plan = resume_plan()
    other = replace(FINDING, code=Code.RUN_REWOUND)
    plan = replace(plan, findings=(FINDING,), point=replace(plan.point, findings=(other,)))
    findings = told(plan_answer.plan_document(plan))["findings"]
    assert isinstance(findings, list)
    assert [finding["code"] for finding in findings] == ["run-rewound", "shard-missing"]


def listing(found: Inventory) -> Listing:
    return Listing(inventory=found, now=0.0)


def test_sizes_that_were_not_taken_are_null_and_not_zero() -> None:
    tree = Inventory(
        root="x",
        layout=RANK_LAYOUT,
        checkpoints=(resume_plan().point.checkpoint,),
        runs=(),
        findings=(FINDING,),
        strays=("a\nb",),
    )
    spelled = told(inventory_answer.document(listing(tree)))
    assert spelled["strays"] == ["a\nb"]
    assert isinstance(spelled["checkpoints"], list)
    one = spelled["checkpoints"][0]
    assert one["bytes"] is None
    assert one["shards"][0] == {"path": "rank_0/llama2_7b_rank_0-15_2.ckpt", "rank": 0, "bytes": None}


@pytest.mark.parametrize("repeated", [0, 512])
def test_a_skip_is_exact_where_no_sample_is_seen_twice(repeated: int) -> None:
    skip = SkipBatches(batches=666, repeated_samples=repeated, samples=512_000, global_batch_size=768)
    spelled = told(
        skip_answer.document(
            SkipAnswer(
                skip=skip, steps=Step(1000), old_global_batch=512, exact_sizes=(640, 800), told=skip_setting(skip, None)
            )
        )
    )
    assert spelled["schema"] == "ckpttool/skip/1"
    assert spelled["exact"] is (repeated == 0)
    assert (spelled["steps"], spelled["data_skip_steps"], spelled["samples"]) == (1000, 666, 512_000)


@given(st.lists(st.tuples(st.text(), st.none() | st.integers(min_value=0), st.none() | st.integers(min_value=0))))
def test_ten_thousand_shards_are_spelled_as_documents_of_each_would_be(
    told_of: list[tuple[str, int | None, int | None]],
) -> None:
    shards = [
        Shard(
            path=path,
            rank=None if rank is None else Rank(rank),
            role=ShardRole.FULL,
            format=FormatName.SAFETENSORS,
            stamp=None if nbytes is None else FileStamp.on_disk(size=nbytes, mtime_ns=0, inode=0),
        )
        for path, rank, nbytes in told_of
    ]
    found = tree(replace(resume_plan().point.checkpoint, shards=tuple(shards)))
    spelled_out: Any = inventory_answer.document(listing(found))
    listed = spelled_out["checkpoints"][0]["shards"]
    each = [{"path": path, "rank": rank, "bytes": nbytes} for path, rank, nbytes in told_of]
    assert [*listed] == each == listed[:]
    spelled_out["checkpoints"][0]["shards"] = each
    spelled = json.dumps(spelled_out, indent=2, ensure_ascii=True, allow_nan=False)
    assert document.dumps(inventory_answer.document(listing(found))) == spelled
