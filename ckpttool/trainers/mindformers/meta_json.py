"""`rank_N/meta.json`: which file MindFormers believes it saved last. A hint; the shards are the truth."""

from __future__ import annotations

from typing import NamedTuple

from ckpttool.domain.units import EpochStep
from ckpttool.formats.strict_json import get_int, get_str, parse_object


class MetaRecord(NamedTuple):
    """One meta.json, parsed."""

    position: EpochStep
    """`last_epoch` and `last_step`: the numbers in the file's *name*."""
    file: str
    """`last_ckpt_file`, untrusted: compared with names, never joined to a path."""

    @property
    def escapes(self) -> bool:
        """Whether the file name would lead out of the rank's folder, or holds control characters."""
        return "/" in self.file or "\\" in self.file or self.file in {"", ".", ".."} or _controls(self.file)


def parse_meta(data: bytes, *, what: str) -> MetaRecord:
    """Parse a meta.json strictly: a torn one, `{"last_step": true}` or a key given twice is no record.

    Raises:
        ParseError: With the file and the key that is wrong.
    """
    record = parse_object(data, what=what)
    position = EpochStep(epoch=get_int(record, "last_epoch", where=what), step=get_int(record, "last_step", where=what))
    return MetaRecord(position=position, file=get_str(record, "last_ckpt_file", where=what))


def _controls(text: str) -> bool:
    return any(ord(character) < ord(" ") or ord(character) == 127 for character in text)  # noqa: PLR2004  DEL
