"""Findings about a resume that only the logs of both runs show."""

from __future__ import annotations

from ckpttool.core.findings import NOTE, SUSPECT, UNKNOWN, Row, Rows

_MEASURED = "The thresholds come from 249 small training runs, printed in 38 ways; no logs of GPUs or NPUs yet."

_SEEN = "Megatron-LM and torchtitan: read in code."

_AGAIN = "    ckpttool postflight DIR"


class PostflightCode(metaclass=Rows):
    """Findings about a resume that only the logs of both runs show."""

    RESUME_POSITION_WRONG = Row(
        "resume-position-wrong",
        weights=(SUSPECT,),
        check="launch",
        remedy="start it with the settings that `ckpttool resolve` prints, which load the planned checkpoint",
        group="Training logs",
        headline="The resumed run continues from another step than planned",
        meaning=(
            "The first step in the log of the resumed run does not follow the step of the planned checkpoint. The "
            "trainer loaded an older checkpoint, or none, and repeats more steps than necessary."
        ),
        evidence=(
            "The first logged step is compared with the step of the plan or of --from-step, and with the steps of the "
            "checkpoints in the tree. " + _SEEN
        ),
        trainers={
            "MindFormers": (
                "With `resume_training: True` it loads the newest name that all ranks have; without it, or with "
                "`no_load_optim: True`, only weights, and begins at step 1."
            ),
            "Hugging Face's Trainer": (
                "`resume_from_checkpoint=True` loads the highest number; without it, the steps begin at 1."
            ),
            "Lightning": (
                "`ckpt_path='last'` loads the newest last*.ckpt; without a `ckpt_path`, the steps begin at 0."
            ),
            "Megatron-LM": "It loads the iteration in latest_checkpointed_iteration.txt, unless `--ckpt-step` is set.",
            "torchtitan": "It loads the newest step, unless `--checkpoint.load_step` is set.",
        },
        to_do=(
            "Stop the run if the lost steps matter, and start it with the settings that load the planned checkpoint:",
            "    ckpttool resolve DIR",
        ),
    )

    RESUME_LEARNING_RATE_RESTARTED = Row(
        "resume-learning-rate-restarted",
        weights=(SUSPECT,),
        check="launch",
        remedy="restore the scheduler's state with the weights, and resume again from the same checkpoint",
        group="Training logs",
        headline="The learning-rate schedule began again at its first step",
        meaning=(
            "The step counter continues, but the learning rate has the values of the first steps: the state of the "
            "scheduler was not restored. This wastes steps, or undoes progress."
        ),
        evidence=(
            "The learning rate of every step that both runs log is compared, to six digits. It differs from the first "
            "run's value at the same step, and equals its value as many steps after the start. " + _SEEN
        ),
        trainers={
            "MindFormers": "The file has weights and counters, but no optimizer state (`global_step`).",
            "Hugging Face's Trainer": ("Without scheduler.pt or without optimizer.pt, it silently loads neither."),
            "Lightning": "`lr_schedulers` in the checkpoint is an empty list, which Lightning loads silently.",
            "Megatron-LM": ("`--finetune`, `--no-load-optim` or `--override-opt_param-scheduler`."),
            "torchtitan": "`lr_scheduler` is in `checkpoint.exclude_from_loading`.",
        },
        to_do=(
            "Stop the run, correct the setting, and resume from the same checkpoint. If the new schedule is intended:",
            "    ckpttool postflight DIR --allow resume-learning-rate-restarted",
        ),
    )

    RESUME_OPTIMIZER_LOST = Row(
        "resume-optimizer-lost",
        weights=(SUSPECT,),
        check="launch",
        remedy="check that the checkpoint has the optimizer state and that the trainer loads it, then resume again",
        group="Training logs",
        headline="The optimizer state was not restored",
        meaning=(
            "The first repeated step is equal, so weights and batches are right, but the next ones differ: the "
            "moments of the optimizer began at zero. The effect on the loss fades within about 30 steps. If the logs "
            "do not show the learning rate, it may be the cause instead."
        ),
        evidence=(
            "The difference grows from at most 0.4 % of the step noise to more than 5 % within five steps; or only the "
            "first step has the learning rate of a new optimizer. " + _MEASURED + " " + _SEEN
        ),
        trainers={
            "MindFormers": ("The save has no `-opt-` files; in PyNative also `load_balanced: True`."),
            "Hugging Face's Trainer": ("Without optimizer.pt or without scheduler.pt, it silently loads neither."),
            "Lightning": "`optimizer_states` is an empty list, which it loads silently.",
            "Megatron-LM": "`--no-load-optim`, `--no-save-optim` or `--finetune`.",
            "torchtitan": "`optimizer` is in `checkpoint.exclude_from_loading`, or only the model was saved.",
        },
        to_do=(
            "Check whether the checkpoint has the optimizer state; else resume from one that has it:",
            "    ckpttool inspect DIR:NAME",
        ),
    )

    RESUME_DATA_REPEATED = Row(
        "resume-data-repeated",
        weights=(SUSPECT,),
        check="launch",
        remedy="set the data position that `ckpttool resolve` prints, and resume again from the same checkpoint",
        group="Training logs",
        headline="The resumed run trains on samples that were trained on before",
        meaning=(
            "The losses follow those of earlier steps of the first run: the data began again, or at an earlier "
            "position. The samples after it are trained on twice, and others may never be read."
        ),
        evidence=(
            "The changes of the loss from step to step are compared with those of the first run at every offset; one "
            "offset correlates far better than all others. " + _MEASURED + " " + _SEEN
        ),
        trainers={
            "MindFormers": (
                "`data_skip_steps` is too small, or `ignore_data_skip` is set. `launch` writes the right values."
            ),
            "Hugging Face's Trainer": "`ignore_data_skip` is set: the data begins again at the start of the epoch.",
            "Lightning": (
                "The data loader saves no state, so the epoch begins again. Use a loader with state_dict(), such as "
                "torchdata's StatefulDataLoader."
            ),
            "Megatron-LM": "`--finetune` sets the consumed samples to zero.",
            "torchtitan": "`dataloader` is in `checkpoint.exclude_from_loading`.",
        },
        to_do=(
            "Show the position at which the data should resume, and the setting for it:",
            "    ckpttool resolve DIR",
        ),
    )

    RESUME_DATA_OTHER = Row(
        "resume-data-other",
        weights=(SUSPECT,),
        check="launch",
        remedy="compare seed, data set, batch size and data position of both runs",
        group="Training logs",
        headline="The resumed run trains on other batches than the first run",
        meaning=(
            "The level of the loss is right, but its changes from step to step are not those of the first run: the "
            "order of the samples or the position of the data differs. Samples may be skipped or repeated."
        ),
        evidence=(
            "The changes of the loss correlate by at most 0.5 with those of the first run; with the same data they "
            "correlate by at least 0.7 even if another part is wrong. " + _MEASURED + " " + _SEEN
        ),
        trainers={
            "MindFormers": (
                "`data_skip_steps` is wrong, `ignore_data_skip` is set, or the seed of shuffled data changed."
            ),
            "Hugging Face's Trainer": "`seed`, `data_seed`, the batch size or the number of ranks changed.",
            "Lightning": "A shuffled loader without a saved state draws another order, in the middle of an epoch.",
            "Megatron-LM": "`--seed`, `--data-path`, `--split` or the number of training samples changed.",
            "torchtitan": "The number of data-parallel ranks, the seed or the data set changed.",
        },
        to_do=(
            "Compare the data settings of both runs with `ckpttool resolve DIR`. If the other data is intended:",
            "    ckpttool postflight DIR --allow resume-data-other",
        ),
    )

    RESUME_RANDOM_STATE_LOST = Row(
        "resume-random-state-lost",
        weights=(UNKNOWN,),
        check="launch",
        remedy="check whether the random-number state is saved and loaded; on other ranks or devices this is lawful",
        group="Training logs",
        headline="The random-number state may not have been restored",
        meaning=(
            "The losses differ by small, even amounts around those of the first run, as with other dropout masks. "
            "The run is usable, but not reproducible. Another number of ranks, another precision or other devices "
            "look the same and are lawful, so this is only suspected: exit 14."
        ),
        evidence=(
            "Over at least 20 repeated steps, the differences have no trend, no drift and no relation to each other. "
            + _MEASURED
        ),
        trainers={
            "MindFormers": "It does not save the random-number state: with dropout, every resume differs like this.",
            "Hugging Face's Trainer": "The checkpoint has no rng_state file for a rank; Trainer does not report it.",
            "Megatron-LM": "`--no-load-rng`, or `--no-save-rng`.",
        },
        to_do=("If both runs have the same ranks, precision and devices, check the settings above; else accept it.",),
    )

    RESUME_OTHER_CHECKPOINT = Row(
        "resume-other-checkpoint",
        weights=(SUSPECT,),
        check="launch",
        remedy="check that the files of the checkpoint belong to its step: ckpttool scan DIR",
        group="Training logs",
        headline="The resumed run has the weights of another checkpoint",
        meaning=(
            "The step counter is that of the planned checkpoint, but the losses are those of other weights, usually "
            "older ones: their level is higher, or they repeat the steps after another save exactly."
        ),
        evidence=(
            "The losses after the resume are compared with those after every save in the tree, and their mean with "
            "that of the first run. " + _MEASURED
        ),
        trainers={
            "MindFormers": (
                "A `*.ckpt` file directly in the checkpoint folder replaces the weights on all ranks, or the shards "
                "are those of another step."
            ),
            "Hugging Face's Trainer": "The folder was copied or renamed, or only a part of it was replaced.",
        },
        to_do=(
            "Verify the checkpoint, and compare the steps that its files record:",
            "    ckpttool scan DIR",
            "    ckpttool verify DIR --level checksum",
        ),
    )

    RESUME_WEIGHTS_LOST = Row(
        "resume-weights-lost",
        weights=(SUSPECT,),
        check="launch",
        remedy="stop the run, and start it with the settings that `ckpttool resolve` prints",
        group="Training logs",
        headline="The resumed run started with fresh weights",
        meaning=(
            "The loss begins near the value with which the first run began, and far above its level at the save: the "
            "weights were initialized, not loaded."
        ),
        evidence=(
            "The first losses of the resumed run are compared with the start of the first run and with the level "
            "around each save. " + _MEASURED + " " + _SEEN
        ),
        trainers={
            "MindFormers": (
                "PyNative starts at step 1 with random weights if `load_path` is wrong or empty. A save without a "
                "`-model-` file starts at its own step."
            ),
            "Hugging Face's Trainer": "`resume_from_checkpoint` was not passed to `train`.",
            "Lightning": (
                "`ckpt_path` was not passed to `fit`, or it is 'last' without a last*.ckpt, which is only a warning."
            ),
            "Megatron-LM": "`--load` names a folder without a tracker file.",
            "torchtitan": "Checkpoints are off, or the folder has none.",
        },
        to_do=("Stop the run, and start it with the settings that load the checkpoint:", "    ckpttool resolve DIR"),
    )

    RESUME_DIFFERS = Row(
        "resume-differs",
        weights=(SUSPECT,),
        check="launch",
        remedy="compare the settings of both runs: precision, devices, ranks, learning rate",
        group="Training logs",
        headline="The resumed run differs from the first run, for an unnamed cause",
        meaning=(
            "The repeated steps differ by more than a correct resume allows, and no rule identifies the part that is "
            "wrong. Other precision, other devices or another number of ranks change the arithmetic and can be the "
            "cause."
        ),
        evidence=(
            "Half of the first repeated losses differ by more than 2 % of the step noise (10 % if not every step is "
            "logged); the largest value of a correct resume was 0.6 %. Or the learning rates of a step differ. "
            + _MEASURED
        ),
        to_do=(
            "Compare the settings of both runs, and check that the checkpoint is intact:",
            "    ckpttool verify DIR --level checksum",
            "If the difference is intended:",
            "    ckpttool postflight DIR --allow resume-differs",
        ),
    )

    RESUME_NOT_SHOWN = Row(
        "resume-not-shown",
        weights=(UNKNOWN,),
        check="launch",
        may_be_allowed=False,
        group="Training logs",
        headline="The logs do not show whether the resume is right",
        meaning=(
            "Nothing contradicts the plan, but a part is not proven: the resumed run has not repeated enough steps, "
            "the first run logged nothing after the save, the loss is printed with too few digits, the batch size "
            "changed, or the trainer restores neither dropout masks nor the order of the next epoch. The message says "
            "which."
        ),
        evidence=(
            "Data and weights have to be equal to within 1 % of the step noise, and ten repeated steps have to show "
            "no other update. " + _MEASURED
        ),
        to_do=(
            "Wait for more steps:",
            f"{_AGAIN} --wait 10m",
            (
                "For the next resume, log every step with at least four digits, with the learning rate and the "
                "gradient norm."
            ),
        ),
    )

    RESUME_NOT_PROVABLE = Row(
        "resume-not-provable",
        weights=(NOTE,),
        check="launch",
        group="Training logs",
        headline="The run logs too rarely to show whether its resume is right",
        meaning=(
            "A run that stops repeats the steps after its last checkpoint when it resumes. postflight compares the "
            "logged ones. With these intervals, there will be fewer than ten of them, so a lost optimizer state, for "
            "example, will not be noticed. The launch itself is not affected."
        ),
        evidence=(
            "The config sets the intervals, or the trainer's defaults apply. Without a config, the checkpoint's own "
            "records count. If neither shows them, nothing is reported."
        ),
        trainers={
            "MindFormers": "`per_print_times` of MFLossMonitor; a data sink logs and saves only at its end.",
            "Hugging Face's Trainer": (
                "By default, `logging_steps` and `save_steps` are 500: nothing can be compared. With "
                "`logging_strategy: epoch`, the length of an epoch decides."
            ),
            "Lightning": "`log_every_n_steps` is 50 by default; ModelCheckpoint has `every_n_train_steps`.",
            "torchtitan": "`metrics.log_freq` is 10 by default, and `checkpoint.interval` 500.",
        },
        to_do=("Log every step, or every 10 steps and save every 100. The next resume can then be checked:", _AGAIN),
    )
