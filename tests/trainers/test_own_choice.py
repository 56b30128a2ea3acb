"""What `--simulate` says of a damaged tree is what the trainer itself did with that tree.

A trainer's trees are tried from the day on which its own choice is known.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ckpttool.core.domain.plan import Outcome
from ckpttool.core.storage.base import ByteSource
from ckpttool.core.storage.local import LocalStorage
from ckpttool.trainers import registry
from tests.support.answers import scanned, simulated
from tests.support.trainer_trees import LAYOUTS, damaged, faults, layout_of_tree, truths

_STEPS = ("resumed_at_step", "step_inside", "iteration", "step_then")
"""Under which words the library's runs note where they went on, the surest first."""

KNOWN = {name for trainer in registry.trainers() if trainer.simulator is not None for name in trainer.layout_names}
APART = {"torch-dcp"}
"""It chooses nothing: the application does."""
BY_A_TRACKER = (
    "ds_zero1_2ranks",
    "ds_zero3_2ranks",
    "mcore_dist_tp2dp2",
    "mcore_legacy_tp2dp2",
    "verl_2ranks",
    "verl_sft",
    "skyrl_2ranks",
)


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


TAKEN: dict[str, tuple[str | None, str]] = {
    "accel_ddp2--stray-copy": ("checkpoint_9.bak", ""),
    "accel_ddp2--rank1-random-missing": ("checkpoint_2", ""),
    "accel_ddp2--cut-model": ("checkpoint_2", ""),
    "ds_zero1_2ranks--latest-missing": (None, "returns (None, None)"),
    "ds_zero1_2ranks--latest-empty": (None, "AssertionError"),
    "ds_zero1_2ranks--latest-ahead": (None, "names global_step9"),
    "ds_zero1_2ranks--race": ("global_step9", "the others load and wait"),
    "ds_zero1_2ranks--optimizer-shard-missing": ("global_step6", "optim_states.pt"),
    "ds_zero1_2ranks--optimizer-shard-cut": ("global_step6", "optim_states.pt"),
    "ds_zero1_2ranks--flipped": ("global_step6", "never falls back"),
    "ds_zero3_2ranks--model-shard-missing": ("global_step6", "model_states.pt"),
    "light_single--last-stale": ("epoch=0-step=4.ckpt", ""),
    "light_single--last-cut": ("last.ckpt", ""),
    "mcore_dist_tp2dp2--tracker-ahead": (None, "FileNotFoundError"),
    "mcore_dist_tp2dp2--tracker-empty": (None, "exits with code 0"),
    "mcore_dist_tp2dp2--tracker-missing": (None, "random weights"),
    "mcore_dist_tp2dp2--metadata-json-missing": ("iter_0000006", "the save is not complete"),
    "mcore_dist_tp2dp2--shard-missing": ("iter_0000006", "__3_1.distcp"),
    "mcore_dist_tp2dp2--common-missing": ("iter_0000006", "common.pt"),
    "mcore_dist_tp2dp2--half-saved-newest": ("iter_0000006", ""),
    "mcore_dist_tp2dp2--flipped": ("iter_0000006", ""),
    "mcore_legacy_tp2dp2--rank-file-missing": ("iter_0000006", "the others hang"),
    "mcore_legacy_tp2dp2--rank-file-cut": ("iter_0000006", "the others hang"),
    "mcore_legacy_tp2dp2--distrib-optim-missing": ("iter_0000006", "distrib_optim.pt"),
    "mcore_legacy_tp2dp2--tracker-behind": ("iter_0000003", ""),
    "automodel_2ranks--missing-random-state": ("epoch_1_step_11", "LATEST names it"),
    "automodel_2ranks--incomplete-newest": ("epoch_0_step_9", "LATEST names no complete save"),
    "automodel_2ranks--no-pointer": ("epoch_1_step_11", "highest"),
    "automodel_2ranks--stale-pointer": ("epoch_0_step_9", "LATEST names it"),
    "automodel_2ranks--dangling-pointer": ("epoch_1_step_11", "highest"),
    "olmo_2ranks--missing-rank-state": ("step12", ""),
    "olmo_2ranks--missing-first-state": ("step10", ""),
    "olmo_2ranks--cut-rank-state": ("step12", "train/rank1.pt"),
    "olmo_2ranks--missing-shard": ("step12", "__1_0.distcp"),
    "olmo_2ranks--renamed-copy": ("step99", ""),
    "olmo_2ranks--torn-mark": ("step12", ""),
    "orbax_standard--data-missing": ("30", ""),
    "titan_4ranks--missing-shard": ("step-10", ""),
    "titan_4ranks--torn-metadata": ("step-10", ""),
    "titan_4ranks--half-saved-newest": ("step-10", ""),
    "titan_4ranks--flipped-tensor": ("step-10", ""),
    "verl_sft--tracker-missing": (None, "there is no tracker file"),
    "verl_sft--tracker-ahead": (None, "names global_step_99"),
    "verl_sft--tracker-behind": ("global_step_4", ""),
    "verl_sft--tracker-empty": (None, "expected a step"),
    "verl_sft--loader-missing": ("global_step_12", "starts the epoch from the beginning"),
    "verl_sft--loader-cut": ("global_step_12", "data_1.pt"),
    "verl_sft--rank-file-missing": ("global_step_12", "optim_world_size_2_rank_1.pt"),
    "verl_sft--renamed-copy": ("global_step_12", ""),
    "skyrl_2ranks--tracker-missing": (None, "there is no tracker file"),
    "skyrl_2ranks--tracker-empty": (None, "expected a step"),
    "skyrl_2ranks--tracker-ahead": (None, "names global_step_99"),
    "skyrl_2ranks--tracker-behind": ("global_step_10", ""),
    "skyrl_2ranks--data-missing": ("global_step_12", ""),
    "skyrl_2ranks--data-cut": ("global_step_12", "data.pt is damaged"),
    "skyrl_2ranks--optimizer-missing": ("global_step_12", "starts with a new optimizer"),
    "skyrl_2ranks--record-missing": ("global_step_12", "the save is not complete"),
    "skyrl_2ranks--record-cut": ("global_step_12", "trainer_state.pt"),
    "skyrl_2ranks--backup-beside": (None, "global_step_12_backup"),
    "skyrl_2ranks--renamed-copy": (None, "87 steps later"),
    "skyrl_2ranks--half-written-newest": ("global_step_12", ""),
    "titan_last_model_only": ("step-7", "only weights"),
    "hf_only_model": ("checkpoint-6", "are re-initialized"),
}
"""Which save it took of a damaged tree, or one that ends in weights alone, and words of why."""


