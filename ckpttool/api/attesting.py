"""Ask an object store for what it keeps of the shards, and find out what that is worth."""

from __future__ import annotations

import secrets
import time

from ckpttool.api.scanning import Tree
from ckpttool.domain.frozen import replace
from ckpttool.domain.stored import CLAIMS, CrcName, Store, StoreTrial
from ckpttool.domain.units import moment
from ckpttool.errors import IncompleteError, UsageError
from ckpttool.records.store_trials import read_trials, trial_bytes, trial_path
from ckpttool.storage import open_storage
from ckpttool.storage.stored_checksums import StoredChecksums, assert_keeps
from ckpttool.verify.stored import StoreReading

_INSTALL = "pip install 'ckpttool[attest]'"


def store_reading(tree: Tree, timeout: float) -> StoreReading:
    """Return who is asked about the shards of a tree.

    Args:
        tree: In a store.
        timeout: Seconds after which a question counts as hung.

    Raises:
        UsageError: Nobody can be asked there.
    """
    checksums = open_checksums(tree.inventory.root)
    trials = () if checksums.is_known else read_trials(open_storage(tree.inventory.root), checksums.address)
    store = Store(address=checksums.address, is_known=checksums.is_known, trials=trials)
    return StoreReading(of=checksums.of, store=store, timeout=timeout)


def open_checksums(root: str) -> StoredChecksums:
    """Return who tells what is kept of the objects below a root; nothing has been asked yet.

    Raises:
        UsageError: As of `assert_keeps`, or what asks for them is not installed.
    """
    assert_keeps(root)
    try:
        if root.startswith("s3://"):
            from ckpttool.storage.s3_checksums import S3Checksums

            return S3Checksums(root)
        from ckpttool.storage.google_checksums import GoogleChecksums
    except ImportError as error:
        package = (error.name or "a package").partition(".")[0]
        raise UsageError(f"{root}: --level stored asks by {package}, which is not installed: {_INSTALL}") from None
    return GoogleChecksums(root)


def try_store(tree: Tree) -> StoreTrial | None:
    """Find out whether a store refuses wrong checksums, and write it down beside the tree; once is enough.

    One small object is written under a name that nobody else takes, with wrong checksums and with right ones: a store
    that refuses the wrong and takes the right compares them. The last thing written is what came of it.

    Returns:
        The trial that counts, this one or an earlier one; None where none is needed: what the store does is documented.

    Raises:
        UsageError: Nobody can be asked there, or no way to try it is known.
        IncompleteError: The store does not answer, or does not let us write.
    """
    root = tree.inventory.root
    checksums = open_checksums(root)
    if checksums.is_known:
        return None
    known = read_trials(tree.storage, checksums.address)
    if known:
        return known[-1][1]
    try:
        return _tried(root, checksums)
    except OSError as error:
        raise IncompleteError(f"{root}: the store was not tried: {error.strerror or error}") from None


def _tried(root: str, checksums: StoredChecksums) -> StoreTrial:
    from ckpttool.storage.objects import put_new
    from ckpttool.storage.s3_checksums import S3Checksums

    if not isinstance(checksums, S3Checksums):
        raise UsageError(f"{root}: --try-store knows how to try a store that speaks S3 alone")
    now = moment(time.time())
    path = trial_path(now, secrets.token_hex(8))
    trial = StoreTrial(address=checksums.address, server=checksums.server(), tried_at=now, refused=(), taken=())
    for claim in CLAIMS:
        # What is written says what is true if it is taken, whatever happens next.
        wrongly = replace(trial, taken=(*trial.taken, claim))
        data = trial_bytes(wrongly)
        right = _crcs(data).get(claim.crc)
        if right is None:  # it cannot be computed here
            continue
        if checksums.takes(path, data, claim, right ^ 1):
            trial = wrongly
        elif checksums.takes(path, data, claim, right):
            trial = replace(trial, refused=(*trial.refused, claim))
    put_new(root, path, trial_bytes(trial))
    return trial


def _crcs(data: bytes) -> dict[CrcName, int]:
    from ckpttool.verify.kernels.crc import StoreCrcs, crc32

    others = StoreCrcs()
    others.feed(memoryview(data))
    return {CrcName.CRC32: crc32(data), **dict(others.crcs())}
