"""Threads that share the work, and neither the order nor a dead disk nor a mistake of ours changes the answer."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.manifest import CHUNK_BYTES
from ckpttool.core.domain.shard import ShardRole
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.domain.verdict import CheckTask, Level, VerdictWord
from ckpttool.core.verify import plan
from ckpttool.core.verify.check import check
from ckpttool.core.verify.engines import threads, waiting
from ckpttool.core.verify.engines.threads import ThreadEngine
from ckpttool.core.verify.observation import Observation
from ckpttool.core.verify.report import judge
from ckpttool.core.verify.session import reports_of
from tests.support.fault_detection import seal_of
from tests.support.shard_writers import crc_trailer, entries_json, record, safetensors_file
from tests.support.trees import TreeBuilder
from tests.support.verifying import CKPT, codes, task_for, verdicts

ROOT = Path(__file__).parents[4]


def tasks(count: int) -> list[CheckTask]:
    return [replace(task_for(CKPT), path=f"{number}", cost=ByteCount(number)) for number in range(count)]


def seen(task: CheckTask) -> Observation:
    return replace(check(task_for(CKPT)), task=task)


def paths(observations: Iterable[Observation]) -> list[str]:
    return sorted((observed.task.path for observed in observations), key=int)


class TestTheWork:
    def test_the_biggest_files_are_begun_first(self) -> None:
        begun: list[str] = []

        def work(task: CheckTask) -> Observation:
            begun.append(task.path)
            return seen(task)

        list(ThreadEngine(jobs=1, timeout=60, work=work).run(tasks(10)))
        assert begun == [str(number) for number in reversed(range(10))]

    def test_a_thread_stays_with_its_file_and_only_the_end_is_shared(self) -> None:
        """Two files of six parts, two threads: nobody reads at two places of a file while another file is untouched."""
        parts = [replace(one, part=(begin, begin + 1)) for one in tasks(2) for begin in range(6)]
        by_thread: dict[int, list[tuple[str, int]]] = {}
        gate = threading.Barrier(2, timeout=10)

        def work(task: CheckTask) -> Observation:
            own = by_thread.setdefault(threading.get_ident(), [])
            if not own:
                gate.wait()  # both have begun
            own.append((task.path, (task.part or (0, 0))[0]))
            return seen(task)

        list(ThreadEngine(jobs=2, timeout=60, work=work).run(parts))
        first, second = by_thread.values()
        assert {first[0][0], second[0][0]} == {"0", "1"}
        for own in (first, second):
            mine = [begin for path, begin in own if path == own[0][0]]
            assert mine == sorted(mine)  # its own file front to back
            others = [begin for path, begin in own if path != own[0][0]]
            assert others == sorted(others, reverse=True)  # the other's from the end

    def test_nothing_more_is_begun_when_nobody_wants_the_rest(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(waiting, "IDLE_SECONDS", 0.01)  # so that the thread ends
        is_closed = threading.Event()
        begun: list[threading.Thread] = []

        def work(task: CheckTask) -> Observation:
            begun.append(threading.current_thread())
            if len(begun) > 1:
                is_closed.wait(30)
            return seen(task)

        observations = ThreadEngine(jobs=1, timeout=60, work=work).run(tasks(100))
        next(iter(observations))
        del observations  # closes the generator
        is_closed.set()
        begun[0].join(30)
        assert len(begun) <= 2


class TestADeadDisk:
    def hanging(self, dead: Sequence[str], release: threading.Event, *, jobs: int = 2) -> ThreadEngine:
        def work(task: CheckTask) -> Observation:
            if task.path in dead:
                release.wait(30)
            return seen(task)

        return ThreadEngine(jobs=jobs, timeout=0.1, work=work)

    def test_all_disks_dead_still_ends(self) -> None:
        release = threading.Event()
        try:
            observations = list(self.hanging([str(number) for number in range(4)], release).run(tasks(4)))
        finally:
            release.set()
        assert {observed.report.word for observed in observations} == {VerdictWord.UNREADABLE}

    def test_what_comes_after_all_from_a_thread_that_was_given_up_is_dropped(self) -> None:
        release = threading.Event()
        engine = self.hanging(["1"], release, jobs=1)
        observations = []
        for observed in engine.run(tasks(5)):
            observations.append(observed)
            if observed.report.word is VerdictWord.UNREADABLE:
                release.set()
                time.sleep(0.05)
        assert len(observations) == 5
        assert paths(observations) == ["0", "1", "2", "3", "4"]

    def test_a_file_that_hung_once_is_not_waited_for_part_by_part(self) -> None:
        release = threading.Event()
        parts = [replace(tasks(1)[0], part=(begin, begin + 1)) for begin in range(50)]
        begun: list[CheckTask] = []

        def work(task: CheckTask) -> Observation:
            begun.append(task)
            release.wait(30)
            return seen(task)

        try:
            observations = list(ThreadEngine(jobs=2, timeout=0.1, work=work).run(parts))
        finally:
            release.set()
        assert len(observations) == 50
        assert len(begun) <= 4  # by two threads, and by those in their place, which may be quicker than who gives up
        assert judge(observations).word is VerdictWord.UNREADABLE

    def test_a_file_that_is_hashed_as_a_whole_may_take_longer_the_larger_it_is(self) -> None:
        task = tasks(1)[0]
        assert threads.patience(task, 600) == 600
        assert threads.patience(replace(task, cost=ByteCount(100 << 30)), 600) == 60_000

    def test_a_process_ends_although_a_thread_of_it_hangs(self) -> None:
        script = (
            "import sys, time\n"
            "from tests.core.verify.engines import test_threads as mine\n"
            "mine.threads.TICK_SECONDS = 0.02\n"
            "engine = mine.ThreadEngine(jobs=1, timeout=0.1, work=lambda task: time.sleep(600))\n"
            "print(len(list(engine.run(mine.tasks(2)))))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT
        )
        assert done.stdout == "2\n"


class TestPartsOfOneFile:
    """A file of three parts: joined they tell exactly what one read tells."""

    @pytest.fixture(scope="class")
    @staticmethod
    def ckpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
        """A `.ckpt` with tensors across the borders of parts, and a checksum behind them."""
        numbers = b"\0\0\x80\x3f\0\0\0\xc0" * 1024  # 1, -2, 1, -2, …
        parts = []
        for name, size in (("a", CHUNK_BYTES + 8192), ("b", CHUNK_BYTES), ("c", 8192)):
            content = (numbers + bytes(size - 2 * len(numbers)) + numbers) if size > 8192 else numbers
            parts.append(record(name, [size // 4], "Float32", content))
        data = b"".join(parts)
        path = tmp_path_factory.mktemp("big") / "big.ckpt"
        path.write_bytes(data + crc_trailer(data))
        return path

    @pytest.fixture(autouse=True)
    def small_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(plan, "PART_BYTES", CHUNK_BYTES)

    def cut(self, task: CheckTask, size: int) -> list[CheckTask]:
        return [
            replace(task, part=(begin, min(begin + CHUNK_BYTES, size)), cost=ByteCount(CHUNK_BYTES))
            for begin in range(0, size, CHUNK_BYTES)
        ]

    @pytest.mark.sample(2)
    @pytest.mark.parametrize("jobs", [1, 2, 4])
    @pytest.mark.parametrize("is_sealed", [False, True])
    def test_they_tell_what_one_read_tells(self, ckpt: Path, jobs: int, is_sealed: bool) -> None:
        seal = seal_of(ckpt.name, ckpt.read_bytes()) if is_sealed else None
        task = task_for(ckpt, Level.NUMERICS, seal=seal, role=ShardRole.UNIFIED)
        whole = judge([check(task)])
        parts = self.cut(task, ckpt.stat().st_size)
        assert len(parts) == 3
        (joined,) = reports_of(parts, ThreadEngine(jobs=jobs, timeout=60))
        assert joined.word is whole.word is VerdictWord.VERIFIED
        assert joined.stats == whole.stats
        assert replace(joined, bytes_read=whole.bytes_read, digest=whole.digest) == whole

    def test_a_flip_in_any_part_is_found(self, ckpt: Path, tmp_path: Path) -> None:
        data = bytearray(ckpt.read_bytes())
        seal = seal_of(ckpt.name, bytes(data))
        path = tmp_path / "big.ckpt"
        for part in range(3):
            byte = min(part * CHUNK_BYTES + 1000, len(data) - 100)
            data[byte] ^= 1
            path.write_bytes(data)
            data[byte] ^= 1
            for with_seal in (None, seal) if part == 1 else (seal,):
                task = task_for(path, Level.CHECKSUM, seal=with_seal, role=ShardRole.UNIFIED)
                (report,) = reports_of(self.cut(task, len(data)), ThreadEngine(jobs=2, timeout=60))
                assert set(codes(report.findings)) == {Code.CHECKSUM_MISMATCH}
                if with_seal is not None:
                    assert f"chunk {part}, " in report.findings[-1].message

    def test_a_tree_that_is_planned_in_parts_has_the_verdict_that_it_has_in_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tree = TreeBuilder(tmp_path).legacy(ranks=2).save(epoch=10, step=2)
        monkeypatch.setattr(plan, "PART_BYTES", 1 << 30)
        in_one = verdicts(tree.checkpoint, Level.CHECKSUM)
        monkeypatch.setattr(plan, "PART_BYTES", 512)
        in_parts = verdicts(tree.checkpoint, Level.CHECKSUM)
        assert in_parts[0].findings == in_one[0].findings
        assert in_parts[0].word is in_one[0].word


MEMORY = """
import resource, sys
from pathlib import Path
from tests.core.verify.engines.test_threads import ThreadEngine, reports_of, task_for
from ckpttool.core.domain.shard import ShardRole
from ckpttool.core.domain.verdict import Level
for path in sys.argv[2:]:
    task = task_for(Path(path), Level[sys.argv[1]], role=ShardRole.UNIFIED)
    (report,) = reports_of([task], ThreadEngine(jobs=2, timeout=60))
    print(report.word.value, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("level", [Level.NUMERICS, Level.CHECKSUM])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, level: Level) -> None:
    paths = []
    for size in (1 << 20, 1 << 28):  # the larger one is sparse
        path = tmp_path / f"{size}.safetensors"
        head = safetensors_file(entries_json([("a", "F32", [size // 4], size)]))
        path.write_bytes(head)
        os.truncate(path, len(head) + size)
        paths.append(str(path))
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, level.name, *paths], capture_output=True, text=True, timeout=120, check=True
    )
    small, large = (line.split() for line in done.stdout.splitlines())
    assert (small[0], large[0]) == ("struct-ok", "struct-ok")
    assert int(large[1]) - int(small[1]) < 16
