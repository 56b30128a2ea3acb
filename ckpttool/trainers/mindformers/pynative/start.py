"""The save that a start of the PyNative trainer loads with its current config, and the step at which it begins.

Source:
    `Trainer.train` and `_load_checkpoint`, `is_checkpoint_path_valid`, `get_checkpoint_path`, `has_optimizer_ckpt` and
    `load_checkpoint` of MindFormers 2.1.0; starts of the complete trainer on one and two CPU ranks. The trainer loads
    the save in the tracker, else the folder itself, opens no file before that, and ignores tensors that no file has.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ckpttool.core.decide.lint_engine import View, problems
from ckpttool.core.domain.finding import Code, Severity, blocking
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.plan import JudgedStart, Outcome, Simulation
from ckpttool.core.domain.shard import ShardRole
from ckpttool.core.domain.units import Rank, counted
from ckpttool.core.storage import is_local, open_storage
from ckpttool.core.storage.base import Kind
from ckpttool.trainers.common import TRACKER
from ckpttool.trainers.common.named_path import inside, is_gone, started_in
from ckpttool.trainers.mindformers.layouts.names import iteration_folder
from ckpttool.trainers.mindformers.own_names import StopsError
from ckpttool.trainers.mindformers.pynative.adapter import differs, record_in
from ckpttool.trainers.mindformers.pynative.launch import other_devices
from ckpttool.trainers.mindformers.pynative.lint import STOPS
from ckpttool.trainers.mindformers.pynative.position import begin_step
from ckpttool.trainers.mindformers.pynative_load import LOAD_BALANCED, LOAD_PATH, NO_LOAD_OPTIM
from ckpttool.trainers.mindformers.simulate import own_result, simulate, stopped_at
from ckpttool.trainers.mindformers.simulate.choice import UNKNOWN_FIELD
from ckpttool.trainers.mindformers.simulate.versions import KNOWN_VERSIONS
from ckpttool.trainers.mindformers.simulate.view import MindFormersSettings, view_for_mindformers

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint
    from ckpttool.core.domain.plan import ResumePlan
    from ckpttool.core.storage.base import Storage
    from ckpttool.trainers.abilities import OwnStart
    from ckpttool.trainers.mindformers.pynative.config import PyNativeConfig

_HF_WEIGHTS, _HF_INDEX = "model.safetensors", "model.safetensors.index.json"
_RANDOM = "it trains from step 1 with random weights, with at most a warning"
_UNKNOWN_FIELD_MEND = (
    "use the MindFormers that wrote it, choose another save with --checkpoint, or remove the field if no MindFormers "
    "wrote it"
)
_SETTINGS = MindFormersSettings(load_ckpt_format="safetensors", use_legacy_format=False)


_NOT_NOTICED = (Code.SHARD_MISSING, Code.STEP_DISAGREES)
"""Damage at which a load does not stop.

