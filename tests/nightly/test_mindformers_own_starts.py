"""The real MindFormers, started with a config as it stands: what `preflight` said of that start is what it does.

Each tree is a copy of one training's that was killed at step 28, with something wrong or odd; each is started in every
mode of `load_checkpoint` and `resume_training`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.nightly.real_mindformers import Server, Trace, Training, config, home_of
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


@dataclass(frozen=True, kw_only=True)
class Way:
    """From where, and with which environment, a training is started."""

    folder: str = ""
    """Below the training's own."""
    asked_in: str | None = None
    """From which `preflight` is asked; None: the same."""
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """What lies beside, by path."""


FROM_ITS_FOLDER = Way()


@dataclass(frozen=True, kw_only=True)
class Odd:
    """The config of one start: some settings as they should be, the others odd."""

    settings: Mapping[str, object] = field(default_factory=dict)
    more: str = ""
    """Lines at its end."""
    without: tuple[str, ...] = ()
    """Settings that are left out."""
    way: Way = FROM_ITS_FOLDER

    def text(self) -> str:
        """Spell the config."""
        text = config(**{"load_checkpoint": f"'{FOLDER}'", "resume_training": True, **self.settings}) + self.more
        return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(self.without))


ODD = {
    "no odd setting": Odd(),
    "load_checkpoint null, True": Odd(settings={"load_checkpoint": "null"}),
    "load_checkpoint null, False": Odd(settings={"load_checkpoint": "null", "resume_training": False}),
    "load_checkpoint null, a name": Odd(settings={"load_checkpoint": "null", "resume_training": f"'{PREFIX}2_7.ckpt'"}),
    "no load_checkpoint, True": Odd(without=("load_checkpoint",)),
    "load_checkpoint a number, True": Odd(settings={"load_checkpoint": 7}),
    "load_checkpoint a number, False": Odd(settings={"load_checkpoint": 7, "resume_training": False}),
    "load_checkpoint a list": Odd(settings={"load_checkpoint": f"['{FOLDER}']"}),
    "load_checkpoint True": Odd(settings={"load_checkpoint": True}),
    "load_checkpoint False": Odd(settings={"load_checkpoint": False}),
    "load_checkpoint a float": Odd(settings={"load_checkpoint": 7.5}),
    "load_checkpoint a list, False": Odd(settings={"load_checkpoint": f"['{FOLDER}']", "resume_training": False}),
    "load_checkpoint an empty list": Odd(settings={"load_checkpoint": "[]"}),
    "load_checkpoint a map": Odd(settings={"load_checkpoint": f"{{folder: '{FOLDER}'}}"}),
    "load_checkpoint an empty map": Odd(settings={"load_checkpoint": "{}"}),
    "load_checkpoint without its dot": Odd(settings={"load_checkpoint": "output/checkpoint"}),
    "load_checkpoint with a slash at its end": Odd(settings={"load_checkpoint": "output/checkpoint/"}),
    "load_checkpoint with a way back": Odd(settings={"load_checkpoint": "output/log/../checkpoint"}),
    "load_checkpoint the tree": Odd(settings={"load_checkpoint": "output"}),
    "load_checkpoint a rank's folder": Odd(settings={"load_checkpoint": "output/checkpoint/rank_0"}),
    "load_checkpoint with ~": Odd(settings={"load_checkpoint": "'~/output/checkpoint'"}),
    "resume_training 1": Odd(settings={"resume_training": 1}),
    "resume_training 0": Odd(settings={"resume_training": 0}),
    "resume_training a list": Odd(settings={"resume_training": "[True]"}),
    "resume_training an empty list": Odd(settings={"resume_training": "[]"}),
    "resume_training a map": Odd(settings={"resume_training": "{on: True}"}),
    "resume_training an empty map": Odd(settings={"resume_training": "{}"}),
    "resume_training 27": Odd(settings={"resume_training": 27}),
    "resume_training a float": Odd(settings={"resume_training": 1.0}),
    "resume_training null": Odd(settings={"resume_training": "null"}),
    "resume_training empty": Odd(settings={"resume_training": "''"}),
    "resume_training the text True": Odd(settings={"resume_training": "'True'"}),
    "resume_training the text True, load_checkpoint empty": Odd(
        settings={"load_checkpoint": "''", "resume_training": "'True'"}
    ),
    "resume_training the text False": Odd(settings={"resume_training": "'False'"}),
    "resume_training a name without its end": Odd(settings={"resume_training": f"'{PREFIX}2_7'"}),
    "auto_trans_ckpt 1": Odd(settings={"auto_trans_ckpt": 1}),
    "auto_trans_ckpt a text": Odd(settings={"auto_trans_ckpt": "'False'"}),
    "auto_trans_ckpt null": Odd(settings={"auto_trans_ckpt": "null"}),
    "load_ckpt_format safetensors": Odd(settings={"load_ckpt_format": "'safetensors'"}),
    "load_ckpt_format null": Odd(settings={"load_ckpt_format": "null"}),
    "no load_ckpt_format": Odd(without=("load_ckpt_format",)),
    "data_skip_steps as planned": Odd(more="data_skip_steps: 27\n"),
    "data_skip_steps a text": Odd(more="data_skip_steps: '27'\n"),
    "data_skip_steps a float": Odd(more="data_skip_steps: 27.0\n"),
    "data_skip_steps True": Odd(more="data_skip_steps: True\n"),
    "data_skip_steps a list": Odd(more="data_skip_steps: [27]\n"),
    "data_skip_steps below zero": Odd(more="data_skip_steps: -3\n"),
    "data_skip_steps empty": Odd(more="data_skip_steps: ''\n"),
    "data_skip_steps of another start": Odd(more="data_skip_steps: 20\n"),
    "ignore_data_skip": Odd(more="ignore_data_skip: True\n"),
    "ignore_data_skip the text False": Odd(more="ignore_data_skip: 'False'\n"),
    "ignore_data_skip the text False, data_skip_steps a text": Odd(
        more="ignore_data_skip: 'False'\ndata_skip_steps: '27'\n"
    ),
    "use_legacy_format the text False": Odd(more="use_legacy_format: 'False'\n"),
    "use_legacy_format null": Odd(more="use_legacy_format: null\n"),
    "use_legacy_format False": Odd(more="use_legacy_format: False\n"),
    "an empty checkpoint section": Odd(more="checkpoint: {}\n"),
    "a checkpoint section": Odd(more=f"checkpoint: {{load_path: '{FOLDER}'}}\n"),
    "resume_by_last_timestamp_ckpt": Odd(more="resume_by_last_timestamp_ckpt: True\n"),
    "only_save_strategy": Odd(more="only_save_strategy: True\n"),
    "sinks of the whole data set": Odd(settings={"sink_mode": True, "sink_size": -1}),
    "sinks of the whole data set, data_skip_steps": Odd(
        settings={"sink_mode": True, "sink_size": -1}, more="data_skip_steps: 27\n"
    ),
    "its fault tolerance on": Odd(way=Way(environment={"MS_ENABLE_TFT": "{TTP:1,UCE:1}"})),
    "its fault tolerance on, a name": Odd(
        settings={"resume_training": f"'{PREFIX}2_4.ckpt'"}, way=Way(environment={"MS_ENABLE_TFT": "{TTP:1,UCE:1}"})
    ),
    "its fault tolerance off": Odd(way=Way(environment={"MS_ENABLE_TFT": "{TTP:0}"})),
    "a base config of nothing": Odd(more="base_config: other.yaml\n", way=Way(files={"other.yaml": "x: 1\n"})),
    "a base config ignores the data": Odd(
        more="base_config: other.yaml\n", way=Way(files={"other.yaml": "ignore_data_skip: True\n"})
    ),
    "a base config skips data": Odd(
        more="base_config: other.yaml\n", way=Way(files={"other.yaml": "data_skip_steps: 20\n"})
    ),
    "a base config of the newer layout": Odd(
        more="base_config: other.yaml\n", way=Way(files={"other.yaml": "use_legacy_format: False\n"})
    ),
    "a base config with a checkpoint section": Odd(
        more="base_config: other.yaml\nuse_legacy_format: True\n",
        way=Way(files={"other.yaml": "checkpoint: {save_max: 3}\n"}),
    ),
    "started in the folder that preflight names when it is asked from another": Odd(
        way=Way(asked_in="sub", files={"sub/a": ""})
    ),
    "started in another folder, in which there is nothing": Odd(
        way=Way(folder="sub", asked_in="sub", files={"sub/output/checkpoint/a": ""})
    ),
    "started in another folder, by its path": Odd(
        settings={"load_checkpoint": "'../output/checkpoint'"}, way=Way(folder="sub", files={"sub/a": ""})
    ),
    "started in the tree": Odd(settings={"load_checkpoint": "'checkpoint'"}, way=Way(folder="output")),
    "started in the checkpoint folder": Odd(settings={"load_checkpoint": "'.'"}, way=Way(folder="output/checkpoint")),
    "started in its folder, and asked in the tree": Odd(way=Way(asked_in="output")),
    "started in its folder, and asked in the checkpoint folder": Odd(way=Way(asked_in="output/checkpoint")),
}

