"""The ms of `import dibs`, and from the start of `dibs worker` to its first job."""

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

#: The application of the worker. Its job writes the time of its start to a file.
APPLICATION: Final = """
import time
from pathlib import Path
from dibs import Dibs

app = Dibs()


@app.task(queue="first")
def first(file: str) -> None:
    Path(file).write_text(str(time.monotonic()))
"""


def _run_ms(code: str, environment: dict[str, str]) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    return (time.perf_counter() - started) * 1000


def _import_ms(environment: dict[str, str]) -> float:
    """Return the ms that `import dibs` adds to the start of an interpreter."""
    return _run_ms("import dibs", environment) - _run_ms("pass", environment)


def _first_job_ms(environment: dict[str, str]) -> float:
    """Return the ms from the start of `dibs worker` with one process, on a file storage, to its first job."""
    with tempfile.TemporaryDirectory() as folder:
        url, started_file = f"file:{folder}/jobs", Path(folder) / "started"
        Path(folder, "application.py").write_text(APPLICATION)
        with Dibs(url).sync as app:
            app.queue("first").enqueue({"args": [str(started_file)], "kwargs": {}})
        command = [sys.executable, "-m", "dibs", "worker", "application:app", "--processes", "1"]
        started = time.monotonic()
        with subprocess.Popen(
            command,
            cwd=folder,
            env={**environment, "DIBS_URL": url},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as worker:
            while not (started_file.exists() and started_file.read_text()):
                time.sleep(0.001)
            worker.terminate()
        return (float(started_file.read_text()) - started) * 1000


def measure(rounds: int) -> dict[str, Any]:
    """Return the medians of both in ms.

    One start before the measurements writes all byte code, as pip does when it installs a package.
    """
    with tempfile.TemporaryDirectory() as byte_code:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": byte_code}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        _first_job_ms(environment)
        imports = [_import_ms(environment) for _ in range(rounds)]
        starts = [_first_job_ms(environment) for _ in range(rounds)]
    return {"import_ms": round(median(imports)), "first_claim_ms": round(median(starts))}
