"""Check and write the settings of feature-value detection."""

from __future__ import annotations

import re

from ckpttool.core.domain.asd import AsdDialect
from ckpttool.core.domain.frozen import replace
from ckpttool.core.errors import UsageError
from ckpttool.health.asd.config import check_asd_config, defaults, dialect_of, emit_asd_config
from ckpttool.health.model.answers import AsdAnswer
from ckpttool.health.model.asd import AsdCheck, AsdConfig
from ckpttool.trainers.registry import trainers


def check_asd(text: str, dialect: str | None = None) -> AsdAnswer:
    """Show how the real parser reads a configuration of feature detection.

    A log line that ends with `NAME=` and the configuration is also accepted.

    Raises:
        UsageError: There is no such dialect, or the dialect has no configuration string.
    """
    dialect_known = _with_variable(dialect)
    setting = re.split(rf"(?:^|\s){dialect_known.variable}=", text)[-1]
    return _answer(setting, check_asd_config(setting, dialect_known))


def emit_asd(config: AsdConfig, dialect: str | None = None) -> AsdAnswer:
    """Write a configuration of feature detection that the real parser reads as intended.

    Raises:
        UsageError: There is no such dialect, or its parser refuses a number.
    """
    dialect_known = _with_variable(dialect)
    try:
        text = emit_asd_config(config, dialect_known)
    except ValueError as error:
        raise UsageError(str(error)) from None
    check = check_asd_config(text, dialect_known)
    # Permanent properties of the parser are not reported for a new string.
    return _answer(text, replace(check, findings=tuple(finding for finding in check.findings if finding.severity)))


def asd_defaults(dialect: str | None = None) -> AsdConfig:
    """Return the default settings of feature detection.

    Raises:
        UsageError: There is no such dialect, or the dialect has no configuration string.
    """
    return defaults(_with_variable(dialect))


def _with_variable(variable: str | None) -> AsdDialect:
    every = asd_dialects()
    dialect = dialect_of(variable, every)
    if dialect.variable is None:
        names = ", ".join(dialect.name for dialect in every if dialect.variable is not None)
        raise UsageError(f"{dialect.name} does not read such a string; these do: {names}")
    return dialect


def _answer(text: str, check: AsdCheck) -> AsdAnswer:
    return AsdAnswer(variable=check.dialect.variable or "", text=text, check=check)


def asd_dialects() -> tuple[AsdDialect, ...]:
    """Return all detectors of silent errors: those of frameworks, and those of trainers that count on their own."""
    from ckpttool.core.domain.asd import DIALECTS

    return (*DIALECTS, *(dialect for trainer in trainers() for dialect in trainer.asd_dialects))
