"""The save that a start of MindFormers loads with its current config: `load_checkpoint`, `resume_training` etc.

Source:
    `Trainer.train`, `_check_config_rules` and `convert_checkpoint_config` of the wheels 1.6.0 to 2.1.0, and
    `load_resume_context_from_checkpoint`; and runs of the real program in each of the four modes. From 1.9 on,
    `validate_checkpoint_config` stops if a resume names a file, or a folder with Hugging Face weights, in both layouts.
    `preload_ckpt` searches for `.ckpt` files in either layout, unless `load_ckpt_format` sets another format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.data_position import GoesOn
from ckpttool.core.domain.finding import blocking
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.plan import ON_ITS_OWN, JudgedStart, Outcome, ResumePlan, Simulation
from ckpttool.core.domain.settings import Nested
from ckpttool.core.storage import is_local, open_storage
from ckpttool.core.storage.base import Kind, Storage
from ckpttool.trainers.common.named_path import inside, is_gone, started_in
from ckpttool.trainers.mindformers.counters import mindformers_counters
from ckpttool.trainers.mindformers.layouts.names import UNIFIED_LAYOUT
from ckpttool.trainers.mindformers.load import planned_skip
from ckpttool.trainers.mindformers.own_names import StopsError, with_rank
from ckpttool.trainers.mindformers.simulate import own_result, simulate, stopped_at, view_of
from ckpttool.trainers.mindformers.simulate.versions import KNOWN_VERSIONS
from ckpttool.trainers.mindformers.train_config import LEGACY_SWITCHES, ConfigView, TrainConfig, with_trainer_defaults

if TYPE_CHECKING:
    from ckpttool.core.domain.settings import Value
    from ckpttool.trainers.abilities import OwnStart

_LOAD, _SECTION_LOAD, _RESUME = "load_checkpoint", "checkpoint.load_path", "resume_training"
_SKIP, _IGNORE = "data_skip_steps", "ignore_data_skip"
_NO_OPTIMIZER = "checkpoint.no_load_optim"
_RESLICE, _FORMAT = "auto_trans_ckpt", "load_ckpt_format"
_BASE = "base_config"
_SCRATCH = "it trains from step 1 with random weights, with at most a warning"
_SINCE_1_9 = "which MindFormers 1.9 and later refuse for a resume"
_HF_WEIGHTS, _HF_INDEX = "model.safetensors", "model.safetensors.index.json"
_WEIGHTS = "loads only weights and starts at step 0, with a new optimizer"


class _SettingError(StopsError):
    """Raised if the value of a setting would stop the start."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


class _HoldsModelError(StopsError):
    """Raised if the start stops at a Hugging Face model in the folder to load from."""

    def __init__(self, message: str, *, folder: str, path: str) -> None:
        super().__init__(message)
        self.folder = folder
        self.path = path


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoadSettings:
    key: str
    """Name of the key that contains the path."""
    path: Value
    resumes: Value
    """True, or the name of a file in the rank_N layout."""
    why_not: str
    """The reason for not resuming; empty if the start resumes."""
    switch: str = _RESUME
    """The key that decides whether the start resumes."""


def as_it_stands(start: OwnStart, plan: ResumePlan) -> JudgedStart:
    """Return the result of a start with the given config.

    Args:
        start: The tree, the run's config, and its number of ranks.
        plan: The plan: the checkpoint to load, and the position in the data.
    """
    if start.config is None:
        return JudgedStart(simulation=None, lead=ON_ITS_OWN, why="its config decides: give --config")
    config = with_trainer_defaults(start.config)
    if config.world_size is None:  # the ranks that wrote it, by default
        config = config.started_on(plan.point.checkpoint.topology.world_size)
    view = ConfigView(config.settings)
    if view.setting(_BASE) is not None and not {_LOAD, _RESUME} <= {str(entry.key[0]) for entry in view.entries}:
        why = f"`{_BASE}` names another file, which was not read and may decide what is loaded"
        return JudgedStart(simulation=None, why=why, line=view.line(_BASE))
    settings = _load_settings(config, view)
    try:
        _refuse_types(config, view)
        judged = _judged(start, plan, config, settings)
    except _HoldsModelError as stop:
        # A launch config that names the same folder also stops there.
        is_alike = inside(start.inventory.root, plan.load.path) == stop.folder
        judged = JudgedStart(simulation=stopped_at(stop), in_the_way=stop.path if is_alike else None)
    except _SettingError as stop:
        judged = JudgedStart(simulation=stopped_at(stop), line=view.line(stop.key))
    except StopsError as stop:
        judged = JudgedStart(simulation=stopped_at(stop))
    line = judged.line
    for key in (settings.key, _LOAD, _RESUME):
        line = line or view.line(key)
    return replace(judged, line=line)


