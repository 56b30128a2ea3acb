"""Start the PyNative trainer as its documentation describes for a script of one's own: `python start.py CONFIG`."""

import sys

import prepared  # noqa: F401  before the trainer
from mindformers.pynative.trainer import Trainer

Trainer(config=sys.argv[1]).train()
