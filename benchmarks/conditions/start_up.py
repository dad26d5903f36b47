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


def _timed(code: str, environment: dict[str, str]) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    return (time.perf_counter() - begun) * 1000


def _one_import(environment: dict[str, str]) -> float:
    """Return the ms that `import dibs` adds to a bare interpreter."""
    return _timed("import dibs", environment) - _timed("pass", environment)


def _one_start(environment: dict[str, str]) -> float:
    """Return the ms from starting `dibs worker` with one process until its first job runs, on files."""
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
            env={**environment, "DIBS_URL": url},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as worker:
            while not (told.exists() and told.read_text()):
                time.sleep(0.001)
            worker.terminate()
        return (float(told.read_text()) - begun) * 1000


def measure(rounds: int) -> dict[str, Any]:
    """Return both medians in ms, with byte code at hand as pip leaves it: no start compiles twice."""
    with tempfile.TemporaryDirectory() as compiled:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        _one_start(environment)
        imports = [_one_import(environment) for _ in range(rounds)]
        starts = [_one_start(environment) for _ in range(rounds)]
    return {"import_ms": round(median(imports)), "first_claim_ms": round(median(starts))}
