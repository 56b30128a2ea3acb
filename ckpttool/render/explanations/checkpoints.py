"""Findings about a checkpoint as a whole: its ranks, its names, its place in the training."""

from __future__ import annotations

from ckpttool.domain.finding import Code, Severity
from ckpttool.render.explanations.base import DAMAGE, NOTE, SUSPECT, UNKNOWN, Explanation

CHECKPOINTS = (
    Explanation(
        code=Code.RANK_MISSING,
        title="A rank's whole folder is not there",
        severities=(Severity.UNKNOWN, *DAMAGE),
        meaning="Every rank saves into its own rank_N/ folder. One of them is gone, and with it that rank's part of "
        "the model and the optimizer, in every checkpoint. Unknown where another machine may have it: see "
        "one-node-only.",
        evidence="The expected number of ranks comes from --world-size, else from --config, else from the highest rank "
        "of this run, of the tree's other runs and of its strategy files; the message says which.",
        mindformers="1.7 to 2.1 count the rank_ folders that exist, so a lost last rank shrinks the world in silence; "
        "1.6 and older stop with an error.",
        remedy=(
            "Bring the folder back from that node's disk, or let resolve fall back to an older checkpoint.",
            "If the training really had fewer ranks, say so:",
            "ckpttool resolve DIR --world-size N",
        ),
    ),
    Explanation(
        code=Code.ONE_NODE_ONLY,
        title="Only one machine's ranks are seen, and others may have some",
        severities=UNKNOWN,
        meaning="Where each machine saves to a disk of its own, its tree looks whole by itself: ranks 0 and 1 of 4 are "
        "all that the first of two machines has. Whether the others' shards are whole, or of the same step, cannot be "
        "seen from here. The exit code is 14, never 11: that there is nothing to resume from is not known either.",
        evidence="A launcher speaks of several machines (SLURM_JOB_NUM_NODES, SLURM_NNODES, OMPI_COMM_WORLD_SIZE over "
        "OMPI_COMM_WORLD_LOCAL_SIZE, WORLD_SIZE over LOCAL_WORLD_SIZE) or of more ranks than are here (MS_WORKER_NUM, "
        "WORLD_SIZE); or the folders here are a machine's share, ranks 0 to 1 or 2 to 3 of the 4 that --world-size, "
        "--config or --devices state. And /proc/self/mountinfo gives the tree a file system that other machines do not "
        "see, or one that ckpttool does not know.",
        mindformers="With disks of their own each rank takes its own newest file, and nothing compares their steps; a "
        "checkpoint that is named is loaded on every machine from that machine's disk.",
        remedy=(
            "Ask where all ranks' files are seen: on a shared disk, or with all rank_N folders gathered in one place.",
            "Where all of them are here, say how many there are, or accept it:",
            "ckpttool resolve DIR --world-size N",
            "ckpttool preflight DIR --config BASE.yaml --allow one-node-only",
        ),
    ),
    Explanation(
        code=Code.SHARD_MISSING,
        title="A rank has no file of this checkpoint",
        severities=DAMAGE,
        meaning="The other ranks saved this step, this one did not, or its file was deleted. Without it the "
        "checkpoint cannot be loaded as it is.",
        evidence="The files of all ranks are compared with one another; in the newer layout also with metadata.json, "
        "in unified checkpoints with param_name_map.json.",
        mindformers="With `resume_training: True` it falls back to an older step of the same run if there is one, "
        "else it stops: never across runs. With a name it loads blindly, and that rank crashes later.",
        remedy=(
            "Bring the file back from that rank's disk, or take what resolve falls back to:",
            "ckpttool resolve DIR",
        ),
    ),
    Explanation(
        code=Code.SHARD_ELSEWHERE,
        title="A rank's file lies in another rank's folder",
        severities=DAMAGE,
        meaning="The file is named for one rank and lies beside another's of the same save: somebody gathered the "
        "shards in one folder, or copied one to the wrong place. Its own rank has no other.",
        evidence="The rank in the file's name is compared with the folder's; a copy of what the rank has is a note "
        "(name-disagrees).",
        mindformers="Each rank looks into its own rank_N/ alone. Where one folder is left it counts one rank, and "
        "starts as if that were the training.",
        remedy=(
            "Move each file to the folder of the rank in its name:",
            "mkdir -p rank_1 && mv rank_0/NAME_rank_1-* rank_1/",
            "If the training really had fewer ranks, say so:",
            "ckpttool resolve DIR --world-size N",
        ),
    ),
    Explanation(
        code=Code.SHARD_RESPELLED,
        title="A shard's name spells its numbers otherwise",
        severities=(Severity.NOTE, Severity.DAMAGE),
        meaning="20_2 and 020_2 are one save to a reader and two names to MindFormers, which writes no leading zeros "
        "and gives the first run no suffix. Somebody renamed the file.",
        evidence="The name, and what it would be with its numbers as MindFormers writes them. It is damage where the "
        "rank has no file of that name; a further file beside it is a note.",
        mindformers="With a name in `resume_training` every rank looks for just that name: the rank that has the "
        "other spelling stops with FileNotFoundError.",
        remedy=("Rename it to what the message says.",),
    ),
    Explanation(
        code=Code.EXTRA_SAFETENSORS,
        title="A further safetensors file in a single card's checkpoint",
        severities=SUSPECT,
        meaning="One card writes no metadata.json into its iteration_N/ folder. So nothing says which files belong to "
        "the checkpoint, and every *.safetensors in the folder counts, whatever its name.",
        evidence="Whatever is named *.safetensors beside PREFIX-model-0000000-0000001 and "
        "PREFIX-opt-0000000-0000001; names that begin with a dot do not count.",
        mindformers="Reads all of them as one checkpoint; where two hold the same parameter it stops: `Duplicate "
        "parameter_name found` (run with 2.1.0; 1.7 to 1.9 have the same code).",
        remedy=("Move the file out of the folder. Nothing is wrong with the checkpoint itself.",),
    ),
    Explanation(
        code=Code.ENTRIES_MISSING,
        title="The file holds fewer tensors than it should",
        severities=DAMAGE,
        meaning="Tensors that the same rank has at another step are not here, or an archive holds fewer than its "
        "directory or its data.pkl says (a torch.save that failed leaves a file without one). A .ckpt that was "
        "cut between two tensors is a valid file otherwise.",
        evidence="Names of tensors are compared with those of the same rank at another step.",
        mindformers="Loads it in silence, and what is missing stays as it was initialised.",
        remedy=("Resume from another checkpoint:", "ckpttool resolve DIR"),
    ),
    Explanation(
        code=Code.SCHEMA_DIFFERS,
        title="The file does not hold what its siblings hold",
        severities=(Severity.NOTE, Severity.SUSPECT, Severity.DAMAGE),
        meaning="Files of one training are written by one program with one configuration. This one has other tensors, "
        "types, shapes or free text than the same rank at another step, or another batch size or loss scale than the "
        "other ranks, or it ends like another rank's file: a bit flipped, or it is another rank's or another run's.",
        evidence="Header and last page are compared with its siblings'; how many of those agree decides the weight.",
        mindformers="Never compares; a wrong shape of the same size even loads.",
        remedy=(
            "Find out which file is foreign (the message names it), or take another checkpoint:",
            "ckpttool resolve DIR",
        ),
    ),
    Explanation(
        code=Code.SCALARS_MISSING,
        title="The file lacks the training state that a resume needs",
        severities=DAMAGE,
        meaning="MindFormers appends epoch, step, optimizer step and loss scale to what each rank saves. They are not "
        "in this file: it was cut exactly where a tensor ends, or it holds weights alone.",
        evidence="The entries are looked for inside the file (newer layout: in common.json, unified: in "
        "hyper_param.safetensors), and compared with the other ranks'.",
        mindformers="Loads a cut .ckpt without a word and begins at step 0 in the middle of the data; in the newer and "
        "the unified layout it stops with a TypeError or KeyError.",
        remedy=("Resume from another checkpoint:", "ckpttool resolve DIR"),
    ),
    Explanation(
        code=Code.NAME_DISAGREES,
        title="A file's name says something else than its content or its folder",
        severities=(Severity.NOTE, Severity.SUSPECT, Severity.DAMAGE),
        meaning="The epoch in the name is not the one inside, the suffix is that of the other format, or the file of "
        "one rank lies in another rank's folder. Somebody renamed or copied it.",
        evidence="The header tells the format, the entry epoch_num the epoch, the folder the rank.",
        mindformers="Picks by the name and never opens a file before. With a wrong suffix the load fails.",
        remedy=(
            "Undo the copy or the rename if you know which it was.",
            "Else take another checkpoint:",
            "ckpttool resolve DIR",
        ),
    ),
    Explanation(
        code=Code.STEP_DISAGREES,
        title="Ranks of one checkpoint were saved at different steps",
        severities=DAMAGE,
        meaning="step_num or global_step inside one rank's file differs from the other ranks': an older file under a "
        "newer name, or two saves mixed. Training on from it would mix two states of the model.",
        evidence="step_num and global_step are read from inside every rank's file; the value that most ranks have "
        "counts. In the newer layout common.json is compared with the folder's name.",
        mindformers="Never compares: up to 1.7 rank 0's step counts for all, later ranks may start at different steps.",
        remedy=("Do not resume from it. What else there is:", "ckpttool resolve DIR"),
    ),
    Explanation(
        code=Code.EPOCH_DISAGREES,
        title="Ranks of one checkpoint were saved in different epochs",
        severities=DAMAGE,
        meaning="epoch_num inside one rank's file differs from the other ranks': an older file under a newer name.",
        evidence="epoch_num is read from inside every rank's file; the value that most ranks have counts.",
        mindformers="Never compares; every rank goes on from its own counter (up to 1.7: from rank 0's).",
        remedy=("Do not resume from it. What else there is:", "ckpttool resolve DIR"),
    ),
    Explanation(
        code=Code.STEP_UNKNOWN,
        title="Nothing tells the step of this checkpoint",
        severities=(Severity.NOTE, Severity.UNKNOWN),
        meaning="The true step stands inside the files, and none of this checkpoint's files has it. The name alone "
        "cannot tell: after a resume without data sinking its numbers start anew.",
        evidence="The files of the lowest ranks were opened, and none holds step_num.",
        mindformers="Takes 0 for a missing step.",
        remedy=(
            "If the run was never resumed, its names can be trusted; give the sink size (no sinking: steps an epoch):",
            "ckpttool resolve DIR --sink-size N",
        ),
    ),
    Explanation(
        code=Code.WORLD_SIZE_DIFFERS,
        title="Not the number of ranks that was expected",
        severities=(Severity.NOTE, Severity.SUSPECT, Severity.DAMAGE),
        meaning="A note where a later run went on with more or fewer ranks, which is taken for meant. Suspect where a "
        "checkpoint has more ranks than you or the config say. Damage where one folder mixes two world sizes.",
        evidence="Ranks that have files are compared with --world-size, the config, the tree's other runs and its "
        "strategy files.",
        mindformers="1.7 to 2.1 take leftovers of a larger run for ranks of this one and then resume from the old "
        "run, in silence; re-slicing to another world size needs auto_trans_ckpt.",
        remedy=(
            "If ranks of the newest run are lost, or the number is another:",
            "ckpttool resolve DIR --world-size N",
            "To go on with another number on purpose, set auto_trans_ckpt: True in the config.",
        ),
    ),
    Explanation(
        code=Code.RUN_MIXED,
        title="Checkpoints of several trainings lie in one folder",
        severities=(Severity.NOTE, Severity.SUSPECT),
        meaning="The file names have different prefixes, so two trainings saved here. Only you know which is to go on. "
        "A note where one of them left a few stray files at most, which are passed over, and where --config saves "
        "under the prefix of one of them, which is then meant.",
        evidence="The part of the names before _rank_N differs.",
        mindformers="Takes the prefix of the first rank that has a meta.json.",
        remedy=("Say which training is meant:", "ckpttool resolve DIR --prefix NAME"),
    ),
    Explanation(
        code=Code.RUN_REWOUND,
        title="A later run went back behind an earlier one",
        severities=NOTE,
        meaning="Somebody restarted the training from an older checkpoint, and it has not yet caught up. The higher "
        "steps of the earlier run are an abandoned branch: newer by number, older by history.",
        evidence="A later run (suffix _1, _2, …) has seen fewer samples than an earlier one: step times global batch "
        "size, for MindFormers counts steps anew where that changed. In the newer layout the tracker file was written "
        "after the iterations that it is behind, or where times do not tell it is behind several whole ones.",
        mindformers="Follows meta.json, which the later run wrote last.",
        remedy=(
            "Nothing, if going back was meant. To return to the abandoned branch, name its checkpoint:",
            "ckpttool resolve DIR --checkpoint NAME",
        ),
    ),
    Explanation(
        code=Code.ABANDONED_BRANCH,
        title="The training went back behind this checkpoint and on from there",
        severities=SUSPECT,
        meaning="Its step is higher than that of the newest run, but it belongs to a course that was given up, often "
        "because of a loss spike. It may be perfectly whole; it is never chosen by itself.",
        evidence="A run that was started later has seen fewer samples (step times global batch size), or did this "
        "checkpoint's steps again; in the newer layout the tracker was written after it and is behind it.",
        mindformers="Does not know branches; what it takes depends on meta.json and on names.",
        remedy=("If it is the one you want, name it:", "ckpttool resolve DIR --checkpoint NAME"),
    ),
    Explanation(
        code=Code.TIMES_DISAGREE,
        title="Two runs' files may have one name",
        severities=(Severity.NOTE, Severity.SUSPECT),
        meaning="Each rank counts its restarts by what lies in its own folder. One that lost its files, or was cut off "
        "in its first save, gives the files of a later run the names that the other ranks' earlier run had.",
        evidence="The other ranks have this save twice, of two runs. This rank has it once, and its file was written "
        "when the others wrote the later one. Or ranks disagree about the run, and more than an hour lies between "
        "their files. A time can be changed by a copy, so this is a doubt, no proof; and where nothing but an hour "
        "speaks of two runs it is a note.",
        mindformers="Loads by the name, and trains on with weights of two runs.",
        remedy=(
            "Where the file was only copied later, name the checkpoint:",
            "ckpttool resolve DIR --checkpoint NAME",
        ),
    ),
    Explanation(
        code=Code.NEEDS_RENAMES,
        title="Whole on every rank, but under different names",
        severities=SUSPECT,
        meaning="Each rank counts its restarts by what lies in its own folder. A replaced node starts with an empty "
        "one, so its files lack the suffix (_1, _2) that the other ranks' files of the same step have.",
        evidence="The true step inside the files is the same on every rank; only the suffix differs.",
        mindformers="Loads by one name for all ranks and stops: no checkpoint could be resumed.",
        remedy=(
            "Let ckpttool list the renames, do them, and resume:",
            "ckpttool resolve DIR --allow-renames",
            "Without that option the next checkpoint that needs none is chosen.",
        ),
    ),
    Explanation(
        code=Code.DUPLICATE_CHECKPOINT,
        title="Two checkpoints claim the same step of the same run",
        severities=SUSPECT,
        meaning="The same step was saved twice in one run, under different names or formats, and nothing says which is "
        "meant.",
        evidence="Not looked for yet: every name stands as a checkpoint of its own, and resolve takes a whole one.",
        mindformers="Looks only at files of the configured load_ckpt_format.",
        remedy=("Name the one you want:", "ckpttool resolve DIR --checkpoint NAME"),
    ),
    Explanation(
        code=Code.NOT_SELECTED,
        title="Passed over because of what you asked for",
        severities=NOTE,
        meaning="Nothing is wrong with this checkpoint; the question excluded it.",
        evidence="Not used yet: what --checkpoint or --prefix excludes is not listed at all.",
        mindformers=None,
        remedy=("Ask without the restriction:", "ckpttool resolve DIR"),
    ),
    Explanation(
        code=Code.RANKS_TO_RESTORE,
        title="Some ranks alone keep the newest checkpoint from being loaded",
        severities=NOTE,
        meaning="Nothing in the tree can be resumed from, but all that is wrong with the newest checkpoint (or with "
        "every one) is on a few ranks, which often means one disk or one node. With good shards of those it is whole.",
        evidence="The reasons against a checkpoint are all about shards of these ranks. At the level of headers the "
        "other ranks' shards were opened; at higher levels they were not, and the sentence says so.",
        mindformers=None,
        remedy=(
            "Bring those ranks' shards back from their disks or from a copy, then ask again:",
            "ckpttool resolve DIR",
        ),
    ),
)
