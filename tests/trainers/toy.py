"""A trainer that is made up, with the layout of torch's distributed checkpoints: what it takes to add one.

`step-20/__1_0.toy` is what rank 1 wrote, `step-20/toy.json` is written last and names every file. The real one is a
pickle; here it is JSON, so that a test can write it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

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
from ckpttool.core.domain.finding import Code, damage, note
from ckpttool.core.domain.load_settings import LoadSettings, Place, TrainerSetting
from ckpttool.core.domain.placement import ReadByAll
from ckpttool.core.domain.pointer import Pointer, PointerText
from ckpttool.core.domain.replicas import RecordedSlices
from ckpttool.core.domain.scalars import Scalars
from ckpttool.core.domain.shard import FormatName, Shard, ShardRole
from ckpttool.core.domain.units import Rank, Step
from ckpttool.core.formats.strict_json import ParseError, get_int, get_list, parse_object
from ckpttool.core.records import OWN_FOLDER, SealPlace
from ckpttool.core.storage.base import Kind, Storage
from ckpttool.trainers.base import (
    LayoutSigns,
    Members,
    Part,
    Refusal,
    ScanOptions,
    Trainer,
)
from ckpttool.trainers.common.listed import stamp_if_there
from ckpttool.trainers.listing import Listing
from tests.support.trees import floats, safetensors_bytes

_SAVE = r"step-(?P<step>[0-9]{1,18})"
_SHARD = r"__(?P<rank>[0-9]{1,6})_[0-9]{1,6}\.toy"


class ToyLayout:
    """One folder a save; whole once its `toy.json` is there."""

    name = "toy-dcp"
    sign = "step-N/"
    is_tree = True
    gives_way = False
    rank_files = RankFiles.UNKNOWN

    @property
    def signs(self) -> LayoutSigns:
        """Say what it is told by, as a layout of its kind does."""
        return LayoutSigns(
            name=self.name,
            sign=self.sign,
            gives_way=self.gives_way,
            recognise=self.recognise,
            part=self.part,
            reference=f"{type(self).__module__}:{type(self).__name__}",
        )

    def recognise(self, listing: Listing) -> bool:
        """Tell by what lies in the folder of a save: others call theirs the same."""
        return any("toy.json" in names or any(map(_is_shard, names)) for _, names in listing.inside(_SAVE))

    def part(self, listing: Listing, folder: str, file: str | None) -> Part | Refusal | None:
        """Take a save's folder, and its files, for the save."""
        name = folder.partition("/")[0]
        return Part(focus=name, resolved_from=f"checkpoint {name}") if _is_save(name) else None

    def scan(self, storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
        """Read the names and the record of each save."""
        names = [entry.name for entry in listing.entries]
        saves = sorted(
            (_scan(storage, name, options) for name in names if _is_save(name)), key=lambda one: one.step or 0
        )
        strays = [name for name in names if not _is_save(name) and name != OWN_FOLDER]
        steps = [save.step for save in saves if save.step is not None]
        run = RunSummary(prefix="", run=0, first_step=min(steps), last_step=max(steps), world_size=0)
        return Inventory(
            root=storage.root,
            layout=self.name,
            checkpoints=tuple(saves),
            runs=(run,),
            findings=tuple(note(Code.STRAY_FILE, "no save", path=name) for name in strays),
            strays=tuple(strays),
        )

    def with_own_records(self, storage: Storage, checkpoint: Checkpoint) -> Checkpoint:
        """Return it as it is: the scan tells all."""
        return checkpoint

    def expected(self, inventory: Inventory, evidence: Evidence) -> Expected:
        """Go by each save's record; without one nothing is known."""
        return Expected(checkpoints=tuple(map(_expectation, inventory.checkpoints)), runs=inventory.runs)

    def is_unfinished(self, name: str) -> bool:
        """Tell of none: it writes under the last name at once."""
        return False

    def members(self, checkpoint: Checkpoint) -> Members | Refusal:
        """Refuse."""
        return Refusal(why="is a tree of the toy trainer, whose saves ckpttool does not move", is_of_tree=True)

    def seal_place(self, checkpoint: Checkpoint) -> SealPlace | Refusal:
        """Refuse."""
        return Refusal(why="is a tree of the toy trainer, in which ckpttool has no place for a seal")

    def peer_path(self, checkpoint: Checkpoint, rank: Rank, role: ShardRole) -> str | Refusal:
        """Refuse: each rank writes what no other does."""
        return Refusal(why="is a tree of the toy trainer, whose ranks write no copies")

    def read_by_all(self, checkpoint: Checkpoint) -> ReadByAll:
        """Name the record."""
        return ReadByAll(surely=(f"{checkpoint.name}/toy.json",))

    def slices(self, storage: Storage, checkpoint: Checkpoint) -> RecordedSlices | None:
        """Read none."""
        return None

    def pointers(self, storage: Storage, ranks: Iterable[Rank]) -> Iterator[Pointer]:
        """Read none: there are none."""
        return iter(())

    def pointing_to(self, checkpoint: Checkpoint) -> Mapping[str, PointerText]:
        """Spell none."""
        return {}

    def recorded_name(self, checkpoint: Checkpoint) -> str | Refusal:
        """Refuse: it keeps no health file."""
        return Refusal(why="is for trainers with a health file")

    def load(self, inventory: Inventory, checkpoint: Checkpoint) -> LoadSettings | Refusal:
        """Name the save's folder on the command line."""
        path = f"{inventory.root}/{checkpoint.name}"
        setting = TrainerSetting(place=Place.parsed("argument:--load"), value=path, is_path=True)
        return LoadSettings(trainer="toy", path=path, settings=(setting,))


def _is_save(name: str) -> bool:
    return re.fullmatch(_SAVE, name) is not None


def _is_shard(name: str) -> bool:
    return re.fullmatch(_SHARD, name) is not None


def _scan(storage: Storage, name: str, options: ScanOptions) -> Checkpoint:
    files = sorted(entry.name for entry in storage.entries(name) if entry.kind is Kind.FILE)
    shards = [_shard(storage, f"{name}/{file}", options) for file in files if re.fullmatch(_SHARD, file)]
    named, findings = int(name.partition("-")[2]), []
    commit = CommitState.COMMITTED
    try:
        record = parse_object(storage.small_file(f"{name}/toy.json", limit=1 << 20), where=f"{name}/toy.json")
        step = get_int(record, "step", where=name)
        expected = tuple(f"{name}/{file}" for file in map(str, get_list(record, "files", where=name)))
    except (OSError, ParseError) as error:
        step, expected = named, None
        is_cut_off = isinstance(error, (FileNotFoundError, ParseError))
        commit = CommitState.UNCOMMITTED if is_cut_off else CommitState.UNKNOWN
    if step != named:
        findings = [damage(Code.STEP_DISAGREES, f"its record says step {step}", path=f"{name}/toy.json")]
    return Checkpoint(
        name=name,
        scalars=Scalars(),
        step=Step(step),
        step_source=StepSource.NAME if expected is None else StepSource.CONTENT,
        shards=tuple(shards),
        topology=Topology(),
        format=FormatName.SAFETENSORS,
        expected=expected,
        commit=commit,
        content=Content.FULL,
        findings=tuple(findings),
    )


def _shard(storage: Storage, path: str, options: ScanOptions) -> Shard:
    match = re.fullmatch(rf"{_SAVE}/{_SHARD}", path)
    assert match is not None
    stamp = stamp_if_there(storage, path) if options.sizes else None
    return Shard(
        path=path, rank=Rank(int(match["rank"])), role=ShardRole.UNIFIED, format=FormatName.SAFETENSORS, stamp=stamp
    )


def _expectation(checkpoint: Checkpoint) -> Expectation:
    files = None if checkpoint.expected is None else FilesByPath(paths=checkpoint.expected, ranks={})
    return Expectation(files=files, topology=checkpoint.topology)


TOY = Trainer(
    name="toy",
    title="Toy",
    records=r"toy\.json",
    places=("saves",),
    layout_names=(ToyLayout.name,),
    layouts_at=("tests.trainers.toy:SIGNS",),
)
"""Its trees are read; nothing else is known of it."""
SIGNS = ToyLayout().signs


def save(root: Path, step: int, *, ranks: Iterable[int] = range(4), names: int | None = None) -> Path:
    """Write a save as the toy trainer does.

    Args:
        root: The tree.
        step: In the folder's name.
        ranks: That write a file.
        names: The step that the record says; None: the same.
    """
    folder = root / f"step-{step}"
    folder.mkdir(parents=True)
    files = [f"__{rank}_0.toy" for rank in ranks]
    for rank, file in enumerate(files):
        (folder / file).write_bytes(safetensors_bytes([floats("dense.bias", [8], seed=step + rank)]))
    record = {"step": step if names is None else names, "files": files}
    (folder / "toy.json").write_text(json.dumps(record))
    return folder
