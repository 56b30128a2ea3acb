"""Effect of FP8 on a checkpoint's tensors, computed without the trainer and its devices."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from functools import partial

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.contents import Opened
from ckpttool.core.domain.finding import Severity, worst
from ckpttool.core.domain.units import Step
from ckpttool.core.domain.verdict import CheckTask, Level, ShardReport
from ckpttool.core.formats.strict_json import ParseError, parse_object
from ckpttool.core.verbs.sides import Side, side_of
from ckpttool.core.verbs.verifying import cores, counted, expect
from ckpttool.core.verify.check import CompareShard, check
from ckpttool.core.verify.engines.threads import ThreadEngine
from ckpttool.core.verify.observation import Observation
from ckpttool.core.verify.report import collect
from ckpttool.core.verify.session import completed
from ckpttool.fp8.model.fp8 import Recipe
from ckpttool.fp8.model.probe import Fp8Probe, GatedNumbers, ProbeQuestion, TensorNumbers
from ckpttool.fp8.read.at_rest import SCALE_WORDS, USUAL_BLOCK, OtherFiles
from ckpttool.fp8.read.probe import ShardLargest, ShardNumbers, largest_in_shard, probe_shard
from ckpttool.fp8.rules.risk import aligned, is_probed, layers_of, most_amplifying, ranked, scattered
from ckpttool.inspect.verbs import TIMEOUT_SECONDS, opened, tasks_of

_CONFIG = "config.json"
_CONFIG_LIMIT = 8 << 20
"""Maximum size of a model's config in bytes. Real configs have a few thousand."""


def fp8_probe(
    path: str | None = None,
    question: ProbeQuestion = ProbeQuestion(),  # noqa: B008  a frozen value
    *,
    checkpoint: str | None = None,
    layout: str | None = None,
) -> Fp8Probe:
    """Show what each FP8 recipe would do to the tensors of a checkpoint or a shard.

    Args:
        path: A shard of any format, a tree (its newest intact checkpoint), `DIR:NAME`, or a checkpoint's name. If None,
            `DEFAULT_DIR`, else a tree in or around the current folder.
        question: The settings for each tensor.
        checkpoint: A checkpoint of that tree.
        layout: Search only for this layout.

    Raises:
        UnknownLayoutError: ckpttool does not recognize the content.
        UsageError: No checkpoint has that name.
        NothingToResumeError: The tree has no checkpoint.
        IncompleteError: The tree's folder cannot be read.
    """
    side = side_of(path, checkpoint=checkpoint, layout=layout, is_intact=True)
    is_selected = partial(is_probed, optimizer=question.optimizer)
    history = _history(side, question) if Recipe.DELAYED in question.recipes else []
    passes = [side, *history] if history or Recipe.DELAYED in question.recipes else []
    tasks = tasks_of(side, copies=2 if question.exact else 1)
    of_history = [task for probe_pass in passes for task in tasks_of(probe_pass)]
    expect(nbytes=sum(task.cost for task in (*tasks, *of_history)), shards=len(tasks) + len(of_history))
    largest = partial(largest_in_shard, is_selected=is_selected, as_stored=question.as_stored)
    earlier: dict[str, float] = {}
    for observed in _run(of_history, largest):
        found_largest = observed.result(ShardLargest)
        if found_largest is not None:
            for name, amax in found_largest.magnitudes:
                earlier[name] = max(amax, earlier.get(name, 0.0))
    extras = OtherFiles(earlier=earlier, scales=_scales(side), block=_block(side))
    reports: list[ShardReport] = []
    tensors: list[TensorNumbers] = []
    gated: list[GatedNumbers] = []
    for observed in _run(tasks, partial(probe_shard, question=question, is_selected=is_selected, extras=extras)):
        reports.append(observed.report)
        numbers = observed.result(ShardNumbers)
        if numbers is not None:
            tensors += numbers.tensors
            gated += numbers.gated
    tensors_ranked, gates = ranked(tensors, question), most_amplifying(gated)
    reported = collect(side.checkpoint, reports, Level.STRUCTURE).findings
    findings = (*completed(reported, side.checkpoint), *scattered(tensors_ranked))
    return Fp8Probe(
        inventory=side.tree.inventory,
        checkpoint=side.checkpoint.name if side.file is None else side.file,
        step=side.checkpoint.step,
        question=question,
        read_all=all(finding.severity is not Severity.UNKNOWN for finding in findings),
        tensors=tensors_ranked,
        layers=layers_of(tensors_ranked),
        gated=gates,
        history=tuple(
            sorted(probe_pass.checkpoint.step for probe_pass in history if probe_pass.checkpoint.step is not None)
        ),
        findings=(*findings, *aligned(gates)),
    )


def _run(tasks: list[CheckTask], view: CompareShard) -> Iterator[Observation]:
    engine = partial(ThreadEngine, jobs=cores(), timeout=TIMEOUT_SECONDS)
    return counted(tasks, partial(check, compare=view), lambda work: engine(work=work))


def _history(side: Side, question: ProbeQuestion) -> list[Side]:
    """Return the earlier checkpoints of the same run that a delayed scale uses."""
    newest, back = side.checkpoint, question.history
    if back is None or newest.step is None or side.file is not None:
        return []
    first = newest.step - back
    return [
        side._replace(checkpoint=checkpoint)
        for checkpoint in side.tree.inventory.checkpoints
        if _is_between(checkpoint, first, newest.step) and checkpoint.prefix == newest.prefix
    ]


def _is_between(checkpoint: Checkpoint, first: int, end: Step) -> bool:
    is_intact = worst(checkpoint.findings) < Severity.DAMAGE
    return is_intact and checkpoint.step is not None and first <= checkpoint.step < end


def _scales(side: Side) -> dict[str, str]:
    """Return the file that contains each FP8 weight's scale, if all ranks share several files."""
    if len(side.checkpoint.shards) == 1 or any(shard.rank is not None for shard in side.checkpoint.shards):
        return {}
    contents_opened = (
        contents for outcome in opened(side, is_all=False) if (contents := outcome.result(Opened)) is not None
    )
    return {
        entry.name: shard.path
        for shard in contents_opened
        for entry in shard.entries
        if entry.name.endswith(SCALE_WORDS)
    }


def _block(side: Side) -> tuple[int, int]:
    """Return the block size of a scale from the model's config, else the usual block size."""
    folder = posixpath.dirname(side.checkpoint.shards[0].path) if side.checkpoint.shards else ""
    path = posixpath.join(folder, _CONFIG)
    try:
        data = side.tree.storage.small_file(path, limit=_CONFIG_LIMIT)
        settings = parse_object(data, where=path).get("quantization_config")
    except (OSError, ParseError):  # the config does not exist, or is invalid
        return USUAL_BLOCK
    match settings:
        case {"weight_block_size": [int(rows), int(columns)]} if min(rows, columns) > 0:
            return rows, columns
    return USUAL_BLOCK
