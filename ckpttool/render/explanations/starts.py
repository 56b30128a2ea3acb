"""Findings about a start of MindFormers that would not load what the plan names."""

from __future__ import annotations

from ckpttool.domain.finding import Code, Severity
from ckpttool.render.explanations.base import NOTE, SUSPECT, Explanation

STARTS = (
    Explanation(
        code=Code.CKPT_BESIDE_RANKS,
        title="A .ckpt beside the rank folders would be loaded instead",
        severities=SUSPECT,
        meaning="Somebody put weights (a best.ckpt, a merged file, a strategy file) into the folder that "
        "load_checkpoint names. Where the chosen checkpoint is of safetensors files, nothing is wrong.",
        evidence="The names in the folder. Run with 1.3.2, 1.6.0, 1.8.0 and 2.1.0: all tensors were those of the "
        "further file, the data at the step of the one that resume_training named, exit 0.",
        mindformers="Asks first whether the folder itself holds any name that ends in .ckpt; then it loads all of "
        "those into every rank, and takes only step, epoch and loss scale from the named file. A folder or a dead link "
        "of such a name stops it. With `auto_trans_ckpt: True` it takes the rank folders.",
        remedy=("Move it to where no training looks:", "mv output/checkpoint/best.ckpt output/"),
    ),
    Explanation(
        code=Code.PREFIX_HOLDS_RANK,
        title="The files' prefix holds a rank",
        severities=SUSPECT,
        meaning="In `my_rank_7_model_rank_0-15_2.ckpt` the first rank is a part of the prefix, but MindFormers takes "
        "it for the file's, and replaces it by each rank's own number.",
        evidence="The name that MindFormers makes of rank 0's file is compared with the file that each rank has.",
        mindformers="Looks for `my_rank_1_model_rank_0-15_2.ckpt` on rank 1 and stops with FileNotFoundError. Saves "
        "under such a prefix are refused from 1.7 on.",
        remedy=(
            "Rename the files, here from my_rank_7_model to my_model, and meta.json after them:",
            "for f in output/checkpoint/rank_*/my_rank_7_model_*; do",
            '  mv "$f" "${f%/*}/my_model_${f##*/my_rank_7_model_}"',
            "done",
            "ckpttool repair-meta output --apply",
        ),
    ),
    Explanation(
        code=Code.OPTIMIZER_MISSING,
        title="The checkpoint holds no optimizer state",
        severities=(Severity.NOTE, Severity.SUSPECT),
        meaning="An iteration of the newer layout has model shards alone. With `no_save_optim: True` (or "
        "`save_optimizer: False`) that is meant; else the files got lost, and nothing else in the tree shows it.",
        evidence="No file of the checkpoint is named PREFIX-opt-…, and its record, where it has one, names none. A "
        "note where the config says no_save_optim or no_load_optim.",
        mindformers="Loads the weights and goes on at their step; the optimizer's moments stay as they were "
        "initialised, at zero (run with 2.1.0 on one card).",
        remedy=("Restore the -opt- files, or take it as it is:", "ckpttool preflight --allow optimizer-missing …"),
    ),
    Explanation(
        code=Code.PATH_IS_PATTERN,
        title="A sign in the path of safetensors files makes it a pattern",
        severities=SUSPECT,
        meaning="The training would start, and not from this checkpoint. Files in the format ckpt are opened by their "
        "name and are not affected.",
        evidence="The absolute path that a launch config would name, and the code of 1.6.0 to 2.1.0; run with 2.1.0.",
        mindformers="Passes the path to `glob`: `run[1]/` stands for `run1/`. Where that finds nothing, nothing is "
        "loaded and nothing is said: it trains from random weights, at the data position of the checkpoint.",
        remedy=("Rename the folder, or go through a link:", "ln -s 'run[1]/output' output", "ckpttool launch output"),
    ),
    Explanation(
        code=Code.RANK_FOLDER_ON_ONE_DEVICE,
        title="One device cannot load safetensors from rank folders",
        severities=SUSPECT,
        meaning="A training without `use_parallel: True` can save such files but not resume from them, neither by the "
        "folder nor by the file. In the format ckpt, and in the newer layout, it can.",
        evidence="The config, the layout and the code of 1.6.0 to 2.1.0; run with 1.8.0 and 2.1.0.",
        mindformers="ValueError: when input checkpoint file is rank dir, Please set use_parallel: True",
        remedy=(
            "Convert the shards into the format ckpt, and resume from there:",
            "mkdir converted",
            "python -c \"import mindspore as ms; ms.safetensors_to_ckpt('output/checkpoint', 'converted')\"",
            "ckpttool preflight converted --config BASE.yaml",
        ),
    ),
    Explanation(
        code=Code.FAULT_TOLERANCE_PICKS,
        title="With MS_ENABLE_TFT MindFormers takes the newest file instead of the named one",
        severities=SUSPECT,
        meaning="Fault tolerance (TTP, UCE, ARF or HCCE in MS_ENABLE_TFT) is meant for a restart after its own save. "
        "Whatever else is resumed from, the checkpoint that was chosen here is not looked for.",
        evidence="The environment of this ckpttool, the config, and the code of 1.6.0 to 2.1.0; the function was run "
        "with 2.1.0. Start ckpttool with the environment of the training.",
        mindformers="Ignores resume_training and asks every rank's folder for its last file; the newest modification "
        "time wins, whole or not.",
        remedy=("Start this once without it:", "unset MS_ENABLE_TFT"),
    ),
    Explanation(
        code=Code.REDUNDANCY_NOT_LOADABLE,
        title="Data-parallel mode cannot load what was saved with remove_redundancy",
        severities=SUSPECT,
        meaning="Each rank's file holds a part of the tensors. To spread them again MindSpore needs the layout of a "
        "compiled network, and outside of (semi-)automatic parallelism none is compiled.",
        evidence="The file's own `remove_redundancy`; where it says nothing, and for ckpt, the config's. Run.",
        mindformers="ValueError: When loading a parameter dict that has removed redundancy, the network should be "
        "compiled.",
        remedy=(
            "Resume from a checkpoint that was saved without, and save without:",
            "ckpttool preflight DIR --config BASE.yaml --checkpoint NAME",
        ),
    ),
    Explanation(
        code=Code.TRAINING_COMPLETE,
        title="The checkpoint is the last one of a training that is done",
        severities=SUSPECT,
        meaning="As many epochs as the config asks for have been trained. There is nothing to resume.",
        evidence="The checkpoint's counters, as MindFormers scales them, and the batches of an epoch: from Megatron's "
        "`sizes`, or from file names (4_20 at step 80). Where neither tells them nothing is said.",
        mindformers="Does not end in good order: ValueError, the parameter 'epoch' must bigger than parameter "
        "'initial_epoch'.",
        remedy=("To train on, raise runner_config.epochs in BASE.yaml.",),
    ),
    Explanation(
        code=Code.SKIP_BEYOND_DATA,
        title="More batches are skipped than all epochs have",
        severities=SUSPECT,
        meaning="The data position lies behind the end of the data, often after a skip around a spike near the end.",
        evidence="The plan's data_skip_steps, the config's epochs, and the batches of an epoch as for "
        "training-complete. Run with 2.1.0.",
        mindformers="Fails before the first step: reset step must be less than dataset_size * num_epochs.",
        remedy=("Skip less, or raise runner_config.epochs to what the message says.",),
    ),
    Explanation(
        code=Code.DATA_END_EARLY,
        title="The data end before the steps that MindFormers plans",
        severities=NOTE,
        meaning="After a skip around a spike the data are ahead of the steps. All is trained as it should be until the "
        "data end.",
        evidence="Both are counted as MindFormers counts them, and were compared with runs of 2.1.0.",
        mindformers="Plans by the step, not by the data. At their end: Exception thrown from dataset pipeline, exit 1, "
        "and what was trained since the last save is lost. With other epochs both ends move together.",
        remedy=(
            "End it one step before, in good order, by a callback in BASE.yaml with the number of the message:",
            "callbacks: [..., {type: TrainCallBack, stop_step: N}]",
        ),
    ),
    Explanation(
        code=Code.ENDS_ELSEWHERE,
        title="The run will end at another step than it would have",
        severities=NOTE,
        meaning="Where the data begin anew, or elsewhere, in the middle of an epoch, a run without sinks does not "
        "train the steps that are left but whole epochs.",
        evidence="Steps and data are counted as MindFormers counts them, and were compared with runs of 2.1.0.",
        mindformers="Trains (epochs - epochs done) whole epochs: 60 steps from step 27 of 80. The learning rate stays "
        "where its schedule ends.",
        remedy=(
            "End it where it should, by a callback in BASE.yaml with the number of the message:",
            "callbacks: [..., {type: TrainCallBack, stop_step: N}]",
        ),
    ),
    Explanation(
        code=Code.RESLICING_PICKS,
        title="Re-slicing .ckpt files takes another one than the named",
        severities=SUSPECT,
        meaning="With `auto_trans_ckpt: True` the weights would be those of another save, while step, epoch and data "
        "position are those of the named one. Safetensors are re-sliced by the named file's label: not affected.",
        evidence="The names in the ranks' folders, the config, and the code of MindFormers 1.3.2 to 2.1.0 and of "
        "MindSpore 2.7.2 and 2.10.0. Names are compared as text: -5_2 comes after -15_2.",
        mindformers="Hands the folder to mindspore.transform_checkpoints, which takes the last name of each rank's "
        "folder; with transform_process_num or transform_by_rank the newest modification time.",
        remedy=(
            "Copy the checkpoint's files, each into its rank_N/, to a folder of their own, then:",
            "ckpttool preflight FOLDER --config BASE.yaml",
        ),
    ),
    Explanation(
        code=Code.RESLICING_STOPS,
        title="Re-slicing .ckpt files ends on what lies beside the rank folders",
        severities=SUSPECT,
        meaning="With `auto_trans_ckpt: True` the start ends. Without it, and with safetensors, such names do no harm.",
        evidence="The names beside the ranks' folders, the config, and the code of MindFormers 1.3.2 to 2.1.0.",
        mindformers="Lists rank_*, makes a number of what follows the last _ of each name, which ends in a ValueError "
        "for rank_0_bak, and wants these to be 0, 1, 2 and so on, else: The rank_4 folder was not found.",
        remedy=("Move what is no rank's folder elsewhere:", "mv output/checkpoint/rank_0_bak output/"),
    ),
)
