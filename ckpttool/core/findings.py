"""What can be found: a row for each code, with its weights, its check, what to do, and the text of the manual.

These are the core's own. A trainer or a feature has its rows in its own `findings.py`, and nothing of them is here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from typing_extensions import Self


class Severity(IntEnum):
    """How much a finding weighs; the order is what counts."""

    NOTE = 0
    """Worth knowing; changes no verdict."""
    SUSPECT = 1
    """May be legal, may be damage; the shard is not counted as good."""
    UNKNOWN = 2
    """Could not be looked at, or changed meanwhile; never counted as good."""
    DAMAGE = 3
    UNSAFE = 4
    """Refused; reading on would be dangerous."""

    @property
    def word(self) -> str:
        """The lower-case word that tables and JSON show."""
        return self.name.lower()


NOTE, SUSPECT, UNKNOWN, DAMAGE, UNSAFE = Severity

Group = Literal[
    "Checkpoints",
    "Shards",
    "Records",
    "Files",
    "Settings",
    "Starts",
    "Data",
    "Training logs",
    "Trainings in FP8",
    "Rules about configs",
    "Rules about other trainers' configs",
    "Rules about FP8",
    "Captures",
    "Preflight",
]
"""The headings of the manual's page, in its order."""


COMMAND = " " * 4
"""What a step begins with that is a command, as in Markdown."""


class Row(str):
    """A kind of finding: its code, and what is true of every finding of this kind.

    A row is a text, its code, so codes sort and compare. Each is one object, in every process that it is sent to.
    """

    __slots__ = (
        "check",
        "evidence",
        "group",
        "headline",
        "is_elsewhere",
        "may_be_allowed",
        "meaning",
        "name",
        "remedy",
        "rows",
        "taken_with",
        "to_do",
        "trainers",
        "value",
        "verdict",
        "weights",
    )

    value: str
    """The code as JSON has it: `shard-empty`."""
    name: str
    """The code as Python has it: `SHARD_EMPTY`."""
    rows: Rows
    """Where the row is."""
    weights: tuple[Severity, ...]
    """All weights that such a finding can have, lightest first."""
    check: Literal["checkpoint", "health", "launch"]
    """Under which check preflight shows it."""
    may_be_allowed: bool
    """False if no user can accept it: there is nothing to launch, or nobody knows on how many devices."""
    taken_with: str | None
    """The option that takes a checkpoint in spite of it."""
    verdict: Literal["missing", "unstable", "unsupported"] | None
    """The verdict that it asks for; None: that of its weight."""
    is_elsewhere: bool
    """Whether it says that other machines may have more."""
    remedy: str | None
    """What to do if the finding does not say it."""
    group: Group
    """Under which heading of the manual it is."""
    headline: str
    """One line, no full stop."""
    meaning: str
    """What it is."""
    evidence: str
    """How ckpttool knows."""
    trainers: Mapping[str, str]
    """What a trainer does with it, by the trainer's title; empty if that is not known or not its business."""
    to_do: tuple[str, ...]
    """What to do, a step each; one that is a command begins with `COMMAND`."""

    def __new__(  # noqa: PLR0913  a column each
        cls,
        code: str,
        *,
        weights: tuple[Severity, ...],
        check: Literal["checkpoint", "health", "launch"] = "checkpoint",
        may_be_allowed: bool = True,
        taken_with: str | None = None,
        verdict: Literal["missing", "unstable", "unsupported"] | None = None,
        is_elsewhere: bool = False,
        remedy: str | None = None,
        group: Group,
        headline: str,
        meaning: str,
        evidence: str,
        trainers: Mapping[str, str] | None = None,
        to_do: tuple[str, ...],
    ) -> Self:
        """Take the columns, which are described above."""
        row = super().__new__(cls, code)
        row.value = code
        row.weights = weights
        row.check = check
        row.may_be_allowed = may_be_allowed
        row.taken_with = taken_with
        row.verdict = verdict
        row.is_elsewhere = is_elsewhere
        row.remedy = remedy
        row.group = group
        row.headline = headline
        row.meaning = meaning
        row.evidence = evidence
        row.trainers = trainers or {}
        row.to_do = to_do
        return row

    @property
    def steps(self) -> tuple[str, ...]:
        """What to do, one step a line, commands without their indentation."""
        return tuple(step.removeprefix(COMMAND) for step in self.to_do)

    def __set_name__(self, rows: Rows, name: str) -> None:
        """Note where the row is."""
        self.rows, self.name = rows, name

    def __reduce__(self) -> tuple[Any, ...]:
        """Be the same object in another process."""
        return getattr, (self.rows, self.name)


class Rows(type):
    """The class of a class of rows, which can be iterated."""

    def __iter__(cls) -> Iterator[Row]:
        """Yield the rows in their order; of a class of several such classes, those of each."""
        for part in cls.__mro__:
            yield from (row for row in vars(part).values() if isinstance(row, Row))


_COPY = "copy it again if it is a copy; what a crash cut off while it was saved is lost, and the checkpoint with it"


