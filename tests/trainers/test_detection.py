"""Which layout a folder has, by names alone: every tree under every other's claim, mixed with it, and inside of it."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest

from ckpttool.core.errors import UnknownLayoutError, UsageError
from ckpttool.core.formats.torch.pickle_objects import BrokenPickleError
from ckpttool.core.formats.torch.pickle_values import read_values
from ckpttool.core.storage.base import Entry, Kind
from ckpttool.trainers import parts, registry
from ckpttool.trainers.common import LOOSE_FILE_LAYOUT
from ckpttool.trainers.listing import HEAD_BYTES, Listing
from ckpttool.trainers.locate import locate
from tests.support.trainer_trees import LAYOUTS, layout_of_tree, truths

Names = dict[str, bytes]
"""Paths of files relative to the root, each with its first bytes; of an empty folder, with a slash behind it."""

_ENOUGH = 16 << 10
"""Bytes of a file that hold the pickle of a small model."""
_DICTIONARY = b"\x80\x02}"
"""With which the pickle of a dictionary begins."""

PLACES = ("checkpoint", "checkpoints")
"""In which some of the trees lie, as their trainer puts them there."""

MINDFORMERS: dict[str, tuple[str, Names]] = {
    "ranks": (
        "mindformers-rank",
        {f"rank_{rank}/{name}": b"\n\x05" for rank in (0, 1) for name in (f"llama_rank_{rank}-10_2.ckpt", "meta.json")},
    ),
    "iterations": (
        "mindformers-iteration",
        {
            **{
                f"iteration_00000{step}/{name}": b"{"
                for step in (100, 200)
                for name in ("common.json", "metadata.json")
            },
            "latest_checkpointed_iteration.txt": b"200",
        },
    ),
    "merged": (
        "mindformers-unified",
        {"hyper_param.safetensors": b"\x10", "model-00001-of-00001.safetensors": b"\x10", "param_name_map.json": b"{"},
    ),
}
"""Of MindFormers, and of no other trainer, a name tells enough."""


@cache
def real(tree: str) -> tuple[str, Names]:
    """The names of a tree that a real trainer wrote, by what its truth calls its layout."""
    top = LAYOUTS / tree
    root = next((top / place for place in PLACES if (top / place).is_dir()), top)
    files = (file for file in root.rglob("*") if file.is_file())
    return layout_of_tree(tree), {file.relative_to(root).as_posix(): _head(file) for file in files}


def _head(file: Path) -> bytes:
    with file.open("rb") as content:
        return content.read(_ENOUGH)


TREES = MINDFORMERS | {
    tree: real(tree)
    for tree in truths()
    if layout_of_tree(tree) in registry.LAYOUT_NAMES and layout_of_tree(tree) != LOOSE_FILE_LAYOUT
}
"""Those whose layouts are known."""

GIVING_WAY = {layout.name for layout in parts.layouts() if layout.gives_way and not layout.is_last}
LAST = {layout.name for layout in parts.layouts() if layout.is_last}
"""Layouts that are asked only of a folder that no other one claims."""


def values_of(content: bytes) -> object:
    """The plain values in a torch file; None of a file that is cut inside of them."""
    with suppress(BrokenPickleError):
        return read_values(content[max(0, content.find(_DICTIONARY)) :])
    return None


def listing(names: Names) -> Listing:
    """List what lies at these paths."""
    folders: dict[str, set[str]] = {}
    for path in names:
        first, _, rest = path.partition("/")
        if "/" in path:
            folders.setdefault(first, set()).update(filter(None, [rest.partition("/")[0]]))
    entries = [Entry(name, Kind.FOLDER) for name in folders]
    entries += [Entry(path, Kind.FILE) for path in names if "/" not in path]
    return Listing(
        entries=tuple(sorted(entries, key=lambda entry: entry.name)),
        names_in=lambda folder: frozenset(folders[folder]),
        head=lambda file: names[file][:HEAD_BYTES],
        values=lambda file: values_of(names[file]),
    )


def claimed(names: Names) -> set[str]:
    """The layouts that claim a folder with these names."""
    return {layout.name for layout in parts.recognised(listing(names))}


def written(root: Path, names: Names) -> Path:
    """Lay files of these names out below a folder."""
    for path, head in names.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.mkdir(exist_ok=True) if path.endswith("/") else file.write_bytes(head)
    return root


def below(folder: str, names: Names) -> Names:
    return {f"{folder}/{path}": head for path, head in names.items()}


@pytest.mark.parametrize("tree", TREES)
def test_a_tree_is_claimed_by_its_own_layout_and_by_no_other(tree: str) -> None:
    layout, names = TREES[tree]
    assert claimed(names) == {layout}


def test_two_trees_in_one_folder_are_claimed_by_exactly_their_two_layouts() -> None:
    """But where the one's saves look like those of the other, which gives way: they may be copies; or it comes last."""
    wrong = {}
    for (one, (first, names)), (other, (second, more)) in combinations(TREES.items(), 2):
        both = {first, second} - LAST or {first}
        others = more if first in GIVING_WAY else names
        is_alike = any(name.count("/") == 1 and name.endswith("/.metadata") for name in others)
        expected = both - GIVING_WAY if is_alike and len(both) > 1 else both
        if claimed(names | more) != expected:
            wrong[one, other] = claimed(names | more)
    assert wrong == {}


