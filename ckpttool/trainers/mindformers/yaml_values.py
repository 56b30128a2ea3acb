"""Rules for values that YAML reads as a different type; these rules apply to every YAML config of MindFormers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpttool.core.decide.lint_engine import Problem, View, note, suspect
from ckpttool.core.domain.finding import Severity
from ckpttool.core.domain.settings import dotted

_FLOATS = frozenset({
    "learning_rate", "lr_end", "lr", "min_lr", "max_lr", "weight_decay", "eps", "epsilon", "betas", "beta1", "beta2",
    "momentum", "threshold", "loss_scale_value", "initializer_range", "theta", "routed_scaling_factor", "mem_coeff",
})  # fmt: skip
_FLOAT_ENDINGS = (
    "_eps", "_epsilon", "_threshold", "_ratio", "_factor", "_rate", "_decay", "_prob", "_dropout", "_coeff", "_lr",
    "_theta", "_scale",
)  # fmt: skip

# Numbers that float() accepts but YAML 1.1 does not: an exponent without a sign, or without a point before it.
_NUMBER_AS_TEXT = re.compile(r"[-+]?(\d[\d_]*(?:\.\d*)?|\.\d+)[eE][-+]?\d+")

_OCTAL = re.compile(r"[-+]?0[0-7_]+")
_BASE_60 = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")


def number_as_text(view: View) -> Iterator[Problem]:
    """Report numbers with an exponent that YAML 1.1 reads as text, such as `1e-5`."""
    for entry in view.entries:
        if entry.spelt is not None and isinstance(entry.value, str) and _NUMBER_AS_TEXT.fullmatch(entry.spelt):
            key = next((part for part in reversed(entry.key) if isinstance(part, str)), "")
            # Under another key it may be text: the hash of a commit can look like this.
            is_number = key in _FLOATS or key.endswith(_FLOAT_ENDINGS)
            mantissa, _, exponent = entry.spelt.lower().partition("e")
            signed = exponent if exponent[0] in "+-" else f"+{exponent}"
            right = f"{mantissa}{'' if '.' in mantissa else '.0'}e{signed}"
            place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in entry.key).lstrip(".")
            yield Problem(
                severity=Severity.SUSPECT if is_number else Severity.NOTE,
                key=dotted(entry.key),
                message=f"`{place}` is {entry.spelt}, which YAML reads as text, not as a number: "
                "a number with an exponent needs a point and a sign",
                remedy=f"write {right}, or put it in quotes if it is text",
                expected="a number",
                actual=f"the text {entry.spelt!r}",
                fix=right if is_number else None,
            )


def odd_numbers(view: View) -> Iterator[Problem]:
    """Report octal and base-60 numbers."""
    for entry in view.entries:
        if entry.spelt is None or isinstance(entry.value, str):
            continue
        key = dotted(entry.key)
        reads = f"`{key}` is {entry.spelt}, which YAML reads as {entry.value}: "
        if _OCTAL.fullmatch(entry.spelt):
            meant = entry.spelt.lstrip("+-0_") or 0
            remedy = f"write {meant} if that is intended, or put it in quotes if it is text"
            yield suspect(key, f"{reads}a number that begins with 0 is octal", remedy)
        elif _BASE_60.fullmatch(entry.spelt):
            message = f"{reads}digits with colons are read as a base-60 number"
            yield suspect(key, message, "put it in quotes if it is text")


def none_as_text(view: View) -> Iterator[Problem]:
    """Report Python's None, which YAML reads as text."""
    for entry in view.entries:
        if entry.spelt == "None" and entry.value == "None":
            yield note(
                dotted(entry.key),
                f"`{dotted(entry.key)}` is None, which YAML reads as the text None, not as an empty value",
                "write null, or omit the value",
            )
