"""Real training runs of MindFormers, killed and resumed: does `postflight` tell a right resume from a wrong one?

Each case resumes a copy of a run that was killed 30 steps after its newest save, as `launch` wrote it or with a fault.
Then `postflight` is asked as a user does it: with the plan from before the start, with nothing, and with the output of
both runs. A right resume is never accused, and a fault is never called right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.nightly import real_mindformers, real_pynative
from tests.nightly.real_mindformers import PLACE, Server, Trace, Training, home_of
from tests.nightly.real_pynative import SAMPLES, PyNative, needs, new_server
from tests.nightly.resumes_to_judge import (
    BATCH,
    END,
    EVERY,
    KILLED,
    SAVED,
    Answer,
    Resume,
    answers_of,
    consumed,
    copied,
    findings_of,
    is_moment,
    is_step,
    make_writable,
    newer_zeroed,
    nothing,
    older_content,
    own,
    plan_of,
    postflight,
    settings,
    shard_of,
    start_pynative,
    start_static,
    stray_file,
    without,
    without_optimizer,
    without_optimizer_unnoticed,
    zeroed,
)

pytestmark = pytest.mark.slow

RIGHT, WRONG, UNKNOWN = 0, 10, 14
POSITION, RATE, OPTIMIZER = "resume-position-wrong", "resume-learning-rate-restarted", "resume-optimizer-lost"
REPEATED, OTHER, WEIGHTS = "resume-data-repeated", "resume-data-other", "resume-weights-lost"
CHECKPOINT, DIFFERS, RANDOM = "resume-other-checkpoint", "resume-differs", "resume-random-state-lost"

AS_PLANNED: tuple[Answer, ...] = ((RIGHT, ()),)
NOT_SHOWN: Answer = (UNKNOWN, ("resume-not-shown",))
FOLDER = "./output/checkpoint"
OLDER = SAVED - EVERY
NOT_THE_NEWEST = {"bare": UNKNOWN, "first": OLDER + 1}
FROM_THE_BEGINNING = {"bare": UNKNOWN, "first": 1, "end": 60}


def wrong(*codes: str) -> tuple[Answer, ...]:
    return ((WRONG, codes),)


def samples(steps: int, *, shuffle: bool = False) -> str:
    """Return the data set of a number of steps per epoch, as the value of `n_samples` with more lines after it."""
    return f"{steps * BATCH}\n    noisy: True\n    shuffle: {shuffle}"


STATIC: Mapping[str, object] = {
    "n_samples": samples(400), "batch_size": BATCH, "epochs": 2, "save_checkpoint_steps": EVERY,
    "learning_rate": "3.0e-2", "warmup_ratio": 0.02,
}  # fmt: skip
PYNATIVE: Mapping[str, object] = {
    "steps": 200, "save_interleaved_steps": EVERY, "local_batch_size": BATCH,
    "global_batch_size": BATCH, "hidden": "8\n  noisy: True",
    "learning_rate": "3.0e-2", "warmup_ratio": 0.02,
}  # fmt: skip
SAMPLES["long"] = 250 * BATCH

OF_THE_STATIC_TRAINER: dict[str, Resume[Training]] = {
    "right": Resume(nothing, AS_PLANNED),
    "right, without launch": Resume(own(load_checkpoint=f"'{FOLDER}'", resume_training=True), AS_PLANNED),
    "scheduler dropped": Resume(zeroed(is_step), wrong(RATE)),
    "optimizer dropped": Resume(zeroed(is_moment), wrong(OPTIMIZER)),
    "optimizer and scheduler dropped": Resume(without_optimizer, wrong(RATE)),
    "data not skipped": Resume(settings(data_skip_steps=None, ignore_data_skip=True), wrong(REPEATED)),
    "data skipped to an older save": Resume(settings(data_skip_steps=OLDER), wrong(REPEATED)),
    "data a step behind": Resume(settings(data_skip_steps=SAVED - 1), wrong(REPEATED)),
    "data skipped too far": Resume(settings(data_skip_steps=SAVED + 10), wrong(OTHER)),
    "older save": Resume(
        settings(resume_training=f"tiny_rank_0-1_{OLDER}.ckpt", data_skip_steps=None), wrong(POSITION),
        **NOT_THE_NEWEST,
    ),
    "older weights": Resume(stray_file, wrong(DIFFERS) + wrong(CHECKPOINT, DIFFERS)),
    "only the weights": Resume(
        own(load_checkpoint=f"'{FOLDER}/rank_0/tiny_rank_0-1_{SAVED}.ckpt'"), wrong(POSITION),
        **FROM_THE_BEGINNING,
    ),
    "from scratch": Resume(own(), wrong(POSITION, WEIGHTS), **FROM_THE_BEGINNING),
    "other learning rate": Resume(settings(learning_rate="1.0e-2"), wrong(DIFFERS)),
}  # fmt: skip

OF_THE_NEWER_LAYOUT: dict[str, Resume[Training]] = {
    "right": Resume(nothing, AS_PLANNED),
    "optimizer dropped": Resume(without("opt"), wrong(OPTIMIZER)),
    "fresh weights": Resume(without("model"), wrong(WEIGHTS)),
    "older weights": Resume(older_content, wrong(DIFFERS) + wrong(CHECKPOINT, DIFFERS)),
    "data skipped to an older save": Resume(settings(data_skip_steps=OLDER), wrong(REPEATED)),
    "older save": Resume(
        settings(load_checkpoint=f"'{FOLDER}/iteration_{OLDER:08d}'", data_skip_steps=None), wrong(POSITION),
        **NOT_THE_NEWEST,
    ),
}  # fmt: skip

OF_PYNATIVE: dict[str, Resume[PyNative]] = {
    "right": Resume(nothing, AS_PLANNED),
    "right, without launch": Resume(own(load_path=f'"{FOLDER}"'), AS_PLANNED),
    "scheduler dropped": Resume(newer_zeroed(is_step), wrong(OPTIMIZER) + wrong(DIFFERS)),
    "optimizer dropped": Resume(without_optimizer_unnoticed, wrong(OPTIMIZER)),
    "moments dropped": Resume(newer_zeroed(is_moment), wrong(OPTIMIZER)),
    "data not skipped": Resume(consumed(0), wrong(OTHER)),
    "data skipped to an older save": Resume(consumed(OLDER * BATCH), wrong(REPEATED)),
    "data a step behind": Resume(consumed((SAVED - 1) * BATCH), wrong(REPEATED)),
    "data skipped too far": Resume(consumed((SAVED + 10) * BATCH), wrong(OTHER)),
    "older save": Resume(
        settings(load_path=f'"{FOLDER}/iteration_{OLDER:08d}"'), wrong(POSITION), **NOT_THE_NEWEST
    ),
    "older weights": Resume(older_content, (NOT_SHOWN, *wrong(CHECKPOINT))),
    "fresh weights": Resume(without("model"), wrong(WEIGHTS)),
    "only the weights": Resume(
        own(load_path=f'"{FOLDER}"', no_load_optim=True), wrong(POSITION), **FROM_THE_BEGINNING
    ),
    "from scratch": Resume(own(), wrong(POSITION, WEIGHTS), **FROM_THE_BEGINNING),
}  # fmt: skip


@dataclass
class Killed:
    """Training runs that were killed, each made when its first case needs it."""

    folder: Path
    server: Server
    new: Callable[..., Training]
    start: Callable[..., Trace]
    made: dict[str, tuple[Training, str, Trace]]

    def of(self, name: str, text: str, *, killed: int = KILLED, ranks: int = 1) -> tuple[Training, str, Trace]:
        """Return the training, the plan after the kill, and what its steps were."""
        if name not in self.made:
            training = self.new(self.folder / name.replace(" ", "_"), text=text, ranks=ranks)
            trace = self.start(training, self.server, "first", "base.yaml", killed)
            assert max(trace.steps, default=0) == killed, training.errors("first")
            self.made[name] = training, plan_of(training), trace
        return self.made[name]


@pytest.fixture(scope="module")
def static(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    home = home_of("2.1.0")
    if home is None:
        pytest.skip(f"needs MindFormers 2.1.0: set {PLACE} to a folder that holds it")
    server = Server(home, tmp_path_factory.mktemp("server"))
    yield Killed(tmp_path_factory.mktemp("static"), server, Training, start_static, {})
    server.close()


@pytest.fixture(scope="module")
def pynative(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    needs()
    server = new_server(tmp_path_factory.mktemp("server"))
    yield Killed(tmp_path_factory.mktemp("pynative"), server, PyNative, start_pynative, {})
    server.close()


def static_text(*additions: str, **values: object) -> str:
    return real_mindformers.config(*additions, **{**STATIC, **values})


def pynative_text(**values: object) -> str:
    return real_pynative.config({**PYNATIVE, **values}, data="long")


def resumed(
    runs: Killed, name: str, text: str, case: Resume[Any], folder: Path, *, killed: int = KILLED, ranks: int = 1
) -> tuple[Training, str, Trace]:
    """Resume a copy of a killed run; return it, the plan from before the start, and what its steps were."""
    template, plan, _ = runs.of(name, text, killed=killed, ranks=ranks)
    training = copied(template, folder)
    training.launch()
    case.fault(training)
    trace = runs.start(training, runs.server, "second", "resume.yaml", case.end)
    assert (min(trace.steps, default=0), max(trace.steps, default=0)) == (case.first, case.end), training.errors(
        "second"
    )
    return training, plan, trace


def assert_answers(training: Training, plan: str, case: Resume[Any]) -> None:
    """Compare the answers with the expected ones."""
    answers = answers_of(training, plan)
    code, document = answers.plan
    assert (code, findings_of(document)) in case.answers, document["summary"]
    exits = {exit_code for exit_code, _ in case.answers} if case.bare is None else {case.bare}
    for code, document in (answers.bare, answers.files):
        assert code in exits, document["summary"]


@pytest.mark.parametrize("name", OF_THE_STATIC_TRAINER)
def test_a_resume_of_the_static_trainer(name: str, static: Killed, tmp_path: Path) -> None:
    case = OF_THE_STATIC_TRAINER[name]
    training, plan, _ = resumed(static, "killed", static_text(), case, tmp_path / "run")
    assert_answers(training, plan, case)


@pytest.mark.parametrize("name", OF_THE_NEWER_LAYOUT)
def test_a_resume_of_the_static_trainer_in_the_newer_layout(name: str, static: Killed, tmp_path: Path) -> None:
    case = OF_THE_NEWER_LAYOUT[name]
    text = static_text("use_legacy_format: False")
    training, plan, _ = resumed(static, "newer", text, case, tmp_path / "run")
    assert_answers(training, plan, case)


@pytest.mark.parametrize("name", OF_PYNATIVE)
def test_a_resume_of_the_pynative_trainer(name: str, pynative: Killed, tmp_path: Path) -> None:
    case = OF_PYNATIVE[name]
    training, plan, _ = resumed(pynative, "killed", pynative_text(), case, tmp_path / "run")
    assert_answers(training, plan, case)


OTHER_RUNS: dict[str, tuple[str, int]] = {
    "dropout": (static_text(width="4\n    dropout: 0.1"), UNKNOWN),
    "sinks of two steps": (static_text(sink_mode=True, sink_size=2), RIGHT),
    "shuffled, in the second epoch": (static_text(n_samples=samples(100, shuffle=True)), RIGHT),
    "a line per ten steps": (
        static_text().replace("- type: MFLossMonitor", "- type: MFLossMonitor\n    per_print_times: 10"), UNKNOWN,
    ),
}  # fmt: skip
"""Their exit code after a right resume."""


def assert_right(training: Training, plan: str, exit_code: int = RIGHT, *, phase: str = "second") -> None:
    """Hold that a right resume is not accused, with a plan or without one."""
    for code, document in answers_of(training, plan, phase=phase).all:
        assert code == exit_code, document["summary"]
        assert document["outcome"] != "wrong"


@pytest.mark.parametrize("name", OTHER_RUNS)
def test_a_right_resume_of_another_run(name: str, static: Killed, tmp_path: Path) -> None:
    text, exit_code = OTHER_RUNS[name]
    killed, plan, _ = static.of(name, text)
    training = copied(killed, tmp_path / "run")
    training.launch()
    static.start(training, static.server, "second", "resume.yaml", END)
    assert_right(training, plan, exit_code)


def test_a_right_resume_of_the_pynative_trainer_with_dropout(pynative: Killed, tmp_path: Path) -> None:
    text = pynative_text(hidden="8\n  noisy: True\n  dropout: 0.1")
    training, plan, _ = resumed(pynative, "dropout", text, Resume(nothing, AS_PLANNED), tmp_path / "run")
    assert_right(training, plan, UNKNOWN)


def test_shuffled_data_with_another_seed(static: Killed, tmp_path: Path) -> None:
    case: Resume[Training] = Resume(settings(seed=7), wrong(OTHER))
    text = static_text(n_samples=samples(400, shuffle=True))
    training, plan, _ = resumed(static, "shuffled", text, case, tmp_path / "run")
    assert_answers(training, plan, case)


def test_a_run_that_was_killed_soon_after_the_save(static: Killed, tmp_path: Path) -> None:
    killed = SAVED + 15
    for name, exits in (("right", {RIGHT}), ("optimizer dropped", {WRONG}), ("data not skipped", {WRONG, UNKNOWN})):
        case = OF_THE_STATIC_TRAINER[name]
        training, plan, _ = resumed(static, "soon", static_text(), case, tmp_path / name, killed=killed)
        for code, document in answers_of(training, plan).all:
            assert code in exits, document["summary"]


def test_a_run_that_was_resumed_twice(static: Killed, tmp_path: Path) -> None:
    case: Resume[Training] = Resume(nothing, AS_PLANNED, end=SAVED + 20)
    training, plan, _ = resumed(static, "killed", static_text(), case, tmp_path / "run")
    assert_right(training, plan)
    training.launch(output="again.yaml")
    static.start(training, static.server, "third", "again.yaml", END)
    assert_right(training, plan, phase="third")
    wrong = copied(static.of("killed", static_text())[0], tmp_path / "wrong")
    wrong.launch()
    zeroed(is_moment)(wrong)
    static.start(wrong, static.server, "second", "resume.yaml", SAVED + 20)
    assert postflight(wrong)[0] == WRONG
    static.start(wrong, static.server, "third", "resume.yaml", END)
    assert postflight(wrong)[0] == WRONG


def test_a_plan_from_after_the_start(static: Killed, tmp_path: Path) -> None:
    case: Resume[Training] = Resume(nothing, AS_PLANNED)
    training, _, _ = resumed(static, "killed", static_text(), case, tmp_path / "run")
    code, document = postflight(training, plan=plan_of(training))
    assert (code, document["outcome"]) == (UNKNOWN, "unknown"), document["summary"]
    assert f"the plan names step {SAVED + EVERY}, which the first run did not reach" in document["missing"]
    assert postflight(training, "--from-step", str(SAVED), plan=plan_of(training))[0] == RIGHT


def test_a_resume_from_an_older_save_because_the_newest_is_damaged(static: Killed, tmp_path: Path) -> None:
    killed, _, _ = static.of("killed", static_text())
    training = copied(killed, tmp_path / "run")
    shard = make_writable(shard_of(training))
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
    plan = plan_of(training)
    assert training.launch()["plan"]["resume"]["step"] == OLDER
    static.start(training, static.server, "second", "resume.yaml", SAVED + 10)
    assert postflight(training, plan=plan)[0] == RIGHT
    code, document = postflight(training)
    assert code in {RIGHT, UNKNOWN}, document["summary"]
    code, document = postflight(training, plan=plan_of(training))
    assert code == UNKNOWN, document["summary"]
    assert f"the plan names step {SAVED}, which the resumed run saved again" in document["missing"]


def test_two_ranks_of_the_pynative_trainer(pynative: Killed, tmp_path: Path) -> None:
    text = pynative_text(steps=KILLED + 10, local_batch_size=BATCH // 2)
    for name, fault, codes in (
        ("right", nothing, {RIGHT}),
        ("balanced", settings(load_balanced=True), {WRONG, UNKNOWN}),
    ):
        case: Resume[PyNative] = Resume(fault, AS_PLANNED, end=KILLED + 10)
        training, plan, _ = resumed(pynative, "two ranks", text, case, tmp_path / name, ranks=2)
        for code, document in answers_of(training, plan).all:
            assert code in codes, document["summary"]
