"""What a user sees, situation by situation. Read the golden files as a user would, before you update them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Severity
from ckpttool.core.extensions import row_of
from ckpttool.core.records import SealPlace
from ckpttool.core.render.text import Table
from ckpttool.core.storage.disk import LocalDisk, Room
from ckpttool.trainers.base import Refusal
from ckpttool.trainers.mindformers.layouts.rank import MindFormersRank
from tests.conftest import FIXTURES, TESTS, Golden
from tests.support.commands import Said, ask
from tests.support.situations import MORNING_NS, SITUATIONS, before_morning, real
from tests.support.trees import TreeBuilder

FORMATS = {"table": "txt", "json": "json"}
BASE = TESTS / "configs" / "llama2_legacy.yaml"
CONFIG = (FIXTURES / "configs" / "pretrain_sink2.yaml").read_text()

# Exit code of `scan` and of `resolve`, and the name that `resolve` chooses.
ANSWERS: dict[str, tuple[int, int, str | None]] = {
    "whole": (0, 0, "_1-30_2"),
    "missing-shard": (10, 0, "15_2"),
    "truncated": (0, 0, "_1-25_2"),
    "empty-shard": (10, 0, "_1-25_2"),
    "all-damaged": (10, 11, None),
    "unhealthy": (0, 0, "10_2"),
    "torn-health-file": (14, 14, "15_2"),
    "rewound": (0, 0, "_1-12_2"),
    "replaced-node": (10, 11, None),
    "breakpoint-file": (0, 0, "_2-4_5"),
    "stray-folder": (0, 0, "_1-30_2"),
    "broken-tracker": (0, 0, "iteration_00000030"),
    "async-save": (0, 0, "15_2"),
    "no-sink": (0, 0, "_2-4_5"),
    "newer-layout": (0, 0, "iteration_00000030"),
}


@pytest.fixture(autouse=True)
def in_the_morning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every age be counted from one time: that of the trees is fixed, too."""
    for command in ("scan", "resolve"):
        monkeypatch.setattr(f"ckpttool.core.commands.{command}.clock", lambda: MORNING_NS / 1e9)


def findings_in(document: object) -> list[dict[str, str]]:
    """Collect every finding of a JSON result, however deep it stands."""
    if isinstance(document, dict):
        own = [document] if "code" in document and "severity" in document else []
        return own + [found for value in document.values() for found in findings_in(value)]
    if isinstance(document, list):
        return [found for value in document for found in findings_in(value)]
    return []


WHOLE = ("bash ", "ckpttool ", "python ", "load_checkpoint ", "resume_training ")
"""What a line begins with that nobody breaks: a command, or a path behind its setting."""


def lines_too_long(said: Said, *, width: int = 80) -> list[str]:
    """Return the lines that do not fit; one word of any length does."""
    return [
        line
        for line in said.stdout.splitlines()
        if len(line) > width and " " in line.strip() and not line.lstrip().startswith(WHOLE)
    ]


@pytest.mark.parametrize("situation", ANSWERS)
@pytest.mark.parametrize("command", ["scan", "resolve"])
@pytest.mark.parametrize("form", FORMATS)
def test_the_answer_is_the_golden_one(situation: str, command: str, form: str, here: Path, golden: Golden) -> None:
    SITUATIONS[situation](here)
    before_morning(here)
    said = ask(command, "output", "--format", form)
    assert said.code == ANSWERS[situation][command == "resolve"]
    golden(f"{command}/{situation}.{FORMATS[form]}", said.stdout)
    if form == "table":
        assert lines_too_long(said) == []
        return
    if command == "resolve":
        resume = said.json["resume"]
        assert (resume["name"] if isinstance(resume, dict) else None) == ANSWERS[situation][2]
    for finding in findings_in(said.json):
        assert Severity[finding["severity"].upper()] in row_of(finding["code"]).weights, finding


