"""One shard on a disk that others write, break and guard: what is reported, and what is never believed."""

from __future__ import annotations

import errno
import os
import pickle
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from ckpttool.core.domain.finding import Code, Severity, worst
from ckpttool.core.domain.verdict import Level, VerdictWord
from ckpttool.core.storage.local import LocalStorage
from ckpttool.core.verify.check import check, guarded
from ckpttool.core.verify.checks import checksum
from ckpttool.core.verify.observation import Observation
from ckpttool.core.verify.report import judge
from tests.support.faulty_storages import FaultyStorage
from tests.support.shard_writers import crc_trailer
from tests.support.verifying import (
    CKPT,
    SAFETENSORS,
    FailingStorage,
    Interrupted,
    codes,
    raises,
    task_for,
    two_megabytes,
)


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "shard.ckpt"
    path.write_bytes(CKPT.read_bytes())
    return path


@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize("path", [CKPT, SAFETENSORS])
def test_a_whole_file_has_nothing_above_a_note(path: Path, level: Level) -> None:
    report = judge([check(task_for(path, level))])
    assert report.word is VerdictWord.STRUCT_OK
    assert codes(report.findings) == []
    assert report.stamp == LocalStorage(str(path.parent)).stamp(path.name)
    assert report.tensors == 20


def test_a_header_check_reads_two_pages_and_a_content_check_every_byte(tmp_path: Path) -> None:
    path = two_megabytes(tmp_path / "model.safetensors")
    assert check(task_for(path)).report.bytes_read == 2 * 4096
    assert check(task_for(path, Level.CHECKSUM)).report.bytes_read == 2 * 4096 + path.stat().st_size


def test_a_look_at_a_header_does_not_carry_the_entries_of_thousands_of_ranks() -> None:
    observed = check(task_for(CKPT))
    assert (observed.header, observed.records, observed.content) == (None, None, None)


class TestAFileThatChanges:
    def test_one_that_grows_once_is_looked_at_again_and_then_believed(self, shard: Path) -> None:
        def grow(opening: int) -> None:
            if opening == 1:
                os.utime(shard, ns=(1, 1))

        storage = Interrupted(str(shard.parent), grow)
        report = check(task_for(shard), storage=storage).report
        assert storage.openings == 2
        assert report.word is VerdictWord.STRUCT_OK

    def test_one_that_never_stands_still_is_unstable_and_what_was_seen_is_dropped(self, shard: Path) -> None:
        def grow(opening: int) -> None:
            with shard.open("ab") as file:
                file.write(b"x" * opening)

        report = check(task_for(shard, Level.CHECKSUM), storage=Interrupted(str(shard.parent), grow)).report
        assert report.word is VerdictWord.UNSTABLE
        assert codes(report.findings) == [Code.CHANGED_WHILE_READING]
        assert (report.stamp, report.schema_hash, report.checksum_matched) == (None, None, False)
        assert "bytes before" in report.findings[0].message

    def test_one_that_is_cut_while_its_content_is_read_is_unstable_not_damaged(self, tmp_path: Path) -> None:
        path = two_megabytes(tmp_path / "model.safetensors")
        half = (1 << 20, (1 << 20) + 1)
        storage = FailingStorage(str(tmp_path), half, lambda: os.truncate(path, 1 << 20))
        assert check(task_for(path, Level.CHECKSUM), storage=storage).report.word is VerdictWord.UNSTABLE
        assert check(task_for(path, Level.CHECKSUM)).report.word is VerdictWord.DAMAGED  # nobody cuts it any more

    def test_a_writer_beside_us_never_makes_a_whole_file_damaged(self, tmp_path: Path) -> None:
        """A real thread writes the file record by record, while it is looked at over and over."""
        whole = CKPT.read_bytes()
        path = tmp_path / "growing.ckpt"
        path.write_bytes(whole[:100])
        listed = LocalStorage(str(tmp_path)).stamp(path.name)
        done = threading.Event()

        def write() -> None:
            with path.open("ab", buffering=0) as file:
                for begin in range(100, len(whole), 7):
                    file.write(whole[begin : begin + 7])
            done.set()

        writer = threading.Thread(target=write)
        words = set()
        writer.start()
        while not done.is_set():
            task = task_for(path)
            seen = LocalStorage(str(tmp_path)).stamp(path.name)
            if seen != listed:
                words.add(check(replace(task, listed=listed)).report.word)
        writer.join()
        assert words <= {VerdictWord.UNSTABLE, VerdictWord.STRUCT_OK}
        assert check(task_for(path)).report.word is VerdictWord.STRUCT_OK

    def test_damage_in_a_file_that_changed_since_it_was_listed_proves_nothing(self, shard: Path) -> None:
        listed = LocalStorage(str(shard.parent)).stamp(shard.name)
        os.truncate(shard, 1000)
        assert check(replace(task_for(shard), listed=listed)).report.word is VerdictWord.UNSTABLE
        now = LocalStorage(str(shard.parent)).stamp(shard.name)
        assert check(replace(task_for(shard), listed=now)).report.word is VerdictWord.DAMAGED

    def test_a_whole_file_that_was_replaced_since_it_was_listed_is_whole(self, shard: Path) -> None:
        listed = LocalStorage(str(shard.parent)).stamp(shard.name)
        copy = shard.with_name("copy")
        copy.write_bytes(shard.read_bytes())
        copy.rename(shard)
        assert check(replace(task_for(shard), listed=listed)).report.word is VerdictWord.STRUCT_OK

    def test_one_that_is_gone_is_unstable_and_not_called_damage(self, tmp_path: Path) -> None:
        report = check(task_for(tmp_path / "gone.ckpt")).report
        assert report.word is VerdictWord.UNSTABLE
        assert worst(report.findings) is Severity.UNKNOWN
        assert "disappeared" in report.findings[0].message


