"""The start of MindFormers: YAML for `run_mindformer.py`, a command for `msrun_launcher.sh`, and the save folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from collections.abc import Mapping as Dict
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from ckpttool.core.domain.checkpoint import Inventory
from ckpttool.core.domain.finding import Finding
from ckpttool.core.domain.launch import ConfigChange, LaunchConfig, LaunchJob
from ckpttool.core.domain.plan import ResumePlan
from ckpttool.core.domain.preflight import NextSaves
from ckpttool.core.domain.settings import RunConfig, Settings
from ckpttool.core.domain.units import Rank
from ckpttool.core.errors import CkptToolError, UsageError
from ckpttool.core.render.shell import join, join_for_eval, quote_for_eval
from ckpttool.core.render.yaml_edit import Editor, Mapping, Scalar, Value, spell
from ckpttool.core.storage import above
from ckpttool.trainers.common.named_path import inside
from ckpttool.trainers.mindformers.load import load_keys
from ckpttool.trainers.mindformers.pynative import launch as pynative
from ckpttool.trainers.mindformers.pynative.config import PyNativeConfig
from ckpttool.trainers.mindformers.train_config import KEPT_CHECKPOINTS, LEGACY_SWITCHES, ConfigView

_TOP_ORDER = ("load_checkpoint", "resume_training", "load_ckpt_format", "data_skip_steps", "ignore_data_skip")


_SCRIPT = "run_mindformer.py"
_LAUNCHER = "scripts/msrun_launcher.sh"
_MASTER_PORT = "8118"
_LOG_DIR = "output/msrun_log"
_STAYS = "MindFormers never removes checkpoints of older runs"
_JOIN = "True"
"""Argument that makes the command last as long as the training run.

By default, the launcher returns 0 immediately. A script or a CI job would then mistake a run that is just starting for
a successful one.
"""
_CLUSTER_TIMEOUT = "7200"
"""Seconds that ranks wait for one another at the start."""


Wanted: TypeAlias = "Callable[[Dict[str, object], ResumePlan], dict[str, Scalar]]"


class MindFormersLaunch:
    """A launch by msrun, with the settings of a plan in the config."""

    folder = "MindFormers' own folder, the one with run_mindformer.py"

    def config(self, base: RunConfig, plan: ResumePlan) -> LaunchConfig:
        """Return the config with the settings that follow the plan; see `render_config`."""
        if isinstance(base, PyNativeConfig):
            return render_config(base.text, plan, wanted=pynative.wanted_settings)
        return render_config(base.text, plan)

    def fresh_config(self, base: RunConfig, root: str) -> LaunchConfig:
        """Return the config without the settings that resume from the run's own folder."""
        wanted = partial(_fresh_settings, root=root, is_pynative=isinstance(base, PyNativeConfig))
        return _edited(base.text, wanted)

    def commands(self, base: RunConfig, job: LaunchJob) -> tuple[str, ...]:
        """Return one shell command per node; see `launch_commands`."""
        return launch_commands(job, mode=pynative.MODE if isinstance(base, PyNativeConfig) else ())

    def other_devices(self, base: RunConfig, devices: int) -> tuple[Finding, ...]:
        """Report a number of devices that differs from the config's world size."""
        if isinstance(base, PyNativeConfig):
            return tuple(pynative.other_devices(base, devices))
        from ckpttool.trainers.mindformers.launch_check import other_devices

        return tuple(other_devices(base, devices))

    def next_saves(self, base: RunConfig, inventory: Inventory) -> NextSaves:
        """Return the folder and the number of the next saves, read from the callback that saves."""
        if isinstance(base, PyNativeConfig):
            return pynative.next_saves(base, inventory.root)
        return next_saves(base.settings, inventory.root, ranks=inventory.folder_ranks)


def render_config(base_text: str, plan: ResumePlan, *, wanted: Wanted | None = None) -> LaunchConfig:
    """Return the user's config, changed only in the keys that make MindFormers follow the plan.

    The text is edited at these keys, then parsed again: if PyYAML does not find the old document with exactly these
    changes, the edit fails. Read the base through `TrainConfigs` first: this function does not limit the file's size.

    Args:
        base_text: The complete current file, line ends and byte order mark included.
        plan: The plan of the resume.
        wanted: Returns the required value of each key; None for those of the static trainer.

    Raises:
        UsageError: The config contradicts the plan in a way that only its author can resolve, or contains a key in a
            form that cannot be edited without changing others.
        CkptToolError: The edit failed; the caller must not write anything.
    """
    return _edited(base_text, lambda document: (wanted or _wanted_settings)(document, plan))


