"""The library as its page shows it: a path is enough, and every answer spells itself as the command does."""

from __future__ import annotations

import ast
import inspect
import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest
from typer.testing import CliRunner

import ckpttool
from ckpttool import guard
from ckpttool.cli.main import app
from ckpttool.core.render import schemas
from ckpttool.types import (
    CheckQuestion,
    Code,
    CurvesQuestion,
    DataQuestion,
    Launch,
    LaunchOrder,
    Preflight,
    PruneOrder,
    Refused,
    RetentionPolicy,
    ShardReport,
    Step,
    TreeQuestion,
)

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures"
PUBLIC: list[str] = vars(ckpttool)["__all__"]
FP8 = FIXTURES / "fp8"
NAN = str(FIXTURES / "nan" / "output" / "guard" / "captures" / "nan-at-00000007")
LOG = str(FIXTURES / "logs" / "bloom176b_chronicles.log")


class Spelled(Protocol):
    def to_dict(self) -> dict[str, Any]: ...


Asked = Callable[[], Spelled]


TREE = TreeQuestion(path="output")


def order(output: str) -> LaunchOrder:
    return LaunchOrder(base="pretrain.yaml", output=output)


ANSWERS: dict[str, tuple[str, Asked]] = {
    "scan": ("scan output", lambda: ckpttool.scan("output")),
    "resolve": ("resolve output", lambda: ckpttool.resolve("output")),
    "nothing to resume": ("resolve bare", lambda: ckpttool.resolve("bare")),
    "health": ("health output", lambda: ckpttool.health("output")),
    "launch": (
        "launch output --config pretrain.yaml --output new.yaml --force",
        lambda: ckpttool.launch(
            TREE,
            order=LaunchOrder(base="pretrain.yaml", output="new.yaml", force=True),
        ),
    ),
    "preflight": (
        "preflight output --config pretrain.yaml",
        lambda: ckpttool.preflight("output", "pretrain.yaml"),
    ),
    "seal": ("seal output", lambda: ckpttool.seal("output")),
    "prune": (
        "prune output --keep-last 1 --grace 0",
        lambda: ckpttool.prune("output", RetentionPolicy(keep_last=1), PruneOrder(grace=0.0)),
    ),
    "heal": ("heal output", lambda: ckpttool.heal("output")),
    "replay": (f"replay {LOG}", lambda: ckpttool.replay(LOG)),
    "asd emit": ("asd emit", lambda: ckpttool.library.emit_asd(replace(ckpttool.library.asd_defaults(), enable=True))),
    "nan inspect": (f"nan inspect {NAN}", lambda: ckpttool.library.inspect_nan(NAN)),
    "fp8 compare": (
        f"fp8 compare {LOG} {LOG}",
        lambda: ckpttool.library.fp8_compare(CurvesQuestion(baseline=LOG, candidate=LOG)),
    ),
    "fp8 compare by keywords": (
        f"fp8 compare {LOG} {LOG} --by step --tolerance 1%",
        lambda: ckpttool.library.fp8_compare(LOG, LOG, by="step", tolerance="1%"),
    ),
    "fp8 probe": (
        "fp8 probe output --recipe blockwise --checkpoint 10_2 --top 3",
        lambda: ckpttool.library.fp8_probe("output", recipe="blockwise", checkpoint="10_2", top=3),
    ),
    "fp8 plan": (
        f"fp8 plan --baseline {FP8}/bf16.csv --candidate {FP8}/fp8.csv --framework te --output p --checkpoint-step 0",
        lambda: ckpttool.library.fp8_plan(
            baseline=FP8 / "bf16.csv",
            candidate=FP8 / "fp8.csv",
            framework="te",
            output="p",
            checkpoint_step=0,
        ),
    ),
    "trash list": (
        "trash list output --world-size 4 --older-than 7d",
        lambda: ckpttool.library.trash("output", world_size=4, older_than="7d"),
    ),
    "trash empty": (
        "trash empty output --older-than 7d",
        lambda: ckpttool.library.empty_trash("output", older_than="7d"),
    ),
    "guard replay": (
        f"guard replay {NAN} --entry json:loads --device cpu",
        lambda: ckpttool.library.replay_nan(NAN, entry="json:loads", device="cpu"),
    ),
    "explain": ("explain shard-missing", lambda: ckpttool.explain(Code.SHARD_MISSING)),
    "explain a code": ("explain Shard_Missing", lambda: ckpttool.explain("Shard_Missing")),
    "explain all": ("explain", ckpttool.explain),
    "explain a verdict": ("explain suspect", lambda: ckpttool.explain("suspect")),
    "explain an exit code": ("explain 11", lambda: ckpttool.explain("11")),
    "inspect": ("inspect output", lambda: ckpttool.inspect("output")),
    "diff": ("diff 10_2 20_2 --tree output", lambda: ckpttool.diff("10_2", "20_2", tree="output")),
}


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of four ranks with its config, and one whose only save is on no rank whole."""
    for folder in ("output", "bare"):
        shutil.copytree(FIXTURES / "sink2_ckpt" / "output", tmp_path / folder, copy_function=shutil.copy)
        shutil.rmtree(tmp_path / folder / ".ckpttool", ignore_errors=True)
    shutil.rmtree(tmp_path / "bare" / "checkpoint" / "rank_1")
    shutil.copy(FIXTURES / "configs" / "pretrain_sink2.yaml", tmp_path / "pretrain.yaml")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def without_time(document: dict[str, Any]) -> dict[str, Any]:
    """Take out how long it took, how much room this machine has, and whether it was written before."""
    timeless = {key: value for key, value in document.items() if key not in {"seconds", "disk"}}
    return json.loads(json.dumps(timeless), object_hook=_without_room)  # type: ignore[no-any-return]


def _without_room(document: dict[str, Any]) -> dict[str, Any]:
    return {} if document.get("name") == "disk" else {key: document[key] for key in document if key != "written"}


@pytest.mark.sample(9)
@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_spells_itself_as_its_command_prints_it(name: str, run_folder: Path) -> None:
    command, ask = ANSWERS[name]
    done = CliRunner().invoke(app, [*command.split(), "--format", "json"])
    told = json.loads(done.stdout)
    answer = ask().to_dict()
    assert without_time(answer) == without_time(told)
    assert answer["schema"].split("/")[1] in schemas.names()
    assert run_folder.is_dir()


def test_every_command_that_answers_has_its_verb_in_the_library() -> None:
    from ckpttool.cli.main import COMMANDS

    public = {*ckpttool.library.__all__, *ckpttool.types.__all__}

    verbs = {
        "asd": "check_asd",
        "guard": "guard_report",
        "nan": "inspect_nan",
        "fp8": "fp8_probe",
        "watch": "Watch",
        "lint": "lint_config",
        "log": "replay",
        "repair": "heal",
    }
    tools = {"guide", "schema"}  # the manual, and what describes documents
    names = [str(name).replace("-", "_") for name in COMMANDS]
    missing = {name for name in names if name not in tools and verbs.get(name, name) not in public}
    assert missing == set()


def test_a_part_by_keywords_is_that_of_its_command(run_folder: Path) -> None:
    words = ("--part", "1/2", "--level", "checksum", "--run-id", "a")
    done = CliRunner().invoke(app, ["part", "output", "--out", "part.json", *words, "--format", "json"])
    written = ckpttool.library.part("output", out="part.json", part="1/2", level="checksum", run_id="a")
    assert written is not None
    documents = [written.to_dict(), json.loads(done.stdout)]  # times and free space differ
    keys = documents[0].keys() - {"began_ns", "ended_ns", "disk"}
    new, old = ({key: document[key] for key in keys} for document in documents)
    assert new == old
    assert (run_folder / "part.json").exists()


def test_a_process_that_only_starts_others_writes_no_part(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckpttool.nodes.verbs.part", lambda _question: None)
    assert ckpttool.library.part(str(run_folder / "output"), out="part.json") is None


def test_no_module_is_called_like_a_verb() -> None:
    # Whoever imports the module would find it where the verb was.
    modules = {path.stem for path in (Path(ckpttool.__file__).parent / "core" / "verbs").glob("*.py")}
    assert modules & {*PUBLIC} == set()


def test_what_verify_finds_comes_one_by_one_and_then_as_an_answer(run_folder: Path) -> None:
    running = ckpttool.verify(run_folder / "output", CheckQuestion(name="10_2"))
    first = next(running)
    assert isinstance(first, ShardReport)
    (verdict,) = running.answer().verdicts
    assert (verdict.name, list(running)) == ("10_2", [])
    again = ckpttool.verify(TreeQuestion(path=str(run_folder / "output")))
    next(again)
    again.close()
    assert list(again) == []


def test_a_refused_launch_is_a_preflight_that_wrote_nothing(run_folder: Path) -> None:
    question = DataQuestion(new_global_batch=12)
    answer = ckpttool.launch(TREE, data=question, order=order("new.yaml"))
    assert isinstance(answer, Refused)
    assert isinstance(answer, Preflight)
    assert not (run_folder / "new.yaml").exists()
    assert isinstance(ckpttool.launch(TREE, order=order("new.yaml")), Launch)


@pytest.mark.parametrize(
    ("ask", "error", "code"),
    [
        (lambda: ckpttool.scan("nosuch"), ckpttool.UnknownLayoutError, 12),
        (lambda: ckpttool.explain("nosuch"), ckpttool.UsageError, 2),
        (lambda: ckpttool.library.restore("output", "1_1"), ckpttool.UsageError, 2),
        (lambda: list(ckpttool.verify("output", CheckQuestion(name="1_1"))), ckpttool.UsageError, 2),
        (lambda: ckpttool.library.read_config("nosuch.yaml"), ckpttool.UsageError, 2),
    ],
)
@pytest.mark.usefixtures("run_folder")
def test_what_keeps_it_from_answering_is_a_public_error_with_its_exit_code(
    ask: Callable[[], object], error: type[ckpttool.CkptToolError], code: int
) -> None:
    with pytest.raises(ckpttool.CkptToolError) as raised:
        ask()
    assert isinstance(raised.value, error)
    assert raised.value.exit_code == code


def test_every_error_is_public() -> None:
    from ckpttool.core import errors

    ours = {name for name, thing in vars(errors).items() if inspect.isclass(thing) and issubclass(thing, Exception)}
    assert ours <= {*PUBLIC, *ckpttool.types.__all__}


def test_what_a_verb_takes_and_returns_is_public() -> None:
    """Who has the answer of a verb can name its type."""
    words: set[str] = set()
    for name in ckpttool.library.__all__:
        thing = getattr(ckpttool.library, name)
        if inspect.isfunction(thing):
            notes = ast.parse(" ; ".join(str(note) for note in thing.__annotations__.values()))
            words |= {node.id for node in ast.walk(notes) if isinstance(node, ast.Name)}
    ours = {word for word in words if word[0].isupper() and word not in _FOREIGN}
    assert ours <= {*PUBLIC, *ckpttool.types.__all__, *vars(guard)["__all__"]}


_FOREIGN = {
    *("Any", "Callable", "Iterable", "Iterator", "Mapping", "MutableMapping", "Sequence", "None"),
    *("Disk", "Node", "Where", "Logs", "Literal", "NoReturn", "StrPath"),
}
"""Standard library; seams that tests alone put in, or that what others wrote fits; and paths."""


def test_an_answer_has_its_document_in_a_process_that_got_it_from_another() -> None:
    sizes = DataQuestion(old_global_batch=512, new_global_batch=768)
    answer = ckpttool.scale_skip(sizes, steps=Step(1000))
    script = "import json, pickle, sys; print(json.dumps(pickle.load(sys.stdin.buffer).to_dict()))"
    sent = subprocess.run([sys.executable, "-c", script], input=pickle.dumps(answer), capture_output=True, check=True)
    assert json.loads(sent.stdout) == answer.to_dict()
