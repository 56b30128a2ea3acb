"""Findings about a training config, and about the counters that MindFormers makes of it."""

from __future__ import annotations

from ckpttool.domain.finding import Code, Severity
from ckpttool.render.explanations.base import NOTE, SUSPECT, Explanation

_NOTE_OR_SUSPECT = (Severity.NOTE, Severity.SUSPECT)
_WHICH = "A note where `ckpttool launch` puts it right or where it changes nothing, else suspect."

SETTINGS = (
    Explanation(
        code=Code.CONFIG_KEY_IGNORED,
        title="A setting stands where MindFormers does not read it, or has no effect",
        severities=_NOTE_OR_SUSPECT,
        meaning=f"Its author meant something, and nothing will happen. {_WHICH}",
        evidence="The keys and their places are compared with what MindFormers' code reads; the line is given.",
        mindformers="Reads the resume keys at the top level only; and `data_skip_steps: 0` means 'not set'.",
        remedy=(
            "Move the key to where the message says. What a resume needs is written to the right places by:",
            "ckpttool launch DIR --config BASE.yaml --output NEW.yaml",
        ),
    ),
    Explanation(
        code=Code.TRAINER_KEY_REFUSED,
        title="A key under `trainer:` that stops every start",
        severities=SUSPECT,
        meaning="Nothing is trained while it stands there, whatever its value. The documentation shows "
        "`data_skip_steps` and `ignore_data_skip` under `trainer:`, and `ckpttool launch` used to write them there, "
        "too. A class of your own, named by `auto_register`, may take other keys and is not judged.",
        evidence="The code of 1.3.2 to 2.1.0, and a start of each: all trainer classes take `model_name` alone.",
        mindformers="Passes every key but `type` to the trainer's class: TypeError: CausalLanguageModelingTrainer."
        "__init__() got an unexpected keyword argument 'data_skip_steps'.",
        remedy=(
            "Delete the key, or move it to the top level. The keys of the data position are written there by:",
            "ckpttool launch DIR --config BASE.yaml --output NEW.yaml",
        ),
    ),
    Explanation(
        code=Code.STREAM_STATE_MISSING,
        title="Streaming data lack the state from which they would go on",
        severities=(Severity.SUSPECT, Severity.UNKNOWN),
        meaning="With `streaming: True` the data loader keeps its position in files of its own. Those of the "
        "checkpoint's step are missing or torn on some rank. Unknown where nobody can tell: the folder is named "
        "relative to another one, or the config does not tell which ranks read data.",
        evidence="`dataset_state_dir/step_N/dataset_state_rankR.json` of each rank that reads data; N is the step at "
        "which MindFormers resumes. Later files prove no step, for the data are fetched ahead.",
        mindformers="1.8 and later stop at the first batch: FileNotFoundError, Dataset state file not found.",
        remedy=("Restore the files, or take a checkpoint that has them:", "ckpttool resolve DIR --checkpoint NAME"),
    ),
    Explanation(
        code=Code.STREAM_POSITION_FIXED,
        title="Streaming data cannot start where it was asked",
        severities=SUSPECT,
        meaning="Streaming data go on where the state files of the checkpoint's step say. A new data set, a changed "
        "batch size or a way around a spike cannot move them: the loader goes on at the old place, repeats a sample "
        "for ever, or stops.",
        evidence="The config's `train_dataset.data_loader` against what was asked; run with the real loader.",
        mindformers="Loads the state of its own step number, whatever `data_skip_steps` and `ignore_data_skip` say.",
        remedy=("Leave the option out, or start a new training from the weights alone.",),
    ),
    Explanation(
        code=Code.CONFIG_WRONG_TYPE,
        title="A setting is of the wrong type",
        severities=_NOTE_OR_SUSPECT,
        meaning="YAML reads `1e-5` and `'True'` as text, `1_2` as 12. " + _WHICH,
        evidence="The type that the YAML loader makes of it is compared with the type that the code needs.",
        mindformers="Fails late, or takes any text for True.",
        remedy=("Write it as the message says: 1.0e-05, True, 8, without quotes.",),
    ),
    Explanation(
        code=Code.PREFIX_DIFFERS,
        title="The config saves under another prefix than the checkpoint has",
        severities=SUSPECT,
        meaning="The next save begins a second training in the folder, by its file names: neither its `_1`, `_2` nor "
        "its steps go on from what is there, and what shares a folder has to be told apart with --prefix ever after. "
        "Often the config is another training's.",
        evidence="`prefix` of the CheckpointMonitor callback, or of the `checkpoint:` section, and what precedes "
        "`_rank_N` (`-model-` in the newer layout) in the file names.",
        mindformers="Loads what it is told to load, whatever the prefix, and saves under the config's.",
        remedy=(
            "Write the prefix that the message names; where the change is meant, accept it:",
            "ckpttool preflight DIR --config BASE.yaml --allow prefix-differs",
        ),
    ),
    Explanation(
        code=Code.BATCH_SIZE_UNKNOWN,
        title="Nothing tells how large the batches of the coming run are",
        severities=NOTE,
        meaning="So nobody can say how many of them were seen. The launch config names no `data_skip_steps`, and "
        "clears one that stands there.",
        evidence="A setting that the batch size is computed from is no number, or the config only adds to a "
        "`base_config`.",
        mindformers="Scales the checkpoint's step by the batch size that it really has, unless `data_skip_steps` says "
        "another number; in floating point, so that a step may be lost.",
        remedy=(
            "Say the batch size, over all devices:",
            "ckpttool launch DIR --config BASE.yaml --output NEW.yaml --gbs N",
        ),
    ),
    Explanation(
        code=Code.CONFIG_DISAGREES,
        title="The config does not fit the checkpoint, or contradicts itself",
        severities=_NOTE_OR_SUSPECT,
        meaning=f"Layout, file format, ranks, batch size or sink size are not those of the checkpoint. {_WHICH}",
        evidence="The config is compared with what stands inside the checkpoint's files.",
        mindformers="Fails at the load, finds no checkpoint, or trains on from another step than it should.",
        remedy=(
            "Mend the base config as the message says, then:",
            "ckpttool launch DIR --config BASE.yaml --output NEW.yaml",
        ),
    ),
    Explanation(
        code=Code.COUNTER_ROUNDED,
        title="MindFormers will not scale a step counter exactly",
        severities=_NOTE_OR_SUSPECT,
        meaning="After a change of the global batch size it multiplies counters by a floating-point ratio, or (newer "
        "layout, the optimizer's step) not at all. A note where only labels are off; suspect where the learning rate "
        "is.",
        evidence="The same arithmetic (float32 in the rank_N layout, float64 in the newer one) against whole numbers.",
        mindformers="27 steps from batches of 56 to 12 become 125 instead of 126.",
        remedy=(
            "The data are safe: data_skip_steps is exact. Sizes at which all is exact:",
            "ckpttool scale-skip DIR --new-gbs N",
        ),
    ),
    Explanation(
        code=Code.SINK_SIZE_CHANGED,
        title="Another sink size than in the run that saved",
        severities=(Severity.SUSPECT,),
        meaning="With data sinking the checkpoint counts sinks, not steps. With another sink size the same number of "
        "sinks means another number of steps, and the training ends too early or too late.",
        evidence="The old size is step_num / epoch_num inside the checkpoint, the new one is in the config or "
        "--sink-size.",
        mindformers="2 to 4 at step 40 of 200 trains 120 more steps instead of 160.",
        remedy=("Keep runner_config.sink_size as it was, or correct runner_config.epochs.",),
    ),
    Explanation(
        code=Code.EPOCH_COUNTER_SHIFTS,
        title="MindFormers will be wrong about the epoch",
        severities=_NOTE_OR_SUSPECT,
        meaning="After a change of the global batch size its counters of steps and of epochs (or sinks) no longer "
        "agree. A note where less than a sink is at stake, suspect where a whole epoch would be skipped.",
        evidence="Both counters are computed as MindFormers does, and compared.",
        mindformers="Takes a step that rounds to the end of an epoch for a finished epoch.",
        remedy=("Choose a batch size at which both agree (the message names one), or raise runner_config.epochs.",),
    ),
)
