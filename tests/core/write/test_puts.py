"""What is laid ready takes its place whole, once, and over nothing else than what it was made to replace."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
from xxhash import xxh3_128_hexdigest

from ckpttool.core.domain.retention import Put
from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.errors import IncompleteError, UnsafeError, WriteFailedError
from ckpttool.core.write.puts import Ready, is_untouched, lay_ready, put_all, take_back
from tests.core.write.test_files import fail_nth

OLD, NEW = b"old", b"new content"
PLACE, SECOND = "rank_0/shard", "rank_1/shard"
KEPT, SECOND_KEPT = ".ckpttool/damaged/T/rank_0/shard", "damaged/shard"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree of two ranks, each with a file."""
    for place in (PLACE, SECOND):
        (tmp_path / place).parent.mkdir()
        (tmp_path / place).write_bytes(OLD)
    (tmp_path / ".ckpttool").mkdir()
    return tmp_path


def contents(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def stamp(path: Path) -> FileStamp:
    status = path.lstat()
    return FileStamp.on_disk(size=status.st_size, mtime_ns=status.st_mtime_ns, inode=status.st_ino)


def ready(root: Path, place: str = PLACE, *, mode: int = 0o640, mtime_ns: int | None = None) -> Ready:
    return lay_ready(str(root), place, [NEW[:3], memoryview(NEW)[3:]], size=len(NEW), mode=mode, mtime_ns=mtime_ns)


def put(root: Path, place: str = PLACE, kept: str | None = KEPT) -> Put:
    """Lay a file ready that replaces the one in its place."""
    laid = ready(root, place)
    return Put(path=place, temporary=laid.temporary, stamp=laid.stamp, replaces=stamp(root / place), retained=kept)


class TestLaying:
    def test_it_lies_whole_beside_its_place_which_stays_as_it_is(self, root: Path) -> None:
        laid = ready(root, mtime_ns=1_600_000_000_123_456_789)
        file = root / laid.temporary
        assert (file.parent, file.read_bytes()) == (root / "rank_0", NEW)
        assert (root / PLACE).read_bytes() == OLD
        assert file.stat().st_mtime_ns == 1_600_000_000_123_456_789
        assert laid.stamp == stamp(file)
        assert (laid.streamed.size, laid.streamed.xxh3_128) == (len(NEW), xxh3_128_hexdigest(NEW))

    def test_its_mode_is_the_one_asked_for_whatever_the_umask(self, root: Path) -> None:
        before = os.umask(0o077)
        try:
            laid = ready(root, mode=0o664)
        finally:
            os.umask(before)
        assert stat.S_IMODE((root / laid.temporary).stat().st_mode) == 0o664

    def test_only_its_owner_reads_it_before_it_is_whole(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        modes = []
        real = os.write

        def write(fd: int, data: memoryview) -> int:
            modes.append(stat.S_IMODE(os.fstat(fd).st_mode))
            return real(fd, data)

        monkeypatch.setattr(os, "write", write)
        ready(root)
        assert set(modes) == {0o600}

    def test_a_file_of_the_root_itself_lies_in_the_root(self, root: Path) -> None:
        assert "/" not in ready(root, "tracker").temporary

    def test_content_mode_and_time_are_on_the_disk_before_it_counts_as_ready(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced: list[tuple[bool, int, int, int]] = []
        real = os.fsync

        def fsync(fd: int) -> None:
            status = os.fstat(fd)
            what = (stat.S_ISDIR(status.st_mode), status.st_size, status.st_mode & 0o777, status.st_mtime_ns)
            synced.append((False, *what[1:]) if not what[0] else (True, 0, 0, 0))
            real(fd)

        monkeypatch.setattr(os, "fsync", fsync)
        ready(root, mode=0o644, mtime_ns=7_000_000_000)
        assert synced == [(False, len(NEW), 0o644, 7_000_000_000), (True, 0, 0, 0)]

    @pytest.mark.parametrize("call", ["open", "fstatvfs", "write", "fchmod", "utime", "fsync", "close"])
    @pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
    def test_whatever_fails_leaves_the_tree_as_it_was(
        self, root: Path, call: str, error: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = contents(root)
        failures = 0
        for nth in range(1, 12):
            with monkeypatch.context() as patch:
                fail_nth(patch, call, nth, error)
                try:
                    laid = ready(root, mtime_ns=7_000_000_000)
                except WriteFailedError:
                    failures += 1
                else:
                    (root / laid.temporary).unlink()
            assert contents(root) == before
        assert failures

    def test_a_disk_without_room_is_not_written_to(self, root: Path) -> None:
        before = contents(root)
        with pytest.raises(WriteFailedError, match="it needs 1152921504606846976 bytes"):
            lay_ready(str(root), PLACE, [NEW], size=1 << 60, mode=0o644)
        assert contents(root) == before

    def test_what_stops_the_content_leaves_nothing_behind(self, root: Path) -> None:
        def blocks() -> object:
            yield NEW
            raise KeyboardInterrupt

        before = contents(root)
        with pytest.raises(KeyboardInterrupt):
            lay_ready(str(root), PLACE, blocks(), size=len(NEW), mode=0o644)  # type: ignore[arg-type]
        assert contents(root) == before

    def test_no_file_is_laid_ready_behind_a_link(self, root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
        other = tmp_path_factory.mktemp("other")
        (root / "rank_2").symlink_to(other)
        with pytest.raises(UnsafeError):
            ready(root, "rank_2/shard")
        assert list(other.iterdir()) == []


class TestPutting:
    def test_the_new_file_takes_the_place_and_the_old_one_is_kept(self, root: Path) -> None:
        put_all(str(root), [put(root), put(root, SECOND, kept=None)])
        assert contents(root) == {PLACE: NEW, SECOND: NEW, KEPT: OLD}

    def test_a_file_of_the_root_and_a_place_that_was_free_are_put_too(self, root: Path) -> None:
        for place in ("tracker", "rank_1/new"):
            laid = ready(root, place)
            put_all(str(root), [Put(path=place, temporary=laid.temporary, stamp=laid.stamp)])
        assert contents(root) == {PLACE: OLD, SECOND: OLD, "tracker": NEW, "rank_1/new": NEW}

    def test_what_may_go_is_replaced_whatever_it_is(self, root: Path) -> None:
        laid = ready(root)
        (root / PLACE).write_bytes(b"whatever else")
        put_all(str(root), [Put(path=PLACE, temporary=laid.temporary, stamp=laid.stamp)])
        assert contents(root) == {PLACE: NEW, SECOND: OLD}

    @pytest.mark.parametrize("links", [True, False])
    @pytest.mark.parametrize("call", ["mkdir", "link", "rename", "replace", "fsync", "open"])
    def test_stopped_at_any_call_and_done_again_it_ends_alike(
        self, root: Path, call: str, monkeypatch: pytest.MonkeyPatch, *, links: bool
    ) -> None:
        """And at no moment is the old content of a shard nowhere."""
        if not links:
            without_links(monkeypatch)
        nth = 0
        stopped = True
        while stopped:
            nth += 1
            reset(root)
            puts = [put(root), put(root, SECOND, kept=SECOND_KEPT)]
            with monkeypatch.context() as patch:
                fail_nth(patch, call, nth, errno.EIO)
                try:
                    put_all(str(root), puts)
                    stopped = False
                except WriteFailedError:
                    pass
            for place, kept in ((PLACE, KEPT), (SECOND, SECOND_KEPT)):
                assert OLD in {path.read_bytes() for path in (root / place, root / kept) if path.exists()}
            put_all(str(root), puts)
            put_all(str(root), puts)
            assert contents(root) == {PLACE: NEW, SECOND: NEW, KEPT: OLD, SECOND_KEPT: OLD}
        assert nth > 1 or (call == "rename" and links)

    @pytest.mark.parametrize("error", [errno.EACCES, errno.EIO])
    def test_a_link_that_is_refused_for_another_reason_is_no_ground_for_a_rename(
        self, root: Path, error: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        puts = [put(root)]
        fail_nth(monkeypatch, "link", 1, error)
        with pytest.raises(WriteFailedError):
            put_all(str(root), puts)
        assert (root / PLACE).read_bytes() == OLD

    @pytest.mark.parametrize("change", ["in its place", "laid ready", "gone from its place", "gone where it lay"])
    def test_what_is_another_file_now_stops_it_and_stays(self, root: Path, change: str) -> None:
        one = put(root)
        file = root / (PLACE if "place" in change else one.temporary)
        file.unlink() if "gone" in change else file.write_bytes(b"somebody's")
        before = contents(root)
        with pytest.raises(IncompleteError, match=r"cannot complete an interrupted heal at 'rank_0/shard'"):
            put_all(str(root), [one])
        assert contents(root) == before

    def test_what_is_kept_under_that_name_but_another_file_does_not_let_it_go_on(self, root: Path) -> None:
        one = put(root)
        (root / PLACE).unlink()
        (root / KEPT).parent.mkdir(parents=True)
        (root / KEPT).write_bytes(b"another")
        with pytest.raises(IncompleteError):
            put_all(str(root), [one])
        assert (root / KEPT).read_bytes() == b"another"

    def test_a_new_save_in_the_place_of_a_file_that_is_kept_already_is_not_replaced(self, root: Path) -> None:
        one = put(root)
        (root / KEPT).parent.mkdir(parents=True)
        (root / PLACE).rename(root / KEPT)
        (root / PLACE).write_bytes(b"a new save")
        with pytest.raises(IncompleteError):
            put_all(str(root), [one])
        assert (root / PLACE).read_bytes() == b"a new save"

    def test_it_stops_at_the_first_that_it_cannot_put(self, root: Path) -> None:
        puts = [put(root), put(root, SECOND, kept=None)]
        (root / PLACE).write_bytes(b"somebody's")
        with pytest.raises(IncompleteError):
            put_all(str(root), puts)
        assert (root / SECOND).read_bytes() == OLD

    @pytest.mark.parametrize("made", ["link", "folder", "pipe"])
    def test_what_is_no_plain_file_is_not_replaced(self, root: Path, made: str) -> None:
        one = put(root)
        (root / PLACE).unlink()
        if made == "link":
            (root / PLACE).symlink_to(root / SECOND)
        elif made == "folder":
            (root / PLACE).mkdir()
        else:
            os.mkfifo(root / PLACE)
        with pytest.raises(UnsafeError, match="is a link or not a regular file"):
            put_all(str(root), [one])
        assert (root / SECOND).read_bytes() == OLD

    def test_nothing_is_kept_behind_a_link(self, root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
        other = tmp_path_factory.mktemp("other")
        (root / ".ckpttool" / "damaged").symlink_to(other)
        with pytest.raises(UnsafeError):
            put_all(str(root), [put(root)])
        assert (list(other.iterdir()), (root / PLACE).read_bytes()) == ([], OLD)

    def test_every_folder_and_name_is_on_the_disk(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        puts = [put(root)]
        synced = set()
        real = os.fsync

        def fsync(fd: int) -> None:
            synced.add(Path(f"/proc/self/fd/{fd}").readlink().relative_to(root).as_posix())
            real(fd)

        monkeypatch.setattr(os, "fsync", fsync)
        put_all(str(root), puts)
        folders = {parent.as_posix() for parent in Path(KEPT).parents} - {"."}
        assert synced == folders | {"rank_0"}


def without_links(patch: pytest.MonkeyPatch) -> None:
    def refused(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    patch.setattr(os, "link", refused)


def reset(root: Path) -> None:
    """Make the tree what it was in the beginning."""
    for place in contents(root):
        (root / place).unlink()
    for folder in (".ckpttool/damaged/T/rank_0", ".ckpttool/damaged/T", ".ckpttool/damaged", "damaged"):
        if (root / folder).is_dir():
            (root / folder).rmdir()
    for place in (PLACE, SECOND):
        (root / place).write_bytes(OLD)


class TestTakingBack:
    def test_a_tree_is_untouched_until_the_first_file_has_its_place(self, root: Path) -> None:
        puts = [put(root), put(root, SECOND, kept=None)]
        assert is_untouched(str(root), puts)
        put_all(str(root), puts[:1])
        assert not is_untouched(str(root), puts)

    def test_it_is_not_untouched_if_a_file_to_replace_is_another_now(self, root: Path) -> None:
        puts = [put(root)]
        (root / PLACE).write_bytes(b"somebody's")
        assert not is_untouched(str(root), puts)

    def test_it_is_not_untouched_if_what_was_laid_ready_is_gone(self, root: Path) -> None:
        puts = [put(root), put(root, SECOND)]
        (root / puts[1].temporary).unlink()
        assert not is_untouched(str(root), puts)

    @pytest.mark.parametrize("place", ["tracker", PLACE])
    def test_a_place_that_is_free_or_whose_file_may_go_has_no_say_in_it(self, root: Path, place: str) -> None:
        laid = ready(root, place)
        assert is_untouched(str(root), [Put(path=place, temporary=laid.temporary, stamp=laid.stamp)])

    def test_what_was_laid_ready_goes_and_the_files_stay(self, root: Path) -> None:
        before = contents(root)
        puts = [put(root), put(root, SECOND, kept=None)]
        take_back(str(root), puts)
        assert contents(root) == before

    def test_the_second_name_of_a_file_goes_while_it_has_its_first(self, root: Path) -> None:
        one = put(root)
        (root / KEPT).parent.mkdir(parents=True)
        (root / KEPT).hardlink_to(root / PLACE)
        take_back(str(root), [one])
        assert contents(root) == {PLACE: OLD, SECOND: OLD}

    def test_the_only_name_of_a_file_stays(self, root: Path) -> None:
        one = put(root)
        (root / KEPT).parent.mkdir(parents=True)
        (root / PLACE).rename(root / KEPT)
        take_back(str(root), [one])
        assert contents(root) == {KEPT: OLD, SECOND: OLD}

    def test_one_that_cannot_be_removed_does_not_keep_the_others(self, root: Path) -> None:
        puts = [put(root), put(root, SECOND, kept=None)]
        (root / puts[0].temporary).unlink()
        (root / puts[0].temporary).mkdir()
        take_back(str(root), puts)
        assert contents(root) == {PLACE: OLD, SECOND: OLD}

    def test_a_link_in_a_place_keeps_what_was_laid_ready_and_is_no_error(self, root: Path) -> None:
        one = put(root)
        (root / PLACE).unlink()
        (root / PLACE).symlink_to("../rank_1/shard")
        take_back(str(root), [one])
        assert (root / SECOND).read_bytes() == OLD

    def test_a_tree_that_is_gone_is_no_error(self, root: Path) -> None:
        take_back(str(root / "gone"), [put(root)])
