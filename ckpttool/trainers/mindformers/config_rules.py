"""What in a training config would make MindFormers resume otherwise than its author meant."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ckpttool.domain.finding import Code, Finding, Severity, brief
from ckpttool.domain.settings import KeyPath
from ckpttool.formats.safe_yaml import Document, PlainText
from ckpttool.trainers.mindformers.train_config import LEGACY_SWITCHES, TOP_ONLY

WHOLE_DATA_SET = -1  # as a sink size
_SHOWN = 40  # characters of a wrong value that a message repeats

# Settings that `ckpttool launch` writes itself: what is wrong with them in the base config has no effect afterwards.
_REWRITTEN = frozenset({
    "load_checkpoint", "resume_training", "load_ckpt_format", "data_skip_steps", "ignore_data_skip",
    "checkpoint.no_load_optim", *LEGACY_SWITCHES,
})  # fmt: skip

_BOOLS = (
    "use_parallel", "auto_trans_ckpt", "ignore_data_skip", "use_checkpoint_health_monitor", *LEGACY_SWITCHES,
    "remove_redundancy", "resume_by_last_timestamp_ckpt", "only_save_strategy", "use_skip_data_by_global_norm",
    "runner_config.sink_mode", "parallel.full_batch", "checkpoint.no_load_optim", "checkpoint.no_save_optim",
    "monitor_config.monitor_on", "monitor_config.check_for_global_norm", "check_for_nan_in_loss_and_grad",
    "runner_wrapper.use_clip_grad", "runner_wrapper.local_norm",
)  # fmt: skip

_POSITIVE = (
    "micro_batch_interleave_num", "runner_config.batch_size", "runner_config.epochs",
    "runner_config.gradient_accumulation_steps", "parallel_config.data_parallel", "parallel_config.model_parallel",
    "parallel_config.pipeline_stage", "parallel_config.context_parallel", "parallel_config.micro_batch_num",
)  # fmt: skip

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

# Sections in which MindFormers 1.6 and later stop at a key that they do not know.
_STRICT = frozenset({
    "runner_config", "parallel_config", "recompute_config", "swap_config", "moe_config", "monitor_config",
})  # fmt: skip

_FLOATS = frozenset({
    "learning_rate", "lr_end", "lr", "min_lr", "max_lr", "weight_decay", "eps", "epsilon", "betas", "beta1", "beta2",
    "momentum", "threshold", "loss_scale_value", "initializer_range", "theta", "routed_scaling_factor", "mem_coeff",
})  # fmt: skip
_FLOAT_ENDINGS = (
    "_eps", "_epsilon", "_threshold", "_ratio", "_factor", "_rate", "_decay", "_prob", "_dropout", "_coeff", "_lr",
    "_theta", "_scale",
)  # fmt: skip

# What float() takes and YAML 1.1 does not: an exponent without a point before it or a sign in it.
_NUMBER_AS_TEXT = re.compile(r"[-+]?(\d[\d_]*(?:\.\d*)?|\.\d+)[eE][-+]?\d+")


def check(document: Document, *, path: str) -> Iterator[Finding]:
    """Yield what is wrong, in no order that means anything."""
    config = _Config(document, path)
    for rule in (_numbers_as_text, _types, _resume_keys, _places, _trainer, _batch_sizes, _layout, _prefix):
        yield from map(brief, rule(config))


@dataclass(frozen=True, slots=True)
class _Config:
    document: Document
    path: str

    def get(self, key: str) -> object:
        """Return the value under a dotted key; None where it is not set."""
        value: object = self.document.data
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def number(self, key: str) -> int:
        """Return a positive whole number; 1, MindFormers' default, where it is not set or none."""
        return max(_whole(self.get(key)) or 1, 1)

    def line(self, key: str | KeyPath) -> int | None:
        return self.document.lines.get(tuple(key.split(".")) if isinstance(key, str) else key)

    def wrong(self, key: str, expected: str, remedy: str) -> Finding:
        actual = _shown(self.get(key))
        return Finding(
            code=Code.CONFIG_WRONG_TYPE,
            severity=Severity.NOTE if key in _REWRITTEN else Severity.SUSPECT,
            message=f"`{key}` must be {expected}, but the config has {actual}",
            path=self.path,
            expected=expected,
            actual=actual,
            remedy="`ckpttool launch` writes this key itself" if key in _REWRITTEN else remedy,
            line=self.line(key),
        )

    def finding(self, code: Code, severity: Severity, key: str, message: str, remedy: str) -> Finding:
        return Finding(
            code=code, severity=severity, message=message, path=self.path, remedy=remedy, line=self.line(key)
        )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _shown(value: object) -> str:
    kind = "the text " if isinstance(value, str) else "the mapping " if isinstance(value, dict) else ""
    text = "nothing" if value is None else repr(value)
    return kind + (text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def _numbers_as_text(config: _Config) -> Iterator[Finding]:
    return (_number_as_text(config, text) for text in config.document.plain if _NUMBER_AS_TEXT.fullmatch(text.text))


def _number_as_text(config: _Config, plain: PlainText) -> Finding:
    key = next((part for part in reversed(plain.path) if isinstance(part, str)), "")
    known = key in _FLOATS or key.endswith(_FLOAT_ENDINGS)
    mantissa, _, exponent = plain.text.lower().partition("e")
    signed = exponent if exponent[0] in "+-" else f"+{exponent}"
    right = f"{mantissa}{'' if '.' in mantissa else '.0'}e{signed}"
    return Finding(
        code=Code.CONFIG_WRONG_TYPE,
        # Under another key it may be meant as text: the hash of a commit can look like this.
        severity=Severity.SUSPECT if known else Severity.NOTE,
        message=f"`{_dotted(plain.path)}` is {plain.text}, which YAML reads as text, not as a number: "
        "a number with an exponent needs a point and a sign",
        path=config.path,
        expected="a number",
        actual=f"the text {plain.text!r}",
        remedy=f"write {right}, or put it in quotes where text is meant",
        line=plain.line,
    )


def _dotted(path: KeyPath) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def _types(config: _Config) -> Iterator[Finding]:
    for key in _BOOLS:
        value = config.get(key)
        if value is not None and not isinstance(value, bool):
            yield config.wrong(key, "True or False", "write True or False, without quotes; any text counts as True")
    for key in _POSITIVE:
        if config.line(key) is not None and (_whole(config.get(key)) or 0) < 1:
            yield config.wrong(key, "a whole number of at least 1", "write the number without quotes, point or sign")
    yield from _sink_size(config)


def _sink_size(config: _Config) -> Iterator[Finding]:
    key = "runner_config.sink_size"
    size = _whole(config.get(key)) or 0
    if config.line(key) is not None and size < 1 and size != WHOLE_DATA_SET:
        yield config.wrong(key, "a whole number of at least 1, or -1", "write how many batches a data sink has")
    if size == WHOLE_DATA_SET and config.get("runner_config.sink_mode") is not False:
        yield config.finding(
            Code.CONFIG_DISAGREES,
            Severity.NOTE,
            key,
            "`sink_size: -1` sinks the whole data set at once, and a config does not tell how many batches that is",
            "give --sink-size, the number of batches in the data set, so that the skip is rounded as MindSpore does",
        )


def _resume_keys(config: _Config) -> Iterator[Finding]:
    if config.get("load_ckpt_format") not in (None, "ckpt", "safetensors"):
        yield config.wrong("load_ckpt_format", "ckpt or safetensors", "")
    resume = config.get("resume_training")
    quoted = isinstance(resume, str) and resume.strip().lower() in {"true", "false"}
    if quoted or not isinstance(resume, str | bool | None):
        yield config.wrong("resume_training", "True, False or the name of a checkpoint file", "")
    skip = _whole(config.get("data_skip_steps"))
    if config.get("data_skip_steps") is not None and (skip is None or skip < 0):
        yield config.wrong("data_skip_steps", "a whole number of at least 0", "")
    elif skip == 0:
        yield config.finding(
            Code.CONFIG_KEY_IGNORED,
            Severity.NOTE,
            "data_skip_steps",
            "`data_skip_steps: 0` means to MindFormers that it is not set, so it skips the steps of the checkpoint",
            "write `ignore_data_skip: True` to start the data at its beginning; `ckpttool launch --new-dataset` does",
        )
    yield from _inherits(config)


def _inherits(config: _Config) -> Iterator[Finding]:
    if config.get("base_config") is not None:
        yield config.finding(
            Code.CONFIG_KEY_IGNORED,
            Severity.SUSPECT,
            "base_config",
            "`base_config` takes settings from another file, which ckpttool does not read: "
            "world size and global batch size are not known",
            "write one config with all settings, or give --world-size and --gbs",
        )


def _places(config: _Config) -> Iterator[Finding]:
    trainer = config.get("trainer")
    passes_on = isinstance(trainer, dict) and _OWN_CLASS not in trainer
    for section, value in config.document.data.items():
        if isinstance(value, dict) and not (passes_on and section == "trainer"):
            for key in TOP_ONLY:
                if key in value:
                    yield _misplaced(config, section, key)
    for key, home in _HOMES.items():
        if key in config.document.data:
            yield config.finding(
                Code.CONFIG_KEY_IGNORED,
                Severity.SUSPECT,
                key,
                f"`{key}` stands at the top level, where MindFormers ignores it",
                f"move it into `{home}:`",
            )


def _misplaced(config: _Config, section: str, key: str) -> Finding:
    inner = f"{section}.{key}"
    if section in _STRICT:
        return config.finding(
            Code.CONFIG_KEY_IGNORED,
            Severity.SUSPECT,
            inner,
            f"`{key}` stands under `{section}:`, where MindFormers 1.6 and later stop with a KeyError "
            "and older ones ignore it",
            f"move `{key}` to the top level",
        )
    agrees = key in config.document.data and config.document.data[key] == config.get(inner)
    return config.finding(
        Code.CONFIG_KEY_IGNORED,
        Severity.NOTE if agrees else Severity.SUSPECT,
        inner,
        f"`{key}` stands under `{section}:`, where MindFormers ignores it; it is read at the top level only"
        + (", where it stands too" if agrees else ""),
        "nothing to do" if agrees else f"move `{key}` to the top level",
    )


def _trainer(config: _Config) -> Iterator[Finding]:
    """Find what stops every start, while the trainer is built.

    Source:
        build_trainer and MindFormerRegister.get_instance_from_cfg (1.3.2 to 2.1.0) pass each key but `type` as an
        argument to the class; `__init__(self, model_name=None)` is what all classes of all these versions have.
    """
    trainer = config.get("trainer")
    if not isinstance(trainer, dict) or _OWN_CLASS in trainer:
        return
    top = config.document.data
    for key in trainer:
        if key in _OF_TRAINER:
            continue
        twice = key in top and _is_same(top[key], trainer[key])
        if twice:
            ours = ", as an older `ckpttool launch` wrote it" if key in _WRITTEN_ONCE else ""
            remedy = f"delete it: the same stands at the top level{ours}"
        else:
            remedy = f"move `{key}` to the top level" if key in TOP_ONLY else "delete it"
        yield Finding(
            code=Code.TRAINER_KEY_REFUSED,
            severity=Severity.SUSPECT,
            message=f"`{key}` stands under `trainer:`, which MindFormers passes on to the trainer's class; that takes "
            "`type` and `model_name` alone, so every start ends in a TypeError",
            path=config.path,
            remedy=remedy,
            line=config.line(("trainer", str(key))),
        )


def _is_same(one: object, other: object) -> bool:
    return type(one) is type(other) and one == other


def _batch_sizes(config: _Config) -> Iterator[Finding]:
    stages = config.number("parallel_config.pipeline_stage")
    micro = config.number("parallel_config.micro_batch_num")
    steps = config.number("runner_config.gradient_accumulation_steps")
    if micro > 1 and stages == 1:
        yield config.finding(
            Code.CONFIG_KEY_IGNORED,
            Severity.NOTE,
            "parallel_config.micro_batch_num",
            f"`micro_batch_num: {micro}` has no effect without pipeline stages: MindFormers resets it to 1",
            "use gradient_accumulation_steps for a larger global batch size",
        )
    if steps > 1 and (stages > 1 or config.get("use_parallel") is not True):
        why = "with pipeline stages" if stages > 1 else "without use_parallel"
        yield config.finding(
            Code.CONFIG_KEY_IGNORED,
            Severity.NOTE,
            "runner_config.gradient_accumulation_steps",
            f"`gradient_accumulation_steps: {steps}` has no effect {why}: MindFormers resets it to 1",
            "use micro_batch_num for a larger global batch size" if stages > 1 else "set it to 1",
        )
    yield from _data_slices(config)


def _data_slices(config: _Config) -> Iterator[Finding]:
    strategy = config.get("parallel.dataset_strategy")
    if config.get("parallel.full_batch") is not False or not isinstance(strategy, list) or not strategy:
        return
    slices = strategy[0][0] if isinstance(strategy[0], list) and strategy[0] else None
    parallel = config.number("parallel_config.data_parallel")
    if slices != parallel:
        yield config.finding(
            Code.CONFIG_DISAGREES,
            Severity.SUSPECT,
            "parallel.dataset_strategy",
            f"`dataset_strategy` slices the data {slices} times, but `data_parallel` is {parallel}: "
            "with `full_batch: False` MindFormers 1.6 and later stop unless they are equal",
            "make the first number of each data set's strategy equal to data_parallel",
        )


def _layout(config: _Config) -> Iterator[Finding]:
    if config.get("checkpoint") and config.get("use_legacy_format"):
        yield config.finding(
            Code.CONFIG_DISAGREES,
            Severity.NOTE,
            "use_legacy_format",
            "`use_legacy_format: True` has no effect: a `checkpoint:` section switches to the newer layout",
            "remove the one that is not meant",
        )


def _prefix(config: _Config) -> Iterator[Finding]:
    callbacks = config.get("callbacks")
    for index, callback in enumerate(callbacks if isinstance(callbacks, list) else []):
        prefix = callback.get("prefix") if isinstance(callback, dict) else None
        if not isinstance(prefix, str) or callback.get("type") != "CheckpointMonitor":
            continue
        problem = None
        if "rank" in prefix:
            problem = "1.7 and later stop at the start, and older ones take it for the rank of a file"
        elif "." in prefix and config.get("auto_trans_ckpt") is True:
            problem = "1.8 and later cut it at the point when auto_trans_ckpt looks for the files"
        if problem:
            yield Finding(
                code=Code.CONFIG_DISAGREES,
                severity=Severity.SUSPECT,
                message=f"the checkpoint prefix {prefix!r} breaks MindFormers' own resume: {problem}",
                path=config.path,
                remedy="choose a prefix of letters, digits and underscores without the word rank",
                line=config.line(("callbacks", index, "prefix")),
            )
