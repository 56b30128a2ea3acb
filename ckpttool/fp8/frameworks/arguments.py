"""Megatron's arguments, as printed at its start, or as written in a script or a separate file. Scripts are never run.

Source:
    Megatron-LM core_v0.12 to 2026-08 (`megatron/training/arguments.py`, `core/transformer/transformer_config.py`). The
    printed form, `  fp8_amax_history_len ............................ 1`, has the effective values, defaults included,
    whatever scripts and files they came from (`_print_args`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpttool.core.domain.settings import Setting, Value

NAMES = frozenset({
    "fp8_format", "fp8_recipe", "fp8_margin", "fp8_interval", "fp8_amax_history_len", "fp8_amax_compute_algo",
    "fp8_wgrad", "fp8_output_proj", "fp8_dot_product_attention", "fp8_multi_head_attention", "fp8_param_gather",
    "tp_only_amax_red", "first_last_layers_bf16", "num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16",
    "check_for_nan_in_loss_and_grad", "exp_avg_dtype", "exp_avg_sq_dtype", "te_precision_config_file", "fp8_e4m3",
    "fp8_hybrid",
})  # fmt: skip
"""Names of the arguments that concern FP8."""

UNKNOWN = "$"
"""Marker of a variable in a value. Its content is unknown unless the script runs."""

_SWITCHES = frozenset({
    "fp8_wgrad", "fp8_output_proj", "fp8_dot_product_attention", "fp8_multi_head_attention", "fp8_param_gather",
    "tp_only_amax_red", "first_last_layers_bf16", "check_for_nan_in_loss_and_grad", "fp8_e4m3", "fp8_hybrid",
})  # fmt: skip
_COMMON = frozenset({
    "bf16", "fp16", "num_layers", "hidden_size", "micro_batch_size", "global_batch_size", "tensor_model_parallel_size",
})  # fmt: skip
"""Names of arguments of training runs with and without FP8."""

BEGINS = b"-- arguments --"
ENDS = b"-- end of arguments --"
DOTS = rb" \.{1,47} "

_PRINTED_WIDTH = 48
"""Number of characters of a name with the dots after it."""

_PRINTED = re.compile(rb"(?:.{0,200}?\W)??(\w{1,47}) (\.{1,47})(?: (.*?))?\s*", re.DOTALL)
"""Pattern of a printed argument. A launcher may print the rank before the line."""

_COMMENT = re.compile(r"(?:^|(?<=\s))#[^\n]*")
_WORD = re.compile(r"(?:\$\{[^{}\s]*\}|[^\s\"'`();,|&<>\\])+")
_FLAG = re.compile(r"--(?P<off>no-|disable-)?(?P<name>[a-z][a-z0-9]*(?:-[a-z0-9]+)*)(?:=(?P<value>.*))?", re.DOTALL)
_BRANCH = re.compile(r"^\s*(?:else|elif|case)\b", re.MULTILINE)
_WHOLE = re.compile(r"[+-]?\d{1,18}")
_DECIMAL = re.compile(r"[+-]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][+-]?\d{1,3})?")
_WORDS: dict[str, Value] = {"True": True, "False": False, "None": None}


class PrintedArguments:
    """Collector of the arguments printed in a log, line by line. The last complete printout counts."""

    def __init__(self) -> None:
        self.values: dict[str, str] | None = None
        """Values by name, or None if no printout is complete."""
        self.lines: dict[str, int] = {}
        """The line number of each argument."""
        self._open: dict[str, tuple[str, int]] | None = None

    def add(self, line: bytes, number: int = 0) -> bool:
        """Read a line, and return whether it was part of a printout."""
        if ENDS in line:
            if self._open:
                self.values = {name: value for name, (value, _) in self._open.items()}
                self.lines = {name: at for name, (_, at) in self._open.items()}
            self._open = None
        elif BEGINS in line:
            self._open = {}
        else:
            match = None if self._open is None else _PRINTED.fullmatch(line)
            if match is None or self._open is None or len(match[1]) + len(match[2]) != _PRINTED_WIDTH:
                return False
            self._open[match[1].decode("utf-8", "replace")] = (match[3] or b"").decode("utf-8", "replace"), number
        return True

    def end_file(self) -> None:
        """Discard an incomplete printout, because no other file contains the rest."""
        self._open = None


def read_arguments(text: str) -> tuple[Setting, ...]:
    """Return the FP8 arguments by name. The last of repeated arguments counts, as in Megatron.

    If a script has branches and two values differ, the value is unknown, because either branch may apply.
    """
    settings: dict[str, Setting] = {}
    for setting in _in_order(_COMMENT.sub("", text)):
        name = str(setting.key[-1])
        before = settings.get(name)
        is_open = before is not None and before.value != setting.value and _BRANCH.search(text) is not None
        settings[name] = Setting(key=setting.key, value=UNKNOWN, line=setting.line) if is_open else setting
    return tuple(settings.values())


def has_arguments(text: str) -> bool:
    """Return whether a text contains a training run's arguments, for FP8 or anything else."""
    flags = (_FLAG.fullmatch(match[0]) for match in _WORD.finditer(_COMMENT.sub("", text)))
    return any(flag is not None and flag["name"].replace("-", "_") in _COMMON for flag in flags)


def value_of(text: str) -> Value:
    """Return the value of a printed or written argument."""
    if text in _WORDS:
        return _WORDS[text]
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else text


def _in_order(text: str) -> Iterator[Setting]:
    tokens = [(match.start(), match[0]) for match in _WORD.finditer(text)]
    line, counted_to = 1, 0
    for number, (start, token) in enumerate(tokens):
        flag = _FLAG.fullmatch(token)
        if flag is None or (name := flag["name"].replace("-", "_")) not in NAMES:
            continue
        line, counted_to = line + text.count("\n", counted_to, start), start
        following = tokens[number + 1][1] if number + 1 < len(tokens) else ""
        value: Value
        if name in _SWITCHES:
            value = flag["off"] is None
        elif flag["value"] is None:
            value = UNKNOWN if following.startswith("--") else value_of(following)
        else:
            value = value_of(flag["value"]) if flag["value"] else value_of(following)  # --name="$VALUE"
        yield Setting(key=(name,), value=value, line=line)
