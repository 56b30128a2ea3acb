"""Parts: each records one machine's view of a tree; all parts of a tree are then judged together elsewhere.

If each machine has its own disk, `ckpttool part` writes a part on each machine (`verbs.py`), and every command that
reads a tree accepts a folder of parts instead (`tree.py`). `machines.py` answers the core's questions about the
machines.
"""

from __future__ import annotations

from ckpttool.core.extensions import Feature

FEATURE = Feature(
    findings="ckpttool.nodes.findings:NodesCode",
    answers={
        "part": "ckpttool.nodes.answers",
    },
    parts_reader="ckpttool.nodes.tree:locate_parts",
    part_traces="ckpttool.nodes.tree:traces_of_parts",
    storages={
        "parts": "ckpttool.nodes.storage:opened",
        "noted": "ckpttool.nodes.storage:opened",
    },
)
