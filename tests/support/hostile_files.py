"""Files made to crash, to hang, to fill memory, or to run code: whoever verifies them must come out unharmed."""

from __future__ import annotations

import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

from tests.support.shard_writers import compact, crc_trailer, delimited, entries_json, record, safetensors_file, varint

Maker = Callable[[Path], None]
"""Writes one hostile file."""

GIB = 1 << 30


def _sparse(path: Path, head: bytes, size: int) -> None:
    path.write_bytes(head)
    os.truncate(path, size)


def _longest_header_declared(path: Path) -> None:
    _sparse(path, (99_999_999).to_bytes(8, "little") + b'{"a":', 100_000_100)


def _header_in_no_order(path: Path) -> None:
    header = compact({f"layers.{number}.w": _entry(number) for number in range(60_000)})
    assert len(header) < 16 << 20
    path.write_bytes(safetensors_file(header, b"\0" * 4 * 60_000))


def _entry(number: int) -> dict[str, object]:
    return {"dtype": "F32", "shape": [1], "data_offsets": [4 * number, 4 * number + 4]}


def _sorted_header(path: Path, *, count: int = 100_001, crc: int | None = None) -> None:
    names = sorted(f"w{number:06}" for number in range(count))
    header: dict[str, object] = {} if crc is None else {"__metadata__": {"crc_num": str(crc)}}
    header |= {name: _entry(number) for number, name in enumerate(names)}
    path.write_bytes(safetensors_file(header, struct.pack("<f", 1.0) * count))


def _as_many_tensors_as_we_count(path: Path) -> None:
    _sorted_header(path, count=100_000, crc=7)


def _wide_header(path: Path) -> None:
    """One character that needs four bytes makes 15 million others need four."""
    path.write_bytes(safetensors_file(compact({"__metadata__": {"a": "x" * 15_000_000 + "\U0001f4a3"}})))


def _entries_without_end(path: Path) -> None:
    """Each of a quarter of a million looks like an entry for as long as a shape can be."""
    path.write_bytes(safetensors_file(b"{" + b'"":{"dtype":"","shape":[' * 250_000))


def _many_records(path: Path) -> None:
    with path.open("wb") as file:
        for number in range(300_001):
            file.write(record(f"w{number}", [1], "Float32", b"\0\0\x80\x3f"))


def _many_sick_records(path: Path) -> None:
    with path.open("wb") as file:
        for number in range(100_000):
            file.write(record(f"w{number}", [1], "Float32", b"\0\0\x80\x7f"))


def _deep_json(path: Path) -> None:
    path.write_bytes(safetensors_file(b'{"a":' + b"[" * 1_000_000))


def _deep_metadata(path: Path) -> None:
    path.write_bytes(safetensors_file(b'{"__metadata__":' + b'{"a":' * 1_000_000 + b"}" * 1_000_001))


def _giant_numbers(path: Path) -> None:
    path.write_bytes(
        safetensors_file(b'{"a":{"dtype":"U8","shape":[' + b"9" * 1_000_000 + b'],"data_offsets":[0,1]}}', b"1")
    )


def _giant_shape(path: Path) -> None:
    path.write_bytes(safetensors_file({"a": {"dtype": "F32", "shape": [2**32, 2**32, 0], "data_offsets": [0, 0]}}))


def _giant_product(path: Path) -> None:
    body = b"".join(b"\x08" + varint(2**63 - 1) for _ in range(64)) + delimited(0x12, b"Float32")
    path.write_bytes(delimited(0x0A, delimited(0x0A, b"w") + delimited(0x12, body + delimited(0x1A, b"1234"))))


def _lying_lengths(path: Path) -> None:
    path.write_bytes(b"\x0a" + b"\xff" * 9 + b"\x01" + b"\x0a\xff\xff\xff\xff\x0f" + b"w" * 100)


