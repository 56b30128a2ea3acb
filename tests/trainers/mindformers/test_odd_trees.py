"""Trees that once led to a wrong answer: each is one that a crash, a copy or a disk leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpttool.core.domain.finding import Code, Severity
from ckpttool.core.domain.health import Health
from ckpttool.core.errors import ExitCode
from tests.support.answers import (
    chosen,
    cli,
    coded,
    document,
    named,
    notes,
    plan,
    scanned,
    why_not,
)
from tests.support.commands import ask
from tests.support.trees import TreeBuilder


@pytest.fixture
def tree(tmp_path: Path) -> TreeBuilder:
    return TreeBuilder(tmp_path).legacy().save(epoch=5, step=2).save(epoch=10, step=2)


class TestALostLastRank:
    """Nothing misses it: its folder was the only one that told of it."""

    @pytest.mark.parametrize("verb", ["resolve", "scan"])
    def test_where_the_folders_alone_tell_the_ranks_it_is_said(self, tree: TreeBuilder, verb: str) -> None:
        tree.remove("checkpoint/rank_3")
        line = "(3 rank folders found; "
        said = cli(verb, str(tree.output))
        assert said.exit_code == ExitCode.OK
        assert line in said.stdout
        assert line not in cli(verb, str(tree.output), "--world-size", "3").stdout


class TestASaveThatWasCutOff:
    def test_on_half_of_the_ranks_is_no_smaller_training(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).legacy(ranks=8).save(epoch=10, step=2)
        tree.save(epoch=15, step=2, run=1, ranks=range(4))
        for rank in range(4, 8):
            tree.file(f"checkpoint/rank_{rank}/llama2_7b_rank_{rank}_1-15_2.tmp")
        answer = plan(tree.output)
        assert chosen(answer) == ("10_2", 20)
        assert why_not(answer) == [("_1-15_2", {Code.SHARD_MISSING})]


class TestRanksBeyondAnyTraining:
    def test_in_a_folders_name_are_a_stray(self, tree: TreeBuilder) -> None:
        tree.folder("checkpoint/rank_9999999")
        found = scanned(tree.output)
        assert found.strays == ("rank_9999999",)
        assert "a training has at most 1048576 ranks" in coded(found.findings, Code.STRAY_FILE)[0].message
        assert chosen(plan(tree.output)) == ("10_2", 20)


class TestATornHealthFile:
    TORN = (
        '[{"is_health": 0, "ckpt_name": "llama2_7b_rank_0-5_2.ckpt"},'
        ' {"is_health": 1, "ckpt_name": "llama2_7b_rank_0-10_2.ckpt"}'
    )

    @pytest.mark.parametrize("tail", ["", ",", ', {"is_hea', "] ]"])
    def test_still_tells_what_was_unhealthy_and_no_longer_what_was_healthy(self, tree: TreeBuilder, tail: str) -> None:
        tree.file("health_ckpts.json", self.TORN + tail)
        answer = plan(tree.output)
        assert (chosen(answer), answer.point.checkpoint.health) == (("5_2", 10), Health.UNKNOWN)
        assert why_not(answer) == [("10_2", {Code.MARKED_UNHEALTHY})]
        assert Code.HEALTH_UNREADABLE in notes(answer)

    @pytest.mark.parametrize("text", ["{", '{"a": [{"is_health": 1}', "[" + '{"a":' * 100_000, "[[", "[1"])
    def test_that_holds_no_whole_entry_tells_nothing(self, tree: TreeBuilder, text: str) -> None:
        tree.file("health_ckpts.json", text)
        assert chosen(plan(tree.output)) == ("10_2", 20)


class TestAStrayOfAnotherPrefix:
    def test_on_one_rank_does_not_block_the_answer(self, tree: TreeBuilder) -> None:
        tree.file("checkpoint/rank_0/test_rank_0-1_2.ckpt")
        answer = plan(tree.output)
        assert chosen(answer) == ("10_2", 20)
        (note,) = coded(answer.point.findings, Code.RUN_MIXED)
        assert (note.severity, note.path) == (Severity.NOTE, "rank_0/test_rank_0-1_2.ckpt")


class TestASealThatRemembersMoreRanks:
    def test_speaks_for_them(self, tree: TreeBuilder) -> None:
        assert cli("seal", str(tree.output)).exit_code == ExitCode.OK
        tree.remove("checkpoint/rank_3")
        found = named(scanned(tree.output), "10_2")
        assert found.topology.world_size == 4
        (lacking,) = found.findings
        assert (lacking.code, lacking.path) == (Code.RANK_MISSING, "rank_3/llama2_7b_rank_3-10_2.ckpt")
        assert "the seal of 10_2 says so" in lacking.message

    @pytest.mark.parametrize("seal", ["torn", "of another save"])
    def test_is_not_asked_if_it_is_torn_or_of_another(self, tree: TreeBuilder, seal: str) -> None:
        assert cli("seal", str(tree.output), "--checkpoint", "all").exit_code == ExitCode.OK
        tree.remove("checkpoint/rank_3")
        older, newer = (tree.checkpoint / f".ckpttool/llama2_7b-{name}.ckpt.manifest.json" for name in ("5_2", "10_2"))
        newer.write_bytes(newer.read_bytes()[:-20] if seal == "torn" else older.read_bytes())
        assert named(scanned(tree.output), "10_2").topology.world_size == 3


class TestSimulatedWithoutAnyCheckpoint:
    @pytest.fixture
    def weights_alone(self, tmp_path: Path) -> TreeBuilder:
        """Two ranks' folders with a file that is no checkpoint to ckpttool, and one that MindFormers takes by time."""
        tree = TreeBuilder(tmp_path).legacy(ranks=2)
        for rank in range(2):
            tree.file(f"checkpoint/rank_{rank}/net-network.ckpt", b"x")
        tree.file("checkpoint/rank_0/meta.json", b"{}")  # by which the folder is known; its own search passes over it
        return tree

    def test_the_declared_world_size_is_the_one_that_mindformers_starts_with(self, weights_alone: TreeBuilder) -> None:
        asked = ("resolve", str(weights_alone.output), "--simulate-mindformers", "2.1")
        assert "finds no rank_3" not in cli(*asked, "--world-size", "2").stdout
        assert document(*asked, "--world-size", "4")["mindformers"]["because"].endswith("finds no rank_2")

    def test_the_configs_too(self, weights_alone: TreeBuilder) -> None:
        config = weights_alone.base / "c.yaml"
        config.write_text("use_parallel: True\nparallel_config:\n  data_parallel: 4\n  model_parallel: 1\n")
        asked = ("resolve", str(weights_alone.output), "--config", str(config), "--simulate-mindformers", "2.1")
        assert document(*asked)["mindformers"]["because"].endswith("finds no rank_2")

    def test_a_config_that_resumes_by_time_has_each_rank_take_its_newest(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).legacy(ranks=2).save(epoch=5, step=2).save(epoch=10, step=2)
        for rank in range(2):
            tree.touch(tree.shard(rank, 5, 2), tree.now_ns)
        config = tree.base / "c.yaml"
        asked = ("resolve", str(tree.output), "--config", str(config), "--simulate-mindformers", "2.1")
        for word, taken in (("True", "5_2"), ("False", "10_2")):
            config.write_text(f"resume_by_last_timestamp_ckpt: {word}\n")
            assert document(*asked)["mindformers"]["would_resume"] == taken

    def test_where_nobody_tells_it_every_folder_is_a_rank(self, weights_alone: TreeBuilder) -> None:
        asked = ("resolve", str(weights_alone.output), "--simulate-mindformers", "2.1")
        assert document(*asked)["mindformers"]["would_resume"] == "network"
        weights_alone.remove("checkpoint/rank_1/net-network.ckpt")
        assert "rank_1 has no .ckpt file" in document(*asked)["mindformers"]["because"]


