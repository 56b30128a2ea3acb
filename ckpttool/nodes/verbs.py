"""Write a part: one machine's view of a tree that several machines have."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from ckpttool import __version__
from ckpttool.core.domain.expectation import RankFiles
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.node import Process, Reach, Room
from ckpttool.core.domain.question import DEFAULT_DIR
from ckpttool.core.domain.units import ByteCount, Rank
from ckpttool.core.domain.verdict import Level, ShardReport, VerdictWord
from ckpttool.core.errors import CkptToolError, IncompleteError, UnknownLayoutError, UnsafeError, UsageError
from ckpttool.core.records import PART_SUFFIX, STREAM
from ckpttool.core.storage import is_local, shortest
from ckpttool.core.storage.disk import LocalDisk
from ckpttool.core.storage.mounts import disk_id, mount_of, mount_table
from ckpttool.core.verbs.first_start import trace_here
from ckpttool.core.verbs.verifying import joined
from ckpttool.nodes.model import MOST_PART_BYTES, PartQuestion, PartWritten, Seat, Split
from ckpttool.nodes.names import assert_own, place_of, process_of_part, run_of
from ckpttool.nodes.part_file import PartView, encode_part
from ckpttool.nodes.storage import Answers, Mine, by_file, by_folder
from ckpttool.trainers.locate import locate
from ckpttool.trainers.parts import places_below

if TYPE_CHECKING:
    from ckpttool.nodes.looking import NodeView
    from ckpttool.trainers.located import Located


def part(question: PartQuestion, *, read: Mapping[str, ShardReport] | None = None) -> PartWritten | None:
    """Record the part of a tree that this machine can see.

    Args:
        question: The tree to record, and the output file.
        read: Reports from earlier reads, by path, for use if the files are unchanged.

    Returns:
        The written part, whatever it contains; None if this process only supervises others.

    Raises:
        UsageError: The number of the part is unknown, or the part cannot be written to `out`.
        UnsafeError: The part exceeds the size limit for reading.
        WriteFailedError, NotDurableError: The part could not be written.
    """
    process = process_of_part(question.part)
    if process is None:
        return None
    located, root, place = _destination(question, process)
    made, data = _made(question, process, located, root, read)
    assert_own(place, made.seat, keeps=read is not None)
    return _written(made, data, place)


def earlier_reports(question: PartQuestion) -> dict[str, ShardReport]:
    """Return the reports in the existing part, by the shards' paths; empty if the part cannot be read.

    Raises:
        UsageError: The number of the part is unknown, or the part cannot be written there.
    """
    from ckpttool.nodes.tree import read_views

    process = process_of_part(question.part)
    if process is None:
        return {}
    _, _, place = _destination(question, process)
    reports: dict[str, ShardReport] = {}
    if place.endswith(PART_SUFFIX) and os.path.isfile(place):
        for _, view in read_views(place):
            if isinstance(view, PartView):
                found = {path: view.report_of(path) for path in view.answers.stamps}
                reports |= {path: report for path, report in found.items() if report is not None}
    return reports


def _destination(question: PartQuestion, process: Process) -> tuple[Located | None, str, str]:
    """Return this machine's tree, if any, the tree's root, and the file for the part.

    Raises:
        UsageError, UnsafeError, WriteFailedError: The same as in `_located` and `place_of`.
    """
    located, root = _located(question)
    return located, root, place_of(question.out, root, run_of(question, process), process.index + 1, process.count)


def parts_of_nodes(question: PartQuestion) -> Iterator[PartWritten | IncompleteError]:
    """Record the view of each node in the cluster that `on_ray` joined, and write the parts here.

    Args:
        question: The tree to record, which has the same path on all nodes. This function assigns the parts' numbers.

    Yields:
        The part written for each node, or an error if the node is lost and its files are unknown.

    Raises:
        UsageError: No cluster was joined, a node cannot check the tree or runs a different version, or the request is
            not valid for a cluster.
        UnsafeError, WriteFailedError, NotDurableError: As for `part`.
    """
    from ckpttool.core.verify.engines.ray import assert_same

    cluster = joined()
    if cluster is None:
        raise UsageError("no cluster was joined: call this inside `with on_ray(ADDRESS)`")
    if question.ranks is not None or question.devices_per_node is not None or question.part != "auto":
        raise UsageError(
            "--engine ray numbers the nodes in any order: --part, --ranks and --devices-per-node have no meaning"
        )
    tree = replace(question.tree, path=str(Path(question.tree.path or DEFAULT_DIR).absolute()), environment=None)
    if question.run is None:
        question = replace(question, run=time.strftime("ray-%Y%m%dT%H%M%SZ", time.gmtime()))
    run = run_of(question, None)
    nodes, dead, requested = cluster.nodes, cluster.dead, replace(question, tree=tree, run=run)
    of = len(nodes) + len(dead)
    places = [place_of(question.out, tree.path or "", run, number, of) for number in range(1, of + 1)]
    if len(set(places)) < of:
        raise UsageError(f"--out {question.out}: each of {of} nodes has a part: name a folder, with a / at the end")
    calls = [(node, (__version__, requested, number, of)) for number, (node, _) in enumerate(nodes, 1)]
    answers = zip(cluster.on_nodes(part_on_node, calls), (host for _, host in nodes), strict=True)
    for at, (answer, host) in enumerate(chain(answers, (("it is dead", host) for host in dead))):
        if isinstance(answer, str):
            yield IncompleteError(f"part {at + 1} of {of}: the node {host} was lost ({answer}); its files are unknown")
            continue
        own_version, version, made = answer
        assert_same(own_version, version)
        if isinstance(made, str):
            raise UsageError(f"{own_version}: {made}")
        written, data = made
        assert_own(places[at], written.seat)
        yield _written(written, data, places[at])


def part_on_node(
    version: str, question: PartQuestion, number: int, of: int
) -> tuple[str, str, tuple[PartWritten, bytes] | str]:
    """Record this node's part for the machine that requested it; return host, version, and the part or an error."""
    host = socket.gethostname()
    process = process_of_part(f"{number}/{of}")
    if version != __version__ or process is None:
        return host, __version__, ""
    try:
        return host, __version__, _made(question, process, *_located(question))
    except CkptToolError as error:
        return host, __version__, str(error)


