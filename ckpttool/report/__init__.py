"""One page with everything known about a tree, for reading and sending.

Users call `ckpttool report`, or `ckpttool.report(...)`. It starts in `verbs.py`, and `page` writes it.
"""

from __future__ import annotations

from ckpttool.core.extensions import Feature

FEATURE = Feature()
