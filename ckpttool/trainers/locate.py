"""Find the checkpoint tree for a path: an output folder, the tree itself, a folder in the tree, or a shard."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import islice
from typing import TYPE_CHECKING

from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.question import DEFAULT_DIR
from ckpttool.core.errors import IncompleteError, UnknownLayoutError, UsageError
from ckpttool.core.records import PART_SUFFIX, STREAM
from ckpttool.core.storage import is_folder, open_storage, shortest
from ckpttool.core.storage.base import Entry, Kind, LostLinkError, Storage, is_there
from ckpttool.trainers.base import Layout, Part, Refusal
from ckpttool.trainers.common import LOOSE_FILE_LAYOUT, TRACKERS
from ckpttool.trainers.listing import Listing, list_root, show_alone
from ckpttool.trainers.located import Located
from ckpttool.trainers.others import looks_like, others_saves
from ckpttool.trainers.parts import outward, places_below, recognised, trees_around
from ckpttool.trainers.registry import FIRST, trainer_named, trainer_of, trainers

if TYPE_CHECKING:
    from ckpttool.core.domain.settings import RunConfig
    from ckpttool.trainers.below import TreeFolder
    from ckpttool.trainers.located import PartsReader

MOST_NAMED = 5
"""Maximum number of trees that a message names, if several match."""
MOST_LEVELS_UP = 3
"""Number of levels to search upwards, starting at the current folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """The user's choice among several layouts or trees."""

    layout: str | None
    """The only layout to use; None for any layout."""
    config: RunConfig | None
    """Config of the run to resume."""
    root: str | None = None
    """The path of the tree to which the parts belong."""


def locate(
    path: str | None, *, layout: str | None = None, config: RunConfig | None = None, root: str | None = None
) -> Located:
    """Find the tree that `path` selects.

    Args:
        path: The user's path; None for `./output/checkpoint`, or else the tree in or around the current folder. If the
            path names parts, the tree is the one that the parts describe.
        layout: Use only this layout.
        config: The config of the run to resume: the config shows which of several layouts its trainer uses.
        root: The tree's path, if the path differs between the machines that wrote the parts.

    Raises:
        UnknownLayoutError: No tree was found; the message lists the places searched.
        UsageError: There are several trees, and none is selected.
        IncompleteError: The folder exists but cannot be read.
    """
    wish = _Wish(layout=layout, config=config, root=root)
    if path is None and not is_there(open_storage(DEFAULT_DIR), ""):
        with _withheld(os.curdir):
            around = _around_us(wish)
        if around is None:
            raise _missing(shortest(DEFAULT_DIR), _hint(os.curdir))
        return around
    path = shortest(DEFAULT_DIR if path is None else path)
    if path == STREAM or path.endswith(PART_SUFFIX):
        return _of_parts(path, wish)
    with _withheld(path):
        kind = open_storage(path).kind("")
        if kind is Kind.FILE:
            return _around_file(path, wish)
        if kind is not Kind.FOLDER:
            raise UnknownLayoutError(f"{path} is neither a folder nor a shard")
        return _around_folder(path, wish)


def locate_emptied(path: str | None, *, layout: str | None = None) -> Located | None:
    """Find a tree whose checkpoints are all in the trash.

    The checkpoints in the trash show the layout.

    Args:
        path: As in `locate`.
        layout: Search only for this layout.

    Raises:
        UsageError: The trash has several layouts, and none is selected.
        IncompleteError: The trash cannot be listed.
    """
    from ckpttool.core.records.journal import TRASH, trash_folders

    start = DEFAULT_DIR if path is None and is_there(open_storage(DEFAULT_DIR), "") else path or "."
    for root in (shortest(start), *places_below(start)) if is_folder(start) else ():
        storage = open_storage(root)
        by_name: dict[str, Layout] = {}
        for folder in trash_folders(storage):
            with _withheld(root):
                inside = list_root(open_storage(f"{root}/{TRASH}/{folder.name}"))
                by_name |= {layout_.name: layout_ for layout_ in recognised(inside, layout_name=layout)}
        if by_name:
            layout_found = intended(list(by_name.values()), f"{root}/{TRASH}", None)
            took = None if path is not None and root == shortest(path) else f"{root}, which has only a trash"
            with _withheld(root):
                return Located(
                    storage=storage, listing=list_root(storage), layout=layout_found, focus=None, resolved_from=took
                )
    return None