@pytest.mark.parametrize("fault", FAULTS)
def test_it_ends_as_the_trainer_was_seen_to_end(fault: str, tmp_path: Path) -> None:
    library = faults()[fault]["library"]
    root = damaged(fault, tmp_path)
    told = simulated(root)
    assert told.outcome is measured(library), told
    if fault in TAKEN:
        assert (told.would_resume, TAKEN[fault][1] in told.because) == (TAKEN[fault][0], True), told
    step = next((library[word] for word in _STEPS if word in library), None)
    taken = next((each for each in scanned(root).checkpoints if each.name == told.would_resume), None)
    if told.outcome is Outcome.LOADS and step is not None and taken is not None:
        assert taken.step == step


@pytest.mark.parametrize("tree", TREES)
def test_of_a_whole_tree_it_takes_what_the_trainer_took(tree: str) -> None:
    library = truths()[tree]["library_resumes"]
    told = simulated(LAYOUTS / tree)
    assert (told.would_resume, told.outcome) == (library["name"], measured(library)), told


@pytest.mark.parametrize(
    "tree", ["hf_single", "light_single", "olmo_2ranks", "orbax_standard", "titan_4ranks", *BY_A_TRACKER]
)
def test_of_a_whole_tree_it_loads_the_newest(tree: str) -> None:
    told = simulated(LAYOUTS / tree)
    assert (told.would_resume, told.outcome) == (truths()[tree]["should_resume"], Outcome.LOADS), told


@pytest.mark.parametrize(
    ("tree", "outcome"), [("titan_last_model_only", Outcome.STOPS), ("hf_only_model", Outcome.LOADS)]
)
def test_weights_alone_are_taken_like_any_save(tree: str, outcome: Outcome) -> None:
    told = simulated(LAYOUTS / tree)
    assert (told.would_resume, told.outcome, TAKEN[tree][1] in told.because) == (TAKEN[tree][0], outcome, True)


@pytest.mark.parametrize(
    ("tree", "denied"),
    [
        ("composer_single", {"latest-rank0.pt", "ep1-ba14-rank0.pt"}),
        ("light_single", {"checkpoints/last.ckpt", "checkpoints/epoch=1-step=12.ckpt"}),
        ("skyrl_2ranks", {"global_step_12/policy/model_world_size_2_rank_0.pt"}),
        ("olmo_2ranks", {"step12/model_and_optim/__0_0.distcp"}),
        ("automodel_2ranks", {"epoch_1_step_11/rng/rng_global_rank_0.pt"}),
    ],
)
def test_of_files_that_cannot_be_read_the_outcome_is_unknown(
    tree: str, denied: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, opened = LAYOUTS / tree, LocalStorage.open
    paths = {root / path for path in denied}

    def withheld(self: LocalStorage, path: str) -> ByteSource:
        if Path(self.root, path) in paths:
            raise PermissionError(13, "Permission denied", path)
        return opened(self, path)

    monkeypatch.setattr(LocalStorage, "open", withheld)
    assert simulated(root).outcome is Outcome.UNKNOWN
