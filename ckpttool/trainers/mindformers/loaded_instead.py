"""Reasons why MindFormers would stop, or load something other than the plan: one rule for each reason.

A new rule needs a function, a line in `RULES`, a code and an explanation. Rules see only names and settings: `verify`
checks the contents of files. Each case was observed in a start of the real program, or found in its code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from ckpttool.core.domain.checkpoint import Inventory
from ckpttool.core.domain.finding import Finding, Severity, brief, suspect
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.plan import ResumePlan
from ckpttool.core.domain.shard import ShardRole
from ckpttool.core.domain.units import Rank
from ckpttool.trainers.mindformers.findings import MindFormersCode
from ckpttool.trainers.mindformers.layouts.names import ITERATION_LAYOUT, RANK_LAYOUT
from ckpttool.trainers.mindformers.load import LoadKeys, is_moved, load_keys
from ckpttool.trainers.mindformers.own_names import with_rank

if TYPE_CHECKING:
    from ckpttool.trainers.mindformers.train_config import TrainConfig

_PATTERN = frozenset("*?[")
"""Characters that `glob` does not treat literally."""

_FAULT_TOLERANCE = ("TTP:1", "UCE:1", "ARF:1", "HCCE:1")
"""Texts that enable fault tolerance at any place in `MS_ENABLE_TFT`; TRE and TSP do not."""


_OWN_FOLDER = "copy this checkpoint's files, each into its rank_N/, to a separate folder, and give that as DIR"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The conditions of a start."""

    plan: ResumePlan
    inventory: Inventory
    """The complete tree.

    A start may load files next to the chosen checkpoint instead.
    """
    load_path: str
    """The absolute `load_checkpoint` that a launch config would contain."""
    config: TrainConfig | None = None
    """The config; None if unknown, in which case a rule that needs a config reports nothing."""
    fault_tolerance: str = ""
    """Value of `MS_ENABLE_TFT` in the environment of the start."""
    logged_epoch: int | None = None
    """Batches per epoch when the checkpoint was saved, from the training log; None if the log does not show it."""
    deduplicated: bool | None = None
    """Whether the shards declare that each tensor is in only one shard; None if they declare nothing."""

    @property
    def keys(self) -> LoadKeys:
        """The keys of the plan's settings."""
        return load_keys(self.plan.load)


Rule: TypeAlias = "Callable[[Start], Iterator[Finding]]"


def loaded_instead(start: Start) -> tuple[Finding, ...]:
    """Report every way in which a start would load something other than the plan."""
    return tuple(brief(finding) for rule in RULES for finding in rule(start))


def _pattern(start: Start) -> Iterator[Finding]:
    """Report paths that `glob` does not treat literally.

    Source:
        load_checkpoint_with_safetensors (1.6.0 to 2.1.0) loads `glob(sf_file_name)`, and the newer layout and merged
        files are found by `glob(folder + "/*.safetensors")`; `.ckpt` files are opened by their name.
    """
    load = start.keys
    if load.load_ckpt_format != "safetensors":
        return
    name = load.resume_training if isinstance(load.resume_training, str) else ""
    for label, text, remedy in (
        ("path", start.load_path, "rename the folder, or give DIR as a link to it whose path has none of * ? ["),
        ("file name", name, "rename the files of this checkpoint, on every rank, to a name without * ? ["),
    ):
        signs = " and ".join(f"`{sign}`" for sign in sorted(_PATTERN & {*text}))
        if signs:
            yield suspect(
                MindFormersCode.PATH_IS_PATTERN,
                f"{signs} in the {label} {text} makes it a pattern: MindFormers loads the safetensors files that "
                "`glob` finds for it, which are other files or none, and then trains from random weights without a "
                "warning",
                remedy=remedy,
            )


def _one_device(start: Start) -> Iterator[Finding]:
    """Report safetensors in rank folders for a run without `use_parallel: True`.

    Source:
        validate_config_with_file_mode (1.6.0 to 2.1.0): "when input checkpoint file is rank dir, Please set
        use_parallel: True". Setting `load_checkpoint` to the file or its rank's folder also fails.
    """
    config = start.config
    if config is None or config.use_parallel is not False:
        return
    if start.inventory.layout == RANK_LAYOUT and start.keys.load_ckpt_format == "safetensors":
        yield suspect(
            MindFormersCode.RANK_FOLDER_ON_ONE_DEVICE,
            "without `use_parallel: True` MindFormers cannot load safetensors from rank folders: every start ends "
            "in a ValueError",
            remedy=(
                "convert the shards with mindspore.safetensors_to_ckpt (`ckpttool explain "
                "rank-folder-on-one-device` shows how), and set `checkpoint_format: ckpt` for the next run, which "
                "one device can load"
            ),
            path=config.path,
        )