A load reads the files that exist, and never compares the step with the name.
"""


class _SettingError(StopsError):
    """Raised if the trainer stops at the value of a setting."""

    def __init__(self, key: str, message: str, *, mend: str | None = None) -> None:
        super().__init__(message)
        self.key = key
        self.mend = mend


def pick(start: OwnStart, folder: Storage, version: str | None) -> Simulation:
    """Return the save that the trainer would load from a folder.

    Args:
        start: The tree.
        folder: The folder that `load_path` names.
        version: The version of MindFormers; None for the newest known version.
    """
    view = view_for_mindformers(folder, replace(_SETTINGS, world_size=start.world_size), output=folder)
    return simulate(view, version or KNOWN_VERSIONS[-1])


def as_it_stands(start: OwnStart, config: PyNativeConfig, plan: ResumePlan) -> JudgedStart:
    """Return the result of a start with the given config.

    Args:
        start: The tree, and the number of ranks of the run.
        config: The config of the run.
        plan: The plan: the checkpoint to load.
    """
    config = config.started_on(config.world_size or start.world_size)
    try:
        _refuse_config(config)
        if config.world_size is None:  # as many as wrote it, by default
            config = config.started_on(plan.point.checkpoint.topology.world_size)
        judged = _judged(start, config)
    except _SettingError as stop:
        mend = stop.mend or f"correct `{stop.key}` in {config.path}"
        judged = JudgedStart(simulation=stopped_at(stop), line=View(config.settings).line(stop.key), mend=mend)
    except StopsError as stop:
        judged = JudgedStart(simulation=stopped_at(stop))
    return replace(judged, line=judged.line or config.line(LOAD_PATH))


def _refuse_config(config: PyNativeConfig) -> None:
    """Raise an error if a setting makes every start fail.

    Raises:
        StopsError: There is such a setting.
    """
    view = View(config.settings)
    for _rule, problem in problems(view, STOPS):
        trains_nothing = problem.key == "training.steps" and view.count(problem.key) < 1  # that ends with exit code 0
        if problem.severity is not Severity.NOTE and not trains_nothing:
            raise _SettingError(problem.key, problem.message)
    if config.world_size is not None:
        for finding in other_devices(config, config.world_size):
            raise _SettingError("training.global_batch_size", finding.message, mend=finding.remedy)


def _judged(start: OwnStart, config: PyNativeConfig) -> JudgedStart:
    """Return the result of a start from `load_path`.

    Raises:
        StopsError: The trainer would stop.
    """
    root, path = start.inventory.root, config.load_path
    if not path:
        weights = f"only the weights of `base_load_path: {config.base_load_path}`" if config.base_load_path else ""
        because = f"`{LOAD_PATH}` is empty: it trains from step 1 with {weights or 'random weights'}"
        return JudgedStart(simulation=own_result(None, Outcome.SCRATCH, because))
    if is_gone(root, path):
        because = f"`{LOAD_PATH}: {path}` does not exist: {_RANDOM}"
        return JudgedStart(simulation=own_result(None, Outcome.SCRATCH, because))
    relative = inside(root, path)
    if relative is None:
        if not is_local(root):
            why = f"`{LOAD_PATH}: {path}` is a folder, but the tree is not in a folder"
            return JudgedStart(simulation=None, why=why)
        return _elsewhere(root, path, config)
    judged = _from_tree(start, config, relative)
    return replace(judged, by_records=not relative, only_in=started_in(root, path))


def _elsewhere(root: str, path: str, config: PyNativeConfig) -> JudgedStart:
    """Return the result for a path outside the tree.

    A relative path starts in the folder in which `save_path` leads to the tree.
    """
    starts_here = os.path.isabs(path) or inside(root, config.save_path or "/") == ""
    full_path = _from_its_folder(root, path, config)
    if not os.path.exists(full_path):
        if not starts_here:
            return JudgedStart(simulation=None, why=f"`{LOAD_PATH}: {path}` is relative, and does not exist from here")
        because = f"`{LOAD_PATH}: {path}` does not exist: {_RANDOM}"
        return JudgedStart(simulation=own_result(None, Outcome.SCRATCH, because))
    if not os.path.isdir(full_path):
        raise StopsError(f"`{LOAD_PATH}: {path}` is not a folder")
    names = set(os.listdir(full_path))
    if not names:
        because = f"`{LOAD_PATH}: {path}` is empty: {_RANDOM}"
        return JudgedStart(simulation=own_result(None, Outcome.SCRATCH, because))
    if TRACKER not in names and not any(name.endswith(".safetensors") for name in names):
        raise StopsError(f"`{LOAD_PATH}: {path}` has neither a tracker nor a *.safetensors")
    because = f"`{LOAD_PATH}: {path}` is a different folder from {root}"
    return JudgedStart(simulation=own_result(path, Outcome.UNKNOWN, because))


def _from_its_folder(root: str, path: str, config: PyNativeConfig) -> str:
    """Resolve a path in the config from the folder in which the config's `save_path` leads to the tree."""
    return os.path.join((not os.path.isabs(path) and started_in(root, config.save_path or "/")) or "", path)


