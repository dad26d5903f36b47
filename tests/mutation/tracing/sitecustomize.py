"""Records which functions of dibs a test calls. Python imports this module at the start of every process.

Each call is written at once, because tests end many processes by SIGKILL. Processes that a test starts
inherit the name of the test in PYTEST_CURRENT_TEST.
"""

from __future__ import annotations

import os
import sys
import threading
from types import CodeType, FrameType

SOURCE = os.environ["DIBS_TRACED_SOURCE"]
FOLDER = os.environ["DIBS_TRACED_CALLS"]
_seen: set[tuple[CodeType, str | None]] = set()


def record(frame: FrameType, event: str, _argument: object) -> None:
    """Append "test, file, first line" of a called function to the file of this process, once a test."""
    code = frame.f_code
    if event != "call" or not code.co_filename.startswith(SOURCE):
        return
    test = os.environ.get("PYTEST_CURRENT_TEST")
    if test is None or (code, test) in _seen:
        return
    _seen.add((code, test))
    # The file is not kept open: a child process may close all descriptors and reuse their numbers.
    with open(f"{FOLDER}/{os.getpid()}", "a", encoding="utf-8") as calls:  # noqa: PTH123
        calls.write(f"{test}\t{code.co_filename[len(SOURCE) :]}\t{code.co_firstlineno}\n")


threading.settrace(record)
sys.settrace(record)
