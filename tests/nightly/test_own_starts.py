"""Other trainers than MindFormers, started by themselves: what `preflight` said of the start is what they do.

Each tree is a copy of one training's, with something wrong or odd; each is started in every way that people start it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.nightly.borrowing import SCRIPTS, deepspeed_python, told, trainer_python
from tests.nightly.starts import Did, Held, assert_right, preflight
from tests.nightly.test_huggingface_resumes import PACKAGES as HUGGING_FACE
from tests.nightly.test_lightning_resumes import PACKAGES as LIGHTNING
from tests.support.trainer_trees import LAYOUTS

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="installs a trainer: --nightly")

TORCHTITAN = (
    "torchtitan==0.3.0", "torchdata", "tyro", "docstring-parser", "tomli", "fsspec", "tensorboard", "einops",
)  # fmt: skip

Edit = Callable[[Path], object]


@dataclass(frozen=True)
class Tree:
    """What is done to a tree, and the step of its newest save that is whole."""

    edit: Edit
    best: int
    path: str | None = None
    """Of that save; None: as its step says."""


def cut(path: str, by: int = 100) -> Edit:
    return lambda root: (root / path).write_bytes((root / path).read_bytes()[:-by])


def empty(path: str) -> Edit:
    return lambda root: (root / path).write_bytes(b"")


def remove(*paths: str) -> Edit:
    def act(root: Path) -> None:
        for path in paths:
            if (root / path).is_dir():
                shutil.rmtree(root / path)
            else:
                (root / path).unlink()

    return act


def write(path: str, text: str, later: int = 0) -> Edit:
    """Write a file; it gets the time of the one whose place it takes, or one so many seconds later."""

    def act(root: Path) -> None:
        file = root / path
        time = file.stat().st_mtime if file.exists() else root.stat().st_mtime
        file.write_text(text, encoding="utf-8")
        os.utime(file, (time + later,) * 2)

    return act


def copy(path: str, to: str) -> Edit:
    return lambda root: (
        shutil.copytree(root / path, root / to) if (root / path).is_dir() else shutil.copy2(root / path, root / to)
    )


def rename(path: str, to: str) -> Edit:
    return lambda root: (root / path).rename(root / to)


def both(*edits: Edit) -> Edit:
    return lambda root: [edit(root) for edit in edits]


def answers(python: str, script: str, starts: Sequence[Mapping[str, Any]], *arguments: str) -> list[dict[str, Any]]:
    """Let a script make many starts in one process, and return a row for each."""
    lines = "".join(f"{json.dumps(start)}\n" for start in starts)
    command = [python, str(SCRIPTS / script), *arguments]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False, timeout=1800)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(rows) == len(starts), done.stderr[-2000:]
    return rows


@dataclass(frozen=True)
class Way:
    """How somebody starts a trainer."""

    resume: object
    """What its resume is given."""
    config: str | None = None
    """A config that says so; None: none is read."""


Ways = Callable[[Path, Tree], Mapping[str, Way]]
"""The ways to start in a folder with this tree."""


def held(
    template: Path, trees: Mapping[str, Tree], ways: Ways, tmp_path: Path,
    real: Callable[[Sequence[Mapping[str, object]]], Sequence[Did]],
) -> list[Held]:  # fmt: skip
    """Ask `preflight` of each tree and way, and then start it.

    Args:
        template: The tree that a training left.
        trees: What is done to copies of it.
        ways: How each is started.
        tmp_path: Where the copies are made.
        real: Starts the trainer in each tree.
    """
    cases, starts, said = [], [], []
    for number, (name, tree) in enumerate(trees.items()):
        for index, how in enumerate(ways(tmp_path, tree)):
            root = tmp_path / f"{number}_{index}" / template.name
            shutil.copytree(template, root, symlinks=True)  # with their times
            tree.edit(root)
            way = ways(root, tree)[how]
            base = root.parent / "base.yaml"
            base.write_text(way.config or "", encoding="utf-8")
            cases.append((f"{name} · {how}", tree.best))
            starts.append({"tree": str(root), "resume": way.resume})
            said.append(preflight(root, *([] if way.config is None else ["--config", str(base)])))
    return [
        Held(case=case, said=document, did=did, best=best)
        for (case, best), document, did in zip(cases, said, real(starts), strict=True)
    ]


def as_did(row: Mapping[str, Any], whole: Callable[[Mapping[str, Any]], bool]) -> Did:
    """Read a script's answer."""
    if "error" in row:
        return Did(step=None, beside=row["error"])
    return Did(step=row["step"], whole=whole(row), beside=str(row))


