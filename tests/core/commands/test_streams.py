"""stdout is the result and nothing else, whatever stands at its other end."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import pytest

from ckpttool.core.commands import output
from ckpttool.core.errors import WriteFailedError
from tests.support.commands import MODULE, ask, environment, run
from tests.support.situations import SITUATIONS, whole
from tests.support.trees import TreeBuilder

ESCAPE = "\x1b"
COLOUR = re.compile(rf"{ESCAPE}\[[0-9;]*[34][0-9]")  # bold and dim are no colours


@pytest.fixture(params=["buffered", "unbuffered"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test as in an ordinary shell, and as on a build machine, where no stream keeps what failed."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    if request.param == "unbuffered":
        monkeypatch.setenv("PYTHONUNBUFFERED", "1")


def test_what_was_looked_at_is_said_on_stderr_unless_quiet(here: Path) -> None:
    whole(here)
    said = ask("scan", "output")
    assert said.stderr == "ckpttool: checking output/checkpoint\n"
    quiet = ask("scan", "output", "--quiet")
    assert quiet.stderr == ""
    assert quiet.stdout == said.stdout


@pytest.mark.parametrize("command", ["scan", "resolve"])
def test_quiet_does_not_silence_errors(command: str, here: Path) -> None:
    said = ask(command, str(here), "-q")
    assert said.code == 12
    assert said.stderr.startswith("ckpttool: error: ")


def ran(command: str, stdout: int | IO[bytes], stderr: int | IO[bytes]) -> subprocess.CompletedProcess[bytes]:
    """Run a command line as a program of its own, with these streams."""
    return subprocess.run(
        [*MODULE, *command.split()], stdout=stdout, stderr=stderr, env=environment(), check=False, timeout=60
    )


def big_tree(here: Path) -> None:
    """A tree whose JSON does not fit into a pipe."""
    TreeBuilder(here).legacy(ranks=400, sparse=True).save(epoch=10, step=2).save(epoch=15, step=2)


@pytest.mark.sample(1)
@pytest.mark.usefixtures("either_way")
def test_a_reader_who_has_seen_enough_gets_no_traceback(here: Path) -> None:
    big_tree(here)
    with subprocess.Popen(
        [*MODULE, "scan", "--format", "json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"{\n"
        process.stdout.close()
        stderr = process.stderr.read()
    assert (process.returncode, stderr) == (0, b"")


@pytest.mark.sample(1)
@pytest.mark.usefixtures("either_way")
def test_a_reader_who_has_left_does_not_change_the_exit_code(here: Path) -> None:
    SITUATIONS["missing-shard"](here)
    done = subprocess.run(
        ["bash", "-c", '"$@" | true; echo "${PIPESTATUS[0]}"', "bash", *MODULE, "scan"],
        env=environment(),
        capture_output=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == (b"10\n", b"")


RESULTS = ["scan", "scan --format json", "--version", "--help", "resolve --help", "asd --help", "asd check --help"]


@pytest.mark.sample(3)
@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("command", RESULTS)
def test_a_full_disk_is_said_in_one_line(command: str, here: Path) -> None:
    whole(here)
    with Path("/dev/full").open("wb") as full:
        done = ran(command, full, subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr == b"ckpttool: error: the result could not be written: No space left on device\n"


@pytest.mark.sample(3)
@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("command", RESULTS)
def test_a_reader_who_left_at_once_gets_no_traceback_from_anything_that_is_a_result(command: str, here: Path) -> None:
    whole(here)
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        done = ran(command, pipe, subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.sample(3)
@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize(("arguments", "code"), [("scan output", 0), ("scan nosuch", 12), ("nosuch", 2), ("", 2)])
@pytest.mark.parametrize("full", ["stderr", "nothing"])
def test_what_cannot_be_said_on_stderr_leaves_the_result_and_its_exit_code(
    full: str, arguments: str, code: int, here: Path
) -> None:
    whole(here)
    with Path("/dev/full" if full == "stderr" else os.devnull).open("wb") as stderr:
        done = ran(arguments, subprocess.PIPE, stderr)
    assert done.returncode == code
    assert done.stdout.decode() == ask(*arguments.split()).stdout


@pytest.mark.sample(2)
@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("when", ["a command", "the start"])
def test_an_interrupt_is_said_in_one_line(when: str, here: Path) -> None:
    whole(here)
    module = "ckpttool.core.commands.scan" if when == "a command" else "ckpttool.core.commands.output"
    # An import is the one moment that is the same on every machine; the signal itself is what Ctrl-C sends.
    hook = f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests in the background ignores it
class Interrupting:
    def find_spec(self, name, *rest):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
sys.argv = ["ckpttool", "scan"]
from ckpttool.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", hook], capture_output=True, env=environment(), check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"ckpttool: interrupted\n")


@pytest.mark.sample(1)
@pytest.mark.usefixtures("either_way")
def test_closed_streams_are_nobody_listening(here: Path) -> None:
    SITUATIONS["missing-shard"](here)
    done = subprocess.run(
        ["bash", "-c", '"$@" >&- 2>&-', "bash", *MODULE, "scan", "output"], env=environment(), check=False
    )
    assert done.returncode == 10


def on_a_terminal(
    arguments: list[str], extra: Mapping[str, str], removed: tuple[str, ...] = (), *, stream: str = "stdout"
) -> str:
    """Run with stdout, or another stream, on a terminal and return what it was sent."""
    main, side = pty.openpty()
    names = environment(extra)
    for name in removed:
        names.pop(name, None)
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: side}
    with subprocess.Popen([*MODULE, *arguments], env=names, **streams) as process:  # type: ignore[call-overload]
        os.close(side)
        parts = []
        try:
            while part := os.read(main, 65536):
                parts.append(part)
        except OSError:  # the other side was closed: that is how a terminal's end is told
            pass
    os.close(main)
    assert process.returncode in {0, 10} or stream == "stderr"
    return b"".join(parts).decode()


def test_a_long_error_is_wrapped_between_words_on_a_terminal_and_one_line_in_a_pipe(here: Path) -> None:
    long = str(here / "a-folder-of-a-very-long-name" / ("x" * 60))
    shown = on_a_terminal(["resolve", long], {"COLUMNS": "40", "NO_COLOR": "1"}, stream="stderr")
    lines = shown.replace("\r\n", "\n").splitlines()
    assert len(lines) > 2
    assert all(len(line) <= 40 or long in line for line in lines)
    assert run("resolve", long, env={"COLUMNS": "40"}).stderr == " ".join(map(str.strip, lines)) + "\n"


def test_colour_is_for_terminals_that_want_it(here: Path) -> None:
    SITUATIONS["missing-shard"](here)
    terminal = {"TERM": "xterm-256color"}
    assert COLOUR.search(on_a_terminal(["scan"], terminal, removed=("NO_COLOR",)))
    assert not COLOUR.search(on_a_terminal(["scan"], {**terminal, "NO_COLOR": "1"}))


def test_an_error_is_red_on_a_terminal_that_wants_it_and_nowhere_else(here: Path) -> None:
    assert here.exists()
    terminal = {"TERM": "xterm-256color"}
    coloured = on_a_terminal(["resolv"], terminal, removed=("NO_COLOR",), stream="stderr")
    assert coloured.startswith("ckpttool: \x1b[1;31merror:\x1b[0m unknown command 'resolv'")
    plain = coloured.replace("\x1b[1;31m", "").replace("\x1b[0m", "")
    assert on_a_terminal(["resolv"], {"TERM": "dumb"}, removed=("NO_COLOR",), stream="stderr") == plain
    assert run("resolv", env=terminal | {"NO_COLOR": ""}).stderr == plain.replace("\r\n", "\n")
    assert ESCAPE not in on_a_terminal(["resolve", "--help"], terminal | {"NO_COLOR": "1"})


def test_an_ascii_terminal_gets_a_result_all_the_same(here: Path) -> None:
    TreeBuilder(here).legacy(ranks=2, prefix="模型").save(epoch=10, step=2)
    (here / "output/checkpoint/größe.txt").touch()
    said = run("scan", "output", env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
    assert said.code == 0
    assert "gr\\xf6\\xdfe.txt" in said.stdout


class ShortWriter(io.RawIOBase):
    """A stream that takes a part of what it is handed, as write(2) does of more than 2 GiB."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.got = bytearray()
        self.writes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int | None:  # noqa: ANN401  whatever a buffer is
        taken = bytes(data[: self.most])
        self.writes += 1
        self.got += taken
        return len(taken) if self.most else None


