"""Whether a terminal shows this process or the prompt of the shell."""

from __future__ import annotations

import os
import sys
from typing import Final

#: Environment variable in which `dibs worker --reload` passes its process group to the worker. The worker has
#: a group of its own, because Ctrl-C in the terminal must not reach it.
PARENT_GROUP_VARIABLE: Final = "DIBS_PARENT_GROUP"


def is_in_foreground() -> bool:
    """Return False if this process was started with `&`, or stopped and continued with `bg`."""
    try:
        foreground = os.tcgetpgrp(sys.stdout.fileno())
    except OSError:
        # The terminal is not the one that controls this process, so no shell prints a prompt on it.
        return True
    return foreground in (os.getpgrp(), int(os.environ.get(PARENT_GROUP_VARIABLE, "0")))
