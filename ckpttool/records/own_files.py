"""What ckpttool itself keeps in a tree: no layout takes it for a stray."""

from __future__ import annotations

OWN_FOLDER = ".ckpttool"
"""In the tree's root, for what ckpttool keeps there."""

MANIFEST_NAME = "ckpttool.manifest.json"
"""Where a checkpoint has a folder of its own."""
