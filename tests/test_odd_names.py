"""Names are untrusted text: none of them moves a cursor, changes a colour, stops a scan or breaks the JSON."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ckpttool.errors import ExitCode
from tests.support.answers import FIXTURES, cli, document
from tests.support.trees import TreeBuilder

ODD = {
    "surrogate": os.fsdecode(b"m\xff\xfe"),
    "newline": "a\nb",
    "markup": "[red]x[bold]",
    "tag that is none": "[]",
    "escape": "a\x1b[31m\x1b]0;t\x07",
    "right to left": "a\u202eb",
    "emoji code": ":smile:",
    "wide": "模型",
    "space": " a ",
    "quotes": "a'\"$(x)`y`",
    "percent": "%s{0}{x}",
}


@pytest.fixture(params=list(ODD.values()), ids=list(ODD))
def odd(request: pytest.FixtureRequest) -> str:
    """One odd name after the other."""
    return str(request.param)


def harmless(text: str) -> bool:
    """Whether a terminal shows it as it is: no control but the line end, nothing that turns a line around."""
    return not any(character < " " and character != "\n" for character in text) and not set(text) & set(
        "\x7f\x9b\u202e"
    )


def run(*arguments: str, locale: str = "C.UTF-8") -> subprocess.CompletedProcess[bytes]:
    environment = os.environ | {"LC_ALL": locale, "PYTHONUTF8": "0", "COLUMNS": "80"}
    return subprocess.run(
        [sys.executable, "-m", "ckpttool", *arguments], capture_output=True, check=False, env=environment
    )


def test_a_prefix_of_any_kind_is_resolved_and_its_name_survives_the_json(tmp_path: Path, odd: str) -> None:
    tree = TreeBuilder(tmp_path).legacy(prefix=odd, ranks=2).save(epoch=10, step=2).save(epoch=15, step=2)
    tree.remove(tree.shard(1, 15, 2))
    found = document("resolve", str(tree.checkpoint))
    assert found["resume"]["resume_training"] == f"{odd}_rank_0-10_2.ckpt"
    assert [reason["path"] for reason in found["rejected"][0]["reasons"]] == [f"rank_1/{odd}_rank_1-15_2.ckpt"]
    result = cli("resolve", str(tree.checkpoint))
    assert result.exit_code == ExitCode.OK
    assert harmless(result.stdout)
    assert harmless(result.stderr)


def test_a_stray_of_any_name_is_listed_once_and_shown_safely(tmp_path: Path, odd: str) -> None:
    tree = TreeBuilder(tmp_path).legacy(ranks=2).save(epoch=10, step=2)
    tree.file(f"checkpoint/{odd}").file(f"checkpoint/rank_1/{odd}")
    found = document("scan", str(tree.checkpoint))
    assert found["strays"] == sorted([odd, f"rank_1/{odd}"])
    result = cli("scan", str(tree.checkpoint))
    assert result.exit_code == ExitCode.OK
    assert harmless(result.stdout)
    assert "1 checkpoint, 1 on all 2 ranks" in result.stdout


def test_a_tree_below_an_odd_folder_is_found_and_its_path_shown_safely(tmp_path: Path, odd: str) -> None:
    tree = TreeBuilder(tmp_path / odd).legacy(ranks=2).save(epoch=10, step=2)
    assert document("resolve", str(tree.output))["root"] == str(tree.checkpoint)
    result = cli("resolve", str(tree.output))
    assert result.exit_code == ExitCode.OK
    assert harmless(result.stdout)
    assert harmless(result.stderr)


def test_a_path_that_does_not_exist_is_named_safely_in_one_line(tmp_path: Path, odd: str) -> None:
    result = cli("scan", str(tmp_path / odd))
    assert (result.exit_code, result.stdout) == (ExitCode.UNKNOWN_LAYOUT, "")
    assert harmless(result.stderr)
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_bytes_that_are_no_text_come_through_a_real_process_in_any_locale(tmp_path: Path, locale: str) -> None:
    tree = TreeBuilder(tmp_path).legacy(prefix=ODD["surrogate"], ranks=2).save(epoch=10, step=2)
    tree.file(f"checkpoint/{ODD['escape']}")
    table = run("resolve", str(tree.checkpoint), locale=locale)
    assert (table.returncode, table.stderr) == (ExitCode.OK, b"")
    assert b"\x1b" not in table.stdout
    assert rb"m\xff\xfe_rank_0-10_2.ckpt" in table.stdout
    found = json.loads(run("resolve", str(tree.checkpoint), "--format", "json", locale=locale).stdout)
    assert os.fsencode(found["resume"]["resume_training"]) == b"m\xff\xfe_rank_0-10_2.ckpt"


def test_what_looks_like_markup_is_shown_as_it_is_written(tmp_path: Path) -> None:
    tree = TreeBuilder(tmp_path).legacy(prefix="[red]x[bold]", ranks=2).save(epoch=10, step=2)
    assert "[red]x[bold]_rank_0-10_2.ckpt" in cli("resolve", str(tree.checkpoint)).stdout
    tree.file("checkpoint/:smile:")
    assert ":smile:" in cli("scan", str(tree.checkpoint)).stdout


@pytest.mark.parametrize(
    "tree",
    ["sink2_ckpt", "sink2_safetensors", "nosink_ckpt", "newfmt_4rank", "layouts/hf_ddp2", "layouts/light_single"],
)
def test_what_a_mac_leaves_beside_each_file_that_it_copies_is_no_shard(tree: str, tmp_path: Path) -> None:
    plain, copied = (shutil.copytree(FIXTURES / tree, tmp_path / name) for name in ("plain", "copied"))
    for path in [path for path in copied.rglob("*") if path.is_file()]:
        path.with_name(f"._{path.name}").write_bytes(b"\0\5\x16\7\0\2\0\0Mac OS X        " + bytes(140))
    chosen = [document("resolve", str(place))["resume"]["name"] for place in (plain, copied)]
    assert chosen[0] == chosen[1]
