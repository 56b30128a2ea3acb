"""Training scalars: their types, their values, and how few reads they take."""

from __future__ import annotations

import struct

import pytest

from ckpttool.core.domain.finding import Code, Severity
from ckpttool.core.domain.scalars import RequestedScalar, ShardFacts
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.formats import read_header, scalars
from ckpttool.core.formats.base import Header
from ckpttool.core.formats.scalars import read_single
from ckpttool.trainers.mindformers.scalars import FACTS, TrainState, state_in
from tests.support.shard_writers import MemorySource, entries_json, number, record, safetensors_file

CKPT = FormatName.MINDSPORE_CKPT


def _header(*records: bytes, facts: ShardFacts = FACTS) -> Header:
    return read_header(MemorySource(b"".join(records)), named=CKPT, facts=facts)


def test_all_five_scalars_are_read_as_mindformers_writes_them() -> None:
    header = _header(
        record("weight", [2], "Float32", bytes(8)),
        number("epoch_num", 15),
        number("step_num", 30),
        number("global_step", 29, type_="Int32", dims=[1]),
        record("loss_scale", [], "Float32", struct.pack("<f", 65536.0)),
        number("global_batch_size", 8),
    )
    assert header.findings == ()
    assert state_in(header.scalars) == TrainState(
        epoch_num=15, step_num=30, global_step=29, loss_scale=65536.0, global_batch_size=8
    )


def test_a_loss_scale_may_be_a_whole_number_and_is_a_float() -> None:
    header = _header(number("loss_scale", 1))
    assert header.findings == ()
    assert (dict(header.scalars)["loss_scale"], type(dict(header.scalars)["loss_scale"])) == (1.0, float)


def test_a_shard_without_scalars_is_healthy() -> None:
    header = _header(record("weight", [2], "Float32", bytes(8)))
    assert header.findings == ()
    assert header.scalars == ()


@pytest.mark.parametrize(
    "wrong",
    [
        record("step_num", [2], "Int64", bytes(16)),
        record("step_num", [], "Float32", bytes(4)),
        record("step_num", [], "str", "12".encode("utf-32-le")),
        record("step_num", [], "UInt64", bytes(8)),
        record("global_batch_size", [], "Bool", b"\1"),
        record("loss_scale", [], "BFloat16", bytes(2)),
        record("step_num", [], "Int64", b"\1\0\0\0") + record("step_num", [], "Int64", bytes(4)),
    ],
)
def test_a_scalar_of_another_type_or_shape_is_damage_and_not_read(wrong: bytes) -> None:
    header = _header(wrong)
    (finding,) = header.findings
    assert (finding.code, finding.severity) == (Code.HEADER_INVALID, Severity.DAMAGE)
    assert finding.tensor in {"step_num", "global_batch_size", "loss_scale"}
    assert header.scalars == ()


@pytest.mark.parametrize(
    "wrong",
    [
        number("epoch_num", -1),
        number("step_num", -(2**63)),
        number("global_step", -1, type_="Int32", dims=[1]),
        number("global_batch_size", 0),
        record("loss_scale", [], "Float32", struct.pack("<f", float("nan"))),
        record("loss_scale", [], "Float32", struct.pack("<f", float("inf"))),
        record("loss_scale", [], "Float64", struct.pack("<d", -1.0)),
    ],
)
def test_a_value_that_no_training_reaches_is_damage_and_not_used(wrong: bytes) -> None:
    header = _header(wrong, number("epoch_num" if b"epoch_num" not in wrong else "step_num", 7))
    (finding,) = header.findings
    assert (finding.code, finding.severity) == (Code.HEADER_INVALID, Severity.DAMAGE)
    assert [value for _, value in header.scalars] == [7]


def test_zero_is_a_legal_step() -> None:
    header = _header(number("epoch_num", 0), number("step_num", 0), number("global_batch_size", 1))
    assert header.findings == ()
    assert (dict(header.scalars)["epoch_num"], dict(header.scalars)["step_num"]) == (0, 0)


def test_scalars_near_the_header_take_no_read_of_their_own_and_distant_ones_one_each() -> None:
    tensors = [("epoch_num", "I64", [], 8), ("step_num", "I64", [], 8), ("w", "F32", [5000], 20000)]
    far = [*tensors, ("loss_scale", "F32", [], 4)]
    farther = [*far, ("x", "F32", [5000], 20000), ("global_step", "I32", [], 4)]
    for layout, extra in [(tensors, 0), (far, 1), (farther, 2)]:
        source = MemorySource(safetensors_file(entries_json(layout), bytes(sum(each[3] for each in layout))))
        header = read_header(source, named=FormatName.SAFETENSORS, facts=FACTS)
        assert len(source.reads) == 1 + extra
        assert dict(header.scalars)["step_num"] == 0


