"""A missing or damaged shard, and the other rank's shard that is a proven copy of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple, TypeAlias

from ckpttool.core.domain.answers import Answered
from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Finding, of_findings
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.option import Option
from ckpttool.core.domain.plan import may_be_good
from ckpttool.core.domain.pointer import PointerFix
from ckpttool.core.domain.question import GRACE, GRACE_SECONDS, ONE_NAME
from ckpttool.core.domain.replicas import Proof, TensorDigests, Trust
from ckpttool.core.domain.shard import ShardRole
from ckpttool.core.domain.units import Rank, Step
from ckpttool.core.domain.verdict import ShardReport
from ckpttool.core.errors import ExitCode
from ckpttool.replicas.findings import ReplicasCode

Place: TypeAlias = "tuple[Rank, ShardRole]"
"""The rank and the role of a save's file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedShards:
    """The contents of another checkpoint."""

    name: str
    step: Step | None
    same_run: bool
    """Whether the same start of the training run wrote both checkpoints; between two starts, ranks may change places.
    """
    shards: Mapping[Place, ShardReport]
    """Reports on the shards, after every byte of them was read."""


class Sealed(NamedTuple):
    """A manifest's record of a shard's tensors."""

    record: str
    """Path of the manifest, relative to the root."""
    schema_hash: str | None
    tensors: TensorDigests


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A shard that is missing or damaged."""

    rank: Rank
    role: ShardRole
    path: str
    """Path of the shard, whether or not the file exists."""
    is_missing: bool
    findings: tuple[Finding, ...]
    """The problems of the shard."""
    sealed: Sealed | None = None
    """The sealed contents; None if there is no manifest."""

    @property
    def place(self) -> Place:
        """The rank and the role of the shard."""
        return self.rank, self.role


@dataclass(frozen=True, slots=True, kw_only=True)
class Donor:
    """The shard that another one is rebuilt from."""

    rank: Rank
    path: str
    proof: Proof
    record: str | None = None
    """Path of the record, if there is one."""
    witnesses: tuple[str, ...] = ()
    """The checkpoints that prove the copy, if checkpoints are the proof."""
    rest_agrees: bool = False
    """Whether the intact part of the damaged file is also proof, because it changed in the same way as the donor's."""
    trust: Trust
    agrees: Rank | None = None
    """The rank with equal contents, if that rank is the evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardHealing:
    """The possible repair of one shard."""

    target: Target
    tensor: str | None = None
    """The only tensor that is replaced; None for the complete file."""
    donor: Donor | None
    metadata: tuple[tuple[str, str], ...] | None = None
    """The text of the rebuilt header, in order; None if the format has no such text."""
    refusal: Finding | None = None
    """The reason why there is no donor, and the missing proof."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealOrder:
    """The checkpoint to heal, and the options."""

    checkpoint: Annotated[str | None, ONE_NAME] = None
    """Name of the checkpoint; None for the newest."""
    donor: Annotated[
        Rank | None,
        Option(
            "--from",
            "Copy from this rank. Default: the best-supported candidate.",
            "Which checkpoint",
            metavar="RANK",
            least=0,
        ),
    ] = None
    """The rank to rebuild from; None for the best-supported candidate."""
    tensor: Annotated[
        str | None,
        Option("--tensor", "Replace only this tensor, if the rest is intact.", "Which checkpoint", metavar="NAME"),
    ] = None
    """Replace only this tensor; None for complete files."""
    apply: Annotated[
        bool, Option("--apply", "Make the changes; without this option, nothing is changed.", "What stays")
    ] = False
    grace: Annotated[float, GRACE] = GRACE_SECONDS
    """Age in seconds below which a shard is a sign of a save in progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Healing(Answered):
    """The shards that can be rebuilt or were rebuilt, and their donors."""

    NOUN = "heal"

    root: str
    layout: str
    checkpoint: Checkpoint
    shards: tuple[ShardHealing, ...]
    """Missing or damaged shards, by rank and path."""
    lost: tuple[Finding, ...]
    """The checkpoint's other problems, which no donor can fix."""
    refusals: tuple[Finding, ...]
    """The reasons why nothing is changed, even if repairs are possible."""
    order: HealOrder
    """The requested checkpoint and options."""
    resolved_from: str | None
    fixes: tuple[PointerFix, ...] = ()
    """The trainer's records that must name the checkpoint, because it will be the newest intact one."""
    trash: str | None = None
    """The current place of the damaged files, relative to the root; None if nothing was replaced."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code 0 if everything is repaired, or would be with --apply; 11 if there is no proven donor."""
        if not self.shards and may_be_good(self.lost):
            return ExitCode.INCOMPLETE  # nothing is missing or damaged, and it is unknown whether the save is good
        if self.is_refused:
            return ExitCode.NOTHING_TO_RESUME
        return of_findings((*self.lost, *self.refusals))

    @property
    def healable(self) -> tuple[ShardHealing, ...]:
        """The shards that have a donor."""
        return tuple(shard for shard in self.shards if shard.donor is not None)

    @property
    def applied(self) -> bool:
        """Whether the repair was executed."""
        return self.order.apply and bool(self.healable) and not self.refusals

    @property
    def is_refused(self) -> bool:
        """Whether a shard stays unchanged because there is no proven donor."""
        codes = {finding.code for finding in self.refusals}
        return ReplicasCode.NO_DONOR in codes or any(shard.donor is None for shard in self.shards)

    @property
    def is_mended(self) -> bool:
        """Whether the checkpoint is intact after all possible repairs."""
        return bool(self.healable) and not (self.is_refused or self.lost or self.refusals)
