"""Findings that only MindFormers can have."""

from __future__ import annotations

from ckpttool.core.findings import DAMAGE, NOTE, SUSPECT, UNKNOWN, Row, Rows


class MindFormersCode(metaclass=Rows):
    """Findings that only MindFormers can have."""

    SHARD_RESPELLED = Row(
        "shard-respelled",
        weights=(NOTE, DAMAGE),
        verdict="missing",
        group="Checkpoints",
        headline="The numbers in a shard's name have a different form",
        meaning=(
            "For a reader 20_2 and 020_2 are the same checkpoint, but for MindFormers they are two names: it writes "
            "no leading zeros, and no suffix for the first run. The file was renamed."
        ),
        evidence=(
            "The name is compared with the name that MindFormers would write. It is damage if the rank has no file "
            "of that name; an additional file is a note."
        ),
        trainers={
            "MindFormers": (
                "With a name in `resume_training`, every rank looks for exactly that name. The rank with the "
                "differing name stops with FileNotFoundError."
            ),
        },
        to_do=("Rename the file as described in the message.",),
    )

    EXTRA_SAFETENSORS = Row(
        "extra-safetensors",
        weights=(SUSPECT,),
        group="Checkpoints",
        headline="An additional safetensors file in a single card's checkpoint",
        meaning=(
            "A single card writes no metadata.json into its iteration_N/ folder. Nothing lists the files of the "
            "checkpoint, so every *.safetensors in the folder counts, whatever its name."
        ),
        evidence=(
            "Any *.safetensors other than PREFIX-model-0000000-0000001 and PREFIX-opt-0000000-0000001; names that "
            "begin with a dot do not count."
        ),
        trainers={
            "MindFormers": (
                "Reads all of them as one checkpoint; if two contain the same parameter it stops: `Duplicate "
                "parameter_name found` (run with 2.1.0; 1.7 to 1.9 have the same code)."
            ),
        },
        to_do=("Move the file out of the folder. The checkpoint itself is fine.",),
    )

    EPOCH_DISAGREES = Row(
        "epoch-disagrees",
        weights=(DAMAGE,),
        group="Checkpoints",
        headline="Ranks of one checkpoint were saved in different epochs",
        meaning="epoch_num in one rank's file differs from the other ranks: an older file has a newer name.",
        evidence="epoch_num is read from every rank's file; the majority counts.",
        trainers={
            "MindFormers": (
                "Does not compare the epochs: every rank continues from its own counter (up to 1.7: from that of "
                "rank 0)."
            ),
        },
        to_do=(
            "Do not resume from it. Choose another checkpoint:",
            "    ckpttool resolve DIR",
        ),
    )

    META_AHEAD = Row(
        "meta-ahead",
        weights=(NOTE,),
        group="Records",
        headline="meta.json names a missing file",
        meaning=(
            "meta.json is newer than the newest shard: the shard was pruned or lost, most often in a power failure "
            "seconds after the save."
        ),
        evidence="The file named in meta.json is looked up in the same folder.",
        trainers={
            "MindFormers": (
                "Uses the lowest step of all meta.json as an upper limit, so it may still find an older checkpoint."
            ),
        },
        to_do=("Nothing to repair: ckpttool uses the shards, and `ckpttool launch` names the file itself.",),
    )

    META_BEHIND = Row(
        "meta-behind",
        weights=(NOTE,),
        group="Records",
        headline="meta.json is older than the newest shard",
        meaning=(
            "With async_save the last save of a run never reaches meta.json; neither does a save during an "
            "exception. The newer shards may be intact."
        ),
        evidence="The shard that meta.json names is compared with the newest shard, by the step inside the files.",
        trainers={
            "MindFormers": "Resumes from the older step and repeats the later steps.",
        },
        to_do=("Nothing to repair: ckpttool uses the shards, and `ckpttool launch` names the file itself.",),
    )

    META_MISSING = Row(
        "meta-missing",
        weights=(NOTE,),
        group="Records",
        headline="A rank has no meta.json",
        meaning="The trainer writes a meta.json after each save. It was never written, or not copied.",
        evidence="The file is not in the rank's folder.",
        trainers={
            "MindFormers": (
                "Uses the meta.json of other ranks. If no rank has one, it uses file times; with safetensors, "
                "versions 1.6 to 2.1 stop with a TypeError instead."
            ),
        },
        to_do=("Nothing to repair: ckpttool uses the shards, and `ckpttool launch` names the file itself.",),
    )

    META_DISAGREES = Row(
        "meta-disagrees",
        weights=(NOTE,),
        group="Records",
        headline="The meta.json files of the ranks disagree, or one contradicts itself",
        meaning=(
            "Some ranks recorded an earlier save as their last one, or a record's numbers and the file it names "
            "belong to different saves. A rank died, or files were copied."
        ),
        evidence="The records of all ranks are compared with each other, and each with the file name in it.",
        trainers={
            "MindFormers": "Uses the lowest epoch and step of all ranks.",
        },
        to_do=("Nothing to repair: ckpttool uses the shards, and `ckpttool launch` names the file itself.",),
    )

    BREAKPOINT_FILE = Row(
        "breakpoint-file",
        weights=(NOTE,),
        group="Files",
        headline="A file saved during an exception is not a checkpoint",
        meaning=(
            "exception_save leaves a *_breakpoint.ckpt. It contains the step within the epoch instead of the "
            "global step, and only some ranks may have one."
        ),
        evidence="The name ends in _breakpoint.ckpt.",
        trainers={
            "MindFormers": (
                "Such a file in any rank's folder makes the whole resume fail ('Can't match epoch and step')."
            ),
        },
        to_do=("Move it away if MindFormers is to resume on its own; a launch config is not affected.",),
    )

    TRAINER_KEY_REFUSED = Row(
        "trainer-key-refused",
        weights=(SUSPECT,),
        group="Settings",
        headline="A key under `trainer:` stops every start",
        meaning=(
            "No run can start while the key is there, whatever its value. The documentation shows `data_skip_steps` "
            "and `ignore_data_skip` under `trainer:`, and `ckpttool launch` used to write them there too. A custom "
            "class, named by `auto_register`, may accept other keys and is not checked."
        ),
        evidence="The code of 1.3.2 to 2.1.0, and a start of each: all trainer classes take only `model_name`.",
        trainers={
            "MindFormers": (
                "Passes every key except `type` to the trainer's class: TypeError: "
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
        headline="The state of streaming data is missing",
        meaning=(
            "With `streaming: True` the data loader keeps its position in its own files. Those of the checkpoint's "
            "step are missing or damaged on some rank. Unknown if the folder is a relative path, or if the config "
            "does not show which ranks read data."
        ),
        evidence=(
            "`dataset_state_dir/step_N/dataset_state_rankR.json` of each rank that reads data; N is the step at "
            "which MindFormers resumes. Later files prove no step, because data is fetched ahead."
        ),
        trainers={
            "MindFormers": ("1.8 and later stop at the first batch: FileNotFoundError, Dataset state file not found."),
        },
        to_do=(
            "Restore the files, or use a checkpoint that has them:",
            "    ckpttool resolve DIR --checkpoint NAME",
        ),
    )

    STREAM_POSITION_FIXED = Row(
        "stream-position-fixed",
        weights=(SUSPECT,),
        check="launch",
        group="Settings",
        headline="Streaming data cannot start at the requested position",
        meaning=(
            "Streaming data resumes at the position in the state files for the checkpoint's step. A new data set, a "
            "changed batch size or a resume around a spike cannot change it: the loader continues at the old "
            "position, repeats a sample forever, or stops."
        ),
        evidence="The config's `train_dataset.data_loader` is compared with the request; run with the real loader.",
        trainers={
            "MindFormers": (
                "Loads the state of its own step number, whatever `data_skip_steps` and `ignore_data_skip` say."
            ),
        },
        to_do=("Omit the option, or start a new run from only the weights.",),
    )

    PREFIX_DIFFERS = Row(
        "prefix-differs",
        weights=(SUSPECT,),
        check="launch",
        group="Settings",
        headline="The config saves under a prefix that differs from the checkpoint's",
        meaning=(
            "By its file names, the next save starts a second run in the folder: its suffixes `_1`, `_2` and its "
            "steps do not continue the existing ones, and after that --prefix is needed to distinguish them. Often "
            "the config belongs to another training run."
        ),
        evidence=(
            "`prefix` of the CheckpointMonitor callback, or of the `checkpoint:` section, is compared with the "
            "file names before `_rank_N` (`-model-` in the newer layout)."
        ),
        trainers={
            "MindFormers": (
                "Loads the configured checkpoint, whatever its prefix, and saves under the prefix in the config."
            ),
        },
        to_do=(
            "Write the prefix from the message; if the change is intended, accept it:",
            "    ckpttool preflight DIR --config BASE.yaml --allow prefix-differs",
        ),
    )

    COUNTER_ROUNDED = Row(
        "counter-rounded",
        weights=(NOTE, SUSPECT),
        check="launch",
        group="Settings",
        headline="MindFormers does not scale a step counter exactly",
        meaning=(
            "After a change of the global batch size it multiplies counters by a floating-point ratio, or (newer "
            "layout, the optimizer's step) not at all. A note if only step numbers are wrong; suspect if the "
            "learning rate is wrong."
        ),
        evidence=(
            "The same arithmetic (float32 in the rank_N layout, float64 in the newer one) is compared with whole "
            "numbers."
        ),
        trainers={
            "MindFormers": (
                "Scales 27 steps with batches of 56 samples to 125 steps with batches of 12, instead of 126."
            ),
        },
        to_do=(
            (
                "The data position is right, because data_skip_steps is exact. For batch sizes at which all counters "
                "are exact:"
            ),
            "    ckpttool scale-skip DIR --new-gbs N",
        ),
    )

    SINK_SIZE_CHANGED = Row(
        "sink-size-changed",
        weights=(SUSPECT, UNKNOWN),
        check="launch",
        group="Settings",
        headline="Data sinking differs from the run that saved the checkpoint",
        meaning=(
            "With data sinking the checkpoint counts sinks, not steps; without, it counts epochs. With another sink "
            "size, or if sinking was switched on or off, the same counter means a different number of steps, and the "
            "training ends too early, or plans more steps than the data has. With `sink_size: -1` each sink is the "
            "complete data set, so after a save within an epoch the batches of that epoch are trained again."
        ),
        evidence=(
            "The old size is step_num / epoch_num inside the checkpoint, if that is equal in all saves of the run "
            "and in their names; otherwise there was no sinking. The new one is in the config or --sink-size."
        ),
        trainers={
            "MindFormers": (
                "2 to 4 at step 40 of 200 trains 120 more steps instead of 160. Sinks of 2 switched on at step 27 "
                'of 80 plan 23 steps too many: "Exception thrown from dataset pipeline" at the end of the data, '
                "exit 1, no last save."
            ),
        },
        to_do=("Keep runner_config.sink_mode and sink_size unchanged, or correct runner_config.epochs.",),
    )

    EPOCH_COUNTER_SHIFTS = Row(
        "epoch-counter-shifts",
        weights=(NOTE, SUSPECT),
        check="launch",
        group="Settings",
        headline="MindFormers will resume in the wrong epoch",
        meaning=(
            "After a change of the global batch size its counters of steps and of epochs (or sinks) no longer "
            "agree. A note if less than a sink is affected, suspect if a complete epoch would be skipped."
        ),
        evidence="Both counters are computed as MindFormers does, and compared.",
        trainers={
            "MindFormers": "If a step rounds to the end of an epoch, treats the epoch as completed.",
        },
        to_do=("Choose a batch size at which both agree (the message names one), or raise runner_config.epochs.",),
    )

    CKPT_BESIDE_RANKS = Row(
        "ckpt-beside-ranks",
        weights=(SUSPECT,),
        check="launch",
        group="Starts",
        headline="A .ckpt next to the rank folders would be loaded instead of the checkpoint",
        meaning=(
            "There are weights (a best.ckpt, a merged file, a strategy file) in the folder that load_checkpoint "
            "names. If the chosen checkpoint consists of safetensors files, it is not affected."
        ),
        evidence=(
            "The names in the folder are checked. In runs with 1.3.2, 1.6.0, 1.8.0 and 2.1.0, all tensors came from "
            "the additional file, the data position from the file that resume_training named, and the exit code was "
            "0."
        ),
        trainers={
            "MindFormers": (
                "First checks whether the folder itself has any name that ends in .ckpt; then it loads all of "
                "those into every rank, and uses only step, epoch and loss scale from the named file. A folder or "
                "a dangling link of such a name stops it. With `auto_trans_ckpt: True` it uses the rank folders."
            ),
        },
        to_do=(
            "Move it to a folder that no training run reads:",
            "    mv output/checkpoint/best.ckpt output/",
        ),
    )

    PREFIX_HOLDS_RANK = Row(
        "prefix-holds-rank",
        weights=(SUSPECT,),
        check="launch",
        group="Starts",
        headline="The files' prefix contains a rank",
        meaning=(
            "In `my_rank_7_model_rank_0-15_2.ckpt` the first rank number is part of the prefix, but MindFormers "
            "treats it as the rank of the file, and replaces it with each rank's own number."
        ),
        evidence=("The name that MindFormers derives from rank 0's file is compared with the file that each rank has."),
        trainers={
            "MindFormers": (
                "Looks for `my_rank_1_model_rank_0-15_2.ckpt` on rank 1 and stops with FileNotFoundError. Saves "
                "under such a prefix are refused from 1.7 on."
            ),
        },
        to_do=(
            "Rename the files, here from my_rank_7_model to my_model, and update meta.json:",
            "    for f in output/checkpoint/rank_*/my_rank_7_model_*; do",
            '      mv "$f" "${f%/*}/my_model_${f##*/my_rank_7_model_}"',
            "    done",
            "    ckpttool repair pointer output --apply",
        ),
    )

    OPTIMIZER_MISSING = Row(
        "optimizer-missing",
        weights=(NOTE, SUSPECT),
        check="launch",
        group="Starts",
        headline="The checkpoint contains no optimizer state",
        meaning=(
            "An iteration of the newer layout has only model shards. With `no_save_optim: True` (or `save_optimizer: "
            "False`) that is intended; otherwise the files were lost, and there is no other sign of it in the tree."
        ),
        evidence=(
            "No file of the checkpoint is named PREFIX-opt-…, and its record, if it has one, lists none. A note if "
            "the config has no_save_optim or no_load_optim."
        ),
        trainers={
            "MindFormers": (
                "Loads the weights and continues at their step; the optimizer's moments keep their initial value, "
                "zero (run with 2.1.0 on one card)."
            ),
        },
        to_do=(
            "Restore the -opt- files, or accept the finding:",
            "    ckpttool preflight --allow optimizer-missing …",
        ),
    )

    PATH_IS_PATTERN = Row(
        "path-is-pattern",
        weights=(SUSPECT,),
        check="launch",
        group="Starts",
        headline="A character in the path of safetensors files makes it a pattern",
        meaning=(
            "The training would start, but not from this checkpoint. Files in ckpt format are opened by name and are "
            "not affected."
        ),
        evidence=(
            "From the absolute path that a launch config would contain, the code of 1.6.0 to 2.1.0, and a run "
            "with 2.1.0."
        ),
        trainers={
            "MindFormers": (
                "Passes the path to `glob`: `run[1]/` matches `run1/`. If nothing matches, it silently loads "
                "nothing and trains from random weights, at the data position of the checkpoint."
            ),
        },
        to_do=(
            "Rename the folder, or use a link:",
            "    ln -s 'run[1]/output' output",
            "    ckpttool launch output",
        ),
    )

    RANK_FOLDER_ON_ONE_DEVICE = Row(
        "rank-folder-on-one-device",
        weights=(SUSPECT,),
        check="launch",
        group="Starts",
        headline="A run on one device cannot load safetensors from rank folders",
        meaning=(
            "A run without `use_parallel: True` can save such files but cannot resume from them, by folder or by "
            "file. It can resume from ckpt files, and from the newer layout."
        ),
        evidence="From the config, the layout, the code of 1.6.0 to 2.1.0, and runs with 1.8.0 and 2.1.0.",
        trainers={
            "MindFormers": "ValueError: when input checkpoint file is rank dir, Please set use_parallel: True",
        },
        to_do=(
            "Convert the shards to the format ckpt, and resume from there:",
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
        headline="With MS_ENABLE_TFT MindFormers loads the newest file instead of the named one",
        meaning=(
            "Fault tolerance (TTP, UCE, ARF or HCCE in MS_ENABLE_TFT) is designed for a restart after its own save. "
            "In any other resume, it does not look for the chosen checkpoint."
        ),
        evidence=(
            "From the environment of this ckpttool process, the config, and the code of 1.6.0 to 2.1.0; the function "
            "was run with 2.1.0. Start ckpttool with the environment of the training."
        ),
        trainers={
            "MindFormers": (
                "Ignores resume_training and uses the last file of every rank's folder; the newest modification "
                "time wins, intact or not."
            ),
        },
        to_do=(
            "Start once without the variable:",
            "    unset MS_ENABLE_TFT",
        ),
    )

    REDUNDANCY_NOT_LOADABLE = Row(
        "redundancy-not-loadable",
        weights=(SUSPECT,),
        check="launch",
        group="Starts",
        headline="Data-parallel mode cannot load a checkpoint saved with remove_redundancy",
        meaning=(
            "Each rank's file has a part of the tensors. To redistribute them, MindSpore needs the layout of a "
            "compiled network, and it compiles one only in (semi-)automatic parallelism."
        ),
        evidence=(
            "From the file's own `remove_redundancy`; if it has none, and for ckpt, from the config; and from a run."
        ),
        trainers={
            "MindFormers": (
                "ValueError: When loading a parameter dict that has removed redundancy, the network should be compiled."
            ),
        },
        to_do=(
            "Resume from a checkpoint that was saved without remove_redundancy, and switch it off:",
            "    ckpttool preflight DIR --config BASE.yaml --checkpoint NAME",
        ),
    )

    SKIP_BEYOND_DATA = Row(
        "skip-beyond-data",
        weights=(SUSPECT,),
        check="launch",
        group="Starts",
        headline="More batches are skipped than all epochs have",
        meaning="The data position is after the end of the data, often because of a skip around a spike near the end.",
        evidence=(
            "From the plan's data_skip_steps, the config's epochs, the batches per epoch (as for training-complete), "
            "and a run with 2.1.0."
        ),
        trainers={
            "MindFormers": "Fails before the first step: reset step must be less than dataset_size * num_epochs.",
        },
        to_do=("Skip fewer batches, or raise runner_config.epochs to the number in the message.",),
    )

    DATA_END_EARLY = Row(
        "data-end-early",
        weights=(NOTE,),
        check="launch",
        group="Starts",
        headline="The data ends before the planned steps",
        meaning=(
            "After a skip around a spike the data is ahead of the steps, or the data set has shrunk. The training "
            "is correct until the data ends."
        ),
        evidence="Both are counted as MindFormers counts them, and were compared with runs of 2.1.0.",
        trainers={
            "MindFormers": (
                "Plans by steps, not by the data. At the end of the data it stops with `Exception thrown from "
                "dataset pipeline` and exit code 1, and the training since the last save is lost. A different number "
                "of epochs moves both ends by the same amount."
            ),
        },
        to_do=(
            "End the run cleanly one step before, with a callback in BASE.yaml and the number in the message:",
            "    callbacks: [..., {type: TrainCallBack, stop_step: N}]",
        ),
    )

    ENDS_ELSEWHERE = Row(
        "ends-elsewhere",
        weights=(NOTE,),
        check="launch",
        group="Starts",
        headline="The run will end at a different step than before",
        meaning=(
            "A run without sinks trains complete epochs, not the remaining steps. It ends at a different step if the "
            "data restarts, or resumes at another position, in the middle of an epoch, or if the data set has grown "
            "or shrunk since the first epoch: from step 50 of 80, with 20 batches per epoch that became 30, it ends "
            "at step 90 of 120. The new size is known only if the config gives it (Megatron's `sizes`); otherwise "
            "the message says for which size the end is right."
        ),
        evidence="Steps and data are counted as MindFormers counts them, and were compared with runs of 2.1.0.",
        trainers={
            "MindFormers": (
                "Trains (epochs - completed epochs) complete epochs: 60 steps from step 27 of 80. The learning "
                "rate stays at the end of its schedule."
            ),
        },
        to_do=(
            "End the run at the right step, with a callback in BASE.yaml and the number in the message:",
            "    callbacks: [..., {type: TrainCallBack, stop_step: N}]",
        ),
    )

    RESLICING_PICKS = Row(
        "reslicing-picks",
        weights=(SUSPECT,),
        check="launch",
        group="Starts",
        headline="Resharding .ckpt files loads a different file from the one named",
        meaning=(
            "With `auto_trans_ckpt: True` the weights would come from another save, while step, epoch and data "
            "position come from the named one. Safetensors files are resharded by the label of the named file and "
            "are not affected."
        ),
        evidence=(
            "The names in the ranks' folders, the config, and the code of MindFormers 1.3.2 to 2.1.0 and of "
            "MindSpore 2.7.2 and 2.10.0. Names are compared as text: -5_2 comes after -15_2."
        ),
        trainers={
            "MindFormers": (
                "Passes the folder to mindspore.transform_checkpoints, which uses the last name of each rank's "
                "folder; with transform_process_num or transform_by_rank the newest modification time."
            ),
        },
        to_do=(
            "Copy the checkpoint's files, each into its rank_N/, to a separate folder, then:",
            "    ckpttool preflight FOLDER --config BASE.yaml",
        ),
    )

    RESLICING_STOPS = Row(
        "reslicing-stops",
        weights=(SUSPECT,),
        check="launch",
        group="Starts",
        headline="Resharding .ckpt files fails on a name next to the rank folders",
        meaning=(
            "With `auto_trans_ckpt: True` the start fails. Without it, and with safetensors, such names are harmless."
        ),
        evidence="The names beside the ranks' folders, the config, and the code of MindFormers 1.3.2 to 2.1.0.",
        trainers={
            "MindFormers": (
                "Lists rank_* and converts the text after the last _ of each name to a number, which raises a "
                "ValueError for rank_0_bak. The numbers must be 0, 1, 2 and so on; otherwise it stops with `The "
                "rank_4 folder was not found`."
            ),
        },
        to_do=(
            "Move anything that is not a rank's folder elsewhere:",
            "    mv output/checkpoint/rank_0_bak output/",
        ),
    )

    ONLY_SAVES_STRATEGY = Row(
        "only-saves-strategy",
        weights=(SUSPECT,),
        group="Rules about configs",
        headline="With this config, the run compiles and writes strategy files, but trains nothing",
        meaning=(
            "`only_save_strategy: True` prepares a change of the parallel sizes. A job with this setting ends after "
            "minutes with exit code 0 and looks successful."
        ),
        evidence="The settings are compared with the code of MindFormers 1.6 to 2.1; the line is given.",
        trainers={
            "MindFormers": "Exits with code 0; in the newer layout it stops with a ValueError.",
        },
        to_do=(
            "Write `only_save_strategy: False`, then:",
            "    ckpttool lint BASE.yaml",
        ),
    )

    MICRO_BATCHES_FEW = Row(
        "micro-batches-few",
        weights=(SUSPECT,),
        group="Rules about configs",
        headline="There are fewer micro batches than pipeline stages",
        meaning="Each stage needs a micro batch; MindSpore accepts no fewer.",
        evidence="`micro_batch_num` is compared with `pipeline_stage`, if automatic parallelism uses them.",
        trainers={
            "MindFormers": (
                "Passes both values on. MindSpore stops during compilation, after all nodes have waited for minutes."
            ),
        },
        to_do=(
            "Raise `micro_batch_num`. The global batch size grows with it, so compute the data position again:",
            "    ckpttool lint BASE.yaml",
        ),
    )

    DATA_STRATEGY_MISSING = Row(
        "data-strategy-missing",
        weights=(SUSPECT,),
        group="Rules about configs",
        headline="The batch is to be sliced, but no strategy is set",
        meaning="With `full_batch: False` each input needs its slices in `dataset_strategy`.",
        evidence="The settings are compared with the code of MindFormers 1.6 to 2.1; the line is given.",
        trainers={
            "MindFormers": (
                "1.6 and later stop with a ValueError; 1.3.2 and older count every device as data-parallel."
            ),
        },
        to_do=(
            "Write `dataset_strategy: [[data_parallel, 1], …]`, a pair per input, under `parallel:`.",
            "    ckpttool lint BASE.yaml",
        ),
    )

    EXCLUSIVE_SWITCHES = Row(
        "exclusive-switches",
        weights=(SUSPECT,),
        group="Rules about configs",
        headline="Two mutually exclusive settings are on",
        meaning=(
            "Skipping data by the global norm cannot be combined with `check_for_global_norm`. In 1.9 and later, it "
            "also cannot be combined with any setting under `health_checkpoint:`, which the health monitor uses."
        ),
        evidence=("MindFormers' own code of 1.8 to 2.1 was run with these settings; the line is given."),
        trainers={
            "MindFormers": (
                "Fails at the end of the first step, after loading the checkpoint and compiling the model, with a "
                "ValueError or, if the threshold is unset, a TypeError."
            ),
        },
        to_do=(
            "Keep only one of them, then:",
            "    ckpttool lint BASE.yaml",
        ),
    )

    SKIP_NEEDS_CLIP_GRAD = Row(
        "skip-needs-clip-grad",
        weights=(SUSPECT,),
        group="Rules about configs",
        headline="Data is skipped by a norm that is not computed",
        meaning=(
            "The global norm is a by-product of gradient clipping. Without `use_clip_grad: True` in "
            "`runner_wrapper:` no norm exists, and the documentation does not say so."
        ),
        evidence="The settings are compared with the code of MindFormers 1.6 to 2.1; the line is given.",
        trainers={
            "MindFormers": "Compares None with the threshold, which fails while the first step is compiled.",
        },
        to_do=(
            "Write `use_clip_grad: True` under `runner_wrapper:`, then:",
            "    ckpttool lint BASE.yaml",
        ),
    )

    LOCAL_NORM_MISSING = Row(
        "local-norm-missing",
        weights=(NOTE, SUSPECT),
        group="Rules about configs",
        headline="A monitor needs the local norms, but they are off",
        meaning=(
            "The health monitor looks up the embedding among the local norms. Suspect if it is on; a note if data is "
            "only skipped, because the documentation requires the local norms for that but the code does not."
        ),
        evidence="The settings are compared with the code of MindFormers 1.6 to 2.1; the line is given.",
        trainers={
            "MindFormers": "Fails at the first save with a ValueError about skipping data.",
        },
        to_do=(
            "Write `local_norm: True` under `runner_wrapper:`, then:",
            "    ckpttool lint BASE.yaml",
        ),
    )

    SKIP_UNWATCHED = Row(
        "skip-unwatched",
        weights=(SUSPECT,),
        group="Rules about configs",
        headline="Steps would be skipped unnoticed",
        meaning=(
            "Without `monitor_on: True` skipped updates are not counted or logged, and never stop the run: a "
            "diverged run continues for days without learning."
        ),
        evidence="The settings are compared with the code of MindFormers 1.6 to 2.1; the line is given.",
        trainers={
            "MindFormers": (
                "Skips the updates on the device anyway. With `check_for_nan_in_loss_and_grad` it fails at the "
                "first step instead."
            ),
        },
        to_do=(
            "Write `monitor_on: True` under `monitor_config:`, then:",
            "    ckpttool lint BASE.yaml",
        ),
    )

    NORM_CHECK_OFF = Row(
        "norm-check-off",
        weights=(SUSPECT,),
        group="Rules about configs",
        headline="The run should stop at a spike, but no check is active",
        meaning=(
            "`check_for_global_norm`, or a threshold under `health_checkpoint:`, is read by a callback that exists "
            "only with `monitor_on: True`."
        ),
        evidence="The settings are compared with the code of MindFormers 1.6 to 2.1; the line is given.",
        trainers={
            "MindFormers": "Silently trains through every spike.",
        },
        to_do=(
            "Write `monitor_on: True` under `monitor_config:`, then:",
            "    ckpttool lint BASE.yaml",
        ),
    )

    THRESHOLD_NOT_FLOAT = Row(
        "threshold-not-float",
        weights=(SUSPECT,),
        group="Rules about configs",
        headline="A threshold is an integer, but a float is required",
        meaning="`3` and `3.0` are the same number, but the argument check treats them as different types.",
        evidence="The type that YAML produces is compared with the type that the code requires.",
        trainers={
            "MindFormers": "Stops with a TypeError when the model is wrapped.",
        },
        to_do=(
            "Write it with a decimal point, as 3.0, then:",
            "    ckpttool lint BASE.yaml",
        ),
    )

    THRESHOLD_TOO_LOW = Row(
        "threshold-too-low",
        weights=(NOTE, SUSPECT),
        group="Rules about configs",
        headline="Every norm reaches this threshold",
        meaning=(
            "With a `global_norm_spike_threshold` of 0 or less every update is dropped, or the run stops at the "
            "first step; with an `embedding_local_norm_threshold` of 0 or less every save is recorded as unhealthy. "
            "A note if the second is unset although the health monitor is on: the default, 1.0, is far below the "
            "norms of published runs."
        ),
        evidence="A norm is never below 0, and MindFormers compares with `>=`.",
        trainers={
            "MindFormers": "Reports nothing: the run continues with its initial weights.",
        },
        to_do=(
            "Use a threshold from this run's log:",
            "    ckpttool log calibrate LOG",
        ),
    )

    SPIKE_COUNT_INVALID = Row(
        "spike-count-invalid",
        weights=(SUSPECT,),
        group="Rules about configs",
        headline="The number of spikes that stop a run is invalid",
        meaning=(
            "`global_norm_spike_count_threshold` counts consecutive skipped steps; 0, negative numbers, fractions "
            "and text are invalid."
        ),
        evidence=("MindFormers' own code of 1.8 to 2.1 was run with these settings; the line is given."),
        trainers={
            "MindFormers": "Stops with a TypeError when the callbacks are built.",
        },
        to_do=(
            "Write a whole number of at least 1; 10 is the default. Then:",
            "    ckpttool lint BASE.yaml",
        ),
    )

    SKIP_NAN_HOLE = Row(
        "skip-nan-hole",
        weights=(NOTE,),
        group="Rules about configs",
        headline="A run whose norms are NaN would continue forever",
        meaning=(
            "NaN is not below the threshold, so the update is skipped; it is not above it either, so the count "
            "restarts and nothing is logged."
        ),
        evidence="The settings are compared with the code of MindFormers 1.6 to 2.1; the line is given.",
        trainers={
            "MindFormers": "Stops at NaN only with `check_for_nan_in_loss_and_grad: True` at the top level.",
        },
        to_do=(
            "Set that key. To replay a policy over an existing log:",
            "    ckpttool log replay LOG --policy skip",
        ),
    )

    SKIP_SEES_SOME_STEPS = Row(
        "skip-sees-some-steps",
        weights=(NOTE,),
        group="Rules about configs",
        headline="Spikes are counted once per sink, not once per step",
        meaning=(
            "The device checks every batch, but only the last batch of each sink is counted and logged. A count of "
            "ten in a row may be a hundred spikes, or far fewer."
        ),
        evidence="`sink_size` is above 1 with data sinking on.",
        trainers={
            "MindFormers": "Calls its callbacks at the end of a sink.",
        },
        to_do=(
            "Set `sink_size: 1` if steps should be counted, then:",
            "    ckpttool lint BASE.yaml",
        ),
    )

    HEALTH_NEEDS_STAGES = Row(
        "health-needs-stages",
        weights=(SUSPECT,),
        group="Rules about configs",
        headline="The health monitor would record every checkpoint as healthy",
        meaning=(
            "It compares norms over the ranks of the first pipeline stage. With a single stage it skips the "
            "comparison, and records 0 (healthy), whatever the norm."
        ),
        evidence="The settings are compared with the code of MindFormers 1.6 to 2.1; the line is given.",
        trainers={
            "MindFormers": "Records health that was never measured, and later uses it to choose a checkpoint.",
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
        meaning="The health monitor is documented only for `full_batch: False`, but MindFormers does not check this.",
        evidence="`parallel.full_batch` is not False; it is True if unset.",
        trainers={
            "MindFormers": "Reports nothing.",
        },
        to_do=(
            "Write `full_batch: False` and a `dataset_strategy`, then:",
            "    ckpttool lint BASE.yaml",
        ),
    )

    HEALTH_NEEDS_MODEL_SIZE = Row(
        "health-needs-model-size",
        weights=(SUSPECT,),
        group="Rules about configs",
        headline="The health monitor does not know the size of the embedding",
        meaning="It finds the embedding's gradient by its number of elements, `hidden_size` times `vocab_size`.",
        evidence=(
            "One of them is missing in `model.model_config`, and there is no `pretrained_model_dir` that could "
            "provide it."
        ),
        trainers={
            "MindFormers": (
                "Stops with a ValueError after the model is built. If no gradient has that size, every "
                "checkpoint is recorded as healthy."
            ),
        },
        to_do=(
            "Write both under `model_config:`, then:",
            "    ckpttool lint BASE.yaml",
        ),
    )

    SAVE_FORMAT_DIFFERS = Row(
        "save-format-differs",
        weights=(NOTE,),
        group="Rules about configs",
        headline="The run would save in a format different from the one it loads",
        meaning="`checkpoint_format` is the format of written files, `load_ckpt_format` the format of loaded files.",
        evidence="Both are compared, with ckpt as the default.",
        trainers={
            "MindFormers": (
                "Rejects every meta.json that names a file of the other format, and finds nothing to resume."
            ),
        },
        to_do=(
            "A launch config has the right format:",
            "    ckpttool launch DIR --config BASE.yaml --output NEW.yaml",
        ),
    )

    REDUNDANCY_NEEDS_SAFETENSORS = Row(
        "redundancy-needs-safetensors",
        weights=(SUSPECT,),
        group="Rules about configs",
        headline="Redundancy can be removed only in safetensors",
        meaning=(
            "`remove_redundancy: True` splits the parameters among data-parallel ranks, which `.ckpt` files cannot "
            "express."
        ),
        evidence="The settings are compared with the code of MindFormers 1.6 to 2.1; the line is given.",
        trainers={
            "MindFormers": "Stops with a ValueError when the callbacks are built, after the model was built.",
        },
        to_do=(
            "Add `checkpoint_format: safetensors`, then:",
            "    ckpttool lint BASE.yaml",
        ),
    )

    ASYNC_SAVE_LAGS = Row(
        "async-save-lags",
        weights=(NOTE,),
        group="Rules about configs",
        headline="The last save of a run would not be recorded",
        meaning=(
            "With `async_save` meta.json (PyNative trainer: the tracker) is written at a later step, and none is "
            "written after the last save."
        ),
        evidence=(
            "`async_save: True` in the CheckpointMonitor of the rank_N layout, or in the `checkpoint:` section of the "
            "PyNative trainer."
        ),
        trainers={
            "MindFormers": "If left to choose, resumes from the previous checkpoint and repeats the later steps.",
        },
        to_do=(
            "Start the next run from the shards:",
            "    ckpttool launch DIR --config BASE.yaml --output NEW.yaml",
        ),
    )

    RESUME_BY_MTIME = Row(
        "resume-by-mtime",
        weights=(NOTE,),
        group="Rules about configs",
        headline="MindFormers is configured to resume by modification time",
        meaning="Copying, restoring or touching an old file makes it the newest, and each rank decides separately.",
        evidence="`resume_by_last_timestamp_ckpt: True`.",
        trainers={
            "MindFormers": "Loads each rank's newest file, unless a file is named, as in a launch config.",
        },
        to_do=(
            "Write False, then:",
            "    ckpttool lint BASE.yaml",
        ),
    )

    OPTIMIZER_ZEROED = Row(
        "optimizer-zeroed",
        weights=(SUSPECT,),
        affects_start=False,
        group="Rules about configs",
        headline="The resume would load no optimizer state",
        meaning=(
            "With `load_balanced: True` the PyNative trainer loads weights, step and data position, but no optimizer "
            "state, and continues without an error."
        ),
        evidence=(
            "`load_balanced: True` without `no_load_optim: True`. Two ranks of 2.1.0 were run: all Adam moments kept "
            "their initial zero; one rank stops with a RuntimeError."
        ),
        trainers={
            "MindFormers": "Logs `Optimizer parameters not loaded:` at INFO level, and continues training.",
        },
        to_do=(
            "Write `load_balanced: False`; a launch config has it:",
            "    ckpttool launch DIR --config BASE.yaml --output NEW.yaml",
        ),
    )

    NAN_APPLIED = Row(
        "nan-applied",
        weights=(NOTE,),
        group="Rules about configs",
        headline="A NaN gradient would be applied and saved",
        meaning=(
            "By default the PyNative trainer of 2.0 and 2.1 applies a NaN gradient. All later losses are NaN, saves "
            "continue, and the tracker moves to them."
        ),
        evidence="`use_skip_step_on_nan` is not True. A run of 2.1.0 with a NaN at step 15 saved NaN weights, exit 0.",
        trainers={
            "MindFormers": "1.9 skips the update; 2.1 skips it with `training.use_skip_step_on_nan: True`.",
        },
        to_do=(
            "Set `use_skip_step_on_nan: True`. To search the weights of existing saves for NaN:",
            "    ckpttool verify DIR --level numerics",
        ),
    )

    SAVES_OVERWRITTEN = Row(
        "saves-overwritten",
        weights=(NOTE,),
        check="launch",
        group="Starts",
        headline="The resumed run overwrites existing checkpoints",
        meaning=(
            "The PyNative trainer names a folder after its step counter. A run that begins at an older step, or "
            "counts batches of another size, gradually replaces the folders with the same numbers."
        ),
        evidence="The first step of the run and its save interval are compared with the existing folders.",
        trainers={
            "MindFormers": "Removes the folder and writes a new one, with a warning in the log.",
        },
        to_do=("To keep the old checkpoints, set checkpoint.save_path to another folder.",),
    )

    YAML_ODD_NUMBER = Row(
        "yaml-odd-number",
        weights=(SUSPECT,),
        group="Rules about configs",
        headline="YAML reads a number differently from how it appears in the file",
        meaning="In YAML 1.1, `010` is octal and means 8; `1:30` means 90.",
        evidence="The text in the file is compared with the value that PyYAML produces.",
        trainers={
            "MindFormers": "Gets the parsed number, and cannot detect the mistake.",
        },
        to_do=(
            "Remove the zero, or use quotes if text is intended. Then:",
            "    ckpttool lint BASE.yaml",
        ),
    )

    YAML_NONE_IS_TEXT = Row(
        "yaml-none-is-text",
        weights=(NOTE,),
        group="Rules about configs",
        headline="None is text in YAML",
        meaning=(
            "None is a Python keyword. YAML reads it as a text of four letters; an empty value in YAML is null or ~."
        ),
        evidence="The value is exactly None, without quotes.",
        trainers={
            "MindFormers": "Uses it as a path, a name or True, depending on the key.",
        },
        to_do=(
            "Write null, or omit the value. Then:",
            "    ckpttool lint BASE.yaml",
        ),
    )

    UNKNOWN_KEY = Row(
        "unknown-key",
        weights=(SUSPECT,),
        group="Rules about configs",
        headline="A strict section has an unknown key",
        meaning=(
            "In runner_config, parallel_config, recompute_config, swap_config, moe_config and monitor_config (PyNative "
            "trainer: checkpoint, training, parallelism, train_dataset and monitor) a misspelled key is an error; "
            "elsewhere it is ignored."
        ),
        evidence="The key is in no template of MindFormers 1.6.0 to 2.1.0, or in no dataclass of its PyNative trainer.",
        trainers={
            "MindFormers": "Stops with a KeyError (PyNative trainer: a ValueError); 1.3.2 and older ignore it.",
        },
        to_do=(
            "Correct the key. If a newer MindFormers supports it, accept the finding:",
            "    ckpttool lint BASE.yaml --allow unknown-key",
        ),
    )
