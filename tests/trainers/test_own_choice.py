"""What `--simulate` says of a damaged tree is what the trainer itself did with that tree.

A trainer's trees are tried from the day on which its own choice is known.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ckpttool import api
from ckpttool.domain.checkpoint import Inventory
from ckpttool.domain.plan import Outcome, Simulation
from ckpttool.trainers import registry
from tests.support.trainer_trees import damaged, faults, healthy, layout_of_tree, truths

_STEPS = ("resumed_at_step", "step_inside", "iteration", "step_then")
"""Under which words the library's runs note where they went on, the surest first."""

KNOWN = {name for trainer in registry.TRAINERS if trainer.simulator is not None for name in trainer.layout_names}
APART = {"torch-dcp"}
"""It chooses nothing: the application does."""


def measured(library: dict[str, Any] | str) -> Outcome | None:
    """How the run ended; None where there was none, or it was told a path."""
    outcome = library.get("outcome", "not run") if isinstance(library, dict) else "not run"
    said: list[str] = outcome if isinstance(outcome, list) else [outcome]
    if said == ["not run"] or "ckpt_path='out/" in str(library):
        return None
    if any("scratch" in each or "random weights" in each for each in said):
        return Outcome.SCRATCH
    return Outcome.LOADS if all(each == "loads" for each in said) else Outcome.STOPS


FAULTS = [
    fault
    for fault, recipe in sorted(faults().items())
    if layout_of_tree(recipe["tree"]) in KNOWN - APART and measured(recipe["library"]) is not None
]
TREES = [
    tree
    for tree, truth in sorted(truths().items())
    if truth["layout"] in KNOWN - APART and measured(truth.get("library_resumes", {})) is not None
]


def simulated(root: Path) -> tuple[Simulation, Inventory]:
    answer = api.resolve(api.TreeQuestion(path=str(root)))
    return api.simulate(answer), answer.tree.inventory


@pytest.mark.parametrize("fault", FAULTS)
def test_it_ends_as_the_trainer_was_seen_to_end(fault: str, tmp_path: Path) -> None:
    library = faults()[fault]["library"]
    told, inventory = simulated(damaged(fault, tmp_path))
    assert told.outcome is measured(library), told
    step = next((library[word] for word in _STEPS if word in library), None)
    taken = next((each for each in inventory.checkpoints if each.name == told.would_resume), None)
    if told.outcome is Outcome.LOADS and step is not None and taken is not None:
        assert taken.step == step


@pytest.mark.parametrize("tree", TREES)
def test_of_a_whole_tree_it_takes_what_the_trainer_took(tree: str, tmp_path: Path) -> None:
    library = truths()[tree]["library_resumes"]
    told, _ = simulated(healthy(tree, tmp_path))
    assert (told.would_resume, told.outcome) == (library["name"], measured(library)), told
