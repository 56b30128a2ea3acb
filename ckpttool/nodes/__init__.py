"""Parts: the view of a tree on each of many machines, recorded there and judged together elsewhere.

For who has disks of one machine each: `ckpttool part` writes one (`verbs.py`), and every command that reads a tree
takes a folder of them instead (`tree.py`). What the core asks of the machines that wrote them is answered in
`machines.py`.
"""

from __future__ import annotations

from ckpttool.core.extensions import Feature

FEATURE = Feature(
    findings="ckpttool.nodes.findings:NodesCode",
    answers={
        "part": "ckpttool.nodes.answers",
    },
    parts_reader="ckpttool.nodes.tree:locate_parts",
    storages={
        "parts": "ckpttool.nodes.storage:opened",
        "noted": "ckpttool.nodes.storage:opened",
    },
)
