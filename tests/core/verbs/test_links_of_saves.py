"""A link among the saves of a tree leads to a save on another disk, or to everything that this machine has."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from ckpttool.core.storage.base import Entry
from ckpttool.core.storage.local import LocalStorage
from ckpttool.watch import seeing as watch_seeing
from tests.support.answers import FIXTURES, scanned
from tests.support.commands import ask
from tests.support.watched_trainings import Watching

MOST_LISTED = 400
"""Folders that are listed for one command at most: those of a small tree, several times."""


class Linked(NamedTuple):
    tree: str
    link: str
    """What is a link, the name of a save or of something in one."""
    newest: str
    """The newest whole save."""


LINKED = [
    Linked("layouts/hf_single", "checkpoint-99", "checkpoint-12"),
    Linked("layouts/hf_single", "checkpoint-12/extra", "checkpoint-12"),
    Linked("layouts/orbax_standard", "40", "30"),
    Linked("layouts/verl_2ranks", "global_step_9", "global_step_3"),
    Linked("layouts/titan_4ranks/checkpoint", "step-99", "step-10"),
    Linked("layouts/ds_zero1_2ranks", "global_step9", "global_step6"),
    Linked("layouts/mcore_legacy_tp2dp2", "iter_0000009", "iter_0000006"),
]


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """A folder that has no end for whoever follows links: two ways lead back into it at every turn."""
    place = tmp_path / "endless"
    place.mkdir()
    (place / "notes.txt").write_text("of somebody else's")
    for name in ("again", "and-again"):
        (place / name).symlink_to(place)
    return place


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that are listed; too many of them end a test at once, before they fill the machine."""
    seen: list[str] = []
    entries = LocalStorage.entries

    def counted(self: LocalStorage, folder: str) -> list[Entry]:
        seen.append(folder)
        if len(seen) > MOST_LISTED:
            pytest.fail(f"listed {len(seen)} folders, the last of them {folder[-80:]}")
        return entries(self, folder)

    monkeypatch.setattr(LocalStorage, "entries", counted)
    return seen


def linked(case: Linked, out: Path, target: Path) -> Path:
    root = Path(shutil.copytree(FIXTURES / case.tree, out / "run", symlinks=True))
    (root / case.link).symlink_to(target)
    return root


@pytest.mark.sample(3)
@pytest.mark.usefixtures("listed")
@pytest.mark.parametrize("case", LINKED, ids=lambda case: f"{Path(case.tree).name}-{Path(case.link).name}")
def test_a_watch_of_a_tree_with_a_link_into_everything_ends_each_poll_and_tells_of_the_good_saves(
    case: Linked, tmp_path: Path, endless: Path
) -> None:
    watching = Watching(linked(case, tmp_path, endless), tmp_path / "state", world=None)
    watching.poll(times=4)
    assert ("good", case.newest) in [(event.kind.value, event.name) for event in watching.told]
    assert case.link not in [event.name for event in watching.told if event.kind.value == "good"]


@pytest.mark.sample(3)
@pytest.mark.parametrize("case", LINKED[:4], ids=lambda case: f"{Path(case.tree).name}-{Path(case.link).name}")
@pytest.mark.parametrize("command", ["resolve", "verify", "seal", "prune", "report", "preflight"])
def test_no_command_follows_a_link_further_than_the_layout_looks_into_a_save(
    command: str, case: Linked, tmp_path: Path, endless: Path, listed: list[str]
) -> None:
    root, page = linked(case, tmp_path, endless), str(tmp_path / "page.html")
    more = {"prune": ("--keep-last", "1"), "report": ("--output", page), "verify": ("--checkpoint", "all")}
    said = ask(command, str(root), *more.get(command, ()))
    assert said.code in {0, 10, 14}, said.stderr
    assert [folder for folder in listed if folder.count("again") > 1] == []


def test_a_save_that_is_a_link_to_another_disk_is_watched_with_all_that_lies_in_it(
    tmp_path: Path, listed: list[str]
) -> None:
    root = Path(shutil.copytree(FIXTURES / "layouts/hf_single", tmp_path / "run"))
    shutil.move(root / "checkpoint-12", tmp_path / "other-disk")
    (root / "checkpoint-12").symlink_to(tmp_path / "other-disk")
    (tmp_path / "other-disk/notes/of-march").mkdir(parents=True)
    watching = Watching(root, tmp_path / "state", world=None)
    watching.poll(times=4)
    assert next((event.kind.value, event.name) for event in watching.told) == ("good", "checkpoint-12")
    assert "checkpoint-12/notes/of-march" in listed


def test_a_watch_looks_at_no_more_names_beside_the_shards_than_its_bound(
    tmp_path: Path, listed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(shutil.copytree(FIXTURES / "layouts/hf_single", tmp_path / "run"))
    for number in range(30):
        (root / f"checkpoint-12/notes/{number:02}/deeper").mkdir(parents=True)
    monkeypatch.setattr(watch_seeing, "MOST_BESIDE", 20)
    watching = Watching(root, tmp_path / "state", world=None)
    watching.poll(times=4)
    assert ("good", "checkpoint-12") in [(event.kind.value, event.name) for event in watching.told]
    assert len({folder for folder in listed if folder.startswith("checkpoint-12/notes/")}) < 20


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("tree", "link", "leads", "old"),
    [
        ("layouts/hf_single", "best", "checkpoint-4", "checkpoint-4"),
        ("layouts/hf_single", "checkpoint-12/training_args.bin", "../checkpoint-4/training_args.bin", "checkpoint-4"),
        ("layouts/hf_single", "checkpoint-12/model", "../checkpoint-4", "checkpoint-4"),
        ("layouts/light_single/checkpoints", "best.ckpt", "epoch=0-step=4.ckpt", "epoch=0-step=4.ckpt"),
        ("sink2_ckpt/output/checkpoint", "good", "rank_1/llama2_7b_rank_1-10_2.ckpt", "10_2"),
    ],
)
def test_prune_keeps_a_save_to_which_a_link_in_the_tree_leads_and_without_the_link_lets_it_go(
    tree: str, link: str, leads: str, old: str, tmp_path: Path
) -> None:
    options = "--keep-last", "1", "--grace", "0", "--apply"
    plain, linked = (shutil.copytree(FIXTURES / tree, tmp_path / name) for name in ("plain", "linked"))
    assert ask("prune", str(plain), *options).code == 0
    assert old not in {save.name for save in scanned(plain).checkpoints}
    (linked / link).unlink(missing_ok=True)
    (linked / link).symlink_to(leads)
    said = ask("prune", str(linked), *options)
    assert said.code == 0
    assert f"must not be moved: it is the target of the link {link}" in " ".join(said.stdout.split())
    assert (linked / link).exists()
    assert old in {save.name for save in scanned(linked).checkpoints}
