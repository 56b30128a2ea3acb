"""Our own files, each read and spelled in one module. No layout takes what we keep in a tree for a stray."""

from __future__ import annotations

OWN_FOLDER = ".ckpttool"
"""In the tree's root, for what ckpttool keeps there."""

MANIFEST_NAME = "ckpttool.manifest.json"
"""Where a checkpoint has a folder of its own."""
