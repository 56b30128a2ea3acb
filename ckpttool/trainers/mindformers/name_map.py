"""`param_name_map.json`: which file of a unified checkpoint holds which parameter."""

from __future__ import annotations

from ckpttool.formats.strict_json import as_object, as_str, parse_object


def parse_name_map(data: bytes, *, what: str) -> frozenset[str]:
    """Return the names of all files that the map mentions.

    MindSpore 2.10 writes `{"metadata": …, "weight_map": {parameter: file}}`, older versions the inner map alone.

    Raises:
        ParseError: With the file and the key that is wrong.
    """
    record = parse_object(data, what=what)
    if "weight_map" in record:
        record = as_object(record["weight_map"], where=what, key="weight_map")
    return frozenset(as_str(file, where=what, key=parameter) for parameter, file in record.items())
