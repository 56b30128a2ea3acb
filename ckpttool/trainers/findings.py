"""What several trainers find, and the core does not."""

from __future__ import annotations

from ckpttool.core.findings import NOTE, SUSPECT, Row, Rows


class TrainersCode(metaclass=Rows):
    """What several trainers find, and the core does not."""

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