def test_a_config_for_fewer_ranks_is_the_reason_before_damage(tmp_path: Path) -> None:
    tree = TreeBuilder(tmp_path).legacy(ranks=8).save(epoch=5, step=2)
    for rank in (5, 6):
        tree.file(tree.shard(rank, 5, 2), b"")
    config = tree.base / "c.yaml"
    config.write_text("use_parallel: True\nparallel_config:\n  data_parallel: 4\n  model_parallel: 1\n")
    said = " ".join(cli("preflight", str(tree.output), "--config", str(config)).stdout.split())
    assert "can be resumed from: 5_2 has shards of 8 ranks, but 4 are expected because" in said
    assert "ranks 5-6" in said
    assert "(2 of 4)" not in said


@pytest.mark.parametrize(
    "command",
    [
        ("resolve",),
        ("resolve", "--checkpoint", "latest"),
        ("repair-meta",),
        ("repair-meta", "--apply", "--grace", "0"),
        ("report", "--output", "page.html"),
    ],
    ids=" ".join,
)
def test_no_verb_says_that_there_is_nothing_if_it_is_only_unknown_which_of_two_trainings_is_meant(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tree = TreeBuilder(tmp_path).legacy(ranks=2).save(epoch=10, step=2)
    for path in tree.output.glob("checkpoint/rank_?/*.ckpt"):
        path.with_name("other" + path.name[path.name.index("_rank_") :]).write_bytes(path.read_bytes())
    verb, *options = command
    assert ask(verb, str(tree.output), *options).code == ExitCode.INCOMPLETE
    for path in tree.output.glob("checkpoint/rank_?/other*"):
        path.unlink()
    assert ask(verb, str(tree.output), *options).code == ExitCode.OK