def test_a_tree_in_a_folder_beside_the_saves_of_another_is_none_of_theirs() -> None:
    wrong = {}
    for one, (layout, names) in TREES.items():
        for other, (_, more) in TREES.items():
            if claimed(names | below("old", more)) != {layout}:
                wrong[other, "beside", one] = claimed(names | below("old", more))
    assert wrong == {}


@pytest.mark.sample(8)
@pytest.mark.parametrize("tree", TREES)
def test_every_path_inside_a_tree_is_a_part_of_it(tree: str, tmp_path: Path) -> None:
    layout, names = TREES[tree]
    root = written(tmp_path / "run" / "saves", names)
    inside = [path for path in sorted(root.rglob("*")) if path.is_dir() or path.parent != root]
    for path in [root, *inside]:
        try:
            found = locate(str(path))
        except UnknownLayoutError as error:
            assert "is not a checkpoint shard" in str(error)  # noqa: PT017  a part that is no save: meta.json
            continue
        assert (found.layout.name, found.storage.root) == (layout, str(root)), path


@pytest.mark.sample(8)
@pytest.mark.parametrize("tree", TREES)
def test_the_folder_above_a_tree_means_that_one_where_it_is_the_only_one(tree: str, tmp_path: Path) -> None:
    layout, names = TREES[tree]
    root = written(tmp_path / "run" / "saves", names)
    for folder in (tmp_path / "run", tmp_path):
        found = locate(str(folder))
        assert (found.layout.name, found.storage.root, found.focus) == (layout, str(root), None)
        assert found.resolved_from == f"{root}, the only tree below {folder}"


@pytest.mark.sample(8)
@pytest.mark.parametrize("tree", TREES)
def test_of_two_trees_below_a_folder_none_is_meant(tree: str, tmp_path: Path) -> None:
    _, names = TREES[tree]
    written(tmp_path / "run" / "saves", names)
    written(tmp_path / "other", names)
    with pytest.raises(UnknownLayoutError, match=r"did you mean .*/other or .*/run/saves\?$"):
        locate(str(tmp_path))


def test_what_lies_in_a_hidden_folder_is_neither_taken_nor_in_the_way(tmp_path: Path) -> None:
    _, names = TREES["hf_single"]
    hidden = written(tmp_path / ".snapshot" / "hourly", names)
    with pytest.raises(UnknownLayoutError, match="has no checkpoints"):
        locate(str(tmp_path))
    assert locate(str(tmp_path / ".snapshot")).storage.root == str(hidden)
    shown = written(tmp_path / "run", names)
    assert locate(str(tmp_path)).storage.root == str(shown)


@pytest.mark.parametrize("left", ["latest", "latest_checkpointed_iteration.txt"])
def test_beside_a_tracker_of_a_lost_save_no_tree_below_is_taken(left: str, tmp_path: Path) -> None:
    _, names = TREES["hf_single"]
    written(tmp_path / "run", names)
    assert locate(str(tmp_path)).storage.root == str(tmp_path / "run")
    (tmp_path / left).write_text("6")
    with pytest.raises(UnknownLayoutError):
        locate(str(tmp_path))


@pytest.mark.parametrize(
    "name", ["latest", "latest_checkpointed_iteration.txt", "latest_universal", "config.json", "trainer_state.json"]
)
def test_a_record_without_a_save_is_no_tree(name: str) -> None:
    assert claimed({name: b"6"}) == set()


@pytest.mark.parametrize(
    "names",
    [
        ("rank_0/worker.log", "rank_1/worker.log"),
        ("step1000/.metadata.json", "step1000/train/rank0.pt"),
        ("ep1-ba100/model.pt",),
        ("checkpoint-12/notes.txt",),
        ("checkpoint_12/notes.txt",),
        ("global_step_6/notes.txt", "latest_checkpointed_iteration.txt"),
        ("global_step6/notes.txt", "latest"),
        ("step-5/notes.txt",),
        ("10/notes.txt", "20/"),
        ("old-iter_0000006/x", "iter_0000006.bak/x"),
        ("iteration_0000001/x",),
        ("model.safetensors", "config.json"),
        (".ckpttool/.metadata", ".ckpttool/journal.json"),
    ],
)
def test_names_that_only_look_like_a_trees_are_none(names: tuple[str, ...]) -> None:
    assert claimed(dict.fromkeys(names, b"")) == set()


def test_two_layouts_in_one_folder_are_named_and_none_is_taken(tmp_path: Path) -> None:
    (first, names), (second, more) = MINDFORMERS["ranks"], MINDFORMERS["iterations"]
    with pytest.raises(UsageError, match=rf"{second} and {first} side by side: choose one with --layout$"):
        locate(str(written(tmp_path, names | more)))


def test_one_dcp_folder_beside_the_saves_of_another_trainer_is_what_somebody_exported(tmp_path: Path) -> None:
    written(tmp_path, TREES["orbax_standard"][1])
    first = {name for name in TREES["dcp_plain_2ranks"][1] if name.startswith("8/")}
    written(tmp_path, {name: TREES["dcp_plain_2ranks"][1][name] for name in first})
    assert locate(str(tmp_path)).layout.name == "orbax"