def _sick_all_over(path: Path) -> None:
    size = 64 << 20
    header = safetensors_file(
        entries_json([(f"w{number:03}", "F32", [size // 256], size // 64) for number in range(64)])
    )
    path.write_bytes(header + b"\xff" * size)


def _huge_but_sound(path: Path) -> None:
    header = safetensors_file(entries_json([("w", "BF16", [GIB], 2 * GIB)]))
    _sparse(path, header, len(header) + 2 * GIB)


def _odd_names(path: Path) -> None:
    names = ["\x1b[31mred\x1b[0m", "[/red]", "\u202eabc", "a\nb", "../../etc/passwd", "%s%n", "\ud800" * 0 + "ü"]
    sick = b"\0\0\xc0\x7f"
    path.write_bytes(b"".join(record(name, [1], "Float32", sick) for name in names))


def _long_name(path: Path) -> None:
    path.write_bytes(record("w" * 65_000, [1], "Float32", b"\0\0\xc0\x7f") * 1)


def _huge_name(path: Path) -> None:
    path.write_bytes(record("w" * 10_000_000, [1], "Float32", b"1234"))


def _wrong_trailer(path: Path) -> None:
    data = record("w", [1], "Float32", b"1234")
    path.write_bytes(data + crc_trailer(data)[:7] + b"\xff" * 10)


def _bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(4):
            archive.writestr(f"model/data/{number}", bytes(64 << 20))


def _many_zip_records(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(50_000):
            archive.writestr(f"model/data/{number}", b"12345678")


def _pickle(path: Path) -> None:
    command = f"touch {path}.ran"
    path.write_bytes(b"\x80\x02cposix\nsystem\nX" + len(command).to_bytes(4, "little") + command.encode() + b"\x85R.")


def _pickle_in_a_zip(path: Path) -> None:
    loose = path.with_suffix(".pkl")
    _pickle(loose)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", loose.read_bytes().replace(b".pkl.ran", b".pt.ran\0"))
    loose.unlink()


def _long_pickle(path: Path, opcodes: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", b"\x80\x04" + opcodes * ((64 << 20) // len(opcodes)) + b"cos\nsystem\n.")


def _folder_record(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data/0/", b"")


def _escaping_record(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../../../../tmp/out", b"x")


def _only_a_magic_number(path: Path) -> None:
    path.write_bytes(b"PK\x03\x04" + b"\xff" * 100)


def _json_document(path: Path) -> None:
    path.write_bytes(b"\x00" * 8 + json.dumps({"a": 1}).encode() * 1000)


CORPUS: dict[str, Maker] = {
    "longest-header-declared.safetensors": _longest_header_declared,
    "header-in-no-order.safetensors": _header_in_no_order,
    "too-many-tensors.safetensors": _sorted_header,
    "many-tensors.safetensors": _as_many_tensors_as_we_count,
    "wide-header.safetensors": _wide_header,
    "entries-without-end.safetensors": _entries_without_end,
    "too-many-records.ckpt": _many_records,
    "many-sick-records.ckpt": _many_sick_records,
    "deep.safetensors": _deep_json,
    "deep-metadata.safetensors": _deep_metadata,
    "giant-numbers.safetensors": _giant_numbers,
    "giant-shape.safetensors": _giant_shape,
    "giant-product.ckpt": _giant_product,
    "lying-lengths.ckpt": _lying_lengths,
    "sick-all-over.safetensors": _sick_all_over,
    "huge-but-sound.safetensors": _huge_but_sound,
    "terabyte-of-zeros.safetensors": lambda path: _sparse(path, b"", 1 << 40),
    "terabyte-of-zeros.ckpt": lambda path: _sparse(path, b"", 1 << 40),
    "terabyte-of-zeros.pt": lambda path: _sparse(path, b"", 1 << 40),
    "odd-names.ckpt": _odd_names,
    "long-name.ckpt": _long_name,
    "huge-name.ckpt": _huge_name,
    "wrong-trailer.ckpt": _wrong_trailer,
    "bomb.pt": _bomb,
    "many-records.pt": _many_zip_records,
    "pickle.pt": _pickle,
    "pickle.ckpt": _pickle,
    "pickle-in-a-zip.pt": _pickle_in_a_zip,
    "pickle-that-fills-the-memo.pt": lambda path: _long_pickle(path, b"\x8c\x01a\x94"),
    "pickle-of-many-names.pt": lambda path: _long_pickle(path, b"ca\nb\n"),
    "pickle-of-nothing-but-numbers.pt": lambda path: _long_pickle(path, b"]K\x01"),
    "folder-record.pt": _folder_record,
    "escaping-record.pt": _escaping_record,
    "only-a-magic-number.pt": _only_a_magic_number,
    "json.safetensors": _json_document,
}
"""By file name; each is written by its own maker."""