def _next_to_the_ranks(start: Start) -> Iterator[Finding]:
    """Report names that end in `.ckpt` next to the ranks' folders.

    Source:
        check_ckpt_file_exist, called first by check_path_include_total_ckpt and by the loading of `.ckpt` files (1.3.2
        to 2.1.0): if there is one such name, all files with that ending are loaded into every rank. Only re-slicing
        (`auto_trans_ckpt`) uses the ranks' folders. Other code loads safetensors.
    """
    is_ckpt = start.keys.load_ckpt_format == "ckpt"
    reslices = start.config is not None and start.config.auto_trans_ckpt
    if start.inventory.layout != RANK_LAYOUT or not is_ckpt or reslices:
        return
    ckpt_files = [name for name in start.inventory.strays if "/" not in name and name.endswith(".ckpt")]
    if ckpt_files:
        more = f" and {len(ckpt_files) - 1} more" if len(ckpt_files) > 1 else ""
        yield suspect(
            MindFormersCode.CKPT_BESIDE_RANKS,
            f"{ckpt_files[0]}{more} beside the rank_N/ folders: every rank would load its weights instead of the "
            "chosen checkpoint's, and continue at the chosen checkpoint's step and data position without a warning",
            remedy=f"move files that end in .ckpt out of {start.load_path}",
            path=ckpt_files[0],
        )


def _resliced(start: Start) -> Iterator[Finding]:
    """Report other `.ckpt` files that resharding would load as weights.

    The named file still determines the step and the position.

    Source:
        TransformCkpt (1.3.2 to 2.1.0) gets only the folder. mindspore.transform_checkpoints uses the last name in each
        rank's folder; by rank, with `transform_process_num` or `transform_by_rank`, the newest time counts. Safetensors
        are re-sliced by the label of the named file.
    """
    config, checkpoint = start.config, start.plan.point.checkpoint
    if config is None or not _reslices_ckpt(start):
        return
    renamed = {rename.source: rename.target for rename in checkpoint.renames}
    names_by_folder: dict[str, set[str]] = {}
    for path in _ckpt_files(start.inventory):
        folder, _, file = renamed.get(path, path).rpartition("/")
        names_by_folder.setdefault(folder, set()).add(file)
    for shard in checkpoint.shards:
        folder, _, file = renamed.get(shard.path, shard.path).rpartition("/")
        files = names_by_folder[folder]
        if len(files) > 1 and (config.reslices_by_time or max(files) != file):
            taken = f"the newest .ckpt, not {file} alone" if config.reslices_by_time else f"{max(files)}, not {file}"
            yield suspect(
                MindFormersCode.RESLICING_PICKS,
                f"with `auto_trans_ckpt: True` MindFormers chooses the file to re-slice only by folder: in {folder}/ "
                f"it loads {taken}",
                remedy=_OWN_FOLDER,
                path=shard.path,
            )
            return


def _uncountable(start: Start) -> Iterator[Finding]:
    """Report names and gaps among the ranks' folders at which resharding of `.ckpt` files stops.

    Source:
        TransformCkpt.check_src_checkpoint_and_strategy (1.3.2 to 2.1.0): `int(name.split("_")[-1])` of all matches of
        `rank_*`, including files, must be 0, 1, 2 and so on.
    """
    if not _reslices_ckpt(start):
        return
    begins = "with `auto_trans_ckpt: True` MindFormers treats every name that begins with rank_ as a rank's folder"
    ranks = list(start.inventory.folder_ranks)
    for name in sorted(name for name in start.inventory.strays if name.startswith("rank_") and "/" not in name):
        tail = name.rpartition("_")[2]
        if not (tail.isascii() and tail.isdigit()):
            effect = f"{begins}, and ends in a ValueError on {name}"
            yield suspect(
                MindFormersCode.RESLICING_STOPS, effect, remedy=f"move {name} out of {start.load_path}", path=name
            )
            return
        ranks.append(Rank(int(tail)))
    gap = next((place for place, rank in enumerate(sorted(ranks)) if place != rank), None)
    if gap is not None:
        effect = f"{begins}, counts {len(ranks)}, and ends in a FileNotFoundError for rank_{gap}"
        yield suspect(MindFormersCode.RESLICING_STOPS, effect, remedy=_OWN_FOLDER)


def _reslices_ckpt(start: Start) -> bool:
    config, is_rank_layout = start.config, start.inventory.layout == RANK_LAYOUT
    return config is not None and config.auto_trans_ckpt and is_rank_layout and start.keys.load_ckpt_format == "ckpt"


def _ckpt_files(inventory: Inventory) -> Iterator[str]:
    """Yield every name in the ranks' folders that ends in `.ckpt`."""
    paths = (shard.path for checkpoint in inventory.checkpoints for shard in checkpoint.shards)
    breakpoints = (finding.path for finding in inventory.findings if finding.code is MindFormersCode.BREAKPOINT_FILE)
    for path in (*paths, *inventory.strays, *breakpoints):
        if path is not None and path.endswith(".ckpt"):
            yield path


