"""What Trainer takes by itself, what it makes of a resume, and how it is told to load exactly one save."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.data_position import DataEffect, effect_of
from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.preflight import Outcome as Ended
from ckpttool.core.domain.question import AskedSizes
from ckpttool.types import PreflightQuestion, ResumeQuestion, TreeQuestion
from tests.support.answers import codes, goes_on, plan, start_check
from tests.support.trainer_trees import healthy


def test_other_ranks_lose_samples_and_the_sizes_that_keep_them_are_named(tmp_path: Path) -> None:
    root = healthy("hf_ddp2", tmp_path)
    told = plan(root, choice=ResumeQuestion(sizes=AskedSizes(world=4)))
    assert (goes_on(told).effect, goes_on(told).lost) == (DataEffect.LOSES, 48)
    assert [(each.place.name, each.value) for each in goes_on(told).exact_with] == [
        ("--per_device_train_batch_size", 2),
        ("--gradient_accumulation_steps", 1),
    ]
    same = plan(root, choice=ResumeQuestion(name="checkpoint-4", sizes=AskedSizes(world=2)))
    assert effect_of(same.data) is DataEffect.EXACT


def arguments(root: Path, old: bytes, new: bytes) -> None:
    """Let the arguments of the newest save say something else."""
    file = root / "checkpoint-12/training_args.bin"
    with zipfile.ZipFile(file) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in records.items():
            archive.writestr(name, content.replace(old, new))


def test_with_ignore_data_skip_the_epoch_begins_again(tmp_path: Path) -> None:
    root = healthy("hf_single", tmp_path)
    pickled = zipfile.ZipFile(root / "checkpoint-12/training_args.bin").read("training_args/data.pkl")
    at = pickled.index(b"ignore_data_skip") + len("ignore_data_skip")
    end = pickled.index(b"\x89", at) + 1
    assert end - at < 8
    arguments(root, pickled[at - 16 : end], pickled[at - 16 : end - 1] + b"\x88")
    told = plan(root)
    assert (goes_on(told).effect, goes_on(told).repeated) == (DataEffect.RESTARTS, 8)
    assert Code.DATA_RESTARTS in codes(told.findings)


def test_one_save_that_is_kept_is_a_note(tmp_path: Path) -> None:
    root = healthy("hf_single", tmp_path)
    pickled = zipfile.ZipFile(root / "checkpoint-12/training_args.bin").read("training_args/data.pkl")
    at = pickled.index(b"save_total_limit") + len("save_total_limit")
    end = pickled.index(b"N", at) + 1
    arguments(root, pickled[at - 16 : end], pickled[at - 16 : end - 1] + b"K\x01")
    assert Code.KEEPS_ONE_CHECKPOINT in codes(plan(root).findings)
    assert Code.KEEPS_ONE_CHECKPOINT not in codes(plan(healthy("hf_ddp2", tmp_path / "other")).findings)


def test_a_schedule_of_another_save_is_a_note(tmp_path: Path) -> None:
    root = healthy("hf_single", tmp_path)
    older = root / "checkpoint-8/scheduler.pt"
    (root / "checkpoint-12/scheduler.pt").write_bytes(older.read_bytes())
    assert Code.STEP_DISAGREES in codes(plan(root).findings)


@pytest.mark.parametrize(
    ("started", "outcome", "words"),
    [
        ("other", Ended.FAILED, "which is not a save of"),
        ("nowhere", Ended.PASSED, ", if started in "),
        ("run", Ended.PASSED, ""),
    ],
)
def test_a_relative_path_is_of_the_folder_in_which_it_is_started(
    started: str, outcome: Ended, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("run", "other", "nowhere"):
        (tmp_path / name).mkdir()
    root = healthy("hf_single", tmp_path / "run").rename(tmp_path / "run/out")
    (tmp_path / "other/out/checkpoint-12").mkdir(parents=True)
    config = tmp_path / "train.yaml"
    config.write_text("output_dir: out\nper_device_train_batch_size: 4\nresume_from_checkpoint: ./out/checkpoint-12\n")
    monkeypatch.chdir(tmp_path / started)
    answer = ckpttool.preflight(PreflightQuestion(config=str(config), tree=TreeQuestion(path=str(root))))
    check = start_check(answer)
    assert check.outcome is outcome
    said = " ".join((check.summary, *(reason.finding.message for reason in check.reasons)))
    assert words in said
    assert (", if started in " in said) is (started == "nowhere")