def _made(
    question: PartQuestion,
    process: Process,
    located: Located | None,
    root: str,
    read: Mapping[str, ShardReport] | None = None,
) -> tuple[PartWritten, bytes]:
    """Read the local files, and return the part without its path, and its content.

    For unchanged files, the reports in `read` are used instead of the file headers.

    Raises:
        UsageError: The work must be divided, but the number of processes is unknown.
        UnsafeError: The part exceeds the size that a reader accepts.
    """
    began = time.time_ns()
    run = run_of(question, process)
    mount = mount_of(root, mount_table())
    divided = _divided(question.split, process, shared=mount.reach is Reach.SHARED)
    from ckpttool.nodes.looking import view_of

    check, share = question.check, None
    if question.seal:
        check, share = replace(check, level=max(check.level, Level.CHECKSUM)), (process.index + 1, process.count)
    view = view_of(located, root, check, mine=_mine(located, divided), share=share)
    if read:
        view = replace(view, reports=_with_read(view, read))
    folders = _folders(root, view)
    seat = Seat(
        number=process.index + 1,
        of=process.count,
        run=run,
        host=socket.gethostname(),
        disk=disk_id(root),
        shared=mount.reach is Reach.SHARED,
        root=root,
        began_ns=began,
        ended_ns=time.time_ns(),
        level=check.level,
        share=None if divided is None else f"{divided[0] + 1}/{divided[1]}",
        claims=_claims(question, process),
        room=_room(folders[0]),
        absolute=os.path.abspath(root),
        unwritable=tuple(folder for folder in folders if not LocalDisk().is_writable(folder)),
        inode=_inode(root),
        trace=None if view.answers.stamps and view.reports else trace_here(question.tree),
    )
    if located is None and not view.reports:  # no tree: other files here are private
        view = replace(view, answers=Answers(failures=view.answers.failures))
    data = _encoded(seat, view)
    counts = Counter(report.word for report in view.reports.values())
    written = PartWritten(
        seat=seat,
        version=__version__,
        path="",
        nbytes=ByteCount(len(data)),
        resolved_from=None if located is None else located.resolved_from,
        found=located is not None,
        words=tuple((word, counts[word]) for word in VerdictWord if word in counts),
        sealings=view.sealings if question.seal else None,
    )
    return written, data


def _with_read(view: NodeView, read: Mapping[str, ShardReport]) -> dict[str, ShardReport]:
    """Return the report on each shard; for an unchanged file, the report from the last read."""
    reports = dict(view.reports)
    for path in reports.keys() & read.keys():
        stamp = read[path].stamp
        if stamp is not None and stamp == view.answers.stamps.get(path):
            reports[path] = read[path]
    return reports


