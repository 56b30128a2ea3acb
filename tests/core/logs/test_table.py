"""Steps kept in columns are the steps that were put in."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.metrics import StepMetrics
from ckpttool.core.domain.units import Step
from ckpttool.core.logs.table import StepTable

counts = st.none() | st.integers(-(10**30), 10**30)
numbers = st.none() | st.floats()
truths = st.none() | st.booleans()
texts = st.none() | st.text(max_size=25) | st.just("2025-01-01 00:00:00")
steps = st.builds(
    StepMetrics,
    step=st.integers(0, 10**40).map(Step),
    loss=numbers,
    global_norm=numbers,
    embedding_local_norm=numbers,
    overflow=truths,
    skipped=truths,
    time=texts,
    consumed_samples=counts,
)


@given(st.lists(steps, max_size=5))
def test_every_value_comes_back_whatever_it_is(rows: list[StepMetrics]) -> None:
    table = StepTable()
    for row in rows:
        table.append(row)
    assert len(table) == len(rows)
    assert repr(list(table)) == repr(rows)  # a NaN is unlike itself
    assert repr([table[place] for place in range(-len(rows), 0)]) == repr(rows)
    assert repr(list(table[1:4])) == repr(rows[1:4])
    assert repr(list(table[1:4][1:2])) == repr(rows[1:4][1:2])
    assert [table.step(place) for place in range(len(rows))] == [row.step for row in rows]


def test_what_nobody_will_ask_for_is_not_kept() -> None:
    table = StepTable(keep=("loss",))
    table.append(StepMetrics(step=Step(1), loss=2.0, global_norm=3.0))
    assert table[0] == StepMetrics(step=Step(1), loss=2.0)


def test_a_step_takes_a_quarter_of_what_it_takes_as_a_value() -> None:
    def row(step: int) -> StepMetrics:
        return StepMetrics(
            step=Step(1000 + step),
            loss=step / 7,
            global_norm=step / 3,
            overflow=False,
            time=f"2025-01-01 00:{step // 60 % 60:02d}:{step % 60:02d}",
        )

    def kept(table: list[StepMetrics] | StepTable) -> int:
        tracemalloc.start()
        for step in range(3000):
            table.append(row(step))
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return size

    assert 4 * kept(StepTable()) < kept([])
