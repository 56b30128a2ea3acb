"""Ten captures of one broken weight are one fact: in the events, the list and the report."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from ckpttool.core.domain.guarding import GuardEventKind
from ckpttool.guard import Guard, GuardStop
from tests.guard.loop import NOT_A_NUMBER, SmallNet, Told, loss_of
from tests.support.commands import ask


def train(output: Path, *, broken_at: int, bad: frozenset[int] = frozenset(), last: int = 14) -> Told:
    """Train with NaN in single batches, and from one step on in a weight."""
    model = SmallNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    told = Told()
    guard = Guard(model, optimizer, output=output, sinks=[told])
    for step in range(1, last + 1):
        batch = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
        if step in bad:
            batch[2, 1] = NOT_A_NUMBER
        if step == broken_at:
            with torch.no_grad():
                model.first.weight[1, 2] = NOT_A_NUMBER
        with guard.micro(batch) as micro:
            loss = micro.loss(loss_of(model, batch))
            loss.backward()
        try:
            guard.clip_(1.0)
        except GuardStop:
            break
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    return told


def lines(output: Path, command: str, with_what: str) -> list[str]:
    return [line for line in ask("guard", command, str(output)).stdout.splitlines() if with_what in line]


def test_ten_captures_of_one_broken_weight_are_one_line_everywhere(tmp_path: Path) -> None:
    told = train(tmp_path, broken_at=4, bad=frozenset({2}))
    assert len(told.of(GuardEventKind.CAPTURE)) == 11
    (alarm,) = [alarm for alarm in told.of(GuardEventKind.ALARM) if alarm["name"] == "captures-in-a-row"]
    assert str(alarm["message"]).startswith("3 captures in a row from step 4 are of the same weights")

    listed = lines(tmp_path, "list", "nan-at-")
    assert len([line for line in listed if "Next" not in line]) == 2
    assert any(line.lstrip().startswith("4-13 ") and "nan-at-00000004" in line for line in listed)
    assert lines(tmp_path, "list", "Steps 4 to 13: 10 in a row on the same weights, most likely one cause")

    reported = " ".join(ask("guard", "report", str(tmp_path)).stdout.split())
    assert "10 in a row on the same weights, to step 13: most likely one cause" in reported
    assert "nan-at-00000005" not in reported
    assert (
        "step 2 nonfinite (rank 0): the norm is nan step 4 nonfinite (rank 0): the norm is nan; 10 in a row" in reported
    )
    assert "3 captures in a row" not in reported, "the list of captures has all of the row"


@pytest.mark.parametrize("bad", [{2, 3}, {2, 4, 5, 7}])
def test_a_few_bad_batches_are_no_row_that_is_reported(bad: set[int], tmp_path: Path) -> None:
    told = train(tmp_path, broken_at=99, bad=frozenset(bad), last=8)
    assert len(told.of(GuardEventKind.CAPTURE)) == len(bad)
    assert told.of(GuardEventKind.ALARM) == []


def test_a_batch_that_a_loop_variable_leads_to_is_not_kept(tmp_path: Path) -> None:
    from weakref import ref

    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer, output=tmp_path)
    batch = torch.ones(1, 2)
    with guard.micro(batch) as micro:
        micro.loss(model(batch).sum()).backward()
    guard.clip_(1.0)
    seen = ref(batch)
    del batch
    assert seen() is None
    guard.close()