def intended(layouts_: Sequence[Layout], where: str, config: RunConfig | None) -> Layout:
    """Return the layout selected from several.

    Neither names nor steps show which training run is to continue.

    Args:
        layouts_: The layouts in a folder.
        where: The folder's path, for messages.
        config: The config of the run to resume: the config shows which layout its trainer uses.

    Raises:
        UsageError: No layout is selected.
    """
    if len(layouts_) == 1:
        return layouts_[0]
    names = " and ".join(layout.name for layout in layouts_)
    if config is None:
        raise UsageError(f"{where} has {names} side by side: choose one with --layout")
    trainer = trainer_named(config.trainer)
    saves_in = None if trainer.configs is None else trainer.configs.saves_in(config)
    matching = [layout for layout in layouts_ if layout.name == saves_in]
    matching_trainer = matching or [layout for layout in layouts_ if layout.name in trainer.layout_names]
    if len(matching_trainer) != 1:
        not_told = f"and {config.path}, a config for {trainer.title}, matches none of them"
        raise UsageError(f"{where} has {names} side by side, {not_told}: choose one with --layout")
    return matching_trainer[0]


@contextmanager
def _withheld(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, LostLinkError) and error.errno == errno.ENOENT:
            advice = "mount its target, or give a folder or file that exists"
            raise UnknownLayoutError(f"{path} is a broken link; {advice}") from None
        if error.errno in {errno.ENOENT, errno.ENOTDIR}:
            raise _missing(path) from None
        reason = os.strerror(error.errno) if error.errno else error
        inside = isinstance(error.filename, str) and error.filename.startswith(f"{path}/")
        raise IncompleteError(f"{error.filename if inside else path} cannot be read: {reason}") from None


_LIKE_A_NAME = r"(?:(?P<folder>.*)[/:])?(?P<name>(?:[^/:]*[_-])?[0-9]+)"
"""Name of a checkpoint, either alone or after the tree's path."""


def _missing(path: str, hint: str = "") -> UnknownLayoutError:
    named = re.fullmatch(_LIKE_A_NAME, path)
    if named is not None and (named["folder"] is None or is_folder(named["folder"])):
        name, tree = named["name"], named["folder"] or "DIR"
        hint = f"; is {name} a checkpoint? ckpttool verify {tree} --checkpoint {name}"
    advice = hint or "; give the folder that contains the checkpoints"
    return UnknownLayoutError(f"{path} does not exist{advice}")


def _emptied(folder: str) -> Located | None:
    try:
        return locate_emptied(folder)
    except (UsageError, IncompleteError):
        return None


def _hint(folder: str) -> str:
    """Name the trees a few levels below a folder that is not a tree.

    The user may have intended one of these trees.
    """
    emptied = _emptied(folder)
    if emptied is not None:
        from ckpttool.core.render.shell import quote

        return f"; its checkpoints are in the trash: ckpttool trash list {quote(emptied.storage.root)}"
    try:
        paths = [place.path for place in _further_below(folder) if place.is_known and not _is_called_a_save(place.path)]
    except IncompleteError:
        return ""
    if folder in paths:
        return " in this layout; omit --layout to detect the layout"
    if len(paths) > 3:  # noqa: PLR2004  as many as fit in a line
        below = "the current folder" if folder == os.curdir else folder
        return f"; {len(paths)} trees are below {below}: ckpttool scan --all {folder}"
    return f"; did you mean {' or '.join(paths)}?" if paths else ""


def _is_called_a_save(path: str) -> bool:
    """Return whether a folder has the name of a save.

    A tree inside such a folder is a part of that save.
    """
    from ckpttool.core.decide.naming import LIKE_A_SAVE  # most folders are trees

    return re.fullmatch(LIKE_A_SAVE, os.path.basename(path)) is not None


def _further_below(folder: str, layout: str | None = None) -> Iterator[TreeFolder]:
    """Yield the trees a few levels below a folder.

    Hidden folders are skipped: they contain snapshots, caches or environments.

    Raises:
        IncompleteError: There are more folders than the search limit.
    """
    from ckpttool.trainers.below import trees_below

    return trees_below(folder, layout=layout, levels=3, most=200, hidden=False)


