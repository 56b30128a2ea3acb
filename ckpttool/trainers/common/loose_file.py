"""A single file without a tree, or a model's weights in a folder, as `save_pretrained` writes them.

Such files can be checked and sealed, but no run can resume from them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import (
    Checkpoint,
    CommitState,
    Content,
    Inventory,
    RunSummary,
    StepSource,
    Topology,
)
from ckpttool.core.domain.expectation import Evidence, Expectation, Expected, FilesByPath, RankFiles
from ckpttool.core.domain.scalars import Facts, OwnScalars, ScalarRules, Scalars, ScalarValues, ShardFacts
from ckpttool.core.domain.shard import FORMAT_OF_SUFFIX, TORCH_FORMATS, FormatName, Shard, ShardRole
from ckpttool.core.domain.units import Rank, Step
from ckpttool.core.formats import FORMATS, read_header
from ckpttool.core.formats.front import HEAD_BYTES
from ckpttool.core.records import SealPlace, own_path
from ckpttool.core.storage.base import Entry, Kind, Storage
from ckpttool.trainers.base import LayoutSigns, Members, Part, Refusal, ScanOptions
from ckpttool.trainers.common import LOOSE_FILE_LAYOUT
from ckpttool.trainers.common.listed import one_save
from ckpttool.trainers.listing import Listing

if TYPE_CHECKING:
    from ckpttool.core.domain.load_settings import LoadSettings
    from ckpttool.core.domain.placement import ReadByAll
    from ckpttool.core.domain.pointer import Pointer, PointerText
    from ckpttool.core.domain.replicas import RecordedSlices

SHARD_SUFFIXES = {
    **FORMAT_OF_SUFFIX,
    **dict.fromkeys(("pt", "pth", "bin"), FormatName.TORCH_ZIP),
    "distcp": FormatName.TORCH_ZIPS,
    "metadata": FormatName.TORCH_PICKLE,  # of torch.distributed.checkpoint
}
"""The format that a file's suffix indicates."""

_SUFFIXES = {(".", suffix) for suffix in SHARD_SUFFIXES}
"""Suffixes with the dot, so that a file named `ckpt` has none."""

_CONFIGS = {"config.json", "adapter_config.json"}
"""Files that `save_pretrained` writes next to the weights."""

_WEIGHTS = (
    r"(?P<name>model|pytorch_model|adapter_model)(?:-(?P<part>[0-9]{5})-of-(?P<parts>[0-9]{5}))?\.(?P<suffix>[a-z]+)"
)
_MOST_PARTS = 10_000


def model_weights(listing: Listing) -> tuple[Entry, ...]:
    """Return the weights of a model saved without training state; () if the listing has no such weights.

    If several sets of files match, safetensors files take precedence.
    """
    files = [entry for entry in listing.entries if entry.kind is Kind.FILE]
    if not any(entry.name in _CONFIGS for entry in files):
        return ()
    by_name: dict[tuple[str, str], list[Entry]] = {}
    for entry in files:
        match = re.fullmatch(_WEIGHTS, entry.name)
        if match is not None and match["suffix"] in {"safetensors", "bin"}:
            by_name.setdefault((match["suffix"], match["name"]), []).append(entry)
    return tuple(by_name[max(by_name)]) if by_name else ()


def _is_one(listing: Listing) -> bool:
    """Return whether the listing is a single entry with a checkpoint suffix."""
    return len(listing.entries) == 1 and listing.entries[0].name.rpartition(".")[1:] in _SUFFIXES


def _part_of_none(listing: Listing, folder: str, file: str | None) -> Part | Refusal | None:
    """Return None, because such a file may be in any folder."""
    return None