def test_a_result_is_written_whole_to_a_stream_that_takes_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = ShortWriter(most=100_000)
    unbuffered = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)  # type: ignore[type-var]
    monkeypatch.setattr(sys, "stdout", unbuffered)
    text = "ä€x" * 1_000_000
    output.result(text)
    assert bytes(raw.got) == f"{text}\n".encode()


@pytest.mark.parametrize("pieces", [[], ["ä"] * 10_000, ["€" * 3_000_000, "x", "y" * 1_048_576], ["", "z", ""]])
def test_a_result_in_pieces_is_written_whole_and_not_piece_by_piece(
    pieces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = ShortWriter(most=1 << 30)
    unbuffered = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)  # type: ignore[type-var]
    monkeypatch.setattr(sys, "stdout", unbuffered)
    output.result(*pieces)
    assert bytes(raw.got) == "".join([*pieces, "\n"]).encode()
    assert raw.writes <= 1 + len(raw.got) // 1_000_000


def test_a_stream_that_takes_nothing_is_a_failure_and_no_endless_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(ShortWriter(most=0), write_through=True))  # type: ignore[type-var]
    with pytest.raises(WriteFailedError, match="could not be written"):
        output.result("text")


def test_an_error_is_one_line_whatever_its_message(capsys: pytest.CaptureFixture[str]) -> None:
    output.error("first\nsecond\r\x1b[31m third")
    assert capsys.readouterr().err == "ckpttool: error: first second \\x1b[31m third\n"


