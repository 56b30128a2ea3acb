"""The real MindFormers, started with what ckpttool wrote: does it go on where ckpttool said, to the last sample?

Each case trains, is stopped or has its newest checkpoint damaged, asks `launch`, and starts the printed command,
unedited. "Exactly" is: the weights that the named shards hold, on all ranks, and from there on the samples, the
learning rate, the optimizer's step and the loss of a twin that was never interrupted, to the same last step.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.finding import Code, blocking
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.domain.verdict import Level
from ckpttool.core.formats import read_header
from ckpttool.core.storage import open_storage
from ckpttool.types import CheckQuestion, HealOrder
from tests.conftest import FIXTURES
from tests.nightly.real_mindformers import PLACE, Row, Trace, Training, config, home_of

SINKING: dict[str, object] = {"sink_mode": True, "sink_size": 2, "save_checkpoint_steps": 10}
FOUR: dict[str, object] = {"use_parallel": True, "data_parallel": 4, "n_samples": 160}
NEWER = "use_legacy_format: False"
CHECKPOINT = (
    'checkpoint:\n  load_path: ""\n  save_path: "./output/checkpoint"\n  save_max: 9\n'
    '  save_interleaved_steps: 3\n  prefix: "tiny"\n'
)
BOOKKEEPING = {  # set anew at each start
    "current_iterator_step", "last_overflow_iterator_step", "loss_scale_value", "scale_sense",
}  # fmt: skip

Damage = Callable[[Training], None]


def needs(version: str) -> None:
    if home_of(version) is None:
        pytest.skip(f"needs MindFormers {version}: set {PLACE} to a folder that holds it")


def no_damage(training: Training) -> None:
    """Leave the tree as the killed training left it."""


def cut(rank: int, name: str) -> Damage:
    def act(training: Training) -> None:
        shard = training.shard(rank, name)
        content = shard.read_bytes()
        shard.chmod(0o600)
        shard.write_bytes(content[: len(content) // 2])

    return act


def remove(rank: int, name: str) -> Damage:
    return lambda training: training.shard(rank, name).unlink()


def zero(rank: int, name: str) -> Damage:
    def act(training: Training) -> None:
        shard = training.shard(rank, name)
        size = shard.stat().st_size
        shard.chmod(0o600)
        shard.write_bytes(bytes(size))

    return act


def flip_and_heal(rank: int, name: str) -> Damage:
    """Flip one bit of a weight, which no checksum covers; find it among the replicas, and heal it."""

    def act(training: Training) -> None:
        shard = training.shard(rank, name)
        content = bytearray(shard.read_bytes())
        original = bytes(content)
        with open_storage(str(shard.parent)).open(shard.name) as source:
            entries = read_header(source, named=FormatName.MINDSPORE_CKPT).entries
        weight = next(entry for entry in entries if not entry.name.startswith(("adam", "optimizer")))
        content[weight.spans[0][0] + 2] ^= 0x10
        shard.chmod(0o600)
        shard.write_bytes(content)
        save = f"{shard.stem.rpartition('-')[2]}"
        question = CheckQuestion(level=Level.CHECKSUM, name=save)
        (found,) = ckpttool.verify(str(training.checkpoints), question).answer().verdicts
        (odd,) = [finding for finding in found.findings if finding.code is Code.REPLICA_DIFFERS]
        assert (odd.ranks, odd.tensor) == ((rank,), weight.name)
        healing = ckpttool.heal(str(training.checkpoints), HealOrder(checkpoint=save, grace=0, apply=True))
        assert healing.applied
        assert shard.read_bytes() == original
        (found,) = ckpttool.verify(str(training.checkpoints), question).answer().verdicts
        assert blocking(found.findings) == ()

    return act


def lose_and_heal(rank: int, name: str) -> Damage:
    """Remove a shard, and heal the save."""

    def act(training: Training) -> None:
        shard = training.shard(rank, name)
        save = f"{shard.stem.rpartition('-')[2]}"
        shard.unlink()
        assert ckpttool.heal(str(training.checkpoints), HealOrder(checkpoint=save, grace=0, apply=True)).applied

    return act


def empty_newest_optimizer(training: Training) -> None:
    newest = max(training.checkpoints.glob("iteration_*"))
    (shard,) = newest.glob("*-opt-*")
    shard.chmod(0o600)
    shard.write_bytes(b"")


def mark_newest_unhealthy(training: Training) -> None:
    names = ("1_3", "1_6", "1_9", "1_12", "1_15", "1_18", "2_1", "2_4", "2_7")
    records = [{"is_health": int(name == "2_7"), "ckpt_name": f"tiny_rank_0-{name}.ckpt"} for name in names]
    (training.folder / "output/health_ckpts.json").write_text(json.dumps(records), encoding="utf-8")


@dataclass(frozen=True, kw_only=True)
class Resume:
    """A training, what happens to it, and the checkpoint from which the next start goes on exactly."""

    step: int
    text: str = ""
    version: str = "2.1.0"
    ranks: int = 1
    die_at: int | None = 28
    damage: Damage = no_damage
    chosen: str
    allow: tuple[str, ...] = ()
    """Findings about a config that is as it is for the sake of the case."""


EXACT = {
    "no sink, .ckpt, newest cut on a rank": Resume(
        ranks=4, text=config(**FOUR), damage=cut(2, "-2_7.ckpt"), chosen="2_4", step=24
    ),
    "sink 2, .ckpt, newest gone on a rank": Resume(
        ranks=4, text=config(**FOUR, **SINKING), die_at=44, damage=remove(3, "-20_2.ckpt"), chosen="15_2", step=30
    ),
    "sink 2, safetensors, newest zeroed on a rank": Resume(
        ranks=4, text=config(**FOUR, **SINKING, load_ckpt_format="safetensors").replace(
            "    prefix:", "    checkpoint_format: safetensors\n    prefix:"
        ), die_at=44, damage=zero(1, "-20_2.safetensors"), chosen="15_2", step=30,
    ),
    "sink 2, .ckpt, one bit of the newest flipped on a rank, and healed": Resume(
        ranks=4, text=config(**FOUR, **SINKING), die_at=44, damage=flip_and_heal(3, "-20_2.ckpt"),
        chosen="20_2", step=40,
    ),
    "sink 2, safetensors, newest lost on a rank, and healed": Resume(
        ranks=4, text=config(**FOUR, **SINKING, load_ckpt_format="safetensors").replace(
            "    prefix:", "    checkpoint_format: safetensors\n    prefix:"
        ), die_at=44, damage=lose_and_heal(1, "-20_2.safetensors"), chosen="20_2", step=40,
    ),
    "async_save, killed": Resume(text=config(async_save=True), chosen="2_7", step=27),
    "end of an epoch": Resume(text=config(save_checkpoint_steps=4), die_at=22, chosen="1_20", step=20),
    "newest marked unhealthy": Resume(
        text=config("use_checkpoint_health_monitor: True").replace(
            "    width: 4", "    width: 4\n    vocab_size: 8\n    hidden_size: 4"
        ).replace("  use_clip_grad: True", "  use_clip_grad: True\n  local_norm: True"),
        damage=mark_newest_unhealthy, chosen="2_4", step=24, allow=("health-needs-slices", "health-needs-stages"),
    ),
    "newer layout, newest optimizer emptied": Resume(
        text=config(NEWER), damage=empty_newest_optimizer, chosen="iteration_00000024", step=24
    ),
    "newer layout by its section": Resume(
        text=config() + CHECKPOINT, damage=empty_newest_optimizer, chosen="iteration_00000024", step=24
    ),
    "newer layout by its section, no_load_optim": Resume(
        text=config() + CHECKPOINT + "  no_load_optim: True\n", damage=empty_newest_optimizer,
        chosen="iteration_00000024", step=24,
    ),
    "static loss scale": Resume(
        text=config().replace(
            "  scale_sense:\n    type: DynamicLossScaleUpdateCell\n    loss_scale_value: 65536\n    scale_factor: 2\n"
            "    scale_window: 1000\n", "  scale_sense: 1.0\n",
        ), chosen="2_7", step=27,
    ),
    **{
        f"shuffled data, {version}": Resume(
            version=version, text=config().replace("n_samples: 40", "n_samples: 40\n    shuffle: True"),
            chosen="2_7", step=27,
        )
        for version in ("1.8.0", "2.1.0")
    },
    **{
        f"version {version}": Resume(
            version=version, damage=cut(0, "-2_7.ckpt"), chosen="2_4", step=24,
            text=config() if version != "1.3.2" else config().replace(
                "load_ckpt_format: 'ckpt'\n", "micro_batch_interleave_num: 1\n"
            ),
        )
        for version in ("1.3.2", "1.6.0", "1.7.0", "1.8.0", "1.9.0")
    },
}  # fmt: skip


def assert_weights_of(training: Training, document: Row, trace: Trace, *apart: str) -> None:
    """Every tensor that a rank began with is the one in the shard that ckpttool named, apart from some."""
    resume = document["plan"]["resume"]
    if resume["resume_training"] is True:
        return  # the newer layout keeps no shard a rank; the loss tells
    names = [resume["resume_training"].replace("_rank_0", f"_rank_{rank}") for rank in range(training.ranks)]
    shards = [training.folder / resume["load_checkpoint"] / f"rank_{rank}" / name for rank, name in enumerate(names)]
    saved = training.weights_of(shards)
    for rank, shard in enumerate(shards):
        began = trace.first("begin", rank)["weights"]
        wanted = {name: digest for name, digest in began.items() if name not in BOOKKEEPING.union(apart)}
        assert wanted == {name: digest for name, digest in saved[str(shard)].items() if name in wanted}


def assert_equals_twin(trace: Trace, twin: Trace, step: int) -> None:
    assert trace.first("begin")["optimizer_step"] == step
    assert max(trace.steps) == max(twin.steps)
    for number, row in trace.steps.items():
        other = twin.steps[number]
        assert (row["samples"], row["optimizer_step"]) == (other["samples"], other["optimizer_step"]), number
        assert row["rate"] == pytest.approx(other["rate"], abs=1e-9), number
        assert row["loss"] == pytest.approx(other["loss"], abs=1e-5), number


def planned(document: Row) -> tuple[str, int, int]:
    plan = document["plan"]
    return plan["resume"]["name"], plan["resume"]["step"], plan["data"]["data_skip_steps"]


@pytest.mark.parametrize("case", EXACT.values(), ids=EXACT.keys())
def test_it_goes_on_exactly_where_ckpttool_said(case: Resume, tmp_path: Path) -> None:
    needs(case.version)
    twin = Training(tmp_path / "twin", case.version, case.ranks, case.text).train("first")
    training = Training(tmp_path / "run", case.version, case.ranks, case.text)
    training.train("first", die_at=case.die_at)
    case.damage(training)
    document = training.launch(*(word for code in case.allow for word in ("--allow", code)))
    assert planned(document) == (case.chosen, case.step, case.step)
    trace = training.resume(document, "second")
    assert trace.steps, training.errors("second")
    assert_weights_of(training, document, trace)
    assert_equals_twin(trace, twin, case.step)


def test_a_training_resumed_twice_goes_on_exactly(tmp_path: Path) -> None:
    needs("2.1.0")
    text = config(**FOUR, **SINKING)
    twin = Training(tmp_path / "twin", ranks=4, text=text).train("first")
    training = Training(tmp_path / "run", ranks=4, text=text)
    training.train("first", die_at=34)
    training.resume(training.launch(), "second", die_at=54)
    cut(1, "_1-25_2.ckpt")(training)
    document = training.launch(output="again.yaml")
    assert planned(document) == ("_1-20_2", 40, 40)
    trace = training.resume(document, "third")
    assert_weights_of(training, document, trace)
    assert_equals_twin(trace, twin, 40)


@dataclass(frozen=True, kw_only=True)
class Shift:
    """A resume that changes what a step is or which data it sees: what is planned, and what the real run then did."""

    settings: Mapping[str, object] = field(default_factory=dict)
    batch: int = 2
    """Samples a device and step after the resume; 2 before it."""
    die_at: int = 28
    options: tuple[str, ...] = ()
    skip: int | None
    begins_at: int
    """The optimizer's step when the resumed run begins."""
    first_samples: tuple[int, ...]
    last_step: int


