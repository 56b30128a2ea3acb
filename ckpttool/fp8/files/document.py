"""Encoding of values as JSON objects, with each field under its own name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum

from ckpttool.core.formats.strict_json import Json, measured


def as_json(value: object, number: Callable[[float], Json] = measured) -> Json:
    """Return a value as JSON. A dataclass becomes an object with its fields in order.

    Args:
        value: A value made of dataclasses, dictionaries, tuples, enumeration members, and JSON's own types.
        number: Function that rounds floats.
    """
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, float):
        return number(value)
    if isinstance(value, (tuple, list)):
        return [as_json(item, number) for item in value]
    if isinstance(value, dict):
        return {name: as_json(item, number) for name, item in value.items()}
    if is_dataclass(value):
        return fields_of(value, number)
    if value is None or isinstance(value, (str, int)):
        return value
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def fields_of(value: object, number: Callable[[float], Json] = measured) -> dict[str, Json]:
    """Return the fields of a dataclass as JSON, in their order."""
    return {field.name: as_json(getattr(value, field.name), number) for field in fields(value)}  # type: ignore[arg-type]
