"""What only MindFormers can get wrong."""

from __future__ import annotations

from ckpttool.core.findings import DAMAGE, NOTE, SUSPECT, UNKNOWN, Row, Rows


class MindFormersCode(metaclass=Rows):
    """What only MindFormers can get wrong."""

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
