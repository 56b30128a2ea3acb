"""A resume plan as what starts it: a config that obeys it and the command to run."""

from __future__ import annotations

from ckpttool.trainers.launch_target import LaunchConfig, LaunchJob, LaunchTarget
from ckpttool.trainers.mindformers.launch import MindFormers

TARGETS: tuple[LaunchTarget, ...] = (MindFormers(),)
"""Most specific first."""

__all__ = ["TARGETS", "LaunchConfig", "LaunchJob", "LaunchTarget", "MindFormers"]
