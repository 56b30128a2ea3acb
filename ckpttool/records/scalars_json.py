"""Training scalars as JSON records spell them: those of a trainer, and what ckpttool itself keeps."""

from __future__ import annotations

from ckpttool.domain.shard import Scalars
from ckpttool.formats.strict_json import JsonObject, get_optional_float, get_optional_int


def scalars_of(record: JsonObject, *, where: str) -> Scalars:
    """Return the scalars in an object; None for those that are absent or null. Other keys are ignored.

    Raises:
        ParseError: One is no number, or negative.
    """
    return Scalars(
        epoch_num=get_optional_int(record, "epoch_num", where=where),
        step_num=get_optional_int(record, "step_num", where=where),
        global_step=get_optional_int(record, "global_step", where=where),
        loss_scale=get_optional_float(record, "loss_scale", where=where),
        global_batch_size=get_optional_int(record, "global_batch_size", where=where),
        consumed_samples=get_optional_int(record, "consumed_samples", where=where),
    )
