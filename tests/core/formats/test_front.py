"""The first bytes of a file are read once, and are never another file's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ckpttool.core.domain.shard import FormatName
from ckpttool.core.formats import read_header
from ckpttool.core.formats.front import Front
from ckpttool.core.verify.checks.structure import observe_header
from ckpttool.trainers.mindformers.scalars import FACTS
from tests.support.shard_writers import MemorySource, entries_json, safetensors_file
from tests.support.trees import floats, safetensors_bytes, training_scalars
from tests.support.verifying import task_for

STATE = training_scalars(epoch=1, true_step=2)


def shard(tensors: int, *, step: int = 2, crc: str | None = None, moments: bool = False) -> bytes:
    """A rank's file whose data are far longer than a page; with moments, loss_scale lies between them and the rest."""
    state = training_scalars(epoch=1, true_step=step)
    names = ["model.{:04d}.weight", "adam_m.{:04d}.weight"]
    many = [floats(names[moments and number % 2].format(number), [64], seed=step) for number in range(tensors)]
    metadata = {"format": "ms"} if crc is None else {"crc_num": crc, "format": "ms"}
    return safetensors_bytes([*many, *state], metadata)


def reads(data: bytes, path: Path) -> list[tuple[int, int]]:
    """Check a file's header, and return what was read of it."""
    path.write_bytes(data)
    source = MemorySource(data)
    observed = observe_header(task_for(path), source)
    assert observed.report.findings == ()
    assert dict(observed.report.scalars).get("step_num") == 2
    return source.reads


@pytest.mark.parametrize("crc", [None, "77"])
def test_a_header_like_the_one_before_takes_one_read_and_the_last_page_another(tmp_path: Path, crc: str | None) -> None:
    path = tmp_path / "a.safetensors"
    reads(shard(300, crc=None if crc is None else "1234567890"), path)
    data = shard(300, crc=crc)
    begin, last = reads(data, path)
    assert begin[0] == 0 < int.from_bytes(data[:8], "little") < begin[1] < len(data) // 2
    assert last == (len(data) - 4096, 4096)


def test_a_counter_in_the_middle_of_the_file_takes_one_read_more(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    data = shard(300, moments=True)
    reads(data, path)
    assert [length for _, length in reads(data, path)][1:] == [4096, 4]


def test_a_file_without_counters_takes_two_reads_however_many_tensors_it_has() -> None:
    layout = [(f"layers.{number:04d}.weight", "F32", [64], 256) for number in range(3000)]
    data = safetensors_file(entries_json(layout), bytes(256 * 3000))
    read_header(MemorySource(data), named=FormatName.SAFETENSORS, facts=FACTS)
    source = MemorySource(data)
    front = Front(source)
    page = read_header(front, named=FormatName.SAFETENSORS, facts=FACTS).last_page
    assert page == (len(data) - 4096, len(data))
    assert front.read(page[0], 4096) == data[-4096:]
    assert len(source.reads) == 2


def test_what_is_needed_is_counted_and_not_what_was_read_ahead() -> None:
    data = shard(300)
    counted = {read_header(MemorySource(data), named=FormatName.SAFETENSORS, facts=FACTS).bytes_read for _ in range(3)}
    read_header(MemorySource(shard(900)), named=FormatName.SAFETENSORS, facts=FACTS)
    counted.add(read_header(MemorySource(data), named=FormatName.SAFETENSORS, facts=FACTS).bytes_read)
    assert len(counted) == 1


def test_a_longer_header_after_a_shorter_one_and_the_other_way_round_are_read_whole() -> None:
    files = [shard(count, step=count) for count in (3, 900, 4, 300, 2, 1200)]
    for data in (*files, *reversed(files)):
        header = read_header(MemorySource(data), named=FormatName.SAFETENSORS, facts=FACTS)
        assert header.findings == ()
        assert dict(header.scalars).get("step_num") == len(header.entries) - len(STATE)


def test_a_file_that_became_shorter_is_answered_as_far_as_it_goes() -> None:
    data = shard(300)
    source = MemorySource(data[:6000], size=len(data))
    front = Front(source)
    front.extend(10_000)
    assert front.length == 6000
    assert front.read(0, 6000) == data[:6000]
    assert front.read(5000, 2000) == data[5000:6000]
    buffer = bytearray(10)
    assert (front.read_into(10, memoryview(buffer)), bytes(buffer)) == (10, data[10:20])


def test_threads_do_not_share_what_they_read() -> None:
    wrong: list[int] = []

    def work(step: int) -> None:
        data = shard(step * 10, step=step)
        for _ in range(50):
            header = read_header(MemorySource(data), named=FormatName.SAFETENSORS, facts=FACTS)
            if dict(header.scalars).get("step_num") != step:
                wrong.append(step)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(1, 5)))
    assert wrong == []
