"""A trainer is its folder and its lines in the registry: what nobody answered is refused or unknown, never borrowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpttool.core.commands import options
from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.load_settings import LoadSettings
from ckpttool.core.errors import ExitCode
from ckpttool.trainers import registry
from ckpttool.trainers.base import Members, Refusal
from tests.support.answers import chosen, cli, document, plan, refusal, scanned, why_not
from tests.support.json_schemas import problems_of
from tests.trainers import toy
from tests.trainers.toy import save

# Another trainer's words: none of them may stand in an answer about the toy's tree.
FOREIGN = ("MindFormers", "load_checkpoint", "resume_training", "data_skip_steps", "rank_0", "rank_1", "iteration_")


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "TRAINERS", (toy.TOY, *registry.TRAINERS))
    monkeypatch.setattr(options, "LAYOUT_NAMES", (*toy.TOY.layout_names, *registry.LAYOUT_NAMES))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Three saves; the newest was never finished, the one before lacks a file."""
    root = tmp_path / "saves"
    for step in (10, 20, 30):
        save(root, step)
    (root / "step-30" / "toy.json").unlink()
    (root / "step-20" / "__1_0.toy").unlink()
    return root


def said(*arguments: str) -> tuple[int, str]:
    """Exit code and all that a command printed, in words of the toy trainer."""
    answer = cli(*arguments)
    assert [word for word in FOREIGN if word in answer.output] == []
    return answer.exit_code, answer.output


class TestWhatIsAnswered:
    def test_a_save_that_was_not_finished_is_not_chosen_and_the_reason_is_named(self, tree: Path) -> None:
        answer = plan(tree)
        assert chosen(answer) == ("step-10", 10)
        assert why_not(answer) == [("step-30", {Code.UNCOMMITTED_SAVE}), ("step-20", {Code.SHARD_MISSING})]

    @pytest.mark.sample(4)
    @pytest.mark.parametrize("fmt", ["table", "json"])
    @pytest.mark.parametrize(
        ("command", "code"),
        [
            (["scan"], ExitCode.DAMAGE),
            (["verify"], ExitCode.DAMAGE),
            (["verify", "--checkpoint", "all", "--level", "checksum"], ExitCode.DAMAGE),
            (["verify", "--checkpoint", "step-10"], ExitCode.OK),
        ],
    )
    def test_scan_and_verify_name_what_is_wrong(self, tree: Path, command: list[str], code: ExitCode, fmt: str) -> None:
        exit_code, output = said(command[0], str(tree), *command[1:], "--format", fmt)
        assert exit_code == code
        assert (Code.UNCOMMITTED_SAVE.value in output) == (code is ExitCode.DAMAGE)

    @pytest.mark.parametrize("fmt", ["table", "json"])
    def test_a_resume_is_told_in_its_own_words_and_where_its_data_go_on_is_unknown(self, tree: Path, fmt: str) -> None:
        exit_code, output = said("resolve", str(tree), "--format", fmt)
        assert exit_code == ExitCode.OK
        assert "step-10" in output
        assert "ckpttool does not know how Toy resumes" in output

    def test_the_tree_is_found_from_its_parts(self, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tree.parent)
        assert len(scanned(".").checkpoints) == 3
        for part in ("saves/step-10", "saves/step-10/__1_0.toy", "saves/step-10/toy.json"):
            assert chosen(plan(part)) == ("step-10", 10)

    def test_its_layout_can_be_asked_for_by_name(self, tree: Path) -> None:
        assert said("scan", str(tree), "--layout", "toy-dcp")[0] == ExitCode.DAMAGE
        assert cli("scan", str(tree), "--layout", "mindformers-rank").exit_code == ExitCode.UNKNOWN_LAYOUT
        answer = cli("scan", str(tree), "--layout", "toy")
        assert (answer.exit_code, "'toy' is not one of" in answer.stderr) == (ExitCode.USAGE, True)
        assert "'toy-dcp'" in answer.stderr


class TestWhatIsNotAnswered:
    @pytest.mark.parametrize(
        ("command", "why"),
        [
            (["prune", "--keep-last", "1"], "whose saves ckpttool does not move"),
            (["prune", "--keep-last", "1", "--apply"], "whose saves ckpttool does not move"),
            (["repair-meta"], "whose saves ckpttool does not move"),
            (["seal"], "has no place for a seal"),
        ],
    )
    def test_what_changes_a_tree_refuses_and_changes_nothing(self, tree: Path, command: list[str], why: str) -> None:
        before = sorted(tree.rglob("*"))
        exit_code, output = said(command[0], str(tree), *command[1:])
        assert (exit_code, why in output) == (ExitCode.UNKNOWN_LAYOUT, True)
        assert sorted(tree.rglob("*")) == before

    def test_a_way_around_bad_data_is_told_in_no_ones_setting(self, tree: Path, tmp_path: Path) -> None:
        log = tmp_path / "train.csv"
        norms = [1000.0 if step > 250 else 1.0 for step in range(1, 401)]
        log.write_text("step,global_norm\n" + "".join(f"{step},{norm}\n" for step, norm in enumerate(norms, 1)))
        asked = ["replay", str(log), "--around-spike", "last", "--every", "10", "--threshold", "3"]
        assert "data_skip_steps: " in cli(*asked).output  # of a log alone nobody knows whose it is
        answer = document(*asked, "--health-timeline", str(tree))
        detour = answer["advice"]["detour"]
        assert (detour["mindformers"], detour["megatron"]) == (None, None)
        assert problems_of(answer) == []
        assert "skip" in said(*asked, "--health-timeline", str(tree))[1]


