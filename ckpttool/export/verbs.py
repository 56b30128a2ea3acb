"""Export the weights of a checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ckpttool import __version__
from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.contents import elements_in
from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.finding import Code, Finding, blocking, helped, note
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.question import CheckQuestion
from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.domain.verdict import Verdict
from ckpttool.core.domain.weights import NotExportableError, Target, Weights, WeightsRequest
from ckpttool.core.errors import UsageError
from ckpttool.core.storage import is_folder, is_local, open_storage
from ckpttool.core.storage.base import Storage, unreadable
from ckpttool.core.verbs.sides import Side, side_of
from ckpttool.core.verbs.verifying import expect, session_for
from ckpttool.core.write.new_folder import assert_new, new_folder
from ckpttool.export.copies import assert_equal, copies_of
from ckpttool.export.cover import FLOATS, covered
from ckpttool.export.model import Exported, ExportedType, ExportQuestion, Output, WrittenFile
from ckpttool.export.shards import content, index, nbytes_of, planned
from ckpttool.export.sources import Sources, changed
from ckpttool.trainers.common.companions import CONFIG, companions_in, has_tokenizer
from ckpttool.trainers.common.loose_weights import loose_weights
from ckpttool.trainers.export_findings import unproven

_COPY_BYTES = 4 << 20
_DTYPES = {ExportedType.BF16: DType.BF16, ExportedType.FP32: DType.F32}


def export(path: str | None, question: ExportQuestion) -> Exported:
    """Write the weights of a checkpoint as safetensors files into a new folder.

    Nothing is written if the checkpoint is damaged, or its records do not show where each element of the weights is.
    Every file is read back from the disk before the folder gets its name.

    Args:
        path: A checkpoint folder, or an output folder (its newest checkpoint); `DIR:NAME`; the name of a checkpoint in
            `question.tree`; or a single file. None for that tree.
        question: The output folder, and the form of the output.

    Raises:
        UnknownLayoutError: ckpttool recognizes nothing there.
        UsageError: No checkpoint has that name, or the output folder exists and is not empty.
        NothingToResumeError: The tree has no checkpoint.
        IncompleteError: The tree's folder cannot be read.
        LockedError: Another process is writing the same output.
        WriteFailedError: The output could not be written; nothing of it remains.
        NotDurableError: The output was written, but the disk did not confirm it.
    """
    if question.config_from is not None and not is_folder(question.config_from):
        raise UsageError(f"--config-from {question.config_from!r} is not a folder")
    if not is_local(question.output):
        raise UsageError(
            f"--output {question.output!r} is not on a disk of this machine: export to a folder, then copy it"
        )
    assert_new(question.output)
    side = _complete(side_of(path, checkpoint=question.checkpoint, layout=question.layout, tree=question.tree))
    verdict = session_for(side.tree, CheckQuestion(level=question.level)).verdict(side.checkpoint)
    output, findings = None, [finding for finding in verdict.findings if blocking((finding,))]
    if not findings:
        try:
            output, findings = _exported(side, question, verdict)
        except NotExportableError as refusal:
            findings = [helped(refusal.finding)]
    return Exported(
        inventory=side.tree.inventory,
        checkpoint=side.checkpoint.name,
        step=side.checkpoint.step,
        output=output,
        findings=tuple(findings),
    )


def _complete(side: Side) -> Side:
    """Return the side with all files of its checkpoint, if it is the checkpoint's only file.

    Raises:
        UsageError: The checkpoint has further files.
    """
    if side.file is None or side.tree.trainer is None:
        return side
    checkpoint = next(each for each in side.tree.inventory.checkpoints if each.key == side.checkpoint.key)
    if len(checkpoint.shards) > 1:
        raise UsageError(f"{side.file} is one file of {checkpoint.name}: give the checkpoint, not a file of it")
    return Side(side.tree, checkpoint, None)


def _exported(side: Side, question: ExportQuestion, verdict: Verdict) -> tuple[Output, list[Finding]]:
    """Find, check and write the weights.

    Raises:
        NotExportableError: The weights cannot be exported; nothing was written.
    """
    storage = side.tree.storage
    weights = _weights(side, question)
    if question.keeps_tied:
        weights = _with_tied(weights)
    targets = _with_dtype(covered(weights.targets), question.dtype)
    plans = planned(targets, stem=weights.stem, most=question.max_shard)
    copies = _copies(storage, weights, question.config_from)
    listing = b"" if len(plans) == 1 else index(plans, _origin(side.checkpoint, weights))
    size = sum(plan.nbytes for plan in plans) + sum(copy.nbytes for copy in copies) + len(listing)
    compared = weights.targets if weights.must_agree else ()
    copies_nbytes = sum(nbytes_of(copy) for target in compared for copy in copies_of(target))
    expect(nbytes=sum(map(nbytes_of, targets)) + copies_nbytes, shards=len(plans))
    stamps = _stamps(storage, side.checkpoint, weights, (*targets, *compared))
    with Sources(storage, stamps, targets) as sources, new_folder(question.output, size=size) as folder:
        for record in weights.records:
            sources.prove(record)
        equal = assert_equal(compared, sources)
        for plan in plans:
            folder.write(plan.name, content(plan, sources), size=plan.nbytes)
        for copy in copies:
            folder.write(copy.name, copy.blocks(), size=copy.nbytes)
        if listing:
            folder.write(f"{weights.stem}.safetensors.index.json", (listing,), size=len(listing))
        sources.assert_unchanged()
    copied = tuple(sorted(copy.name for copy in copies))
    read = {piece.path for target in targets for piece in target.pieces}
    output = Output(
        folder=question.output,
        files=tuple(WrittenFile(name=plan.name, nbytes=plan.nbytes, tensors=len(plan.targets)) for plan in plans),
        copied=copied,
        missing=_missing(copied, weights),
        tensors=len(targets),
        elements=sum(elements_in(target.shape) for target in targets),
        nbytes=ByteCount(sum(map(nbytes_of, targets))),
        dtypes=dict(sorted(Counter(target.dtype.value for target in targets).items())),
        proven=sources.proven,
        level=verdict.level,
        sources=len(read),
        verified=sum(report.is_proven for report in verdict.reports if report.path in read),
        equal=equal,
        names_of=weights.names_of,
        is_loadable=weights.is_loadable,
        tied=weights.tied or {},
        left_out=tuple(left for left in weights.left_out if left.names),
    )
    return output, [*weights.findings, *_unhealthy(side.checkpoint)]


def _weights(side: Side, question: ExportQuestion) -> Weights:
    """Ask the trainer for the weights of a save; a single file has no trainer."""
    tree = side.tree
    request = WeightsRequest(
        layout=tree.layout.name,
        is_16bit=question.is_16bit,
        part=question.part,
        is_unstacked=question.is_unstacked,
        is_replicated=question.is_replicated,
    )
    source = loose_weights if tree.trainer is None else tree.trainer.weights
    try:
        weights = source(tree.storage, tree.with_own_records(side.checkpoint), request)
    except OSError as error:
        raise NotExportableError(unreadable(error.filename or side.checkpoint.name, error)) from error
    if not weights.targets:
        raise unproven(
            "The save has no weights that ckpttool recognizes.", remedy="export with the trainer's converter"
        )
    return weights


def _with_tied(weights: Weights) -> Weights:
    """Add the further names of shared weights."""
    by_name = {target.name: target for target in weights.targets}
    copies = (replace(by_name[name], name=alias) for alias, name in (weights.tied or {}).items())
    return replace(weights, targets=(*weights.targets, *copies), tied=None)


def _with_dtype(targets: tuple[Target, ...], requested: ExportedType) -> tuple[Target, ...]:
    dtype = _DTYPES.get(requested)
    if dtype is None:
        return targets
    return tuple(replace(target, dtype=dtype) if target.dtype in FLOATS else target for target in targets)


def _stamps(
    storage: Storage, checkpoint: Checkpoint, weights: Weights, targets: Iterable[Target]
) -> dict[str, FileStamp]:
    """Return the stamps of all source files: as listed, or as they are now."""
    listed = {shard.path: shard.stamp for shard in checkpoint.shards}
    paths = {piece.path for target in targets for piece in target.pieces}
    paths |= {record.path for record in weights.records} | {*weights.described_by}
    stamps = {}
    for path in sorted(paths):
        stamp = listed.get(path)
        try:
            stamps[path] = storage.stamp(path) if stamp is None else stamp
        except OSError as error:
            raise NotExportableError(unreadable(path, error)) from error
    return stamps


def _origin(checkpoint: Checkpoint, weights: Weights) -> dict[str, object]:
    """Return the entry of the index about the origin of the weights."""
    origin: dict[str, object] = {"from": checkpoint.name, "step": checkpoint.step, "version": __version__}
    if weights.tied:
        origin["tied"] = dict(weights.tied)
    return origin


class _CopiedFile(NamedTuple):
    """A file that is copied to the output."""

    name: str
    storage: Storage
    path: str
    nbytes: int

    def blocks(self) -> Iterator[bytes]:
        """Yield the file's content.

        Raises:
            NotExportableError: The file cannot be read.
        """
        at = 0
        try:
            with self.storage.open(self.path) as source:
                while at < self.nbytes and (block := source.read(at, min(_COPY_BYTES, self.nbytes - at))):
                    at += len(block)
                    yield block
        except OSError as error:
            raise NotExportableError(unreadable(self.path, error)) from error
        if at < self.nbytes:
            raise changed(self.path)


def _copies(storage: Storage, weights: Weights, config_from: str | None) -> tuple[_CopiedFile, ...]:
    """Return the files to copy: those of the save, then those of the base model that the save lacks."""
    found = [(storage, path) for path in weights.companions]
    if config_from is not None:
        base = open_storage(config_from)
        found += [(base, path) for path in companions_in(base, "")]
    by_name: dict[str, _CopiedFile] = {}
    for origin, path in found:
        name = path.rpartition("/")[2]
        try:
            by_name.setdefault(name, _CopiedFile(name, origin, path, origin.stamp(path).size))
        except OSError as error:
            raise NotExportableError(unreadable(path, error)) from error
    return tuple(by_name.values())


def _missing(copied: tuple[str, ...], weights: Weights) -> tuple[str, ...]:
    """Return the files that a loader of models needs besides the weights."""
    if not weights.is_loadable:
        return ()
    missing = [] if CONFIG in copied or weights.stem != "model" else [CONFIG]
    return (*missing, *(() if has_tokenizer(copied) else ("the tokenizer's files",)))


def _unhealthy(checkpoint: Checkpoint) -> Iterator[Finding]:
    if checkpoint.health is Health.UNHEALTHY:
        message = "the checkpoint is recorded as unhealthy; its weights were exported as they are"
        yield note(Code.MARKED_UNHEALTHY, message, path=checkpoint.name)