def _only_one_below(path: str, wish: _Wish) -> Located | None:
    """Return the only tree a few levels below a folder; None if there are, or may be, other trees.

    If the folder's trash or tracker shows that it had checkpoints itself, the user may have intended those.
    """
    if _emptied(path) is not None or _whose(list_root(open_storage(path))):
        return None
    try:
        trees = list(islice(_further_below(path, wish.layout), 2))
    except IncompleteError:
        return None
    if len(trees) != 1 or not trees[0].is_known or _is_called_a_save(trees[0].path):
        return None
    tree = _below(trees[0].path, wish)
    return None if tree is None else replace(tree, resolved_from=f"{tree.storage.root}, the only tree below {path}")


def _around_us(wish: _Wish) -> Located | None:
    """Find the tree around the working directory.

    The complete tree is selected, because the user named no part. The root is an absolute path, so that it can be
    copied to a config outside the tree.
    """

    def here() -> Located | None:
        located = _below(os.getcwd(), wish, is_named=False)
        return (
            located
            if located is None or located.resolved_from
            else replace(located, resolved_from="the current folder")
        )

    def around(folder: str) -> Located | None:
        located = _around_part(folder, folder, None, wish)
        took = "" if located is None else f"{located.storage.root}, the tree around the current folder"
        return None if located is None else replace(located, focus=None, resolved_from=took)

    further = (os.path.join(*[os.pardir] * up) for up in range(1, MOST_LEVELS_UP))
    return _first(partial(around, os.curdir), here, *(partial(around, folder) for folder in further))


def _first(*attempts: Callable[[], Located | None]) -> Located | None:
    """Return the first tree found.

    Raises:
        OSError: No tree was found, and a place where it may be cannot be read.
    """
    unread = None
    for attempt in attempts:
        try:
            located = attempt()
        except OSError as error:
            unread = unread or error
        else:
            if located is not None:
                return located
    if unread is not None:
        raise unread
    return None


def _around_file(path: str, wish: _Wish) -> Located:
    folder, name = os.path.split(path)
    folder = folder or "."
    if wish.layout == LOOSE_FILE_LAYOUT:  # a single file may be in any folder
        return _loose(folder, name)
    around = _around_part(path, folder, name, wish)
    if around is not None:
        return around
    if name in TRACKERS:
        owner = _whose(list_root(open_storage(folder)))
        raise UnknownLayoutError(f"{folder} has no checkpoints that ckpttool knows{owner}")
    # A file that no tree claims belongs to no tree: a user who names it does not want the tree's newest save.
    return _loose(folder, name)


def _around_part(path: str, folder: str, file: str | None, wish: _Wish) -> Located | None:
    """Find the tree that, according to a layout, contains a folder or a file.

    Args:
        path: The user's path, for messages.
        folder: The folder.
        file: The selected file in the folder; None for the folder itself.
        wish: The selected layout.
    """
    is_inside = False
    for around in trees_around(folder, file, layout_name=wish.layout):
        if around.layouts:
            layout = intended(around.layouts, folder, wish.config)
            return _as_part(path, around.storage, around.listing, layout, around.parts[layout.name])
        is_inside = is_inside or around.is_inside
    if is_inside and wish.layout is not None:
        raise UnknownLayoutError(f"{path} is not part of a tree of {wish.layout}")
    return None


def _as_part(path: str, storage: Storage, listing: Listing, layout: Layout, part: Part | Refusal) -> Located:
    if isinstance(part, Refusal):
        raise UnknownLayoutError(f"{path} {part.why}")
    took = None if part.resolved_from is None else f"{part.resolved_from} of {storage.root}"
    return Located(storage=storage, listing=listing, layout=layout, focus=part.focus, resolved_from=took)


def _loose(folder: str, name: str) -> Located:
    listing = Listing(entries=(Entry(name, Kind.FILE),))
    if not loose_file().signs.recognise(listing):
        raise UnknownLayoutError(
            f"{folder}/{name} is not a shard: expected .ckpt, .safetensors, .pt, .pth, .bin, .distcp or .metadata"
            + ("; to give a config, --config" if name.endswith((".yaml", ".yml", ".toml")) else "")
        )
    return Located(storage=open_storage(folder), listing=listing, layout=loose_file(), focus=name, resolved_from=None)


def _hold_parts(listing: Listing) -> bool:
    return any(entry.name.endswith(PART_SUFFIX) and entry.kind is Kind.FILE for entry in listing.entries)