class TestWhatIsNoFile:
    def test_a_fifo_is_refused_and_does_not_hang(self, tmp_path: Path) -> None:
        path = tmp_path / "fifo.ckpt"
        os.mkfifo(path)
        report = check(task_for(path, Level.NUMERICS)).report
        assert report.word is VerdictWord.UNSAFE
        assert codes(report.findings) == [Code.NOT_A_REGULAR_FILE]

    @pytest.mark.parametrize("target", ["/dev/zero", "/dev/null", "."])
    def test_a_device_or_a_folder_is_refused(self, tmp_path: Path, target: str) -> None:
        path = tmp_path / "link.ckpt"
        path.symlink_to(target)
        assert check(task_for(path, Level.CHECKSUM)).report.word is VerdictWord.UNSAFE

    def test_a_link_to_a_whole_file_is_read_as_that_file(self, tmp_path: Path) -> None:
        path = tmp_path / "link.ckpt"
        path.symlink_to(CKPT)
        assert check(task_for(path)).report.word is VerdictWord.STRUCT_OK

    @pytest.mark.parametrize(
        ("target", "why"),
        [("lost.ckpt", "a circular link"), ("not-mounted", "a broken link")],
    )
    def test_a_link_that_leads_nowhere_is_unreadable_and_told_what_to_do(
        self, tmp_path: Path, target: str, why: str
    ) -> None:
        path = tmp_path / "lost.ckpt"
        path.symlink_to(tmp_path / target)
        report = check(task_for(path)).report
        assert report.word is VerdictWord.UNREADABLE
        (found,) = report.findings
        assert (found.code, found.severity) == (Code.UNREADABLE, Severity.UNKNOWN)
        assert why in found.message
        assert "mount" in (found.remedy or "")


