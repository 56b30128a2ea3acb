"""One page with everything known about a tree, to read and to send.

For who is called at night and for who reads in the morning: `ckpttool report`, `ckpttool.report(...)`. It begins in
`verbs.py`; `page` writes it.
"""

from __future__ import annotations

from ckpttool.core.extensions import Feature

FEATURE = Feature()
