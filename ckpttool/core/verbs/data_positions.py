"""The positions of the data at the saves of a tree, according to the saved states of the data loaders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.finding import blocking
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.progress import newest_first

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint, CheckpointKey
    from ckpttool.core.domain.finding import Finding
    from ckpttool.core.domain.loader_state import SavedLoader
    from ckpttool.core.domain.verdict import Verdict
    from ckpttool.core.verbs.scanning import Tree

_MOST_KEPT = 4
"""Number of saves whose states stay in memory: a save, and the one before it, which is judged next."""


class Positions:
    """The states of a tree's data loaders; those of neighbouring saves are read only once."""

    def __init__(self, tree: Tree) -> None:
        """Store the tree."""
        self._tree = tree
        self._known: dict[CheckpointKey, tuple[SavedLoader, ...]] = {}

    def of(self, checkpoint: Checkpoint) -> tuple[SavedLoader, ...]:
        """Return the states of a save's loaders; empty if it has none, or if another machine has the files."""
        tree, key = self._tree, checkpoint.key
        if tree.trainer is None or tree.trainer.loaders_at is None or not tree.machines.is_here:
            return ()
        if key not in self._known:
            while len(self._known) >= _MOST_KEPT:
                self._known.pop(next(iter(self._known)))
            self._known[key] = tree.trainer.loaders(tree.storage, tree.inventory, checkpoint)
        return self._known[key]

    def completed(self, verdict: Verdict, checkpoint: Checkpoint) -> Verdict:
        """Add the findings about the data position to a verdict."""
        loaders = self.of(checkpoint)
        if not loaders:
            return verdict
        from ckpttool.core.decide.loader_positions import of_one_save
        from ckpttool.core.verify.session import completed

        is_newest = newest_first(self._tree.inventory.checkpoints)[0].key == checkpoint.key
        # A file that is wrong anyway, such as one of another save, has a wrong position too.
        wrong = {finding.path for finding in blocking(verdict.findings)}
        sound = tuple(loader for loader in loaders if loader.is_unsafe or loader.path not in wrong)
        findings = (*of_one_save(sound, is_newest=is_newest), *self._since_last(checkpoint, sound))
        return replace(verdict, findings=(*verdict.findings, *completed(findings, checkpoint)))

    def _since_last(self, checkpoint: Checkpoint, loaders: tuple[SavedLoader, ...]) -> list[Finding]:
        """Compare with the previous save of the run, unless the training went back to before this save."""
        before = self._before(checkpoint)
        if before is None:
            return []
        from ckpttool.core.decide.lineage import CLEARLY_NS, Lineage
        from ckpttool.core.decide.loader_positions import compared

        findings = compared(checkpoint, loaders, before, self.of(before))
        saved, saved_before = checkpoint.saved_ns, before.saved_ns
        is_of_older_branch = saved is not None and saved_before is not None and saved_before - saved > CLEARLY_NS
        if not findings or is_of_older_branch or Lineage(self._tree.inventory).abandoned(checkpoint) is not None:
            return []
        return findings

    def _before(self, checkpoint: Checkpoint) -> Checkpoint | None:
        """Return the save with the next lower step; samples, which order saves elsewhere, may be what is wrong."""
        step = checkpoint.step
        if step is None:
            return None
        earlier = []
        for save in self._tree.inventory.checkpoints:
            is_same_run = (save.prefix, save.run, save.format) == (checkpoint.prefix, checkpoint.run, checkpoint.format)
            if is_same_run and save.step is not None and save.step < step:
                earlier.append((save.step, save.name, save))
        return max(earlier)[-1] if earlier else None


def loaders_of(tree: Tree, checkpoint: Checkpoint, file: str | None) -> tuple[SavedLoader, ...]:
    """Return the states of a save's loaders, or only those in one of its files.

    Args:
        tree: The tree.
        checkpoint: The save.
        file: The file; None for the complete save.
    """
    if file is None or tree.trainer is not None:
        loaders = Positions(tree).of(checkpoint)
        return tuple(loader for loader in loaders if file is None or loader.path == file)
    from ckpttool.trainers.loader_states.files import loaders_in

    return tuple(loaders_in(tree.storage, file))
