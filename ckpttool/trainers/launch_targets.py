"""A resume plan as what starts it: a config that obeys it and the command to run."""

from __future__ import annotations

from ckpttool.trainers.launch_target import LaunchTarget
from ckpttool.trainers.mindformers.launch import MindFormers

TARGETS: tuple[LaunchTarget, ...] = (MindFormers(),)
"""Most specific first."""
