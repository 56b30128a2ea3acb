"""A torch file must hold every record that its pickle names, as long as the pickle says; other archives are let be."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.package.package_exporter import PackageExporter

from ckpttool.core.domain.finding import Code, Finding, Row, Severity
from ckpttool.core.formats.base import MAX_FINDINGS
from ckpttool.core.formats.torch import pickle_scan
from ckpttool.core.formats.torch.pickle_scan import PickleReader
from ckpttool.core.formats.torch.shard import look_at_pickles
from ckpttool.core.formats.torch.zip_directory import read_zip_directory
from tests.support.shard_writers import MemorySource, torch_file

Change = Callable[[str, bytes], bytes | None]


def changed(data: bytes, change: Change) -> bytes:
    """Write an archive again, with each record's data as `change` says; None leaves it out."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w") as new:
        for name in old.namelist():
            content = change(name.partition("/")[2], old.read(name))
            if content is not None:
                new.writestr(name, content)
    return file.getvalue()


def findings(data: bytes) -> list[Finding]:
    directory = read_zip_directory(MemorySource(data))
    return [*directory.findings, *look_at_pickles(MemorySource(data), directory.entries)[0]]


def damage(data: bytes) -> list[Finding]:
    return [one for one in findings(data) if one.severity > Severity.NOTE]


def loads(data: bytes) -> bool:
    try:
        torch.load(io.BytesIO(data), weights_only=False)
    except Exception:  # noqa: BLE001  whatever it says of a file that is not whole
        return False
    return True


def without(record: str) -> Change:
    return lambda name, data: None if name == record else data


def cut(record: str, length: int) -> Change:
    return lambda name, data: data[:length] if name == record else data


def instead(pickled: bytes) -> Change:
    return lambda name, data: pickled if name == "data.pkl" else data


def many_kinds() -> dict[str, object]:
    weight, plain = torch.arange(40.0), torch.tensor([1.0, 2.0])
    kinds = (torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.complex128)
    integers = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool, torch.uint16, torch.uint64)
    return {
        "one more of a torch.save": weight,
        "a view of it": weight[3:7],
        "another": weight.view(5, 8).t(),
        "kinds": [torch.ones(3).to(kind) for kind in (*kinds, *integers)],
        "empty": [torch.zeros(0), torch.zeros(0, dtype=torch.int64), torch.zeros(4, 0, 3)],
        "sparse": torch.eye(3).to_sparse(),
        # Not by quantizing, which old processors cannot.
        "quantized": [
            torch._empty_affine_quantized([3], scale=0.1, zero_point=0, dtype=kind)  # noqa: SLF001
            for kind in (torch.qint8, torch.quint8, torch.qint32)
        ],
        "young": [torch.eye(3).to_sparse_csr(), torch.nested.nested_tensor([plain, plain])],
        "parameter": torch.nn.Parameter(plain),
        "bytes": torch.ones(10, dtype=torch.uint8).untyped_storage(),
        "numbers in odd bytes": torch.tensor([], dtype=torch.float32).set_(
            torch.ones(10, dtype=torch.uint8).untyped_storage()
        ),
        "meta": torch.empty(3, device="meta"),
        "generator": torch.get_rng_state(),
        "0": plain,
        "1": torch.ones(1),
    }


def many() -> dict[str, object]:
    return {f"layers.{number}.weight": torch.full((number % 3,), 1.0) for number in range(1500)}


def a_model() -> torch.nn.Module:
    return torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(12)))


VALUES: dict[str, Callable[[], object]] = {
    "every kind of tensor": many_kinds,
    "the state of a model": lambda: a_model().state_dict(),
    "a model": a_model,
    "no tensor": lambda: {"step": 7},
    "many": many,
}
# That kinds of tensors are young, or on their way out.
pytestmark = pytest.mark.filterwarnings("ignore")