@pytest.fixture(scope="module")
def huggingface(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Python with Transformers and Accelerate."""
    return trainer_python(tmp_path_factory.mktemp("huggingface") / "venv", *HUGGING_FACE)


BATCH, SAMPLES = 4, 40
SAVES = (4, 8, 12, 14)

TRAINER = {
    "whole": Tree(lambda _: None, 14),
    "newest model cut": Tree(cut("checkpoint-14/model.safetensors", 1), 12),
    "newest model empty": Tree(empty("checkpoint-14/model.safetensors"), 12),
    "newest model gone": Tree(remove("checkpoint-14/model.safetensors"), 12),
    "newest optimizer cut": Tree(cut("checkpoint-14/optimizer.pt"), 12),
    "newest optimizer gone": Tree(remove("checkpoint-14/optimizer.pt"), 12),
    "newest schedule gone": Tree(remove("checkpoint-14/scheduler.pt"), 12),
    "newest random state cut": Tree(cut("checkpoint-14/rng_state.pth"), 12),
    "newest state gone": Tree(remove("checkpoint-14/trainer_state.json"), 12),
    "newest state torn": Tree(cut("checkpoint-14/trainer_state.json"), 12),
    "newest two cut": Tree(both(*(cut(f"checkpoint-{step}/model.safetensors") for step in (12, 14))), 8),
    "an older one cut": Tree(cut("checkpoint-8/model.safetensors"), 14),
    "an older one copied under a higher number": Tree(copy("checkpoint-8", "checkpoint-99"), 14),
    "an empty folder of a higher number": Tree(lambda root: (root / "checkpoint-20").mkdir(), 14),
    "a save that was not finished": Tree(write("checkpoint-14/checkpoint-is-incomplete.txt", "x"), 12),
    "newest renamed": Tree(rename("checkpoint-14", "checkpoint-14.bak"), 12),
    "no saves": Tree(remove(*(f"checkpoint-{step}" for step in SAVES)), 0),
}


def trainer_ways(root: Path, tree: Tree) -> dict[str, Way]:
    """What `train` is given: by arguments in a file; without one what people write in code."""
    resumes = {
        "nothing": None,
        "True": True,
        "the newest": f"{root}/checkpoint-14",
        "the best": f"{root}/checkpoint-{tree.best}",
    }
    plain = "per_device_train_batch_size: 4\nsave_steps: 4\nsave_total_limit: 5\n"
    return {
        how: Way(resume, f"{plain}output_dir: {root}\nresume_from_checkpoint: {json.dumps(resume)}\n")
        for how, resume in resumes.items()
    } | {"no config": Way(resume=True)}


def test_trainer_does_what_preflight_said_of_its_start(huggingface: str, tmp_path: Path) -> None:
    told(huggingface, "hf_run.py", str(tmp_path / "out"), str(BATCH), "1", "14")
    whole: list[int] = told(huggingface, "hf_run.py", str(tmp_path / "whole"), str(BATCH), "1", "30")["read"]

    def is_whole(row: Mapping[str, Any]) -> bool:
        step = row["step"]
        reads = whole[step * BATCH : (step + 1) * BATCH]
        return bool(row["optimizer"]) and (row["schedule"], row["read"]) == (step, reads)

    def real(starts: Sequence[Mapping[str, object]]) -> list[Did]:
        return [as_did(row, is_whole) for row in answers(huggingface, "hf_start.py", starts, str(BATCH))]

    assert_right(held(tmp_path / "out", TRAINER, trainer_ways, tmp_path, real))


NEWEST = "checkpoints/checkpoint_2"

ACCELERATE = {
    "whole": Tree(lambda _: None, 12),
    "newest model cut": Tree(cut(f"{NEWEST}/model.safetensors", 1), 8),
    "newest model gone": Tree(remove(f"{NEWEST}/model.safetensors"), 8),
    "newest optimizer cut": Tree(cut(f"{NEWEST}/optimizer.bin"), 8),
    "newest optimizer gone": Tree(remove(f"{NEWEST}/optimizer.bin"), 8),
    "newest own state cut": Tree(cut(f"{NEWEST}/custom_checkpoint_0.pkl"), 8),
    "newest own state gone": Tree(remove(f"{NEWEST}/custom_checkpoint_0.pkl"), 8),
    "newest random state gone": Tree(remove(f"{NEWEST}/random_states_0.pkl"), 8),
    "newest gone": Tree(remove(NEWEST), 8),
    "an older one cut": Tree(cut("checkpoints/checkpoint_1/model.safetensors"), 12),
    "an older one copied under a higher number": Tree(copy("checkpoints/checkpoint_0", "checkpoints/checkpoint_9"), 12),
    "a copy beside": Tree(copy("checkpoints/checkpoint_0", "checkpoints/checkpoint_0.bak"), 12),
    "an empty folder of a higher number": Tree(lambda root: (root / "checkpoints/checkpoint_3").mkdir(), 12),
    "an entry without a number": Tree(lambda root: (root / "checkpoints/best").mkdir(), 12),
    "newest two cut": Tree(both(*(cut(f"checkpoints/checkpoint_{number}/model.safetensors") for number in (1, 2))), 4),
}


def test_accelerate_does_what_preflight_said_of_its_start(huggingface: str, tmp_path: Path) -> None:
    told(huggingface, "accelerate_run.py", str(tmp_path / "project"), "14")

    def real(starts: Sequence[Mapping[str, object]]) -> list[Did]:
        rows = answers(huggingface, "accelerate_start.py", starts)
        return [as_did(row, lambda row: bool(row["optimizer"])) for row in rows]

    assert_right(held(tmp_path / "project", ACCELERATE, lambda _, __: {"load_state()": Way(None)}, tmp_path, real))


@pytest.fixture(scope="module")
def lightning(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Python with Lightning."""
    return trainer_python(tmp_path_factory.mktemp("lightning") / "venv", *LIGHTNING)


LAST = "last.ckpt"


def of(step: int) -> str:
    """Return the name of a save of Lightning; an epoch has ten steps."""
    return f"epoch={(step - 1) // 10}-step={step}.ckpt"


LIGHTNINGS = {
    "whole": Tree(lambda _: None, 12),
    "newest cut, last is whole": Tree(cut(of(12)), 12, LAST),
    "last cut, newest is whole": Tree(cut(LAST), 12),
    "newest and last cut": Tree(both(cut(of(12)), cut(LAST)), 8),
    "newest and last empty": Tree(both(empty(of(12)), empty(LAST)), 8),
    "no last": Tree(remove(LAST), 12),
    "newest and last gone": Tree(remove(of(12), LAST), 8),
    "last is an older one": Tree(lambda root: shutil.copyfile(root / of(4), root / LAST), 12),
    "last is an older one, newest cut": Tree(
        both(lambda root: shutil.copyfile(root / of(4), root / LAST), cut(of(12))), 8
    ),
    "last is a broken link": Tree(both(remove(LAST), lambda root: (root / LAST).symlink_to("gone.ckpt")), 12),
    "an older one cut": Tree(cut(of(8)), 12),
    "an older one copied under a higher step": Tree(copy(of(4), of(99)), 12),
    "another last, older": Tree(copy(of(4), "last-v1.ckpt"), 12),
}


def lightning_ways(root: Path, tree: Tree) -> dict[str, Way]:
    """What the fit is given: by the YAML of the command line; without one what people write in code."""
    config = (
        "seed_everything: 7\ntrainer:\n  max_steps: 30\n  callbacks:\n"
        "    - class_path: lightning.pytorch.callbacks.ModelCheckpoint\n      init_args:\n"
        f"        dirpath: {root}\n        every_n_train_steps: 4\n        save_top_k: -1\n        save_last: true\n"
    )
    best = f"{root}/{tree.path or of(tree.best)}"
    resumes = {"nothing": None, "last": "last", "the newest": f"{root}/{of(12)}", "the best": best}
    return {how: Way(resume, f"{config}ckpt_path: {json.dumps(resume)}\n") for how, resume in resumes.items()} | {
        "no config": Way("last")
    }


def test_lightning_does_what_preflight_said_of_its_start(lightning: str, tmp_path: Path) -> None:
    told(lightning, "lightning_run.py", str(tmp_path / "run"), "stateful", "14")

    def is_whole(row: Mapping[str, Any]) -> bool:
        begin = row["step"] * BATCH % SAMPLES
        return bool(row["optimizer"]) and row["batch"] == list(range(begin, begin + BATCH))

    def real(starts: Sequence[Mapping[str, object]]) -> list[Did]:
        return [as_did(row, is_whole) for row in answers(lightning, "lightning_start.py", starts)]

    assert_right(held(tmp_path / "run/checkpoints", LIGHTNINGS, lightning_ways, tmp_path, real))


@pytest.fixture(scope="module")
def deepspeed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Python with DeepSpeed."""
    os.environ["DS_BUILD_OPS"] = "0"
    return deepspeed_python(tmp_path_factory.mktemp("deepspeed") / "venv")


def deepspeeds(stage: int) -> dict[str, Tree]:
    """Return what is done to trees of a ZeRO stage."""
    newest, older = "global_step6", "global_step4"
    model = "mp_rank_00_model_states.pt" if stage < 3 else "zero_pp_rank_0_mp_rank_00_model_states.pt"
    optimizer = "zero_pp_rank_0_mp_rank_00_optim_states.pt"
    return {
        "whole": Tree(lambda _: None, 6),
        "newest model cut": Tree(cut(f"{newest}/{model}"), 4),
        "newest model gone": Tree(remove(f"{newest}/{model}"), 4),
        "newest optimizer cut": Tree(cut(f"{newest}/{optimizer}"), 4),
        "newest optimizer empty": Tree(empty(f"{newest}/{optimizer}"), 4),
        "newest optimizer gone": Tree(remove(f"{newest}/{optimizer}"), 4),
        "newest gone": Tree(remove(newest), 4),
        "newest cut, latest names the one before": Tree(both(cut(f"{newest}/{model}"), write("latest", older)), 4),
        "latest names an older one": Tree(write("latest", older), 6),
        "latest names an older one, for the run was rewound": Tree(write("latest", older, later=86400), 4),
        "no latest": Tree(remove("latest"), 6),
        "latest is empty": Tree(write("latest", ""), 6),
        "an older one cut": Tree(cut(f"{older}/{model}"), 6),
        "an older one copied under a higher number": Tree(copy("global_step2", "global_step99"), 6),
        "newest two cut": Tree(both(cut(f"{newest}/{model}"), cut(f"{older}/{optimizer}")), 2),
    }


@pytest.mark.parametrize("stage", [1, 3])
def test_deepspeed_does_what_preflight_said_of_its_start(deepspeed: str, stage: int, tmp_path: Path) -> None:
    answers(deepspeed, "deepspeed_start.py", [], str(stage), str(tmp_path / "run"))

    def real(starts: Sequence[Mapping[str, object]]) -> list[Did]:
        rows = answers(deepspeed, "deepspeed_start.py", starts, str(stage))
        return [as_did(row, lambda row: bool(row["optimizer"]) and row["samples"] == 4 * row["step"]) for row in rows]

    ways = {"load_checkpoint(folder)": Way(None)}
    assert_right(held(tmp_path / "run", deepspeeds(stage), lambda _, __: ways, tmp_path, real))


@pytest.fixture(scope="module")
def torchtitan(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Python with torchtitan."""
    return trainer_python(tmp_path_factory.mktemp("torchtitan") / "venv", *TORCHTITAN)


TORCHTITANS = {
    "whole": Tree(lambda _: None, 6),
    "newest cut": Tree(cut("step-6/__0_0.distcp"), 4),
    "newest empty": Tree(empty("step-6/__0_0.distcp"), 4),
    "newest shard gone": Tree(remove("step-6/__0_0.distcp"), 4),
    "newest was not finished": Tree(remove("step-6/.metadata"), 4),
    "newest .metadata cut": Tree(cut("step-6/.metadata", 10), 4),
    "newest gone": Tree(remove("step-6"), 4),
    "newest two cut": Tree(both(cut("step-6/__0_0.distcp"), cut("step-4/__0_0.distcp")), 2),
    "an older one cut": Tree(cut("step-4/__0_0.distcp"), 6),
    "an older one copied under a higher number": Tree(copy("step-2", "step-99"), 6),
    "a copy beside": Tree(copy("step-2", "step-2.bak"), 6),
    "a copy of a higher number beside": Tree(copy("step-6", "step-60-bak"), 6),
    "an empty folder of a higher number": Tree(lambda root: (root / "step-8").mkdir(), 6),
    "no saves": Tree(remove("step-2", "step-4", "step-6"), 0),
}


def test_torchtitan_does_what_preflight_said_of_its_start(torchtitan: str, tmp_path: Path) -> None:
    answers(torchtitan, "torchtitan_start.py", [], str(tmp_path / "checkpoint"))

    def real(starts: Sequence[Mapping[str, object]]) -> list[Did]:
        rows = answers(torchtitan, "torchtitan_start.py", starts)
        return [as_did(row, lambda row: bool(row["optimizer"])) for row in rows]

    assert_right(held(tmp_path / "checkpoint", TORCHTITANS, lambda _, __: {"load_step -1": Way(-1)}, tmp_path, real))


TRACKER = "latest_checkpointed_iteration.txt"


def megatrons(newest: str, older: str, shard: str, *others: str) -> dict[str, Tree]:
    """Return what is done to trees of a format with saves at 3 and 6: a shard that each rank has, and other files."""
    return {
        "whole": Tree(lambda _: None, 6),
        "newest cut": Tree(cut(f"{newest}/{shard}"), 3),
        "newest empty": Tree(empty(f"{newest}/{shard}"), 3),
        "newest gone": Tree(remove(newest), 3),
        "an older one cut": Tree(cut(f"{older}/{shard}"), 6),
        "tracker names the older": Tree(write(TRACKER, "3"), 6),
        "tracker names the older, for the run was rewound": Tree(write(TRACKER, "3", later=86400), 3),
        "tracker names the older, newest cut": Tree(both(write(TRACKER, "3"), cut(f"{newest}/{shard}")), 3),
        "no tracker": Tree(remove(TRACKER), 6),
        "tracker is empty": Tree(write(TRACKER, ""), 6),
        "tracker names what is not there": Tree(write(TRACKER, "9"), 6),
        "a newer one that was not finished": Tree(lambda root: (root / "iter_0000009").mkdir(), 6),
        "newest was begun, tracker not moved": Tree(both(remove(f"{newest}/{shard}"), write(TRACKER, "3")), 3),
        **{f"newest {other} gone": Tree(remove(f"{newest}/{other}"), 3) for other in (shard, *others)},
        **{f"newest {other} cut": Tree(cut(f"{newest}/{other}", 10), 3) for other in others},
    }


@pytest.mark.parametrize(
    ("template", "shard", "others"),
    [
        ("mcore_dist_tp2dp2", "__2_0.distcp", (".metadata", "common.pt", "metadata.json")),
        (
            "mcore_legacy_tp2dp2",
            "mp_rank_01/model_optim_rng.pt",
            ("mp_rank_01/distrib_optim.pt", "mp_rank_00/model_optim_rng.pt"),
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("checkout", os.environ.get("CKPTTOOL_MEGATRON", "").split(":"))
def test_megatron_does_what_preflight_said_of_its_start(
    checkout: str, template: str, shard: str, others: tuple[str, ...], tmp_path: Path
) -> None:
    python = os.environ.get("CKPTTOOL_MEGATRON_PYTHON")
    if not checkout or not python:
        pytest.skip("CKPTTOOL_MEGATRON and CKPTTOOL_MEGATRON_PYTHON name no checkout of Megatron-LM and no interpreter")

    def real(starts: Sequence[Mapping[str, object]]) -> list[Did]:
        rows = answers(python, "megatron_start.py", starts, checkout)
        return [as_did(row, lambda _: True) for row in rows]

    trees = megatrons("iter_0000006", "iter_0000003", shard, *others)
    assert_right(held(LAYOUTS / template, trees, lambda _, __: {"--load": Way(None)}, tmp_path, real))
