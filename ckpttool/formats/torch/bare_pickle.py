"""A pickle, as `torch.save` wrote it before 1.6 and plain `pickle.dump` still does: read by opcode, never unpickled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ckpttool.domain.finding import Code, Finding, damage, note, unsafe
from ckpttool.domain.scalars import ShardFacts
from ckpttool.domain.shard import FormatName
from ckpttool.formats.base import Header, failed_header, over_limit, quoted, unsupported
from ckpttool.storage.base import ByteSource

if TYPE_CHECKING:
    from ckpttool.formats.torch.pickle_found import PickleNames

# The opcode PROTO with a protocol that exists. torch's legacy magic number, itself a pickle, begins like this too.
_MAGIC = tuple(bytes([0x80, protocol]) for protocol in range(2, 6))

_SHOWN = 3
"""Names in a message."""


class TorchPickle:
    """What `torch.save` wrote in its legacy form."""

    name = FormatName.TORCH_PICKLE

    def recognise(self, head: bytes) -> bool:
        """Tell by a pickle's first two bytes."""
        return head.startswith(_MAGIC)

    def header(self, source: ByteSource, head: bytes, facts: ShardFacts) -> Header:  # noqa: ARG002  (no scalars in it)
        """Refuse what would run code; else say that it is a torch file under a MindSpore name."""
        return unsafe_pickle(source, head, hidden=True) or failed_header(
            self.name, unsupported("a pickle as torch.save wrote it"), bytes_read=len(head)
        )


def unsafe_pickle(source: ByteSource, head: bytes, *, hidden: bool) -> Header | None:
    """Refuse a file that, read as a pickle, would run code; None where it would not.

    Args:
        source: The open file.
        head: Its first bytes, which were read already.
        hidden: Whether to refuse a name that is put together too: not in a file that may well be no pickle.
    """
    from ckpttool.formats.torch.pickle_scan import MOST_PICKLES, PickleReader  # costs a start a millisecond

    reader = PickleReader(source)
    names = reader.names(0, source.stamp.size, pickles=MOST_PICKLES)
    if not names.runs and not (hidden and names.hidden):
        return None
    return failed_header(
        FormatName.TORCH_PICKLE, _unsafe("The pickle", names), bytes_read=len(head) + reader.bytes_read
    )


def pickle_findings(what: str, names: PickleNames) -> tuple[Finding, ...]:
    """Say what is wrong with a pickle that a whole file depends on, or worth knowing of it.

    Args:
        what: The pickle, as a sentence begins with it.
        names: What it calls for.
    """
    if names.runs or names.hidden:
        return (_unsafe(what, names),)
    if names.over_limit:
        return (over_limit(f"{what} is longer than ckpttool reads a pickle, so what it would run is not known."),)
    if names.broken is not None:
        return (damage(Code.HEADER_INVALID, f"{what} is no whole pickle: {names.broken}; torch.load fails."),)
    if names.unknown:
        return (_unknown(what, names),)
    return ()


def _unsafe(what: str, names: PickleNames) -> Finding:
    called = _listed(names.runs) if names.runs else "a name that it puts together only while it is loaded"
    return unsafe(
        Code.UNSAFE_PICKLE,
        f"{what} calls for {called}: torch.load without weights_only would run that.",
        remedy="do not load it, and find out who wrote it",
    )


def _unknown(what: str, names: PickleNames) -> Finding:
    message = (
        f"{what} calls for {_listed(names.unknown)}, which torch.load without weights_only would import and run; "
        "ckpttool does not know what that does."
    )
    return note(Code.UNSAFE_PICKLE, message)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(quoted, names[:_SHOWN])) + more