class TestOneSaveOfMany:
    """What a layout refuses of one save is refused of that save, and of no other."""

    @pytest.fixture
    def saves(self, tmp_path: Path) -> Path:
        """Three whole saves."""
        for step in (10, 20, 30):
            save(tmp_path / "saves", step)
        return tmp_path / "saves"

    @pytest.fixture
    def not_loaded(self, monkeypatch: pytest.MonkeyPatch) -> set[str]:
        """Names of saves that the layout knows of no way to load."""
        names: set[str] = set()
        load = toy.ToyLayout.load

        def refusing(layout: toy.ToyLayout, inventory: Inventory, checkpoint: Checkpoint) -> LoadSettings | Refusal:
            if checkpoint.name in names:
                return Refusal(why="was saved by a version that nobody can load from")
            return load(layout, inventory, checkpoint)

        monkeypatch.setattr(toy.ToyLayout, "load", refusing)
        return names

    def test_a_save_that_nobody_can_load_is_passed_over(self, saves: Path, not_loaded: set[str]) -> None:
        not_loaded.add("step-30")
        answer = plan(saves)
        assert (chosen(answer), why_not(answer)) == (("step-20", 20), [("step-30", {Code.NOT_LOADABLE})])
        exit_code, output = said("resolve", str(saves))
        assert (exit_code, "nobody can load from" in " ".join(output.split())) == (ExitCode.OK, True)

    def test_where_the_others_are_damaged_it_is_unknown(self, saves: Path, not_loaded: set[str]) -> None:
        not_loaded.add("step-30")
        for step in (10, 20):
            (saves / f"step-{step}" / "__1_0.toy").unlink()
        assert [name for name, _ in why_not(refusal(saves))] == ["step-30", "step-20", "step-10"]
        assert said("resolve", str(saves))[0] == ExitCode.INCOMPLETE
        (saves / "step-30" / "__1_0.toy").unlink()
        assert said("resolve", str(saves))[0] == ExitCode.NOTHING_TO_RESUME

    @pytest.fixture
    def _one_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let all saves but the oldest be moved."""

        def members(_: toy.ToyLayout, checkpoint: Checkpoint) -> Members | Refusal:
            if checkpoint.name == "step-10":
                return Refusal(why="is the base of a fine-tuning, whose files ckpttool does not move")
            return Members(paths=(checkpoint.name,))

        monkeypatch.setattr(toy.ToyLayout, "members", members)

    @pytest.mark.usefixtures("_one_stays")
    def test_a_save_that_is_not_to_be_moved_stays_and_an_older_one_beside_it_goes(self, saves: Path) -> None:
        exit_code, output = said("prune", str(saves), "--keep-last", "1", "--apply", "--grace", "0")
        assert (exit_code, "the base of a fine-tuning" in " ".join(output.split())) == (ExitCode.OK, True)
        assert sorted(path.name for path in saves.glob("step-*")) == ["step-10", "step-30"]
        answer = document("prune", str(saves), "--keep-last", "1", "--grace", "0")
        assert [one["why"] for one in answer["checkpoints"]] == [["not-moved"], ["last"]]
        assert problems_of(answer) == []


class TestNoRecordNamesTheLastSave:
    @pytest.fixture(autouse=True)
    def _moved(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the saves be moved: else the tree is refused before any record is looked for."""
        monkeypatch.setattr(toy.ToyLayout, "members", lambda _, checkpoint: Members(paths=(checkpoint.name,)))

    def test_it_is_said_and_not_that_all_records_are_right(self, tree: Path) -> None:
        assert said("repair-meta", str(tree)) == (
            ExitCode.OK,
            "toy-dcp keeps no record that names its last save: nothing to repair\n",
        )
        assert document("repair-meta", str(tree))["records_read"] == 0


class TestWhatTheDiskWithholds:
    """A layout need not foresee it: whatever it cannot read, the command could not look, and says where."""

    def test_a_record_that_cannot_be_read_leaves_the_end_of_a_save_unknown(self, tree: Path) -> None:
        (tree / "step-30" / "toy.json").symlink_to(tree / "nowhere")
        newest = document("scan", str(tree))["checkpoints"][-1]
        assert newest["commit"] == "unknown"
        assert [(each["code"], each["severity"]) for each in newest["findings"]] == [("uncommitted-save", "unknown")]
        assert chosen(plan(tree)) == ("step-10", 10)

    @pytest.mark.sample(4)
    @pytest.mark.parametrize("command", ["scan", "verify", "resolve", "prune", "repair-meta", "seal"])
    @pytest.mark.parametrize(
        ("error", "where"),
        [
            (PermissionError(13, "Permission denied", "step-20/toy.json"), "/step-20/toy.json"),
            (OSError(5, "Input/output error"), ""),
        ],
    )
    def test_an_error_of_the_disk_ends_as_could_not_look(
        self, tree: Path, monkeypatch: pytest.MonkeyPatch, command: str, error: OSError, where: str
    ) -> None:
        def withheld(*_: object) -> Inventory:
            raise error

        monkeypatch.setattr(toy.ToyLayout, "scan", withheld)
        extra = ["--keep-last", "1"] if command == "prune" else []
        exit_code, output = said(command, str(tree), *extra)
        assert exit_code == ExitCode.INCOMPLETE
        assert output == f"ckpttool: error: {tree}{where} cannot be read: {error.strerror}\n"