def _of_parts(path: str, wish: _Wish) -> Located:
    from ckpttool.core.extensions import first_imported  # few folders contain parts

    read: PartsReader | None = first_imported(lambda feature: feature.parts_reader)
    if read is None:
        raise UnknownLayoutError(
            f"{path} has parts, the records that machines wrote about a tree, which this ckpttool does not read"
        )
    return read(path, layout=wish.layout, config=wish.config, root=wish.root)


def _around_folder(path: str, wish: _Wish) -> Located:
    # A user who names a layout may want a tree inside a save of another; otherwise that tree is only a part of the
    # save.
    attempts = (partial(_around_part, path, path, None, wish), partial(_below, path, wish))
    located = _first(*(attempts if wish.layout is None else reversed(attempts)))
    if wish.layout is None and (located is None or located.storage.root == path):
        _refuse_save_of_others(path, by_name=located is not None and not located.layout.signs.gives_way)
    elif wish.layout is None and located is not None and path.startswith(f"{located.storage.root}/"):
        _refuse_save_of_others(located.storage.root, by_name=True)  # the path is a part of that save
    if located is not None:
        if located.storage.root == path and _hold_parts(located.listing):
            advice = "give a folder without parts, or move the parts to their own folder"
            raise UsageError(f"{path} has both a tree and parts of one: {advice}")
        return located
    from ckpttool.trainers.common.loose_file import model_weights

    storage = open_storage(path)
    listing = list_root(storage)
    if _hold_parts(listing):
        return _of_parts(path, wish)
    weights = model_weights(listing) if wish.layout in {None, LOOSE_FILE_LAYOUT} else ()
    if weights:
        took, alone = "the weights of a model, not a save of a training", replace(listing, entries=weights)
        return Located(storage=storage, listing=alone, layout=loose_file(), focus=None, resolved_from=took)
    title = looks_like(listing)
    only = None if title is not None else _only_one_below(path, wish)
    if only is not None:
        return only
    if title is not None:
        raise _of_others(f"{path} has no checkpoints that ckpttool knows, but some that look like those of {title}")
    owner, hint = _whose(listing), _hint(path)
    if not (owner or hint):
        _refuse_others_below(path, listing)
    contents = "" if owner or hint else _what_it_holds(listing)
    raise UnknownLayoutError(f"{path} has no checkpoints that ckpttool knows{contents}{owner}{hint}")


def _refuse_others_below(path: str, listing: Listing) -> None:
    """Refuse a folder with a subfolder that has checkpoints of an unknown trainer.

    Raises:
        UnknownLayoutError: There is such a folder.
    """
    for name, _ in listing.inside():
        nested = f"{path}/{name}"
        try:
            title = looks_like(list_root(open_storage(nested)))
        except OSError:
            continue
        if title is not None:
            raise _of_others(
                f"{path} has no checkpoints that ckpttool knows, but {nested} has some that look like those of {title}"
            )


class OthersSavesError(UnknownLayoutError):
    """The folder has saves of a trainer without a layout here."""


def _of_others(owner: str) -> OthersSavesError:
    return OthersSavesError(f"{owner}; {_KNOWN.format(titles=_titles())}; {_ONE_FILE}")


_KNOWN = "it knows those of {titles}"
_ONE_FILE = "ckpttool verify FILE checks a single file"


def _what_it_holds(listing: Listing) -> str:
    """Describe the contents of a folder that is not a tree, and the known layouts."""
    if not listing.entries:
        return f": it is empty, as before the first start; {_KNOWN.format(titles=_titles())}"
    alone = [entry.name for entry in listing.entries if loose_file().signs.recognise(listing.alone(entry.name))]
    if alone:
        files = f"only files such as {alone[-1]}, which ckpttool verify FILE checks one by one"
        return f": {files}; as for trees, {_KNOWN.format(titles=_titles())}"
    return f"; {_KNOWN.format(titles=_titles())}"


def _refuse_save_of_others(path: str, *, by_name: bool) -> None:
    """Refuse a folder that is a save from an unknown trainer.

    A tree inside such a folder would be part of that save.

    Args:
        path: The folder.
        by_name: Whether the name must also match, in addition to the contents.

    Raises:
        UnknownLayoutError: The folder is such a save.
    """
    for root, inner in islice(outward(path), 1):
        title = others_saves(show_alone(open_storage(root), Entry(inner, Kind.FOLDER)), by_name=by_name)
        if title is not None:
            raise _of_others(f"{path} looks like a save of {title}, which ckpttool does not know yet")


