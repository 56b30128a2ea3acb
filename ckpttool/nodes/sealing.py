"""Seal one machine's files of a checkpoint, in a manifest of its own next to the checkpoint's manifest."""

from __future__ import annotations

from pathlib import Path

from ckpttool import __version__
from ckpttool.core.decide.sealing import manifest_of, with_more
from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Code, is_of_absent, unknown
from ckpttool.core.domain.frozen import replace as with_fields
from ckpttool.core.domain.manifest import Sealing
from ckpttool.core.domain.units import moment
from ckpttool.core.domain.verdict import Verdict
from ckpttool.core.records import OWN_FOLDER
from ckpttool.core.records.birth import with_births
from ckpttool.core.records.manifest import ManifestProblem, manifest_bytes, read_alone, read_manifest
from ckpttool.core.verbs.scanning import Tree
from ckpttool.core.verbs.sealing import PATIENCE_SECONDS, changed_since, not_sealed, speaks_against, writable_target
from ckpttool.core.write.files import ensure_folder, locked, replace
from ckpttool.trainers.base import Refusal


def seal_share(tree: Tree, checkpoint: Checkpoint, verdict: Verdict, share: tuple[int, int], *, now: float) -> Sealing:
    """Seal this machine's files of a checkpoint, in a manifest of its own next to the checkpoint's manifest.

    Missing ranks are not a problem here, because a seal is about files. Files that are not intact, or are already
    sealed, are not sealed; and if there is a finding against the complete save, no file is sealed.

    Args:
        tree: The visible files, scanned with sizes.
        checkpoint: A checkpoint of this tree.
        verdict: The verdict on the visible files: every byte read, with digests, compared with earlier seals.
        share: The number of this machine, from 1, and the number of machines.
        now: Unix seconds.

    Returns:
        As for `seal_checkpoint`, with the manifest of this machine alone; the findings are the reasons why files were
        not sealed.

    Raises:
        LockedError: Another process with this number is sealing in this tree. UnsafeError, WriteFailedError,
        NotDurableError: As for `seal_checkpoint`.
    """
    place = tree.layout.seal_place(checkpoint)
    if isinstance(place, Refusal):
        return not_sealed(checkpoint, None, (unknown(Code.CANNOT_ANSWER, f"{checkpoint.name} {place.why}"),))
    against = tuple(finding for finding in speaks_against(checkpoint, verdict) if not is_of_absent(finding))
    sick, present = {finding.path for finding in against}, {shard.path for shard in checkpoint.shards}
    intact = {report.path for report in verdict.reports if report.digest is not None} - sick
    if not intact or sick - present:
        return not_sealed(checkpoint, place, against)
    path = place.of_share(*share)
    target = writable_target(tree.storage.root, path)
    with locked(f"{tree.storage.root}/{OWN_FOLDER}/seal.{share[0]}-of-{share[1]}", timeout=PATIENCE_SECONDS):
        old, mine = read_manifest(tree.storage, place), read_alone(tree.storage, place, path)
        if isinstance(old, ManifestProblem):
            return not_sealed(checkpoint, place, (old.finding,))
        if isinstance(mine, ManifestProblem):  # it did not exist a moment ago
            return not_sealed(checkpoint, place, (mine.finding,))
        born = with_births(old, tree.storage, place, checkpoint.shards)
        remaining = intact - born.seals.keys()
        read = tuple(report for report in verdict.reports if report.path in remaining)
        own_checkpoint = with_fields(
            checkpoint, shards=tuple(shard for shard in checkpoint.shards if shard.path in remaining)
        )
        new = manifest_of(
            place.layout, own_checkpoint, with_fields(verdict, reports=read), at=moment(now), by=__version__
        )
        new = with_fields(new, world_size=None)  # a machine with a part of a save does not know its number of ranks
        if wrong := born.findings or changed_since(tree.storage, read):
            return not_sealed(checkpoint, place, wrong)
        if remaining:
            ensure_folder(str(Path(target).parent))
            replace(target, manifest_bytes(with_more(mine, new)), overwrite=True, backup=False)
    sealed = with_more(mine, new)
    return Sealing(
        checkpoint=checkpoint.name,
        path=path,
        manifest=sealed,
        written=bool(remaining),
        findings=against,
        unproven=sum(not report.is_proven for report in read),
    )
