"""Findings that only a DeepSpeed config can have."""

from __future__ import annotations

from ckpttool.core.findings import NOTE, Row, Rows


class DeepSpeedCode(metaclass=Rows):
    """Findings that only a DeepSpeed config can have."""

    UNIVERSAL_STAYS = Row(
        "universal-stays",
        weights=(NOTE,),
        group="Rules about other trainers' configs",
        headline="Every start goes back to the converted save",
        meaning=(
            "`checkpoint.load_universal` is intended for the one start after `ds_to_universal.py`. If it stays set, "
            "every later start ignores newer saves."
        ),
        evidence=(
            "From the code of DeepSpeed 0.19.8: without a tag it follows `latest_universal`, which only the "
            "converter writes."
        ),
        trainers={
            "DeepSpeed": (
                "Loads the converted save, silently ignoring newer saves. Without `latest_universal`, it stops "
                "with a ValueError."
            ),
        },
        to_do=(
            "Set it to false once the first save after the conversion is intact:",
            "    ckpttool resolve DIR",
        ),
    )
