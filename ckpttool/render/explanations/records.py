"""Findings about the records beside the shards: meta.json, tracker, metadata, health."""

from __future__ import annotations

from ckpttool.domain.finding import Code, Severity
from ckpttool.render.explanations.base import DAMAGE, NOTE, SUSPECT, UNKNOWN, Explanation

_SHARDS_ARE_THE_TRUTH = "Nothing to repair: ckpttool goes by the shards, and `ckpttool launch` names the file itself."

RECORDS = (
    Explanation(
        code=Code.META_UNREADABLE,
        title="A record of the trainer cannot be read",
        severities=(Severity.NOTE, Severity.UNKNOWN, Severity.DAMAGE),
        meaning="meta.json, common.json, metadata.json or param_name_map.json is torn, empty, of the wrong types or "
        "not permitted. A note for meta.json, which is only a hint; damage for the others, which a load needs. "
        "prune lets nothing go while a record cannot be read: it may name what would go.",
        evidence="The JSON is read strictly: a key twice, NaN, or text where a number belongs is an error.",
        mindformers="Skips a broken meta.json and uses the other ranks'; if none is left, 1.6 to 2.1 stop with a "
        "TypeError for safetensors. A broken common.json stops it.",
        remedy=("For meta.json nothing. For the others resume from another checkpoint:", "ckpttool resolve DIR"),
    ),
    Explanation(
        code=Code.META_AHEAD,
        title="meta.json names a file that is not there",
        severities=NOTE,
        meaning="meta.json is newer than the newest shard: the shard was pruned or lost, most often in a power cut "
        "seconds after the save.",
        evidence="The name in meta.json is looked for beside it.",
        mindformers="Takes the lowest step of all meta.json as an upper limit, so it may still find an older one.",
        remedy=(_SHARDS_ARE_THE_TRUTH,),
    ),
    Explanation(
        code=Code.META_BEHIND,
        title="meta.json is older than the newest shard",
        severities=NOTE,
        meaning="With async_save the last save of a run never reaches meta.json; also a save while an exception "
        "unwound does not. The newer shards may be perfectly whole.",
        evidence="The shard that meta.json names is compared with the newest one, by the true step inside.",
        mindformers="Resumes from the older step and does the steps since then again.",
        remedy=(_SHARDS_ARE_THE_TRUTH,),
    ),
    Explanation(
        code=Code.META_MISSING,
        title="A rank has no meta.json",
        severities=NOTE,
        meaning="The trainer writes one after each save. It may never have been written, or not been copied.",
        evidence="It is not in the rank's folder.",
        mindformers="Uses the other ranks' meta.json. Where no rank has one it goes by file times; for safetensors "
        "1.6 to 2.1 stop with a TypeError instead.",
        remedy=(_SHARDS_ARE_THE_TRUTH,),
    ),
    Explanation(
        code=Code.META_DISAGREES,
        title="Ranks' meta.json disagree, or one disagrees with itself",
        severities=NOTE,
        meaning="Some ranks recorded an earlier save as their last than others, or a record names a file of another "
        "save than its own numbers say. A rank died, or files were copied.",
        evidence="All ranks' records are compared with one another, and each with the file name that it holds.",
        mindformers="Takes the lowest epoch and step of all ranks.",
        remedy=(_SHARDS_ARE_THE_TRUTH,),
    ),
    Explanation(
        code=Code.TRACKER_DISAGREES,
        title="The tracker file does not name the newest iteration",
        severities=NOTE,
        meaning="latest_checkpointed_iteration.txt is missing, empty, torn, behind, or names an iteration that is not "
        "there. It is written last and not atomically, so a killed save leaves it so.",
        evidence="It is compared with the iteration_* folders.",
        mindformers="Follows the tracker or stops with an error; it never falls back to an older iteration.",
        remedy=(
            "Nothing to repair: the launch config names the iteration's folder, which needs no tracker:",
            "ckpttool launch DIR --config BASE.yaml --output NEW.yaml",
        ),
    ),
    Explanation(
        code=Code.METADATA_INCOMPLETE,
        title="A record that this checkpoint needs is missing",
        severities=DAMAGE,
        meaning="No common.json (step, loss scale), no metadata.json (which file holds which slice), or no "
        "param_name_map.json. Most often the save was not finished.",
        evidence="The file is not in the checkpoint's folder.",
        mindformers="Without common.json it stops. Without metadata.json 1.7 to 2.1 take any folder that has a single "
        "safetensors file, even if half of the shards are missing.",
        remedy=("Resume from an iteration whose save was finished:", "ckpttool resolve DIR"),
    ),
    Explanation(
        code=Code.MARKED_UNHEALTHY,
        title="The trainer itself recorded this checkpoint as unhealthy",
        severities=SUSPECT,
        meaning="When it was saved the embedding's gradient norm was above the threshold: the training was about to "
        "diverge, or had begun to.",
        evidence="health_ckpts.json has is_health 1 for its file name (the worst entry counts); in the newer layout "
        "common.json has ckpt_status 1.",
        mindformers="1.6 to 2.1 never filter it in the rank_N layout: the test is the wrong way round. 1.9 and later "
        "do in "
        "the newer layout.",
        remedy=(
            "An older, healthy one is chosen. To take this one all the same:",
            "ckpttool resolve DIR --ignore-health",
        ),
    ),
    Explanation(
        code=Code.HEALTH_UNKNOWN,
        title="Nothing tells whether it is healthy",
        severities=(Severity.NOTE, Severity.SUSPECT),
        meaning="Not measured is not healthy. The monitor was off, or the entry is missing. A note, unless "
        "--require-health asks for a record.",
        evidence="No entry in health_ckpts.json (newer layout: ckpt_status is null); with --health-threshold, no norm "
        "in the log at its save.",
        mindformers="Never filters by health in the rank_N layout; in the newer one (1.9 and later) one "
        "without a record counts as unhealthy.",
        remedy=("To accept it:", "ckpttool resolve DIR --allow-unknown-health"),
    ),
    Explanation(
        code=Code.HEALTH_UNREADABLE,
        title="The health file cannot be read",
        severities=UNKNOWN,
        meaning="health_ckpts.json is torn, of the wrong types or not permitted. What it says about the checkpoints is "
        "unknown; unknown is not healthy.",
        evidence="Its JSON is read strictly; an entry that makes no sense makes its checkpoint unknown.",
        mindformers=None,
        remedy=("Point to a good copy:", "ckpttool resolve DIR --health-file FILE"),
    ),
    Explanation(
        code=Code.HEALTH_UNHEARD,
        title="A health file that was to have a say could not be read",
        severities=UNKNOWN,
        meaning="The file that --health-file names is no health file, or health_ckpts.json is larger than any such "
        "record. It may call the checkpoint unhealthy that was chosen: exit 14, and `launch` writes nothing.",
        evidence="The file is read strictly, up to 64 MiB. A torn one that was not named still tells its bad news.",
        mindformers=None,
        remedy=(
            "Point to a good copy, or choose without it:",
            "ckpttool resolve DIR --health-file FILE",
            "ckpttool resolve DIR --ignore-health",
        ),
    ),
    Explanation(
        code=Code.HEALTH_CONTRADICTORY,
        title="A checkpoint is called both healthy and unhealthy",
        severities=(Severity.NOTE, Severity.SUSPECT),
        meaning="Two entries of the record disagree, for MindFormers appends one at each save and removes none. Or the "
        "log shows another health at your threshold than is recorded: a note where the log is the better news, or "
        "where it has been acted upon.",
        evidence="All entries of a name are read, and the worst counts. What the log shows at the save counts more.",
        mindformers="Never uses the entries to filter, so it does not notice.",
        remedy=(
            "Bring the record in line with the log, or take the checkpoint all the same:",
            "ckpttool health DIR --threshold X --write",
            "ckpttool resolve DIR --ignore-health",
        ),
    ),
    Explanation(
        code=Code.HEALTH_NAMES_NOTHING,
        title="The health file names checkpoints that do not exist",
        severities=NOTE,
        meaning="The entry is written before the weights and never removed: the save failed, or the checkpoint was "
        "pruned since. Or the file belongs to another tree.",
        evidence="Every name is looked for among the checkpoints of rank 0.",
        mindformers="Counts an entry that names nothing as proof that a healthy checkpoint exists.",
        remedy=(
            "Nothing, unless all entries are like that: then it is the wrong file.",
            "ckpttool scan DIR --health-file FILE",
        ),
    ),
    Explanation(
        code=Code.MANIFEST_UNREADABLE,
        title="The manifest of checksums cannot be believed",
        severities=UNKNOWN,
        meaning="The file that `ckpttool seal` wrote is torn, was edited, is of another checkpoint, or cannot be read. "
        "The shards may be whole; nothing says so any more.",
        evidence="A manifest ends in the hash of all that stands before it; every changed bit shows.",
        mindformers=None,
        remedy=(
            "Put the manifest back from a copy. Without one, check the shards and record them anew:",
            "ckpttool verify DIR --checkpoint NAME",
            "ckpttool seal DIR --checkpoint NAME --reseal",
        ),
    ),
    Explanation(
        code=Code.MANIFEST_NEWER,
        title="The manifest was written by a newer ckpttool",
        severities=UNKNOWN,
        meaning="Its form has a version that this ckpttool does not know, so nothing was compared with it, and it is "
        "not overwritten, not even by --reseal.",
        evidence="The version stands at its beginning.",
        mindformers=None,
        remedy=("Verify with the ckpttool that sealed, or update this one.",),
    ),
)
