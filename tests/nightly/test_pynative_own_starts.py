"""The real PyNative trainer, started with a config as it stands: does it begin as ckpttool predicts?

Each tree is a copy of one training's that was killed, with one thing wrong or odd in it or in the config. Compared are
the exit code, the step and the samples with which it begins, and whose weights and moments it has.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.nightly.pynative_starts import observed, predicted
from tests.nightly.pynative_trees import (
    CHANGES,
    HALF_SAVE,
    NEWEST,
    RAMP_UP,
    TRACKER,
    Edit,
    Templates,
    all_of,
    change_shard,
    copy,
    copy_shard,
    edit_common,
    half,
    remove,
    remove_shard,
    rename,
    start,
    write,
)
from tests.nightly.real_pynative import ROOT, Settings, needs, new_server, save_of


@dataclass(frozen=True, kw_only=True)
class Case:
    """One start."""

    of: str = "killed"
    edit: Edit = lambda _: None
    load: str = f'"{ROOT}"'
    settings: Settings = field(default_factory=dict)
    add: str = ""
    ranks: int = 1
    unknown: bool = False
    """Whether ckpttool says that it does not know."""


def damaged(*kinds: str) -> Iterator[tuple[str, Case]]:
    for kind in kinds:
        yield f"{kind} missing", Case(edit=remove_shard(kind))
        for how, change in CHANGES.items():
            yield f"{kind} {how}", Case(edit=change_shard(kind, change))


TREES = {
    "intact": Case(),
    **dict(damaged("model", "opt")),
    "model missing in an older save": Case(edit=remove_shard("model", 20)),
    "opt missing in an older save": Case(edit=remove_shard("opt", 20)),
    "no checkpoint left": Case(edit=lambda training: shutil.rmtree(training.checkpoints), unknown=True),
    "newest folder empty": Case(
        edit=all_of(remove_shard("model"), remove_shard("opt"), remove(f"{NEWEST}/common.json"))
    ),
    "newest folder missing": Case(edit=lambda training: shutil.rmtree(training.save(30))),
    "newest folder without zeros": Case(edit=rename(NEWEST, "iteration_30")),
    "half a save": Case(edit=HALF_SAVE),
    "a temporary file in the newest": Case(edit=write(f"{NEWEST}/tmp2b12cd34", "{")),  # noqa: S108
    "a temporary shard in the newest": Case(edit=write(f"{NEWEST}/tiny-model-0000000-0000001.safetensors.tmp", "x")),
    "the model again under another name": Case(
        edit=copy_shard("model", f"output/checkpoint/{NEWEST}/best.safetensors")
    ),
    "a damaged stray shard in the newest": Case(edit=write(f"{NEWEST}/best.safetensors", "x")),
    "the model of another rank": Case(
        edit=copy_shard("model", f"output/checkpoint/{NEWEST}/tiny-model-0000001-0000002.safetensors")
    ),
    "a stray shard in the root": Case(edit=copy_shard("model", "output/checkpoint/best.safetensors")),
    "tracker empty": Case(edit=write(TRACKER, "")),
    "tracker of blanks": Case(edit=write(TRACKER, " \n")),
    "tracker a word": Case(edit=write(TRACKER, "release")),
    "tracker behind": Case(edit=write(TRACKER, "20")),
    "tracker behind, its save has no model": Case(edit=all_of(write(TRACKER, "20"), remove_shard("model", 20))),
    "tracker behind, newest cut": Case(edit=all_of(write(TRACKER, "20"), change_shard("opt", half))),
    "tracker ahead": Case(edit=write(TRACKER, "40")),
    "tracker at half a save": Case(edit=all_of(HALF_SAVE, write(TRACKER, "40"))),
    "tracker at a file": Case(edit=all_of(write("iteration_00000040", "x"), write(TRACKER, "40"))),
    "tracker a decimal": Case(edit=write(TRACKER, "30.0")),
    "tracker with blanks": Case(edit=write(TRACKER, " 30\n")),
    "tracker with zeros": Case(edit=write(TRACKER, "00000030")),
    "tracker with a plus": Case(edit=write(TRACKER, "+30")),
    "tracker with another script's digits": Case(edit=write(TRACKER, "\u0663\u0660")),
    "tracker of two lines": Case(edit=write(TRACKER, "30\n20")),
    "tracker below zero": Case(edit=write(TRACKER, "-30")),
    "tracker with an underscore": Case(edit=write(TRACKER, "3_0")),
    "tracker not UTF-8": Case(edit=write(TRACKER, b"\xff30")),
    "tracker with a byte order mark": Case(edit=write(TRACKER, b"\xef\xbb\xbf30")),
    "tracker missing": Case(edit=remove(TRACKER)),
    "tracker missing, a save beside it": Case(
        edit=all_of(remove(TRACKER), copy_shard("model", "output/checkpoint/best.safetensors"))
    ),
    "common.json missing": Case(edit=remove(f"{NEWEST}/common.json")),
    "common.json cut": Case(edit=write(f"{NEWEST}/common.json", '{"epoch_num": 1, "step')),
    "common.json empty": Case(edit=write(f"{NEWEST}/common.json", "")),
    "common.json an empty map": Case(edit=write(f"{NEWEST}/common.json", "{}")),
    "common.json a list": Case(edit=write(f"{NEWEST}/common.json", "[]")),
    "common.json with one more key": Case(edit=edit_common(note="x")),
    **{
        f"common.json without {key}": Case(edit=edit_common(without=(key,)))
        for key in ("consumed_samples", "global_batch_size", "global_step", "step_num", "epoch_num", "loss_scale")
    },
    "consumed_samples null": Case(edit=edit_common(consumed_samples=None)),
    "consumed_samples 0": Case(edit=edit_common(consumed_samples=0)),
    "consumed_samples not divisible": Case(edit=edit_common(consumed_samples=241)),
    "global_step of another folder": Case(edit=edit_common(global_step=25)),
    "global_batch_size null": Case(edit=edit_common(global_batch_size=None)),
    "complete": Case(of="complete"),
    "complete, more steps": Case(of="complete", settings={"steps": 60}),
    "asynchronous": Case(of="asynchronous"),
    "no prefix": Case(of="no prefix"),
    "no prefix, model missing": Case(of="no prefix", edit=remove_shard("model")),
    "no prefix, opt missing": Case(of="no prefix", edit=remove_shard("opt")),
    "prefix adopt, opt missing": Case(of="prefix adopt", edit=remove_shard("opt")),
    "ramp-up": Case(of="ramp-up"),
    "ramp-up off": Case(of="ramp-up", settings={"global_batch_size": 16}),
    "ramp-up without consumed_samples": Case(of="ramp-up", edit=edit_common(20, without=("consumed_samples",))),
    "NaN skipped": Case(of="NaN skipped"),
    "saved without the optimizer": Case(of="without the optimizer", unknown=True),
    "saved without the optimizer, loaded without": Case(
        of="without the optimizer", settings={"no_load_optim": True}, unknown=True
    ),
    "asynchronous, one save": Case(of="asynchronous, one save"),
    "asynchronous, one save kept": Case(of="asynchronous, one save kept"),
    "asynchronous, complete": Case(of="asynchronous, complete"),
    "two saves kept": Case(of="two saves kept"),
    "uneven, batch 16": Case(of="uneven", settings={"global_batch_size": 16}),
    "second epoch": Case(of="second epoch"),
    "shuffled": Case(of="shuffled"),
    "adapter": Case(of="adapter"),
    "adapter, its optimizer cut": Case(of="adapter", edit=change_shard("opt", half)),
    "adapter, without base_load_path": Case(of="adapter", settings={"save_path": f'"{ROOT}"'}),
    "adapter, another base_load_path": Case(
        of="adapter", settings={"save_path": f'"{ROOT}"\n  base_load_path: "{ROOT}/iteration_00000020"'}
    ),
    "adapter, an older save": Case(of="adapter", load=f'"{save_of(20)}"'),
    "of 1.9.0": Case(of="1.9.0"),
    "of 1.9.0, batch 16": Case(of="1.9.0", settings={"global_batch_size": 16}),
}

PATHS = {
    "an older save": Case(load=f'"{save_of(20)}"'),
    "an older save without its model": Case(load=f'"{save_of(20)}"', edit=remove_shard("model", 20)),
    "an older save without its optimizer": Case(load=f'"{save_of(20)}"', edit=remove_shard("opt", 20)),
    "an older save, cut": Case(load=f'"{save_of(20)}"', edit=change_shard("opt", half, 20)),
    "an older save, newest cut": Case(load=f'"{save_of(20)}"', edit=change_shard("opt", half)),
    "the newest save, tracker missing": Case(load=f'"{save_of(30)}"', edit=remove(TRACKER)),
    "the newest save, cut": Case(load=f'"{save_of(30)}"', edit=change_shard("opt", half)),
    "the newest of asynchronous saves": Case(of="asynchronous", load=f'"{save_of(30)}"'),
    "half a save": Case(load=f'"{save_of(40)}"', edit=HALF_SAVE),
    "empty": Case(load='""'),
    "missing": Case(load='"./output/chekpoint"'),
    "missing save": Case(load=f'"{save_of(50)}"'),
    "a shard": Case(load=f'"{save_of(30)}/tiny-model-0000000-0000001.safetensors"'),
    "a slash at the end": Case(load=f'"{ROOT}/"'),
    "without ./": Case(load="output/checkpoint"),
    "with ..": Case(load='"output/log/../checkpoint"', edit=write("../log/x", "x")),
    "with ~": Case(load='"~/output/checkpoint"'),
    "a blank": Case(load='" "'),
    "the output folder": Case(load='"./output"'),
    "an empty folder": Case(load='"./none"', edit=lambda training: (training.folder / "none").mkdir()),
    "a static tree": Case(load='"./static"', edit=write("../../static/rank_0/tiny_rank_0-1_30.ckpt", "x" * 900)),
    "a static tree's file": Case(
        load='"./static/rank_0/tiny_rank_0-1_30.ckpt"',
        edit=write("../../static/rank_0/tiny_rank_0-1_30.ckpt", "x" * 900),
    ),
    "a Hugging Face model": Case(load='"./hf"', edit=copy_shard("model", "hf/model.safetensors"), unknown=True),
    "a Hugging Face model, loaded without the optimizer": Case(
        load='"./hf"', edit=copy_shard("model", "hf/model.safetensors"), settings={"no_load_optim": True}, unknown=True
    ),
    "a save copied out of the tree": Case(
        load='"./other"', edit=copy(f"output/checkpoint/{NEWEST}", "other"), unknown=True
    ),
    "a copy of the tree": Case(load='"./other"', edit=copy("output/checkpoint", "other"), unknown=True),
}

SETTINGS = {
    **{f"batch {size}": Case(settings={"global_batch_size": size}) for size in (16, 12, 6, 4, 7, 0)},
    "batch 4, steps 80": Case(settings={"global_batch_size": 4, "steps": 80}),
    **{f"micro-batch {size}": Case(settings={"local_batch_size": size}) for size in (4, 1, 3, 0)},
    **{f"steps {steps}": Case(settings={"steps": steps}) for steps in (30, 31, 25, 60, 0, -1)},
    "no_load_optim": Case(settings={"no_load_optim": True}),
    "no_load_optim, opt missing": Case(settings={"no_load_optim": True}, edit=remove_shard("opt")),
    "no_load_optim, model missing": Case(settings={"no_load_optim": True}, edit=remove_shard("model")),
    "no_load_optim, model cut": Case(settings={"no_load_optim": True}, edit=change_shard("model", half)),
    "no_load_optim, opt cut": Case(settings={"no_load_optim": True}, edit=change_shard("opt", half)),
    "no_load_optim, common.json missing": Case(settings={"no_load_optim": True}, edit=remove(f"{NEWEST}/common.json")),
    "no_load_optim, tracker behind": Case(settings={"no_load_optim": True}, edit=write(TRACKER, "20")),
    "interval 0": Case(settings={"save_interleaved_steps": 0}),
    "interval -10": Case(settings={"save_interleaved_steps": -10}),
    "save_max 0": Case(settings={"save_max": 0}),
    "save_max -1": Case(settings={"save_max": -1}),
    "saves off": Case(settings={"enable_save": False}),
    "saves off, no save_path": Case(settings={"enable_save": False, "save_path": '""'}),
    "no save_path": Case(settings={"save_path": '""'}),
    "another save_path": Case(settings={"save_path": '"./elsewhere"'}),
    "load_balanced": Case(settings={"load_balanced": True}),
    "rate a text": Case(settings={"learning_rate": "1e-2"}),
    "steps a text": Case(settings={"steps": '"40"'}),
    "steps a decimal": Case(settings={"steps": "4.0e+1"}),
    "load_path null": Case(load="null"),
    "load_path a number": Case(load="30"),
    "an unknown key of the training": Case(settings={"seed": "42\n  epochs: 2"}),
    "an unknown key of the checkpoints": Case(settings={"prefix": '"tiny"\n  resume_training: True'}),
    "unknown keys at the top": Case(add="load_checkpoint: ./x\nresume_training: True\nmode: 0\n"),
    "a prefix that the saves do not have": Case(settings={"prefix": "null"}),
    "ramp-up on": Case(settings={"global_batch_size": RAMP_UP}),
    "ramp-up that does not divide": Case(settings={"global_batch_size": "16\n  rampup_batch_size: [4, 5, 96]"}),
    "run_mode finetune": Case(add="run_mode: finetune\n"),
    "run_mode predict": Case(add="run_mode: predict\n"),
    "tensor_parallel 2": Case(settings={"tensor_parallel": 2}),
    "data_parallel_shard 3": Case(settings={"data_parallel_shard": 3}),
    "another schedule's total_steps": Case(settings={"lr_end": "1.0e-4\n  total_steps: 4000"}),
}

ONE_RANK = {
    f"{kind}: {name}": case
    for kind, cases in {"tree": TREES, "load_path": PATHS, "config": SETTINGS}.items()
    for name, case in cases.items()
}


def of_two(template: str) -> Iterator[tuple[str, Case]]:
    """Return the damages of a tree that two ranks wrote, and starts on another number of ranks."""
    yield "intact", Case(of=template, ranks=2)
    for kind in ("model", "opt"):
        yield f"{kind} of rank 1 missing", Case(of=template, ranks=2, edit=remove_shard(kind, 10, 1))
        yield f"{kind} of rank 1 cut", Case(of=template, ranks=2, edit=change_shard(kind, half, 10, 1))
    yield "model of rank 0 cut", Case(of=template, ranks=2, edit=change_shard("model", half, 10))
    metadata = "iteration_00000010/metadata.json"
    yield "metadata.json missing", Case(of=template, ranks=2, edit=remove(metadata))
    yield "metadata.json cut", Case(of=template, ranks=2, edit=write(metadata, '{"state_dict'))
    yield "on one rank", Case(of=template)
    yield "load_balanced", Case(of=template, ranks=2, settings={"load_balanced": True})
    for kind in ("model", "opt"):
        yield (
            f"{kind} of rank 0 cut, no_load_optim",
            Case(of=template, ranks=2, edit=change_shard(kind, half, 10), settings={"no_load_optim": True}),
        )


TWO_RANKS = {
    **{
        f"{template}: {name}": case
        for template in ("copies", "removed", "sharded", "sharded and removed")
        for name, case in of_two(template)
    },
    "copies: common.json missing": Case(of="copies", ranks=2, edit=remove("iteration_00000010/common.json")),
    "copies: older save, newest cut": Case(
        of="copies", ranks=2, load=f'"{save_of(5)}"', edit=change_shard("model", half, 10)
    ),
    "of one rank, on two": Case(ranks=2),
    "of one rank, on two, batch 16": Case(ranks=2, settings={"global_batch_size": 16}),
    "of one rank, on two, model missing": Case(ranks=2, edit=remove_shard("model")),
}


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Templates]:
    needs()
    server = new_server(tmp_path_factory.mktemp("server"))
    yield Templates(tmp_path_factory.mktemp("templates"), server)
    server.close()


CASES = {**ONE_RANK, **TWO_RANKS}

WRONG = {
    "removed: metadata.json missing": "without copies and slices the files alone suffice",
}
"""Cases in which ckpttool's prediction is wrong, and what the trainer does."""


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=[pytest.mark.xfail(reason=WRONG[name])] if name in WRONG else [])
        for name, case in CASES.items()
    ],
)
def test_it_begins_as_predicted(case: Case, templates: Templates, tmp_path: Path) -> None:
    template, history = templates.of(case.of)
    text = templates.text(case.of, {"load_path": case.load, **case.settings}, add=case.add)
    training = template.copy(tmp_path / "run", text, ranks=case.ranks, version="2.1.0")
    case.edit(training)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(training.folder)
        prediction, words = predicted(devices=case.ranks)
    trace = start(training, templates.server, "second")
    real = observed(training, trace, template, history)
    errors = training.errors("second").rpartition("\n")[2]
    assert (prediction is None) == case.unknown, f"ckpttool: {words}; real: {real} {errors}"
    assert prediction is None or prediction.equals(real), f"ckpttool: {prediction} {words}; real: {real} {errors}"
