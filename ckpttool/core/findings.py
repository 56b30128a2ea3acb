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

    SHARD_RESPELLED = Row(
        "shard-respelled",
        weights=(NOTE, DAMAGE),
        verdict="missing",
        group="Checkpoints",
        headline="A shard's name spells its numbers otherwise",
        meaning=(
            "20_2 and 020_2 are one save to a reader and two names to MindFormers, which writes no leading zeros and "
            "gives the first run no suffix. Somebody renamed the file."
        ),
        evidence=(
            "The name, and what it would be with its numbers as MindFormers writes them. It is damage where the rank "
            "has no file of that name; a further file beside it is a note."
        ),
        trainers={
            "MindFormers": (
                "With a name in `resume_training` every rank looks for just that name: the rank that has the other "
                "spelling stops with FileNotFoundError."
            ),
        },
        to_do=("Rename it to what the message says.",),
    )

    EXTRA_SAFETENSORS = Row(
        "extra-safetensors",
        weights=(SUSPECT,),
        group="Checkpoints",
        headline="A further safetensors file in a single card's checkpoint",
        meaning=(
            "One card writes no metadata.json into its iteration_N/ folder. So nothing says which files belong to the "
            "checkpoint, and every *.safetensors in the folder counts, whatever its name."
        ),
        evidence=(
            "Whatever is named *.safetensors beside PREFIX-model-0000000-0000001 and PREFIX-opt-0000000-0000001; names "
            "that begin with a dot do not count."
        ),
        trainers={
            "MindFormers": (
                "Reads all of them as one checkpoint; where two hold the same parameter it stops: `Duplicate "
                "parameter_name found` (run with 2.1.0; 1.7 to 1.9 have the same code)."
            ),
        },
        to_do=("Move the file out of the folder. Nothing is wrong with the checkpoint itself.",),
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

    EPOCH_DISAGREES = Row(
        "epoch-disagrees",
        weights=(DAMAGE,),
        group="Checkpoints",
        headline="Ranks of one checkpoint were saved in different epochs",
        meaning="epoch_num inside one rank's file differs from the other ranks': an older file under a newer name.",
        evidence="epoch_num is read from inside every rank's file; the value that most ranks have counts.",
        trainers={
            "MindFormers": "Never compares; every rank goes on from its own counter (up to 1.7: from rank 0's).",
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

    BASE_ELSEWHERE = Row(
        "base-elsewhere",
        weights=(NOTE,),
        group="Checkpoints",
        headline="The save is an adapter, and its base model lies elsewhere",
        meaning=(
            "Adapter, optimizer and counters are there, the model that the adapter was trained on is not: the script "
            "loads that from its own path. It must be the same, to the bit, and nothing here is compared with it."
        ),
        evidence="The weights are an `adapter_model` file.",
        trainers={
            "Hugging Face's Trainer": "Loads the adapter onto whatever model the script built.",
        },
        to_do=(
            "Keep the base model where the script looks for it, and seal it: it has no checksums of its own.",
            "    ckpttool seal MODEL_DIR",
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

    META_AHEAD = Row(
        "meta-ahead",
        weights=(NOTE,),
        group="Records",
        headline="meta.json names a file that is not there",
        meaning=(
            "meta.json is newer than the newest shard: the shard was pruned or lost, most often in a power cut seconds "
            "after the save."
        ),
        evidence="The name in meta.json is looked for beside it.",
        trainers={
            "MindFormers": (
                "Takes the lowest step of all meta.json as an upper limit, so it may still find an older one."
            ),
        },
        to_do=("Nothing to repair: ckpttool goes by the shards, and `ckpttool launch` names the file itself.",),
    )

    META_BEHIND = Row(
        "meta-behind",
        weights=(NOTE,),
        group="Records",
        headline="meta.json is older than the newest shard",
        meaning=(
            "With async_save the last save of a run never reaches meta.json; also a save while an exception unwound "
            "does not. The newer shards may be perfectly whole."
        ),
        evidence="The shard that meta.json names is compared with the newest one, by the true step inside.",
        trainers={
            "MindFormers": "Resumes from the older step and does the steps since then again.",
        },
        to_do=("Nothing to repair: ckpttool goes by the shards, and `ckpttool launch` names the file itself.",),
    )

    META_MISSING = Row(
        "meta-missing",
        weights=(NOTE,),
        group="Records",
        headline="A rank has no meta.json",
        meaning="The trainer writes one after each save. It may never have been written, or not been copied.",
        evidence="It is not in the rank's folder.",
        trainers={
            "MindFormers": (
                "Uses the other ranks' meta.json. Where no rank has one it goes by file times; for safetensors 1.6 to "
                "2.1 stop with a TypeError instead."
            ),
        },
        to_do=("Nothing to repair: ckpttool goes by the shards, and `ckpttool launch` names the file itself.",),
    )

    META_DISAGREES = Row(
        "meta-disagrees",
        weights=(NOTE,),
        group="Records",
        headline="Ranks' meta.json disagree, or one disagrees with itself",
        meaning=(
            "Some ranks recorded an earlier save as their last than others, or a record names a file of another save "
            "than its own numbers say. A rank died, or files were copied."
        ),
        evidence="All ranks' records are compared with one another, and each with the file name that it holds.",
        trainers={
            "MindFormers": "Takes the lowest epoch and step of all ranks.",
        },
        to_do=("Nothing to repair: ckpttool goes by the shards, and `ckpttool launch` names the file itself.",),
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

    TRACKER_MIXES = Row(
        "tracker-mixes",
        weights=(SUSPECT, UNKNOWN),
        check="launch",
        group="Records",
        headline="The tracker makes the trainer load something else than it is told",
        meaning=(
            "The plan names an iteration, and the tracker names another, `release`, or nothing that is one. What the "
            "tracker says goes before the option, or beside it: Megatron-LM's legacy saves with a distributed "
            "optimizer take the moments from the iteration of the tracker and the weights from the one that is named, "
            "without an error."
        ),
        evidence="The tracker is read as the trainer reads it, and compared with the checkpoint of the plan.",
        to_do=(
            "Let the tracker name the checkpoint that is to be loaded:",
            "    ckpttool repair-meta DIR --checkpoint NAME --apply",
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

    HEALTH_CONTRADICTORY = Row(
        "health-contradictory",
        weights=(NOTE, SUSPECT),
        check="health",
        group="Records",
        headline="A checkpoint is called both healthy and unhealthy",
        meaning=(
            "Two entries of the record disagree, for MindFormers appends one at each save and removes none. Or the log "
            "shows another health at your threshold than is recorded: a note where the log is the better news, or "
            "where it has been acted upon."
        ),
        evidence="All entries of a name are read, and the worst counts. What the log shows at the save counts more.",
        trainers={
            "MindFormers": "Never uses the entries to filter, so it does not notice.",
        },
        to_do=(
            "Bring the record in line with the log, or take the checkpoint all the same:",
            "    ckpttool health DIR --threshold X --write",
            "    ckpttool resolve DIR --ignore-health",
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

    BREAKPOINT_FILE = Row(
        "breakpoint-file",
        weights=(NOTE,),
        group="Files",
        headline="Saved while an exception unwound: no checkpoint",
        meaning=(
            "exception_save leaves a *_breakpoint.ckpt. It holds the step within the epoch where the global step "
            "belongs, and only some ranks may have one."
        ),
        evidence="The name ends in _breakpoint.ckpt.",
        trainers={
            "MindFormers": (
                "One such file in any rank's folder makes the whole resume fail ('Can't match epoch and step')."
            ),
        },
        to_do=("Move it away if MindFormers is to resume by itself; a launch config does not mind.",),
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

    CONFIG_KEY_IGNORED = Row(
        "config-key-ignored",
        weights=(NOTE, SUSPECT),
        group="Settings",
        headline="A setting stands where MindFormers does not read it, or has no effect",
        meaning=(
            "Its author meant something, and nothing will happen. A note where `ckpttool launch` puts it right or "
            "where it changes nothing, else suspect."
        ),
        evidence="The keys and their places are compared with what MindFormers' code reads; the line is given.",
        trainers={
            "MindFormers": "Reads the resume keys at the top level only; and `data_skip_steps: 0` means 'not set'.",
        },
        to_do=(
            "Move the key to where the message says. What a resume needs is written to the right places by:",
            "    ckpttool launch DIR --config BASE.yaml --output NEW.yaml",
        ),
    )

    TRAINER_KEY_REFUSED = Row(
        "trainer-key-refused",
        weights=(SUSPECT,),
        group="Settings",
        headline="A key under `trainer:` that stops every start",
        meaning=(
            "Nothing is trained while it stands there, whatever its value. The documentation shows `data_skip_steps` "
            "and `ignore_data_skip` under `trainer:`, and `ckpttool launch` used to write them there, too. A class of "
            "your own, named by `auto_register`, may take other keys and is not judged."
        ),
        evidence="The code of 1.3.2 to 2.1.0, and a start of each: all trainer classes take `model_name` alone.",
        trainers={
            "MindFormers": (
                "Passes every key but `type` to the trainer's class: TypeError: "
                "CausalLanguageModelingTrainer.__init__() got an unexpected keyword argument 'data_skip_steps'."
            ),
        },
        to_do=(
            "Delete the key, or move it to the top level. The keys of the data position are written there by:",
            "    ckpttool launch DIR --config BASE.yaml --output NEW.yaml",
        ),
    )

    STREAM_STATE_MISSING = Row(
        "stream-state-missing",
        weights=(SUSPECT, UNKNOWN),
        check="launch",
        group="Settings",
        headline="Streaming data lack the state from which they would go on",
        meaning=(
            "With `streaming: True` the data loader keeps its position in files of its own. Those of the checkpoint's "
            "step are missing or torn on some rank. Unknown where nobody can tell: the folder is named relative to "
            "another one, or the config does not tell which ranks read data."
        ),
        evidence=(
            "`dataset_state_dir/step_N/dataset_state_rankR.json` of each rank that reads data; N is the step at which "
            "MindFormers resumes. Later files prove no step, for the data are fetched ahead."
        ),
        trainers={
            "MindFormers": "1.8 and later stop at the first batch: FileNotFoundError, Dataset state file not found.",
        },
        to_do=(
            "Restore the files, or take a checkpoint that has them:",
            "    ckpttool resolve DIR --checkpoint NAME",
        ),
    )

    STREAM_POSITION_FIXED = Row(
        "stream-position-fixed",
        weights=(SUSPECT,),
        check="launch",
        group="Settings",
        headline="Streaming data cannot start where it was asked",
        meaning=(
            "Streaming data go on where the state files of the checkpoint's step say. A new data set, a changed batch "
            "size or a way around a spike cannot move them: the loader goes on at the old place, repeats a sample for "
            "ever, or stops."
        ),
        evidence="The config's `train_dataset.data_loader` against what was asked; run with the real loader.",
        trainers={
            "MindFormers": (
                "Loads the state of its own step number, whatever `data_skip_steps` and `ignore_data_skip` say."
            ),
        },
        to_do=("Leave the option out, or start a new training from the weights alone.",),
    )

    CONFIG_WRONG_TYPE = Row(
        "config-wrong-type",
        weights=(NOTE, SUSPECT),
        group="Settings",
        headline="A setting is of the wrong type",
        meaning=(
            "YAML reads `1e-5` and `'True'` as text, `1_2` as 12; a count such as `save_checkpoint_steps` is 0. A note "
            "where `ckpttool launch` puts it right or where it changes nothing, else suspect."
        ),
        evidence=(
            "The type that the YAML loader makes of it is compared with the type, and the range, that the code needs."
        ),
        trainers={
            "MindFormers": "Fails late, or takes any text for True.",
        },
        to_do=("Write it as the message says: 1.0e-05, True, 8, without quotes.",),
    )

    PREFIX_DIFFERS = Row(
        "prefix-differs",
        weights=(SUSPECT,),
        check="launch",
        group="Settings",
        headline="The config saves under another prefix than the checkpoint has",
        meaning=(
            "The next save begins a second training in the folder, by its file names: neither its `_1`, `_2` nor its "
            "steps go on from what is there, and what shares a folder has to be told apart with --prefix ever after. "
            "Often the config is another training's."
        ),
        evidence=(
            "`prefix` of the CheckpointMonitor callback, or of the `checkpoint:` section, and what precedes `_rank_N` "
            "(`-model-` in the newer layout) in the file names."
        ),
        trainers={
            "MindFormers": "Loads what it is told to load, whatever the prefix, and saves under the config's.",
        },
        to_do=(
            "Write the prefix that the message names; where the change is meant, accept it:",
            "    ckpttool preflight DIR --config BASE.yaml --allow prefix-differs",
        ),
    )

    BATCH_SIZE_UNKNOWN = Row(
        "batch-size-unknown",
        weights=(NOTE,),
        check="launch",
        group="Settings",
        headline="Nothing tells how large the batches of the coming run are",
        meaning=(
            "So nobody can say how many of them were seen. The launch config names no `data_skip_steps`, and clears "
            "one that stands there."
        ),
        evidence=(
            "A setting that the batch size is computed from is no number, or the config only adds to a `base_config`. "
            "In DeepSpeed's JSON it is `auto`, which the trainer fills in."
        ),
        trainers={
            "MindFormers": (
                "Scales the checkpoint's step by the batch size that it really has, unless `data_skip_steps` says "
                "another number; in floating point, so that a step may be lost."
            ),
        },
        to_do=(
            "Say the batch size, over all devices:",
            "    ckpttool launch DIR --config BASE.yaml --output NEW.yaml --gbs N",
            "DeepSpeed: say how many data-parallel ranks will be started:",
            "    ckpttool preflight DIR --config ds.json --dp N",
        ),
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

    COUNTER_ROUNDED = Row(
        "counter-rounded",
        weights=(NOTE, SUSPECT),
        check="launch",
        group="Settings",
        headline="MindFormers will not scale a step counter exactly",
        meaning=(
            "After a change of the global batch size it multiplies counters by a floating-point ratio, or (newer "
            "layout, the optimizer's step) not at all. A note where only labels are off; suspect where the learning "
            "rate is."
        ),
        evidence="The same arithmetic (float32 in the rank_N layout, float64 in the newer one) against whole numbers.",
        trainers={
            "MindFormers": "27 steps from batches of 56 to 12 become 125 instead of 126.",
        },
        to_do=(
            "The data are safe: data_skip_steps is exact. Sizes at which all is exact:",
            "    ckpttool scale-skip DIR --new-gbs N",
        ),
    )

    SINK_SIZE_CHANGED = Row(
        "sink-size-changed",
        weights=(SUSPECT, UNKNOWN),
        check="launch",
        group="Settings",
        headline="Other data sinks than in the run that saved, or none",
        meaning=(
            "With data sinking the checkpoint counts sinks, not steps; without, it counts epochs. With another sink "
            "size, or where sinks were switched on or off, the same number means another number of steps, and the "
            "training ends too early, or plans more than the data hold. With `sink_size: -1` each sink is the whole "
            "data set, so that from a save within an epoch the batches of that epoch are trained again."
        ),
        evidence=(
            "The old size is step_num / epoch_num inside the checkpoint, where that is the same in all saves of the "
            "run and in their names; else there were no sinks. The new one is in the config or --sink-size."
        ),
        trainers={
            "MindFormers": (
                "2 to 4 at step 40 of 200 trains 120 more steps instead of 160. Sinks of 2 switched on at step 27 of "
                '80 plan 23 steps too many: "Exception thrown from dataset pipeline" at the end of the data, exit 1, '
                "no last save."
            ),
        },
        to_do=("Keep runner_config.sink_mode and sink_size as they were, or correct runner_config.epochs.",),
    )

    EPOCH_COUNTER_SHIFTS = Row(
        "epoch-counter-shifts",
        weights=(NOTE, SUSPECT),
        check="launch",
        group="Settings",
        headline="MindFormers will be wrong about the epoch",
        meaning=(
            "After a change of the global batch size its counters of steps and of epochs (or sinks) no longer agree. A "
            "note where less than a sink is at stake, suspect where a whole epoch would be skipped."
        ),
        evidence="Both counters are computed as MindFormers does, and compared.",
        trainers={
            "MindFormers": "Takes a step that rounds to the end of an epoch for a finished epoch.",
        },
        to_do=("Choose a batch size at which both agree (the message names one), or raise runner_config.epochs.",),
    )

    CKPT_BESIDE_RANKS = Row(
        "ckpt-beside-ranks",
        weights=(SUSPECT,),
        check="launch",
        group="Starts",
        headline="A .ckpt beside the rank folders would be loaded instead",
        meaning=(
            "Somebody put weights (a best.ckpt, a merged file, a strategy file) into the folder that load_checkpoint "
            "names. Where the chosen checkpoint is of safetensors files, nothing is wrong."
        ),
        evidence=(
            "The names in the folder. Run with 1.3.2, 1.6.0, 1.8.0 and 2.1.0: all tensors were those of the further "
            "file, the data at the step of the one that resume_training named, exit 0."
        ),
        trainers={
            "MindFormers": (
                "Asks first whether the folder itself holds any name that ends in .ckpt; then it loads all of those "
                "into every rank, and takes only step, epoch and loss scale from the named file. A folder or a dead "
                "link of such a name stops it. With `auto_trans_ckpt: True` it takes the rank folders."
            ),
        },
        to_do=(
            "Move it to where no training looks:",
            "    mv output/checkpoint/best.ckpt output/",
        ),
    )

    PREFIX_HOLDS_RANK = Row(
        "prefix-holds-rank",
        weights=(SUSPECT,),
        check="launch",
        group="Starts",
        headline="The files' prefix holds a rank",
        meaning=(
            "In `my_rank_7_model_rank_0-15_2.ckpt` the first rank is a part of the prefix, but MindFormers takes it "
            "for the file's, and replaces it by each rank's own number."
        ),
        evidence="The name that MindFormers makes of rank 0's file is compared with the file that each rank has.",
        trainers={
            "MindFormers": (
                "Looks for `my_rank_1_model_rank_0-15_2.ckpt` on rank 1 and stops with FileNotFoundError. Saves under "
                "such a prefix are refused from 1.7 on."
            ),
        },
        to_do=(
            "Rename the files, here from my_rank_7_model to my_model, and meta.json after them:",
            "    for f in output/checkpoint/rank_*/my_rank_7_model_*; do",
            '      mv "$f" "${f%/*}/my_model_${f##*/my_rank_7_model_}"',
            "    done",
            "    ckpttool repair-meta output --apply",
        ),
    )

    OPTIMIZER_MISSING = Row(
        "optimizer-missing",
        weights=(NOTE, SUSPECT),
        check="launch",
        group="Starts",
        headline="The checkpoint holds no optimizer state",
        meaning=(
            "An iteration of the newer layout has model shards alone. With `no_save_optim: True` (or `save_optimizer: "
            "False`) that is meant; else the files got lost, and nothing else in the tree shows it."
        ),
        evidence=(
            "No file of the checkpoint is named PREFIX-opt-…, and its record, where it has one, names none. A note "
            "where the config says no_save_optim or no_load_optim."
        ),
        trainers={
            "MindFormers": (
                "Loads the weights and goes on at their step; the optimizer's moments stay as they were initialised, "
                "at zero (run with 2.1.0 on one card)."
            ),
        },
        to_do=(
            "Restore the -opt- files, or take it as it is:",
            "    ckpttool preflight --allow optimizer-missing …",
        ),
    )

    PATH_IS_PATTERN = Row(
        "path-is-pattern",
        weights=(SUSPECT,),
        check="launch",
        group="Starts",
        headline="A sign in the path of safetensors files makes it a pattern",
        meaning=(
            "The training would start, and not from this checkpoint. Files in the format ckpt are opened by their name "
            "and are not affected."
        ),
        evidence="The absolute path that a launch config would name, and the code of 1.6.0 to 2.1.0; run with 2.1.0.",
        trainers={
            "MindFormers": (
                "Passes the path to `glob`: `run[1]/` stands for `run1/`. Where that finds nothing, nothing is loaded "
                "and nothing is said: it trains from random weights, at the data position of the checkpoint."
            ),
        },
        to_do=(
            "Rename the folder, or go through a link:",
            "    ln -s 'run[1]/output' output",
            "    ckpttool launch output",
        ),
    )

    RANK_FOLDER_ON_ONE_DEVICE = Row(
        "rank-folder-on-one-device",
        weights=(SUSPECT,),
        check="launch",
        group="Starts",
        headline="One device cannot load safetensors from rank folders",
        meaning=(
            "A training without `use_parallel: True` can save such files but not resume from them, neither by the "
            "folder nor by the file. In the format ckpt, and in the newer layout, it can."
        ),
        evidence="The config, the layout and the code of 1.6.0 to 2.1.0; run with 1.8.0 and 2.1.0.",
        trainers={
            "MindFormers": "ValueError: when input checkpoint file is rank dir, Please set use_parallel: True",
        },
        to_do=(
            "Convert the shards into the format ckpt, and resume from there:",
            "    mkdir converted",
            "    python -c \"import mindspore as ms; ms.safetensors_to_ckpt('output/checkpoint', 'converted')\"",
            "    ckpttool preflight converted --config BASE.yaml",
        ),
    )

    FAULT_TOLERANCE_PICKS = Row(
        "fault-tolerance-picks",
        weights=(SUSPECT,),
        check="launch",
        group="Starts",
        headline="With MS_ENABLE_TFT MindFormers takes the newest file instead of the named one",
        meaning=(
            "Fault tolerance (TTP, UCE, ARF or HCCE in MS_ENABLE_TFT) is meant for a restart after its own save. "
            "Whatever else is resumed from, the checkpoint that was chosen here is not looked for."
        ),
        evidence=(
            "The environment of this ckpttool, the config, and the code of 1.6.0 to 2.1.0; the function was run with "
            "2.1.0. Start ckpttool with the environment of the training."
        ),
        trainers={
            "MindFormers": (
                "Ignores resume_training and asks every rank's folder for its last file; the newest modification time "
                "wins, whole or not."
            ),
        },
        to_do=(
            "Start this once without it:",
            "    unset MS_ENABLE_TFT",
        ),
    )

    REDUNDANCY_NOT_LOADABLE = Row(
        "redundancy-not-loadable",
        weights=(SUSPECT,),
        check="launch",
        group="Starts",
        headline="Data-parallel mode cannot load what was saved with remove_redundancy",
        meaning=(
            "Each rank's file holds a part of the tensors. To spread them again MindSpore needs the layout of a "
            "compiled network, and outside of (semi-)automatic parallelism none is compiled."
        ),
        evidence="The file's own `remove_redundancy`; where it says nothing, and for ckpt, the config's. Run.",
        trainers={
            "MindFormers": (
                "ValueError: When loading a parameter dict that has removed redundancy, the network should be compiled."
            ),
        },
        to_do=(
            "Resume from a checkpoint that was saved without, and save without:",
            "    ckpttool preflight DIR --config BASE.yaml --checkpoint NAME",
        ),
    )

    TRAINING_COMPLETE = Row(
        "training-complete",
        weights=(NOTE, SUSPECT),
        check="launch",
        group="Starts",
        headline="The checkpoint is the last one of a training that is done",
        meaning="As many epochs as the config asks for have been trained. There is nothing to resume.",
        evidence=(
            "The checkpoint's counters, as MindFormers scales them, and the batches of an epoch: from Megatron's "
            "`sizes`, from the line of that step in the training log beside the tree (`step:[n/N]`), or from file "
            "names (4_20 at step 80). If none of them tells, a note says at which length of an epoch the training is "
            "done. Elsewhere, the save's own step and epoch."
        ),
        trainers={
            "MindFormers": (
                "Does not end in good order: ValueError, the parameter 'epoch' must bigger than parameter "
                "'initial_epoch'."
            ),
            "Hugging Face's Trainer": "Ends with exit 0 after one step, or none.",
            "Lightning": "Ends with exit 0 without a step, or by MisconfigurationException.",
        },
        to_do=(
            "To train on, raise runner_config.epochs (MindFormers), max_steps or the epochs in the config.",
            (
                "If there are steps left, data sinks or the batch size are not as they were when it was saved: set "
                "them back."
            ),
            (
                "A note: look how many steps an epoch had, or put log/ or msrun_log/ beside the checkpoint folder and "
                "ask again."
            ),
        ),
    )

    SKIP_BEYOND_DATA = Row(
        "skip-beyond-data",
        weights=(SUSPECT,),
        check="launch",
        group="Starts",
        headline="More batches are skipped than all epochs have",
        meaning="The data position lies behind the end of the data, often after a skip around a spike near the end.",
        evidence=(
            "The plan's data_skip_steps, the config's epochs, and the batches of an epoch as for training-complete. "
            "Run with 2.1.0."
        ),
        trainers={
            "MindFormers": "Fails before the first step: reset step must be less than dataset_size * num_epochs.",
        },
        to_do=("Skip less, or raise runner_config.epochs to what the message says.",),
    )

    DATA_END_EARLY = Row(
        "data-end-early",
        weights=(NOTE,),
        check="launch",
        group="Starts",
        headline="The data end before the steps that MindFormers plans",
        meaning=(
            "After a skip around a spike the data are ahead of the steps, or the data set has shrunk. All is trained "
            "as it should be until the data end."
        ),
        evidence="Both are counted as MindFormers counts them, and were compared with runs of 2.1.0.",
        trainers={
            "MindFormers": (
                "Plans by the step, not by the data. At their end: Exception thrown from dataset pipeline, exit 1, and "
                "what was trained since the last save is lost. With other epochs both ends move together."
            ),
        },
        to_do=(
            "End it one step before, in good order, by a callback in BASE.yaml with the number of the message:",
            "    callbacks: [..., {type: TrainCallBack, stop_step: N}]",
        ),
    )

    ENDS_ELSEWHERE = Row(
        "ends-elsewhere",
        weights=(NOTE,),
        check="launch",
        group="Starts",
        headline="The run will end at another step than it would have",
        meaning=(
            "A run without sinks does not train the steps that are left but whole epochs. It ends elsewhere if the "
            "data begin anew, or elsewhere, in the middle of an epoch, and if the data set has grown or shrunk since "
            "the first epoch: from step 50 of 80, with 20 batches an epoch that became 30, it ends at step 90 of 120. "
            "The new size is known only if the config tells it (Megatron's `sizes`); else the message says for which "
            "size the end is right."
        ),
        evidence="Steps and data are counted as MindFormers counts them, and were compared with runs of 2.1.0.",
        trainers={
            "MindFormers": (
                "Trains (epochs - epochs done) whole epochs: 60 steps from step 27 of 80. The learning rate stays "
                "where its schedule ends."
            ),
        },
        to_do=(
            "End it where it should, by a callback in BASE.yaml with the number of the message:",
            "    callbacks: [..., {type: TrainCallBack, stop_step: N}]",
        ),
    )

    RESLICING_PICKS = Row(
        "reslicing-picks",
        weights=(SUSPECT,),
        check="launch",
        group="Starts",
        headline="Re-slicing .ckpt files takes another one than the named",
        meaning=(
            "With `auto_trans_ckpt: True` the weights would be those of another save, while step, epoch and data "
            "position are those of the named one. Safetensors are re-sliced by the named file's label: not affected."
        ),
        evidence=(
            "The names in the ranks' folders, the config, and the code of MindFormers 1.3.2 to 2.1.0 and of MindSpore "
            "2.7.2 and 2.10.0. Names are compared as text: -5_2 comes after -15_2."
        ),
        trainers={
            "MindFormers": (
                "Hands the folder to mindspore.transform_checkpoints, which takes the last name of each rank's folder; "
                "with transform_process_num or transform_by_rank the newest modification time."
            ),
        },
        to_do=(
            "Copy the checkpoint's files, each into its rank_N/, to a folder of their own, then:",
            "    ckpttool preflight FOLDER --config BASE.yaml",
        ),
    )

    RESLICING_STOPS = Row(
        "reslicing-stops",
        weights=(SUSPECT,),
        check="launch",
        group="Starts",
        headline="Re-slicing .ckpt files ends on what lies beside the rank folders",
        meaning=(
            "With `auto_trans_ckpt: True` the start ends. Without it, and with safetensors, such names do no harm."
        ),
        evidence="The names beside the ranks' folders, the config, and the code of MindFormers 1.3.2 to 2.1.0.",
        trainers={
            "MindFormers": (
                "Lists rank_*, makes a number of what follows the last _ of each name, which ends in a ValueError for "
                "rank_0_bak, and wants these to be 0, 1, 2 and so on, else: The rank_4 folder was not found."
            ),
        },
        to_do=(
            "Move what is no rank's folder elsewhere:",
            "    mv output/checkpoint/rank_0_bak output/",
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

    ONLY_SAVES_STRATEGY = Row(
        "only-saves-strategy",
        weights=(SUSPECT,),
        group="Rules about configs",
        headline="The config compiles, writes strategy files and trains nothing",
        meaning=(
            "`only_save_strategy: True` is meant for preparing a change of the parallel sizes. A job with it ends "
            "after minutes with exit code 0 and looks like a success."
        ),
        evidence=(
            "The settings are compared with what the code of MindFormers 1.6 to 2.1 does with them; the line is given."
        ),
        trainers={
            "MindFormers": "Leaves with exit code 0; in the newer layout it stops with a ValueError.",
        },
        to_do=(
            "Write `only_save_strategy: False`, then:",
            "    ckpttool lint-config BASE.yaml",
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

    MICRO_BATCHES_FEW = Row(
        "micro-batches-few",
        weights=(SUSPECT,),
        group="Rules about configs",
        headline="There are fewer micro batches than pipeline stages",
        meaning="Each stage needs a micro batch to work on; MindSpore accepts no fewer.",
        evidence="`micro_batch_num` is compared with `pipeline_stage`, where automatic parallelism counts them.",
        trainers={
            "MindFormers": (
                "Passes both on; MindSpore stops while it compiles, when all nodes have been waiting for minutes."
            ),
        },
        to_do=(
            "Raise `micro_batch_num`. The global batch size grows with it, so count the data anew:",
            "    ckpttool lint-config BASE.yaml",
        ),
    )

    DATA_STRATEGY_MISSING = Row(
        "data-strategy-missing",
        weights=(SUSPECT,),
        group="Rules about configs",
        headline="The batch is to be sliced, but nothing says how",
        meaning="With `full_batch: False` each input needs its slices in `dataset_strategy`.",
        evidence=(
            "The settings are compared with what the code of MindFormers 1.6 to 2.1 does with them; the line is given."
        ),
        trainers={
            "MindFormers": (
                "1.6 and later stop with a ValueError; 1.3.2 and older count every device as a data-parallel one."
            ),
        },
        to_do=(
            "Write `dataset_strategy: [[data_parallel, 1], …]`, a pair for each input, under `parallel:`.",
            "    ckpttool lint-config BASE.yaml",
        ),
    )

    EXCLUSIVE_SWITCHES = Row(
        "exclusive-switches",
        weights=(SUSPECT,),
        group="Rules about configs",
        headline="Two switches are on that exclude each other",
        meaning=(
            "Skipping data by the global norm cannot be on together with `check_for_global_norm`, nor in 1.9 and later "
            "with anything under `health_checkpoint:`, which the health monitor fills."
        ),
        evidence=(
            "As MindFormers' own code of 1.8 to 2.1 answered when it was run with these settings; the line is given."
        ),
        trainers={
            "MindFormers": (
                "Fails at the end of the first step, with a ValueError or, where the threshold was forgotten, a "
                "TypeError: after the checkpoint was loaded and the model compiled."
            ),
        },
        to_do=(
            "Decide for one of them, then:",
            "    ckpttool lint-config BASE.yaml",
        ),
    )

    SKIP_NEEDS_CLIP_GRAD = Row(
        "skip-needs-clip-grad",
        weights=(SUSPECT,),
        group="Rules about configs",
        headline="Data shall be skipped by a norm that is not computed",
        meaning=(
            "The global norm is a by-product of clipping the gradients. Without `use_clip_grad: True` in "
            "`runner_wrapper:` there is none, and the documentation does not say so."
        ),
        evidence=(
            "The settings are compared with what the code of MindFormers 1.6 to 2.1 does with them; the line is given."
        ),
        trainers={
            "MindFormers": "Compares None with the threshold, which fails while the first step is compiled.",
        },
        to_do=(
            "Write `use_clip_grad: True` under `runner_wrapper:`, then:",
            "    ckpttool lint-config BASE.yaml",
        ),
    )

    LOCAL_NORM_MISSING = Row(
        "local-norm-missing",
        weights=(NOTE, SUSPECT),
        group="Rules about configs",
        headline="A monitor needs the local norms, and they are off",
        meaning=(
            "The health monitor looks for the embedding among the local norms. Suspect with it; a note where data is "
            "only skipped, for then the documentation asks for them and the code does not."
        ),
        evidence=(
            "The settings are compared with what the code of MindFormers 1.6 to 2.1 does with them; the line is given."
        ),
        trainers={
            "MindFormers": "Fails at the first save with a ValueError that speaks of skipping data.",
        },
        to_do=(
            "Write `local_norm: True` under `runner_wrapper:`, then:",
            "    ckpttool lint-config BASE.yaml",
        ),
    )

    SKIP_UNWATCHED = Row(
        "skip-unwatched",
        weights=(SUSPECT,),
        group="Rules about configs",
        headline="Steps would be skipped without anybody noticing",
        meaning=(
            "Without `monitor_on: True` nothing counts skipped updates, logs them or stops the run: a training that "
            "has diverged goes on for days without learning."
        ),
        evidence=(
            "The settings are compared with what the code of MindFormers 1.6 to 2.1 does with them; the line is given."
        ),
        trainers={
            "MindFormers": (
                "Leaves the updates out on the device all the same. With `check_for_nan_in_loss_and_grad` it fails at "
                "the first step instead."
            ),
        },
        to_do=(
            "Write `monitor_on: True` under `monitor_config:`, then:",
            "    ckpttool lint-config BASE.yaml",
        ),
    )

    NORM_CHECK_OFF = Row(
        "norm-check-off",
        weights=(SUSPECT,),
        group="Rules about configs",
        headline="The run shall stop at a spike, but nothing looks",
        meaning=(
            "`check_for_global_norm`, or a threshold under `health_checkpoint:`, is read by a callback that is there "
            "only with `monitor_on: True`."
        ),
        evidence=(
            "The settings are compared with what the code of MindFormers 1.6 to 2.1 does with them; the line is given."
        ),
        trainers={
            "MindFormers": "Trains on through every spike without a word.",
        },
        to_do=(
            "Write `monitor_on: True` under `monitor_config:`, then:",
            "    ckpttool lint-config BASE.yaml",
        ),
    )

    THRESHOLD_NOT_FLOAT = Row(
        "threshold-not-float",
        weights=(SUSPECT,),
        group="Rules about configs",
        headline="A threshold is a whole number where a float is demanded",
        meaning="`3` and `3.0` are the same number to people, and two types to the check of the arguments.",
        evidence="The type that YAML makes of it is compared with the one that the code demands.",
        trainers={
            "MindFormers": "Stops with a TypeError when the model is wrapped.",
        },
        to_do=(
            "Write it with a point, as 3.0, then:",
            "    ckpttool lint-config BASE.yaml",
        ),
    )

    THRESHOLD_TOO_LOW = Row(
        "threshold-too-low",
        weights=(NOTE, SUSPECT),
        group="Rules about configs",
        headline="A threshold that every norm reaches",
        meaning=(
            "With a `global_norm_spike_threshold` of 0 or less every update is dropped, or the run stops at once; with "
            "an `embedding_local_norm_threshold` of 0 or less every save is recorded as unhealthy. A note where the "
            "second is not set although the health monitor is on: the default, 1.0, is far below what published runs "
            "measure."
        ),
        evidence='A norm is never below 0, and MindFormers compares with "greater or equal".',
        trainers={
            "MindFormers": "Says nothing: the run goes on with the weights that it began with.",
        },
        to_do=(
            "Take what this run's log shows:",
            "    ckpttool calibrate LOG",
        ),
    )

    SPIKE_COUNT_INVALID = Row(
        "spike-count-invalid",
        weights=(SUSPECT,),
        group="Rules about configs",
        headline="The number of spikes that stop a run is none",
        meaning=(
            "`global_norm_spike_count_threshold` counts skipped steps in a row; 0, negative numbers, fractions and "
            "text are no such count."
        ),
        evidence=(
            "As MindFormers' own code of 1.8 to 2.1 answered when it was run with these settings; the line is given."
        ),
        trainers={
            "MindFormers": "Stops with a TypeError when the callbacks are built.",
        },
        to_do=(
            "Write a whole number of at least 1; 10 is the default. Then:",
            "    ckpttool lint-config BASE.yaml",
        ),
    )

    SKIP_NAN_HOLE = Row(
        "skip-nan-hole",
        weights=(NOTE,),
        group="Rules about configs",
        headline="A run whose norms are NaN would go on for ever",
        meaning=(
            "NaN is not below the threshold, so the update is left out; it is not above it either, so the count starts "
            "anew and nothing is logged."
        ),
        evidence=(
            "The settings are compared with what the code of MindFormers 1.6 to 2.1 does with them; the line is given."
        ),
        trainers={
            "MindFormers": "Stops at NaN only with `check_for_nan_in_loss_and_grad: True`, a key of the top level.",
        },
        to_do=(
            "Write it. What a policy would have done over a log you have:",
            "    ckpttool replay LOG --policy skip",
        ),
    )

    SKIP_SEES_SOME_STEPS = Row(
        "skip-sees-some-steps",
        weights=(NOTE,),
        group="Rules about configs",
        headline="Spikes are counted once a sink, not once a step",
        meaning=(
            "The device looks at every batch, the count and the log at the last one of each sink. So ten in a row may "
            "be a hundred, or none at all."
        ),
        evidence="`sink_size` is above 1 with data sinking on.",
        trainers={
            "MindFormers": "Calls its callbacks at the end of a sink.",
        },
        to_do=(
            "Set `sink_size: 1` where the count shall mean steps, then:",
            "    ckpttool lint-config BASE.yaml",
        ),
    )

    HEALTH_NEEDS_STAGES = Row(
        "health-needs-stages",
        weights=(SUSPECT,),
        group="Rules about configs",
        headline="The health monitor would call every checkpoint healthy",
        meaning=(
            "It compares norms over the ranks of the first pipeline stage. Where there is one stage it skips that, and "
            "records 0, healthy, whatever the norm."
        ),
        evidence=(
            "The settings are compared with what the code of MindFormers 1.6 to 2.1 does with them; the line is given."
        ),
        trainers={
            "MindFormers": "Records health that was never measured, and later resumes by it.",
        },
        to_do=(
            "Switch it off, and judge by the log:",
            "    ckpttool health DIR --threshold X --log LOG",
        ),
    )

    HEALTH_NEEDS_SLICES = Row(
        "health-needs-slices",
        weights=(SUSPECT,),
        group="Rules about configs",
        headline="The health monitor is on with a full batch",
        meaning="It is documented for `full_batch: False` alone, and nothing checks that.",
        evidence="`parallel.full_batch` is not False; it is True where it is not set.",
        trainers={
            "MindFormers": "Says nothing.",
        },
        to_do=(
            "Write `full_batch: False` and a `dataset_strategy`, then:",
            "    ckpttool lint-config BASE.yaml",
        ),
    )

    HEALTH_NEEDS_MODEL_SIZE = Row(
        "health-needs-model-size",
        weights=(SUSPECT,),
        group="Rules about configs",
        headline="The health monitor is not told how large the embedding is",
        meaning="It finds the embedding's gradient by its number of elements, `hidden_size` times `vocab_size`.",
        evidence="One of them is missing in `model.model_config`, and no `pretrained_model_dir` could bring it.",
        trainers={
            "MindFormers": (
                "Stops with a ValueError after the model is built. A size that fits no gradient means healthy."
            ),
        },
        to_do=(
            "Write both under `model_config:`, then:",
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

    SAVE_FORMAT_DIFFERS = Row(
        "save-format-differs",
        weights=(NOTE,),
        group="Rules about configs",
        headline="What the run saves is not what it would load",
        meaning="`checkpoint_format` says how files are written, `load_ckpt_format` which are looked for.",
        evidence="Both are compared, with ckpt where they are not set.",
        trainers={
            "MindFormers": (
                "Rejects every meta.json that names a file of the other format, and finds nothing to resume."
            ),
        },
        to_do=(
            "A launch config has the right one:",
            "    ckpttool launch DIR --config BASE.yaml --output NEW.yaml",
        ),
    )

    REDUNDANCY_NEEDS_SAFETENSORS = Row(
        "redundancy-needs-safetensors",
        weights=(SUSPECT,),
        group="Rules about configs",
        headline="Redundancy can be removed in safetensors alone",
        meaning=(
            "`remove_redundancy: True` splits the parameters among data-parallel ranks, which `.ckpt` files cannot "
            "tell."
        ),
        evidence=(
            "The settings are compared with what the code of MindFormers 1.6 to 2.1 does with them; the line is given."
        ),
        trainers={
            "MindFormers": "Stops with a ValueError when the callbacks are built, after the model.",
        },
        to_do=(
            "Write `checkpoint_format: safetensors` beside it, then:",
            "    ckpttool lint-config BASE.yaml",
        ),
    )

    ASYNC_SAVE_LAGS = Row(
        "async-save-lags",
        weights=(NOTE,),
        group="Rules about configs",
        headline="The last save of a run would not be recorded",
        meaning="With `async_save` meta.json is written at a later step, and after the last save there is none.",
        evidence="`async_save: True` in the CheckpointMonitor of the rank_N layout.",
        trainers={
            "MindFormers": "By itself resumes from the checkpoint before, and does its steps again.",
        },
        to_do=(
            "Start the next run by the shards:",
            "    ckpttool launch DIR --config BASE.yaml --output NEW.yaml",
        ),
    )

    RESUME_BY_MTIME = Row(
        "resume-by-mtime",
        weights=(NOTE,),
        group="Rules about configs",
        headline="MindFormers is told to resume by modification times",
        meaning="A copy, a restore or a touch makes an old file the newest one, and each rank decides for itself.",
        evidence="`resume_by_last_timestamp_ckpt: True`.",
        trainers={
            "MindFormers": "Takes each rank's newest file, unless a file is named, as a launch config does.",
        },
        to_do=(
            "Write False, then:",
            "    ckpttool lint-config BASE.yaml",
        ),
    )

    YAML_ODD_NUMBER = Row(
        "yaml-odd-number",
        weights=(SUSPECT,),
        group="Rules about configs",
        headline="YAML reads another number than the file seems to say",
        meaning="In YAML 1.1 `010` is octal, eight; `1:30` is ninety.",
        evidence="The spelling in the file is compared with what PyYAML makes of it.",
        trainers={
            "MindFormers": "Gets the other number, and has no way to notice.",
        },
        to_do=(
            "Leave the zero out, or put it in quotes where text is meant. Then:",
            "    ckpttool lint-config BASE.yaml",
        ),
    )

    YAML_NONE_IS_TEXT = Row(
        "yaml-none-is-text",
        weights=(NOTE,),
        group="Rules about configs",
        headline="None stands where nothing seems to be meant",
        meaning="That is Python's word. To YAML it is a text of four letters; its own words are null and ~.",
        evidence="A value without quotes that is exactly None.",
        trainers={
            "MindFormers": "Takes it for a path, a name or True, as the key may be.",
        },
        to_do=(
            "Write null, or leave the value out. Then:",
            "    ckpttool lint-config BASE.yaml",
        ),
    )

    UNKNOWN_KEY = Row(
        "unknown-key",
        weights=(SUSPECT,),
        group="Rules about configs",
        headline="A strict section has a key that it does not know",
        meaning=(
            "In runner_config, parallel_config, recompute_config, swap_config, moe_config and monitor_config a "
            "misspelt key is an error, elsewhere it is ignored."
        ),
        evidence="The key is in no template of MindFormers 1.6.0 to 2.1.0.",
        trainers={
            "MindFormers": "Stops with a KeyError; 1.3.2 and older ignore it.",
        },
        to_do=(
            "Mend it; where a newer MindFormers knows it:",
            "    ckpttool lint-config BASE.yaml --allow unknown-key",
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

    RESUME_TRUE = Row(
        "resume-true",
        weights=(NOTE, SUSPECT),
        group="Rules about other trainers' configs",
        headline="The config names no save: the trainer looks for one by itself",
        meaning=(
            "Every trainer picks by a name, a number or a time, whatever is in the save, and never falls back to an "
            "older one: a torn newest stops every start, or is loaded."
        ),
        evidence="Read in the trainers' code, and run with damaged trees.",
        trainers={
            "Hugging Face's Trainer": (
                "`resume_from_checkpoint: true`, or axolotl's `auto_resume_from_checkpoints: true`: the highest "
                "checkpoint-N."
            ),
            "Lightning": (
                "`ckpt_path: last`: the `last*.ckpt` that was changed last. Where no ModelCheckpoint writes one it "
                "begins from scratch, with a warning: that weighs more."
            ),
            "Accelerate": (
                "`load_state()` with automatic naming: the highest number. That stands in a script, which is not read."
            ),
        },
        to_do=(
            "Write the path that this names:",
            "    ckpttool resolve DIR",
        ),
    )

    ONLY_MODEL_SAVED = Row(
        "only-model-saved",
        weights=(NOTE, SUSPECT),
        group="Rules about other trainers' configs",
        headline="Saves hold the model alone, and no training can go on from them",
        meaning="Without optimizer, schedule and random numbers a save is the result of a training, not a part of it.",
        evidence="By the config; the trainers' code and saves that they wrote say what they do with such a save.",
        trainers={
            "Hugging Face's Trainer": (
                "`save_only_model: true`: resumes from it without a word, with a fresh optimizer."
            ),
            "Lightning": "`save_weights_only: true`, where no other ModelCheckpoint saves all: stops with a KeyError.",
            "torchtitan": (
                "`last_save_model_only`, on by default since 0.2: only the last save of a finished run is such a one, "
                "and where the run is made longer it picks it and stops with a CheckpointException."
            ),
        },
        to_do=(
            "Switch it off for a training that may have to go on; else accept it:",
            "    ckpttool lint-config CONFIG --allow only-model-saved",
        ),
    )

    KEEPS_BEST_ALONE = Row(
        "keeps-best-alone",
        weights=(NOTE,),
        group="Rules about other trainers' configs",
        headline="Only the best saves are kept, not the newest",
        meaning=(
            "What is saved, or kept, goes by a metric. A run that stops goes on from a save that may be long before."
        ),
        evidence="By the config, and the trainers' code.",
        trainers={
            "Hugging Face's Trainer": "`save_strategy: best` saves only where the metric was never better.",
            "Lightning": (
                "ModelCheckpoint with `monitor` deletes the newest if it is not among the best. `save_last: true` does "
                "not help: with 2.6 last.ckpt is written with the best alone (a run of 24 steps left one of step 8)."
            ),
        },
        to_do=(
            (
                "Keep the newest too: `save_strategy: steps` with `load_best_model_at_end: true`; a second "
                "ModelCheckpoint without `monitor`. Then:"
            ),
            "    ckpttool lint-config CONFIG",
        ),
    )

    SAVES_NOTHING = Row(
        "saves-nothing",
        weights=(NOTE, SUSPECT),
        group="Rules about other trainers' configs",
        headline="No checkpoint will be saved at all",
        meaning="A run that stops begins from scratch.",
        evidence="By the config, and the trainers' code.",
        trainers={
            "Hugging Face's Trainer": (
                '`save_strategy: "no"`. Without quotes YAML makes it false, and Trainer stops with a ValueError.'
            ),
            "Lightning": "`enable_checkpointing: false`, or `save_top_k: 0` without `save_last`.",
            "torchtitan": (
                "`enable`, which is off where it is not set; the command line can still switch it on, so this is a "
                "note."
            ),
        },
        to_do=(
            "Switch it on; for a run that is meant so:",
            "    ckpttool lint-config CONFIG --allow saves-nothing",
        ),
    )

    UNIVERSAL_STAYS = Row(
        "universal-stays",
        weights=(NOTE,),
        group="Rules about other trainers' configs",
        headline="Every start goes back to the converted save",
        meaning=(
            "`checkpoint.load_universal` is meant for the one start after `ds_to_universal.py`. Where it stays, the "
            "saves made since then are passed over at every further start."
        ),
        evidence=(
            "Read in DeepSpeed 0.19.8: without a tag it goes by `latest_universal`, which only the converter writes."
        ),
        trainers={
            "DeepSpeed": (
                "Loads the converted save, without a word about newer ones; without that file it stops with a "
                "ValueError."
            ),
        },
        to_do=(
            "Set it to false once the first save after the conversion is whole:",
            "    ckpttool resolve DIR",
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
