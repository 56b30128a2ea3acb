"""`verify` and `inspect` show where the data of each save continue, whichever trainer saved its loaders."""

from __future__ import annotations

import pickle
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from ckpttool.core.domain.finding import Code, Severity
from ckpttool.core.domain.units import Rank
from ckpttool.core.domain.verdict import Verdict
from ckpttool.core.formats.torch import plain
from ckpttool.core.verbs.scanning import scan
from ckpttool.core.verbs.verifying import verify
from ckpttool.trainers.loader_states.files import UNREAD
from ckpttool.types import CheckQuestion
from tests.conftest import FIXTURES
from tests.support.commands import ask
from tests.support.trainer_trees import LAYOUTS, healthy, recount

STATES = FIXTURES / "loader_states"
CODES = {Code.DATA_POSITION_AT_END, Code.DATA_POSITION_BACK, Code.DATA_POSITION_DIFFERS, Code.DATA_POSITION_STILL}


def positions(root: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the loaders that `inspect` shows, by save."""
    saves = [save.name for save in scan(str(root)).inventory.checkpoints]
    return {name: ask("inspect", str(root), "--checkpoint", name, "--json").json["loaders"] for name in saves}


def warned(root: Path) -> dict[str, list[tuple[str, Severity, tuple[Rank, ...]]]]:
    """Return the findings about positions, by save."""
    verdicts = [event for event in verify(str(root), CheckQuestion(name="all")) if isinstance(event, Verdict)]
    found = {
        verdict.name: [(each.code.value, each.severity, each.ranks) for each in verdict.findings if each.code in CODES]
        for verdict in verdicts
    }
    return {name: several for name, several in found.items() if several}


HEALTHY = {
    "automodel_2ranks": "epoch_1_step_11 torchdata 1 2",
    "composer_fsdp": "ep1-ba12 Composer's timestamp 1 2",
    "composer_single": "ep1-ba14-rank0.pt Composer's timestamp 1 4",
    "olmo_2ranks": "step12 OLMo-core 2 2",
    "titan_4ranks/checkpoint": "step-10 torchdata with torchtitan's data set 1 10",
    "verl_2ranks": "global_step_3 torchdata None 3",
    "verl_sft": "global_step_12 torchdata None 2",
}


@pytest.mark.parametrize("tree", HEALTHY)
def test_the_position_of_a_real_save_is_shown_and_raises_no_alarm(tree: str) -> None:
    root = LAYOUTS / tree
    name, _, text = HEALTHY[tree].partition(" ")
    loaders = positions(root)[name]
    assert {f"{each['kind']} {each['epoch']} {each['batches']}" for each in loaders if each["kind"]} == {text}
    assert warned(root) == {}


@pytest.mark.parametrize(
    ("tree", "name"), [("verl_sft", "global_step_12"), ("titan_4ranks/checkpoint", "step-10"), ("dcp_plain_2ranks", "")]
)
def test_a_state_that_is_larger_than_ckpttool_reads_is_shown_with_the_reason(
    tree: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, "_FIRST_BYTES", 64)
    monkeypatch.setattr(plain, "MOST_PLAIN_BYTES", 128)
    problems = {each["problem"] for each in positions(LAYOUTS / tree).get(name, [])}
    assert problems == ({UNREAD} if name else set())


@pytest.mark.parametrize("tree", sorted(folder.name for folder in LAYOUTS.iterdir() if folder.is_dir()))
def test_no_real_tree_raises_an_alarm_except_for_an_epoch_that_would_be_skipped(tree: str) -> None:
    root = LAYOUTS / tree
    inner = next((root / name for name in ("checkpoint", "checkpoints") if (root / name).is_dir()), root)
    if tree == "loose_models":
        return
    expected = {"global_step_10": [("data-position-at-end", Severity.NOTE, ())]} if tree == "skyrl_2ranks" else {}
    assert warned(inner) == expected


class TestTheWayIn:
    """Each trainer's own place of the states."""

    def test_accelerate_saves_a_file(self) -> None:
        found = positions(STATES / "accelerate" / "checkpoints")
        assert [found[f"checkpoint_{number}"][0]["batches"] for number in range(3)] == [5, 12, 3]
        assert warned(STATES / "accelerate" / "checkpoints") == {}

    def test_lightning_has_a_list_in_its_loop(self, tmp_path: Path) -> None:
        shutil.copytree(STATES / "lightning", tmp_path / "checkpoints")
        found = positions(tmp_path / "checkpoints")
        assert [(each["epoch"], each["batches"]) for (each,) in found.values()] == [(0, 5), (0, 10), (1, 3)]
        assert warned(tmp_path / "checkpoints") == {}

    def test_of_several_loaders_lightning_begins_the_short_one_again_within_an_epoch(self, tmp_path: Path) -> None:
        (tmp_path / "checkpoints").mkdir()
        for step, short in ((5, 4), (10, 1)):
            values = torch.load(STATES / "lightning" / f"epoch=0-step={step}.ckpt", weights_only=False)
            states = values["loops"]["fit_loop"]["state_dict"]["combined_loader"]
            states.append({**states[0], "_num_yielded": short})
            torch.save(values, tmp_path / "checkpoints" / f"epoch=0-step={step}.ckpt")
        assert warned(tmp_path / "checkpoints") == {}

    @pytest.mark.parametrize("tree", ["mcore_dist_tp2dp2", "mcore_legacy_tp2dp2"])
    def test_megatron_counts_samples_and_energon_has_a_file_per_rank(self, tree: str, tmp_path: Path) -> None:
        root = healthy(tree, tmp_path)
        folder = root / "iter_0000006" / "mp_rank_00"
        folder.mkdir(exist_ok=True)
        for rank in (0, 1):
            shutil.copy(STATES / "energon" / "savable.pt", folder / f"train_dataloader_dprank{rank:03d}.pt")
        strays = [
            each.path for each in scan(str(root)).inventory.checkpoints[-1].findings if each.code is Code.STRAY_FILE
        ]
        assert not any("dprank" in (path or "") for path in strays)
        sampler, *energon = positions(root)["iter_0000006"]
        assert (sampler["kind"], sampler["samples"], sampler["is_total"]) == ("Megatron's sampler", 24, True)
        assert [(each["kind"], each["rank"], each["batches"]) for each in energon] == [
            ("Energon", 0, 5),
            ("Energon", 1, 5),
        ]

    def test_deepspeed_has_the_scripts_own_keys(self, tmp_path: Path) -> None:
        root = healthy("ds_zero1_2ranks", tmp_path)
        file = root / "global_step6" / "mp_rank_00_model_states.pt"
        saved = torch.load(file, weights_only=False)
        saved["dataloader"] = torch.load(STATES / "torchdata" / "in_order.pt", weights_only=False)
        torch.save(saved, file)
        (found,) = positions(root)["global_step6"]
        assert (found["key"], found["kind"], found["batches"]) == ("dataloader", "torchdata", 5)

    def test_a_loop_of_ones_own_may_use_any_key_and_a_file_alone_is_read_as_well(self, tmp_path: Path) -> None:
        root = own_loop(tmp_path, "torchdata/in_order", "torchdata/in_order")
        (found,) = positions(root)["ckpt_6.pt"]
        assert (found["key"], found["samples"]) == ("data.train", 10)
        said = ask("inspect", str(STATES / "mosaic" / "streaming.pt"))
        assert "MosaicML streaming  epoch 0, 10 samples (in streaming.pt)" in said.stdout

    def test_a_state_of_an_unknown_kind_is_shown_by_its_keys(self) -> None:
        _, unknown = positions(LAYOUTS / "composer_streamed")["ep0-ba7-rank0.pt"]
        assert (unknown["kind"], unknown["problem"]) == (None, "unknown kind: keys sample_in_epoch")

    def test_ranks_at_the_same_position_share_a_row(self) -> None:
        said = ask("inspect", str(LAYOUTS / "olmo_2ranks"))
        row = "OLMo-core epoch 2, 2 batches, 8 samples (ranks 0-1, in step12/train/rank0.pt: data_loader)"
        assert row in " ".join(said.stdout.split())

    def test_a_file_that_cannot_be_read_is_shown_with_the_reason(self, tmp_path: Path) -> None:
        root = healthy("verl_2ranks", tmp_path)
        (root / "global_step_3" / "data.pt").write_bytes(b"torn")
        (found,) = positions_of_damaged(root, "global_step_3")
        assert found["problem"] == UNREAD
        (root / "global_step_3" / "data.pt").unlink()
        (root / "global_step_3" / "data.pt").symlink_to("gone")
        (found,) = positions_of_damaged(root, "global_step_3")
        assert found["problem"].startswith("cannot be read: ")


def positions_of_damaged(root: Path, name: str) -> list[dict[str, Any]]:
    loaders: list[dict[str, Any]] = ask("inspect", str(root), "--checkpoint", name, "--json").json["loaders"]
    return loaders


def own_loop(folder: Path, *states: str | dict[str, Any]) -> Path:
    """Save a model, an optimizer and a loader's state every three steps."""
    root = folder / "run"
    root.mkdir(parents=True)
    for number, state in enumerate(states, 1):
        values = torch.load(STATES / f"{state}.pt", weights_only=False) if isinstance(state, str) else state
        save = {
            "step": 3 * number,
            "model": {"w": torch.ones(2)},
            "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]},
            "data": {"train": values},
        }
        torch.save(save, root / f"ckpt_{3 * number}.pt")
    return root


def saved_with_dcp(folder: Path, values: dict[str, Any]) -> None:
    from torch.distributed.checkpoint.state_dict_saver import save

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(values, checkpoint_id=str(folder), no_dist=True)


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("torchdata/workers", "torchdata 5 batches, 10 samples; 2 workers"),
        ("datasets/loader", "torchdata with datasets epoch 0, 3 batches, 6 samples"),
        ("mosaic/streaming", "MosaicML streaming epoch 0, 10 samples"),
    ],
)
def test_a_state_that_torch_divided_into_its_values_is_put_together(state: str, text: str, tmp_path: Path) -> None:
    values = torch.load(STATES / f"{state}.pt", weights_only=False)
    own = {"model": {"w": torch.ones(2)}, "app": {"step": 5, "train_dataloader": values, "dataloader_workers": 2}}
    saved_with_dcp(tmp_path / "run" / "step_5", own)
    said = ask("inspect", str(tmp_path / "run"))
    assert f"{text} (in step_5/__0_0.distcp: app.train_dataloader)" in " ".join(said.stdout.split())


