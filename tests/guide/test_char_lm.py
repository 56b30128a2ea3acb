"""The example that ships: what its two bad batches are, and that it goes on where it was."""

from __future__ import annotations

import re
from itertools import islice

import pytest
import torch

from ckpttool.guide.char_lm.train import Batches, CharModel
from tests.pages import GUIDE


@pytest.fixture
def model() -> CharModel:
    torch.manual_seed(1)
    return CharModel()


def measured(model: CharModel, number: int) -> tuple[float, float]:
    """Return loss and norm of one batch."""
    loader = Batches()
    loader.load_state_dict({"handed_out": number - 1})
    loss = model(next(iter(loader)))
    loss.backward()
    norm = torch.nn.utils.get_total_norm(each.grad for each in model.parameters() if each.grad is not None)
    return loss.item(), norm.item()


def test_batch_150_has_a_norm_a_hundred_times_that_of_its_neighbour(model: CharModel) -> None:
    _, usual = measured(model, 149)
    model.zero_grad()
    _, high = measured(model, 150)
    assert high > 100 * usual > 0


def test_batch_220_has_no_loss_and_no_gradient_shows_it(model: CharModel) -> None:
    loss, norm = measured(model, 220)
    assert loss != loss  # noqa: PLR0124  NaN
    assert norm == 0


def test_the_batches_go_on_behind_those_that_were_handed_out() -> None:
    loader, resumed = Batches(), Batches()
    read = list(islice(loader, 3))
    resumed.load_state_dict({"handed_out": 2})
    assert all(torch.equal(read[2][name], value) for name, value in next(iter(resumed)).items())
    assert resumed.state_dict() == loader.state_dict() == {"handed_out": 3}


def test_the_line_that_the_guards_page_names_as_the_origin_is_that_line() -> None:
    named = re.search(
        r"char_lm/train\.py:(\d+): (.+?)\n\n", (GUIDE / "guard.md").read_text(encoding="utf-8"), re.DOTALL
    )
    assert named is not None
    lines = (GUIDE / "char_lm" / "train.py").read_text(encoding="utf-8").splitlines()
    assert " ".join(named[2].split()) == lines[int(named[1]) - 1].strip()
