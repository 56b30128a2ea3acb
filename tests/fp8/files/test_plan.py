"""A plan that was written is read back as it was; anything else is no plan of ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ckpttool.core.domain.frozen import replace
from ckpttool.core.errors import UnsafeError
from ckpttool.fp8.files.plan import parse_plan, plan_document
from ckpttool.fp8.model.fp8 import Gemm
from ckpttool.fp8.model.plan import Change, VerdictKind
from ckpttool.fp8.rules.experiments import first_round, next_round
from tests.fp8.rules.test_experiments import found
from tests.support.fp8_runs import known, plan


def spelled(document: object) -> bytes:
    return json.dumps(document).encode()


def test_what_was_written_is_read_back() -> None:
    first = first_round(known())
    more = next_round(2, known(), found(VerdictKind.CULPRIT, Gemm.DGRAD), first)
    of = plan([*first, *more])
    change = Change(
        remove=("--a",), set=(("--b", "1"), ("--c", "")), env=(("D", "e"),), files=(("f.yaml", ""),), notes=("g",)
    )
    changed = [replace(each, change=change, device_hours=1.5, logs=("x.log",)) for each in of.experiments[:-1]]
    refused = replace(of.experiments[-1], change=None, reason="not expressible here: no")
    whole = replace(of, experiments=(*changed, refused), columns="step=iter", framework_version="0.16")
    assert parse_plan(spelled(plan_document(whole)), where="plan.json") == whole
    bare = replace(
        whole,
        recipe=None,
        suspicion=replace(whole.suspicion, onset=None, floor_from=None, gap=None),
        start=replace(whole.start, has_history=None, name=None, path=None),
    )
    assert parse_plan(spelled(plan_document(bare)), where="plan.json") == bare


def broken(change: Callable[[dict[str, Any]], object]) -> bytes:
    document: dict[str, Any] = plan_document(plan())
    change(document)
    return spelled(document)


@pytest.mark.parametrize(
    "change",
    [
        lambda plan: plan.update(schema="mine/1"),
        lambda plan: plan.update(window=[1]),
        lambda plan: plan.update(horizon=0),
        lambda plan: plan.update(recipe="new"),
        lambda plan: plan["start"].update(evidence="heard"),
        lambda plan: plan["experiments"][0].update(id="../../etc"),
        lambda plan: plan["experiments"][0].update(id=""),
        lambda plan: plan["experiments"][0]["change"].update(set={"--a": 1}),
        lambda plan: plan["experiments"][0].update(round=True),
        lambda plan: plan.pop("experiments"),
    ],
)
def test_what_was_not_written_here_is_refused(change: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(UnsafeError, match="not a plan of ckpttool"):
        parse_plan(broken(change), where="plan.json")


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b'{"schema": "ckpttool/fp8-plan/1"}'])
def test_what_is_no_json_of_ours_is_refused(data: bytes) -> None:
    with pytest.raises(UnsafeError, match="not a plan of ckpttool"):
        parse_plan(data, where="plan.json")
