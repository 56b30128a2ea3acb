"""Health policies by the names that users call them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ckpttool.decide.asd.features import FeaturePolicy
from ckpttool.decide.policies.base import Policy
from ckpttool.decide.policies.olmo import OlmoPolicy
from ckpttool.decide.policies.robust_z import RobustZPolicy
from ckpttool.decide.policies.skip import SkipPolicy
from ckpttool.decide.policies.zclip import ZClipPolicy
from ckpttool.domain.asd import AsdConfig

POLICIES: Mapping[str, Callable[[], Policy]] = MappingProxyType(
    {
        "skip": SkipPolicy,
        "zscore": RobustZPolicy,
        "zclip": ZClipPolicy,
        "olmo": OlmoPolicy,
        "features": lambda: FeaturePolicy(config=AsdConfig(enable=True)),
    }
)
"""What users call a policy -> one with its defaults."""