SAFETENSORS = {"load_ckpt_format": "'safetensors'"}
SWITCH = "use_legacy_format: False\n"
ODD_NEWER = {
    "no odd setting": Odd(settings=SAFETENSORS, more=SWITCH),
    "no load_ckpt_format": Odd(without=("load_ckpt_format",), more=SWITCH),
    "no load_ckpt_format, an iteration": Odd(
        settings={"load_checkpoint": f"'{FOLDER}/iteration_00000027'"}, without=("load_ckpt_format",), more=SWITCH
    ),
    "no load_ckpt_format, False": Odd(settings={"resume_training": False}, without=("load_ckpt_format",), more=SWITCH),
    "no load_ckpt_format, no switch": Odd(without=("load_ckpt_format",)),
    "no load_ckpt_format, the section": Odd(
        without=("load_ckpt_format",), more=f"checkpoint: {{load_path: '{FOLDER}', no_load_optim: False}}\n"
    ),
    "load_ckpt_format empty": Odd(settings={"load_ckpt_format": "''"}, more=SWITCH),
    "load_ckpt_format a number": Odd(settings={"load_ckpt_format": 7}, more=SWITCH),
    "load_ckpt_format ckpt": Odd(more=SWITCH),
    "load_ckpt_format null": Odd(settings={"load_ckpt_format": "null"}, more=SWITCH),
    "no switch": Odd(settings=SAFETENSORS),
    "the switch a text": Odd(settings=SAFETENSORS, more="use_legacy_format: 'False'\n"),
    "load_checkpoint null, True": Odd(settings={**SAFETENSORS, "load_checkpoint": "null"}, more=SWITCH),
    "load_checkpoint empty, True": Odd(settings={**SAFETENSORS, "load_checkpoint": "''"}, more=SWITCH),
    "load_checkpoint a number": Odd(settings={**SAFETENSORS, "load_checkpoint": 7}, more=SWITCH),
    "load_checkpoint a list": Odd(settings={**SAFETENSORS, "load_checkpoint": f"['{FOLDER}']"}, more=SWITCH),
    "load_checkpoint a map": Odd(settings={**SAFETENSORS, "load_checkpoint": f"{{folder: '{FOLDER}'}}"}, more=SWITCH),
    "load_checkpoint True": Odd(settings={**SAFETENSORS, "load_checkpoint": True}, more=SWITCH),
    "load_checkpoint False": Odd(settings={**SAFETENSORS, "load_checkpoint": False}, more=SWITCH),
    "load_checkpoint with a slash at its end": Odd(
        settings={**SAFETENSORS, "load_checkpoint": "output/checkpoint/"}, more=SWITCH
    ),
    "resume_training null": Odd(settings={**SAFETENSORS, "resume_training": "null"}, more=SWITCH),
    "resume_training 1": Odd(settings={**SAFETENSORS, "resume_training": 1}, more=SWITCH),
    "resume_training a list": Odd(settings={**SAFETENSORS, "resume_training": "[True]"}, more=SWITCH),
    "resume_training the text True": Odd(settings={**SAFETENSORS, "resume_training": "'True'"}, more=SWITCH),
    "resume_training empty": Odd(settings={**SAFETENSORS, "resume_training": "''"}, more=SWITCH),
    "resume_training a name": Odd(settings={**SAFETENSORS, "resume_training": "'iteration_00000024'"}, more=SWITCH),
    "resume_training False": Odd(settings={**SAFETENSORS, "resume_training": False}, more=SWITCH),
    "an iteration": Odd(settings={**SAFETENSORS, "load_checkpoint": f"'{FOLDER}/iteration_00000027'"}, more=SWITCH),
    "an older iteration": Odd(
        settings={**SAFETENSORS, "load_checkpoint": f"'{FOLDER}/iteration_00000024'"}, more=SWITCH
    ),
    "started in another folder, by its path": Odd(
        settings={**SAFETENSORS, "load_checkpoint": "'../output/checkpoint'"},
        more=SWITCH,
        way=Way(folder="sub", files={"sub/a": ""}),
    ),
    "started in its folder, and asked in the tree": Odd(settings=SAFETENSORS, more=SWITCH, way=Way(asked_in="output")),
    "the section, load_path a list": Odd(
        settings={**SAFETENSORS, "load_checkpoint": "''"},
        more=f"checkpoint: {{load_path: ['{FOLDER}'], no_load_optim: False}}\n",
    ),
    "the section, no_load_optim the text False": Odd(
        settings=SAFETENSORS, more=f"checkpoint: {{load_path: '{FOLDER}', no_load_optim: 'False'}}\n"
    ),
    "the section, no_load_optim null": Odd(
        settings=SAFETENSORS, more=f"checkpoint: {{load_path: '{FOLDER}', no_load_optim: null}}\n"
    ),
    "the section alone": Odd(
        settings={**SAFETENSORS, "load_checkpoint": "''", "resume_training": False},
        more=f"checkpoint: {{load_path: '{FOLDER}', no_load_optim: False}}\n",
    ),
    "the section alone, load_checkpoint null": Odd(
        settings={**SAFETENSORS, "load_checkpoint": "null", "resume_training": False},
        more=f"checkpoint: {{load_path: '{FOLDER}', no_load_optim: False}}\n",
    ),
    "the section, load_checkpoint null, True": Odd(
        settings={**SAFETENSORS, "load_checkpoint": "null"},
        more=f"checkpoint: {{load_path: '{FOLDER}', no_load_optim: False}}\n",
    ),
    "the section, resume_training null": Odd(
        settings={**SAFETENSORS, "resume_training": "null"},
        more=f"checkpoint: {{load_path: '{FOLDER}', no_load_optim: False}}\n",
    ),
    "data_skip_steps a text": Odd(settings=SAFETENSORS, more=f"{SWITCH}data_skip_steps: '27'\n"),
    "ignore_data_skip": Odd(settings=SAFETENSORS, more=f"{SWITCH}ignore_data_skip: True\n"),
}