def _refuse_types(config: TrainConfig, view: ConfigView) -> None:
    """Raise an error if MindFormers rejects the type of a value before it loads anything.

    Source:
        `Trainer._check_config_type` and `_warn_if_resume_training_is_string`, and `BaseTrainer.training_process`, which
        compares the steps to skip with 0; the wheels 1.8 to 2.1.

    Raises:
        StopsError: MindFormers would stop.
    """
    resumes = view.get(_RESUME)
    if _is_null(view, _RESUME) and any(view.get(switch) is False for switch in LEGACY_SWITCHES):
        raise _SettingError(_RESUME, f"`{_RESUME}` has no value, and the newer layout needs True or False")
    if resumes is not None and not isinstance(resumes, bool | str):
        needs = "True, False or the name of a file" if config.use_legacy_format else "True or False"
        raise _SettingError(_RESUME, f"`{_RESUME}: {_shown(resumes)}` must be {needs}")
    if resumes is True and _is_null(view, _LOAD):
        raise _SettingError(_LOAD, f"`{_LOAD}` has no value, and with `{_RESUME}: True` it must be text")
    slices = view.get(_RESLICE)
    if slices is not None and not isinstance(slices, bool):
        raise _SettingError(_RESLICE, f"`{_RESLICE}: {_shown(slices)}` must be True or False")
    if resumes and config.use_legacy_format and _is_null(view, _FORMAT):
        raise _SettingError(_FORMAT, f"`{_FORMAT}` has no value, but file names end in it")
    skip = view.get(_SKIP)
    if skip and isinstance(skip, float | str | Nested) and not view.get(_IGNORE):
        raise _SettingError(
            _SKIP, f"`{_SKIP}: {_shown(skip)}` must be a whole number; otherwise it stops with a TypeError"
        )


def _is_null(view: ConfigView, key: str) -> bool:
    """Return whether the value is empty; a missing key has its default value instead."""
    return view.setting(key) is not None and view.get(key) is None


def _shown(value: Value) -> str:
    """Format a value as in a config, so that text and numbers can be distinguished."""
    return f"a {value.value}" if isinstance(value, Nested) else repr(value)


def _load_settings(config: TrainConfig, view: ConfigView) -> _LoadSettings:
    resumes = view.get(_RESUME)
    if config.use_legacy_format:
        return _LoadSettings(key=_LOAD, path=view.get(_LOAD), resumes=resumes, why_not=f"`{_RESUME}` is off")
    if isinstance(resumes, str):
        refused = f"`{_RESUME}: {resumes}` names a file, which the newer layout refuses with a ValueError"
        return _LoadSettings(key=_RESUME, path=None, resumes=resumes, why_not=refused)
    key = _SECTION_LOAD if view.get(_SECTION_LOAD) is not None else _LOAD
    no_load = view.get(_NO_OPTIMIZER)
    if no_load is None:
        # It is disabled if the older key names nothing, regardless of the section.
        resumes = bool(resumes) and bool(view.get(_LOAD))
        return _LoadSettings(
            key=key, path=view.get(key), resumes=resumes, why_not=f"`{_RESUME}` is off, or `{_LOAD}` empty"
        )
    why_not = "`checkpoint.no_load_optim` is on"
    return _LoadSettings(key=key, path=view.get(key), resumes=not no_load, why_not=why_not, switch=_NO_OPTIMIZER)


