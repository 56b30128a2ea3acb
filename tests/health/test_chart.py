"""The pictures fit a terminal, show what matters, and never hide what is not finite."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.advice import Bin, Threshold
from ckpttool.core.domain.units import Step
from ckpttool.core.render.text import WIDTH
from ckpttool.health.answers.chart import Mark, histogram, norm_chart

CURVE = [(Step(step), 250.0 + 10 * math.sin(step / 9)) for step in range(1, 200)]


def threshold(value: float, *bins: Bin) -> Threshold:
    return Threshold(
        quantity="global_norm_spike_threshold",
        value=value,
        points=10,
        median=1.0,
        spread=0.2,
        highest_normal=2.0,
        excluded=0,
        false_alarms=0.0,
        false_alarms_at_most=1.0,
        alarm_share=0.0,
        bins=bins,
    )


def test_a_chart_shows_curve_threshold_checkpoints_and_steps() -> None:
    marks = [
        Mark(step=Step(50), healthy=True),
        Mark(step=Step(100), healthy=False),
        Mark(step=Step(150), healthy=None),
        Mark(step=Step(999), healthy=True),
    ]
    text = norm_chart("embedding_local_norm", CURVE, lines=[270.0], marks=marks)
    lines = text.splitlines()
    assert lines[0] == "embedding_local_norm"
    assert any("270" in line and "──" in line for line in lines)
    (marked,) = [line for line in lines if "▲" in line and "healthy" not in line]
    assert (marked.count("▲"), marked.count("✗"), marked.count("?")) == (1, 1, 1)
    assert any(line.split() == ["1", "199"] for line in lines)
    assert any("checkpoints:" in line for line in lines)


def test_without_unicode_the_chart_is_ascii() -> None:
    text = norm_chart("t", CURVE, lines=[270.0], marks=[Mark(step=Step(50), healthy=True)], unicode=False)
    assert text.isascii()
    assert histogram(threshold(3.0, Bin(low=1.0, high=2.0, count=4)), unicode=False).isascii()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_drawn_at_the_top_and_covers_its_column(bad: float) -> None:
    points = [*CURVE, (Step(100), bad), (Step(100), 300.0)] if math.isnan(bad) else [*CURVE, (Step(100), bad)]
    text = norm_chart("t", points)
    assert "↑" in text.splitlines()[1]
    assert "↑" not in norm_chart("t", CURVE)


def test_a_spike_in_one_step_of_many_is_not_lost_between_the_columns() -> None:
    points = [(Step(step), 1.0) for step in range(1, 100_000)]
    flat = norm_chart("t", points)
    points[54_321] = (Step(54_322), 900.0)
    assert norm_chart("t", points) != flat
    assert norm_chart("t", points).splitlines()[1].count("•") == 1


def test_of_checkpoints_in_one_column_the_worst_is_seen() -> None:
    marks = [Mark(step=Step(10), healthy=health) for health in (False, True, None)]
    points = [(Step(1), 1.0), (Step(100_000), 1.0)]
    text = norm_chart("t", points, marks=marks)
    assert "✗" in text.splitlines()[-3]
    assert "▲" not in text.splitlines()[-3]


@pytest.mark.parametrize(
    "points", [[], [(Step(1), 1.0)], [(Step(1), math.nan), (Step(2), math.inf)], [(Step(1), 1.0), (Step(1), 2.0)]]
)
def test_too_few_values_give_a_word_and_no_curve(points: list[tuple[Step, float]]) -> None:
    assert norm_chart("t", points) == "t\n(too few values for a curve)\n"


@given(
    st.lists(st.tuples(st.integers(0, 10**7).map(Step), st.floats(-1e9, 1e9) | st.just(math.nan)), max_size=40),
    st.none() | st.floats(-1e9, 1e9),
    st.lists(st.integers(0, 10**7).map(Step), max_size=5),
    st.integers(20, 120),
)
def test_no_chart_is_wider_than_asked_for(
    points: list[tuple[Step, float]], limit: float | None, saves: list[Step], width: int
) -> None:
    marks = [Mark(step=step, healthy=True) for step in saves]
    drawn = norm_chart(
        "t", points, lines=[] if limit is None else [limit, -limit], marks=marks, width=width
    ).splitlines()
    curve = [line for line in drawn if "checkpoints:" not in line and "too few" not in line]
    assert max(map(len, curve)) <= max(width, 30)


def test_a_histogram_has_a_bar_for_each_bin_and_the_threshold_among_them() -> None:
    bins = (
        Bin(low=1.0, high=2.0, count=1000),
        Bin(low=2.0, high=4.0, count=1),
        Bin(low=4.0, high=8.0, count=0),
    )
    lines = histogram(threshold(3.0, *bins)).splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["1", "2", "3", "4"]
    assert "threshold" in lines[3]
    assert "█" in lines[2]
    assert "█" not in lines[4]
    assert max(map(len, lines)) <= WIDTH
    assert "threshold" in histogram(threshold(9.0, *bins)).splitlines()[-1]
