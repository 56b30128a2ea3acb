"""Findings that only a save of the Hugging Face Trainer can have."""

from __future__ import annotations

from ckpttool.core.findings import NOTE, Row, Rows


class HuggingFaceCode(metaclass=Rows):
    """Findings that only a save of the Hugging Face Trainer can have."""

    BASE_ELSEWHERE = Row(
        "base-elsewhere",
        weights=(NOTE,),
        group="Checkpoints",
        headline="The checkpoint is an adapter, and its base model is elsewhere",
        meaning=(
            "Adapter, optimizer and counters are present, but not the base model: the script loads it from its own "
            "path. It must be the same base model, bit for bit, and ckpttool does not check this."
        ),
        evidence="The weights are an `adapter_model` file.",
        trainers={
            "Hugging Face's Trainer": "Loads the adapter into any model that the script builds.",
        },
        to_do=(
            "Keep the base model where the script expects it, and seal it, because it has no checksums:",
            "    ckpttool seal MODEL_DIR",
        ),
    )
