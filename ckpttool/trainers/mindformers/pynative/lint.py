"""Mistakes in a config of the PyNative trainer: a table of rules, and the checks for them.

Source: starts of the real trainer of MindFormers 2.1.0, and, for behaviour that only an Ascend device shows, its code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING

from ckpttool.core.decide.lint_engine import Problem, Rule, View, findings, note, problems, suspect
from ckpttool.core.decide.lint_engine import safe_fixes as fixes
from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.settings import Nested, SafeFix, dotted
from ckpttool.trainers.findings import TrainersCode
from ckpttool.trainers.mindformers.findings import MindFormersCode
from ckpttool.trainers.mindformers.pynative.keys import KEYS, OF_OLDER, OPEN_KEYS, STATIC_KEYS
from ckpttool.trainers.mindformers.pynative.ramp_up import RampUp
from ckpttool.trainers.mindformers.yaml_values import none_as_text, number_as_text, odd_numbers

if TYPE_CHECKING:
    from ckpttool.core.domain.finding import Finding
    from ckpttool.core.domain.settings import Setting, Settings

_STOPS = "every start stops with"
_SAVES = "checkpoint.enable_save"
_WORDS = {"bool": "True or False", "int": "a whole number", "float": "a number", "str": "text"}


# Settings that stop every start --------------------------------------------------------------------------------------


def _sections(view: View) -> Iterator[Problem]:
    for section in (*KEYS, *OPEN_KEYS):
        entry = view.setting(section)
        if entry is not None and entry.value is not Nested.MAPPING:
            value = "nothing" if entry.value is None else _shown(entry)
            yield suspect(
                section,
                f"`{section}:` must have settings, but the config has {value}: {_STOPS} a TypeError",
                "write its settings below it, or remove it",
                expected="settings",
                actual=value,
            )


def _types(view: View) -> Iterator[Problem]:
    for section, types in (*KEYS.items(), *OPEN_KEYS.items()):
        for entry in view.inside(section) if view.is_section(section) else ():
            kind = types.get(str(entry.key[-1]), "any")
            if not _fits(entry, kind):
                expected = _WORDS[kind.removesuffix("?")]
                value = "nothing" if entry.value is None else _shown(entry)
                yield suspect(
                    dotted(entry.key),
                    f"`{dotted(entry.key)}` must be {expected}, but the config has {value}: {_STOPS} a TypeError",
                    f"write {expected}",
                    expected=expected,
                    actual=value,
                )


def _fits(entry: Setting, kind: str) -> bool:
    """Return whether a value has the type that the trainer requires: the trainer converts no values."""
    value = entry.value
    if kind == "any" or (value is None and kind.endswith("?")):
        return True
    match kind.removesuffix("?"):
        case "bool":
            return isinstance(value, bool)
        case "str":
            return isinstance(value, str)
        case "int":
            return isinstance(value, int) and not isinstance(value, bool)
        case _:
            # Another rule reports a number that YAML reads as text, and gives the right form.
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return is_number or (isinstance(value, str) and entry.spelt is not None)


def _shown(entry: Setting) -> str:
    if isinstance(entry.value, Nested):
        return f"a {entry.value.value}"
    return f"the text {entry.value!r}" if isinstance(entry.value, str) else repr(entry.value)


def _unknown_keys(view: View) -> Iterator[Problem]:
    for section, types in KEYS.items():
        for entry in view.inside(section) if view.is_section(section) else ():
            name = str(entry.key[-1])
            if name in types:
                continue
            if name in OF_OLDER.get(section, ()):
                yield suspect(
                    dotted(entry.key),
                    f"`{name}` is a key of MindFormers 1.9; in 2.0 and later {_STOPS} a ValueError",
                    "remove it, or write data_parallel_shard",
                )
                continue
            close = get_close_matches(name, types, n=1)
            yield suspect(
                dotted(entry.key),
                f"`{name}` is not a key of `{section}:` in MindFormers' PyNative trainer: {_STOPS} a ValueError, "
                "Unknown configuration keys",
                f"write `{close[0]}`" if close else "remove it",
            )


def _sizes(view: View) -> Iterator[Problem]:
    for key in ("global_batch_size", "local_batch_size", "steps"):
        place = f"training.{key}"
        if view.setting(place) is not None and view.count(place) < 1:
            effect = "no step is trained" if key == "steps" else f"{_STOPS} a ValueError"
            yield suspect(
                place, f"`{place}: {view.get(place)}` must be at least 1: {effect}", "write a positive number"
            )
    for key in ("tensor_parallel", "pipeline_parallel", "context_parallel", "data_parallel_shard"):
        place = f"parallelism.{key}"
        size = view.count(place)
        if size == 0 or (size < 0 and key != "data_parallel_shard"):
            error = "ValueError" if size else "ZeroDivisionError"
            yield suspect(place, f"`{place}: {size}`: {_STOPS} a {error}", "write a positive number")
    batch, local = view.count("training.global_batch_size"), view.count("training.local_batch_size")
    if batch > 0 and local > 0 and batch % local:
        yield suspect(
            view.at("training.global_batch_size", "training"),
            f"`global_batch_size` {batch} is not divisible by `local_batch_size` {local}: {_STOPS} a ValueError",
            "make it a multiple of local_batch_size x data-parallel ranks",
        )


def _ramp_up(view: View) -> Iterator[Problem]:
    key = "training.rampup_batch_size"
    schedule = view.raw(key)
    if schedule is None:
        return
    ramp_up = RampUp.of(schedule, view.count("training.global_batch_size"))
    local = max(view.count("training.local_batch_size"), 1)
    if ramp_up is None:
        yield suspect(
            key,
            f"`rampup_batch_size` does not lead to `global_batch_size`: {_STOPS} a ValueError",
            "write [start, increment, samples], with global_batch_size - start a multiple of the increment",
        )
    elif ramp_up.start % local or (ramp_up.levels and ramp_up.increment % local):
        yield suspect(
            key,
            f"a batch size of this schedule is not divisible by `local_batch_size` {local}: {_STOPS} a ValueError",
            "make start and increment multiples of local_batch_size x data-parallel ranks",
        )


def _run_mode(view: View) -> Iterator[Problem]:
    mode = view.get("run_mode")
    if view.setting("run_mode") is None or mode == "train":
        return
    effect = "does not train, so nothing is resumed" if mode == "predict" else f"is not known: {_STOPS} a ValueError"
    yield suspect("run_mode", f"`run_mode: {mode}` {effect}", "write `run_mode: train`")


def _save_path(view: View) -> Iterator[Problem]:
    section = view.setting("checkpoint")
    if section is not None and section.value is not Nested.MAPPING:
        return
    if view.get(_SAVES) is not False and not view.get("checkpoint.save_path"):
        yield suspect(
            view.at("checkpoint.save_path", "checkpoint"),
            f"`checkpoint.save_path` is empty: {_STOPS} a ValueError",
            "write the checkpoint folder",
        )


def _interval(view: View) -> Iterator[Problem]:
    key = "checkpoint.save_interleaved_steps"
    if view.get(_SAVES) is False or view.setting(key) is None:
        return
    steps = view.count(key, 1000)
    if steps == 0:
        effect = "the training stops with a ZeroDivisionError after its first step"
        yield suspect(key, f"`{key}: 0`: {effect}", "write the number of steps between saves")
    elif steps < 0:
        yield note(key, f"`{key}: {steps}` has the effect of {-steps}", f"write {-steps}")


def _adapter(view: View) -> Iterator[Problem]:
    if view.is_on("checkpoint.save_trainable_only") and not view.get("checkpoint.base_load_path"):
        yield suspect(
            "checkpoint.save_trainable_only",
            f"`save_trainable_only: True` needs `base_load_path`: {_STOPS} a ValueError",
            "write the folder of the complete model as checkpoint.base_load_path",
        )


def _tensor_parallel(view: View) -> Iterator[Problem]:
    key = "parallelism.tensor_parallel"
    if view.count(key) > 1 and not view.is_on("parallelism.sequence_parallel"):
        yield suspect(
            key,
            f"`tensor_parallel: {view.count(key)}` needs `sequence_parallel: True`: {_STOPS} a ValueError",
            "write `sequence_parallel: True`",
        )


# Settings without the expected effect --------------------------------------------------------------------------------


def _static_keys(view: View) -> Iterator[Problem]:
    for entry in view.inside(""):
        name = str(entry.key[0])
        if name in STATIC_KEYS:
            yield suspect(
                name,
                f"`{name}` is a key of MindFormers' static trainer; the PyNative trainer accepts and ignores it",
                "remove it; the settings of a resume are load_path, no_load_optim and load_balanced under checkpoint:",
            )


def _unread(view: View) -> Iterator[Problem]:
    key = "lr_scheduler.total_steps"
    if view.count(key, -1) not in {-1, view.count("training.steps", 1000)}:
        yield note(key, f"`{key}` has no effect: the trainer sets it to `training.steps`", "remove it")
    if view.is_section("monitor.health_checkpoint"):
        yield note(
            "monitor.health_checkpoint",
            "`monitor.health_checkpoint` is read by nothing in MindFormers 1.9 to 2.1: no save is marked healthy or "
            "unhealthy, and no step is skipped",
            "remove it; ckpttool health judges the saves by the training log",
        )


# The saves of a training run, and a resume from them ------------------------------------------------------------------


def _saves_nothing(view: View) -> Iterator[Problem]:
    if view.get(_SAVES) is False:
        yield suspect(_SAVES, "`enable_save: False`: nothing is saved", "write `enable_save: True`")
    elif (kept := view.count("checkpoint.save_max", 5)) < 1:
        effect = "each save is removed at once, and the tracker names a missing folder"
        yield suspect("checkpoint.save_max", f"`save_max: {kept}`: {effect}", "write 2 or more")


def _keeps_one(view: View) -> Iterator[Problem]:
    key = "checkpoint.save_max"
    if view.get(_SAVES) is False or view.count(key, 5) != 1:
        return
    if view.is_on("checkpoint.async_save"):
        message = "`save_max: 1` with `async_save: True`: the tracker always names a folder that was removed"
        yield suspect(key, f"{message}, so every start from the folder above stops", "write 2 or more")
    else:
        yield note(key, "`save_max: 1` keeps one checkpoint of the run", "write 2 or more")


def _async_save(view: View) -> Iterator[Problem]:
    if view.is_on("checkpoint.async_save") and view.get(_SAVES) is not False:
        yield note(
            "checkpoint.async_save",
            "with `async_save: True` the tracker names the save before the newest one, after the end of the training "
            "too",
            "set checkpoint.load_path to the folder of one save, as `ckpttool launch` does",
        )


def _no_optimizer(view: View) -> Iterator[Problem]:
    if view.is_on("checkpoint.no_save_optim"):
        yield suspect(
            "checkpoint.no_save_optim",
            "`no_save_optim: True`: no training can resume from its saves, which lack the optimizer's state",
            "write `no_save_optim: False`",
        )


def _weights_only(view: View) -> Iterator[Problem]:
    if view.is_on("checkpoint.no_load_optim") and view.get("checkpoint.load_path"):
        yield note(
            "checkpoint.no_load_optim",
            "`no_load_optim: True` loads only weights: the training starts at step 1 and sample 0, and a resume "
            "overwrites the saves in save_path from the first one on",
            "write False to resume; keep it for a fine-tuning",
        )


def _zeroed(view: View) -> Iterator[Problem]:
    if view.is_on("checkpoint.load_balanced") and not view.is_on("checkpoint.no_load_optim"):
        yield suspect(
            "checkpoint.load_balanced",
            "`load_balanced: True` loads no optimizer state: on several ranks every moment of Adam keeps its initial "
            "zero, without an error; one rank stops with a RuntimeError",
            "write `load_balanced: False`",
            expected="False",
            actual="True",
        )


def _prefix(view: View) -> Iterator[Problem]:
    prefix = view.get("checkpoint.prefix")
    if isinstance(prefix, str) and prefix.endswith("opt"):
        yield note(
            "checkpoint.prefix",
            f"with the prefix {prefix!r} the trainer does not notice a missing optimizer file, because it looks for "
            "*opt-*.safetensors",
            "choose a prefix that does not end in opt",
        )


def _nan(view: View) -> Iterator[Problem]:
    if not view.is_on("training.use_skip_step_on_nan"):
        yield note(
            view.at("training.use_skip_step_on_nan", "training"),
            "without `use_skip_step_on_nan: True` (2.1 and later) a NaN gradient is applied, and the NaN weights are "
            "saved",
            "write `use_skip_step_on_nan: True` under training:",
        )


STOPS: tuple[Rule[View], ...] = (
    Rule(code=TrainersCode.CONFIG_WRONG_TYPE, check=number_as_text),
    Rule(code=TrainersCode.CONFIG_WRONG_TYPE, check=_sections),
    Rule(code=TrainersCode.CONFIG_WRONG_TYPE, check=_types),
    Rule(code=MindFormersCode.UNKNOWN_KEY, check=_unknown_keys),
    Rule(code=TrainersCode.CONFIG_WRONG_TYPE, check=_sizes),
    Rule(code=TrainersCode.CONFIG_WRONG_TYPE, check=_ramp_up),
    Rule(code=Code.NOT_A_TRAINING, check=_run_mode),
    Rule(code=TrainersCode.CONFIG_WRONG_TYPE, check=_save_path),
    Rule(code=TrainersCode.CONFIG_WRONG_TYPE, check=_interval),
    Rule(code=Code.CONFIG_DISAGREES, check=_adapter),
    Rule(code=Code.CONFIG_DISAGREES, check=_tensor_parallel),
)
"""Rules for which a suspicion means that a start stops before its second step."""

WHEN_READ: tuple[Rule[View], ...] = (*STOPS, Rule(code=TrainersCode.CONFIG_KEY_IGNORED, check=_static_keys))
"""Rules that every command with a config applies."""

BEFORE_A_START: tuple[Rule[View], ...] = (
    Rule(code=TrainersCode.CONFIG_KEY_IGNORED, check=_unread),
    Rule(code=TrainersCode.SAVES_NOTHING, check=_saves_nothing),
    Rule(code=Code.KEEPS_ONE_CHECKPOINT, check=_keeps_one),
    Rule(code=MindFormersCode.ASYNC_SAVE_LAGS, check=_async_save),
    Rule(code=TrainersCode.ONLY_MODEL_SAVED, check=_no_optimizer),
    Rule(code=Code.CONFIG_DISAGREES, check=_weights_only),
    Rule(code=MindFormersCode.OPTIMIZER_ZEROED, check=_zeroed),
    Rule(code=Code.CONFIG_DISAGREES, check=_prefix),
    Rule(code=MindFormersCode.NAN_APPLIED, check=_nan),
    Rule(code=MindFormersCode.YAML_ODD_NUMBER, check=odd_numbers),
    Rule(code=MindFormersCode.YAML_NONE_IS_TEXT, check=none_as_text),
)
"""All other rules."""


def lint(settings: Settings, rules: Iterable[Rule[View]]) -> tuple[Finding, ...]:
    """Return the findings of the rules, in the order of the config's lines, and then sorted by text."""
    view = View(settings)
    return findings(view, problems(view, rules), path=settings.path)


def safe_fixes(settings: Settings) -> tuple[SafeFix, ...]:
    """Return fixes for mistakes with one correct value, excluding values from an alias."""
    view = View(settings)
    return fixes(view, problems(view, (*WHEN_READ, *BEFORE_A_START)))