def _written(made: PartWritten, data: bytes, place: str) -> PartWritten:
    """Write a part.

    Raises:
        WriteFailedError, NotDurableError: The part could not be written.
    """
    from ckpttool.core.write.files import replace as write

    # The current file is this process's own; a file that appears in the meantime is not.
    write(place, data, overwrite=os.path.lexists(place), backup=False)
    return replace(made, path=place)


def _located(question: PartQuestion) -> tuple[Located | None, str]:
    """Return this machine's tree, if any, and the tree's root: a missing tree is recorded in the part.

    If this machine has no tree, the root is the probable place of the tree on other machines: the first of the folders
    in which trainers save, else the named folder.

    Raises:
        UsageError: There are several trees, or the path is not a folder on this machine.
    """
    tree = question.tree
    path = shortest(DEFAULT_DIR if tree.path is None else tree.path)
    if not is_local(path):
        raise UsageError(f"{path} is visible from every machine: one process can check it, without parts")
    if path == STREAM:
        raise UsageError("DIR: a part records one folder as this machine sees it: name that folder")
    try:
        located = locate(tree.path, layout=tree.layout)
    except (UnknownLayoutError, IncompleteError):
        return None, next(places_below(path), path)
    if located.machines is not None:
        raise UsageError(
            f"{path} contains parts that are already written: name the folder of checkpoints on this machine"
        )
    return replace(located, focus=None), located.storage.root


def _divided(split: Split, process: Process, *, shared: bool) -> tuple[int, int] | None:
    """Return this process's number, from 0, and how many processes share the work, or None if it is not divided.

    Raises:
        UsageError: The work must be divided on this machine, but the number of processes is unknown.
    """
    if split is Split.ALL or (split is Split.AUTO and shared):
        index, count = process.index, process.count
    elif split is Split.NONE:
        return None
    elif process.local_index is not None and process.local_count is not None:
        index, count = process.local_index, process.local_count
    elif split is Split.NODE:
        raise UsageError("--split node: the number of ckpttool processes on this machine is unknown; use all or none")
    else:
        return None
    return None if count == 1 else (index, count)


def _folders(root: str, view: NodeView) -> list[str]:
    """Return the tree's folder and the listed folders in it; if it does not exist, its nearest existing parent."""
    folder = LocalDisk().nearest(root)
    if folder != root:
        return [folder]
    inside = {name for name in view.answers.entries if "/" not in name} - {"", os.pardir}
    return [root, *(f"{root}/{name}" for name in sorted(inside))]


def _room(folder: str) -> Room | None:
    try:
        return LocalDisk().room(folder)
    except OSError:
        return None


def _inode(root: str) -> int | None:
    try:
        return os.stat(root).st_ino
    except OSError:
        return None


def _mine(located: Located | None, divided: tuple[int, int] | None) -> Mine | None:
    if divided is None or located is None:
        return None
    if located.layout.rank_files is RankFiles.APART:
        return by_folder(located.layout.signs.sign, *divided)
    from ckpttool.trainers.common.loose_file import SHARD_SUFFIXES

    return by_file(frozenset(SHARD_SUFFIXES), *divided)


def _claims(question: PartQuestion, process: Process) -> tuple[Rank, ...] | None:
    """Return the ranks that will start here, if the user specified them."""
    if question.ranks is not None:
        return question.ranks
    if question.devices_per_node is None:
        return None
    node = process.node
    if node is None:
        # Started by hand, each process is a machine; Open MPI shows the number of processes per machine, not the
        # machine's.
        if process.local_count not in {None, 1}:
            raise UsageError("--devices-per-node: the number of this machine is unknown; give --ranks A-B")
        node = process.index
    first = node * question.devices_per_node
    return tuple(Rank(rank) for rank in range(first, first + question.devices_per_node))


def _encoded(seat: Seat, view: NodeView) -> bytes:
    saves = defaultdict(list)
    for path, report in sorted(view.reports.items()):
        saves[view.saves.get(path, "")].append(report)
    data = encode_part(seat, view.answers, sorted(saves.items()), version=__version__, damaged=view.damaged)
    if len(data) > MOST_PART_BYTES:
        raise UnsafeError(
            f"the part has {len(data)} bytes; at most {MOST_PART_BYTES} are allowed: divide the files among more "
            "processes"
        )
    return data
