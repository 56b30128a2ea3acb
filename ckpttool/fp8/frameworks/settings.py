"""FP8 settings in a file, recognized by content: printed arguments, arguments, a config, or debug features.

Source:
    Megatron-LM core_v0.12 to 2026-08, torchtitan v0.1.0 to v0.2.2 (`config/job_config.py`), torchao 0.12 to 0.18,
    Transformer Engine v1.7 to 2026-08 (`common/recipe/__init__.py`), nvdlfw-inspect 0.2.2 (`config_manager.py`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from ckpttool.core.domain.metrics import LogProblem
from ckpttool.core.domain.settings import Setting, Settings
from ckpttool.core.errors import CkptToolError, ConfigError, ForeignConfigError
from ckpttool.core.formats.config_text import TOML, ConfigFile
from ckpttool.core.formats.safe_yaml import MAX_BYTES, Document, read_head, settings_of
from ckpttool.core.logs.base import lines_with
from ckpttool.core.logs.reading import blocks_of
from ckpttool.fp8.frameworks.arguments import (
    BEGINS,
    DOTS,
    ENDS,
    PrintedArguments,
    has_arguments,
    read_arguments,
    value_of,
)
from ckpttool.fp8.model.settings import Fp8Input, Fp8Settings

KEYS: Mapping[str, str] = {
    "fp8": "format",
    "fp8_format": "format",
    "fp8_recipe": "recipe",
    "fp8_amax_history_len": "history",
    "amax_history_len": "history",
    "fp8_amax_compute_algo": "algorithm",
    "amax_compute_algo": "algorithm",
    "fp8_margin": "margin",
    "margin": "margin",
    "fp8_interval": "interval",
    "interval": "interval",
    "fp8_wgrad": "wgrad",
    "override_linear_precision": "overridden",
    "reduce_amax": "reduce_amax",
    "tp_only_amax_red": "tp_only",
    "fp8_dot_product_attention": "dot_product_attention",
    "fp8_dpa": "dot_product_attention",
    "fp8_multi_head_attention": "multi_head_attention",
    "fp8_mha": "multi_head_attention",
    "fp8_output_proj": "output_layer",
    "first_last_layers_bf16": "bf16_layers",
    "num_layers_at_start_in_bf16": "bf16_at_start",
    "num_layers_at_end_in_bf16": "bf16_at_end",
}
"""Maps the frameworks' keys to one common word per meaning."""

FORMAT_SWITCHES = {"fp8_e4m3": "e4m3", "fp8_hybrid": "hybrid"}
"""Flags for the format in older versions of Megatron and in its forks."""

GENERAL = frozenset({"margin", "interval", "reduce_amax"})
"""Keys that have this meaning only together with other FP8 keys."""

ELSEWHERE = frozenset({
    "exp_avg_dtype", "exp_avg_sq_dtype", "use_fast_accum", "scale_calculation_mode", "float8", "mx",
    "te_precision_config_file", "matchers", *FORMAT_SWITCHES,
})  # fmt: skip
"""Further keys that show that a file concerns FP8."""

SELECTORS = ("exact_layer_names", "layer_name_regex_pattern", "layer_numbers", "layer_types")
NAMESPACE = "transformer_engine"

MENTIONED = re.compile(r"fp8|float8|transformer[_-]?engine|\bmx\b", re.IGNORECASE)
"""Words in files that may switch FP8 on in an unknown way."""

_PRINTED = re.compile(b"|".join([re.escape(BEGINS), re.escape(ENDS), DOTS]))
_SPELT = re.compile(rf"\b(?:{'|'.join(sorted(KEYS.keys() - GENERAL | ELSEWHERE))})\b[\"']?\s*[:=]")
_CONFIG_ENDINGS = (".yaml", ".yml", ".json", TOML)
_SCRIPT_ENDINGS = (".sh", ".bash", ".slurm", ".sbatch")
_SHELL = re.compile(rb"#![^\n]*sh\b")
_SNIFFED = 4096
"""Number of bytes at the beginning of a file to check for text."""
_TOML_LINE = re.compile(r"^\s*\[\[?[A-Za-z0-9_.\"' -]+\]\]?\s*(?:#.*)?$", re.MULTILINE)