def test_the_module_is_the_console_script(here: Path) -> None:
    whole(here)
    script = Path(sys.executable).parent / "ckpttool"
    for path in here.rglob("*"):
        os.utime(path, (0, 0))  # how long ago that was changes less soon than between two answers
    done = subprocess.run([script, "resolve"], capture_output=True, check=True, text=True)
    assert done.stdout == ask("resolve").stdout


DEEP = "a-folder-whose-name-is-longer-than-half-a-line-of-a-terminal/and-another-one-that-makes-it-longer-than-a-whole"


def settings_of(text: str) -> dict[str, str]:
    return dict(line.split(maxsplit=1) for line in text.splitlines() if line.startswith("  load_"))


@pytest.mark.parametrize("columns", [None, "40", "80"])
def test_a_path_stands_whole_behind_its_setting_however_long_it_is(
    columns: str | None, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole(here / DEEP)
    monkeypatch.delenv("COLUMNS") if columns is None else monkeypatch.setenv("COLUMNS", columns)
    said = ask("resolve", f"{DEEP}/output", "-q")
    assert settings_of(said.stdout)["load_checkpoint"] == f"{DEEP}/output/checkpoint"


def test_a_pipe_gets_lines_that_nobody_broke_and_a_terminal_gets_what_fits(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SITUATIONS["missing-shard"](here)
    said = ask("resolve", "-q")  # with COLUMNS, as on a terminal of that width
    monkeypatch.delenv("COLUMNS")
    piped = ask("resolve", "-q")
    assert max(map(len, said.stdout.splitlines())) <= 80 < max(map(len, piped.stdout.splitlines()))
    assert piped.stdout.split() == said.stdout.split()
