"""The interfaces of a trainer: its file layout, the meaning of its records, and its settings for loading a save.

A layout has no defaults: it must define every method, and mypy reports any that is missing. A trainer's abilities are
optional: a missing one means unknown. "Unknown", None and a `Refusal` are valid answers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol, cast

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.extensions import imported

if TYPE_CHECKING:
    from ckpttool.core.domain.asd import AsdDialect
    from ckpttool.core.domain.checkpoint import Checkpoint, CheckpointKey, Inventory
    from ckpttool.core.domain.data_position import DataPosition, DataQuestion
    from ckpttool.core.domain.expectation import Evidence, Expected, RankFiles
    from ckpttool.core.domain.finding import Finding
    from ckpttool.core.domain.load_settings import LoadSettings, TrainerSetting
    from ckpttool.core.domain.loader_state import SavedLoader
    from ckpttool.core.domain.placement import ReadByAll
    from ckpttool.core.domain.plan import ResumePlan
    from ckpttool.core.domain.pointer import Pointer, PointerText
    from ckpttool.core.domain.question import AskedSizes
    from ckpttool.core.domain.replicas import RecordedSlices
    from ckpttool.core.domain.scalars import OwnScalars
    from ckpttool.core.domain.settings import RunConfig, StepIntervals
    from ckpttool.core.domain.shard import ShardRole
    from ckpttool.core.domain.units import Rank, Step
    from ckpttool.core.domain.weights import Weights, WeightsRequest
    from ckpttool.core.logs.base import LogFormat, LogPlaces
    from ckpttool.core.records import SealPlace
    from ckpttool.core.storage.base import Storage
    from ckpttool.trainers.abilities import ConfigReader, HealthFile, LaunchTarget, Phrasing, Simulator, WeightsSource
    from ckpttool.trainers.listing import Listing


def referred(reference: str) -> object:
    """Import the target of a reference, `package.module:name`; if the target is a class, return an instance."""
    found: object = imported(reference)
    return found() if isinstance(found, type) else found


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOptions:
    """Data that a scan collects in addition to names."""

    sizes: bool = False
    """Whether to read the size and time of every shard as well.

    This takes one more call per file.
    """
    steps_per_epoch: int | None = None
    """Sink size, or number of batches in the data set.

    It converts names to steps if no shard contains its step.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The answer of a layout that does not support a request."""

    why: str
    """The reason, worded to follow a path or a request: "is one checkpoint, not a tree of …"."""
    is_of_tree: bool = False
    """True if the refusal applies to every save of the tree, permanently; False if only to this save, for now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The part of a tree that a path selects."""

    focus: str | None
    """Name of the save or of the selected file; None for all saves."""
    resolved_from: str | None
    """The selected object, such as "checkpoint 20_2 on all ranks"; None for the whole tree."""

    @classmethod
    def of_save(cls, name: str) -> Part:
        """Return the part for a save's own folder and its contents."""
        return cls(focus=name, resolved_from=f"checkpoint {name}")


WHOLE_TREE = Part(focus=None, resolved_from=None)
"""The part for a file in the root that belongs to no single save, such as a tracker.

A file of the only save also has this part.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """The files that belong to only one save, and may be moved with it."""

    paths: tuple[str, ...]
    """Files, or the one folder that contains them, relative to the root.

    The first path is moved first: without it, the save no longer looks intact.
    """
    records: tuple[str, ...] = ()
    """The trainer's records in a save, in addition to the shards.

    Their times also show whether a save is in progress.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutSigns:
    """The names that identify a layout, available without importing the layout."""

    name: str
    """Name for `--layout` and JSON."""
    sign: str
    """The sign as shown in messages: `rank_N/`, with a slash for a folder."""
    gives_way: bool = False
    """Whether saves of other layouts also have these signs.

    If another layout matches a folder, this layout is ignored.
    """
    is_last: bool = False
    """Whether this layout is tried only if no other layout matches a folder, because it must read complete headers."""
    recognise: Callable[[Listing], bool]
    """Returns whether a folder has this layout, judged by names alone.

    The names in the folder decide, or the names in its subfolders if other layouts use the same folder names. The
    folder is the root of the tree: a save itself is a part of the tree around it. The listing may contain only one
    entry, whose contents then identify the trainer of the save.

    Raises:
        OSError: A folder that would decide the answer cannot be listed.
    """
    part: Callable[[Listing, str, str | None], Part | Refusal | None]
    """Returns the part to which a path belongs if the tree has this layout.

    The path is a folder below the root, or a file in the root or in such a folder.

    Args:
        listing: The root, or only the path's first entry: if a save may have any name, the contents of
            the folder decide.
        folder: The folder's path, such as `checkpoint-12/optimizer_0`; empty for the root itself.
        file: The name of the selected file in that folder; None for the folder itself.

    Returns:
        None if no tree of this layout has such a path; a refusal if the layout has the folder, but no such file.

    Raises:
        OSError: A folder that would decide the answer cannot be listed.
    """
    reference: str
    """Reference to the layout, `module:name`; empty for a single file's layout, which never matches a folder."""

    @property
    def layout(self) -> Layout:
        """The layout itself."""
        return cast("Layout", referred(self.reference))


