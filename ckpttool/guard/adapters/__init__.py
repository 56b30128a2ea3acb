"""The guard in trainers, with one module per trainer."""

from __future__ import annotations

from ckpttool.guard import assert_torch

assert_torch()
