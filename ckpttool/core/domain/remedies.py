"""What to do about damage that says no more than what it is: one owner for all who find it."""

from __future__ import annotations

from ckpttool.core.domain.finding import Code, Finding, Severity
from ckpttool.core.domain.frozen import replace

_COPY = "copy it again if it is a copy; what a crash cut off while it was saved is lost, and the checkpoint with it"

OWN_FILE = "find the rank's own file on its disk, or resume from another checkpoint"
"""Of a file that lies under another rank's name."""

_REMEDIES = {
    Code.SHARD_EMPTY: _COPY,
    Code.SHARD_TRUNCATED: _COPY,
    Code.SHARD_ZEROED: _COPY,
    Code.ZERO_TAIL: _COPY,
    Code.HEADER_INVALID: _COPY,
    Code.OFFSETS_NOT_CONTIGUOUS: _COPY,
    Code.TRAILING_BYTES: _COPY,
    Code.ENTRIES_MISSING: _COPY,
    Code.CHECKSUM_MISMATCH: _COPY,
    Code.SHARD_MISSING: "bring it back from that rank's disk or from a copy, or resume from an older checkpoint",
}


def helped(finding: Finding) -> Finding:
    """Return the same with what to do, where it weighs something and does not say it itself."""
    if finding.remedy is not None or finding.severity is Severity.NOTE:
        return finding
    return replace(finding, remedy=_REMEDIES.get(finding.code))