def _judged(start: OwnStart, plan: ResumePlan, config: TrainConfig, settings: _LoadSettings) -> JudgedStart:
    """Return the result of a start, by its mode of loading.

    Raises:
        StopsError: MindFormers would stop.
    """
    if settings.key == _RESUME:
        raise StopsError(settings.why_not)
    root, path = start.inventory.root, settings.path
    if path is not None and not isinstance(path, str):
        raise StopsError(f"`{settings.key}` is not text")
    relative: str | None = ""
    picks_healthy = not config.use_legacy_format and config.health_check_picks and settings.resumes is True
    if not picks_healthy:
        if not path:
            if isinstance(settings.resumes, str) and settings.resumes:
                raise StopsError(f"`{_RESUME}` names a file, but `{settings.key}` names no folder for it")
            return JudgedStart(simulation=own_result(None, Outcome.SCRATCH, f"`{settings.key}` is empty: {_SCRATCH}"))
        if not settings.resumes:
            because = f"{settings.why_not}: from `{settings.key}: {path}` it {_WEIGHTS}"
            scratch = own_result(None, Outcome.SCRATCH, because)
            return JudgedStart(simulation=scratch, line=ConfigView(config.settings).line(settings.switch))
        if is_gone(root, path):
            tilde = ": MindFormers does not expand `~`" if path.startswith("~") else ""
            raise StopsError(f"`{settings.key}: {path}` does not exist{tilde}")
        relative = inside(root, path)
    if relative is None and not is_local(root):
        return JudgedStart(
            simulation=None, why=f"`{settings.key}: {path}` is a folder, but the tree is not in a folder"
        )
    if relative is None:
        because = f"`{settings.key}: {path}` is a different folder from {root}"
        return JudgedStart(simulation=own_result(path, Outcome.UNKNOWN, because))
    simulation = _from_tree(start, config, settings, relative)
    data, decides = _data(config, plan, simulation)
    return JudgedStart(
        simulation=simulation,
        by_records=settings.resumes is True and not relative,
        data=data,
        line=ConfigView(config.settings).line(decides),
        only_in=None if picks_healthy else started_in(root, str(path)),
    )


def _from_tree(start: OwnStart, config: TrainConfig, settings: _LoadSettings, relative: str) -> Simulation:
    kind = _kind(start.storage, relative)
    if kind is None:
        raise StopsError(f"`{settings.key}: {settings.path}` does not exist")
    if kind is Kind.FILE:
        raise StopsError(f"`{settings.key}: {settings.path}` names a file, {_SINCE_1_9}: give the folder")
    model = _hugging_face(start.storage, relative)
    if model is not None:
        message = f"`{settings.key}: {settings.path}` has {model}: a Hugging Face model, {_SINCE_1_9}"
        raise _HoldsModelError(message, folder=relative, path=f"{relative}/{model}".lstrip("/"))
    view = ConfigView(config.settings)
    is_ckpt = view.setting(_FORMAT) is None or view.get(_FORMAT) == "ckpt"  # any other value counts as safetensors
    if not config.use_legacy_format and is_ckpt:
        raise StopsError(
            "`load_ckpt_format` is ckpt, the default, so it looks for .ckpt files and finds none: the newer "
            "layout needs `load_ckpt_format: safetensors`"
        )
    if config.use_legacy_format and isinstance(settings.resumes, str):
        return _named(start, config, settings.resumes, relative)
    if start.inventory.layout == UNIFIED_LAYOUT and not relative and config.load_ckpt_format == "safetensors":
        (save,) = start.inventory.checkpoints
        return _loaded(start, save, "hyper_param.safetensors makes it load the merged weights beside it")
    root = start.storage.root.rstrip("/")
    folder = open_storage(f"{root}/{relative}") if relative else start.storage
    return simulate(view_of(start, folder), KNOWN_VERSIONS[-1])


def _kind(storage: Storage, path: str) -> Kind | None:
    if not path:
        return Kind.FOLDER
    try:
        return storage.kind(path)
    except OSError:
        return None


