"""Training scalars as our own records spell them."""

from __future__ import annotations

from ckpttool.domain.scalars import ScalarValues
from ckpttool.formats.strict_json import JsonObject, as_float, as_int


def scalars_of(record: JsonObject, *, where: str) -> ScalarValues:
    """Return the scalars in an object; those that are null are not there.

    Raises:
        ParseError: One is no number, or negative.
    """
    return tuple(
        (name, as_float(value, where=where, key=name))
        if isinstance(value, float)
        else (name, as_int(value, where=where, key=name))
        for name, value in sorted(record.items())
        if value is not None
    )