class LooseFile:
    """The fallback layout for a path to a single file; this layout never matches a folder."""

    name = LOOSE_FILE_LAYOUT
    signs = LayoutSigns(
        name=LOOSE_FILE_LAYOUT,
        sign="a single file",
        gives_way=True,
        recognise=_is_one,
        part=_part_of_none,
        reference="",
    )
    is_tree = False
    rank_files = RankFiles.TOGETHER

    def __init__(self, scalars: Sequence[OwnScalars], folders: Callable[[], str]) -> None:
        """Store the scalars that such a file may contain.

        The file may be a shard of any tree.

        Args:
            scalars: The scalars that trainers save among the tensors.
            folders: Returns the signs of trees in which such a file is one of many: `rank_N/ or iteration_*/`.
        """
        self._scalars = scalars
        self._folders = folders

    def scan(self, storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
        """Read the header of each file."""
        names = [entry.name for entry in listing.entries]
        seen_files = {name: self._format_of(storage, name) for name in names}
        fmt, values = seen_files[names[0]]
        rules, scalars, facts = self._meaning(values)
        step = None if scalars.step is None else Step(scalars.step)
        checkpoint = Checkpoint(
            name=_whole(names[0]),
            facts=facts,
            rules=rules,
            scalars=scalars,
            step=step,
            step_source=StepSource.UNKNOWN if step is None else StepSource.CONTENT,
            shards=tuple(
                Shard(
                    path=name, rank=None, role=ShardRole.UNIFIED, format=seen_files[name][0], stamp=storage.stamp(name)
                )
                for name in names
            ),
            topology=Topology(),
            format=fmt,
            commit=CommitState.UNRECORDED,
            content=Content.UNKNOWN,
        )
        run = RunSummary(prefix="", run=0, first_step=step, last_step=step, world_size=1)
        return Inventory(root=storage.root, layout=self.name, checkpoints=(checkpoint,), runs=(run,), findings=())

    def with_own_records(self, storage: Storage, checkpoint: Checkpoint) -> Checkpoint:
        """Return the save unchanged, because the scan is complete."""
        return checkpoint

    def expected(self, inventory: Inventory, evidence: Evidence) -> Expected:
        """Expect only the file itself.

        For weights in parts, expect as many parts as the names show.
        """
        paths = (shard.path for shard in inventory.checkpoints[0].shards)
        itself = FilesByPath(paths=tuple(dict.fromkeys(part for path in paths for part in _parts(path))), ranks={})
        return Expected(checkpoints=(Expectation(files=itself, topology=Topology()),), runs=inventory.runs)

    def is_unfinished(self, name: str) -> bool:
        """Return False, because no temporary names are known without a tree."""
        return False

    def members(self, checkpoint: Checkpoint) -> Members | Refusal:
        """Refuse, because the save of the file is unknown."""
        return one_save(self._folders())

    def seal_place(self, checkpoint: Checkpoint) -> SealPlace | Refusal:
        """Return a place next to the file."""
        path = own_path(checkpoint.name, ".file.manifest.json")
        return SealPlace(path=path, layout=self.name, checkpoint=checkpoint.name, prefix=checkpoint.prefix)

    def peer_path(self, checkpoint: Checkpoint, rank: Rank, role: ShardRole) -> str | Refusal:
        """Refuse, because the save of the file is unknown."""
        return Refusal(why="is a single file: no other rank's file is treated as a copy of it")

    def read_by_all(self, checkpoint: Checkpoint) -> ReadByAll:
        """Return no files, because no run starts from such a file."""
        from ckpttool.core.domain.placement import ReadByAll

        return ReadByAll()

    def slices(self, storage: Storage, checkpoint: Checkpoint) -> RecordedSlices | None:
        """Return None, because no file is a copy of another."""
        return None

    def pointers(self, storage: Storage, ranks: Iterable[Rank]) -> Iterator[Pointer]:
        """Yield no pointers, because no record names the file."""
        return iter(())

    def pointing_to(self, checkpoint: Checkpoint) -> Mapping[str, PointerText]:
        """Return no contents, because no record names the file."""
        return {}

    def recorded_name(self, checkpoint: Checkpoint) -> str | Refusal:
        """Refuse, because the health file lists only files of ranks."""
        return Refusal(why="is for saves in a trainer's folders, not for a single file")

    def load(self, inventory: Inventory, checkpoint: Checkpoint) -> LoadSettings | Refusal:
        """Refuse, because the file may be one of many."""
        return Refusal(why=f"is not in a {self._folders()} folder: its other ranks are unknown")

    def _meaning(self, values: ScalarValues) -> tuple[ScalarRules, Scalars, Facts]:
        """Determine the trainer from the names of the scalars; if there are no scalars, use the first trainer."""
        names = {name for name, _ in values}
        best_scalars = max(
            self._scalars, key=lambda scalars: len(names & {scalar.name for scalar in scalars.rules.requested})
        )
        return best_scalars.rules, *best_scalars.meaning(values)

    def _format_of(self, storage: Storage, name: str) -> tuple[FormatName, ScalarValues]:
        """Determine the format from the content, or else from the name.

        The name alone is not enough, because torch writes many `.ckpt` files.
        """
        with storage.open(name) as source:
            head = source.read(0, HEAD_BYTES)
            format_name = next(
                (shard_format.name for shard_format in FORMATS if head.strip(b"\0") and shard_format.recognise(head)),
                None,
            )
            named = SHARD_SUFFIXES[name.rpartition(".")[2]]
            if format_name is None or format_name in TORCH_FORMATS:
                is_chain = format_name is FormatName.TORCH_ZIP and named is FormatName.TORCH_ZIPS
                return named if format_name is None or is_chain else format_name, ()
            by_name = {scalar.name: scalar for scalars in self._scalars for scalar in scalars.rules.requested}
            return format_name, read_header(
                source, named=format_name, facts=ShardFacts(scalars=tuple(by_name.values()))
            ).scalars


def _whole(name: str) -> str:
    """Return a file's name without the number of its part."""
    match = re.fullmatch(_WEIGHTS, name)
    return name if match is None or match["parts"] is None else f"{match['name']}.{match['suffix']}"


def _parts(name: str) -> Iterator[str]:
    """Yield the names of all parts of a file; for a file that is not in parts, yield its own name."""
    match = re.fullmatch(_WEIGHTS, name)
    count = 0 if match is None or match["parts"] is None else int(match["parts"])
    yield name
    if match is not None and count <= _MOST_PARTS:
        for part in range(1, count + 1):
            yield f"{match['name']}-{part:05}-of-{count:05}.{match['suffix']}"
