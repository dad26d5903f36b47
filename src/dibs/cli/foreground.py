"""The process group that a terminal serves: that of this process or that of the shell."""

from __future__ import annotations

import os
import sys
from typing import Final

#: Environment variable in which `dibs worker --reload` passes its process group to the worker. The worker has
#: a group of its own, because Ctrl-C in the terminal must not reach it.
PARENT_GROUP_VARIABLE: Final = "DIBS_PARENT_GROUP"


def is_in_foreground() -> bool:
    """Return whether the shell waits for this process and shows no prompt.

    It shows a prompt if the process was started with `&`, or stopped and continued in the background.
    """
    try:
        foreground = os.tcgetpgrp(sys.stdout.fileno())
    except OSError:
        # It is not the controlling terminal of this process, so no shell prints a prompt on it.
        return True
    return foreground in (os.getpgrp(), int(os.environ.get(PARENT_GROUP_VARIABLE, "0")))
