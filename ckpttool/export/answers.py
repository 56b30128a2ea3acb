"""Output for an export."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.units import counted
from ckpttool.core.domain.verdict import Level
from ckpttool.core.render.escape import shown, size
from ckpttool.core.render.json import Document, finding_document
from ckpttool.export.model import Exported, Output, WrittenFile

if TYPE_CHECKING:
    from rich.console import RenderableType

_MOST_FILES = 8
"""Maximum number of files in the table; JSON has all."""


def document(answer: Exported) -> Document:
    """Return the document of `ckpttool/export/1`."""
    return {
        "schema": "ckpttool/export/1",
        "root": answer.inventory.root,
        "checkpoint": answer.checkpoint,
        "step": answer.step,
        "output": None if answer.output is None else _output(answer.output),
        "findings": [finding_document(finding) for finding in answer.findings],
    }


def _output(output: Output) -> Document:
    return {
        "folder": output.folder,
        "files": [{"name": file.name, "bytes": file.nbytes, "tensors": file.tensors} for file in output.files],
        "copied": list(output.copied),
        "missing": list(output.missing),
        "total": {"tensors": output.tensors, "elements": output.elements, "bytes": output.nbytes},
        "dtypes": dict(output.dtypes),
        "records_proven": output.proven,
        "sources": {"files": output.sources, "verified": output.verified, "level": output.level.word},
        "copies_equal": output.equal,
        "names_of": output.names_of,
        "loadable": output.is_loadable,
        "tied": dict(output.tied),
        "left_out": [{"kind": left.kind, "names": list(left.names)} for left in output.left_out],
    }


def table(answer: Exported) -> RenderableType:
    """Show the files and the origin of their content, or the reason why nothing was written."""
    from ckpttool.core.render.finding_lines import grouped_findings, pointer
    from ckpttool.core.render.text import Pairs, line, stack

    root = answer.inventory.root
    step = "" if answer.step is None else f"step {answer.step} "
    name = f"{step}({shown(answer.checkpoint)})" if step else shown(answer.checkpoint)
    findings = (*grouped_findings(answer.findings), *pointer(answer.findings))
    output = answer.output
    if output is None:
        headline = line(f"Nothing was written: the weights of {name} were not exported", style="bold red")
        return stack(headline, line(shown(root), style="dim"), *findings)
    elements = "1 element" if output.elements == 1 else f"{output.elements:,} elements"
    weights = f"{counted(output.tensors, 'tensor')}, {elements}, {size(output.nbytes)}"
    headline = line(f"Exported {name} to {shown(output.folder)}: {weights}", style="bold green")
    pairs = [(file.name, f"{counted(file.tensors, 'tensor')}, {file.nbytes:,} bytes") for file in _shown_files(output)]
    rest = len(output.files) - len(pairs)
    parts: list[RenderableType] = [headline, line(shown(root), style="dim"), line(), Pairs(pairs)]
    if rest:
        parts.append(line(f"  … and {counted(rest, 'more file')}: --json lists them", style="dim"))
    return stack(*parts, line(), Pairs(_about(output)), *findings)


def _shown_files(output: Output) -> tuple[WrittenFile, ...]:
    return output.files[:_MOST_FILES]


def _about(output: Output) -> list[tuple[str, str]]:
    """Return the facts that a user of the weights needs."""
    types = ", ".join(f"{dtype} ({count})" for dtype, count in output.dtypes.items())
    rows = [("types", types), ("checked", _proof(output)), ("names", _names(output))]
    if output.copied:
        rows.append(("copied", ", ".join(map(shown, output.copied))))
    if output.missing:
        rows.append(("missing", f"{' and '.join(output.missing)}, which loaders need: --config-from DIR copies them"))
    if output.tied:
        alias, name = next(iter(output.tied.items()))
        more = f" and {len(output.tied) - 1} more" if len(output.tied) > 1 else ""
        rows.append(("tied", f"{shown(alias)} is {shown(name)}, written once{more}"))
    rows += [("left out", f"{len(left.names)} {left.kind}") for left in output.left_out]
    return rows


def _proof(output: Output) -> str:
    """Return the checks of the source and of the output, and no others."""
    checks = []
    if output.proven:
        checks.append(f"CRC-32 of {counted(output.proven, 'stored record')} compared")
    if output.verified:
        checks.append(f"{output.verified} of {counted(output.sources, 'source file')} verified before")
    if output.equal > 1:
        checks.append(f"the copies of {output.equal} ranks are equal")
    text = ", ".join([*checks, "every file read back"])
    if checks:
        return text
    if output.level is Level.STRUCTURE:
        return f"{text}; the source has no checksums of its own (--level checksum compares seals and copies)"
    return f"{text}; no checksum, seal or copy proves the source"


def _names(output: Output) -> str:
    if output.is_loadable:
        return output.names_of
    if output.is_loadable is None:
        return f"{output.names_of}: loadable as they are if they are the model's own"
    return f"{output.names_of}: model libraries and inference engines cannot load them as they are"
