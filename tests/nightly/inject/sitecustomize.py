"""Prepare every process of a real training for a machine without accelerators; Python imports this file by its name.

It runs in the trainer's Python. Once MindFormers' trainer is imported, the tiny training is registered with it.
"""

import importlib.abc
import importlib.machinery
import os
import sys
import types

TRAINER = "mindformers.trainer.trainer"
TRANSFORMS = "mindspore.dataset.transforms"


def give_py_transforms(module):
    """Add a submodule that older MindFormers imports and newer MindSpore no longer has; nothing of it is called."""
    if not hasattr(module, "py_transforms"):
        stub = types.ModuleType(f"{TRANSFORMS}.py_transforms")
        stub.PyTensorOperation = type("PyTensorOperation", (), {})
        sys.modules[stub.__name__] = stub
        module.py_transforms = stub


class AfterImport(importlib.abc.MetaPathFinder):
    """Run something of ours right behind the import of two modules."""

    def __init__(self):
        self.busy = set()

    def find_spec(self, name, path=None, target=None):
        if name not in (TRAINER, TRANSFORMS) or name in self.busy:
            return None
        self.busy.add(name)
        try:
            spec = importlib.machinery.PathFinder.find_spec(name, path)
        finally:
            self.busy.discard(name)
        if spec is not None:
            spec.loader = Loader(spec.loader)
        return spec


class Loader(importlib.abc.Loader):
    def __init__(self, real):
        self.real = real

    def create_module(self, spec):
        return self.real.create_module(spec)

    def exec_module(self, module):
        self.real.exec_module(module)
        if module.__name__ == TRANSFORMS:
            give_py_transforms(module)
        else:
            import tiny_training

            tiny_training.install()


if os.environ.get("CKPTTOOL_TRACE"):
    sys.meta_path.insert(0, AfterImport())
