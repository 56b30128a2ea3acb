"""While something takes long, people see that it goes on; and who interrupts it is told how far it came."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckpttool.core.commands import progress
from ckpttool.core.errors import ExitCode
from ckpttool.core.storage.stream import read_blocks
from ckpttool.core.verify.kernels import digest, elements
from ckpttool.core.verify.meter import Meter
from tests.conftest import FIXTURES
from tests.support.commands import ask
from tests.support.situations import SITUATIONS

CONFIG = str(FIXTURES / "configs" / "pretrain_sink2.yaml")
LINE = re.compile(
    r"ckpttool: [0-9.]+ [KMG]?i?B of [0-9.]+ [KMG]?i?B read, [0-9]+ of [0-9]+ shards; [0-9.]+ [KMG]?i?B/s"
    r"(, about [0-9]+ s left)?"
)
COMMANDS = {
    "verify": ("verify", "output", "--level", "checksum"),
    "verify headers": ("verify", "output"),
    "numerics": ("verify", "output", "--level", "numerics"),
    "resolve": ("resolve", "output", "--level", "checksum"),
    "launch": ("launch", "output", "--level", "checksum", "--config", CONFIG, "--output", "new.yaml"),
    "preflight": ("preflight", "output", "--level", "checksum", "--config", CONFIG),
    "seal": ("seal", "output", "--reseal"),
    "prune": ("prune", "output", "--keep-last", "1", "--grace", "0", "--level", "checksum"),
    "health": ("health", "output", "--from-weights"),
    "inspect": ("inspect", "output", "--stats", "--tensor", "*embedding_weight"),
    "diff of bits": ("diff", "output:15_2", "output:20_2", "--level", "checksum", "--tensor", "*embedding_weight"),
    "diff": ("diff", "output:15_2", "output:20_2", "--level", "numerics", "--tensor", "*embedding_weight"),
}


@pytest.fixture
def sealed(here: Path) -> Path:
    SITUATIONS["whole"](here)
    for path in here.rglob("*_rank_*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    assert ask("seal", "output", "--checkpoint", "all").code == 0
    return here


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that takes its time, and a watcher that looks often."""

    def slowly(*arguments: object, **options: object) -> Iterator[object]:
        for block in read_blocks(*arguments, **options):  # type: ignore[arg-type]
            time.sleep(0.1)
            yield block

    for reader in (digest, elements):
        monkeypatch.setattr(reader, "read_blocks", slowly)
    monkeypatch.setattr(progress, "HEARTBEAT_SECONDS", 0.02)


@pytest.mark.sample(2)
@pytest.mark.usefixtures("sealed", "slow")
@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - {"verify headers"}))
def test_without_a_terminal_a_line_says_now_and_then_how_far_it_is(command: str) -> None:
    loud = ask(*COMMANDS[command])
    lines = [line for line in loud.stderr.splitlines() if " read, " in line]
    assert lines
    assert [line for line in lines if not LINE.fullmatch(line)] == []
    quiet = ask(*COMMANDS[command], "--quiet", *(["--force"] if command == "launch" else []))
    assert quiet.code == loud.code
    assert " read, " not in quiet.stderr


@pytest.mark.sample(1)
@pytest.mark.usefixtures("sealed")
@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_done_at_once_says_nothing_of_it(command: str) -> None:
    assert " read, " not in ask(*COMMANDS[command]).stderr


@pytest.mark.parametrize("seconds", [0.4, 59.0, 61.0, 3599.6, 90_000.0])
def test_the_time_that_is_left_is_said_in_words_that_fit(seconds: float) -> None:
    said = progress._about(seconds)  # noqa: SLF001
    assert re.fullmatch(r", about ([1-9][0-9]* h [0-9]+ min|[1-9][0-9]? min|[0-9]+ s) left", said)
    assert int(re.findall(r"[0-9]+", said)[-1]) < 60