def _from_tree(start: OwnStart, config: PyNativeConfig, relative: str) -> JudgedStart:
    root = start.storage.root.rstrip("/")
    if relative and start.storage.kind(relative) is not Kind.FOLDER:
        raise StopsError(f"`{LOAD_PATH}: {config.load_path}` is not a folder")
    folder = open_storage(f"{root}/{relative}") if relative else start.storage
    names = {entry.name for entry in folder.entries("")}
    if not names:
        because = f"`{LOAD_PATH}: {config.load_path}` is empty: {_RANDOM}"
        return JudgedStart(simulation=own_result(None, Outcome.SCRATCH, because))
    if TRACKER not in names and (model := _hugging_face(names)) is not None:
        if not config.no_load_optim:
            raise StopsError(f"{model} makes it a Hugging Face model, from which it does not resume")
        because = f"it loads only the weights of the Hugging Face model in `{LOAD_PATH}`, and starts at step 1"
        return JudgedStart(simulation=own_result(None, Outcome.SCRATCH, because))
    chosen = pick(start, folder, None)
    if chosen.outcome is Outcome.STOPS:
        mend = _UNKNOWN_FIELD_MEND if UNKNOWN_FIELD in chosen.because else None
        return JudgedStart(simulation=chosen, mend=mend)
    named = None if chosen.would_resume is None else start.inventory.named(chosen.would_resume)
    if named is None:
        return JudgedStart(simulation=chosen)
    record = record_in(folder, names, named.name)
    if record is not None and not _has_known_base(start.inventory.root, config, folder, record):
        why = f"the adapter's base model cannot be compared with `base_load_path: {config.base_load_path}` from here"
        return JudgedStart(simulation=None, why=why)
    return _loaded(start, config, named, chosen)


def _hugging_face(names: set[str]) -> str | None:
    return next((name for name in sorted(names) if name == _HF_WEIGHTS or name.endswith(_HF_INDEX)), None)


def _has_known_base(root: str, config: PyNativeConfig, folder: Storage, record: str) -> bool:
    """Return whether the base model of an adapter is known to be the config's base model.

    Raises:
        StopsError: The adapter has a different base model, or no base model.
    """
    key = "checkpoint.base_load_path"
    if not config.base_load_path:
        raise _SettingError(key, f"{record} makes the saves adapters, which need `{key}`: a ValueError")
    is_other = differs(folder, record, _from_its_folder(root, config.base_load_path, config))
    if is_other:
        raise _SettingError(
            key,
            f"`{key}: {config.base_load_path}` is not the base model of the adapter: the fingerprint of its records "
            "and of the sizes and times of its files differs, a ValueError",
        )
    return is_other is not None


def _loaded(start: OwnStart, config: PyNativeConfig, save: Checkpoint, chosen: Simulation) -> JudgedStart:
    """Return the result of loading the chosen save.

    Raises:
        StopsError: The trainer would stop.
    """
    view, scalars = View(config.settings), save.scalars
    names = {shard.path.rpartition("/")[2] for shard in save.shards}
    if config.no_load_optim:
        return _only_weights(start, config, save, chosen)
    if not any("opt-" in name for name in names):
        raise StopsError(f"{save.name} has no optimizer file (*opt-*.safetensors)")
    world = config.world_size or 1
    if config.load_balanced and world == 1:
        raise _SettingError(LOAD_BALANCED, f"`{LOAD_BALANCED}: True` on one rank: a RuntimeError")
    damage = _damage(start, save)
    if damage is not None:
        return _damaged(chosen, damage)
    lacks, line = _lacking(save), None
    if config.load_balanced:
        lacks, line = f"`{LOAD_BALANCED}: True` leaves every moment of Adam at zero", view.line(LOAD_BALANCED)
    begin = begin_step(scalars, config)
    if begin is not None and begin >= config.steps:
        because = f"it begins at step {begin}, and `training.steps` is {config.steps}: it trains nothing, exits with 0 "
        because += f"and writes {iteration_folder(begin)} and the tracker again"
        stopped = replace(chosen, outcome=Outcome.STOPS, because=because)
        mend = f"raise training.steps above {begin}"
        return JudgedStart(simulation=stopped, line=view.line("training.steps"), mend=mend)
    position = "" if begin is None else f"; it begins after step {begin}"
    if begin is not None and scalars.samples is not None:
        position += f" and {counted(scalars.samples, 'sample')}"
    simulation = replace(chosen, outcome=Outcome.LOADS, because=f"{chosen.because}{position}")
    return JudgedStart(simulation=simulation, lacks=lacks, line=line)


