"""Execution of a user's command on an event, without a shell, and with names only in the environment."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress

from ckpttool.watch.answers import one_line
from ckpttool.watch.model import WatchEvent

HOOK_SECONDS = 60.0
"""Seconds after which a hook and all of its processes are killed."""


def run_hook(command: tuple[str, ...], event: WatchEvent, environment: Mapping[str, str]) -> str | None:
    """Run a hook, and return the error as text that follows the hook's name, or None on success.

    The hook runs in a separate process group, so that Ctrl-C at the terminal does not stop it. Its output goes to
    stderr, because stdout is reserved for the result.

    Args:
        command: The command, as `execvp` takes it.
        event: The event, which the hook gets on stdin as one line of JSON. Names never become part of the command.
        environment: Environment of the hook.
    """
    variables = {
        "CKPTTOOL_EVENT": event.kind.value,
        "CKPTTOOL_CHECKPOINT": event.name or "",
        "CKPTTOOL_STEP": "" if event.step is None else str(event.step),
        "CKPTTOOL_VERDICT": "" if event.word is None else event.word.value,
        "CKPTTOOL_ROOT": event.root,
    }
    try:
        process = subprocess.Popen(  # noqa: S603  the user's command, split into words
            command, stdin=subprocess.PIPE, stdout=2, env={**environment, **variables}, start_new_session=True
        )
    except (OSError, ValueError) as error:  # ValueError: a NUL in a name
        return f"cannot be started: {error}"
    try:
        process.communicate(f"{one_line(event)}\n".encode("ascii"), timeout=HOOK_SECONDS)
    except subprocess.TimeoutExpired:
        return f"did not end within {HOOK_SECONDS:.0f} s and was killed"
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return None if process.returncode == 0 else f"ended with exit code {process.returncode}"
