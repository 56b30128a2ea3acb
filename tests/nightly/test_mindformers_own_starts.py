"""The real MindFormers, started with a config as it stands: what `preflight` said of that start is what it does.

Each tree is a copy of one training's that was killed at step 28, with something wrong or odd; each is started in every
mode of `load_checkpoint` and `resume_training`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.nightly.real_mindformers import Trace, Training, config
from tests.nightly.starts import Did, Held, assert_right, preflight
from tests.nightly.test_mindformers_starts import needs

PREFIX = "tiny_rank_0-"
FOLDER = "./output/checkpoint"
BATCH, SAMPLES = 2, 40
WEIGHT = "lm_head.weight"

Edit = Callable[[Path], object]
"""What is done to the checkpoint folder."""


@dataclass(frozen=True)
class Tree:
    """What is done to a tree, and the step of its newest save that is whole."""

    edit: Edit
    best: int = 27


def file(name: str) -> str:
    return f"rank_0/{PREFIX}{name}.ckpt"


def cut(*names: str, by: int = 100) -> Edit:
    def act(folder: Path) -> None:
        for name in names:
            shard = folder / file(name)
            shard.chmod(0o600)
            shard.write_bytes(shard.read_bytes()[:-by])

    return act


def empty(name: str) -> Edit:
    def act(folder: Path) -> None:
        (folder / file(name)).chmod(0o600)
        (folder / file(name)).write_bytes(b"")

    return act


def remove(path: str) -> Edit:
    return lambda folder: (folder / path).unlink()


def copied(source: str, to: str) -> Edit:
    def act(folder: Path) -> None:
        (folder / to).parent.mkdir(exist_ok=True)
        shutil.copyfile(folder / source, folder / to)

    return act


def tracker(text: str) -> Edit:
    def act(folder: Path) -> None:
        path = folder / "rank_0/meta.json"
        path.chmod(0o600)
        path.write_text(text, encoding="utf-8")

    return act


def without_saves(folder: Path) -> None:
    for shard in folder.glob("rank_0/*.ckpt"):
        shard.unlink()


def both(*edits: Edit) -> Edit:
    def act(folder: Path) -> None:
        for edit in edits:
            edit(folder)

    return act


OLDER = json.dumps({"last_epoch": 2, "last_step": 4, "last_ckpt_file": f"{PREFIX}2_4.ckpt"})

TREES = {
    "whole": Tree(lambda _: None),
    "newest cut": Tree(cut("2_7"), 24),
    "newest empty": Tree(empty("2_7"), 24),
    "newest gone": Tree(remove(file("2_7")), 24),
    "newest two cut": Tree(cut("2_7", "2_4"), 21),
    "an older one cut": Tree(cut("1_9")),
    "no meta.json": Tree(remove("rank_0/meta.json")),
    "meta.json torn": Tree(tracker('{"last_epoch": 2, "la')),
    "meta.json names an older one": Tree(tracker(OLDER)),
    "meta.json names an older one, newest cut": Tree(both(cut("2_7"), tracker(OLDER)), 24),
    "an older one copied under a higher number": Tree(copied(file("1_9"), file("4_9"))),
    "a stray .ckpt at the top": Tree(copied(file("1_9"), "best.ckpt")),
    "a stray .ckpt beside the shards": Tree(copied(file("1_9"), "rank_0/best.ckpt")),
    "a stray file named for rank 7": Tree(copied(file("2_7"), "rank_0/tiny_rank_7-2_7.ckpt")),
    "no saves": Tree(without_saves, 0),
    "a model of Hugging Face's at the top": Tree(lambda folder: (folder / "model.safetensors").write_bytes(b"")),
    "an empty rank_1": Tree(lambda folder: (folder / "rank_1").mkdir()),
}

MODES: dict[str, Callable[[int], dict[str, object]]] = {
    "'', False": lambda _: {},
    "'', True": lambda _: {"resume_training": True},
    "folder, False": lambda _: {"load_checkpoint": f"'{FOLDER}'"},
    "folder, True": lambda _: {"load_checkpoint": f"'{FOLDER}'", "resume_training": True},
    "folder, name of the newest": lambda _: {
        "load_checkpoint": f"'{FOLDER}'", "resume_training": f"'{PREFIX}2_7.ckpt'",
    },
    "folder, name of the best": lambda best: {
        "load_checkpoint": f"'{FOLDER}'", "resume_training": f"'{PREFIX}{named(best)}.ckpt'",
    },
    "file of the best, True": lambda best: {
        "load_checkpoint": f"'{FOLDER}/{file(named(best))}'", "resume_training": True,
    },
}  # fmt: skip


def named(step: int) -> str:
    """Return epoch and step in it as names have them: an epoch has 20 steps."""
    return f"{(step - 1) // 20 + 1}_{(step - 1) % 20 + 1}"


@dataclass(frozen=True)
class Template:
    """The training of which all trees are copies."""

    training: Training
    weights: dict[str, int]
    """The step of each save, by the hash of one of its weights."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    needs("2.1.0")
    training = Training(tmp_path_factory.mktemp("template") / "run", text=config())
    training.train("first", die_at=28)
    steps = {str(training.shard(0, f"-{named(step)}.ckpt")): step for step in range(3, 28, 3)}
    weights = training.weights_of([Path(path) for path in steps])
    return Template(training, {weights[path][WEIGHT]: step for path, step in steps.items()})


def did(training: Training, trace: Trace, template: Template) -> Did:
    """Read from a trace how a start began: by the weights that it loaded, its own step, and the samples it read."""
    began = trace.first("begin")
    if began is None or not trace.steps:
        return Did(step=None, beside=training.errors("second").rpartition("\n")[2] or "killed")
    own, (first, row) = began["optimizer_step"], min(trace.steps.items())
    loaded = template.weights.get(began["weights"][WEIGHT], 0)
    expected = [(own * BATCH + each) % SAMPLES for each in range(BATCH)]
    beside = f"weights of {loaded}, optimizer at {own}, first step {first}, samples {row['samples']}"
    whole = (loaded, first, row["samples"]) == (own, own + 1, expected)
    return Did(step=loaded, whole=whole, beside=beside)


def started(template: Template, tree: Tree, text: str, folder: Path, case: str) -> Held:
    training = Training(folder, text=text)
    shutil.copytree(template.training.folder / "output", folder / "output")
    tree.edit(training.checkpoints)
    said = preflight(Path("output"), "--config", "base.yaml", "--devices", "1", cwd=folder)
    trace = training.train("second", "CKPTTOOL_DIE_AT=1 python run_mindformer.py --config base.yaml")
    held = Held(case=case, said=said, did=did(training, trace, template), best=tree.best)
    shutil.rmtree(folder)
    return held


def test_each_start_does_what_preflight_said_of_it(template: Template, tmp_path: Path) -> None:
    assert_right(
        started(template, tree, config(**mode(tree.best or 27)), tmp_path / f"{number}_{index}", f"{name} · {how}")
        for number, (name, tree) in enumerate(TREES.items())
        for index, (how, mode) in enumerate(MODES.items())
    )
