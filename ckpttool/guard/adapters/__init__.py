"""The guard in trainers, each in a module that alone imports it."""

from __future__ import annotations

from ckpttool.guard import assert_torch

assert_torch()