class TestWarnings:
    """A fault is found, next to the healthy trees above."""

    @pytest.fixture
    def automodel(self, tmp_path: Path) -> Path:
        return healthy("automodel_2ranks", tmp_path)

    @staticmethod
    def replace(root: Path, name: str, source: str, *ranks: int) -> None:
        for rank in ranks:
            file = f"dataloader/dataloader_dp_rank_{rank}.pt"
            shutil.copyfile(root / source / file, root / name / file)

    def test_a_position_that_went_back(self, automodel: Path) -> None:
        self.replace(automodel, "epoch_0_step_9", "epoch_1_step_11", 0, 1)
        assert warned(automodel) == {"epoch_0_step_9": [("data-position-back", Severity.SUSPECT, (0, 1))]}
        said = ask("verify", str(automodel), "--checkpoint", "all")
        assert said.code == 10
        assert "went back: epoch 0, 2 batches, 4 samples, but epoch 0, 5 batches, 10 samples in" in " ".join(
            said.stdout.split()
        )

    def test_a_position_that_did_not_change(self, automodel: Path) -> None:
        self.replace(automodel, "epoch_0_step_9", "epoch_0_step_4", 0, 1)
        assert warned(automodel) == {"epoch_0_step_9": [("data-position-still", Severity.SUSPECT, (0, 1))]}

    def test_ranks_that_are_apart(self, automodel: Path) -> None:
        recount(automodel / "epoch_1_step_11/dataloader/dataloader_dp_rank_1.pt", "_num_yielded", 2, 1)
        assert warned(automodel) == {"epoch_1_step_11": [("data-position-differs", Severity.SUSPECT, (1,))]}

    def test_a_sampler_of_megatron_that_went_back(self, tmp_path: Path) -> None:
        root = healthy("mcore_dist_tp2dp2", tmp_path)
        recount(root / "iter_0000006" / "common.pt", "consumed_train_samples", 24, 6)
        assert warned(root) == {"iter_0000006": [("data-position-back", Severity.SUSPECT, ())]}

    def test_an_epoch_s_end_from_which_the_trainer_skips_an_epoch(self, tmp_path: Path) -> None:
        root = healthy("skyrl_2ranks", tmp_path)
        shutil.rmtree(root / "global_step_12")
        (root / "latest_ckpt_global_step.txt").write_text("10")
        assert warned(root) == {"global_step_10": [("data-position-at-end", Severity.SUSPECT, ())]}
        sft = healthy("verl_sft", tmp_path / "sft")
        (sft / "global_step_12").rename(sft / "global_step_15")
        for file in (sft / "global_step_15").glob("data_*.pt"):
            recount(file, "samples_yielded", 4, 10)
            recount(file, "_num_yielded", 2, 5)
        assert warned(sft) == {"global_step_15": [("data-position-at-end", Severity.SUSPECT, (0, 1))]}
        said = ask("verify", str(sft), "--checkpoint", "global_step_15")
        assert "move all data_N.pt files out of the save" in said.stdout

    def test_a_finished_loader_that_yields_nothing(self, tmp_path: Path) -> None:
        root = own_loop(tmp_path, "torchdata/rank_1_of_2", "torchdata/finished_rank_1_of_2")
        assert warned(root) == {"ckpt_6.pt": [("data-position-at-end", Severity.SUSPECT, ())]}
        assert warned(own_loop(tmp_path / "as", "torchdata/rank_1_of_2", "torchdata/finished_workers")) == {}

    def test_a_data_set_whose_state_stays_the_initial_one(self, tmp_path: Path) -> None:
        initial = {
            "examples_iterable": {
                "examples_iterable": {"shard_idx": 0, "shard_example_idx": 0, "type": "ArrowExamplesIterable"},
                "previous_state": None,
                "batch_idx": 0,
                "num_chunks_since_previous_state": 0,
                "cropped_chunk_length": 0,
                "type": "RebatchedArrowExamplesIterable",
            },
            "epoch": 0,
        }
        root = own_loop(tmp_path, initial, initial)
        assert warned(root) == {"ckpt_6.pt": [("data-position-still", Severity.SUSPECT, ())]}
        moved = own_loop(tmp_path / "moved", initial, "datasets/rows")
        assert warned(moved) == {}

    def test_only_the_save_before_is_compared(self, automodel: Path) -> None:
        self.replace(automodel, "epoch_0_step_9", "epoch_1_step_11", 0, 1)
        self.replace(automodel, "epoch_0_step_4", "epoch_1_step_11", 0, 1)
        recount(automodel / "epoch_1_step_11/step_scheduler.pt", "epoch", 1, 0)
        assert [*warned(automodel)] == ["epoch_1_step_11", "epoch_0_step_9"]
        for name in ("epoch_0_step_4", "epoch_0_step_9"):
            for rank in (0, 1):
                file = automodel / name / "dataloader" / f"dataloader_dp_rank_{rank}.pt"
                recount(file, "_num_yielded", 2, 9 if name == "epoch_0_step_4" else 1)
        assert [*warned(automodel)] == ["epoch_0_step_9"]

    def test_a_save_of_a_branch_that_was_left_is_not_compared(self, automodel: Path) -> None:
        self.replace(automodel, "epoch_0_step_9", "epoch_0_step_4", 0, 1)
        import os

        for file in (automodel / "epoch_0_step_4").rglob("*"):
            os.utime(file, (2e9, 2e9))
        assert warned(automodel) == {}


def test_code_in_a_loaders_pickle_inside_a_slice_is_named_and_not_run(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            import os

            return os.system, (f"touch {tmp_path}/ran",)

    state = {"_num_yielded": 3, "_iterator_finished": False}
    for step, data_set in ((5, None), (10, Bomb())):
        pickled = pickle.dumps({**state, "dataset_state": data_set})
        values = {
            "model": {"w": torch.ones(2)},
            "train_state": {"step": step},
            "dataloader": {"dp_rank_0": pickled, "world_size": 1},
        }
        saved_with_dcp(tmp_path / "checkpoint" / f"step-{step}", values)
    root = tmp_path / "checkpoint"
    healthy_one, bomb = positions(root)["step-5"], positions(root)["step-10"]
    assert (healthy_one[0]["batches"], healthy_one[0]["rank"]) == (3, 0)
    assert (bomb[0]["kind"], "system" in bomb[0]["problem"]) == (None, True)
    said = ask("verify", str(root), "--checkpoint", "step-10")
    assert said.code == 15
    assert "dataloader.dp_rank_0 would run code when it is loaded" in " ".join(said.stdout.split())
    assert ask("verify", str(root), "--checkpoint", "step-5").code == 0
    assert not (tmp_path / "ran").exists()