class Layout(Protocol):
    """One way to arrange checkpoints in folders."""

    @property
    def name(self) -> str:
        """Name for `--layout` and JSON."""
        ...

    @property
    def signs(self) -> LayoutSigns:
        """The signs of a folder in this layout."""
        ...

    @property
    def is_tree(self) -> bool:
        """Whether the layout's root is a folder of checkpoints; a single file may be in any folder."""
        ...

    @property
    def rank_files(self) -> RankFiles:
        """Location of a save's rank files.

        It decides whether an absent file is missing, or may be on a different machine.
        """
        ...

    def scan(self, storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
        """List all checkpoints, intact or not, with the values in one header of each."""
        ...

    def with_own_records(self, storage: Storage, checkpoint: Checkpoint) -> Checkpoint:
        """Add the records of a save that are too large to read for every save of a tree.

        This is called for each save that is checked, before its shards are opened. It reports missing files as
        findings, and sets the minimum lengths of the other files.

        Raises:
            OSError: The disk could not be read.
        """
        ...

    def expected(self, inventory: Inventory, evidence: Evidence) -> Expected:
        """Return the files required of every save; "unknown" if no record names them.

        Args:
            inventory: The inventory from the scan.
            evidence: Evidence from outside the tree.
        """
        ...

    def is_unfinished(self, name: str) -> bool:
        """Return whether the trainer writes under this name before it renames the finished file."""
        ...

    def members(self, checkpoint: Checkpoint) -> Members | Refusal:
        """Return the files that are moved with a save; a refusal if the layout's saves must not be moved."""
        ...

    def seal_place(self, checkpoint: Checkpoint) -> SealPlace | Refusal:
        """Return the place of a save's seal; a refusal if there is no such place."""
        ...

    def peer_path(self, checkpoint: Checkpoint, rank: Rank, role: ShardRole) -> str | Refusal:
        """Return the path of a rank's file, whether or not it exists.

        Refuse if no rank's file is a copy of another's.
        """
        ...

    def read_by_all(self, checkpoint: Checkpoint) -> ReadByAll:
        """Return the files that every rank reads; empty if each rank reads only its own files."""
        ...

    def slices(self, storage: Storage, checkpoint: Checkpoint) -> RecordedSlices | None:
        """Read from the training's own records which slice of each tensor a rank has; None if unknown.

        Raises:
            OSError: The disk could not be read.
        """
        ...

    def pointers(self, storage: Storage, ranks: Iterable[Rank]) -> Iterator[Pointer]:
        """Read the trainer's own records that name the latest save.

        Args:
            storage: The tree.
            ranks: The ranks of the records to read, if each rank has its own.
        """
        ...

    def pointing_to(self, checkpoint: Checkpoint) -> Mapping[str, PointerText]:
        """Return the pointer contents that name a save, by path.

        A pointer that cannot name the save is left out.
        """
        ...

    def recorded_name(self, checkpoint: Checkpoint) -> str | Refusal:
        """Return a save's name in the trainer's health file; a refusal if that file lists no saves of this layout."""
        ...

    def load(self, inventory: Inventory, checkpoint: Checkpoint) -> LoadSettings | Refusal:
        """Return the settings that load exactly this save, after any renames that the save needs."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """A resume, before the trainer's effects are added."""

    plan: ResumePlan
    """The plan, without a position in the data; its next step directly follows the checkpoint's step."""
    inventory: Inventory
    """The complete tree.

    A start may load files next to the chosen checkpoint instead.
    """
    storage: Storage
    data: DataQuestion
    """The user's settings for the data, excluding those from the config."""
    sizes: AskedSizes
    """The sizes of the resumed run, from the user or the config."""
    config: RunConfig | None
    environment: Mapping[str, str] | None
    """The environment of the start; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """The effects of a trainer on a resume."""

    position: DataPosition
    """Position at which the data continue."""
    settings: tuple[TrainerSetting, ...]
    """The settings for that position."""
    load: LoadSettings | None = None
    """The settings that load the save, if they depend on the config; None to use the layout's settings."""
    next_step: Step | None = None
    """First global step; None if it follows the checkpoint's step, because the trainer's counter continues."""
    findings: tuple[Finding, ...]
    """Findings about the trainer's mistakes, the save that it loads instead, and the config.

    They include the findings of the config's reader.
    """


def no_effects(title: str) -> Effects:
    """Report that the effects of a trainer on a resume are unknown."""
    from ckpttool.core.domain.data_position import Unknown  # not needed for a scan

    return Effects(position=Unknown(why=f"ckpttool does not know how {title} resumes"), settings=(), findings=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """One training framework. A new framework needs a folder, and lines in the registry.

    Each answer is a reference, `module:name`, which is imported on first use. If it is missing, the answer is unknown.
    """

    name: str
    """Name of the trainer in JSON, configs and plans."""
    title: str
    """Display name of the trainer, for sentences."""
    records: str = ""
    """Pattern for names of small files that the trainer reads in saves and next to them; empty if it reads none.

    A part recorded on one machine includes the contents of only these files.
    """
    only_after_saves: str = ""
    """Pattern for names of its records and pointers that exist only after a save; empty if it writes none.

    Files with weights or states are recognized without it.
    """
    beside_saves: tuple[str, ...] = ()
    """Paths of such records in the folder above the saves."""
    places: tuple[str, ...] = ()
    """Paths of the trainer's saves below an output folder or a working directory, those of a single run first.

    A `*` at the end of a folder's name represents a number: `logs/version_*/saves`.
    """
    layout_names: tuple[str, ...] = ()
    """Names of the trainer's checkpoint layouts, most specific first."""
    layouts_at: tuple[str, ...] = ()
    """The `LayoutSigns` of these layouts, in the same order."""
    log_formats_at: tuple[str, ...] = ()
    """Formats of the trainer's logs, each a `LogFormat`, most specific first."""
    history_format: str = ""
    """Name of its log format that also has the steps of earlier starts, so that it does not show where one began."""
    logs_mean_loss: bool = False
    """Whether a log line contains the mean loss since the previous line, instead of the loss of one step."""
    log_places_at: str | None = None
    """Places of the trainer's logs: `LogPlaces`."""
    start_logs_at: str | None = None
    """A function that returns a log for each start of the training near a tree, as `start_logs` does."""
    counts_from_zero: bool = False
    """Whether its logs number the first step 0, while its saves count completed steps."""
    restores_random_state: bool = True
    """Whether a resume continues with the random numbers of the save. Otherwise dropout masks differ lawfully."""
    redraws_data_order: bool = False
    """Whether a resume at the right position draws the random order of the data again."""
    health_file_at: str | None = None
    """The trainer's record of health: a `HealthFile`."""
    configs_at: str | None = None
    """The reader of the trainer's configs: a `ConfigReader`."""
    launch_at: str | None = None
    """The way to start the trainer: a `LaunchTarget`."""
    words_at: str | None = None
    """The trainer's settings for ckpttool's advice: `Phrasing`."""
    words_for_at: str | None = None
    """A function that returns settings for a given tree and logs, as `words_for` does.

    `words_at` is the fallback.
    """
    asd_dialects_at: tuple[str, ...] = ()
    """The trainer's own detectors of silent errors, each an `AsdDialect`, in addition to the frameworks' detectors."""
    scalars_at: str | None = None
    """The scalars in a file that show the trainer's progress: `OwnScalars`."""
    simulator_at: str | None = None
    """The simulation of the trainer's own choice: a `Simulator`."""
    evidence_at: str | None = None
    """A function that returns the evidence in a config and in the files next to a tree, as `evidence` does."""
    objections_at: str | None = None
    """A function that returns the objections to loading a save at different run sizes, as `objections` does."""
    effects_at: str | None = None
    """A function that returns the trainer's effects on a resume, as `effects` does."""
    intervals_at: str | None = None
    """A function that returns how often a run logs and saves, as `intervals` does."""
    save_interval_at: str | None = None
    """A function that returns the steps between saves by a config alone, if `intervals` needs more than that."""
    owned_at: str | None = None
    """A function that returns the saves that only a running trainer may remove, as `owned` does."""
    weights_at: str | None = None
    """A function that finds the weights of a save, for an export: a `WeightsSource`."""
    loaders_at: str | None = None
    """A function that returns the states of a save's data loaders, as `loaders` does."""

    @property
    def layouts(self) -> tuple[LayoutSigns, ...]:
        """The signs of the trainer's layouts, most specific first."""
        return cast("tuple[LayoutSigns, ...]", tuple(map(referred, self.layouts_at)))

    @property
    def log_formats(self) -> tuple[LogFormat, ...]:
        """The formats of the trainer's logs, most specific first."""
        return cast("tuple[LogFormat, ...]", tuple(map(referred, self.log_formats_at)))

    @property
    def log_places(self) -> LogPlaces | None:
        """The places of the trainer's logs; None if unknown."""
        return cast("LogPlaces | None", _if_any(self.log_places_at))

    def start_logs(self, root: str) -> tuple[str, ...]:
        """Return a log for each start of the training, oldest first; empty if the starts share a log, or have none.

        Args:
            root: The folder of the checkpoints.
        """
        if self.start_logs_at is None:
            return ()
        return cast("Callable[[str], tuple[str, ...]]", referred(self.start_logs_at))(root)

    @property
    def health_file(self) -> HealthFile | None:
        """The trainer's file of recorded health; None if unknown."""
        return cast("HealthFile | None", _if_any(self.health_file_at))

    @property
    def configs(self) -> ConfigReader | None:
        """The reader of the trainer's configs; None if unknown."""
        return cast("ConfigReader | None", _if_any(self.configs_at))

    @property
    def launch(self) -> LaunchTarget | None:
        """The way to start the trainer; None if unknown."""
        return cast("LaunchTarget | None", _if_any(self.launch_at))

    @property
    def words(self) -> Phrasing | None:
        """The trainer's settings for ckpttool's advice; None if the trainer has no such settings."""
        return cast("Phrasing | None", _if_any(self.words_at))

    def words_for(self, inventory: Inventory | None, formats: Collection[str]) -> Phrasing | None:
        """Return the trainer's settings for ckpttool's advice on one training run; None if the trainer has none.

        Args:
            inventory: The tree of the training run; None if unknown.
            formats: Names of the formats of the run's logs.
        """
        if self.words_for_at is None:
            return self.words
        words = cast("Callable[[Inventory | None, Collection[str]], Phrasing | None]", referred(self.words_for_at))
        return words(inventory, formats) or self.words

    @property
    def asd_dialects(self) -> tuple[AsdDialect, ...]:
        """The trainer's own detectors of silent errors."""
        return cast("tuple[AsdDialect, ...]", tuple(map(referred, self.asd_dialects_at)))

    @property
    def scalars(self) -> OwnScalars | None:
        """The scalars in a file that show the trainer's progress; None if unknown."""
        return cast("OwnScalars | None", _if_any(self.scalars_at))

    @property
    def simulator(self) -> Simulator | None:
        """The simulator of the trainer's own choice; None if unknown."""
        return cast("Simulator | None", _if_any(self.simulator_at))

    def evidence(self, output: Storage, config: RunConfig | None) -> Evidence:
        """Return the evidence in a config and next to a tree.

        Args:
            output: The folder that contains the tree.
            config: The config of the run to resume.

        Raises:
            UsageError: The config belongs to a different trainer.
        """
        from ckpttool.core.domain.expectation import Evidence

        if self.evidence_at is None:
            return Evidence()
        told = cast("Callable[[Storage, RunConfig | None], Evidence]", referred(self.evidence_at))
        return told(output, config)

    def intervals(
        self, config: RunConfig | None, storage: Storage, checkpoint: Checkpoint | None
    ) -> StepIntervals | None:
        """Return how often a run logs and saves, or None if neither its config nor its records show that.

        Args:
            config: The config of the run to resume. None if it is unknown.
            storage: The tree.
            checkpoint: The checkpoint to resume from, or None; its records count without a config.
        """
        if self.intervals_at is None:
            return None
        shown = cast(
            "Callable[[RunConfig | None, Storage, Checkpoint | None], StepIntervals | None]",
            referred(self.intervals_at),
        )
        return shown(config, storage, checkpoint)

    def save_interval(self, config: RunConfig, storage: Storage) -> int | None:
        """Return the steps between two saves of a run, or None if its config does not show them.

        Args:
            config: The config of the run.
            storage: The folder of its saves.
        """
        if self.save_interval_at is not None:
            return cast("Callable[[RunConfig], int | None]", referred(self.save_interval_at))(config)
        intervals = self.intervals(config, storage, None)
        return None if intervals is None else intervals.saved

    def objections(self, checkpoint: Checkpoint, requested: AskedSizes) -> tuple[Finding, ...]:
        """Return the objections to a save at the resumed run's sizes; any objection except a note rules out the save.

        Args:
            checkpoint: The save.
            requested: The run's sizes from the user or the config; all other sizes are unchanged.
        """
        if self.objections_at is None:
            return ()
        told = cast("Callable[[Checkpoint, AskedSizes], tuple[Finding, ...]]", referred(self.objections_at))
        return told(checkpoint, requested)

    def effects(self, resume: Resume) -> Effects:
        """Return the trainer's effects on a plan: its data position, its mistakes, and the save that it loads instead.

        Raises:
            UsageError: The config belongs to a different trainer.
            IncompleteError: A file that the effects depend on cannot be read.
        """
        if self.effects_at is None:
            return no_effects(self.title)
        told = cast("Callable[[Resume], Effects]", referred(self.effects_at))
        return told(resume)

    def owned(self, inventory: Inventory, config: RunConfig | None) -> Mapping[CheckpointKey, str]:
        """Return the saves that a running trainer expects to find and removes itself, with the reason for each.

        Args:
            inventory: The complete tree.
            config: The config of the run that saves to this tree; None if unknown.
        """
        if self.owned_at is None:
            return {}
        owned = cast("Callable[[Inventory, RunConfig | None], Mapping[CheckpointKey, str]]", referred(self.owned_at))
        return owned(inventory, config)

    def weights(self, storage: Storage, checkpoint: Checkpoint, request: WeightsRequest) -> Weights:
        """Return the model's tensors and the places of their elements.

        Args:
            storage: The tree.
            checkpoint: The save.
            request: The user's choice of weights.

        Raises:
            NotExportableError: The weights cannot be exported, for the reason in its finding.
            OSError: The disk could not be read.
        """
        if self.weights_at is None:
            from ckpttool.trainers.export_findings import not_understood

            remedy = "export with the trainer's own converter"
            raise not_understood(f"ckpttool cannot export weights from saves of {self.title}", remedy=remedy)
        return cast("WeightsSource", referred(self.weights_at))(storage, checkpoint, request)

    def loaders(self, storage: Storage, inventory: Inventory, checkpoint: Checkpoint) -> tuple[SavedLoader, ...]:
        """Return the states of a save's data loaders; empty if the trainer saves none.

        A state that cannot be read is returned with the reason.

        Args:
            storage: The tree.
            inventory: The complete tree, because other saves may show the length of an epoch.
            checkpoint: The save.
        """
        if self.loaders_at is None:
            return ()
        read = cast("Callable[[Storage, Inventory, Checkpoint], Iterable[SavedLoader]]", referred(self.loaders_at))
        return tuple(read(storage, inventory, checkpoint))


def _if_any(reference: str | None) -> object:
    return None if reference is None else referred(reference)
