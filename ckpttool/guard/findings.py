"""Findings about captures of a step with non-finite values, and about their replays."""

from __future__ import annotations

from ckpttool.core.findings import NOTE, UNKNOWN, Row, Rows


class GuardCode(metaclass=Rows):
    """Findings about captures of a step with non-finite values, and about their replays."""

    CAPTURE_INCOMPLETE = Row(
        "capture-incomplete",
        weights=(NOTE, UNKNOWN),
        group="Captures",
        headline="A part of a capture is missing",
        meaning=(
            "Each rank writes its own record and tensors, on its own disk and without waiting for others. A file "
            "of one or more ranks is not in this folder, or their batch could not be saved. The rest can be "
            "inspected and replayed."
        ),
        evidence=(
            "Every record has the number of ranks. For a batch with a value that is neither a tensor nor a plain "
            "value, the record has its path and type."
        ),
        to_do=(
            "Copy the missing files from the machines of those ranks into the same folder.",
            "If a batch could not be saved, give the guard an `encode_batch` that converts it to tensors.",
        ),
    )

    CAPTURE_DAMAGED = Row(
        "capture-damaged",
        weights=(UNKNOWN,),
        group="Captures",
        headline="A file of a capture was changed or damaged",
        meaning=(
            "A record does not match its own hash, or a rank's tensors do not match the digest in its record. "
            "Nothing in it is trusted: a replay of other values proves nothing."
        ),
        evidence="The digest was computed from the bytes that were written.",
        to_do=(
            "Copy the file again from the machine that wrote it, and replay the other ranks in the meantime:",
            "    ckpttool guard replay CAPTURE --entry MODULE:FUNCTION --rank 0",
        ),
    )

    INPUTS_MUTATED = Row(
        "inputs-mutated",
        weights=(NOTE,),
        group="Captures",
        headline="A batch was changed in place during the step",
        meaning=(
            "The capture has the batch at the end of the step, not as its forward pass received it: a static input "
            "buffer, or a collator that writes into batches it returned. A replay may have another result."
        ),
        evidence=(
            "A version counter of one of its tensors changed between the forward pass and the end of the step, or "
            "its hash did."
        ),
        to_do=(
            (
                "This capture needs no action. The guard keeps copies from the next step on, so the next capture of "
                "the run is exact."
            ),
        ),
    )

    ENVIRONMENT_DIFFERS = Row(
        "environment-differs",
        weights=(NOTE,),
        group="Captures",
        headline="A replay runs under other conditions than the capture",
        meaning=(
            "A version, a kernel setting, the device or a model setting differs from the capture. What can be set, "
            "such as the number of threads, was set; the rest changes last bits, so a replay with another result "
            "proves little."
        ),
        evidence="The record has all of them, and they are compared with those of this process.",
        to_do=(
            (
                "If the step was reproduced, nothing. Otherwise replay it in the environment of the training run, "
                "on such a machine."
            ),
        ),
    )

    ENTRY_DOES_NOT_FIT = Row(
        "entry-does-not-fit",
        weights=(UNKNOWN,),
        group="Captures",
        headline="The entry does not match the capture, or cannot be computed",
        meaning=(
            "The model has other parameters, buffers or modules, the entry raised an error, or data is missing: no "
            "weights in a light capture, or no batch that could be saved."
        ),
        evidence=(
            "Names, shapes and types are compared before anything is computed; weights from another "
            "file by their digests."
        ),
        to_do=(
            (
                "Make the function build the model as the training code does, before it is wrapped, and return the "
                "value that its loop passes to `backward`."
            ),
            "For a light capture, name the weights of the newest checkpoint: a dropped step never changed them.",
            "    ckpttool guard replay CAPTURE --entry MODULE:FUNCTION --weights F",
        ),
    )
