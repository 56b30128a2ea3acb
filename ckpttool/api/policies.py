"""A policy from what the user says, and its settings as the user would say them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from enum import Enum
from typing import TYPE_CHECKING

from ckpttool.decide.asd.config import check_asd_config, defaults
from ckpttool.decide.asd.features import FeaturePolicy
from ckpttool.decide.policies.olmo import OlmoPolicy
from ckpttool.decide.policies.registry import POLICIES
from ckpttool.decide.policies.robust_z import RobustZPolicy
from ckpttool.decide.policies.skip import NanRule, SkipPolicy
from ckpttool.decide.policies.zclip import ZClipPolicy
from ckpttool.domain.asd import AsdConfig, AsdDialect
from ckpttool.domain.log_question import ReplayQuestion
from ckpttool.errors import UsageError

if TYPE_CHECKING:
    from ckpttool.decide.policies.base import Policy


def policy_of(question: ReplayQuestion) -> Policy:
    """Return the policy that the user means.

    Raises:
        UsageError: There is no such policy, or a setting is not one of it.
    """
    make = _MAKERS.get(question.policy)
    if make is None:
        raise UsageError(f"there is no policy {question.policy!r}; there are {', '.join(POLICIES)}")
    if question.threshold is not None and not (0 < question.threshold < math.inf):
        raise UsageError(f"--threshold must be above 0 and finite, not {question.threshold:g}")
    _assert_settings_fit(question)
    return make(question)


def _assert_settings_fit(question: ReplayQuestion) -> None:
    own = _SETTINGS[question.policy]
    given = {
        "--threshold": question.threshold is not None,
        "--count": question.count is not None,
        "--nan": question.nan_counts,
        "--dialect": question.dialect is not None,
        "--asd-config": question.asd_config is not None,
    }
    for name, is_given in given.items():
        if is_given and name not in own:
            raise UsageError(f"{name} is no setting of {question.policy}, which has {', '.join(sorted(own))}")


def dialect_of(word: str | None) -> AsdDialect:
    """Return the dialect of that name; torch_npu's where none is given.

    Raises:
        UsageError: There is none.
    """
    if word is None:
        return AsdDialect.TORCH_NPU
    try:
        return AsdDialect(word.lower().replace("_", "-"))
    except ValueError:
        known = ", ".join(each.value for each in AsdDialect)
        raise UsageError(f"--dialect: there is no {word!r}; there are {known}") from None


def _skip(question: ReplayQuestion) -> Policy:
    base = SkipPolicy()
    return SkipPolicy(
        threshold=question.threshold or base.threshold,
        count_threshold=question.count or base.count_threshold,
        nan=NanRule.STRICT if question.nan_counts else NanRule.AS_MINDFORMERS,
    )


def _zscore(question: ReplayQuestion) -> Policy:
    return RobustZPolicy(z_limit=question.threshold or RobustZPolicy().z_limit)


def _zclip(question: ReplayQuestion) -> Policy:
    return ZClipPolicy(z_limit=question.threshold or ZClipPolicy().z_limit)


def _olmo(question: ReplayQuestion) -> Policy:
    return OlmoPolicy(sigmas=question.threshold or OlmoPolicy().sigmas)


def _features(question: ReplayQuestion) -> Policy:
    dialect = dialect_of(question.dialect)
    return FeaturePolicy(config=asd_config(question.asd_config, dialect), dialect=dialect)


def asd_config(text: str | None, dialect: AsdDialect) -> AsdConfig:
    """Return the settings in force with this configuration string, switched on.

    Raises:
        UsageError: The real parser would stop the training over it.
    """
    if text is None:
        return replace(defaults(dialect), enable=True)
    check = check_asd_config(text, dialect)
    if check.error is not None:
        raise UsageError(f"--asd-config: {check.error}; ckpttool asd check tells all of it")
    return replace(check.config, enable=True)


_MAKERS: dict[str, Callable[[ReplayQuestion], Policy]] = {
    "skip": _skip,
    "zscore": _zscore,
    "zclip": _zclip,
    "olmo": _olmo,
    "features": _features,
}
_SETTINGS = {
    "skip": {"--threshold", "--count", "--nan"},
    "zscore": {"--threshold"},
    "zclip": {"--threshold"},
    "olmo": {"--threshold"},
    "features": {"--dialect", "--asd-config"},
}


def settings_of(policy: Policy) -> tuple[tuple[str, str | float], ...]:
    """Return a policy's settings, by name."""
    return tuple(_settings(policy))


def _settings(value: object) -> list[tuple[str, str | float]]:
    found: list[tuple[str, str | float]] = []
    for field in fields(value):  # type: ignore[arg-type]  # every policy is a dataclass
        own = getattr(value, field.name)
        if isinstance(own, AsdConfig):
            found += _settings(own)
        else:
            found.append((field.name, own.value if isinstance(own, Enum) else own))
    return found
