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

import ckpttool
from ckpttool.core.domain.finding import Code, Row, Severity
from ckpttool.core.domain.plan import ResumePlan
from ckpttool.core.domain.preflight import Check, Preflight
from ckpttool.core.domain.preflight import Outcome as Ended
from ckpttool.core.errors import ExitCode
from ckpttool.types import PreflightQuestion, TreeQuestion
from tests.support.answers import cli, start_check
from tests.support.commands import ask
from tests.support.trainer_trees import healthy

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


def linked(saves: Path) -> str | None:
    """Take what the link leads to."""
    link = saves / "latest-rank0.pt"
    return link.resolve().name if link.exists() else None


OWN = {
    "huggingface": Own(tree="hf_single", saves="", takes=highest(r"checkpoint-(\d+)")),
    "accelerate": Own(tree="accel_ddp2", saves="checkpoints", takes=highest(r"checkpoint_(\d+)")),
    "torchtitan": Own(tree="titan_4ranks", saves="checkpoint", takes=highest(r"step-(\d+)")),
    "automodel": Own(
        tree="automodel_2ranks", saves="", takes=lambda saves: (saves / "LATEST").resolve().name, tracker=None
    ),
    "olmo-core": Own(tree="olmo_2ranks", saves="", takes=highest(r"step(\d+)")),
    "orbax": Own(tree="orbax_standard", saves="", takes=highest(r"(\d+)")),
    "lightning": Own(tree="light_single", saves="checkpoints", takes=last_changed, tracker="last.ckpt"),
    "composer": Own(tree="composer_single", saves="", takes=linked, tracker="latest-rank0.pt"),
    "composer, sharded": Own(tree="composer_fsdp", saves="", takes=linked, tracker="latest-rank0.pt"),
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
    "verl, fine-tuning": Own(
        tree="verl_sft", saves="", takes=named(TRACKER, "global_step_{}".format), tracker=TRACKER, older="8"
    ),
    "skyrl": Own(
        tree="skyrl_2ranks",
        saves="",
        takes=named("latest_ckpt_global_step.txt", "global_step_{}".format),
        tracker="latest_ckpt_global_step.txt",
        older="10",
    ),
    "verl": Own(
        tree="verl_2ranks", saves="", takes=named(TRACKER, "global_step_{}".format), tracker=TRACKER, older="2"
    ),
}


HF = "per_device_train_batch_size: 2\nsave_total_limit: 3\nsave_strategy: steps\n"
AS_BEFORE = (
    "per_device_train_batch_size: 4\ngradient_accumulation_steps: 1\nsave_total_limit: 3\nsave_strategy: steps\n"
)
LIGHTNING = "seed_everything: 1\ntrainer: {max_epochs: 3}\n"
SAVER = "{{class_path: ModelCheckpoint, init_args: {{dirpath: {}}}}}"
TITAN = "[checkpoint]\nenable = true\nkeep_latest_k = 0\n"


def flown(root: Path, *, allowed: tuple[Row, ...] = ()) -> Preflight:
    return ckpttool.preflight(PreflightQuestion(config=None, tree=TreeQuestion(path=str(root)), allowed=allowed))


def newest_of(root: Path) -> Path:
    """Return where the newest save lies, whole as it is."""
    plan = ckpttool.resolve(TreeQuestion(path=str(root))).decision
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


