"""The features, by folder: each new feature adds its line here, for the program and the library."""

from __future__ import annotations

FEATURES = (
    "health",
    "retention",
    "replicas",
    "nodes",
    "inspect",
    "guard",
    "fp8",
    "report",
    "watch",
)
"""Each has a value `FEATURE` in its `__init__.py`: its extensions of the main job."""
