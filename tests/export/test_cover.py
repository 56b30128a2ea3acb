"""Targets that cannot be written are refused before a byte is read, and what is only unusual is not."""

from __future__ import annotations

from typing import Any

import pytest

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.weights import NotExportableError, Piece, Record, Target
from ckpttool.export.cover import covered

RECORD = Record("f", 100, 40, 7)
PIECE = Piece("f", 100, DType.F32, (5, 2), (2, 1), (0, 0), RECORD)


def target(*pieces: Piece, name: str = "w", dtype: DType = DType.F32, **more: Any) -> Target:  # noqa: ANN401  any field
    return Target(**{"name": name, "dtype": dtype, "shape": (5, 2), "pieces": pieces or (PIECE,), **more})


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ([target(), target()], "export-incomplete"),
        ([target(name="__metadata__")], "export-not-understood"),
        ([target(name="\ud800")], "export-not-understood"),
        ([target(name="w" * 70_000)], "export-not-understood"),
        ([target(dtype=DType.C128)], "export-not-understood"),
        ([target(shape=(1 << 62, 1 << 62))], "export-not-understood"),
        ([target(shape=(5, 3))], "export-incomplete"),
        ([target(shape=(10,))], "export-incomplete"),
        ([target(PIECE._replace(shape=(0, 2)), shape=(0, 3))], "export-incomplete"),
        ([target(PIECE._replace(stride=(-2, 1)))], "export-incomplete"),
        ([target(PIECE._replace(begin=99))], "export-incomplete"),
        ([target(PIECE._replace(begin=104))], "export-incomplete"),
        ([target(PIECE._replace(stride=(3, 1)))], "export-incomplete"),
        ([target(PIECE._replace(path="g"))], "export-incomplete"),
        ([target(PIECE._replace(dtype=DType.I32))], "export-incomplete"),
        ([target(PIECE, PIECE._replace(shape=(1, 2)))], "export-incomplete"),
        ([target(PIECE._replace(shape=(10,), stride=(1,), at=(1,)), flat=True)], "export-incomplete"),
    ],
)
def test_what_cannot_be_written_exactly_is_refused(wrong: list[Target], code: str) -> None:
    with pytest.raises(NotExportableError) as refused:
        covered(wrong)
    assert refused.value.finding.code == code
    assert refused.value.finding.remedy


def test_what_is_only_unusual_is_not() -> None:
    transposed = PIECE._replace(stride=(1, 5))
    cast = PIECE._replace(dtype=DType.BF16)
    flat = PIECE._replace(shape=(10,), stride=(1,), at=(0,))
    named = [target(transposed, name="ä\n"), target(cast, name="b"), target(flat, name="c", flat=True)]
    assert [each.name for each in covered(named)] == ["ä\n", "b", "c"]
    (one,) = covered([target(PIECE, PIECE, PIECE._replace(path="g", record=None))])
    assert one.pieces == (PIECE,), "of replicas, the first is used"
    (scalar,) = covered([target(PIECE._replace(shape=(), stride=(), at=()), shape=())])
    assert (scalar.flat, scalar.pieces[0].shape) == (True, (1,))
    (empty,) = covered([target(PIECE._replace(shape=(0, 2)), shape=(0, 2))])
    assert empty.pieces == ()