def _hugging_face(storage: Storage, relative: str) -> str | None:
    """Return the file that makes a folder a Hugging Face model for MindFormers; None if there is no such file."""
    try:
        names = sorted(entry.name for entry in storage.entries(relative))
    except OSError:  # the selection reports the reason
        return None
    return next((name for name in names if name == _HF_WEIGHTS or name.endswith(_HF_INDEX)), None)


def _named(start: OwnStart, config: TrainConfig, name: str, relative: str) -> Simulation:
    """Return the result if each rank loads its own file with that name.

    Only the rank itself checks whether the file exists.

    Raises:
        StopsError: A rank does not find its file.
    """
    fmt = config.load_ckpt_format
    file = name if name.endswith(f".{fmt}") else f"{name}.{fmt}"
    folder = f"{relative}/" if relative else ""
    ranks = start.inventory.folder_ranks
    first = f"{folder}rank_0/{with_rank(file, 0)}"
    holders = (save for save in start.inventory.checkpoints if first in {shard.path for shard in save.shards})
    save = next(holders, None)
    of_save = None if save is None else save.topology.world_size
    # Ranks beyond those that wrote it load shards re-sliced for them.
    world = (None if config.auto_trans_ckpt else config.world_size) or of_save or len(ranks)
    for rank in range(world):
        path = f"{folder}rank_{rank}/{with_rank(file, rank)}"
        if _kind(start.storage, path) is None:
            raise StopsError(f"`{_RESUME}: {name}` makes rank {rank} look for {path}, which does not exist")
    if save is None:
        return own_result(name, Outcome.UNKNOWN, f"`{_RESUME}` names {name}, which does not belong to a known save")
    return _loaded(start, save, f"`{_RESUME}` names {file}")


def _loaded(start: OwnStart, save: Checkpoint, because: str) -> Simulation:
    against = blocking(start.checked(save).findings)
    if not against:
        return own_result(save.name, Outcome.LOADS, because)
    first = against[0]
    return own_result(save.name, Outcome.STOPS, f"{because}: {first.path or save.name}: {first.message}")


def _data(config: TrainConfig, plan: ResumePlan, simulation: Simulation) -> tuple[str | None, str]:
    """Describe how the data deviate from the plan, and name the key that causes it; (None, "") if nothing is reported.

    Source:
        BaseTrainer.training_process: `data_skip_steps`, otherwise the steps of the checkpoint, unless
        `ignore_data_skip`; MindSpore then rounds down to complete sinks.
    """
    if simulation.would_resume != plan.point.checkpoint.name:
        return None, ""
    view = ConfigView(config.settings)
    ignores = bool(view.get(_IGNORE))
    due = planned_skip(plan)
    sizes = {due.global_batch_size, config.global_batch_size} - {None}
    if config.streaming is not None or len(sizes) > 1:  # another finding reports a different batch size
        return None, ""
    skips = 1 if view.is_on(_SKIP) else view.count(_SKIP, 0)  # True counts as 1
    if isinstance(plan.data, GoesOn):
        if not ignores and not skips:
            return None, ""
        setting = _IGNORE if ignores else f"{_SKIP}: {skips}"
        return f"`{setting}` overrides the count of MindFormers", _IGNORE if ignores else _SKIP
    batches, why, key = skips, f"`{_SKIP}: {skips}`", _SKIP
    if ignores:
        batches, why, key = 0, f"`{_IGNORE}` is on", _IGNORE
    elif not skips:
        legacy = plan.load.value("config:use_legacy_format") is not False
        counted = mindformers_counters(
            scalars=plan.point.checkpoint.scalars,
            new_global_batch_size=config.global_batch_size,
            new_sink_size=config.sink_size,
            legacy=legacy,
        )
        batches, why = counted.initial_step, "it computes the skip itself"
    sink = config.sink_size if config.sink_mode else None
    batches = max(batches // sink * sink if sink else batches, 0)
    if batches == due.batches:
        return None, ""
    return f"{why}: it skips {batches} batches of the data, but {due.batches} are right", key
