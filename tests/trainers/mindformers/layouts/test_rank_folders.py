"""Thousands of folders look alike but for the rank, and are cut into shapes once; each is listed as if alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.storage.base import ByteSource, Entry, Kind
from ckpttool.trainers.listing import Listing, list_root
from ckpttool.trainers.mindformers.layouts import rank_folders
from ckpttool.trainers.mindformers.layouts.names import ITERATION_LAYOUT, RANK_LAYOUT, UNIFIED_LAYOUT, shape_of
from ckpttool.trainers.mindformers.layouts.rank_folders import RankFolder, list_rank_folders
from ckpttool.trainers.parts import recognised

META = b'{"last_epoch": 20, "last_step": 2, "last_ckpt_file": "llama_rank_%d-20_2.ckpt"}'

PIECES = ["llama", "my", "_rank_", "_rank_N", "_rank_N", "_", "-", "-20_2", "1", "2", "N", ".ckpt", "_breakpoint.ckpt"]
"""N is the folder's rank. Ranks 1, 2, 12 and 21 are taken for each other by whoever cuts carelessly."""

RANKS = (1, 2, 12, 21)
names = st.lists(st.sampled_from(PIECES), min_size=1, max_size=5).map("".join)


class Folders:
    """Rank folders that are on no disk; the names in them come in no order."""

    root = "here"

    def __init__(self, held: Mapping[int, Sequence[str]]) -> None:
        self._held = held

    def entries(self, folder: str) -> list[Entry]:
        if not folder:
            return [Entry(f"rank_{rank}", Kind.FOLDER) for rank in self._held]
        return [Entry(name, Kind.FILE) for name in self._held[int(folder.removeprefix("rank_"))][::-1]]

    def kind(self, path: str) -> Kind:
        return Kind.FILE if "/" in path else Kind.FOLDER

    def stamp(self, path: str) -> FileStamp:
        return FileStamp.on_disk(size=len(path), mtime_ns=0, inode=0)

    def small_file(self, path: str, *, limit: int) -> bytes:
        return META[:limit] % int(path.split("/", maxsplit=1)[0].removeprefix("rank_"))

    def open(self, path: str) -> AbstractContextManager[ByteSource]:
        raise AssertionError(path)


def listed(storage: Folders) -> list[RankFolder]:
    """List all rank folders of a tree."""
    return list_rank_folders(storage, list_root(storage), sizes=True)[0]


@given(st.lists(names, max_size=4), st.booleans())
def test_a_rank_s_folder_is_listed_beside_others_as_it_is_alone(held: list[str], has_meta: bool) -> None:
    folders = {
        rank: [*{name.replace("N", str(rank)) for name in held}, *(["meta.json"] if has_meta else [])] for rank in RANKS
    }
    alone = [folder for rank in RANKS for folder in listed(Folders({rank: folders[rank]}))]
    assert listed(Folders(folders)) == alone
    for folder in alone:
        cut = sorted(shape_of(name, f"_rank_{folder.rank}") for name in folders[folder.rank] if name != "meta.json")
        assert list(folder.shapes) == cut


def test_names_that_differ_in_the_rank_alone_are_cut_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cut: list[str] = []

    def counted(name: str, token: str) -> str:
        cut.append(name)
        return shape_of(name, token)

    monkeypatch.setattr(rank_folders, "shape_of", counted)
    held = ["llama_rank_{}-20_2.ckpt", "llama_rank_{}-15_2.ckpt", "meta.json", "notes.txt"]
    tree = Folders({rank: [name.format(rank) for name in held] for rank in range(300)})
    folders = listed(tree)
    assert sorted(cut) == sorted(name.format(0) for name in held)
    assert len({id(folder.shapes) for folder in folders}) == 1
    assert {folder.meta is None for folder in folders} == {False}


@given(st.sets(st.text(alphabet="rank_i09tez", max_size=12)), st.sampled_from(["iteration_", "rank_", "r", "zz"]))
def test_the_names_that_begin_so_are_found_among_the_others(held: set[str], start: str) -> None:
    listing = Listing(entries=tuple(Entry(name, Kind.FOLDER) for name in sorted(held)))
    assert [entry.name for entry in listing.beginning(start)] == sorted(n for n in held if n.startswith(start))


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("iteration_00000010", ITERATION_LAYOUT),
        ("hyper_param.safetensors", UNIFIED_LAYOUT),
        ("iteration_10", RANK_LAYOUT),
        ("old_iteration_00000010", RANK_LAYOUT),
    ],
)
def test_one_name_among_ten_thousand_ranks_tells_the_layout(name: str, layout: str) -> None:
    names = sorted([*(f"rank_{rank}" for rank in range(10_000)), name])
    found = recognised(Listing(entries=tuple(Entry(each, Kind.FOLDER) for each in names)))
    assert found[0].name is layout