@pytest.mark.sample(2)
@pytest.mark.parametrize("situation", ["missing-shard", "replaced-node", "newer-layout"])
def test_a_narrow_terminal_cuts_no_name(situation: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SITUATIONS[situation](here)
    monkeypatch.setenv("COLUMNS", "40")
    for command in ("scan", "resolve"):
        said = ask(command, "output")
        assert lines_too_long(said, width=40) == []
        assert "…" not in said.stdout
    scanned = "".join(ask("scan", "output").stdout.split())
    document = ask("scan", "output", "--format", "json").json
    assert [one["name"] for one in document["checkpoints"] if one["name"] not in scanned] == []


@pytest.mark.sample(4)
@pytest.mark.parametrize("situation", ["rewound", "missing-shard", "newer-layout"])
@pytest.mark.parametrize("command", [["scan"], ["verify", "--checkpoint", "all"], ["health"], ["prune"]], ids=" ".join)
@pytest.mark.parametrize("columns", ["80", "40"])
def test_a_table_is_shown_as_rich_draws_it(
    situation: str, command: list[str], columns: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SITUATIONS[situation](here)
    monkeypatch.setenv("COLUMNS", columns)
    ours = ask(*command, "output")
    monkeypatch.setattr(Table, "__rich_console__", lambda table, *_: iter([table.by_rich()]))
    by_rich = ask(*command, "output")
    assert (ours.code, ours.stdout) == (by_rich.code, by_rich.stdout)


def test_the_renames_of_a_replaced_node_are_listed(here: Path, golden: Golden) -> None:
    SITUATIONS["replaced-node"](here)
    said = ask("resolve", "output", "--allow-renames")
    assert said.code == 0
    golden("resolve/replaced-node-allow-renames.txt", said.stdout)
    document = ask("resolve", "output", "--allow-renames", "--format", "json").json
    assert document["resume"]["renames"] == [
        {"from": "rank_3/llama2_7b_rank_3-20_2.ckpt", "to": "rank_3/llama2_7b_rank_3_1-20_2.ckpt"}
    ]


def test_what_mindformers_would_do_stands_beside_the_answer(here: Path, golden: Golden) -> None:
    SITUATIONS["async-save"](here)
    before_morning(here)
    said = ask("resolve", "output", "--simulate-mindformers", "2.1.0")
    golden("resolve/async-save-simulated.txt", said.stdout)
    assert lines_too_long(said) == []
    document = ask("resolve", "output", "--simulate-mindformers", "2.1.0", "--format", "json").json
    assert (document["mindformers"]["version"], document["mindformers"]["would_resume"]) == ("2.1.0", "10_2")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("exact", ["--old-gbs", "512", "--new-gbs", "1024", "--steps", "1000"]),
        ("remainder", ["--old-gbs", "512", "--new-gbs", "768", "--steps", "1000"]),
        ("sink", ["--old-gbs", "512", "--new-gbs", "768", "--steps", "1000", "--sink-size", "4"]),
        ("segments", ["--new-gbs", "768", "--segment", "1000:512", "--segment", "10:100"]),
        ("zero", ["--old-gbs", "8", "--new-gbs", "800", "--steps", "1"]),
        ("tree", ["output", "--new-gbs", "12"]),
    ],
)
def test_the_skip_is_the_golden_one(name: str, options: list[str], form: str, here: Path, golden: Golden) -> None:
    SITUATIONS["whole"](here)
    said = ask("scale-skip", *options, "--format", form)
    assert said.code == 0
    golden(f"scale-skip/{name}.{FORMATS[form]}", said.stdout)
    if form == "table":
        assert lines_too_long(said) == []


def launched(here: Path, *options: str, batch: str = "batch_size: 2") -> Said:
    """Write a launch config for the 4 ranks of the fixture, with paths that do not tell where the test runs."""
    sixteen = BASE.read_text()
    four = sixteen.replace("model_parallel: 2", "model_parallel: 1").replace("pipeline_stage: 2", "pipeline_stage: 1")
    assert four != sixteen
    (here / "base.yaml").write_text(four.replace("batch_size: 2", batch))
    return ask("launch", "output", "--config", "base.yaml", "--output", "new.yaml", *options)


