"""What only captures of a step that was not finite, and computing it again, show."""

from __future__ import annotations

from ckpttool.core.findings import NOTE, UNKNOWN, Row, Rows


class GuardCode(metaclass=Rows):
    """What only captures of a step that was not finite, and computing it again, show."""

    CAPTURE_INCOMPLETE = Row(
        "capture-incomplete",
        weights=(NOTE, UNKNOWN),
        group="Captures",
        headline="A part of a capture is not there",
        meaning=(
            "Each rank writes its own record and tensors, on its own disk and without waiting for others. Of one or "
            "more ranks a file is not in this folder, or its batch could not be kept. What is there can be looked at "
            "and replayed."
        ),
        evidence=(
            "Every record says how many ranks there were. Of a batch that holds what no tensor or plain value is, the "
            "record has the way to it and its type."
        ),
        to_do=(
            "Copy the missing files from the machines of those ranks into the same folder.",
            "Where a batch could not be kept, give the guard an `encode_batch` that makes plain tensors of it.",
        ),
    )

    CAPTURE_DAMAGED = Row(
        "capture-damaged",
        weights=(UNKNOWN,),
        group="Captures",
        headline="A file of a capture is not what was written",
        meaning=(
            "A record does not match its own hash, or a rank's tensors do not match the digest in its record. Nothing "
            "in it is believed: a replay of other numbers proves nothing."
        ),
        evidence="The digest was taken of the very bytes that were handed to the disk.",
        to_do=(
            "Copy the file once more from the machine that wrote it, and replay the other ranks meanwhile:",
            "    ckpttool nan replay CAPTURE --entry MODULE:FUNCTION --rank 0",
        ),
    )

    INPUTS_MUTATED = Row(
        "inputs-mutated",
        weights=(NOTE,),
        group="Captures",
        headline="A batch was changed in place during the step",
        meaning=(
            "What is kept is the batch as it was at the end of the step, and not what its forward got: a static input "
            "buffer, or a collator that writes into what it handed out. A replay may come out differently."
        ),
        evidence=(
            "A version counter of one of its tensors moved between the forward and the end of the step, or its hash is "
            "another."
        ),
        to_do=(
            (
                "Nothing for this one. The guard keeps copies from the next step on, so the next capture of the run is "
                "exact."
            ),
        ),
    )

    ENVIRONMENT_DIFFERS = Row(
        "environment-differs",
        weights=(NOTE,),
        group="Captures",
        headline="A replay runs under other conditions than the capture",
        meaning=(
            "A version, a switch of the kernels, the device or a setting of the model is not as it was captured. What "
            "can be set, such as the number of threads, was set; the rest changes last bits, so a replay that does "
            "not come out the same proves little."
        ),
        evidence="The record has all of them, and this process was asked for its own.",
        to_do=(
            (
                "Where the step came out as it was: nothing. Else replay it in the training's own environment, on such "
                "a machine."
            ),
        ),
    )

    ENTRY_DOES_NOT_FIT = Row(
        "entry-does-not-fit",
        weights=(UNKNOWN,),
        group="Captures",
        headline="What the entry returns is not what was captured, or cannot be computed",
        meaning=(
            "The model has other parameters, buffers or modules, the entry raised an error, or there is nothing to "
            "compute from: no weights in a light capture, no batch that could be kept."
        ),
        evidence=(
            "Names, shapes and types are compared one by one before anything is computed; weights of another file by "
            "their digests."
        ),
        to_do=(
            (
                "Let the function build the model as the training did, before it is wrapped, and return what its loop "
                "hands to `backward`."
            ),
            "For a light capture name the weights of the newest checkpoint: a dropped step never touched them.",
            "    ckpttool nan replay CAPTURE --entry MODULE:FUNCTION --weights FILE",
        ),
    )
