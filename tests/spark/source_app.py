"""An application that workers in Spark's tasks import; its place is the one they are told."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from dibs import Dibs, current_job

app = Dibs()


@app.queue("double").handler(max_stalls=3)
def double(data: int) -> int:
    return 2 * data


@app.queue("fatal").handler(max_stalls=3)
def fatal(data: dict[str, str]) -> str:
    """Takes the whole task down the first time: its own process, and the one that started it."""
    mark = Path(data["mark"])
    if not mark.exists():
        mark.touch()
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    return f"attempt {current_job().attempt}"