def _only_weights(start: OwnStart, config: PyNativeConfig, save: Checkpoint, chosen: Simulation) -> JudgedStart:
    if (damage := _damage(start, save, weights_only=True)) is not None:
        return _damaged(chosen, damage)
    because = f"`{NO_LOAD_OPTIM}: True` loads only the weights of {save.name}: it starts at step 1 and sample 0"
    if not any(shard.role is ShardRole.MODEL for shard in save.shards):
        because = f"{save.name} has no model file, and `{NO_LOAD_OPTIM}: True`: {_RANDOM}"
    if _overwrites(start, config):
        because += ", and overwrites the saves of this tree from the first one on"
    line = View(config.settings).line(NO_LOAD_OPTIM)
    return JudgedStart(simulation=own_result(None, Outcome.SCRATCH, because), line=line)


def _overwrites(start: OwnStart, config: PyNativeConfig) -> bool:
    return config.enable_save and inside(start.inventory.root, config.save_path or ".") == ""


def _damaged(chosen: Simulation, damage: str) -> JudgedStart:
    return JudgedStart(simulation=replace(chosen, outcome=Outcome.STOPS, because=f"{chosen.because}; {damage}"))


def _damage(start: OwnStart, save: Checkpoint, *, weights_only: bool = False) -> str | None:
    """Return the damage at which a load of this save stops; None if no such damage is known."""
    unread: set[str | None] = set()
    if weights_only and save.expected is not None:  # without metadata.json it reads every file's header
        unread = {shard.path for shard in save.shards if shard.role is ShardRole.OPTIMIZER}
    for finding in blocking(start.checked(save).findings):
        if finding.code in _NOT_NOTICED or finding.path in unread:
            continue
        if not _is_spare_copy(start, save, finding.path):
            return f"{finding.path or save.name}: {finding.message}"
    return None


def _is_spare_copy(start: OwnStart, save: Checkpoint, path: str | None) -> bool:
    """Return whether a file has only slices that rank 0 also has; every rank then reads those of rank 0."""
    from ckpttool.trainers.mindformers.layouts.iteration import MindFormersIteration

    rank = next((shard.rank for shard in save.shards if shard.path == path), None)
    recorded = MindFormersIteration().slices(start.storage, save) if rank else None
    if rank is None or recorded is None:
        return False
    slices = [by_rank for by_rank in recorded.slices.values() if rank in by_rank]
    return bool(slices) and all(by_rank[rank] == by_rank.get(Rank(0)) for by_rank in slices)


def _lacking(save: Checkpoint) -> str | None:
    """Describe a missing part that a load does not notice; None if no part is missing.

    Without metadata.json, a load reads whatever files exist.
    """
    roles = {shard.role for shard in save.shards}
    if ShardRole.MODEL not in roles:
        return f"{save.name} has no model file: it loads Adam's first moments as the weights"
    if ShardRole.OPTIMIZER not in roles:
        return f"{save.name} has no optimizer file, which the trainer does not notice: the optimizer starts at zero"
    return None
