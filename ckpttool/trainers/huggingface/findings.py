"""What only a save of the Hugging Face Trainer can say."""

from __future__ import annotations

from ckpttool.core.findings import NOTE, Row, Rows


class HuggingFaceCode(metaclass=Rows):
    """What only a save of the Hugging Face Trainer can say."""

    BASE_ELSEWHERE = Row(
        "base-elsewhere",
        weights=(NOTE,),
        group="Checkpoints",
        headline="The save is an adapter, and its base model lies elsewhere",
        meaning=(
            "Adapter, optimizer and counters are there, the model that the adapter was trained on is not: the script "
            "loads that from its own path. It must be the same, to the bit, and nothing here is compared with it."
        ),
        evidence="The weights are an `adapter_model` file.",
        trainers={
            "Hugging Face's Trainer": "Loads the adapter onto whatever model the script built.",
        },
        to_do=(
            "Keep the base model where the script looks for it, and seal it: it has no checksums of its own.",
            "    ckpttool seal MODEL_DIR",
        ),
    )
