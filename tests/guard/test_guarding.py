"""What becomes of updates: the same as a replay of the same policy says, on all ranks, and over restarts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckpttool
from ckpttool.core.domain.guarding import GuardEvent, GuardEventKind
from ckpttool.core.domain.metrics import StepMetrics
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import UsageError
from ckpttool.core.formats.strict_json import Json, as_object
from ckpttool.guard.model.guarding import Action, Decision, GuardMode, Proposal
from ckpttool.guard.rules.guarding import SpikeGuard
from ckpttool.health.model.events import EventKind
from ckpttool.health.policies.base import Policy, judge
from ckpttool.health.policies.olmo import OlmoPolicy
from ckpttool.health.policies.robust_z import RobustZPolicy
from ckpttool.health.policies.skip import SkipPolicy
from ckpttool.health.policies.zclip import ZClipPolicy
from tests.health.policies.test_watches import POLICIES, logs
from tests.support.log_rows import INF, NAN, rows

NEVER = 10**9
SKIP = SkipPolicy(threshold=3.0, count_threshold=NEVER)
DROPPED = {GuardEventKind.SKIP, GuardEventKind.SPIKE, GuardEventKind.NONFINITE}
DROPS = {EventKind.SKIP, EventKind.SKIP_UNCOUNTED, EventKind.SPIKE, EventKind.NONFINITE, EventKind.CLIP}
NOTICED = {kind.value for kind in GuardEventKind} - {"overflow"} | {"skip-uncounted"}


def decisions(guard: SpikeGuard, log: Iterable[StepMetrics], *, scale: float | None = None) -> list[Decision]:
    """Let a lone rank decide on every step, up to a stop."""
    found: list[Decision] = []
    for row in log:
        found.append(guard.settle(guard.propose(row, scale=scale)))
        if found[-1].action is Action.STOP:
            break
    return found


def actions(guard: SpikeGuard, norms: Iterable[float], *, scale: float | None = None) -> str:
    """Spell what becomes of steps with these norms: applied, dropped, stopped."""
    return "".join(".x!"[decision.action] for decision in decisions(guard, rows(norms), scale=scale))


def kinds(found: Iterable[Decision]) -> list[str]:
    return [event.kind.value for decision in found for event in decision.events]


def only(decision: Decision) -> GuardEvent:
    (event,) = decision.events
    return event


@given(log=logs())
def test_a_guard_over_a_log_notices_what_its_policy_does_in_a_replay(log: list[StepMetrics]) -> None:
    measured = [row for row in log if row.global_norm is not None and row.loss is not None]
    last = [replace(row, step=Step(place)) for place, row in enumerate(measured)]  # so that an event tells its row
    for policy in POLICIES:
        watch = policy.begin()
        replayed = [[event.kind for event in watch.observe(row) if event.kind.value in NOTICED] for row in last]
        guard = SpikeGuard(policy, count_threshold=NEVER)
        for row, noticed in zip(last, replayed, strict=True):
            proposal = guard.propose(row)
            told = [
                event.kind.value for event in guard.settle(proposal).events if event.kind is not GuardEventKind.ALARM
            ]
            expected = [kind.value for kind in noticed]
            if not proposal.is_finite:
                rest = [kind.value for kind in noticed if kind not in DROPS and kind is not EventKind.STOP]
                expected = ["nonfinite", *rest, *(["stop"] if EventKind.STOP in noticed else [])]
            assert told == expected, (policy, row)
            if proposal.action is Action.STOP:
                assert EventKind.STOP in noticed
                break


@given(st.lists(st.floats(min_value=0, max_value=10), max_size=60))
def test_the_dropped_steps_and_the_stop_are_those_of_judge(norms: list[float]) -> None:
    policy = SkipPolicy(threshold=3.0, count_threshold=3)
    events = list(judge(policy, rows(norms)))
    guard = SpikeGuard(policy, count_threshold=3)
    told = [event for decision in decisions(guard, rows(norms)) for event in decision.events]
    assert [(event.kind.value, event.step) for event in events] == [
        (event.kind.value, event.step) for event in told if event.kind is not GuardEventKind.ALARM
    ]


def interrupted(policy: Policy | None, log: Sequence[StepMetrics], at: Sequence[bool], scale: float) -> list[Decision]:
    """Decide on a log, in processes that die and go on with what was saved wherever `at` says so."""
    guard = SpikeGuard(policy, count_threshold=4)
    found = []
    for row, dies in zip(log, at, strict=True):
        if dies:
            fresh = SpikeGuard(policy, count_threshold=4)
            saved: Json = json.loads(json.dumps(guard.saved(), allow_nan=False))
            assert fresh.restore({**as_object(saved), "captures": 1}, step=row.step) == ()
            guard = fresh
        found.append(guard.settle(guard.propose(row, scale=scale)))
    return found


@settings(max_examples=settings().max_examples // 2)
@given(log=logs(), data=st.data(), scale=st.sampled_from((None, 1.0, 1024.0)))
def test_a_guard_that_is_restored_from_json_at_any_steps_decides_as_one_that_goes_on(
    log: list[StepMetrics], data: st.DataObject, scale: float
) -> None:
    at = data.draw(st.lists(st.booleans(), min_size=len(log), max_size=len(log)))
    for policy in POLICIES:
        whole = interrupted(policy, log, [False] * len(log), scale)
        # By their spelling, for a NaN is not equal to itself.
        assert repr(interrupted(policy, log, at, scale)) == repr(whole), policy


def test_without_a_policy_only_what_is_not_finite_is_dropped() -> None:
    guard = SpikeGuard()
    assert actions(guard, [1.0, 1e30, NAN, INF, 1.0]) == "..xx."
    assert (guard.applied, guard.dropped, guard.in_a_row) == (3, 2, 0)


def test_a_nan_is_dropped_and_counts_whatever_the_policy_makes_of_it() -> None:
    # In a replay of this policy each NaN starts the count anew.
    norms = [5.0, NAN] * 5
    assert actions(SpikeGuard(SkipPolicy(threshold=3.0)), norms) == "x" * 9 + "!"
    assert not any(event.kind is EventKind.STOP for event in judge(SkipPolicy(threshold=3.0), rows(norms)))
    blind = ZClipPolicy(warm_up=2)
    assert actions(SpikeGuard(blind), [1.0, 1.0, NAN, NAN, 1.0]) == "..xx."


def test_of_a_nan_it_says_what_happens_here_and_not_whether_the_policys_own_trainer_counts_it() -> None:
    told = only(decisions(SpikeGuard(SKIP), rows([NAN]))[0]).values
    assert (told["message"], told["count"]) == ("the norm is nan", 1)


@pytest.mark.parametrize(("loss", "losses_finite"), [(NAN, True), (1.0, False)])
def test_a_loss_that_is_not_finite_drops_an_update_whose_gradients_are(loss: float, losses_finite: bool) -> None:
    guard = SpikeGuard(RobustZPolicy())
    proposal = guard.propose(StepMetrics(step=Step(7), global_norm=0.0, loss=loss), losses_finite=losses_finite)
    assert (proposal.action, proposal.is_finite) == (Action.SKIP, False)
    event = only(guard.settle(proposal))
    assert (event.kind, event.step) == (GuardEventKind.NONFINITE, 7)
    assert event.values["message"] == "a loss is not finite"
    healthy = guard.propose(StepMetrics(step=Step(8), global_norm=0.0, loss=1.0))
    assert guard.settle(healthy) == Decision(action=Action.APPLY)


def test_a_spike_of_the_policy_is_dropped_and_told_with_its_limit() -> None:
    guard = SpikeGuard(RobustZPolicy(warm_up=4))
    found = decisions(guard, rows([1.0] * 8 + [50.0, 1.0]))
    assert [decision.action for decision in found[-2:]] == [Action.SKIP, Action.APPLY]
    event = only(found[-2])
    assert (event.kind, event.values["value"], event.values["dropped"]) == (GuardEventKind.SPIKE, 50.0, True)
    assert event.values["limit"] == pytest.approx(1.0725, rel=1e-3)
    assert "robust standard deviations" in str(event.values["message"])


def test_a_clip_is_applied_with_its_limit_and_is_no_drop() -> None:
    guard = SpikeGuard(ZClipPolicy(warm_up=3))
    found = decisions(guard, rows([1.0, 1.1, 0.9, 50.0]))
    assert found[-1].action is Action.APPLY
    assert only(found[-1]).kind is GuardEventKind.CLIP
    assert found[-1].limit == only(found[-1]).values["limit"]
    assert found[-1].limit is not None
    assert 1.0 < found[-1].limit < 1.5
    assert (guard.applied, guard.dropped) == (4, 0)
    assert found[-2].limit is None


def test_what_another_rank_drops_is_dropped_here_even_where_this_rank_would_clip_it() -> None:
    guard = SpikeGuard(ZClipPolicy(warm_up=3))
    decisions(guard, rows([1.0, 1.1, 0.9]))
    guard.propose(rows([50.0])[0])
    agreed = Proposal(action=Action.SKIP, norm=50.0, is_finite=True)
    decision = guard.settle(agreed)
    assert (decision.action, decision.limit) == (Action.SKIP, None)


@pytest.mark.parametrize("policy", [None, SKIP, RobustZPolicy(warm_up=2), OlmoPolicy(window=6)], ids=repr)
def test_the_nth_dropped_in_a_row_stops_under_every_policy_and_the_one_before_does_not(policy: Policy | None) -> None:
    usual = [1.0, 1.1, 0.9, 1.0, 1.0, 1.0, 1.1, 0.9]
    assert actions(SpikeGuard(policy), [*usual, *[NAN] * 10]) == "." * 8 + "x" * 9 + "!"
    guard = SpikeGuard(policy, count_threshold=3)
    assert actions(guard, [*usual, NAN, NAN]) == "." * 8 + "xx"


def test_one_applied_update_clears_the_count() -> None:
    guard = SpikeGuard(SKIP, count_threshold=3)
    assert actions(guard, [5.0, 5.0, 1.0, 5.0, 5.0, 1.0]) == "xx.xx."
    assert actions(guard, [5.0, 5.0, 5.0]) == "xx!"


def test_the_stop_says_from_where_to_go_on() -> None:
    *_, stop = decisions(SpikeGuard(SKIP, count_threshold=2), rows([5.0, 5.0]))
    assert [event.kind for event in stop.events] == [GuardEventKind.SKIP, GuardEventKind.STOP]
    assert "resolve --around-spike last" in str(stop.events[-1].values["message"])


def test_a_policy_that_stops_earlier_than_the_count_stops() -> None:
    assert actions(SpikeGuard(SkipPolicy(threshold=3.0, count_threshold=2)), [5.0, 5.0]) == "x!"


def test_an_overflow_neither_counts_nor_clears_and_the_policy_does_not_see_it() -> None:
    guard = SpikeGuard(OlmoPolicy(window=6), count_threshold=3)
    assert actions(guard, [1.0, 1.1, 0.9, 1.0, 1.0, 1.1, 9.0], scale=1024.0) == "......x"
    found = decisions(guard, rows([INF, INF]), scale=1024.0)
    assert kinds(found) == ["overflow", "overflow"]
    assert [decision.action for decision in found] == [Action.SKIP, Action.SKIP]
    assert (guard.in_a_row, guard.overflows, guard.dropped) == (1, 2, 1)
    # An infinity in the window would forbid every further update.
    assert actions(guard, [1.0, 1.0, 1.0], scale=1024.0) == "..."
    assert guard.in_a_row == 0


def test_a_loss_that_is_not_finite_is_no_business_of_the_loss_scaler() -> None:
    guard = SpikeGuard()
    proposal = guard.propose(StepMetrics(step=Step(1), global_norm=NAN, loss=NAN), scale=1024.0)
    assert not proposal.is_finite
    assert only(guard.settle(proposal)).kind is GuardEventKind.NONFINITE


def test_after_twenty_overflows_in_a_row_the_next_is_a_nan_like_any_other() -> None:
    guard = SpikeGuard()
    assert kinds(decisions(guard, rows([INF] * 24), scale=2.0)) == ["overflow"] * 20 + ["nonfinite"] * 4
    assert kinds(decisions(guard, rows([1.0, INF]), scale=2.0)) == ["overflow"]


@pytest.mark.parametrize(("scale", "kind"), [(1.0, "nonfinite"), (0.5, "nonfinite"), (2.0, "overflow")])
def test_a_scale_of_one_has_nothing_left_to_blame(scale: float, kind: str) -> None:
    assert kinds(decisions(SpikeGuard(), rows([INF]), scale=scale)) == [kind]


def test_an_overflow_here_is_none_where_another_rank_knows_better() -> None:
    guard = SpikeGuard()
    own = guard.propose(rows([INF])[0], scale=2.0)
    assert own.is_overflow
    event = only(guard.settle(replace(own, is_finite=False)))
    assert event.kind is GuardEventKind.NONFINITE
    assert (guard.overflows, guard.in_a_row) == (0, 1)


def test_a_stop_that_another_rank_wants_is_not_hidden_by_an_overflow() -> None:
    guard = SpikeGuard()
    own = guard.propose(rows([INF])[0], scale=2.0)
    assert guard.settle(replace(own, action=Action.STOP)).action is Action.STOP


@pytest.mark.parametrize(
    ("agreed", "kind", "told"),
    [
        (Proposal(action=Action.SKIP, norm=NAN, is_finite=False), GuardEventKind.NONFINITE, "has numbers that are not"),
        (Proposal(action=Action.SKIP, norm=1.0, is_finite=True), GuardEventKind.SKIP, "another rank drops it"),
    ],
)
def test_a_healthy_rank_drops_with_the_others_and_counts_alike(
    agreed: Proposal, kind: GuardEventKind, told: str
) -> None:
    guard = SpikeGuard(SKIP)
    assert guard.propose(rows([1.0])[0]).action is Action.APPLY
    event = only(guard.settle(agreed))
    assert event.kind is kind
    assert told in str(event.values["message"])
    assert (guard.in_a_row, guard.dropped) == (1, 1)


def test_counters_move_in_settle_alone() -> None:
    guard = SpikeGuard(SKIP)
    before = guard.saved()
    for _ in range(3):
        guard.propose(rows([5.0])[0])
    after = guard.saved()
    assert {key: after[key] for key in after if key != "watch"} == {
        key: before[key] for key in before if key != "watch"
    }


def test_a_rank_that_could_not_propose_settles_with_the_others() -> None:
    guard = SpikeGuard(SKIP)
    guard.settle(guard.propose(rows([1.0], first=41)[0]))
    event = only(guard.settle(Proposal(action=Action.SKIP, norm=9.0, is_finite=True)))
    assert (event.step, guard.in_a_row) == (42, 1)


def test_a_step_without_a_norm_is_applied() -> None:
    guard = SpikeGuard(RobustZPolicy())
    assert guard.settle(guard.propose(StepMetrics(step=Step(1)))) == Decision(action=Action.APPLY)


def test_too_many_skips_are_told_once_in_a_thousand_steps() -> None:
    guard = SpikeGuard(SKIP)
    often = [1.0, 5.0] * 1000  # every second one
    found = decisions(guard, rows(often))
    told = [(place, event) for place, decision in enumerate(found) for event in decision.events]
    alarms = [(place, event.values) for place, event in told if event.kind is GuardEventKind.ALARM]
    assert [place for place, _ in alarms] == [21, 1021]
    assert alarms[0][1]["name"] == "skips-too-often"
    assert [values["count"] for _, values in alarms] == [11, 500]


def test_one_skip_in_a_hundred_is_no_alarm() -> None:
    guard = SpikeGuard(SKIP)
    assert "alarm" not in kinds(decisions(guard, rows(([1.0] * 99 + [5.0]) * 30)))


def test_watching_drops_nothing_and_says_what_it_would_have_dropped() -> None:
    norms = [1.0, 5.0, NAN, 5.0, 5.0, 1.0, 5.0]
    acting = SpikeGuard(SKIP, count_threshold=3)
    watching = SpikeGuard(SKIP, count_threshold=3, mode=GuardMode.WATCH)
    found = decisions(watching, rows(norms))
    assert {decision.action for decision in found} == {Action.APPLY}
    assert kinds(found) == ["skip", "nonfinite", "skip", "stop", "skip", "skip"]  # the stop is told once
    assert kinds(found)[:4] == kinds(decisions(acting, rows(norms)))
    events = [event for decision in found for event in decision.events]
    assert {event.values["dropped"] for event in events if event.kind in DROPPED} == {False}
    assert [event.values["stopped"] for event in events if event.kind is GuardEventKind.STOP] == [False]
    assert (watching.dropped, watching.applied) == (0, 7)


def test_watching_clips_nothing_and_leaves_overflows_to_the_scaler() -> None:
    guard = SpikeGuard(ZClipPolicy(warm_up=3), mode=GuardMode.WATCH)
    found = decisions(guard, rows([1.0, 1.1, 0.9, 50.0]))
    assert found[-1].limit is None
    assert only(found[-1]).values["clipped"] is False
    (overflow,) = decisions(guard, rows([INF]), scale=2.0)
    assert (overflow.action, only(overflow).kind) == (Action.APPLY, GuardEventKind.OVERFLOW)


@pytest.mark.parametrize(
    ("policy", "steps"),
    [(None, 0), (SKIP, 0), (RobustZPolicy(), 64), (ZClipPolicy(), 25), (OlmoPolicy(), 63)],
    ids=repr,
)
def test_nothing_found_at_a_resume_tells_for_how_long_the_policy_is_blind(policy: Policy | None, steps: int) -> None:
    guard = SpikeGuard(policy)
    (event,) = guard.restore(None, step=Step(500))
    assert (event.kind, event.step, event.values["steps"]) == (GuardEventKind.BLIND, 500, steps)
    told = (
        f"for {steps} steps the policy detects nothing" if steps else "the count of updates dropped in a row restarts"
    )
    assert event.values["message"] == f"there is no saved state: {told}"
    if policy is not None and steps:  # and that is true to the step
        assert set(actions(guard, [1.0] * (steps - 1) + [1e6])) == {"."}
        guard = SpikeGuard(policy)
        noticed = decisions(guard, rows([1.0] * steps + [1e6]))[-1].events
        assert noticed


def test_a_policy_that_can_notice_nothing_is_blind_for_long() -> None:
    (event,) = SpikeGuard(RobustZPolicy(warm_up=NEVER)).restore(None, step=Step(0))
    assert event.values["steps"] == 10_000


def test_another_policy_or_setting_starts_afresh_but_keeps_the_totals() -> None:
    old = SpikeGuard(SKIP)
    actions(old, [5.0, 1.0, 5.0, 5.0])
    for policy in (RobustZPolicy(), replace(SKIP, threshold=3.5), None):
        guard = SpikeGuard(policy)
        (event,) = guard.restore(old.saved(), step=Step(5))
        assert (event.kind, event.step) == (GuardEventKind.GUARD_RESET, 5)
        assert (guard.in_a_row, guard.dropped, guard.applied) == (0, 3, 1)
    same = SpikeGuard(replace(SKIP))
    assert same.restore(old.saved(), step=Step(5)) == ()
    assert same.in_a_row == 2


def test_a_guard_without_a_policy_remembers_its_count_too() -> None:
    old, new = SpikeGuard(), SpikeGuard()
    actions(old, [NAN] * 9)
    assert new.restore(old.saved(), step=Step(10)) == ()
    assert actions(new, [NAN]) == "!"


@pytest.mark.parametrize(
    "saved",
    [
        [],
        {},
        {"schema": "ckpttool/guard-state/2"},
        {"watch": None},
        {"recent": ["1"]},
        {"in_a_row": -1},
        {"alarmed": True},
    ],
    ids=repr,
)
def test_a_state_that_cannot_be_read_is_not_used_by_halves(saved: Json) -> None:
    old = SpikeGuard(SKIP)
    actions(old, [5.0])
    damaged = {**old.saved(), **saved} if isinstance(saved, dict) and saved else saved
    guard = SpikeGuard(SKIP)
    fresh = guard.saved()
    (event,) = guard.restore(damaged, step=Step(5))
    assert event.kind is GuardEventKind.GUARD_RESET
    assert "cannot be read" in str(event.values["message"])
    assert guard.saved() == fresh


def test_a_count_below_one_is_refused() -> None:
    with pytest.raises(UsageError):
        SpikeGuard(count_threshold=0)
    assert actions(SpikeGuard(count_threshold=1), [NAN]) == "!"


def test_the_guard_for_another_framework_is_what_the_manual_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(ckpttool.__file__).parent / "guide" / "guard.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"## In another framework\n.*?```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102  our own page
    applied = [names["is_applied"](step, norm, 2.0) for step, norm in enumerate([*[1.0, 1.1] * 50, 90.0, 1.0], 1)]
    names["events"].close()
    assert [step for step, each in enumerate(applied, 1) if not each] == [101]
    answer = ckpttool.library.guard_report("output")
    assert (answer.steps, answer.dropped, [update.step for update in answer.drops]) == (102, 1, [101])


numbers = st.one_of(st.floats(min_value=0, max_value=10), st.sampled_from((NAN, INF, 50.0)))


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.tuples(numbers, numbers, numbers, st.sampled_from((None, 1.0, 1024.0))), max_size=60),
    st.sampled_from((None, SKIP, RobustZPolicy(window=12, warm_up=4), OlmoPolicy(window=6, sigmas=2.0))),
)
def test_ranks_with_losses_of_their_own_do_and_count_the_same(
    log: list[tuple[float, float, float, float | None]], policy: Policy | None
) -> None:
    ranks = [SpikeGuard(policy, count_threshold=4) for _ in range(2)]
    for step, (norm, *losses, scale) in enumerate(log, 1):
        rows_here = [StepMetrics(step=Step(step), global_norm=norm, loss=loss) for loss in losses]
        proposals = [guard.propose(row, scale=scale) for guard, row in zip(ranks, rows_here, strict=True)]
        agreed = Proposal(
            action=max(proposal.action for proposal in proposals),
            norm=norm,
            is_finite=all(proposal.is_finite for proposal in proposals),
        )
        one, other = (guard.settle(agreed) for guard in ranks)
        assert (one.action, one.limit) == (other.action, other.limit)
        assert {event.kind for event in one.events} & {GuardEventKind.STOP, GuardEventKind.OVERFLOW} == {
            event.kind for event in other.events
        } & {GuardEventKind.STOP, GuardEventKind.OVERFLOW}
        counted = [{key: value for key, value in guard.saved().items() if key != "watch"} for guard in ranks]
        assert counted[0] == counted[1]


def test_a_policy_that_drops_every_norm_is_an_error_at_the_start() -> None:
    with pytest.raises(UsageError, match="a threshold above 0 to drop norms, not -1"):
        SpikeGuard(SkipPolicy(threshold=-1.0))
