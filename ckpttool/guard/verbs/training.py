"""Functions that save a training run in a form that every command reads, and resume exactly from a save."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from ckpttool.core.domain.plan import NoResumePoint
from ckpttool.core.domain.question import ResumeQuestion, TreeQuestion
from ckpttool.core.errors import NothingToResumeError, UnknownLayoutError, UsageError
from ckpttool.core.formats.strict_json import (
    ParseError,
    as_object,
    get_int,
    get_list,
    get_object,
    get_str,
    parse_object,
)
from ckpttool.core.storage import path_text
from ckpttool.core.verbs.resolving import resolve
from ckpttool.guard import assert_torch
from ckpttool.trainers.mindformers.saving import RankSaves

if TYPE_CHECKING:
    from ckpttool.core.domain.saving import SaveLayout
    from ckpttool.guard.objects import Stateful
    from ckpttool.guard.resume import Chosen, Resumed
    from ckpttool.guard.step import Guard
    from ckpttool.guard.writer import CheckpointWriter

_PLAN_SCHEMA = "ckpttool/plan/1"


def checkpoint_writer(  # noqa: PLR0913  the objects of a training, each by its name
    output: str,
    *,
    prefix: str,
    model: Any,  # noqa: ANN401  torch is not imported here
    optimizer: Any,  # noqa: ANN401  as above
    scheduler: Stateful | None = None,
    scaler: Stateful | None = None,
    loader: object = None,
    guard: Guard | None = None,
    extra: MutableMapping[str, Any] | None = None,
    steps_per_epoch: int | None = None,
    global_batch_size: int | None = None,
    embedding: str | None = None,
    health_threshold: float | None = None,
    group: Any = None,  # noqa: ANN401  as above
) -> CheckpointWriter:
    """Return the writer that saves a training run. Call it on every rank.

    Each rank writes a separate file and does not wait for others. A file is complete or absent. It is sealed when it is
    written, from the bytes in memory, so later damage on the disk is detectable.

    Args:
        output: The output folder. Saves are in its subfolder `checkpoint`.
        prefix: Prefix of all file names: up to 64 letters, digits, _ and . without `_rank_`.
        model: The trained model, wrapped or not.
        optimizer: The optimizer of the model.
        scheduler: The scheduler of the learning rate.
        scaler: The loss scaler.
        loader: A loader with `state_dict`, such as torchdata's `StatefulDataLoader`. If None, its position is not
            saved.
        guard: The guard. Its memory is saved, and it reports each save.
        extra: Further data to save: values, or objects with `state_dict` and `load_state_dict`.
        steps_per_epoch: Steps per epoch, for the numbers of saves. If None, all steps belong to the first epoch.
        global_batch_size: Samples per step over all ranks, to record.
        embedding: Name of the parameter whose gradient shows the health of a save. If None, health is not measured.
        health_threshold: Sum of squares of that gradient at or above which a save is recorded as unhealthy.
        group: The ranks of the training run, or None for all.

    Raises:
        UsageError: An argument is invalid.
        WriteFailedError: The folder cannot be created.
    """
    assert_torch()
    from ckpttool.guard.embedding import EmbeddingHealth
    from ckpttool.guard.objects import Objects
    from ckpttool.guard.writer import CheckpointWriter

    if not isinstance(prefix, str):
        raise UsageError(f"the prefix must be the text with which the names of all files begin, not {prefix!r}")
    for name, number in (("steps_per_epoch", steps_per_epoch), ("global_batch_size", global_batch_size)):
        if number is not None and (type(number) is not int or number < 1):
            raise UsageError(f"expected {name} of 1 or more, not {number!r}")
    objects = Objects(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        scaler=scaler,
        loader=loader,
        guard=guard,
        extra={} if extra is None else extra,
    )
    path = path_text(output, "output")
    return CheckpointWriter(
        path,
        objects,
        RankSaves(),
        prefix=prefix,
        steps_per_epoch=steps_per_epoch,
        global_batch_size=global_batch_size,
        health=EmbeddingHealth(objects, embedding=embedding, threshold=health_threshold),
        group=group,
    )


def resume_training(  # noqa: PLR0913  as above
    source: str,
    *,
    model: Any,  # noqa: ANN401  as above
    optimizer: Any,  # noqa: ANN401  as above
    scheduler: Stateful | None = None,
    scaler: Stateful | None = None,
    loader: object = None,
    guard: Guard | None = None,
    extra: MutableMapping[str, Any] | None = None,
    prefix: str | None = None,
    fresh_ok: bool = False,
    group: Any = None,  # noqa: ANN401  as above
) -> Resumed:
    """Load the newest save that is intact and healthy on all ranks, and continue bit for bit. Call it on every rank.

    Rank 0 chooses as `ckpttool resolve` does. While it reads, each rank compares its file with the recorded digest.

    Args:
        source: The output folder, or a `.json` file with the plan that `ckpttool resolve --format json` printed.
        model: As for `checkpoint_writer`: the same object, newly created.
        optimizer: As above.
        scheduler: As above.
        scaler: As above.
        loader: As above.
        guard: As above.
        extra: As above. Values without a state are stored in it.
        prefix: Only saves with this prefix, if training runs share the folder.
        fresh_ok: Start from scratch if there is no save. Existing but unusable saves are an error.
        group: The ranks of the training run, or None for all.

    Raises:
        NothingToResumeError: No usable save exists.
        IncompleteError: A file does not match its record, or cannot be read.
        UsageError: The save does not fit the objects.
    """
    assert_torch()
    from ckpttool.guard.objects import Objects
    from ckpttool.guard.resume import resume

    objects = Objects(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        scaler=scaler,
        loader=loader,
        guard=guard,
        extra={} if extra is None else extra,
    )
    path, layout = path_text(source, "source"), RankSaves()

    def choose(world: int) -> Chosen | None:
        return _planned(path) if path.endswith(".json") else _chosen(path, layout, prefix, world)

    return resume(objects, layout, choose, fresh_ok=fresh_ok, group=group)


def _chosen(path: str, layout: SaveLayout, prefix: str | None, world: int) -> Chosen | None:
    """Choose a save as `resolve` does, or return None if there is no save."""
    from ckpttool.guard.resume import Chosen

    tree = f"{path}/{layout.folder}"
    root = tree if os.path.isdir(tree) else path
    if not os.path.lexists(root):
        return None
    try:
        answer = resolve(TreeQuestion(path=root, layout=layout.name, world_size=world), ResumeQuestion(prefix=prefix))
    except UnknownLayoutError:  # for example, the guard's events are there before the first save
        return None
    decision = answer.decision
    if isinstance(decision, NoResumePoint):
        if not answer.tree.inventory.checkpoints:
            return None
        reasons = [finding.message for rejection in decision.rejected for finding in rejection.reasons]
        why = f": {reasons[0].rstrip('.')}" if reasons else ""
        raise NothingToResumeError(f"no save in {root} can be resumed from{why}; ckpttool resolve {root} shows details")
    shards = decision.point.checkpoint.shards
    file = next(shard.path for shard in shards if shard.rank == 0).rpartition("/")[2]
    return Chosen(root=answer.tree.inventory.root, file=file)


def _planned(path: str) -> Chosen:
    """Read a plan, and return its save.

    Raises:
        UsageError: The plan cannot be executed here.
        NothingToResumeError: According to the plan, there is nothing to resume from.
    """
    from ckpttool.guard.resume import Chosen

    try:
        with open(path, "rb") as file:
            plan = parse_object(file.read(), where=path)
        if get_str(plan, "schema", where=path) != _PLAN_SCHEMA:
            raise ParseError(f"expected {_PLAN_SCHEMA}", where=path, key="schema")  # noqa: TRY301  caught below, like all of its problems
        if plan.get("resume") is None:
            raise NothingToResumeError(f"{path} has no checkpoint to resume from")
        resume = get_object(plan, "resume", where=path)
        if get_list(resume, "renames", where=path):
            raise UsageError(f"{path} requires renames first, which saves of ckpttool.checkpoint_writer never need")
        name = get_str(resume, "resume_training", where=path)
        # Batches after the save that the plan skips: those around a spike, or up to a stop.
        advice = as_object(plan.get("advice") or {}, where=path, key="advice")
        detour = as_object(advice.get("detour") or {}, where=path, key="detour")
        left_out = get_int(detour, "skip_batches", where=path) if detour else 0
        return Chosen(root=get_str(plan, "root", where=path), file=name, left_out=left_out)
    except OSError as error:
        raise UsageError(f"cannot read the plan {path!r}: {error.strerror or error}") from None
    except ParseError as error:
        raise UsageError(f"{error!s:.500}; expected the output of ckpttool resolve --format json") from None
