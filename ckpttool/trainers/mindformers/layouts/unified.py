"""Unified safetensors: one set of files for all ranks, as written by `ms.unified_safetensors`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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
from ckpttool.core.domain.expectation import Evidence, Expected, RankFiles
from ckpttool.core.domain.finding import Code, Finding, unsafe
from ckpttool.core.domain.shard import FormatName, Shard, ShardRole
from ckpttool.core.domain.units import Rank, Step
from ckpttool.core.formats.strict_json import ParseError, as_object, as_str, parse_object
from ckpttool.core.records import MANIFEST_NAME, SealPlace
from ckpttool.core.storage.base import Kind, Storage
from ckpttool.trainers.base import Members, Refusal, ScanOptions
from ckpttool.trainers.common.listed import by_own_records, holds_its_mark, listed_damage, one_save, stamp_if_there
from ckpttool.trainers.listing import Listing
from ckpttool.trainers.mindformers.layouts.names import (
    BESIDE_THE_SAVES,
    SCALARS_FILE,
    UNIFIED,
    UNIFIED_LAYOUT,
    FileKind,
    parse_shape,
)
from ckpttool.trainers.mindformers.scalars import FACTS, RULES, EpochStep, TrainState, state_in

if TYPE_CHECKING:
    from ckpttool.core.domain.load_settings import LoadSettings
    from ckpttool.core.domain.placement import ReadByAll
    from ckpttool.core.domain.pointer import Pointer, PointerText
    from ckpttool.core.domain.replicas import RecordedSlices

MAP_FILE = "param_name_map.json"
MAP_LIMIT = 64 << 20
NAME = "unified"


class MindFormersUnified:
    """The layout of a folder with `hyper_param.safetensors`.

    MindFormers loads the complete folder, so there is nothing to choose.
    """

    name = UNIFIED_LAYOUT
    signs = UNIFIED
    is_tree = True
    rank_files = RankFiles.TOGETHER

    def scan(self, storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
        """Read the scalars and the map of parameters to files."""
        findings: list[Finding] = []
        state = _state(storage)
        if state.global_batch_size is None:
            message = f"{SCALARS_FILE} has no global_batch_size: MindFormers 1.6 to 2.1 stop with a KeyError"
            remedy = "resume from the ranks' own checkpoints, from which these weights were merged"
            findings.append(listed_damage(Code.SCALARS_MISSING, message, SCALARS_FILE, remedy=remedy))
        present = {entry.name for entry in listing.entries if entry.kind in {Kind.FILE, Kind.LOST}}
        expected = _expected(storage, present, findings)
        parts = sorted(name for name in present if name.endswith(".safetensors") and name != SCALARS_FILE)
        step = None if state.step_num is None else Step(state.step_num)
        at = None if step is None else EpochStep(epoch=state.epoch_num or 0, step=step)
        checkpoint = Checkpoint(
            name=NAME,
            sort_key=() if at is None else at.sort_key,
            facts=state.facts if at is None else (*at.facts, ("optimizer_step", state.global_step)),
            scalars=state.scalars,
            rules=RULES,
            step=step,
            step_source=StepSource.UNKNOWN if step is None else StepSource.CONTENT,
            shards=tuple(
                Shard(
                    path=name,
                    rank=None,
                    role=ShardRole.SCALARS if name == SCALARS_FILE else ShardRole.UNIFIED,
                    format=FormatName.SAFETENSORS,
                    stamp=stamp_if_there(storage, name) if options.sizes else None,
                )
                for name in [*parts, SCALARS_FILE]
            ),
            topology=Topology(shared=True),
            format=FormatName.SAFETENSORS,
            expected=expected,
            commit=CommitState.UNKNOWN if expected is None else CommitState.COMMITTED,
            content=Content.FULL,
            findings=tuple(findings),
        )
        run = RunSummary(prefix="", run=0, first_step=step, last_step=step, world_size=1)
        return Inventory(root=storage.root, layout=self.name, checkpoints=(checkpoint,), runs=(run,), findings=())

    def with_own_records(self, storage: Storage, checkpoint: Checkpoint) -> Checkpoint:
        """Return the save unchanged, because the scan is complete."""
        return checkpoint

    def expected(self, inventory: Inventory, evidence: Evidence) -> Expected:
        """Expect the files in the map of parameters."""
        return by_own_records(inventory)

    def is_unfinished(self, name: str) -> bool:
        """Return whether this is a name of temporary files by MindFormers or Python."""
        return parse_shape(name).kind is FileKind.IN_PROGRESS

    def members(self, checkpoint: Checkpoint) -> Members | Refusal:
        """Refuse, because the folder is one save."""
        return one_save("rank_N/ or iteration_*/")

    def seal_place(self, checkpoint: Checkpoint) -> SealPlace | Refusal:
        """Return a place in the folder."""
        return SealPlace(path=MANIFEST_NAME, layout=self.name, checkpoint=checkpoint.name, prefix=None)

    def peer_path(self, checkpoint: Checkpoint, rank: Rank, role: ShardRole) -> str | Refusal:
        """Refuse, because all ranks share the files."""
        return Refusal(why="is one checkpoint that all ranks share: it has each slice once")

    def read_by_all(self, checkpoint: Checkpoint) -> ReadByAll:
        """Return no files, because the slices of each rank show which files it reads."""
        from ckpttool.core.domain.placement import ReadByAll

        return ReadByAll()

    def slices(self, storage: Storage, checkpoint: Checkpoint) -> RecordedSlices | None:
        """Return None, because no file is a copy of another."""
        return None

    def pointers(self, storage: Storage, ranks: Iterable[Rank]) -> Iterator[Pointer]:
        """Yield no pointers, because no record names the folder."""
        return iter(())

    def pointing_to(self, checkpoint: Checkpoint) -> Mapping[str, PointerText]:
        """Return no contents, because no record names the folder."""
        return {}

    def recorded_name(self, checkpoint: Checkpoint) -> str | Refusal:
        """Refuse, because the health file lists only files of ranks."""
        return holds_its_mark(self.name, companion=BESIDE_THE_SAVES)

    def load(self, inventory: Inventory, checkpoint: Checkpoint) -> LoadSettings | Refusal:
        """Return settings for the folder, because all of it is loaded."""
        from ckpttool.trainers.mindformers.load import LoadKeys

        keys = LoadKeys(
            load_checkpoint=inventory.root,
            resume_training=True,
            load_ckpt_format="safetensors",
            use_legacy_format=True,
        )
        return keys.settings(checkpoint.renames)


def _state(storage: Storage) -> TrainState:
    from ckpttool.core.formats import read_header  # names are enough to recognize a folder of another layout

    try:
        with storage.open(SCALARS_FILE) as source:
            return state_in(read_header(source, named=FormatName.SAFETENSORS, facts=FACTS).scalars)
    except OSError:  # reported by the later check of every file
        return TrainState()


def _expected(storage: Storage, present: set[str], findings: list[Finding]) -> tuple[str, ...] | None:
    if MAP_FILE not in present:
        message = f"no {MAP_FILE}: whether every part is here is unknown"
        findings.append(listed_damage(Code.METADATA_INCOMPLETE, message, MAP_FILE))
        return None
    try:
        names = parse_name_map(storage.small_file(MAP_FILE, limit=MAP_LIMIT), where=MAP_FILE)
    except (OSError, ParseError) as error:
        findings.append(listed_damage(Code.META_UNREADABLE, str(error), MAP_FILE))
        return None
    escaping = sorted(name for name in names if "/" in name or not name.endswith(".safetensors"))
    if escaping:
        message = f"{MAP_FILE} names {escaping[0]!r}, which is not part of this folder; it is not followed"
        findings.append(unsafe(Code.UNSAFE_NAME, message, path=MAP_FILE))
        return None
    return tuple(sorted({*names, SCALARS_FILE}))


def parse_name_map(data: bytes, *, where: str) -> frozenset[str]:
    """Return the names of all files in the map.

    MindSpore 2.10 writes `{"metadata": …, "weight_map": {parameter: file}}`, older versions only the inner map.

    Raises:
        ParseError: The message names the file and the invalid key.
    """
    record = parse_object(data, where=where)
    if "weight_map" in record:
        record = as_object(record["weight_map"], where=where, key="weight_map")
    return frozenset(as_str(file, where=where, key=parameter) for parameter, file in record.items())
