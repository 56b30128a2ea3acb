"""Correct the trainer's own records to name the newest intact checkpoint."""

from __future__ import annotations

from ckpttool.core.decide.changes import repairs
from ckpttool.core.decide.naming import LATEST
from ckpttool.core.decide.resume import choose
from ckpttool.core.decide.steps import not_acted_on
from ckpttool.core.domain.finding import Finding, Severity
from ckpttool.core.domain.plan import NoResumePoint
from ckpttool.core.domain.pointer import Pointer, PointerFix
from ckpttool.core.domain.question import CheckQuestion, ResumeQuestion, TreeQuestion
from ckpttool.core.domain.retention import Repair
from ckpttool.core.verbs.changes import (
    assert_unchanged,
    change_of,
    complete_tree,
    pending,
    seen_in_part,
    signs_of_writing,
    unwritable,
    write_pointers,
)
from ckpttool.core.verbs.scanning import Tree, Where, looking_at, tree_question
from ckpttool.core.verbs.verifying import session_for
from ckpttool.core.write.files import sweep

_WHATEVER_ITS_HEALTH = ResumeQuestion(ignore_health=True, skips_marked=True)


def repair_meta(
    question: Where = None, choice: ResumeQuestion = _WHATEVER_ITS_HEALTH, *, grace: float = 300.0, apply: bool = False
) -> Repair:
    """List the trainer's records that do not name the newest intact checkpoint, and with `apply` correct them.

    Args:
        question: The tree.
        choice: The name or prefix of the checkpoint. Default: the newest intact one.
        grace: Age in seconds below which a shard is a sign of a save in progress.
        apply: Write the records, each atomically.

    Raises:
        UsageError: The name or prefix does not exist.
        LockedError: Another ckpttool process is changing this tree.
        IncompleteError: The tree changed in the meantime.
        WriteFailedError: A record could not be written and is unchanged; the records before it are correct.
        NotDurableError: A record is written, but the disk did not confirm it.
    """
    question = tree_question(question)
    tree = complete_tree(question)
    if not apply:
        return _proposal(tree, question, choice, grace=grace, apply=False)
    root = tree.inventory.root
    with change_of(root):
        tree = complete_tree(question)
        repair = _proposal(tree, question, choice, grace=grace, apply=True)
        if repair.applied and repair.fixes:
            assert_unchanged(tree, question, grace=grace)
            write_pointers(root, repair.fixes)
            for folder in sorted({fix.path.rpartition("/")[0] for fix in repair.fixes} - {""}):
                sweep(f"{root}/{folder}")
    return repair


def _proposal(tree: Tree, question: TreeQuestion, choice: ResumeQuestion, *, grace: float, apply: bool) -> Repair:
    session = session_for(tree, CheckQuestion())
    point = choose(tree.inventory, choice, session.verdict)
    checkpoint = None if isinstance(point, NoResumePoint) else point.checkpoint
    # While a newer checkpoint cannot be read, the newest intact one is unknown; a record must not go back then.
    against: list[Finding] = [] if apply else [*pending(tree)]
    whys = [why for rejected in point.rejected for why in rejected.reasons]
    if checkpoint is None:
        whys += point.findings
    against += [why for why in whys if why.severity is Severity.UNKNOWN]
    fixes: tuple[PointerFix, ...] = ()
    pointers: tuple[Pointer, ...] = ()
    able = 0
    if checkpoint is not None:
        with looking_at(tree.inventory.root):
            pointers = tuple(tree.layout.pointers(tree.storage, checkpoint.ranks))
        names = tree.layout.pointing_to(checkpoint)
        able = sum(pointer.path in names for pointer in pointers)
        fixes = tuple(repairs(pointers, checkpoint, tree.layout.pointing_to))
    if checkpoint is not None and fixes:
        against += not_acted_on(checkpoint)
        against += seen_in_part(tree, question, checkpoint)
        against += signs_of_writing(tree, grace=grace)
        against += unwritable(tree, fixes)
    return Repair(
        root=tree.inventory.root,
        layout=tree.inventory.layout,
        checkpoint=checkpoint,
        fixes=fixes,
        read=len(pointers),
        able=able,
        refusals=tuple(against),
        apply=apply,
        resolved_from=tree.resolved_from,
        named=choice.name not in {None, LATEST},
        prefix=choice.prefix,
        grace=grace,
        is_sure=not isinstance(point, NoResumePoint) or point.is_sure,
    )
