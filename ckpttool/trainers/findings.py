"""Findings that several trainers share, but the core does not."""

from __future__ import annotations

from ckpttool.core.findings import NOTE, SUSPECT, Row, Rows


class TrainersCode(metaclass=Rows):
    """Findings that several trainers share, but the core does not."""

    HEALTH_CONTRADICTORY = Row(
        "health-contradictory",
        weights=(NOTE, SUSPECT),
        check="health",
        group="Records",
        headline="A checkpoint is recorded as both healthy and unhealthy",
        meaning=(
            "Two entries of the record disagree, because MindFormers appends one at each save and removes none. Or "
            "the health according to the log and your threshold differs from the record: a note if the log shows "
            "better health, or if its result was already used."
        ),
        evidence="All entries for a name are read, and the worst counts. The log at the save takes precedence.",
        trainers={
            "MindFormers": "Never filters by these entries, so it does not notice.",
        },
        to_do=(
            "Update the record from the log, or use the checkpoint anyway:",
            "    ckpttool health DIR --threshold X --write",
            "    ckpttool resolve DIR --ignore-health",
        ),
    )

    CONFIG_KEY_IGNORED = Row(
        "config-key-ignored",
        weights=(NOTE, SUSPECT),
        group="Settings",
        headline="A setting is not read by MindFormers at this place, or has no effect",
        meaning=(
            "The setting has no effect here, although one was probably intended. A note if `ckpttool launch` "
            "corrects it or if it changes nothing, otherwise suspect."
        ),
        evidence=("The keys and their places are compared with those that MindFormers' code reads; the line is given."),
        trainers={
            "MindFormers": "Reads the resume keys only at the top level; and `data_skip_steps: 0` means unset.",
        },
        to_do=(
            ("Move the key to the place in the message. The settings of a resume are written to the right places by:"),
            "    ckpttool launch DIR --config BASE.yaml --output NEW.yaml",
        ),
    )

    CONFIG_WRONG_TYPE = Row(
        "config-wrong-type",
        weights=(NOTE, SUSPECT),
        group="Settings",
        headline="A setting has the wrong type",
        meaning=(
            "YAML reads `1e-5` and `'True'` as text, `1_2` as 12; a count such as `save_checkpoint_steps` is 0. A "
            "note if `ckpttool launch` corrects it or if it changes nothing, otherwise suspect."
        ),
        evidence="The type that the YAML loader produces is compared with the type and range that the code requires.",
        trainers={
            "MindFormers": "Fails late, or treats any text value as True.",
        },
        to_do=("Write the value as shown in the message, without quotes, for example 1.0e-05, True or 8.",),
    )

    BATCH_SIZE_UNKNOWN = Row(
        "batch-size-unknown",
        weights=(NOTE,),
        check="launch",
        group="Settings",
        headline="The global batch size of the next run is unknown",
        meaning=(
            "Without it, the number of batches to skip is unknown. The launch config has no `data_skip_steps`; an "
            "existing one is removed."
        ),
        evidence=(
            "A setting that determines the batch size is not a number, or the config only extends a `base_config`. "
            "In DeepSpeed's JSON it is `auto`, which the trainer fills in."
        ),
        trainers={
            "MindFormers": (
                "Scales the checkpoint's step by its real batch size, unless `data_skip_steps` gives another "
                "number; in floating point, so a step may be lost."
            ),
        },
        to_do=(
            "Give the batch size over all devices:",
            "    ckpttool launch DIR --config BASE.yaml --output NEW.yaml --gbs N",
            "DeepSpeed: give the number of data-parallel ranks:",
            "    ckpttool preflight DIR --config ds.json --dp N",
        ),
    )

    TRAINING_COMPLETE = Row(
        "training-complete",
        weights=(NOTE, SUSPECT),
        check="launch",
        group="Starts",
        headline="The checkpoint is the last one of a completed run",
        meaning="The run has trained all the epochs in the config, so there is nothing to resume.",
        evidence=(
            "The checkpoint's counters, as MindFormers scales them, and the batches per epoch: from Megatron's "
            "`sizes`, from the line of that step in the training log beside the tree (`step:[n/N]`), or from file "
            "names (4_20 at step 80). If none of them shows it, a note gives the length of an epoch at which the "
            "training is complete. For other trainers, the save's own step and epoch."
        ),
        trainers={
            "MindFormers": (
                "Stops with a ValueError: the parameter 'epoch' must bigger than parameter 'initial_epoch'."
            ),
            "Hugging Face's Trainer": "Ends with exit 0 after one step, or none.",
            "Lightning": "Ends with exit 0 without a step, or stops with an error.",
            "Composer": "`max_duration` is reached: stops with a ValueError.",
        },
        to_do=(
            "To train longer, raise runner_config.epochs (MindFormers), max_steps or the epochs in the config.",
            "If steps should remain, data sinking or the batch size differ from those of the save: restore them.",
            (
                "If it is a note, check how many steps an epoch had, or put log/ or msrun_log/ next to the "
                "checkpoint folder and run again."
            ),
        ),
    )

    RESUME_TRUE = Row(
        "resume-true",
        weights=(NOTE, SUSPECT),
        group="Rules about other trainers' configs",
        headline="The config names no save: the trainer chooses one on its own",
        meaning=(
            "Every trainer chooses by a name, a number or a time, whatever the save contains, and never falls back "
            "to an older one: a truncated newest save stops every start, or is loaded."
        ),
        evidence="From the trainers' code, and from runs with damaged trees.",
        trainers={
            "Hugging Face's Trainer": (
                "`resume_from_checkpoint: true`, or axolotl's `auto_resume_from_checkpoints: true`: the highest "
                "checkpoint-N."
            ),
            "Lightning": (
                "`ckpt_path: last`: the `last*.ckpt` with the latest modification time. If no ModelCheckpoint writes "
                "such a file, the run starts from scratch with a warning, which is more severe."
            ),
            "Composer": (
                "`autoresume: true`: the target of the link latest-rank0.pt. Without the link, it starts at step 0. If "
                "`save_latest_filename` is off, it stops with a ValueError, which is more severe."
            ),
            "Accelerate": (
                "`load_state()` with automatic naming: the highest number. It is called in a script, which is not read."
            ),
        },
        to_do=(
            "Write the path that this command reports:",
            "    ckpttool resolve DIR",
        ),
    )

    ONLY_MODEL_SAVED = Row(
        "only-model-saved",
        weights=(NOTE, SUSPECT),
        group="Rules about other trainers' configs",
        headline="Saves contain only the model, so training cannot resume from them",
        meaning=(
            "Without optimizer, schedule and random-number states, a save is only the result of training, and "
            "training cannot continue from it."
        ),
        evidence="From the config; the trainers' code and their saves show what they do with such a save.",
        trainers={
            "Hugging Face's Trainer": (
                "`save_only_model: true`: silently resumes from it with a re-initialized optimizer."
            ),
            "Lightning": (
                "`save_weights_only: true`, if no other ModelCheckpoint saves everything: stops with a KeyError."
            ),
            "Composer": (
                "`save_weights_only: true`: silently loads such a file and starts at step 0; stops at such a folder."
            ),
            "torchtitan": (
                "`last_save_model_only`, on by default since 0.2: only the last save of a completed run contains "
                "only the model; if the run is extended, it chooses that save and stops with a CheckpointException."
            ),
        },
        to_do=(
            "Switch it off if the run may have to continue; otherwise accept the finding:",
            "    ckpttool lint CONFIG --allow only-model-saved",
        ),
    )

    KEEPS_BEST_ALONE = Row(
        "keeps-best-alone",
        weights=(NOTE,),
        group="Rules about other trainers' configs",
        headline="Only the best saves are kept, not the newest",
        meaning=(
            "A metric decides what is saved or kept. A run that stops resumes from a save that may be much older."
        ),
        evidence="From the config, and the trainers' code.",
        trainers={
            "Hugging Face's Trainer": "`save_strategy: best` saves only if the metric is the best so far.",
            "Lightning": (
                "ModelCheckpoint with `monitor` deletes the newest save if it is not among the best. `save_last: "
                "true` does not help: with 2.6 last.ckpt is written only with the best (a run of 24 steps left one "
                "of step 8)."
            ),
        },
        to_do=(
            (
                "Keep the newest too: `save_strategy: steps` with `load_best_model_at_end: true`; a second "
                "ModelCheckpoint without `monitor`. Then:"
            ),
            "    ckpttool lint CONFIG",
        ),
    )

    SAVES_NOTHING = Row(
        "saves-nothing",
        weights=(NOTE, SUSPECT),
        group="Rules about other trainers' configs",
        headline="No checkpoint will be saved",
        meaning="A run that stops must restart from scratch.",
        evidence="From the config, and the trainers' code.",
        trainers={
            "Hugging Face's Trainer": (
                '`save_strategy: "no"`. Without quotes YAML makes it false, and Trainer stops with a ValueError.'
            ),
            "Composer": "`save_num_checkpoints_to_keep: 0` on a local disk; no `save_folder` is a note.",
            "Lightning": "`enable_checkpointing: false`, or `save_top_k: 0` without `save_last`.",
            "torchtitan": (
                "`enable`, which is off by default; the command line can still switch it on, so this is a note."
            ),
            "OLMo-core": "`no_checkpoints: true`, or `enabled: false` of its checkpointer.",
        },
        to_do=(
            "Switch saving on. If the run is not supposed to save, accept the finding:",
            "    ckpttool lint CONFIG --allow saves-nothing",
        ),
    )

    NEXT_SAVE_BLOCKED = Row(
        "next-save-blocked",
        weights=(NOTE,),
        check="launch",
        group="Starts",
        headline="The folder of a later save exists, and the trainer does not overwrite it",
        meaning=(
            "The run resumes from an older checkpoint and reaches the step of a later save again. Some trainers stop "
            "there, because the folder is not empty, and do so again at every start."
        ),
        evidence="From the names of the saves, and from runs in such trees.",
        trainers={
            "OLMo-core": "Stops with a FileExistsError, unless `save_overwrite` is on.",
            "NeMo AutoModel": "Stops with a FileExistsError, unless the save has `.incomplete`.",
        },
        to_do=(
            "Move the later saves out of the folder:",
            "    ckpttool prune DIR --help",
            "or let the run save to a new folder.",
        ),
    )
