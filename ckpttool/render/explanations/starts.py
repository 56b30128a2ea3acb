"""Findings about a start of MindFormers that would not load what the plan names."""

from __future__ import annotations

from ckpttool.domain.finding import Code
from ckpttool.render.explanations.base import SUSPECT, Explanation

STARTS = (
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
)
