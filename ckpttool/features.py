"""The list of features, by folder. Each new feature adds a line here, for the program and the library."""

from __future__ import annotations

FEATURES = (
    "health",
    "retention",
    "replicas",
    "nodes",
    "inspect",
    "export",
    "guard",
    "fp8",
    "postflight",
    "report",
    "watch",
    "marks",
)
"""Names of the features. Each defines `FEATURE`, its extensions of the core, in its `__init__.py`."""