def _edited(base_text: str, wanted: Callable[[Dict[str, object]], dict[str, Scalar]]) -> LaunchConfig:
    """Return the user's config, changed only in the required keys."""
    before = _load(base_text)
    editor = Editor(base_text)
    values = wanted(before)
    # Two levels are copied, so that a section that other keys share through an alias does not change for them.
    after = {key: dict(value) if isinstance(value, dict) else value for key, value in before.items()}
    changes = []
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        old = _at(before, section)
        if name in old and _same(old[name], value):
            continue
        editor.set(_editable(editor, section), name, value, after=_neighbours(name))
        _at(after, section)[name] = value
        changes.append(ConfigChange(key=key, before=_shown(old[name]) if name in old else None, after=spell(value)))
    text = editor.apply()
    _check_edit(text, after, changes)
    return LaunchConfig(text=text, changes=tuple(changes))


def _check_edit(text: str, after: dict[str, object], changes: list[ConfigChange]) -> None:
    import yaml

    try:
        good = _same(yaml.safe_load(text), after)
    except (yaml.YAMLError, ValueError, TypeError):
        good = False
    if not good:
        raise CkptToolError(
            "the edited config does not read back as the base config with these changes: nothing was written; make "
            "these changes by hand: " + ", ".join(f"{change.key}: {change.after}" for change in changes)
        )


def launch_commands(job: LaunchJob, *, mode: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return one shell command per node, node 0 first.

    The launcher takes 1, 2, 6 or 9 arguments. The short forms end before JOIN, so the command would return immediately;
    they are not used. A single device does not use the launcher, which would print a hint and exit with 0 without
    training. `data_skip_steps` and `ignore_data_skip` are set in the config because `run_mindformer.py` has no option
    for them, and its `--options` parses every True as False.

    Args:
        job: The launch.
        mode: Further options of `run_mindformer.py`.

    Raises:
        UsageError: No job can be started with these arguments: no device, several nodes without an address, or a config
            whose name MindFormers would not read.
    """
    _check(job)
    script = job.script or _SCRIPT
    command = ["python", script, "--config", job.config]
    if os.path.basename(script) == _SCRIPT:  # a user's own script has other options
        command += mode
    total = job.nodes * job.devices_per_node
    if total == 1:
        return (join(command),)
    start = ["bash", _LAUNCHER, join_for_eval(command), str(total)]
    tail = [_LOG_DIR, _JOIN, _CLUSTER_TIMEOUT]
    if job.nodes == 1:
        return (join([*start, _MASTER_PORT, *tail]),)
    # The launcher inserts the address into the text that it evaluates, like the command.
    where = [str(job.devices_per_node), quote_for_eval(job.master_addr or ""), _MASTER_PORT]
    return tuple(join([*start, *where, str(node), *tail]) for node in range(job.nodes))


def _check(job: LaunchJob) -> None:
    if job.nodes < 1 or job.devices_per_node < 1:
        raise UsageError(f"expected at least one node and one device, found {job.nodes} and {job.devices_per_node}")
    if job.nodes > 1 and not job.master_addr:
        raise UsageError(f"{job.nodes} nodes need the address of node 0: give --master-addr")
    if not job.config.endswith((".yaml", ".yml")):
        raise UsageError(f"{job.config!r} must end in .yaml or .yml: MindFormers reads settings from no other files")
    if not job.config.startswith("/"):
        raise UsageError(
            f"{job.config!r} must be absolute: run_mindformer.py resolves a relative config against its own folder"
        )


def _wanted_settings(document: Dict[str, object], plan: ResumePlan) -> dict[str, Scalar]:
    """Return the required value of each key, most important first."""
    load = load_keys(plan.load)
    section = document.get("checkpoint")
    if load.use_legacy_format and section:
        raise UsageError(
            "the base config has a `checkpoint:` section, with which MindFormers cannot load checkpoints of the "
            "`rank_N` layout: remove the section"
        )
    values: dict[str, Scalar] = {
        "load_checkpoint": load.load_checkpoint,
        "resume_training": load.resume_training,
        "load_ckpt_format": load.load_ckpt_format,
    }
    if not section:
        # Only the form that the config uses: each version reads one form, and does not stop at the other.
        switches = [switch for switch in LEGACY_SWITCHES if switch in document] or LEGACY_SWITCHES[:1]
        values |= {
            switch: load.use_legacy_format
            for switch in switches
            if bool(document.get(switch, True)) != load.use_legacy_format
        }
    if section:
        if not isinstance(section, dict):
            raise UsageError("`checkpoint:` in the base config must be a section with its own keys")
        values["checkpoint.load_path"] = load.load_checkpoint  # it overrides the top-level key
        if section.get("no_load_optim") is not None:
            values["checkpoint.no_load_optim"] = False  # it overrides resume_training
    # Never under `trainer:`, as in the documentation: there, any key except two stops every start.
    data = (setting for setting in plan.load.data if not setting.is_default or setting.place.name in document)
    return values | {setting.place.name: setting.value for setting in data}


def _fresh_settings(document: Dict[str, object], *, root: str, is_pynative: bool) -> dict[str, Scalar]:
    """Return the values with which a start loads nothing of its own run; weights of another model stay.

    Raises:
        UsageError: The config resumes from another run.
    """
    section = _at(document, "checkpoint")
    resumes = bool(document.get("resume_training"))
    if is_pynative:
        resumes = not section.get("no_load_optim")
    values: dict[str, Scalar] = {}
    paths = {"load_checkpoint": document.get("load_checkpoint"), "checkpoint.load_path": section.get("load_path")}
    for key, path in paths.items():
        if not path:
            continue
        if isinstance(path, str) and _is_own(root, path):
            values[key] = ""
        elif resumes:
            raise UsageError(
                f"`{key}: {path}` resumes from another run than {root}: to load only its weights, set "
                f"`{'checkpoint.no_load_optim: True' if is_pynative else 'resume_training: False'}`; to continue that "
                "run, give its folder as DIR"
            )
    if not is_pynative and document.get("resume_training"):
        values["resume_training"] = False
    if document.get("data_skip_steps"):
        values["data_skip_steps"] = None
    return values


def _is_own(root: str, path: str) -> bool:
    """Return whether a path leads to the saves of the run, or to its output folder."""
    return inside(root, path) is not None or inside(above(root), path) == ""


def _editable(editor: Editor, section: str) -> Mapping:
    """Return the mapping to edit, which is a section or the top level."""
    if not section:
        return editor.top
    entry = editor.top.entries.get(section)
    value: Value | None = entry[1] if entry else None
    if value is not None and value.mapping is not None and not editor.shared(value):
        return value.mapping
    raise UsageError(f"`{section}:` in the base config comes from an alias or a merge: write the section in full first")


def _neighbours(name: str) -> tuple[str, ...]:
    """Return the keys next to which a new key may be placed, best first.

    The nearest predecessor comes first, and the keys after it come last.
    """
    if name not in _TOP_ORDER:
        return _TOP_ORDER
    place = _TOP_ORDER.index(name)
    return (*reversed(_TOP_ORDER[:place]), *_TOP_ORDER[place + 1 :])


def _load(text: str) -> dict[str, object]:
    import yaml

    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise UsageError(f"the base config is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict):
        raise UsageError("the base config has no settings; expected YAML with keys at the top level")
    return document


def _at(document: Dict[str, object], section: str) -> dict[str, object]:
    value = document.get(section) if section else document
    return value if isinstance(value, dict) else {}


def _same(first: object, second: object) -> bool:
    """Compare two values as YAML: True is not 1, and NaN equals itself."""
    if type(first) is not type(second):
        return False
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(_same(value, second[key]) for key, value in first.items())
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(_same, first, second))
    return first == second or (first != first and second != second)  # noqa: PLR0124  # only NaN differs from itself


def _shown(value: object) -> str:
    """Return the base config's value as YAML on one line."""
    import yaml

    if isinstance(value, str | bool | int | None):
        with suppress(UsageError):  # half a surrogate pair, which needs an escape
            return spell(value)
    dumped: str = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), allow_unicode=True)
    return dumped.partition("\n")[0]