@dataclass(frozen=True)
class Template:
    """The training of which all trees are copies."""

    training: Training
    weights: dict[str, int]
    """The step of each save, by the hash of one of its weights."""
    server: Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    needs("2.1.0")
    home = home_of("2.1.0")
    assert home is not None
    server = Server(home, tmp_path_factory.mktemp("server"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Template:
    training = Training(tmp_path_factory.mktemp("template") / "run", text=config())
    training.train("first", die_at=28)
    weights = weights_of(training, lambda step: training.shard(0, f"-{named(step)}.ckpt"))
    return Template(training, weights, server)


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Template:
    training = Training(tmp_path_factory.mktemp("newer") / "run", text=config(SWITCH.strip()))
    training.train("first", die_at=28)

    def shard(step: int) -> Path:
        (found,) = (training.checkpoints / f"iteration_{step:08}").glob("*-model-*")
        return found

    return Template(training, weights_of(training, shard), server)


def weights_of(training: Training, shard: Callable[[int], Path]) -> dict[str, int]:
    """Return the step of each save by the hash of one of its weights."""
    steps = {str(shard(step)): step for step in range(3, 28, 3)}
    weights = training.weights_of([Path(path) for path in steps])
    return {weights[path][WEIGHT]: step for path, step in steps.items()}


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


def started(template: Template, tree: Tree, text: str, folder: Path, *, case: str, way: Way = FROM_ITS_FOLDER) -> Held:
    training = Training(folder, text=text)
    shutil.copytree(template.training.folder / "output", folder / "output")
    tree.edit(training.checkpoints)
    for path, content in way.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content, encoding="utf-8")
    asked_in, here = folder / (way.folder if way.asked_in is None else way.asked_in), folder / way.folder
    with pytest.MonkeyPatch.context() as patched:
        for name, value in way.environment.items():
            patched.setenv(name, value)
        root = Path(os.path.relpath(folder / "output", asked_in))
        said = preflight(root, "--config", str(folder / "base.yaml"), "--devices", "1", cwd=asked_in)
    script = os.path.relpath(folder / "run_mindformer.py", here)
    environment = {"CKPTTOOL_DIE_AT": "1", **way.environment}
    trace = training.start(template.server, "second", script, here, environment)
    held = Held(case=case, said=said, did=did(training, trace, template), best=tree.best)
    shutil.rmtree(folder)
    return held


def test_each_start_does_what_preflight_said_of_it(template: Template, tmp_path: Path) -> None:
    assert_right(
        started(template, tree, config(**mode(tree.best or 27)), tmp_path / f"{number}_{index}", case=f"{name} · {how}")
        for number, (name, tree) in enumerate(TREES.items())
        for index, (how, mode) in enumerate(MODES.items())
    )


def test_a_start_with_odd_settings_does_what_preflight_said_of_it(template: Template, tmp_path: Path) -> None:
    assert_right(
        started(template, TREES["whole"], odd.text(), tmp_path / str(number), case=name, way=odd.way)
        for number, (name, odd) in enumerate(ODD.items())
    )


def test_a_start_in_the_newer_layout_does_what_preflight_said_of_it(newer: Template, tmp_path: Path) -> None:
    assert_right(
        started(newer, TREES["whole"], odd.text(), tmp_path / str(number), case=name, way=odd.way)
        for number, (name, odd) in enumerate(ODD_NEWER.items())
    )