class Code(metaclass=Rows):
    """What the core finds. A promise to scripts: codes are added, never renamed."""

    RANK_MISSING = Row(
        "rank-missing",
        weights=(SUSPECT, UNKNOWN, DAMAGE),
        verdict="missing",
        group="Checkpoints",
        headline="A rank's whole folder is not there",
        meaning=(
            "Every rank saves into its own rank_N/ folder. One of them is gone, and with it that rank's part of the "
            "model and the optimizer, in every checkpoint. Unknown where another machine may have it: see "
            "one-node-only."
        ),
        evidence=(
            "The expected number of ranks comes from --world-size, else from --config, else from the highest rank of "
            "this run, of the tree's other runs and of its strategy files; the message says which."
        ),
        trainers={
            "MindFormers": (
                "1.7 to 2.1 count the rank_ folders that exist, so a lost last rank shrinks the world in silence; 1.6 "
                "and older stop with an error."
            ),
        },
        to_do=(
            "Bring the folder back from that node's disk, or let resolve fall back to an older checkpoint.",
            "If the training really had fewer ranks, say so:",
            "    ckpttool resolve DIR --world-size N",
        ),
    )

    ONE_NODE_ONLY = Row(
        "one-node-only",
        weights=(NOTE, UNKNOWN),
        is_elsewhere=True,
        group="Checkpoints",
        headline="Only one machine's ranks are seen, and others may have some",
        meaning=(
            "Where each machine saves to a disk of its own, its tree looks whole by itself, or lacks what others "
            "wrote: the first of two has ranks 0 and 1 of 4. Exit 14, never 11. `scan` and `verify` note it."
        ),
        evidence=(
            "A launcher speaks of several machines (SLURM_JOB_NUM_NODES, SLURM_NNODES, OMPI_COMM_WORLD_SIZE over "
            "OMPI_COMM_WORLD_LOCAL_SIZE, WORLD_SIZE over LOCAL_WORLD_SIZE) or of more ranks than are here "
            "(MS_WORKER_NUM, WORLD_SIZE); or the folders here are a machine's share, ranks 0 to 1 or 2 to 3 of the 4 "
            "that --world-size, --config or --devices state. And /proc/self/mountinfo gives the tree a file system "
            "that other machines do not see, or one that ckpttool does not know."
        ),
        trainers={
            "MindFormers": (
                "With disks of their own each rank takes its own newest file, and nothing compares their steps; a "
                "checkpoint that is named is loaded on every machine from its own disk."
            ),
        },
        to_do=(
            "Let every machine write down what it sees, and ask about all of it:",
            "    srun --ntasks-per-node=1 ckpttool part DIR --out /shared/parts/",
            "    ckpttool resolve /shared/parts/",
            "Where all of them are here, say how many there are, or accept it:",
            "    ckpttool resolve DIR --world-size N",
            "    ckpttool preflight DIR --config BASE.yaml --allow one-node-only",
        ),
    )

    SHARD_MISSING = Row(
        "shard-missing",
        weights=(NOTE, SUSPECT, DAMAGE),
        verdict="missing",
        remedy="bring it back from that rank's disk or from a copy, or resume from an older checkpoint",
        group="Checkpoints",
        headline="A rank has no file of this checkpoint",
        meaning=(
            "The other ranks saved this step, this one did not, or its file was deleted. Without it the checkpoint "
            "cannot be loaded as it is."
        ),
        evidence=(
            "The files of all ranks are compared with one another; in the newer layout also with metadata.json, in "
            "unified checkpoints with param_name_map.json."
        ),
        trainers={
            "MindFormers": (
                "With `resume_training: True` it falls back to an older step of the same run if there is one, else it "
                "stops: never across runs. With a name it loads blindly, and that rank crashes later."
            ),
        },
        to_do=(
            "Bring the file back from that rank's disk, or take what resolve falls back to:",
            "    ckpttool resolve DIR",
        ),
    )

    SHARD_ELSEWHERE = Row(
        "shard-elsewhere",
        weights=(NOTE, SUSPECT, UNKNOWN, DAMAGE),
        verdict="missing",
        group="Checkpoints",
        headline="A rank's file lies in another's folder, or on another machine",
        meaning=(
            "The file is named for one rank and lies beside another's of the same save, and its own rank has no other. "
            "Or the rank will start on one machine, and its file lies on another's disk: suspect where two machines "
            "would start it, a note where none says so. Or a machine lacks what all machines read (`.metadata`, "
            "`trainer_state.json`, `latest`); unknown where it lacks no more than others' slices, or has older saves "
            "alone."
        ),
        evidence=(
            "The rank in the file's name is compared with the folder's; a copy of what the rank has is a note "
            "(name-disagrees). Which ranks start on a machine is said where it is looked at, with `--ranks A-B`."
        ),
        trainers={
            "MindFormers": (
                "Each rank looks into its own rank_N/ alone. Where one folder is left it counts one rank, and starts "
                "as if that were the training."
            ),
        },
        to_do=(
            "Move each file to the folder of the rank in its name:",
            "    mkdir -p rank_1 && mv rank_0/NAME_rank_1-* rank_1/",
            "If the training really had fewer ranks, say so:",
            "    ckpttool resolve DIR --world-size N",
            "On another machine: bring it to where the rank will start, as the finding says:",
            "    rsync -asR -- HOST:DIR/./rank_1/FILE DIR/",
        ),
    )

    ENTRIES_MISSING = Row(
        "entries-missing",
        weights=(SUSPECT, DAMAGE),
        remedy=_COPY,
        group="Checkpoints",
        headline="The file holds fewer tensors than it should",
        meaning=(
            "Tensors that the same rank has at another step are not here, or an archive holds fewer than its directory "
            "or its data.pkl says (a torch.save that failed leaves a file without one). A .ckpt that was cut between "
            "two tensors is a valid file otherwise."
        ),
        evidence="Names of tensors are compared with those of the same rank at another step.",
        trainers={
            "MindFormers": "Loads it in silence, and what is missing stays as it was initialised.",
        },
        to_do=(
            "Resume from another checkpoint:",
            "    ckpttool resolve DIR",
        ),
    )

    SCHEMA_DIFFERS = Row(
        "schema-differs",
        weights=(NOTE, SUSPECT, UNKNOWN, DAMAGE),
        group="Checkpoints",
        headline="The file does not hold what its siblings hold",
        meaning=(
            "Files of one training are written by one program with one configuration. This one has other tensors, "
            "types, shapes or free text than the same rank at another step, or another batch size or loss scale than "
            "the other ranks, or it ends like another rank's file: a bit flipped, or it is another rank's or another "
            "run's."
        ),
        evidence=(
            "Header and last page are compared with its siblings'; how many of those agree decides the weight. A "
            "header that was sealed is beyond dispute, and a damaged file does not testify. If two saves contradict "
            "each other and nothing else decides, it is unknown. If every byte was read and another checkpoint's "
            "tensors are known, two ranks' files are compared in every tensor: equal now, while each held a slice of "
            "its own then, one is a copy of the other."
        ),
        trainers={
            "MindFormers": "Never compares; a wrong shape of the same size even loads.",
        },
        to_do=(
            (
                "Find out which file is foreign (`ckpttool diff FILE OTHER` compares their headers), then name the "
                "save to take:"
            ),
            "    ckpttool resolve DIR --checkpoint NAME",
        ),
    )

    SCALARS_MISSING = Row(
        "scalars-missing",
        weights=(DAMAGE,),
        group="Checkpoints",
        headline="The file lacks the training state that a resume needs",
        meaning=(
            "MindFormers appends epoch, step, optimizer step and loss scale to what each rank saves. They are not in "
            "this file: it was cut exactly where a tensor ends, or it holds weights alone."
        ),
        evidence=(
            "The entries are looked for inside the file (newer layout: in common.json, unified: in "
            "hyper_param.safetensors), and compared with the other ranks'."
        ),
        trainers={
            "MindFormers": (
                "Loads a cut .ckpt without a word and begins at step 0 in the middle of the data; in the newer and the "
                "unified layout it stops with a TypeError or KeyError."
            ),
        },
        to_do=(
            "Resume from another checkpoint:",
            "    ckpttool resolve DIR",
        ),
    )

    NAME_DISAGREES = Row(
        "name-disagrees",
        weights=(NOTE, SUSPECT, DAMAGE),
        group="Checkpoints",
        headline="A file's name says something else than its content or its folder",
        meaning=(
            "The epoch in the name is not the one inside, the suffix is that of the other format, or the file of one "
            "rank lies in another rank's folder. Somebody renamed or copied it."
        ),
        evidence="The header tells the format, the entry epoch_num the epoch, the folder the rank.",
        trainers={
            "MindFormers": "Picks by the name and never opens a file before. With a wrong suffix the load fails.",
        },
        to_do=(
            "Undo the copy or the rename if you know which it was.",
            "Else take another checkpoint:",
            "    ckpttool resolve DIR",
        ),
    )

    STEP_DISAGREES = Row(
        "step-disagrees",
        weights=(NOTE, SUSPECT, UNKNOWN, DAMAGE),
        group="Checkpoints",
        headline="Ranks of one checkpoint were saved at different steps",
        meaning=(
            "step_num or global_step inside one rank's file differs from the other ranks': an older file under a newer "
            "name, or two saves mixed. Training on from it would mix two states of the model. Where one record tells "
            "the step of the whole save, and the name says another, the record is used; where the other names agree "
            "with their records, it is a copy under another name or files of two checkpoints, and it is not chosen."
        ),
        evidence=(
            "step_num and global_step are read from inside every rank's file; the value that most ranks have counts. "
            "In the newer layout common.json is compared with the folder's name."
        ),
        trainers={
            "MindFormers": (
                "Never compares: up to 1.7 rank 0's step counts for all, later ranks may start at different steps."
            ),
        },
        to_do=(
            "Do not resume from it. What else there is:",
            "    ckpttool resolve DIR",
        ),
    )

    STEP_UNKNOWN = Row(
        "step-unknown",
        weights=(NOTE, UNKNOWN),
        group="Checkpoints",
        headline="Nothing tells the step of this checkpoint",
        meaning=(
            "The true step is inside the files, and none of this checkpoint's files has it. The name alone cannot "
            "tell: after a resume without data sinking its numbers start again, and a number in a folder's name may "
            "be a model's size or a date. A note if the name does tell it, but the checkpoints of the tree are not "
            "all named alike: then prune, seal, heal and repair-meta leave this checkpoint as it is."
        ),
        evidence="The files of the lowest ranks were opened, and none holds a step.",
        trainers={
            "MindFormers": "Takes 0 for a missing step.",
        },
        to_do=(
            (
                "If the run was never resumed, its names can be trusted; give the sink size (no sinking: steps an "
                "epoch):"
            ),
            "    ckpttool resolve DIR --sink-size N",
        ),
    )

    WORLD_SIZE_DIFFERS = Row(
        "world-size-differs",
        weights=(NOTE, SUSPECT, DAMAGE),
        group="Checkpoints",
        headline="Not the number of ranks that was expected",
        meaning=(
            "A note where a later run went on with more or fewer ranks, which is taken for meant, and where "
            "--world-size has no effect because these files are not told by ranks. Suspect where a checkpoint has "
            "more ranks than you or the config say. Damage where one folder mixes two world sizes."
        ),
        evidence=(
            "Ranks that have files are compared with --world-size, the config, the tree's other runs and its strategy "
            "files."
        ),
        trainers={
            "MindFormers": (
                "1.7 to 2.1 take leftovers of a larger run for ranks of this one and then resume from the old run, in "
                "silence; re-slicing to another world size needs auto_trans_ckpt."
            ),
        },
        to_do=(
            "If ranks of the newest run are lost, or the number is another:",
            "    ckpttool resolve DIR --world-size N",
            "To go on with another number on purpose, set auto_trans_ckpt: True in the config.",
        ),
    )

    WORLD_SIZE_REFUSED = Row(
        "world-size-refused",
        weights=(SUSPECT,),
        check="launch",
        group="Checkpoints",
        headline="Its state does not load on as many ranks as are asked for",
        meaning=(
            "The checkpoint is whole, but what its ranks saved is cut for other sizes, and its trainer cannot cut it "
            "anew. It is passed over, as one that would stop the start. It is not damaged."
        ),
        evidence=(
            "The sizes that the save itself records are compared with --world-size, --tp, --pp and --dp, or with those "
            "of the config."
        ),
        trainers={
            "DeepSpeed": (
                "ZeRORuntimeException with ZeRO, unless ds_to_universal.py made a universal checkpoint of it; stage 0 "
                "loads."
            ),
            "Megatron-LM": (
                "Another tensor or pipeline size is an error in the legacy format, and with a distributed optimizer "
                "that was not saved fully reshardable. Other data-parallel sizes load."
            ),
            "torchtitan": (
                "The data loader is not shared out anew: an AssertionError on fewer ranks, a CheckpointException on "
                "more."
            ),
            "verl": "The names of the files hold the number of ranks, and others are not looked for.",
        },
        to_do=(
            "Start with the sizes that the message names.",
            "Or convert it with the trainer's own tool: ckpttool never rewrites weights.",
        ),
    )

    RUN_MIXED = Row(
        "run-mixed",
        weights=(NOTE, SUSPECT, UNKNOWN),
        group="Checkpoints",
        headline="Checkpoints of several trainings lie in one folder",
        meaning=(
            "The file names have different prefixes, or the logs in the checkpoints contradict each other, so two "
            "trainings saved here. Only you know which is to go on, so none is chosen by itself and prune deletes "
            "none. A note where one of them left a few stray files at most, which are passed over, and where --config "
            "saves under the prefix of one of them, which is then meant."
        ),
        evidence=(
            "The part of the names before _rank_N differs. Of Hugging Face's Trainer: two trainer_state.json have "
            "other losses at the same steps of their log_history, which a run that resumes carries on unchanged."
        ),
        trainers={
            "MindFormers": "Takes the prefix of the first rank that has a meta.json.",
        },
        to_do=(
            "Say which training is meant:",
            "    ckpttool resolve DIR --prefix NAME",
        ),
    )

    RUN_REWOUND = Row(
        "run-rewound",
        weights=(NOTE,),
        group="Checkpoints",
        headline="A later run went back behind an earlier one",
        meaning=(
            "Somebody restarted the training from an older checkpoint, and it has not yet caught up. The higher steps "
            "of the earlier run are an abandoned branch: newer by number, older by history."
        ),
        evidence=(
            "A later run (suffix _1, _2, …) has seen fewer samples than an earlier one: step times global batch size, "
            "for MindFormers counts steps anew where that changed. In the newer layout the tracker file was written "
            "after the iterations that it is behind, or where times do not tell it is behind several whole ones."
        ),
        trainers={
            "MindFormers": "Follows meta.json, which the later run wrote last.",
        },
        to_do=(
            "Nothing, if going back was meant. To return to the abandoned branch, name its checkpoint:",
            "    ckpttool resolve DIR --checkpoint NAME",
        ),
    )

    ABANDONED_BRANCH = Row(
        "abandoned-branch",
        weights=(SUSPECT, UNKNOWN),
        group="Checkpoints",
        headline="The training went back behind this checkpoint and on from there",
        meaning=(
            "Its step is higher than that of the newest run, but it belongs to a course that was given up, often "
            "because of a loss spike. It may be perfectly whole; it is never chosen by itself. If nothing else is "
            "left, what to resume from is not known (exit 14): the record that says so may be wrong."
        ),
        evidence=(
            "A run that was started later has seen fewer samples (step times global batch size), or did this "
            "checkpoint's steps again; in the newer layout the tracker was written after it and is behind it."
        ),
        trainers={
            "MindFormers": "Does not know branches; what it takes depends on meta.json and on names.",
        },
        to_do=(
            "If it is the one you want, name it:",
            "    ckpttool resolve DIR --checkpoint NAME",
        ),
    )

    TIMES_DISAGREE = Row(
        "times-disagree",
        weights=(NOTE, SUSPECT),
        group="Checkpoints",
        headline="Two runs' files may have one name",
        meaning=(
            "Each rank counts its restarts by what lies in its own folder. One that lost its files, or was cut off in "
            "its first save, gives the files of a later run the names that the other ranks' earlier run had."
        ),
        evidence=(
            "Orbax records when a checkpoint was committed: one that is older than another with a lower step is a "
            "copy, or of an earlier run. Elsewhere the other ranks have this save twice, of two runs. This rank has "
            "it once, and its file was written when the others wrote the later one. Or ranks disagree about the run, "
            "and more than an hour lies between their files. A time can be changed by a copy, so this is a doubt, no "
            "proof; and where nothing but an hour speaks of two runs it is a note."
        ),
        trainers={
            "MindFormers": "Loads by the name, and trains on with weights of two runs.",
        },
        to_do=(
            "Where the file was only copied later, name the checkpoint:",
            "    ckpttool resolve DIR --checkpoint NAME",
        ),
    )

    NEEDS_RENAMES = Row(
        "needs-renames",
        weights=(SUSPECT,),
        group="Checkpoints",
        headline="Whole on every rank, but under different names",
        meaning=(
            "Each rank counts its restarts by what lies in its own folder. A replaced node starts with an empty one, "
            "so its files lack the suffix (_1, _2) that the other ranks' files of the same step have."
        ),
        evidence="The true step inside the files is the same on every rank; only the suffix differs.",
        trainers={
            "MindFormers": "Loads by one name for all ranks and stops: no checkpoint could be resumed.",
        },
        to_do=(
            "Let ckpttool list the renames, do them, and resume:",
            "    ckpttool resolve DIR --allow-renames",
            "Without that option the next checkpoint that needs none is chosen.",
        ),
    )

    DUPLICATE_CHECKPOINT = Row(
        "duplicate-checkpoint",
        weights=(SUSPECT, UNKNOWN),
        group="Checkpoints",
        headline="A checkpoint is a copy of another one under another name",
        meaning=(
            "Somebody copied a checkpoint (cp -r 10 99), and the copy's number says nothing of how far the training "
            "came. It is not chosen by itself, it counts for nothing in prune, and prune does not delete it."
        ),
        evidence=(
            "Both hold the same commit time, or the same checksums and place in the data. The copy is the one whose "
            "number does not fit the order of the others; if nothing tells which of two is the copy, neither is "
            "chosen (exit 14)."
        ),
        trainers={
            "MindFormers": "Looks only at files of the configured load_ckpt_format.",
        },
        to_do=(
            "Name the one you want:",
            "    ckpttool resolve DIR --checkpoint NAME",
        ),
    )

    NOT_LOADABLE = Row(
        "not-loadable",
        weights=(UNKNOWN,),
        group="Checkpoints",
        headline="ckpttool knows of no way to load this checkpoint",
        meaning=(
            "Nothing need be wrong with the files, but nobody knows what makes the trainer load this save, so that it "
            "cannot be chosen; an older one that can be loaded is. Where none is left the exit code is 14, not 11: "
            "there may be something to resume from."
        ),
        evidence="What knows how the tree is arranged says so of this save, and the sentence says why.",
        to_do=(
            "See whether it is whole, and load it as the trainer's own manual says:",
            "    ckpttool verify DIR --checkpoint NAME",
        ),
    )

    WEIGHTS_ONLY = Row(
        "weights-only",
        weights=(SUSPECT,),
        taken_with="--allow-weights-only",
        group="Checkpoints",
        headline="The checkpoint holds weights and no optimizer state, by design",
        meaning=(
            "Nothing is damaged: the trainer was told to save the model alone, or does so at the end of a run. A "
            "training that resumes from it begins its optimizer anew, and some trainers say no word about it."
        ),
        evidence=(
            "The save's own records name no state of an optimizer, and that is how its trainer saves weights alone."
        ),
        to_do=(
            "Resume from an older checkpoint that holds all, as `resolve` does.",
            "To fine-tune from the weights, take it in so many words:",
            "    ckpttool resolve DIR --allow-weights-only",
        ),
    )

    RANKS_TO_RESTORE = Row(
        "ranks-to-restore",
        weights=(NOTE,),
        group="Checkpoints",
        headline="Some ranks alone keep the newest checkpoint from being loaded",
        meaning=(
            "Nothing in the tree can be resumed from, but all that is wrong with the newest checkpoint (or with every "
            "one) is on a few ranks, which often means one disk or one node. With good shards of those it is whole."
        ),
        evidence=(
            "The reasons against a checkpoint are all about shards of these ranks. At the level of headers the other "
            "ranks' shards were opened; at higher levels they were not, and the sentence says so."
        ),
        to_do=(
            "Bring those ranks' shards back from their disks or from a copy, then ask again:",
            "    ckpttool resolve DIR",
        ),
    )

    CAN_BE_HEALED = Row(
        "can-be-healed",
        weights=(NOTE,),
        group="Checkpoints",
        headline="A newer checkpoint lacks shards that other ranks hold",
        meaning=(
            "A checkpoint was passed over for shards that are missing or damaged, and other ranks saved the same "
            "tensors. `heal` rebuilds those shards, and their steps need not be done again."
        ),
        evidence=(
            "Where all that would be read is small, it was read: there is a proven copy of each. Else headers and the "
            "ends of files at another checkpoint show a rank that held what this one held; that it may be healed is "
            "all that is known then."
        ),
        to_do=(
            "Look at what proves the copies, then do it:",
            "    ckpttool heal DIR --checkpoint NAME",
            "    ckpttool heal DIR --checkpoint NAME --apply",
        ),
    )

    HEALED = Row(
        "healed",
        weights=(NOTE,),
        group="Checkpoints",
        headline="A shard was rebuilt from another rank's",
        meaning=(
            "The file is not the one that the training saved: `heal` wrote it, from another rank's that holds the same."
        ),
        evidence=(
            "The manifest of the checkpoint has an entry `healed` for the file: from which rank, by which proof, what "
            "spoke for it, and when."
        ),
        to_do=(
            "Nothing. To be sure that it is still what was written:",
            "    ckpttool verify DIR --checkpoint NAME --level checksum",
        ),
    )

    SHARD_EMPTY = Row(
        "shard-empty",
        weights=(DAMAGE,),
        remedy=_COPY,
        group="Shards",
        headline="A file without a single byte",
        meaning=(
            "The name was created, the content never reached the disk: a full disk, a killed save, or a power cut up "
            "to 40 seconds after MindSpore reported the save as done."
        ),
        evidence="The file has size 0.",
        trainers={
            "MindFormers": (
                "Picks by name and never opens a file before, so it takes this one, and the load fails or goes wrong."
            ),
        },
        to_do=(
            "Resume from the newest checkpoint that is whole; resolve finds it:",
            "    ckpttool resolve DIR",
        ),
    )

    SHARD_TRUNCATED = Row(
        "shard-truncated",
        weights=(DAMAGE,),
        remedy=_COPY,
        group="Shards",
        headline="The file ends too early",
        meaning="The header promises more bytes than there are: the save was cut off, or a copy was.",
        evidence="The header's offsets (safetensors) or record lengths (.ckpt) are compared with the file's size.",
        trainers={
            "MindFormers": (
                "Picks by name and never opens a file before, so it takes this one, and the load fails or goes wrong."
            ),
        },
        to_do=(
            "Copy it again from its rank's disk if it was copied.",
            "Resume from the newest checkpoint that is whole; resolve finds it:",
            "    ckpttool resolve DIR",
        ),
    )

    SHARD_ZEROED = Row(
        "shard-zeroed",
        weights=(DAMAGE,),
        remedy=_COPY,
        group="Shards",
        headline="The file has its size, but zeros where its header should be",
        meaning=(
            "The space was set aside and never filled: typical of a power cut seconds after a save that MindSpore "
            "reported as done, for it does not sync what it writes."
        ),
        evidence="The first bytes of the file are all zero.",
        trainers={
            "MindFormers": (
                "Picks by name and never opens a file before, so it takes this one, and the load fails or goes wrong."
            ),
        },
        to_do=(
            "Resume from the newest checkpoint that is whole; resolve finds it:",
            "    ckpttool resolve DIR",
        ),
    )

    ZERO_TAIL = Row(
        "zero-tail",
        weights=(NOTE, SUSPECT, DAMAGE),
        remedy=_COPY,
        group="Shards",
        headline="The file ends in zeros",
        meaning=(
            "The header is sound, but from some byte on there is nothing but zeros where records should be: the end of "
            "the file was lost in a power cut, or filled up by a copy."
        ),
        evidence=(
            "After the last good record of a .ckpt come zeros to the end of the file. Suspect where the last page of "
            "data is zero and its siblings' is not: an optimizer moment may legally be."
        ),
        trainers={
            "MindFormers": (
                "MindSpore fails to load such a .ckpt. A safetensors file with a zeroed end loads in silence, with "
                "weights of 0."
            ),
        },
        to_do=(
            "Resume from the newest checkpoint that is whole; resolve finds it:",
            "    ckpttool resolve DIR",
        ),
    )

    HEADER_INVALID = Row(
        "header-invalid",
        weights=(DAMAGE,),
        remedy=_COPY,
        group="Shards",
        headline="The file's header makes no sense",
        meaning="It is no file of the format it should be, or bits of its header have flipped.",
        evidence=(
            "Every field is checked strictly: lengths, JSON without a key twice, known types, and for each tensor "
            "shape x type = bytes. In torch's zip files each record must have the bytes that data.pkl says."
        ),
        trainers={
            "MindFormers": (
                "MindSpore's loader accepts many of these, and dies of a signal on 1.5 % of flipped header bits; so "
                "ckpttool reads headers itself."
            ),
        },
        to_do=(
            "Do not load it to see what happens.",
            "Resume from the newest checkpoint that is whole; resolve finds it:",
            "    ckpttool resolve DIR",
        ),
    )

    HEADER_NOT_CANONICAL = Row(
        "header-not-canonical",
        weights=(NOTE,),
        group="Shards",
        headline="A valid header, but not as safetensors or MindSpore writes it",
        meaning=(
            "Order, spacing or padding differ from what the libraries write. Another tool may have written the file; "
            "or one bit of it has flipped and left valid JSON behind."
        ),
        evidence="The header is compared with how the libraries spell it.",
        trainers={
            "MindFormers": "Loads it.",
        },
        to_do=(
            "If no other tool wrote this file, prefer another checkpoint:",
            "    ckpttool resolve DIR --checkpoint NAME",
        ),
    )

    OFFSETS_NOT_CONTIGUOUS = Row(
        "offsets-not-contiguous",
        weights=(SUSPECT, DAMAGE),
        remedy=_COPY,
        group="Shards",
        headline="Tensors overlap or leave holes in the file",
        meaning=(
            "The header's offsets must cover the data from its first byte to its last, once. Here they do not, so at "
            "least one tensor's bytes belong to another."
        ),
        evidence="All offsets of the safetensors header are put in order and compared.",
        trainers={
            "MindFormers": "The load fails, after the file was picked.",
        },
        to_do=(
            "Resume from the newest checkpoint that is whole; resolve finds it:",
            "    ckpttool resolve DIR",
        ),
    )

    TRAILING_BYTES = Row(
        "trailing-bytes",
        weights=(SUSPECT, DAMAGE),
        remedy=_COPY,
        group="Shards",
        headline="The file goes on after its last tensor",
        meaning=(
            "Bytes that no tensor claims: a longer file was overwritten, two were joined, or garbage was appended."
        ),
        evidence="The end of the last tensor is compared with the file's size.",
        trainers={
            "MindFormers": "The load fails, after the file was picked.",
        },
        to_do=(
            "Resume from the newest checkpoint that is whole; resolve finds it:",
            "    ckpttool resolve DIR",
        ),
    )

    CHECKSUM_MISMATCH = Row(
        "checksum-mismatch",
        weights=(NOTE, DAMAGE),
        remedy=_COPY,
        group="Shards",
        headline="The bytes are not those that were saved",
        meaning=(
            "A checksum was recorded, and the content does not match it: bits flipped on the way to the disk, on the "
            "disk, or in a copy. Loaders would not notice."
        ),
        evidence=(
            "verify --level checksum reads every byte and compares with the manifest, else with the CRC that MindSpore "
            "or torch put into the file."
        ),
        trainers={
            "MindFormers": "Never writes or checks a checksum; a flipped bit in a tensor loads in silence.",
        },
        to_do=(
            "Do not resume from it. What else there is:",
            "    ckpttool resolve DIR",
        ),
    )

    FOUND_DAMAGED = Row(
        "found-damaged",
        weights=(UNKNOWN, DAMAGE),
        group="Shards",
        headline="An earlier check found this file damaged",
        meaning=(
            "A check that read every byte found that the content does not match its checksum, and the file is still "
            "the one that was read. What looks at headers alone would call it good."
        ),
        evidence=(
            "verify --level checksum, and seal, keep what they find damaged in the user's cache, with size, time and "
            "inode of the file. It is forgotten once the file is written anew, sealed as it is, or found good by such "
            "a check. Unknown where the file was touched since, but has size and time of before: a copy into it may "
            "have mended it. Odd values are not kept: what --level numerics finds is suspect, and a mask that is "
            "meant to hold -inf must not take every save of its model away from resolve. resolve --level numerics "
            "looks at them."
        ),
        trainers={
            "MindFormers": "Never writes or checks a checksum; a flipped bit in a tensor loads in silence.",
        },
        to_do=(
            "Do not resume from it. To look again:",
            "    ckpttool verify --level checksum DIR",
        ),
    )

    CHECKSUM_MISSING = Row(
        "checksum-missing",
        weights=(NOTE, SUSPECT),
        group="Shards",
        headline="Nothing to compare the bytes with",
        meaning=(
            "The structure is sound, but no checksum was recorded when the file was saved. A flipped bit in tensor "
            "data, which is more than 99 % of a file, cannot be seen."
        ),
        evidence=(
            "verify --level checksum looked for a manifest and for a CRC inside the file. Suspect where sibling files "
            "carry a CRC: then the end of this one may have been cut off."
        ),
        trainers={
            "MindFormers": "Never writes or checks a checksum.",
        },
        to_do=(
            "Record checksums now, so that later damage is seen:",
            "    ckpttool seal DIR",
        ),
    )

    NONFINITE_VALUES = Row(
        "nonfinite-values",
        weights=(NOTE, SUSPECT),
        group="Shards",
        headline="Tensors hold NaN or infinity",
        meaning="The file may be intact and the training sick: it diverged before this save.",
        evidence="verify --level numerics looks at every element of every floating-point tensor.",
        trainers={
            "MindFormers": "Loads it; the first loss is NaN.",
        },
        to_do=(
            "Resume from before the loss went wrong:",
            "    ckpttool resolve DIR --checkpoint NAME",
        ),
    )

    ALL_ZERO_TENSOR = Row(
        "all-zero-tensor",
        weights=(SUSPECT,),
        group="Shards",
        headline="A tensor is zero from end to end",
        meaning="Legal for an optimizer moment that was never updated, a lost write for a weight matrix.",
        evidence="verify --level numerics looks at every element; the checkpoint before had other values there.",
        trainers={
            "MindFormers": "Loads it in silence.",
        },
        to_do=(
            "Compare with an older checkpoint, or resume from one:",
            "    ckpttool resolve DIR --checkpoint NAME",
        ),
    )

    NORM_JUMP = Row(
        "norm-jump",
        weights=(SUSPECT,),
        group="Shards",
        headline="A tensor's norm is far from what it was one checkpoint before",
        meaning="Weights move slowly from save to save. A jump means that the training blew up, or that bits flipped.",
        evidence=(
            "verify --level numerics compares each tensor's L2 norm with that of the checkpoint before; --jump sets "
            "the factor."
        ),
        trainers={
            "MindFormers": "Loads it in silence.",
        },
        to_do=(
            "Look at the loss around that step, or resume from before it:",
            "    ckpttool resolve DIR --checkpoint NAME",
        ),
    )

    REPLICA_DIFFERS = Row(
        "replica-differs",
        weights=(NOTE, SUSPECT, DAMAGE),
        group="Shards",
        headline="A tensor is not what this rank's replicas hold",
        meaning=(
            "In a data-parallel training several ranks save the same tensors. Here one rank's copy is another: bits "
            "flipped, a page was lost. Damage if three or more others agree against it, or two do and these three are "
            "all the copies that there are, or if a checksum, NaN or a jump of the norm speaks against one of two. "
            "Suspect if only two agree while another copy is lost, damaged or rebuilt, for they may be damaged alike; "
            "at both of two if nothing speaks against one; and at all if as many hold the one as hold the other. A "
            "note if no other checkpoint tells whether the ranks should be equal."
        ),
        evidence=(
            "Levels checksum and numerics take a digest of every tensor. Which ranks hold the same slice is never "
            "guessed from shapes: the save's own record says it, or they were equal at other checkpoints and changed "
            "together."
        ),
        trainers={
            "MindFormers": (
                "Each rank loads its own file and never compares: the ranks train on with different weights."
            ),
        },
        to_do=(
            "Resume from another checkpoint, or rebuild the file from a replica that agrees with others:",
            "    ckpttool resolve DIR --level checksum",
        ),
    )

    REPLICA_STALE = Row(
        "replica-stale",
        weights=(SUSPECT, DAMAGE),
        group="Shards",
        headline="Most tensors are not what this rank's replicas hold",
        meaning=(
            "The file's training scalars agree with its name, and most of its tensors are others than on the ranks "
            "that held the same at other checkpoints: it is an earlier run's, another branch's or another rank's file "
            "under this name, or its device computed wrongly since. The message says so where it is a copy of a known "
            "one."
        ),
        evidence=(
            "As replica-differs: digests of every tensor, compared with the replicas' and with other checkpoints."
        ),
        trainers={
            "MindFormers": "Loads it in silence.",
        },
        to_do=(
            "Look for the rank's own file on its disk, or resume from another checkpoint:",
            "    ckpttool resolve DIR --level checksum",
        ),
    )

    REPLICA_DRIFTED = Row(
        "replica-drifted",
        weights=(SUSPECT,),
        taken_with="--ignore-health",
        group="Shards",
        headline="A rank's copy differs from some checkpoint on, and stays different",
        meaning=(
            "Replicas were equal up to one checkpoint, and one of them differs at the next and at every later one. No "
            "file was damaged: the training itself saved it. Its device computed wrongly between the two (silent data "
            "corruption), or a gradient was not reduced over all ranks."
        ),
        evidence=(
            "The tensors' digests at several checkpoints; the message names the last one at which they agreed and the "
            "first at which they did not. More checkpoints, verified before or sealed, bound it closer. verify keeps "
            "it in the user's cache; from then on scan, resolve and health hold it, without reading anything, against "
            "each later save of the run too: what went wrong stays in the weights. It is forgotten once the file is "
            "written anew, or agrees."
        ),
        to_do=(
            "Resume from a checkpoint before it, and let the rank's device be tested before it trains on:",
            "    ckpttool resolve DIR --before STEP",
            "Where nothing from before it is left, take one all the same:",
            "    ckpttool resolve DIR --ignore-health",
        ),
    )

    UNSUPPORTED_FORMAT = Row(
        "unsupported-format",
        weights=(UNKNOWN,),
        verdict="unsupported",
        group="Shards",
        headline="A format that ckpttool does not look into",
        meaning=(
            "A torch file lies under a name that MindSpore gives its own, or a .ckpt holds something that no "
            "MindFormers training writes (encrypted, or of an unknown tensor type). Whether it is whole is not known. "
            "At level numerics, also every other torch file: its bytes are verified, its numbers are not looked at."
        ),
        evidence="The first bytes tell the format, never the suffix.",
        trainers={
            "MindFormers": "Picks it by its name; the load fails.",
        },
        to_do=(
            "Move the file away if it does not belong here, or take another checkpoint:",
            "    ckpttool resolve DIR",
        ),
    )

    UNSAFE_PICKLE = Row(
        "unsafe-pickle",
        weights=(NOTE, UNSAFE),
        group="Shards",
        headline="Loading this file would run code, or may",
        meaning=(
            "A pickle names functions, and torch.load calls them unless with weights_only. Unsafe: it names what runs "
            "programs or code, or hides what it names; no tensor needs that. A note: it names somebody's own classes "
            "(as Megatron's and DeepSpeed's files do), and nobody can tell what they do."
        ),
        evidence=(
            "Every opcode is read, of data.pkl in a zip file and of a bare pickle, and nothing is executed. Names are "
            "compared with those of tensors and plain values; the rest of Python's own library counts as unsafe, and "
            "so does what loads or runs something in the libraries that a training has. An attribute of somebody's "
            "own class (a bound method, a nested class) is a note; an attribute that is computed is unsafe."
        ),
        to_do=(
            "Unsafe: do not load it anywhere, and find out who put it there.",
            "A note: load it with weights_only=True, or where you trust who wrote it.",
        ),
    )

    OVER_LIMIT = Row(
        "over-limit",
        weights=(UNSAFE,),
        group="Shards",
        headline="Larger than anything a trainer writes",
        meaning=(
            "A header, a count or a nesting exceeds a limit by which ckpttool guards memory and time. No real "
            "checkpoint comes near it; the file is damaged, or made to hurt."
        ),
        evidence="Lengths are checked before anything is allocated or read.",
        to_do=(
            "Look at where the file came from, and take another checkpoint:",
            "    ckpttool resolve DIR",
        ),
    )

    META_UNREADABLE = Row(
        "meta-unreadable",
        weights=(NOTE, UNKNOWN, DAMAGE),
        group="Records",
        headline="A record of the trainer cannot be read",
        meaning=(
            "meta.json, common.json, metadata.json or param_name_map.json is torn, empty, of the wrong types or not "
            "permitted. A note for meta.json, which is only a hint; damage for the others, which a load needs. prune "
            "lets nothing go while a record cannot be read: it may name what would go."
        ),
        evidence="The JSON is read strictly: a key twice, NaN, or text where a number belongs is an error.",
        trainers={
            "MindFormers": (
                "Skips a broken meta.json and uses the other ranks'; if none is left, 1.6 to 2.1 stop with a TypeError "
                "for safetensors. A broken common.json stops it."
            ),
        },
        to_do=(
            "For meta.json nothing. For the others resume from another checkpoint:",
            "    ckpttool resolve DIR",
        ),
    )

    TRACKER_DISAGREES = Row(
        "tracker-disagrees",
        weights=(NOTE,),
        group="Records",
        headline="The tracker file does not name the newest iteration",
        meaning=(
            "latest_checkpointed_iteration.txt is missing, empty, torn, behind, or names an iteration that is not "
            "there. It is written last and not atomically, so a killed save leaves it so."
        ),
        evidence="It is compared with the iteration_* folders.",
        trainers={
            "MindFormers": "Follows the tracker or stops with an error; it never falls back to an older iteration.",
        },
        to_do=(
            "Nothing to repair: the launch config names the iteration's folder, which needs no tracker:",
            "    ckpttool launch DIR --config BASE.yaml --output NEW.yaml",
        ),
    )

    METADATA_INCOMPLETE = Row(
        "metadata-incomplete",
        weights=(SUSPECT, UNKNOWN, DAMAGE),
        group="Records",
        headline="A record that this checkpoint needs is missing",
        meaning=(
            "No common.json (step, loss scale), no metadata.json (which file holds which slice), or no "
            "param_name_map.json. Most often the save was not finished."
        ),
        evidence="The file is not in the checkpoint's folder.",
        trainers={
            "MindFormers": (
                "Without common.json it stops. Without metadata.json 1.7 to 2.1 take any folder that has a single "
                "safetensors file, even if half of the shards are missing."
            ),
        },
        to_do=(
            "Resume from an iteration whose save was finished:",
            "    ckpttool resolve DIR",
        ),
    )

    UNCOMMITTED_SAVE = Row(
        "uncommitted-save",
        weights=(NOTE, UNKNOWN, DAMAGE),
        group="Records",
        headline="The trainer never finished this save",
        meaning=(
            "Trainers that write many files for a save write one last, which says that the others are all there. It is "
            "not there, or does not cover them: a crash cut the save off, or it is still under way. Unknown where it "
            "cannot be read."
        ),
        evidence=(
            "By that record alone: files that look whole beside it prove nothing, since the trainer does not take them "
            "either."
        ),
        to_do=(
            "An older checkpoint is chosen. Where a training is saving just now, wait for it and ask again.",
            "Where no training runs, what is left of the save is of no use: move it away.",
        ),
    )

    MARKED_UNHEALTHY = Row(
        "marked-unhealthy",
        weights=(SUSPECT,),
        check="health",
        taken_with="--ignore-health",
        group="Records",
        headline="The trainer itself recorded this checkpoint as unhealthy",
        meaning=(
            "When it was saved the embedding's gradient norm was above the threshold: the training was about to "
            "diverge, or had begun to."
        ),
        evidence=(
            "health_ckpts.json has is_health 1 for its file name (the worst entry counts); in the newer layout "
            "common.json has ckpt_status 1."
        ),
        trainers={
            "MindFormers": (
                "1.6 to 2.1 never filter it in the rank_N layout: the test is the wrong way round. 1.9 and later do in "
                "the newer layout."
            ),
        },
        to_do=(
            "An older, healthy one is chosen. To take this one all the same:",
            "    ckpttool resolve DIR --ignore-health",
        ),
    )

    HEALTH_UNKNOWN = Row(
        "health-unknown",
        weights=(NOTE, SUSPECT, UNKNOWN),
        check="health",
        group="Records",
        headline="Nothing tells whether it is healthy",
        meaning=(
            "Not measured is not healthy. The monitor was off, or the entry is missing. A note, unless "
            "--require-health asks for a record, or a watch with --threshold waits for the log."
        ),
        evidence=(
            "No entry in health_ckpts.json (newer layout: ckpt_status is null); with --health-threshold, no norm in "
            "the log at its save."
        ),
        trainers={
            "MindFormers": (
                "Never filters by health in the rank_N layout; in the newer one (1.9 and later) one without a record "
                "counts as unhealthy."
            ),
        },
        to_do=(
            "To accept it:",
            "    ckpttool resolve DIR --allow-unknown-health",
        ),
    )

    HEALTH_UNREADABLE = Row(
        "health-unreadable",
        weights=(UNKNOWN,),
        check="health",
        group="Records",
        headline="The health file cannot be read",
        meaning=(
            "health_ckpts.json is torn, of the wrong types or not permitted. What it says about the checkpoints is "
            "unknown; unknown is not healthy."
        ),
        evidence="Its JSON is read strictly; an entry that makes no sense makes its checkpoint unknown.",
        to_do=(
            "Point to a good copy:",
            "    ckpttool resolve DIR --health-file FILE",
        ),
    )

    HEALTH_UNHEARD = Row(
        "health-unheard",
        weights=(UNKNOWN,),
        check="health",
        group="Records",
        headline="A health file that was to have a say could not be read",
        meaning=(
            "The file that --health-file names is no health file; or health_ckpts.json is torn, as a run leaves it "
            "that is killed while it writes, or larger than any such record. Its end is about the newest saves, so it "
            "may call the checkpoint unhealthy that was chosen: exit 14, and `launch` writes nothing."
        ),
        evidence=(
            "The file is read strictly, up to 64 MiB. What comes before the tear counts: unhealthy stays unhealthy. "
            "Where a log or the save itself tells the health of what was chosen, a torn file that nobody named is not "
            "missed."
        ),
        to_do=(
            "Point to a good copy, or say that what is not known to be unhealthy will do:",
            "    ckpttool resolve DIR --health-file FILE",
            "    ckpttool resolve DIR --allow-unknown-health",
        ),
    )

    HEALTH_NAMES_NOTHING = Row(
        "health-names-nothing",
        weights=(NOTE,),
        check="health",
        group="Records",
        headline="The health file names checkpoints that do not exist",
        meaning=(
            "The entry is written before the weights and never removed: the save failed, or the checkpoint was pruned "
            "since. Or the file belongs to another tree."
        ),
        evidence="Every name is looked for among the checkpoints of rank 0.",
        trainers={
            "MindFormers": "Counts an entry that names nothing as proof that a healthy checkpoint exists.",
        },
        to_do=(
            "Nothing, unless all entries are like that: then it is the wrong file.",
            "    ckpttool scan DIR --health-file FILE",
        ),
    )

    MANIFEST_UNREADABLE = Row(
        "manifest-unreadable",
        weights=(UNKNOWN,),
        group="Records",
        headline="The manifest of checksums cannot be believed",
        meaning=(
            "The file that `ckpttool seal` wrote, or the birth certificate that `ckpttool.checkpoint_writer` wrote "
            "with a shard, is torn, was edited, is of another checkpoint, or cannot be read. The shards may be whole; "
            "nothing says so any more."
        ),
        evidence="A manifest ends in the hash of all that stands before it; every changed bit shows.",
        to_do=(
            "Put the manifest back from a copy. Without one, check the shards and record them anew:",
            "    ckpttool verify DIR --checkpoint NAME",
            "    ckpttool seal DIR --checkpoint NAME --reseal",
        ),
    )

    MANIFEST_NEWER = Row(
        "manifest-newer",
        weights=(UNKNOWN,),
        group="Records",
        headline="The manifest was written by a newer ckpttool",
        meaning=(
            "Its form has a version that this ckpttool does not know, so nothing was compared with it, and it is not "
            "overwritten, not even by --reseal."
        ),
        evidence="The version stands at its beginning.",
        to_do=("Verify with the ckpttool that sealed, or update this one.",),
    )

    STRAY_FILE = Row(
        "stray-file",
        weights=(NOTE,),
        group="Files",
        headline="Not a part of any checkpoint",
        meaning=(
            "A backup folder such as rank_0_bak, weights without optimizer state, notes, anything whose name "
            "MindFormers gives no checkpoint. It is listed and never counted."
        ),
        evidence="Names are matched as a whole.",
        trainers={
            "MindFormers": (
                "1.7 to 2.1 count every name that begins with rank_ as a rank, and stop because the last one is 'not "
                "found'; a network file copied into rank_0/ is even chosen."
            ),
        },
        to_do=("Move it out of the folder if MindFormers is to resume by itself; a launch config does not mind.",),
    )

    STRAY_TAKES_OVER = Row(
        "stray-takes-over",
        weights=(NOTE, SUSPECT),
        group="Files",
        headline="Something that is no checkpoint would be taken for the newest",
        meaning=(
            "A copy, a backup or a note whose name the trainer's own search takes for a save. A start that leaves the "
            "choice to the trainer loads it, or stops at it. ckpttool names a checkpoint, so it does not count here."
        ),
        evidence="The trainer's own rule for names, applied to what lies there.",
        trainers={
            "torchtitan": (
                "Finds step-N in any name: a copy step-300.bak makes every start fail with FileNotFoundError on "
                "step-300."
            ),
            "Lightning": "Takes the file called last*.ckpt that was written last, whatever is in it.",
        },
        to_do=(
            (
                "Move it out of the folder. Where it is suspect, do so before the start: the trainer looks at it even "
                "where a checkpoint is named."
            ),
        ),
    )

    IN_PROGRESS = Row(
        "in-progress",
        weights=(NOTE, UNKNOWN),
        group="Files",
        headline="A temporary file: a save is under way, or was cut off",
        meaning=(
            "MindSpore writes NAME.tmp and renames it. If no training runs here, the save died, and the file may go. "
            "`prune` and `repair-meta` change nothing (unknown) while one is there, while a shard is younger than "
            "--grace, or while a prune is running."
        ),
        evidence="The name ends in .tmp, or is one that Python gives a temporary file.",
        trainers={
            "MindFormers": "Ignores it.",
        },
        to_do=(
            "If a training is running, look again when its save has ended:",
            "    ckpttool scan DIR",
        ),
    )

    CHANGED_WHILE_READING = Row(
        "changed-while-reading",
        weights=(UNKNOWN,),
        verdict="unstable",
        group="Files",
        headline="The file changed or vanished while it was looked at",
        meaning=(
            "A save or a pruning is at work beside us. What was seen of it proves nothing and is not counted as good."
        ),
        evidence="Size, time and inode before and after differ, twice in a row.",
        to_do=(
            "Run again when nothing writes here:",
            "    ckpttool resolve DIR",
        ),
    )

    UNREADABLE = Row(
        "unreadable",
        weights=(UNKNOWN,),
        group="Files",
        headline="Could not be read: unknown, not damaged",
        meaning=(
            "No permission (MindFormers writes shards with mode 0400), the disk answered with an error, or a link "
            "leads nowhere or round in a loop: the disk that it leads to is not mounted, say. A store did not answer, "
            "refused, or broke the rules of its language. Unknown is never counted as good, nor as nothing to resume "
            "from."
        ),
        evidence="The operating system or the store refused; the message says why.",
        trainers={
            "MindFormers": "Fails in the same way, unless it runs as another user.",
        },
        to_do=(
            (
                "Run as the user that trained, or with credentials that may list and read; mount what a link leads to; "
                "after an I/O error look at the disk first:"
            ),
            "    ckpttool scan DIR",
        ),
    )

    NOT_A_REGULAR_FILE = Row(
        "not-a-regular-file",
        weights=(NOTE, DAMAGE, UNSAFE),
        group="Files",
        headline="A folder, FIFO or device under a shard's name",
        meaning=(
            "There should be a file. A folder is damage; a FIFO or a device could block a reader for ever, so it is "
            "refused."
        ),
        evidence=(
            "The operating system tells the kind; nothing was opened. Links to regular files are followed; one that "
            "leads nowhere is unreadable."
        ),
        trainers={
            "MindFormers": "Looks at names alone, so it chooses even a folder.",
        },
        to_do=(
            "Put the file back, or mend the link, or take another checkpoint:",
            "    ckpttool resolve DIR",
        ),
    )

    UNSAFE_NAME = Row(
        "unsafe-name",
        weights=(UNSAFE,),
        group="Files",
        headline="A record names a file outside of its folder",
        meaning=(
            "A name with a slash, with `..`, control characters or a NUL stands where a plain file name belongs. It "
            "was not followed. No trainer writes that."
        ),
        evidence="Every name that is read from a file is checked before it is used.",
        to_do=("Find out who wrote that record. Do not let MindFormers near this folder before.",),
    )

    CONFIG_DISAGREES = Row(
        "config-disagrees",
        weights=(NOTE, SUSPECT),
        check="launch",
        group="Settings",
        headline="The config does not fit the checkpoint, or contradicts itself",
        meaning=(
            "Layout, file format, ranks, batch size or sink size are not those of the checkpoint. A note where "
            "`ckpttool launch` puts it right or where it changes nothing, else suspect."
        ),
        evidence="The config is compared with what stands inside the checkpoint's files.",
        trainers={
            "MindFormers": "Fails at the load, finds no checkpoint, or trains on from another step than it should.",
        },
        to_do=(
            "Mend the base config as the message says, then:",
            "    ckpttool launch DIR --config BASE.yaml --output NEW.yaml",
        ),
    )

    DEVICES_UNKNOWN = Row(
        "devices-unknown",
        weights=(UNKNOWN,),
        check="launch",
        may_be_allowed=False,
        group="Starts",
        headline="Nothing tells how many devices to start",
        meaning=(
            "The config starts as many ranks as there are devices, and the weights are all ranks' alike: neither says "
            "how many devices a launch would start, nor how large its batches would be."
        ),
        evidence=(
            "The config states no parallel sizes that hold (data-parallel mode, or they stand in another file), and no "
            "rank has files of its own."
        ),
        to_do=("Say it: --devices N to preflight, --devices-per-node N to launch.",),
    )

    START_DIFFERS = Row(
        "start-differs",
        weights=(NOTE, SUSPECT),
        group="Starts",
        headline="As it stands, this start does not resume from what was chosen",
        meaning=(
            "With its config, its trackers and its file names as they are, the start loads another save, stops, or "
            "begins at step 0; or it loads the right save and its data go on elsewhere. `preflight` checks the start "
            "as it stands, `launch` the config that it would write."
        ),
        evidence=(
            "By the simulation that `resolve --simulate own` shows, and by what the config names: `load_checkpoint` "
            "and `resume_training`, `resume_from_checkpoint`, `ckpt_path`, `load_step`. Where no config is given, by "
            "what the trainer takes by itself."
        ),
        trainers={
            "MindFormers": (
                "An empty `load_checkpoint`, or `resume_training: False`, begins at step 0 without an error. With "
                "`resume_training: True` it takes the newest name that all ranks have, and opens no shard before it "
                "has chosen."
            ),
        },
        to_do=(
            "MindFormers: start with the config that launch writes:",
            "    ckpttool launch DIR --config BASE.yaml --output NEW.yaml",
            (
                "A trainer that goes by a tracker (DeepSpeed, Megatron-LM, verl, MindFormers): let it name the chosen "
                "save:"
            ),
            "    ckpttool repair-meta DIR --apply",
            "Any other: name the save, as the answer spells it.",
            "If the start is told what to load elsewhere, on its command line, say so: --allow start-differs.",
        ),
    )

    START_UNKNOWN = Row(
        "start-unknown",
        weights=(NOTE, UNKNOWN),
        group="Starts",
        headline="Nobody knows what this start would load",
        meaning=(
            "The start was not judged: the trainer goes by a config that was not given, or the training's own script "
            "decides. A note if only the script can know: then go holds for a start that loads what was chosen."
        ),
        evidence=(
            "No --config was given, the config leaves the choice to the script, or the trainer has no rule of its own."
        ),
        to_do=(
            "Give the config:",
            "    ckpttool preflight DIR --config BASE.yaml",
            "Name the save in the config, or in the script.",
            "If the start is told what to load elsewhere, say so: --allow start-unknown.",
        ),
    )

    DATA_RESTARTS = Row(
        "data-restarts",
        weights=(NOTE, SUSPECT),
        check="launch",
        group="Data",
        headline="The data begin again, while the steps go on",
        meaning=(
            "The trainer loads weights, optimizer and counters, but no place in the data: it reads again what it has "
            "read, and what would have come next is not read in this epoch."
        ),
        evidence="By what the save holds of its data loader, and by runs of the trainer.",
        trainers={
            "Lightning": (
                "A plain DataLoader reads the epoch's first batches again, with a fixed generator those of epoch 0, "
                "and never its last ones: the batch counter goes on (2.6, run)."
            ),
            "Hugging Face's Trainer": "With `ignore_data_skip: true` the epoch is read from its beginning.",
            "torchtitan": (
                "With `dataloader` in `exclude_from_loading` every start reads the data from their beginning."
            ),
        },
        to_do=(
            "Use a data loader that keeps its place, if the trainer saves that, for the saves to come.",
            "For this one, skip in the script what was read: the answer says how many samples that is.",
            "Or accept it: some samples are seen twice.",
        ),
    )

    DATA_REORDERED = Row(
        "data-reordered",
        weights=(NOTE,),
        check="launch",
        group="Data",
        headline="The data go on in another order",
        meaning=(
            "As many samples are passed over as were read, but with the sizes that are asked for they are not the same "
            "ones: some are read twice and some never."
        ),
        evidence="By what the trainer goes by when it resumes, compared with the sizes that are asked for.",
        trainers={
            "Megatron-LM": (
                "With --train-iters the index of samples is built for another number of them, and shuffled otherwise."
            ),
            "torchtitan": (
                "Each data-parallel rank goes on exactly in its own data; batches of another size mix them otherwise."
            ),
            "verl": "data.pt counts batches of the old size.",
        },
        to_do=(
            (
                "Resume with the sizes that the save was made with, where the order matters: the answer names them "
                "where they are known."
            ),
        ),
    )

    DATA_MISPLACED = Row(
        "data-misplaced",
        weights=(SUSPECT,),
        check="launch",
        group="Data",
        headline="The data go on at another place than they stood",
        meaning=(
            "The trainer keeps no place in the data. It reckons one from the step, with the batch size of the run to "
            "come, so with another size it leaves samples out, or reads some again. The answer says how many."
        ),
        evidence=(
            "By the trainer's own rule, in whole numbers: the place that it reckons is compared with the samples that "
            "were read."
        ),
        trainers={
            "Hugging Face's Trainer": (
                "Passes over as many batches of the new size as steps were done, epoch by epoch: after 12 steps of 4 "
                "samples a resume with 8 left out 48 (transformers 4.57 and 5.23, run)."
            ),
        },
        to_do=(
            (
                "Keep samples a step as they were: the answer names sizes that do. The same product of batch, "
                "accumulation and ranks does, too."
            ),
            "Or accept it, where some samples more or less do not matter.",
        ),
    )

    REWOUND_PAST = Row(
        "rewound-past",
        weights=(NOTE, SUSPECT),
        check="health",
        group="Training logs",
        headline="The training is to go back behind this checkpoint",
        meaning=(
            "To get around a spike the training goes back to at least 100 steps before its onset and passes the data "
            "of the spike. This checkpoint lies later than that. A note where --before STEP asks for what is at a "
            "step or before it, and every checkpoint is later."
        ),
        evidence=(
            "Its step against the step at which the log shows the onset (or the stop), or against the one asked for."
        ),
        to_do=("Leave --around-spike or --before out to resume from the newest good one.",),
    )

    LOG_UNREADABLE = Row(
        "log-unreadable",
        weights=(NOTE, UNKNOWN),
        check="health",
        group="Training logs",
        headline="A training log, or a line of it, cannot be read",
        meaning=(
            "A note for a line: a digit lost on the way, a field cut off. What is read stands, and nothing was "
            "guessed. Unknown where a whole log could not be read, or not to its end, and where logs were to have a "
            "say and there is none, or no step in them."
        ),
        evidence="Every line that looks like a step or a monitor's is read field by field; its number is given.",
        to_do=(
            "For a line nothing. For a whole log give another copy; where its columns have other names, say which:",
            "    ckpttool replay LOG --columns step=iter,global_norm=gnorm",
        ),
    )

    NOT_A_TRAINING = Row(
        "not-a-training",
        weights=(SUSPECT,),
        group="Rules about configs",
        headline="The config is for another run mode than training",
        meaning="`run_mode` is neither train nor finetune, so there is nothing that could be resumed.",
        evidence=(
            "The settings are compared with what the code of MindFormers 1.6 to 2.1 does with them; the line is given."
        ),
        trainers={
            "MindFormers": (
                "Predicts, evaluates or exports; resume settings are ignored. Of a folder, lint-config counts such "
                "configs and passes over them."
            ),
        },
        to_do=(
            "Write `run_mode: train`, or give the config of the training:",
            "    ckpttool lint-config BASE.yaml",
        ),
    )

    KEEPS_ONE_CHECKPOINT = Row(
        "keeps-one-checkpoint",
        weights=(NOTE, SUSPECT),
        group="Rules about configs",
        headline="One checkpoint is kept, and none before it",
        meaning=(
            "Where the only one is damaged, was cut off or holds a training that had gone wrong, there is nothing to "
            "go back to. MindFormers deletes it before the next one is written: a crash, a full disk or a lost node "
            "at that moment costs the whole training."
        ),
        evidence=(
            "MindFormers: run with a save that fails: no checkpoint is left, and meta.json names the deleted one. The "
            "others: read in their code."
        ),
        trainers={
            "MindFormers": (
                "`keep_checkpoint_max: 1`: deletes first and writes then. Ships many of its own configs with 1: a note "
                "in preflight and launch, which it does not stop."
            ),
            "Hugging Face's Trainer": (
                "`save_total_limit: 1`: writes first, then deletes by time, whole ones too while a torn newest stays."
            ),
            "torchtitan": "`keep_latest_k = 1`: stops with a ValueError when it starts.",
            "Accelerate": (
                "`ProjectConfiguration(total_limit=1)`: deletes first and writes then. That stands in a script, which "
                "is not read."
            ),
        },
        to_do=(
            "Write 2 or more, and make room for one more than that. Then:",
            "    ckpttool lint-config CONFIG",
        ),
    )

    ALLOW_UNUSED = Row(
        "allow-unused",
        weights=(NOTE,),
        group="Rules about configs",
        headline="A comment allows what is not there",
        meaning=(
            "`# ckpttool: allow CODE` stands where no finding has that code: it was mended, has moved to another line, "
            "or the code is misspelt."
        ),
        evidence="The comment speaks of its own line or, alone on a line, of the next one; there is no such finding.",
        to_do=(
            "Take the code out of the comment, or put the comment where the finding is:",
            "    ckpttool lint-config BASE.yaml",
        ),
    )

    CONFIG_UNUSABLE = Row(
        "config-unusable",
        weights=(DAMAGE,),
        may_be_allowed=False,
        group="Preflight",
        headline="The config cannot be used at all",
        meaning=(
            "It cannot be opened, is no YAML, has a key twice, or is larger than any config. Nothing else can be asked "
            "without it. The exit code is that of such an error, 2 or 15, instead."
        ),
        evidence="PyYAML's own reading, and what it would pass over in silence: the second of two equal keys.",
        trainers={
            "MindFormers": "Fails at the start, or takes the last of two equal keys.",
        },
        to_do=(
            "Mend the line that is named, then:",
            "    ckpttool lint-config BASE.yaml",
        ),
    )

    NOTHING_TO_RESUME = Row(
        "nothing-to-resume",
        weights=(DAMAGE,),
        may_be_allowed=False,
        group="Preflight",
        headline="There is no checkpoint that a launch could resume from",
        meaning=(
            "None is whole on every rank and not unhealthy. Beside this one stand all reasons against the newest, and "
            "the gravest against the next. The exit code is 11."
        ),
        evidence="What `ckpttool resolve` found, at the level that was asked for.",
        trainers={
            "MindFormers": "May start from damaged or random weights, or stop.",
        },
        to_do=(
            "See for each checkpoint why not:",
            "    ckpttool resolve DIR",
        ),
    )

    NEWER_NOT_CHOSEN = Row(
        "newer-not-chosen",
        weights=(NOTE, SUSPECT, UNKNOWN),
        group="Preflight",
        headline="A newer checkpoint is there and was not chosen",
        meaning=(
            "A launch would resume from an older one and do steps again. A note, or suspect with --strict; unknown "
            "where the newer one could not be looked at, for it may be whole."
        ),
        evidence="What `ckpttool resolve` found against it; the gravest reason is told.",
        trainers={
            "MindFormers": "Would often take it: it goes by names.",
        },
        to_do=(
            "See all reasons, and repair it if it is worth it:",
            "    ckpttool resolve DIR",
        ),
    )

    TOO_MUCH_LOST = Row(
        "too-much-lost",
        weights=(SUSPECT, UNKNOWN),
        group="Preflight",
        headline="More training is to be done again than was allowed",
        meaning=(
            "The newest checkpoint that can be loaded lies further behind than `--max-lost-steps` or `--max-lost-time` "
            "allows. Unknown where nothing tells how much that is."
        ),
        evidence=(
            "Steps are counted from the chosen checkpoint to the furthest one that the training did not leave, whole "
            "or not, and with `--log` to the last step that the log shows. Their time is the log's, or what lies "
            "between the times at which the files of two saves were written. Times that a copy has set anew say "
            "nothing."
        ),
        trainers={
            "MindFormers": "Resumes all the same.",
        },
        to_do=(
            "Look at what stands against each newer checkpoint; often one rank's shards can be brought back:",
            "    ckpttool resolve DIR",
            "Else allow more, or accept it with `--allow too-much-lost` (launch, preflight).",
        ),
    )

    CANNOT_ANSWER = Row(
        "cannot-answer",
        weights=(UNKNOWN, UNSAFE),
        may_be_allowed=False,
        group="Preflight",
        headline="A question could not be answered, so nothing is proven",
        meaning=(
            "There is no checkpoint folder that ckpttool knows, something could not be read or kept changing, an "
            "option cannot be meant, or a save among others has no place for what was to be written. The exit code is "
            "the one of that error: 2, 12, 14 or 15."
        ),
        evidence="The message is the error's own.",
        to_do=(
            "Do what the message says, or ask the question alone:",
            "    ckpttool resolve DIR",
        ),
    )

    DISK_SPACE_LOW = Row(
        "disk-space-low",
        weights=(SUSPECT,),
        group="Preflight",
        headline="The next saves will not fit on the disk",
        meaning=(
            "As many saves as are kept, and the one being written, must fit beside what is there: files of older runs "
            "are never removed by MindFormers."
        ),
        evidence=(
            "Size of the checkpoint that is resumed from. The file system's own figures for users without privileges; "
            "quotas are not in them."
        ),
        trainers={
            "MindFormers": "Notices when a save fails, and has deleted the oldest one by then.",
        },
        to_do=(
            "Make room, or keep fewer. What is there:",
            "    ckpttool scan DIR",
        ),
    )

    DISK_INODES_LOW = Row(
        "disk-inodes-low",
        weights=(SUSPECT,),
        group="Preflight",
        headline="The file system has too few inodes for the next saves",
        meaning="Every shard is a file. There can be room for bytes and none for files.",
        evidence=(
            "Files of the checkpoint that is resumed from. The file system's own figures for users without privileges; "
            "quotas are not in them."
        ),
        trainers={
            "MindFormers": "Notices when a save fails with 'No space left on device'.",
        },
        to_do=(
            "Remove many small files, or save elsewhere. What is there:",
            "    ckpttool scan DIR",
        ),
    )

    FOLDER_NOT_WRITABLE = Row(
        "folder-not-writable",
        weights=(SUSPECT,),
        group="Preflight",
        headline="This user may not write where the next save goes",
        meaning=(
            "MindFormers makes its folders for their owner and group alone. A check by another user than the one who "
            "trains says nothing about that one."
        ),
        evidence="The system is asked, for the checkpoint folder and each rank's folder in it.",
        trainers={
            "MindFormers": "Notices at the first save.",
        },
        to_do=(
            "Start as the owner, or mend the mode. Where another user trains:",
            "    ckpttool preflight --config BASE.yaml --allow folder-not-writable",
        ),
    )

    DISK_UNKNOWN = Row(
        "disk-unknown",
        weights=(UNKNOWN,),
        group="Preflight",
        headline="Nobody can tell how much room there is",
        meaning=(
            "The file system, or a shard whose size was needed, did not answer. The next saves may fit or not; a check "
            "that could not be made is never counted as passed."
        ),
        evidence="Asking for free bytes and inodes, or for the size of a shard, ended in the error of the message.",
        to_do=(
            "Look at the mount. Where it is known to be large enough:",
            "    ckpttool preflight --config BASE.yaml --allow disk-unknown",
        ),
    )
