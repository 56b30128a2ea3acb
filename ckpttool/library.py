"""The functions of `import ckpttool`: each has the options of its command as keywords, and prints nothing.

`python -m tests.pages` writes this module from the commands' options; do not edit it by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from ckpttool import imported

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from typing import Literal, NoReturn, TypeAlias

    from ckpttool.core.domain.contents import Contents
    from ckpttool.core.domain.data_position import DataQuestion, SkipAnswer
    from ckpttool.core.domain.demo import Demo
    from ckpttool.core.domain.finding import Finding
    from ckpttool.core.domain.launch import Fragment, Launch
    from ckpttool.core.domain.manifest import Sealed, Sealing
    from ckpttool.core.domain.node import Node
    from ckpttool.core.domain.plan import Resolution
    from ckpttool.core.domain.preflight import Lint, Preflight, PreflightQuestion, Refused
    from ckpttool.core.domain.question import (
        CheckQuestion,
        LaunchOrder,
        LogQuestion,
        ResumeQuestion,
        StartQuestion,
        TreeQuestion,
    )
    from ckpttool.core.domain.retention import Aim, PruneOrder, Pruning, Repair, RetentionPolicy, Trash
    from ckpttool.core.domain.verdict import ShardReport, Verdict, Verification
    from ckpttool.core.storage.disk import Disk
    from ckpttool.core.verbs.explaining import Explained
    from ckpttool.core.verbs.resolving import Answer
    from ckpttool.core.verbs.scanning import Tree, Where
    from ckpttool.core.verbs.verifying import Running
    from ckpttool.export.model import Exported, ExportQuestion
    from ckpttool.fp8.model.curves import CurvesAnswer, CurvesQuestion
    from ckpttool.fp8.model.plan import Fp8Plan, NoPlan, PlanQuestion
    from ckpttool.fp8.model.probe import Fp8Probe, ProbeQuestion
    from ckpttool.guard.model.capture import NanQuestion, NanReplay
    from ckpttool.health.model.answers import CalibrationAnswer, HealthAnswer, ReplayAnswer
    from ckpttool.health.model.questions import HealthQuestion, ReplayQuestion
    from ckpttool.health.verbs.replay import Logs
    from ckpttool.inspect.model import Difference
    from ckpttool.marks.model import MarkQuestion, Marks
    from ckpttool.nodes.model import PartQuestion, PartWritten
    from ckpttool.postflight.model.answers import Postflight
    from ckpttool.postflight.model.questions import PostflightQuestion
    from ckpttool.replicas.model import Healing, HealOrder
    from ckpttool.report.model import PageForm, ReportQuestion

    StrPath: TypeAlias = "str | os.PathLike[str]"

if TYPE_CHECKING:
    from ckpttool.core.verbs.fixing import fix_config as fix_config
    from ckpttool.core.verbs.launching import fragment as fragment
    from ckpttool.core.verbs.resolving import simulate as simulate
    from ckpttool.core.verbs.scanning import read_config as read_config
    from ckpttool.core.verbs.scanning import trees_below as trees_below
    from ckpttool.core.verbs.verifying import forecast as forecast
    from ckpttool.core.verbs.verifying import on_ray as on_ray
    from ckpttool.fp8.verbs.lint import fp8_lint as fp8_lint
    from ckpttool.fp8.verbs.verdict import fp8_verdict as fp8_verdict
    from ckpttool.guard.verbs.nan import inspect_nan as inspect_nan
    from ckpttool.guard.verbs.nan import list_nan as list_nan
    from ckpttool.guard.verbs.reports import guard_report as guard_report
    from ckpttool.health.verbs.asd import asd_defaults as asd_defaults
    from ckpttool.health.verbs.asd import check_asd as check_asd
    from ckpttool.health.verbs.asd import emit_asd as emit_asd
    from ckpttool.nodes.verbs import parts_of_nodes as parts_of_nodes
    from ckpttool.report.verbs import survey as survey
    from ckpttool.retention.verbs_trash import restore as restore

_PLACES = {
    "ckpttool.core.verbs.fixing": "fix_config",
    "ckpttool.core.verbs.launching": "fragment",
    "ckpttool.core.verbs.resolving": "simulate",
    "ckpttool.core.verbs.scanning": "read_config trees_below",
    "ckpttool.core.verbs.verifying": "forecast on_ray",
    "ckpttool.fp8.verbs.lint": "fp8_lint",
    "ckpttool.fp8.verbs.verdict": "fp8_verdict",
    "ckpttool.guard.verbs.nan": "inspect_nan list_nan",
    "ckpttool.guard.verbs.reports": "guard_report",
    "ckpttool.health.verbs.asd": "asd_defaults check_asd emit_asd",
    "ckpttool.nodes.verbs": "parts_of_nodes",
    "ckpttool.report.verbs": "survey",
    "ckpttool.retention.verbs_trash": "restore",
}

__all__ = [
    "asd_defaults",
    "calibrate",
    "check_asd",
    "demo",
    "diff",
    "emit_asd",
    "empty_trash",
    "explain",
    "export",
    "fix_config",
    "forecast",
    "fp8_compare",
    "fp8_lint",
    "fp8_plan",
    "fp8_probe",
    "fp8_verdict",
    "fragment",
    "guard_report",
    "heal",
    "health",
    "inspect",
    "inspect_nan",
    "launch",
    "lint_config",
    "list_nan",
    "mark",
    "on_ray",
    "part",
    "parts_of_nodes",
    "postflight",
    "preflight",
    "prune",
    "read_config",
    "repair_meta",
    "replay",
    "replay_nan",
    "report",
    "resolve",
    "restore",
    "scale_skip",
    "scan",
    "seal",
    "simulate",
    "survey",
    "trash",
    "trees_below",
    "verify",
]


if not TYPE_CHECKING:  # a type checker would take every name for one of ours

    def __getattr__(name: str) -> object:
        return imported(name, _PLACES, __name__)


def _answer(verb: str, given: dict[str, Any]) -> Any:  # noqa: ANN401  each function says what it returns
    from ckpttool.cli.asking import answer

    return answer(verb, given)


def scan(
    path: Where = None,
    *,
    layout: str | None = None,
    world_size: int | None = None,
    sink_size: int | None = None,
    health_file: StrPath | None = None,
    root: StrPath | None = None,
    skew: str | float | None = None,
    **unknown: NoReturn,
) -> Tree:
    """List the checkpoints of a tree: steps, ranks, expected number of ranks, sizes and recorded health.

    Args:
        path: Checkpoint folder, output folder, one rank's folder, or one shard. Or `TreeQuestion`.
        layout: Look only for checkpoints of this layout: mindformers-rank, mindformers-iteration, mindformers-unified,
            orbax, megatron, verl, skyrl, deepspeed, hf-trainer, accelerate, torchtitan, composer, lightning, olmo-core,
            automodel, torch-dcp, torch-files, loose-file.
        world_size: World size of the run, if the folders do not show it.
        sink_size: Batches per data sink, or steps per epoch without data sinking.
        health_file: Path of health_ckpts.json. Default: the file in or above DIR.
        root: Path of the checkpoint folder on the machines that wrote the parts.
        skew: Allowed clock difference between the machines that wrote the parts. Default: 60s.

    Raises:
        UnknownLayoutError: There is no tree at the path.
        UsageError: There are two trees, or the config belongs to a different trainer.
        IncompleteError: The tree's folder cannot be read.
    """
    return _answer("scan", locals())


@overload
def verify(
    path: StrPath | None = None,
    *,
    layout: str | None = None,
    world_size: int | None = None,
    sink_size: int | None = None,
    health_file: StrPath | None = None,
    root: StrPath | None = None,
    skew: str | float | None = None,
    level: Literal["structure", "checksum", "numerics"] = "structure",
    checkpoint: str | Sequence[str] | None = None,
    subset: str | None = None,
    jobs: int | None = None,
    timeout: str | float = "10m",
    jump: float | None = None,
    max_age: str | float = "24h",
    stats: StrPath | None = None,
    no_ledger: bool = False,
    no_replicas: bool = False,
    yes: bool = False,
    engine: Literal["threads", "ray"] = "threads",
    ray_address: str | None = None,
    **unknown: NoReturn,
) -> Verification: ...


@overload
def verify(
    path: Tree | TreeQuestion,
    question: CheckQuestion = ...,
) -> Running[ShardReport | Verdict, Verification]: ...


@overload
def verify(
    path: StrPath | None,
    question: CheckQuestion,
    /,
) -> Running[ShardReport | Verdict, Verification]: ...


def verify(
    path: Tree | Where = None,
    question: CheckQuestion | None = None,
    *,
    layout: str | None = None,
    world_size: int | None = None,
    sink_size: int | None = None,
    health_file: StrPath | None = None,
    root: StrPath | None = None,
    skew: str | float | None = None,
    level: Literal["structure", "checksum", "numerics"] = "structure",
    checkpoint: str | Sequence[str] | None = None,
    subset: str | None = None,
    jobs: int | None = None,
    timeout: str | float = "10m",
    jump: float | None = None,
    max_age: str | float = "24h",
    stats: StrPath | None = None,
    no_ledger: bool = False,
    no_replicas: bool = False,
    yes: bool = False,
    engine: Literal["threads", "ray"] = "threads",
    ray_address: str | None = None,
    **unknown: NoReturn,
) -> Any:
    """Check the shards of one or all checkpoints.

    Args:
        path: Checkpoint folder, output folder, one rank's folder, or one shard. Or `Tree` or `TreeQuestion`.
        question: The shards to check, and how thoroughly.
        layout: Look only for checkpoints of this layout: mindformers-rank, mindformers-iteration, mindformers-unified,
            orbax, megatron, verl, skyrl, deepspeed, hf-trainer, accelerate, torchtitan, composer, lightning, olmo-core,
            automodel, torch-dcp, torch-files, loose-file.
        world_size: World size of the run, if the folders do not show it.
        sink_size: Batches per data sink, or steps per epoch without data sinking.
        health_file: Path of health_ckpts.json. Default: the file in or above DIR.
        root: Path of the checkpoint folder on the machines that wrote the parts.
        skew: Allowed clock difference between the machines that wrote the parts. Default: 60s.
        level: Check headers, every byte, or every element.
        checkpoint: Checkpoint name, latest (the default) or all; repeatable.
        subset: Read only part N of T, or a share or amount that rotates daily.
        jobs: Number of reader threads. Default: one per core.
        timeout: Time after which a read is considered hung (a bare number is seconds).
        jump: Factor by which a norm must change to be suspect; 0: do not compare. Default: 1000.
        max_age: Reuse the result for an unchanged file for this long, such as 7d (a bare number is hours).
        stats: Write statistics per tensor as JSON lines; needs --level numerics.
        no_ledger: Read everything again, ignoring earlier results.
        no_replicas: Do not read other checkpoints to find out which ranks have copies.
        yes: Confirm reading more than 1 TiB from an object store, if there is no terminal.
        engine: Read in this process, or on the nodes of a running Ray cluster.
        ray_address: Address of a running Ray cluster. Default: RAY_ADDRESS.

    Returns:
        Each shard's report as it is finished, then the verdict on its checkpoint; newest checkpoint first.

    Raises:
        UsageError: The named checkpoint does not exist.
    """
    return _answer("verify", locals())


def inspect(
    what: StrPath | None = None,
    *,
    tree: StrPath | None = None,
    checkpoint: str | Sequence[str] | None = None,
    tensor: str | Sequence[str] | None = None,
    stats: bool = False,
    layout: str | None = None,
    **unknown: NoReturn,
) -> Contents:
    """Show the tensors and scalars of a shard or a checkpoint, the program that wrote it, and its checksums.

    A damaged file is shown as far as it can be read.

    Args:
        what: A shard of any format, a checkpoint folder, DIR:NAME, or a checkpoint's name.
        tree: Tree in which checkpoint names are looked up.
        checkpoint: Name of a checkpoint. Default: the newest.
        tensor: Use only tensors whose name matches (* and ? as in a shell); repeatable.
        stats: Also read the data, and show its norm, extremes, NaN, infinities and zeros.
        layout: Look only for checkpoints of this layout: mindformers-rank, mindformers-iteration, mindformers-unified,
            orbax, megatron, verl, skyrl, deepspeed, hf-trainer, accelerate, torchtitan, composer, lightning, olmo-core,
            automodel, torch-dcp, torch-files, loose-file.

    Raises:
        UnknownLayoutError: ckpttool recognizes nothing there.
        UsageError: No checkpoint or no tensor has that name.
        NothingToResumeError: The tree has no checkpoint.
        IncompleteError: The tree's folder cannot be read.
    """
    return _answer("inspect", locals())


def diff(
    a: StrPath,
    b: StrPath,
    *,
    tree: StrPath | None = None,
    checkpoint: str | Sequence[str] | None = None,
    layout: str | None = None,
    level: Literal["structure", "checksum", "numerics"] | None = None,
    tensor: str | Sequence[str] | None = None,
    exit_code: bool = False,
    **unknown: NoReturn,
) -> Difference:
    """Compare two shards or two checkpoints: tensors, scalars, and how far values moved.

    Args:
        a: A shard of any format, a tree (its newest intact checkpoint), DIR:NAME, or a checkpoint's name.
        b: What to compare A with: a shard, tree or checkpoint, of the same kind as A.
        tree: Tree in which checkpoint names are looked up.
        checkpoint: Name of a checkpoint. Default: the newest.
        layout: Look only for checkpoints of this layout: mindformers-rank, mindformers-iteration, mindformers-unified,
            orbax, megatron, verl, skyrl, deepspeed, hf-trainer, accelerate, torchtitan, composer, lightning, olmo-core,
            automodel, torch-dcp, torch-files, loose-file.
        level: Compare headers, every bit, or every element.
        tensor: Use only tensors whose name matches (* and ? as in a shell); repeatable.
        exit_code: Exit with 10 if a tensor differs.

    Raises:
        UnknownLayoutError: ckpttool recognizes nothing there.
        UsageError: No checkpoint or no tensor has that name, or only one side is a file.
        NothingToResumeError: A tree has no checkpoint.
        IncompleteError: A tree's folder cannot be read.
    """
    return _answer("diff", locals())


def export(
    what: StrPath | None = None,
    question: ExportQuestion | None = None,
    *,
    output: StrPath | None = None,
    tree: StrPath | None = None,
    checkpoint: str | Sequence[str] | None = None,
    layout: str | None = None,
    level: Literal["structure", "checksum", "numerics"] = "structure",
    part: str | None = None,
    half: bool = False,
    replicated: bool = False,
    unstack: bool = False,
    keep_tied: bool = False,
    max_shard: str | None = None,
    dtype: Literal["stored", "bf16", "fp32"] = "stored",
    config_from: StrPath | None = None,
    **unknown: NoReturn,
) -> Exported:
    """Write the weights of a checkpoint as safetensors files into a new folder.

    Nothing is written if the checkpoint is damaged, or its records do not show where each element of the weights is.
    Every file is read back from the disk before the folder gets its name.

    Args:
        what: A shard of any format, a checkpoint folder, DIR:NAME, or a checkpoint's name.
        question: The output folder, and the form of the output.
        output: Folder for the output; it must not exist, or must be empty.
        tree: Tree in which checkpoint names are looked up.
        checkpoint: Name of a checkpoint. Default: the newest.
        layout: Look only for checkpoints of this layout: mindformers-rank, mindformers-iteration, mindformers-unified,
            orbax, megatron, verl, skyrl, deepspeed, hf-trainer, accelerate, torchtitan, composer, lightning, olmo-core,
            automodel, torch-dcp, torch-files, loose-file.
        level: How thoroughly to check the shards before the export.
        part: Model to export if the save has several, such as actor or critic.
        half: Export the 16-bit weights instead of the FP32 master weights, if the save has both.
        replicated: State that every rank has all weights (pure data parallelism), if the save does not record it.
        unstack: Write each layer as a tensor of its own if the save stacks layers.
        keep_tied: Write shared weights under each of their names, instead of once.
        max_shard: Maximum size of the weights per file.
        dtype: Element type of floating-point weights; FP8 and integers are unchanged.
        config_from: Folder of the base model, to copy config.json and the tokenizer if the save lacks them.

    Raises:
        UnknownLayoutError: ckpttool recognizes nothing there.
        UsageError: No checkpoint has that name, or the output folder exists and is not empty.
        NothingToResumeError: The tree has no checkpoint.
        IncompleteError: The tree's folder cannot be read.
        LockedError: Another process is writing the same output.
        WriteFailedError: The output could not be written; nothing of it remains.
        NotDurableError: The output was written, but the disk did not confirm it.
    """
    return _answer("export", locals())


def resolve(
    path: Where = None,
    choice: ResumeQuestion | None = None,
    data: DataQuestion | None = None,
    start: StartQuestion | None = None,
    *,
    node: Node | None = None,
    layout: str | None = None,
    world_size: int | None = None,
    sink_size: int | None = None,
    health_file: StrPath | None = None,
    root: StrPath | None = None,
    skew: str | float | None = None,
    level: Literal["structure", "checksum", "numerics"] = "structure",
    checkpoint: str | Sequence[str] | None = None,
    prefix: str | None = None,
    require_health: bool | None = None,
    allow_unknown_health: bool | None = None,
    ignore_health: bool = False,
    before: int | None = None,
    allow_renames: bool = False,
    allow_weights_only: bool = False,
    tp: int | None = None,
    pp: int | None = None,
    dp: int | None = None,
    max_lost_steps: int | None = None,
    max_lost_time: str | None = None,
    health_threshold: float | None = None,
    threshold: float | None = None,
    log: StrPath | Sequence[StrPath] | None = None,
    columns: str | None = None,
    spikes_from: StrPath | Sequence[StrPath] | None = None,
    health_timeline: StrPath | Sequence[StrPath] | None = None,
    spike_threshold: float | None = None,
    around_spike: int | str | None = None,
    margin: str | float | None = None,
    or_start: bool = False,
    save_every: int | None = None,
    gbs: int | None = None,
    new_gbs: int | None = None,
    old_gbs: int | None = None,
    segment: str | Sequence[str] | None = None,
    new_dataset: bool = False,
    dataset_changed_at: int | str | None = None,
    engine: Literal["threads", "ray"] = "threads",
    ray_address: str | None = None,
    config: StrPath | None = None,
    strict: bool = False,
    simulate: str | None = None,
    simulate_mindformers: str | None = None,
    **unknown: NoReturn,
) -> Answer:
    """Choose the checkpoint to resume from, and compute where the data starts.

    Before returning, checks that the files of the chosen checkpoint have not changed since they were read.

    Args:
        path: Checkpoint folder, output folder, one rank's folder, or one shard. Or `TreeQuestion`.
        choice: The checkpoints that may be chosen.
        data: The changes to the data.
        start: Whether to accept a run that has never saved, which then starts from scratch.
        node: The disk and the launchers; None for this machine's.
        layout: Look only for checkpoints of this layout: mindformers-rank, mindformers-iteration, mindformers-unified,
            orbax, megatron, verl, skyrl, deepspeed, hf-trainer, accelerate, torchtitan, composer, lightning, olmo-core,
            automodel, torch-dcp, torch-files, loose-file.
        world_size: World size of the run, if the folders do not show it.
        sink_size: Batches per data sink, or steps per epoch without data sinking.
        health_file: Path of health_ckpts.json. Default: the file in or above DIR.
        root: Path of the checkpoint folder on the machines that wrote the parts.
        skew: Allowed clock difference between the machines that wrote the parts. Default: 60s.
        level: How thoroughly to check the shards.
        checkpoint: Use exactly this checkpoint, or fail: 20_2, _1-25_2, …
        prefix: Use only files with this name prefix, if several runs share DIR.
        require_health: Reject checkpoints of unknown health, or accept them even if the health record is unreadable.
        allow_unknown_health: The opposite of `require_health`.
        ignore_health: Also accept unhealthy checkpoints.
        before: Use only checkpoints at or before this step.
        allow_renames: Accept a checkpoint whose files must be renamed first, and list the files.
        allow_weights_only: Accept a checkpoint without optimizer state, which is re-initialized.
        tp: Tensor-parallel size of the next run.
        pp: Pipeline stages of the next run.
        dp: Data-parallel size of the next run.
        max_lost_steps: Exit with 10 if more than N steps must be redone.
        max_lost_time: Exit with 10 if more than this time must be redone (90m, 2h, 1d); with 14 if unknown.
        health_threshold: Embedding local norm (sum of squares) at which a checkpoint is unhealthy; needs a log. Also:
            --threshold.
        threshold: The same as `health_threshold`.
        log: Training log; repeatable. Default: the logs in the parent folders of DIR.
        columns: CSV columns, JSON fields or TensorBoard tags to read: step=iter,loss=train/loss.
        spikes_from: Skip checkpoints that are suspect by this log or the JSON of `log replay`. Also: --health-timeline.
        health_timeline: The same as `spikes_from`.
        spike_threshold: Global norm at which a step is a spike. Default: a robust z-score.
        around_spike: Resume past the spike at STEP or the last spike, or after a stop.
        margin: Time before a strike's first event that is also suspect, such as 2h (a bare number is minutes).
        or_start: Also accept a run without any save or trace of one: it starts from scratch, exit 0.
        save_every: With --or-start: steps between saves; a log that ends before the first is ignored. Default:
            --config.
        gbs: Global batch size of the resumed run. Used for the calculation; does not change the config. Default: from
            --config, else unchanged.
        new_gbs: The same as `gbs`.
        old_gbs: Previous global batch size, if the shards do not record it (MindFormers 1.2).
        segment: Past steps at another batch size, oldest first; repeatable.
        new_dataset: Read the data from the beginning.
        dataset_changed_at: Step at which the data set was replaced (in batches of GBS samples); skip only the data read
            since.
        engine: Read in this process, or on the nodes of a running Ray cluster.
        ray_address: Address of a running Ray cluster. Default: RAY_ADDRESS.
        config: Training config, to read world size, batch size and sink size from.
        strict: Exit with 10 if a newer checkpoint was skipped.
        simulate: Also show what the trainer itself would load: own (this tree's trainer) or a trainer's name.
        simulate_mindformers: Same as --simulate, for this version of MindFormers.

    Raises:
        UnknownLayoutError: There is no tree at the path, or nothing in it can be loaded by its trainer.
        NothingToResumeError: A start from scratch is accepted, but there is a trace of an earlier save.
        UsageError: An option is invalid, or the config belongs to a different trainer.
        IncompleteError: The tree cannot be read, or changed while it was read.
    """
    return _answer("resolve", locals())


def health(
    path: Tree | Where = None,
    question: HealthQuestion | None = None,
    verdicts: Sequence[Verdict] | None = None,
    *,
    layout: str | None = None,
    world_size: int | None = None,
    sink_size: int | None = None,
    health_file: StrPath | None = None,
    root: StrPath | None = None,
    skew: str | float | None = None,
    threshold: float | None = None,
    log: StrPath | Sequence[StrPath] | None = None,
    columns: str | None = None,
    write: bool = False,
    from_weights: bool = False,
    config: StrPath | None = None,
    **unknown: NoReturn,
) -> HealthAnswer:
    """Check which checkpoints are healthy: by the training log, the recorded health, and the shards.

    Args:
        path: Checkpoint folder, output folder, one rank's folder, or one shard. Or `Tree` or `TreeQuestion`.
        question: The threshold and the evidence to judge by.
        verdicts: The verdicts on the tree's checkpoints at level NUMERICS, to judge the shards as well.
        layout: Look only for checkpoints of this layout: mindformers-rank, mindformers-iteration, mindformers-unified,
            orbax, megatron, verl, skyrl, deepspeed, hf-trainer, accelerate, torchtitan, composer, lightning, olmo-core,
            automodel, torch-dcp, torch-files, loose-file.
        world_size: World size of the run, if the folders do not show it.
        sink_size: Batches per data sink, or steps per epoch without data sinking.
        health_file: Path of health_ckpts.json. Default: the file in or above DIR.
        root: Path of the checkpoint folder on the machines that wrote the parts.
        skew: Allowed clock difference between the machines that wrote the parts. Default: 60s.
        threshold: Embedding local norm (sum of squares) at which a checkpoint is unhealthy.
        log: Training log; repeatable. Default: the logs in the parent folders of DIR.
        columns: CSV columns, JSON fields or TensorBoard tags to read: step=iter,loss=train/loss.
        write: Update health_ckpts.json from the log, and keep the old file as .bak.
        from_weights: Read every shard to find NaN and infinite values, and to compute embedding norms.
        config: Training config, to read world size, batch size and sink size from.

    Raises:
        UsageError: A log does not exist, or the question is invalid.
        IncompleteError: With `write`, a log could not be read to the end.
        LockedError: Another process writes the health file.
        UnsafeError: The record is not in a folder of this machine, so it cannot be written.
        WriteFailedError: The record could not be written; nothing was changed.
        NotDurableError: The record was written, but the disk did not confirm it.
    """
    return _answer("health", locals())


def scale_skip(
    path: StrPath | DataQuestion | None = None,
    *,
    new_gbs: int | None = None,
    gbs: int | None = None,
    old_gbs: int | None = None,
    steps: int | None = None,
    step: int | None = None,
    segment: str | Sequence[str] | None = None,
    sink_size: int | None = None,
    **unknown: NoReturn,
) -> SkipAnswer:
    """Compute the number of batches to skip after the global batch size changed.

    Args:
        path: Checkpoint tree whose resume point provides the steps and the old batch size. Or `DataQuestion`.
        new_gbs: New global batch size.
        gbs: The same as `new_gbs`.
        old_gbs: Previous global batch size.
        steps: Batches consumed so far. Default: taken from the resume point of DIR.
        step: The same as `steps`.
        segment: Past steps at another batch size, oldest first; repeatable.
        sink_size: Batches per data sink in the resumed run.

    Raises:
        UsageError: Steps or the old batch size are unknown.
    """
    return _answer("scale_skip", locals())


@overload
def launch(
    path: StrPath | None = None,
    *,
    layout: str | None = None,
    world_size: int | None = None,
    sink_size: int | None = None,
    health_file: StrPath | None = None,
    root: StrPath | None = None,
    skew: str | float | None = None,
    level: Literal["structure", "checksum", "numerics"] = "structure",
    checkpoint: str | Sequence[str] | None = None,
    prefix: str | None = None,
    require_health: bool | None = None,
    allow_unknown_health: bool | None = None,
    ignore_health: bool = False,
    before: int | None = None,
    allow_renames: bool = False,
    allow_weights_only: bool = False,
    tp: int | None = None,
    pp: int | None = None,
    dp: int | None = None,
    max_lost_steps: int | None = None,
    max_lost_time: str | None = None,
    health_threshold: float | None = None,
    threshold: float | None = None,
    log: StrPath | Sequence[StrPath] | None = None,
    columns: str | None = None,
    spikes_from: StrPath | Sequence[StrPath] | None = None,
    health_timeline: StrPath | Sequence[StrPath] | None = None,
    spike_threshold: float | None = None,
    around_spike: int | str | None = None,
    margin: str | float | None = None,
    or_start: bool = False,
    save_every: int | None = None,
    gbs: int | None = None,
    new_gbs: int | None = None,
    old_gbs: int | None = None,
    segment: str | Sequence[str] | None = None,
    new_dataset: bool = False,
    dataset_changed_at: int | str | None = None,
    nodes: int = 1,
    devices_per_node: int | None = None,
    master_addr: str | None = None,
    script: StrPath | None = None,
    force: bool = False,
    strict: bool = False,
    allow: str | Sequence[str] | None = None,
    load_checkpoint: StrPath | None = None,
    after_failed_starts: int | None = None,
    dry_run: bool = False,
    config: StrPath | None = None,
    output: StrPath | None = None,
    **unknown: NoReturn,
) -> Launch | Fragment | Preflight: ...


@overload
def launch(
    path: TreeQuestion,
    choice: ResumeQuestion = ...,
    data: DataQuestion = ...,
    start: StartQuestion = ...,
    *,
    order: LaunchOrder,
    disk: Disk | None = ...,
    node: Node | None = ...,
) -> Launch | Refused: ...


@overload
def launch(
    path: StrPath | None,
    choice: ResumeQuestion,
    /,
    data: DataQuestion = ...,
    start: StartQuestion = ...,
    *,
    order: LaunchOrder,
    disk: Disk | None = ...,
    node: Node | None = ...,
) -> Launch | Refused: ...


def launch(
    path: Where = None,
    choice: ResumeQuestion | None = None,
    data: DataQuestion | None = None,
    start: StartQuestion | None = None,
    *,
    order: LaunchOrder | None = None,
    disk: Disk | None = None,
    node: Node | None = None,
    layout: str | None = None,
    world_size: int | None = None,
    sink_size: int | None = None,
    health_file: StrPath | None = None,
    root: StrPath | None = None,
    skew: str | float | None = None,
    level: Literal["structure", "checksum", "numerics"] = "structure",
    checkpoint: str | Sequence[str] | None = None,
    prefix: str | None = None,
    require_health: bool | None = None,
    allow_unknown_health: bool | None = None,
    ignore_health: bool = False,
    before: int | None = None,
    allow_renames: bool = False,
    allow_weights_only: bool = False,
    tp: int | None = None,
    pp: int | None = None,
    dp: int | None = None,
    max_lost_steps: int | None = None,
    max_lost_time: str | None = None,
    health_threshold: float | None = None,
    threshold: float | None = None,
    log: StrPath | Sequence[StrPath] | None = None,
    columns: str | None = None,
    spikes_from: StrPath | Sequence[StrPath] | None = None,
    health_timeline: StrPath | Sequence[StrPath] | None = None,
    spike_threshold: float | None = None,
    around_spike: int | str | None = None,
    margin: str | float | None = None,
    or_start: bool = False,
    save_every: int | None = None,
    gbs: int | None = None,
    new_gbs: int | None = None,
    old_gbs: int | None = None,
    segment: str | Sequence[str] | None = None,
    new_dataset: bool = False,
    dataset_changed_at: int | str | None = None,
    nodes: int = 1,
    devices_per_node: int | None = None,
    master_addr: str | None = None,
    script: StrPath | None = None,
    force: bool = False,
    strict: bool = False,
    allow: str | Sequence[str] | None = None,
    load_checkpoint: StrPath | None = None,
    after_failed_starts: int | None = None,
    dry_run: bool = False,
    config: StrPath | None = None,
    output: StrPath | None = None,
    **unknown: NoReturn,
) -> Any:
    """Write a config that resumes from the checkpoint that `resolve` chose, and return the start commands.

    Only the settings for the resume change; the comments, order and quoting of the base config are preserved. The
    new file is written last and atomically, after all checks have passed.

    Args:
        path: Checkpoint folder, output folder, one rank's folder, or one shard. Or `TreeQuestion`.
        choice: The checkpoints that may be chosen.
        data: The changes to the data.
        start: Whether to accept a run that has never saved.
        order: The config to write, the machines, and the accepted findings.
        disk: As in `preflight`.
        node: As in `preflight`.
        layout: Look only for checkpoints of this layout: mindformers-rank, mindformers-iteration, mindformers-unified,
            orbax, megatron, verl, skyrl, deepspeed, hf-trainer, accelerate, torchtitan, composer, lightning, olmo-core,
            automodel, torch-dcp, torch-files, loose-file.
        world_size: World size of the run, if the folders do not show it.
        sink_size: Batches per data sink, or steps per epoch without data sinking.
        health_file: Path of health_ckpts.json. Default: the file in or above DIR.
        root: Path of the checkpoint folder on the machines that wrote the parts.
        skew: Allowed clock difference between the machines that wrote the parts. Default: 60s.
        level: How thoroughly to check the shards.
        checkpoint: Use exactly this checkpoint, or fail: 20_2, _1-25_2, …
        prefix: Use only files with this name prefix, if several runs share DIR.
        require_health: Reject checkpoints of unknown health, or accept them even if the health record is unreadable.
        allow_unknown_health: The opposite of `require_health`.
        ignore_health: Also accept unhealthy checkpoints.
        before: Use only checkpoints at or before this step.
        allow_renames: Accept a checkpoint whose files must be renamed first, and list the files.
        allow_weights_only: Accept a checkpoint without optimizer state, which is re-initialized.
        tp: Tensor-parallel size of the next run.
        pp: Pipeline stages of the next run.
        dp: Data-parallel size of the next run.
        max_lost_steps: Exit with 10 if more than N steps must be redone.
        max_lost_time: Exit with 10 if more than this time must be redone (90m, 2h, 1d); with 14 if unknown.
        health_threshold: Embedding local norm (sum of squares) at which a checkpoint is unhealthy; needs a log. Also:
            --threshold.
        threshold: The same as `health_threshold`.
        log: Training log; repeatable. Default: the logs in the parent folders of DIR.
        columns: CSV columns, JSON fields or TensorBoard tags to read: step=iter,loss=train/loss.
        spikes_from: Skip checkpoints that are suspect by this log or the JSON of `log replay`. Also: --health-timeline.
        health_timeline: The same as `spikes_from`.
        spike_threshold: Global norm at which a step is a spike. Default: a robust z-score.
        around_spike: Resume past the spike at STEP or the last spike, or after a stop.
        margin: Time before a strike's first event that is also suspect, such as 2h (a bare number is minutes).
        or_start: Also accept a run without any save or trace of one: it starts from scratch, exit 0.
        save_every: With --or-start: steps between saves; a log that ends before the first is ignored. Default:
            --config.
        gbs: Global batch size of the resumed run. Used for the calculation; does not change the config. Default: from
            --config, else unchanged.
        new_gbs: The same as `gbs`.
        old_gbs: Previous global batch size, if the shards do not record it (MindFormers 1.2).
        segment: Past steps at another batch size, oldest first; repeatable.
        new_dataset: Read the data from the beginning.
        dataset_changed_at: Step at which the data set was replaced (in batches of GBS samples); skip only the data read
            since.
        nodes: Number of nodes; prints one command for each.
        devices_per_node: Devices per node. Default: the world size divided by the nodes.
        master_addr: Address of node 0, for a launch on several nodes.
        script: MindFormers' entry script. [default: run_mindformer.py]
        force: Replace NEW.yaml, and keep the old one as .bak.
        strict: Write nothing and exit with 10 if a newer checkpoint was skipped.
        allow: Accept findings with this code; repeatable.
        load_checkpoint: Path of the local copy, if the tree is in an object store.
        after_failed_starts: Count this launch as a start. After N starts without a newer save, mark their checkpoint as
            bad.
        dry_run: Show the result without writing anything.
        config: Training config to start from; it is not changed.
        output: Path of the launch config to write.

    Returns:
        The launch; if it is stopped, the preflight with every reason, and nothing is written.

    Raises:
        CkptToolError: The base config cannot be used, or the output exists and may not be replaced.
    """
    return _answer("launch", locals())


def preflight(
    path: StrPath | PreflightQuestion | None = None,
    config: StrPath | None = None,
    *,
    disk: Disk | None = None,
    node: Node | None = None,
    layout: str | None = None,
    world_size: int | None = None,
    sink_size: int | None = None,
    health_file: StrPath | None = None,
    root: StrPath | None = None,
    skew: str | float | None = None,
    level: Literal["structure", "checksum", "numerics"] = "structure",
    checkpoint: str | Sequence[str] | None = None,
    prefix: str | None = None,
    require_health: bool | None = None,
    allow_unknown_health: bool | None = None,
    ignore_health: bool = False,
    before: int | None = None,
    allow_renames: bool = False,
    allow_weights_only: bool = False,
    tp: int | None = None,
    pp: int | None = None,
    dp: int | None = None,
    max_lost_steps: int | None = None,
    max_lost_time: str | None = None,
    health_threshold: float | None = None,
    threshold: float | None = None,
    log: StrPath | Sequence[StrPath] | None = None,
    columns: str | None = None,
    spikes_from: StrPath | Sequence[StrPath] | None = None,
    health_timeline: StrPath | Sequence[StrPath] | None = None,
    spike_threshold: float | None = None,
    around_spike: int | str | None = None,
    margin: str | float | None = None,
    or_start: bool = False,
    save_every: int | None = None,
    gbs: int | None = None,
    new_gbs: int | None = None,
    old_gbs: int | None = None,
    segment: str | Sequence[str] | None = None,
    new_dataset: bool = False,
    dataset_changed_at: int | str | None = None,
    engine: Literal["threads", "ray"] = "threads",
    ray_address: str | None = None,
    report: StrPath | Sequence[StrPath] | None = None,
    allow: str | Sequence[str] | None = None,
    devices: int | None = None,
    strict: bool = False,
    **unknown: NoReturn,
) -> Preflight:
    """Check whether a launch now would resume from the chosen checkpoint, and list every reason against it.

    An error in a check is reported as a reason, so there is always an answer. Changes nothing.

    Args:
        path: Checkpoint folder, output folder, one rank's folder, or one shard. Or `PreflightQuestion`.
        config: Training config of the launch, if the trainer uses one.
        disk: The source of free space and permissions; None for the file systems of this machine.
        node: The source of facts about this disk and other machines; None for this machine.
        layout: Look only for checkpoints of this layout: mindformers-rank, mindformers-iteration, mindformers-unified,
            orbax, megatron, verl, skyrl, deepspeed, hf-trainer, accelerate, torchtitan, composer, lightning, olmo-core,
            automodel, torch-dcp, torch-files, loose-file.
        world_size: World size of the run, if the folders do not show it.
        sink_size: Batches per data sink, or steps per epoch without data sinking.
        health_file: Path of health_ckpts.json. Default: the file in or above DIR.
        root: Path of the checkpoint folder on the machines that wrote the parts.
        skew: Allowed clock difference between the machines that wrote the parts. Default: 60s.
        level: How thoroughly to check the shards.
        checkpoint: Use exactly this checkpoint, or fail: 20_2, _1-25_2, …
        prefix: Use only files with this name prefix, if several runs share DIR.
        require_health: Reject checkpoints of unknown health, or accept them even if the health record is unreadable.
        allow_unknown_health: The opposite of `require_health`.
        ignore_health: Also accept unhealthy checkpoints.
        before: Use only checkpoints at or before this step.
        allow_renames: Accept a checkpoint whose files must be renamed first, and list the files.
        allow_weights_only: Accept a checkpoint without optimizer state, which is re-initialized.
        tp: Tensor-parallel size of the next run.
        pp: Pipeline stages of the next run.
        dp: Data-parallel size of the next run.
        max_lost_steps: Exit with 10 if more than N steps must be redone.
        max_lost_time: Exit with 10 if more than this time must be redone (90m, 2h, 1d); with 14 if unknown.
        health_threshold: Embedding local norm (sum of squares) at which a checkpoint is unhealthy; needs a log. Also:
            --threshold.
        threshold: The same as `health_threshold`.
        log: Training log; repeatable. Default: the logs in the parent folders of DIR.
        columns: CSV columns, JSON fields or TensorBoard tags to read: step=iter,loss=train/loss.
        spikes_from: Skip checkpoints that are suspect by this log or the JSON of `log replay`. Also: --health-timeline.
        health_timeline: The same as `spikes_from`.
        spike_threshold: Global norm at which a step is a spike. Default: a robust z-score.
        around_spike: Resume past the spike at STEP or the last spike, or after a stop.
        margin: Time before a strike's first event that is also suspect, such as 2h (a bare number is minutes).
        or_start: Also accept a run without any save or trace of one: it starts from scratch, exit 0.
        save_every: With --or-start: steps between saves; a log that ends before the first is ignored. Default:
            --config.
        gbs: Global batch size of the resumed run. Used for the calculation; does not change the config. Default: from
            --config, else unchanged.
        new_gbs: The same as `gbs`.
        old_gbs: Previous global batch size, if the shards do not record it (MindFormers 1.2).
        segment: Past steps at another batch size, oldest first; repeatable.
        new_dataset: Read the data from the beginning.
        dataset_changed_at: Step at which the data set was replaced (in batches of GBS samples); skip only the data read
            since.
        engine: Read in this process, or on the nodes of a running Ray cluster.
        ray_address: Address of a running Ray cluster. Default: RAY_ADDRESS.
        report: Also write a report, as in junit=out.xml, to a new file or over an earlier report; repeatable.
        allow: Accept findings with this code; repeatable.
        devices: Total number of devices to start on all nodes.
        strict: Answer no-go if a newer checkpoint was skipped.
    """
    return _answer("preflight", locals())


@overload
def postflight(
    path: StrPath | None = None,
    *,
    before: StrPath | Sequence[StrPath] | None = None,
    after: StrPath | Sequence[StrPath] | None = None,
    columns: str | None = None,
    from_step: int | None = None,
    wait: str | float | None = None,
    layout: str | None = None,
    config: StrPath | None = None,
    report: StrPath | Sequence[StrPath] | None = None,
    allow: str | Sequence[str] | None = None,
    **unknown: NoReturn,
) -> Postflight: ...


@overload
def postflight(
    path: TreeQuestion,
    question: PostflightQuestion = ...,
) -> Postflight: ...


@overload
def postflight(
    path: StrPath | None,
    question: PostflightQuestion,
    /,
) -> Postflight: ...


def postflight(
    path: Where = None,
    question: PostflightQuestion | None = None,
    *,
    before: StrPath | Sequence[StrPath] | None = None,
    after: StrPath | Sequence[StrPath] | None = None,
    columns: str | None = None,
    from_step: int | None = None,
    wait: str | float | None = None,
    layout: str | None = None,
    config: StrPath | None = None,
    report: StrPath | Sequence[StrPath] | None = None,
    allow: str | Sequence[str] | None = None,
    **unknown: NoReturn,
) -> Any:
    """Judge whether a run resumed as planned, by its log and the log of the run before it.

    Args:
        path: Checkpoint folder, or the JSON of `ckpttool resolve`; - reads it from stdin. Or `TreeQuestion`.
        question: The logs, and the step of the save.
        before: Log of the first run; repeatable. Default: the logs near DIR.
        after: Log of the resumed run; repeatable. Default: the logs near DIR.
        columns: CSV columns, JSON fields or TensorBoard tags to read: step=iter,loss=train/loss.
        from_step: Step of the checkpoint that the run should have resumed from. Default: from PLAN.json, else the
            newest save before the first new step.
        wait: Wait up to this long until the logs show the answer, such as 10m (a bare number is minutes).
        layout: Look only for checkpoints of this layout: mindformers-rank, mindformers-iteration, mindformers-unified,
            orbax, megatron, verl, skyrl, deepspeed, hf-trainer, accelerate, torchtitan, composer, lightning, olmo-core,
            automodel, torch-dcp, torch-files, loose-file.
        config: Training config, to read world size, batch size and sink size from.
        report: Also write a report, as in junit=out.xml, to a new file or over an earlier report; repeatable.
        allow: Accept findings with this code; repeatable.

    Raises:
        UsageError: A log or the plan does not exist or cannot be used, or the step of the save is unknown.
        UnknownLayoutError: There is no tree at the path, and it is needed.
        NothingToResumeError: The plan chooses no checkpoint.
        IncompleteError: A log cannot be read to its end.
    """
    return _answer("postflight", locals())


@overload
def report(
    path: StrPath | None = None,
    *,
    layout: str | None = None,
    world_size: int | None = None,
    sink_size: int | None = None,
    health_file: StrPath | None = None,
    root: StrPath | None = None,
    skew: str | float | None = None,
    level: Literal["structure", "checksum", "numerics"] = "structure",
    checkpoint: str | Sequence[str] | None = None,
    prefix: str | None = None,
    require_health: bool | None = None,
    allow_unknown_health: bool | None = None,
    ignore_health: bool = False,
    before: int | None = None,
    allow_renames: bool = False,
    allow_weights_only: bool = False,
    tp: int | None = None,
    pp: int | None = None,
    dp: int | None = None,
    max_lost_steps: int | None = None,
    max_lost_time: str | None = None,
    health_threshold: float | None = None,
    threshold: float | None = None,
    log: StrPath | Sequence[StrPath] | None = None,
    columns: str | None = None,
    spikes_from: StrPath | Sequence[StrPath] | None = None,
    health_timeline: StrPath | Sequence[StrPath] | None = None,
    spike_threshold: float | None = None,
    around_spike: int | str | None = None,
    margin: str | float | None = None,
    gbs: int | None = None,
    new_gbs: int | None = None,
    old_gbs: int | None = None,
    segment: str | Sequence[str] | None = None,
    new_dataset: bool = False,
    dataset_changed_at: int | str | None = None,
    keep_last: int | None = None,
    strict: bool = False,
    output: StrPath,
    engine: Literal["threads", "ray"] = "threads",
    ray_address: str | None = None,
    config: StrPath | None = None,
    simulate: str | None = None,
    simulate_mindformers: str | None = None,
    **unknown: NoReturn,
) -> Resolution: ...


@overload
def report(
    path: ReportQuestion | Where = ...,
    *,
    form: PageForm | str = ...,
) -> str: ...


def report(
    path: ReportQuestion | Where = None,
    *,
    form: PageForm | str | None = None,
    layout: str | None = None,
    world_size: int | None = None,
    sink_size: int | None = None,
    health_file: StrPath | None = None,
    root: StrPath | None = None,
    skew: str | float | None = None,
    level: Literal["structure", "checksum", "numerics"] = "structure",
    checkpoint: str | Sequence[str] | None = None,
    prefix: str | None = None,
    require_health: bool | None = None,
    allow_unknown_health: bool | None = None,
    ignore_health: bool = False,
    before: int | None = None,
    allow_renames: bool = False,
    allow_weights_only: bool = False,
    tp: int | None = None,
    pp: int | None = None,
    dp: int | None = None,
    max_lost_steps: int | None = None,
    max_lost_time: str | None = None,
    health_threshold: float | None = None,
    threshold: float | None = None,
    log: StrPath | Sequence[StrPath] | None = None,
    columns: str | None = None,
    spikes_from: StrPath | Sequence[StrPath] | None = None,
    health_timeline: StrPath | Sequence[StrPath] | None = None,
    spike_threshold: float | None = None,
    around_spike: int | str | None = None,
    margin: str | float | None = None,
    gbs: int | None = None,
    new_gbs: int | None = None,
    old_gbs: int | None = None,
    segment: str | Sequence[str] | None = None,
    new_dataset: bool = False,
    dataset_changed_at: int | str | None = None,
    keep_last: int | None = None,
    strict: bool = False,
    output: StrPath | None = None,
    engine: Literal["threads", "ray"] = "threads",
    ray_address: str | None = None,
    config: StrPath | None = None,
    simulate: str | None = None,
    simulate_mindformers: str | None = None,
    **unknown: NoReturn,
) -> Any:
    """Write a report page with everything known about a tree, for a file, a notebook or a comment.

    Args:
        path: Checkpoint folder, output folder, one rank's folder, or one shard. Or `ReportQuestion` or `TreeQuestion`.
        form: `html` for a self-contained page, or `markdown` for less than 60,000 characters.
        layout: Look only for checkpoints of this layout: mindformers-rank, mindformers-iteration, mindformers-unified,
            orbax, megatron, verl, skyrl, deepspeed, hf-trainer, accelerate, torchtitan, composer, lightning, olmo-core,
            automodel, torch-dcp, torch-files, loose-file.
        world_size: World size of the run, if the folders do not show it.
        sink_size: Batches per data sink, or steps per epoch without data sinking.
        health_file: Path of health_ckpts.json. Default: the file in or above DIR.
        root: Path of the checkpoint folder on the machines that wrote the parts.
        skew: Allowed clock difference between the machines that wrote the parts. Default: 60s.
        level: How thoroughly to check the shards.
        checkpoint: Use exactly this checkpoint, or fail: 20_2, _1-25_2, …
        prefix: Use only files with this name prefix, if several runs share DIR.
        require_health: Reject checkpoints of unknown health, or accept them even if the health record is unreadable.
        allow_unknown_health: The opposite of `require_health`.
        ignore_health: Also accept unhealthy checkpoints.
        before: Use only checkpoints at or before this step.
        allow_renames: Accept a checkpoint whose files must be renamed first, and list the files.
        allow_weights_only: Accept a checkpoint without optimizer state, which is re-initialized.
        tp: Tensor-parallel size of the next run.
        pp: Pipeline stages of the next run.
        dp: Data-parallel size of the next run.
        max_lost_steps: Exit with 10 if more than N steps must be redone.
        max_lost_time: Exit with 10 if more than this time must be redone (90m, 2h, 1d); with 14 if unknown.
        health_threshold: Embedding local norm (sum of squares) at which a checkpoint is unhealthy; needs a log. Also:
            --threshold.
        threshold: The same as `health_threshold`.
        log: Training log; repeatable. Default: the logs in the parent folders of DIR.
        columns: CSV columns, JSON fields or TensorBoard tags to read: step=iter,loss=train/loss.
        spikes_from: Skip checkpoints that are suspect by this log or the JSON of `log replay`. Also: --health-timeline.
        health_timeline: The same as `spikes_from`.
        spike_threshold: Global norm at which a step is a spike. Default: a robust z-score.
        around_spike: Resume past the spike at STEP or the last spike, or after a stop.
        margin: Time before a strike's first event that is also suspect, such as 2h (a bare number is minutes).
        gbs: Global batch size of the resumed run. Used for the calculation; does not change the config. Default: from
            --config, else unchanged.
        new_gbs: The same as `gbs`.
        old_gbs: Previous global batch size, if the shards do not record it (MindFormers 1.2).
        segment: Past steps at another batch size, oldest first; repeatable.
        new_dataset: Read the data from the beginning.
        dataset_changed_at: Step at which the data set was replaced (in batches of GBS samples); skip only the data read
            since.
        keep_last: Also show what `prune --keep-last N` would do.
        strict: Exit with 10 if a newer checkpoint was skipped.
        output: File to write: a new file or an earlier report; - for stdout.
        engine: Read in this process, or on the nodes of a running Ray cluster.
        ray_address: Address of a running Ray cluster. Default: RAY_ADDRESS.
        config: Training config, to read world size, batch size and sink size from.
        simulate: Also show what the trainer itself would load: own (this tree's trainer) or a trainer's name.
        simulate_mindformers: Same as --simulate, for this version of MindFormers.

    Raises:
        CkptToolError: As for `resolve`.
    """
    return _answer("report", locals())


def lint_config(
    files: StrPath | Sequence[StrPath],
    *,
    report: StrPath | Sequence[StrPath] | None = None,
    allow: str | Sequence[str] | None = None,
    fix: bool = False,
    skip_foreign: bool = False,
    **unknown: NoReturn,
) -> Lint:
    """Check training configs for mistakes that a trainer reports late, or never. Reads no checkpoint.

    Args:
        files: Training configs, or folders to search for them.
        report: Also write a report, as in junit=out.xml, to a new file or over an earlier report; repeatable.
        allow: Accept findings with this code; repeatable.
        fix: Fix mistakes that are safe to fix, and report the others.
        skip_foreign: Skip files that are not training configs.

    Returns:
        One check per config. An unusable file, or a folder without a training config, is a finding with an exit code.
        Other YAML files and inference configs are only counted in a folder; if named directly, they are findings unless
        they are to be skipped.
    """
    return _answer("lint_config", locals())


@overload
def seal(
    path: StrPath | None = None,
    *,
    layout: str | None = None,
    world_size: int | None = None,
    sink_size: int | None = None,
    health_file: StrPath | None = None,
    root: StrPath | None = None,
    skew: str | float | None = None,
    checkpoint: str | Sequence[str] | None = None,
    reseal: bool = False,
    jobs: int | None = None,
    engine: Literal["threads", "ray"] = "threads",
    ray_address: str | None = None,
    **unknown: NoReturn,
) -> Sealed: ...


@overload
def seal(
    path: Tree | TreeQuestion,
    name: str | tuple[str, ...] | None = ...,
    *,
    reseal: bool = ...,
    jobs: int | None = ...,
) -> Running[Sealing, Sealed]: ...


@overload
def seal(
    path: StrPath | None,
    name: str | tuple[str, ...] | None,
    /,
    *,
    reseal: bool = ...,
    jobs: int | None = ...,
) -> Running[Sealing, Sealed]: ...


def seal(
    path: Tree | Where = None,
    name: str | tuple[str, ...] | None = None,
    *,
    layout: str | None = None,
    world_size: int | None = None,
    sink_size: int | None = None,
    health_file: StrPath | None = None,
    root: StrPath | None = None,
    skew: str | float | None = None,
    checkpoint: str | Sequence[str] | None = None,
    reseal: bool = False,
    jobs: int | None = None,
    engine: Literal["threads", "ray"] = "threads",
    ray_address: str | None = None,
    **unknown: NoReturn,
) -> Any:
    """Record the checksums of one or all intact checkpoints, newest first.

    Args:
        path: Checkpoint folder, output folder, one rank's folder, or one shard. Or `Tree` or `TreeQuestion`.
        name: A checkpoint's name, `latest` or `all`, or several of these; None or empty for the latest.
        layout: Look only for checkpoints of this layout: mindformers-rank, mindformers-iteration, mindformers-unified,
            orbax, megatron, verl, skyrl, deepspeed, hf-trainer, accelerate, torchtitan, composer, lightning, olmo-core,
            automodel, torch-dcp, torch-files, loose-file.
        world_size: World size of the run, if the folders do not show it.
        sink_size: Batches per data sink, or steps per epoch without data sinking.
        health_file: Path of health_ckpts.json. Default: the file in or above DIR.
        root: Path of the checkpoint folder on the machines that wrote the parts.
        skew: Allowed clock difference between the machines that wrote the parts. Default: 60s.
        checkpoint: Checkpoint name, latest (the default) or all; repeatable.
        reseal: Record the current content if it differs from the seal.
        jobs: Number of reader threads. Default: one per core.
        engine: Read in this process, or on the nodes of a running Ray cluster.
        ray_address: Address of a running Ray cluster. Default: RAY_ADDRESS.

    Raises:
        UsageError: The named checkpoint does not exist.
        UnknownLayoutError: The layout has no place for a seal of any of these checkpoints.
        UnsafeError: The tree is neither a folder on this machine nor in an object store, a link points outside it, or a
            stored object would have to be replaced.
        LockedError: Another process is sealing in this tree.
        WriteFailedError: Nothing was changed.
        NotDurableError: A manifest is in place, but the disk did not confirm it.
    """
    return _answer("seal", locals())


def mark(
    name: Where = None,
    path: StrPath | None = None,
    question: MarkQuestion | None = None,
    *,
    layout: str | None = None,
    world_size: int | None = None,
    sink_size: int | None = None,
    health_file: StrPath | None = None,
    root: StrPath | None = None,
    skew: str | float | None = None,
    bad: str | None = None,
    good: bool = False,
    reason: str | None = None,
    clear: bool = False,
    after_failed_starts: int | None = None,
    log: StrPath | Sequence[StrPath] | None = None,
    columns: str | None = None,
    dry_run: bool = False,
    **unknown: NoReturn,
) -> Marks:
    """Mark a save as bad or good, remove its mark, or list the marks of a tree.

    Args:
        name: Name of the checkpoint to mark. Without NAME, lists the marks of DIR. Or `TreeQuestion`.
        path: Checkpoint folder, output folder, one rank's folder, or one shard.
        question: The save and its mark, or the number of failed starts; without these, the marks are listed.
        layout: Look only for checkpoints of this layout: mindformers-rank, mindformers-iteration, mindformers-unified,
            orbax, megatron, verl, skyrl, deepspeed, hf-trainer, accelerate, torchtitan, composer, lightning, olmo-core,
            automodel, torch-dcp, torch-files, loose-file.
        world_size: World size of the run, if the folders do not show it.
        sink_size: Batches per data sink, or steps per epoch without data sinking.
        health_file: Path of health_ckpts.json. Default: the file in or above DIR.
        root: Path of the checkpoint folder on the machines that wrote the parts.
        skew: Allowed clock difference between the machines that wrote the parts. Default: 60s.
        bad: Mark NAME as bad: no command chooses it, and prune does not count it as good.
        good: Mark NAME as healthy, also if the trainer recorded it as unhealthy.
        reason: Reason for --good or --clear.
        clear: Remove the mark of NAME.
        after_failed_starts: Mark the checkpoint from which the last N starts in the logs ended before the next save as
            bad.
        log: Training log; repeatable. Default: the logs in the parent folders of DIR.
        columns: CSV columns, JSON fields or TensorBoard tags to read: step=iter,loss=train/loss.
        dry_run: Show the result without writing anything.

    Raises:
        UsageError: No save has that name, or the request names no save.
        NothingToResumeError: The tree has no checkpoint.
        UnsafeError: The tree is neither a folder of this machine nor in an object store, or a
            link leaves the tree.
        LockedError: Another process marks saves of this tree.
        WriteFailedError: Nothing was changed.
        IncompleteError: A file of the save cannot be read, the marks cannot be listed, or a log cannot be read to its
            end.
        NotDurableError: The mark is in place, but the disk did not confirm it.
    """
    return _answer("mark", locals())


def heal(
    path: Where = None,
    order: HealOrder | None = None,
    *,
    layout: str | None = None,
    world_size: int | None = None,
    sink_size: int | None = None,
    health_file: StrPath | None = None,
    root: StrPath | None = None,
    skew: str | float | None = None,
    checkpoint: str | Sequence[str] | None = None,
    from_: int | None = None,
    tensor: str | None = None,
    apply: bool = False,
    grace: str | float = "5m",
    dry_run: bool = False,
    **unknown: NoReturn,
) -> Healing:
    """Find proven copies of missing or damaged shards on other ranks, and with `apply` rebuild the shards.

    Every byte of the checkpoint is read. If no record shows the slices of each rank, the affected ranks' files at other
    checkpoints of the run are also read. Damaged files are moved to the tree's trash. If a heal is interrupted after
    its files were prepared, the next change of the tree completes it.

    Args:
        path: Checkpoint folder, output folder, one rank's folder, or one shard. Or `TreeQuestion`.
        order: The checkpoint, the rank to copy from, and whether to apply the heal.
        layout: Look only for checkpoints of this layout: mindformers-rank, mindformers-iteration, mindformers-unified,
            orbax, megatron, verl, skyrl, deepspeed, hf-trainer, accelerate, torchtitan, composer, lightning, olmo-core,
            automodel, torch-dcp, torch-files, loose-file.
        world_size: World size of the run, if the folders do not show it.
        sink_size: Batches per data sink, or steps per epoch without data sinking.
        health_file: Path of health_ckpts.json. Default: the file in or above DIR.
        root: Path of the checkpoint folder on the machines that wrote the parts.
        skew: Allowed clock difference between the machines that wrote the parts. Default: 60s.
        checkpoint: Name of a checkpoint. Default: the newest.
        from_: Copy from this rank. Default: the best-supported candidate.
        tensor: Replace only this tensor, if the rest is intact.
        apply: Make the changes; without this option, nothing is changed.
        grace: Refuse if a file changed more recently than this: a save may be in progress (a bare number is seconds).
        dry_run: Print the plan and change nothing, which is the default without --apply.

    Raises:
        UsageError: The checkpoint does not exist.
        NothingToResumeError: The tree has no checkpoint.
        UnknownLayoutError: ckpttool never changes saves of this layout.
        LockedError: Another ckpttool process is changing this tree.
        IncompleteError: The tree changed in the meantime, or a rebuilt file differs from its donor.
        WriteFailedError: The disk reported an error. Nothing was changed, or the next command that changes the tree
            finishes the repair.
        NotDurableError: The files were repaired, but the disk did not confirm that they are stored.
    """
    return _answer("heal", locals())


def prune(
    path: Where = None,
    policy: RetentionPolicy | None = None,
    order: PruneOrder | None = None,
    *,
    aim: Aim | None = None,
    waiting: Callable[[Finding], None] | None = None,
    layout: str | None = None,
    world_size: int | None = None,
    sink_size: int | None = None,
    health_file: StrPath | None = None,
    root: StrPath | None = None,
    skew: str | float | None = None,
    keep_last: int | None = None,
    keep_every: int | None = None,
    keep_healthy: int | None = None,
    keep_within: str | float | None = None,
    keep_hourly: int | None = None,
    keep_daily: int | None = None,
    keep_weekly: int | None = None,
    keep: str | Sequence[str] | None = None,
    drop_abandoned: bool = False,
    prefix: str | None = None,
    apply: bool = False,
    level: Literal["structure", "checksum", "numerics"] | None = None,
    grace: str | float = "5m",
    wait: str | float | None = None,
    trash_days: str | float | None = None,
    max_age: str | float = "24h",
    free: str | None = None,
    max_size: str | None = None,
    config: StrPath | None = None,
    dry_run: bool = False,
    **unknown: NoReturn,
) -> Pruning:
    """Choose the checkpoints that may be deleted, and with `apply` delete them.

    Each checkpoint is moved completely or not at all, to a trash folder in the tree, and is deleted from there after
    the retention period. An interrupted prune is undone first.

    Args:
        path: Checkpoint folder, output folder, one rank's folder, or one shard. Or `TreeQuestion`.
        policy: The checkpoints to keep.
        order: How to check, what to do, and how long to wait for a save in progress.
        aim: Space to have afterwards. Without an aim, all superseded checkpoints are deleted.
        waiting: Called with the reason for waiting, whenever the reason changes.
        layout: Look only for checkpoints of this layout: mindformers-rank, mindformers-iteration, mindformers-unified,
            orbax, megatron, verl, skyrl, deepspeed, hf-trainer, accelerate, torchtitan, composer, lightning, olmo-core,
            automodel, torch-dcp, torch-files, loose-file.
        world_size: World size of the run, if the folders do not show it.
        sink_size: Batches per data sink, or steps per epoch without data sinking.
        health_file: Path of health_ckpts.json. Default: the file in or above DIR.
        root: Path of the checkpoint folder on the machines that wrote the parts.
        skew: Allowed clock difference between the machines that wrote the parts. Default: 60s.
        keep_last: Keep the N newest good checkpoints.
        keep_every: Also keep the first good checkpoint at or after each multiple of STEPS.
        keep_healthy: Also keep the N newest checkpoints recorded as healthy.
        keep_within: Also keep good checkpoints saved up to this long before the newest good one, such as 7d (a bare
            number is days).
        keep_hourly: Also keep the newest good checkpoint of each of the last N hours (UTC) that have one.
        keep_daily: Also keep the newest good checkpoint of each of the last N days (UTC) that have one.
        keep_weekly: Also keep the newest good checkpoint of each of the last N weeks (Monday to Sunday, UTC) that have
            one.
        keep: Also keep this checkpoint; repeatable.
        drop_abandoned: Also delete the checkpoints of abandoned branches.
        prefix: Use only files with this name prefix, if several runs share DIR.
        apply: Make the changes; without this option, nothing is changed.
        level: How thoroughly to check the remaining checkpoints. Default: recorded checksums, else headers.
        grace: Refuse if a file changed more recently than this: a save may be in progress (a bare number is seconds).
        wait: Wait up to this long for a save in progress, such as 10m (a bare number is minutes).
        trash_days: Keep deleted checkpoints in the trash for this long, such as 7d (a bare number is days).
        max_age: Reuse the result for an unchanged file for this long, such as 7d (a bare number is hours).
        free: Delete only until this much is free on the disk, such as 2TiB or 10%, the oldest of all trees first. A
            quota that leaves less counts instead.
        max_size: Delete only until all trees together have at most this size, as by du, the oldest of all trees first.
        config: Training config, to read world size, batch size and sink size from.
        dry_run: Print the plan and change nothing, which is the default without --apply.

    Raises:
        UsageError: The policy names a checkpoint that does not exist, or the aim contradicts the order.
        LockedError: Another ckpttool process is changing this tree.
        IncompleteError: The tree changed since the plan was made. Nothing was changed.
        UnsafeError: A link or another disk is in the way, or the tree is not a folder on this machine.
        WriteFailedError: The disk reported an error. Moved files were moved back, or will be by the next prune.
        NotDurableError: The deletion is done, but the disk did not confirm it.
    """
    return _answer("prune", locals())


def repair_meta(
    path: Where = None,
    choice: ResumeQuestion | None = None,
    *,
    layout: str | None = None,
    world_size: int | None = None,
    sink_size: int | None = None,
    health_file: StrPath | None = None,
    root: StrPath | None = None,
    skew: str | float | None = None,
    config: StrPath | None = None,
    checkpoint: str | Sequence[str] | None = None,
    prefix: str | None = None,
    apply: bool = False,
    grace: str | float = "5m",
    dry_run: bool = False,
    **unknown: NoReturn,
) -> Repair:
    """List the trainer's records that do not name the newest intact checkpoint, and with `apply` correct them.

    Args:
        path: Checkpoint folder, output folder, one rank's folder, or one shard. Or `TreeQuestion`.
        choice: The name or prefix of the checkpoint. Default: the newest intact one.
        layout: Look only for checkpoints of this layout: mindformers-rank, mindformers-iteration, mindformers-unified,
            orbax, megatron, verl, skyrl, deepspeed, hf-trainer, accelerate, torchtitan, composer, lightning, olmo-core,
            automodel, torch-dcp, torch-files, loose-file.
        world_size: World size of the run, if the folders do not show it.
        sink_size: Batches per data sink, or steps per epoch without data sinking.
        health_file: Path of health_ckpts.json. Default: the file in or above DIR.
        root: Path of the checkpoint folder on the machines that wrote the parts.
        skew: Allowed clock difference between the machines that wrote the parts. Default: 60s.
        config: Training config, to read world size, batch size and sink size from.
        checkpoint: Point to this checkpoint instead of the newest intact one.
        prefix: Use only files with this name prefix, if several runs share DIR.
        apply: Write the records; without this option, nothing is changed.
        grace: Refuse if a file changed more recently than this: a save may be in progress (a bare number is seconds).
        dry_run: Print the plan and change nothing, which is the default without --apply.

    Raises:
        UsageError: The name or prefix does not exist.
        LockedError: Another ckpttool process is changing this tree.
        IncompleteError: The tree changed in the meantime.
        WriteFailedError: A record could not be written and is unchanged; the records before it are correct.
        NotDurableError: A record is written, but the disk did not confirm it.
    """
    return _answer("repair_meta", locals())


def replay(
    logs: ReplayQuestion | Logs | None,
    *,
    policy: Literal["skip", "features", "zclip", "olmo", "zscore"] | None = None,
    threshold: float | None = None,
    count: int | None = None,
    nan: Literal["as-mindformers", "strict"] = "as-mindformers",
    dialect: str | None = None,
    asd_config: str | None = None,
    margin: str | float | None = None,
    columns: str | None = None,
    tree: Tree | StrPath | None = None,
    health_timeline: StrPath | None = None,
    around_spike: int | str | None = None,
    every: int | None = None,
    **unknown: NoReturn,
) -> ReplayAnswer:
    """Compute what a policy would have done over training logs.

    The logs are read in one pass and in bounded memory.

    Args:
        logs: Logs, folders of logs, globs, or - for stdin. Or `ReplayQuestion`.
        policy: Policy to replay. Default: skip for MindFormers logs, else zscore.
        threshold: For skip: norm (3.0). For zscore, zclip and olmo: standard deviations (7, 2.5, 6).
        count: With skip: stop at the Nth consecutive skipped step (10).
        nan: For skip: strict counts NaN toward the stop, as-mindformers does not.
        dialect: For features: torch_npu, mindspore or mindformers.
        asd_config: For features: value of NPU_ASD_CONFIG; see ckpttool asd.
        margin: Time before a strike's first event that is also suspect, such as 2h (a bare number is minutes).
        columns: CSV columns, JSON fields or TensorBoard tags to read: step=iter,loss=train/loss.
        tree: Mark the checkpoints in DIR that were saved during a spike or after a strike. Also: --health-timeline.
        health_timeline: The same as `tree`.
        around_spike: Resume past the spike at STEP or the last spike, or after a stop.
        every: For --around-spike: assumed number of steps between checkpoints.

    Raises:
        UsageError: A log does not exist, the policy has no such setting, or there is no spike to resume past.
        IncompleteError: Whether there is a spike is unknown: a log could not be read to the end, or has no step.
    """
    return _answer("replay", locals())


def calibrate(
    logs: LogQuestion | Logs | None,
    *,
    warm_up: int | None = None,
    columns: str | None = None,
    **unknown: NoReturn,
) -> CalibrationAnswer:
    """Compute thresholds for a training run from its logs.

    Args:
        logs: Logs, folders of logs, globs, or - for stdin. Or `LogQuestion`.
        warm_up: Number of logged steps to leave out at the start. Default: a tenth.
        columns: CSV columns, JSON fields or TensorBoard tags to read: step=iter,loss=train/loss.

    Raises:
        UsageError: A log does not exist.
    """
    return _answer("calibrate", locals())


def explain(
    code: str | None = None,
    **unknown: NoReturn,
) -> Explained:
    """Explain a finding, a verdict or an exit code: its meaning, the evidence for it, and what to do.

    Args:
        code: A finding's code, a verdict (struct-ok) or an exit code (14). Default: list all findings.

    Raises:
        UsageError: The finding, verdict or exit code does not exist.
    """
    return _answer("explain", locals())


def demo(
    folder: StrPath = "ckpttool-demo",
    **unknown: NoReturn,
) -> Demo:
    """Write a small tree of a real trainer whose newest save is truncated on two ranks.

    Args:
        folder: A new or empty folder.

    Raises:
        CkptToolError: The folder is not empty, or could not be written.
    """
    return _answer("demo", locals())


def trash(
    path: Where = None,
    *,
    layout: str | None = None,
    world_size: int | None = None,
    sink_size: int | None = None,
    health_file: StrPath | None = None,
    root: StrPath | None = None,
    skew: str | float | None = None,
    older_than: str | float | None = None,
    **unknown: NoReturn,
) -> Trash:
    """List the trash of a tree, oldest first.

    Args:
        path: Checkpoint folder, output folder, one rank's folder, or one shard. Or `TreeQuestion`.
        layout: Look only for checkpoints of this layout: mindformers-rank, mindformers-iteration, mindformers-unified,
            orbax, megatron, verl, skyrl, deepspeed, hf-trainer, accelerate, torchtitan, composer, lightning, olmo-core,
            automodel, torch-dcp, torch-files, loose-file.
        world_size: World size of the run, if the folders do not show it.
        sink_size: Batches per data sink, or steps per epoch without data sinking.
        health_file: Path of health_ckpts.json. Default: the file in or above DIR.
        root: Path of the checkpoint folder on the machines that wrote the parts.
        skew: Allowed clock difference between the machines that wrote the parts. Default: 60s.
        older_than: Use only checkpoints that were deleted at least this long ago: 7d, 12h.

    Raises:
        UnknownLayoutError: There is no tree at the path.
        IncompleteError: The trash, or the journal of an interrupted change, cannot be read.
    """
    return _answer("trash", locals())


def empty_trash(
    path: Where = None,
    *,
    layout: str | None = None,
    world_size: int | None = None,
    sink_size: int | None = None,
    health_file: StrPath | None = None,
    root: StrPath | None = None,
    skew: str | float | None = None,
    older_than: str | float | None = None,
    apply: bool = False,
    dry_run: bool = False,
    **unknown: NoReturn,
) -> Trash:
    """List the trash of a tree, and with `apply` delete it.

    Args:
        path: Checkpoint folder, output folder, one rank's folder, or one shard. Or `TreeQuestion`.
        layout: Look only for checkpoints of this layout: mindformers-rank, mindformers-iteration, mindformers-unified,
            orbax, megatron, verl, skyrl, deepspeed, hf-trainer, accelerate, torchtitan, composer, lightning, olmo-core,
            automodel, torch-dcp, torch-files, loose-file.
        world_size: World size of the run, if the folders do not show it.
        sink_size: Batches per data sink, or steps per epoch without data sinking.
        health_file: Path of health_ckpts.json. Default: the file in or above DIR.
        root: Path of the checkpoint folder on the machines that wrote the parts.
        skew: Allowed clock difference between the machines that wrote the parts. Default: 60s.
        older_than: Use only checkpoints that were deleted at least this long ago: 7d, 12h.
        apply: Make the changes; without this option, nothing is changed.
        dry_run: Print the plan and change nothing, which is the default without --apply.

    Raises:
        LockedError: Another ckpttool process is changing this tree.
        WriteFailedError: An entry could not be deleted; the entries before it are deleted.
    """
    return _answer("empty_trash", locals())


def replay_nan(
    folder: StrPath | NanQuestion | None,
    *,
    entry: str | None = None,
    rank: int | Sequence[int] | None = None,
    device: str | None = None,
    exact: bool = False,
    no_locate: bool = False,
    weights: StrPath | None = None,
    timeout: float | None = None,
    record: bool = False,
    **unknown: NoReturn,
) -> NanReplay:
    """Recompute a captured step in this process, with the user's model.

    Args:
        folder: A capture, a folder of captures, or the output folder of a training run. Or `NanQuestion`.
        entry: Your function that builds the model; its module must be importable.
        rank: Replay only this rank; repeatable. [default: all]
        device: Device to use: cpu or cuda:N. [default: as captured]
        exact: Require every gradient to be bit-identical.
        no_locate: Do not search for the origin.
        weights: Weights (safetensors), for a capture that does not contain them.
        timeout: Give up after this many seconds, with exit code 14.
        record: Record the result beside the capture, for guard report.

    Raises:
        UnknownLayoutError: There is no capture, or there are several.
        UsageError: There is no such entry, rank or device.
        IncompleteError: torch is not installed, or the replay exceeded the timeout.
        WriteFailedError: The result cannot be recorded.
    """
    return _answer("replay_nan", locals())


def fp8_compare(
    baseline: StrPath | CurvesQuestion | None,
    candidate: StrPath | None = None,
    *,
    repeat: StrPath | Sequence[StrPath] | None = None,
    metric: Literal["loss", "validation"] = "loss",
    by: Literal["step", "samples"] | None = None,
    tolerance: str = "0.25%",
    switch_step: int | None = None,
    evals: str | None = None,
    columns: str | None = None,
    **unknown: NoReturn,
) -> CurvesAnswer:
    """Compare the loss of a candidate with its baseline: whether, and from which step, they differ by more than noise.

    Args:
        baseline: Log of the trusted run: a file, a folder of logs, a glob, or - for stdin. Or `CurvesQuestion`.
        candidate: Log of the FP8 run: a file, a folder of logs, a glob, or - for stdin.
        repeat: Another run of the baseline, to measure random variation; repeatable.
        metric: Compare training or validation losses.
        by: Pair values by step or by samples. [default: step; samples if batch sizes differ]
        tolerance: Tolerated difference, as a share of the loss or in its units.
        switch_step: Step at which the candidate switches to FP8, if not from the beginning.
        evals: JSON results of lm-evaluation-harness for both runs.
        columns: CSV columns, JSON fields or TensorBoard tags to read: step=iter,loss=train/loss.

    Raises:
        UsageError: A log or scores file does not exist or is of an unknown kind, or the logs do not count samples.
    """
    return _answer("fp8_compare", locals())


def fp8_plan(
    directory: StrPath | PlanQuestion | None = None,
    *,
    baseline: StrPath | None = None,
    candidate: StrPath | None = None,
    repeat: StrPath | Sequence[StrPath] | None = None,
    tolerance: str = "0.25%",
    switch_step: int | None = None,
    columns: str | None = None,
    framework: str | None = None,
    output: StrPath | None = None,
    framework_version: str | None = None,
    te_version: str | None = None,
    recipe: str | None = None,
    round: int = 1,
    checkpoint_step: int | None = None,
    horizon: int | None = None,
    stats: StrPath | Sequence[StrPath] | None = None,
    devices: int | None = None,
    **unknown: NoReturn,
) -> Fp8Plan | NoPlan:
    """Write the folders of experiments to find the cause.

    Args:
        directory: Checkpoint folder, output folder, one rank's folder, or one shard. Or `PlanQuestion`.
        baseline: Log of the trusted run: a file, a folder of logs, a glob, or - for stdin. Required in round 1.
        candidate: Log of the FP8 run: a file, a folder of logs, a glob, or - for stdin.
        repeat: Another run of the baseline; repeatable.
        tolerance: Tolerated difference, as a share of the loss or in its units.
        switch_step: Step at which the candidate switches to FP8, if not from the beginning.
        columns: CSV columns, JSON fields or TensorBoard tags to read: step=iter,loss=train/loss.
        framework: Training framework: te, megatron, torchtitan, torchao.
        output: Folder for the plan: a new folder, or one with an earlier plan.
        framework_version: Version of the framework.
        te_version: Version of Transformer Engine; some rules depend on it.
        recipe: Recipe of the candidate, if its log does not print it.
        round: Plan round N, based on the logs so far.
        checkpoint_step: Start from the checkpoint at this step, without checking it.
        horizon: Steps per experiment. Default: as many as the gap needs.
        stats: Log with debug-feature statistics, to test the worst layers first; repeatable.
        devices: Number of devices; the cost is also shown in device-hours.

    Raises:
        UsageError: The framework does not support FP8 training, or a round's input is missing.
        NothingToResumeError: There is no checkpoint before the gap.
        UnsafeError: The folder has other contents, or logs of experiments.
    """
    return _answer("fp8_plan", locals())


def fp8_probe(
    what: StrPath | None = None,
    question: ProbeQuestion | None = None,
    *,
    checkpoint: str | Sequence[str] | None = None,
    recipe: str | Sequence[str] | None = None,
    format_of: str = "weight=e4m3",
    exact: bool = False,
    optimizer: bool = False,
    swiglu: bool | None = None,
    no_swiglu: bool | None = None,
    history: int | None = None,
    as_stored: bool = False,
    stats: StrPath | None = None,
    top: int = 20,
    layout: str | None = None,
    **unknown: NoReturn,
) -> Fp8Probe:
    """Show what each FP8 recipe would do to the tensors of a checkpoint or a shard.

    Args:
        what: A shard of any format, a checkpoint folder, DIR:NAME, or a checkpoint's name.
        question: The settings for each tensor.
        checkpoint: Name of a checkpoint. Default: the newest.
        recipe: Recipe that determines the result: delayed, tensorwise, rowwise, blockwise, blockwise-f32, mxfp8,
            mxfp8-floor; repeatable. [default: tensorwise]
        format_of: Formats to cast weights to: e4m3, e5m2. The first determines the result.
        exact: Cast every element instead of a sample.
        optimizer: Include the optimizer states.
        swiglu: Compare the gate and up weights of SwiGLU.
        no_swiglu: The opposite of `swiglu`.
        history: Steps of history for a delayed scale; the checkpoints within them are used.
        as_stored: Do not round 32-bit numbers to BF16 first.
        stats: Write the numbers of each tensor as JSON lines.
        top: Maximum number of rows per table.
        layout: Look only for checkpoints of this layout: mindformers-rank, mindformers-iteration, mindformers-unified,
            orbax, megatron, verl, skyrl, deepspeed, hf-trainer, accelerate, torchtitan, composer, lightning, olmo-core,
            automodel, torch-dcp, torch-files, loose-file.

    Raises:
        UnknownLayoutError: ckpttool does not recognize the content.
        UsageError: No checkpoint has that name.
        NothingToResumeError: The tree has no checkpoint.
        IncompleteError: The tree's folder cannot be read.
    """
    return _answer("fp8_probe", locals())


def part(
    path: StrPath | PartQuestion | None = None,
    *,
    read: Mapping[str, ShardReport] | None = None,
    layout: str | None = None,
    out: StrPath | None = None,
    part: str = "auto",
    split: Literal["auto", "node", "all", "none"] = "auto",
    ranks: str | None = None,
    devices_per_node: int | None = None,
    run_id: str | None = None,
    level: Literal["structure", "checksum", "numerics"] = "structure",
    checkpoint: str | Sequence[str] | None = None,
    jobs: int | None = None,
    timeout: str | float = "10m",
    max_age: str | float = "24h",
    seal: bool = False,
    engine: Literal["threads", "ray"] = "threads",
    ray_address: str | None = None,
    **unknown: NoReturn,
) -> PartWritten | None:
    """Record the part of a tree that this machine can see.

    Args:
        path: Checkpoint folder, output folder, one rank's folder, or one shard. Or `PartQuestion`.
        read: Reports from earlier reads, by path, for use if the files are unchanged.
        layout: Look only for checkpoints of this layout: mindformers-rank, mindformers-iteration, mindformers-unified,
            orbax, megatron, verl, skyrl, deepspeed, hf-trainer, accelerate, torchtitan, composer, lightning, olmo-core,
            automodel, torch-dcp, torch-files, loose-file.
        out: File or folder for the part.
        part: Number of this part, from 1; auto: number from the launcher.
        split: How to divide the visible files among the processes.
        ranks: Ranks that will start on this machine.
        devices_per_node: Same as --ranks, as D consecutive ranks per machine.
        run_id: Name of this set of parts. Default: from the launcher.
        level: Check headers, every byte, or every element.
        checkpoint: Checkpoint name, latest (the default) or all; repeatable.
        jobs: Number of reader threads. Default: one per core.
        timeout: Time after which a read is considered hung (a bare number is seconds).
        max_age: Reuse the result for an unchanged file for this long, such as 7d (a bare number is hours).
        seal: Read the checkpoints that --checkpoint selects, and seal this machine's shards.
        engine: Read in this process, or on the nodes of a running Ray cluster.
        ray_address: Address of a running Ray cluster. Default: RAY_ADDRESS.

    Returns:
        The written part, whatever it contains; None if this process only supervises others.

    Raises:
        UsageError: The number of the part is unknown, or the part cannot be written to `out`.
        UnsafeError: The part exceeds the size limit for reading.
        WriteFailedError, NotDurableError: The part could not be written.
    """
    return _answer("part", locals())
