"""The two commands of `ckpttool log`."""

from __future__ import annotations

from ckpttool.core.commands.helped import Command, command_group
from ckpttool.core.commands.options import exits
from ckpttool.health.commands_calibrate import calibrate
from ckpttool.health.commands_replay import replay

app = command_group("log")


@app.callback()
@exits(
    {
        0: "The replay is complete, or thresholds were computed.",
        10: "calibrate: the stretch is not normal.",
        12: "replay: --tree is not a checkpoint folder.",
        14: "A log could not be read, or contains too little data.",
    }
)
def log() -> None:
    """Replay a policy on a training log, or compute thresholds from it.

    Example: ckpttool log replay train.log --policy zscore
    """


app.command(cls=Command)(replay)
app.command(cls=Command)(calibrate)