SHIFTS = {
    "batch 2 to 4": Shift(batch=4, skip=13, first_samples=(12, 13, 14, 15), begins_at=13, last_step=40),
    "batch 2 to 4, sink 2": Shift(
        batch=4, settings=SINKING, die_at=34, skip=14, first_samples=(16, 17, 18, 19), begins_at=15, last_step=41
    ),
    "batch 2 to 3": Shift(
        batch=3, settings={"n_samples": 48}, skip=18, first_samples=(6, 7, 8), begins_at=18, last_step=64
    ),
    "batch 2 to 3, sink 2": Shift(
        batch=3, settings={"n_samples": 48, **SINKING}, die_at=34, skip=20, first_samples=(12, 13, 14), begins_at=20,
        last_step=64,
    ),
    "another data set": Shift(
        options=("--new-dataset",), skip=None, first_samples=(0, 1), begins_at=27, last_step=87
    ),
    "another data set, sink 2": Shift(
        settings=SINKING, die_at=34, options=("--new-dataset",), skip=None, first_samples=(0, 1), begins_at=30,
        last_step=80,
    ),
    "another data set since step 20": Shift(
        options=("--dataset-changed-at", "20"), skip=7, first_samples=(14, 15), begins_at=27, last_step=80
    ),
    "another data set since step 26, sink 2": Shift(
        settings=SINKING, die_at=34, options=("--dataset-changed-at", "26"), skip=4, first_samples=(8, 9), begins_at=30,
        last_step=80,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SHIFTS.values(), ids=SHIFTS.keys())
def test_it_skips_the_data_that_ckpttool_said(case: Shift, tmp_path: Path) -> None:
    needs("2.1.0")
    training = Training(tmp_path / "run", text=config(**case.settings))
    training.train("first", die_at=case.die_at)
    (training.folder / "again.yaml").write_text(config(**{**case.settings, "batch_size": case.batch}), encoding="utf-8")
    document = training.launch(*case.options, base="again.yaml")
    data = document["plan"]["data"]
    assert (None if data["ignore_data_skip"] else data["data_skip_steps"]) == case.skip
    trace = training.resume(document, "second")
    assert trace.steps, training.errors("second")
    seen = tuple(trace.samples[: len(case.first_samples)])
    assert (trace.first("begin")["optimizer_step"], seen, max(trace.steps)) == (
        case.begins_at, case.first_samples, case.last_step,
    )  # fmt: skip
    assert_weights_of(training, document, trace, "global_step")  # rescaled with the batch; told by the steps above


@pytest.mark.parametrize("folder", ["q it's 模型 $x"])
def test_a_path_that_a_shell_would_break_starts_on_four_ranks(folder: str, tmp_path: Path) -> None:
    needs("2.1.0")
    training = Training(tmp_path / folder, ranks=4, text=config(**FOUR))
    training.train("first", die_at=28)
    cut(2, "-2_7.ckpt")(training)
    document = training.launch()
    trace = training.resume(document, "second", die_at=26)
    assert min(trace.steps) == 25
    assert trace.steps[25]["samples"] == list(range(32, 40))
    assert_weights_of(training, document, trace)


def test_keys_under_trainer_stop_the_real_start_and_ckpttool_says_so(tmp_path: Path) -> None:
    needs("2.1.0")
    text = config().replace("  model_name: 'tiny'\n", "  model_name: 'tiny'\n  data_skip_steps: 27\n")
    training = Training(tmp_path / "run", text=config())
    training.train("first", die_at=28)
    (training.folder / "bad.yaml").write_text(text, encoding="utf-8")
    code, said = training.preflight(base="bad.yaml")
    assert code == 10
    assert "trainer" in said
    training.train("bad", "python run_mindformer.py --config bad.yaml")
    assert training.code == 1
    assert "unexpected keyword argument 'data_skip_steps'" in training.errors("bad")


def stray_ckpt(training: Training) -> None:
    shutil.copy(training.shard(0, "-1_9.ckpt"), training.checkpoints / "best.ckpt")


def test_a_stray_ckpt_would_be_loaded_instead_and_ckpttool_says_so(tmp_path: Path) -> None:
    needs("2.1.0")
    training = Training(tmp_path / "run", text=config())
    training.train("first", die_at=28)
    document = training.launch()
    stray_ckpt(training)
    code, said = training.preflight()
    assert code in (10, 15)
    assert "best.ckpt" in said
    trace = training.resume(document, "second")  # what was written before the stray file came
    (began,) = (trace.first("begin")["weights"],)
    named = training.weights_of([training.checkpoints / "best.ckpt"])
    (stray,) = named.values()
    assert all(began[name] == digest for name, digest in stray.items() if name in began and name not in BOOKKEEPING)


STREAMING = """    type: HFDataLoader
    load_func: load_dataset
    path: json
    data_files: numbers.jsonl
    split: train
    streaming: True
    size: 40
    dataset_state_dir: ./states
    save_step: 3
"""


def test_streamed_data_goes_on_by_its_own_state_files(tmp_path: Path) -> None:
    needs("2.1.0")
    text = config().replace("    type: TinyLoader\n    n_samples: 40\n", STREAMING)
    training = Training(tmp_path / "run", text=text)
    rows = ({"x": [number % 8, number // 8 % 8], "y": number % 8, "i": number} for number in range(40))
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (training.folder / "numbers.jsonl").write_text(lines, encoding="utf-8")
    training.train("first", die_at=28)
    document = training.launch()
    assert planned(document) == ("2_7", 27, 27)
    trace = training.resume(document, "second")
    assert min(trace.steps) == 28
    assert [trace.steps[step]["samples"] for step in (28, 29)] == [[14, 15], [16, 17]]
    code, said = training.preflight("--new-dataset")
    assert code == 10
    assert "dataset_state" in said


def test_the_command_for_a_second_node_reaches_the_real_launcher_unbroken(tmp_path: Path) -> None:
    needs("2.1.0")
    training = Training(tmp_path / 'it\'s 模型 `q` "x" $y', text=(FIXTURES / "configs/pretrain_sink2.yaml").read_text())
    shutil.copytree(FIXTURES / "sink2_ckpt/output", training.folder / "output")
    nodes = ("--nodes", "2", "--devices-per-node", "2", "--master-addr", "10.0.0.1")
    command = training.launch(*nodes)["commands"][1]
    fake = tmp_path / "bin/msrun"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > arguments.txt\n', encoding="utf-8")
    fake.chmod(0o755)
    training.train("node", f'export PATH="{fake.parent}:$PATH"; {command}')
    arguments = (training.folder / "arguments.txt").read_text(encoding="utf-8").splitlines()
    assert arguments[-3:] == ["run_mindformer.py", "--config", str(training.folder / "resume.yaml")]
    assert "--node_rank=1" in arguments
