"""Health policies by their names for users."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from ckpttool.core.domain.asd import AsdDialect
from ckpttool.core.errors import UsageError
from ckpttool.core.extensions import imported
from ckpttool.health.model.asd import AsdConfig

if TYPE_CHECKING:
    from ckpttool.health.policies.base import Policy, PolicySettings

POLICIES: Mapping[str, str] = MappingProxyType(
    {
        "skip": "ckpttool.health.policies.skip:SkipPolicy",
        "features": "ckpttool.health.asd.features:FeaturePolicy",
        "zclip": "ckpttool.health.policies.zclip:ZClipPolicy",
        "olmo": "ckpttool.health.policies.olmo:OlmoPolicy",
        "zscore": "ckpttool.health.policies.robust_z:RobustZPolicy",
    }
)
"""Policy names for users -> classes, in display order; a class is imported on first use."""


def policy_type(name: str) -> type[Policy]:
    """Return the class of a policy.

    Raises:
        UsageError: There is no such policy.
    """
    if name not in POLICIES:
        raise UsageError(f"unknown policy {name!r}; known policies: {', '.join(POLICIES)}")
    return cast("type[Policy]", imported(POLICIES[name]))


def policy_of(name: str, settings: PolicySettings) -> Policy:
    """Return the policy with this name.

    Raises:
        UsageError: There is no such policy, or the policy lacks one of the settings.
    """
    policy = policy_type(name)
    if settings.threshold is not None and not (0 < settings.threshold < math.inf):
        raise UsageError(f"--threshold must be above 0 and finite, not {settings.threshold:g}")
    passed = {
        "--threshold": settings.threshold is not None,
        "--count": settings.count is not None,
        "--nan": settings.nan_counts,
        "--dialect": settings.dialect is not None,
        "--asd-config": settings.asd_config is not None,
    }
    for option, is_passed in passed.items():
        if is_passed and option not in policy.options:
            raise UsageError(f"{option} is not a setting of {policy.name}, which has {', '.join(policy.options)}")
    return policy.from_settings(settings)


def settings_of(policy: Policy) -> tuple[tuple[str, str | float], ...]:
    """Return a policy's settings, by name."""
    return tuple(_settings(policy))


def _settings(value: object) -> Iterator[tuple[str, str | float]]:
    for field in fields(value):  # type: ignore[arg-type]  # every policy is a dataclass
        setting = getattr(value, field.name)
        match setting:
            case AsdConfig():
                yield from _settings(setting)
            case AsdDialect():
                yield field.name, setting.name
            case _:
                yield field.name, setting
