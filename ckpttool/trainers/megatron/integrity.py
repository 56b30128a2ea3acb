"""`integrity.json`: SHA-256 of the files in a save's folder, which core 0.17 and later write with `--verify-integrity`.

The trainer compares these digests only if it is started with that option: on its first rank, while the accelerators
wait.
"""

from __future__ import annotations

import re

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Code, Finding, note, unsafe
from ckpttool.core.domain.frozen import replace
from ckpttool.core.formats.base import quoted
from ckpttool.core.formats.strict_json import ParseError, as_str, get_object, get_str, parse_object
from ckpttool.core.records import leads_out
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.megatron import INTEGRITY

_LIMIT = 64 << 20
"""Maximum size in bytes; each file in the record takes about 90."""
_DIGEST = r"[0-9a-f]{64}"


def with_digests(storage: Storage, checkpoint: Checkpoint) -> Checkpoint:
    """Add the digests in a save's folder to the save.

    If the record cannot be read, only a note is added.
    """
    path = f"{checkpoint.name}/{INTEGRITY}"
    try:
        digests, findings = _digests(storage.small_file(path, limit=_LIMIT), path)
    except FileNotFoundError:
        return checkpoint
    except (OSError, ParseError) as error:
        why = (isinstance(error, OSError) and error.strerror) or error
        message = f"the save's digests cannot be read ({why}): nothing is compared with them"
        digests, findings = {}, (note(Code.META_UNREADABLE, message, path=path),)
    findings = tuple(finding for finding in findings if finding not in checkpoint.findings)
    own_digests = tuple(sorted((f"{checkpoint.name}/{name}", digest) for name, digest in digests.items()))
    return replace(checkpoint, digests=own_digests, findings=(*checkpoint.findings, *findings))


def _digests(content: bytes, path: str) -> tuple[dict[str, str], tuple[Finding, ...]]:
    record = parse_object(content, where=path)
    if get_str(record, "algorithm", where=path) != "sha256":
        raise ParseError("the algorithm is not sha256")
    digests = {
        name: as_str(digest, where=path, key=name) for name, digest in get_object(record, "files", where=path).items()
    }
    escaping = sorted(name for name in digests if "/" in name or leads_out(name))
    if escaping:
        message = f"names {quoted(escaping[0])}, which is not a file of this folder; it is not followed"
        return {}, (unsafe(Code.UNSAFE_NAME, message, path=path),)
    invalid = next((name for name, digest in sorted(digests.items()) if re.fullmatch(_DIGEST, digest) is None), None)
    if invalid is not None:
        raise ParseError(f"no SHA-256 for {quoted(invalid)}")
    return digests, ()