class TestADiskThatFails:
    @pytest.mark.parametrize("error", [errno.EACCES, errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
    def test_what_cannot_be_opened_is_unreadable_never_damaged_and_never_good(self, shard: Path, error: int) -> None:
        storage = FaultyStorage(str(shard.parent), {shard.name: error})
        report = check(task_for(shard), storage=storage).report
        assert report.word is VerdictWord.UNREADABLE
        assert worst(report.findings) is Severity.UNKNOWN
        assert os.strerror(error) in report.findings[0].message

    @pytest.mark.parametrize("level", [Level.CHECKSUM, Level.NUMERICS])
    def test_a_bad_sector_in_a_tensor_is_found_by_reading_it_and_by_nothing_else(
        self, tmp_path: Path, level: Level
    ) -> None:
        path = two_megabytes(tmp_path / "model.safetensors")
        storage = FailingStorage(str(tmp_path), (1 << 20, (1 << 20) + 512), raises(errno.EIO))
        assert check(task_for(path), storage=storage).report.word is VerdictWord.STRUCT_OK
        report = check(task_for(path, level), storage=storage).report
        assert report.word is VerdictWord.UNREADABLE
        assert "Input/output error" in report.findings[0].message

    def test_a_real_file_without_permission_is_unreadable(self, shard: Path) -> None:
        if os.geteuid() == 0:
            pytest.skip("root may read everything")
        shard.chmod(0)
        assert check(task_for(shard)).report.word is VerdictWord.UNREADABLE


class TestTooMuchToCount:
    def test_what_is_all_header_is_refused_where_each_tensor_would_be_looked_at(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(checksum, "MOST_ENTRIES", 19)
        report = judge([check(task_for(CKPT, Level.NUMERICS))])
        assert report.word is VerdictWord.UNSAFE
        assert codes(report.findings) == [Code.OVER_LIMIT]
        monkeypatch.setattr(checksum, "MOST_ENTRIES", 20)
        assert judge([check(task_for(CKPT, Level.NUMERICS))]).word is VerdictWord.STRUCT_OK

    def test_where_only_bytes_are_summed_the_number_of_tensors_does_not_matter(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(checksum, "MOST_ENTRIES", 1)
        assert judge([check(task_for(CKPT, Level.CHECKSUM))]).word is VerdictWord.STRUCT_OK


class TestOurOwnMistakes:
    def test_an_exception_inside_a_check_becomes_a_report_that_says_which(self) -> None:
        def mistake(_: object) -> Observation:
            raise RecursionError("too deep")

        report = guarded(task_for(CKPT), mistake).report
        assert report.word is VerdictWord.UNREADABLE
        assert "RecursionError: too deep" in report.findings[0].message

    def test_a_ctrl_c_is_no_mistake_and_goes_through(self) -> None:
        def interrupted(_: object) -> Observation:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            guarded(task_for(CKPT), interrupted)


@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize("path", [CKPT, SAFETENSORS])
def test_tasks_and_looks_survive_the_way_to_another_process_and_back(path: Path, level: Level) -> None:
    task = task_for(path, level)
    assert pickle.loads(pickle.dumps(task)) == task  # noqa: S301  ours
    observed = check(task)
    again = pickle.loads(pickle.dumps(observed))  # noqa: S301  ours
    assert again == observed
    assert judge([again]) == judge([observed])


def test_the_format_that_the_content_shows_counts_not_the_suffix(tmp_path: Path) -> None:
    path = tmp_path / "shard.ckpt"
    path.write_bytes(SAFETENSORS.read_bytes())
    report = check(task_for(path)).report
    assert codes(report.findings) == [Code.NAME_DISAGREES]


def test_a_trailer_is_seen_without_reading_the_tensors(tmp_path: Path) -> None:
    data = CKPT.read_bytes()
    path = tmp_path / "crc.ckpt"
    path.write_bytes(data + crc_trailer(data))
    assert check(task_for(path)).report.embedded_checksum
    assert not check(task_for(CKPT)).report.embedded_checksum
