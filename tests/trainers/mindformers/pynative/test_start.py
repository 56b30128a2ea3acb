"""What a start with the config as it is would load: each answer was compared with the real trainer's."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ckpttool.core.domain.plan import JudgedStart, Outcome
from ckpttool.core.domain.question import TreeQuestion
from ckpttool.core.verbs.resolving import resolve
from ckpttool.core.verbs.starting import judged_start
from tests.support.answers import cli
from tests.support.trainer_trees import edit_json
from tests.trainers.mindformers.pynative.support import changed, config_of, tree_of

TRACKER = "latest_checkpointed_iteration.txt"
ROOT = '"./output/checkpoint"'
NEWEST = "iteration_00000030"
MODEL, OPTIMIZER = (f"{NEWEST}/tiny-{role}-0000000-0000001.safetensors" for role in ("model", "opt"))


def judged(text: str, tree: str = "output/checkpoint", *, devices: int | None = None) -> JudgedStart:
    answer = resolve(TreeQuestion(path=tree, config=config_of(text, devices=devices)))
    start = judged_start(answer)
    assert start is not None
    return start


def outcome(text: str, *, devices: int | None = None) -> tuple[Outcome, str | None, str]:
    start = judged(text, devices=devices)
    assert start.simulation is not None
    return start.simulation.outcome, start.simulation.would_resume, start.lacks or start.simulation.because


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run killed at step 34, seen from the folder in which it was started."""
    monkeypatch.chdir(tmp_path)
    return tree_of("one_rank_killed_34", tmp_path)


def cut(path: str) -> Callable[[Path], object]:
    return lambda tree: (tree / path).write_bytes((tree / path).read_bytes()[:-9])


def gone(path: str) -> Callable[[Path], None]:
    return lambda tree: (tree / path).unlink()


def tracked(text: str) -> Callable[[Path], object]:
    return lambda tree: (tree / TRACKER).write_text(text)


def common(**values: object) -> Callable[[Path], object]:
    return lambda tree: edit_json(tree / NEWEST / "common.json", **values)


def untouched(tree: Path) -> None:
    del tree


LOADS, STOPS, SCRATCH = Outcome.LOADS, Outcome.STOPS, Outcome.SCRATCH