@pytest.fixture
def wide(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A terminal that wraps no path: one that is wrapped could not be made the same everywhere."""
    monkeypatch.setenv("COLUMNS", "400")
    return here


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("name", "batch", "options"),
    [
        ("one-node", "batch_size: 2", []),
        (
            "two-nodes",
            "batch_size: 3",
            ["--nodes", "2", "--devices-per-node", "2", "--master-addr", "10.0.0.1", "--gbs", "12"],
        ),
    ],
)
def test_the_launch_is_the_golden_one(  # noqa: PLR0917  # fixtures
    name: str, batch: str, options: list[str], form: str, wide: Path, golden: Golden
) -> None:
    SITUATIONS["whole"](wide)
    before_morning(wide)
    said = launched(wide, *options, "--format", form, batch=batch)
    assert said.code == 0
    golden(f"launch/{name}.{FORMATS[form]}", said.stdout.replace(str(wide), "HERE"))
    golden(f"launch/{name}.yaml", (wide / "new.yaml").read_text().replace(str(wide), "HERE"))


@pytest.mark.parametrize("form", FORMATS)
def test_a_launch_that_preflight_calls_no_go_is_refused_with_the_fix(
    form: str, wide: Path, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalDisk, "room", lambda *_: Room(free_bytes=1 << 40, free_files=1 << 20))
    SITUATIONS["whole"](wide)
    before_morning(wide)
    said = launched(wide, "--gbs", "12", "--format", form)
    assert (said.code, (wide / "new.yaml").exists()) == (10, False)
    assert "new.yaml was not written" in said.stderr
    golden(f"launch/refused.{FORMATS[form]}", said.stdout.replace(str(wide), "HERE"))
    assert launched(wide, "--gbs", "12", "--allow", "config-disagrees").code == 0
    assert (wide / "new.yaml").exists()


def test_a_launch_that_resumes_from_nothing_writes_nothing(here: Path) -> None:
    SITUATIONS["all-damaged"](here)
    said = launched(here)
    assert said.code == 11
    assert not (here / "new.yaml").exists()
    assert said.stdout.startswith("Nothing to resume from")


@pytest.mark.parametrize("form", FORMATS)
def test_an_explanation_is_the_golden_one(form: str, golden: Golden) -> None:
    said = ask("explain", "shard-missing", "--format", form)
    assert said.code == 0
    golden(f"explain/shard-missing.{FORMATS[form]}", said.stdout)


def test_a_launch_config_that_says_it_already_is_left_alone_and_its_backup_stays(here: Path) -> None:
    SITUATIONS["whole"](here)
    (here / "new.yaml").write_text("mine: 1\n")
    assert launched(here, "--force").stdout.startswith("Wrote new.yaml: resumes from ")

    def changed() -> list[tuple[int, int]]:
        return [(found.st_ino, found.st_ctime_ns) for found in map(os.stat, (here / "new.yaml", here / "new.yaml.bak"))]

    before = changed()
    again = launched(here, "--force")
    assert again.code == 0
    assert again.stdout.startswith("new.yaml is unchanged: already resumes from ")
    assert launched(here, "--force", "--format", "json").json["written"] is False
    assert changed() == before
    assert (here / "new.yaml.bak").read_text() == "mine: 1\n"
    assert launched(here).code == 2
    (here / "new.yaml").write_text("")
    assert launched(here, "--force", "--format", "json").json["written"] is True


def test_a_config_written_over_itself_twice_keeps_what_it_was(here: Path) -> None:
    SITUATIONS["whole"](here)
    launched(here)
    base = (here / "base.yaml").read_text()
    for _ in range(3):
        assert ask("launch", "output", "--config", "base.yaml", "--output", "base.yaml", "--force").code == 0
    assert (here / "base.yaml.bak").read_text() == base


def cut(here: Path, *ranks: int) -> None:
    """The newest checkpoint's shards of these ranks end too early."""
    checkpoint = real(here, "sink2_safetensors")
    for rank in ranks:
        path = checkpoint / f"rank_{rank}/llama2_7b_rank_{rank}_1-30_2.safetensors"
        path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize("command", ["verify output", "resolve output", "preflight output --config base.yaml -v"])
def test_every_damaged_rank_is_named(command: str, here: Path) -> None:
    (here / "base.yaml").write_text(CONFIG)
    cut(here, 0, 2, 3)
    assert "; 3 findings in all, on ranks 0, 2-3 (3 of 4)" in " ".join(ask(*command.split()).stdout.split())


@pytest.fixture(scope="module")
def of_many_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """32 ranks, of which the newest save has lost 8 to 15, and the one before it three others."""
    folder = tmp_path_factory.mktemp("lost")
    tree = TreeBuilder(folder).legacy(ranks=32, sparse=True).save(epoch=10, step=2)
    tree.save(epoch=15, step=2, ranks=[rank for rank in range(32) if rank not in {1, 5, 17}])
    tree.save(epoch=20, step=2, ranks=[rank for rank in range(32) if not 8 <= rank < 16])
    (folder / "base.yaml").write_text(CONFIG.replace("data_parallel: 4", "data_parallel: 32"))
    return folder


@pytest.fixture
def lost_node(of_many_ranks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask about it where it lies: nothing is changed there but the config that a launch writes."""
    monkeypatch.chdir(of_many_ranks)


PREFLIGHT = "preflight --config base.yaml"
LAUNCH = "launch --force --config base.yaml --output new.yaml"


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "command",
    [
        "scan",
        "resolve",
        "verify",
        "verify --checkpoint all",
        LAUNCH,
        PREFLIGHT,
        f"{PREFLIGHT} --strict --format github",
    ],
)
@pytest.mark.usefixtures("lost_node")
def test_damage_is_told_by_nodes_where_somebody_says_how_many_ranks_they_have(command: str) -> None:
    said = " ".join(ask(*command.split(), "--ranks-per-node", "8").stdout.split())
    if command in {"scan", "verify --checkpoint all"}:
        assert "ranks 1, 5, 8-15, 17 (11 of 32), on nodes 0-2" in said
    else:
        assert "ranks 8-15 (8 of 32), all of node 1" in said
    assert "node 1" not in " ".join(ask(*command.split()).stdout.split())


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "command", ["scan", "resolve", LAUNCH, "verify --checkpoint all", f"{PREFLIGHT} --checkpoint 20_2"]
)
@pytest.mark.usefixtures("lost_node")
def test_verbose_lists_every_single_finding(command: str) -> None:
    few, all_of_them = (ask(*command.split(), *more).stdout for more in ([], ["-v"]))
    lost = {f"rank_{rank}/llama2_7b_rank_{rank}-20_2.ckpt" for rank in range(8, 16)}
    assert sum(path in few for path in lost) == 1
    assert all(path in "".join(all_of_them.split()) for path in lost)
    assert "findings in all" not in all_of_them
    plain, verbose = (ask(*command.split(), "--json", *more) for more in ([], ["-v"]))
    assert (plain.code, {**plain.json, "seconds": 0}) == (verbose.code, {**verbose.json, "seconds": 0})


def test_each_reason_has_its_remedy_beside_it_and_none_that_does_not_help(here: Path) -> None:
    real(here, "health_pp2")
    path = here / "output/checkpoint/rank_1"
    (newest,) = path.glob("*-15_2.ckpt")
    said = ask("resolve", "output").stdout
    assert "--ignore-health chooses it" in said
    newest.write_bytes(newest.read_bytes()[:-100])
    torn = ask("resolve", "output").stdout
    assert "--ignore-health" not in torn
    lines = torn.splitlines()
    (damage,) = [number for number, line in enumerate(lines) if line.startswith("    damage ")]
    (unhealthy,) = [number for number, line in enumerate(lines) if line.startswith("    suspect marked-unhealthy")]
    assert any(line.startswith("      try: if this file is a copy") for line in lines[damage:unhealthy])
    assert ask("resolve", "output", "--ignore-health").stdout.startswith("Resume from step 20 (10_2): ")


def test_where_one_rank_alone_keeps_everything_back_it_is_said_first(here: Path) -> None:
    SITUATIONS["all-damaged"](here)
    said = ask("resolve", "output")
    assert said.code == 11
    assert said.stdout.splitlines()[1].startswith("All 5 checkpoints fail only on rank 0: restore ")
    SITUATIONS["replaced-node"](here / "other")
    assert " fail only " not in ask("resolve", str(here / "other/output")).stdout


def test_where_nothing_was_saved_it_is_said_what_to_do(here: Path) -> None:
    (here / "output/checkpoint/rank_0").mkdir(parents=True)
    said = ask("resolve", "output")
    assert said.code == 11
    assert said.stdout.splitlines()[1].startswith("No checkpoint was saved here: ")
    SITUATIONS["all-damaged"](here / "other")
    assert "No checkpoint was saved here" not in ask("resolve", str(here / "other/output")).stdout


def test_unknown_health_is_no_ok_and_stops_no_launch(here: Path) -> None:
    (here / "base.yaml").write_text(CONFIG)
    SITUATIONS["whole"](here)
    said = ask("preflight", "output", "--config", "base.yaml")
    assert said.code == 0
    assert "\n  ?   health      unknown: nothing is recorded" in said.stdout
    SITUATIONS["unhealthy"](here / "other")
    (here / "other/base.yaml").write_text((here / "base.yaml").read_text())
    known = ask("preflight", str(here / "other/output"), "--config", "base.yaml").stdout
    assert "\n  ok  health      healthy" in known


def test_what_is_chosen_without_a_say_of_the_log_shows_its_exit(here: Path) -> None:
    SITUATIONS["whole"](here)
    said = ask("resolve", "output", "--health-threshold", "270")
    assert said.code == 14
    assert said.stdout.splitlines()[0].endswith(" (exit 14)")
    assert "(exit" not in ask("resolve", "output").stdout


def test_a_save_that_cannot_be_sealed_keeps_no_other_one_from_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SITUATIONS["whole"](here)
    place = MindFormersRank.seal_place

    def placed(layout: MindFormersRank, checkpoint: Checkpoint) -> SealPlace | Refusal:
        return Refusal(why="is an odd one") if checkpoint.name == "15_2" else place(layout, checkpoint)

    monkeypatch.setattr(MindFormersRank, "seal_place", placed)
    said = ask("seal", "output", "--checkpoint", "all", "--json")
    assert said.code == 14
    checkpoints = said.json["checkpoints"]
    assert {each["name"] for each in checkpoints if not each["sealed"]} == {"15_2"}
    assert len(checkpoints) == 5
    assert "15_2: not sealed, there is no place for its seal" in ask("seal", "output", "--checkpoint", "all").stdout
    alone = ask("seal", "output", "--checkpoint", "15_2")
    assert (alone.code, alone.stdout) == (12, "")
    assert ask("seal", "output", "--checkpoint", "20_2").code == 0