def _below(path: str, wish: _Wish, *, is_named: bool = True) -> Located | None:
    """Find the tree in a folder, or in the usual places below it.

    Args:
        path: The folder.
        wish: The selected layout.
        is_named: Whether the folder was named explicitly: if so, its own tree comes before those below it.

    Raises:
        UsageError: There are several trees, and none is selected.
    """
    trees: list[Located] = []
    withheld: dict[str, OSError] = {}
    for root in [path, *places_below(path)]:
        around = trees[0] if trees and trees[0].storage.root == path else None
        if (
            around is not None
            and around.layout.signs.part(around.listing, os.path.relpath(root, path), None) is not None
        ):
            continue
        try:
            storage = open_storage(root)
            listing = list_root(storage)
            layouts = recognised(listing, layout_name=wish.layout)
        except OSError as error:
            withheld[root] = error
            continue
        if layouts:
            layout = intended(layouts, root, wish.config)
            trees.append(Located(storage=storage, listing=listing, layout=layout, focus=None, resolved_from=None))
            if root is path and is_named:
                return trees[0]
    if not trees:
        for why in withheld.values():
            raise why
        return None
    selected_tree = _selected_tree(trees, path, wish)
    notes = [f"; {tree.storage.root} is another tree" for tree in trees if tree is not selected_tree]
    unread = [f"; {why.filename or root} cannot be read" for root, why in withheld.items()]
    took = "".join([selected_tree.storage.root, *notes, *dict.fromkeys(unread)])
    return selected_tree if selected_tree.storage.root == path else replace(selected_tree, resolved_from=took)


def _selected_tree(trees: list[Located], path: str, wish: _Wish) -> Located:
    """Return the tree selected from several below a folder.

    An original takes precedence over a tree derived from it.
    """
    own_trees = [
        tree for index, tree in enumerate(trees) if not any(_is_of_same(tree, earlier) for earlier in trees[:index])
    ]
    if len(own_trees) > 1 and wish.config is not None:
        names = trainer_named(wish.config.trainer).layout_names
        own_trees = [tree for tree in own_trees if tree.layout.name in names] or own_trees
    if len(own_trees) > 1:
        tree_names = [f"{tree.storage.root} ({tree.layout.name})" for tree in own_trees]
        last = tree_names.pop() if len(tree_names) <= MOST_NAMED else f"{len(tree_names) - MOST_NAMED} more"
        named = f"{', '.join(tree_names[:MOST_NAMED])} and {last}"
        raise UsageError(f"{path} has several trees: {named}; give one of them")
    return own_trees[0]


def _is_of_same(tree: Located, peer: Located) -> bool:
    """Return whether a trainer derived one tree from the other; derived trees have their own layout."""
    trainer = trainer_of(tree.layout)
    return peer.layout.name != tree.layout.name and trainer is not None and trainer is trainer_of(peer.layout)


def _whose(listing: Listing) -> str:
    from ckpttool.trainers.common.tracker_file import whose_tracker

    return whose_tracker(
        [entry.name for entry in listing.entries if entry.kind is Kind.FILE or entry.name not in TRACKERS]
    )


@cache
def loose_file() -> Layout:
    """Return the layout for a path to a single file; this layout never matches a folder."""
    from ckpttool.trainers.common.loose_file import LooseFile

    return LooseFile([trainer.scalars for trainer in trainers() if trainer.scalars is not None], lambda: signs()[0])


def _titles() -> str:
    """Join the titles of all trainers for use in a sentence."""
    *most, last = [trainer.title for trainer in trainers()]
    return f"{', '.join(most)} and {last}"


def signs() -> tuple[str, str]:
    """Describe the folders and files that identify a tree, most usual first."""
    own = sorted(trainers(), key=lambda trainer: trainer.name != FIRST)
    layout_signs = [layout.sign for trainer in own for layout in reversed(trainer.layouts)]
    folders, files = ([sign for sign in layout_signs if sign.endswith("/") is is_folder] for is_folder in (True, False))
    return " or ".join(folders), " or ".join(files)
