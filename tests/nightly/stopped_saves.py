"""A save that is stopped at each of its system calls, by a kill or by an error; and what can be resumed from then.

`python -m tests.nightly.stopped_saves FOLDER` prints as JSON how many points were tried, and what came out wrong.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import ckpttool
from ckpttool.core.domain.plan import ResumePlan
from ckpttool.core.domain.question import CheckQuestion, TreeQuestion
from ckpttool.core.domain.verdict import Level, VerdictWord
from ckpttool.core.errors import CkptToolError
from ckpttool.guard.resume import Resumed
from ckpttool.guard.writer import CheckpointWriter
from tests.guard.resumable import Training, train
from tests.reliability.injection import changes_the_disk, errors, stops
from tests.reliability.traced import CLASSES, STRACE, Call, Point, attached, calls_of
from tests.reliability.warm import MARK, WAITING

FIRST, SECOND, LAST = 2, 4, 6
REFUSED = 3
"""Exit code of a training whose save raised one of our errors."""


def forked(work: Callable[[], int]) -> int:
    """Run something in a process of its own, and return its process id. torch has but one thread, so nothing hangs."""
    state = random.getstate()
    child = os.fork()
    if child:
        return child
    try:
        random.setstate(state)  # Python seeds it anew behind a fork
        os._exit(work())
    except BaseException:  # noqa: BLE001  the parent sees that it failed
        import traceback

        traceback.print_exc()
        os._exit(1)


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def saves(writer: CheckpointWriter, go: Path) -> int:
    """Save when told."""
    while not go.exists():
        os.access(WAITING, os.F_OK)
        time.sleep(0.002)
    os.access(MARK, os.F_OK)
    try:
        writer.save()
    except CkptToolError:
        return REFUSED
    return 0


def resumes(output: Path, bits: Path) -> int:
    """Go on from what is there to the last step, and tell what is remembered then."""
    training = Training()
    resumed: Resumed = training.resume(output)
    list(training.steps(resumed, LAST))
    bits.write_text(f"{resumed.step}\n{training.bits()!r}", encoding="utf-8")
    return 0


class Bench:
    """A tree with one save, and what a second one makes of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.template = folder / "template"
        train(self.template, FIRST)
        shutil.copytree(self.template, self.output)
        training = Training()
        resumed = training.resume(self.output)
        # What is loaded from disk at first use is not to be counted.
        training.writer(folder / "warm", embedding="embed.weight", health_threshold=1e9).save(step=1)
        self.writer = training.writer(self.output, embedding="embed.weight", health_threshold=1e9)
        list(training.steps(resumed, SECOND))
        self.calls = self.run(None)[1]
        self.whole = self.bits()[1]

    @property
    def output(self) -> Path:
        return self.folder / "output"

    def run(self, point: Point | None) -> tuple[int, tuple[Call, ...]]:
        """Save under strace, and return how that ended and the calls."""
        shutil.rmtree(self.output, ignore_errors=True)
        shutil.copytree(self.template, self.output)
        go, log = self.folder / "go", self.folder / "trace"
        go.unlink(missing_ok=True)
        log.unlink(missing_ok=True)
        child = forked(lambda: saves(self.writer, go))
        inject = ["-e", f"inject={point.injection}"] if point else []
        command = [str(STRACE), "-f", "-qq", "-y", "-s", "60", "-o", str(log), "-e", f"trace={CLASSES}", *inject]
        with subprocess.Popen([*command, "-p", str(child)], stderr=subprocess.PIPE) as strace:
            attached(log, strace)
            go.touch()
            code = ended(child)
        return code, tuple(calls_of(log.read_text(errors="replace")))

    def bits(self) -> tuple[str, str]:
        """Resume, and return from which step, and what is remembered at the last one."""
        told = self.folder / "bits"
        told.unlink(missing_ok=True)
        assert ended(forked(lambda: resumes(self.output, told))) == 0
        step, _, bits = told.read_text(encoding="utf-8").partition("\n")
        return step, bits

    def wrong(self, point: Point) -> Iterator[str]:
        """Say what is wrong after something happened at a point."""
        code, calls = self.run(point)
        met = any("(INJECTED)" in call.line for call in calls) or code < 0
        if code not in {0, REFUSED, -9}:
            yield f"exit {code}"
        decision = ckpttool.resolve(TreeQuestion(path=str(self.output))).decision
        if not isinstance(decision, ResumePlan):
            yield "nothing can be resumed from"
            return
        question = CheckQuestion(level=Level.CHECKSUM, name="all")
        for verdict in ckpttool.verify(TreeQuestion(path=str(self.output)), question).answer().verdicts:
            if verdict.word not in {VerdictWord.VERIFIED, VerdictWord.STRUCT_OK}:
                yield f"{verdict.name} is {verdict.word.value}"
        left = [path.name for path in self.output.rglob("*.tmp")]
        if (
            left
            and code == REFUSED
            and not any(call.name.startswith("unlink") for call in calls if "INJECTED" in call.line)
        ):
            yield f"leaves {left}"
        step, bits = self.bits()
        if step not in {str(FIRST), str(SECOND)} or bits != self.whole:
            yield f"resumed from step {step} it is another training"
        if code == 0 and met and step != str(SECOND):
            yield "says that it is saved, and it is not"


def main() -> None:
    torch.set_num_threads(1)
    bench = Bench(Path(sys.argv[1]))
    everything = len(sys.argv) > 2
    tried, wrong = 0, []
    points = [*stops(bench.calls, everything=False)]
    points += [point for point in errors(bench.calls, everything=everything) if changes_the_disk(point.call)]
    for point in points:
        tried += 1
        sys.stderr.write(f"{tried} of {len(points)}: {point}\n")
        wrong += [f"{point}: {each}" for each in bench.wrong(point)]
    calls = len([call for call in bench.calls if changes_the_disk(call)])
    sys.stdout.write(json.dumps({"tried": tried, "calls": calls, "wrong": wrong}))


if __name__ == "__main__":
    main()
