"""The weights of a save: each tensor of the model, and the places of its elements in the save's files.

A trainer's source of weights returns these nouns, and the feature that writes weights reads them. They are in the core,
because a trainer imports no feature. Nothing here reads a file: sources read headers, records and pickles, but no
elements.

A source describes the model and does not check that it is complete. The feature checks every target before a byte is
written: each element is in exactly one piece (equal boxes are replicas), each piece is inside its target and its
record, and the CRC-32 of each record is right. A source raises `NotExportableError` only for facts that the targets
cannot show.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.finding import Finding
from ckpttool.core.domain.frozen import dataclass


class Record(NamedTuple):
    """A stored range of a file with a checksum, such as a record of a zip archive by `torch.save`."""

    path: str
    """POSIX path, relative to the storage's root."""
    begin: int
    """First byte of the data in the file."""
    length: int
    """Size in bytes."""
    crc32: int | None
    """Recorded CRC-32 of the data; None if the writer computed none."""


class Piece(NamedTuple):
    """A part of a tensor: elements in a file, and the place of that box in the tensor."""

    path: str
    """POSIX path, relative to the storage's root."""
    begin: int
    """Absolute byte of the first element in the file."""
    dtype: DType
    """Element type as stored, little-endian."""
    shape: tuple[int, ...]
    """Number of elements per axis; one number if the target is flat."""
    stride: tuple[int, ...]
    """Distance in the file between neighbours per axis, in elements."""
    at: tuple[int, ...]
    """Offsets of the box in the tensor; if the target is flat, one number, the first element of the run."""
    record: Record | None = None
    """The record that contains all the elements; None if the file has no checksum for a range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One tensor of the output."""

    name: str
    dtype: DType
    """Element type of the output. If a piece has a different one, its elements are cast; only floats can be cast."""
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    """Pieces in any order. Two pieces with the same box are replicas, of which one is used."""
    flat: bool = False
    """Whether the pieces are runs of the tensor's elements in row-major order, instead of boxes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Data of the save that are not among the targets."""

    kind: str
    """Plural noun for people and JSON, such as `optimizer tensors`, `tied weights`, `scales of FP8`."""
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The model of one save."""

    targets: tuple[Target, ...]
    """Tensors in the order of the output; the order of the model if the save has it."""
    names_of: str
    """Origin of the names, as a noun phrase with the trainer's title: "module names of <title>"."""
    is_loadable: bool | None
    """Whether the names are those of the published model, so that inference engines load the output as it is.

    None if that depends on the model.
    """
    tied: Mapping[str, str] | None = None
    """For each left out name of shared weights, the name of the target that contains them; None for no such names."""
    left_out: tuple[LeftOut, ...] = ()
    records: tuple[Record, ...] = ()
    """Further records whose CRC-32 must be right, such as the pickle that names the tensors.

    Records of pieces need not be repeated.
    """
    must_agree: bool = False
    """Whether pieces with the same box must have equal elements, because only that supports the user's statement.

    Otherwise the record of the save shows that they are replicas, and the others are not read.
    """
    described_by: tuple[str, ...] = ()
    """Further files that the targets depend on, such as `.metadata`; they must not change during the export."""
    companions: tuple[str, ...] = ()
    """Files of the save that belong to the model, such as `config.json`, as `trainers/common/companions.py` lists them.
    """
    stem: str = "model"
    """Name of the output's files without number and suffix; `adapter_model` if the weights are an adapter."""
    findings: tuple[Finding, ...] = ()
    """Notes, such as stacked layers, a padded vocabulary, an adapter without its base model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsRequest:
    """The user's choice of weights."""

    layout: str
    """Name of the layout of the tree, which a trainer of several layouts needs."""
    is_16bit: bool = False
    """Whether to take the 16-bit copy that the training computed with, instead of the FP32 master weights.

    It has no effect on saves with only one of them.
    """
    part: str | None = None
    """The model to export if the save has several, such as `actor`; None if the save has one."""
    is_unstacked: bool = False
    """Whether to divide tensors in which layers are stacked, for saves that stack them."""
    is_replicated: bool = False
    """Whether the user states that all ranks have the same weights, for layouts without a record of it."""


class NotExportableError(Exception):
    """The weights of a save cannot be exported; the finding has the reason and the remedy.

    Trainers make it with the functions of `trainers/export_findings.py`. A refusal has the severity UNKNOWN; data that
    are certainly missing or damaged have DAMAGE.
    """

    def __init__(self, finding: Finding) -> None:
        """Store the finding."""
        super().__init__(finding.message)
        self.finding = finding
