"""All kinds of findings: a row for each code, with its severities, its check, the remedy, and the text of the manual.

This module has only the rows of the core. The rows of a trainer or a feature are in its own `findings.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from typing_extensions import Self


class Severity(IntEnum):
    """The severity of a finding; the order matters."""

    NOTE = 0
    """Worth knowing, but changes no verdict."""
    SUSPECT = 1
    """May be legal or damage; the shard is not counted as good."""
    UNKNOWN = 2
    """Could not be checked, or changed while it was checked; never counted as good."""
    DAMAGE = 3
    UNSAFE = 4
    """Refused, because it would be dangerous to read further."""

    @property
    def word(self) -> str:
        """The lower-case name in tables and JSON."""
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
    "Training in FP8",
    "Rules about configs",
    "Rules about other trainers' configs",
    "Rules about FP8",
    "Captures",
    "Exports",
    "Preflight",
]
"""The headings of the manual's page, in order."""


COMMAND = " " * 4
"""The prefix of a step that is a command, as in Markdown."""


class Row(str):
    """A kind of finding: its code, and the properties of every finding of this kind.

    A row is a string, its code, so that codes can be sorted and compared. Each row is a single object in every process,
    even after pickling.
    """

    __slots__ = (
        "affects_start",
        "check",
        "evidence",
        "group",
        "headline",
        "is_elsewhere",
        "leaves_open",
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
    """The code in JSON: `shard-empty`."""
    name: str
    """The code in Python: `SHARD_EMPTY`."""
    rows: Rows
    """The table that contains the row."""
    weights: tuple[Severity, ...]
    """All severities that such a finding can have, lightest first."""
    check: Literal["checkpoint", "health", "launch"]
    """The check under which preflight shows it."""
    may_be_allowed: bool
    """False if the user cannot accept it, because there is nothing to launch, or the number of devices is unknown."""
    taken_with: str | None
    """The option that chooses a checkpoint in spite of such a finding."""
    verdict: Literal["missing", "unstable", "unsupported"] | None
    """The verdict that such a finding requires; None for the verdict of its severity."""
    is_elsewhere: bool
    """Whether such a finding reports that other machines may have more files."""
    leaves_open: bool
    """Whether an unknown finding of this kind leaves a choice of `resolve` without an answer."""
    affects_start: bool
    """False if a rule about configs finds it, and it does not affect a start with a config that `launch` wrote."""
    remedy: str | None
    """The remedy for findings that have no remedy of their own."""
    group: Group
    """The heading in the manual."""
    headline: str
    """One line, no full stop."""
    meaning: str
    """The description of the finding."""
    evidence: str
    """The evidence by which ckpttool detects the problem."""
    trainers: Mapping[str, str]
    """The reaction of trainers, by title; empty if it is unknown or not applicable."""
    to_do: tuple[str, ...]
    """The remedy, one step each; a command begins with `COMMAND`."""

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
        leaves_open: bool = False,
        affects_start: bool = True,
        remedy: str | None = None,
        group: Group,
        headline: str,
        meaning: str,
        evidence: str,
        trainers: Mapping[str, str] | None = None,
        to_do: tuple[str, ...],
    ) -> Self:
        """Store the columns, which are described above."""
        row = super().__new__(cls, code)
        row.value = code
        row.weights = weights
        row.check = check
        row.may_be_allowed = may_be_allowed
        row.taken_with = taken_with
        row.verdict = verdict
        row.is_elsewhere = is_elsewhere
        row.leaves_open = leaves_open
        row.affects_start = affects_start
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
        """The remedy, one step per line, commands without indentation."""
        return tuple(step.removeprefix(COMMAND) for step in self.to_do)

    def __set_name__(self, rows: Rows, name: str) -> None:
        """Record the row's table and name."""
        self.rows, self.name = rows, name

    def __reduce__(self) -> tuple[Any, ...]:
        """Unpickle as the same object in another process."""
        return getattr, (self.rows, self.name)


class Rows(type):
    """The metaclass of classes of rows; it makes them iterable."""

    def __iter__(cls) -> Iterator[Row]:
        """Yield the rows in order; for a class that combines several classes, the rows of each."""
        for part in cls.__mro__:
            yield from (row for row in vars(part).values() if isinstance(row, Row))


_COPY = "if this file is a copy, copy it again; otherwise resume from another checkpoint"


