"""Rules about settings that stand where nobody reads them, or that others overrule; every command asks them."""

from __future__ import annotations

from collections.abc import Iterator

from ckpttool.core.decide.lint_engine import Problem, Rule, note, suspect
from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.settings import Nested
from ckpttool.trainers.mindformers.lint.types import KNOWN_KEYS, WHOLE_DATA_SET
from ckpttool.trainers.mindformers.train_config import TOP_ONLY, ConfigView

# All that a trainer class takes; `auto_register` names a class of the user's own, which may take anything.
_OF_TRAINER = frozenset({"type", "model_name"})
_OWN_CLASS = "auto_register"
_WRITTEN_ONCE = frozenset({"data_skip_steps", "ignore_data_skip"})  # there by `ckpttool launch` before it knew

# Read in their section and nowhere else. (`batch_size` is left out: data set sections have one of their own.)
_HOMES = {
    "sink_mode": "runner_config", "sink_size": "runner_config", "epochs": "runner_config",
    "batch_size": "runner_config", "gradient_accumulation_steps": "runner_config",
    "data_parallel": "parallel_config", "model_parallel": "parallel_config", "pipeline_stage": "parallel_config",
    "context_parallel": "parallel_config", "micro_batch_num": "parallel_config",
}  # fmt: skip


def _no_effect(view: ConfigView) -> Iterator[Problem]:
    if view.count("data_skip_steps") == 0:
        yield note(
            "data_skip_steps",
            "`data_skip_steps: 0` means to MindFormers that it is not set, so it skips the steps of the checkpoint",
            "write `ignore_data_skip: True` to start the data at its beginning; `ckpttool launch --new-dataset` does",
        )
    if view.get("base_config") is not None:
        yield suspect(
            "base_config",
            "`base_config` takes settings from another file, which ckpttool does not read: "
            "world size and global batch size are not known",
            "write one config with all settings, or give --world-size and --gbs",
        )
    yield from _batch_sizes(view)


def _batch_sizes(view: ConfigView) -> Iterator[Problem]:
    stages, micro, steps = (
        max(view.count(key), 1)
        for key in (
            "parallel_config.pipeline_stage",
            "parallel_config.micro_batch_num",
            "runner_config.gradient_accumulation_steps",
        )
    )
    if micro > 1 and stages == 1:
        yield note(
            "parallel_config.micro_batch_num",
            f"`micro_batch_num: {micro}` has no effect without pipeline stages: MindFormers resets it to 1",
            "use gradient_accumulation_steps for a larger global batch size",
        )
    if steps > 1 and (stages > 1 or not view.is_on("use_parallel")):
        why = "with pipeline stages" if stages > 1 else "without use_parallel"
        yield note(
            "runner_config.gradient_accumulation_steps",
            f"`gradient_accumulation_steps: {steps}` has no effect {why}: MindFormers resets it to 1",
            "use micro_batch_num for a larger global batch size" if stages > 1 else "set it to 1",
        )


def _misplaced(view: ConfigView) -> Iterator[Problem]:
    passes_on = view.is_section("trainer") and view.setting(f"trainer.{_OWN_CLASS}") is None
    for section in view.inside(""):
        name = str(section.key[0])
        if section.value is Nested.MAPPING and not (passes_on and name == "trainer"):
            for key in TOP_ONLY:
                if view.setting(f"{name}.{key}") is not None:
                    yield _of_the_top(view, name, key)
    for key, home in _HOMES.items():
        if view.setting(key) is not None:
            yield suspect(
                key, f"`{key}` stands at the top level, where MindFormers ignores it", f"move it into `{home}:`"
            )


def _of_the_top(view: ConfigView, section: str, key: str) -> Problem:
    inner = f"{section}.{key}"
    if section in KNOWN_KEYS:
        return suspect(
            inner,
            f"`{key}` stands under `{section}:`, where MindFormers 1.6 and later stop with a KeyError "
            "and older ones ignore it",
            f"move `{key}` to the top level",
        )
    agrees = view.setting(key) is not None and view.raw(key) == view.raw(inner)
    return (note if agrees else suspect)(
        inner,
        f"`{key}` stands under `{section}:`, where MindFormers ignores it; it is read at the top level only"
        + (", where it stands too" if agrees else ""),
        "nothing to do" if agrees else f"move `{key}` to the top level",
    )


