"""The answer of `export`: the files that were written, and the weights in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Annotated

from ckpttool.core.domain.answers import Answered
from ckpttool.core.domain.checkpoint import Inventory
from ckpttool.core.domain.finding import Finding, of_findings
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.option import Option
from ckpttool.core.domain.question import DEFAULT_DIR, LAYOUT, ONE_NAME
from ckpttool.core.domain.units import ByteCount, Step
from ckpttool.core.domain.verdict import Level
from ckpttool.core.domain.weights import LeftOut
from ckpttool.core.errors import ExitCode, UsageError

_FORM = "What is written"
_UNITS = {"MB": 10**6, "MIB": 1 << 20, "GB": 10**9, "GIB": 1 << 30}


class ExportedType(str, Enum):
    """Element type of the exported floating-point weights."""

    STORED = "stored"
    """The type in the save; if it has FP32 master weights, that of these."""
    BF16 = "bf16"
    FP32 = "fp32"


def shard_size(text: str) -> int:
    """Parse a size such as `5GB`. GB is 10^9 bytes, as in other programs that divide safetensors, and GiB is 2^30.

    Raises:
        UsageError: The text is not a size, or is below one megabyte.
    """
    match = re.fullmatch(r"([0-9]{1,6})(MB|MiB|GB|GiB)", text, re.IGNORECASE)
    if match is None or not int(match[1]):
        raise UsageError(f"--max-shard {text!r} is not a size such as 5GB, 500MB or 4GiB")
    return int(match[1]) * _UNITS[match[2].upper()]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportQuestion:
    """The checkpoint, the output folder, and the form of the output."""

    output: Annotated[
        str, Option("--output", "Folder for the output; it must not exist, or must be empty.", metavar="DIR")
    ]
    tree: Annotated[
        str | None,
        Option(
            "--tree", "Tree in which checkpoint names are looked up.", "Which tree", metavar="DIR", shown=DEFAULT_DIR
        ),
    ] = None
    checkpoint: Annotated[str | None, ONE_NAME] = None
    layout: Annotated[str | None, LAYOUT] = None
    level: Annotated[Level, Option("--level", "How thoroughly to check the shards before the export.", "Evidence")] = (
        Level.STRUCTURE
    )
    part: Annotated[
        str | None,
        Option(
            "--part",
            "Model to export if the save has several, such as actor or critic.",
            "Which checkpoint",
            metavar="NAME",
        ),
    ] = None
    is_16bit: Annotated[
        bool,
        Option(
            "--half --16bit",
            "Export the 16-bit weights instead of the FP32 master weights, if the save has both.",
            "Which checkpoint",
        ),
    ] = False
    is_replicated: Annotated[
        bool,
        Option(
            "--replicated",
            "State that every rank has all weights (pure data parallelism), if the save does not record it.",
            "Which checkpoint",
        ),
    ] = False
    is_unstacked: Annotated[
        bool, Option("--unstack", "Write each layer as a tensor of its own if the save stacks layers.", _FORM)
    ] = False
    keeps_tied: Annotated[
        bool, Option("--keep-tied", "Write shared weights under each of their names, instead of once.", _FORM)
    ] = False
    max_shard: Annotated[
        int,
        Option(
            "--max-shard",
            "Maximum size of the weights per file.",
            _FORM,
            metavar="SIZE",
            shown="5GB",
            parse=shard_size,
        ),
    ] = 5 * 10**9
    """Maximum number of bytes of the weights in one file; a larger tensor has a file of its own."""
    dtype: Annotated[
        ExportedType,
        Option("--dtype", "Element type of floating-point weights; FP8 and integers are unchanged.", _FORM),
    ] = ExportedType.STORED
    config_from: Annotated[
        str | None,
        Option(
            "--config-from",
            "Folder of the base model, to copy config.json and the tokenizer if the save lacks them.",
            _FORM,
            metavar="DIR",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file of the output."""

    name: str
    nbytes: ByteCount
    tensors: int
    """Number of tensors in the file; 0 for a file of another kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A complete output, of which every file was read back from the disk."""

    folder: str
    """The folder, as the user typed it."""
    files: tuple[WrittenFile, ...]
    """Files with tensors, in order."""
    copied: tuple[str, ...]
    """Names of files that were copied, sorted."""
    missing: tuple[str, ...]
    """Files that loaders of models need, but that were not found; nouns for people."""
    tensors: int
    elements: int
    nbytes: ByteCount
    """Size of all elements in bytes."""
    dtypes: Mapping[str, int]
    """Number of tensors of each element type, by its safetensors name, sorted."""
    proven: int
    """Number of stored records whose CRC-32 was right."""
    level: Level
    """How thoroughly the checkpoint was checked before."""
    sources: int
    """Number of files that the weights were read from."""
    verified: int
    """Number of these files whose complete content was proven before, by a checksum, a seal or copies of other ranks.

    It is 0 if only headers were checked before.
    """
    equal: int = 1
    """Number of copies of each weight that were compared and are equal; 1 if there was nothing to compare."""
    names_of: str
    is_loadable: bool | None
    tied: Mapping[str, str]
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported(Answered):
    """The answer of `export`."""

    NOUN = "export"

    inventory: Inventory
    checkpoint: str
    step: Step | None
    output: Output | None
    """The output; None if nothing was written."""
    findings: tuple[Finding, ...]
    """The reasons if nothing was written; otherwise notes."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code for the findings: 0 if the output was written."""
        return of_findings(self.findings)
