"""Is go said only of a start that takes what was chosen? Each trainer's own choice, as its code makes it, is the judge.

`OWN` says in a line or two what each trainer takes: apart from the code under test, and from the names alone.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ckpttool import api
from ckpttool.domain import exits
from ckpttool.domain.finding import Code
from ckpttool.domain.plan import ResumePlan
from ckpttool.domain.preflight import Check, Preflight
from ckpttool.domain.preflight import Outcome as Ended
from ckpttool.errors import ExitCode
from tests.cli.running import ask
from tests.layouts import healthy

TRACKER = "latest_checkpointed_iteration.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """How a trainer chooses."""

    tree: str
    """A fixture."""
    saves: str
    """Where its saves lie below it."""
    takes: Callable[[Path], str | None]
    """Which save it takes of those in that folder; None: none, so that it begins at step 0 or stops."""
    tracker: str | None = None
    """What names the save, where it goes by that."""
    older: str = ""
    """What the tracker says of an older save."""


def highest(pattern: str) -> Callable[[Path], str | None]:
    """Take the highest number in a name, whatever is in it."""

    def take(saves: Path) -> str | None:
        named = [(int(match[1]), path.name) for path in saves.iterdir() if (match := re.fullmatch(pattern, path.name))]
        return max(named)[1] if named else None

    return take


def named(tracker: str, name: Callable[[str], str]) -> Callable[[Path], str | None]:
    """Take what a record names."""

    def take(saves: Path) -> str | None:
        record = saves / tracker
        return name(record.read_text().strip()) if record.exists() else None

    return take


def last_changed(saves: Path) -> str | None:
    """Take the `last*.ckpt` that was changed last, by the name of what it leads to."""
    lasts = sorted(saves.glob("last*.ckpt"), key=lambda path: path.stat().st_mtime_ns)
    return lasts[-1].resolve().name if lasts else None


OWN = {
    "huggingface": Own(tree="hf_single", saves="", takes=highest(r"checkpoint-(\d+)")),
    "accelerate": Own(tree="accel_ddp2", saves="checkpoints", takes=highest(r"checkpoint_(\d+)")),
    "torchtitan": Own(tree="titan_4ranks", saves="checkpoint", takes=highest(r"step-(\d+)")),
    "orbax": Own(tree="orbax_standard", saves="", takes=highest(r"(\d+)")),
    "lightning": Own(tree="light_single", saves="checkpoints", takes=last_changed, tracker="last.ckpt"),
    "deepspeed": Own(
        tree="ds_zero1_2ranks", saves="", takes=named("latest", str), tracker="latest", older="global_step3"
    ),
    "megatron": Own(
        tree="mcore_dist_tp2dp2",
        saves="",
        takes=named(TRACKER, lambda text: f"iter_{int(text):07d}"),
        tracker=TRACKER,
        older="3",
    ),
    "megatron, legacy": Own(
        tree="mcore_legacy_tp2dp2",
        saves="",
        takes=named(TRACKER, lambda text: f"iter_{int(text):07d}"),
        tracker=TRACKER,
        older="3",
    ),
    "verl": Own(
        tree="verl_2ranks", saves="", takes=named(TRACKER, "global_step_{}".format), tracker=TRACKER, older="2"
    ),
}


def flown(root: Path, *, allowed: tuple[Code, ...] = ()) -> Preflight:
    return api.preflight(api.PreflightQuestion(config=None, tree=api.TreeQuestion(path=str(root)), allowed=allowed))


def start_of(answer: Preflight) -> Check:
    (check,) = [check for check in answer.checks if check.name == "start"]
    return check


def newest_of(root: Path) -> Path:
    """Return where the newest save lies, whole as it is."""
    plan = api.resolve(api.TreeQuestion(path=str(root))).decision
    assert isinstance(plan, ResumePlan)
    return next(root.rglob(plan.point.checkpoint.name))


def cut(save: Path) -> None:
    """Cut the largest file of a save, as a full disk does."""
    files = [save] if save.is_file() else [path for path in save.rglob("*") if path.is_file() and path.parts]
    largest = max(files, key=lambda path: path.stat().st_size)
    times = largest.stat()
    os.truncate(largest, times.st_size - 100)
    os.utime(largest, ns=(times.st_atime_ns, times.st_mtime_ns))


def nothing(root: Path, own: Own) -> None:
    """Leave it as it is."""
    assert root.is_dir(), own


def newest_cut(root: Path, own: Own) -> None:
    """Cut the newest; a tracker goes on naming it."""
    assert own.tree
    cut(newest_of(root))


def tracker_behind(root: Path, own: Own) -> None:
    """Let the tracker name an older save: the training was taken back to that, and it is what is chosen."""
    if not own.older:
        pytest.skip("it has no tracker")
    (root / own.saves / str(own.tracker)).write_text(own.older)


def tracker_behind_and_newest_cut(root: Path, own: Own) -> None:
    """Let the tracker name the save that is left."""
    newest_cut(root, own)
    if not own.older:
        pytest.skip("it has no tracker")
    chosen = newest_of(root).name
    (root / own.saves / str(own.tracker)).write_text(own.older)
    if own.takes(root / own.saves) != chosen:
        pytest.skip("there are more saves between")


def tracker_gone(root: Path, own: Own) -> None:
    """Take the tracker away."""
    if own.tracker is None:
        pytest.skip("it has no tracker")
    (root / own.saves / own.tracker).unlink()


@pytest.mark.parametrize(
    "fault",
    [nothing, newest_cut, tracker_behind, tracker_behind_and_newest_cut, tracker_gone],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("trainer", OWN)
def test_go_is_said_only_where_the_trainer_takes_what_was_chosen(
    trainer: str, fault: Callable[[Path, Own], None], tmp_path: Path
) -> None:
    own = OWN[trainer]
    root = healthy(own.tree, tmp_path)
    fault(root, own)
    answer = flown(root)
    assert isinstance(answer.decision, ResumePlan)
    chosen = answer.decision.point.checkpoint
    takes = own.takes(root / own.saves)
    is_go = takes is not None and takes in {chosen.name, *chosen.aliases}
    assert start_of(answer).outcome is (Ended.PASSED if is_go else Ended.FAILED), start_of(answer)
    if is_go:
        assert start_of(answer).reasons == ()
        return
    (reason,) = start_of(answer).reasons
    assert (reason.finding.code, exits.of_preflight(answer.checks)) == (Code.START_DIFFERS, ExitCode.DAMAGE)
    assert reason.finding.expected == chosen.name
    assert "--allow start-differs" in (reason.finding.remedy or "")
    assert start_of(flown(root, allowed=(Code.START_DIFFERS,))).outcome is Ended.PASSED


@pytest.mark.parametrize("fault", [newest_cut, tracker_gone], ids=lambda f: f.__name__)
@pytest.mark.parametrize("trainer", [trainer for trainer, own in OWN.items() if own.older])
def test_where_a_tracker_decides_the_offered_repair_mends_the_start(
    trainer: str, fault: Callable[[Path, Own], None], tmp_path: Path
) -> None:
    root = healthy(OWN[trainer].tree, tmp_path)
    fault(root, OWN[trainer])
    (reason,) = start_of(flown(root)).reasons
    command = (reason.finding.remedy or "").rpartition("or ckpttool ")[2]
    assert command.startswith("repair-meta")
    assert ask(*command.split(), "--grace", "0").code == 0
    assert start_of(flown(root)).outcome is Ended.PASSED


class TestAScriptOfItsOwn:
    def test_go_is_said_on_the_condition_that_it_loads_what_was_chosen(self, tmp_path: Path) -> None:
        root = healthy("dcp_plain_2ranks", tmp_path)
        answer = flown(root)
        (reason,) = start_of(answer).reasons
        assert (reason.finding.code, answer.go, start_of(answer).unsure) == (Code.START_UNKNOWN, True, True)
        said = ask("preflight", str(root))
        assert (said.code, said.stdout.splitlines()[0]) == (
            0,
            "GO: a start resumes from 8, step 8, if it is told to load that",
        )
        assert "?   start       not judged: it chooses nothing" in said.stdout

    def test_accelerate_without_its_own_names_chooses_nothing_either(self, tmp_path: Path) -> None:
        root = healthy("accel_ddp2", tmp_path)
        shutil.move(root / "checkpoints", root / "elsewhere")
        for number, save in enumerate(sorted((root / "elsewhere").iterdir())):
            shutil.move(save, root / f"epoch_{number}")
        start = start_of(flown(root))
        assert start.unsure
        assert "its script names the folder" in start.summary


HF = "per_device_train_batch_size: 2\nsave_total_limit: 3\nsave_strategy: steps\n"
LIGHTNING = "seed_everything: 1\ntrainer: {max_epochs: 3}\n"
TITAN = "[checkpoint]\nenable = true\nkeep_latest_k = 0\n"


class TestConfigs:
    """What a config names goes before what a trainer takes by itself."""

    @staticmethod
    def start(root: Path, config: Path, text: str) -> Check:
        config.write_text(text)
        return start_of(api.preflight(api.PreflightQuestion(config=str(config), tree=api.TreeQuestion(path=str(root)))))

    @pytest.mark.parametrize(
        ("more", "ended", "words"),
        [
            ("resume_from_checkpoint: true", Ended.FAILED, "takes checkpoint-12"),
            ("auto_resume_from_checkpoints: true", Ended.FAILED, "takes checkpoint-12"),
            ("resume_from_checkpoint: run/checkpoint-8", Ended.PASSED, "takes checkpoint-8"),
            ("resume_from_checkpoint: run/checkpoint-12", Ended.FAILED, "takes checkpoint-12 and stops"),
            ("resume_from_checkpoint: run/checkpoint-4", Ended.FAILED, "takes checkpoint-4, not step 8"),
            ("resume_from_checkpoint: run", Ended.FAILED, "takes run, not step 8"),
            ("resume_from_checkpoint: other/checkpoint-8", Ended.FAILED, "takes other/checkpoint-8, not"),
            ("resume_from_checkpoint: false", Ended.UNKNOWN, "names no save, so the script"),
            ("", Ended.UNKNOWN, "names no save, so the script"),
        ],
    )
    def test_of_trainers_arguments(self, more: str, ended: Ended, words: str, tmp_path: Path) -> None:
        root = healthy("hf_single", tmp_path)
        cut(root / "checkpoint-12")
        check = self.start(root, tmp_path / "args.yaml", f"{HF}{more}\n")
        assert (check.outcome, words in check.summary) == (ended, True), check.summary

    @pytest.mark.parametrize(
        ("more", "ended", "words"),
        [
            ("ckpt_path: last", Ended.PASSED, "takes "),
            ("ckpt_path: run/checkpoints/last.ckpt", Ended.PASSED, "takes "),
            ("ckpt_path: null", Ended.FAILED, "begins at step 0"),
            ("", Ended.FAILED, "begins at step 0"),
            ("ckpt_path: best", Ended.FAILED, "stops"),
            ("ckpt_path: other/checkpoints/last.ckpt", Ended.FAILED, "takes other/checkpoints/last.ckpt, not"),
        ],
    )
    def test_of_lightnings_command_line(self, more: str, ended: Ended, words: str, tmp_path: Path) -> None:
        check = self.start(healthy("light_single", tmp_path), tmp_path / "fit.yaml", f"{LIGHTNING}{more}\n")
        assert (check.outcome, words in check.summary) == (ended, True), check.summary

    @pytest.mark.parametrize(("torn", "ended"), [(True, Ended.FAILED), (False, Ended.PASSED)])
    def test_a_torn_file_stops_lightning_though_last_is_a_whole_copy(
        self, torn: bool, ended: Ended, tmp_path: Path
    ) -> None:
        root = healthy("light_single", tmp_path)
        saves = root / "checkpoints"
        newest = saves / "epoch=1-step=12.ckpt"
        shutil.copy2(newest, saves / "last.ckpt")
        if torn:
            newest.write_bytes(newest.read_bytes()[:-100])
        config = f"{LIGHTNING}ckpt_path: run/checkpoints/{newest.name}\n"
        assert self.start(root, tmp_path / "fit.yaml", config).outcome is ended
        by_last = f"{LIGHTNING}ckpt_path: run/checkpoints/last.ckpt\n"
        assert self.start(root, tmp_path / "fit.yaml", by_last).outcome is Ended.PASSED

    def test_on_slurm_lightning_takes_what_its_signal_saved(self, tmp_path: Path) -> None:
        root = healthy("light_single", tmp_path)
        saves = root / "checkpoints"
        shutil.copy2(saves / str(last_changed(saves)), saves / "hpc_ckpt_1.ckpt")
        check = self.start(root, tmp_path / "fit.yaml", LIGHTNING)
        assert (check.outcome, "on Slurm" in check.summary) == (Ended.UNKNOWN, True)

    @pytest.mark.parametrize(
        ("more", "ended", "words"),
        [
            ("", Ended.PASSED, "takes step-"),
            ("load_step = -1", Ended.PASSED, "takes step-"),
            ("load_step = NEWEST", Ended.PASSED, "takes step-"),
            ("load_step = OLDEST", Ended.FAILED, "not step"),
            ("load_step = 99", Ended.FAILED, "stops and does not load"),
            ('[job]\ndump_folder = "./run"', Ended.PASSED, "takes step-"),
            ('[job]\ndump_folder = "./other"', Ended.FAILED, "takes ./other/checkpoint, not"),
        ],
    )
    def test_of_torchtitan(self, more: str, ended: Ended, words: str, tmp_path: Path) -> None:
        root = healthy("titan_4ranks", tmp_path)
        steps = sorted(int(path.name.rpartition("-")[2]) for path in (root / "checkpoint").glob("step-*"))
        more = more.replace("NEWEST", str(steps[-1])).replace("OLDEST", str(steps[0]))
        check = self.start(root, tmp_path / "train.toml", f"{TITAN}{more}\n")
        assert (check.outcome, words in check.summary) == (ended, True), check.summary

    def test_where_torchtitan_neither_saves_nor_loads_it_begins_at_step_0(self, tmp_path: Path) -> None:
        root = healthy("titan_4ranks", tmp_path)
        check = self.start(root, tmp_path / "train.toml", TITAN.replace("true", "false"))
        assert (check.outcome, "begins at step 0" in check.summary) == (Ended.FAILED, True)

    def test_what_torchtitan_names_and_is_cut_stops_it(self, tmp_path: Path) -> None:
        root = healthy("titan_4ranks", tmp_path)
        newest = newest_of(root)
        cut(newest)
        step = newest.name.rpartition("-")[2]
        check = self.start(root, tmp_path / "train.toml", f"{TITAN}load_step = {step}\n")
        assert (check.outcome, f"takes {newest.name} and stops" in check.summary) == (Ended.FAILED, True)

    def test_another_trainers_config_says_nothing_of_it(self, tmp_path: Path) -> None:
        """DeepSpeed's JSON tells sizes; what is loaded the script or `latest` tells."""
        root = healthy("ds_zero1_2ranks", tmp_path)
        check = self.start(root, tmp_path / "ds.json", '{"zero_optimization": {"stage": 1}}')
        assert check.outcome is Ended.PASSED