def test_scalars_behind_the_end_of_a_cut_file_are_unknown() -> None:
    whole = safetensors_file(entries_json([("epoch_num", "I64", [], 8), ("step_num", "I64", [], 8)]), bytes(16))
    header = read_header(MemorySource(whole[:-8]), named=FormatName.SAFETENSORS, facts=FACTS)
    assert [finding.code for finding in header.findings] == [Code.SHARD_TRUNCATED]
    assert header.scalars == (("epoch_num", 0),)


class TestAsked:
    """A format looks for no trainer's scalars: it reads what it is asked for."""

    LAYOUT: tuple[tuple[str, str, list[int], int], ...] = (("iteration", "I64", [], 8), ("step_num", "I64", [], 8))

    @staticmethod
    def asked(*names: str) -> ShardFacts:
        return ShardFacts(scalars=tuple(RequestedScalar(name=name) for name in names))

    def file(self) -> bytes:
        return safetensors_file(entries_json(list(self.LAYOUT)), struct.pack("<qq", 7, 30))

    def test_what_nobody_asks_for_is_a_tensor_like_any_other(self) -> None:
        source = MemorySource(self.file())
        header = read_header(source, named=FormatName.SAFETENSORS)
        assert (header.scalars, header.findings, len(source.reads)) == ((), (), 1)
        negative = _header(number("step_num", -1), facts=self.asked("iteration"))
        assert (negative.scalars, negative.findings) == ((), ())

    def test_another_trainers_scalar_is_read_from_either_format(self) -> None:
        facts = self.asked("iteration")
        header = read_header(MemorySource(self.file()), named=FormatName.SAFETENSORS, facts=facts)
        assert header.scalars == (("iteration", 7),)
        assert _header(number("iteration", 9), facts=facts).scalars == (("iteration", 9),)

    def test_a_header_that_is_remembered_is_asked_anew(self) -> None:
        for facts, told in (
            (self.asked("iteration"), (("iteration", 7),)),
            (self.asked("step_num"), (("step_num", 30),)),
            (self.asked("step_num", "iteration"), (("iteration", 7), ("step_num", 30))),
            (self.asked(), ()),
        ):
            for _ in range(2):
                header = read_header(MemorySource(self.file()), named=FormatName.SAFETENSORS, facts=facts)
                assert header.scalars == told


@pytest.mark.parametrize(
    ("type_", "data", "value"),
    [
        ("Float32", struct.pack("<f", 0.1), 0.1),
        ("Float32", struct.pack("<f", 3.4028234663852886e38), 3.4028234663852886e38),
        ("Float32", struct.pack("<f", 1.00000011920929), 1.0000001),
        ("Float16", struct.pack("<e", 0.1), 0.1),
        ("Float16", struct.pack("<e", 65504.0), 65504.0),
        ("Float64", struct.pack("<d", 0.1), 0.1),
        ("Float32", struct.pack("<f", float("inf")), float("inf")),
        ("BFloat16", struct.pack("<f", 1.5)[2:], 1.5),
        ("Int64", struct.pack("<q", -7), -7),
        ("UInt8", b"\xff", 255),
        ("Bool", b"\x01", True),
        ("str", "grün".encode("utf-32-le"), "grün"),
        ("Complex64", bytes(8), None),
        ("Float8E4M3FN", b"\x38", None),
    ],
)
def test_a_tensor_of_one_element_is_the_number_that_people_wrote(type_: str, data: bytes, value: object) -> None:
    source = MemorySource(record("x", [] if type_ == "str" else [1], type_, data) + record("w", [2], "Int8", b"ab"))
    entries = read_header(source, named=CKPT).entries
    assert len(entries) == 2
    assert read_single(source, entries) == (() if value is None else (("x", value),))


def test_numbers_beyond_the_end_of_a_file_and_long_texts_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = record("text", [], "str", "x".encode("utf-32-le") * 300) + number("a", 1) + number("b", 2)
    entries = read_header(MemorySource(whole), named=CKPT).entries
    assert read_single(MemorySource(whole), entries) == (("a", 1), ("b", 2))
    assert read_single(MemorySource(whole[:-1]), entries) == (("a", 1),)
    monkeypatch.setattr(scalars, "_MOST_SINGLES", 1)
    assert read_single(MemorySource(whole), entries) == (("a", 1),)