def _refused(view: ConfigView) -> Iterator[Problem]:
    """Find what stops every start, while the trainer is built.

    Source:
        build_trainer and MindFormerRegister.get_instance_from_cfg (1.3.2 to 2.1.0) pass each key but `type` as an
        argument to the class; `__init__(self, model_name=None)` is what all classes of all these versions have.
    """
    if view.setting(f"trainer.{_OWN_CLASS}") is not None:
        return
    for entry in view.inside("trainer") if view.is_section("trainer") else ():
        key = str(entry.key[-1])
        if key in _OF_TRAINER:
            continue
        nested, above = view.raw(f"trainer.{key}"), view.raw(key)
        if view.setting(key) is not None and type(nested) is type(above) and nested == above:
            ours = ", as an older `ckpttool launch` wrote it" if key in _WRITTEN_ONCE else ""
            remedy = f"delete it: the same stands at the top level{ours}"
        else:
            remedy = f"move `{key}` to the top level" if key in TOP_ONLY else "delete it"
        yield suspect(
            f"trainer.{key}",
            f"`{key}` stands under `trainer:`, which MindFormers passes on to the trainer's class; that takes "
            "`type` and `model_name` alone, so every start ends in a TypeError",
            remedy,
        )


def _sinks_all(view: ConfigView) -> Iterator[Problem]:
    key = "runner_config.sink_size"
    if view.count(key) == WHOLE_DATA_SET and view.get("runner_config.sink_mode") is not False:
        yield note(
            key,
            "`sink_size: -1` sinks the whole data set at once, and a config does not tell how many batches that is",
            "give --sink-size, the number of batches in the data set, so that the skip is rounded as MindSpore does",
        )


def _data_slices(view: ConfigView) -> Iterator[Problem]:
    strategy = view.raw("parallel.dataset_strategy")
    if view.get("parallel.full_batch") is not False or not isinstance(strategy, list) or not strategy:
        return
    slices = strategy[0][0] if isinstance(strategy[0], list) and strategy[0] else None
    parallel = max(view.count("parallel_config.data_parallel"), 1)
    if slices != parallel:
        yield suspect(
            "parallel.dataset_strategy",
            f"`dataset_strategy` slices the data {slices} times, but `data_parallel` is {parallel}: "
            "with `full_batch: False` MindFormers 1.6 and later stop unless they are equal",
            "make the first number of each data set's strategy equal to data_parallel",
        )


def _two_layouts(view: ConfigView) -> Iterator[Problem]:
    if view.raw("checkpoint") and view.raw("use_legacy_format"):
        yield note(
            "use_legacy_format",
            "`use_legacy_format: True` has no effect: a `checkpoint:` section switches to the newer layout",
            "remove the one that is not meant",
        )


def _prefix(view: ConfigView) -> Iterator[Problem]:
    for callback in view.callbacks("CheckpointMonitor"):
        key = f"{callback}.prefix"
        prefix = view.get(key)
        if not isinstance(prefix, str):
            continue
        problem = None
        if "rank" in prefix:
            problem = "1.7 and later stop at the start, and older ones take it for the rank of a file"
        elif "." in prefix and view.is_on("auto_trans_ckpt"):
            problem = "1.8 and later cut it at the point when auto_trans_ckpt looks for the files"
        if problem:
            yield suspect(
                key,
                f"the checkpoint prefix {prefix!r} breaks MindFormers' own resume: {problem}",
                "choose a prefix of letters, digits and underscores without the word rank",
            )


PLACES = (
    *(Rule(code=Code.CONFIG_KEY_IGNORED, check=check, needs_all=False) for check in (_no_effect, _misplaced)),
    Rule(code=Code.TRAINER_KEY_REFUSED, check=_refused, needs_all=False),
    *(
        Rule(code=Code.CONFIG_DISAGREES, check=check, needs_all=False)
        for check in (_sinks_all, _data_slices, _two_layouts, _prefix)
    ),
)