class TestHealthy:
    @pytest.mark.sample(8)
    @pytest.mark.parametrize("protocol", [2, 3, 4, 5])
    @pytest.mark.parametrize("make", VALUES.values(), ids=VALUES)
    def test_a_file_that_torch_saved_misses_nothing_and_every_storage_of_it_is_followed(
        self, make: Callable[[], object], protocol: int
    ) -> None:
        data = torch_file(make(), pickle_protocol=protocol)
        assert damage(data) == []
        (main,) = [one for one in read_zip_directory(MemorySource(data)).entries if one.name.endswith("/data.pkl")]
        found = PickleReader(MemorySource(data)).names(main.begin, main.end).storages
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            keys = {name.split("/data/")[1] for name in archive.namelist() if "/data/" in name}
        assert found.keys() == keys
        assert all(storage.kind for storage in found.values())

    def test_a_file_whose_data_were_left_out_for_later_misses_nothing(self) -> None:
        with torch.serialization.skip_data():
            data = torch_file({"a": torch.ones(30), "b": torch.ones(5)})
        assert damage(data) == []

    def test_archives_that_are_for_other_than_torch_load_are_let_be(self, tmp_path: Path) -> None:
        with PackageExporter(str(tmp_path / "package.pt")) as exporter:
            exporter.save_pickle("model", "model.pkl", {"a": torch.ones(3)})
        assert damage((tmp_path / "package.pt").read_bytes()) == []

    def test_torchscript_misses_nothing_and_what_it_misses_is_found(self) -> None:
        file = io.BytesIO()
        model = torch.nn.Linear(2, 2)
        traced = torch.jit.trace(model, torch.ones(1, 2))
        torch.jit.save(traced, file)
        data = file.getvalue()
        assert damage(data) == []
        at = data.index(b"/data/1")
        name = data[data.rindex(b"PK\x03\x04", 0, at) + 30 : at + 7]
        (found,) = [one for one in damage(data.replace(name, name[:-1] + b"9")) if "names the record" in one.message]
        assert found.code is Code.ENTRIES_MISSING

    @pytest.mark.parametrize(
        "opcodes",
        [
            b"(X\1\0\0\0aX\1\0\0\0bu.",
            b"(X\7\0\0\0storageNt.",
            b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0zX\3\0\0\0cpuK\5tQ.",
            b"(X\7\0\0\0storagectorch\nFloatStorage\nh\7X\3\0\0\0cpuK\5tQ.",
            b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\x000X\3\0\0\0cpuNtQ.",
            b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\x000X\3\0\0\0cpuK\5NtQ.",
            b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\x000X\3\0\0\0cpuK\5t.",
        ],
    )
    def test_what_is_not_written_as_torch_does_is_not_followed(self, opcodes: bytes) -> None:
        assert PickleReader(MemorySource(b"\x80\2" + opcodes)).names(0, len(opcodes) + 2).storages == {}

    def test_a_storage_of_a_kind_that_nobody_knows_must_only_be_there(self) -> None:
        data = torch_file({"a": torch.ones(5)})
        pickled = b"\x80\2(X\7\0\0\0storagecown\nStorage\nX\1\0\0\x000X\3\0\0\0cpu\x8a\1\5tQ."
        for one in (pickled, pickled.replace(b"cown\nStorage\n", b"h\7")):
            odd = changed(data, instead(one))
            assert damage(odd) == []
            assert [one.code for one in damage(changed(odd, without("data/0")))] == [Code.ENTRIES_MISSING]


class TestMissingPieces:
    DATA = torch_file({"a": torch.ones(300), "b": torch.ones(5)})

    @pytest.mark.parametrize(
        ("change", "code", "words"),
        [
            (without("data.pkl"), Code.ENTRIES_MISSING, "has no 'archive/data.pkl'"),
            (without("data/1"), Code.ENTRIES_MISSING, "names the record 'archive/data/1'"),
            (cut("data/0", 0), Code.HEADER_INVALID, "has 0 bytes, but 'archive/data.pkl' says 300 numbers of 4 bytes"),
            (cut("data/1", 8), Code.HEADER_INVALID, "has 8 bytes, but 'archive/data.pkl' says 5 numbers of 4 bytes"),
            (cut("data/1", 19), Code.HEADER_INVALID, "has 19 bytes"),
        ],
    )
    def test_a_file_without_a_piece_is_damaged_and_torch_cannot_load_it(
        self, change: Change, code: Row, words: str
    ) -> None:
        data = changed(self.DATA, change)
        (found,) = damage(data)
        assert (found.code, found.severity) == (code, Severity.DAMAGE)
        assert words in found.message
        assert not loads(data)

    def test_the_same_file_written_again_whole_is_healthy(self) -> None:
        data = changed(self.DATA, lambda _, data: data)
        assert damage(data) == []
        assert loads(data)

    @pytest.mark.sample(2)
    @pytest.mark.parametrize("protocol", [2, 3, 4, 5])
    @pytest.mark.parametrize("make", [many_kinds, a_model])
    def test_whichever_record_of_a_tensor_is_missing_or_short_it_is_found(
        self, make: Callable[[], object], protocol: int
    ) -> None:
        data = torch_file(make(), pickle_protocol=protocol)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            sizes = {one.filename.partition("/")[2]: one.file_size for one in archive.infolist()}
        records = [name for name in sizes if name.startswith("data/")]
        assert len(records) > 20
        for record in records:
            assert [one.code for one in damage(changed(data, without(record)))] == [Code.ENTRIES_MISSING], record
            if sizes[record]:
                short = changed(data, cut(record, sizes[record] // 2))
                assert [one.code for one in damage(short)] == [Code.HEADER_INVALID], record

    def test_a_save_that_failed_leaves_what_is_damaged(self, tmp_path: Path) -> None:
        class Refuses:
            def __reduce__(self) -> tuple[object, ...]:
                raise OSError

        with pytest.raises(OSError):  # noqa: PT011  it has no words
            torch.save({"a": torch.ones(3), "b": Refuses()}, tmp_path / "model.pt")
        assert [one.code for one in damage((tmp_path / "model.pt").read_bytes())] == [Code.ENTRIES_MISSING]

    def test_no_more_storages_are_kept_than_an_archive_can_have(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pickle_scan, "MOST_STORAGES", 3)
        data = torch_file([torch.ones(3) for _ in range(10)])
        assert len(damage(changed(data, lambda name, old: None if name.startswith("data/") else old))) == 3

    def test_no_more_is_said_than_anybody_reads(self) -> None:
        data = torch_file([torch.ones(3) for _ in range(100)])
        assert len(damage(changed(data, lambda name, old: None if name.startswith("data/") else old))) == MAX_FINDINGS

    def test_an_archive_whose_directory_does_not_hold_together_is_not_judged_twice(self) -> None:
        assert look_at_pickles(MemorySource(b""), ()) == ((), 0)