def _rank_in_prefix(start: Start) -> Iterator[Finding]:
    """Report names in which MindFormers replaces the wrong number.

    It replaces the first rank in rank 0's name.

    Source:
        replace_rank_id_in_ckpt_name (1.3.2 to 2.1.0). From 1.7 on, a config with such a prefix is rejected.
    """
    if not isinstance(start.keys.resume_training, str):
        return
    checkpoint = start.plan.point.checkpoint
    renamed = {rename.source: rename.target for rename in checkpoint.renames}
    files = [(shard.rank or 0, renamed.get(shard.path, shard.path).rpartition("/")[2]) for shard in checkpoint.shards]
    for rank, file in files:
        expected = with_rank(files[0][1], rank)
        if expected != file:
            yield suspect(
                MindFormersCode.PREFIX_HOLDS_RANK,
                f"the prefix {checkpoint.prefix} contains a rank, and MindFormers inserts each rank's number there: "
                f"on rank {rank} it looks for {expected}, but the file is {file}",
                remedy="rename this checkpoint's files, on every rank, to a prefix without _rank_N",
                path=f"rank_{rank}/{file}",
            )
            return


def _no_optimizer(start: Start) -> Iterator[Finding]:
    """Report an iteration without optimizer shards, which `no_save_optim` permits.

    Source:
        load_checkpoint of the newer layout (1.7.0 to 2.1.0) leaves parameters unchanged that no file contains.
    """
    checkpoint, config = start.plan.point.checkpoint, start.config
    is_newer = start.inventory.layout == ITERATION_LAYOUT
    if not is_newer or any(shard.role is not ShardRole.MODEL for shard in checkpoint.shards):
        return
    is_meant = config is not None and (config.no_save_optim or config.no_load_optim)
    yield Finding(
        code=MindFormersCode.OPTIMIZER_MISSING,
        severity=Severity.NOTE if is_meant else Severity.SUSPECT,
        message=(
            f"{checkpoint.name} has no optimizer state: the training continues at step {checkpoint.step} with a "
            "re-initialized optimizer"
        ),
        path=checkpoint.name,
        remedy=(
            "restore its -opt- shards, or accept it with --allow optimizer-missing; if the training saves only "
            "weights, set `no_save_optim: True` in the config"
        ),
    )


def _fault_tolerance(start: Start) -> Iterator[Finding]:
    """Report an environment in which MindFormers chooses on its own.

    Source:
        check_tft_valid, training_process and resume_ckpt_path_with_strategy (1.6.0 to 2.1.0): the newest file of any
        rank, by modification time, regardless of `resume_training`. `MS_ENABLE_TFT` alone enables this.
    """
    config, name = start.config, start.keys.resume_training
    flags = [flag for flag in _FAULT_TOLERANCE if flag in start.fault_tolerance]
    if not flags or config is None or config.remove_redundancy is not False or not start.keys.use_legacy_format:
        return
    named = f"`resume_training: {name}`" if isinstance(name, str) else "the requested file"
    yield suspect(
        MindFormersCode.FAULT_TOLERANCE_PICKS,
        f"with {flags[0]} in MS_ENABLE_TFT and without `remove_redundancy: True` MindFormers ignores {named} and "
        "loads the file with the newest modification time of any rank",
        remedy="start this once without it: `unset MS_ENABLE_TFT`",
        path=config.path,
    )


def _redundancy(start: Start) -> Iterator[Finding]:
    """Report shards that each contain only some of the tensors, if no setting combines the shards.

    Source:
        load_param_into_net(remove_redundancy=True) requires a compiled network (MindSpore 2.7.2 and 2.10.0), and
        outside (semi-)automatic parallelism no network is compiled. For safetensors the file's own setting counts, for
        ckpt the config's.
    """
    config, load = start.config, start.keys
    if config is None or not config.data_parallel or not load.use_legacy_format or config.auto_trans_ckpt:
        return
    ends = "every start in data-parallel mode ends in 'the network should be compiled'"
    removes = start.deduplicated if load.load_ckpt_format == "safetensors" else None
    if removes:
        yield suspect(
            MindFormersCode.REDUNDANCY_NOT_LOADABLE,
            f"the shards were saved with `remove_redundancy`, so each has only a part of the tensors: {ends}",
            remedy=(
                "resume from a checkpoint that was saved without it (`--checkpoint NAME`), and do not use it in "
                "this mode"
            ),
        )
    elif removes is None and config.remove_redundancy:
        yield suspect(
            MindFormersCode.REDUNDANCY_NOT_LOADABLE,
            f"`remove_redundancy: True` is for shards with a part of the tensors each: {ends}",
            remedy="write `remove_redundancy: False`",
            path=config.path,
        )


def _length(start: Start) -> Iterator[Finding]:
    """Report a run that ends immediately, or before or after the end of its epochs."""
    if start.config is None and not is_moved(start.plan):
        return
    from ckpttool.trainers.mindformers.run_length import length_findings

    yield from length_findings(start.config, start.plan, start.inventory, start.logged_epoch)


RULES: tuple[Rule, ...] = (
    _fault_tolerance,
    _next_to_the_ranks,
    _resliced,
    _uncountable,
    _rank_in_prefix,
    _pattern,
    _one_device,
    _redundancy,
    _no_optimizer,
    _length,
)
"""All rules, in the order in which a start would encounter the problems."""
