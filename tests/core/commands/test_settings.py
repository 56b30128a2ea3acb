"""What the command line leaves out: a variable says it, else a file beside the runs, else nobody."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from ckpttool.core.commands.settings import KEYS
from ckpttool.core.errors import ExitCode
from tests.cli.test_exit_codes import assert_error
from tests.support.commands import ask
from tests.support.trees import FIXTURES, flip
from tests.test_startup import imported


@pytest.fixture
def runs(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two real trees, `a` and `b`, and no variable."""
    for key in KEYS:
        monkeypatch.delenv(f"CKPTTOOL_{key.upper().replace('-', '_')}", raising=False)
    shutil.copytree(FIXTURES / "sink2_ckpt", here / "a")
    shutil.copytree(FIXTURES / "newfmt_4rank", here / "b")
    return here


def root_of(*arguments: str) -> object:
    """Return which tree a command looks at."""
    return ask(*arguments, "--json").json["root"]


class TestWhoSpeaks:
    def test_the_option_then_the_variable_then_the_file_then_the_default(
        self, runs: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def level() -> object:
            return ask("verify", "a", "--json").json["level"]

        assert level() == "structure"
        (runs / "ckpttool.toml").write_text('level = "checksum"')
        assert level() == "checksum"
        monkeypatch.setenv("CKPTTOOL_LEVEL", "numerics")
        assert level() == "numerics"
        assert ask("verify", "a", "--json", "--level", "structure").json["level"] == "structure"

    def test_a_variable_that_is_empty_is_none(self, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CKPTTOOL_LEVEL", "")
        assert ask("verify", "a", "--json").json["level"] == "structure"
        (runs / "ckpttool.toml").write_text('level = "checksum"')
        assert ask("verify", "a", "--json").json["level"] == "checksum"

    def test_each_of_them_is_taken_from_either_place(self, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (runs / "ckpttool.toml").write_text('dir = "b"\nformat = "json"\nworld-size = 5\ngrace = "1w"')
        found = json.loads(ask("scan").stdout)
        assert (found["root"], found["layout"]) == ("b/output/checkpoint", "mindformers-iteration")
        assert json.loads(ask("scan", "a").stdout)["world_size"] == 5
        assert ask("prune", "a", "--keep-last", "1", "--world-size", "4").code == ExitCode.INCOMPLETE
        for key, value in {"DIR": "a", "FORMAT": "table", "WORLD_SIZE": "4", "GRACE": "0"}.items():
            monkeypatch.setenv(f"CKPTTOOL_{key}", value)
        assert "a/output/checkpoint (mindformers-rank)" in ask("scan").stdout
        assert ask("prune", "--keep-last", "1").code == ExitCode.OK

    @pytest.mark.sample(2)
    @pytest.mark.parametrize(
        "command", ["scan", "verify", "resolve", "health", "seal", "prune --keep-last 1", "repair-meta"]
    )
    def test_every_command_takes_the_tree_that_the_variable_names(
        self, runs: Path, monkeypatch: pytest.MonkeyPatch, command: str
    ) -> None:
        monkeypatch.setenv("CKPTTOOL_DIR", str(runs / "a"))
        said = ask(*command.split())
        assert f"checking {runs}/a/output/checkpoint\n" in said.stderr

    def test_names_are_looked_up_in_that_tree(self, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CKPTTOOL_DIR", str(runs / "a"))
        assert root_of("inspect", "20_2") == str(runs / "a/output/checkpoint")
        assert ask("diff", "20_2", "15_2").code == ExitCode.OK
        monkeypatch.delenv("CKPTTOOL_DIR")
        assert root_of("inspect", "20_2", "--tree", "a") == "a/output/checkpoint"

    def test_a_setting_never_lets_prune_look_less_hard_than_by_itself(
        self, runs: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ask("seal", "a")
        shard = next((runs / "a/output/checkpoint/rank_0").glob("*1-30_2.ckpt"))
        flip(shard, shard.stat().st_size // 2)
        monkeypatch.setenv("CKPTTOOL_GRACE", "0")
        ask("prune", "a", "--keep-last", "1")  # which finds the damage: the next ones remember it
        plain = ask("prune", "a", "--keep-last", "1", "--json").json
        monkeypatch.setenv("CKPTTOOL_LEVEL", "structure")
        assert ask("prune", "a", "--keep-last", "1", "--json").json == plain
        assert ask("prune", "a", "--keep-last", "1", "--json", "--level", "structure").json != plain

    def test_the_manual_and_explain_need_none_of_it(self, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (runs / "ckpttool.toml").write_text("broken")
        monkeypatch.setenv("CKPTTOOL_FORMAT", "no such format")
        for command in (["explain", "shard-missing"], ["guide", "exits"], ["schema"], ["scan", "--help"]):
            assert ask(*command).code == ExitCode.OK


class TestTheFile:
    def test_it_is_found_above_the_tree_and_not_above_the_current_folder(self, runs: Path) -> None:
        (runs / "a/ckpttool.toml").write_text("world-size = 7")
        assert ask("scan", "a/output", "--json").json["world_size"] == 7
        assert ask("scan", "b/output", "--json").json["world_size"] == 4

    def test_the_nearest_one_speaks_alone(self, runs: Path) -> None:
        (runs / "ckpttool.toml").write_text('world-size = 7\nlevel = "checksum"')
        (runs / "a/ckpttool.toml").write_text("world-size = 4")
        assert ask("verify", "a", "--json").json["level"] == "structure"

    def test_of_several_trees_the_one_above_all_of_them_speaks(self, runs: Path) -> None:
        (runs / "ckpttool.toml").write_text('level = "checksum"')
        (runs / "a/ckpttool.toml").write_text('level = "numerics"')
        trees = ask("verify", "a", "b", "--json").json["trees"]
        assert [tree["result"]["level"] for tree in trees] == ["checksum", "checksum"]

    def test_its_tree_is_not_taken_for_that_in_which_somebody_stands(
        self, runs: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (runs / "ckpttool.toml").write_text('dir = "a"')
        assert root_of("scan") == "a/output/checkpoint"
        monkeypatch.chdir(runs / "b/output")
        assert root_of("scan") == str(runs / "b/output/checkpoint")

    def test_one_that_everybody_may_write_is_not_obeyed_and_the_next_one_above_is(self, runs: Path) -> None:
        above, nearest = runs / "ckpttool.toml", runs / "a/ckpttool.toml"
        above.write_text('level = "numerics"')
        nearest.write_text('level = "checksum"\ngrace = 0')
        nearest.chmod(0o666)
        said = ask("verify", "a", "--json")
        assert said.json["level"] == "numerics"
        assert f"{nearest} is ignored: every user can write to it" in said.stderr
        assert "is ignored" not in ask("verify", "a", "--quiet").stderr
        assert "is ignored" not in ask("verify", "a", "--no-config").stderr
        nearest.chmod(0o664)  # by a group is as people share their work
        said = ask("verify", "a", "--json")
        assert said.json["level"] == "checksum"
        assert "is ignored" not in said.stderr

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
    @pytest.mark.parametrize("what", ["file", "link", "where a link leads"])
    def test_one_that_belongs_to_somebody_else_is_not_obeyed_and_one_of_root_is(
        self, runs: Path, what: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place, target = runs / "ckpttool.toml", runs / "target.toml"
        target.write_text('level = "numerics"')
        if what == "file":
            target.rename(place)
        else:
            place.symlink_to(target)
        assert ask("verify", "a", "--json").json["level"] == "numerics"
        os.chown(target if what == "where a link leads" else place, 4242, -1, follow_symlinks=False)
        said = ask("verify", "a", "--json")
        assert said.json["level"] == "structure"
        assert f"{place} is ignored: it belongs to another user (uid 4242)" in said.stderr
        monkeypatch.setattr(os, "geteuid", lambda: 4242)  # to whom the other file is one of root's
        assert ask("verify", "a", "--json").json["level"] == "numerics"

    def test_it_can_be_left_out_and_the_environment_stays(self, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (runs / "ckpttool.toml").write_text('level = "numerics"')
        assert ask("verify", "a", "--json", "--no-config").json["level"] == "structure"
        assert ask("--no-config", "verify", "a", "--json").json["level"] == "structure"
        monkeypatch.setenv("CKPTTOOL_LEVEL", "checksum")
        assert ask("verify", "a", "--json", "--no-config").json["level"] == "checksum"

    @pytest.mark.sample(5)
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("levl = 1", "unknown key 'levl': did you mean level?"),
            ("level = 1", "level takes text, not 1"),
            ('dir = ""', "dir takes text, not ''"),
            ("world-size = true", "world-size takes a whole number, not True"),
            ("world-size = 0", "--world-size takes a whole number from 1, not 0"),
            ('level = "hard"', "--level: 'hard' is not one of 'structure', 'checksum', 'numerics'"),
            ("\nlevel 4", "is not valid TOML (Expected '=' after a key in a key/value pair (at line 2, column 7))"),
            ("level = '\udcff'", "is not valid TOML"),
            (f"level = {'[' * 10_000}", "is not valid TOML"),
        ],
    )
    def test_what_cannot_be_meant_is_one_line_that_names_the_file(self, runs: Path, text: str, said: str) -> None:
        (runs / "ckpttool.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
        answer = ask("verify", "a")
        assert_error(answer, ExitCode.USAGE, said)
        assert f"ckpttool: error: {runs}/ckpttool.toml" in answer.stderr
        assert ask("verify", "a", "--no-config").code == ExitCode.OK

    def test_without_one_nothing_that_reads_it_is_imported(self, runs: Path) -> None:
        command = ("-m", "ckpttool", "scan", "a", "--json")
        assert {"tomllib", "tomli", "ckpttool.core.formats.safe_yaml"} & imported(*command, cwd=runs) == set()


@pytest.mark.usefixtures("runs")
class TestTheVariables:
    @pytest.mark.parametrize(
        ("variable", "value", "said"),
        [
            ("CKPTTOOL_LEVEL", "hard", "CKPTTOOL_LEVEL: --level: 'hard' is not one of"),
            ("CKPTTOOL_GRACE", "soon", "CKPTTOOL_GRACE: --grace: 'soon' is not a time such as 90s, 5m, 12h or 7d"),
        ],
    )
    def test_a_wrong_value_names_the_variable(
        self, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
    ) -> None:
        monkeypatch.setenv(variable, value)
        assert_error(ask("prune", "a", "--keep-last", "1"), ExitCode.USAGE, said)

    def test_a_wrong_value_of_the_command_line_does_not_name_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CKPTTOOL_LEVEL", "checksum")
        assert "CKPTTOOL_LEVEL" not in ask("verify", "a", "--level", "hard").stderr


def test_verbose_says_who_spoke(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (runs / "ckpttool.toml").write_text('world-size = 4\nlevel = "checksum"')
    monkeypatch.setenv("CKPTTOOL_LEVEL", "numerics")
    said = ask("verify", "a", "-v").stderr
    assert f"ckpttool: world-size from {runs}/ckpttool.toml; level from CKPTTOOL_LEVEL\n" in said
    assert "from CKPTTOOL_LEVEL" not in ask("verify", "a").stderr
    assert "from CKPTTOOL_LEVEL" not in ask("verify", "a", "-v", "-q").stderr
    assert " from " not in ask("verify", "a", "-v", "--no-config", "--level", "structure").stderr
