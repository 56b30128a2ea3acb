"""The features, by folder. Each new feature adds a line here, for the program and the library."""

from __future__ import annotations

FEATURES = (
    "health",
    "retention",
    "replicas",
    "nodes",
    "inspect",
    "guard",
    "fp8",
    "postflight",
    "report",
    "watch",
)
"""Each feature defines `FEATURE` in its `__init__.py`: its extensions of the core."""