@pytest.mark.sample(24)
@pytest.mark.parametrize(
    "fault",
    [nothing, newest_cut, tracker_behind, tracker_behind_and_newest_cut, tracker_gone],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("trainer", OWN)
def test_go_means_the_trainer_takes_the_choice(
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
    assert start_check(answer).outcome is (Ended.PASSED if is_go else Ended.FAILED), start_check(answer)
    if is_go:
        assert start_check(answer).reasons == ()
        return
    (reason,) = start_check(answer).reasons
    assert (reason.finding.code, answer.exit_code) == (Code.START_DIFFERS, ExitCode.DAMAGE)
    assert reason.finding.expected == chosen.name
    assert "--allow start-differs" in (reason.finding.remedy or "")
    if fault is newest_cut:
        assert start_check(flown(root, allowed=(Code.START_DIFFERS,))).outcome is Ended.PASSED


@pytest.mark.sample(2)
@pytest.mark.parametrize("fault", [newest_cut, tracker_gone], ids=lambda f: f.__name__)
@pytest.mark.parametrize("trainer", [trainer for trainer, own in OWN.items() if own.older])
def test_the_offered_repair_mends_the_start(trainer: str, fault: Callable[[Path, Own], None], tmp_path: Path) -> None:
    root = healthy(OWN[trainer].tree, tmp_path)
    fault(root, OWN[trainer])
    (reason,) = start_check(flown(root)).reasons
    command = (reason.finding.remedy or "").rpartition("or ckpttool ")[2]
    assert command.startswith("repair pointer")
    assert ask(*command.split(), "--grace", "0").code == 0
    assert start_check(flown(root)).outcome is Ended.PASSED


class TestWhatLaunchSays:
    """A start that is told what `launch` says takes what was chosen; MindFormers' are in its own tests."""

    @pytest.mark.sample(4)
    @pytest.mark.parametrize("fault", [nothing, newest_cut], ids=lambda f: f.__name__)
    @pytest.mark.parametrize("tree", [*(own.tree for own in OWN.values()), "dcp_plain_2ranks", "files_loop"])
    def test_it_names_what_was_chosen(self, tree: str, fault: Callable[[Path, Own], None], tmp_path: Path) -> None:
        root = healthy(tree, tmp_path)
        fault(root, Own(tree=tree, saves="", takes=lambda _: None))
        said = ckpttool.library.fragment(TreeQuestion(path=str(root)))
        assert isinstance(said.decision, ResumePlan)
        chosen = said.decision.point.checkpoint
        told = " ".join(str(setting.value) for setting in said.decision.load.settings)
        assert chosen.name in told or str(chosen.step) in told.split()
        codes = {finding.code for finding in said.decision.findings if finding.severity > Severity.NOTE}
        assert not codes & {Code.START_DIFFERS, Code.START_UNKNOWN}

    @pytest.mark.sample(3)
    @pytest.mark.parametrize("fault", [nothing, newest_cut], ids=lambda f: f.__name__)
    @pytest.mark.parametrize(
        ("tree", "name", "setting", "text"),
        [
            ("hf_single", "args.yaml", "resume_from_checkpoint", f"{HF}resume_from_checkpoint: "),
            ("light_single", "fit.yaml", "ckpt_path", f"{LIGHTNING}ckpt_path: "),
            ("titan_4ranks", "train.toml", "checkpoint.load_step", f"{TITAN}load_step = "),
        ],
    )
    def test_in_a_config_it_is_go_by_the_simulation(  # noqa: PLR0917  one by one of a row
        self, tree: str, name: str, setting: str, text: str, fault: Callable[[Path, Own], None], tmp_path: Path
    ) -> None:
        root = healthy(tree, tmp_path)
        fault(root, Own(tree=tree, saves="", takes=lambda _: None))
        said = ckpttool.library.fragment(TreeQuestion(path=str(root)))
        assert isinstance(said.decision, ResumePlan)
        settings = said.decision.load.settings
        (value,) = {str(each.value) for each in settings if each.place.name.endswith(setting)}
        config = tmp_path / name
        config.write_text(text + value)
        check = start_check(
            ckpttool.preflight(PreflightQuestion(config=str(config), tree=TreeQuestion(path=str(root))))
        )
        assert check.outcome is Ended.PASSED, check.summary


def marked_as_incomplete(root: Path) -> None:
    (newest_of(root) / "checkpoint-is-incomplete.txt").write_text("x")


def without_random_states(root: Path) -> None:
    for path in newest_of(root).glob("random_states_*"):
        path.unlink()


def older_under_a_higher_number(root: Path) -> None:
    shutil.copytree(root / "checkpoint/step-5", root / "checkpoint/step-99")


@pytest.mark.parametrize(
    ("tree", "fault", "words"),
    [
        ("hf_single", marked_as_incomplete, "would load checkpoint-12, not step 8"),
        ("accel_ddp2", without_random_states, "would load checkpoint_2, not step 8"),
        ("titan_4ranks", older_under_a_higher_number, "would load step-99, not step 10"),
    ],
)
def test_what_is_loaded_without_an_error_is_not_called_a_stop(
    tree: str, fault: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    """As the trainers do it: the nightly run starts them in such trees."""
    root = healthy(tree, tmp_path)
    fault(root)
    answer = flown(root)
    assert (answer.go, words in start_check(answer).summary) == (False, True), start_check(answer).summary


class TestAScriptOfItsOwn:
    @pytest.mark.parametrize(
        ("tree", "step"), [("dcp_plain_2ranks", "step 8 (8)"), ("files_loop", "step 300 (ckpt_300.pt)")]
    )
    def test_go_is_said_on_the_condition_that_it_loads_what_was_chosen(
        self, tree: str, step: str, tmp_path: Path
    ) -> None:
        root = healthy(tree, tmp_path)
        answer = flown(root)
        (reason,) = start_check(answer).reasons
        assert (reason.finding.code, answer.go, start_check(answer).unsure) == (Code.START_UNKNOWN, True, True)
        assert "--allow" not in str(reason.finding.remedy)
        said = ask("preflight", str(root))
        assert (said.code, said.stdout.splitlines()[0]) == (
            0,
            f"GO: a start resumes from {step} if it is set to load it",
        )
        assert "?   start       see start-unknown below" in said.stdout
        assert said.stdout.count("it chooses nothing") == 1


LEFT = {
    "hf_single": ("args.yaml", HF),
    "light_single": ("fit.yaml", LIGHTNING),
    "titan_4ranks": ("train.toml", TITAN),
    "ds_zero1_2ranks": ("ds.json", ""),
    "ds_zero3_2ranks": ("ds.json", ""),
    "olmo_2ranks": ("config.yaml", "trainer:\n  metrics_collect_interval: 5\n  "),
}
"""By tree what its trainer's config is called, and the text before what a row says."""

STOPS, ELSEWHERE = "would stop without loading", "would load other/checkpoint"
CONFIGS = [
    ("hf_single, newest cut", "resume_from_checkpoint: true", Ended.FAILED, "would load checkpoint-12"),
    ("hf_single, newest cut", "auto_resume_from_checkpoints: true", Ended.FAILED, "would load checkpoint-12"),
    ("hf_single, newest cut", "resume_from_checkpoint: run/checkpoint-8", Ended.PASSED, "would load checkpoint-8"),
    (
        "hf_single, newest cut",
        "resume_from_checkpoint: run/checkpoint-12",
        Ended.FAILED,
        "would load checkpoint-12 and then stop",
    ),
    (
        "hf_single, newest cut",
        "resume_from_checkpoint: run/checkpoint-4",
        Ended.FAILED,
        "would load checkpoint-4, not step 8",
    ),
    ("hf_single, newest cut", "resume_from_checkpoint: run", Ended.FAILED, "would load run, not step 8"),
    ("hf_single, newest cut", "resume_from_checkpoint: other/checkpoint-8", Ended.FAILED, f"{ELSEWHERE}-8, not"),
    ("hf_single, newest cut", "resume_from_checkpoint: /nope/checkpoint-12", Ended.FAILED, STOPS),
    ("hf_single, newest cut", "resume_from_checkpoint: run/checkpoint-9", Ended.FAILED, STOPS),
    ("hf_single, newest cut", 'resume_from_checkpoint: "~/run/checkpoint-8"', Ended.FAILED, STOPS),
    ("hf_single, newest cut", "resume_from_checkpoint: [run/checkpoint-8]", Ended.FAILED, STOPS),
    ("hf_single, newest cut", "resume_from_checkpoint: false", Ended.UNKNOWN, "names no save, so the script"),
    ("hf_single, newest cut", "", Ended.UNKNOWN, "names no save, so the script"),
    *(
        ("hf_single", f"{switch}: true\noutput_dir: {output}", ended, "")
        for switch in ("resume_from_checkpoint", "auto_resume_from_checkpoints")
        for output, ended in (
            ("run", Ended.PASSED),
            ("/elsewhere/run2", Ended.FAILED),
            ("./run2", Ended.FAILED),
            ("[run]", Ended.FAILED),
        )
    ),
    ("light_single", "ckpt_path: run/checkpoints/last.ckpt", Ended.PASSED, "would load "),
    ("light_single", "ckpt_path: null", Ended.FAILED, "at step 0"),
    ("light_single", "", Ended.FAILED, "at step 0"),
    ("light_single", "ckpt_path: best", Ended.FAILED, "would stop"),
    ("light_single", "ckpt_path: other/checkpoints/last.ckpt", Ended.FAILED, f"{ELSEWHERE}s/last.ckpt, not"),
    ("light_single", "ckpt_path: [run/checkpoints/last.ckpt]", Ended.FAILED, "would stop"),
    ("light_single", "ckpt_path: /nope/last.ckpt", Ended.FAILED, "would stop"),
    ("light_single", "ckpt_path: hpc", Ended.UNKNOWN, "names hpc, which was not checked"),
    ("light_single", "ckpt_path: file:///run/checkpoints/last.ckpt", Ended.UNKNOWN, "which was not checked"),
    ("titan_4ranks", "", Ended.PASSED, "would load step-"),
    ("titan_4ranks", "load_step = -1", Ended.PASSED, "would load step-"),
    ("titan_4ranks", "load_step = 10", Ended.PASSED, "would load step-10"),
    ("titan_4ranks", "load_step = 5", Ended.FAILED, "not step"),
    ("titan_4ranks", "load_step = 0", Ended.FAILED, STOPS),  # torchtitan 0.3.0: no word for the highest
    ("titan_4ranks", "load_step = 99", Ended.FAILED, STOPS),
    ("titan_4ranks", "load_step = -2", Ended.FAILED, STOPS),
    ("titan_4ranks", 'load_step = "10"', Ended.UNKNOWN, "is not a whole number"),
    ("titan_4ranks", "load_step = -1.0", Ended.UNKNOWN, "is not a whole number"),
    ("titan_4ranks", "load_step = true", Ended.UNKNOWN, "is not a whole number"),
    ("titan_4ranks, newest cut", "load_step = 10", Ended.FAILED, "would load step-10 and then stop"),
    ("titan_4ranks", 'folder = "checkpoint"', Ended.PASSED, "would load step-"),
    ("titan_4ranks", 'folder = "ckpt2"', Ended.FAILED, "would load ckpt2, not"),
    ("titan_4ranks", 'exclude_from_loading = ["model"]', Ended.FAILED, STOPS),
    ("titan_4ranks", 'exclude_from_loading = ["momentum"]', Ended.FAILED, STOPS),
    ("titan_4ranks", 'exclude_from_loading = ["train_state", "dataloader"]', Ended.FAILED, "without a part of it"),
    ("titan_4ranks", 'exclude_from_loading = "optimizer,lr_scheduler"', Ended.FAILED, "without a part of it"),
    ("titan_4ranks", 'exclude_from_loading = ["dataloader"]', Ended.PASSED, "would load step-"),
    ("titan_4ranks", "exclude_from_loading = []", Ended.PASSED, "would load step-"),
    ("titan_4ranks", '[job]\ndump_folder = "./run"', Ended.PASSED, "would load step-"),
    ("titan_4ranks", '[job]\ndump_folder = "./other"', Ended.FAILED, "would load ./other/checkpoint, not"),
    ("olmo_2ranks", "save_folder: run", Ended.PASSED, "would load step12"),
    ("olmo_2ranks", "save_folder: run\n  load_strategy: always", Ended.PASSED, "would load step12"),
    ("olmo_2ranks", "save_folder: run\n  load_path: run/step6", Ended.PASSED, "would load step12"),
    ("olmo_2ranks", "load_strategy: never", Ended.FAILED, "at step 0"),
    ("olmo_2ranks", "no_checkpoints: true", Ended.FAILED, "at step 0"),
    ("olmo_2ranks", "save_folder: .", Ended.FAILED, "would load ., not"),
    ("olmo_2ranks", "save_folder: /nope/run2", Ended.FAILED, "at step 0"),
    ("olmo_2ranks", "save_folder: /nope/run2\n  load_path: run", Ended.PASSED, "would load step12"),
    ("olmo_2ranks", "save_folder: /nope/run2\n  load_path: run/step12", Ended.PASSED, "would load step12"),
    ("olmo_2ranks", "save_folder: /nope/run2\n  load_path: run/step6", Ended.FAILED, "would load step6"),
    ("olmo_2ranks", "save_folder: /nope/run2\n  load_path: /nope/run/step6", Ended.FAILED, STOPS),
    (
        "olmo_2ranks",
        "save_folder: /nope/run2\n  load_path: run/step12\n  load_optim_state: false",
        Ended.FAILED,
        "without a part of it",
    ),
    ("olmo_2ranks, newest cut", "save_folder: /nope/run2\n  load_path: run/step10", Ended.PASSED, "would load step10"),
    (
        "olmo_2ranks, newest cut",
        "save_folder: /nope/run2\n  load_path: run/step12",
        Ended.FAILED,
        "step12 and then stop",
    ),
    ("ds_zero1_2ranks", '{"zero_optimization": {"stage": 1}}', Ended.PASSED, ""),
    ("ds_zero1_2ranks", '{"zero_optimization": {"stage": 2}}', Ended.PASSED, ""),
    ("ds_zero1_2ranks", '{"zero_optimization": {"stage": 3}}', Ended.FAILED, ""),
    ("ds_zero1_2ranks", '{"steps_per_print": 10}', Ended.UNKNOWN, ""),
    ("ds_zero1_2ranks", '{"zero_optimization": {"stage": "auto"}}', Ended.UNKNOWN, ""),
    ("ds_zero3_2ranks", '{"zero_optimization": {"stage": 3}}', Ended.PASSED, ""),
    ("ds_zero3_2ranks", '{"zero_optimization": {"stage": 1}}', Ended.FAILED, ""),
    ("ds_zero3_2ranks", '{"steps_per_print": 10}', Ended.FAILED, ""),
]
"""A tree, a config for it, and what is said of a start with that: what a config names goes before the own choice."""


def started(root: Path, config: Path, text: str) -> Check:
    """What is said of a start with a config of this text."""
    config.write_text(text)
    return start_check(ckpttool.preflight(PreflightQuestion(config=str(config), tree=TreeQuestion(path=str(root)))))


@pytest.mark.parametrize(("tree", "more", "ended", "words"), CONFIGS)
def test_what_a_config_names_must_be_the_choice(tree: str, more: str, ended: Ended, words: str, tmp_path: Path) -> None:
    tree, _, is_cut = tree.partition(", ")
    root = healthy(tree, tmp_path)
    if is_cut:
        cut(newest_of(root))
    name, text = LEFT[tree]
    check = started(root, tmp_path / name, f"{text}{more}\n")
    assert (check.outcome, words in check.summary) == (ended, True), check.summary


class TestConfigs:
    def test_homes_that_trainers_expand(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Lightning's file systems are fsspec's: 2.6.6 loaded `~/x.ckpt`."""
        monkeypatch.setenv("HOME", str(tmp_path))
        root, config = healthy("hf_single", tmp_path), tmp_path / "args.yaml"
        by_output = started(root, config, f"{HF}resume_from_checkpoint: true\noutput_dir: ~/run\n")
        assert by_output.outcome is Ended.PASSED
        (reason,) = started(root, config, f"{HF}resume_from_checkpoint: ~/run/checkpoint-12\n").reasons
        assert "`~` is not expanded" in reason.finding.message
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        root, named = healthy("light_single", tmp_path / "home"), "ckpt_path: ~/run/checkpoints/last.ckpt\n"
        assert started(root, tmp_path / "fit.yaml", f"{LIGHTNING}{named}").outcome is Ended.PASSED

    @pytest.mark.sample(8)
    @pytest.mark.parametrize(
        ("trainer", "ended"),
        [
            ("{logger: false}", Ended.PASSED),
            ("{logger: false, default_root_dir: ROOT}", Ended.PASSED),
            ("{logger: false, default_root_dir: .}", Ended.PASSED),
            ("{logger: false, default_root_dir: /elsewhere}", Ended.FAILED),
            ("{default_root_dir: ROOT}", Ended.FAILED),  # in a new version of the logger that is there by itself
            ("{logger: true}", Ended.FAILED),
            ("{logger: {class_path: lightning.pytorch.loggers.CSVLogger, init_args: {save_dir: .}}}", Ended.FAILED),
            ("{logger: [{class_path: TensorBoardLogger, init_args: {save_dir: .}}]}", Ended.FAILED),
            ("{logger: {class_path: CSVLogger, init_args: {save_dir: ., version: 0}}}", Ended.UNKNOWN),
            ("{logger: {class_path: WandbLogger}}", Ended.UNKNOWN),
            (f"{{callbacks: [{SAVER.format('run/checkpoints')}]}}", Ended.PASSED),
            (f"{{callbacks: {SAVER.format('/elsewhere')}}}", Ended.FAILED),
            (
                f"{{callbacks: [{SAVER.format('/elsewhere')}, {SAVER.format('run/checkpoints')}]}}",
                Ended.UNKNOWN,
            ),
        ],
    )
    def test_last_is_looked_for_where_callbacks_save(self, trainer: str, ended: Ended, tmp_path: Path) -> None:
        root = healthy("light_single", tmp_path)
        config = f"seed_everything: 1\ntrainer: {trainer.replace('ROOT', str(tmp_path))}\nckpt_path: last\n"
        check = started(root, tmp_path / "fit.yaml", config)
        assert check.outcome is ended, check.summary

    @pytest.mark.sample(6)
    @pytest.mark.parametrize(
        ("tree", "saves", "config", "is_done"),
        [
            ("hf_single", "", f"{AS_BEFORE}max_steps: 12", True),
            ("hf_single", "", f"{AS_BEFORE}max_steps: 8", True),
            ("hf_single", "", f"{AS_BEFORE}max_steps: 13", False),
            ("hf_single", "", f"{AS_BEFORE}max_steps: 13\nnum_train_epochs: 1", False),
            ("hf_single", "", f"{AS_BEFORE}max_steps: -1\nnum_train_epochs: 1", True),
            ("hf_single", "", f"{AS_BEFORE}num_train_epochs: 0.5", True),
            ("hf_single", "", f"{AS_BEFORE}num_train_epochs: 30", False),
            ("hf_single", "", AS_BEFORE, False),
            ("light_single", "/checkpoints", "max_steps: 12", True),
            ("light_single", "/checkpoints", "max_steps: 10", True),
            ("light_single", "/checkpoints", "max_steps: 13", False),
            ("light_single", "/checkpoints", "max_steps: -1", False),
            ("light_single", "/checkpoints", "max_epochs: 1", True),
            ("light_single", "/checkpoints", "max_epochs: 0", True),
            ("light_single", "/checkpoints", "max_epochs: 30", False),
            ("light_single", "/checkpoints", "max_epochs: -1", False),
        ],
    )
    def test_a_reached_limit_is_no_go(self, tree: str, saves: str, config: str, is_done: bool, tmp_path: Path) -> None:
        """Run with Trainer and Lightning 2.6.6: no step, or one, and exit 0; one epoch less than was begun stops."""
        root = healthy(tree, tmp_path)
        base = tmp_path / "base.yaml"
        newest = "checkpoint-12" if tree == "hf_single" else "epoch=1-step=12.ckpt"
        resume = f"resume_from_checkpoint: {root}/{newest}"
        if tree == "light_single":
            config, resume = f"seed_everything: 1\ntrainer: {{{config}}}", f"ckpt_path: {root}{saves}/{newest}"
        base.write_text(f"{config}\n{resume}\n")
        ran = cli("preflight", str(root) + saves, "--config", str(base), "--allow", "data-restarts")
        assert ("training-complete" in ran.output, ran.exit_code) == (is_done, ExitCode.DAMAGE if is_done else 0)
        assert ("to continue, raise max_" in " ".join(ran.output.split())) is (is_done and "num_train" not in config)

    @pytest.mark.parametrize(
        ("record", "ended", "words"),
        [
            (None, Ended.FAILED, "would stop without loading"),
            ("global_step6", Ended.FAILED, "would stop without loading"),
            ("global_step6_universal", Ended.FAILED, "would load global_step6_universal, not"),
            ("", Ended.UNKNOWN, "which is empty"),
        ],
    )
    def test_a_universal_start_of_deepspeed(self, record: str | None, ended: Ended, words: str, tmp_path: Path) -> None:
        root = healthy("ds_zero1_2ranks", tmp_path)
        if record is not None:
            (root / "latest_universal").write_text(record)
        text = '{"zero_optimization": {"stage": 1}, "checkpoint": {"load_universal": true}}'
        check = started(root, tmp_path / "ds.json", text)
        assert (check.outcome, words in check.summary) == (ended, True), check.summary
        off = started(root, tmp_path / "ds.json", text.replace("true", "false"))
        assert off.outcome is Ended.PASSED

    @pytest.mark.parametrize(
        ("tree", "config", "remedy"),
        [
            (
                "titan_4ranks",
                TITAN.replace("true", "false"),
                "write `enable = true` under [checkpoint], or --allow start-differs if",
            ),
            ("titan_4ranks", TITAN.replace("enable = true\n", ""), "write `enable = true` under [checkpoint], or"),
            ("titan_4ranks", f'{TITAN}folder = "ckpt2"\n', "set `dump_folder` and `folder` so that they lead to"),
            ("titan_4ranks", f'{TITAN}exclude_from_loading = ["train_state"]\n', "remove train_state from"),
            ("titan_4ranks", f"{TITAN}load_step = 99\n", "--checkpoint.load_step"),
            ("hf_single", HF, "--allow start-unknown"),
            ("hf_single", f"{HF}resume_from_checkpoint: run/checkpoint-4\n", "--allow start-differs"),
        ],
    )
    def test_the_fix_mends_what_is_wrong(self, tree: str, config: str, remedy: str, tmp_path: Path) -> None:
        suffix = "toml" if tree.startswith("titan") else "yaml"
        (reason,) = started(healthy(tree, tmp_path), tmp_path / f"train.{suffix}", config).reasons
        assert remedy in (reason.finding.remedy or ""), reason.finding.remedy

    def test_torchtitan_without_its_loaders_state_is_not_told_to_be_exact(self, tmp_path: Path) -> None:
        root, config = healthy("titan_4ranks", tmp_path), tmp_path / "train.toml"
        config.write_text(TITAN)
        assert "data: exact" in ask("preflight", str(root), "--config", str(config)).stdout
        config.write_text(f'{TITAN}exclude_from_loading = ["dataloader"]\n')
        said = ask("preflight", str(root), "--config", str(config))
        assert (said.code, "data: exact" in said.stdout, "data: restarts" in said.stdout) == (10, False, True)
        assert "fix: remove `dataloader` from exclude_from_loading" in said.stdout
