"""How long until something happens: importing dibs, and `dibs worker` from nothing to its first job."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

from dibs import Dibs

#: Run as the application of a worker: its one job says when it began.
APPLICATION: Final = """
import time
from pathlib import Path
from dibs import Dibs

app = Dibs()


@app.task(queue="first")
def first(file: str) -> None:
    Path(file).write_text(str(time.monotonic()))
"""


def _timed(code: str) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return (time.perf_counter() - begun) * 1000


def import_ms(rounds: int) -> float:
    """Return the ms that `import dibs` adds to a bare interpreter, the median of pairs."""
    return median(_timed("import dibs") - _timed("pass") for _ in range(rounds))


def first_claim_ms(rounds: int) -> float:
    """Return the ms from starting `dibs worker` with one process until its first job runs, on files."""
    return median(_one_start() for _ in range(rounds))


def _one_start() -> float:
    with tempfile.TemporaryDirectory() as folder:
        url, told = f"file:{folder}/jobs", Path(folder) / "told"
        Path(folder, "application.py").write_text(APPLICATION)
        with Dibs(url).sync as place:
            place.queue("first").enqueue({"args": [str(told)], "kwargs": {}})
        words = ["-m", "dibs", "worker", "application:app", "--processes", "1"]
        begun = time.monotonic()
        with subprocess.Popen(
            [sys.executable, *words],
            cwd=folder,
            env={**os.environ, "DIBS_URL": url},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as worker:
            while not (told.exists() and told.read_text()):
                time.sleep(0.001)
            worker.terminate()
        return (float(told.read_text()) - begun) * 1000


def measure(rounds: int) -> dict[str, Any]:
    """Return both medians in ms."""
    return {"import_ms": round(import_ms(rounds)), "first_claim_ms": round(first_claim_ms(rounds))}
