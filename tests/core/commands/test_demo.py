"""What a stranger tries first: a real run, of whose newest save two shards are cut short."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.errors import ExitCode
from tests.cli.test_exit_codes import assert_error
from tests.conftest import FIXTURES, Golden
from tests.core.commands.test_answers import lines_too_long
from tests.support.commands import ask

ARCHIVE = Path(ckpttool.__file__).parent / "demo.zip"
REAL = FIXTURES / "sink2_ckpt"
CONFIG = FIXTURES / "configs" / "pretrain_sink2.yaml"
CUT = 1000  # bytes that are left
CUT_SHORT = [f"output/checkpoint/rank_{rank}/llama2_7b_rank_{rank}_1-30_2.ckpt" for rank in (1, 3)]
SAVES = ("10_2", "15_2", "20_2", "_1-25_2", "_1-30_2")
MINUTES_A_SAVE = 10


def contents() -> dict[str, bytes]:
    files = {str(path.relative_to(REAL)): path.read_bytes() for path in REAL.glob("output/**/*") if path.is_file()}
    return {
        name: content[: CUT if name in CUT_SHORT else None]
        for name, content in sorted({**files, "train.yaml": CONFIG.read_bytes()}.items())
    }


def packed() -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name, content in contents().items():
            save = next((place for place, save in enumerate(SAVES) if save in name), len(SAVES) - 1)
            info = zipfile.ZipInfo(name, (2026, 1, 1, 0, MINUTES_A_SAVE * save, 0))
            info.comment = b"cut short" if name in CUT_SHORT else b""
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content, compresslevel=9)
    return whole.getvalue()


def test_the_demo_is_a_run_that_a_real_trainer_wrote_with_two_shards_cut_short(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-goldens"):
        ARCHIVE.write_bytes(packed())
    with zipfile.ZipFile(ARCHIVE) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == contents()
        assert [info.filename for info in archive.infolist() if info.comment] == CUT_SHORT
    assert ARCHIVE.stat().st_size < 100_000


@pytest.mark.parametrize(("form", "suffix"), [("table", "txt"), ("json", "json")])
def test_what_was_made_and_what_to_try_are_the_golden_ones(here: Path, golden: Golden, form: str, suffix: str) -> None:
    said = ask("demo", "--format", form)
    assert said.code == 0
    assert form == "table" or said.json["damaged"] == CUT_SHORT  # and keeps to its schema
    assert lines_too_long(said) == []
    golden(f"demo/made.{suffix}", said.stdout)
    written = {str(path.relative_to(here / "ckpttool-demo")) for path in here.rglob("*") if path.is_file()}
    assert written == contents().keys()


def test_every_command_that_it_offers_does_what_is_said_of_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = "a b/it's"  # quotes what needs it
    commands = json.loads(ask("demo", place, "--json").stdout)["commands"]
    assert commands[0] == "cd 'a b/it'\"'\"'s'"
    monkeypatch.chdir(here / place)
    ends = {command.split()[1]: ask(*command.split()[1:]).code for command in commands[1:]}
    assert ends == {"scan": 0, "resolve": 0, "verify": 10, "explain": 0, "preflight": 10, "launch": 0}


def test_its_saves_are_as_far_apart_as_those_of_a_run_and_none_is_young(here: Path) -> None:
    ckpttool.demo("d")
    times = sorted({path.stat().st_mtime for path in (here / "d" / "output").rglob("*.ckpt")})
    assert [round(time - times[0]) for time in times] == [MINUTES_A_SAVE * 60 * place for place in range(len(SAVES))]
    assert ask("prune", "d/output", "--keep-last", "1").code == 0  # nobody is saving


def test_nothing_is_written_over(here: Path) -> None:
    (here / "folder").mkdir()
    (here / "folder" / "mine").write_text("x")
    (here / "empty").mkdir()
    (here / "link").symlink_to("empty")
    (here / "dangling").symlink_to("nowhere")
    before = sorted(here.rglob("*"))
    for place in ("folder", "folder/mine", "link", "dangling"):
        words = "already exists, and nothing is overwritten: give a new folder"
        assert_error(ask("demo", place), ExitCode.USAGE, words)
    assert sorted(here.rglob("*")) == before
