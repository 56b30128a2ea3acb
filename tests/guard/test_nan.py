"""`ckpttool nan`: what was kept of a step that was not finite, listed, looked at, and computed again."""

from __future__ import annotations

import math
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import FIXTURES, Golden
from tests.support.commands import Said, ask
from tests.support.guard_events import train

NAME = "guard/captures/nan-at-00000007"
ENTRY = ("--entry", "train:replay")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same training, run on this machine: on another one the last bits may be others."""
    folder = tmp_path_factory.mktemp("trained")
    shutil.copy(FIXTURES / "nan" / "train.py", folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        runpy.run_path("train.py", run_name="__main__")
    return folder


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the training that met a pair of one item with itself once left."""
    shutil.copytree(FIXTURES / "nan", tmp_path / "nan")
    monkeypatch.chdir(tmp_path / "nan")
    return Path("output")


@pytest.fixture
def output(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The output folder of that training, in a folder with its code."""
    shutil.copytree(trained, tmp_path / "nan")
    monkeypatch.chdir(tmp_path / "nan")
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield Path("output")
    for name in ("train", "slow", "broken", "quits", "leaves"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("form", ["txt", "json"])
@pytest.mark.parametrize("what", ["list", "inspect"])
def test_what_was_kept_is_the_golden_one(what: str, form: str, shipped: Path, golden: Golden) -> None:
    said = ask("nan", what, str(shipped / NAME), "--format", {"txt": "table", "json": "json"}[form])
    assert said.code == 0
    golden(f"nan/{what}.{form}", said.stdout)


def test_wherever_one_points_at_the_same_captures_are_found(shipped: Path) -> None:
    said = [ask("nan", "list", str(shipped / below), "--json") for below in ("", "guard", "guard/captures", NAME)]
    found = [[Path(str(capture["path"])).name for capture in answer.json["captures"]] for answer in said]
    assert found == [["nan-at-00000007"]] * 4


@pytest.mark.parametrize("ends", ["stopped", "went on", "nobody tells"])
def test_to_go_on_from_a_stop_is_advised_only_where_the_training_stopped(ends: str, shipped: Path) -> None:
    if ends != "nobody tells":
        train(shipped, [1.0] * 6 + [math.nan] * (10 if ends == "stopped" else 1) + [1.0] * 3)
    capture = shipped / NAME
    for folder in (str(capture), f"{capture}/", str(capture.absolute())):
        said = ask("nan", "inspect", folder).stdout
        assert ("--around-spike last" in said) is (ends == "stopped")
        assert ("The training continued without this update" in said) is (ends == "went on")
        assert "ckpttool guard replay" in said
    assert len(ask("nan", "inspect", str(capture), "--json").json["next"]) == 2 + (ends == "stopped")


def test_a_folder_of_captures_is_listed_where_one_was_to_be_looked_at(shipped: Path) -> None:
    output = shipped
    shutil.copytree(output / NAME, output / "guard/captures/nan-at-00000009")
    assert ask("nan", "inspect", str(output), "--json").json["schema"] == "ckpttool/nan-captures/1"
    assert ask("nan", "inspect", str(output / NAME), "--json").json["schema"] == "ckpttool/nan-capture/1"
    said = ask("nan", "replay", str(output), *ENTRY)
    assert (said.code, "has 2 captures: name one" in said.stderr) == (2, True)


def damaged(folder: Path, what: str) -> None:
    shard, record = folder / "r00000.safetensors", folder / "r00000.json"
    match what:
        case "the tensors are gone":
            shard.unlink()
        case "a byte less":
            shard.write_bytes(shard.read_bytes()[:-1])
        case "a flipped bit":
            content = bytearray(shard.read_bytes())
            content[-9] ^= 4
            shard.write_bytes(bytes(content))
        case "the record is gone":
            record.unlink()
        case "an edited record":
            record.write_text(record.read_text().replace('"world_size": 1', '"world_size": 2'))
        case "of another rank":
            record.rename(folder / "r00001.json")
        case _:
            assert what == "nothing"


@pytest.mark.parametrize(
    ("what", "code", "listed"),
    [
        ("nothing", None, 0),
        ("the tensors are gone", "capture-incomplete", 14),
        ("a byte less", "capture-damaged", 14),
        ("a flipped bit", "capture-damaged", 0),
        ("the record is gone", "capture-incomplete", 14),
        ("an edited record", "capture-damaged", 14),
        ("of another rank", "capture-damaged", 14),
    ],
)
def test_a_part_that_is_gone_or_another_is_said_and_exits_14(
    what: str, code: str | None, listed: int, output: Path
) -> None:
    damaged(output / NAME, what)
    said = ask("nan", "inspect", str(output / NAME), "--json")
    assert said.code == (0 if code is None else 14)
    assert (code in codes(said)) is (code is not None)
    assert ask("nan", "list", str(output)).code == listed  # which reads no tensors
    replayed = ask("nan", "replay", str(output), *ENTRY, "--no-locate", "--json")
    assert replayed.code == (0 if code is None else 14)
    assert replayed.json["reproduced"] is (code is None)


def test_to_look_at_a_capture_needs_no_torch(shipped: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from ckpttool.cli.main import run\n"
        f"sys.argv = ['ckpttool', 'nan', 'inspect', {str(shipped)!r}]\n"
        "sys.exit(run())"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def test_a_step_is_computed_again(output: Path) -> None:
    said = ask("nan", "replay", str(output), *ENTRY, "--json")
    assert (said.code, said.json["reproduced"], said.json["verdict"]) == (0, True, "data-or-model")
    origin = said.json["origin"]
    assert (origin["op"], origin["phase"], origin["inf"]) == ("sqrt", "backward", 1)
    assert "return apart.square().sum(1).sqrt().mean()" in str(origin["line"])
    text = ask("nan", "replay", str(output), *ENTRY, "--no-locate")
    assert "Step 7 was reproduced, on cpu" in text.stdout


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("train", "has the form module:function"),
        ("train:nn", "has no function nn"),
        ("broken:replay", "cannot be imported (ZeroDivisionError"),
        ("quits:replay", "ends the process while it is imported"),
    ],
)
def test_an_entry_that_is_none_is_a_wrong_command_line(entry: str, says: str, output: Path) -> None:
    Path("broken.py").write_text("1 / 0\n")
    Path("quits.py").write_text("raise SystemExit(0)\n")
    said = ask("nan", "replay", str(output), "--entry", entry)
    assert (said.code, said.stdout) == (2, "")
    assert says in said.stderr


def test_a_rank_or_device_that_is_none_is_a_wrong_command_line(output: Path) -> None:
    for option in (("--rank", "1"), ("--device", "cuda:77"), ("--device", "abacus")):
        assert ask("nan", "replay", str(output), *ENTRY, *option).code == 2


def test_an_entry_that_ends_the_process_is_no_step_that_came_out_as_it_was(output: Path) -> None:
    Path("leaves.py").write_text("def replay(capture):\n    raise SystemExit(0)\n")
    said = ask("nan", "replay", str(output), "--entry", "leaves:replay")
    assert (said.code, "the entry's own code raised SystemExit: 0" in " ".join(said.stdout.split())) == (14, True)


def test_what_takes_too_long_is_given_up(output: Path) -> None:
    Path("slow.py").write_text("import time\ndef replay(capture):\n    time.sleep(60)\n")
    said = ask("nan", "replay", str(output), "--entry", "slow:replay", "--timeout", "0.2")
    assert (said.code, "took longer than 0.2 s" in said.stderr) == (14, True)


def codes(said: Said) -> list[str]:
    return sorted({str(finding["code"]) for finding in said.json["findings"] if finding["severity"] != "note"})


def test_where_only_the_common_record_is_damaged_it_is_said_that_the_step_came_out_as_it_was(output: Path) -> None:
    (output / NAME / "capture.json").write_text("[]\n")
    said = ask("nan", "replay", str(output), *ENTRY, "--json")
    assert (said.code, said.json["verdict"], said.json["reproduced"]) == (14, "undecided", False)
    text = ask("nan", "replay", str(output), *ENTRY).stdout
    assert "the computed part was reproduced, but parts of the capture are missing or damaged" in " ".join(text.split())
    assert "did not come out" not in text