def next_saves(settings: Settings, root: str, *, ranks: Iterable[Rank] = ()) -> NextSaves:
    """Return the folder that the next saves will go to, and how many there will be before the oldest is deleted.

    The number is the retained saves plus the one being written. Existing saves free no space, because MindFormers never
    removes files of an older run. If all saves are retained, there is no such number; a run should then have space for
    at least two.

    Args:
        settings: The settings of the base config.
        root: The checkpoint folder to resume from. A relative path in a config is relative to the folder in which the
            training is started, which is assumed to be the same as before.
        ranks: The ranks that have a subfolder in the checkpoint folder.
    """
    view = ConfigView(settings)
    callback = next(iter(view.callbacks("CheckpointMonitor")), "callbacks.0")
    retained = view.count(f"{callback}.keep_checkpoint_max", KEPT_CHECKPOINTS)
    folder = _below(view.get(f"{callback}.directory")) or _below(view.get("output_dir"))
    if view.is_newer_layout:
        retained = view.count("checkpoint.save_max", retained)
        save_path = view.get("checkpoint.save_path")
        folder = save_path if isinstance(save_path, str) and save_path.startswith("/") else folder
    return NextSaves(
        folder=folder or root,
        inside=tuple(os.path.join(root, f"rank_{rank}") for rank in ranks),
        count=max(retained, 1) + 1,
        stays=_STAYS,
    )


def _below(output: object) -> str | None:
    """Return the checkpoint folder of an output folder; None if the output folder is relative to an unknown folder."""
    return f"{output.rstrip('/')}/checkpoint" if isinstance(output, str) and output.startswith("/") else None
