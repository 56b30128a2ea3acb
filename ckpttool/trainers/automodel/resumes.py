"""The save that AutoModel loads on its own, and the position at which its data loaders continue.

Source:
    `load_checkpoint` in `recipes/base_recipe.py`, `components/checkpoint/utils.py` and `lifecycle.py` of nemo-automodel
    0.7.0, and runs of that code with two ranks in healthy and damaged trees.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

from ckpttool.core.decide.data_effects import against_size, consumed, effect_findings
from ckpttool.core.domain.checkpoint import CommitState
from ckpttool.core.domain.data_position import DataEffect, GoesOn
from ckpttool.core.domain.finding import Code, blocking
from ckpttool.core.domain.plan import Outcome
from ckpttool.core.domain.question import AskedSizes
from ckpttool.core.domain.units import counted
from ckpttool.core.storage.base import Kind, is_there
from ckpttool.trainers.automodel import LATEST, LOADERS, MARK, POINTER_LIMIT, TRAINER
from ckpttool.trainers.base import Effects, Resume
from ckpttool.trainers.common.next_save import blocked
from ckpttool.trainers.common.own_choice import Choice, ChoiceUnknown, OwnChoice, choice_with
from ckpttool.trainers.listing import Listing, list_root

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint
    from ckpttool.core.domain.finding import Finding
    from ckpttool.trainers.abilities import OwnStart

_NO_STATE = "the save has no loader states, so the data start from the beginning"
_STATE = "each data-parallel rank continues from its own loader's state"
_OTHER_BATCHES = "each loader's state counts batches of the old size"
_OTHER_RANKS = "each loader's state is for another number of ranks"
_AS_THEY_WERE = "the data set, the batch size and the number of ranks are unchanged"
_MAP_STYLE = "the sampler restores its own order, as torchdata's StatefulDistributedSampler does"


def effects(resume: Resume) -> Effects:
    """Return the position of the loaders, which depends on the sampler of the training run."""
    checkpoint = resume.plan.point.checkpoint
    read = consumed(resume.plan, resume.inventory, resume.data)
    states = [shard.path for shard in checkpoint.shards if f"/{LOADERS}/" in shard.path]
    if not states:
        position = GoesOn(effect=DataEffect.RESTARTS, why=_NO_STATE, samples=read.samples, source=read.source)
    else:
        why = _STATE
        conditions: tuple[str, ...] = (_AS_THEY_WERE, _MAP_STYLE)
        if resume.sizes.world not in {None, checkpoint.topology.world_size}:
            why, conditions = _OTHER_RANKS, ()
        elif resume.data.new_global_batch is not None and read.changes:
            why, conditions = _OTHER_BATCHES, ()
        position = GoesOn(
            effect=DataEffect.UNKNOWN,
            why=why,
            samples=read.samples,
            source=read.source,
            where=f"{resume.plan.load.path}/{LOADERS}",
            exact_if=conditions,
        )
    findings = (*effect_findings(position, title=TRAINER.title), *_later(resume))
    return Effects(position=position, settings=(), findings=findings)


def _later(resume: Resume) -> tuple[Finding, ...]:
    """Report later saves, which AutoModel does not overwrite unless they are incomplete."""
    numbers = {save.name: save.named.number or 0 for save in resume.inventory.checkpoints if save.named is not None}
    chosen = numbers.get(resume.plan.point.checkpoint.name, 0)
    later = [
        save
        for save in resume.inventory.checkpoints
        if numbers.get(save.name, 0) > chosen and not is_there(resume.storage, f"{save.name}/{MARK}")
    ]
    later.sort(key=lambda save: numbers[save.name])
    return blocked(resume, later, unless="")


def objections(checkpoint: Checkpoint, requested: AskedSizes) -> tuple[Finding, ...]:
    """Object to more ranks, which have no states; fewer ranks are a note."""
    world = checkpoint.topology.world_size
    is_larger = world is not None and requested.world is not None and requested.world > world
    refuses = "each rank looks for its own random-number states" if is_larger else None
    return tuple(against_size(checkpoint, requested, saved=AskedSizes(world=world), refuses=refuses))


def choose(start: OwnStart) -> Choice | ChoiceUnknown:
    """Choose the save that `LATEST` names; if it names no complete save, the highest step."""
    try:
        listing = list_root(start.storage)
        named = _latest(start, listing)
        numbered = [
            (int(match[1][:18]), name)
            for name in listing.folders()
            if (match := re.search("step_([0-9]+)$", name)) and not is_there(start.storage, f"{name}/{MARK}")
        ]
    except OSError as error:
        return ChoiceUnknown(why=f"the folder or its {LATEST} cannot be read here ({error.strerror or error})")
    if isinstance(named, ChoiceUnknown):
        return named
    if named is not None:
        return _outcome(start, named, f"{LATEST} names it")
    existing = [(number, name) for number, name in numbered if _is_folder(listing, name)]
    if not existing:
        return (
            None,
            Outcome.SCRATCH,
            f"{LATEST} names no complete save and there is no other, so it starts from scratch",
        )
    highest, name = max(existing)
    if [number for number, _ in existing].count(highest) > 1:
        return ChoiceUnknown(why=f"several folders have the number {highest}")
    return _outcome(start, name, f"{LATEST} names no complete save, and it has the highest number of the others")


def _outcome(start: OwnStart, name: str, because: str) -> Choice | ChoiceUnknown:
    save = start.inventory.named(name)
    if save is None:
        return ChoiceUnknown(why=f"it loads {name}, which is not a checkpoint by its name")
    findings = blocking(start.checked(save).findings)
    against = [finding for finding in findings if finding.code is not Code.STEP_DISAGREES]
    if against:
        return choice_with(against, save, because)
    world = save.topology.world_size
    if world is not None and start.world_size is not None and start.world_size > world:
        why = (
            f"{counted(start.world_size, 'rank')} look for random-number states, and {counted(world, 'rank')} wrote one"
        )
        return name, Outcome.STOPS, f"{because}, and then it stops: {why}"
    if save.commit is CommitState.UNCOMMITTED:
        return name, Outcome.STOPS, f"{because}, and then it stops: the save is not complete"
    return name, Outcome.LOADS, because


def _latest(start: OwnStart, listing: Listing) -> str | ChoiceUnknown | None:
    """Return the complete save that `LATEST` names; None if it names no such save.

    A link is followed only to one file of a save, whose identity shows the save.

    Raises:
        OSError: The record cannot be read.
    """
    kinds = {entry.name: entry.kind for entry in listing.beginning(LATEST)}
    kind = kinds.get(LATEST)
    if kind is Kind.FOLDER:
        name = _same_folder(start, LATEST)
        if name is None:
            return ChoiceUnknown(why=f"{LATEST} leads to no save of this tree that can be read here")
    elif kind is Kind.LOST:
        return None
    else:
        try:
            text = start.storage.small_file(f"{LATEST}.txt", limit=POINTER_LIMIT).decode("utf-8", "replace").strip()
        except FileNotFoundError:
            return None
        name = posixpath.normpath(text)
        if not _is_folder(listing, name):
            return None if "/" not in text else ChoiceUnknown(why=f"{LATEST}.txt names {text}")
    return None if is_there(start.storage, f"{name}/{MARK}") else name


def _same_folder(start: OwnStart, link: str) -> str | None:
    """Return the save to which a link leads, judged by the identity of one of its files."""
    for save in start.inventory.checkpoints:
        for shard in save.shards[:1]:
            try:
                inner = start.storage.stamp(f"{link}/{shard.path.partition('/')[2]}")
                if inner == start.storage.stamp(shard.path):
                    return save.name
            except OSError:  # the link leads to another save, or the file is a broken link
                continue
    return None


def _is_folder(listing: Listing, name: str) -> bool:
    return any(entry.name == name and entry.kind is Kind.FOLDER for entry in listing.beginning(name))


SIMULATOR = OwnChoice(trainer=TRAINER, choose=choose)