class TestInterrupted:
    @pytest.fixture(autouse=True)
    def after_two(self, sealed: Path) -> Iterator[None]:
        """Ctrl-C, when two shards of four are done."""
        assert sealed.is_dir()
        real = Meter.reported

        def reported(meter: Meter, *, kept: bool) -> None:
            real(meter, kept=kept)
            if meter.shards_done == 2:
                raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as self.patch:
            self.patch.setattr(Meter, "reported", reported)
            yield

    @pytest.mark.sample(1)
    @pytest.mark.parametrize("command", ["verify", "resolve", "launch", "preflight"])
    @pytest.mark.parametrize("options", [[], ["--quiet"]])
    def test_it_is_said_what_was_verified_and_the_next_run_goes_on_from_there(
        self, command: str, options: list[str]
    ) -> None:
        said = ask(*COMMANDS[command], *options)
        assert said.code == ExitCode.INTERRUPTED
        assert said.stdout == ""
        last = said.stderr.splitlines()[-1]
        assert re.fullmatch(r"ckpttool: interrupted after 2 of 4 shards, [0-9.]+ KiB; the ledger keeps them", last)
        self.patch.undo()
        checkpoints = ask("verify", "output", "--level", "checksum", "--format", "json").json["checkpoints"]
        assert sum(shard["remembered"] for shard in checkpoints[0]["shards"]) == 2

    @pytest.mark.sample(1)
    @pytest.mark.parametrize(("command", "shards"), [("inspect", 4), ("diff", 8), ("diff of bits", 8)])
    def test_whoever_looks_into_shards_is_told_how_far_that_came(self, command: str, shards: int) -> None:
        said = ask(*COMMANDS[command])
        assert (said.code, said.stdout) == (ExitCode.INTERRUPTED, "")
        last = said.stderr.splitlines()[-1]
        assert re.fullmatch(rf"ckpttool: interrupted after 2 of {shards} shards, [0-9.]+ KiB", last)

    def test_of_shards_without_a_checksum_the_ledger_is_not_said_to_keep_any(self, here: Path) -> None:
        for manifest in (here / "output/checkpoint/.ckpttool").glob("*.manifest.json"):
            manifest.unlink()
        said = ask(*COMMANDS["verify"])
        assert re.fullmatch(r"ckpttool: interrupted after 2 of 4 shards, [0-9.]+ KiB", said.stderr.splitlines()[-1])


SLOW = """
import sys, time
from ckpttool.core.commands import progress
from ckpttool.cli.main import run
from ckpttool.core.storage.stream import read_blocks
from ckpttool.core.verify.kernels import digest, elements
progress.PATIENCE_SECONDS, progress.REFRESH_SECONDS = 0.01, 0.05
def slowly(*arguments, **options):
    for block in read_blocks(*arguments, **options):
        time.sleep(0.7)
        yield block
digest.read_blocks = elements.read_blocks = slowly
sys.exit(run())
"""


def on_a_terminal(*arguments: str) -> str:
    """Run a command line on a terminal of its own, and return all that was drawn there."""
    terminal, inside = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, *arguments],
        stdout=inside,
        stderr=inside,
        env={**os.environ, "COLUMNS": "80", "TERM": "xterm"},
    )
    os.close(inside)
    drawn = b""
    try:
        while piece := os.read(terminal, 1 << 16):
            drawn += piece
    except OSError:  # Linux: the other end is closed
        pass
    os.close(terminal)
    assert process.wait(30) == 0
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn.decode())


@pytest.mark.usefixtures("sealed")
def test_on_a_terminal_a_bar_says_bytes_and_rate_and_time_left_and_is_gone_at_the_end() -> None:
    drawn = on_a_terminal("verify", "output", "--level", "checksum", "--no-ledger", "--jobs", "1")
    assert re.search(r"━.*[0-9.]+/[0-9.]+ [kKM]i?B.*[kKM]?B/s.*[0-9]:[0-9]{2}:[0-9]{2}", drawn)
    assert drawn.rindex("verified") > drawn.rindex("━")
