"""ckpttool's own files, each read and written by one module. No layout treats these files as strays."""

from __future__ import annotations

from collections.abc import Mapping

from ckpttool.core.domain.frozen import dataclass

OWN_FOLDER = ".ckpttool"
"""Folder of ckpttool's own files, in the root of the tree."""

JOURNAL = f"{OWN_FOLDER}/prune.json"
"""File with the moves of a prune in progress, or of a restore from the trash; deleted at the end."""

HEAL_JOURNAL = f"{OWN_FOLDER}/heal.json"
"""File with the files that a heal has prepared and is putting in place; deleted at the end."""

BIRTH_FOLDER = f"{OWN_FOLDER}/birth"
"""Folder of digests that were computed before shards were written, with one file per shard."""

SEALS_BESIDE = f"{OWN_FOLDER}/seals"
"""Folder of the seals that were added to a manifest.

In an object store, it has one file per seal that is never overwritten, `NAME.manifest/TIME-RANDOM.json`. On disks, it
has one file per machine, `NAME.manifest/I-of-N.json`.
"""

MARKS = f"{OWN_FOLDER}/marks"
"""Folder of the marks that people and supervisors set on saves: one file per mark, which is never overwritten."""

STARTS = f"{OWN_FOLDER}/starts.json"
"""File with the last launches that counted their starts."""

PART_SUFFIX = ".ckptpart"
"""Suffix of a file with one machine's part of a tree."""

OWN_STATE = "ckpttool.state"
"""Name of the tensor in which ckpttool's own writer stores everything other than tensors, as JSON.

This state differs per rank, so it is not in the file's metadata, which is equal in all files of a save.
"""

STREAM = "-"
"""Name of the standard input in place of such a file."""

MANIFEST_NAME = "ckpttool.manifest.json"
"""Name of the manifest in a checkpoint that has its own folder."""

_LONGEST_NAME = 200
"""Maximum length of a name in bytes; a file name, with the part that follows, may have 255."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealPlace:
    """Location of a checkpoint's manifest, and the identity that the manifest must contain."""

    path: str
    """Path of the manifest, relative to the root."""
    layout: str
    checkpoint: str
    """The checkpoint's name."""
    prefix: str | None
    """Prefix of the checkpoint; None if the manifest is in the checkpoint's folder, whose files may have any name."""
    births: str | None = None
    """Common prefix of the birth certificates of its shards, before the rank; None if it has no certificates."""

    @classmethod
    def inside(cls, folder: str, *, layout: str, checkpoint: str) -> SealPlace:
        """Return the location for a manifest in the checkpoint's own folder, with a path relative to the root."""
        return cls(path=f"{folder}/{MANIFEST_NAME}", layout=layout, checkpoint=checkpoint, prefix=None)

    @property
    def additions_folder(self) -> str:
        """Folder of the manifests that were added to this one.

        In an object store, a new manifest never replaces an earlier one. On disks, each machine has one.
        """
        return f"{SEALS_BESIDE}/{self.path.removeprefix(f'{OWN_FOLDER}/').removesuffix('.json')}"

    def of_share(self, number: int, of: int) -> str:
        """Return the path of the seal of machine `number` among `of` machines."""
        return f"{self.additions_folder}/{number}-of-{of}.json"

    @property
    def is_apart(self) -> bool:
        """Whether the manifest is in ckpttool's own folder, so that it outlives the checkpoint's files."""
        return self.path.startswith(f"{OWN_FOLDER}/")


def is_manifest(path: str) -> bool:
    """Return whether a path in a tree is that of a manifest; birth certificates are not manifests."""
    is_manifest_path = path.startswith(f"{OWN_FOLDER}/") and path.endswith(".manifest.json")
    return is_manifest_path or path.startswith(f"{SEALS_BESIDE}/") or path.rpartition("/")[2] == MANIFEST_NAME


def births_begin(prefix: str, name: str) -> str:
    """Return the common prefix of a save's birth certificates, before the rank."""
    return f"{BIRTH_FOLDER}/{prefix}-{name}.r"


def own_cache(environment: Mapping[str, str]) -> str | None:
    """Return the path of ckpttool's folder in the user's cache, whether or not it exists; None if there is no cache."""
    return _own_place(environment, "XDG_CACHE_HOME", ".cache")


def own_state(environment: Mapping[str, str]) -> str | None:
    """Return the path of ckpttool's folder for state that survives a restart; None if there is no such folder."""
    return _own_place(environment, "XDG_STATE_HOME", ".local/state")


def _own_place(environment: Mapping[str, str], variable: str, usual: str) -> str | None:
    base = environment.get(variable, "")
    if not base.startswith("/"):  # the XDG specification requires ignoring such a value
        home = environment.get("HOME", "")
        if not home.startswith("/"):
            return None
        base = f"{home}/{usual}"
    return f"{base}/ckpttool"


def leads_out(path: str) -> bool:
    """Return whether a path from an untrusted file points outside the tree."""
    return "\0" in path or any(part in {"", ".", ".."} for part in path.split("/"))


def encoded_name(name: str) -> str:
    """Return a file name of arbitrary bytes as text that JSON can represent; `decoded_name` decodes it."""
    return name.encode("utf-8", "surrogateescape").decode("latin-1")


def decoded_name(text: str) -> str:
    """Decode a name that `encoded_name` encoded.

    Raises:
        UnicodeEncodeError: The name has a different form.
    """
    return text.encode("latin-1").decode("utf-8", "surrogateescape")


def own_path(text: str, ending: str, *, ambiguous: bool = False) -> str:
    """Return a path in ckpttool's folder for an untrusted text without a slash; the path is short and unique.

    Args:
        text: The best available name of the checkpoint.
        ending: The end of the file name.
        ambiguous: Whether another checkpoint could have the same text.
    """
    raw = text.encode("utf-8", "surrogateescape")
    if len(raw) > _LONGEST_NAME or ambiguous:
        from xxhash import xxh3_128_hexdigest

        # An unchanged name ends in a shard suffix, so it cannot end in this way.
        text = f"{raw[: _LONGEST_NAME - 33].decode('utf-8', 'ignore')}.{xxh3_128_hexdigest(raw)}"
    return f"{OWN_FOLDER}/{text}{ending}"