def read_settings(path: str) -> Fp8Settings:
    """Return a file's FP8 settings, which are empty for a valid file of a run without FP8.

    A log may have any size, and may be compressed. The size of other files is limited, as for configs. No file is
    executed.

    Args:
        path: The path, as the user typed it.

    Raises:
        CkptToolError: The file cannot be read, or has no FP8 settings in any of these forms.
    """
    head = read_head(path)
    printed = _printed(path)
    if printed is not None:
        return Fp8Settings(kind=Fp8Input.DUMP, settings=Settings(path=path, entries=printed), text="")
    if len(head) > MAX_BYTES:
        raise ForeignConfigError(f"{path!r} has no printed arguments, and is longer than a config or script can be")
    why: CkptToolError | None = None
    try:
        document = _parsed(head, path)
    except CkptToolError as error:
        why = error
    else:
        settings = settings_of(document, path=path)
        if (kind := _kind(document, settings)) is not None:
            return Fp8Settings(kind=kind, settings=settings, text=document.text)
    text = head.decode("utf-8", "replace")
    arguments = read_arguments(text)
    if arguments or (has_arguments(text) and not MENTIONED.search(text)):
        return Fp8Settings(kind=Fp8Input.ARGUMENTS, settings=Settings(path=path, entries=arguments), text=text)
    if why is not None and (_SPELT.search(text) or not isinstance(why, ConfigError)):
        raise why
    raise ForeignConfigError(
        f"{path!r} has no FP8 settings: give a log with the trainer's printed arguments, a script with arguments, a "
        "training config, or a config of debug features"
    )


def settings_below(folder: str) -> Iterator[tuple[str, Fp8Settings]]:
    """Yield the FP8 settings in and below a folder, by path. Hidden files, hidden folders and links are skipped.

    Only the beginning of other files is read. Program files are skipped unless they are shell scripts.
    """
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = os.path.join(place, name)
            if name.startswith(".") or os.path.islink(path) or not _may_have_settings(path):
                continue
            try:
                yield path, read_settings(path)
            except CkptToolError:
                continue


def _may_have_settings(path: str) -> bool:
    """Return whether the beginning of a file mentions FP8 at a place that can contain settings."""
    try:
        head = read_head(path)
    except CkptToolError:
        return False
    if b"\0" in head[:_SNIFFED] or not MENTIONED.search(head.decode("utf-8", "replace")):
        return False
    return path.endswith((*_CONFIG_ENDINGS, *_SCRIPT_ENDINGS)) or _SHELL.match(head) is not None or BEGINS in head


def _printed(path: str) -> tuple[Setting, ...] | None:
    """Return the arguments that were printed last, or None if there is no complete printout."""
    printed = PrintedArguments()
    for block in blocks_of(path):
        if isinstance(block, LogProblem):
            if block.ends_the_log and printed.values is None:
                raise ConfigError(f"{path!r} {block.reason}")
            continue
        for number, line in lines_with(block, _PRINTED):
            printed.add(line, number)
    if printed.values is None:
        return None
    return tuple(
        Setting(key=(name,), value=value_of(text), line=printed.lines[name]) for name, text in printed.values.items()
    )


def _parsed(content: bytes, path: str) -> Document:
    """Parse a config according to its content, whatever its name."""
    if (
        not path.endswith(TOML)
        and content.lstrip()[:1] != b"{"
        and _TOML_LINE.search(content.decode("utf-8", "replace"))
    ):
        try:
            return ConfigFile(content, path=f"{path}{TOML}").document
        except CkptToolError:
            pass
    return ConfigFile(content, path=path).document


def _kind(document: Document, settings: Settings) -> Fp8Input | None:
    if any(map(_is_section, document.data.values())):
        return Fp8Input.DEBUG
    keys = {entry.key[-1] for entry in settings.entries}
    is_other = keys.isdisjoint(KEYS.keys() - GENERAL | ELSEWHERE) and (not keys or MENTIONED.search(document.text))
    return None if is_other else Fp8Input.CONFIG


def _is_section(value: object) -> bool:
    """Return whether a value is a section of a config of debug features."""
    if not isinstance(value, dict):
        return False
    layers = value.get("layers")
    return isinstance(value.get(NAMESPACE), dict) or (
        isinstance(layers, dict) and not layers.keys().isdisjoint(SELECTORS)
    )
