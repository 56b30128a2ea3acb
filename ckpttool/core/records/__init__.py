"""ckpttool's own files, each read and written by one module. No layout treats these files as strays."""

from __future__ import annotations

from collections.abc import Mapping

from ckpttool.core.domain.frozen import dataclass

OWN_FOLDER = ".ckpttool"
"""Folder in the tree's root for ckpttool's own files."""

JOURNAL = f"{OWN_FOLDER}/prune.json"
"""The moves of a running prune, or of a restore from the trash; deleted at the end."""

HEAL_JOURNAL = f"{OWN_FOLDER}/heal.json"
"""The files that a heal has prepared and is putting in place; deleted at the end."""

BIRTH_FOLDER = f"{OWN_FOLDER}/birth"
"""Digests of shards taken before they were written; one file per shard."""

SEALS_BESIDE = f"{OWN_FOLDER}/seals"
"""Folder of the seals that were added to a manifest: in an object store, a file per seal that is never overwritten,
`NAME.manifest/TIME-RANDOM.json`; on disks, one file per machine, `NAME.manifest/I-of-N.json`."""

PART_SUFFIX = ".ckptpart"
"""Suffix of a file with one machine's part of a tree."""

OWN_STATE = "ckpttool.state"
"""The tensor in which ckpttool's own writer stores, as JSON, everything other than tensors; no other writer uses it.

This state differs per rank, so it is not in the file's metadata, which is equal in all of a save's files.
"""

STREAM = "-"
"""Stands for standard input, instead of such a file."""

MANIFEST_NAME = "ckpttool.manifest.json"
"""The manifest's file name in a checkpoint that has its own folder."""

_LONGEST_NAME = 200
"""Maximum bytes. A file name may have 255, including the part that follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealPlace:
    """The location of a checkpoint's manifest, and the identity that it must contain."""

    path: str
    """Relative to the root."""
    layout: str
    checkpoint: str
    """The checkpoint's name."""
    prefix: str | None
    """The checkpoint's prefix; None if the manifest is in the checkpoint's folder, with files of any name."""
    births: str | None = None
    """The prefix of its shards' birth certificates, before the rank; None if there are no birth certificates."""

    @classmethod
    def inside(cls, folder: str, *, layout: str, checkpoint: str) -> SealPlace:
        """Return the manifest's location in a checkpoint's own folder; the path is relative to the root."""
        return cls(path=f"{folder}/{MANIFEST_NAME}", layout=layout, checkpoint=checkpoint, prefix=None)

    @property
    def additions_folder(self) -> str:
        """The folder of the manifests added to this one: those in a store, which replaces none, or one per machine."""
        return f"{SEALS_BESIDE}/{self.path.removeprefix(f'{OWN_FOLDER}/').removesuffix('.json')}"

    def of_share(self, number: int, of: int) -> str:
        """Return the path of one machine's seal, if there are several machines."""
        return f"{self.additions_folder}/{number}-of-{of}.json"

    @property
    def is_apart(self) -> bool:
        """Whether the manifest outlives the checkpoint's files, because it is in our own folder."""
        return self.path.startswith(f"{OWN_FOLDER}/")


def is_manifest(path: str) -> bool:
    """Return whether a path in a tree is a manifest, for any `SealPlace`; a certificate is not a manifest."""
    is_manifest_path = path.startswith(f"{OWN_FOLDER}/") and path.endswith(".manifest.json")
    return is_manifest_path or path.startswith(f"{SEALS_BESIDE}/") or path.rpartition("/")[2] == MANIFEST_NAME


def births_begin(prefix: str, name: str) -> str:
    """Return the common prefix of a save's birth certificates, before the rank."""
    return f"{BIRTH_FOLDER}/{prefix}-{name}.r"


def own_cache(environment: Mapping[str, str]) -> str | None:
    """Return our folder in the user's cache, existing or not; None if there is no cache folder."""
    return _own_place(environment, "XDG_CACHE_HOME", ".cache")


def own_state(environment: Mapping[str, str]) -> str | None:
    """Return our folder for state that must survive a restart; None if there is no such folder."""
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
    """Return a file name, with arbitrary bytes, as text that JSON can represent; `decoded_name` decodes it."""
    return name.encode("utf-8", "surrogateescape").decode("latin-1")


def decoded_name(text: str) -> str:
    """Decode a name that `encoded_name` encoded.

    Raises:
        UnicodeEncodeError: The name was not encoded in this way.
    """
    return text.encode("latin-1").decode("utf-8", "surrogateescape")


def own_path(text: str, ending: str, *, ambiguous: bool = False) -> str:
    """Return a path in our folder for untrusted text without a slash: short enough, and unique for each text.

    Args:
        text: The best available name of the checkpoint.
        ending: The end of the file name.
        ambiguous: Whether another checkpoint could have the same text.
    """
    raw = text.encode("utf-8", "surrogateescape")
    if len(raw) > _LONGEST_NAME or ambiguous:
        from xxhash import xxh3_128_hexdigest

        # An unchanged name ends in a shard suffix, so it cannot end like this.
        text = f"{raw[: _LONGEST_NAME - 33].decode('utf-8', 'ignore')}.{xxh3_128_hexdigest(raw)}"
    return f"{OWN_FOLDER}/{text}{ending}"
