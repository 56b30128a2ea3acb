"""What torchtitan takes by itself: the highest number of any entry that looks finished, whatever else it is called.

Source:
    `CheckpointManager._find_load_step` of torchtitan 0.3.0: `re.search("step-([0-9]+)")` over all entries of the folder
    that hold `.metadata` or `model.safetensors.index.json`; then `step-N` is opened. It never falls back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckpttool.decide.data_effects import stray_taken
from ckpttool.domain.checkpoint import Content
from ckpttool.domain.finding import blocking
from ckpttool.domain.plan import Outcome
from ckpttool.storage.base import Kind
from ckpttool.trainers.common.own_choice import Choice
from ckpttool.trainers.listing import list_root
from ckpttool.trainers.torch_dcp.names import METADATA
from ckpttool.trainers.torchtitan import Torchtitan
from ckpttool.trainers.torchtitan.names import INDEX

if TYPE_CHECKING:
    from ckpttool.domain.checkpoint import Checkpoint
    from ckpttool.domain.finding import Finding
    from ckpttool.trainers.abilities import OwnStart
    from ckpttool.trainers.listing import Listing

_MARKS = frozenset({METADATA, INDEX})


def _numbered(listing: Listing) -> Iterator[tuple[int, str]]:
    """Yield each entry that it looks at, with the number that it finds in the name.

    Raises:
        OSError: A folder cannot be listed.
    """
    for entry in listing.entries:
        match = re.search("step-([0-9]{1,18})", entry.name)
        if match and entry.kind is Kind.FOLDER and not _MARKS.isdisjoint(listing.names_in(entry.name)):
            yield int(match[1]), entry.name


def strays_taken(listing: Listing) -> Iterator[Finding]:
    """Find what is no save and makes it look for one that is not there, or not finished.

    Args:
        listing: Of the tree's root.
    """
    try:
        found = sorted(_numbered(listing))
    except OSError:  # what it holds is not known
        return
    if not found:
        return
    highest, plain = found[-1][0], {name for number, name in found if name == f"step-{number}"}
    if f"step-{highest}" in plain:
        return
    for number, name in found:
        if number == highest:
            yield stray_taken(
                name,
                title=Torchtitan.title,
                instead=f"and then stop, for it opens step-{number}, which is not there or not finished",
                remedy=f"move it out of the folder, or name the step: --checkpoint.load_step (found {name})",
            )


def choose(start: OwnStart) -> Choice:
    """Take the highest number, with `--checkpoint.load_step -1`, as it is by default."""
    try:
        found = list(_numbered(list_root(start.storage)))
    except OSError as error:
        return None, Outcome.UNKNOWN, f"a folder cannot be listed here ({error.strerror or error})"
    if not found:
        return None, Outcome.SCRATCH, "no step-N holds a record that its save was finished, so it begins from scratch"
    number, told_by = max(found)
    name = f"step-{number}"
    save = start.inventory.named(name)
    if save is None:
        return name, Outcome.STOPS, f"{told_by} has the highest number, and it stops, for there is no {name}"
    stop = _stop(start, save)
    by = "it has the highest number of those that were finished"
    if stop is None:
        return name, Outcome.LOADS, by
    return name, Outcome.STOPS, f"{by}, and then it stops: {stop}"


def _stop(start: OwnStart, save: Checkpoint) -> str | None:
    """Say why it stops at a save; None where it loads it."""
    against = blocking(start.checked(save).findings)
    if against:
        return against[0].message
    if save.content is Content.WEIGHTS_ONLY:
        return "the save holds weights alone, as the last of a finished run does, and it looks for the optimizer"
    return None
