"""MindFormers' legacy layout: `rank_N/{prefix}_rank_N[_k]-{epoch}_{step}.{ckpt|safetensors}`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.domain.expectation import Evidence, Expected, RankFiles
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.domain.units import Rank
from ckpttool.core.records import SealPlace, births_begin, own_path
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.base import Members, Refusal, ScanOptions
from ckpttool.trainers.listing import Listing
from ckpttool.trainers.mindformers.layouts.names import (
    RANK,
    RANK_LAYOUT,
    SUFFIX_OF_FORMAT,
    FileKind,
    parse_shape,
)

if TYPE_CHECKING:
    from ckpttool.core.domain.load_settings import LoadSettings
    from ckpttool.core.domain.placement import ReadByAll
    from ckpttool.core.domain.pointer import Pointer, PointerText
    from ckpttool.core.domain.replicas import RecordedSlices
    from ckpttool.core.domain.shard import ShardRole


class MindFormersRank:
    """The layout of every MindFormers version, and the only one before 1.7."""

    name = RANK_LAYOUT
    signs = RANK
    is_tree = True
    rank_files = RankFiles.APART

    def scan(self, storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
        """List the names in every rank's folder and open one header a save and cohort."""
        from ckpttool.trainers.mindformers.layouts.rank_scan import scan_ranks

        return scan_ranks(storage, listing, options)

    def with_own_records(self, storage: Storage, checkpoint: Checkpoint) -> Checkpoint:
        """Return it as it is: the scan tells all."""
        return checkpoint

    def expected(self, inventory: Inventory, evidence: Evidence) -> Expected:
        """Weigh how many ranks each run had: no record says it."""
        from ckpttool.trainers.mindformers.layouts.rank_expected import expected_of_ranks

        return expected_of_ranks(inventory, evidence)

    def is_unfinished(self, name: str) -> bool:
        """Tell by the names under which MindFormers and Python write."""
        return parse_shape(name).kind is FileKind.IN_PROGRESS

    def members(self, checkpoint: Checkpoint) -> Members | Refusal:
        """Return the ranks' shards: their folders hold those of other saves, too."""
        return Members(paths=tuple(shard.path for shard in checkpoint.shards))

    def seal_place(self, checkpoint: Checkpoint) -> SealPlace | Refusal:
        """Return a place outside the ranks' folders, which other saves share."""
        return seal_place(checkpoint.prefix, checkpoint.name, checkpoint.format)

    def peer_path(self, checkpoint: Checkpoint, rank: Rank, role: ShardRole) -> str | Refusal:
        """Spell it after another rank's: data-parallel ranks save the same."""
        from ckpttool.trainers.mindformers.layouts.rank_expected import path_for

        return path_for(checkpoint.shards[0], rank)

    def read_by_all(self, checkpoint: Checkpoint) -> ReadByAll:
        """Name none: each rank reads what lies in its own folder."""
        from ckpttool.core.domain.placement import ReadByAll

        return ReadByAll()

    def slices(self, storage: Storage, checkpoint: Checkpoint) -> RecordedSlices | None:
        """Read them from the strategy files beside the tree, which the training wrote as it began."""
        from ckpttool.trainers.mindformers.recorded_slices import strategy_slices

        return strategy_slices(storage, checkpoint)

    def pointers(self, storage: Storage, ranks: Iterable[Rank]) -> Iterator[Pointer]:
        """Read these ranks' meta.json."""
        from ckpttool.trainers.mindformers.layouts.pointers import meta_pointers

        return meta_pointers(storage, ranks)

    def pointing_to(self, checkpoint: Checkpoint) -> Mapping[str, PointerText]:
        """Spell the meta.json of every rank that has a shard of it."""
        from ckpttool.trainers.mindformers.layouts.pointers import metas_naming

        return metas_naming(checkpoint)

    def recorded_name(self, checkpoint: Checkpoint) -> str | Refusal:
        """Return rank 0's file name, or what it would be."""
        from ckpttool.trainers.mindformers.layouts.rank_expected import path_for

        return path_for(checkpoint.shards[0], Rank(0)).rpartition("/")[2]

    def load(self, inventory: Inventory, checkpoint: Checkpoint) -> LoadSettings | Refusal:
        """Name the folder and the file: then every rank loads its own file of that name, and nothing is chosen."""
        from ckpttool.trainers.mindformers.load import LOAD_FORMAT, LoadKeys

        # Rank 0's file name as it is after the renames; MindFormers puts each rank's own number into it.
        first = checkpoint.shards[0].path
        renamed = {rename.source: rename.target for rename in checkpoint.renames}
        keys = LoadKeys(
            load_checkpoint=inventory.root,
            resume_training=renamed.get(first, first).rpartition("/")[2],
            load_ckpt_format=LOAD_FORMAT[checkpoint.format],
            use_legacy_format=True,
        )
        return keys.settings(checkpoint.renames)


def seal_place(prefix: str, name: str, fmt: FormatName) -> SealPlace:
    """Return where the seal of a save is kept, by what tells it from others in the tree."""
    # `x-_1` and `25_2` would give the name of `x` and `_1-25_2`.
    ambiguous = re.search(r"-_[0-9]+\Z", prefix) is not None
    path = own_path(f"{prefix}-{name}.{SUFFIX_OF_FORMAT[fmt]}", ".manifest.json", ambiguous=ambiguous)
    # Our own writer writes no other format, and takes no such prefix.
    births = births_begin(prefix, name) if fmt is FormatName.SAFETENSORS and not ambiguous else None
    return SealPlace(path=path, layout=RANK_LAYOUT, checkpoint=name, prefix=prefix, births=births)
