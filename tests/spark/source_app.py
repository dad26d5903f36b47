"""An application for workers in Spark tasks; `run_workers` sets the URL of its storage."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from dibs import Dibs, current_job

app = Dibs()


@app.queue("double").handler(max_stalls=3)
def double(data: int) -> int:
    return 2 * data


@app.queue("broken").handler(max_retries=0)
def broken(data: object) -> None:
    raise ValueError(data)


@app.queue("fatal").handler(max_stalls=3)
def fatal(data: dict[str, str]) -> str:
    """Kill the whole task the first time: this process and the supervisor that started it."""
    mark = Path(data["mark"])
    if not mark.exists():
        mark.touch()
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    return f"attempt {current_job().attempt}"