CASES: dict[str, tuple[Callable[[Path], object], dict[str, object], Outcome, str | None, str]] = {
    "from the root": (untouched, {}, LOADS, NEWEST, "begins after step 30 and 240 samples"),
    "from a folder": (
        untouched,
        {"load_path": '"./output/checkpoint/iteration_00000020"'},
        LOADS,
        "iteration_00000020",
        "after step 20 and 160 samples",
    ),
    "from nothing": (untouched, {"load_path": '""'}, SCRATCH, None, "random weights"),
    "a typo": (untouched, {"load_path": '"./output/chekpoint"'}, SCRATCH, None, "does not exist"),
    "a file": (untouched, {"load_path": f'"./output/checkpoint/{MODEL}"'}, STOPS, None, "not a folder"),
    "the folder above": (untouched, {"load_path": '"./output"'}, STOPS, None, "neither a tracker nor"),
    "a tracker behind": (tracked("20"), {}, LOADS, "iteration_00000020", "step 20"),
    "a tracker ahead": (tracked("40"), {}, STOPS, None, "not a folder"),
    "a torn tracker": (tracked(""), {}, STOPS, None, "empty"),
    "a tracker of a float": (tracked("30.0"), {}, STOPS, None, "not a number"),
    "a tracker with blanks": (tracked(" 30\n"), {}, LOADS, NEWEST, "step 30"),
    "no tracker": (gone(TRACKER), {}, STOPS, None, "no *.safetensors"),
    "a cut model": (cut(MODEL), {}, STOPS, NEWEST, "ends"),
    "a cut optimizer": (cut(OPTIMIZER), {}, STOPS, NEWEST, "ends"),
    "no model": (gone(MODEL), {}, LOADS, NEWEST, "first moments as the weights"),
    "no optimizer": (gone(OPTIMIZER), {}, STOPS, None, "no optimizer file"),
    "no common.json": (gone(f"{NEWEST}/common.json"), {}, STOPS, None, "no common.json"),
    "another step inside": (common(global_step=20), {}, LOADS, NEWEST, "begins after step 20 and 240 samples"),
    "no planned steps": (common(step_num=None), {}, LOADS, NEWEST, "begins after step 30 and 240 samples"),
    "no batch size": (common(global_batch_size=0), {}, LOADS, NEWEST, "begins after step 30 and 240 samples"),
    "an unknown field": (common(note="x"), {}, STOPS, None, "does not know the field note"),
    "twice the batch": (untouched, {"global_batch_size": 16}, LOADS, NEWEST, "after step 15"),
    "half the batch": (untouched, {"global_batch_size": 4}, STOPS, NEWEST, "iteration_00000060"),
    "half the batch, more steps": (untouched, {"global_batch_size": 4, "steps": 80}, LOADS, NEWEST, "after step 60"),
    "as many steps as done": (untouched, {"steps": 30}, STOPS, NEWEST, "trains nothing"),
    "only weights": (untouched, {"no_load_optim": True}, SCRATCH, None, "overwrites the saves of this tree"),
    "only weights, saved elsewhere": (
        untouched,
        {"no_load_optim": True, "save_path": '"./other"'},
        SCRATCH,
        None,
        "step 1 and sample 0",
    ),
    "only weights, and a cut model": (cut(MODEL), {"no_load_optim": True}, STOPS, NEWEST, "ends"),
    "only weights, and no model": (gone(MODEL), {"no_load_optim": True}, SCRATCH, None, "no model file"),
    "no steps": (untouched, {"steps": 0}, STOPS, NEWEST, "trains nothing, exits with 0"),
    "balanced on one rank": (untouched, {"load_balanced": True}, STOPS, None, "RuntimeError"),
    "no interval": (untouched, {"save_interleaved_steps": 0}, STOPS, None, "ZeroDivisionError"),
    "no folder to save in": (untouched, {"save_path": '""'}, STOPS, None, "save_path"),
    "a number as text": (untouched, {"learning_rate": "1e-2"}, STOPS, None, "reads as text"),
    "no tensor parallelism": (untouched, {"tensor_parallel": 0}, STOPS, None, "ZeroDivisionError"),
    "a key of the static trainer": (untouched, {"device_target": "CPU\n  device_id: 0"}, STOPS, None, "device_id"),
    "an indivisible batch": (untouched, {"local_batch_size": 3}, STOPS, None, "not divisible"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_start_ends_as_that_of_the_real_trainer(case: str, tree: Path) -> None:
    change, values, expected, name, words = CASES[case]
    change(tree)
    found, would_resume, because = outcome(changed(**{"load_path": ROOT, **values}))
    assert (found, would_resume) == (expected, name)
    assert words in because


def test_only_weights_saved_elsewhere_overwrite_nothing(tree: Path) -> None:
    del tree
    _, _, because = outcome(changed(load_path=ROOT, no_load_optim=True, save_path='"./other"'))
    assert "overwrites" not in because


def test_an_empty_folder_is_random_weights(tree: Path) -> None:
    (tree.parent / "empty").mkdir()
    found, _, because = outcome(changed(load_path='"./output/empty"'))
    assert (found, "is empty" in because) == (SCRATCH, True)


def test_a_copy_elsewhere_is_unknown(tree: Path) -> None:
    shutil.copytree(tree / NEWEST, tree.parent / "copy")
    assert outcome(changed(load_path='"./output/copy"'))[0] is Outcome.UNKNOWN


def test_a_relative_path_of_an_unknown_folder_is_unknown(tree: Path) -> None:
    del tree
    start = judged(changed(load_path='"./elsewhere/checkpoint"', save_path='"./elsewhere/checkpoint"'))
    assert (start.is_known, "does not exist from here" in start.reason) == (False, True)


def test_a_missing_optimizer_is_not_noticed_with_a_prefix_that_ends_in_opt(tree: Path) -> None:
    for save in tree.glob("iteration_*"):
        for file in save.glob("tiny-*"):
            file.rename(file.with_name(file.name.replace("tiny-", "adopt-")))
    (tree / OPTIMIZER.replace("tiny", "adopt")).unlink()
    found, name, because = outcome(changed(load_path=ROOT, prefix="adopt"))
    assert (found, name) == (LOADS, NEWEST)
    assert "optimizer starts" in because


def test_hugging_face_weights_are_no_resume(tree: Path) -> None:
    (tree / "iteration_00000020" / "model.safetensors").write_bytes(b"")
    pinned = '"./output/checkpoint/iteration_00000020"'
    assert outcome(changed(load_path=pinned))[0] is STOPS
    assert outcome(changed(load_path=pinned, no_load_optim=True))[0] is SCRATCH


def test_an_adapter_needs_its_base(tree: Path) -> None:
    (tree / ADAPTER).write_text("{}")
    found, _, because = outcome(changed(load_path=ROOT))
    assert (found, "base_load_path" in because) == (STOPS, True)
    shutil.copytree(tree / NEWEST, tree.parent.parent / "base")
    assert outcome(changed(load_path=ROOT, save_path=BASE))[0] is LOADS  # it records no base, so none is compared


ADAPTER = "mindformers_adapter_config.json"
BASE = '"./output/checkpoint"\n  base_load_path: "./base"'


@pytest.mark.parametrize("place", [ADAPTER, f"{NEWEST}/{ADAPTER}"])
def test_an_adapter_needs_the_base_that_it_was_trained_on(tree: Path, place: str) -> None:
    base = tree.parent.parent / "base"
    shutil.copytree(tree / NEWEST, base)
    content = (base / "common.json").read_bytes()
    digest = hashlib.sha256(b"common.json" + content)
    for name in sorted(file.name for file in base.glob("*.safetensors")):
        found = (base / name).stat()
        digest.update(f"{name}{found.st_size}{found.st_mtime_ns}".encode())
    (tree / place).write_text(json.dumps({"base_fingerprint": digest.hexdigest()}))
    assert outcome(changed(load_path=ROOT, save_path=BASE))[0] is LOADS
    os.utime(next(base.glob("*.safetensors")), (0, 0))
    found_outcome, _, because = outcome(changed(load_path=ROOT, save_path=BASE))
    assert (found_outcome, "not the base model of the adapter" in because) == (STOPS, True)
    shutil.rmtree(base)
    start = judged(changed(load_path=ROOT, save_path=BASE))
    assert (start.is_known, "cannot be compared" in start.reason) == (False, True)


class TestOnTwoRanks:
    @pytest.fixture
    def tree(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.chdir(tmp_path)
        return tree_of("two_ranks_sharded", tmp_path)

    def test_balanced_loading_leaves_the_moments_at_zero(self, tree: Path) -> None:
        del tree
        found, name, because = outcome(changed(load_path=ROOT, load_balanced=True))
        assert (found, name) == (LOADS, "iteration_00000010")
        assert "moment" in because
        assert not judged(changed(load_path=ROOT, load_balanced=True)).takes("iteration_00000010")
        assert judged(changed(load_path=ROOT)).takes("iteration_00000010")

    def test_a_file_that_metadata_names_is_missing(self, tree: Path) -> None:
        (tree / "iteration_00000010/tiny-model-0000001-0000002.safetensors").unlink()
        found, _, because = outcome(changed(load_path=ROOT))
        assert (found, "metadata.json lists" in because) == (STOPS, True)

    def test_a_batch_must_be_divisible_on_the_ranks_that_start(self, tree: Path) -> None:
        del tree
        assert outcome(changed(load_path=ROOT, local_batch_size=4))[0] is LOADS
        found, _, because = outcome(changed(load_path=ROOT, local_batch_size=4), devices=4)
        assert (found, "micro-batches of 16" in because) == (STOPS, True)

    def test_without_a_number_of_ranks_a_start_on_more_is_possible(self, tree: Path) -> None:
        del tree
        parallel = {"tensor_parallel": "4\n  sequence_parallel: True"}
        assert outcome(changed(load_path=ROOT, **parallel))[0] is LOADS
        start = judged(changed(load_path=ROOT, **parallel), devices=2)
        assert start.simulation is not None
        assert start.simulation.outcome is STOPS
        assert start.mend == "start a multiple of 4 devices"


def test_preflight_names_the_setting_and_the_way_on(tree: Path) -> None:
    del tree
    config = Path("base.yaml")
    config.write_text(changed(load_path='"./output/chekpoint"'))
    said = cli("preflight", "output/checkpoint", "--config", str(config))
    assert said.exit_code == os.EX_OK + 10
    words = " ".join(said.output.split())
    assert "would start at step 0 and not resume from step 30" in words
    assert "ckpttool launch output/checkpoint --config base.yaml --output NEW.yaml" in words


def test_preflight_asks_to_correct_a_setting_that_stops_every_start(tree: Path) -> None:
    del tree
    Path("base.yaml").write_text(changed(load_path=ROOT, steps='"40"'))
    words = " ".join(cli("preflight", "output/checkpoint", "--config", "base.yaml").output.split())
    assert "fix: correct `training.steps` in base.yaml, or --allow start-differs" in words


@pytest.mark.parametrize(("rank", "expected"), [(0, STOPS), (1, LOADS)])
def test_a_damaged_copy_is_not_read(
    rank: int, expected: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ranks read the file of rank 0, if both have the same slices."""
    monkeypatch.chdir(tmp_path)
    tree = tree_of("two_ranks_copies", tmp_path)
    cut(f"iteration_00000010/tiny-model-000000{rank}-0000002.safetensors")(tree)
    assert outcome(changed(load_path=ROOT, steps=16))[0] is expected
