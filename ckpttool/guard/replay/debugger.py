"""Python's debugger, opened in the training code at a point chosen by the guard."""

from __future__ import annotations

import pdb  # noqa: T100  it is opened on request
import sys
import sysconfig
from types import FrameType

_OURS = __file__.rpartition("/guard/")[0]
_FOREIGN = ("site-packages", "dist-packages", "<frozen", "<string>", sysconfig.get_paths()["stdlib"])
"""Parts of file names that do not belong to the training code."""


def open_debugger() -> bool:
    """Open a prompt immediately in the innermost frame of the training code.

    Returns:
        Whether training continues. False means that the user quit.
    """
    return _Debugger(nosigint=True).open(_own_frame())


def _own_frame() -> FrameType:
    frame: FrameType = sys._getframe(1)  # noqa: SLF001  as pdb itself does
    innermost: FrameType | None = frame
    while innermost is not None:
        name = innermost.f_code.co_filename
        if not name.startswith(_OURS) and not any(part in name for part in _FOREIGN):
            return innermost
        frame = innermost
        innermost = innermost.f_back
    return frame


class _Debugger(pdb.Pdb):
    def open(self, frame: FrameType) -> bool:
        """Open a prompt before anything else runs. `set_trace` would wait for the next line of the frame."""
        self.reset()
        above: FrameType | None = frame
        while above is not None:
            above.f_trace = self.trace_dispatch
            self.botframe = above
            above = above.f_back
        self.interaction(frame, None)
        if not self.quitting and (self.breaks or self.stoplineno != -1):  # it is not `continue`
            sys.settrace(self.trace_dispatch)
        return not self.quitting
