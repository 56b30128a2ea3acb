"""Plain values in a torch file other than its tensors: counters, sizes and names. Nothing is unpickled.

Dictionaries, lists, tuples, numbers, texts, bytes, booleans and None are unchanged; sets become lists. An object of a
class becomes a `Made`, a class or a function a `Global`, and a tensor a `Tensor`. The functions below return None for
these.

Source:
    `torch/serialization.py` of torch 2.13: an archive begins with `data.pkl`; a legacy file is a sequence of pickles: a
    magic number, the protocol, facts about the machine, then the saved object.
"""

from __future__ import annotations

from collections.abc import Callable

from ckpttool.core.formats.base import ZIP_MAGIC
from ckpttool.core.formats.torch.part import FilePart
from ckpttool.core.formats.torch.pickle_objects import BrokenPickleError, Made
from ckpttool.core.formats.torch.pickle_values import read_values
from ckpttool.core.formats.torch.zip_directory import read_zip_directory
from ckpttool.core.storage.base import ByteSource

MOST_PLAIN_BYTES = 32 << 20
"""Maximum size of a pickle in bytes; the pickle of 100,000 tensors has 15 MB."""
_FIRST_BYTES = 64 << 10
"""Number of bytes to read first, because most pickles are smaller, and gigabytes of numbers may follow."""
_GROWTH = 16
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_MOST_BEFORE_MAGIC = 32
"""Number of bytes in which the magic number of a legacy file must be; the pickle around it is shorter."""
_BEFORE_LEGACY = 3
"""Number of pickles before the saved object in a legacy file."""
_LOCAL_HEAD = 30
"""Size in bytes of a zip's local header before the record's name."""


def is_saved(head: bytes) -> bool:
    """Return whether a file with these first bytes is an archive, or a legacy file of `torch.save`."""
    return head.startswith(ZIP_MAGIC) or _LEGACY_MAGIC.to_bytes(10, "little") in head[:_MOST_BEFORE_MAGIC]


def plain_values(source: ByteSource, begin: int = 0, end: int | None = None) -> object:
    """Return the contents of a file or a part of it, as plain values.

    The file may be an archive of `torch.save`, its legacy form, or a plain pickle.

    Args:
        source: The open file.
        begin: First byte of the part.
        end: First byte after the part; None for the end of the file.

    Raises:
        BrokenPickleError: There is no complete pickle, or the pickle is implausibly large.
        OSError: The disk did not answer.
    """
    part = FilePart(source, begin, source.stamp.size if end is None else end)
    if part.read(0, len(ZIP_MAGIC)) == ZIP_MAGIC:
        pickle = FilePart(part, *_main_record(part))
        return _grown(pickle, read_values)
    return _grown(part, _legacy_or_plain)


def _main_record(archive: FilePart) -> tuple[int, int]:
    """Return the start and the latest possible end of an archive's pickle."""
    head = archive.read(0, _LOCAL_HEAD)
    name, extra = (int.from_bytes(head[at : at + 2], "little") for at in (26, 28))
    if archive.read(_LOCAL_HEAD, name).endswith(b"/data.pkl"):
        return _LOCAL_HEAD + name + extra, archive.stamp.size
    for record in read_zip_directory(archive).entries:
        if record.name.partition("/")[2] == "data.pkl":
            return record.begin, record.end
    raise BrokenPickleError("the archive has no data.pkl")


def _legacy_or_plain(data: bytes) -> object:
    values = read_values(data)
    return read_values(data, trailing=_BEFORE_LEGACY) if values == _LEGACY_MAGIC else values


def _grown(source: FilePart, read: Callable[[bytes], object]) -> object:
    """Read more and more bytes until the pickle is complete, because only the pickle itself shows where it ends."""
    length = _FIRST_BYTES
    while True:
        data = source.read(0, length)
        try:
            return read(data)
        except BrokenPickleError:
            if len(data) < length or length >= MOST_PLAIN_BYTES:
                raise
        length = min(length * _GROWTH, MOST_PLAIN_BYTES)


def value_at(tree: object, *path: str | int) -> object:
    """Return the value at a path of keys in dictionaries, lists, and the items and attributes of objects.

    Returns:
        The value; None if it does not exist or is None.
    """
    for key in path:
        if isinstance(tree, dict):
            tree = tree.get(key)
        elif isinstance(tree, (list, tuple)):
            tree = tree[key] if isinstance(key, int) and -len(tree) <= key < len(tree) else None
        else:
            tree = tree.members.get(key) if isinstance(tree, Made) else None
    return tree


def integer_at(tree: object, *path: str | int) -> int | None:
    """Return the integer at a path of keys; None if there is no integer. A boolean is not an integer."""
    value = value_at(tree, *path)
    return value if type(value) is int else None


def text_at(tree: object, *path: str | int) -> str | None:
    """Return the text at a path of keys; None if there is no text."""
    value = value_at(tree, *path)
    return value if isinstance(value, str) else None
