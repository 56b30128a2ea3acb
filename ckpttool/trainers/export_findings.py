"""Findings about the export of weights, which the trainers' sources of weights report."""

from __future__ import annotations

from ckpttool.core.domain.finding import Finding, damage, note, unknown
from ckpttool.core.domain.weights import NotExportableError, WeightsRequest
from ckpttool.core.findings import DAMAGE, NOTE, UNKNOWN, Row, Rows


class ExportCode(metaclass=Rows):
    """Findings about the export of weights."""

    EXPORT_NEEDS_MODEL = Row(
        "export-needs-model",
        weights=(UNKNOWN,),
        group="Exports",
        headline="The files do not show how the parts of the weights fit together",
        meaning=(
            "Only the code of the model shows along which axis a weight was divided, or which parameters a flat "
            "buffer contains. A guess could give wrong weights of the right shape."
        ),
        evidence="From the records in the save: shapes, placements, names of parameters, parallel sizes.",
        to_do=(
            "Use the converter of the trainer that the message names.",
            "Save future checkpoints in a format that records global shapes, such as Megatron's `torch_dist`.",
        ),
    )

    EXPORT_NEEDS_STRATEGY = Row(
        "export-needs-strategy",
        weights=(NOTE, UNKNOWN),
        group="Exports",
        headline="The save does not record how the ranks divided the weights",
        meaning="Every rank has a file, but no file says which part of each weight it contains.",
        evidence="There is no strategy file, and equal files on all ranks do not prove replicated weights.",
        to_do=(
            "Merge the files with MindSpore and the strategy files of the run: `mindspore.unified_safetensors`.",
            "If the run was purely data-parallel, so that every rank has all weights, add the option --replicated.",
        ),
    )

    EXPORT_NOT_UNDERSTOOD = Row(
        "export-not-understood",
        weights=(UNKNOWN,),
        group="Exports",
        headline="ckpttool cannot export weights from this format",
        meaning="The format of the save, or of one of its tensors, is one of which ckpttool reads no elements.",
        evidence="From the layout, the file formats and the types of the tensors.",
        to_do=(
            "Export with the trainer's own converter.",
            "If the message names a compressed or legacy file, load it with torch and save it again.",
        ),
    )

    EXPORT_INCOMPLETE = Row(
        "export-incomplete",
        weights=(UNKNOWN, DAMAGE),
        group="Exports",
        headline="Elements of a weight are missing, or are recorded twice",
        meaning=(
            "The parts that the save records do not cover each weight exactly once: a rank, a slice or elements are "
            "missing, or two parts overlap. Nothing was written."
        ),
        evidence="The places of all parts are compared with the shape of each weight before anything is written.",
        to_do=(
            "Check the save, and restore its missing files or export another checkpoint:",
            "    ckpttool verify DIR --checkpoint NAME",
        ),
    )

    EXPORT_AMBIGUOUS_PART = Row(
        "export-ambiguous-part",
        weights=(UNKNOWN,),
        group="Exports",
        headline="The save contains several models, or none that can be recognized",
        meaning="The weights of one model are exported at a time, and nothing shows which of several was intended.",
        evidence="From the names of the files and of the recorded objects.",
        to_do=(
            "Name one of the parts in the message with the option --part.",
            "If a part is missing there, export it with the trainer's own converter.",
        ),
    )

    EXPORT_NEEDS_CONVERSION = Row(
        "export-needs-conversion",
        weights=(NOTE,),
        group="Exports",
        headline="The exported names or shapes are the trainer's own",
        meaning=(
            "The output contains the numbers under the names and in the shapes of the save: for example torchtitan's "
            "module names, or Megatron's stacked layers and padded vocabulary. transformers and vLLM cannot load "
            "it without a conversion."
        ),
        evidence="From the layout, and from the names and shapes of the tensors.",
        to_do=(
            "Convert the names with the trainer's or the model's own script.",
            "For layers that are stacked in one tensor, a later conversion must also divide them.",
        ),
    )

    EXPORT_LEFT_OUT = Row(
        "export-left-out",
        weights=(NOTE,),
        group="Exports",
        headline="Something that belongs to the model is not in the output",
        meaning=(
            "For example a second name of shared weights, scales of FP8 weights, the base model of an adapter, or "
            "files such as config.json that the save does not contain."
        ),
        evidence="From the records of the save, and the names of its files.",
        to_do=(
            "Copy missing files of the model from the folder of the base model, with the option --config-from.",
            "Everything else is still in the save: nothing was deleted.",
        ),
    )


def needs_model(message: str, *, remedy: str, path: str | None = None) -> NotExportableError:
    """Return the refusal of a save whose records do not show how the parts of the weights fit together."""
    return NotExportableError(unknown(ExportCode.EXPORT_NEEDS_MODEL, message, remedy=remedy, path=path))


def needs_strategy(message: str, *, remedy: str, path: str | None = None) -> NotExportableError:
    """Return the refusal of a save that does not record how the ranks divided the weights."""
    return NotExportableError(unknown(ExportCode.EXPORT_NEEDS_STRATEGY, message, remedy=remedy, path=path))


def not_understood(message: str, *, remedy: str, path: str | None = None) -> NotExportableError:
    """Return the refusal of a format or a tensor of which ckpttool reads no elements."""
    return NotExportableError(unknown(ExportCode.EXPORT_NOT_UNDERSTOOD, message, remedy=remedy, path=path))


def ambiguous_part(message: str, *, remedy: str, path: str | None = None) -> NotExportableError:
    """Return the refusal of a save with several models, or with none that can be recognized."""
    return NotExportableError(unknown(ExportCode.EXPORT_AMBIGUOUS_PART, message, remedy=remedy, path=path))


def assert_no_part(request: WeightsRequest, save: str) -> None:
    """Refuse the name of a part for a save that always has one model.

    Raises:
        NotExportableError: The user named a part.
    """
    if request.part is not None:
        message = f"The save has one model, so --part {request.part} names nothing."
        raise ambiguous_part(message, path=save, remedy="omit --part")


def incomplete(message: str, *, remedy: str, path: str | None = None, tensor: str | None = None) -> NotExportableError:
    """Return the refusal of a save whose parts certainly do not cover its weights."""
    finding = damage(ExportCode.EXPORT_INCOMPLETE, message, remedy=remedy, path=path, tensor=tensor)
    return NotExportableError(finding)


def unproven(message: str, *, remedy: str, path: str | None = None) -> NotExportableError:
    """Return the refusal of a save whose parts may not cover its weights, because a record or a file is unknown."""
    return NotExportableError(unknown(ExportCode.EXPORT_INCOMPLETE, message, remedy=remedy, path=path))


def needs_conversion(message: str) -> Finding:
    """Return the note that the names or the shapes of the output are the trainer's own."""
    return note(ExportCode.EXPORT_NEEDS_CONVERSION, message)


def not_in_output(message: str, *, remedy: str | None = None) -> Finding:
    """Return the note that something of the model is not in the output."""
    return note(ExportCode.EXPORT_LEFT_OUT, message, remedy=remedy)
