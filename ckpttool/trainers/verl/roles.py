"""The folders of models in a save, with a file of each kind on each rank: `model_world_size_2_rank_0.pt`.

Source: `fsdp_checkpoint_manager.py` of verl and `fsdp_strategy.py` of SkyRL, which write the same files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection

from ckpttool.core.domain.finding import Code, Finding
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.shard import FormatName, Shard, ShardRole
from ckpttool.core.domain.units import MAX_RANKS, Rank
from ckpttool.core.storage.base import Kind, Storage, unreadable
from ckpttool.trainers.base import ScanOptions
from ckpttool.trainers.common.listed import listed_damage, lost_link, stamp_if_there
from ckpttool.trainers.verl import KINDS, STATES, holds_a_model

_OTHER_WORLD = "move away the files of another number of ranks, or resume from another checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleFolder:
    """The folder of one model in a save."""

    path: str
    """Path of the folder, such as `global_step_3/actor`.

    It is the save's own folder if the model's files are in it.
    """
    name: str
    """Name of the folder, such as `actor`; empty for the save's own folder."""
    shards: tuple[Shard, ...]
    kinds: frozenset[str]
    """Kinds of files that any rank has."""
    worlds: Counter[int]
    """Number of files by the number of ranks in their names."""
    findings: tuple[Finding, ...]

    @property
    def world(self) -> int | None:
        """The most common world size in the names; None if there are no files."""
        return max(self.worlds, key=lambda world: (self.worlds[world], world)) if self.worlds else None


def is_role(storage: Storage, save: str, name: str, kind: Kind, known: Collection[str]) -> bool:
    """Return whether an entry in a save's folder is the folder of one model.

    An unreadable entry may be one.

    Args:
        storage: The tree.
        save: Name of the save's folder.
        name: Name of the entry.
        kind: Whether the entry is a folder.
        known: Names that the trainer gives to such folders.
    """
    if name in known:
        return True
    if kind is not Kind.FOLDER:
        return False
    try:
        return holds_a_model(entry.name for entry in storage.entries(f"{save}/{name}"))
    except OSError:
        return True


def look_at_role(storage: Storage, save: str, role: str, options: ScanOptions) -> RoleFolder:
    """List the rank files of one model; an empty role is the save's own folder."""
    folder = f"{save}/{role}" if role else save
    shards: list[Shard] = []
    findings: list[Finding] = []
    kinds: set[str] = set()
    worlds: Counter[int] = Counter()
    try:
        entries = sorted(storage.entries(folder))
    except OSError as error:
        entries, findings = [], [unreadable(folder, error)]
    for entry in entries:
        match, path = re.fullmatch(STATES, entry.name), f"{folder}/{entry.name}"
        if match is None or max(int(match["rank"]), int(match["world"])) > MAX_RANKS:
            continue  # it stores copies of the tokenizer and the model's config here
        rank = Rank(int(match["rank"]))
        kinds.add(match["kind"])
        worlds[int(match["world"])] += 1
        shards.append(state_shard(storage, path, rank, KINDS[match["kind"]], options))
        findings += lost_link(storage, path, rank) if entry.kind is Kind.LOST else []
    if len(worlds) > 1:
        worlds_text = ", ".join(map(str, sorted(worlds)))
        message = f"files of several world sizes in one folder: {worlds_text}"
        findings.append(listed_damage(Code.WORLD_SIZE_DIFFERS, message, folder, remedy=_OTHER_WORLD))
    return RoleFolder(
        path=folder,
        name=role,
        shards=tuple(sorted(shards, key=lambda shard: (shard.rank or 0, shard.path))),
        kinds=frozenset(kinds),
        worlds=worlds,
        findings=tuple(findings),
    )


def state_shard(storage: Storage, path: str, rank: Rank | None, role: ShardRole, options: ScanOptions) -> Shard:
    """Return a file of a save, with its stamp if sizes are requested."""
    stamp = stamp_if_there(storage, path) if options.sizes else None
    return Shard(path=path, rank=rank, role=role, format=FormatName.TORCH_ZIP, stamp=stamp)
