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
from ckpttool.trainers.base import WHOLE_TREE, Members, Part, Refusal, ScanOptions
from ckpttool.trainers.common.tracker_file import TRACKER
from ckpttool.trainers.listing import Listing
from ckpttool.trainers.mindformers.layouts.names import (
    RANK_LAYOUT,
    SUFFIX_OF_FORMAT,
    FileKind,
    checkpoint_name,
    parse_shape,
    rank_of_folder,
    shape_of,
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
    sign = "rank_N/"
    is_tree = True
    gives_way = False
    rank_files = RankFiles.APART

    def recognise(self, listing: Listing) -> bool:
        """Tell by a folder named `rank_N`, matched whole, with a file of its own in it, or by such folders all empty.

        Whoever starts ranks may keep their logs in folders of that name. A run that has just begun has saved nothing.
        """
        are_empty: set[bool] = set()
        for folder, names in listing.inside("rank_[0-9]{1,9}", most=None):
            rank = rank_of_folder(folder)
            if rank is not None:
                if any(_is_own(name, rank) for name in names):
                    return True
                are_empty.add(not names)
        return are_empty == {True}

    def part(self, listing: Listing, folder: str, file: str | None) -> Part | Refusal | None:
        """Take a rank's folder for all ranks, and one of its shards for the save on all ranks.

        A training that changed over from the newer layout leaves its tracker.
        """
        if not folder:
            return WHOLE_TREE if file == TRACKER else None
        rank = rank_of_folder(folder)
        if rank is None:
            return None
        if file is None:
            return Part(focus=None, resolved_from="all ranks")
        parsed = parse_shape(shape_of(file, f"_rank_{rank}"))
        if parsed.kind is not FileKind.CHECKPOINT:
            return Refusal(why=f"is no checkpoint shard: expected NAME_rank_{rank}-EPOCH_STEP.ckpt")
        # By the file's own name: others may have the same label in another format, or in another training.
        return Part(focus=file, resolved_from=f"checkpoint {checkpoint_name(parsed.run, parsed.position)} on all ranks")

    def scan(self, storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
        """List the names in every rank's folder and open one header a save and cohort."""
        from ckpttool.trainers.mindformers.layouts.rank_scan import scan_ranks

        return scan_ranks(storage, listing, options)

    def closer(self, storage: Storage, checkpoint: Checkpoint) -> Checkpoint:
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

    def twin(self, checkpoint: Checkpoint, rank: Rank, role: ShardRole) -> str | Refusal:
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


def _is_own(name: str, rank: int) -> bool:
    """Tell whether MindFormers names a file in a rank's folder so, whole or not."""
    kind = parse_shape(shape_of(name, f"_rank_{rank}")).kind
    return kind is FileKind.META or ("_rank_" in name and kind is not FileKind.STRAY)
