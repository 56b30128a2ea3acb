"""Two real processes that train together decide, capture, save and resume alike, whatever happens to one of them.

They start once for all tests of this file that a run has chosen, for to start costs more than what is tried in them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import ckpttool
from ckpttool.core.domain.finding import Severity
from ckpttool.core.domain.plan import ResumePlan
from ckpttool.core.domain.verdict import VerdictWord
from ckpttool.core.errors import NothingToResumeError, UsageError
from ckpttool.guard import CaptureSettings
from ckpttool.guard.model.capture import Capture, NanQuestion, NanVerdict
from tests.guard import capturing, rank_captures, rank_errors, rank_saves, rank_steps
from tests.guard.capturing import place
from tests.guard.loop import INFINITE, NOT_A_NUMBER, SmallNet
from tests.guard.rank_captures import ENTRY
from tests.guard.rank_errors import CULPRIT, WRONG_AT
from tests.guard.rank_steps import PARTS, Seen
from tests.guard.ranks import on_ranks
from tests.guard.test_saving import question, verdicts

Case = Callable[[int], Any]

train = rank_steps.train
STEPS: dict[str, Case] = {
    "healthy": train,
    "infinite batch": partial(train, bad={3: INFINITE, 5: NOT_A_NUMBER}),
    "loss alone": partial(train, losses={3: NOT_A_NUMBER}),
    "in parts": partial(train, bad={3: INFINITE}, parts=3),
    "overflow": partial(train, bad={3: 1e15}, scale=2.0**40, parts=2),
    "slow": partial(train, bad={3: INFINITE}, slow=0.2),
    "stop": partial(train, bad={2: INFINITE, 3: INFINITE}, count_threshold=2),
    "by hand": partial(train, wrap=rank_steps.by_hand),
    "one gradient differs": partial(train, wrap=rank_steps.by_hand, spoil=rank_steps.one_gradient_differs),
    "sharded": partial(train, wrap=rank_steps.sharded, bad={3: INFINITE}),
    "sharded as before": partial(train, wrap=rank_steps.sharded_as_before, bad={3: INFINITE}),
    "sharded and healthy": partial(train, wrap=rank_steps.sharded),
    "partly sharded": rank_steps.partly_sharded,
    "strike": partial(rank_errors.guarded, replica_every=0),
    "hooked": rank_errors.with_and_without_a_hook,
    **{f"always in {owner.__name__}.{name}": partial(rank_steps.fault_in, owner, name) for owner, name in PARTS},
    **{f"once in {owner.__name__}.{name}": partial(rank_steps.once_in, owner, name) for owner, name in PARTS},
}
SAVES: dict[str, Callable[..., Any]] = {
    "saves": partial(rank_saves.on_both, wrap=DistributedDataParallel),
    "saves its part": partial(rank_saves.on_both, wrap=fully_shard),
    "one started before": rank_saves.one_start_more,
    "one has a flipped bit": rank_saves.flipped,
    "nothing there": rank_saves.nothing,
}
CAPTURES: dict[str, Callable[..., Any]] = {
    "captures and computes again": partial(rank_captures.train, again=True),
    "captures": partial(rank_captures.train, again=False),
    "captures its part": partial(rank_captures.train, again=True, wrap="fsdp"),
}
REPLAYS = "replays what this process captured"
ALWAYS, ONCE = ([f"{how} in {owner.__name__}.{name}" for owner, name in PARTS] for how in ("always", "once"))


def made_here(folder: Path) -> list[tuple[str, str]]:
    """Capture in this process, and return what another one is to replay: the last one as it was not computed."""
    capturing.train(folder / "single", capture=CaptureSettings(loss_of=capturing.loss_of))
    capturing.train(folder / "half", bf16=True)
    single, half = place(folder / "single"), place(folder / "half")
    return [(single, ENTRY), (half, f"{ENTRY}_bf16"), (half, ENTRY)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def all_ran(request: pytest.FixtureRequest, folder: Path) -> dict[str, list[Any]]:
    """What each case that a test of this run asks for returned on each rank."""
    items = (item for item in request.session.items if item.path == request.path and isinstance(item, pytest.Function))
    asked = {str(item.callspec.params["ran"]) for item in items if "ran" in item.fixturenames}
    cases = {name: case for name, case in STEPS.items() if name in asked}
    for name in sorted(asked & SAVES.keys()):
        (folder / name).mkdir()
        cases[name] = partial(SAVES[name], folder=str(folder / name))
    for name in sorted(asked & CAPTURES.keys()):
        cases[name] = partial(CAPTURES[name], output=str(folder / name))
    if REPLAYS in asked:
        cases[REPLAYS] = partial(rank_captures.replayed_elsewhere, asked=made_here(folder))
    return on_ranks(2, cases, folder)


@pytest.fixture
def ran(request: pytest.FixtureRequest, all_ran: dict[str, list[Any]]) -> list[Any]:
    """What one case returned on each rank."""
    results = all_ran[request.param]
    assert not [result for result in results if isinstance(result, str)]  # a traceback
    return results


def each_of(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("ran", names, indirect=True)


@pytest.mark.sample(1)
@each_of("healthy", "by hand", "sharded and healthy")
def test_ranks_that_are_healthy_drop_nothing(ran: list[Seen]) -> None:
    for told in ran:
        assert told["kinds"] == []
        assert told["applied"] == [True] * 6
    first, second = ran
    assert (first["norm"], first["weights"]) == (second["norm"], second["weights"])


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("ran", "dropped"),
    [
        ("infinite batch", {3, 5}),
        ("loss alone", {3}),
        ("sharded", {3}),
        ("slow", {3}),
        ("in parts", {3}),
        ("overflow", {3}),
        ("sharded as before", {3}),
    ],
    indirect=["ran"],
)
def test_what_one_rank_sees_all_ranks_drop(ran: list[Seen], dropped: set[int], request: pytest.FixtureRequest) -> None:
    first, second = ran
    name = request.node.callspec.params["ran"]
    assert first["norm"] == second["norm"]
    assert first["applied"] == second["applied"] == [number not in dropped for number in range(1, 7)]
    if name != "sharded as before":  # of those each rank has its own part
        assert first["weights"] == second["weights"]
    for number, told in product(dropped, ran):
        assert told["weights"][number - 1] == told["weights"][number - 2]
    assert first["kinds"] == second["kinds"] == ["overflow" if name == "overflow" else "nonfinite"] * len(dropped)


@pytest.mark.sample(1)
@each_of("infinite batch", "loss alone", "sharded", "in parts")
def test_the_rank_is_named_whose_loss_is_not_finite(ran: list[Seen]) -> None:
    for told in ran:
        named = [values["ranks"] for kind, _, values in told["events"] if kind == "nonfinite"]
        assert {*map(tuple, named)} == {(1,)}


@each_of("stop")
def test_all_ranks_stop_at_the_same_step(ran: list[Seen]) -> None:
    assert [told["stopped"].partition(":")[0] for told in ran] == ["step 3", "step 3"]


@each_of("one gradient differs")
def test_a_norm_that_differs_from_rank_to_rank_is_told_by_each(ran: list[Seen]) -> None:
    for told in ran:
        assert [step for kind, step, _ in told["events"] if kind == "replicas-disagree"][:1] == [3]


@each_of("partly sharded")
def test_gradients_of_which_some_are_sharded_are_clipped_together(ran: list[Seen]) -> None:
    for told in ran:
        assert told["norm"] == pytest.approx(told["expected"])
        assert told["clipped"] == pytest.approx(0.5, rel=1e-4)


@each_of("strike")
def test_a_strike_of_one_rank_starts_the_checksum_on_both_in_the_same_step(ran: list[Seen]) -> None:
    for rank, told in enumerate(ran):
        assert [event for event in told["told"] if event[0] == "checksum-on"] == [("checksum-on", WRONG_AT + 1)]
        strikes = [event for event in told["told"] if event[0] == "sdc-strike"]
        assert strikes == ([("sdc-strike", WRONG_AT)] if rank == CULPRIT else [])


@each_of("hooked")
def test_the_hook_that_looks_at_features_changes_no_bit_of_a_training(ran: list[Seen]) -> None:
    for told in ran:
        assert told["hooked"]["weights"] == told["plain"]["weights"] == ran[0]["plain"]["weights"]
        assert (told["hooked"]["events"], told["hooked"]["not_finite"]) == ([], [])


@pytest.mark.sample(2)
@each_of(*ALWAYS)
def test_a_fault_of_the_guard_on_one_rank_stops_nobody(ran: list[Seen]) -> None:
    first, second = ran
    assert len(first["applied"]) == len(second["applied"]) == 7
    assert first["applied"] == second["applied"]
    assert first["weights"] == second["weights"]
    assert "guard-error" in second["kinds"]
    assert "guard-error" not in first["kinds"]
    off = [
        [(step, values["part"]) for kind, step, values in told["events"] if kind == "guard-off"]
        for told in (first, second)
    ]
    assert off[0] == off[1]


@pytest.mark.sample(2)
@each_of(*ONCE)
def test_one_fault_of_the_guard_on_one_rank_hides_no_bad_batch(ran: list[Seen]) -> None:
    first, second = ran
    assert first["applied"] == second["applied"]
    assert first["weights"] == second["weights"]
    assert "guard-off" not in first["kinds"] + second["kinds"]
    assert [first["applied"][number - 1] for number in (2, 4)] == [False, False], "the other rank saw it"


class TestCaptures:
    """Each keeps its own part, the rank with the bad batch is named, and their mean is what was reduced."""

    @each_of(*CAPTURES)
    def test_both_ranks_capture_and_drop_and_neither_waits(self, ran: list[Any]) -> None:
        assert ran == [["capture", "nonfinite", "finite"]] * 2

    @pytest.mark.parametrize(
        ("ran", "culprits"), [("captures and computes again", [1]), ("captures", [])], indirect=["ran"]
    )
    @pytest.mark.usefixtures("ran")
    def test_the_rank_with_the_bad_batch_is_named(self, culprits: list[int], output: Path) -> None:
        capture = read(place(output))
        assert capture.findings == ()
        assert all(rank.bad_losses == 0 and rank.bad_gradients for rank in capture.ranks)
        assert [culprit.rank for culprit in capture.culprits] == culprits

    @each_of("captures and computes again", "captures")
    @pytest.mark.usefixtures("ran")
    def test_the_mean_of_both_replays_is_the_reduced_gradient_in_every_bit(self, output: Path) -> None:
        answer = ckpttool.library.replay_nan(NanQuestion(path=place(output), entry=ENTRY, exact=True))
        assert answer.reproduced
        assert [rank.is_finite for rank in answer.ranks] == [True, False]
        assert [rank.gradients_equal == rank.gradients > 10 for rank in answer.ranks] == [True, True]
        assert answer.origin is not None
        assert (answer.origin.rank, answer.origin.op, answer.origin.phase) == (1, "sqrt", "backward")

    @each_of("captures and computes again")
    @pytest.mark.usefixtures("ran")
    def test_a_rank_whose_files_are_elsewhere_stops_no_other(self, output: Path, tmp_path: Path) -> None:
        here = of_rank_1_alone(output, tmp_path)
        capture = read(here)
        assert [finding.code.value for finding in capture.findings] == ["capture-incomplete"]
        assert [culprit.rank for culprit in capture.culprits] == [1]
        answer = ckpttool.library.replay_nan(NanQuestion(path=here, entry=ENTRY, ranks=(1,), exact=True, locate=False))
        assert answer.reproduced
        assert not ckpttool.library.replay_nan(NanQuestion(path=here, entry=ENTRY, locate=False)).reproduced
        elsewhere = ckpttool.library.replay_nan(NanQuestion(path=here, entry=ENTRY, ranks=(0,), locate=False))
        assert (elsewhere.reproduced, elsewhere.ranks) == (False, ())
        assert [finding.code.value for finding in elsewhere.findings] == ["capture-incomplete"]

    @pytest.mark.parametrize(
        ("ran", "rank", "is_finite"),
        [("captures and computes again", 0, True), ("captures and computes again", 1, False), ("captures", 1, False)],
        indirect=["ran"],
    )
    @pytest.mark.usefixtures("ran")
    def test_one_rank_alone_is_held_against_its_own_run(self, rank: int, is_finite: bool, output: Path) -> None:
        knows_its_own = "again" in output.name  # else there are only the reduced ones
        asked = NanQuestion(path=place(output), entry=ENTRY, ranks=(rank,), exact=knows_its_own, locate=False)
        answer = ckpttool.library.replay_nan(asked)
        assert (answer.reproduced, answer.ranks[0].is_finite) == (True, is_finite)
        assert (answer.ranks[0].gradients > 10, answer.ranks[0].gradients == 0) == (knows_its_own, not knows_its_own)

    @each_of("captures its part")
    @pytest.mark.usefixtures("ran")
    def test_sharded_weights_are_put_together_from_all_ranks(self, output: Path, tmp_path: Path) -> None:
        answer = ckpttool.library.replay_nan(NanQuestion(path=place(output), entry=ENTRY))
        assert answer.findings == ()
        assert [rank.losses_equal for rank in answer.ranks] == [2, 2]
        assert answer.verdict is NanVerdict.DATA_OR_MODEL
        assert answer.origin is not None
        assert (answer.origin.rank, answer.origin.op) == (1, "sqrt")
        here = of_rank_1_alone(output, tmp_path)
        answer = ckpttool.library.replay_nan(NanQuestion(path=here, entry=ENTRY, ranks=(1,)))
        assert "cannot be assembled: 2 parts were saved, but 1 were found" in answer.findings[-1].message

    @each_of(REPLAYS)
    def test_another_process_gets_every_loss_and_every_gradient_in_every_bit(self, ran: list[Any]) -> None:
        nothing, (single, half, wrong) = ran
        assert nothing == []
        for answer in (single, half):
            assert answer["reproduced"] is True
            (rank,) = answer["ranks"]
            assert (rank["losses_equal"], rank["micro_batches"]) == (2, 2)
            assert rank["gradients_equal"] == rank["gradients"] > 10
            assert rank["nonfinite"] != []
            assert (answer["origin"]["op"], answer["origin"]["phase"]) == ("sqrt", "backward")
            assert answer["origin"]["micro_batch"] == 1
        assert wrong["reproduced"] is False  # in float32, what was computed in bfloat16


@pytest.fixture
def output(request: pytest.FixtureRequest, folder: Path) -> Path:
    """Where the case of a test writes."""
    return folder / str(request.node.callspec.params["ran"])


def read(path: str) -> Capture:
    found = ckpttool.library.inspect_nan(path)
    assert isinstance(found, Capture)
    return found


def of_rank_1_alone(output: Path, tmp_path: Path) -> str:
    """Copy what one rank captured."""
    here = tmp_path / "nan-at-00000003"
    here.mkdir()
    for name in ("r00001.json", "r00001.safetensors"):
        (here / name).write_bytes(Path(place(output), name).read_bytes())
    return str(here)


class TestSaves:
    @pytest.mark.parametrize(
        ("ran", "told"),
        [
            ("saves", ["1_4", 4, True, True]),
            ("saves its part", ["1_4", 4, True, True]),
            ("one started before", ["_1-1_3"]),
            ("one has a flipped bit", ["IncompleteError", True]),
            ("nothing there", [0]),
        ],
        indirect=["ran"],
    )
    def test_two_ranks_save_and_resume_each_its_own_file(self, ran: list[Any], told: list[Any]) -> None:
        assert ran == [told] * 2

    @each_of("saves", "saves its part")
    @pytest.mark.usefixtures("ran")
    def test_what_two_ranks_saved_is_whole(self, output: Path) -> None:
        (verdict,) = verdicts(output)
        assert (verdict.word, len(verdict.reports)) == (VerdictWord.VERIFIED, 2)
        assert [finding.message for finding in verdict.findings if finding.severity > Severity.NOTE] == []

    @each_of("saves")
    @pytest.mark.usefixtures("ran")
    def test_what_two_ranks_saved_is_resumed_by_two_from_both(self, output: Path, tmp_path: Path) -> None:
        model = SmallNet()
        plan = tmp_path / "plan.json"
        plan.write_text(json.dumps(ckpttool.resolve(question(output)).to_dict()), encoding="utf-8")
        for source, error, message in (
            (output, NothingToResumeError, "has shards of 2 ranks, but 1"),
            (plan, UsageError, "saved on 2 ranks and would be resumed on 1"),
        ):
            with pytest.raises(error, match=message):
                ckpttool.resume_training(str(source), model=model, optimizer=torch.optim.AdamW(model.parameters()))
        # The number of ranks is in each certificate: with the other rank's folder gone the save is not whole.
        alone = tmp_path / "alone"
        shutil.copytree(output, alone)
        shutil.rmtree(alone / "checkpoint/rank_1")
        assert not isinstance(ckpttool.resolve(question(alone)).decision, ResumePlan)