class Code(metaclass=Rows):
    """The findings of the core.

    Scripts rely on the codes: codes may be added, but are never renamed.
    """

    RANK_MISSING = Row(
        "rank-missing",
        weights=(SUSPECT, UNKNOWN, DAMAGE),
        verdict="missing",
        group="Checkpoints",
        headline="A rank's folder is missing",
        meaning=(
            "Every rank saves into its own rank_N/ folder. One folder is missing, and with it that rank's part of "
            "the model and the optimizer in every checkpoint. The severity is unknown if another machine may have "
            "it: see one-node-only."
        ),
        evidence=(
            "The expected number of ranks comes from --world-size, else from --config, else from the highest rank in "
            "this run, in other runs in the tree or in the strategy files. The message names the source."
        ),
        trainers={
            "MindFormers": (
                "1.7 to 2.1 count the rank_ folders that exist, so losing the last rank silently reduces the world "
                "size; 1.6 and older stop with an error."
            ),
        },
        to_do=(
            "Restore the folder from that node's disk, or let resolve choose an older checkpoint.",
            "If the run really had fewer ranks, give the number of ranks:",
            "    ckpttool resolve DIR --world-size N",
        ),
    )

    ONE_NODE_ONLY = Row(
        "one-node-only",
        weights=(NOTE, UNKNOWN),
        is_elsewhere=True,
        group="Checkpoints",
        headline="Only one machine's ranks are visible",
        meaning=(
            "If each machine saves to a local disk, its tree lacks the files of other machines (for example, it has "
            "ranks 0 and 1 of 4), or only looks complete. The exit code is 14, never 11. `scan` and `verify` report "
            "a note."
        ),
        evidence=(
            "A launcher names several machines, or more ranks than are visible (SLURM_JOB_NUM_NODES, SLURM_NNODES, "
            "OMPI_COMM_WORLD_SIZE, WORLD_SIZE, MS_WORKER_NUM), or the folders are one machine's share of the ranks "
            "in --world-size, --config or --devices. In addition, /proc/self/mountinfo shows a file system that "
            "other machines do not see, or an unknown one."
        ),
        trainers={
            "MindFormers": (
                "With local disks each rank loads its own newest file, and nothing compares their steps. If the "
                "config names a checkpoint, every machine loads it from its own disk."
            ),
        },
        to_do=(
            "Record each machine's files, and resolve all the records:",
            "    srun --ntasks-per-node=1 ckpttool part DIR --out /shared/parts/",
            "    ckpttool resolve /shared/parts/",
            "If all ranks are visible here, give the number of ranks, or accept the finding:",
            "    ckpttool resolve DIR --world-size N",
            "    ckpttool preflight DIR --config BASE.yaml --allow one-node-only",
        ),
    )

    SHARD_MISSING = Row(
        "shard-missing",
        weights=(NOTE, SUSPECT, DAMAGE),
        verdict="missing",
        remedy="restore it from that rank's disk or from a copy, or resume from an older checkpoint",
        group="Checkpoints",
        headline="A rank has no file for this checkpoint",
        meaning=(
            "The other ranks saved this step. This rank did not, or its file was deleted. Without it the "
            "checkpoint cannot be loaded as it is."
        ),
        evidence=(
            "The files of all ranks are compared; in the newer layout also with metadata.json, in unified "
            "checkpoints with param_name_map.json."
        ),
        trainers={
            "MindFormers": (
                "With `resume_training: True` it falls back to an older step of the same run if there is one, "
                "otherwise it stops; it never falls back across runs. If the config names a checkpoint, it loads "
                "without checking, and that rank fails later."
            ),
        },
        to_do=(
            "Restore the file from that rank's disk, or use the checkpoint that resolve chooses:",
            "    ckpttool resolve DIR",
        ),
    )

    SHARD_ELSEWHERE = Row(
        "shard-elsewhere",
        weights=(NOTE, SUSPECT, UNKNOWN, DAMAGE),
        verdict="missing",
        group="Checkpoints",
        headline="A rank's file is in another folder, or on another machine",
        meaning=(
            "The file name contains one rank, but the file is in another rank's folder of the same save, and the "
            "rank in the name has no other file. Or the rank will start on one machine, and its file is on another: "
            "suspect if both would start it, a note if none says so. Or a machine lacks a file that all machines "
            "read (`.metadata`, `trainer_state.json`, `latest`); unknown if it lacks only slices of other ranks, or "
            "has only older checkpoints."
        ),
        evidence=(
            "The rank in the file name is compared with the rank of the folder. A copy of the rank's own file is "
            "only a note. `ckpttool part --ranks A-B` records which ranks start on a machine."
        ),
        trainers={
            "MindFormers": (
                "Each rank reads only its own rank_N/. If only one folder exists, it counts one rank and starts with "
                "that."
            ),
        },
        to_do=(
            "Move each file to the folder of the rank in its name:",
            "    mkdir -p rank_1 && mv rank_0/NAME_rank_1-* rank_1/",
            "If the run really had fewer ranks, give the number of ranks:",
            "    ckpttool resolve DIR --world-size N",
            "If the file is on another machine, copy it to the machine where the rank will start, as the finding says:",
            "    rsync -asR -- HOST:DIR/./rank_1/FILE DIR/",
        ),
    )

    ENTRIES_MISSING = Row(
        "entries-missing",
        weights=(SUSPECT, DAMAGE),
        remedy=_COPY,
        group="Checkpoints",
        headline="The file contains fewer tensors than it should",
        meaning=(
            "Tensors that the same rank saved at another step are missing, or an archive contains fewer tensors than "
            "its directory or data.pkl lists (a failed torch.save leaves a file without one). A .ckpt that was "
            "truncated between two tensors is otherwise a valid file."
        ),
        evidence="Tensor names are compared with those of the same rank at another step.",
        trainers={
            "MindFormers": "Loads it silently, and missing tensors keep their initial values.",
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
        headline="The file differs in structure from related files",
        meaning=(
            "All files of a training run are written by one program with one configuration. The tensors, types, "
            "shapes or free text of this file differ from the same rank's file at another step; its batch size or "
            "loss scale differs from that of the other ranks; or its end equals that of another rank's file. Either "
            "a bit flipped, or the file belongs to another rank or run."
        ),
        evidence=(
            "The header and last page are compared with those of related files; the number of files that agree "
            "decides the severity. A sealed header is trusted, and a damaged file is not evidence. If two "
            "checkpoints contradict each other and there is no other evidence, the severity is unknown. If every "
            "byte was read and another checkpoint's tensors are known, the files of two ranks are compared tensor by "
            "tensor: if they are equal in this checkpoint but had different slices in the other, one is a copy of "
            "the other."
        ),
        trainers={
            "MindFormers": "Does not compare them; even a wrong shape of the same size loads.",
        },
        to_do=(
            (
                "Find out which file is wrong (`ckpttool diff FILE OTHER` compares their headers), then name the "
                "checkpoint to use:"
            ),
            "    ckpttool resolve DIR --checkpoint NAME",
        ),
    )

    SCALARS_MISSING = Row(
        "scalars-missing",
        weights=(DAMAGE,),
        group="Checkpoints",
        headline="The file lacks the training state for a resume",
        meaning=(
            "MindFormers appends epoch, step, optimizer step and loss scale to each rank's file. If they are "
            "missing, the file was truncated exactly at the end of a tensor, or it contains only weights."
        ),
        evidence=(
            "The entries are looked up in the file (newer layout: in common.json, unified: in "
            "hyper_param.safetensors), and compared with those of other ranks."
        ),
        trainers={
            "MindFormers": (
                "Loads a truncated .ckpt silently and starts at step 0 in the middle of the data; in the newer and "
                "the unified layout it stops with a TypeError or KeyError."
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
        headline="A file's name contradicts its content or its folder",
        meaning=(
            "The epoch in the name differs from the epoch in the file, the suffix belongs to the other format, or "
            "the file of one rank is in another rank's folder. The file was renamed or copied."
        ),
        evidence="The format comes from the header, the epoch from the entry epoch_num, and the rank from the folder.",
        trainers={
            "MindFormers": "Chooses by name without opening a file. With a wrong suffix, the load fails.",
        },
        to_do=(
            "Undo the copy or the rename if you know which it was.",
            "Otherwise use another checkpoint:",
            "    ckpttool resolve DIR",
        ),
    )

    STEP_DISAGREES = Row(
        "step-disagrees",
        weights=(NOTE, SUSPECT, UNKNOWN, DAMAGE),
        group="Checkpoints",
        headline="Ranks of one checkpoint were saved at different steps",
        meaning=(
            "step_num or global_step in one rank's file differs from the other ranks, because an older file has a "
            "newer name or two saves are mixed. Resuming would mix two states of the model. If a record gives the "
            "step of the complete save and the name gives another step, the record is used. If all other names agree "
            "with their records, the checkpoint is a copy under another name, or contains files of two checkpoints, "
            "and it is not chosen."
        ),
        evidence=(
            "step_num and global_step are read from every rank's file; the majority counts. In the newer layout "
            "common.json is compared with the folder name."
        ),
        trainers={
            "MindFormers": (
                "Does not compare the steps: up to 1.7, all ranks use the step of rank 0; later versions may start "
                "ranks at different steps."
            ),
        },
        to_do=(
            "Do not resume from it. Choose another checkpoint:",
            "    ckpttool resolve DIR",
        ),
    )

    STEP_UNKNOWN = Row(
        "step-unknown",
        weights=(NOTE, UNKNOWN),
        group="Checkpoints",
        headline="The step of this checkpoint is unknown",
        meaning=(
            "The true step is recorded inside the files, and no file of this checkpoint contains it. The name is not "
            "enough: without data sinking, the numbers in names restart after a resume, and a number in a folder "
            "name may be a model size or a date. It is a note if the name gives the step but the checkpoints of the "
            "tree do not all follow one naming pattern: then prune, seal and repair do not change this checkpoint. "
            "It is also a note if only the name gives the step of verl's newest save."
        ),
        evidence="The files of the lowest ranks were opened, and none contains a step.",
        trainers={
            "MindFormers": "Uses 0 for a missing step.",
        },
        to_do=(
            (
                "If the run was never resumed, its names can be trusted. Give the sink size, or the steps per epoch "
                "if there is no sinking:"
            ),
            "    ckpttool resolve DIR --sink-size N",
        ),
    )

    WORLD_SIZE_DIFFERS = Row(
        "world-size-differs",
        weights=(NOTE, SUSPECT, DAMAGE),
        group="Checkpoints",
        headline="The number of ranks is not the expected one",
        meaning=(
            "A note if a later run continued with more or fewer ranks, which counts as intended, or if --world-size "
            "has no effect because these files are not arranged by rank. Suspect if a checkpoint has more ranks than "
            "--world-size or the config states. Damage if one folder mixes two world sizes."
        ),
        evidence=(
            "Ranks with files are compared with --world-size, the config, other runs in the tree and strategy files."
        ),
        trainers={
            "MindFormers": (
                "1.7 to 2.1 count files left by a larger run as ranks of this run, and then silently resume from the "
                "old run. Resharding to another world size needs auto_trans_ckpt."
            ),
        },
        to_do=(
            "If ranks of the newest run are lost, or the number is wrong, give the number:",
            "    ckpttool resolve DIR --world-size N",
            "To continue with a different number of ranks on purpose, set auto_trans_ckpt: True in the config.",
        ),
    )

    WORLD_SIZE_REFUSED = Row(
        "world-size-refused",
        weights=(SUSPECT,),
        check="launch",
        group="Checkpoints",
        headline="The checkpoint's state does not load on the requested number of ranks",
        meaning=(
            "The checkpoint is intact, but its state was saved for other sizes and its trainer cannot reshard it. "
            "It is skipped, because it would stop the start. It is not damaged."
        ),
        evidence=(
            "The sizes recorded in the save are compared with --world-size, --tp, --pp and --dp, or with those of "
            "the config."
        ),
        trainers={
            "DeepSpeed": (
                "ZeRORuntimeException with ZeRO, unless ds_to_universal.py made a universal checkpoint of it; "
                "stage 0 loads."
            ),
            "Megatron-LM": (
                "Another tensor or pipeline size is an error in the legacy format, and with a distributed "
                "optimizer that was not saved fully reshardable. Other data-parallel sizes load."
            ),
            "SkyRL": "The file names contain the number of ranks: a FileNotFoundError.",
            "torchtitan": (
                "The data loader is not resharded: an AssertionError on fewer ranks, a CheckpointException on more."
            ),
            "verl": (
                "The file names contain the number of ranks, and verl searches only for names with the current number."
            ),
        },
        to_do=(
            "Start with the sizes in the message.",
            "Or convert it with the trainer's own tool: ckpttool never rewrites weights.",
        ),
    )

    RUN_MIXED = Row(
        "run-mixed",
        weights=(NOTE, SUSPECT, UNKNOWN),
        group="Checkpoints",
        headline="Checkpoints of several training runs are in one folder",
        meaning=(
            "The file names have different prefixes, or the logs in the checkpoints contradict each other, so two "
            "training runs saved here. Only you know which one to continue: no command chooses one, and prune "
            "deletes none. It is a note if one of them left only a few stray files, which are ignored, or if "
            "--config saves under one of the prefixes, which is then used."
        ),
        evidence=(
            "The part of the names before _rank_N differs. For Hugging Face's Trainer, two trainer_state.json files "
            "have different losses at the same steps of their log_history, which a resumed run copies unchanged."
        ),
        trainers={
            "MindFormers": "Uses the prefix of the first rank with a meta.json.",
        },
        to_do=(
            "Name the training run to resume:",
            "    ckpttool resolve DIR --prefix NAME",
        ),
    )

    RUN_REWOUND = Row(
        "run-rewound",
        weights=(NOTE,),
        group="Checkpoints",
        headline="A later run restarted from a point before the end of an earlier run",
        meaning=(
            "The training was restarted from an older checkpoint and has not caught up yet. The higher steps of the "
            "earlier run are an abandoned branch: their numbers are higher, but they are older."
        ),
        evidence=(
            "A later run (suffix _1, _2, …) has seen fewer samples than an earlier one. Samples are step times "
            "global batch size, because MindFormers rescales steps if the batch size changes. In the newer layout, "
            "the tracker was written after the iterations beyond it, or, if the file times do not show this, several "
            "intact iterations are beyond it."
        ),
        trainers={
            "MindFormers": "Follows meta.json, which the later run wrote last.",
        },
        to_do=(
            "Nothing, if this was intended. To return to the abandoned branch, name its checkpoint:",
            "    ckpttool resolve DIR --checkpoint NAME",
        ),
    )

    ABANDONED_BRANCH = Row(
        "abandoned-branch",
        weights=(SUSPECT, UNKNOWN),
        group="Checkpoints",
        headline="The training continued from an earlier checkpoint than this one",
        meaning=(
            "Its step is higher than that of the newest run, but it belongs to a branch that was abandoned, often "
            "because of a loss spike. It may be intact, but it is never chosen automatically. If there is no other "
            "checkpoint, the answer is unknown (exit 14), because the record may be wrong."
        ),
        evidence=(
            "A run that started later has seen fewer samples (step times global batch size), or repeated this "
            "checkpoint's steps; in the newer layout, the tracker was written later than this checkpoint but names "
            "an earlier one."
        ),
        trainers={
            "MindFormers": "Does not detect branches; its choice depends on meta.json and on names.",
        },
        to_do=(
            "To use this checkpoint, name it:",
            "    ckpttool resolve DIR --checkpoint NAME",
        ),
    )

    TIMES_DISAGREE = Row(
        "times-disagree",
        weights=(NOTE, SUSPECT),
        group="Checkpoints",
        headline="Files of two runs may have the same name",
        meaning=(
            "Each rank counts its restarts by the files in its own folder. If a rank lost its files, or stopped "
            "during its first save, it gives the files of a later run the names that the other ranks used in an "
            "earlier run."
        ),
        evidence=(
            "Orbax records when a checkpoint was committed: a checkpoint committed before another one with a lower "
            "step is a copy, or belongs to an earlier run. For other trainers, the other ranks have this save twice, "
            "from two runs; this rank has it once, and its file was written while the other ranks wrote the later one. "
            "Or ranks disagree about the run, and their files were written more than an hour apart. Copying can change "
            "file times, so this is a suspicion, not proof. If the hour is the only evidence, it is a note."
        ),
        trainers={
            "MindFormers": "Loads by name, and trains with weights from two runs.",
        },
        to_do=(
            "If the time differs only because the file was copied later, name the checkpoint:",
            "    ckpttool resolve DIR --checkpoint NAME",
        ),
    )

    NEEDS_RENAMES = Row(
        "needs-renames",
        weights=(SUSPECT,),
        group="Checkpoints",
        headline="Intact on every rank, but under different names",
        meaning=(
            "Each rank counts its restarts by the files in its own folder. A replaced node starts with an empty "
            "folder, so its files lack the suffix (_1, _2) of the other ranks' files at the same step."
        ),
        evidence="The true step inside the files is equal on every rank; only the suffix differs.",
        trainers={
            "MindFormers": "Uses one name for all ranks and stops, because it finds no checkpoint to resume.",
        },
        to_do=(
            "List the renames, apply them, and resume:",
            "    ckpttool resolve DIR --allow-renames",
            "Without this option, the next checkpoint that needs no renames is chosen.",
        ),
    )

    DUPLICATE_CHECKPOINT = Row(
        "duplicate-checkpoint",
        weights=(SUSPECT, UNKNOWN),
        group="Checkpoints",
        headline="A checkpoint is a copy of another one under another name",
        meaning=(
            "A checkpoint was copied (cp -r 10 99), and the number of the copy does not show the progress of the "
            "training. The copy is not chosen automatically; prune does not count it as a good checkpoint and does "
            "not delete it."
        ),
        evidence=(
            "Both have the same commit time, or the same checksums and data position. The copy is the one whose "
            "number does not fit the order of the others; if the order does not decide, neither is chosen (exit 14)."
        ),
        trainers={
            "MindFormers": "Reads only files of the configured load_ckpt_format.",
        },
        to_do=(
            "Name the checkpoint to use:",
            "    ckpttool resolve DIR --checkpoint NAME",
        ),
    )

    NOT_LOADABLE = Row(
        "not-loadable",
        weights=(UNKNOWN,),
        group="Checkpoints",
        headline="ckpttool does not know how the trainer loads this checkpoint",
        meaning=(
            "The files may be intact, but ckpttool does not know which settings make the trainer load this "
            "checkpoint, so it cannot choose it. An older checkpoint that can be loaded is chosen. Without such a "
            "checkpoint, the exit code is 14, not 11, because there may be a checkpoint to resume from."
        ),
        evidence="ckpttool's code for this layout reports it, with the reason.",
        to_do=(
            "Check whether it is intact, and load it as described in the trainer's manual:",
            "    ckpttool verify DIR --checkpoint NAME",
        ),
    )

    WEIGHTS_ONLY = Row(
        "weights-only",
        weights=(SUSPECT,),
        taken_with="--allow-weights-only",
        group="Checkpoints",
        headline="The checkpoint contains weights and no optimizer state, by design",
        meaning=(
            "Nothing is damaged: the trainer was configured to save only the model, or does so at the end of a run. "
            "A run that resumes from it re-initializes its optimizer, with some trainers silently."
        ),
        evidence="The save's own records list no optimizer state, and this is how its trainer saves only weights.",
        to_do=(
            "Resume from an older, complete checkpoint, as `resolve` does.",
            "To fine-tune from the weights, allow it explicitly:",
            "    ckpttool resolve DIR --allow-weights-only",
        ),
    )

    RANKS_TO_RESTORE = Row(
        "ranks-to-restore",
        weights=(NOTE,),
        group="Checkpoints",
        headline="Only some ranks prevent the newest checkpoint from being loaded",
        meaning=(
            "There is no checkpoint in the tree to resume from, but all problems of the newest checkpoint (or of every "
            "one) are on a few ranks, often one disk or node. With good shards of those ranks it is intact."
        ),
        evidence=(
            "All problems of the checkpoint concern shards of these ranks. At level structure the other ranks' "
            "shards were opened; at higher levels they were not read, and the message says so."
        ),
        to_do=(
            "Restore those ranks' shards from their disks or from a copy, then run again:",
            "    ckpttool resolve DIR",
        ),
    )

    CAN_BE_HEALED = Row(
        "can-be-healed",
        weights=(NOTE,),
        group="Checkpoints",
        headline="A newer checkpoint lacks shards that can be rebuilt from other ranks",
        meaning=(
            "A checkpoint was skipped because shards are missing or damaged, but other ranks saved the same tensors. "
            "`repair shards` rebuilds those shards, so the steps since the older checkpoint need not be redone."
        ),
        evidence=(
            "If the amount of data is small, it was read, and each shard has a proven copy. Otherwise, headers and "
            "the ends of files at another checkpoint indicate a rank with the same content; then the repair is "
            "possible but not certain."
        ),
        to_do=(
            "Check the evidence for the copies, then apply the repair:",
            "    ckpttool repair shards DIR --checkpoint NAME",
            "    ckpttool repair shards DIR --checkpoint NAME --apply",
        ),
    )

    HEALED = Row(
        "healed",
        weights=(NOTE,),
        group="Checkpoints",
        headline="A shard was rebuilt from another rank's copy",
        meaning="The file is not the one that the training saved: `repair shards` wrote it from another rank's copy.",
        evidence=(
            "The manifest of the checkpoint has an entry `healed` for the file. It records the donor rank, the "
            "proof, the evidence and the time."
        ),
        to_do=(
            "Nothing. To check that it has not changed since:",
            "    ckpttool verify DIR --checkpoint NAME --level checksum",
        ),
    )

    SHARD_EMPTY = Row(
        "shard-empty",
        weights=(DAMAGE,),
        remedy=_COPY,
        group="Shards",
        headline="The file is empty",
        meaning=(
            "The file was created, but its content never reached the disk: a full disk, a killed save, or a power "
            "failure up to 40 seconds after MindSpore reported the save as done."
        ),
        evidence="The file has size 0.",
        trainers={
            "MindFormers": (
                "Chooses by name without opening a file, so it chooses this file, and the load fails or reads "
                "wrong values."
            ),
        },
        to_do=(
            "Look for a copy on another rank:",
            "    ckpttool repair DIR",
            "Or resume from the newest intact checkpoint:",
            "    ckpttool resolve DIR",
        ),
    )

    SHARD_TRUNCATED = Row(
        "shard-truncated",
        weights=(DAMAGE,),
        remedy=_COPY,
        group="Shards",
        headline="The file is truncated",
        meaning="The header promises more bytes than the file has: the save or a copy was interrupted.",
        evidence="The header's offsets (safetensors) or record lengths (.ckpt) are compared with the file size.",
        trainers={
            "MindFormers": (
                "Chooses by name without opening a file, so it chooses this file, and the load fails or reads "
                "wrong values."
            ),
        },
        to_do=(
            "Copy it again from its rank's disk if it is a copy.",
            "Look for a copy on another rank:",
            "    ckpttool repair DIR",
            "Or resume from the newest intact checkpoint:",
            "    ckpttool resolve DIR",
        ),
    )

    SHARD_ZEROED = Row(
        "shard-zeroed",
        weights=(DAMAGE,),
        remedy=_COPY,
        group="Shards",
        headline="The file has its full size, but zeros instead of a header",
        meaning=(
            "The space was allocated but never written. This is typical of a power failure seconds after MindSpore "
            "reported the save as done, because MindSpore does not sync its files."
        ),
        evidence="The first bytes of the file are all zero.",
        trainers={
            "MindFormers": (
                "Chooses by name without opening a file, so it chooses this file, and the load fails or reads "
                "wrong values."
            ),
        },
        to_do=(
            "Look for a copy on another rank:",
            "    ckpttool repair DIR",
            "Or resume from the newest intact checkpoint:",
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
            "The header is valid, but after some byte the file contains only zeros instead of records. The end of "
            "the file was lost in a power failure, or a copy padded it."
        ),
        evidence=(
            "After its last valid record, a .ckpt contains only zeros. Suspect if the last page of data is zero and "
            "the last page of related files is not, because an optimizer moment may legitimately be zero."
        ),
        trainers={
            "MindFormers": (
                "MindSpore fails to load such a .ckpt. A safetensors file with a zeroed end loads silently, with "
                "weights of 0."
            ),
        },
        to_do=(
            "Look for a copy on another rank:",
            "    ckpttool repair DIR",
            "Or resume from the newest intact checkpoint:",
            "    ckpttool resolve DIR",
        ),
    )

    HEADER_INVALID = Row(
        "header-invalid",
        weights=(DAMAGE,),
        remedy=_COPY,
        group="Shards",
        headline="The file's header is invalid",
        meaning="The file does not have the expected format, or bits of its header flipped.",
        evidence=(
            "Every field is checked strictly: lengths, JSON without duplicate keys, known types, and for each "
            "tensor shape x type = bytes. In torch zip files each record must have the size that data.pkl states."
        ),
        trainers={
            "MindFormers": (
                "MindSpore's loader accepts many of these, and crashes for 1.5 % of flipped header bits, so ckpttool "
                "reads headers itself."
            ),
        },
        to_do=(
            "Do not try to load it.",
            "Look for a copy on another rank:",
            "    ckpttool repair DIR",
            "Or resume from the newest intact checkpoint:",
            "    ckpttool resolve DIR",
        ),
    )

    HEADER_NOT_CANONICAL = Row(
        "header-not-canonical",
        weights=(NOTE,),
        group="Shards",
        headline="The header is valid, but not as safetensors or MindSpore writes it",
        meaning=(
            "Order, spacing or padding differ from the output of the libraries. Another tool may have written the "
            "file, or one bit flipped and the JSON is still valid."
        ),
        evidence="The header is compared with the form that the libraries write.",
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
        headline="Tensors overlap or leave gaps in the file",
        meaning=(
            "The file records where each tensor, or each record of a zip archive, begins and ends. These places must "
            "follow each other without an overlap or a gap. They do not, so at least one tensor is read from the "
            "wrong bytes."
        ),
        evidence=(
            "All offsets of the safetensors header, or of the directory of the zip archive (torch), are compared."
        ),
        trainers={
            "MindFormers": "The load fails after the file was chosen.",
        },
        to_do=(
            "Look for a copy on another rank:",
            "    ckpttool repair DIR",
            "Or resume from the newest intact checkpoint:",
            "    ckpttool resolve DIR",
        ),
    )

    TRAILING_BYTES = Row(
        "trailing-bytes",
        weights=(SUSPECT, DAMAGE),
        remedy=_COPY,
        group="Shards",
        headline="The file continues after its last tensor",
        meaning=(
            "Some bytes belong to no tensor: a longer file was overwritten, two files were joined, or garbage "
            "was appended."
        ),
        evidence="The end of the last tensor is compared with the file size.",
        trainers={
            "MindFormers": "The load fails after the file was chosen.",
        },
        to_do=(
            "Look for a copy on another rank:",
            "    ckpttool repair DIR",
            "Or resume from the newest intact checkpoint:",
            "    ckpttool resolve DIR",
        ),
    )

    CHECKSUM_MISMATCH = Row(
        "checksum-mismatch",
        weights=(NOTE, DAMAGE),
        remedy=_COPY,
        group="Shards",
        headline="The content does not match its checksum",
        meaning=(
            "A checksum was recorded, and the content differs: bits flipped on the way to the disk, on the disk, "
            "or in a copy. Loaders would not notice."
        ),
        evidence=(
            "verify --level checksum reads every byte and compares it with the manifest, or with the CRC that "
            "MindSpore or torch stored in the file."
        ),
        trainers={
            "MindFormers": "Never writes or checks a checksum; a flipped bit in a tensor loads silently.",
        },
        to_do=(
            "Do not resume from it. Choose another checkpoint:",
            "    ckpttool resolve DIR",
        ),
    )

    FOUND_DAMAGED = Row(
        "found-damaged",
        weights=(UNKNOWN, DAMAGE),
        group="Shards",
        headline="An earlier check found this file damaged",
        meaning=(
            "A check that read every byte found damage, such as content that does not match its checksum, and the file "
            "has not changed since. A check of only the headers would report it as good."
        ),
        evidence=(
            "verify --level checksum and seal record damaged files in the user's cache, with size, time and inode. "
            "The entry is removed when the file is rewritten, sealed in its current state, or passes the same check. "
            "Unknown if the file was touched since but has the same size and time, because a copy into it may have "
            "repaired it. Unusual values are not recorded: --level numerics reports them as suspect, and a mask that "
            "intentionally contains -inf must not exclude every checkpoint of its model from resolve. resolve "
            "--level numerics checks them."
        ),
        trainers={
            "MindFormers": "Never writes or checks a checksum; a flipped bit in a tensor loads silently.",
        },
        to_do=(
            "Do not resume from it. To check it again:",
            "    ckpttool verify --level checksum DIR",
        ),
    )

    CHANGED_SINCE_SEAL = Row(
        "changed-since-seal",
        weights=(NOTE,),
        group="Shards",
        headline="The file was written or copied after its seal",
        meaning=(
            "The file's time is later than its seal. Its size and its header match the seal, but its content may "
            "differ: something wrote into it, or it was copied without its time."
        ),
        evidence=(
            "Checks that read no content compare the file's time with the time of the manifest. Differences of up to "
            "10 seconds are ignored, because the clocks of two machines differ."
        ),
        trainers={
            "MindFormers": "Never compares a file with a checksum; changed content loads silently.",
        },
        to_do=(
            "Compare the content with the seal:",
            "    ckpttool verify --level checksum DIR",
            "To copy a checkpoint with its times, use cp -p or rsync -t.",
        ),
    )

    CHECKSUM_MISSING = Row(
        "checksum-missing",
        weights=(NOTE, SUSPECT),
        group="Shards",
        headline="The file has no checksum to compare with",
        meaning=(
            "The structure is valid, but no checksum was recorded when the file was saved. A flipped bit in tensor "
            "data, which is more than 99 % of a file, cannot be detected."
        ),
        evidence=(
            "verify --level checksum looked for a manifest and for a CRC inside the file. Suspect if related files "
            "have a CRC, because the end of this file may have been cut off."
        ),
        trainers={
            "MindFormers": "Never writes or checks a checksum.",
        },
        to_do=(
            "Record checksums now, so that later damage is detected:",
            "    ckpttool seal DIR",
        ),
    )

    NONFINITE_VALUES = Row(
        "nonfinite-values",
        weights=(NOTE, SUSPECT),
        group="Shards",
        headline="Tensors contain NaN or infinity",
        meaning="The file may be intact: the training may have diverged before this save.",
        evidence="verify --level numerics reads every element of every floating-point tensor.",
        trainers={
            "MindFormers": "Loads it; the first loss is NaN.",
        },
        to_do=(
            "Resume from a checkpoint before the divergence:",
            "    ckpttool resolve DIR --checkpoint NAME",
        ),
    )

    ALL_ZERO_TENSOR = Row(
        "all-zero-tensor",
        weights=(SUSPECT,),
        group="Shards",
        headline="A tensor consists of zeros",
        meaning=(
            "Zeros are normal for an optimizer moment that was never updated. For a weight matrix they indicate a "
            "lost write."
        ),
        evidence="verify --level numerics reads every element; the previous checkpoint had other values there.",
        trainers={
            "MindFormers": "Loads it silently.",
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
        headline="A tensor's norm differs greatly from the previous checkpoint",
        meaning=(
            "Weights change slowly from save to save. A jump means that the training diverged, or that bits flipped."
        ),
        evidence=(
            "verify --level numerics compares each tensor's L2 norm with the previous checkpoint; --jump sets the "
            "factor."
        ),
        trainers={
            "MindFormers": "Loads it silently.",
        },
        to_do=(
            "Check the loss around that step, or resume from before it:",
            "    ckpttool resolve DIR --checkpoint NAME",
        ),
    )

    REPLICA_DIFFERS = Row(
        "replica-differs",
        weights=(NOTE, SUSPECT, DAMAGE),
        group="Shards",
        headline="A tensor differs from this rank's replicas",
        meaning=(
            "In data-parallel training, several ranks save the same tensors. One rank's copy differs: bits flipped, "
            "or a page was lost. Damage if at least three other copies agree with each other, if two do and there "
            "are only three copies, or if a checksum, NaN or a jump of the norm decides between two. Suspect if only "
            "two agree while another copy is lost, damaged or rebuilt, because both may have the same damage. If "
            "there is no evidence to decide between two copies, or the copies split evenly, all of them are suspect. "
            "A note if no other checkpoint shows whether the ranks should be equal."
        ),
        evidence=(
            "Levels checksum and numerics compute a digest of every tensor. ckpttool never guesses from shapes which "
            "ranks have the same slice: the save's own record shows it, or the ranks were equal at other checkpoints "
            "and changed together."
        ),
        trainers={
            "MindFormers": (
                "Each rank loads its own file without comparing, so the ranks train with different weights."
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
        headline="Most tensors differ from this rank's replicas",
        meaning=(
            "The file's training scalars agree with its name, but most of its tensors differ from the ranks that "
            "were equal at other checkpoints. It is a file of an earlier run, another branch or another rank under "
            "this name, or its device has computed wrong values since. If it is a copy of a known file, the message "
            "says so."
        ),
        evidence=(
            "As for replica-differs: digests of every tensor, compared with the replicas and with other checkpoints."
        ),
        trainers={
            "MindFormers": "Loads it silently.",
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
        headline="A rank's copy differs from one checkpoint on",
        meaning=(
            "Replicas were equal up to one checkpoint, and one of them differs at the next and at every later one. "
            "No file was damaged; the training saved these values. The rank's device computed wrong values in "
            "between (silent data corruption), or a gradient was not reduced over all ranks."
        ),
        evidence=(
            "Digests of the tensors at several checkpoints are compared; the message names the last checkpoint at "
            "which they agreed and the first at which they did not. More verified or sealed checkpoints narrow it "
            "down. verify records the finding in the user's cache. After that, scan, resolve and health also report "
            "it for each later save of the run, without reading the files, because the error stays in the weights. "
            "The entry is removed when the file is rewritten, or agrees again."
        ),
        to_do=(
            "Resume from an earlier checkpoint, and have the rank's device tested before it trains again:",
            "    ckpttool resolve DIR --before STEP",
            "If there is no earlier checkpoint, accept this one:",
            "    ckpttool resolve DIR --ignore-health",
        ),
    )

    UNSUPPORTED_FORMAT = Row(
        "unsupported-format",
        weights=(UNKNOWN,),
        verdict="unsupported",
        group="Shards",
        headline="A format that ckpttool does not check",
        meaning=(
            "A torch file has a name that MindSpore uses, or a .ckpt contains data that MindFormers never writes "
            "(encrypted data, or an unknown tensor type). Whether it is intact is unknown. At level numerics, also "
            "every other torch file: its bytes are verified, its values are not checked."
        ),
        evidence="The format is determined from the first bytes, never from the suffix.",
        trainers={
            "MindFormers": "Chooses the file by name, and the load fails.",
        },
        to_do=(
            "Move the file away if it does not belong here, or use another checkpoint:",
            "    ckpttool resolve DIR",
        ),
    )

    UNSAFE_PICKLE = Row(
        "unsafe-pickle",
        weights=(NOTE, UNSAFE),
        group="Shards",
        headline="Loading this file runs code, or may run code",
        meaning=(
            "A pickle names functions, and torch.load calls them unless weights_only is set. Unsafe if the pickle "
            "names a function that runs programs or code, or hides its names; no tensor needs that. A note if it "
            "names custom classes (as files of Megatron and DeepSpeed do), whose effect is unknown."
        ),
        evidence=(
            "Every opcode of data.pkl in a zip file, or of a bare pickle, is read, and nothing is executed. Names "
            "are compared with those of tensors and plain values; everything else in Python's standard library "
            "counts as unsafe, and so does any function in training libraries that loads files or runs code. An "
            "attribute of a custom class (a bound method, a nested class) is a note; a computed attribute is unsafe."
        ),
        to_do=(
            "If it is unsafe, do not load it anywhere, and find out who put it there.",
            "If it is a note, load it with weights_only=True, or only if you trust its author.",
        ),
    )

    OVER_LIMIT = Row(
        "over-limit",
        weights=(UNSAFE,),
        group="Shards",
        headline="Larger than anything a trainer writes",
        meaning=(
            "A header, a count or a nesting depth exceeds a limit that protects memory and time. No real checkpoint "
            "comes near these limits, so the file is damaged or malicious."
        ),
        evidence="Lengths are checked before anything is allocated or read.",
        to_do=(
            "Check where the file came from, and use another checkpoint:",
            "    ckpttool resolve DIR",
        ),
    )

    META_UNREADABLE = Row(
        "meta-unreadable",
        weights=(NOTE, SUSPECT, UNKNOWN, DAMAGE),
        group="Records",
        headline="A record of the trainer cannot be read",
        meaning=(
            "meta.json, common.json, metadata.json or param_name_map.json is damaged, empty, has wrong types or no "
            "read permission. A note for meta.json, which is only a hint; damage for the others, which are required "
            "for loading. prune deletes nothing while a record cannot be read, because it may name a checkpoint to "
            "delete."
        ),
        evidence="JSON is parsed strictly: a duplicate key, NaN, or text for a number is an error.",
        trainers={
            "MindFormers": (
                "Skips a broken meta.json and uses those of the other ranks. If no rank has a valid one, 1.6 to 2.1 "
                "stop with a TypeError for safetensors. A broken common.json stops it."
            ),
            "OLMo-core": "Checks only that .metadata.json exists.",
        },
        to_do=(
            "For meta.json, nothing. For the others, resume from another checkpoint:",
            "    ckpttool resolve DIR",
        ),
    )

    TRACKER_DISAGREES = Row(
        "tracker-disagrees",
        weights=(NOTE,),
        group="Records",
        headline="The tracker file does not name the newest iteration",
        meaning=(
            "latest_checkpointed_iteration.txt is missing, empty, damaged or out of date, or names a missing "
            "iteration. It is written last and not atomically, so a killed save leaves it in this state."
        ),
        evidence="It is compared with the iteration_* folders.",
        trainers={
            "MindFormers": "Follows the tracker or stops with an error; it never falls back to an older iteration.",
        },
        to_do=(
            "For a start that follows the tracker, point it at the newest intact iteration:",
            "    ckpttool repair pointer DIR",
            "A config that names the iteration's folder needs no tracker:",
            "    ckpttool launch DIR --config BASE.yaml --output NEW.yaml",
        ),
    )

    METADATA_INCOMPLETE = Row(
        "metadata-incomplete",
        weights=(SUSPECT, UNKNOWN, DAMAGE),
        group="Records",
        headline="A record that this checkpoint needs is missing",
        meaning=(
            "There is no common.json (step, loss scale), no metadata.json (which file contains which slice), or no "
            "param_name_map.json. Most often the save is incomplete."
        ),
        evidence="The file is not in the checkpoint's folder.",
        trainers={
            "MindFormers": (
                "Without common.json, it stops. Without metadata.json, 1.7 to 2.1 accept any folder with a single "
                "safetensors file, even if half of the shards are missing."
            ),
        },
        to_do=(
            "Resume from an iteration whose save is complete:",
            "    ckpttool resolve DIR",
        ),
    )

    UNCOMMITTED_SAVE = Row(
        "uncommitted-save",
        weights=(NOTE, UNKNOWN, DAMAGE),
        group="Records",
        headline="The save is incomplete",
        meaning=(
            "Trainers that write many files per save write a last file that marks the others as complete. This file "
            "is missing, or does not cover the others: a crash interrupted the save, or the save is still in "
            "progress. Unknown if the file cannot be read."
        ),
        evidence=(
            "Only this last file counts: intact shards without it prove nothing, because the trainer does not load "
            "them either."
        ),
        to_do=(
            "An older checkpoint is chosen. If a save is in progress, wait for it and run again.",
            "If no training is running, the incomplete save is of no use: move it away.",
        ),
    )

    MARKED_UNHEALTHY = Row(
        "marked-unhealthy",
        weights=(NOTE, SUSPECT),
        check="health",
        taken_with="--ignore-health",
        group="Records",
        headline="The trainer recorded this checkpoint as unhealthy",
        meaning=(
            "When it was saved, the embedding's gradient norm was above the threshold: the training was about to "
            "diverge, or had started to."
        ),
        evidence=(
            "health_ckpts.json has is_health 1 for its file name (the worst entry counts); in the newer layout "
            "common.json has ckpt_status 1."
        ),
        trainers={
            "MindFormers": (
                "1.6 to 2.1 never skip it in the rank_N layout, because the test is inverted. In the newer layout, "
                "1.9 and later skip it."
            ),
        },
        to_do=(
            "An older, healthy checkpoint is chosen. To use this one anyway:",
            "    ckpttool resolve DIR --ignore-health",
        ),
    )

    MARKED_BAD = Row(
        "marked-bad",
        weights=(NOTE, SUSPECT),
        check="health",
        taken_with="--ignore-health",
        group="Records",
        headline="A person or a supervisor marked this checkpoint as bad",
        meaning=(
            "ckpttool mark recorded that no run should resume from this checkpoint. Its files may be intact: scan and "
            "verify only note the mark, and prune does not count the checkpoint as good."
        ),
        evidence=(
            "The newest mark of the checkpoint, in .ckpttool/marks of the tree. It counts while the files are those "
            "that were marked, by their sizes and times or, if the times differ, by samples of their content."
        ),
        to_do=(
            "An older checkpoint is chosen. To remove the mark:",
            "    ckpttool mark NAME DIR --clear",
            "To choose the checkpoint once, in spite of the mark:",
            "    ckpttool resolve DIR --checkpoint NAME --ignore-health",
        ),
    )

    MARKED_GOOD = Row(
        "marked-good",
        weights=(NOTE,),
        check="health",
        group="Records",
        headline="A person marked this checkpoint as healthy",
        meaning=(
            "The mark counts as a healthy record, also in place of an unhealthy record of the trainer. It does not "
            "make damage intact, and the training log, if a threshold is given, still counts against the checkpoint."
        ),
        evidence=(
            "The newest mark of the checkpoint, in .ckpttool/marks of the tree, while the files are those that were "
            "marked."
        ),
        to_do=(
            "Nothing, unless the mark is wrong. To remove it:",
            "    ckpttool mark NAME DIR --clear",
        ),
    )

    HEALTH_UNKNOWN = Row(
        "health-unknown",
        weights=(NOTE, SUSPECT, UNKNOWN),
        check="health",
        group="Records",
        headline="The health of the checkpoint is unknown",
        meaning=(
            "A checkpoint that was not measured does not count as healthy. The monitor was off, or the entry is "
            "missing. A note, unless --require-health requires a record, or a watch with --threshold waits for the "
            "log."
        ),
        evidence=(
            "No entry in health_ckpts.json (newer layout: ckpt_status is null); with --health-threshold, no norm "
            "in the log at its save."
        ),
        trainers={
            "MindFormers": (
                "Never filters by health in the rank_N layout. In the newer layout (1.9 and later), a checkpoint "
                "without a record counts as unhealthy."
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
            "health_ckpts.json is damaged, has wrong types or no read permission. The health of its checkpoints is "
            "therefore unknown, and unknown does not count as healthy."
        ),
        evidence="The JSON is parsed strictly; if an entry is invalid, the health of its checkpoint is unknown.",
        to_do=(
            "Give an undamaged copy:",
            "    ckpttool resolve DIR --health-file FILE",
        ),
    )

    HEALTH_UNHEARD = Row(
        "health-unheard",
        weights=(UNKNOWN,),
        check="health",
        group="Records",
        headline="A health file that the answer needs could not be read",
        meaning=(
            "The file in --health-file is not a health file; or health_ckpts.json is truncated, as after a run that "
            "was killed while writing it, or larger than any such record. Its last entries are about the newest "
            "saves, so the chosen checkpoint may be recorded there as unhealthy. The exit code is 14, and `launch` "
            "writes nothing."
        ),
        evidence=(
            "The file is read strictly, up to 64 MiB. Entries before the damage count: a checkpoint recorded as "
            "unhealthy stays unhealthy. If a log or the save itself shows the health of the chosen checkpoint, a "
            "damaged file that you did not name is not needed."
        ),
        to_do=(
            "Give an undamaged copy, or accept unknown health:",
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
            "The entry is written before the weights and never removed, so the save failed, or the checkpoint was "
            "pruned later. Or the file belongs to another tree."
        ),
        evidence="Every name is looked up among the checkpoints of rank 0.",
        trainers={
            "MindFormers": "Counts such an entry as proof that a healthy checkpoint exists.",
        },
        to_do=(
            "Nothing, unless no entry names an existing checkpoint: then it is the wrong file. Check this with:",
            "    ckpttool scan DIR --health-file FILE",
        ),
    )

    MANIFEST_UNREADABLE = Row(
        "manifest-unreadable",
        weights=(UNKNOWN,),
        group="Records",
        headline="The manifest of checksums cannot be trusted",
        meaning=(
            "The file that `ckpttool seal` wrote, or the birth certificate that `ckpttool.checkpoint_writer` wrote "
            "with a shard, is damaged, edited, unreadable, or belongs to another checkpoint. The shards may be "
            "intact, but there is no longer any proof of it."
        ),
        evidence="A manifest ends with the hash of everything before it; every changed bit is detected.",
        to_do=(
            "Restore the manifest from a copy. Without one, check the shards and record them again:",
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
            "This version of ckpttool does not support the manifest's format, so nothing was compared with it. The "
            "manifest is never overwritten, not even by --reseal."
        ),
        evidence="The version is stated at the beginning of the manifest.",
        to_do=("Verify with the version of ckpttool that sealed the checkpoint, or update ckpttool.",),
    )

    STRAY_FILE = Row(
        "stray-file",
        weights=(NOTE,),
        group="Files",
        headline="The file or folder is not part of any checkpoint",
        meaning=(
            "A backup folder such as rank_0_bak, weights without optimizer state, notes, or any other file that is "
            "not named like a checkpoint of MindFormers. It is listed but never counted."
        ),
        evidence="The complete name is compared with the trainer's patterns.",
        trainers={
            "MindFormers": (
                "1.7 to 2.1 count every name that begins with rank_ as a rank, and stop because the last one is 'not "
                "found'. A network file copied into rank_0/ is even chosen."
            ),
        },
        to_do=("Move it out of the folder if MindFormers is to resume on its own; a launch config is not affected.",),
    )

    STRAY_TAKES_OVER = Row(
        "stray-takes-over",
        weights=(NOTE, SUSPECT),
        group="Files",
        headline="The trainer would mistake another file or folder for the newest checkpoint",
        meaning=(
            "A copy, a backup or a note has a name that the trainer's own search mistakes for a save. If the start "
            "leaves the choice to the trainer, the trainer loads it, or stops with an error. ckpttool names a "
            "checkpoint, so such a name usually does not affect its launch."
        ),
        evidence="The trainer's own naming rule is applied to the folder.",
        trainers={
            "torchtitan": (
                "Finds step-N in any name: a copy step-300.bak makes every start fail with FileNotFoundError on "
                "step-300."
            ),
            "Lightning": "Loads the file last*.ckpt that was written last, whatever it contains.",
        },
        to_do=(
            (
                "Move it out of the folder. If the finding is suspect, do so before the start, because the trainer "
                "opens the file even if a checkpoint is named."
            ),
        ),
    )

    IN_PROGRESS = Row(
        "in-progress",
        weights=(NOTE, UNKNOWN),
        group="Files",
        headline="A temporary file: a save is in progress, or was interrupted",
        meaning=(
            "MindSpore writes NAME.tmp and renames it. If no training runs here, the save was interrupted, and the "
            "file can be deleted. `prune` and `repair pointer` change nothing and report unknown while such a file "
            "exists, while a shard is younger than --grace, or while a prune is running."
        ),
        evidence="The name ends in .tmp, or has the form that Python gives to temporary files.",
        trainers={
            "MindFormers": "Ignores it.",
        },
        to_do=(
            "If training is running, check again when the save has ended:",
            "    ckpttool scan DIR",
        ),
    )

    CHANGED_WHILE_READING = Row(
        "changed-while-reading",
        weights=(UNKNOWN,),
        verdict="unstable",
        group="Files",
        headline="The file changed or disappeared while it was read",
        meaning="A save or a prune is in progress. The part that was read proves nothing and does not count as good.",
        evidence="Size, time and inode before and after differ, twice in a row.",
        to_do=(
            "Run it again when nothing is writing to this folder:",
            "    ckpttool resolve DIR",
        ),
    )

    UNREADABLE = Row(
        "unreadable",
        weights=(UNKNOWN,),
        group="Files",
        headline="The file could not be read, so its state is unknown",
        meaning=(
            "There is no read permission (MindFormers writes shards with mode 0400), the disk reported an error, or "
            "a link is dangling or circular, for example because its disk is not mounted. Or a store did not answer, "
            "refused, or violated its protocol. Unknown never counts as good, and never as proof that there is no "
            "checkpoint to resume from."
        ),
        evidence="The operating system or the store refused; the message says why.",
        trainers={
            "MindFormers": "Fails in the same way, unless it runs as another user.",
        },
        to_do=(
            (
                "Run as the user of the training, or with credentials that may list and read; mount the target of "
                "a link; after an I/O error check the disk first:"
            ),
            "    ckpttool scan DIR",
        ),
    )

    NOT_A_REGULAR_FILE = Row(
        "not-a-regular-file",
        weights=(NOTE, DAMAGE, UNSAFE),
        group="Files",
        headline="A folder, FIFO or device has the name of a shard",
        meaning=(
            "A regular file is expected. A folder is damage; a FIFO or a device could block a reader forever, so "
            "it is refused."
        ),
        evidence=(
            "The operating system reports the kind; nothing was opened. Links to regular files are followed; a "
            "dangling one is unreadable."
        ),
        trainers={
            "MindFormers": "Checks only names, so it may even choose a folder.",
        },
        to_do=(
            "Restore the file, or repair the link, or use another checkpoint:",
            "    ckpttool resolve DIR",
        ),
    )

    UNSAFE_NAME = Row(
        "unsafe-name",
        weights=(UNSAFE,),
        group="Files",
        headline="A record names a file outside its folder",
        meaning=(
            "In the record, a file name contains a slash, `..`, control characters or a NUL. It was not followed. No "
            "trainer writes that."
        ),
        evidence="Every name read from a file is checked before it is used.",
        to_do=("Find out who wrote that record before you start MindFormers on this folder.",),
    )

    CONFIG_DISAGREES = Row(
        "config-disagrees",
        weights=(NOTE, SUSPECT),
        check="launch",
        group="Settings",
        headline="The config does not fit the checkpoint, or contradicts itself",
        meaning=(
            "Layout, file format, ranks, batch size or sink size differ from those of the checkpoint. A note if "
            "`ckpttool launch` corrects it or if it has no effect, otherwise suspect."
        ),
        evidence="The config is compared with the content of the checkpoint's files.",
        trainers={
            "MindFormers": "Fails at the load, finds no checkpoint, or trains from a different step than it should.",
        },
        to_do=(
            "Correct the base config as the message says, then:",
            "    ckpttool launch DIR --config BASE.yaml --output NEW.yaml",
        ),
    )

    DEVICES_UNKNOWN = Row(
        "devices-unknown",
        weights=(UNKNOWN,),
        check="launch",
        may_be_allowed=False,
        group="Starts",
        headline="The number of devices to start is unknown",
        meaning=(
            "The config starts as many ranks as there are devices, and all ranks load the same weights. Neither "
            "gives the number of devices for a launch, or its batch size."
        ),
        evidence=(
            "The config states no effective parallel sizes (data-parallel mode, or they are in another file), and "
            "no rank has files of its own."
        ),
        to_do=("Give the number: --devices N to preflight, --devices-per-node N to launch.",),
    )

    START_DIFFERS = Row(
        "start-differs",
        weights=(NOTE, SUSPECT),
        group="Starts",
        headline="This start does not resume from the chosen checkpoint",
        meaning=(
            "With the current config, trackers and file names, the start loads another save, stops, or starts at "
            "step 0; or it loads the right save, but the data resumes at another position. `preflight` checks the "
            "start as configured, `launch` the config that it would write."
        ),
        evidence=(
            "From the simulation of `resolve --simulate own`, and from settings in the config such as "
            "`load_checkpoint`, `resume_from_checkpoint`, `ckpt_path` or `load_step`."
        ),
        trainers={
            "MindFormers": (
                "An empty `load_checkpoint`, or `resume_training: False`, starts at step 0 without an error. With "
                "`resume_training: True` it loads the newest name that all ranks have, without opening a shard."
            ),
        },
        to_do=(
            "MindFormers: start with the config that launch writes:",
            "    ckpttool launch DIR --config BASE.yaml --output NEW.yaml",
            (
                "For a trainer that follows a tracker (DeepSpeed, Megatron-LM, verl, SkyRL, MindFormers), point it at "
                "the chosen save:"
            ),
            "    ckpttool repair pointer DIR --apply",
            "For any other trainer, name the save as the answer shows.",
            (
                "If the start gets its checkpoint elsewhere, for example on its command line, accept the finding: "
                "--allow start-differs."
            ),
        ),
    )

    START_UNKNOWN = Row(
        "start-unknown",
        weights=(NOTE, UNKNOWN),
        group="Starts",
        headline="The checkpoint that this start would load is unknown",
        meaning=(
            "The start was not checked: the trainer uses a config that was not given, or the training script "
            "decides. It is a note if only the script decides: then go applies to a start that loads the chosen "
            "checkpoint."
        ),
        evidence=(
            "No --config was given, the config leaves the choice to the script, or the trainer has no rule for "
            "choosing a checkpoint."
        ),
        to_do=(
            "Give the config:",
            "    ckpttool preflight DIR --config BASE.yaml",
            "Name the save in the config, or in the script.",
            "If the start gets its checkpoint elsewhere, accept the finding: --allow start-unknown.",
        ),
    )

    DATA_RESTARTS = Row(
        "data-restarts",
        weights=(NOTE, SUSPECT),
        check="launch",
        group="Data",
        headline="The data restarts while the steps continue",
        meaning=(
            "The trainer loads weights, optimizer and counters, but no data position: it reads the same data again, "
            "and the rest of this epoch is never read."
        ),
        evidence="From the data-loader state in the save, and from runs of the trainer.",
        trainers={
            "Lightning": (
                "A plain DataLoader reads the first batches of the epoch again (with a fixed generator, those of "
                "epoch 0) and never the last ones, because the batch counter continues (2.6, run)."
            ),
            "Hugging Face's Trainer": "With `ignore_data_skip: true` the epoch is read from its beginning.",
            "torchtitan": (
                "With `dataloader` in `exclude_from_loading` every start reads the data from the beginning."
            ),
            "OLMo-core": "`load_trainer_state: false`: a start from `load_path` reads them from the beginning.",
            "Composer": "With `spin_dataloaders: false` an epoch is read from its beginning.",
        },
        to_do=(
            "For future saves, use a data loader that saves its position, if the trainer stores it.",
            "For this save, skip the samples already read in the script: the answer gives their number.",
            "Or accept that some samples are seen twice.",
        ),
    )

    DATA_REORDERED = Row(
        "data-reordered",
        weights=(NOTE,),
        check="launch",
        group="Data",
        headline="The data resumes in another order",
        meaning=(
            "The number of skipped samples equals the number read, but with the requested sizes they are not the "
            "same samples: some are read twice and some never."
        ),
        evidence="From the trainer's own rule for resuming, applied to the requested sizes.",
        trainers={
            "Megatron-LM": (
                "With --train-iters the sample index is built for another number of samples, and shuffled differently."
            ),
            "torchtitan": (
                "Each data-parallel rank resumes exactly in its own data; another batch size mixes them differently."
            ),
            "verl": "data.pt counts batches of the old size.",
        },
        to_do=("If the order matters, resume with the sizes of the save: the answer names them if they are known.",),
    )

    DATA_MISPLACED = Row(
        "data-misplaced",
        weights=(SUSPECT,),
        check="launch",
        group="Data",
        headline="The data resumes at a different position",
        meaning=(
            "The trainer saves no data position. It computes one from the step, with the batch size of the next "
            "run, so another size skips samples or reads some again. The answer says how many."
        ),
        evidence=(
            "From the trainer's own rule, in whole numbers: the computed position is compared with the samples "
            "that were read."
        ),
        trainers={
            "Hugging Face's Trainer": (
                "Skips as many batches of the new size as steps were done, epoch by epoch: after 12 steps of 4 "
                "samples a resume with 8 skipped 48 (transformers 4.57 and 5.23, run)."
            ),
        },
        to_do=(
            (
                "Keep the samples per step unchanged: the answer names such sizes. The same product of batch, "
                "accumulation and ranks works too."
            ),
            "Or accept it, if a few repeated or skipped samples do not matter.",
        ),
    )

    DATA_POSITION_BACK = Row(
        "data-position-back",
        weights=(SUSPECT,),
        remedy="compare both saves with ckpttool inspect; with the same data set, resume from the save before this one",
        group="Data",
        headline="The data position is before that of the previous save",
        meaning=(
            "The state of a data loader in this save is at an earlier batch than in the previous save of the run, "
            "although the step is later. A resume from it reads data again, or the previous save skipped some. "
            "Nothing in the model is damaged. A new epoch is not such a case, and neither is another data set or "
            "order, if the state shows it."
        ),
        evidence=(
            "The states of both saves are read as plain values; nothing is unpickled. Only positions that never go "
            "back in a run are compared: samples of the complete run, or the batch together with an epoch."
        ),
        to_do=(
            "Compare the positions of both saves:",
            "    ckpttool inspect DIR:NAME",
            "If the data set was not changed on purpose, resume from the newest save before the jump.",
        ),
    )

    DATA_POSITION_STILL = Row(
        "data-position-still",
        weights=(SUSPECT,),
        remedy="save the state of the loader that the script reads; before a resume, skip the batches already read",
        group="Data",
        headline="The data position did not change, although the step grew",
        meaning=(
            "The state of a data loader is the same as in the previous save of the run, or still the initial one "
            "after many batches. A resume from it reads the same data again."
        ),
        evidence=(
            "The states of both saves, for loaders whose position grows with each batch. An iterable data set of "
            "Hugging Face's datasets whose counters are all 0, although its loader yielded batches, never recorded "
            "its position: datasets had such a defect after a second resume."
        ),
        to_do=(
            "Check that the state is taken from the loader that the training loop reads, in the process that reads it.",
            "Before a resume from it, skip the batches already read in the training script.",
        ),
    )

    DATA_POSITION_DIFFERS = Row(
        "data-position-differs",
        weights=(SUSPECT,),
        remedy="resume from another checkpoint, or replace the files of the ranks that are apart",
        group="Data",
        headline="The data loaders of the ranks are at different batches",
        meaning=(
            "All ranks read one batch per step, so their loaders must have yielded equally many. In this save they "
            "did not: a file of another save, or a loader that was restored on some ranks only."
        ),
        evidence=(
            "The batches in each rank's state. Only loaders that must stay in step are compared: not those of iterable "
            "data sets, which ranks may begin again at different times."
        ),
        to_do=(
            "Compare the positions of the ranks:",
            "    ckpttool inspect DIR:NAME",
            "Resume from another save, or replace the files of the ranks that are apart.",
        ),
    )

    DATA_POSITION_AT_END = Row(
        "data-position-at-end",
        weights=(NOTE, SUSPECT),
        remedy="resume from a save within an epoch, or begin the next epoch without the loader's state",
        group="Data",
        headline="A resume from this data position yields no batches at first",
        meaning=(
            "The state of a data loader is at the end of an epoch, and its library does not begin the next epoch from "
            "there. The resumed run gets an empty epoch, which many training loops count: a whole epoch is skipped "
            "without an error, or the run ends at once. A note if the tree has a later save."
        ),
        evidence=(
            "The state itself, if the loader had finished: runs of torchdata 0.11 yield no batches from it without "
            "own processes, if the sampler keeps its own state or the data set is an iterable of Hugging Face's "
            "datasets. For verl's SFT trainer and SkyRL: the batches in the state, and the length of an epoch "
            "according to several saves."
        ),
        trainers={
            "verl": "The SFT trainer skips the next epoch. For reinforcement learning, the state is left out.",
            "SkyRL": "The trainer for reinforcement learning skips the next epoch.",
            "NeMo AutoModel": "Continues with the next epoch, and loses nothing: not reported.",
        },
        to_do=(
            "Resume from a save within an epoch, or begin the next epoch without the loader's state.",
            "For verl and SkyRL, the message names the file to move out of the save.",
        ),
    )

    REWOUND_PAST = Row(
        "rewound-past",
        weights=(NOTE, SUSPECT),
        check="health",
        group="Training logs",
        headline="The training is to resume from before this checkpoint",
        meaning=(
            "To avoid a spike, the training resumes at least 100 steps before its onset and skips the data of the "
            "spike. This checkpoint is later. It is a note if --before STEP requests a checkpoint at or before a "
            "step, and every checkpoint is later."
        ),
        evidence=(
            "Its step is compared with the step of the onset (or the stop) in the log, or with the requested one."
        ),
        to_do=("Omit --around-spike or --before to resume from the newest good one.",),
    )

    LOG_UNREADABLE = Row(
        "log-unreadable",
        weights=(NOTE, UNKNOWN),
        check="health",
        group="Training logs",
        headline="A training log, or a line of it, cannot be read",
        meaning=(
            "A note if single lines cannot be read (a lost digit, a truncated field): readable values count, and "
            "nothing was guessed. Unknown if a log could not be read to its end, or if logs are evidence for the "
            "answer but no log is found, or no log contains a step."
        ),
        evidence=(
            "Every line that looks like a step or a monitor entry is read field by field; the message gives the line "
            "number."
        ),
        to_do=(
            (
                "For single lines, nothing. For a complete log, give another copy; if its columns have other names, "
                "name them:"
            ),
            "    ckpttool log replay LOG --columns step=iter,global_norm=gnorm",
        ),
    )

    NOT_A_TRAINING = Row(
        "not-a-training",
        weights=(SUSPECT,),
        group="Rules about configs",
        headline="The config is not for training",
        meaning="`run_mode` is neither train nor finetune, so there is nothing to resume.",
        evidence="The settings are compared with the code of MindFormers 1.6 to 2.1; the line is given.",
        trainers={
            "MindFormers": (
                "Predicts, evaluates or exports; resume settings are ignored. In a folder, lint counts such "
                "configs and skips them."
            ),
        },
        to_do=(
            "Write `run_mode: train`, or give the training config:",
            "    ckpttool lint BASE.yaml",
        ),
    )

    KEEPS_ONE_CHECKPOINT = Row(
        "keeps-one-checkpoint",
        weights=(NOTE, SUSPECT),
        affects_start=False,
        group="Rules about configs",
        headline="Only one checkpoint is kept",
        meaning=(
            "If the only one is damaged, incomplete, or from a training that had diverged, there is nothing to go "
            "back to. MindFormers deletes it before the next one is written: a crash, a full disk or a lost node "
            "at that moment costs the complete training."
        ),
        evidence=(
            "MindFormers was run with a save that fails: no checkpoint remains, and meta.json names the deleted one. "
            "For the others, the code was read."
        ),
        trainers={
            "MindFormers": (
                "`keep_checkpoint_max: 1`: deletes first and then writes. Many of its own configs have 1, so "
                "preflight and launch report only a note and do not stop."
            ),
            "Hugging Face's Trainer": (
                "`save_total_limit: 1`: writes first, then deletes the oldest: an intact save is deleted even if the "
                "newest one is truncated."
            ),
            "torchtitan": "`keep_latest_k = 1`: stops with a ValueError when it starts.",
            "OLMo-core": "`max_checkpoints: 1`: writes first, then deletes the previous one.",
            "Composer": "`save_num_checkpoints_to_keep: 1`: deletes the older one last.",
            "Accelerate": ("`total_limit=1` in the script: deletes first and then writes."),
        },
        to_do=(
            "Write 2 or more, and provide disk space for one save more than that. Then:",
            "    ckpttool lint CONFIG",
        ),
    )

    ALLOW_UNUSED = Row(
        "allow-unused",
        weights=(NOTE,),
        group="Rules about configs",
        headline="A comment allows a finding that does not exist",
        meaning=(
            "`# ckpttool: allow CODE` is at a place without a finding of that code: it was fixed, has moved to "
            "another line, or the code is misspelled."
        ),
        evidence=(
            "The comment applies to its own line or, alone on a line, to the next one; there is no such finding."
        ),
        to_do=(
            "Remove the code from the comment, or move the comment to the finding:",
            "    ckpttool lint BASE.yaml",
        ),
    )

    CONFIG_UNUSABLE = Row(
        "config-unusable",
        weights=(DAMAGE,),
        may_be_allowed=False,
        group="Preflight",
        headline="The config cannot be used",
        meaning=(
            "It cannot be opened, is not YAML, has a duplicate key, or is larger than any config. Nothing else can "
            "be checked without it. The exit code is that of such an error, 2 or 15."
        ),
        evidence=(
            "PyYAML's own parser reports the error; ckpttool also reports duplicate keys, which PyYAML silently "
            "accepts."
        ),
        trainers={
            "MindFormers": "Fails at the start, or uses the last of the duplicate keys.",
        },
        to_do=(
            "Correct the named line, then:",
            "    ckpttool lint BASE.yaml",
        ),
    )

    NOTHING_TO_RESUME = Row(
        "nothing-to-resume",
        weights=(DAMAGE,),
        may_be_allowed=False,
        group="Preflight",
        headline="There is no checkpoint that a launch could resume from",
        meaning=(
            "No checkpoint is intact on every rank and free of recorded health problems. The answer lists all "
            "reasons against the newest checkpoint, and the most severe reason against each of the others. The exit "
            "code is 11."
        ),
        evidence="The result of `ckpttool resolve` at the requested level.",
        trainers={
            "MindFormers": "May start from damaged or random weights, or stop.",
        },
        to_do=(
            "Show the reason against each checkpoint:",
            "    ckpttool resolve DIR",
        ),
    )

    NEWER_NOT_CHOSEN = Row(
        "newer-not-chosen",
        weights=(NOTE, SUSPECT, UNKNOWN),
        group="Preflight",
        headline="A newer checkpoint exists and was not chosen",
        meaning=(
            "A launch would resume from an older one and redo steps. A note, or suspect with --strict; unknown if "
            "the newer one could not be checked, because it may be intact."
        ),
        evidence="The result of `ckpttool resolve` for the newer checkpoint; the most severe reason is reported.",
        trainers={
            "MindFormers": "Would often load it, because it chooses by name.",
        },
        to_do=(
            "Show all reasons, and repair the checkpoint if the steps are worth it:",
            "    ckpttool resolve DIR",
        ),
    )

    TOO_MUCH_LOST = Row(
        "too-much-lost",
        weights=(SUSPECT, UNKNOWN),
        group="Preflight",
        headline="More training must be redone than allowed",
        meaning=(
            "The newest usable checkpoint is further behind than `--max-lost-steps` or `--max-lost-time` allows. "
            "Unknown if the amount is unknown."
        ),
        evidence=(
            "Steps count from the chosen checkpoint to the furthest one that the training did not abandon, intact "
            "or not, and with `--log` to the last step in the log. Their time comes from the log, or from the file "
            "times of two saves. Times that a copy may have set are not used."
        ),
        trainers={
            "MindFormers": "Resumes anyway.",
        },
        to_do=(
            "Check the reasons against each newer checkpoint; often one rank's shards can be restored:",
            "    ckpttool resolve DIR",
            "Otherwise allow more, or accept it with `--allow too-much-lost` (launch, preflight).",
        ),
    )

    CANNOT_ANSWER = Row(
        "cannot-answer",
        weights=(UNKNOWN, UNSAFE),
        may_be_allowed=False,
        group="Preflight",
        headline="A question could not be answered, so nothing is proven",
        meaning=(
            "ckpttool recognizes no checkpoint folder, a file could not be read or kept changing, an option is "
            "invalid, or one of several saves has no place for the record to be written. The exit code is that of "
            "the error: 2, 12, 14 or 15."
        ),
        evidence="The message is that of the error.",
        to_do=(
            "Follow the message, or run the command that answers only this question:",
            "    ckpttool resolve DIR",
        ),
    )

    DISK_SPACE_LOW = Row(
        "disk-space-low",
        weights=(SUSPECT,),
        group="Preflight",
        headline="The next saves will not fit on the disk",
        meaning=(
            "The saves to keep, plus the one being written, must fit on the disk in addition to the existing files: "
            "MindFormers never deletes files of older runs."
        ),
        evidence=(
            "The size of the chosen checkpoint, and the file system's own figures for unprivileged users; quotas "
            "are not included."
        ),
        trainers={
            "MindFormers": "Notices only when a save fails; by then it has deleted the oldest one.",
        },
        to_do=(
            "Free disk space, or keep fewer saves. To list the checkpoints:",
            "    ckpttool scan DIR",
        ),
    )

    DISK_INODES_LOW = Row(
        "disk-inodes-low",
        weights=(SUSPECT,),
        group="Preflight",
        headline="The file system has too few inodes for the next saves",
        meaning="Every shard is a file. The file system can have free bytes but no free inodes.",
        evidence=(
            "The number of files of the chosen checkpoint, and the file system's own figures for unprivileged "
            "users; quotas are not included."
        ),
        trainers={
            "MindFormers": "Notices only when a save fails with 'No space left on device'.",
        },
        to_do=(
            "Delete many small files, or save elsewhere. To list the checkpoints:",
            "    ckpttool scan DIR",
        ),
    )

    FOLDER_NOT_WRITABLE = Row(
        "folder-not-writable",
        weights=(SUSPECT,),
        group="Preflight",
        headline="This user cannot write to the folder of the next save",
        meaning=(
            "MindFormers creates its folders for their owner and group only. If another user runs the training, this "
            "check does not apply to that user."
        ),
        evidence=(
            "The operating system reports the permissions of the checkpoint folder and of each rank's folder in it."
        ),
        trainers={
            "MindFormers": "Notices only at the first save.",
        },
        to_do=(
            "Start as the owner, or correct the mode. If another user trains:",
            "    ckpttool preflight --config BASE.yaml --allow folder-not-writable",
        ),
    )

    DISK_UNKNOWN = Row(
        "disk-unknown",
        weights=(UNKNOWN,),
        group="Preflight",
        headline="The free space is unknown",
        meaning=(
            "The file system, or a shard whose size is needed, did not respond. The next saves may or may not fit. A "
            "check that could not be made never counts as passed."
        ),
        evidence="Reading free bytes and inodes, or the size of a shard, ended with the error in the message.",
        to_do=(
            "Check the mount. If it is known to be large enough:",
            "    ckpttool preflight --config BASE.yaml --allow disk-unknown",
        ),
    )
